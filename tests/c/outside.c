/* A program that knows the installed header and library only (installed.sh). */
#include <ddstore.h>

#include <stdio.h>
#include <string.h>

int main(void)
{
    static const float data[3][4] = {{0, 1, 2, 3}, {10, 11, 12, 13}, {20, 21, 22, 23}};
    static const int64_t rows[] = {2, 0, 2};
    float got[3][4] = {{0}};
    ddstore_error err = {0};
    ddstore_comm *comm = NULL;
    ddstore *store = NULL;
    ddstore_var *var = NULL;
    ddstore_options options = {.struct_bytes = sizeof(options), .method = 1};
    ddstore_shard shard = {3, 4, sizeof(float), "<f4", data};
    int rc = ddstore_comm_open_self(&comm, &err);
    if (!rc)
        rc = ddstore_open(comm, &options, &store, &err);
    if (!rc)
        rc = ddstore_add(store, "x", &shard, &var, &err);
    if (!rc)
        rc = ddstore_get_batch(var, rows, 3, got, &err);
    if (rc) {
        fprintf(stderr, "%s: %s\n", ddstore_code_name(rc), err.message);
        return 1;
    }
    int same = !memcmp(got[0], data[2], sizeof(got[0])) &&
               !memcmp(got[1], data[0], sizeof(got[1])) &&
               !memcmp(got[2], data[2], sizeof(got[2]));
    ddstore_close(store);
    printf("%s: %s\n", ddstore_version(), same ? "the rows are right" : "WRONG ROWS");
    return !same;
}

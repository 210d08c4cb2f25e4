/* A program that knows the installed headers and libraries only (test_outside.py). */
#include <mpi.h>

#include <ddstore_mpi.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 100, WIDTH = 8 };

static int wrong(const int64_t *got, const int64_t *rows, size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < WIDTH; k++)
            if (got[i * WIDTH + k] != rows[i] * WIDTH + (int64_t)k) {
                fprintf(stderr, "row %lld is wrong\n", (long long)rows[i]);
                return 1;
            }
    return 0;
}

static int read_all(ddstore_var *var, size_t total, ddstore_error *err)
{
    int64_t *rows = malloc(total * sizeof(*rows));
    int64_t *got = calloc(total * WIDTH, sizeof(*got));
    int rc = rows && got ? DDSTORE_OK : DDSTORE_ENOMEM;
    for (size_t i = 0; !rc && i < total; i++) { /* each row alone */
        rows[i] = (int64_t)i;
        rc = ddstore_get(var, rows[i], 1, got, err);
        if (!rc && wrong(got, rows + i, 1))
            rc = 1;
    }
    for (size_t i = 0; !rc && i < total; i++)
        rows[i] = (int64_t)(total - 1 - i);
    if (!rc)
        rc = ddstore_get_batch(var, rows, total, got, err);
    if (!rc && wrong(got, rows, total))
        rc = 1;
    free(rows);
    free(got);
    return rc;
}

int main(int argc, char **argv)
{
    ddstore_error err = {0};
    ddstore_mpi *mpi = NULL;
    ddstore *store = NULL;
    ddstore_var *var = NULL;
    ddstore_options options = {.struct_bytes = sizeof(options), .method = 0};
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);

    int64_t data[ROWS * WIDTH];
    for (int64_t i = 0; i < ROWS * WIDTH; i++) /* tells row and column */
        data[i] = (int64_t)rank * ROWS * WIDTH + i;
    ddstore_shard shard = {ROWS, WIDTH, sizeof(*data), "<i8", data};
    int rc = ddstore_open_mpi(MPI_COMM_WORLD, &options, &mpi, &store, &err);
    if (!rc)
        rc = ddstore_add(store, "x", &shard, &var, &err);
    memset(data, 0, sizeof(data));
    if (!rc)
        rc = read_all(var, (size_t)size * ROWS, &err);
    if (rc < 0)
        fprintf(stderr, "rank %d: %s: %s\n", rank, ddstore_code_name(rc), err.message);
    if (rc)
        MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Barrier(MPI_COMM_WORLD);
    ddstore_close_mpi(store, mpi);
    MPI_Finalize();
    printf("rank %d of %d: the rows are right\n", rank, size);
    return 0;
}

/* What `ddstore info` says about libfabric and its providers. */
#include "ofi_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* Appends a line. */
static DDSTORE__PRINTF(3, 4) int add(char **text, size_t *bytes, const char *format,
                                     ...)
{
    char line[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    size_t length = strlen(line);
    char *all = realloc(*text, *bytes + length + 1);
    if (!all)
        return DDSTORE_ENOMEM;
    memcpy(all + *bytes, line, length + 1);
    *text = all;
    *bytes += length;
    return 0;
}

static int add_providers(const ddstore__ofi_choice *choice, char **text, size_t *bytes)
{
    bool taken = false;
    int rc = 0;
    for (size_t i = 0; i < choice->n && rc == 0; i++) {
        const ddstore__ofi_candidate *c = &choice->all[i];
        const char *state = *c->why ? "dropped, " : taken ? "usable" : "taken";
        char what[192];
        taken |= !*c->why;
        ddstore__ofi_describe(c->info, what, sizeof(what));
        rc = add(text, bytes, "provider\t%s: %s%s\n", what, state, c->why);
    }
    return rc;
}

int ddstore__ofi_probe(const ddstore__settings *settings, const char *nearest,
                       char **text, size_t *bytes)
{
    const ddstore__ofi_api *api;
    ddstore__ofi_choice choice;
    ddstore_error err = {0};
    if (ddstore__ofi_load(settings, &api, &err) != 0)
        return add(text, bytes,
                   "libfabric\tnot found, RDMA networks can't be used: %s\n",
                   err.message);
    uint32_t version = api->version();
    int rc = add(text, bytes, "libfabric\t%u.%u, %s\n", FI_MAJOR(version),
                 FI_MINOR(version), api->path);
    const char *filter = ddstore__environment("FI_PROVIDER");
    if (rc == 0 && filter)
        rc = add(text, bytes, "libfabric\tFI_PROVIDER=%s is set and hides others\n",
                 filter);
    if (rc == 0)
        rc = add(text, bytes, "rdma hardware\t%s\n",
                 ddstore__ofi_hardware("", NULL) ? "found" : "none found");
    if (rc != 0)
        return rc;
    if (ddstore__ofi_choose(settings, nearest, api, &choice, &err) != 0)
        return add(text, bytes, "provider\tnone: %s\n", err.message);
    if (choice.n == 0)
        rc = add(text, bytes, "provider\tnone\n");
    else
        rc = add_providers(&choice, text, bytes);
    ddstore__ofi_choice_free(&choice);
    return rc;
}

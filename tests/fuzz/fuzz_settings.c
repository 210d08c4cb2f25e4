/* Fuzzes the values and names of settings, given and in the environment: each is taken
 * or refused in a sentence that names it. */
#include "fuzz.h"

#include "settings.h"

#include <stdio.h>

static const char *name_of(size_t i)
{
    static ddstore_setting_info info;
    return ddstore_setting_describe(i, &info) == DDSTORE_OK ? info.name : NULL;
}

static void check_bounds(const ddstore__settings *s)
{
    must(s->shm == 0 || s->shm == 1);
    must(s->read_timeout_s >= 0.001 && s->read_timeout_s <= 1e9);
    must(s->max_read_bytes >= 1 && s->max_read_bytes <= 1000000000000000000u);
    must(s->rank >= -1 && s->rank <= INT32_MAX);
    must(s->method >= 0 && s->method <= 2);
    must(strcmp(s->log, "debug") == 0 || strcmp(s->log, "info") == 0 ||
         strcmp(s->log, "warn") == 0 || strcmp(s->log, "error") == 0 ||
         strcmp(s->log, "off") == 0);
}

static void load(const char *name, const char *value)
{
    ddstore_setting given = {name, value};
    ddstore__settings s;
    ddstore_error err = {0};
    int rc = ddstore__settings_load(&s, &given, 1, &err);
    must(rc == DDSTORE_OK || (rc == DDSTORE_EINVAL && err.code == rc));
    if (rc == DDSTORE_OK)
        check_bounds(&s);
    else
        must(strlen(name) > 500 || strstr(err.message, name));
    ddstore__settings_free(&s);
}

static void from_environment(const char *name, size_t i, const char *value)
{
    ddstore_setting_info info;
    setenv(name, value, 1);
    must(ddstore_setting_describe(i, &info) == DDSTORE_OK);
    must(memchr(info.value, '\0', sizeof(info.value)) != NULL);
    unsetenv(name);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t mode = take_mode(&data, &size);
    char *text = malloc(size + 1);
    must(text != NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    const char *name = name_of(mode);
    if (name) {
        load(name, text);
        from_environment(name, mode, text);
    } else if (mode % 2) {
        load(text, "1"); /* names that are none */
    } else {
        char identity[64];
        setenv("DDSTORE_RUN_ID", text, 1);
        ddstore__launch_identity(identity, sizeof(identity));
        must(strlen(identity) < sizeof(identity));
        unsetenv("DDSTORE_RUN_ID");
    }
    free(text);
    return 0;
}

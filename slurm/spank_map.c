/* The NIC map of this node, found once a boot: the first step that wants it has it
 * found, others wait for that one or read what it has kept. What fails is tried three
 * times a boot. */
#include "spank_parts.h"

#include "ddstore.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define FILE_NAME "nic_map"
#define LOCK_NAME "nic_map.lock"
#define TRIES     3

/* What is kept. */
struct kept {
    char *text; /* that the others point into */
    const char *how, *why, *map;
    uint64_t tries;
};

static void boot_id(char *out, size_t bytes)
{
    ssize_t n = -1;
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        n = read(fd, out, bytes - 1);
        close(fd);
    }
    out[n > 0 ? n : 0] = '\0';
    out[strcspn(out, "\n")] = '\0';
}

static bool is_map(const char *text)
{
    ddstore_nic_map *map = NULL;
    if (strlen(text) > DDSTORE__SPANK_MAP || ddstore_nic_map_parse(text, &map, NULL))
        return false;
    ddstore_nic_map_close(map);
    return true;
}

/* False: nothing of this boot that makes sense. */
static bool read_kept(int state, const char *boot, struct kept *k)
{
    char *key, *value;
    const char *of_boot = "";
    *k = (struct kept){
        .text = ddstore__state_read(state, FILE_NAME), .how = "", .why = "", .map = ""};
    if (!k->text || !ddstore__lines_whole(k->text))
        return false;
    for (char *rest = k->text; ddstore__lines_next(&rest, &key, &value);) {
        if (strcmp(key, "boot") == 0)
            of_boot = value;
        else if (strcmp(key, "how") == 0)
            k->how = value;
        else if (strcmp(key, "why") == 0)
            k->why = value;
        else if (strcmp(key, "map") == 0)
            k->map = value;
        else if (strcmp(key, "tries") == 0 &&
                 !ddstore__lines_number(value, 1000, &k->tries))
            return false;
    }
    if (strcmp(of_boot, boot) != 0)
        return false;
    return strcmp(k->how, "none") == 0 || strcmp(k->how, "failed") == 0 ||
           (strcmp(k->how, "found") == 0 && is_map(k->map));
}

/* Whether the question is answered. */
static bool answer(const struct kept *k, const char *state_path, int out)
{
    if (strcmp(k->how, "found") == 0)
        return ddstore__lines_put(out, "map", "%s", k->map);
    if (strcmp(k->how, "none") == 0)
        return true;
    if (k->tries < TRIES)
        return false;
    return ddstore__lines_put(out, "error",
                              "the NIC map is not tried for again before the next "
                              "boot, or until %s/" FILE_NAME " is removed: %s",
                              state_path, k->why);
}

static void keep(int state, const char *boot, const char *how, uint64_t tries,
                 const char *key, const char *value, int out)
{
    char why[DDSTORE__SPANK_REASON];
    char *text = NULL;
    if (state < 0)
        return;
    if (asprintf(&text, "boot %s\nhow %s\ntries %llu\n%s %s\nend\n", boot, how,
                 (unsigned long long)tries, key, value) < 0)
        return;
    if (!ddstore__state_write(state, FILE_NAME, text, why))
        (void)ddstore__lines_put(out, "error", "%s", why);
    free(text);
}

static void discover(int state, const char *boot, uint64_t tries, int out)
{
    ddstore_nic_map *map = NULL;
    ddstore_error err = {0};
    char *text = NULL;
    int rc = ddstore_nic_map_discover(NULL, &map, &err);
    if (!rc)
        rc = ddstore_nic_map_format(map, &text, &err);
    size_t bytes = rc ? 0 : strlen(text);
    for (char *p = err.message; *p; p++)
        if (*p == '\n')
            *p = ' ';
    if (!rc && bytes > DDSTORE__SPANK_MAP) {
        rc = DDSTORE_EINVAL;
        snprintf(err.message, sizeof(err.message),
                 "the NIC map has %zu bytes, more than the %d that are passed on",
                 bytes, DDSTORE__SPANK_MAP);
    }
    if (!rc) {
        keep(state, boot, "found", tries, "map", text, out);
        (void)ddstore__lines_put(out, "map", "%s", text);
    } else if (rc == DDSTORE_EFABRIC) {
        keep(state, boot, "none", tries, "why", err.message, out);
    } else {
        keep(state, boot, "failed", tries, "why", err.message, out);
        (void)ddstore__lines_put(out, "error", "the NIC map: %s", err.message);
    }
    if (text)
        ddstore_release(text);
    ddstore_nic_map_close(map);
}

void ddstore__map_find(int state, const char *state_path, int out)
{
    struct kept k = {0};
    char boot[64];
    boot_id(boot, sizeof(boot));
    if (state < 0) {
        discover(state, boot, 1, out);
        return;
    }
    bool answered = read_kept(state, boot, &k) && answer(&k, state_path, out);
    if (!answered) {
        free(k.text);
        /* The lock goes with its holder. */
        int lock =
            openat(state, LOCK_NAME, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (lock >= 0)
            (void)flock(lock, LOCK_EX);
        bool kept = read_kept(state, boot, &k);
        if (!kept || !answer(&k, state_path, out)) {
            uint64_t tries = kept ? k.tries + 1 : 1;
            /* This stays where finding out takes too long, or crashes. */
            keep(state, boot, "failed", tries, "why", "it took too long or crashed",
                 out);
            discover(state, boot, tries, out);
        }
        if (lock >= 0)
            close(lock);
    }
    free(k.text);
}

/* Fuzzes the text of NIC maps: each is refused in a sentence that shows the place, or
 * read, written and read again as the same; and a choice from it is one of its NICs. */
#include "fuzz.h"

#include "nic_map.h"

static void check_cpus(const ddstore_nic_map *map)
{
    ddstore_nic_cpu it;
    for (int cpu = 0; cpu < DDSTORE__CPU_MAX; cpu++) {
        int rc = ddstore_nic_map_cpu(map, cpu, &it);
        must(rc == DDSTORE_OK || rc == DDSTORE_EKEY || rc == DDSTORE_EINDEX);
        if (rc == DDSTORE_EINDEX)
            return;
        must(rc != DDSTORE_OK || ddstore__nic_name_fits(it.nic));
    }
}

static void check_choice(const ddstore_nic_map *map, uint8_t mode)
{
    ddstore__cpus own = {{0}};
    ddstore_nic_choice it;
    bool known = false;
    ddstore__cpus_add(&own, mode);
    ddstore__nic_map_pick(map, &own, mode, &it);
    must(memchr(it.why, '\0', sizeof(it.why)) != NULL);
    for (size_t i = 0; i < map->n; i++)
        if (strcmp(map->nics[i].name, it.nic) == 0)
            known = !it.near || ddstore__cpus_have(&map->nics[i].cpus, mode);
    must(known);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t mode = take_mode(&data, &size);
    char *text = malloc(size + 1), *once, *twice;
    ddstore_nic_map *map, *again;
    ddstore_error err = {0};
    must(text != NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    int rc = ddstore_nic_map_parse(text, &map, &err);
    must(rc == DDSTORE_OK || (rc == DDSTORE_EINVAL && err.code == rc &&
                              strstr(err.message, "wrong at character ")));
    if (rc == DDSTORE_OK) {
        check_cpus(map);
        check_choice(map, mode);
        must(ddstore_nic_map_format(map, &once, &err) == DDSTORE_OK);
        must(ddstore_nic_map_parse(once, &again, &err) == DDSTORE_OK);
        must(ddstore_nic_map_format(again, &twice, &err) == DDSTORE_OK);
        must(strcmp(once, twice) == 0);
        ddstore_release(once);
        ddstore_release(twice);
        ddstore_nic_map_close(map);
        ddstore_nic_map_close(again);
    }
    free(text);
    return 0;
}

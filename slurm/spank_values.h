/* The variables that the plugin sets for tasks, and whose each of them is. */
#ifndef DDSTORE_SPANK_VALUES_H
#define DDSTORE_SPANK_VALUES_H

#include <slurm/spank.h>
#include <stdbool.h>
#include <stdint.h>

enum ddstore__value {
    DDSTORE__VALUE_DIR,
    DDSTORE__VALUE_MAP,
    DDSTORE__VALUE_CORE,
    DDSTORE__VALUES
};

typedef struct ddstore__values {
    bool there[DDSTORE__VALUES];
    bool ours[DDSTORE__VALUES]; /* set by this plugin before */
    bool set_there;             /* DDSTORE_SPANK_SET */
} ddstore__values;

/* What a job's environment holds. dir_of: whose number the job's directory has. */
void ddstore__values_read(spank_t spank, uint32_t dir_of, ddstore__values *out);
/* Whether the user has set it. */
bool ddstore__values_users(const ddstore__values *v, enum ddstore__value which);
/* Sets the values that are given and removes what was the plugin's and is given no
 * more. error: "" removes an earlier one. */
void ddstore__values_write(spank_t spank, const ddstore__values *v, uint32_t dir_of,
                           const char *const given[DDSTORE__VALUES], const char *error);

#endif

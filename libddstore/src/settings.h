/* Settings: one table (settings.def) makes the struct, the parser and their
 * description. */
#ifndef DDSTORE_SETTINGS_H
#define DDSTORE_SETTINGS_H

#include "base.h"

typedef char *ddstore__text; /* "" where unset */
typedef char *ddstore__word; /* one of the words of its row */
typedef int ddstore__flag;   /* 0 or 1 */
typedef int64_t ddstore__count;
typedef uint64_t ddstore__bytes;
typedef double ddstore__seconds;

typedef struct ddstore__settings {
#define SETTING(kind, field, name, fallback, low, high, words, help)                   \
    ddstore__##kind field;
#include "settings.def"
#undef SETTING
} ddstore__settings;

/* Reads all settings: given ones first, then the environment, then the defaults. A bad
 * value is DDSTORE_EINVAL and names variable, value and what is allowed. Free with
 * ddstore__settings_free, also after failure. */
int ddstore__settings_load(ddstore__settings *out, const ddstore_setting *given,
                           size_t n, ddstore_error *err);
void ddstore__settings_free(ddstore__settings *s);

/* Warns once a process about DDSTORE_* variables that no setting has, with the nearest.
 */
void ddstore__settings_warn_unknown(void);

/* The identity of the launch that started this process, the same for all its ranks:
 * Slurm's job, step and restart count, or the run id of Open MPI, PMI or torchrun, or
 * DDSTORE_RUN_ID (which wins). A job that is requeued gets another one. "" where
 * nothing tells. */
void ddstore__launch_identity(char *out, size_t bytes);

/* The value of any environment variable; NULL where unset or empty. */
const char *ddstore__environment(const char *name);

/* Sets a variable that nobody set, before a library is loaded that reads it. */
void ddstore__environment_default(const char *name, const char *value);

#endif

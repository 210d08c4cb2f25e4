/* Settings: the one place that reads the environment. */
#include "settings.h"

#include <errno.h>
#include <locale.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

extern char **environ;

enum kind { KIND_text, KIND_word, KIND_flag, KIND_count, KIND_bytes, KIND_seconds };

static const struct row {
    enum kind kind;
    size_t at;
    const char *name, *fallback;
    double low, high;
    const char *words, *help;
} rows[] = {
#define SETTING(kind, field, name, fallback, low, high, words, help)                   \
    {                                                                                  \
        KIND_##kind, offsetof(ddstore__settings, field),                               \
        name,        fallback,                                                         \
        low,         high,                                                             \
        words,       help},
#include "settings.def"
#undef SETTING
};

static const char *const kind_names[] = {"text",  "word",  "flag",
                                         "count", "bytes", "seconds"};

const char *ddstore__environment(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

void ddstore__environment_default(const char *name, const char *value)
{
    (void)!setenv(name, value, 0);
}

static const char *allowed(const struct row *row, char *out, size_t bytes)
{
    switch (row->kind) {
    case KIND_text:
        snprintf(out, bytes, "any text");
        break;
    case KIND_word:
        snprintf(out, bytes, "one of %s", row->words);
        break;
    case KIND_flag:
        snprintf(out, bytes, "0 or 1");
        break;
    case KIND_count:
        snprintf(out, bytes, "an integer from %.0f to %.0f", row->low, row->high);
        break;
    case KIND_bytes:
        snprintf(out, bytes, "bytes from %.0f to %.3g, K, M and G allowed", row->low,
                 row->high);
        break;
    case KIND_seconds:
        snprintf(out, bytes, "seconds from %g to %g", row->low, row->high);
        break;
    }
    return out;
}

/* A word of `words`; one that ends in NAME stands for any text there. */
static bool known_word(const char *words, const char *value)
{
    size_t n = strlen(value);
    for (const char *w = words; *w;) {
        size_t len = strcspn(w, "|");
        bool open = len > 4 && memcmp(w + len - 4, "NAME", 4) == 0;
        if (open ? n > len - 4 && memcmp(w, value, len - 4) == 0
                 : n == len && memcmp(w, value, n) == 0)
            return true;
        w += len + (w[len] == '|');
    }
    return false;
}

static bool parse_bytes(const char *value, double *out, uint64_t *exact)
{
    char *end;
    errno = 0;
    if (*value < '0' || *value > '9')
        return false;
    unsigned long long n = strtoull(value, &end, 10);
    int shift = 0;
    if (*end == 'K' || *end == 'k')
        shift = 10;
    else if (*end == 'M' || *end == 'm')
        shift = 20;
    else if (*end == 'G' || *end == 'g')
        shift = 30;
    if (errno || end[shift != 0] != '\0' || (shift && n > UINT64_MAX >> shift))
        return false;
    *exact = (uint64_t)n << shift;
    *out = (double)*exact;
    return true;
}

static bool parse_number(enum kind kind, const char *value, double *out, int64_t *exact)
{
    char *end;
    errno = 0;
    if (!*value || strchr(" \t\n", *value))
        return false;
    if (kind == KIND_seconds) {
        /* By a point, whatever the host program's locale says. */
        locale_t plain = newlocale(LC_NUMERIC_MASK, "C", (locale_t)0);
        *out = plain ? strtod_l(value, &end, plain) : strtod(value, &end);
        if (plain)
            freelocale(plain);
    } else {
        *exact = strtoll(value, &end, 10);
        *out = (double)*exact;
    }
    return !errno && *end == '\0' && *out == *out;
}

/* Sets the row's field from value; false where the value is not allowed. */
static bool set(ddstore__settings *s, const struct row *row, const char *value)
{
    void *field = (char *)s + row->at;
    double number = 0;
    uint64_t bytes = 0;
    int64_t count = 0;
    switch (row->kind) {
    case KIND_word:
        if (!known_word(row->words, value))
            return false;
        /* fall through */
    case KIND_text:
        free(*(char **)field);
        *(char **)field = strdup(value);
        return *(char **)field != NULL;
    case KIND_bytes:
        if (!parse_bytes(value, &number, &bytes) || number < row->low ||
            number > row->high)
            return false;
        *(uint64_t *)field = bytes;
        return true;
    case KIND_flag:
    case KIND_count:
    case KIND_seconds:
        if (!parse_number(row->kind, value, &number, &count) || number < row->low ||
            number > row->high)
            return false;
        break;
    }
    if (row->kind == KIND_seconds)
        *(double *)field = number;
    else if (row->kind == KIND_flag)
        *(int *)field = (int)count;
    else
        *(int64_t *)field = count;
    return true;
}

static const char *value_of(const struct row *row, const ddstore_setting *given,
                            size_t n)
{
    for (size_t i = n; i-- > 0;)
        if (strcmp(given[i].name, row->name) == 0)
            return given[i].value;
    const char *value = ddstore__environment(row->name);
    return value ? value : row->fallback;
}

static int check_given(const ddstore_setting *given, size_t n, ddstore_error *err)
{
    for (size_t i = 0; i < n; i++) {
        size_t r = 0;
        if (!given[i].name || !given[i].value)
            return ddstore__fail(err, DDSTORE_EINVAL,
                                 "setting %s is given without a name or a value",
                                 given[i].name ? given[i].name : "(none)");
        while (r < DDSTORE__COUNT(rows) && strcmp(rows[r].name, given[i].name) != 0)
            r++;
        if (r == DDSTORE__COUNT(rows))
            return ddstore__fail(err, DDSTORE_EINVAL, "there is no setting named %s",
                                 given[i].name);
    }
    return DDSTORE_OK;
}

int ddstore__settings_load(ddstore__settings *out, const ddstore_setting *given,
                           size_t n, ddstore_error *err)
{
    memset(out, 0, sizeof(*out));
    int rc = check_given(given, n, err);
    if (rc)
        return rc;
    for (size_t r = 0; r < DDSTORE__COUNT(rows); r++) {
        const char *value = value_of(&rows[r], given, n);
        char what[256];
        if (set(out, &rows[r], value))
            continue;
        (void)set(out, &rows[r], rows[r].fallback);
        if (!rc)
            rc = ddstore__fail(err, DDSTORE_EINVAL, "%s=%.100s is not allowed: give %s",
                               rows[r].name, value,
                               allowed(&rows[r], what, sizeof(what)));
    }
    ddstore__settings_warn_unknown();
    return rc;
}

void ddstore__settings_free(ddstore__settings *s)
{
    for (size_t r = 0; r < DDSTORE__COUNT(rows); r++)
        if (rows[r].kind == KIND_text || rows[r].kind == KIND_word) {
            char **field = (char **)(void *)((char *)s + rows[r].at);
            free(*field);
            *field = NULL;
        }
}

int ddstore_setting_describe(size_t i, ddstore_setting_info *out)
{
    static _Thread_local char what[256];
    if (i >= DDSTORE__COUNT(rows))
        return DDSTORE_EINDEX;
    const struct row *row = &rows[i];
    const char *given = ddstore__environment(row->name);
    ddstore__settings scratch;
    memset(&scratch, 0, sizeof(scratch));
    *out = (ddstore_setting_info){
        .name = row->name,
        .kind = kind_names[row->kind],
        .fallback = row->fallback,
        .allowed = allowed(row, what, sizeof(what)),
        .help = row->help,
        .origin = given ? "environment" : "default",
        .bad = given && !set(&scratch, row, given),
    };
    snprintf(out->value, sizeof(out->value), "%s", given ? given : row->fallback);
    ddstore__settings_free(&scratch);
    return DDSTORE_OK;
}

/* Levenshtein distance of two short names, by one row of the usual table. */
static size_t distance(const char *a, const char *b)
{
    size_t row[64], n = strlen(b);
    if (n >= DDSTORE__COUNT(row))
        return SIZE_MAX;
    for (size_t j = 0; j <= n; j++)
        row[j] = j;
    for (; *a; a++) {
        size_t corner = row[0]++;
        for (size_t j = 1; j <= n; j++) {
            size_t best = corner + (*a != b[j - 1]);
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            corner = row[j];
            row[j] = best;
        }
    }
    return row[n];
}

static void warn_one(const char *entry)
{
    char name[64];
    size_t n = strcspn(entry, "=");
    if (n >= sizeof(name))
        n = sizeof(name) - 1;
    memcpy(name, entry, n);
    name[n] = '\0';
    if (strcmp(name, "DDSTORE_MPI") == 0) /* of the build, and often left set */
        return;
    size_t nearest = 0, best = SIZE_MAX;
    for (size_t r = 0; r < DDSTORE__COUNT(rows); r++) {
        size_t d = distance(name, rows[r].name);
        if (d == 0)
            return;
        if (d < best)
            best = d, nearest = r;
    }
    ddstore__log(DDSTORE_LOG_WARN,
                 "%s is no setting of this library (did you mean %s?)", name,
                 rows[nearest].name);
}

static void warn_unknown(void)
{
    for (char **e = environ; e && *e; e++)
        if (strncmp(*e, "DDSTORE_", 8) == 0)
            warn_one(*e);
}

void ddstore__settings_warn_unknown(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, warn_unknown);
}

static size_t join_identity(char *out, size_t bytes, const char *kind,
                            const char *const *names)
{
    size_t used = (size_t)snprintf(out, bytes, "%s", kind);
    for (; *names && used < bytes; names++) {
        const char *value = ddstore__environment(*names);
        used += (size_t)snprintf(out + used, bytes - used, ":%s", value ? value : "0");
    }
    return used;
}

void ddstore__launch_identity(char *out, size_t bytes)
{
    static const char *const slurm[] = {"SLURM_JOB_ID", "SLURM_STEP_ID",
                                        "SLURM_RESTART_COUNT", NULL};
    /* The first name of a list decides whether its launcher started this process. */
    static const struct {
        const char *kind, *names[5];
        bool too; /* in a step of Slurm, this is added: its own is often the same */
    } launchers[] = {
        {"run", {"DDSTORE_RUN_ID"}, false},
        {"ompi", {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}, false},
        {"ompi", {"OMPI_MCA_orte_hnp_uri"}, false},
        {"torchrun",
         {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT"},
         true},
        {"slurm", {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"}, false},
        {"pmi", {"PMI_JOBID"}, false},
    };
    bool step = ddstore__environment("SLURM_STEP_ID") != NULL;
    *out = '\0';
    for (size_t i = 0; i < DDSTORE__COUNT(launchers); i++) {
        const char *value = ddstore__environment(launchers[i].names[0]);
        /* srun's own PMIx doesn't count restarts. */
        if (!value || (step && strncmp(value, "slurm.pmix.", 11) == 0))
            continue;
        size_t used = join_identity(out, bytes, launchers[i].kind, launchers[i].names);
        if (step && launchers[i].too && used < bytes)
            (void)join_identity(out + used, bytes - used, ":slurm", slurm);
        return;
    }
}

/* The SPANK plugin: what Slurm calls, and in which order the parts do their work.
 *
 *   slurmstepd, root     init, options, init_post_opt: the name of the directory, the
 *                        note of it, the NIC map
 *   slurmstepd, as user  user_init: the directory is made, variables are set
 *   the batch script's   task_init: the same, since only there Slurm tells the restart
 *     process            count
 *   the job's end, root  job_epilog: the directory is removed, as the user
 *
 * Whatever happens, every call succeeds: an error here would drain the node. */
#include "spank_parts.h"
#include "spank_values.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BATCH_STEP  0xfffffffbu
#define EXTERN_STEP 0xfffffffcu

#pragma GCC visibility push(default)
SPANK_PLUGIN(ddstore, 1)
spank_f slurm_spank_init, slurm_spank_init_post_opt, slurm_spank_user_init,
    slurm_spank_task_init, slurm_spank_job_epilog;
#pragma GCC visibility pop

static ddstore__spank_config config;
static ddstore__spank_options options;

/* One step on this node, as init_post_opt leaves it for the calls behind it. */
static struct step {
    uint32_t job, id, node, dir_of;
    bool dir; /* it gets the job's directory */
    bool map;
    char base[DDSTORE__SPANK_PATH];       /* of the directory, or of that to join */
    char nic_map[DDSTORE__SPANK_MAP + 1]; /* "": none */
    char error[DDSTORE__SPANK_REASON];
    int note; /* the batch script's, which lacks the restart count; -1 */
    ddstore__spank_user user;
} step = {.note = -1};

/* One line, also where an option had several. */
static void complain(const char *what)
{
    size_t used = strlen(step.error);
    char *begin = step.error + used;
    snprintf(begin, sizeof(step.error) - used, "%s%s", used ? "; " : "", what);
    for (char *p = begin; *p; p++)
        if ((unsigned char)*p < ' ' || *p == 0x7f)
            *p = '?';
    slurm_error("spank_ddstore: %s", used && *begin ? begin + 2 : begin);
}

/* ---- options ---- */

/* srun, sbatch and salloc tell at once what is wrong, and go on. */
static int taken(int remote)
{
    if (!remote && options.wrong[0])
        slurm_error("spank_ddstore: %s", options.wrong);
    return 0;
}

static int take_use(int value, const char *argument, int remote)
{
    (void)value;
    ddstore__option_use(&options, argument);
    return taken(remote);
}

static int take_dir(int value, const char *argument, int remote)
{
    (void)value;
    ddstore__option_dir(&options, argument);
    return taken(remote);
}

static int take_join(int value, const char *argument, int remote)
{
    (void)value;
    ddstore__option_join(&options, argument);
    return taken(remote);
}

static struct spank_option table[] = {
    {.name = (char *)"ddstore",
     .arginfo = (char *)"yes|no",
     .usage = (char *)"a directory and a NIC map for ddstore (no: neither)",
     .has_arg = 2,
     .cb = take_use},
    {.name = (char *)"ddstore-dir",
     .arginfo = (char *)"DIR",
     .usage = (char *)"where ddstore's directory of the job is made (%u user, %j job)",
     .has_arg = 1,
     .cb = take_dir},
    {.name = (char *)"ddstore-join",
     .arginfo = (char *)"JOBID[.STEP]",
     .usage = (char *)"ddstore's directory is that of another job",
     .has_arg = 1,
     .cb = take_join},
};

int slurm_spank_init(spank_t spank, int argc, char *argv[])
{
    ddstore__config_read(argc, argv, &config);
    ddstore__child_budget(config.timeout_ms);
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (spank_option_register(spank, &table[i]) != ESPANK_SUCCESS)
            slurm_debug("spank_ddstore: no option --%s here", table[i].name);
    return ESPANK_SUCCESS;
}

static bool is_wanted(void)
{
    if (options.wish != DDSTORE__WISH_NONE)
        return options.wish == DDSTORE__WISH_YES;
    return config.always || options.dir[0] || options.join || options.wrong[0];
}

/* ---- what the job is ---- */

static int64_t number_of(spank_t spank, const char *name)
{
    char text[32] = "";
    uint64_t n;
    if (spank_getenv(spank, name, text, sizeof(text)) != ESPANK_SUCCESS ||
        !ddstore__lines_number(text, UINT32_MAX, &n))
        return -1;
    return (int64_t)n;
}

/* All components of a heterogeneous job share the directory of the first. The variables
 * may be of a job that has submitted this one; then this job is not among them. */
static uint32_t first_component(spank_t spank, uint32_t job)
{
    int64_t first = number_of(spank, "SLURM_JOB_ID_HET_GROUP_0"), one = first;
    for (int i = 1; one >= 0 && one != job; i++) {
        char name[48];
        snprintf(name, sizeof(name), "SLURM_JOB_ID_HET_GROUP_%d", i);
        one = number_of(spank, name);
    }
    return one == job && first > 0 ? (uint32_t)first : job;
}

/* A job that a requeued one has submitted gets that one's count; its own, if it has
 * one, Slurm sets in the task. */
static void forget_restarts(spank_t spank)
{
    if (step.id == BATCH_STEP && number_of(spank, "SLURM_RESTART_COUNT") >= 0)
        (void)spank_unsetenv(spank, "SLURM_RESTART_COUNT");
}

static uint32_t restart_count(spank_t spank)
{
    uint32_t count = 0;
    if (spank_get_item(spank, S_SLURM_RESTART_COUNT, &count) != ESPANK_SUCCESS)
        count = 0; /* 22.05 has it at 0 always */
    int64_t told = number_of(spank, "SLURM_RESTART_COUNT");
    return told > (int64_t)count ? (uint32_t)told : count;
}

static bool know_job(spank_t spank)
{
    gid_t *groups = NULL;
    int n = 0;
    if (spank_get_item(spank, S_JOB_ID, &step.job) != ESPANK_SUCCESS ||
        spank_get_item(spank, S_JOB_STEPID, &step.id) != ESPANK_SUCCESS ||
        spank_get_item(spank, S_JOB_UID, &step.user.uid) != ESPANK_SUCCESS ||
        spank_get_item(spank, S_JOB_GID, &step.user.gid) != ESPANK_SUCCESS)
        return false;
    if (spank_get_item(spank, S_JOB_NODEID, &step.node) != ESPANK_SUCCESS)
        step.node = 0;
    if (spank_get_item(spank, S_JOB_SUPPLEMENTARY_GIDS, &groups, &n) ==
            ESPANK_SUCCESS &&
        groups && n > 0) {
        step.user.groups = groups;
        step.user.n_groups = (size_t)n;
    }
    step.dir_of = first_component(spank, step.job);
    return true;
}

/* ---- as root, before the step's restrictions ---- */

struct preparation {
    const char *template;
    uint32_t job; /* %j */
    int64_t restart;
    bool note, map;
};

static bool prepare_base(const struct preparation *p, int state, int out)
{
    char base[DDSTORE__SPANK_PATH], why[DDSTORE__SPANK_REASON];
    ddstore__spank_note note = {.job = step.job,
                                .dir_of = step.dir_of,
                                .restart = p->restart,
                                .user = step.user,
                                .base = base};
    if (!ddstore__config_expand(p->template, step.user.uid, p->job, base, why))
        return ddstore__lines_put(out, "error", "%s", why);
    (void)ddstore__lines_put(out, "base", "%s", base);
    if (!p->note || (state >= 0 && ddstore__note_write(state, &note, out, why)))
        return true;
    return ddstore__lines_put(out, "error",
                              "nobody will remove the job's directory: %s",
                              state >= 0 ? why : "there is no state");
}

static void prepare(void *arg, int out)
{
    const struct preparation *p = arg;
    char why[DDSTORE__SPANK_REASON];
    int state = -1;
    if (p->note || p->map) {
        state = ddstore__state_open(config.state, why);
        if (state < 0)
            (void)ddstore__lines_put(out, "error", "%s", why);
    }
    if (*p->template)
        (void)prepare_base(p, state, out);
    if (p->map)
        ddstore__map_find(state, config.state, out);
}

/* Only the batch script's note is written to once more. */
static void open_note(const char *name)
{
    char path[DDSTORE__SPANK_PATH + 128];
    if (step.id != BATCH_STEP)
        return;
    snprintf(path, sizeof(path), "%s/%s", config.state, name);
    step.note = open(path, O_WRONLY | O_APPEND | O_NOFOLLOW | O_CLOEXEC);
}

static void run_preparation(struct preparation *p)
{
    const ddstore__spank_errand errand = {
        .what = "preparing a step", .work = prepare, .arg = p};
    ddstore__spank_answer answer;
    char *key, *value;
    ddstore__child_run(&errand, 65, &answer); /* user_init gets the rest */
    for (char *rest = answer.text; rest && ddstore__lines_next(&rest, &key, &value);) {
        if (strcmp(key, "base") == 0)
            snprintf(step.base, sizeof(step.base), "%s", value);
        else if (strcmp(key, "map") == 0)
            snprintf(step.nic_map, sizeof(step.nic_map), "%s", value);
        else if (strcmp(key, "note") == 0)
            open_note(value);
        else if (strcmp(key, "error") == 0)
            complain(value);
    }
    if (answer.why[0])
        complain(answer.why);
    free(answer.text);
}

static void prepare_step(spank_t spank, const ddstore__values *values)
{
    bool user_dir = ddstore__values_users(values, DDSTORE__VALUE_DIR);
    const char *template = options.dir[0] ? options.dir : config.dir;
    step.dir = !options.wrong[0] && (options.join || !user_dir);
    step.map = config.map && !ddstore__values_users(values, DDSTORE__VALUE_MAP);
    if (step.dir && !*template) {
        step.dir = false;
        if (options.join || options.wish == DDSTORE__WISH_YES)
            complain("there is no directory: plugstack.conf has no dir=, and "
                     "--ddstore-dir isn't given");
    }
    struct preparation p = {
        .template = step.dir ? template : "",
        .job = options.join ? options.join_job : step.dir_of,
        .restart = step.id == BATCH_STEP ? -1 : (int64_t)restart_count(spank),
        .note = step.dir && !options.join && step.node == 0,
        .map = step.map};
    if (step.dir || step.map)
        run_preparation(&p);
}

int slurm_spank_init_post_opt(spank_t spank, int argc, char *argv[])
{
    ddstore__values values;
    (void)argc, (void)argv;
    if (spank_remote(spank) != 1 || !know_job(spank) || step.id == EXTERN_STEP)
        return ESPANK_SUCCESS;
    if (config.wrong[0])
        complain(config.wrong);
    if (!is_wanted()) {
        step.error[0] = '\0'; /* the log has it; this user asked for nothing */
        return ESPANK_SUCCESS;
    }
    if (options.wrong[0])
        complain(options.wrong);
    forget_restarts(spank);
    ddstore__values_read(spank, step.dir_of, &values);
    prepare_step(spank, &values);
    return ESPANK_SUCCESS;
}

/* ---- as the user ---- */

struct found {
    char dir[DDSTORE__SPANK_PATH];
    char core[16];
};

static void find_dir(uint32_t restart, struct found *found)
{
    ddstore__spank_dir dir = {.base = step.base,
                              .job = options.join ? options.join_job : step.dir_of,
                              .restart = restart,
                              .step = options.join ? options.join_step : -1};
    const ddstore__spank_errand errand = {
        .what =
            options.join ? "looking for the job to join" : "making the job's directory",
        .work = options.join ? ddstore__jobdir_join : ddstore__jobdir_make,
        .arg = &dir};
    ddstore__spank_answer answer;
    char *key, *value;
    bool refused = false;
    ddstore__child_run(&errand, 100, &answer);
    for (char *rest = answer.text; rest && ddstore__lines_next(&rest, &key, &value);) {
        if (strcmp(key, "dir") == 0)
            snprintf(found->dir, sizeof(found->dir), "%s", value);
        else if (strcmp(key, "core") == 0)
            snprintf(found->core, sizeof(found->core), "%s", value);
        else if (strcmp(key, "error") == 0) {
            refused = true;
            complain(value);
        }
    }
    if (answer.why[0] && options.join && !refused && !found->dir[0]) {
        slurm_error("spank_ddstore: %s", answer.why);
        char name[DDSTORE__SPANK_NAME];
        ddstore__jobdir_name(dir.job, 0, name);
        snprintf(found->dir, sizeof(found->dir), "%.4000s/%s", step.base, name);
    } else if (answer.why[0]) {
        complain(answer.why);
    }
    free(answer.text);
}

/* Gives the step its variables, and the directory that they name. */
static void equip(spank_t spank)
{
    static struct found found;
    ddstore__values values;
    const char *given[DDSTORE__VALUES] = {NULL};
    ddstore__values_read(spank, step.dir_of, &values);
    if (step.dir && step.base[0]) {
        uint32_t restart = restart_count(spank);
        if (step.note >= 0 && !ddstore__note_restart(step.note, restart))
            complain("nobody will remove the job's directory: the note of it can't be "
                     "written");
        find_dir(restart, &found);
    }
    if (found.dir[0])
        given[DDSTORE__VALUE_DIR] = found.dir;
    if (found.core[0] && !ddstore__values_users(&values, DDSTORE__VALUE_CORE))
        given[DDSTORE__VALUE_CORE] = found.core;
    if (step.nic_map[0])
        given[DDSTORE__VALUE_MAP] = step.nic_map;
    ddstore__values_write(spank, &values, step.dir_of, given, step.error);
}

int slurm_spank_user_init(spank_t spank, int argc, char *argv[])
{
    (void)argc, (void)argv;
    if (spank_remote(spank) == 1 && step.job && step.id != EXTERN_STEP &&
        step.id != BATCH_STEP)
        equip(spank);
    return ESPANK_SUCCESS;
}

int slurm_spank_task_init(spank_t spank, int argc, char *argv[])
{
    (void)argc, (void)argv;
    if (spank_remote(spank) == 1 && step.job && step.id == BATCH_STEP)
        equip(spank);
    return ESPANK_SUCCESS;
}

/* ---- when the job ends ---- */

/* Here Slurm 22.05 crashes on everything but spank_get_item. */
int slurm_spank_job_epilog(spank_t spank, int argc, char *argv[])
{
    uint32_t job = 0;
    uid_t uid = 0;
    if (spank_get_item(spank, S_JOB_ID, &job) != ESPANK_SUCCESS ||
        spank_get_item(spank, S_JOB_UID, &uid) != ESPANK_SUCCESS || job == 0)
        return ESPANK_SUCCESS;
    ddstore__config_read(argc, argv, &config);
    ddstore__child_budget(config.timeout_ms);
    ddstore__spank_end(config.state, job, uid);
    return ESPANK_SUCCESS;
}

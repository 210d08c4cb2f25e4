/* Parts of the SPANK plugin, which spank_ddstore.c puts together. Only that file,
 * spank_values.c and spank_end.c know Slurm. */
#ifndef DDSTORE_SPANK_PARTS_H
#define DDSTORE_SPANK_PARTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define DDSTORE__SPANK_PATH   4096
#define DDSTORE__SPANK_REASON 1000
#define DDSTORE__SPANK_MAP    16384 /* longest NIC map that is passed on */

/* -- spank_lines.c: "KEY VALUE" lines that end with a line "end", the form of what
 * children tell and of the files of the node's state -- */

/* Writes one line; a line break in the value becomes a space. False: it can't. */
bool ddstore__lines_put(int fd, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Cuts text into lines, one a call, in place. False: no more. */
bool ddstore__lines_next(char **text, char **key, char **value);
/* Whether the last line is there, so that nothing is missing. */
bool ddstore__lines_whole(const char *text);
/* A number, all of the value; false: it is none. */
bool ddstore__lines_number(const char *value, uint64_t most, uint64_t *out);

/* -- spank_child.c: work in a child with a time limit -- */

typedef struct ddstore__spank_user {
    uid_t uid;
    gid_t gid;
    const gid_t *groups;
    size_t n_groups;
} ddstore__spank_user;

typedef struct ddstore__spank_errand {
    const char *what; /* as in "WHAT took too long" */
    /* Runs in the child; what it has to tell, it writes to out in lines. */
    void (*work)(void *arg, int out);
    void *arg;
    /* Whom the child becomes for good; NULL: the effective user. */
    const ddstore__spank_user *as;
} ddstore__spank_errand;

typedef struct ddstore__spank_answer {
    char *text;                      /* lines; never NULL, "" where there are none */
    char why[DDSTORE__SPANK_REASON]; /* "": the work was done to its end */
} ddstore__spank_answer;

/* How long all errands of this process may take together. */
void ddstore__child_budget(int timeout_ms);
/* Takes at most share percent of the time that is left. Release answer->text by free.
 */
void ddstore__child_run(const ddstore__spank_errand *errand, int share,
                        ddstore__spank_answer *answer);

/* -- spank_config.c: arguments of plugstack.conf, and options -- */

typedef struct ddstore__spank_config {
    bool always, map;
    int timeout_ms;
    char dir[DDSTORE__SPANK_PATH];   /* "": none */
    char state[DDSTORE__SPANK_PATH]; /* this node's */
    char wrong[256];                 /* what is malformed; "": nothing */
} ddstore__spank_config;

enum ddstore__spank_wish { DDSTORE__WISH_NONE, DDSTORE__WISH_YES, DDSTORE__WISH_NO };

typedef struct ddstore__spank_options {
    enum ddstore__spank_wish wish;
    char dir[DDSTORE__SPANK_PATH];
    bool join;
    uint32_t join_job;
    int64_t join_step; /* -1: any */
    char wrong[256];
} ddstore__spank_options;

void ddstore__config_read(int argc, char **argv, ddstore__spank_config *out);
/* argument: NULL where none is given. */
void ddstore__option_use(ddstore__spank_options *o, const char *argument);
void ddstore__option_dir(ddstore__spank_options *o, const char *argument);
void ddstore__option_join(ddstore__spank_options *o, const char *argument);
/* Replaces %u, %j and %%. False: why says what is wrong with the template. */
bool ddstore__config_expand(const char *template, uid_t uid, uint32_t job, char *out,
                            char *why);

/* -- spank_state.c: root's files of this node -- */

/* The directory, made if it is missing; -1: why says why not. */
int ddstore__state_open(const char *path, char *why);
/* Replaces a file as a whole. */
bool ddstore__state_write(int state, const char *name, const char *text, char *why);
/* malloc'd; NULL: there is no such file that is whole. */
char *ddstore__state_read(int state, const char *name);

/* -- spank_note.c: which directory goes when a job ends -- */

typedef struct ddstore__spank_note {
    uint32_t job;    /* as its epilog will know it */
    uint32_t dir_of; /* whose number the directory has: the job, or the first of a
                        heterogeneous one */
    int64_t restart; /* -1: not known yet */
    ddstore__spank_user user;
    const char *base;
} ddstore__spank_note;

/* Says "note NAME". */
bool ddstore__note_write(int state, const ddstore__spank_note *note, int out,
                         char *why);
/* Says the lines of all notes of a user's job, "next" behind each, and removes them. */
void ddstore__note_take(int state, uint32_t job, uid_t uid, int out);
/* Adds the restart count, through a descriptor of the file. */
bool ddstore__note_restart(int fd, uint32_t restart);

/* -- spank_end.c -- */

/* Removes what a user's job leaves, as far as this node has notes of it. */
void ddstore__spank_end(const char *state_path, uint32_t job, uid_t uid);

/* -- spank_map.c -- */

/* Says "map TEXT" or "error WHY", or nothing where there are no NICs. state: -1: not to
 * be had. */
void ddstore__map_find(int state, const char *state_path, int out);

/* -- spank_path.c -- */

/* Opens a directory as whom the process is, and makes what is missing where make is
 * set. Symbolic links are followed only where they are root's, the user's or of the
 * owner of the directory they are in; so for directories where everybody may make some.
 * -errno, with why. */
int ddstore__path_open(const char *path, bool make, char *why);

/* -- spank_dir.c: the directory of a job, all as its user -- */

typedef struct ddstore__spank_dir {
    const char *base;
    uint32_t job;
    uint32_t restart;
    int64_t step; /* of a job to join; -1: any */
} ddstore__spank_dir;

#define DDSTORE__SPANK_NAME 32
/* JOB or JOB.RESTART */
void ddstore__jobdir_name(uint32_t job, uint32_t restart, char *out);
/* Reads such a name; false: it is none of that job. */
bool ddstore__jobdir_parse(const char *name, uint32_t job, uint32_t *restart);

/* Works of errands: arg is a ddstore__spank_dir. They say "dir PATH", "core N" or
 * "error WHY". */
void ddstore__jobdir_make(void *arg, int out);
void ddstore__jobdir_join(void *arg, int out);
void ddstore__jobdir_remove(void *arg, int out);

/* Of the library's file system rules, for these parts. */
#define DDSTORE__SPANK_MARKER ".ddstore-spank"
void ddstore__jobdir_marker(const ddstore__spank_dir *d, char *out, size_t bytes);

#endif

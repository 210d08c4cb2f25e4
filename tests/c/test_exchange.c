/* The shared directory, its files and the claim: what is refused, and how faults show.
 */
#include "rendezvous_help.h"

#include "rendezvous/claim.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>

#define NOBODY 65534

static ddstore__dir *open_dir(void)
{
    ddstore__dir *dir;
    ddstore_error err;
    if (ddstore__dir_open(shared, true, &dir, &err))
        fail_msg("%s", err.message);
    return dir;
}

static void expect_open(const char *path, int code, const char *word)
{
    ddstore__dir *dir;
    ddstore_error err = {0};
    assert_int_equal(ddstore__dir_open(path, true, &dir, &err), code);
    assert_non_null(strstr(err.message, path));
    if (!strstr(err.message, word))
        fail_msg("\"%s\" not in: %s", word, err.message);
}

/* -- names -- */

static void names_stay_distinct(void **state)
{
    (void)state;
    char longest[202], longer[1025], other[1025];
    memset(longest, 'x', 201), longest[201] = '\0';
    memset(longer, 'Y', 1024), longer[1024] = '\0';
    memcpy(other, longer, 1025), other[1023] = 'Z';
    const char *names[] = {"a/b",   "a_b",  "a.b", "A.b",  "a%2fb", "%a",
                           "a",     "A",    "a b", "..",   ".",     "\xc3\xa9",
                           longest, longer, other, "a%-b", "-",     "CON"};
    char out[DDSTORE__COUNT(names)][256];
    for (size_t i = 0; i < DDSTORE__COUNT(names); i++) {
        ddstore__escape_name(names[i], out[i]);
        assert_true(strlen(out[i]) <= 200 && out[i][0]);
        assert_null(strpbrk(out[i], "/."));
        for (size_t k = 0; k < i; k++)
            assert_true(strcmp(out[i], out[k]) != 0);
        if (strchr(out[i], '%'))
            for (const char *p = out[i]; *p; p++)
                assert_false(*p >= 'A' && *p <= 'Z');
    }
    assert_string_equal(out[1], "a_b");
    assert_string_equal(out[0], "a%2fb");
    longest[200] = '\0';
    ddstore__escape_name(longest, out[0]);
    assert_string_equal(out[0], longest);
}

static void file_names_parse_back(void **state)
{
    (void)state;
    const char types[] = "hacfxpksq";
    for (const char *t = types; *t; t++) {
        char text[DDSTORE__EXCHANGE_NAME];
        ddstore__exchange_name name = {.type = *t, .rank = 1023, .number = UINT64_MAX},
                               got;
        ddstore__random(name.own, 16);
        ddstore__random(name.run, 16);
        ddstore__exchange_name_format(&name, text);
        assert_true(ddstore__exchange_name_parse(text, &got));
        char again[DDSTORE__EXCHANGE_NAME];
        ddstore__exchange_name_format(&got, again);
        assert_string_equal(text, again);
        for (size_t n = strlen(text);
             n-- > 0;) { /* no prefix is a name but of a number */
            text[n] = '\0';
            if (ddstore__exchange_name_parse(text, &got))
                assert_true(strchr("acpks", *t) != NULL);
        }
    }
    ddstore__exchange_name got;
    assert_false(ddstore__exchange_name_parse("s.00.1", &got));
    assert_false(ddstore__exchange_name_parse("c.01.", &got));
    assert_false(ddstore__exchange_name_parse("", &got));
}

/* -- the directory -- */

static void a_directory_is_made_private(void **state)
{
    (void)state;
    struct stat st;
    mode_t before = umask(0);
    ddstore__dir *dir = open_dir();
    assert_int_equal(ddstore__dir_write(dir, "f", "x", 1, NULL), 0);
    umask(before);
    assert_int_equal(fstat(ddstore__dir_fd(dir), &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    char path[256];
    snprintf(path, sizeof(path), "%s/f", shared);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_string_equal(ddstore__dir_path(dir), shared);
    ddstore__dir_refresh(dir);
    ddstore__dir_close(dir);
    ddstore__dir_close(NULL);
}

static void bad_directories_are_refused(void **state)
{
    (void)state;
    char path[4500];
    snprintf(path, sizeof(path), "%s/no/such", base);
    expect_open(path, DDSTORE_ESYS, "parent");
    snprintf(path, sizeof(path), "%s/file", base);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    expect_open(path, DDSTORE_ESYS, "is a file");
    strcat(path, "/below");
    expect_open(path, DDSTORE_ESYS, "is a file");
    snprintf(path, sizeof(path), "%s/%0300d", base, 0);
    expect_open(path, DDSTORE_ESYS, "shorter");
    mkdir(shared, 0700);
    chmod(shared, 0770);
    expect_open(shared, DDSTORE_ECONFLICT, "chmod");
    chmod(shared, 01777);
    ddstore__dir_close(open_dir());
    ddstore__dir *dir;
    snprintf(path, sizeof(path), "%s/missing", base);
    assert_int_equal(ddstore__dir_open(path, false, &dir, NULL), DDSTORE_EKEY);
    assert_int_equal(ddstore__dir_open("", true, &dir, NULL), DDSTORE_EINVAL);
}

static void strangers_directories_are_refused(void **state)
{
    (void)state;
    if (geteuid() != 0)
        fail_msg("this test needs root, to make a directory of another user");
    mkdir(shared, 0700);
    assert_int_equal(chown(shared, NOBODY, NOBODY), 0);
    expect_open(shared, DDSTORE_ECONFLICT, "65534");
    chmod(shared, 01777);
    expect_open(shared, DDSTORE_ECONFLICT, "65534");
}

/* Another user than root: root's own is fine where it is sticky, and rights hold. */
static int as_nobody(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    ddstore__dir *dir;
    ddstore_error err = {0};
    if (setgid(NOBODY) || setuid(NOBODY))
        return 1;
    if (ddstore__dir_open(shared, true, &dir, &err))
        return 2;
    if (ddstore__dir_write(dir, "mine", "x", 1, &err))
        return 3;
    void *data;
    size_t bytes;
    if (ddstore__dir_read(dir, "theirs", 100, &data, &bytes, &err) != DDSTORE_ECONFLICT)
        return 4;
    if (ddstore__dir_write(dir, "theirs", "x", 1, &err) != DDSTORE_ESYS)
        return 5;
    return strstr(err.message, "theirs") ? 0 : 6;
}

static void sticky_directories_of_root_serve(void **state)
{
    (void)state;
    assert_int_equal(geteuid(), 0);
    ddstore__dir *dir = open_dir();
    assert_int_equal(ddstore__dir_write(dir, "theirs", "x", 1, NULL), 0);
    chmod(base, 0755);
    chmod(shared, 01777);
    assert_int_equal(finish(start(as_nobody, 0, 1, NULL)), 0);
    ddstore_error err;
    void *data;
    size_t bytes;
    assert_int_equal(ddstore__dir_read(dir, "mine", 100, &data, &bytes, &err),
                     DDSTORE_ECONFLICT);
    assert_non_null(strstr(err.message, "65534"));
    ddstore__dir_close(dir);
}

/* In a mount namespace of its own: 1 read-only, 2 with 64 KiB in all. */
static int on_a_mount(int rank, int kind, void *arg)
{
    (void)rank, (void)arg;
    ddstore_error err = {0};
    ddstore_comm *comm;
    static char block[1 << 20];
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("tmpfs", shared, "tmpfs", 0, "size=64k,mode=700"))
        return 1;
    if (kind == 1) {
        if (mount("tmpfs", shared, "tmpfs", MS_REMOUNT | MS_RDONLY, ""))
            return 2;
        if (try_open(0, 1, 5, &comm, &err) != DDSTORE_ESYS)
            return 3;
        return strstr(err.message, shared) && strstr(err.message, "Read-only") ? 0 : 4;
    }
    ddstore__dir *dir;
    if (ddstore__dir_open(shared, true, &dir, &err))
        return 5;
    if (ddstore__dir_write(dir, "big", block, sizeof(block), &err) != DDSTORE_ESYS)
        return 6;
    if (!strstr(err.message, "space") || !strstr(err.message, shared) ||
        count_files(shared, NULL) != 0)
        return 7;
    char name[16] = "f0";
    while (ddstore__dir_write(dir, name, block, 4096, &err) == 0 && name[1]++ < 'z')
        ;
    double t = seconds();
    if (try_open(1, 2, 20, &comm, &err) != DDSTORE_ESYS)
        return 8;
    return seconds() - t < 2 && strstr(err.message, "space") ? 0 : 9;
}

static void read_only_and_full_disks_fail_at_once(void **state)
{
    (void)state;
    mkdir(shared, 0700);
    assert_int_equal(finish(start(on_a_mount, 0, 1, NULL)), 0);
    assert_int_equal(finish(start(on_a_mount, 0, 2, NULL)), 0);
}

/* -- files -- */

static void files_are_written_whole(void **state)
{
    (void)state;
    ddstore__dir *dir = open_dir(), *sub = ddstore__dir_sub(dir, "below");
    void *data;
    size_t bytes;
    assert_int_equal(ddstore__dir_read(sub, "f", 10, &data, &bytes, NULL),
                     DDSTORE_EKEY);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(ddstore__dir_write(sub, "f", "abc", (size_t)i, NULL), 0);
        assert_int_equal(ddstore__dir_read(sub, "f", 10, &data, &bytes, NULL), 0);
        assert_int_equal(bytes, i);
        free(data);
    }
    assert_int_equal(ddstore__dir_read(sub, "f", 1, &data, &bytes, NULL),
                     DDSTORE_ECONFLICT);
    assert_int_equal(count_files(shared, NULL), 1);
    assert_int_equal(ddstore__dir_create(sub, "f", "x", 1, NULL), DDSTORE_ECONFLICT);
    assert_int_equal(ddstore__dir_create(sub, "g", "x", 1, NULL), 0);
    assert_int_equal(ddstore__dir_remove(sub, "f"), 0);
    assert_int_equal(ddstore__dir_remove(sub, "f"), 0);
    assert_int_equal(ddstore__dir_remove(sub, "g"), 0);
    ddstore__dir_remove_self(sub);
    assert_int_equal(ddstore__dir_write(sub, "f", "x", 1, NULL), 0); /* made again */
    ddstore__dir_close(sub);
    ddstore__dir_close(dir);
}

static void planted_files_are_refused(void **state)
{
    (void)state;
    ddstore__dir *dir = open_dir(), *sub = ddstore__dir_sub(dir, "link_dir");
    ddstore_error err;
    void *data;
    size_t bytes;
    int at = ddstore__dir_fd(dir);
    assert_int_equal(symlinkat("/etc/hostname", at, "link"), 0);
    assert_int_equal(symlinkat("/tmp", at, "link_dir"), 0);
    assert_int_equal(mkfifoat(at, "fifo", 0600), 0);
    assert_int_equal(mkdirat(at, "dir", 0700), 0);
    close(openat(at, "loose", O_CREAT | O_WRONLY, 0600));
    assert_int_equal(fchmodat(at, "loose", 0666, 0), 0);
    const char *names[] = {"link", "fifo", "dir", "loose"};
    for (size_t i = 0; i < DDSTORE__COUNT(names); i++) {
        assert_int_equal(ddstore__dir_read(dir, names[i], 1000, &data, &bytes, &err),
                         DDSTORE_ECONFLICT);
        assert_non_null(strstr(err.message, names[i]));
    }
    assert_true(ddstore__dir_write(sub, "f", "x", 1, &err) < 0);
    assert_int_equal(ddstore__dir_write(dir, "link", "x", 1, &err),
                     0); /* replaces it */
    assert_int_equal(ddstore__dir_read(dir, "link", 1000, &data, &bytes, &err), 0);
    free(data);
    ddstore__dir_close(sub);
    ddstore__dir_close(dir);
}

static void a_lack_of_descriptors_names_the_limit(void **state)
{
    (void)state;
    struct rlimit before, none;
    ddstore_error err;
    ddstore__dir *dir = open_dir();
    getrlimit(RLIMIT_NOFILE, &before);
    none = before;
    none.rlim_cur = 3;
    setrlimit(RLIMIT_NOFILE, &none);
    int rc = ddstore__dir_write(dir, "f", "x", 1, &err);
    setrlimit(RLIMIT_NOFILE, &before);
    assert_int_equal(rc, DDSTORE_ESYS);
    assert_non_null(strstr(err.message, "ulimit -n"));
    ddstore__dir_close(dir);
}

/* Whatever byte is damaged, the file isn't taken; whatever length, it is not yet whole.
 */
static void damage_is_noticed(void **state)
{
    (void)state;
    uint8_t file[DDSTORE__EXCHANGE_HEADER + 50];
    ddstore__exchange x = {.type = 's', .seq = 3, .rank = 0, .size = 2, .ns = "s0"},
                      got;
    uint8_t table[24] = {0}, body[26] = "abcdefghijklmnopqrstuvwxy";
    ddstore__put64(table + 8, 10);
    ddstore__put64(table + 16, 26);
    x.head = table, x.head_bytes = sizeof(table);
    x.body = body, x.body_bytes = sizeof(body);
    ddstore__exchange_encode(&x, file);
    memcpy(file + DDSTORE__EXCHANGE_HEADER, table, 24);
    memcpy(file + DDSTORE__EXCHANGE_HEADER + 24, body, 26);
    assert_int_equal(ddstore__exchange_parse(file, sizeof(file), &got), 0);
    uint64_t offsets[3];
    assert_int_equal(ddstore__offsets_parse(&got, 2, offsets), 0);
    assert_int_equal(offsets[1], 10);
    assert_int_equal(ddstore__offsets_parse(&got, 3, offsets), DDSTORE_EINVAL);
    for (size_t n = 0; n < sizeof(file); n++)
        assert_int_equal(ddstore__exchange_parse(file, n, &got), DDSTORE_EKEY);
    for (size_t i = 0; i < sizeof(file); i++) {
        file[i] ^= 0x40;
        assert_true(ddstore__exchange_parse(file, sizeof(file), &got) < 0);
        file[i] ^= 0x40;
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(names_stay_distinct),
        TEST(file_names_parse_back),
        TEST(a_directory_is_made_private),
        TEST(bad_directories_are_refused),
        TEST(strangers_directories_are_refused),
        TEST(sticky_directories_of_root_serve),
        TEST(read_only_and_full_disks_fail_at_once),
        TEST(files_are_written_whole),
        TEST(planted_files_are_refused),
        TEST(a_lack_of_descriptors_names_the_limit),
        TEST(damage_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

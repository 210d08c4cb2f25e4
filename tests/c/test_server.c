/* The serving side against clients that lie, dawdle, and break off: each is refused or
 * dropped, and costs the others nothing. */
#include "raw.h"

#include <sys/resource.h>

#define HEAD 4096 /* in front of a segment's data */

static core_spec spec;
static group g, next_run; /* the second waits until it is needed */
static member *runs_member;
static ddstore__variable_record record;
static ddstore *store;
static ddstore_var *var;

/* 'a': adds a second variable; 'l': has few descriptors from now on; 'm': as many as
 * before. */
static void obey(core *c, char what)
{
    static struct rlimit before;
    if (what == 'a') {
        core_add(c, "w", SEED + 5);
        return;
    }
    if (what == 'l')
        CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
    struct rlimit now = before;
    now.rlim_cur = what == 'l' ? 40 : before.rlim_cur;
    CHECK(setrlimit(RLIMIT_NOFILE, &now) == 0);
}

/* Two runs in one process: who proved one may not read the other. */
static void two_runs(int fd, void *arg)
{
    (void)arg;
    core_spec first = spec, second = spec;
    core a = {.spec = &first, .fd = fd}, b = {.spec = &second, .fd = fd};
    first.ns = "s";
    second.ns = "u";
    if (hear(fd) != 'g')
        return;
    core_open(&a);
    core_add(&a, "a", SEED);
    core_open(&b);
    core_add(&b, "b", SEED);
    say(fd, 'k');
    (void)hear(fd);
    ddstore_close(a.store);
    ddstore_close(b.store);
}

static int begin(void **state)
{
    int rc = setup(state);
    spec = (core_spec){
        .size = 1, .rows = {2000}, .disp = 1000, .itemsize = 1, .seed = SEED};
    spec.body = obey;
    next_run = group_fork(&spec);
    runs_member = member_start(two_runs, NULL);
    g = group_start(&spec);
    record = record_of("v.bin");
    store = extra_open(by_tcp, 1);
    var = extra_join(store, "v");
    return rc;
}

/* The core still serves, and ends as it should. */
static int end(void **state)
{
    bool good = all_rows_are(var, &spec, SEED);
    ddstore_close(store);
    ddstore__record_free(&record);
    group_end(&g);
    group_end(&next_run);
    member_end(runs_member);
    return teardown(state) || !good;
}

static uint64_t segment(void)
{
    return record.rank[0].at.id;
}

/* Refused with that status, and the connection goes on. */
static void refuses(int fd, uint64_t id, const raw_run *runs, uint32_t n, uint64_t sum,
                    enum ddstore__status status)
{
    raw_read(fd, id, runs, n, sum);
    raw_refused(fd, status);
    raw_ping(fd);
}

static void garbage_is_dropped(void **state)
{
    (void)state;
    static uint8_t noise[1 << 20];
    ddstore__random(noise, sizeof(noise));
    static const char http[] = "GET / HTTP/1.1\r\nHost: somewhere.example\r\n\r\n";
    int fd = raw_dial(&record.rank[0].contact);
    raw_send(fd, noise, sizeof(noise));
    assert_true(raw_is_closed(fd));
    close(fd);
    fd = raw_dial(&record.rank[0].contact);
    raw_send(fd, http, sizeof(http) - 1);
    assert_true(raw_is_closed(fd));
    close(fd);
    fd = raw_open(&record, 0); /* also behind a good proof */
    raw_send(fd, noise, 100);
    assert_true(raw_is_closed(fd));
    close(fd);
}

static void half_frames_wait_for_the_rest(void **state)
{
    (void)state;
    uint8_t ping[DDSTORE__FRAME_BYTES];
    ddstore__frame f;
    ddstore__frame_encode(&(ddstore__frame){.type = DDSTORE__PING}, ping);
    int fd = raw_open(&record, 0);
    raw_ping(fd);
    raw_send(fd, ping, 31);
    assert_true(all_rows_are(var, &spec, SEED)); /* meanwhile */
    raw_send(fd, ping + 31, 1);
    assert_true(raw_head(fd, &f));
    assert_int_equal(f.type, DDSTORE__DATA);
    raw_send(fd, ping, 7); /* broken off */
    close(fd);
    fd = raw_dial(&record.rank[0].contact); /* and before any proof */
    raw_send(fd, ping, 7);
    close(fd);
}

static void requests_without_proof_are_dropped(void **state)
{
    (void)state;
    static const uint8_t types[] = {DDSTORE__READ,   DDSTORE__RECORD, DDSTORE__PING,
                                    DDSTORE__PROVE,  DDSTORE__DATA,   DDSTORE__CLOSING,
                                    DDSTORE__WELCOME};
    uint8_t body[64] = {0};
    for (size_t i = 0; i < sizeof(types); i++) {
        int fd = raw_dial(&record.rank[0].contact);
        raw_frame(fd,
                  (ddstore__frame){
                      .type = types[i], .count = 1, .segment = segment(), .bytes = 16},
                  body, 16);
        assert_true(raw_is_closed(fd));
        close(fd);
    }
}

static void a_wrong_secret_is_refused(void **state)
{
    (void)state;
    uint8_t hello[64], welcome[32], proof[16];
    ddstore__frame f;
    for (int kind = 0; kind < 3; kind++) {
        int fd = raw_dial(&record.rank[0].contact);
        raw_hello_body(hello, record.run, record.rank[0].contact.uid);
        raw_frame(fd, (ddstore__frame){.type = DDSTORE__HELLO, .bytes = 64}, hello, 64);
        assert_true(raw_head(fd, &f));
        assert_int_equal(f.type, DDSTORE__WELCOME);
        assert_true(raw_receive(fd, welcome, 32));
        ddstore__random(proof, 16); /* guessed, the server's own, or of another hello */
        if (kind == 1)
            memcpy(proof, welcome + 16, 16);
        if (kind == 2)
            ddstore__proof(record.secret, 'C', (uint8_t[64]){0}, welcome, proof);
        raw_frame(fd, (ddstore__frame){.type = DDSTORE__PROVE, .bytes = 16}, proof, 16);
        raw_refused(fd, DDSTORE__S_PROOF);
        assert_true(raw_is_closed(fd));
        close(fd);
    }
}

static void a_request_behind_a_wrong_proof_is_not_served(void **state)
{
    (void)state;
    uint8_t all[32 + 64 + 32 + 16 + 32];
    int fd = raw_dial(&record.rank[0].contact);
    ddstore__frame_encode(&(ddstore__frame){.type = DDSTORE__HELLO, .bytes = 64}, all);
    raw_hello_body(all + 32, record.run, record.rank[0].contact.uid);
    ddstore__frame_encode(&(ddstore__frame){.type = DDSTORE__PROVE, .bytes = 16},
                          all + 96);
    ddstore__random(all + 128, 16);
    ddstore__frame_encode(&(ddstore__frame){.type = DDSTORE__PING}, all + 144);
    raw_send(fd, all, sizeof(all)); /* in one piece */
    ddstore__frame f;
    uint8_t welcome[32];
    assert_true(raw_head(fd, &f));
    assert_true(raw_receive(fd, welcome, 32));
    raw_refused(fd, DDSTORE__S_PROOF);
    assert_true(raw_is_closed(fd));
    close(fd);
}

static void a_wrong_process_or_run_is_told(void **state)
{
    (void)state;
    uint8_t hello[64], other[16];
    ddstore__random(other, 16);
    int fd = raw_dial(&record.rank[0].contact);
    raw_hello_body(hello, record.run, other);
    raw_frame(fd, (ddstore__frame){.type = DDSTORE__HELLO, .bytes = 64}, hello, 64);
    raw_refused(fd, DDSTORE__S_PROCESS);
    assert_true(raw_is_closed(fd));
    close(fd);
    fd = raw_dial(&record.rank[0].contact);
    raw_hello_body(hello, other, record.rank[0].contact.uid);
    raw_frame(fd, (ddstore__frame){.type = DDSTORE__HELLO, .bytes = 64}, hello, 64);
    raw_refused(fd, DDSTORE__S_RUN);
    assert_true(raw_is_closed(fd));
    close(fd);
}

static void a_second_hello_is_dropped(void **state)
{
    (void)state;
    uint8_t hello[64];
    int fd = raw_open(&record, 0);
    raw_ping(fd);
    raw_hello_body(hello, record.run, record.rank[0].contact.uid);
    raw_frame(fd, (ddstore__frame){.type = DDSTORE__HELLO, .bytes = 64}, hello, 64);
    assert_true(raw_is_closed(fd));
    close(fd);
}

static void reads_outside_the_segment_are_refused(void **state)
{
    (void)state;
    uint64_t end = (HEAD + 2000000 + 4095) & ~4095ull; /* of its last page */
    const raw_run bad[] = {
        {end, 1},
        {end + 1, 0},
        {HEAD, end - HEAD + 1},
        {0, end + 1},
        {UINT64_MAX, 1},
        {UINT64_MAX, 0},
        {1, UINT64_MAX},
        {HEAD, UINT64_MAX},
        {UINT64_MAX, UINT64_MAX},
        {UINT64_MAX - 10, 20},
        {1ull << 63, 1ull << 63},
    };
    int fd = raw_open(&record, 0);
    for (size_t i = 0; i < DDSTORE__COUNT(bad); i++) {
        refuses(fd, segment(), &bad[i], 1, bad[i].bytes, DDSTORE__S_BAD);
        const raw_run behind[] = {{HEAD, 10}, bad[i]}; /* behind a good one */
        refuses(fd, segment(), behind, 2, bad[i].bytes + 10, DDSTORE__S_BAD);
    }
    close(fd);
}

static void lengths_must_add_up(void **state)
{
    (void)state;
    const raw_run runs[] = {{HEAD, 100}, {HEAD + 50, 100}, {HEAD, 0}};
    static const uint64_t sums[] = {0, 199, 201, UINT64_MAX, 1ull << 63};
    int fd = raw_open(&record, 0);
    for (size_t i = 0; i < DDSTORE__COUNT(sums); i++)
        refuses(fd, segment(), runs, 3, sums[i], DDSTORE__S_BAD);
    ddstore__frame f;
    uint8_t got[200];
    raw_read(fd, segment(), runs, 3, 200);
    assert_true(raw_head(fd, &f));
    assert_true(f.type == DDSTORE__DATA && f.bytes == 200);
    assert_true(raw_receive(fd, got, 200));
    assert_true(rows_are(got, 0, 100, 1, SEED) &&
                rows_are(got + 100, 50, 100, 1, SEED));
    raw_read(fd, segment(), runs + 2, 1, 0); /* nothing, asked for properly */
    assert_true(raw_head(fd, &f));
    assert_true(f.type == DDSTORE__DATA && f.bytes == 0);
    close(fd);
}

static void a_run_reads_its_own_segments_only(void **state)
{
    (void)state;
    const raw_run one = {HEAD, 10};
    int fd = raw_open(&record, 0);
    static const uint64_t flips[] = {1, 1u << 21, 1ull << 63, UINT64_MAX};
    for (size_t i = 0; i < DDSTORE__COUNT(flips); i++)
        refuses(fd, segment() ^ flips[i], &one, 1, 10, DDSTORE__S_SEGMENT);
    for (uint64_t slot = 0; slot < 70;
         slot++) /* the beacon, which has no run, among them */
        refuses(fd, slot, &one, 1, 10, DDSTORE__S_SEGMENT);
    ORDER(g.at[0], 'a'); /* another variable of the same run */
    ddstore__variable_record second = record_of("w.bin");
    ddstore__frame f;
    uint8_t got[10];
    raw_read(fd, second.rank[0].at.id, &one, 1, 10);
    assert_true(raw_head(fd, &f));
    assert_true(raw_receive(fd, got, 10));
    assert_true(rows_are(got, 0, 10, 1, SEED + 5));
    ddstore__record_free(&second);
    close(fd);
}

static void another_runs_segments_are_not_read(void **state)
{
    (void)state;
    const raw_run one = {HEAD, 10};
    say(runs_member->fd, 'g');
    EXPECT(runs_member->fd, 'k');
    ddstore__variable_record a = record_of("a.bin"), b = record_of("b.bin");
    assert_memory_equal(a.rank[0].contact.uid, b.rank[0].contact.uid, 16);
    assert_memory_not_equal(a.run, b.run, 16);
    assert_memory_not_equal(a.secret, b.secret, 16);
    int fd = raw_open(&a, 0);
    refuses(fd, b.rank[0].at.id, &one, 1, 10, DDSTORE__S_SEGMENT);
    raw_frame(fd, (ddstore__frame){.type = DDSTORE__RECORD, .bytes = 1}, "b", 1);
    raw_refused(fd, DDSTORE__S_NONE);
    close(fd);
    ddstore__record_free(&a);
    ddstore__record_free(&b);
}

static void counts_are_bounded(void **state)
{
    (void)state;
    static const uint32_t counts[] = {0, DDSTORE__RUNS_MAX + 1, UINT32_MAX, 1u << 28};
    for (size_t i = 0; i < DDSTORE__COUNT(counts); i++) {
        int fd = raw_open(&record, 0);
        raw_ping(fd);
        raw_frame(fd,
                  (ddstore__frame){.type = DDSTORE__READ,
                                   .count = counts[i],
                                   .segment = segment(),
                                   .bytes = 10},
                  NULL, 0);
        assert_true(raw_is_closed(fd));
        close(fd);
    }
}

static void the_most_runs_are_served(void **state)
{
    (void)state;
    const uint32_t n = DDSTORE__RUNS_MAX;
    raw_run *runs = malloc(n * sizeof(*runs));
    uint8_t *got = malloc(n * 3);
    ddstore__frame f;
    for (uint32_t i = 0; i < n; i++)
        runs[i] = (raw_run){HEAD + i, 3};
    int fd = raw_open(&record, 0);
    for (int round = 0; round < 3; round++) {
        raw_read(fd, segment(), runs, n, n * 3);
        assert_true(raw_head(fd, &f));
        assert_true(f.type == DDSTORE__DATA && f.bytes == n * 3);
        assert_true(raw_receive(fd, got, n * 3));
        for (uint32_t i = 0; i < n; i++)
            assert_true(rows_are(got + i * 3, i, 3, 1, SEED));
    }
    close(fd);
    free(runs);
    free(got);
}

static void records_are_asked_for_by_name(void **state)
{
    (void)state;
    char name[1025];
    ddstore__frame f;
    int fd = raw_open(&record, 0);
    raw_frame(fd, (ddstore__frame){.type = DDSTORE__RECORD, .bytes = 1}, "v", 1);
    assert_true(raw_head(fd, &f));
    assert_int_equal(f.type, DDSTORE__DATA);
    uint8_t *data = malloc(f.bytes);
    ddstore__variable_record r;
    assert_true(raw_receive(fd, data, f.bytes));
    assert_int_equal(ddstore__record_decode(data, f.bytes, &r), 0);
    assert_memory_equal(r.run, record.run, 16);
    ddstore__record_free(&r);
    free(data);
    memset(name, 'x', sizeof(name));
    raw_frame(fd, (ddstore__frame){.type = DDSTORE__RECORD, .bytes = 1024}, name, 1024);
    raw_refused(fd, DDSTORE__S_NONE);
    raw_frame(fd, (ddstore__frame){.type = DDSTORE__RECORD, .bytes = 3}, "v\0x", 3);
    raw_refused(fd, DDSTORE__S_NONE); /* that isn't the name "v" */
    raw_frame(fd, (ddstore__frame){.type = DDSTORE__RECORD, .bytes = 1025}, name, 1025);
    assert_true(raw_is_closed(fd));
    close(fd);
}

static void one_byte_at_a_time_is_enough(void **state)
{
    (void)state;
    const raw_run runs[] = {{HEAD + 7, 5}, {HEAD, 1}};
    uint8_t frame[32 + 32], got[6];
    ddstore__frame f;
    int fd = raw_open(&record, 0);
    ddstore__frame_encode(
        &(ddstore__frame){
            .type = DDSTORE__READ, .count = 2, .segment = segment(), .bytes = 6},
        frame);
    for (size_t i = 0; i < 2; i++) {
        ddstore__put64(frame + 32 + 16 * i, runs[i].offset);
        ddstore__put64(frame + 40 + 16 * i, runs[i].bytes);
    }
    for (size_t i = 0; i < sizeof(frame); i++) {
        raw_send(fd, frame + i, 1);
        if (i % 8 == 0)
            sleep_ms(1);
    }
    assert_true(raw_head(fd, &f));
    assert_int_equal(f.bytes, 6);
    assert_true(raw_receive(fd, got, 6));
    assert_true(rows_are(got, 7, 5, 1, SEED) && rows_are(got + 5, 0, 1, 1, SEED));
    close(fd);
}

static void requests_in_a_row_are_answered_in_order(void **state)
{
    (void)state;
    static uint8_t got[100000];
    ddstore__frame f;
    int fd = raw_open(&record, 0);
    for (uint64_t i = 0; i < 200; i++) {
        const raw_run run = {HEAD + i, 1000 * (i % 100)};
        raw_read(fd, segment(), &run, 1, run.bytes);
    }
    for (uint64_t i = 0; i < 200; i++) {
        assert_true(raw_head(fd, &f));
        assert_int_equal(f.bytes, 1000 * (i % 100));
        assert_true(raw_receive(fd, got, f.bytes));
        assert_true(rows_are(got, (int64_t)i, (int64_t)f.bytes, 1, SEED));
    }
    close(fd);
}

static void idle_strangers_keep_nobody_out(void **state)
{
    (void)state;
    static int strangers[300];
    uint8_t byte = 'D';
    for (size_t i = 0; i < DDSTORE__COUNT(strangers); i++) {
        strangers[i] = raw_dial(&record.rank[0].contact);
        raw_send(strangers[i], &byte, i % 2);
    }
    uint8_t row[1000];
    for (int64_t i = 0; i < 50; i++) { /* who was there before is served */
        assert_int_equal(ddstore_get(var, i, 1, row, &fault), 0);
        assert_true(rows_are(row, i, 1, 1000, SEED));
    }
    int64_t since = ddstore__now_ns();
    ddstore *late = extra_open(by_tcp, 1); /* and so is who comes now */
    ddstore_var *seen = extra_join(late, "v");
    for (int64_t i = 0; i < 50; i++) {
        assert_int_equal(ddstore_get(seen, i, 1, row, &fault), 0);
        assert_true(rows_are(row, i, 1, 1000, SEED));
    }
    assert_true(seconds_since(since) < 8); /* before the strangers' time is over */
    ddstore_close(late);
    int fd = raw_open(&record, 0);
    raw_ping(fd);
    close(fd);
    for (size_t i = 0; i < DDSTORE__COUNT(strangers); i++)
        close(strangers[i]);
}

static void a_reader_that_stops_receiving_slows_no_other(void **state)
{
    (void)state;
    const uint64_t whole = 2000000;
    int slow[4];
    for (size_t i = 0; i < 4; i++) { /* each asks for 40 MB and takes one byte */
        uint8_t byte;
        raw_run runs[20];
        slow[i] = raw_open(&record, 0);
        for (size_t j = 0; j < 20; j++)
            runs[j] = (raw_run){HEAD, i % 2 ? whole : 1000};
        if (i % 2)
            raw_read(slow[i], segment(), runs, 20, 20 * whole);
        else
            for (int j = 0; j < 500; j++) /* or for much in small pieces */
                raw_read(slow[i], segment(), runs, 20, 20 * 1000);
        assert_true(raw_receive(slow[i], &byte, 1));
    }
    uint8_t row[1000];
    for (int64_t i = 0; i < 500; i++) {
        assert_int_equal(ddstore_get(var, i, 1, row, &fault), 0);
        assert_true(rows_are(row, i, 1, 1000, SEED));
    }
    assert_true(all_rows_are(var, &spec, SEED));
    uint8_t *rest = malloc(32 + 20 * whole); /* the slow ones' answers are whole, too */
    assert_true(raw_receive(slow[1], rest, 31 + 20 * whole));
    for (uint64_t j = 0; j < 20; j++)
        assert_true(rows_are(rest + 31 + j * whole, 0, (int64_t)whole, 1, SEED));
    free(rest);
    for (size_t i = 0; i < 4; i++)
        close(slow[i]);
}

static void broken_off_answers_leave_nothing_behind(void **state)
{
    (void)state;
    uint8_t byte;
    for (int i = 0; i < 60; i++) {
        const raw_run runs[] = {{HEAD, 2000000}, {HEAD, 2000000}, {HEAD, 2000000}};
        int fd = raw_open(&record, 0);
        raw_read(fd, segment(), runs, 3, 6000000);
        assert_true(raw_receive(fd, &byte, 1));
        if (i % 2) { /* reset instead of a proper end */
            struct linger l = {1, 0};
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof(l));
        }
        close(fd);
    }
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/fd/200", g.at[0]->pid);
    sleep_ms(100);
    assert_int_not_equal(access(path, F_OK), 0); /* no descriptor was left open */
}

static void a_store_freed_in_mid_answer_is_told(void **state)
{
    (void)state;
    const raw_run runs[] = {{HEAD, 2000000}, {HEAD, 2000000}, {HEAD, 2000000}};
    int busy = raw_open(&record, 0), idle = raw_open(&record, 0);
    ddstore__frame f;
    uint8_t *got = malloc(6000000);
    raw_ping(idle);
    raw_read(busy, segment(), runs, 3, 6000000);
    assert_true(raw_head(busy, &f));
    ORDER(g.at[0], 'f');
    assert_true(raw_head(idle, &f)); /* who only waited is told */
    assert_int_equal(f.type, DDSTORE__CLOSING);
    assert_true(raw_is_closed(idle));
    assert_true(raw_receive(busy, got, 6000000)); /* what was begun is finished */
    assert_true(rows_are(got, 0, 2000000, 1, SEED));
    raw_frame(busy, (ddstore__frame){.type = DDSTORE__PING}, NULL, 0);
    if (raw_head(busy, &f))
        assert_true(f.type == DDSTORE__CLOSING ||
                    (f.type == DDSTORE__REFUSED && f.status == DDSTORE__S_RUN));
    free(got);
    close(busy);
    close(idle);
    CHECK_FAILS(ddstore_get(var, 0, 1, got = (uint8_t[1000]){0}, &fault),
                DDSTORE_ECLOSED, "rank 0", "freed");
    ddstore_close(store); /* what end() looks at: a new run in the same place */
    group_end(&g);
    group_go(&next_run);
    store = extra_open(by_tcp, 1);
    var = extra_join(store, "v");
}

static void many_connect_at_once(void **state)
{
    (void)state;
    static int fds[200];
    for (size_t i = 0; i < DDSTORE__COUNT(fds); i++)
        fds[i] = raw_open(&record, 0);
    for (size_t i = 0; i < DDSTORE__COUNT(fds); i++)
        raw_ping(fds[i]);
    for (size_t i = 0; i < DDSTORE__COUNT(fds); i++)
        close(fds[i]);
}

/* Who comes when no descriptor is left is told so, and who was there is served. */
static void few_descriptors_are_no_silence(void **state)
{
    (void)state;
    static int fds[80];
    int served = 0, refused = 0;
    uint8_t hello[64], row[1000];
    ddstore__frame f;
    ORDER(g.at[0], 'l');
    for (size_t i = 0; i < DDSTORE__COUNT(fds); i++) {
        fds[i] = raw_dial(&record.rank[0].contact);
        raw_hello_body(hello, record.run, record.rank[0].contact.uid);
        raw_frame(fds[i], (ddstore__frame){.type = DDSTORE__HELLO, .bytes = 64}, hello,
                  64);
        bool answered = raw_head(fds[i], &f);
        served += answered && f.type == DDSTORE__WELCOME;
        refused +=
            answered && f.type == DDSTORE__REFUSED && f.status == DDSTORE__S_BUSY;
        assert_int_equal(ddstore_get(var, (int64_t)i, 1, row, &fault), 0);
        assert_true(rows_are(row, (int64_t)i, 1, 1000, SEED));
    }
    assert_true(served > 5 && refused > 20 && served + refused == DDSTORE__COUNT(fds));
    for (size_t i = 0; i < DDSTORE__COUNT(fds); i++)
        close(fds[i]);
    ORDER(g.at[0], 'm');
    ddstore *late = extra_open(by_tcp, 1);
    assert_true(all_rows_are(extra_join(late, "v"), &spec, SEED));
    ddstore_close(late);
}

#undef TEST
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(garbage_is_dropped),
        TEST(half_frames_wait_for_the_rest),
        TEST(requests_without_proof_are_dropped),
        TEST(a_wrong_secret_is_refused),
        TEST(a_request_behind_a_wrong_proof_is_not_served),
        TEST(a_wrong_process_or_run_is_told),
        TEST(a_second_hello_is_dropped),
        TEST(reads_outside_the_segment_are_refused),
        TEST(lengths_must_add_up),
        TEST(a_run_reads_its_own_segments_only),
        TEST(another_runs_segments_are_not_read),
        TEST(counts_are_bounded),
        TEST(the_most_runs_are_served),
        TEST(records_are_asked_for_by_name),
        TEST(one_byte_at_a_time_is_enough),
        TEST(requests_in_a_row_are_answered_in_order),
        TEST(idle_strangers_keep_nobody_out),
        TEST(a_reader_that_stops_receiving_slows_no_other),
        TEST(broken_off_answers_leave_nothing_behind),
        TEST(a_store_freed_in_mid_answer_is_told),
        TEST(many_connect_at_once),
        TEST(few_descriptors_are_no_silence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

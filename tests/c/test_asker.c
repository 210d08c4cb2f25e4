/* The asking side against a core member that lies, stalls and breaks off: errors, never
 * wrong rows, and never a wait without an end. */
#include "raw.h"

#include "rendezvous/exchange_dir.h"

#include <sys/resource.h>

#define ROWS 1000
#define ROW  100

static ddstore__variable_record forged;
static ddstore__rank_record rank;

/* What the false member does, as the test orders. */
enum mode {
    HONEST = 'A',
    TOO_LONG, /* answers of the wrong length */
    TOO_SHORT,
    GARBAGE,      /* no frame at all */
    BAD_TYPE,     /* a frame that is no answer */
    REFUSES,      /* with a long sentence */
    REFUSES_HUGE, /* with a sentence of 2^40 bytes */
    NO_SEGMENT,
    CLOSES_RUN, /* says CLOSING */
    ONE_BYTE,   /* at a time */
    BREAKS,     /* in mid-answer, each time */
    BREAKS_TWICE,
    SILENT,
    HALF,     /* an answer's half, then silence */
    TRICKLES, /* slower than the time-out, but never still for so long */
    /* From here on in the hello; all connections are dropped first. */
    MUTE,
    HANGS_UP,
    WRONG_PROOF,
    HTTP,
    NO_RUN,
    OTHER, /* process */
    BUSY,
    BUSY_ONCE
};

static _Atomic int mode = HONEST;
static atomic_int count, listener = -1;
static int open_fds[64];
static pthread_mutex_t fds_lock = PTHREAD_MUTEX_INITIALIZER;

static void *data_of(uint64_t offset, uint64_t bytes)
{
    uint8_t *out = malloc(bytes + 1);
    fill_rows(out, (int64_t)(offset - 4096), (int64_t)bytes, 1, SEED);
    return out;
}

static void answer(int fd, const ddstore__frame *f, const uint8_t *runs)
{
    uint8_t *whole = malloc(32 + f->bytes + 1), head[32];
    uint64_t at = 32;
    int now = atomic_load(&mode);
    ddstore__frame data = {.type = DDSTORE__DATA, .bytes = f->bytes};
    ddstore__frame refusal = {.type = DDSTORE__REFUSED, .status = DDSTORE__S_BAD};
    char text[1024];
    memset(text, 't', sizeof(text));
    ddstore__frame_encode(&data, whole);
    for (uint32_t i = 0; i < f->count; i++) {
        uint64_t bytes = ddstore__get64(runs + 16 * (size_t)i + 8);
        uint8_t *piece = data_of(ddstore__get64(runs + 16 * (size_t)i), bytes);
        memcpy(whole + at, piece, bytes);
        at += bytes;
        free(piece);
    }
    switch (now) {
    case TOO_LONG:
    case TOO_SHORT:
        data.bytes += now == TOO_LONG ? 1u : UINT64_MAX;
        ddstore__frame_encode(&data, whole);
        raw_send(fd, whole, at);
        break;
    case GARBAGE:
        memset(whole, 'g', at);
        raw_send(fd, whole, at);
        break;
    case BAD_TYPE:
        raw_frame(fd, (ddstore__frame){.type = DDSTORE__WELCOME, .bytes = 32}, text,
                  32);
        break;
    case REFUSES:
        refusal.bytes = sizeof(text);
        raw_frame(fd, refusal, text, sizeof(text));
        break;
    case REFUSES_HUGE:
        refusal.bytes = 1ull << 40;
        raw_frame(fd, refusal, text, sizeof(text));
        break;
    case NO_SEGMENT:
        refusal.status = DDSTORE__S_SEGMENT;
        refusal.bytes = 4;
        raw_frame(fd, refusal, text, 4);
        break;
    case CLOSES_RUN:
        ddstore__frame_encode(&(ddstore__frame){.type = DDSTORE__CLOSING}, head);
        raw_send(fd, head, sizeof(head));
        shutdown(fd, SHUT_RDWR);
        break;
    case ONE_BYTE:
        for (uint64_t i = 0; i < at; i++)
            raw_send(fd, whole + i, 1);
        break;
    case TRICKLES:
        for (uint64_t i = 0; i < at; i += 40) {
            raw_send(fd, whole + i, at - i < 40 ? at - i : 40);
            sleep_ms(400);
        }
        break;
    case BREAKS:
    case BREAKS_TWICE:
        if (now == BREAKS || atomic_fetch_add(&count, 1) < 2) {
            raw_send(fd, whole, at - 1);
            shutdown(fd, SHUT_RDWR);
            break;
        }
        raw_send(fd, whole, at);
        break;
    case SILENT:
        break;
    case HALF:
        raw_send(fd, whole, 32 + f->bytes / 2);
        break;
    default:
        raw_send(fd, whole, at);
    }
    free(whole);
}

/* The hello, as the mode wants it; false: nothing more is to come. */
static bool greet(int fd)
{
    uint8_t frame[32 + 64], welcome[32], proof[32 + 16];
    ddstore__frame refusal = {
        .type = DDSTORE__REFUSED, .status = DDSTORE__S_RUN, .bytes = 2};
    int now = atomic_load(&mode);
    if (now == HANGS_UP)
        return false;
    if (!raw_receive(fd, frame, sizeof(frame)))
        return false;
    if (now == BUSY_ONCE && atomic_fetch_add(&count, 1) < 3)
        now = BUSY;
    switch (now) {
    case MUTE:
        return raw_is_closed(fd) && false;
    case HTTP:
        raw_send(fd, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", 47);
        return false;
    case NO_RUN:
    case OTHER:
    case BUSY:
        refusal.status = now == OTHER  ? DDSTORE__S_PROCESS
                         : now == BUSY ? DDSTORE__S_BUSY
                                       : DDSTORE__S_RUN;
        raw_frame(fd, refusal, "no", 2);
        return false;
    default:
        break;
    }
    ddstore__random(welcome, 16);
    ddstore__proof(forged.secret, 'S', frame + 32, welcome, welcome + 16);
    if (now == WRONG_PROOF)
        welcome[20] ^= 1;
    raw_frame(fd, (ddstore__frame){.type = DDSTORE__WELCOME, .bytes = 32}, welcome, 32);
    return raw_receive(fd, proof, sizeof(proof));
}

static void serve(int fd)
{
    ddstore__frame f;
    if (!greet(fd))
        return;
    while (raw_head(fd, &f)) {
        int64_t bytes = ddstore__request_body(&f);
        CHECK(bytes >= 0);
        uint8_t *body = malloc((size_t)bytes + 1);
        if (raw_receive(fd, body, (size_t)bytes)) {
            if (f.type == DDSTORE__READ)
                answer(fd, &f, body);
            else
                raw_frame(fd, (ddstore__frame){.type = DDSTORE__DATA}, NULL, 0);
        }
        free(body);
    }
}

static void *connection(void *arg)
{
    int slot = (int)(intptr_t)arg, fd = open_fds[slot];
    serve(fd);
    pthread_mutex_lock(&fds_lock);
    open_fds[slot] = -1;
    close(fd);
    pthread_mutex_unlock(&fds_lock);
    return NULL;
}

static void *accept_all(void *arg)
{
    (void)arg;
    for (;;) {
        int fd = accept4(atomic_load(&listener), NULL, NULL, SOCK_CLOEXEC);
        pthread_t thread;
        int slot = 0;
        if (fd < 0)
            return NULL;
        pthread_mutex_lock(&fds_lock);
        while (slot < 63 && open_fds[slot] >= 0)
            slot++;
        open_fds[slot] = fd;
        pthread_mutex_unlock(&fds_lock);
        pthread_create(&thread, NULL, connection, (void *)(intptr_t)slot);
        pthread_detach(thread);
    }
}

static void false_member(int fd, void *arg)
{
    (void)arg;
    pthread_t thread;
    alarm(TEST_S);
    signal(SIGPIPE, SIG_IGN);
    memset(open_fds, -1, sizeof(open_fds));
    pthread_create(&thread, NULL, accept_all, NULL);
    for (char what; (what = hear(fd));) {
        atomic_store(&count, 0);
        atomic_store(&mode, what);
        pthread_mutex_lock(&fds_lock);
        for (int i = 0; what >= MUTE && i < 64; i++)
            if (open_fds[i] >= 0)
                shutdown(open_fds[i], SHUT_RDWR);
        pthread_mutex_unlock(&fds_lock);
        say(fd, 'k');
    }
}

static member *fake;
static ddstore *store;
static ddstore_var *var;

static int begin(void **state)
{
    static char name[] = "v", dtype[] = "x";
    static const ddstore_setting settings[] = {{"DDSTORE_READ_TIMEOUT_S", "1"},
                                               {"DDSTORE_HANDSHAKE_TIMEOUT_S", "20"}};
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(at);
    int rc = setup(state);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(fd, (struct sockaddr *)&at, bytes) == 0 && listen(fd, 100) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&at, &bytes) == 0);
    atomic_store(&listener, fd);
    forged = (ddstore__variable_record){.ns = "t",
                                        .name = name,
                                        .dtype = dtype,
                                        .disp = ROW,
                                        .itemsize = 1,
                                        .ranks = 1,
                                        .rank = &rank};
    rank = (ddstore__rank_record){.rows = ROWS, .at = {.id = 77, .bytes = ROWS * ROW}};
    ddstore__random(forged.run, 16);
    ddstore__random(forged.secret, 16);
    ddstore__random(rank.contact.uid, 16);
    ddstore__process_self(&rank.contact.process);
    rank.contact.process.pid_ns++; /* so it is reached over the network only */
    rank.contact.process.pid = 4242;
    strcpy(rank.contact.process.host, "farhost");
    rank.contact.address[0].family = 4;
    rank.contact.address[0].port = ntohs(at.sin_port);
    memcpy(rank.contact.address[0].ip, &at.sin_addr, 4);
    ddstore__buffer b = {0};
    ddstore__dir *d = NULL;
    ddstore__record_encode(&forged, &b);
    CHECK(ddstore__dir_open(dir, false, &d, &fault) == 0);
    CHECK(ddstore__dir_write(d, "v.bin", b.data, b.bytes, &fault) == 0);
    ddstore__dir_close(d);
    free(b.data);
    fake = member_start(false_member, NULL);
    close(fd);
    store = extra_open(settings, 2);
    var = extra_join(store, "v");
    return rc;
}

static int end(void **state)
{
    ddstore_close(store);
    member_kill(fake);
    return teardown(state);
}

/* One read, and one batch, in the mode; its code, and how long it took at most. */
static int read_in(enum mode m, double seconds)
{
    static uint8_t got[20 * ROW];
    int64_t rows[20];
    for (int i = 0; i < 20; i++)
        rows[i] = (i * 37) % ROWS;
    ORDER(fake, (char)m);
    int64_t begin_ns = ddstore__now_ns();
    fault = (ddstore_error){0};
    int rc = ddstore_get_batch(var, rows, 20, got, &fault);
    double took = seconds_since(begin_ns);
    if (took > seconds)
        fail_msg("mode %c: %g s, %d %s", m, took, rc, fault.message);
    if (rc == 0)
        assert_true(batch_is(got, rows, 20, ROW, SEED));
    return rc;
}

#define READS(m, seconds, code, word)                                                  \
    do {                                                                               \
        assert_int_equal(read_in(m, seconds), code);                                   \
        if (!strstr(fault.message, word))                                              \
            fail_msg("%s instead of %s", fault.message, word);                         \
    } while (0)

static void an_honest_one_is_read(void **state)
{
    (void)state;
    READS(HONEST, 20, 0, "");
    READS(ONE_BYTE, 20, 0, "");
    READS(HONEST, 20, 0, "");
    ddstore_peer_info info;
    assert_int_equal(ddstore_peer_at(store, 0, &info), 0);
    assert_string_equal(info.host, "farhost");
    assert_string_equal(info.path, "tcp");
}

static void answers_of_the_wrong_length_are_refused(void **state)
{
    (void)state;
    READS(TOO_LONG, 20, DDSTORE_EFABRIC,
          "rank 0: the peer's answer has the wrong length");
    READS(TOO_SHORT, 20, DDSTORE_EFABRIC, "wrong length");
    READS(HONEST, 20, 0, ""); /* over a new channel: nothing of before is left in it */
}

static void answers_that_are_none_are_refused(void **state)
{
    (void)state;
    READS(GARBAGE, 20, DDSTORE_EFABRIC, "can't be understood");
    READS(BAD_TYPE, 20, DDSTORE_EFABRIC, "");
    READS(HONEST, 20, 0, "");
}

static void refusals_are_passed_on(void **state)
{
    (void)state;
    uint8_t row[ROW];
    READS(REFUSES, 20, DDSTORE_EFABRIC, "refused: tttttt");
    CHECK_FAILS(ddstore_get(var, 0, 1, row, &fault), DDSTORE_EFABRIC,
                "refused: tttttt");
    READS(REFUSES_HUGE, 20, DDSTORE_EFABRIC, "refused");
    READS(NO_SEGMENT, 20, DDSTORE_ECLOSED, "rank 0");
    READS(CLOSES_RUN, 20, DDSTORE_ECLOSED, "freed");
    READS(HONEST, 20, 0, "");
}

static void broken_connections_are_made_anew(void **state)
{
    (void)state;
    READS(BREAKS_TWICE, 20, 0, "");
    READS(BREAKS, 20, DDSTORE_EPEER, "rank 0: process 4242 on host farhost broke off");
}

static void silence_ends_at_the_deadline(void **state)
{
    (void)state;
    int64_t begin_ns = ddstore__now_ns();
    READS(SILENT, 30, DDSTORE_EPEER, "rank 0: process 4242 on host farhost");
    assert_true(seconds_since(begin_ns) > 0.9);
    begin_ns = ddstore__now_ns();
    READS(HONEST, 20, DDSTORE_EPEER, "farhost"); /* a lost peer fails fast, for good */
    assert_true(seconds_since(begin_ns) < 0.9);
}

static void silence_after_half_an_answer_too(void **state)
{
    (void)state;
    READS(HALF, 30, DDSTORE_EPEER, "DDSTORE_READ_TIMEOUT_S");
}

static void slow_is_not_silent(void **state)
{
    (void)state;
    uint8_t row[ROW];
    ORDER(fake, TRICKLES);
    int64_t begin_ns = ddstore__now_ns();
    assert_int_equal(ddstore_get(var, 5, 1, row, &fault), 0);
    assert_true(seconds_since(begin_ns) > 1.1);
    assert_true(rows_are(row, 5, 1, ROW, SEED));
}

static void a_mute_listener_is_lost(void **state)
{
    (void)state;
    READS(MUTE, 30, DDSTORE_EPEER, "farhost");
}

static void one_that_hangs_up_is_lost(void **state)
{
    (void)state;
    READS(HANGS_UP, 30, DDSTORE_EPEER, "farhost");
}

static void one_without_the_secret_is_not_read(void **state)
{
    (void)state;
    READS(WRONG_PROOF, 20, DDSTORE_ECONFLICT, "secret");
}

static void another_program_is_not_read(void **state)
{
    (void)state;
    READS(HTTP, 20, DDSTORE_EPEER, "farhost");
}

static void another_process_is_not_read(void **state)
{
    (void)state;
    READS(OTHER, 20, DDSTORE_EPEER, "farhost");
}

static void a_run_that_is_gone_is_closed(void **state)
{
    (void)state;
    READS(NO_RUN, 20, DDSTORE_ECLOSED, "rank 0");
}

static void a_full_one_is_asked_again(void **state)
{
    (void)state;
    READS(BUSY_ONCE, 20, 0, "");
    READS(BUSY, 30, DDSTORE_EPEER, "takes no more connections");
    READS(HONEST, 20, 0, ""); /* it isn't lost */
}

static void *hold_a_channel(void *arg)
{
    uint8_t row[ROW];
    (void)ddstore_get(var, 0, 1, row, arg);
    return NULL;
}

/* One thread waits on the only channel, and the other can have none. */
static void a_reader_without_descriptors_is_told(void **state)
{
    (void)state;
    struct rlimit before, none;
    pthread_t thread;
    ddstore_error others = {0};
    uint8_t row[ROW];
    ORDER(fake, HALF);
    pthread_create(&thread, NULL, hold_a_channel, &others);
    sleep_ms(300);
    int lowest = dup(0);
    close(lowest);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = (rlim_t)lowest;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    fault = (ddstore_error){0};
    int rc = ddstore_get(var, 0, 1, row, &fault);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    pthread_join(thread, NULL);
    if (rc != DDSTORE_ESYS || !strstr(fault.message, "ulimit -n") ||
        !strstr(fault.message, "process 4242 on host farhost"))
        fail_msg("%d %s", rc, fault.message);
}

static void nobody_listens_any_more(void **state)
{
    (void)state;
    member_kill(fake);
    uint8_t row[ROW];
    CHECK_FAILS(ddstore_get(var, 0, 1, row, &fault), DDSTORE_EPEER, "rank 0",
                "process 4242 on host farhost");
    fake = member_start(false_member, NULL);
}

static int stop_after_3(void *arg)
{
    return ++*(int *)arg > 3;
}

static void waits_are_interrupted(void **state)
{
    (void)state;
    int calls = 0;
    uint8_t row[ROW];
    ddstore_close(store);
    static const ddstore_setting settings[] = {{"DDSTORE_READ_TIMEOUT_S", "60"}};
    ORDER(fake, HONEST);
    store = extra_open(settings, 1);
    var = extra_join(store, "v");
    ddstore_set_interrupt(stop_after_3, &calls);
    static const char modes[] = {SILENT, HALF, MUTE, HANGS_UP, BUSY};
    for (size_t i = 0; i < sizeof(modes); i++) {
        calls = 0;
        ORDER(fake, modes[i]);
        int64_t begin_ns = ddstore__now_ns();
        CHECK_FAILS(ddstore_get(var, 0, 1, row, &fault), DDSTORE_EINTR, "interrupted");
        assert_true(seconds_since(begin_ns) < 20);
    }
    ddstore_set_interrupt(NULL, NULL);
    ORDER(fake, HONEST);
    assert_int_equal(ddstore_get(var, 0, 1, row, &fault),
                     0); /* nothing was lost by it */
    assert_true(rows_are(row, 0, 1, ROW, SEED));
}

static void *free_it(void *arg)
{
    sleep_ms(300);
    ddstore_free(arg);
    return NULL;
}

static void waits_end_when_the_store_is_freed(void **state)
{
    (void)state;
    uint8_t row[ROW];
    static const ddstore_setting settings[] = {{"DDSTORE_READ_TIMEOUT_S", "60"}};
    static const char modes[] = {SILENT, HALF, MUTE, HANGS_UP, BUSY};
    for (size_t i = 0; i < sizeof(modes); i++) {
        pthread_t thread;
        ddstore_close(store);
        ORDER(fake, HONEST);
        store = extra_open(settings, 1);
        var = extra_join(store, "v");
        ORDER(fake, modes[i]);
        pthread_create(&thread, NULL, free_it, store);
        int64_t begin_ns = ddstore__now_ns();
        CHECK_FAILS(ddstore_get(var, 0, 1, row, &fault), DDSTORE_ECLOSED, "freed");
        pthread_join(thread, NULL);
        assert_true(seconds_since(begin_ns) < 20);
    }
}

#undef TEST
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(an_honest_one_is_read),
        TEST(answers_of_the_wrong_length_are_refused),
        TEST(answers_that_are_none_are_refused),
        TEST(refusals_are_passed_on),
        TEST(broken_connections_are_made_anew),
        TEST(silence_ends_at_the_deadline),
        TEST(silence_after_half_an_answer_too),
        TEST(slow_is_not_silent),
        TEST(a_mute_listener_is_lost),
        TEST(one_that_hangs_up_is_lost),
        TEST(one_without_the_secret_is_not_read),
        TEST(another_program_is_not_read),
        TEST(another_process_is_not_read),
        TEST(a_run_that_is_gone_is_closed),
        TEST(a_full_one_is_asked_again),
        TEST(a_reader_without_descriptors_is_told),
        TEST(nobody_listens_any_more),
        TEST(waits_are_interrupted),
        TEST(waits_end_when_the_store_is_freed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The claim: who may hold a namespace, and how dead holders are told from living ones.
 */
#include "rendezvous_help.h"

#include "rendezvous/claim.h"

static ddstore__dir *dir;

static int setup_claim(void **state)
{
    if (setup(state))
        return -1;
    ddstore__claim_still_ns = 600 * DDSTORE__MS;
    ddstore__claim_beat_ns = 100 * DDSTORE__MS;
    return ddstore__dir_open(shared, true, &dir, NULL);
}

static int teardown_claim(void **state)
{
    ddstore__dir_close(dir);
    return teardown(state);
}

static ddstore__claim_image image_of(const ddstore__process *holder)
{
    ddstore__claim_image c = {
        .size = 4, .ns = "s0", .contact = "call me", .contact_bytes = 7};
    ddstore__random(c.nonce, 16);
    if (holder)
        c.holder = *holder;
    else
        ddstore__process_self(&c.holder);
    return c;
}

static void plant(const ddstore__claim_image *c)
{
    uint8_t bytes[DDSTORE__CLAIM_FIXED + 100];
    ddstore__claim_encode(c, bytes);
    assert_int_equal(ddstore__dir_write(dir, "s0.claim", bytes,
                                        DDSTORE__CLAIM_FIXED + c->contact_bytes, NULL),
                     0);
}

static int take(const ddstore__claim_image *mine, const ddstore__contact_probe *probe,
                ddstore__hold **hold, ddstore_error *err)
{
    ddstore__claim_image holder;
    ddstore__wait wait = {.deadline_ns = ddstore__after_s(20)};
    return ddstore__hold_take(dir, mine, probe, &wait, hold, &holder, err);
}

static ddstore__process elsewhere(void)
{
    ddstore__process p = {.pid = 4711, .start_time = 1, .pid_ns = 2, .host = "farhost"};
    ddstore__random(p.boot_id, 16);
    return p;
}

static void held_once(void **state)
{
    (void)state;
    ddstore__hold *hold, *other;
    ddstore_error err;
    ddstore__claim_image a = image_of(NULL), b = image_of(NULL);
    char pid[24];
    snprintf(pid, sizeof(pid), ":%d", (int)getpid());
    assert_int_equal(take(&a, NULL, &hold, &err), 0);
    assert_int_equal(take(&b, NULL, &other, &err), DDSTORE_ECONFLICT);
    assert_non_null(strstr(err.message, pid));
    assert_non_null(strstr(err.message, "s0"));
    assert_int_equal(ddstore__hold_check(hold, NULL), 0);
    ddstore__hold_release(hold);
    assert_int_equal(count_files(shared, NULL), 0);
    assert_int_equal(take(&b, NULL, &other, &err), 0);
    ddstore__hold_release(other);
}

static int leave_at_once(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    return 0;
}

/* A process of this host that is gone: as itself, and with its pid in other hands. */
static void dead_neighbours_lose_it(void **state)
{
    (void)state;
    ddstore__process p;
    ddstore__process_self(&p);
    p.pid = (uint32_t)start(leave_at_once, 0, 1, NULL);
    assert_int_equal(finish((pid_t)p.pid), 0);
    for (int i = 0; i < 2; i++) {
        ddstore__claim_image old = image_of(&p), mine = image_of(NULL);
        ddstore__hold *hold;
        plant(&old);
        double t = seconds();
        assert_int_equal(take(&mine, NULL, &hold, NULL), 0);
        assert_true(seconds() - t < 0.4);
        ddstore__hold_release(hold);
        p.pid = (uint32_t)getpid();
        p.start_time--;
    }
    assert_int_equal(count_files(shared, NULL), 0);
}

static void a_counter_that_stands_still_is_dead(void **state)
{
    (void)state;
    ddstore__process p = elsewhere();
    ddstore__claim_image old = image_of(&p), mine = image_of(NULL);
    ddstore__hold *hold;
    plant(&old);
    double t = seconds();
    assert_int_equal(take(&mine, NULL, &hold, NULL), 0);
    assert_true(seconds() - t >= 0.55 && seconds() - t < 5);
    ddstore__hold_release(hold);
}

/* Raises the counter as a keeper on another host would. */
static void *beat(void *arg)
{
    ddstore__claim_image *c = arg;
    uint8_t live[24];
    sleep_ms(200);
    c->counter++;
    ddstore__claim_encode_live(c, live);
    int fd = ddstore__dir_open_file(dir, "s0.claim", NULL);
    if (pwrite(fd, live, sizeof(live), DDSTORE__CLAIM_LIVE) < 0)
        abort();
    ddstore__fd_close(fd);
    return NULL;
}

static void a_counter_that_moves_is_alive(void **state)
{
    (void)state;
    ddstore__process p = elsewhere();
    ddstore__claim_image old = image_of(&p), mine = image_of(NULL);
    ddstore__hold *hold;
    ddstore_error err;
    pthread_t thread;
    plant(&old);
    pthread_create(&thread, NULL, beat, &old);
    assert_int_equal(take(&mine, NULL, &hold, &err), DDSTORE_ECONFLICT);
    pthread_join(thread, NULL);
    assert_non_null(strstr(err.message, "farhost:4711"));
}

static int answer;

static int say(const void *theirs, size_t bytes)
{
    assert_int_equal(bytes, 7);
    assert_memory_equal(theirs, "call me", 7);
    return answer;
}

static void the_contact_is_asked_first(void **state)
{
    (void)state;
    ddstore__process p = elsewhere();
    ddstore__claim_image old = image_of(&p), mine = image_of(NULL);
    ddstore__contact_probe probe = {.mine = "me", .bytes = 2, .alive = say};
    ddstore__hold *hold;
    double t = seconds();
    plant(&old);
    answer = 1;
    assert_int_equal(take(&mine, &probe, &hold, NULL), DDSTORE_ECONFLICT);
    answer = 0;
    assert_int_equal(take(&mine, &probe, &hold, NULL), 0);
    assert_true(seconds() - t < 0.4);
    ddstore__hold_release(hold);
    answer = -1;
    plant(&old);
    assert_int_equal(take(&mine, &probe, &hold, NULL), 0);
    assert_true(seconds() - t >= 0.5);
    ddstore__hold_release(hold);
}

static void damaged_and_newer_claims(void **state)
{
    (void)state;
    uint8_t bytes[DDSTORE__CLAIM_FIXED + 7];
    ddstore__claim_image old = image_of(NULL), mine = image_of(NULL), got;
    ddstore__hold *hold;
    ddstore__claim_encode(&old, bytes);
    for (size_t i = 0; i < sizeof(bytes); i++) {
        bytes[i] ^= 1;
        int rc = ddstore__claim_parse(bytes, sizeof(bytes), &got);
        bool live = i >= DDSTORE__CLAIM_LIVE && i < DDSTORE__CLAIM_FIXED;
        assert_true(live ? rc == 0 && !got.counter_valid : rc < 0);
        bytes[i] ^= 1;
        assert_int_equal(ddstore__claim_parse(bytes, i, &got), DDSTORE_EKEY);
    }
    bytes[20] ^= 1;
    assert_int_equal(ddstore__dir_write(dir, "s0.claim", bytes, sizeof(bytes), NULL),
                     0);
    assert_int_equal(take(&mine, NULL, &hold, NULL), 0);
    ddstore__hold_release(hold);
    bytes[20] ^= 1;
    bytes[8] = 99;
    ddstore_error err;
    assert_int_equal(ddstore__dir_write(dir, "s0.claim", bytes, sizeof(bytes), NULL),
                     0);
    assert_int_equal(take(&mine, NULL, &hold, &err), DDSTORE_ECONFLICT);
    assert_non_null(strstr(err.message, "version"));
}

static void a_lost_claim_is_made_again(void **state)
{
    (void)state;
    ddstore__claim_image mine = image_of(NULL), thief = image_of(NULL);
    ddstore__hold *hold;
    ddstore_error err;
    assert_int_equal(take(&mine, NULL, &hold, NULL), 0);
    assert_int_equal(ddstore__dir_remove(dir, "s0.claim"), 0);
    assert_int_equal(ddstore__hold_check(hold, &err), 0);
    assert_int_equal(count_files(shared, ".claim"), 1);
    assert_int_equal(ddstore__dir_remove(dir, "s0.claim"), 0);
    for (int i = 0; i < 50 && !count_files(shared, ".claim"); i++)
        sleep_ms(20); /* the keeper, by itself */
    assert_int_equal(count_files(shared, ".claim"), 1);
    strcpy(thief.holder.host, "thief");
    plant(&thief);
    assert_int_equal(ddstore__hold_check(hold, &err), DDSTORE_ECONFLICT);
    assert_non_null(strstr(err.message, "thief"));
    ddstore__hold_release(hold); /* leaves what isn't its own */
    assert_int_equal(count_files(shared, ".claim"), 1);
}

static void the_counter_rises(void **state)
{
    (void)state;
    ddstore__claim_image mine = image_of(NULL);
    ddstore__hold *hold;
    ddstore__claim *claims;
    size_t n;
    assert_int_equal(take(&mine, NULL, &hold, NULL), 0);
    sleep_ms(550);
    assert_int_equal(ddstore__claims_read(shared, &claims, &n, NULL), 0);
    assert_int_equal(n, 1);
    assert_string_equal(claims[0].ns, "s0");
    assert_int_equal(claims[0].size, 4);
    assert_int_equal(claims[0].contact_bytes, 7);
    assert_memory_equal(claims[0].nonce, mine.nonce, 16);
    assert_true(claims[0].counter >= 2);
    ddstore__claims_free(claims, n);
    double t = seconds();
    ddstore__hold_release(hold);
    assert_true(seconds() - t < 0.3);
    assert_int_equal(ddstore__claims_read(shared, &claims, &n, NULL), 0);
    assert_int_equal(n, 0);
    assert_int_equal(ddstore__claims_read("/no/such/dir", &claims, &n, NULL), 0);
}

/* Many take over one dead claim at once: never two. */
static int race(int rank, int size, void *arg)
{
    (void)rank, (void)size, (void)arg;
    ddstore__claim_image mine = image_of(NULL);
    ddstore__hold *hold;
    int rc = take(&mine, NULL, &hold, NULL);
    if (rc)
        return rc == DDSTORE_ECONFLICT ? 1 : 3;
    sleep_ms(250);
    return ddstore__hold_check(hold, NULL) ? 1 : 0; /* exits with the claim in place */
}

static void one_of_many_takes_over(void **state)
{
    (void)state;
    for (int round = 0; round < 12; round++) {
        pid_t pids[6];
        int won = 0;
        for (int i = 0; i < 6; i++)
            pids[i] = start(race, i, 6, NULL);
        for (int i = 0; i < 6; i++) {
            int rc = finish(pids[i]);
            assert_true(rc == 0 || rc == 1);
            won += rc == 0;
        }
        assert_true(won <= 1);
        if (round < 3)
            printf("round %d: %d won\n", round, won);
    }
}

static void strange_claims_are_refused(void **state)
{
    (void)state;
    ddstore__claim_image mine = image_of(NULL), other = image_of(NULL);
    ddstore__hold *hold;
    ddstore_error err;
    assert_int_equal(symlinkat("/etc/hostname", ddstore__dir_fd(dir), "s0.claim"), 0);
    assert_int_equal(take(&mine, NULL, &hold, &err), DDSTORE_ECONFLICT);
    assert_non_null(strstr(err.message, "s0.claim"));
    assert_int_equal(ddstore__dir_remove(dir, "s0.claim"), 0);
    strcpy(other.ns, "S0"); /* as where names are folded */
    plant(&other);
    assert_int_equal(take(&mine, NULL, &hold, &err), DDSTORE_ECONFLICT);
    assert_non_null(strstr(err.message, "namespace"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup_claim, teardown_claim)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(held_once),
        TEST(dead_neighbours_lose_it),
        TEST(a_counter_that_stands_still_is_dead),
        TEST(a_counter_that_moves_is_alive),
        TEST(the_contact_is_asked_first),
        TEST(damaged_and_newer_claims),
        TEST(a_lost_claim_is_made_again),
        TEST(the_counter_rises),
        TEST(one_of_many_takes_over),
        TEST(strange_claims_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

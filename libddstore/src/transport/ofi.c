/* The process's libfabric domain: opened, tried out, closed; and the peers it knows. */
#include "ofi_internal.h"

#include <stdio.h>
#include <stdlib.h>

#define DEPTH_MAX       2048
#define SELF_TEST_BYTES 4096
#define SELF_TEST_NS    (5 * DDSTORE__S)
/* Software providers tell only about whole reads: shorter ones show progress sooner. */
#define SOFTWARE_PIECE ((uint64_t)16 << 20)

int ddstore__ofi_fail(const ddstore__ofi *ofi, ddstore_error *err, int rc,
                      const char *what)
{
    int code = rc == -FI_ENOMEM ? DDSTORE_ENOMEM : DDSTORE_EFABRIC;
    return ddstore__fail(
        err, code, "%s on %s: %s: %s%s", ofi->provider, ofi->domain_name, what,
        ofi->api->strerror(-rc),
        rc == -FI_EMFILE ? " (raise the limit of open files: ulimit -n)" : "");
}

/* ---- opening ---- */

static ddstore__ofi *new_ofi(const ddstore__ofi_api *api, const struct fi_info *info)
{
    ddstore__ofi *ofi = calloc(1, sizeof(*ofi));
    if (!ofi)
        return NULL;
    ofi->api = api;
    ofi->generation = ddstore__fork_generation;
    pthread_mutex_init(&ofi->domain_lock, NULL);
    pthread_mutex_init(&ofi->pool_lock, NULL);
    pthread_rwlock_init(&ofi->ranges_lock, NULL);
    ddstore__random(ofi->keys.secret, sizeof(ofi->keys.secret));
    ofi->info = api->dupinfo(info);
    if (!ofi->info) {
        free(ofi);
        return NULL;
    }
    return ofi;
}

static void note_limits(ddstore__ofi *ofi, const ddstore__settings *settings)
{
    const struct fi_info *info = ofi->info;
    snprintf(ofi->provider, sizeof(ofi->provider), "%s", info->fabric_attr->prov_name);
    snprintf(ofi->domain_name, sizeof(ofi->domain_name), "%s",
             info->domain_attr->name ? info->domain_attr->name : "?");
    uint64_t limit = settings->max_read_bytes;
    if (info->ep_attr->max_msg_size < limit)
        limit = info->ep_attr->max_msg_size;
    if (ddstore__ofi_by_ip(info) && SOFTWARE_PIECE < limit)
        limit = SOFTWARE_PIECE;
    ofi->max_piece = limit;
    ofi->depth = info->tx_attr->size;
    if (ofi->depth == 0 || ofi->depth > DEPTH_MAX)
        ofi->depth = DEPTH_MAX;
    ofi->mr_mode = (uint64_t)info->domain_attr->mr_mode;
    /* Their wait objects only yield: they burn a core, and shm's knows no time-out. */
    ofi->can_sleep = !ddstore__ofi_name_matches(ofi->provider, "shm") &&
                     !ddstore__ofi_name_matches(ofi->provider, "ucx");
}

static int open_side(ddstore__ofi *ofi, ddstore__ofi_side *side, ddstore_error *err)
{
    struct fi_av_attr av = {.type = ofi->info->domain_attr->av_type};
    if (av.type == FI_AV_UNSPEC)
        av.type = FI_AV_TABLE;
    int rc = fi_domain(ofi->fabric, ofi->info, &side->domain, NULL);
    if (rc != 0)
        return ddstore__ofi_fail(ofi, err, rc, "can't open the domain");
    rc = fi_av_open(side->domain, &av, &side->av, NULL);
    return rc == 0 ? 0
                   : ddstore__ofi_fail(ofi, err, rc, "can't open an address vector");
}

/* The progress of libfabric's TCP is its domain's: with readers on the server's domain,
 * each completion of theirs wakes the server, too, and a batch takes 1.3 times as long.
 */
static bool wants_two_sides(const ddstore__ofi *ofi)
{
    return ddstore__ofi_name_matches(ofi->provider, "tcp") ||
           ddstore__ofi_name_matches(ofi->provider, "net");
}

static int open_objects(ddstore__ofi *ofi, ddstore_error *err)
{
    int rc = ofi->api->fabric(ofi->info->fabric_attr, &ofi->fabric, NULL);
    if (rc != 0)
        return ddstore__ofi_fail(ofi, err, rc, "can't open the fabric");
    rc = open_side(ofi, &ofi->serving, err);
    if (rc == 0 && wants_two_sides(ofi))
        rc = open_side(ofi, &ofi->reading, err);
    else
        ofi->reading = ofi->serving;
    if (rc == 0)
        rc = ddstore__ofi_endpoint(ofi, &ofi->serving, &ofi->ep, &ofi->cq, err);
    if (rc != 0)
        return rc;
    ofi->address_bytes = sizeof(ofi->address);
    rc = fi_getname(&ofi->ep->fid, ofi->address, &ofi->address_bytes);
    if (rc != 0)
        return ddstore__ofi_fail(ofi, err, rc, "can't tell its address");
    return 0;
}

/* Reads a pattern from this process through the network: some providers have been seen
 * to report success and deliver zeros. */
static int self_test(ddstore__ofi *ofi, ddstore_error *err)
{
    uint8_t *memory = ofi->test_memory = aligned_alloc(4096, 2 * SELF_TEST_BYTES), *got;
    ddstore__ofi_mr *mr = NULL;
    ddstore__ofi_peer *self = NULL;
    uint64_t base, key;
    if (!memory)
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory to try the network out");
    got = memory + SELF_TEST_BYTES;
    ddstore__random(memory, SELF_TEST_BYTES);
    memset(got, 0, SELF_TEST_BYTES);
    int rc = ddstore__ofi_expose(ofi, memory, SELF_TEST_BYTES, &base, &key, &mr, err);
    if (rc == 0)
        rc = ddstore__ofi_peer_open(ofi, ofi->address, ofi->address_bytes, &self, err);
    if (rc == 0) {
        ddstore__ofi_piece piece = {.peer = self,
                                    .address = base + 1,
                                    .key = key,
                                    .bytes = SELF_TEST_BYTES - 1,
                                    .dst = got + 1};
        ddstore__ofi_job job = {.pieces = &piece, .n = 1, .timeout_ns = SELF_TEST_NS};
        rc = ddstore__ofi_read(ofi, &job, err);
    }
    if (rc == 0 && memcmp(memory + 1, got + 1, SELF_TEST_BYTES - 1) != 0)
        rc = ddstore__fail(err, DDSTORE_EFABRIC,
                           "it delivered wrong data in a self-test");
    ddstore__ofi_peer_close(self);
    ddstore__ofi_release(mr);
    return rc;
}

static int open_candidate(const ddstore__settings *settings,
                          const ddstore__ofi_api *api, const struct fi_info *info,
                          ddstore__ofi **out, ddstore_error *err)
{
    ddstore__ofi *ofi = new_ofi(api, info);
    if (!ofi)
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for a libfabric domain");
    note_limits(ofi, settings);
    int rc = open_objects(ofi, err);
    if (rc == 0)
        rc = ddstore__ofi_server_start(ofi, err);
    if (rc == 0 && (rc = self_test(ofi, err)) != 0)
        ddstore__wrap(err, rc, "its self-test failed");
    if (rc != 0) {
        ddstore__ofi_close(ofi);
        return rc;
    }
    *out = ofi;
    return 0;
}

static void say_opened(const ddstore__ofi *ofi)
{
    uint32_t version = ofi->api->version();
    ddstore__log(
        DDSTORE_LOG_INFO,
        "libfabric %u.%u (%s): %s on %s, at most %zu reads of %llu bytes in flight%s",
        FI_MAJOR(version), FI_MINOR(version), ofi->api->path, ofi->provider,
        ofi->domain_name, ofi->depth, (unsigned long long)ofi->max_piece,
        ofi->mr_mode & FI_MR_LOCAL ? ", destinations registered" : "");
}

static int open_best(const ddstore__settings *settings, const char *nearest,
                     const ddstore__ofi_api *api, ddstore__ofi **out,
                     ddstore_error *err)
{
    ddstore__ofi_choice choice;
    ddstore_error why;
    int rc = ddstore__ofi_choose(settings, nearest, api, &choice, err);
    if (rc != 0)
        return rc;
    for (size_t i = 0; i < choice.n && !choice.all[i].why[0] && !*out; i++) {
        if (open_candidate(settings, api, choice.all[i].info, out, &why) != 0)
            snprintf(choice.all[i].why, sizeof(choice.all[i].why), "%.255s",
                     why.message);
    }
    if (*out)
        say_opened(*out);
    else
        rc = ddstore__ofi_choice_report(&choice, settings, err);
    ddstore__ofi_choice_free(&choice);
    return rc;
}

int ddstore__ofi_open(const ddstore__settings *settings, const char *nearest,
                      ddstore__ofi **out, ddstore_error *err)
{
    const ddstore__ofi_api *api;
    ddstore_error why = {0};
    bool automatic = strcmp(settings->fabric, "auto") == 0;
    *out = NULL;
    if (strcmp(settings->fabric, "tcp") == 0 || strcmp(settings->fabric, "hsn") == 0 ||
        (automatic && !ddstore__ofi_hardware("", NULL)))
        return 0;
    int rc = ddstore__ofi_load(settings, &api, &why);
    if (rc == 0)
        rc = open_best(settings, nearest, api, out, &why);
    if (rc != 0 && automatic) {
        ddstore__log(
            DDSTORE_LOG_WARN,
            "this host has RDMA hardware, but it can't be used, so peers on other "
            "hosts are read over TCP: %s",
            why.message);
        return 0;
    }
    return rc == 0 ? 0 : ddstore__fail(err, rc, "%s", why.message);
}

/* ---- closing ---- */

static void free_ofi(ddstore__ofi *ofi)
{
    for (size_t i = 0; i < DDSTORE__OFI_PEER_LISTS; i++)
        for (ddstore__ofi_known *next; ofi->known[i]; ofi->known[i] = next) {
            next = ofi->known[i]->next;
            free(ofi->known[i]);
        }
    pthread_mutex_destroy(&ofi->domain_lock);
    pthread_mutex_destroy(&ofi->pool_lock);
    pthread_rwlock_destroy(&ofi->ranges_lock);
    free(ofi->test_memory);
    free(ofi);
}

/* What can't be closed stays reachable, for leak checkers and debuggers. */
static void keep_open(ddstore__ofi *ofi)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static ddstore__ofi *all;
    pthread_mutex_lock(&lock);
    ofi->next_kept = all;
    all = ofi;
    pthread_mutex_unlock(&lock);
}

static void close_side(ddstore__ofi_side *side)
{
    if (side->av)
        fi_close(&side->av->fid);
    if (side->domain)
        fi_close(&side->domain->fid);
}

void ddstore__ofi_close(ddstore__ofi *ofi)
{
    if (!ofi)
        return;
    if (ofi->generation != ddstore__fork_generation) {
        ddstore__ofi_drop(ofi);
        return;
    }
    ddstore__ofi_server_stop(ofi);
    ddstore__ofi_forget_ranges(ofi);
    size_t left = ddstore__ofi_close_readers(ofi);
    if (ofi->ep)
        fi_close(&ofi->ep->fid);
    if (ofi->cq)
        fi_close(&ofi->cq->fid);
    if (left > 0) { /* their endpoints use all the rest: it stays */
        keep_open(ofi);
        return;
    }
    if (ofi->reading.domain != ofi->serving.domain)
        close_side(&ofi->reading);
    close_side(&ofi->serving);
    if (ofi->fabric)
        fi_close(&ofi->fabric->fid);
    ofi->api->freeinfo(ofi->info);
    free_ofi(ofi);
}

/* Everything is left where it is: libfabric's objects belong to the parent's threads,
 * and exposures and peers, which still point here, compare the generation. */
void ddstore__ofi_drop(ddstore__ofi *ofi)
{
    (void)ofi;
    ddstore__ofi_load_forked();
}

const char *ddstore__ofi_provider(const ddstore__ofi *ofi)
{
    return ofi->provider;
}

size_t ddstore__ofi_address(const ddstore__ofi *ofi,
                            uint8_t out[DDSTORE__OFI_ADDRESS_MAX])
{
    memcpy(out, ofi->address, ofi->address_bytes);
    return ofi->address_bytes;
}

/* ---- peers ---- */

int ddstore__ofi_peer_open(ddstore__ofi *ofi, const uint8_t *address, size_t bytes,
                           ddstore__ofi_peer **out, ddstore_error *err)
{
    if (bytes == 0 || bytes > DDSTORE__OFI_ADDRESS_MAX)
        return ddstore__fail(err, DDSTORE_EFABRIC, "a libfabric address of %zu bytes",
                             bytes);
    ddstore__ofi_peer *peer = calloc(1, sizeof(*peer));
    if (!peer)
        return ddstore__fail(err, DDSTORE_ENOMEM, "no memory for a peer");
    peer->ofi = ofi;
    peer->addr = FI_ADDR_UNSPEC;
    peer->bytes = bytes;
    memcpy(peer->address, address, bytes);
    *out = peer;
    return 0;
}

void ddstore__ofi_peer_close(ddstore__ofi_peer *peer)
{
    free(peer);
}

/* Under domain_lock. Addresses stay in the vector: removing one with reads in flight
 * has been seen to crash, so a peer that is opened again finds its old entry. */
static int insert(ddstore__ofi *ofi, const ddstore__ofi_peer *peer, fi_addr_t *out)
{
    uint64_t hash = ddstore__hash64(peer->address, peer->bytes);
    ddstore__ofi_known **list = &ofi->known[hash % DDSTORE__OFI_PEER_LISTS];
    for (ddstore__ofi_known *k = *list; k; k = k->next)
        if (k->bytes == peer->bytes &&
            memcmp(k->address, peer->address, k->bytes) == 0) {
            *out = k->addr;
            return 0;
        }
    ddstore__ofi_known *k = calloc(1, sizeof(*k) + peer->bytes);
    if (!k)
        return -FI_ENOMEM;
    int n = fi_av_insert(ofi->reading.av, peer->address, 1, &k->addr, 0, NULL);
    if (n != 1) {
        free(k);
        return n < 0 ? n : -FI_EINVAL;
    }
    k->bytes = peer->bytes;
    memcpy(k->address, peer->address, k->bytes);
    k->next = *list;
    *list = k;
    *out = k->addr;
    return 0;
}

int ddstore__ofi_peer_addr(ddstore__ofi_peer *peer, fi_addr_t *out, ddstore_error *err)
{
    ddstore__ofi *ofi = peer->ofi;
    fi_addr_t addr = atomic_load_explicit(&peer->addr, memory_order_acquire);
    int rc = 0;
    if (addr == FI_ADDR_UNSPEC) {
        pthread_mutex_lock(&ofi->domain_lock);
        rc = insert(ofi, peer, &addr);
        pthread_mutex_unlock(&ofi->domain_lock);
        if (rc != 0)
            return ddstore__ofi_fail(ofi, err, rc, "can't take a peer's address");
        atomic_store_explicit(&peer->addr, addr, memory_order_release);
    }
    *out = addr;
    return 0;
}

/* A client of the channels that keeps to no rule: raw sockets and the published record.
 */
#ifndef RAW_H
#define RAW_H

#include "core.h"

#include "record.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/time.h>

static inline ddstore__variable_record record_of(const char *file)
{
    char path[200];
    static uint8_t data[1 << 16];
    ddstore__variable_record r;
    snprintf(path, sizeof(path), "%s/%s", dir, file);
    FILE *f = fopen(path, "rb");
    CHECK(f);
    size_t bytes = fread(data, 1, sizeof(data), f);
    fclose(f);
    CHECK(ddstore__record_decode(data, bytes, &r) == 0);
    return r;
}

static inline int raw_dial(const ddstore__contact *c)
{
    const ddstore__address *a = c->address;
    struct timeval limit = {.tv_sec = 30};
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(a->port)};
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6, .sin6_port = htons(a->port)};
    memcpy(&in.sin_addr, a->ip, 4);
    memcpy(&in6.sin6_addr, a->ip, 16);
    bool v4 = a->family == 4;
    int fd = socket(v4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0);
    CHECK(connect(fd, v4 ? (struct sockaddr *)&in : (struct sockaddr *)&in6,
                  v4 ? sizeof(in) : sizeof(in6)) == 0);
    int on = 1;
    CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)) == 0);
    return fd;
}

static inline void raw_send(int fd, const void *data, size_t bytes)
{
    const uint8_t *at = data;
    while (bytes) {
        ssize_t put = send(fd, at, bytes, MSG_NOSIGNAL);
        if (put <= 0)
            return; /* it was closed on us: the next receive tells */
        at += put;
        bytes -= (size_t)put;
    }
}

/* All bytes, or false: the other side closed. */
static inline bool raw_receive(int fd, void *data, size_t bytes)
{
    uint8_t *at = data;
    while (bytes) {
        ssize_t got = recv(fd, at, bytes, 0);
        if (got < 0)
            CHECK(errno == ECONNRESET || errno == EPIPE); /* not a time-out */
        if (got <= 0)
            return false;
        at += got;
        bytes -= (size_t)got;
    }
    return true;
}

static inline bool raw_is_closed(int fd)
{
    uint8_t byte;
    return !raw_receive(fd, &byte, 1);
}

static inline void raw_frame(int fd, ddstore__frame f, const void *body, size_t bytes)
{
    uint8_t *out = malloc(DDSTORE__FRAME_BYTES + bytes);
    ddstore__frame_encode(&f, out);
    if (bytes)
        memcpy(out + DDSTORE__FRAME_BYTES, body, bytes);
    raw_send(fd, out, DDSTORE__FRAME_BYTES + bytes);
    free(out);
}

/* The next answer's head; false: closed. */
static inline bool raw_head(int fd, ddstore__frame *f)
{
    uint8_t head[DDSTORE__FRAME_BYTES];
    if (!raw_receive(fd, head, sizeof(head)))
        return false;
    CHECK(ddstore__frame_decode(head, f));
    return true;
}

static inline void raw_refused(int fd, enum ddstore__status status)
{
    ddstore__frame f;
    char text[DDSTORE__TEXT_MAX];
    CHECK(raw_head(fd, &f));
    CHECK(f.type == DDSTORE__REFUSED && f.status == status);
    CHECK(f.bytes > 0 && f.bytes <= DDSTORE__TEXT_MAX);
    CHECK(raw_receive(fd, text, f.bytes));
}

static inline void raw_hello_body(uint8_t out[64], const uint8_t run[16],
                                  const uint8_t uid[16])
{
    ddstore__random(out, 64);
    memcpy(out, run, 16);
    memcpy(out + 32, uid, 16);
}

/* Connected and proven to rank `rank` of the record. */
static inline int raw_open(const ddstore__variable_record *r, int rank)
{
    uint8_t hello[64], welcome[32], proof[16], expected[16];
    ddstore__frame f;
    int fd = raw_dial(&r->rank[rank].contact);
    raw_hello_body(hello, r->run, r->rank[rank].contact.uid);
    raw_frame(fd, (ddstore__frame){.type = DDSTORE__HELLO, .bytes = 64}, hello, 64);
    CHECK(raw_head(fd, &f));
    CHECK(f.type == DDSTORE__WELCOME && f.bytes == 32);
    CHECK(raw_receive(fd, welcome, 32));
    ddstore__proof(r->secret, 'S', hello, welcome, expected);
    CHECK(ddstore__same16(expected, welcome + 16));
    ddstore__proof(r->secret, 'C', hello, welcome, proof);
    raw_frame(fd, (ddstore__frame){.type = DDSTORE__PROVE, .bytes = 16}, proof, 16);
    return fd;
}

static inline void raw_ping(int fd)
{
    ddstore__frame f;
    uint8_t steps[8];
    raw_frame(fd, (ddstore__frame){.type = DDSTORE__PING}, NULL, 0);
    CHECK(raw_head(fd, &f));
    CHECK(f.type == DDSTORE__DATA && f.bytes == sizeof(steps));
    CHECK(raw_receive(fd, steps, sizeof(steps)));
}

typedef struct raw_run {
    uint64_t offset, bytes;
} raw_run;

/* A READ of the runs with the sum that is claimed. */
static inline void raw_read(int fd, uint64_t segment, const raw_run *runs, uint32_t n,
                            uint64_t sum)
{
    uint8_t *body = malloc((size_t)n * 16 + 1);
    for (uint32_t i = 0; i < n; i++) {
        ddstore__put64(body + (size_t)i * 16, runs[i].offset);
        ddstore__put64(body + (size_t)i * 16 + 8, runs[i].bytes);
    }
    raw_frame(fd,
              (ddstore__frame){
                  .type = DDSTORE__READ, .count = n, .segment = segment, .bytes = sum},
              body, (size_t)n * 16);
    free(body);
}

#endif

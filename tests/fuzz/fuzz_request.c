/* Fuzzes the serving side of channels: the server that the progress thread runs, over a
 * socket, with bytes from a peer that has proven the run's secret or not. Answers are
 * well-formed, whatever was asked. */
#include "fuzz.h"

#include "progress.h"
#include "run.h"
#include "segment.h"

#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define SEGMENT_MARK "SEGMENT!" /* in an input: the id of the segment that there is */
#define TAKEN_MOST   (4u << 20) /* of one input's answers; then the peer hangs up */

static const uint8_t uid[16] = "a process", run_id[16] = "a run",
                     secret[16] = "a secret";

static struct {
    int epoll, listener;
    struct sockaddr_un at;
    socklen_t at_bytes;
    ddstore__server *server;
    ddstore__segment *seg;
} s;

/* What the client has received, as frames. */
static struct {
    uint8_t head[DDSTORE__FRAME_BYTES];
    size_t have;
    uint64_t body, taken;
    uint8_t first[32];
    size_t n_first;
} in;

static void start(void)
{
    ddstore_error err;
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 1};
    s.at.sun_family = AF_UNIX;
    snprintf(s.at.sun_path + 1, sizeof(s.at.sun_path) - 1, "ddstore-fuzz-%d", getpid());
    s.at_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
                             strlen(s.at.sun_path + 1));
    s.epoll = epoll_create1(EPOLL_CLOEXEC);
    s.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    must(bind(s.listener, (struct sockaddr *)&s.at, s.at_bytes) == 0 &&
         listen(s.listener, 16) == 0);
    must(epoll_ctl(s.epoll, EPOLL_CTL_ADD, s.listener, &event) == 0);
    s.server = ddstore__server_open(s.epoll, uid, 60);
    ddstore__run *run = ddstore__run_open(run_id, secret);
    must(s.server && run && ddstore__run_publish(run, "v", "a record", 8) == 0);
    must(ddstore__segment_create(run_id, 5000, "a segment", &s.seg, &err) == 0);
}

/* Lets the server work on what there is. */
static void work(void)
{
    struct epoll_event events[8];
    for (int n; (n = epoll_wait(s.epoll, events, 8, 0)) > 0;) {
        for (int i = 0; i < n; i++) {
            if (events[i].data.u64 == 1)
                ddstore__server_accept(s.server, s.listener);
            else
                ddstore__server_event(s.server, events[i].data.ptr, events[i].events);
        }
        (void)ddstore__server_sweep(s.server);
    }
}

static void take_frames(const uint8_t *data, size_t bytes)
{
    while (bytes) {
        if (in.body) {
            size_t n = in.body < bytes ? (size_t)in.body : bytes;
            for (size_t i = 0; i < n && in.n_first < sizeof(in.first); i++)
                in.first[in.n_first++] = data[i];
            in.body -= n;
            data += n;
            bytes -= n;
            continue;
        }
        in.head[in.have++] = *data++;
        bytes--;
        if (in.have < sizeof(in.head))
            continue;
        ddstore__frame f;
        must(ddstore__frame_decode(in.head, &f));
        must(f.type == DDSTORE__WELCOME || f.type == DDSTORE__DATA ||
             f.type == DDSTORE__REFUSED);
        must(f.type != DDSTORE__REFUSED || f.bytes <= DDSTORE__TEXT_MAX);
        in.body = f.bytes;
        in.have = 0;
    }
}

/* Takes what has come; false: the server hung up, or it is enough. */
static bool take(int fd)
{
    static uint8_t piece[65536];
    ssize_t got;
    while ((got = recv(fd, piece, sizeof(piece), MSG_DONTWAIT)) > 0) {
        take_frames(piece, (size_t)got);
        in.taken += (uint64_t)got;
        if (in.taken > TAKEN_MOST)
            return false;
        work();
    }
    return got < 0;
}

static void put(int fd, const uint8_t *data, size_t bytes)
{
    while (bytes) {
        ssize_t n = send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0) {
            data += n;
            bytes -= (size_t)n;
        }
        work();
        if (!take(fd))
            return;
    }
}

static void prove(int fd)
{
    uint8_t hello[32 + 64] = {0}, proof[32 + 16];
    ddstore__frame_encode(&(ddstore__frame){.type = DDSTORE__HELLO, .bytes = 64},
                          hello);
    memcpy(hello + 32, run_id, 16);
    memcpy(hello + 64, uid, 16);
    put(fd, hello, sizeof(hello));
    must(in.n_first == 32 && !in.body);
    ddstore__frame_encode(&(ddstore__frame){.type = DDSTORE__PROVE, .bytes = 16},
                          proof);
    ddstore__proof(secret, 'C', hello + 32, in.first, proof + 32);
    put(fd, proof, sizeof(proof));
    must(in.taken == 64); /* nothing but the welcome */
}

static uint8_t *with_segment(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size + 1);
    must(copy != NULL);
    memcpy(copy, data, size);
    for (size_t i = 0; i + 8 <= size; i++)
        if (memcmp(copy + i, SEGMENT_MARK, 8) == 0)
            ddstore__put64(copy + i, s.seg->id);
    return copy;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!s.server)
        start();
    uint8_t mode = take_mode(&data, &size);
    memset(&in, 0, sizeof(in));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    must(connect(fd, (struct sockaddr *)&s.at, s.at_bytes) == 0);
    work();
    if (mode & 1)
        prove(fd);
    uint8_t *copy = with_segment(data, size);
    size_t piece = mode >> 1 ? (size_t)(mode >> 1) : size;
    for (size_t at = 0; at < size; at += piece)
        put(fd, copy + at, size - at < piece ? size - at : piece);
    free(copy);
    for (int i = 0; i < 64 && take(fd); i++)
        work();
    close(fd);
    work();
    return 0;
}

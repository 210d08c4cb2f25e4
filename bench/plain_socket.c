/* The plain TCP socket. Both sides sleep in the kernel while they wait. A request is a
 * header and the numbers of the rows; the answer is their bytes and nothing else. */
#include "plain_socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define ROWS_MAX 1024 /* of a request: as many as one sendmsg takes */

typedef struct request {
    uint32_t how, table, n, unused;
    int64_t rows[ROWS_MAX];
} request;

#define HEAD_BYTES offsetof(request, rows)

struct plain_client {
    int fd;
    request ask;
};

static void no_delay(int fd)
{
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
}

static bool send_all(int fd, const void *data, size_t bytes)
{
    const uint8_t *at = data;
    while (bytes) {
        ssize_t put = send(fd, at, bytes, MSG_NOSIGNAL);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return false;
        at += put;
        bytes -= (size_t)put;
    }
    return true;
}

static bool receive_all(int fd, void *data, size_t bytes)
{
    uint8_t *at = data;
    while (bytes) {
        ssize_t got = recv(fd, at, bytes, MSG_WAITALL);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        at += got;
        bytes -= (size_t)got;
    }
    return true;
}

/* -- the server -- */

typedef struct plain_table {
    const uint8_t *data;
    size_t row_bytes;
} plain_table;

static bool answer_packed(int fd, const plain_table *t, const request *ask)
{
    static uint8_t *pack;
    static size_t room;
    size_t bytes = ask->n * t->row_bytes;
    if (bytes > room) {
        free(pack);
        pack = malloc(bytes);
        room = pack ? bytes : 0;
        if (!pack)
            return false;
    }
    for (uint32_t i = 0; i < ask->n; i++)
        memcpy(pack + i * t->row_bytes, t->data + (size_t)ask->rows[i] * t->row_bytes,
               t->row_bytes);
    return send_all(fd, pack, bytes);
}

static bool answer_writev(int fd, const plain_table *t, const request *ask)
{
    struct iovec iov[ROWS_MAX];
    for (uint32_t i = 0; i < ask->n; i++)
        iov[i] = (struct iovec){(void *)(t->data + (size_t)ask->rows[i] * t->row_bytes),
                                t->row_bytes};
    struct msghdr message = {.msg_iov = iov, .msg_iovlen = ask->n};
    while (message.msg_iovlen) {
        ssize_t put = sendmsg(fd, &message, MSG_NOSIGNAL);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return false;
        size_t left = (size_t)put;
        while (message.msg_iovlen && left >= message.msg_iov->iov_len) {
            left -= message.msg_iov->iov_len;
            message.msg_iov++;
            message.msg_iovlen--;
        }
        if (message.msg_iovlen) {
            message.msg_iov->iov_base = (uint8_t *)message.msg_iov->iov_base + left;
            message.msg_iov->iov_len -= left;
        }
    }
    return true;
}

/* One request, mostly by one receive. */
static bool take_request(int fd, request *ask)
{
    size_t have = 0, need = HEAD_BYTES;
    while (have < need) {
        ssize_t got = recv(fd, (uint8_t *)ask + have, sizeof(*ask) - have, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        have += (size_t)got;
        if (have >= HEAD_BYTES)
            need = HEAD_BYTES + ask->n * sizeof(ask->rows[0]);
        if (need > sizeof(*ask))
            return false;
    }
    return have == need;
}

static int listen_here(uint16_t *port)
{
    struct sockaddr_in here = {.sin_family = AF_INET,
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(here);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&here, bytes) != 0 ||
        listen(fd, 1) != 0 || getsockname(fd, (struct sockaddr *)&here, &bytes) != 0)
        bench_die("can't listen: %s", strerror(errno));
    *port = here.sin_port;
    return fd;
}

void plain_serve(const bench_table *tables, size_t n)
{
    plain_table held[BENCH_TABLES];
    uint16_t port;
    request ask;
    for (size_t i = 0; i < n; i++) {
        void *data = bench_alloc((size_t)tables[i].rows * tables[i].row_bytes);
        bench_fill(data, 0, tables[i].rows, tables[i].row_bytes);
        held[i] = (plain_table){data, tables[i].row_bytes};
    }
    int listener = listen_here(&port);
    if (write(STDOUT_FILENO, &port, sizeof(port)) != sizeof(port))
        bench_die("can't say the port");
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        bench_die("can't accept: %s", strerror(errno));
    no_delay(fd);
    while (take_request(fd, &ask) && ask.table < n)
        if (!(ask.how == PLAIN_PACKED ? answer_packed
                                      : answer_writev)(fd, &held[ask.table], &ask))
            break;
    close(fd);
    close(listener);
}

/* -- the client -- */

plain_client *plain_open(bench_peer *peer)
{
    struct sockaddr_in there = {.sin_family = AF_INET,
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    plain_client *c = calloc(1, sizeof(*c));
    if (!c)
        bench_die("no memory");
    bench_peer_listen(peer, &there.sin_port, sizeof(there.sin_port));
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&there, sizeof(there)) != 0)
        bench_die("can't connect: %s", strerror(errno));
    no_delay(c->fd);
    return c;
}

void plain_close(plain_client *client)
{
    close(client->fd);
    free(client);
}

static void read_rows(void *arg, const int64_t *rows, size_t n, void *dst)
{
    const plain_arg *a = arg;
    request *ask = &a->client->ask;
    size_t most = a->rows_a_request ? a->rows_a_request : ROWS_MAX;
    uint8_t *at = dst;
    for (size_t done = 0; done < n; done += ask->n) {
        ask->how = a->how;
        ask->table = a->table;
        ask->n = (uint32_t)(n - done < most ? n - done : most);
        memcpy(ask->rows, rows + done, ask->n * sizeof(*rows));
        if (!send_all(a->client->fd, ask, HEAD_BYTES + ask->n * sizeof(*rows)) ||
            !receive_all(a->client->fd, at, ask->n * a->row_bytes))
            bench_die("%s: the connection broke", "plain socket");
        at += ask->n * a->row_bytes;
    }
}

bench_way plain_way(const char *what, plain_arg *arg)
{
    return (bench_way){what, NULL, read_rows, arg};
}

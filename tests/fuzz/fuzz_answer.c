/* Fuzzes the asking side of channels: a read and a question, answered by any bytes.
 * Rows are written nowhere but where they belong, and every answer ends in a code. */
#include "fuzz.h"

#include "channel.h"
#include "transport/transport.h"

#include <sys/socket.h>
#include <unistd.h>

#define GUARD 64

static int far_end = -1; /* what the peer would hold */

static void add_channel(ddstore__peer *peer, const uint8_t *data, size_t size)
{
    int pair[2], room = 1 << 20;
    ddstore__channel *ch = calloc(1, sizeof(*ch));
    must(ch && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    (void)setsockopt(pair[1], SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
    ssize_t put = send(pair[1], data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    must(put == (ssize_t)size || put < 0);
    (void)shutdown(pair[1], SHUT_WR);
    ch->peer = peer;
    ch->fd = ddstore__fd_own(pair[0]);
    ch->idle = true;
    ch->next = peer->channels;
    peer->channels = ch;
    far_end = pair[1];
}

static ddstore__peer *make_peer(const uint8_t *data, size_t size)
{
    static uint8_t count;
    ddstore__contact contact = {.process = {.pid = 1, .host = "there"}};
    const uint8_t self[16] = "me";
    contact.uid[0] = ++count;
    ddstore__peer *peer = ddstore__peer_get(&contact, self);
    must(peer != NULL);
    add_channel(peer, data, size);
    return peer;
}

/* Three pieces between guards; two of them adjacent in the segment. */
static void try_read(const uint8_t *data, size_t size)
{
    static uint8_t memory[GUARD * 4 + 100];
    ddstore__access access = {.patience = {DDSTORE__S, NULL}};
    ddstore__peer *peer = make_peer(data, size);
    ddstore__attachment from = {.peer = peer, .at = {.id = 5, .bytes = 1000}};
    const ddstore__piece pieces[] = {{4096, 10, memory + GUARD},
                                     {4106, 30, memory + GUARD * 2 + 10},
                                     {4300, 60, memory + GUARD * 3 + 40}};
    ddstore__request request = {&from, pieces, 3, 0};
    ddstore__stream *streams;
    ddstore_error err = {0};
    size_t failed = 0;
    memset(memory, 0xee, sizeof(memory));
    ddstore__reader *reader = ddstore__reader_enter(memory);
    int rc = ddstore__tcp_begin(reader, &access, &request, 1, &streams, &failed, &err);
    if (!rc)
        rc = ddstore__tcp_finish(reader, &access, streams, 1, &failed, &err);
    ddstore__reader_leave(reader);
    must(rc == 0 || (rc < 0 && err.code == rc && *err.message));
    if (rc == 0)
        must(size >= 32 + 100 && memcmp(memory + GUARD, data + 32, 10) == 0 &&
             memcmp(memory + GUARD * 3 + 40, data + 72, 60) == 0);
    for (size_t i = 0; i < sizeof(memory); i++) {
        bool row = false;
        for (size_t p = 0; p < 3; p++)
            row |= memory + i >= pieces[p].dst &&
                   memory + i < pieces[p].dst + pieces[p].bytes;
        must(row || memory[i] == 0xee);
    }
    ddstore__peer_put(peer);
}

static void try_question(const uint8_t *data, size_t size)
{
    const ddstore__ticket ticket = {{0}, {0}, {0}};
    const ddstore__patience patience = {DDSTORE__S, NULL, .probe = true};
    ddstore__peer *peer = make_peer(data, size);
    ddstore_error err = {0};
    uint8_t *answer = NULL;
    size_t bytes = 0;
    int rc = ddstore__channel_ask(peer, &ticket, &patience, DDSTORE__RECORD, "v",
                                  &answer, &bytes, &err);
    must(rc == 0 || (rc < 0 && err.code == rc && *err.message));
    if (rc == 0)
        must(bytes + 32 <= size && memcmp(answer, data + 32, bytes) == 0);
    free(answer);
    ddstore__peer_put(peer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t mode = take_mode(&data, &size);
    if (size > 100000)
        return 0;
    if (mode % 2)
        try_question(data, size);
    else
        try_read(data, size);
    close(far_end);
    return 0;
}

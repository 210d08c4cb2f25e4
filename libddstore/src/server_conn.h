/* One connection of the server: its state, its input, and the answer being sent. */
#ifndef DDSTORE_SERVER_CONN_H
#define DDSTORE_SERVER_CONN_H

#include "run.h"
#include "segment.h"

enum ddstore__conn_state { CONN_HELLO, CONN_PROVE, CONN_OPEN };

typedef struct ddstore__conn {
    struct ddstore__conn *next, **link;
    int fd;
    enum ddstore__conn_state state;
    bool busy; /* an answer waits for the socket to take more */
    bool end;  /* drop it once its answer is out */
    ddstore__run *run;
    uint8_t hello[DDSTORE__HELLO_BYTES], random[16];
    int64_t since; /* ns: accepted; of an answer that waits: its last progress */

    uint8_t *in;
    size_t have, room, runs_at, consumed;

    /* The answer: a frame, then runs of memory at base. */
    uint8_t head[DDSTORE__FRAME_BYTES];
    uint8_t one_run[DDSTORE__RUN_BYTES]; /* of answers that are no reads */
    bool runs_in_input;
    uint32_t runs, at_run;
    uint64_t total, sent, at_byte;
    const uint8_t *base;
    ddstore__segment *seg; /* kept alive while its bytes are sent */
    uint8_t *own;          /* freed with the answer */
} ddstore__conn;

/* Each sets the answer of a connection that has none. */
void ddstore__answer_segment(ddstore__conn *c, ddstore__segment *seg,
                             const uint8_t *runs, uint32_t n,
                             uint64_t bytes); /* takes the reference */
void ddstore__answer_own(ddstore__conn *c, uint8_t *data,
                         size_t bytes); /* takes data */
void ddstore__answer_bytes(ddstore__conn *c, uint8_t type, const void *data,
                           size_t bytes);
void ddstore__answer_refuse(ddstore__conn *c, uint16_t status, const char *why);

/* Sends what the socket takes, up to a bound that keeps others from waiting: 1 all is
 * out, 0 more is to come, -1 the connection is gone. */
int ddstore__answer_push(ddstore__conn *c);
void ddstore__answer_end(ddstore__conn *c); /* releases what the answer holds */

#endif

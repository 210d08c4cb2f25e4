/* What travels between processes: contacts, segment descriptors and channel frames, all
 * fixed, little-endian and versioned. Encoding and decoding only; every decoder takes
 * bytes from outside and checks them. */
#ifndef DDSTORE_WIRE_H
#define DDSTORE_WIRE_H

#include "base.h"

/* -- how a process is reached -- */

#define DDSTORE__ADDRESSES   4
#define DDSTORE__OFI_ADDRESS 128

typedef struct ddstore__address {
    uint8_t family; /* 4 or 6; 0: unused */
    uint16_t port;
    uint32_t scope; /* IPv6 link-local only */
    uint8_t ip[16];
} ddstore__address;

typedef struct ddstore__contact {
    uint8_t uid[16]; /* drawn at start: a restarted process is another */
    ddstore__process process;
    uint32_t beacon_fd; /* a small segment: proves that memory can be mapped */
    uint8_t beacon_token[16];
    ddstore__address address[DDSTORE__ADDRESSES]; /* in order of preference */
    char provider[32]; /* of path 2; "" where it isn't used */
    uint8_t ofi_bytes;
    uint8_t ofi[DDSTORE__OFI_ADDRESS];
} ddstore__contact;

#define DDSTORE__CONTACT_BYTES 416

void ddstore__contact_encode(const ddstore__contact *c,
                             uint8_t out[DDSTORE__CONTACT_BYTES]);
/* false: not a contact of this version. */
bool ddstore__contact_decode(const uint8_t *in, size_t bytes, ddstore__contact *out);

/* -- memory that a process exposes -- */

typedef struct ddstore__descriptor {
    uint64_t id;       /* in its owner's table */
    uint64_t bytes;    /* of data, behind the head */
    uint32_t fd;       /* of its memfd, in its owner */
    uint8_t token[16]; /* stands at the head */
    uint64_t ofi_base, ofi_key;
    uint8_t owner[16]; /* uid */
} ddstore__descriptor;

#define DDSTORE__DESCRIPTOR_BYTES 80

void ddstore__descriptor_encode(const ddstore__descriptor *d,
                                uint8_t out[DDSTORE__DESCRIPTOR_BYTES]);
bool ddstore__descriptor_decode(const uint8_t *in, size_t bytes,
                                ddstore__descriptor *out);

/* -- channel frames -- */

enum ddstore__frame_type {
    DDSTORE__HELLO = 1, /* run[16] random[16] expected uid[16] own uid[16] */
    DDSTORE__WELCOME,   /* random[16] mac[16] */
    DDSTORE__PROVE,     /* mac[16] */
    DDSTORE__READ,    /* count runs: offset u64, bytes u64; segment; bytes: their sum */
    DDSTORE__DATA,    /* the bytes of all runs, back to back */
    DDSTORE__REFUSED, /* status; a sentence */
    DDSTORE__RECORD,  /* a variable's name; answered by DATA with its record */
    DDSTORE__PING,    /* answered by DATA: u64, the collectives it has entered */
    DDSTORE__CLOSING  /* the run's store was freed */
};

enum ddstore__status { /* of REFUSED */
                       DDSTORE__S_BAD =
                           1, /* the request is malformed or out of bounds */
                       DDSTORE__S_PROCESS, /* another process than expected listens here
                                            */
                       DDSTORE__S_RUN,     /* no such run here (any more) */
                       DDSTORE__S_SEGMENT, /* no such segment here (any more) */
                       DDSTORE__S_PROOF,   /* the secret doesn't match */
                       DDSTORE__S_NONE,    /* no such record */
                       DDSTORE__S_BUSY     /* too many connections or no memory */
};

typedef struct ddstore__frame {
    uint8_t type;
    uint16_t status;
    uint32_t count;
    uint64_t segment, bytes;
} ddstore__frame;

#define DDSTORE__FRAME_BYTES   32
#define DDSTORE__RUN_BYTES     16
#define DDSTORE__RUNS_MAX      65536u /* of one READ */
#define DDSTORE__TEXT_MAX      1024u  /* of REFUSED and RECORD bodies */
#define DDSTORE__RECORD_MAX    (1u << 28)
#define DDSTORE__HELLO_BYTES   64
#define DDSTORE__WELCOME_BYTES 32
#define DDSTORE__PROVE_BYTES   16

void ddstore__frame_encode(const ddstore__frame *f, uint8_t out[DDSTORE__FRAME_BYTES]);
bool ddstore__frame_decode(const uint8_t in[DDSTORE__FRAME_BYTES], ddstore__frame *out);

/* Bytes of body that follow a request's header; -1: it isn't a request, or too long. */
int64_t ddstore__request_body(const ddstore__frame *f);

/* The proof that the sender knows the run's secret: SipHash over both randoms. side:
 * 'S' (who listens) or 'C' (who connects). */
void ddstore__proof(const uint8_t secret[16], char side, const uint8_t hello[64],
                    const uint8_t server_random[16], uint8_t out[16]);

/* -- a reader over bytes from outside: past the end it yields zeros and sets bad -- */

typedef struct ddstore__cursor {
    const uint8_t *at, *end;
    bool bad;
} ddstore__cursor;

const uint8_t *ddstore__take(ddstore__cursor *c, size_t bytes); /* NULL: past the end */
uint16_t ddstore__take16(ddstore__cursor *c);
uint32_t ddstore__take32(ddstore__cursor *c);
uint64_t ddstore__take64(ddstore__cursor *c);
void ddstore__take_bytes(ddstore__cursor *c, void *out, size_t bytes);

/* A malloc'd text of bytes that have no NUL behind them. NULL: no memory. */
char *ddstore__copy_text(const void *text, size_t bytes);

/* -- a writer into memory that grows -- */

typedef struct ddstore__buffer {
    uint8_t *data;
    size_t bytes, room;
    bool failed; /* no memory */
} ddstore__buffer;

uint8_t *ddstore__extend(ddstore__buffer *b, size_t bytes); /* NULL: no memory */
void ddstore__add16(ddstore__buffer *b, uint16_t v);
void ddstore__add32(ddstore__buffer *b, uint32_t v);
void ddstore__add64(ddstore__buffer *b, uint64_t v);
void ddstore__add_bytes(ddstore__buffer *b, const void *data, size_t bytes);

#endif

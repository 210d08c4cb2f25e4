/* The reference for path 3: a plain TCP socket that asks for rows and gets them, as one
 * writes it by hand who knows nothing but this need. */
#ifndef PLAIN_SOCKET_H
#define PLAIN_SOCKET_H

#include "bench.h"

enum plain_how {
    PLAIN_PACKED, /* the rows copied into one buffer by a loop of memcpy, and sent */
    PLAIN_WRITEV  /* sent from where they lie */
};

/* Holds the tables, says its port on standard output, and answers one client. */
void plain_serve(const bench_table *tables, size_t n);

typedef struct plain_client plain_client;

/* Connects to the peer that runs plain_serve. Close with plain_close. */
plain_client *plain_open(bench_peer *peer);
void plain_close(plain_client *client);

/* A way of reading rows of table number `table`; arg lives as long as the way. */
typedef struct plain_arg {
    plain_client *client;
    enum plain_how how;
    uint32_t table;
    size_t row_bytes;
    uint32_t rows_a_request; /* 0: all */
} plain_arg;

bench_way plain_way(const char *what, plain_arg *arg);

#endif

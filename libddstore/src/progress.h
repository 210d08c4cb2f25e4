/*
 * The progress thread: one a process, started before any address is published. It
 * sleeps in epoll over the listening sockets, the channels it serves, the pidfds of
 * peers and a wake event; holds no host state; and answers while the rest of its
 * process sleeps.
 */
#ifndef DDSTORE_PROGRESS_H
#define DDSTORE_PROGRESS_H

#include "wire.h"

/* Starts listening on the addresses, whose ports it fills in, and the thread. */
int ddstore__progress_start(const uint8_t uid[16], ddstore__address *addresses,
                            size_t n, double stall_s, ddstore_error *err);
void ddstore__progress_stop(void);
bool ddstore__progress_wake(void); /* async-signal-safe; false: it doesn't run */

/* Around a fork. prepare returns once the thread stands between two events, where it
 * holds no lock; the caller holds none either. */
void ddstore__progress_fork_prepare(void);
void ddstore__progress_fork_parent(void);
void ddstore__progress_child(void); /* forget */

/* Watches a pidfd: ddstore__peer_died(tag) when its process ends. It leaves the watch
 * by being closed. */
int ddstore__progress_watch(int pidfd, uint64_t tag);

void ddstore__progress_unwatch(int pidfd);

/* Tells the channels of all closing runs, and waits up to 200 ms until it is done. */
void ddstore__progress_tell_closing(void);

typedef struct ddstore__server ddstore__server;

/* -- sigterm.c: from the progress thread, between batches of events -- */

void ddstore__sigterm_work(ddstore__server *server);
void ddstore__sigterm_child(void); /* after fork: the parent's signal is the parent's */

/* -- server.c, for the progress thread only -- */

ddstore__server *ddstore__server_open(int epoll, const uint8_t uid[16], double stall_s);
void ddstore__server_close(ddstore__server *server);
void ddstore__server_accept(ddstore__server *server, int listener);
void ddstore__server_event(ddstore__server *server, void *conn, uint32_t events);
/* Drops connections that stand still; returns ms until it wants to be called again, or
 * -1. */
int ddstore__server_sweep(ddstore__server *server);
void ddstore__server_tell_closing(ddstore__server *server);

#endif

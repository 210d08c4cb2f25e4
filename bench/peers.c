/* The other processes: started, listened to, and ended, also when this one is killed.
 */
#include "bench.h"
#include "plain_socket.h"
#ifdef HAVE_FI
#include "fi_read_raw.h"
#endif

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define READY_MS 60000
#define END_MS   4000
#define ARGS_MAX 40

static void become_peer(const bench_context *ctx, const char *kind,
                        const char *const *arguments, size_t n, const int in[2],
                        const int out[2], pid_t parent)
{
    char cpu[16];
    const char *argv[ARGS_MAX] = {ctx->program, "--peer", kind, cpu};
    if (n > ARGS_MAX - 5)
        _exit(1);
    snprintf(cpu, sizeof(cpu), "%d", ctx->peer_cpu);
    memcpy(argv + 4, arguments, n * sizeof(*argv));
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent || dup2(in[0], STDIN_FILENO) < 0 ||
        dup2(out[1], STDOUT_FILENO) < 0)
        _exit(1);
    execv(ctx->program, (char *const *)(void *)argv);
    _exit(127);
}

bench_peer bench_peer_start(const bench_context *ctx, const char *kind,
                            const char *const *arguments, size_t n)
{
    int in[2], out[2];
    pid_t parent = getpid();
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0)
        bench_die("no pipe: %s", strerror(errno));
    pid_t pid = fork();
    if (pid < 0)
        bench_die("can't start a process: %s", strerror(errno));
    if (pid == 0)
        become_peer(ctx, kind, arguments, n, in, out, parent);
    close(in[0]);
    close(out[1]);
    return (bench_peer){pid, in[1], out[0]};
}

void bench_peer_listen(bench_peer *peer, void *data, size_t bytes)
{
    struct pollfd waiting = {peer->out, POLLIN, 0};
    uint8_t *at = data;
    while (bytes) {
        ssize_t got = poll(&waiting, 1, READY_MS) > 0 ? read(peer->out, at, bytes) : 0;
        if (got <= 0)
            bench_die("a peer ended early or said nothing in time");
        at += got;
        bytes -= (size_t)got;
    }
}

void bench_peer_end(bench_peer *peer)
{
    close(peer->in);
    close(peer->out);
    for (int ms = 0; ms < END_MS; ms++) {
        if (waitpid(peer->pid, NULL, WNOHANG) != 0)
            return;
        (void)poll(NULL, 0, 1);
    }
    (void)kill(peer->pid, SIGKILL);
    (void)waitpid(peer->pid, NULL, 0);
}

/* -- what a peer does -- */

static void wait_for_end(void)
{
    char byte;
    while (read(STDIN_FILENO, &byte, 1) > 0)
        ;
}

static int store_peer(int argc, char **argv)
{
    bench_table tables[BENCH_TABLES];
    ddstore_var *vars[BENCH_TABLES];
    size_t n = bench_tables_read(argc - 1, argv + 1, tables);
    ddstore *store = bench_member_open(argv[0], 1, tables, n, vars);
    if (write(STDOUT_FILENO, "r", 1) != 1)
        return 1;
    wait_for_end();
    ddstore_close(store);
    return 0;
}

static int socket_peer(int argc, char **argv)
{
    bench_table tables[BENCH_TABLES];
    plain_serve(tables, bench_tables_read(argc, argv, tables));
    return 0;
}

#ifdef HAVE_FI
/* At once: the server looks up only once a second. */
static void *exit_at_end(void *unused)
{
    (void)unused;
    wait_for_end();
    _exit(0);
}

static int fi_peer(int argc, char **argv)
{
    static const atomic_int never;
    bench_table table;
    pthread_t thread;
    if (bench_tables_read(argc - 1, argv + 1, &table) != 1 ||
        pthread_create(&thread, NULL, exit_at_end, NULL) != 0)
        return 1;
    size_t bytes = (size_t)table.rows * table.row_bytes;
    void *data = bench_alloc(bytes);
    bench_fill(data, 0, table.rows, table.row_bytes);
    int rc = raw_fi_serve(argv[0], data, bytes, STDOUT_FILENO, false, &never);
    bench_die("%s: libfabric's code %d", argv[0], rc);
}
#endif

int bench_peer_main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    const char *kind = argv[0];
    bench_pin(atoi(argv[1]));
    argc -= 2;
    argv += 2;
    if (strcmp(kind, "store") == 0)
        return store_peer(argc, argv);
    if (strcmp(kind, "socket") == 0)
        return socket_peer(argc, argv);
#ifdef HAVE_FI
    if (strcmp(kind, "fi") == 0)
        return fi_peer(argc, argv);
#endif
    return 2;
}

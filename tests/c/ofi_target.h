/* A second process for test_ofi: the program itself, run again, exposing known bytes.
 */
#ifndef OFI_TARGET_H
#define OFI_TARGET_H

#include "transport/ofi_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define TARGET_BYTES ((uint64_t)64 << 20)

typedef struct target {
    pid_t pid;
    int input; /* closing it ends the target */
    uint8_t address[DDSTORE__OFI_ADDRESS_MAX];
    size_t address_bytes;
    uint64_t base, key;
} target;

/* Byte `at` of the exposed memory tells its own place. */
static inline uint8_t expected(uint64_t at)
{
    uint64_t word = (at / 8 + 1) * 0x9e3779b97f4a7c15u;
    return (uint8_t)(word >> (at % 8 * 8));
}

static inline bool right(const uint8_t *data, uint64_t at, uint64_t bytes)
{
    for (uint64_t i = 0; i < bytes; i++)
        if (data[i] != expected(at + i))
            return false;
    return true;
}

static inline int open_provider(const char *fabric, const char *iface,
                                ddstore__ofi **out, ddstore_error *err)
{
    ddstore_setting given[] = {{"DDSTORE_FABRIC", fabric}, {"FABRIC_IFACE", iface}};
    ddstore__settings settings;
    *out = NULL;
    int rc = ddstore__settings_load(&settings, given, DDSTORE__COUNT(given), err);
    if (rc == 0)
        rc = ddstore__ofi_open(&settings, "", out, err);
    ddstore__settings_free(&settings);
    return rc;
}

static inline void fill_expected(uint8_t *memory)
{
    for (uint64_t i = 0; i < TARGET_BYTES; i += 8) {
        uint64_t word = (i / 8 + 1) * 0x9e3779b97f4a7c15u;
        memcpy(memory + i, &word, 8);
    }
}

/* In the target: exposes, tells the reader how, and does nothing until input ends. */
static inline int target_main(const char *fabric, const char *mode)
{
    ddstore_error err = {0};
    ddstore__ofi *ofi;
    ddstore__ofi_mr *mr;
    uint64_t base, key;
    uint8_t address[DDSTORE__OFI_ADDRESS_MAX];
    uint8_t *memory = mmap(NULL, TARGET_BYTES, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || open_provider(fabric, "", &ofi, &err) != 0 || !ofi ||
        ddstore__ofi_expose(ofi, memory, TARGET_BYTES, &base, &key, &mr, &err) != 0) {
        printf("failed %s\n", err.message);
        return 1;
    }
    fill_expected(memory);
    size_t bytes = ddstore__ofi_address(ofi, address);
    printf("ok %llu %llu ", (unsigned long long)base, (unsigned long long)key);
    for (size_t i = 0; i < bytes; i++)
        printf("%02x", address[i]);
    printf("\n");
    fflush(stdout);
    if (strcmp(mode, "spin") == 0) {
        for (volatile uint64_t i = 0;; i++)
            ;
    }
    char c;
    while (read(0, &c, 1) > 0 || errno == EINTR)
        errno = 0;
    ddstore__ofi_release(mr);
    ddstore__ofi_close(ofi);
    munmap(memory, TARGET_BYTES);
    return 0;
}

static inline bool parse_target(target *t, char *line)
{
    unsigned long long base, key;
    char hex[2 * DDSTORE__OFI_ADDRESS_MAX + 1];
    if (sscanf(line, "ok %llu %llu %256s", &base, &key, hex) != 3)
        return false;
    t->base = base;
    t->key = key;
    t->address_bytes = strlen(hex) / 2;
    for (size_t i = 0; i < t->address_bytes; i++) {
        unsigned byte;
        sscanf(hex + 2 * i, "%2x", &byte);
        t->address[i] = (uint8_t)byte;
    }
    return true;
}

static inline bool target_start(target *t, const char *fabric, const char *mode)
{
    int in[2], out[2];
    char line[4096] = "";
    if (pipe(in) != 0 || pipe(out) != 0)
        return false;
    t->pid = fork();
    if (t->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* stays set over exec */
        dup2(in[0], 0);
        dup2(out[1], 1);
        close(in[0]), close(in[1]), close(out[0]), close(out[1]);
        execl("/proc/self/exe", "test_ofi", "target", fabric, mode, (char *)NULL);
        _exit(127);
    }
    close(in[0]), close(out[1]);
    t->input = in[1];
    (void)!fcntl(in[1], F_SETFD, FD_CLOEXEC);
    FILE *f = fdopen(out[0], "r");
    bool ok = fgets(line, sizeof(line), f) && parse_target(t, line);
    fclose(f);
    if (!ok)
        printf("target: %s\n", line);
    return ok;
}

/* A killed process leaves the files of libfabric's shm behind. */
static inline void remove_shm_files(pid_t pid)
{
    char path[64];
    for (unsigned i = 0; i < 8; i++) {
        snprintf(path, sizeof(path), "/dev/shm/%d:%u:%u", (int)pid, (unsigned)getuid(),
                 i);
        (void)unlink(path);
    }
}

/* Returns the wait status. */
static inline int target_stop(target *t, int signal)
{
    int status = -1;
    close(t->input);
    if (signal)
        kill(t->pid, signal);
    waitpid(t->pid, &status, 0);
    if (signal)
        remove_shm_files(t->pid);
    return status;
}

#endif

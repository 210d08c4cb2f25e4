/* Clock, CPUs, memory and the way out. */
#include "bench.h"

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

int64_t bench_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

void bench_pin(int cpu)
{
    cpu_set_t set;
    if (cpu < 0)
        return;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    (void)sched_setaffinity(0, sizeof(set), &set);
}

void bench_die(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("ddstore_bench: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

void *bench_alloc(size_t bytes)
{
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (data == MAP_FAILED)
        bench_die("no memory: %zu bytes", bytes);
    return data;
}

static uint64_t available_bytes(void)
{
    char line[256];
    unsigned long long kb = 0;
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && fgets(line, sizeof(line), f))
        if (sscanf(line, "MemAvailable: %llu kB", &kb) == 1)
            break;
    if (f)
        fclose(f);
    return kb ? kb * 1024 : UINT64_MAX;
}

uint64_t bench_data_bytes(const bench_context *ctx, uint64_t full)
{
    uint64_t most = available_bytes() / 12; /* a part holds up to six times as much */
    uint64_t bytes = ctx->quick ? full / 4 : full;
    while (bytes > most && bytes > 16 * MB)
        bytes /= 2;
    return bytes;
}

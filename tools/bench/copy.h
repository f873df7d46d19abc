/* How fast a device copies: what everything else is compared with. */
#ifndef TOOLS_BENCH_COPY_H
#define TOOLS_BENCH_COPY_H

#include "bench/device.h"
#include "bench/memory.h"

/* Memory for it: larger than caches, and a small part of what is free. */
typedef struct bench_copy {
    const bench_device *device;
    bench_memory memory;
    void *from, *to;
    uint64_t bytes;   /* of each */
    uint32_t threads; /* of the host */
} bench_copy;

/* Bytes of both sides that bench_copy_init will take. */
uint64_t bench_copy_bytes(const bench_device *device);

/* Call bench_copy_finish either way. */
bp_status bench_copy_init(const bench_device *device, bench_copy *c);
void bench_copy_finish(bench_copy *c);

/* Copies once; bytes read and bytes written count. */
bp_status bench_copy_measure(const bench_copy *c, double *bytes_per_s);

#endif

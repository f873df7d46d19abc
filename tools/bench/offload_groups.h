/* What is offloaded: a pool of release groups, each a slab of parts that are held all the time, and what `bench offload` does with them. */
#ifndef TOOLS_BENCH_OFFLOAD_GROUPS_H
#define TOOLS_BENCH_OFFLOAD_GROUPS_H

#include <stdatomic.h>

#include "bench/device.h"
#include "bench/offload_arguments.h"

typedef struct bench_part {
    uint8_t *address;
    uint64_t bytes;
} bench_part;

#define BENCH_GROUP_CHARS 24

typedef struct bench_groups {
    const bench_device *device;
    bp_pool *pool;
    bp_offload *offload;
    bp_pinned *kept, *plain; /* of the offload, and of plain copies */
    uint8_t *buffer;         /* pinned: as many bytes as the groups have */
    bench_part *parts;       /* in the order of groups */
    size_t part_count;
    char names[BENCH_OFFLOAD_MOST_GROUPS][BENCH_GROUP_CHARS];
    uint32_t count;
    uint64_t bytes;             /* of all groups: whole pages of each */
    double mapped;              /* when the first slab had its memory back, 0: none since copies were last asked for */
    _Atomic uint64_t copied_ns; /* when the last chunk had been copied */
} bench_groups;

/* The device outlives them. Call bench_groups_finish either way. */
bp_status bench_groups_init(const bench_device *device, const bench_offload_options *options, bench_groups *g);
void bench_groups_finish(bench_groups *g);

/* All groups at once: each begins before any is finished. `copies`: until the last chunk was copied, on the way back from when there was
 * memory to copy to; only of bytes that are kept. */
bp_status bench_groups_away(bench_groups *g, uint32_t flags, double *seconds, double *copies);
bp_status bench_groups_back(bench_groups *g, double *seconds, double *copies);
/* Plain copies of all parts to or from the buffer. */
bp_status bench_groups_copy(bench_groups *g, bool out, double *seconds);

/* Bytes that differ for every place and turn. */
void bench_groups_write(bench_groups *g, uint64_t turn);
/* The first byte of the buffer that is not the turn's; bytes: none. */
uint64_t bench_groups_compare(const bench_groups *g, uint64_t turn);

#endif

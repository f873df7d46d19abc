/* SPDX-License-Identifier: Apache-2.0 */
/* `bench offload`: its options, and turns of offloads and restores with their figures. */
#ifndef BP_BENCH_COMMAND_OFFLOAD_H
#define BP_BENCH_COMMAND_OFFLOAD_H

#include <bucketpool/bucketpool.h>

#include <stdatomic.h>
#include <stdbool.h>

#include "bench/device.h"

/* ---- options ----------------------------------------------------------------------------------------------------- */

#define BENCH_OFFLOAD_MAX_GROUPS 64

typedef struct bench_offload_options {
    bench_common common; /* first member: its option table refers to it */
    uint64_t bytes;      /* of all groups */
    uint64_t chunk_bytes;
    uint32_t groups; /* moved concurrently */
    bp_backing backing;
} bench_offload_options;

/* "auto", "pinned", "staged" */
const char *bench_backing_name(bp_backing backing);

/* ---- groups ------------------------------------------------------------------------------------------------------ */

/* A pool of release groups, each a slab whose parts stay acquired, and the operations that `bench offload` times on it. */

typedef struct bench_part {
    uint8_t *address;
    uint64_t bytes;
} bench_part;

#define BENCH_GROUP_CHARS 24

typedef struct bench_groups {
    const bench_device *device;
    bp_pool *pool;
    bp_offload *offload;
    bp_pinned *kept, *plain; /* of the offload, of plain copies */
    uint8_t *buffer;         /* pinned; the total size of the groups */
    bench_part *parts;       /* [group], then in slab order */
    size_t part_count;
    char names[BENCH_OFFLOAD_MAX_GROUPS][BENCH_GROUP_CHARS];
    uint32_t count;
    uint64_t bytes;             /* of all groups, in whole pages each */
    double mapped;              /* time of the first mapped slab; 0: none since the copies were reset */
    _Atomic uint64_t copied_ns; /* time of the last copied chunk */
} bench_groups;

/* The device outlives them. Call bench_groups_finish after success and failure. */
bp_status bench_groups_init(const bench_device *device, const bench_offload_options *options, bench_groups *g);
void bench_groups_finish(bench_groups *g);

/* Offloads all groups concurrently: begins each before finishing any. `copies`: seconds until the last chunk was copied; in restores, from
 * the first mapped memory. Only with kept contents. */
bp_status bench_groups_offload(bench_groups *g, uint32_t flags, double *seconds, double *copies);
bp_status bench_groups_restore(bench_groups *g, double *seconds, double *copies);
/* Plain copies of all parts to or from the buffer. */
bp_status bench_groups_copy(bench_groups *g, bool out, double *seconds);

/* Writes a pattern that depends on position and turn. */
void bench_groups_write(bench_groups *g, uint64_t turn);
/* Offset of the first byte that differs from the turn's pattern; `bytes` if none. */
uint64_t bench_groups_compare(const bench_groups *g, uint64_t turn);

/* ---- runs -------------------------------------------------------------------------------------------------------- */

/* Timed operations of a turn. */
typedef enum bench_leg {
    LEG_KEPT_OUT,
    LEG_COPIES_OUT, /* part of it: until all bytes are on the host */
    LEG_KEPT_BACK,
    LEG_COPIES_BACK, /* part of it: from mapped memory until all bytes are in it */
    LEG_PLAIN_OUT,
    LEG_DISCARDED_OUT, /* without copies */
    LEG_DISCARDED_BACK,
    LEG_PLAIN_BACK, /* into freshly mapped memory, as in a restore */
    LEG_COUNT
} bench_leg;

/* Moments at which memory is recorded. */
typedef enum bench_moment {
    MOMENT_BEFORE,
    MOMENT_KEPT,      /* offloaded with contents on the host */
    MOMENT_DISCARDED, /* offloaded without contents */
    MOMENT_AFTER,
    MOMENT_COUNT
} bench_moment;

typedef struct bench_way {
    bench_spread whole, copies, without; /* seconds: the whole operation, its copies, without copies */
    bench_spread plain;                  /* seconds: plain copies of the same bytes */
    bench_spread ratio, whole_ratio;     /* plain over copies, and over the whole operation, per turn */
} bench_way;

#define BENCH_OFFLOAD_ERROR_CHARS 200

typedef struct bench_offload {
    const bench_offload_options *options;
    bench_device device;
    bench_groups groups;
    double (*turns)[LEG_COUNT]; /* seconds */
    uint64_t done;              /* measured turns; fewer than requested after an interrupt */
    double first[LEG_COUNT];    /* of the uncounted turn, which pins host memory */
    bench_way out, back;
    uint64_t used[MOMENT_COUNT]; /* by the device's allocation count */
    uint64_t seen[MOMENT_COUNT]; /* by bench_device_seen */
    bp_pinned_statistics kept;
    uint64_t host_bytes;
    bool pinned;                           /* backing of the kept bytes */
    char wrong[BENCH_OFFLOAD_ERROR_CHARS]; /* "": no error */
} bench_offload;

/* Print to standard output. Each returns EXIT_GO_ON or an exit code. */
int bench_offload_table(const bench_offload *b);
/* bucketpool.bench/1 */
int bench_offload_json(const bench_offload *b);

#endif

/* `bench offload`: its options, offloads and restores in turns, their figures. */
#ifndef BP_BENCH_COMMAND_OFFLOAD_H
#define BP_BENCH_COMMAND_OFFLOAD_H

#include <bucketpool/bucketpool.h>

#include <stdatomic.h>
#include <stdbool.h>

#include "bench/command/device.h"

/* ---- options ----------------------------------------------------------------------------------------------------- */

#define BENCH_OFFLOAD_MOST_GROUPS 64

typedef struct bench_offload_options {
    bench_common common; /* first: its table sets it */
    uint64_t bytes;      /* of all groups */
    uint64_t chunk_bytes;
    uint32_t groups; /* on their way at once */
    bp_backing backing;
} bench_offload_options;

/* "auto", "pinned", "staged" */
const char *bench_backing_name(bp_backing backing);

/* ---- groups ------------------------------------------------------------------------------------------------------ */

/* What is offloaded: a pool of release groups, each a slab of parts that are held all the time, and what `bench offload` does with them. */

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

/* ---- runs -------------------------------------------------------------------------------------------------------- */

/* What a turn times. */
typedef enum bench_leg {
    LEG_KEPT_OUT,
    LEG_COPIES_OUT, /* of that: until all bytes were on the host */
    LEG_KEPT_BACK,
    LEG_COPIES_BACK, /* of that: from when there was memory until all bytes were in it */
    LEG_PLAIN_OUT,
    LEG_DISCARDED_OUT, /* the same without copies */
    LEG_DISCARDED_BACK,
    LEG_PLAIN_BACK, /* into memory that has just come, as restored bytes go */
    LEG_COUNT
} bench_leg;

/* When memory is looked at. */
typedef enum bench_moment {
    MOMENT_BEFORE,
    MOMENT_KEPT,      /* away, its bytes on the host */
    MOMENT_DISCARDED, /* away, its bytes given up */
    MOMENT_AFTER,
    MOMENT_COUNT
} bench_moment;

typedef struct bench_way {
    bench_spread whole, copies, without; /* seconds: all of it, the copies in it, the same without copies */
    bench_spread plain;                  /* seconds: plain copies of as much */
    bench_spread ratio, whole_ratio;     /* plain to copies and to all of it, turn by turn */
} bench_way;

#define BENCH_OFFLOAD_ERROR_CHARS 200

typedef struct bench_offload {
    const bench_offload_options *options;
    bench_device device;
    bench_groups groups;
    double (*turns)[LEG_COUNT]; /* seconds */
    uint64_t done;              /* turns that were measured: fewer than asked for when an interrupt came */
    double first[LEG_COUNT];    /* of the turn that is not counted: host memory is pinned in it */
    bench_way out, back;
    uint64_t used[MOMENT_COUNT]; /* of the device's memory, by its own account */
    uint64_t seen[MOMENT_COUNT]; /* as bench_device_seen has it */
    bp_pinned_statistics kept;
    uint64_t host_bytes;
    bool pinned;                           /* where the bytes were kept */
    char wrong[BENCH_OFFLOAD_ERROR_CHARS]; /* "": nothing */
} bench_offload;

/* Answers on standard output. Each returns EXIT_GO_ON or an exit code. */
int bench_offload_table(const bench_offload *b);
/* bucketpool.bench/1 */
int bench_offload_json(const bench_offload *b);

#endif

/* Offloads and restores in turns, and what they come to. */
#ifndef TOOLS_BENCH_OFFLOAD_RUN_H
#define TOOLS_BENCH_OFFLOAD_RUN_H

#include "bench/device.h"
#include "bench/offload_groups.h"

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

#endif

/* The options of `bench offload`. */
#ifndef TOOLS_BENCH_OFFLOAD_ARGUMENTS_H
#define TOOLS_BENCH_OFFLOAD_ARGUMENTS_H

#include <bucketpool/bucketpool.h>

#include <stdbool.h>

#define BENCH_OFFLOAD_MOST_GROUPS 64

typedef struct bench_offload_options {
    bool cuda;
    int32_t ordinal; /* of a cuda device */
    uint64_t bytes;  /* of all groups */
    uint64_t chunk_bytes;
    uint32_t groups; /* on their way at once */
    bp_backing backing;
    uint64_t turns;
    bool json;
    const char *color;
} bench_offload_options;

/* "auto", "pinned", "staged" */
const char *bench_backing_name(bp_backing backing);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the benchmarks of the command: options, the measured device with its stream, medians. */
#ifndef BP_BENCH_COMMAND_DEVICE_H
#define BP_BENCH_COMMAND_DEVICE_H

#include <bucketpool/bucketpool.h>

#include <stdbool.h>
#include <stddef.h>

#include "shared/options.h"

/* ---- options ----------------------------------------------------------------------------------------------------- */

typedef struct bench_common {
    bool cuda;
    int32_t ordinal; /* of a cuda device */
    uint64_t turns;
    bool json;
    cli_color color;
} bench_common;

/* Option rows of bench_common, which is the first member of a command's struct. Headings are groups 2 (machine) and 3 (output). */
extern const option_row bench_common_table[];

/* ---- times ------------------------------------------------------------------------------------------------------- */

typedef struct bench_spread {
    double median, min, max;
} bench_spread;

/* Sorts the values; the median of an even number is the mean of the middle two. All zeros without values. */
bench_spread bench_spread_of(double *values, size_t count);

#define BENCH_TIME_CHARS 32 /* minimum size */

/* "1.2345 ms", "12.34 ms", "123.4 ms" */
void bench_milliseconds(char text[BENCH_TIME_CHARS], double seconds);

/* ---- the device -------------------------------------------------------------------------------------------------- */

typedef struct bench_device {
    bp_device *device;
    bp_stream *stream;
    char model[64]; /* of a GPU; "" otherwise */
    bool cuda;
    int32_t ordinal;      /* of a GPU */
    uint64_t free_bytes;  /* of its memory, before the benchmark used any */
    uint64_t granularity; /* allocation granularity */
} bench_device;

/* Call bench_device_finish after success and failure. */
bp_status bench_device_init(bool cuda, int32_t ordinal, bench_device *d);
void bench_device_finish(bench_device *d);

/* Bytes allocated from the device. */
bp_status bench_device_used(const bench_device *d, uint64_t *bytes);
/* Bytes that the system reports: used memory of a GPU by all processes; on the host the resident pages of this process. */
bp_status bench_device_seen(const bench_device *d, uint64_t *bytes);

#endif

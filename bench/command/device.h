/* What the benches of the command share: options, the device that is measured and its stream, medians. */
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
    const char *color;
} bench_common;

#define BENCH_COMMON_DEFAULTS                                                                                          \
    {                                                                                                                  \
        .turns = 5, .color = "auto"                                                                                    \
    }

/* Their rows: a bench_common is the first member of the command's struct. Headings are groups 2 (machine) and 3 (output). */
extern const option_row bench_common_table[];

/* ---- times ------------------------------------------------------------------------------------------------------- */

typedef struct bench_spread {
    double median, least, most;
} bench_spread;

/* Puts the values in order; of an even number the median is the mean of the two in the middle. Zeros of none. */
bench_spread bench_spread_of(double *values, size_t count);

#define BENCH_TIME_CHARS 32 /* at least */

/* "1.2345 ms", "12.34 ms", "123.4 ms" */
void bench_milliseconds(char text[BENCH_TIME_CHARS], double seconds);

/* ---- the device -------------------------------------------------------------------------------------------------- */

typedef struct bench_device {
    bp_device *device;
    bp_stream *stream;
    char model[64]; /* of a GPU; "" otherwise */
    bool cuda;
    int32_t ordinal;      /* of a GPU */
    uint64_t free_bytes;  /* of its memory, before any of it was used */
    uint64_t granularity; /* memory is handed out in multiples of it */
} bench_device;

/* Call bench_device_finish either way. */
bp_status bench_device_init(bool cuda, int32_t ordinal, bench_device *d);
void bench_device_finish(bench_device *d);

/* Memory that the device has handed out and not got back. */
bp_status bench_device_used(const bench_device *d, uint64_t *bytes);
/* What the system sees of it: used memory of a GPU, whoever uses it; on the host what is resident of this process. */
bp_status bench_device_seen(const bench_device *d, uint64_t *bytes);

#endif

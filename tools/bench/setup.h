/* What a bench needs: the device, its shapes, their memory, and a row of the answer for each shape and chunk size. */
#ifndef TOOLS_BENCH_SETUP_H
#define TOOLS_BENCH_SETUP_H

#include "bench/arguments.h"
#include "bench/copy.h"
#include "bench/data.h"
#include "bench/device.h"
#include "bench/memory.h"
#include "shared/progress.h"

enum {
    TENSOR_LOGITS,
    TENSOR_LOGITS_GRAD,
    TENSOR_HIDDEN,
    TENSOR_WEIGHT,
    TENSOR_HIDDEN_GRAD,
    TENSOR_WEIGHT_GRAD,
    TENSOR_TARGET,
    TENSOR_LOGPROB,
    TENSOR_ENTROPY,
    TENSOR_SAVED,
    TENSOR_LOGPROB_GRAD,
    TENSOR_ENTROPY_GRAD,
    TENSOR_COUNT, /* what follows is for the comparison with matrix products alone */
    TENSOR_PRODUCT = TENSOR_COUNT,
    TENSOR_WIDE_HIDDEN,
    TENSOR_WIDE_WEIGHT,
    TENSOR_LIBRARY
};

typedef struct bench_shape {
    uint64_t seq, unscaled_seq, vocab;
    bench_tensors tensors;
    bool fits;
    size_t place; /* in the memory */
    void *at[BENCH_MOST_TENSORS];
} bench_shape;

#define BENCH_ERROR_CHARS 256
#define BENCH_CUBLAS_BYTES (UINT64_C(32) << 20) /* what cuBLAS works in, here as in the head */

typedef struct bench_row {
    const bench_shape *shape;
    uint64_t chunk;
    char error[BENCH_ERROR_CHARS]; /* "": none */
    bool measured, wrong;          /* wrong: `error` says what */
    double seconds, forward_seconds, backward_seconds;
    double copy_bytes_per_s; /* while it was measured; of logits */
    double products_seconds; /* of the head */
    uint64_t peak_bytes, workspace_bytes, planned_bytes;
} bench_row;

typedef struct bench {
    const bench_options *options;
    bench_device device;
    bench_copy copy;
    bench_staging staging;
    bench_memory memory;
    uint64_t scale;
    uint64_t idle_bytes; /* of the device's memory that are used while nothing is measured */
    bench_shape *shapes;
    size_t shape_count;
    bench_row *rows; /* a shape's rows are next to each other, in the order of chunks */
    size_t row_count;
    char kernels[16], products[16]; /* "": of nothing yet */
    uint32_t threads;
    double copy_bytes_per_s;
    progress progress;
    uint64_t measured;
} bench;

/* Returns EXIT_GO_ON, or the exit code after a message. Call bench_finish either way. */
int bench_init(const bench_options *options, bench *b);
void bench_finish(bench *b);

/* Bytes that a logit is counted with: read forward, read backward, and its gradient written. */
uint64_t bench_bytes_per_logit(const bench_options *options);
/* Counted bytes a second, beside those of copies. */
double bench_row_bandwidth_fraction(const bench_options *options, const bench_row *row);
/* Of the head: its time beside that of its matrix products alone. */
double bench_row_products_ratio(const bench_row *row);
/* Tokens in one piece: of a sequence without chunks all. */
uint64_t bench_chunk_tokens(const bench_shape *shape, uint64_t chunk);

/* Holds the tensors of a shape, and writes what all benches read: targets and upstream gradients. */
bp_status bench_take_shape(bench *b, bench_shape *shape);
bp_status bench_give_shape(bench *b, bench_shape *shape);
/* Memory of the row at this moment: held tensors, and whatever the device has handed out since it was idle. */
bp_status bench_row_memory(const bench *b, uint64_t *bytes);

/* Marks rows that cannot be measured. */
void bench_refuse_row(bench_row *row, const char *why);

/* The exit code for a status, and its detail as a message. */
int bench_fail(bench *b, bp_status status);

#endif

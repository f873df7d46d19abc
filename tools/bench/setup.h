/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of `bench logprob`: options, input data, memory, copies, shapes, and one row per shape and chunk size. */
#ifndef BP_BENCH_COMMAND_SETUP_H
#define BP_BENCH_COMMAND_SETUP_H

#include <bucketpool/bucketpool.h>

#include "bench/device.h"
#include "shared/progress.h"

/* ---- options ----------------------------------------------------------------------------------------------------- */

#define BENCH_MAX_VALUES 32 /* per list */

typedef struct bench_list {
    uint64_t values[BENCH_MAX_VALUES];
    size_t count;
} bench_list;

uint64_t bench_largest(const bench_list *list);

typedef enum bench_gradient { BENCH_GRADIENT_FP32, BENCH_GRADIENT_LOGITS, BENCH_GRADIENT_IN_PLACE } bench_gradient;

typedef struct bench_options {
    bench_common common;          /* first member: its option table refers to it */
    bench_list seq, vocab, chunk; /* chunk 0: none */
    bp_dtype dtype;
    bench_gradient gradient;
    bool entropy, fused;
    uint32_t threads; /* 0: OpenMP's */
    uint32_t kernels; /* a BP_KERNELS bit, 0: the fastest that the machine supports */
    uint64_t scale;   /* 0: chosen automatically */
    uint64_t head;    /* hidden size, 0: stored logits */
} bench_options;

/* "fp32", "logits", "in-place". */
const char *bench_gradient_name(bench_gradient gradient);
/* "plain", "avx2", "avx512", "neon", "auto". */
const char *bench_kernels_name(uint32_t kernels);

/* ---- input data -------------------------------------------------------------------------------------------------- */

/* Period of a tensor's elements, a prime, so that rows start at different phases. */
#define BENCH_PERIOD 1048573u

typedef enum bench_kind { BENCH_LOGITS, BENCH_HIDDEN, BENCH_WEIGHT } bench_kind;

/* The elements of a tensor: 8-bit integers times 2^shift. */
typedef struct bench_pattern {
    bench_kind kind;
    int shift;
} bench_pattern;

/* Realistic magnitudes: logits about normal, below 8; hidden states below 1, and a weight that gives similar logits for size `hidden`. */
bench_pattern bench_pattern_of(bench_kind kind, uint64_t hidden);

/* Element `index` of a contiguous tensor. */
double bench_element(bench_pattern pattern, uint64_t index);
/* A token's target, and its upstream gradients in [-1, 1]. */
int64_t bench_target(uint64_t token, uint64_t vocab);
float bench_logprob_grad(uint64_t token);
float bench_entropy_grad(uint64_t token);

/* Host staging memory for copies to and from the device. */
typedef struct bench_staging {
    const bench_device *device;
    void *memory;
    uint64_t bytes;
} bench_staging;

bp_status bench_staging_init(const bench_device *device, bench_staging *s);
void bench_staging_finish(bench_staging *s);

/* Writes a tensor; synchronous. */
bp_status bench_fill(bench_staging *s, bench_pattern pattern, bp_dtype dtype, uint64_t elements, void *to);
/* Copies between the caller's host memory and the device: at most 1 MiB to it, any size from it. */
bp_status bench_upload(bench_staging *s, const void *from, uint64_t bytes, void *to);
bp_status bench_download(bench_staging *s, const void *from, uint64_t bytes, void *to);

/* Element `index` of `dtype` (fp32, bf16, fp16) in host memory. */
double bench_read(const void *data, bp_dtype dtype, uint64_t index);

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Tensors of shapes that are measured in sequence: a plan's requests, which share one slab as large as the largest shape needs. */

#define BENCH_MAX_TENSORS 16

/* Bytes of each tensor of a shape; 0: absent. */
typedef struct bench_tensors {
    uint64_t bytes[BENCH_MAX_TENSORS];
} bench_tensors;

typedef struct bench_memory {
    bp_pool *pool; /* NULL: without shapes */
    uint32_t *ids; /* [shape][tensor] */
    size_t shapes;
} bench_memory;

/* Call bench_memory_finish after success and failure. `name`: of the pool, in messages. */
bp_status bench_memory_init(bp_device *device, const char *name, const bench_tensors *tensors, size_t shapes,
                            bench_memory *memory);
void bench_memory_finish(bench_memory *memory);

/* Acquires one tensor of a shape; its address is NULL if it has no bytes. Only one shape's tensors may be acquired at a time. */
bp_status bench_memory_take(bench_memory *memory, size_t shape, size_t tensor, bp_stream *stream, void **address);

/* ---- copies ------------------------------------------------------------------------------------------------------ */

/* Source and destination of copies: larger than caches, and a small part of free memory. */
typedef struct bench_copy {
    const bench_device *device;
    bench_memory memory;
    void *from, *to;
    uint64_t bytes;   /* of each */
    uint32_t threads; /* host only */
} bench_copy;

/* Bytes, for both sides, that bench_copy_init will allocate. */
uint64_t bench_copy_bytes(const bench_device *device);

/* Call bench_copy_finish after success and failure. */
bp_status bench_copy_init(const bench_device *device, bench_copy *c);
void bench_copy_finish(bench_copy *c);

/* Copies once; counts bytes read and written. */
bp_status bench_copy_measure(const bench_copy *c, double *bytes_per_s);

/* ---- a bench ----------------------------------------------------------------------------------------------------- */

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
    TENSOR_PRODUCT, /* the following are for the baseline of matrix products */
    TENSOR_WIDE_HIDDEN,
    TENSOR_WIDE_WEIGHT,
    TENSOR_LIBRARY,
    TENSOR_COUNT
};

typedef struct bench_shape {
    uint64_t seq, unscaled_seq, vocab;
    bench_tensors tensors;
    bool fits;
    size_t place; /* index in the memory */
    void *at[BENCH_MAX_TENSORS];
} bench_shape;

#define BENCH_ERROR_CHARS 256
#define BENCH_CUBLAS_BYTES (UINT64_C(32) << 20) /* workspace of cuBLAS, as in the head */

typedef struct bench_row {
    bench_shape *shape;
    uint64_t chunk;
    char error[BENCH_ERROR_CHARS]; /* "": no error */
    bool measured, wrong;          /* wrong: `error` has the details */
    double seconds, forward_seconds, backward_seconds;
    double copy_bytes_per_s; /* during its turns; stored logits */
    double products_seconds; /* head only */
    uint64_t peak_bytes, workspace_bytes, planned_bytes;
} bench_row;

typedef struct bench {
    const bench_options *options;
    bp_dtype gradient_dtype; /* of the logits, or of the hidden states */
    bench_device device;
    bench_copy copy;
    bench_staging staging;
    bench_memory memory;
    uint64_t scale;
    uint64_t idle_bytes; /* device memory in use while nothing is measured */
    bench_shape *shapes;
    size_t shape_count;
    bench_row *rows; /* [shape][chunk] */
    size_t row_count;
    char kernels[16], products[16]; /* "": not created yet */
    uint32_t threads;
    double copy_bytes_per_s;
    progress progress;
    uint64_t measured;
} bench;

/* Returns EXIT_GO_ON, or the exit code after a message. Call bench_finish either way. */
int bench_init(const bench_options *options, bench *b);
void bench_finish(bench *b);

/* Tokens per piece; without chunks the whole sequence. */
uint64_t bench_chunk_tokens(const bench_shape *shape, uint64_t chunk);

/* Acquires tensors [first, end). */
bp_status bench_take_tensors(bench *b, bench_shape *shape, size_t first, size_t end);
/* Releases all acquired tensors. */
bp_status bench_give_tensors(bench *b, bench_shape *shape);
/* Current memory of the row: acquired tensors, and other allocations since the device was idle. */
bp_status bench_row_memory(const bench *b, uint64_t *bytes);

/* Marks rows as not measurable. */
void bench_refuse_row(bench_row *row, const char *why);

/* Prints the status with its detail and returns the exit code. */
int bench_fail(bench *b, bp_status status);

/* Measures and fills the rows. Returns EXIT_GO_ON, or the exit code after a message. */
int bench_run(bench *b);

/* Checks some tokens of a measured row's results. Wrong values are recorded in the row; the status is about the check itself. */
bp_status bench_check_logits(bench *b, bench_row *row);
bp_status bench_check_head(bench *b, bench_row *row);

/* ---- answers on standard output ---------------------------------------------------------------------------------- */

/* Each returns EXIT_GO_ON or an exit code. */
int bench_report_table(const bench *b);
/* bucketpool.bench/1 */
int bench_report_json(const bench *b);

#endif

/* The parts of a bench: its numbers, the device and its copies, memory, shapes, and a row of the answer for each shape and chunk size. */
#ifndef BP_BENCH_COMMAND_SETUP_H
#define BP_BENCH_COMMAND_SETUP_H

#include <bucketpool/bucketpool.h>

#include "bench/command/device.h"
#include "bench/command/options.h"
#include "shared/progress.h"

/* ---- numbers ----------------------------------------------------------------------------------------------------- */

/* Elements of a tensor repeat after so many, a prime: rows begin at different places. */
#define BENCH_PERIOD 1048573u

typedef enum bench_kind { BENCH_LOGITS, BENCH_HIDDEN, BENCH_WEIGHT } bench_kind;

/* What a tensor is filled with. */
typedef struct bench_pattern {
    bench_kind kind;
    int shift; /* elements are integers of 8 bits times 2 to its power */
} bench_pattern;

/* Logits as they are common: about normal, below 8 in size. */
bench_pattern bench_logits_pattern(void);
/* Hidden states below 1 in size, and a weight that makes logits about as large as those above of them. */
bench_pattern bench_hidden_pattern(void);
bench_pattern bench_weight_pattern(uint64_t hidden);

/* Element `index` of a tensor without gaps. */
double bench_element(bench_pattern pattern, uint64_t index);
/* Of a token: its target, and its upstream gradients between -1 and 1. */
int64_t bench_target(uint64_t token, uint64_t vocab);
float bench_logprob_grad(uint64_t token);
float bench_entropy_grad(uint64_t token);

/* Host memory that the device copies to and from. */
typedef struct bench_staging {
    const bench_device *device;
    void *memory;
    uint64_t bytes;
} bench_staging;

bp_status bench_staging_init(const bench_device *device, bench_staging *s);
void bench_staging_finish(bench_staging *s);

/* Writes a tensor; done when it returns. */
bp_status bench_fill(bench_staging *s, bench_pattern pattern, bp_dtype dtype, uint64_t elements, void *to);
/* Copies between host memory of the caller and the device, in pieces. */
bp_status bench_upload(bench_staging *s, const void *from, uint64_t bytes, void *to);
bp_status bench_download(bench_staging *s, const void *from, uint64_t bytes, void *to);

/* Element `index` of `dtype` (fp32, bf16, fp16) in host memory. */
double bench_read(const void *data, bp_dtype dtype, uint64_t index);

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Tensors of shapes that are measured one after the other: requests of a plan in which they take turns in one slab, as large as the
 * largest shape needs. */

#define BENCH_MOST_TENSORS 16

/* Bytes of each tensor of a shape; 0: it has none. */
typedef struct bench_tensors {
    uint64_t bytes[BENCH_MOST_TENSORS];
} bench_tensors;

/* As the pool counts them: each rounded up. UINT64_MAX when they do not fit 64 bits. */
uint64_t bench_tensors_bytes(const bench_tensors *tensors);

typedef struct bench_memory {
    bp_pool *pool; /* NULL: there is no shape */
    uint32_t *ids; /* by shape and tensor */
    size_t shapes;
} bench_memory;

/* Call bench_memory_finish either way. `name`: of the pool, in messages. */
bp_status bench_memory_init(bp_device *device, const char *name, const bench_tensors *tensors, size_t shapes,
                            bench_memory *memory);
void bench_memory_finish(bench_memory *memory);

/* Holds one tensor of a shape; its address is NULL where it has no bytes. Only one shape's tensors may be held at a time. */
bp_status bench_memory_take(bench_memory *memory, size_t shape, size_t tensor, bp_stream *stream, void **address);
bp_status bench_memory_give(bench_memory *memory, size_t shape, size_t tensor, bp_stream *stream);
/* Bytes that are held now. */
bp_status bench_memory_held(const bench_memory *memory, uint64_t *bytes);

/* ---- copies ------------------------------------------------------------------------------------------------------ */

/* How fast a device copies: what everything else is compared with. */

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

/* ---- setting up -------------------------------------------------------------------------------------------------- */

/* What a bench needs: the device, its shapes, their memory, and a row of the answer for each shape and chunk size. */

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

/* ---- runs -------------------------------------------------------------------------------------------------------- */

/* Measuring: each fills the rows of `b`. Returns EXIT_GO_ON, or the exit code after a message. */

/* Logits that are there. */
int bench_run_logits(bench *b);
/* The fused head. */
int bench_run_head(bench *b);

/* What both have: forward and backward of something, at the shape's tensors. */
typedef struct bench_work {
    bp_status (*forward)(void *user);
    bp_status (*backward)(void *user);
    void *user;
    bp_stream *stream;
} bench_work;

typedef struct bench_sample {
    double forward, backward; /* seconds */
} bench_sample;

/* Each `repeats` times in a row, the mean of it; fewer times when an interrupt comes. */
bp_status bench_time(const bench_work *work, uint64_t repeats, bench_sample *sample);
/* How often something that takes so long is repeated, so that starting it takes no part in it. */
uint64_t bench_repeats(const bench_sample *sample);
/* Medians of samples, into a row; "interrupted" where there is none. */
bp_status bench_settle(const bench_sample *samples, size_t count, bench_row *row);

/* Outputs and gradients begin as NaN. */
bp_status bench_poison(bench *b, const bench_shape *shape);

/* The kernels that a client took: they must be those that were asked for. EXIT_GO_ON or an exit code. */
int bench_note_kernels(bench *b, const char *kernels, uint32_t threads);

#endif

/* Calls of host engines: tensors with gaps and strides, forward and backward, and their comparison with fp64. */
#ifndef BP_TESTS_KERNELS_HOST_CALLS_H
#define BP_TESTS_KERNELS_HOST_CALLS_H

#include <bucketpool/device.h>

#include "engine.h"
#include "rows.h"

#define assert_ok(call) assert_int_equal((call), BP_OK)

/* An engine, its device, and streams of it. */
typedef struct kit {
    bp_device *device;
    bp_stream *streams[2];
    bp_engine *engine;
} kit;

kit open_kit(uint32_t threads, uint32_t kernels, uint64_t columns);
void close_kit(kit *k);

typedef struct call_options {
    uint64_t batch, sequence, columns;
    int dtype, out_dtype;
    float scale;
    row_kind kind; /* of even tokens; odd ones are normal */
    int with_mask, with_entropy, in_place, narrow_targets, same_upstream;
    int directly; /* results without partials */
    uint64_t seed;
} call_options;

/* Tensors of a call; outputs are poisoned. */
typedef struct call {
    call_options o;
    char *logits, *out; /* out: equals logits in place */
    size_t logits_bytes, out_bytes;
    void *targets;
    uint8_t *mask;
    float *logprob, *entropy, *saved, *logprob_grad, *entropy_grad;
    size_t values; /* per tensor */
    bp_partial *partials;
    float *target_logits;
    uint64_t bad;
    bp_forward_work forward;
    bp_finish_work finish;
    bp_gradient_work backward;
} call;

call new_call(const call_options *options);
void end_call(call *c);

/* Forward, and backward. */
void enqueue_forward(const kit *k, unsigned stream, const call *c);
void enqueue_backward(const kit *k, unsigned stream, const call *c);
/* Both, and synchronizes. */
void run_call(const kit *k, const call *c);

/* Target of a token. */
int64_t target_of(const call *c, uint64_t token);
int is_masked(const call *c, uint64_t token);

/* Compares all outputs with fp64 and checks that nothing else was written. `original`: a call of the same options that was not run. */
void check_call(const char *name, const call *c, const call *original);
/* True if all tensors of two calls with the same options have equal bits. */
int calls_are_equal(const call *a, const call *b);

#endif

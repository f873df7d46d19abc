/* SPDX-License-Identifier: Apache-2.0 */
/* Batches of tests/kernels in GPU memory: a device copy of each host batch, with the same bytes at the same offsets. */
#ifndef BP_TEST_GPU_DEVICE_BATCHES_H
#define BP_TEST_GPU_DEVICE_BATCHES_H

#include "../support/batches.h"

typedef struct device_batch {
    batch *host;
    batch gpu; /* views and `saved` are in GPU memory; `x` and `original` are NULL */
    bp_stream *stream;
    void *memory;
} device_batch;

/* Also if the emulated driver replaces the machine's. */
bool is_emulated(void);
/* `--small`: the shapes of the emulated driver, for compute-sanitizer. Any other argument is a pattern of tests to run ("random_*"). */
void take_arguments(int argc, char **argv);
/* True on the emulated driver, where a row takes a thousand times as long, or with --small. */
bool has_small_shapes(void);
unsigned rounds(unsigned on_gpu, unsigned small);
/* Returns false with a message if built without kernels. */
bool has_cuda_kernels(void);

/* Driver memory, outside all pools. NULL: out of memory. */
void *take_gpu_memory(uint64_t bytes);
void give_gpu_memory(void *memory);

/* Copies the host's bytes. */
device_batch new_device_batch(batch *b, bp_stream *stream);
void free_device_batch(device_batch *t);
void copy_to_gpu(const device_batch *t);
/* Waits. */
void copy_to_host(const device_batch *t);

/* Tokens [first, first + count) of the sequences; statistics are written from the beginning of `saved`. Only enqueues. */
void forward_part(bp_logprob *client, const device_batch *t, uint64_t first, uint64_t count);
void backward_part(bp_logprob *client, const device_batch *t, uint64_t first, uint64_t count);

#endif

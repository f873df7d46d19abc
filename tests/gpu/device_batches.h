/* Batches of tests/kernels in memory of a GPU: a twin of each, with the same bytes in the same places. */
#ifndef BP_TEST_GPU_DEVICE_BATCHES_H
#define BP_TEST_GPU_DEVICE_BATCHES_H

#include "../kernels/support/batches.h"

typedef struct twin {
    batch *host;
    batch gpu; /* views and `saved` are memory of the GPU; `x` and `original` are not there */
    bp_stream *stream;
    void *memory;
} twin;

/* Also where the emulated driver stands in for the machine's. */
bool is_emulated(void);
/* `--small`: the shapes that the emulated driver has, for compute-sanitizer. Anything else is a pattern of the tests to run ("random_*"). */
void take_arguments(int argc, char **argv);
/* On the emulated driver, where a row takes a thousand times as long, or with --small. */
bool has_small_shapes(void);
unsigned rounds(unsigned on_gpu, unsigned small);
/* False, and said so, in builds without. */
bool has_cuda_kernels(void);

/* Memory of the driver's, outside all pools. NULL: there is not so much. */
void *take_gpu_memory(uint64_t bytes);
void give_gpu_memory(void *memory);

/* With the bytes of the host's. */
twin new_twin(batch *b, bp_stream *stream);
void free_twin(twin *t);
void copy_to_gpu(const twin *t);
/* Waits. */
void copy_to_host(const twin *t);

/* Tokens [first, first + count) of the sequences; statistics are kept from the beginning of `saved` on. Enqueued only. */
void forward_part(bp_logprob *client, const twin *t, uint64_t first, uint64_t count);
void backward_part(bp_logprob *client, const twin *t, uint64_t first, uint64_t count);

#endif

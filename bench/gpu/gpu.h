/* The GPU, memory of it with numbers in it, and the groups of figures. */
#ifndef BP_BENCH_GPU_GPU_H
#define BP_BENCH_GPU_GPU_H

#include <bucketpool/cuda.h>

#include "bench/measure.h"
#include "devices/cuda_driver.h"

typedef struct gpu {
    bp_cuda_driver driver;
    const char *library_name; /* NULL: the machine's driver */
    void *library, *context;
    bp_cuda_info info;
    uint64_t free_bytes, total_bytes;
    uint64_t divisor; /* of the shapes of logits and of the head, of numbers of tokens, of what is offloaded */
    const char *nccl; /* its library */
} gpu;

bp_device *gpu_device(const gpu *g);
/* Writes the symbol's address; 0: the library has it not. */
int gpu_symbol(void *library, const char *name, void *function, size_t size);
/* Ends the program where a call of the driver fails. */
void gpu_must(const gpu *g, int error, const char *what);

/* Ends the group that has begun where it needs more than is free: 0, and the reason is told. */
int gpu_has_room(const gpu *g, uint64_t bytes);

/* 1 for 1, else the count divided by --divide, rounded up. */
uint64_t gpu_divided(const gpu *g, uint64_t count);

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Tensors that lie one after the other. */
typedef struct gpu_part {
    char **at;
    uint64_t bytes;
} gpu_part;

uint64_t gpu_parts_bytes(const gpu_part *parts, size_t count);
/* Allocates them; to be freed by gpu_free. */
uint64_t gpu_place(const gpu *g, const gpu_part *parts, size_t count);
void gpu_free(const gpu *g, uint64_t memory);

/* bf16 numbers of either sign in size from that of these bits (a power of two) to four times that. Two of them are an fp32 number of such
 * a size. Products of zeros, or of numbers alike, take less power and are faster than those of a model. */
void gpu_fill(bp_stream *stream, char *to, uint64_t bytes, uint16_t least);
/* Targets below `vocab` (int64), and the same upstream gradient (fp32) for each token. */
void gpu_fill_tokens(bp_stream *stream, uint64_t tokens, uint64_t vocab, float upstream, char *targets,
                     char *upstreams);

/* ---- groups of figures ------------------------------------------------------------------------------------------- */

/* Each function calls bench_begin for its groups and makes nothing before: names need no GPU. A group that cannot run is skipped. */

/* Acquire and release against the driver's own calls. */
void gpu_pairs(const gpu *g);
/* Pools and memory of the driver's, made and destroyed: per GiB. */
void gpu_memory(const gpu *g);
/* A release group that goes and comes, against plain copies to and from pinned memory, per GiB. */
void gpu_offload(const gpu *g);
/* Registration with NCCL, per GiB. */
void gpu_registration(const gpu *g);
/* Log-probabilities of logits, forward and backward, against a copy. */
void gpu_logprob(const gpu *g);
/* Ranges of logits, sums and seeds of the loss and tokens in other orders, against a copy. */
void gpu_cp(const gpu *g);
/* The fused head against its matrix products alone. */
void gpu_head(const gpu *g);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The GPU, device memory filled with numbers, and the groups of figures. */
#ifndef BP_BENCH_GPU_GPU_H
#define BP_BENCH_GPU_GPU_H

#include <bucketpool/cuda.h>

#include "devices/cuda_driver.h"
#include "measure.h"

typedef struct gpu {
    bp_cuda_driver driver;
    const char *library_name; /* NULL: the installed driver */
    void *library, *context;
    bp_cuda_info info;
    uint64_t free_bytes, total_bytes;
    uint64_t divisor; /* of shapes, numbers of tokens, and offloaded bytes */
    const char *nccl; /* its library */
} gpu;

bp_device *gpu_device(const gpu *g);
/* Sets the symbol's address; 0: the library lacks it. */
int gpu_symbol(void *library, const char *name, void *function, size_t size);
/* Ends the program if a driver call failed. */
void gpu_must(const gpu *g, int error, const char *what);

/* 0: the current group needs more memory than is free, and is skipped with that reason. */
int gpu_has_room(const gpu *g, uint64_t bytes);

/* 1 for 1, else the count divided by --divide, rounded up. */
uint64_t gpu_divided(const gpu *g, uint64_t count);

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Adjacent tensors. */
typedef struct gpu_part {
    char **at;
    uint64_t bytes;
} gpu_part;

uint64_t gpu_parts_bytes(const gpu_part *parts, size_t count);
/* Allocates the parts; free with gpu_free. */
uint64_t gpu_place(const gpu *g, const gpu_part *parts, size_t count);
void gpu_free(const gpu *g, uint64_t memory);

/* Fills with bf16 numbers of both signs, in magnitude from that of these bits (a power of two) to four times that. Two of them form an fp32
 * number of similar magnitude. Zeros or equal numbers would take less power, so products would be faster than in a model. */
void gpu_fill(bp_stream *stream, char *to, uint64_t bytes, uint16_t min);
/* Writes targets below `vocab` (int64), and the same upstream gradient (fp32) for each token. */
void gpu_fill_tokens(bp_stream *stream, uint64_t tokens, uint64_t vocab, float upstream, char *targets,
                     char *upstreams);

/* ---- groups of figures ------------------------------------------------------------------------------------------- */

/* Each function calls bench_begin for its groups before it allocates anything, so names can be listed without a GPU. Groups that cannot run
 * are skipped. */

/* Acquire and release against driver calls. */
void gpu_pairs(const gpu *g);
/* Creating and destroying pools and driver memory, per GiB. */
void gpu_memory(const gpu *g);
/* Offload and restore of a release group, against plain copies to and from pinned memory, per GiB. */
void gpu_offload(const gpu *g);
/* Registration with NCCL, per GiB. */
void gpu_registration(const gpu *g);
/* Log-probabilities of logits, forward and backward, against a copy. */
void gpu_logprob(const gpu *g);
/* Ranges of logits, sums and seeds of the loss, and rearrangements, against a copy. */
void gpu_cp(const gpu *g);
/* The fused head in each way, against its three matrix products alone. */
void gpu_head(const gpu *g);

#endif

/* The GPU and what of the driver and of NCCL the benchmarks call directly. */
#ifndef BP_BENCH_GPU_GPU_H
#define BP_BENCH_GPU_GPU_H

#include <bucketpool/cuda.h>

#include "devices/cuda_driver.h"

typedef struct gpu {
    bp_cuda_driver driver;
    const char *library_name; /* NULL: the machine's driver */
    void *library, *context;
    bp_cuda_info info;
    uint64_t free_bytes, total_bytes;
} gpu;

/* `library` NULL: the machine's driver. 0: there is no GPU, and bp_error_detail says why. The context stays current on this thread. */
int gpu_open(gpu *g, const char *library);
void gpu_close(const gpu *g);
bp_device *gpu_device(const gpu *g);
/* Writes the symbol's address; 0: the library has it not. */
int gpu_symbol(void *library, const char *name, void *function, size_t size);
/* Ends the program where a call of the driver fails. */
void gpu_must(const gpu *g, int error, const char *what);

/* Ends the group that has begun where it needs more than is free: 0, and the reason is told. */
int gpu_has_room(const gpu *g, uint64_t bytes);

/* ---- groups of figures ---------------------------------------------------------------------------------------------- */

/* Each function calls bench_begin for its groups and makes nothing before: names need no GPU. A group that cannot run is skipped. */

/* Acquire and release against the driver's own calls. */
void gpu_pairs(const gpu *g);
/* Pools and memory of the driver's, made and destroyed: per GiB. */
void gpu_memory(const gpu *g);
/* A release group that goes and comes, against plain copies to and from pinned memory, per GiB. The GiB is divided by `divisor`. */
void gpu_offload(const gpu *g, uint64_t divisor);
/* Registration with NCCL, per GiB. `nccl`: its library; NULL: libnccl.so.2. Loaded by the groups that are measured. */
void gpu_registration(const gpu *g, const char *nccl);
/* Log-probabilities of logits, forward and backward, against a copy. Shapes are divided by `divisor` both ways. */
void gpu_logprob(const gpu *g, uint64_t divisor);
/* Ranges of logits, sums and seeds of the loss and tokens in other orders, against a copy. */
void gpu_cp(const gpu *g, uint64_t divisor);
/* The fused head against its matrix products alone. */
void gpu_head(const gpu *g, uint64_t divisor);

#endif

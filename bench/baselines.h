/* What acquire and release are compared with: general allocators, and the bookkeeping that they replace. */
#ifndef BP_BENCH_BASELINES_H
#define BP_BENCH_BASELINES_H

#include <stddef.h>
#include <stdint.h>

/* ---- malloc and free ---------------------------------------------------------------------------------------------- */

typedef struct baseline_malloc {
    void *(*allocate)(size_t bytes);
    void (*release)(void *memory);
    size_t bytes;
} baseline_malloc;

/* The C library's own, also where the program's malloc is another; 0: not found. */
int baseline_libc(baseline_malloc *baseline, size_t bytes);
/* jemalloc's, where the program is linked with it; 0: it is not. */
int baseline_jemalloc(baseline_malloc *baseline, size_t bytes);
/* A bench_loop: of `bytes`, untouched. */
void baseline_malloc_loop(void *user, size_t pairs);

/* ---- Megatron's lists --------------------------------------------------------------------------------------------- */

/* Megatron-FSDP's bookkeeping restated in C: buffers that are idle in a list that is searched from its front, those in use by bucket,
 * strict assignment. Source: Megatron-LM d98e8a64, megatron_fsdp/param_and_grad_buffer.py, FixedPoolAllocator and MaxPoolAllocator.
 * What they do beside it is left out: the name of the buffer as a string, the look-up of its tensor by that name. Nothing here
 * is checked, ordered or safe for threads, as there. */
typedef struct list_pool list_pool;

/* `fixed`: the fixed pool, which also looks the bucket's unit up in its list of pooled units; else the max pool. */
list_pool *list_pool_create(int fixed, uint32_t units, uint32_t buckets, uint32_t copies, uint64_t bytes);
void list_pool_destroy(list_pool *pool);
void *list_pool_allocate(list_pool *pool, uint32_t bucket);
void list_pool_free(list_pool *pool, uint32_t bucket);

#endif

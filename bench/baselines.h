/* SPDX-License-Identifier: Apache-2.0 */
/* Baselines of acquire and release: general allocators, and the list bookkeeping of Megatron-FSDP. */
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

/* The C library's malloc, even if the program has another; 0: not found. */
int baseline_libc(baseline_malloc *baseline, size_t bytes);
/* jemalloc, if the program is linked with it; 0: it is not. */
int baseline_jemalloc(baseline_malloc *baseline, size_t bytes);
/* A bench_loop of allocations of `bytes`, without touching them. */
void baseline_malloc_loop(void *user, size_t pairs);

/* ---- Megatron's lists --------------------------------------------------------------------------------------------- */

/* Megatron-FSDP's bookkeeping in C: a list of idle buffers searched from the front, a table of used ones by bucket, strict assignment.
 * Source: Megatron-LM d98e8a64, megatron_fsdp/param_and_grad_buffer.py, FixedPoolAllocator and MaxPoolAllocator. Omitted: building the
 * buffer's name and looking up its tensor by that name. As in the source, there are no checks, no stream ordering and no thread safety. */
typedef struct list_pool list_pool;

/* `fixed`: the fixed pool, which also searches its list of pooled units; else the max pool. */
list_pool *list_pool_create(int fixed, uint32_t units, uint32_t buckets, uint32_t copies, uint64_t bytes);
void list_pool_destroy(list_pool *pool);
void *list_pool_allocate(list_pool *pool, uint32_t bucket);
void list_pool_free(list_pool *pool, uint32_t bucket);

#endif

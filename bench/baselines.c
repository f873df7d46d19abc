/* SPDX-License-Identifier: Apache-2.0 */
/* Baselines of the pool benchmarks: general allocators, and Megatron's buffer lists. */
#include "baselines.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- malloc and free ---------------------------------------------------------------------------------------------- */

/* Takes malloc and free from the library; 0: it lacks one. */
static int take_functions(baseline_malloc *baseline, void *library, size_t bytes)
{
    void *allocate = dlsym(library, "malloc"), *release = dlsym(library, "free");
    memcpy(&baseline->allocate, &allocate, sizeof allocate);
    memcpy(&baseline->release, &release, sizeof release);
    baseline->bytes = bytes;
    return allocate != NULL && release != NULL;
}

int baseline_libc(baseline_malloc *baseline, size_t bytes)
{
    void *library = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
    return library != NULL && take_functions(baseline, library, bytes);
}

int baseline_jemalloc(baseline_malloc *baseline, size_t bytes)
{
    return dlsym(RTLD_DEFAULT, "mallctl") != NULL && take_functions(baseline, RTLD_DEFAULT, bytes);
}

void baseline_malloc_loop(void *user, size_t pairs)
{
    const baseline_malloc baseline = *(const baseline_malloc *)user;
    for (size_t i = 0; i < pairs; i++) {
        void *memory = baseline.allocate(baseline.bytes);
        if (memory == NULL) {
            fprintf(stderr, "bench: malloc of %zu bytes failed\n", baseline.bytes);
            exit(1);
        }
        baseline.release(memory);
    }
}

/* ---- Megatron's lists --------------------------------------------------------------------------------------------- */

typedef struct buffer {
    uint32_t copy, rank; /* buffer set, and bucket in it */
} buffer;

typedef struct using
{
    uint32_t bucket;
    buffer buffer;
}
using;

struct list_pool {
    int fixed;
    uint32_t copies, buckets_each, unit_count;
    uint32_t idle_count, using_count;
    buffer *idle;
    using *in_use;
    uint32_t *unit_of;      /* of each bucket */
    uint32_t *pooled_units; /* of the fixed pool */
    uint32_t *copy_of;      /* last copy of each bucket; UINT32_MAX: none yet */
    uint64_t bytes;
};

static void *array(size_t count, size_t size)
{
    void *made = calloc(count, size);
    if (made == NULL) {
        fprintf(stderr, "bench: out of memory\n");
        exit(1);
    }
    return made;
}

list_pool *list_pool_create(int fixed, uint32_t units, uint32_t buckets, uint32_t copies, uint64_t bytes)
{
    list_pool *p = array(1, sizeof *p);
    *p = (list_pool){.fixed = fixed, .copies = copies, .buckets_each = buckets, .unit_count = units, .bytes = bytes};
    p->idle = array((size_t)copies * buckets, sizeof *p->idle);
    p->in_use = array((size_t)copies * buckets, sizeof *p->in_use);
    p->unit_of = array((size_t)units * buckets, sizeof *p->unit_of);
    p->copy_of = array((size_t)units * buckets, sizeof *p->copy_of);
    p->pooled_units = array(units, sizeof *p->pooled_units);
    for (uint32_t i = 0; i < units * buckets; i++) {
        p->unit_of[i] = i / buckets;
        p->copy_of[i] = UINT32_MAX;
    }
    for (uint32_t u = 0; u < units; u++)
        p->pooled_units[u] = u;
    for (uint32_t c = 0; c < copies; c++) {
        for (uint32_t r = 0; r < buckets; r++)
            p->idle[p->idle_count++] = (buffer){c, r};
    }
    return p;
}

void list_pool_destroy(list_pool *p)
{
    free(p->idle);
    free(p->in_use);
    free(p->unit_of);
    free(p->copy_of);
    free(p->pooled_units);
    free(p);
}

static int is_pooled(const list_pool *p, uint32_t bucket)
{
    if (!p->fixed)
        return p->unit_of[bucket] != UINT32_MAX;
    uint32_t i = 0;
    while (i < p->unit_count && p->pooled_units[i] != p->unit_of[bucket])
        i++;
    return i < p->unit_count;
}

static uint32_t find_idle(const list_pool *p, uint32_t copy, uint32_t rank)
{
    uint32_t i = 0;
    while (i < p->idle_count && (p->idle[i].copy != copy || p->idle[i].rank != rank))
        i++;
    return i;
}

static uint32_t find_using(const list_pool *p, uint32_t bucket)
{
    uint32_t i = 0;
    while (i < p->using_count && p->in_use[i].bucket != bucket)
        i++;
    return i;
}

/* Removes from the array as a Python list does: later entries move up. */
static buffer take_idle(list_pool *p, uint32_t at, uint32_t bucket)
{
    buffer taken = p->idle[at];
    p->idle_count--;
    memmove(&p->idle[at], &p->idle[at + 1], (p->idle_count - at) * sizeof *p->idle);
    p->in_use[p->using_count++] = (using){bucket, taken};
    return taken;
}

void *list_pool_allocate(list_pool *p, uint32_t bucket)
{
    if (!is_pooled(p, bucket))
        return NULL;
    const uint32_t rank = bucket % p->buckets_each;
    buffer got;
    uint32_t at = find_using(p, bucket);
    if (at < p->using_count) {
        got = p->in_use[at].buffer;
    } else {
        at = p->copy_of[bucket] != UINT32_MAX ? find_idle(p, p->copy_of[bucket], rank) : p->idle_count;
        for (uint32_t c = 0; c < p->copies && at == p->idle_count; c++)
            at = find_idle(p, c, rank);
        if (at == p->idle_count)
            return NULL;
        got = take_idle(p, at, bucket);
        if (p->copy_of[bucket] == UINT32_MAX)
            p->copy_of[bucket] = got.copy;
    }
    /* never dereferenced */
    return (void *)(uintptr_t)(0x100000 + ((uint64_t)got.copy * p->buckets_each + got.rank) * p->bytes);
}

void list_pool_free(list_pool *p, uint32_t bucket)
{
    if (!is_pooled(p, bucket))
        return;
    uint32_t at = find_using(p, bucket);
    if (at == p->using_count)
        return;
    p->idle[p->idle_count++] = p->in_use[at].buffer;
    p->in_use[at] = p->in_use[--p->using_count];
}

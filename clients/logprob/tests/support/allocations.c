/* SPDX-License-Identifier: Apache-2.0 */
#include "allocations.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>

static atomic_bool counting;
static atomic_ulong seen;

void count_allocations(void)
{
    atomic_store(&seen, 0);
    atomic_store(&counting, true);
}

unsigned long counted_allocations(void)
{
    atomic_store(&counting, false);
    return atomic_load(&seen);
}

static void note(void)
{
    if (atomic_load(&counting))
        atomic_fetch_add(&seen, 1);
}

/* Some linkers also resolve references of shared libraries, which needs visible symbols. */
#pragma GCC visibility push(default)

/* Wraps an allocation function to count its calls. */
#define WRAP(type, name, parameters, arguments)                                                                        \
    type __real_##name parameters;                                                                                     \
    type __wrap_##name parameters;                                                                                     \
    type __wrap_##name parameters                                                                                      \
    {                                                                                                                  \
        note();                                                                                                        \
        return __real_##name arguments;                                                                                \
    }

void __real_free(void *memory);
void __wrap_free(void *memory);
void __wrap_free(void *memory)
{
    note();
    __real_free(memory);
}

WRAP(void *, malloc, (size_t bytes), (bytes))
WRAP(void *, calloc, (size_t count, size_t bytes), (count, bytes))
WRAP(void *, realloc, (void *memory, size_t bytes), (memory, bytes))
WRAP(void *, aligned_alloc, (size_t alignment, size_t bytes), (alignment, bytes))
WRAP(int, posix_memalign, (void **memory, size_t alignment, size_t bytes), (memory, alignment, bytes))
WRAP(void *, mmap, (void *at, size_t bytes, int protection, int flags, int file, off_t offset),
     (at, bytes, protection, flags, file, offset))
WRAP(void *, mmap64, (void *at, size_t bytes, int protection, int flags, int file, off_t offset),
     (at, bytes, protection, flags, file, offset))
WRAP(int, munmap, (void *at, size_t bytes), (at, bytes))

#pragma GCC visibility pop

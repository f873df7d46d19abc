/* SPDX-License-Identifier: Apache-2.0 */
#include "shortage.h"

#include <errno.h>
#include <stdlib.h>

_Thread_local allocation_shortage shortage;

static bool is_refused(void)
{
    shortage.allocations += shortage.counts;
    if (!(shortage.failed && shortage.keeps) && (shortage.fails == 0 || --shortage.fails > 0))
        return false;
    shortage.failures++;
    return shortage.failed = true;
}

#define WRAP(name, parameters, arguments)                                                                              \
    void *__real_##name parameters;                                                                                    \
    __attribute__((visibility("default"))) void *__wrap_##name parameters;                                             \
    void *__wrap_##name parameters                                                                                     \
    {                                                                                                                  \
        return is_refused() ? NULL : __real_##name arguments;                                                          \
    }
WRAP(malloc, (size_t bytes), (bytes))
WRAP(calloc, (size_t count, size_t bytes), (count, bytes))
WRAP(realloc, (void *memory, size_t bytes), (memory, bytes))
WRAP(aligned_alloc, (size_t alignment, size_t bytes), (alignment, bytes))
WRAP(strdup, (const char *text), (text))

int __real_posix_memalign(void **memory, size_t alignment, size_t bytes);
__attribute__((visibility("default"))) int __wrap_posix_memalign(void **memory, size_t alignment, size_t bytes);
int __wrap_posix_memalign(void **memory, size_t alignment, size_t bytes)
{
    return is_refused() ? ENOMEM : __real_posix_memalign(memory, alignment, bytes);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* An mremap that duplicates no mappings, like those of emulators. Linked with -Wl,--wrap=mremap. */
#include <errno.h>
#include <stddef.h>
#include <sys/mman.h>

/* Variadic; the library passes one optional argument. */
void *__real_mremap(void *old, size_t old_bytes, size_t bytes, int flags, ...);
void *__wrap_mremap(void *old, size_t old_bytes, size_t bytes, int flags, void *address);
void *__wrap_mremap(void *old, size_t old_bytes, size_t bytes, int flags, void *address)
{
    if (old_bytes > 0)
        return __real_mremap(old, old_bytes, bytes, flags, address);
    errno = ENOMEM;
    return MAP_FAILED;
}

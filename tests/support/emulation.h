/* SPDX-License-Identifier: Apache-2.0 */
/* Emulators of user programs (qemu-user): they ignore some advice about memory, and their own memory counts as the process's. */
#ifndef BP_TEST_EMULATION_H
#define BP_TEST_EMULATION_H

#include <stdbool.h>
#include <sys/mman.h>
#include <unistd.h>

/* They refuse to duplicate a mapping, which a kernel does. */
static inline bool is_emulated(void)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    void *first = mmap(NULL, page, PROT_READ, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    void *second = first != MAP_FAILED ? mremap(first, 0, page, MREMAP_MAYMOVE) : MAP_FAILED;
    const bool refused = first != MAP_FAILED && second == MAP_FAILED;
    if (first != MAP_FAILED)
        munmap(first, page);
    if (second != MAP_FAILED)
        munmap(second, page);
    return refused;
}

#endif

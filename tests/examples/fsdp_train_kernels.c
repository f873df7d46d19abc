/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of examples/fsdp_train, for the emulated driver: the same operations, items in any order, here backwards. */
#include "all.h"
#include "fake_kernels.h"

extern const fake_kernel fake_kernels[];

#define RUN(name)                                                                                                      \
    static void run_##name(const unsigned grid[3], const unsigned block[3], unsigned shared_bytes,                     \
                           const void *argument)                                                                       \
    {                                                                                                                  \
        const work *w = argument;                                                                                      \
        (void)grid;                                                                                                    \
        (void)block;                                                                                                   \
        (void)shared_bytes;                                                                                            \
        for (uint64_t item = w->items; item-- > 0;)                                                                    \
            name(w, item);                                                                                             \
    }
OPERATIONS(RUN)

#define KERNEL(name) {"fsdp_train_" #name, sizeof(work), run_##name},
__attribute__((visibility("default"))) const fake_kernel fake_kernels[] = {OPERATIONS(KERNEL){NULL, 0, NULL}};

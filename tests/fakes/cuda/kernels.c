/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of tests/gpu, for the emulated driver. */
#include "fake_kernels.h"
#include "support/add_words.h"

extern const fake_kernel fake_kernels[];

static void add_words(const unsigned grid[3], const unsigned block[3], unsigned shared_bytes, const void *argument)
{
    const add_words_work *work = argument;
    const uint64_t threads = (uint64_t)grid[0] * block[0];
    uint32_t *words = (uint32_t *)(uintptr_t)work->words; /* NOLINT(performance-no-int-to-ptr): device memory */
    (void)shared_bytes;
    for (uint64_t i = 0; i < threads && i < work->count; i++)
        words[i] += work->number;
}

__attribute__((visibility("default"))) const fake_kernel fake_kernels[] = {
    {ADD_WORDS, sizeof(add_words_work), add_words},
    {NULL, 0, NULL},
};

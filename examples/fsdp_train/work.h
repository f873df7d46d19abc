/* SPDX-License-Identifier: Apache-2.0 */
/* The arguments of an operation: one structure for all, passed by value on the host and to CUDA kernels. Each
 * operation says in its header what it reads and writes; n counts tokens. Operations write `items` things, each by
 * itself and always in the same order of sums, so that they have the same bits however they are divided among
 * threads. */
#ifndef FSDP_TRAIN_WORK_H
#define FSDP_TRAIN_WORK_H

#include <stdint.h>

enum { STORED_FP32 = 0, STORED_BF16 = 1 };

typedef struct work {
    uint64_t items;
    void *out;
    float *state;       /* what Adam keeps */
    const void *weight; /* of `stored` */
    const float *x, *dy;
    const float *a, *b;
    const uint32_t *pick; /* for each token: which row of a table, which expert */
    uint32_t stored;      /* how the weight, or its gradient, is stored */
    uint32_t tokens, rows, columns, heads, length;
    float scale;
} work;

#endif

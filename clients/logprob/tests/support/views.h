/* SPDX-License-Identifier: Apache-2.0 */
/* Strided test tensors in separate allocations with margins; writes outside rows are detected. */
#ifndef BP_TESTS_KERNELS_SUPPORT_VIEWS_H
#define BP_TESTS_KERNELS_SUPPORT_VIEWS_H

#include <bucketpool/logprob.h>

#include <stdbool.h>

/* Layout of rows. All zero: contiguous, aligned to 64 bytes. */
typedef struct layout {
    uint32_t shift; /* elements after a 64-byte boundary */
    uint32_t row_gap, batch_gap;
    bool sequence_outside; /* [sequence, batch] layout */
    bool batch_backwards, sequence_backwards;
    bool repeated; /* one row for all tokens: strides 0 */
} layout;

typedef struct view {
    bp_dtype dtype;
    uint32_t element; /* bytes */
    uint64_t batch, sequence, columns;
    int64_t batch_stride, stride;
    uint8_t *memory;
    size_t bytes;
    uint8_t *data; /* element 0 of row [0, 0] */
    uint8_t poison;
} view;

/* Poisoned: every byte is `poison`. */
view new_view(bp_dtype dtype, uint64_t batch, uint64_t sequence, uint64_t columns, layout where, uint8_t poison);
void free_view(view *v);
void poison_view(view *v, uint8_t poison);
layout random_layout(void);

void *row_at(const view *v, uint64_t batch, uint64_t token);
/* All bytes outside rows are still poison. Prints errors. */
bool gaps_are_whole(const view *v, const char *name);
/* The rows of both have equal bits. Prints errors. */
bool same_rows(const view *a, const view *b, const char *name);

bp_token_rows rows_of(const view *v);
bp_token_values values_of(const view *v);

/* Element 0, or k, of a row of int64 or int32. */
int64_t whole_at(const view *v, uint64_t batch, uint64_t token);
int64_t whole_k(const view *v, uint64_t batch, uint64_t token, uint32_t k);
void put_whole(const view *v, uint64_t batch, uint64_t token, int64_t value);
void put_whole_k(const view *v, uint64_t batch, uint64_t token, uint32_t k, int64_t value);

#endif

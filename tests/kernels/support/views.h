/* Tensors of tests: views with strides into memory of their own, with margins, of which every byte that no row has is watched. */
#ifndef BP_TESTS_KERNELS_SUPPORT_VIEWS_H
#define BP_TESTS_KERNELS_SUPPORT_VIEWS_H

#include <bucketpool/logprob.h>

#include <stdbool.h>

/* Where rows lie. All zero: next to each other, aligned to 64 bytes. */
typedef struct layout {
    uint32_t shift; /* elements behind an address aligned to 64 */
    uint32_t row_gap, batch_gap;
    bool sequence_outside; /* rows of one position in all sequences are neighbours */
    bool batch_backwards, sequence_backwards;
    bool repeated; /* one row for all: strides 0 */
} layout;

typedef struct view {
    bp_dtype dtype;
    uint32_t element; /* bytes */
    uint64_t batch, sequence, columns;
    int64_t batch_stride, stride;
    uint8_t *memory;
    size_t bytes;
    uint8_t *data; /* element 0 of row 0, 0 */
    uint8_t poison;
} view;

/* Poisoned: every byte is `poison`. */
view new_view(bp_dtype dtype, uint64_t batch, uint64_t sequence, uint64_t columns, layout where, uint8_t poison);
void free_view(view *v);
void poison_view(view *v, uint8_t poison);
layout random_layout(void);

void *row_at(const view *v, uint64_t batch, uint64_t token);
/* All bytes that belong to no row are still poison. Prints where not. */
bool gaps_are_whole(const view *v, const char *name);
/* Rows of the two have the same bits. Prints where not. */
bool same_rows(const view *a, const view *b, const char *name);

bp_token_rows rows_of(const view *v);
bp_token_values values_of(const view *v);

/* [batch, sequence] of int64 or int32. */
int64_t whole_at(const view *v, uint64_t batch, uint64_t token);
void put_whole(const view *v, uint64_t batch, uint64_t token, int64_t value);

#endif

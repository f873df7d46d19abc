/* SPDX-License-Identifier: Apache-2.0 */
/* Strided tensors with poisoned margins and gaps. */
#include "views.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/scenarios.h"

#define MARGIN 1024 /* bytes before and after */

static int64_t sized(int64_t stride, bool backwards)
{
    return backwards ? -stride : stride;
}

static uint64_t reach(uint64_t count, int64_t stride)
{
    return count == 0 ? 0 : (count - 1) * (uint64_t)llabs(stride);
}

static void place(view *v, layout where)
{
    int64_t row = (int64_t)(v->columns + where.row_gap);
    int64_t inner = row, outer = row * (int64_t)(where.sequence_outside ? v->batch : v->sequence) + where.batch_gap;
    v->stride = sized(where.sequence_outside ? outer : inner, where.sequence_backwards);
    v->batch_stride = sized(where.sequence_outside ? inner : outer, where.batch_backwards);
    if (where.repeated)
        v->stride = v->batch_stride = 0;
}

view new_view(bp_dtype dtype, uint64_t batch, uint64_t sequence, uint64_t columns, layout where, uint8_t poison)
{
    view v = {
        .dtype = dtype, .element = bp_dtype_bits(dtype) / 8, .batch = batch, .sequence = sequence, .columns = columns};
    place(&v, where);
    uint64_t elements = reach(batch, v.batch_stride) + reach(sequence, v.stride) + columns;
    v.bytes = (2 * MARGIN + (elements + where.shift) * v.element + 63) / 64 * 64;
    v.memory = aligned_alloc(64, v.bytes);
    if (v.memory == NULL)
        abort();
    uint64_t first = where.shift + (v.batch_stride < 0 ? reach(batch, v.batch_stride) : 0) +
                     (v.stride < 0 ? reach(sequence, v.stride) : 0);
    v.data = v.memory + MARGIN + first * v.element;
    poison_view(&v, poison);
    return v;
}

void free_view(view *v)
{
    free(v->memory);
    *v = (view){0};
}

void poison_view(view *v, uint8_t poison)
{
    v->poison = poison;
    memset(v->memory, poison, v->bytes);
}

layout random_layout(void)
{
    layout where = {.shift = random_below(3) == 0 ? 0 : random_below(40)};
    if (random_below(2) == 0) {
        where.row_gap = random_below(3) == 0 ? 0 : random_below(37);
        where.batch_gap = random_below(3) == 0 ? 0 : random_below(99);
        where.sequence_outside = random_below(3) == 0;
    }
    return where;
}

void *row_at(const view *v, uint64_t batch, uint64_t token)
{
    return v->data + ((int64_t)batch * v->batch_stride + (int64_t)token * v->stride) * v->element;
}

bool gaps_are_whole(const view *v, const char *name)
{
    uint8_t *owned = calloc(v->bytes, 1);
    if (owned == NULL)
        abort();
    for (uint64_t b = 0; b < v->batch; b++)
        for (uint64_t s = 0; s < v->sequence; s++)
            memset(owned + ((uint8_t *)row_at(v, b, s) - v->memory), 1, v->columns * v->element);
    bool whole = true;
    for (size_t i = 0; i < v->bytes && whole; i++) {
        whole = owned[i] != 0 || v->memory[i] == v->poison;
        if (!whole)
            fprintf(stderr, "%s: byte %td from element 0 is outside all rows and was written\n", name,
                    v->memory + i - v->data);
    }
    free(owned);
    return whole;
}

bool same_rows(const view *a, const view *b, const char *name)
{
    for (uint64_t i = 0; i < a->batch; i++) {
        for (uint64_t s = 0; s < a->sequence; s++) {
            if (memcmp(row_at(a, i, s), row_at(b, i, s), a->columns * a->element) != 0) {
                fprintf(stderr, "%s: row %llu, %llu has different bits\n", name, (unsigned long long)i,
                        (unsigned long long)s);
                return false;
            }
        }
    }
    return true;
}

bp_token_rows rows_of(const view *v)
{
    return (bp_token_rows){.data = v->data,
                           .dtype = v->dtype,
                           .batch = v->batch,
                           .sequence = v->sequence,
                           .columns = v->columns,
                           .batch_stride = v->batch_stride,
                           .stride = v->stride};
}

bp_token_values values_of(const view *v)
{
    return (bp_token_values){.data = v->data, .batch_stride = v->batch_stride, .stride = v->stride, .step = 1};
}

int64_t whole_k(const view *v, uint64_t batch, uint64_t token, uint32_t k)
{
    const void *at = row_at(v, batch, token);
    return v->dtype == BP_DTYPE_INT64 ? ((const int64_t *)at)[k] : ((const int32_t *)at)[k];
}

int64_t whole_at(const view *v, uint64_t batch, uint64_t token)
{
    return whole_k(v, batch, token, 0);
}

void put_whole_k(const view *v, uint64_t batch, uint64_t token, uint32_t k, int64_t value)
{
    void *at = row_at(v, batch, token);
    if (v->dtype == BP_DTYPE_INT64)
        ((int64_t *)at)[k] = value;
    else
        ((int32_t *)at)[k] = (int32_t)value;
}

void put_whole(const view *v, uint64_t batch, uint64_t token, int64_t value)
{
    put_whole_k(v, batch, token, 0, value);
}

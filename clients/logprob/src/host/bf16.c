/* SPDX-License-Identifier: Apache-2.0 */
/* Products of bf16 matrices, after BLIS (Van Zee and van de Geijn, 2015): panels of both operands, then tiles of the result, in blocks that fit the
 * caches. Threads share panels, then blocks. */
#include "host/bf16.h"

#include <bucketpool/core/arith.h>

#include <string.h>

/* A block's panels of op(a) fit the second cache (168 x 512 x 2 bytes); one of op(b), which they all use, beside them. */
#define BLOCK_PAIRS 256u
#define BLOCK_ROWS (28 * BP_BF16_ROWS)
#define BLOCK_COLUMNS (4 * BP_BF16_COLUMNS)

static uint64_t parts_in(uint64_t whole, uint64_t part)
{
    return whole / part + (whole % part != 0);
}

/* ---- plain kernels --------------------------------------------------------------------------------------------------- */

static float half_of(uint32_t pair, int shift)
{
    return bp_fp32_of_bf16((uint16_t)(pair >> shift));
}

static void plain_tile(const uint32_t *a, const uint32_t *b, uint64_t pairs, uint32_t rows, uint32_t columns, bool adds,
                       float *c, int64_t stride)
{
    for (uint32_t i = 0; i < rows; i++)
        for (uint32_t j = 0; j < columns; j++) {
            float sum = 0;
            for (uint64_t p = 0; p < pairs; p++) {
                const uint32_t x = a[p * BP_BF16_ROWS + i], y = b[p * BP_BF16_COLUMNS + j];
                sum += half_of(x, 16) * half_of(y, 16);
                sum += half_of(x, 0) * half_of(y, 0);
            }
            float *to = c + i * stride + j;
            *to = adds ? *to + sum : sum;
        }
}

static uint32_t pair_of(uint16_t first, uint16_t second)
{
    return first | (uint32_t)second << 16;
}

static void plain_transpose(const uint16_t *from, int64_t stride, uint32_t *to, uint64_t lanes)
{
    for (uint32_t lane = 0; lane < BP_BF16_SQUARE; lane++, from += stride)
        for (uint32_t p = 0; p < BP_BF16_SQUARE; p++)
            to[p * lanes + lane] = pair_of(from[2 * p], from[2 * p + 1]);
}

static void plain_interleave(const uint16_t *first, const uint16_t *second, uint32_t *to)
{
    for (uint32_t lane = 0; lane < BP_BF16_COLUMNS; lane++)
        to[lane] = pair_of(first[lane], second[lane]);
}

const bp_bf16_kernels bp_bf16_plain = {"plain", plain_tile, plain_transpose, plain_interleave};

const bp_bf16_kernels *bp_bf16_choose(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bf16"))
        return &bp_bf16_avx512;
#endif
    return NULL;
}

/* ---- panels ---------------------------------------------------------------------------------------------------------- */

/* An operand with its terms and lanes: lanes are rows of the matrix, or its columns. */
typedef struct operand {
    const bp_bf16_kernels *kernels;
    const uint16_t *data;
    int64_t stride;
    bool has_lanes_as_rows;
    uint64_t lanes, terms, pairs; /* pairs: of terms, the last one with a zero where their number is odd */
    uint64_t width;               /* lanes of a panel */
    uint32_t *panels;
} operand;

typedef struct multiplication {
    const bp_gemm *gemm;
    operand a, b;
    uint64_t row_blocks;
} multiplication;

static uint16_t term_at(const operand *o, uint64_t lane, uint64_t term)
{
    if (lane >= o->lanes || term >= o->terms)
        return 0;
    return o->has_lanes_as_rows ? o->data[(int64_t)lane * o->stride + (int64_t)term]
                                : o->data[(int64_t)term * o->stride + (int64_t)lane];
}

/* Pairs [begin, o->pairs) of a panel whose first lane is `base`, element by element; zeros beyond lanes and terms. */
static void pack_slowly(const operand *o, uint64_t base, uint64_t begin, uint32_t *panel)
{
    for (uint64_t p = begin; p < o->pairs; p++)
        for (uint64_t lane = 0; lane < o->width; lane++)
            panel[p * o->width + lane] = pair_of(term_at(o, base + lane, 2 * p), term_at(o, base + lane, 2 * p + 1));
}

/* Whole pairs of whole panels of op(a), in loops of constant length. */
static void pack_narrow_rows(const operand *o, const uint16_t *from, uint64_t pairs, uint32_t *panel)
{
    for (uint64_t p = 0; p < pairs; p++)
        for (uint32_t lane = 0; lane < BP_BF16_ROWS; lane++)
            memcpy(&panel[p * BP_BF16_ROWS + lane], from + (int64_t)lane * o->stride + 2 * (int64_t)p, sizeof *panel);
}

static void pack_narrow_columns(const operand *o, const uint16_t *from, uint64_t pairs, uint32_t *panel)
{
    for (uint64_t p = 0; p < pairs; p++, from += 2 * o->stride)
        for (uint32_t lane = 0; lane < BP_BF16_ROWS; lane++)
            panel[p * BP_BF16_ROWS + lane] = pair_of(from[lane], from[o->stride + lane]);
}

static void pack_wide_rows(const operand *o, const uint16_t *from, uint64_t pairs, uint32_t *panel)
{
    for (uint64_t p = 0; p < pairs; p += BP_BF16_SQUARE)
        for (uint32_t lane = 0; lane < BP_BF16_COLUMNS; lane += BP_BF16_SQUARE)
            o->kernels->transpose(from + (int64_t)lane * o->stride + 2 * (int64_t)p, o->stride,
                                  panel + p * BP_BF16_COLUMNS + lane, BP_BF16_COLUMNS);
}

static void pack_wide_columns(const operand *o, const uint16_t *from, uint64_t pairs, uint32_t *panel)
{
    for (uint64_t p = 0; p < pairs; p++, from += 2 * o->stride)
        o->kernels->interleave(from, from + o->stride, panel + p * BP_BF16_COLUMNS);
}

static void pack_panel(const operand *o, uint64_t index)
{
    const uint64_t base = index * o->width;
    const uint16_t *from = o->data + (int64_t)base * (o->has_lanes_as_rows ? o->stride : 1);
    uint32_t *panel = o->panels + base * o->pairs;
    uint64_t pairs = base + o->width <= o->lanes ? o->terms / 2 : 0; /* of the loops of constant length */
    if (o->width == BP_BF16_ROWS) {
        (o->has_lanes_as_rows ? pack_narrow_rows : pack_narrow_columns)(o, from, pairs, panel);
    } else if (o->has_lanes_as_rows) {
        pairs -= pairs % BP_BF16_SQUARE;
        pack_wide_rows(o, from, pairs, panel);
    } else {
        pack_wide_columns(o, from, pairs, panel);
    }
    pack_slowly(o, base, pairs, panel);
}

static void pack_panels(const void *job, uint64_t begin, uint64_t end)
{
    for (uint64_t i = begin; i < end; i++)
        pack_panel(job, i);
}

/* ---- blocks ---------------------------------------------------------------------------------------------------------- */

static void multiply_block(const multiplication *m, uint64_t index)
{
    const bp_gemm *g = m->gemm;
    const uint64_t row = index % m->row_blocks * BLOCK_ROWS, column = index / m->row_blocks * BLOCK_COLUMNS;
    const uint64_t rows = bp_min_u64(g->m, row + BLOCK_ROWS), columns = bp_min_u64(g->n, column + BLOCK_COLUMNS);
    const uint64_t all = m->a.pairs;
    for (uint64_t first = 0; first < all; first += BLOCK_PAIRS) {
        const uint64_t pairs = bp_min_u64(BLOCK_PAIRS, all - first);
        for (uint64_t j = column; j < columns; j += BP_BF16_COLUMNS)
            for (uint64_t i = row; i < rows; i += BP_BF16_ROWS)
                m->a.kernels->tile(m->a.panels + i * all + first * BP_BF16_ROWS,
                                   m->b.panels + j * all + first * BP_BF16_COLUMNS, pairs,
                                   (uint32_t)bp_min_u64(BP_BF16_ROWS, rows - i),
                                   (uint32_t)bp_min_u64(BP_BF16_COLUMNS, columns - j), g->adds || first > 0,
                                   (float *)g->c.data + (int64_t)i * g->c.stride + (int64_t)j, g->c.stride);
    }
}

static void multiply_blocks(const void *job, uint64_t begin, uint64_t end)
{
    for (uint64_t i = begin; i < end; i++)
        multiply_block(job, i);
}

bool bp_bf16_panel_bytes(uint64_t m, uint64_t n, uint64_t k, uint64_t *bytes)
{
    uint64_t lanes, a;
    return bp_round_up_u64(n, BP_BF16_COLUMNS, &lanes) && bp_round_up_u64(m, BP_BF16_ROWS, &a) &&
           bp_add_u64(lanes, a, &lanes) && bp_mul_u64(lanes, parts_in(k, 2) * sizeof(uint32_t), bytes);
}

void bp_bf16_multiply(const bp_bf16_kernels *kernels, const bp_host_team *team, const bp_gemm *g, void *panels)
{
    const uint64_t pairs = parts_in(g->k, 2), b_panels = parts_in(g->n, BP_BF16_COLUMNS);
    multiplication m = {
        .gemm = g,
        .a = {kernels, g->a.data, g->a.stride, !g->transposes_a, g->m, g->k, pairs, BP_BF16_ROWS, NULL},
        .b = {kernels, g->b.data, g->b.stride, g->transposes_b, g->n, g->k, pairs, BP_BF16_COLUMNS, panels},
        .row_blocks = parts_in(g->m, BLOCK_ROWS)};
    m.a.panels = m.b.panels + b_panels * BP_BF16_COLUMNS * pairs;
    bp_host_distribute(team, parts_in(g->m, BP_BF16_ROWS), 4, pack_panels, &m.a);
    if (!g->keeps_b)
        bp_host_distribute(team, b_panels, 1, pack_panels, &m.b);
    bp_host_distribute(team, m.row_blocks * parts_in(g->n, BLOCK_COLUMNS), 1, multiply_blocks, &m);
}

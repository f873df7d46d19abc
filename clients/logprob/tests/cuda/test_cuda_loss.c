/* CUDA kernels of the loss, one launch at a time on the emulation, against plain loops and bit by bit. */
#include "support/harness.h"

#include "../support/splits.h"
#include "launches.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/scenarios.h"
#include "work.h"

#define SUMS_THREADS 512u /* as the kernel is compiled */
#define PLANES 4

/* Local tokens of a batch. Planes of invalid tokens are NaN, which would show in any result that reads them. */
typedef struct slices {
    split_batch batch;
    uint32_t count;
    token tokens[MOST_TOKENS];
    bool valid[MOST_TOKENS];
    uint8_t *mask;
    float *planes[PLANES]; /* in the order of bp_sums_work */
    int64_t mask_stride, strides[PLANES];
} slices;

static void make_valid(slices *s, uint32_t valid_in_4)
{
    for (uint32_t i = 0; i < s->count; i++) {
        const bool counts = random_below(4) < valid_in_4;
        s->mask[(int64_t)i * s->mask_stride] = counts ? (uint8_t)(1 + random_below(255)) : 0;
        s->valid[i] = counts && !is_padding(&s->batch, s->tokens[i]) && s->tokens[i].sequence < s->batch.data;
        for (unsigned p = 0; p < PLANES; p++)
            s->planes[p][(int64_t)i * s->strides[p]] =
                s->valid[i] ? (float)(random_below(20001) - 10000.0) / 700 : (float)NAN;
    }
}

static slices *new_slices(const split_batch *b, uint32_t valid_in_4)
{
    slices *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->batch = *b;
    s->count = list_order(b, BP_CP_LOCAL, s->tokens);
    s->mask_stride = 1 + random_below(2);
    s->mask = malloc(s->count * (size_t)s->mask_stride + 1);
    assert_non_null(s->mask);
    for (unsigned p = 0; p < PLANES; p++) {
        s->strides[p] = 1 + random_below(3);
        s->planes[p] = malloc((s->count * (size_t)s->strides[p] + 1) * sizeof(float));
        assert_non_null(s->planes[p]);
    }
    make_valid(s, valid_in_4);
    return s;
}

static void free_slices(slices *s)
{
    for (unsigned p = 0; p < PLANES; p++)
        free(s->planes[p]);
    free(s->mask);
    free(s);
}

static float value_of(const slices *s, unsigned plane, uint32_t i)
{
    return s->planes[plane][(int64_t)i * s->strides[plane]];
}

/* ---- sums ---------------------------------------------------------------------------------------------------------- */

static bp_sums_work sums_work(const slices *s, uint32_t first, uint32_t count, bp_loss_record *records)
{
    return (bp_sums_work){.group = group_of(&s->batch, first, count),
                          .mask = s->mask,
                          .logprob = s->planes[0],
                          .entropy = s->planes[1],
                          .logit_min = s->planes[2],
                          .logit_max = s->planes[3],
                          .mask_stride = s->mask_stride,
                          .logprob_stride = s->strides[0],
                          .entropy_stride = s->strides[1],
                          .logit_min_stride = s->strides[2],
                          .logit_max_stride = s->strides[3],
                          .records = records};
}

/* Split into `groups` launches. */
static void make_records(const slices *s, uint32_t groups, uint32_t blocks, bp_loss_record *records)
{
    memset(records, 0xff, s->batch.count * sizeof *records);
    for (uint32_t i = 0; i < groups; i++) {
        const uint32_t first = s->batch.count * i / groups, end = s->batch.count * (i + 1) / groups;
        bp_sums_work work = sums_work(s, first, end - first, records + first);
        run("bp_sums", (grid){blocks, 1, SUMS_THREADS}, &work);
    }
}

static bp_loss_record plain_record(const slices *s, uint32_t sequence, double sizes[2])
{
    bp_loss_record r = {.logit_min = INFINITY, .logit_max = -INFINITY};
    sizes[0] = sizes[1] = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        if (!s->valid[i] || s->tokens[i].sequence != sequence)
            continue;
        r.logprob += (double)value_of(s, 0, i);
        r.entropy += (double)value_of(s, 1, i);
        r.logit_min = fminf(r.logit_min, value_of(s, 2, i));
        r.logit_max = fmaxf(r.logit_max, value_of(s, 3, i));
        r.valid++;
        sizes[0] += fabs((double)value_of(s, 0, i));
        sizes[1] += fabs((double)value_of(s, 1, i));
    }
    return r;
}

static void check_records(const slices *s, const bp_loss_record *records)
{
    for (uint32_t i = 0; i < s->batch.count; i++) {
        double sizes[2];
        const bp_loss_record expected = plain_record(s, i, sizes);
        assert_int_equal(records[i].valid, expected.valid);
        assert_true(fabs(records[i].logprob - expected.logprob) <= 1e-13 * sizes[0]);
        assert_true(fabs(records[i].entropy - expected.entropy) <= 1e-13 * sizes[1]);
        assert_true(records[i].logit_min == expected.logit_min);
        assert_true(records[i].logit_max == expected.logit_max);
    }
}

static const uint32_t RANKS[] = {1, 2, 3, 8};

TEST(sums_are_those_of_a_plain_loop)
{
    bp_loss_record records[MOST_SEQUENCES], again[MOST_SEQUENCES];
    for (unsigned round = 0; round < 24; round++) {
        seed(300 + round);
        split_batch b = random_split(1 + random_below(7), RANKS[round % 4], 40);
        slices *s = new_slices(&b, round % 5);
        make_records(s, 1, b.count, records);
        check_records(s, records);
        make_records(s, 1 + round % 3, 1 + round % 4, again);
        assert_memory_equal(again, records, b.count * sizeof *records);
        free_slices(s);
    }
}

/* Independent of the sequence's position and neighbours; with more tokens than the threads take at once. */
TEST(bits_depend_on_the_sequence_alone)
{
    static const uint64_t lengths[] = {511, 512, 513, 2048, 2049, 3500};
    for (unsigned i = 0; i < 6; i++) {
        seed(400 + i);
        const uint64_t n = lengths[i];
        split_batch alone = {.count = 1, .data = 1, .ranks = 1, .packed = {0, n}, .padded = {0, n}};
        split_batch among = {.count = 3, .data = 3, .ranks = 1};
        memcpy(among.packed, (const uint64_t[]){0, 37, 37 + n, 47 + n}, 4 * sizeof(uint64_t));
        memcpy(among.padded, among.packed, 4 * sizeof(uint64_t));
        slices *a = new_slices(&alone, 3), *b = new_slices(&among, 3);
        for (uint32_t k = 0; k < n; k++) {
            b->mask[(37 + k) * b->mask_stride] = a->mask[k * a->mask_stride];
            b->valid[37 + k] = a->valid[k];
            for (unsigned p = 0; p < PLANES; p++)
                b->planes[p][(37 + k) * b->strides[p]] = value_of(a, p, k);
        }
        bp_loss_record record, records[3];
        make_records(a, 1, 1, &record);
        check_records(a, &record);
        make_records(b, 2, 2, records);
        check_records(b, records);
        assert_memory_equal(&records[1], &record, sizeof record);
        free_slices(a);
        free_slices(b);
    }
}

TEST(planes_may_be_missing)
{
    seed(17);
    split_batch b = random_split(5, 2, 60);
    slices *s = new_slices(&b, 3);
    bp_loss_record with[MOST_SEQUENCES], without[MOST_SEQUENCES];
    make_records(s, 1, 5, with);
    bp_sums_work work = sums_work(s, 0, b.count, without);
    work.logprob = work.entropy = work.logit_min = work.logit_max = NULL;
    run("bp_sums", (grid){2, 1, SUMS_THREADS}, &work);
    for (uint32_t i = 0; i < b.count; i++) {
        const bp_loss_record none = {.valid = with[i].valid, .logit_min = INFINITY, .logit_max = -INFINITY};
        assert_memory_equal(&without[i], &none, sizeof none);
    }
    work.entropy = s->planes[1];
    work.logit_max = s->planes[3];
    run("bp_sums", (grid){5, 1, SUMS_THREADS}, &work);
    for (uint32_t i = 0; i < b.count; i++) {
        assert_true(without[i].entropy == with[i].entropy && without[i].logprob == 0);
        assert_true(without[i].logit_max == with[i].logit_max && without[i].logit_min == INFINITY);
    }
    free_slices(s);
}

/* NaN stays in its sequence; -inf is an ordinary value. */
TEST(nan_and_infinities_are_kept)
{
    seed(23);
    split_batch b = {.count = 3, .data = 3, .ranks = 1, .packed = {0, 9, 700, 710}, .padded = {0, 9, 700, 710}};
    slices *s = new_slices(&b, 4);
    bp_loss_record records[3];
    s->planes[2][600 * s->strides[2]] = NAN;
    s->planes[3][11 * s->strides[3]] = NAN;
    s->planes[0][301 * s->strides[0]] = -INFINITY;
    s->planes[2][5 * s->strides[2]] = -INFINITY;
    s->planes[3][705 * s->strides[3]] = INFINITY;
    make_records(s, 1, 2, records);
    assert_true(isnan(records[1].logit_min) && isnan(records[1].logit_max));
    assert_true(records[1].logprob == -INFINITY && isfinite(records[1].entropy));
    assert_true(records[0].logit_min == -INFINITY && isfinite(records[0].logit_max));
    assert_true(records[2].logit_max == INFINITY && isfinite(records[2].logit_min));
    assert_true(isfinite(records[0].logprob) && isfinite(records[2].logprob));
    free_slices(s);
}

/* ---- seeds --------------------------------------------------------------------------------------------------------- */

static void check_seeds(const slices *s, uint32_t groups, grid g, int64_t stride)
{
    const size_t bytes = (s->count * (size_t)stride + 1) * sizeof(float);
    float *seeds = malloc(bytes);
    assert_non_null(seeds);
    memset(seeds, 0xff, bytes);
    for (uint32_t i = 0; i < groups; i++) {
        const uint32_t first = s->batch.count * i / groups, end = s->batch.count * (i + 1) / groups;
        bp_seed_work work = {.group = group_of(&s->batch, first, end - first),
                             .mask = s->mask,
                             .seed = seeds,
                             .mask_stride = s->mask_stride,
                             .seed_stride = stride,
                             .value = -0.375f};
        run("bp_seed", g, &work);
    }
    for (uint32_t i = 0; i < s->count * stride; i++) {
        if (i % stride != 0)
            assert_true(isnan(seeds[i]));
        else
            assert_true(seeds[i] == (s->valid[i / stride] ? -0.375f : 0));
    }
    free(seeds);
}

TEST(valid_tokens_are_seeded)
{
    static const grid grids[] = {{1, 1, 128}, {3, 1, 64}, {9, 1, 128}, {2, 1, 32}};
    for (unsigned round = 0; round < 24; round++) {
        seed(500 + round);
        split_batch b = random_split(1 + random_below(9), RANKS[round % 4], 70);
        slices *s = new_slices(&b, round % 5);
        check_seeds(s, 1 + random_below(3), grids[random_below(4)], 1 + random_below(3));
        free_slices(s);
    }
}

TESTS(NULL, NULL)

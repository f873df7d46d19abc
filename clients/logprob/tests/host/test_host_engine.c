/* Whole calls of host engines, against fp64. */
#include "support/harness.h"

#include <bucketpool/logprob.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "calls.h"

static const uint32_t tables[] = {BP_KERNELS_PLAIN, BP_KERNELS_AVX2, BP_KERNELS_AVX512};
#define TABLES (sizeof tables / sizeof *tables)

/* ---- calls --------------------------------------------------------------------------------------------------------- */

static void run_and_check(const kit *k, const call_options *options)
{
    call c = new_call(options), original = new_call(options);
    run_call(k, &c);
    check_call(k->engine->kernels, &c, &original);
    end_call(&c);
    end_call(&original);
}

/* Combinations of shapes, dtypes, kinds of rows and optional tensors. */
TEST(test_calls)
{
    static const uint64_t shapes[][3] = {{1, 1, 1},    {1, 3, 5},    {2, 7, 129},  {3, 5, 1000},
                                         {1, 9, 2049}, {2, 2, 4095}, {1, 17, 333}, {1, 2, 6143}};
    for (size_t t = 0; t < TABLES; t++) {
        kit k = open_kit(2, tables[t], 6143);
        unsigned turn = 0;
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            for (int kind = 0; kind < ROW_KINDS; kind++, turn++) {
                call_options o = {.batch = shapes[s][0], .sequence = shapes[s][1], .columns = shapes[s][2]};
                o.dtype = (int)(turn % 3), o.out_dtype = (int)(turn / 3 % 3);
                o.kind = (row_kind)kind;
                o.scale = turn % 5 == 0 ? 0.8f : 1;
                o.with_mask = turn % 2 == 0, o.with_entropy = turn % 4 < 2;
                o.narrow_targets = turn % 7 < 3, o.same_upstream = turn % 5 == 1;
                o.directly = turn % 2 != 0;
                o.in_place = turn % 3 == 2 && (o.dtype == o.out_dtype || o.dtype == BP_ROW_FP32);
                o.seed = turn + 1;
                run_and_check(&k, &o);
            }
        }
        close_kit(&k);
    }
}

/* Every pair of dtypes, separate and in place. */
TEST(test_dtypes)
{
    for (size_t t = 0; t < TABLES; t++) {
        kit k = open_kit(1, tables[t], 2500);
        for (unsigned turn = 0; turn < 18; turn++) {
            call_options o = {.batch = 2, .sequence = 3, .columns = 2500, .scale = 1, .with_entropy = 1, .seed = turn};
            o.dtype = (int)(turn % 3), o.out_dtype = (int)(turn / 3 % 3), o.in_place = turn >= 9;
            if (!o.in_place || o.dtype == o.out_dtype || o.dtype == BP_ROW_FP32)
                run_and_check(&k, &o);
        }
        close_kit(&k);
    }
}

/* Log-probabilities of a large vocabulary. */
TEST(test_accuracy)
{
    for (size_t t = 0; t < TABLES; t++) {
        kit k = open_kit(2, tables[t], 131072);
        for (int dtype = 0; dtype < 3; dtype++) {
            call_options o = {.batch = 1, .sequence = 4, .columns = 131072, .dtype = dtype, .scale = 1, .seed = 3};
            call c = new_call(&o);
            enqueue_forward(&k, 0, &c);
            assert_ok(bp_stream_synchronize(k.streams[0]));
            double most = 0;
            for (uint64_t token = 0; token < 4; token++) {
                const char *x = c.logits + token * (o.columns + 3) * element_bytes(dtype);
                exact_sums sums = sums_of(dtype, x, o.columns, 1);
                double exact = value_at(dtype, x, (uint64_t)target_of(&c, token)) - sums.max - log(sums.sum);
                most = fmax(most, fabs(c.logprob[2 * token] - exact));
            }
            print_message("%s, dtype %d: %.2g\n", k.engine->kernels, dtype, most);
            assert_true(most <= 2e-6);
            end_call(&c);
        }
        close_kit(&k);
    }
}

/* ---- shards -------------------------------------------------------------------------------------------------------- */

/* Three shards' partials, finished together, and their gradient parts, match those of a single rank. */
TEST(test_shards)
{
    static const uint64_t ends[] = {1, 2050, 5000};
    const int64_t first = 1000; /* id of the vocabulary's first column */
    for (size_t t = 0; t < TABLES; t++) {
        kit k = open_kit(2, tables[t], 5000);
        for (int kind = 0; kind < ROW_KINDS; kind++) {
            call_options o = {.batch = 1,
                              .sequence = 11,
                              .columns = 5000,
                              .dtype = BP_ROW_BF16,
                              .scale = 1.5f,
                              .with_entropy = 1,
                              .kind = (row_kind)kind,
                              .seed = (uint64_t)kind + 9};
            call c = new_call(&o), original = new_call(&o);
            struct {
                bp_partial partials[12]; /* one more, for a multiple of 16 bytes */
                float targets[12];
            } ranks[3];
            int64_t targets[11];
            for (uint64_t i = 0; i < 11; i++)
                targets[i] = (int64_t)((uint64_t)target_of(&c, i) + (uint64_t)first);
            c.finish.tokens.target = targets, c.finish.tokens.target_stride = 1;
            c.finish.tokens.vocab_first = first;
            c.forward.tokens = c.backward.tokens = c.finish.tokens;
            c.finish.partials = ranks[0].partials, c.finish.target_logits = ranks[0].targets;
            c.finish.rank_bytes = sizeof ranks[0], c.finish.ranks = 3;
            for (int rank = 0; rank < 3; rank++) {
                uint64_t begin = rank > 0 ? ends[rank - 1] : 0;
                bp_forward_work work = c.forward;
                work.logits.data = (uint16_t *)c.logits + begin;
                work.logits.columns = ends[rank] - begin;
                work.logits.first = first + (int64_t)begin;
                work.partials = ranks[rank].partials, work.target_logits = ranks[rank].targets;
                assert_ok(k.engine->ops->forward(k.engine, &work, k.streams[0]));
                assert_ok(bp_stream_synchronize(k.streams[0]));
            }
            assert_ok(k.engine->ops->finish(k.engine, &c.finish, k.streams[0]));
            for (int rank = 0; rank < 3; rank++) {
                uint64_t begin = rank > 0 ? ends[rank - 1] : 0;
                bp_gradient_work work = c.backward;
                work.logits.data = (uint16_t *)c.logits + begin;
                work.logits.columns = ends[rank] - begin;
                work.logits.first = first + (int64_t)begin;
                work.out = (float *)c.out + begin;
                assert_ok(k.engine->ops->gradient(k.engine, &work, k.streams[0]));
            }
            assert_ok(bp_stream_synchronize(k.streams[0]));
            check_call(k.engine->kernels, &c, &original);
            end_call(&c);
            end_call(&original);
        }
        close_kit(&k);
    }
}

/* ---- targets and masks --------------------------------------------------------------------------------------------- */

TEST(test_bad_targets)
{
    kit k = open_kit(2, BP_KERNELS_PLAIN, 10);
    call_options o = {.batch = 2, .sequence = 300, .columns = 10, .scale = 1, .with_mask = 1, .seed = 5};
    call c = new_call(&o);
    for (uint64_t token = 0; token < 600; token++) {
        size_t offset = token / 300 * 601 + token % 300 * 2;
        ((int64_t *)c.targets)[offset] = token == 40 || token == 431 ? INT64_MIN : token == 500 ? 10 : 9;
        c.mask[offset] = token != 40; /* masked: not checked */
    }
    c.forward.tokens.bad = c.finish.tokens.bad = &c.bad;
    run_call(&k, &c);
    assert_true(c.bad == bp_bad_target(431, INT64_MIN, 0));
    ((int64_t *)c.targets)[601 + 2 * 131] = 3; /* token 431; the first recorded one stays */
    run_call(&k, &c);
    assert_true(c.bad == bp_bad_target(431, INT64_MIN, 0));
    c.bad = UINT64_MAX;
    run_call(&k, &c);
    assert_true(c.bad == bp_bad_target(500, 10, 0));
    end_call(&c);
    close_kit(&k);
}

/* Masked rows may point to unmapped memory. */
TEST(test_masked_rows_are_not_read)
{
    const size_t row = 4096;
    char *logits = mmap(NULL, 4 * row, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(logits != MAP_FAILED);
    assert_int_equal(mprotect(logits + row, row, PROT_NONE), 0);
    assert_int_equal(mprotect(logits + 3 * row, row, PROT_NONE), 0);
    for (uint32_t threads = 1; threads <= 3; threads++) {
        kit k = open_kit(threads, BP_KERNELS_AVX512 | BP_KERNELS_AVX2, 1024);
        call_options o = {.batch = 2, .sequence = 2, .columns = 1024, .scale = 1, .with_mask = 1, .seed = 5};
        call c = new_call(&o);
        for (int token = 0; token < 4; token++)
            c.mask[token / 2 * 5 + token % 2 * 2] = token % 2 == 0;
        c.forward.logits.data = logits;
        c.forward.logits.batch_stride = 2048, c.forward.logits.stride = 1024;
        c.backward.logits = c.forward.logits;
        run_call(&k, &c);
        assert_true(c.logprob[2] == 0 && c.logprob[7] == 0);
        assert_true(fabsf(c.logprob[0] + logf(1024)) < 1e-6f);
        end_call(&c);
        close_kit(&k);
    }
    munmap(logits, 4 * row);
}

TESTS(NULL, NULL)

/* Fails each allocation of building, bounding, packing and checking in turn, alone and with all later ones. The call must return the
 * error, write nothing, leak nothing (address sanitizer), and succeed when repeated.
 *
 * Linked with -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc against the static library. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "answers.h"
#include "planted.h"
#include "support/brief.h"

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);

static size_t until_failure; /* 0: no failure; 1: the next allocation fails */
static bool keeps_failing, has_failed;
static size_t failures; /* injected so far */

static bool fails(void)
{
    if (has_failed && keeps_failing)
        return true;
    if (until_failure == 0 || --until_failure > 0)
        return false;
    has_failed = true;
    return true;
}

void *__wrap_malloc(size_t bytes)
{
    return fails() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return fails() ? NULL : __real_calloc(count, bytes);
}

void *__wrap_realloc(void *memory, size_t bytes)
{
    return fails() ? NULL : __real_realloc(memory, bytes);
}

static void start_failing(size_t nth, bool keep)
{
    has_failed = false;
    keeps_failing = keep;
    until_failure = nth;
}

/* Stops injecting; true if an allocation failed since the start. */
static bool stop_failing(void)
{
    bool failed = has_failed;
    has_failed = false;
    until_failure = 0;
    failures += failed;
    return failed;
}

/* Repeats the call, each time with a later failure, until no allocation fails. */
#define RETRY(call)                                                                                                    \
    do {                                                                                                               \
        bool one_failed = true;                                                                                        \
        for (size_t nth = 1; one_failed; nth++) {                                                                      \
            start_failing((nth + 1) / 2, nth % 2 == 0);                                                                \
            bp_status status = (call);                                                                                 \
            one_failed = stop_failing();                                                                               \
            assert_int_equal(status, one_failed ? BP_ERR_NO_HOST_MEMORY : BP_OK);                                      \
        }                                                                                                              \
    } while (0)

static bp_packing *build(const instance *in)
{
    bp_packing *packing = NULL;
    start_failing(1, false);
    assert_int_equal(bp_packing_create(&packing), BP_ERR_NO_HOST_MEMORY);
    assert_true(stop_failing() && packing == NULL);
    assert_ok(bp_packing_create(&packing));
    for (uint32_t i = 0; i < in->count; i++) {
        size_t item = SIZE_MAX;
        RETRY(bp_packing_add_item(packing, in->sizes[i], &item));
        assert_int_equal(item, i); /* failed calls added nothing */
    }
    for (uint32_t i = 0; i < in->interval_count; i++)
        RETRY(bp_packing_add_interval(packing, in->intervals[i].item, in->intervals[i].begin, in->intervals[i].end));
    for (uint32_t i = 0; i < in->pair_count; i++)
        RETRY(bp_packing_add_conflict(packing, in->pairs[i].item, in->pairs[i].other));
    assert_int_equal(bp_packing_get_info(packing)->item_count, in->count);
    return packing;
}

static void try_bound(const instance *in, const bp_packing *packing)
{
    uint32_t *witness = calloc(in->count + 1, sizeof *witness);
    assert_non_null(witness);
    bool failed = true;
    for (size_t nth = 1; failed; nth++) {
        size_t count = 77;
        uint64_t bound = 77;
        memset(witness, 0xA5, in->count * sizeof *witness);
        start_failing((nth + 1) / 2, nth % 2 == 0);
        bp_status status = bp_packing_bound(packing, witness, &count, &bound);
        failed = stop_failing();
        assert_int_equal(status, failed ? BP_ERR_NO_HOST_MEMORY : BP_OK);
        for (uint32_t i = 0; failed && i < in->count; i++)
            assert_int_equal(witness[i], 0xA5A5A5A5);
        if (failed)
            assert_true(count == 77 && bound == 77);
        else
            assert_true(bound == bound_of(in));
    }
    free(witness);
}

/* After all failures the result equals that of a run without failures. */
static void try_pack(const instance *in, bp_pack_config config)
{
    answer plain = solve(in, config);
    bp_packing *packing = build(in);
    try_bound(in, packing);
    uint64_t *offsets = calloc(in->count + 1, sizeof *offsets);
    assert_non_null(offsets);
    bool failed = true;
    for (size_t nth = 1; failed; nth++) {
        bp_pack_result result, before;
        memset(&result, 0xA5, sizeof result);
        result.size = sizeof result;
        before = result;
        memset(offsets, 0xA5, in->count * sizeof *offsets);
        start_failing((nth + 1) / 2, nth % 2 == 0);
        bp_status status = bp_pack(packing, &config, offsets, &result);
        failed = stop_failing();
        assert_int_equal(status, failed ? BP_ERR_NO_HOST_MEMORY : BP_OK);
        if (failed)
            assert_memory_equal(&result, &before, sizeof result);
        for (uint32_t i = 0; failed && i < in->count; i++)
            assert_true(offsets[i] == UINT64_C(0xA5A5A5A5A5A5A5A5));
        if (failed)
            continue;
        assert_true(result.bytes == plain.result.bytes && result.work == plain.result.work);
        assert_memory_equal(offsets, plain.offsets, in->count * sizeof *offsets);
    }
    if (plain.result.outcome == BP_PACK_PLACED)
        RETRY(bp_packing_check(packing, offsets, plain.result.bytes));
    free(offsets);
    bp_packing_destroy(&packing);
    end_answer(&plain);
}

static void try_configs(const instance *in)
{
    bp_pack_config config = new_config();
    config.work = 100000;
    try_pack(in, config);
    config.capacity = bound_of(in);
    try_pack(in, config);
    uint64_t *pile = calloc(in->count + 1, sizeof *pile), bytes = 0;
    assert_non_null(pile);
    for (uint32_t i = 0; i < in->count; i++) {
        pile[i] = bytes;
        bytes += in->sizes[i];
    }
    config.capacity = 0;
    config.known = pile;
    try_pack(in, config);
    free(pile);
}

/* A chain of units, forward and backward; each conflicts with the next `ahead`. */
static instance make_chain(uint32_t units, uint32_t ahead)
{
    instance in = {0};
    for (uint32_t u = 0; u < units; u++) {
        uint32_t item = add_item(&in, random_between(1, 1000));
        add_interval(&in, item, u, u + ahead + 1);
        add_interval(&in, item, 3 * units - u, 3 * units - u + ahead + 1);
    }
    return in;
}

static void test_chains(void **state)
{
    (void)state;
    seed(1);
    for (uint32_t ahead = 0; ahead <= 3; ahead++) {
        instance in = make_chain(20, ahead);
        try_configs(&in);
        end_instance(&in);
    }
}

static void test_random(void **state)
{
    (void)state;
    seed(2);
    for (int i = 0, times = share_of(12); i < times; i++) {
        instance in = random_instance((random_options){.items = (uint32_t)random_between(1, 25),
                                                       .steps = 30,
                                                       .intervals = 3,
                                                       .least_size = 1,
                                                       .most_size = 1000,
                                                       .pairs = i % 2 * 20,
                                                       .empty = true,
                                                       .never_live = true});
        try_configs(&in);
        end_instance(&in);
    }
}

static void test_planted(void **state)
{
    (void)state;
    seed(3);
    for (int i = 0, times = share_of(6); i < times; i++) {
        planted p =
            plant((planted_options){.items = 24, .bytes = 1000, .steps = 30, .wheels = true, .gaps = i % 2 > 0});
        try_configs(&p.in);
        end_planted(&p);
    }
}

/* Connected components that are disjoint in time. */
static void test_parts(void **state)
{
    (void)state;
    seed(4);
    instance in = {0};
    for (uint32_t part = 0; part < 4; part++)
        for (uint32_t i = 0; i < 6; i++) {
            uint64_t begin = 100 * part + random_below(10);
            add_interval(&in, add_item(&in, random_between(1, 99)), begin, begin + random_between(1, 9));
        }
    try_configs(&in);
    end_instance(&in);
}

/* Too many conflicts for the conflict graph: skyline and first fit on columns. */
static void test_large(void **state)
{
    (void)state;
    seed(5);
    instance in = random_instance(
        (random_options){.items = 3000, .steps = 6000, .intervals = 3, .least_size = 1, .most_size = 1000});
    bp_pack_config config = new_config();
    config.work = 50000000;
    try_pack(&in, config);
    end_instance(&in);
}

/* Guards against a build in which the wraps are not linked. */
static void test_failures_happened(void **state)
{
    (void)state;
    assert_true(failures > 1000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chains), cmocka_unit_test(test_random), cmocka_unit_test(test_planted),
        cmocka_unit_test(test_parts),  cmocka_unit_test(test_large),  cmocka_unit_test(test_failures_happened),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

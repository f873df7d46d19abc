/* SPDX-License-Identifier: Apache-2.0 */
/* Runs bp_pack and bp_packing_bound and checks their results. */
#include "support/harness.h"

#include "answers.h"

#include <stdlib.h>
#include <string.h>

#include "naive.h"

#define UNWRITTEN UINT64_C(0xA5A5A5A5A5A5A5A5)

bp_pack_config new_config(void)
{
    bp_pack_config config;
    assert_ok(bp_pack_config_init(&config, sizeof config));
    return config;
}

/* Offsets are sums of sizes. */
static bool offsets_divide(const instance *in, const uint64_t *offsets)
{
    uint64_t divisor = 0;
    for (uint32_t i = 0; i < in->count; i++) {
        uint64_t a = naive_live(in, i) ? in->sizes[i] : 0;
        while (a > 0) {
            uint64_t rest = divisor % a;
            divisor = a;
            a = rest;
        }
    }
    for (uint32_t i = 0; divisor > 0 && i < in->count; i++)
        if (naive_live(in, i) && offsets[i] % divisor != 0)
            return false;
    return true;
}

static void check_placement(const instance *in, const bp_packing *packing, const answer *a, bool known)
{
    bool *with = naive_conflicts(in);
    uint64_t bytes = a->result.bytes;
    assert_for(in, naive_check(in, with, a->offsets, bytes));
    assert_ok(bp_packing_check(packing, a->offsets, bytes));
    assert_for(in, naive_height(in, a->offsets) == bytes);
    if (bytes > 0)
        assert_for(in, bp_packing_check(packing, a->offsets, bytes - 1) == BP_ERR_MISMATCH);
    for (uint32_t i = 0; i < in->count; i++)
        assert_for(in, naive_live(in, i) || a->offsets[i] == 0);
    assert_for(in, known || offsets_divide(in, a->offsets));
    free(with);
}

static void check_numbers(const instance *in, const bp_pack_config *config, const bp_pack_result *r)
{
    assert_for(in, r->size == sizeof *r);
    assert_for(in, r->bound <= r->proven && r->proven <= r->bytes);
    assert_for(in, r->optimal == (r->proven == r->bytes));
    assert_for(in, r->method != NULL && strlen(r->method) > 0 && strlen(r->method) < 100);
    bool fits = config->capacity == 0 || r->bytes <= config->capacity;
    if (fits)
        assert_for(in, r->outcome == BP_PACK_PLACED);
    else if (r->proven > config->capacity)
        assert_for(in, r->outcome == BP_PACK_INFEASIBLE);
    else
        assert_for(in, r->outcome == BP_PACK_NOT_FOUND);
}

answer solve(const instance *in, bp_pack_config config)
{
    bp_packing *packing = make_packing(in);
    answer a;
    memset(&a, 0xA5, sizeof a);
    a.result.size = sizeof a.result;
    a.offsets = malloc((in->count + 1) * sizeof *a.offsets);
    assert_non_null(a.offsets);
    memset(a.offsets, 0xA5, (in->count + 1) * sizeof *a.offsets);
    bp_status status = bp_pack(packing, &config, a.offsets, &a.result);
    if (status != BP_OK)
        print_error("bp_pack: %s: %s\n", bp_status_name(status), bp_error_detail());
    assert_for(in, status == BP_OK);
    check_numbers(in, &config, &a.result);
    assert_for(in, a.result.bound == bound_of(in));
    if (a.result.outcome == BP_PACK_PLACED)
        check_placement(in, packing, &a, config.known != NULL);
    for (uint32_t i = a.result.outcome == BP_PACK_PLACED ? in->count : 0; i <= in->count; i++)
        assert_for(in, a.offsets[i] == UNWRITTEN);
    bp_packing_destroy(&packing);
    return a;
}

answer solve_plainly(const instance *in)
{
    return solve(in, new_config());
}

uint64_t solved_optimum(const instance *in)
{
    answer a = solve_plainly(in);
    assert_for(in, a.result.optimal == 1);
    uint64_t bytes = a.result.bytes;
    end_answer(&a);
    return bytes;
}

void assert_optimum(const instance *in, uint64_t bytes)
{
    SCOPED(end_answer) answer a = solve_plainly(in);
    if (a.result.bytes != bytes || a.result.optimal != 1)
        print_error("the optimum is %llu, bp_pack has %llu, of which %llu proven, by %s\n", (unsigned long long)bytes,
                    (unsigned long long)a.result.bytes, (unsigned long long)a.result.proven, a.result.method);
    assert_for(in, a.result.bytes == bytes);
    assert_for(in, a.result.optimal == 1);
}

void end_answer(answer *a)
{
    free(a->offsets);
    a->offsets = NULL;
}

void assert_refused(const instance *in, bp_pack_config config, bp_status expected)
{
    SCOPED(bp_packing_destroy) bp_packing *packing = make_packing(in);
    uint64_t *offsets = malloc((in->count + 1) * sizeof *offsets);
    assert_non_null(offsets);
    memset(offsets, 0xA5, (in->count + 1) * sizeof *offsets);
    bp_pack_result result, before;
    memset(&result, 0xA5, sizeof result);
    result.size = sizeof result;
    before = result;
    bp_status status = bp_pack(packing, &config, offsets, &result);
    assert_for(in, status == expected);
    assert_memory_equal(&result, &before, sizeof result);
    for (uint32_t i = 0; i <= in->count; i++)
        assert_for(in, offsets[i] == UNWRITTEN);
    assert_true(strlen(bp_error_detail()) > 0);
    free(offsets);
}

uint64_t bound_of(const instance *in)
{
    bp_packing *packing = make_packing(in);
    uint32_t *witness = malloc((in->count + 1) * sizeof *witness);
    assert_non_null(witness);
    memset(witness, 0xA5, (in->count + 1) * sizeof *witness);
    size_t count = SIZE_MAX, again = SIZE_MAX;
    uint64_t bound = UNWRITTEN, bound_again = UNWRITTEN, sum = 0, live = naive_live_sum(in);
    assert_ok(bp_packing_bound(packing, witness, &count, &bound));
    assert_ok(bp_packing_bound(packing, NULL, &again, &bound_again));
    assert_for(in, count == again && bound == bound_again && count <= in->count);
    assert_for(in, in->pair_count > 0 ? bound >= live : bound == live);
    bool *with = naive_conflicts(in);
    for (size_t i = 0; i < count; i++) {
        assert_for(in, witness[i] < in->count && (i == 0 || witness[i - 1] < witness[i]));
        for (size_t k = 0; k < i; k++)
            assert_for(in, with[witness[i] * (size_t)in->count + witness[k]]);
        sum += in->sizes[witness[i]];
    }
    assert_for(in, sum == bound);
    assert_for(in, witness[count] == (uint32_t)UNWRITTEN);
    free(with);
    free(witness);
    bp_packing_destroy(&packing);
    return bound;
}

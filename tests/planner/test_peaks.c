/* SPDX-License-Identifier: Apache-2.0 */
/* bp_peaks: hand-made cases, and against a reference model. */
#include "support/harness.h"

#include <bucketpool/whatif.h>

#include <stdbool.h>
#include <string.h>

#include "support/scenarios.h"

#define WORK (1u << 18) /* of each search; bounds do not depend on it */

static bp_plan_config scheduled_config(uint32_t joint)
{
    bp_plan_config config = plan_config(BP_POLICY_SCHEDULED, 0, BP_FALLBACK_PERSISTENT);
    config.joint = joint;
    config.work = WORK;
    return config;
}

static bp_peak peak_at(const bp_peaks *peaks, size_t index)
{
    assert_true(index < bp_peaks_get_info(peaks)->peak_count);
    return bp_peaks_get_info(peaks)->peaks[index];
}

static bp_peak_holder holder_at(const bp_peaks *peaks, size_t peak, size_t index)
{
    bp_peak found = peak_at(peaks, peak);
    assert_true(index < found.holder_count);
    return found.holders[index];
}

static bp_peaks *find_peaks(const scenario *s, uint32_t joint)
{
    bp_plan_config config = scheduled_config(joint);
    bp_plan *plan = NULL;
    bp_peaks *peaks = NULL;
    assert_ok(bp_plan_create(s->buckets, s->schedule, &config, &plan));
    assert_ok(bp_peaks_create(s->buckets, s->schedule, plan, &peaks));
    bp_plan_destroy(&plan);
    return peaks;
}

/* Units of 100, 300, 200, 100: the middle pair has the peak, in steps 1 (forward) and 5 (backward); the first pair comes next. */
TEST(test_one_pair_sets_the_peak)
{
    SCOPED(free_scenario) scenario s = scenario_of_kinds("xzyx");
    bp_peaks *peaks = find_peaks(&s, 0);
    assert_int_equal(bp_peaks_get_info(peaks)->peak_count, 1);
    bp_peak peak = peak_at(peaks, 0);
    assert_int_equal(peak.roles, PARAM);
    assert_int_equal(peak.bytes, 1280 + 1024);
    assert_int_equal(peak.step, 1);
    assert_int_equal(peak.step_count, 2);
    assert_int_equal(peak.set_count, 1);
    assert_int_equal(peak.next_bytes, 1280 + 512);
    assert_int_equal(peak.next_step, 0);
    assert_int_equal(peak.below_bytes, 1280 + 512);
    assert_int_equal(peak.below_step, 0);
    assert_int_equal(peak.holder_count, 2);
    assert_int_equal(holder_at(peaks, 0, 0).unit, 1);
    assert_int_equal(holder_at(peaks, 0, 0).bytes, 1280);
    assert_int_equal(holder_at(peaks, 0, 1).unit, 2);
    assert_int_equal(holder_at(peaks, 0, 1).bytes, 1024);
    bp_peaks_destroy(&peaks);
    assert_null(peaks);
}

/* Two pairs reach the peak: without one of them it stays, without both it falls. */
TEST(test_two_pairs_set_the_peak)
{
    SCOPED(free_scenario) scenario s = scenario_of_kinds("zzxzz");
    SCOPED(bp_peaks_destroy) bp_peaks *peaks = find_peaks(&s, 0);
    bp_peak peak = peak_at(peaks, 0);
    assert_int_equal(peak.bytes, 2 * 1280);
    assert_int_equal(peak.step_count, 4);
    assert_int_equal(peak.set_count, 2);
    assert_int_equal(peak.next_bytes, peak.bytes);
    assert_int_equal(peak.next_step, 3);
    assert_int_equal(peak.below_bytes, 1280 + 512);
    assert_int_equal(peak.below_step, 1);
}

/* Live bytes of a unit's requests in a role, in a step. */
static uint64_t live_bytes_in(const scenario *s, uint32_t unit, uint32_t role, uint32_t step)
{
    uint64_t sum = 0;
    for (size_t r = 0; r < bp_buckets_get_info(s->buckets)->request_count; r++) {
        size_t count;
        const bp_request request = bp_buckets_get_info(s->buckets)->requests[r];
        const bp_bucket bucket = bp_buckets_get_info(s->buckets)->buckets[request.bucket];
        const bp_interval *live = intervals_of(s->schedule, r, &count);
        for (size_t k = 0; k < count; k++) {
            if (bucket.unit == (int32_t)unit && request.role == role && live[k].begin <= step && step < live[k].end)
                sum += aligned(request.bytes);
        }
    }
    return sum;
}

#define MAX_UNITS 8

/* A step's holders as a string, for comparison. */
typedef struct step_set {
    uint64_t sum;
    uint64_t bytes[MAX_UNITS][BP_ROLE_COUNT];
} step_set;

static step_set set_of(const scenario *s, uint32_t roles, uint32_t step)
{
    step_set set;
    memset(&set, 0, sizeof set);
    for (uint32_t unit = 0; unit < bp_buckets_get_info(s->buckets)->unit_count; unit++) {
        for (uint32_t role = 0; role < BP_ROLE_COUNT; role++) {
            set.bytes[unit][role] = roles & BP_ROLE_BIT(role) ? live_bytes_in(s, unit, role, step) : 0;
            set.sum += set.bytes[unit][role];
        }
    }
    return set;
}

static bool holds_all(const step_set *set, const step_set *all)
{
    bool holds = true;
    for (int unit = 0; unit < MAX_UNITS; unit++)
        for (int role = 0; role < BP_ROLE_COUNT; role++)
            holds = holds && set->bytes[unit][role] >= all->bytes[unit][role];
    return holds;
}

static void check_peak(const scenario *s, const bp_peaks *peaks, size_t index)
{
    static step_set sets[128];
    bp_peak peak = peak_at(peaks, index);
    uint32_t steps = (uint32_t)bp_schedule_get_info(s->schedule)->step_count, reach = 0, different = 0;
    uint64_t next = 0, below = 0, sum = 0;
    assert_true(steps <= 128);
    for (uint32_t step = 0; step < steps; step++)
        sets[step] = set_of(s, peak.roles, step);
    for (uint32_t step = 0; step < steps; step++) {
        const step_set *set = &sets[step];
        bool first = true;
        assert_true(set->sum <= peak.bytes);
        assert_true(step >= peak.step || set->sum < peak.bytes);
        for (uint32_t before = 0; before < step; before++)
            first = first && memcmp(&sets[before], set, sizeof *set) != 0;
        reach += set->sum == peak.bytes;
        different += set->sum == peak.bytes && first;
        below = set->sum < peak.bytes && set->sum > below ? set->sum : below;
        next = !holds_all(set, &sets[peak.step]) && set->sum > next ? set->sum : next;
    }
    assert_int_equal(peak.step_count, reach);
    assert_int_equal(peak.set_count, different);
    assert_int_equal(peak.next_bytes, next);
    assert_int_equal(peak.below_bytes, below);
    assert_true(next == 0 || sets[peak.next_step].sum == next);
    assert_true(below == 0 || sets[peak.below_step].sum == below);
    for (size_t i = 0; i < peak.holder_count; i++) {
        bp_peak_holder holder = holder_at(peaks, index, i);
        assert_true(holder.bytes > 0 && (i == 0 || holder.bytes <= holder_at(peaks, index, i - 1).bytes));
        assert_int_equal(holder.bytes, sets[peak.step].bytes[holder.unit][holder.role]);
        sum += holder.bytes;
    }
    assert_int_equal(sum, peak.bytes);
}

TEST(test_peaks_of_any_schedule)
{
    for (uint32_t round = 0; round < 120; round++) {
        seed(round);
        bp_model *model = round % 10 == 0 ? make_fp8() : random_model(1 + random_below(MAX_UNITS));
        scenario_options options = DEFAULTS;
        options.roles = PARAM | GRAD | (random_below(3) == 0 ? STATE : 0) | (round % 10 == 0 ? TRANSPOSE : 0);
        options.prefetch = random_below(4);
        options.grad_units = 1 + random_below(3);
        options.eval = random_below(4) == 0;
        SCOPED(free_scenario) scenario s = make_scenario(model, options);
        SCOPED(bp_peaks_destroy) bp_peaks *peaks = find_peaks(&s, random_below(2));
        for (size_t i = 0; i < bp_peaks_get_info(peaks)->peak_count; i++) {
            if (peak_at(peaks, i).bytes > 0)
                check_peak(&s, peaks, i);
            else
                assert_int_equal(peak_at(peaks, i).holder_count, 0);
        }
    }
}

/* A host that releases each unit before it acquires the next: one unit is live in a step, but the window keeps neighbours apart. */
TEST(test_windows_set_the_peak)
{
    static const uint64_t numel[] = {64, 192, 128, 64};
    bp_model *model = new_model();
    for (uint32_t u = 0; u < 4; u++)
        add_bucket(model, add_numbered_unit(model, u), BP_DTYPE_FP32, numel[u], 0);
    for (int32_t u = 0; u < 4; u++) {
        for (uint32_t acquire = 1; acquire <= 1; acquire--) {
            bp_model_event event = {.size = sizeof event,
                                    .acquire = acquire,
                                    .unit = u,
                                    .bucket = -1,
                                    .role = BP_ROLE_PARAM,
                                    .lane = acquire ? BP_LANE_GATHER : BP_LANE_COMPUTE};
            assert_ok(bp_model_add_event(model, &event));
        }
    }
    scenario_options options = PARAM_ONLY;
    options.recorded = 1;
    SCOPED(free_scenario) scenario s = make_scenario(model, options);
    const bp_recorded_config config = {.size = sizeof config, .overlap_window = 1};
    bp_schedule_destroy(&s.schedule);
    assert_ok(bp_schedule_create_recorded(model, s.buckets, &config, &s.schedule));
    SCOPED(bp_peaks_destroy) bp_peaks *peaks = find_peaks(&s, 0);
    bp_peak peak = peak_at(peaks, 0);
    assert_int_equal(peak.bytes, 768 + 512);
    assert_int_equal(peak.step_count, 0);
    assert_int_equal(peak.set_count, 0);
    assert_int_equal(peak.next_bytes, 0);
    assert_int_equal(peak.below_bytes, 0);
    assert_int_equal(peak.holder_count, 2);
    assert_int_equal(holder_at(peaks, 0, 0).unit, 1);
    assert_int_equal(holder_at(peaks, 0, 0).role, BP_ROLE_PARAM);
    assert_int_equal(holder_at(peaks, 0, 1).unit, 2);
}

/* ---- errors ----------------------------------------------------------------------------------------------------------- */

TEST(test_errors)
{
    SCOPED(free_scenario)
    scenario s = scenario_of_kinds("xyz"), other = scenario_of_kinds("xy"), same_size = scenario_of_kinds("xzz");
    SCOPED(bp_plan_destroy) bp_plan *plan = make_max(&s, 0), *again = NULL;
    bp_peaks *peaks = NULL;
    assert_fails(bp_peaks_create(NULL, s.schedule, plan, &peaks), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_peaks_create(s.buckets, NULL, plan, &peaks), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_peaks_create(s.buckets, s.schedule, NULL, &peaks), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_peaks_create(s.buckets, s.schedule, plan, NULL), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_peaks_create(s.buckets, other.schedule, plan, &peaks), BP_ERR_INVALID_ARGUMENT, "2 requests");
    assert_fails(bp_peaks_create(same_size.buckets, same_size.schedule, plan, &peaks), BP_ERR_INVALID_ARGUMENT,
                 "expected in step 1");
    again = copy_plan(plan);
    assert_fails(bp_peaks_create(s.buckets, s.schedule, again, &peaks), BP_ERR_INVALID_ARGUMENT, "file");
    assert_null(peaks);
    assert_ok(bp_peaks_create(s.buckets, s.schedule, plan, &peaks)); /* of any policy */
    assert_null(bp_peaks_get_info(NULL));
    bp_peaks_destroy(&peaks);
    bp_peaks_destroy(&peaks);
    bp_peaks_destroy(NULL);
}

TESTS(NULL, NULL)

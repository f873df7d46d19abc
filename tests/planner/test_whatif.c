/* What other schedules take, against plans of them; what sets the peak, by hand and against sums told plainly. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <bucketpool/whatif.h>

#include <stdbool.h>
#include <string.h>

#include "worlds.h"

#define WORK (1u << 18) /* of a search: the same for all, so that they can be compared */

static bp_plan_config scheduled_config(uint32_t joint)
{
    bp_plan_config config = plan_config(BP_POLICY_SCHEDULED, 0, BP_FALLBACK_PERSISTENT);
    config.joint = joint;
    config.work = WORK;
    return config;
}

/* ---- other schedules ------------------------------------------------------------------------------------------------- */

static bp_alternatives_config survey_config(void)
{
    bp_alternatives_config config;
    assert_ok(bp_alternatives_config_init(&config, sizeof config));
    assert_int_equal(config.most_prefetch, 4);
    assert_int_equal(config.stalls, 0);
    config.work = WORK;
    return config;
}

static bp_schedule_config training_config(void)
{
    bp_schedule_config config;
    assert_ok(bp_schedule_config_init(&config, sizeof config));
    return config;
}

static bp_alternative alternative_at(const bp_alternatives *alternatives, size_t index)
{
    bp_alternative alternative = {.size = sizeof alternative};
    assert_ok(bp_alternatives_get(alternatives, index, &alternative));
    return alternative;
}

/* Plans the alternative by itself. */
static void check_alternative(const world *w, bp_schedule_config timing, bp_plan_config config, uint32_t stalls,
                              const bp_alternative *a)
{
    timing.prefetch = a->prefetch;
    timing.prefetch_backward = a->prefetch_backward;
    timing.streams = a->streams;
    config.joint = a->joint;
    bp_trade_config trade;
    assert_ok(bp_trade_config_init(&trade, sizeof trade));
    trade.stalls = stalls;
    trade.joint = a->joint;
    trade.roles = a->joint ? PARAM | TRANSPOSE | GRAD | GRAD_COMM : 0;
    bp_schedule *made = NULL, *schedule = NULL;
    assert_ok(bp_schedule_create_training(w->buckets, &timing, &made));
    assert_ok(bp_schedule_create_traded(w->buckets, made, &trade, &schedule));
    bp_plan *plan = NULL, *max = NULL;
    config.policy = BP_POLICY_SCHEDULED;
    assert_ok(bp_plan_create(w->buckets, schedule, &config, &plan));
    config.policy = BP_POLICY_MAX;
    assert_ok(bp_plan_create(w->buckets, schedule, &config, &max));
    uint64_t proven = 0;
    for (size_t i = 0; i < bp_plan_role_count(plan); i++)
        proven += role_at(plan, i).proven_bytes;
    assert_int_equal(a->bytes, summary_of(plan).bytes);
    assert_int_equal(a->lower_bound_bytes, summary_of(plan).lower_bound_bytes);
    assert_int_equal(a->optimal, summary_of(plan).optimal);
    assert_int_equal(a->proven_bytes, proven);
    assert_int_equal(a->max_bytes, summary_of(max).feasible ? summary_of(max).bytes : 0);
    bp_plan_destroy(&plan);
    bp_plan_destroy(&max);
    bp_schedule_destroy(&schedule);
    bp_schedule_destroy(&made);
}

/* A plan that is there is not made again: told by one of something else. */
static void test_present_plan(void **state)
{
    (void)state;
    world w = world_of_kinds("xyz"), other = world_of_kinds("z");
    bp_schedule_config timing = training_config();
    bp_plan_config plan = scheduled_config(0);
    bp_alternatives_config config = survey_config();
    bp_plan *of_other = make_plan(&other, BP_POLICY_SCHEDULED, 0, BP_FALLBACK_PERSISTENT);
    bp_alternatives *made = NULL;
    config.present = of_other;
    assert_ok(bp_alternatives_create(w.buckets, &timing, &plan, &config, &made));
    assert_int_equal(alternative_at(made, 1).is_present, 1);
    assert_int_equal(alternative_at(made, 1).bytes, 1280);
    assert_int_equal(alternative_at(made, 1).live_bytes, 1280 + 1024);
    bp_alternatives_destroy(&made);
    bp_tradeoff_config curve;
    bp_tradeoff *tradeoff = NULL;
    bp_tradeoff_point point = {.size = sizeof point};
    assert_ok(bp_tradeoff_config_init(&curve, sizeof curve));
    curve.present = of_other;
    assert_ok(bp_tradeoff_create(w.buckets, w.schedule, &plan, &curve, &tradeoff));
    assert_ok(bp_tradeoff_get(tradeoff, 0, &point));
    assert_int_equal(point.bytes, 1280);
    bp_tradeoff_destroy(&tradeoff);
    bp_plan_destroy(&of_other);
    end_world(&w);
    end_world(&other);
}

static void test_alternatives_are_plans(void **state)
{
    (void)state;
    for (uint32_t stalls = 0; stalls <= 3; stalls += 3) {
        world w = make_world(make_mixed(), DEFAULTS);
        bp_schedule_config timing = training_config();
        bp_plan_config plan = scheduled_config(1);
        bp_alternatives_config config = survey_config();
        timing.streams = BP_STREAMS_UNIFIED;
        timing.prefetch = 2;
        config.stalls = stalls;
        bp_alternatives *made = NULL;
        assert_ok(bp_alternatives_create(w.buckets, &timing, &plan, &config, &made));
        assert_int_equal(bp_alternatives_count(made), 5 * 2 * 2);
        for (size_t i = 0; i < bp_alternatives_count(made); i++) {
            bp_alternative a = alternative_at(made, i);
            assert_int_equal(a.prefetch, i / 4);
            assert_int_equal(a.prefetch_backward, i / 4);
            assert_int_equal(a.streams, i / 2 % 2);
            assert_int_equal(a.joint, i % 2);
            assert_int_equal(a.is_present, i == 2 * 4 + 3);
            assert_true(a.live_bytes <= a.lower_bound_bytes);
            assert_true(!a.joint || a.live_bytes == a.lower_bound_bytes);
            check_alternative(&w, timing, plan, stalls, &a);
        }
        bp_alternatives_destroy(&made);
        assert_null(made);
        end_world(&w);
    }
}

/* A present choice that no row has comes first; copies that are too few for deep prefetch make max infeasible. */
static void test_present_choice(void **state)
{
    (void)state;
    world w = make_world(make_mixed(), DEFAULTS);
    const bp_unit_prefetch override = {2, 3, 0};
    bp_schedule_config timing = training_config();
    bp_plan_config plan = scheduled_config(0);
    bp_alternatives_config config = survey_config();
    timing.prefetch_backward = 0;
    timing.overrides = &override;
    timing.override_count = 1;
    plan.copies = 3;
    config.most_prefetch = 3;
    bp_alternatives *made = NULL;
    assert_ok(bp_alternatives_create(w.buckets, &timing, &plan, &config, &made));
    assert_int_equal(bp_alternatives_count(made), 1 + 4 * 4);
    size_t infeasible = 0;
    for (size_t i = 0; i < bp_alternatives_count(made); i++) {
        bp_alternative a = alternative_at(made, i);
        assert_int_equal(a.is_present, i == 0);
        assert_int_equal(a.prefetch_backward, i == 0 ? 0 : (i - 1) / 4);
        infeasible += a.max_bytes == 0;
        check_alternative(&w, timing, plan, 0, &a);
    }
    assert_true(infeasible > 0 && infeasible < 1 + 4 * 4);
    bp_alternatives_destroy(&made);
    end_world(&w);
}

/* Parameters alone know no reductions, and one role no joint slab. */
static void test_what_makes_no_difference(void **state)
{
    (void)state;
    world w = world_of_kinds("xyzzy");
    bp_schedule_config timing = training_config();
    bp_plan_config plan = scheduled_config(0);
    bp_alternatives_config config = survey_config();
    bp_alternatives *made = NULL;
    assert_ok(bp_alternatives_create(w.buckets, &timing, &plan, &config, &made));
    assert_int_equal(bp_alternatives_count(made), 5);
    /* live at once: a unit of 300 elements; both of 300; and one of 200 with them; 1200, 1280 and 1024 bytes are 1280, 1280, 1024 */
    static const uint64_t takes[] = {1280, 2 * 1280, 2 * 1280 + 1024, 2 * 1280 + 2 * 1024, 2 * 1280 + 2 * 1024 + 512};
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(alternative_at(made, i).lower_bound_bytes, takes[i]);
        assert_int_equal(alternative_at(made, i).live_bytes, takes[i]);
        assert_int_equal(alternative_at(made, i).bytes, takes[i]);
        assert_int_equal(alternative_at(made, i).is_present, i == 1);
    }
    bp_alternatives_destroy(&made);
    end_world(&w);
    world_options options = DEFAULTS;
    options.roles = PARAM | GRAD;
    w = make_world(make_mixed(), options);
    timing.passes = BP_PASSES_EVAL; /* gradients are there but never live */
    assert_ok(bp_alternatives_create(w.buckets, &timing, &plan, &config, &made));
    assert_int_equal(bp_alternatives_count(made), 5 * 2);
    bp_alternatives_destroy(&made);
    end_world(&w);
}

/* ---- what sets the peak ----------------------------------------------------------------------------------------------- */

static bp_peak peak_at(const bp_peaks *peaks, size_t index)
{
    bp_peak peak = {.size = sizeof peak};
    assert_ok(bp_peaks_get(peaks, index, &peak));
    return peak;
}

static bp_peak_holder holder_at(const bp_peaks *peaks, size_t peak, size_t index)
{
    bp_peak_holder holder = {.size = sizeof holder};
    assert_ok(bp_peaks_holder(peaks, peak, index, &holder));
    return holder;
}

static bp_peaks *find_peaks(const world *w, uint32_t joint)
{
    bp_plan_config config = scheduled_config(joint);
    bp_plan *plan = NULL;
    bp_peaks *peaks = NULL;
    assert_ok(bp_plan_create(w->buckets, w->schedule, &config, &plan));
    assert_ok(bp_peaks_create(w->buckets, w->schedule, plan, &peaks));
    bp_plan_destroy(&plan);
    return peaks;
}

/* Units of 100, 300, 200, 100: the middle pair holds most, in steps 1 (forward) and 5 (backward); the first pair comes next. */
static void test_one_pair_sets_the_peak(void **state)
{
    (void)state;
    world w = world_of_kinds("xzyx");
    bp_peaks *peaks = find_peaks(&w, 0);
    assert_int_equal(bp_peaks_count(peaks), 1);
    bp_peak peak = peak_at(peaks, 0);
    assert_int_equal(peak.roles, PARAM);
    assert_int_equal(peak.bytes, 1280 + 1024);
    assert_int_equal(peak.step, 1);
    assert_int_equal(peak.steps, 2);
    assert_int_equal(peak.sets, 1);
    assert_int_equal(peak.next_bytes, 1280 + 512);
    assert_int_equal(peak.next_step, 0);
    assert_int_equal(peak.below_bytes, 1280 + 512);
    assert_int_equal(peak.below_step, 0);
    assert_int_equal(peak.holders, 2);
    assert_int_equal(holder_at(peaks, 0, 0).unit, 1);
    assert_int_equal(holder_at(peaks, 0, 0).bytes, 1280);
    assert_int_equal(holder_at(peaks, 0, 1).unit, 2);
    assert_int_equal(holder_at(peaks, 0, 1).bytes, 1024);
    bp_peaks_destroy(&peaks);
    assert_null(peaks);
    end_world(&w);
}

/* Two pairs reach it: without one of them the peak stays, without both it falls. */
static void test_two_pairs_set_the_peak(void **state)
{
    (void)state;
    world w = world_of_kinds("zzxzz");
    bp_peaks *peaks = find_peaks(&w, 0);
    bp_peak peak = peak_at(peaks, 0);
    assert_int_equal(peak.bytes, 2 * 1280);
    assert_int_equal(peak.steps, 4);
    assert_int_equal(peak.sets, 2);
    assert_int_equal(peak.next_bytes, peak.bytes);
    assert_int_equal(peak.next_step, 3);
    assert_int_equal(peak.below_bytes, 1280 + 512);
    assert_int_equal(peak.below_step, 1);
    bp_peaks_destroy(&peaks);
    end_world(&w);
}

/* What a unit in a role has live in a step. */
static uint64_t held_in(const world *w, uint32_t unit, uint32_t role, uint32_t step)
{
    uint64_t sum = 0;
    for (size_t r = 0; r < bp_buckets_request_count(w->buckets); r++) {
        bp_request request = {.size = sizeof request};
        bp_bucket bucket = {.size = sizeof bucket};
        size_t count;
        assert_ok(bp_buckets_request(w->buckets, r, &request));
        assert_ok(bp_buckets_get(w->buckets, request.bucket, &bucket));
        const bp_interval *live = bp_schedule_intervals(w->schedule, r, &count);
        for (size_t k = 0; k < count; k++) {
            if (bucket.unit == (int32_t)unit && request.role == role && live[k].begin <= step && step < live[k].end)
                sum += aligned(request.bytes);
        }
    }
    return sum;
}

#define MOST_UNITS 8

/* A step's holders as a string: the same holders, the same string. */
typedef struct step_set {
    uint64_t sum;
    uint64_t bytes[MOST_UNITS][BP_ROLE_COUNT];
} step_set;

static step_set set_of(const world *w, uint32_t roles, uint32_t step)
{
    step_set set;
    memset(&set, 0, sizeof set);
    for (uint32_t unit = 0; unit < bp_buckets_unit_count(w->buckets); unit++) {
        for (uint32_t role = 0; role < BP_ROLE_COUNT; role++) {
            set.bytes[unit][role] = roles & BP_ROLE_BIT(role) ? held_in(w, unit, role, step) : 0;
            set.sum += set.bytes[unit][role];
        }
    }
    return set;
}

static bool holds_all(const step_set *set, const step_set *all)
{
    bool holds = true;
    for (int unit = 0; unit < MOST_UNITS; unit++)
        for (int role = 0; role < BP_ROLE_COUNT; role++)
            holds = holds && set->bytes[unit][role] >= all->bytes[unit][role];
    return holds;
}

static void check_peak(const world *w, const bp_peaks *peaks, size_t index)
{
    static step_set sets[128];
    bp_peak peak = peak_at(peaks, index);
    uint32_t steps = (uint32_t)bp_schedule_step_count(w->schedule), reach = 0, different = 0;
    uint64_t next = 0, below = 0, sum = 0;
    assert_true(steps <= 128);
    for (uint32_t step = 0; step < steps; step++)
        sets[step] = set_of(w, peak.roles, step);
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
    assert_int_equal(peak.steps, reach);
    assert_int_equal(peak.sets, different);
    assert_int_equal(peak.next_bytes, next);
    assert_int_equal(peak.below_bytes, below);
    assert_true(next == 0 || sets[peak.next_step].sum == next);
    assert_true(below == 0 || sets[peak.below_step].sum == below);
    for (size_t i = 0; i < peak.holders; i++) {
        bp_peak_holder holder = holder_at(peaks, index, i);
        assert_true(holder.bytes > 0 && (i == 0 || holder.bytes <= holder_at(peaks, index, i - 1).bytes));
        assert_int_equal(holder.bytes, sets[peak.step].bytes[holder.unit][holder.role]);
        sum += holder.bytes;
    }
    assert_int_equal(sum, peak.bytes);
}

static void test_peaks_of_any_schedule(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < 120; round++) {
        seed(round);
        bp_model *model = round % 10 == 0 ? make_fp8() : random_model(1 + random_below(MOST_UNITS));
        world_options options = DEFAULTS;
        options.roles = PARAM | GRAD | (random_below(3) == 0 ? STATE : 0) | (round % 10 == 0 ? TRANSPOSE : 0);
        options.prefetch = random_below(4);
        options.grad_units = 1 + random_below(3);
        options.eval = random_below(4) == 0;
        world w = make_world(model, options);
        bp_peaks *peaks = find_peaks(&w, random_below(2));
        for (size_t i = 0; i < bp_peaks_count(peaks); i++) {
            if (peak_at(peaks, i).bytes > 0)
                check_peak(&w, peaks, i);
            else
                assert_int_equal(peak_at(peaks, i).holders, 0);
        }
        bp_peaks_destroy(&peaks);
        end_world(&w);
    }
}

/* A host that releases each unit before it acquires the next: one unit is live in a step, but the window keeps neighbours apart. */
static void test_windows_set_the_peak(void **state)
{
    (void)state;
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
    world_options options = PARAM_ONLY;
    options.recorded = 1;
    world w = make_world(model, options);
    const bp_recorded_config config = {.size = sizeof config, .overlap_window = 1};
    bp_schedule_destroy(&w.schedule);
    assert_ok(bp_schedule_create_recorded(model, w.buckets, &config, &w.schedule));
    bp_peaks *peaks = find_peaks(&w, 0);
    bp_peak peak = peak_at(peaks, 0);
    assert_int_equal(peak.bytes, 768 + 512);
    assert_int_equal(peak.steps, 0);
    assert_int_equal(peak.sets, 0);
    assert_int_equal(peak.next_bytes, 0);
    assert_int_equal(peak.below_bytes, 0);
    assert_int_equal(peak.holders, 2);
    assert_int_equal(holder_at(peaks, 0, 0).unit, 1);
    assert_int_equal(holder_at(peaks, 0, 0).role, BP_ROLE_PARAM);
    assert_int_equal(holder_at(peaks, 0, 1).unit, 2);
    bp_peaks_destroy(&peaks);
    end_world(&w);
}

/* ---- what is refused -------------------------------------------------------------------------------------------------- */

static void test_errors_of_alternatives(void **state)
{
    (void)state;
    world w = world_of_kinds("xyz");
    bp_schedule_config timing = training_config();
    bp_plan_config plan = scheduled_config(0);
    bp_alternatives_config config = survey_config();
    bp_alternatives *made = NULL;
    assert_fails(bp_alternatives_config_init(NULL, sizeof config), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_alternatives_config_init(&config, 3), BP_ERR_INVALID_ARGUMENT, "size 3");
    assert_fails(bp_alternatives_create(NULL, &timing, &plan, &config, &made), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_alternatives_create(w.buckets, NULL, &plan, &config, &made), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_alternatives_create(w.buckets, &timing, NULL, &config, &made), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_alternatives_create(w.buckets, &timing, &plan, NULL, &made), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_alternatives_create(w.buckets, &timing, &plan, &config, NULL), BP_ERR_INVALID_ARGUMENT, NULL);
    config.most_prefetch = BP_MOST_WHATIF_PREFETCH + 1;
    assert_fails(bp_alternatives_create(w.buckets, &timing, &plan, &config, &made), BP_ERR_INVALID_ARGUMENT, "65");
    config = survey_config();
    timing.grad_units = 0;
    assert_fails(bp_alternatives_create(w.buckets, &timing, &plan, &config, &made), BP_ERR_INVALID_ARGUMENT,
                 "grad_units");
    timing = training_config();
    plan.alignment = 96;
    assert_fails(bp_alternatives_create(w.buckets, &timing, &plan, &config, &made), BP_ERR_INVALID_ARGUMENT, "96");
    plan = scheduled_config(0);
    assert_null(made);
    assert_ok(bp_alternatives_create(w.buckets, &timing, &plan, &config, &made));
    bp_alternative alternative = {.size = sizeof alternative};
    assert_fails(bp_alternatives_get(made, 5, &alternative), BP_ERR_INVALID_ARGUMENT, "alternative 5 of 5");
    alternative.size = 1;
    assert_fails(bp_alternatives_get(made, 0, &alternative), BP_ERR_INVALID_ARGUMENT, "size 1");
    bp_alternatives_destroy(&made);
    bp_alternatives_destroy(&made);
    bp_alternatives_destroy(NULL);
    end_world(&w);
}

static void test_errors_of_peaks(void **state)
{
    (void)state;
    world w = world_of_kinds("xyz"), other = world_of_kinds("xy"), same_size = world_of_kinds("xzz");
    bp_plan *plan = make_max(&w, 0), *again = NULL;
    bp_peaks *peaks = NULL;
    assert_fails(bp_peaks_create(NULL, w.schedule, plan, &peaks), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_peaks_create(w.buckets, NULL, plan, &peaks), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_peaks_create(w.buckets, w.schedule, NULL, &peaks), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_peaks_create(w.buckets, w.schedule, plan, NULL), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_peaks_create(w.buckets, other.schedule, plan, &peaks), BP_ERR_INVALID_ARGUMENT, "2 requests");
    assert_fails(bp_peaks_create(same_size.buckets, same_size.schedule, plan, &peaks), BP_ERR_INVALID_ARGUMENT,
                 "not reached in step 1");
    assert_ok(rebuild(plan, &NO_EDIT, &again));
    assert_fails(bp_peaks_create(w.buckets, w.schedule, again, &peaks), BP_ERR_INVALID_ARGUMENT, "file");
    assert_null(peaks);
    assert_ok(bp_peaks_create(w.buckets, w.schedule, plan, &peaks)); /* of any policy */
    bp_peak peak = {.size = sizeof peak};
    bp_peak_holder holder = {.size = sizeof holder};
    assert_fails(bp_peaks_get(peaks, 1, &peak), BP_ERR_INVALID_ARGUMENT, "peak 1 of 1");
    assert_fails(bp_peaks_holder(peaks, 1, 0, &holder), BP_ERR_INVALID_ARGUMENT, "peak 1 of 1");
    assert_fails(bp_peaks_holder(peaks, 0, 2, &holder), BP_ERR_INVALID_ARGUMENT, "holder 2 of 2");
    peak.size = 1;
    assert_fails(bp_peaks_get(peaks, 0, &peak), BP_ERR_INVALID_ARGUMENT, "size 1");
    bp_peaks_destroy(&peaks);
    bp_peaks_destroy(&peaks);
    bp_peaks_destroy(NULL);
    bp_plan_destroy(&plan);
    bp_plan_destroy(&again);
    end_world(&w);
    end_world(&other);
    end_world(&same_size);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_present_plan),           cmocka_unit_test(test_alternatives_are_plans),
        cmocka_unit_test(test_present_choice),         cmocka_unit_test(test_what_makes_no_difference),
        cmocka_unit_test(test_one_pair_sets_the_peak), cmocka_unit_test(test_two_pairs_set_the_peak),
        cmocka_unit_test(test_peaks_of_any_schedule),  cmocka_unit_test(test_windows_set_the_peak),
        cmocka_unit_test(test_errors_of_alternatives), cmocka_unit_test(test_errors_of_peaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

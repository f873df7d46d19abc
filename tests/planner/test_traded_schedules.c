/* Waits in exchange for bytes: against the greedy rule told plainly, and by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <bucketpool/plan.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "planner/schedule.h"
#include "worlds.h"

static bp_trade_config trade_config(uint32_t stalls, uint32_t roles, uint32_t joint)
{
    bp_trade_config config;
    assert_ok(bp_trade_config_init(&config, sizeof config));
    assert_int_equal(config.stalls, 0);
    assert_int_equal(config.alignment, ALIGNMENT);
    config.stalls = stalls;
    config.roles = roles;
    config.joint = joint;
    return config;
}

static bp_schedule *trade(const bp_buckets *buckets, const bp_schedule *schedule, bp_trade_config config)
{
    bp_schedule *traded = NULL;
    assert_ok(bp_schedule_create_traded(buckets, schedule, &config, &traded));
    return traded;
}

/* ---- the rule, told plainly ------------------------------------------------------------------------------------------ */

#define MOST_USES 512
#define MOST_STEPS 128

typedef struct naive_use {
    size_t request;
    uint32_t begin, end, needed_begin, needed_end;
} naive_use;

typedef struct naive_trade {
    const bp_trade_config *config;
    size_t count;
    naive_use uses[MOST_USES];
    uint64_t bytes[MOST_REQUESTS];
    uint32_t slab_of[MOST_REQUESTS]; /* BP_ROLE_COUNT: does not count */
    uint32_t steps;
    uint64_t live[BP_ROLE_COUNT][MOST_STEPS], peak[BP_ROLE_COUNT], value;
    bool is_cut[BP_ROLE_COUNT][MOST_STEPS];
} naive_trade;

static void naive_measure(naive_trade *t)
{
    memset(t->live, 0, sizeof t->live);
    memset(t->peak, 0, sizeof t->peak);
    for (uint32_t step = 0; step < t->steps; step++) {
        bool counted[MOST_REQUESTS] = {false};
        for (size_t i = 0; i < t->count; i++) {
            const naive_use *use = &t->uses[i];
            uint32_t slab = t->slab_of[use->request];
            if (slab == BP_ROLE_COUNT || counted[use->request] || step < use->begin || step >= use->end)
                continue;
            counted[use->request] = true;
            t->live[slab][step] += t->bytes[use->request];
        }
        for (int slab = 0; slab < BP_ROLE_COUNT; slab++)
            t->peak[slab] = t->live[slab][step] > t->peak[slab] ? t->live[slab][step] : t->peak[slab];
    }
    t->value = 0;
    for (int slab = 0; slab < BP_ROLE_COUNT; slab++)
        t->value += t->peak[slab];
}

static void naive_cut_slab(naive_trade *t, uint32_t slab, uint32_t step)
{
    t->is_cut[slab][step] = true;
    for (size_t i = 0; i < t->count; i++) {
        naive_use *use = &t->uses[i];
        if (t->slab_of[use->request] != slab)
            continue;
        if (use->begin <= step && step < use->needed_begin)
            use->begin = step + 1;
        else if (use->needed_end <= step && step < use->end)
            use->end = step;
    }
}

static void naive_cut(naive_trade *t, uint32_t step)
{
    for (uint32_t slab = 0; slab < BP_ROLE_COUNT; slab++)
        naive_cut_slab(t, slab, step);
    naive_measure(t);
}

/* Without the slab's cut in the step. */
static naive_trade naive_without(const naive_trade *t, const naive_trade *untraded, uint32_t slab, uint32_t step)
{
    naive_trade made = *t;
    memset(made.is_cut[slab], 0, sizeof made.is_cut[slab]);
    for (size_t i = 0; i < t->count; i++)
        made.uses[i] = t->slab_of[t->uses[i].request] == slab ? untraded->uses[i] : t->uses[i];
    for (uint32_t other = 0; other < t->steps; other++)
        if (other != step && t->is_cut[slab][other])
            naive_cut_slab(&made, slab, other);
    naive_measure(&made);
    return made;
}

static void naive_return(naive_trade *t, const naive_trade *untraded)
{
    static naive_trade tried;
    for (uint32_t slab = 0; slab < BP_ROLE_COUNT; slab++) {
        for (uint32_t step = 0; step < t->steps; step++) {
            if (!t->is_cut[slab][step])
                continue;
            tried = naive_without(t, untraded, slab, step);
            if (tried.peak[slab] == t->peak[slab])
                *t = tried;
        }
    }
}

static bool naive_one(naive_trade *t)
{
    static naive_trade best, tried;
    bool found = false;
    for (uint32_t step = 0; step < t->steps; step++) {
        bool peak = false;
        for (int slab = 0; slab < BP_ROLE_COUNT; slab++)
            peak |= t->peak[slab] > 0 && t->live[slab][step] == t->peak[slab];
        tried = *t;
        if (peak)
            naive_cut(&tried, step);
        if (tried.value < (found ? best.value : t->value)) {
            best = tried;
            found = true;
        }
    }
    if (found)
        *t = best;
    return found;
}

/* The stalls it takes to lower the slab's peak; 0: not to be done with as many as are left. */
static uint32_t naive_lower(naive_trade *t, int slab, uint32_t left)
{
    uint64_t peak = t->peak[slab];
    uint32_t used = 0;
    while (peak > 0 && t->peak[slab] == peak) {
        uint32_t step = 0;
        while (t->live[slab][step] != peak)
            step++;
        if (used++ == left)
            return 0;
        naive_cut(t, step);
        if (t->live[slab][step] == peak)
            return 0;
    }
    return used;
}

static uint32_t naive_all_peaks(naive_trade *t, uint32_t left)
{
    static naive_trade best, tried;
    uint32_t fewest = 0;
    for (int slab = 0; slab < BP_ROLE_COUNT; slab++) {
        tried = *t;
        uint32_t used = naive_lower(&tried, slab, left);
        if (used > 0 && (fewest == 0 || tried.value < best.value || (tried.value == best.value && used < fewest))) {
            best = tried;
            fewest = used;
        }
    }
    if (fewest > 0)
        *t = best;
    return fewest;
}

static void naive_choose(naive_trade *t)
{
    naive_measure(t);
    for (uint32_t left = t->config->stalls; left > 0;) {
        if (naive_one(t)) {
            left--;
            continue;
        }
        uint32_t used = naive_all_peaks(t, left);
        if (used == 0)
            return;
        left -= used;
    }
}

static void naive_collect_uses(const world *w, const bp_schedule *schedule, const bp_trade_config *config,
                               naive_trade *t)
{
    memset(t, 0, sizeof *t);
    t->config = config;
    t->steps = (uint32_t)schedule->step_count;
    assert_true(t->steps <= MOST_STEPS);
    for (size_t i = 0; i < schedule->span_count; i++) {
        const bp_span *span = &schedule->spans[i];
        for (uint32_t r = span->first_request; r < span->first_request + span->request_count; r++) {
            bp_request request = {.size = sizeof request};
            assert_ok(bp_buckets_request(w->buckets, r, &request));
            bool counts = config->roles == 0 || (config->roles & BP_ROLE_BIT(request.role));
            t->bytes[r] = aligned(request.bytes);
            t->slab_of[r] = !counts ? BP_ROLE_COUNT : config->joint ? 0 : request.role;
            for (uint32_t k = span->first_use; k < span->first_use + span->use_count; k++) {
                const bp_use *use = &schedule->uses[k];
                assert_true(t->count < MOST_USES);
                assert_true(use->begin <= use->needed_begin && use->needed_begin < use->needed_end &&
                            use->needed_end <= use->end);
                t->uses[t->count++] = (naive_use){r, use->begin, use->end, use->needed_begin, use->needed_end};
            }
        }
    }
}

static bp_model *model_of_random_widths(uint32_t units)
{
    bp_model *model = new_model();
    for (uint32_t u = 0; u < units; u++) {
        int32_t unit = add_numbered_unit(model, u);
        for (uint32_t buckets = 1 + random_below(2); buckets > 0; buckets--)
            add_bucket(model, unit, BP_DTYPE_FP8_E4M3, 256 * (1 + random_below(4)), 0);
    }
    uint32_t order[16], count = 0;
    for (uint32_t u = 0; u < units; u++) {
        order[count++] = u;
        if (random_below(4) == 0) /* runs again, a run or two after this one or an earlier one */
            order[count++] = random_below(u + 1);
    }
    assert_ok(bp_model_set_order(model, order, count));
    return model;
}

static bp_schedule *draw_schedule(const bp_buckets *buckets)
{
    bp_schedule_config config;
    assert_ok(bp_schedule_config_init(&config, sizeof config));
    config.prefetch = random_below(4);
    config.grad_units = 1 + random_below(3);
    config.passes = (bp_passes)random_below(3);
    config.streams = (bp_streams)random_below(2);
    config.outside = (bp_outside)random_below(2);
    config.keep_after_forward = random_below(6) == 0;
    config.combined = random_below(6) == 0;
    bp_schedule *schedule;
    assert_ok(bp_schedule_create_training(buckets, &config, &schedule));
    return schedule;
}

static uint64_t value_of(const world *w, const bp_schedule *schedule, const bp_trade_config *config)
{
    static naive_trade t;
    naive_collect_uses(w, schedule, config, &t);
    naive_measure(&t);
    return t.value;
}

static bp_request request_at(const world *w, size_t index)
{
    bp_request request = {.size = sizeof request};
    assert_ok(bp_buckets_request(w->buckets, index, &request));
    return request;
}

static uint32_t unit_of(const world *w, size_t request)
{
    bp_bucket bucket = {.size = sizeof bucket};
    assert_ok(bp_buckets_get(w->buckets, request_at(w, request).bucket, &bucket));
    return (uint32_t)bucket.unit;
}

/* What waits in the step for this request's unit in its role, or that the step waits for: whether there is such a wait. */
static bool has_wait(const world *w, const bp_schedule *traded, uint32_t step, size_t request, bool gathers)
{
    size_t found = 0;
    for (size_t i = 0; i < bp_schedule_wait_count(traded); i++) {
        bp_wait wait = {.size = sizeof wait};
        assert_ok(bp_schedule_wait(traded, i, &wait));
        uint32_t moved = gathers ? wait.waits : wait.waits_for;
        found += wait.step == step && unit_of(w, moved) == unit_of(w, request) &&
                 request_at(w, moved).role == request_at(w, request).role;
    }
    return found > 0;
}

/* Every use that was cut has its wait, and the prices are what is left without lead. */
static void check_waits(const world *w, const bp_schedule *traded, const naive_trade *before, const naive_trade *after)
{
    uint64_t exposed = 0;
    for (size_t i = 0; i < after->count; i++) {
        const naive_use *old = &before->uses[i], *use = &after->uses[i];
        uint64_t bytes = request_at(w, use->request).bytes;
        if (use->begin > old->begin) {
            assert_true(has_wait(w, traded, use->begin - 1, use->request, true));
            exposed += use->begin == use->needed_begin ? bytes : 0;
        }
        if (use->end < old->end) {
            assert_true(has_wait(w, traded, use->end, use->request, false));
            exposed += use->end == use->needed_end ? bytes : 0;
        }
    }
    for (size_t i = 0; i < bp_schedule_wait_count(traded); i++) {
        bp_wait wait = {.size = sizeof wait};
        assert_ok(bp_schedule_wait(traded, i, &wait));
        exposed -= wait.exposed_bytes;
    }
    assert_int_equal(exposed, 0);
}

static void test_greedy_rule(void **state)
{
    (void)state;
    static naive_trade t, untraded;
    size_t lowered = 0, together = 0;
    for (uint32_t round = 0; round < 3000; round++) {
        seed(round);
        world_options options = DEFAULTS;
        options.roles = PARAM | GRAD | (random_below(3) == 0 ? TRANSPOSE : 0) | (random_below(4) == 0 ? STATE : 0);
        world w = make_world(model_of_random_widths(1 + random_below(8)), options);
        bp_schedule *schedule = draw_schedule(w.buckets);
        bp_trade_config config = trade_config(random_below(7), random_below(2) ? 0 : PARAM, random_below(2));
        bp_schedule *traded = trade(w.buckets, schedule, config);
        naive_collect_uses(&w, schedule, &config, &t);
        naive_measure(&t);
        uint64_t before = t.value;
        untraded = t;
        naive_choose(&t);
        naive_return(&t, &untraded);
        assert_true(t.value <= before);
        assert_int_equal(value_of(&w, traded, &config), t.value);
        for (size_t r = 0; r < bp_buckets_request_count(w.buckets); r++) {
            size_t count;
            const bp_interval *live = bp_schedule_intervals(traded, r, &count);
            for (uint32_t step = 0; step < t.steps; step++) {
                bool is_live = false, expected = false;
                for (size_t k = 0; k < count; k++)
                    is_live |= live[k].begin <= step && step < live[k].end;
                for (size_t k = 0; k < t.count; k++)
                    expected |= t.uses[k].request == r && t.uses[k].begin <= step && step < t.uses[k].end;
                assert_int_equal(is_live, expected);
            }
        }
        check_waits(&w, traded, &untraded, &t);
        assert_int_equal(bp_schedule_wait_count(traded) > 0, t.value < before);
        lowered += t.value < before;
        together += bp_schedule_wait_count(traded) > 2;
        bp_schedule_destroy(&traded);
        bp_schedule_destroy(&schedule);
        end_world(&w);
    }
    assert_true(lowered > 500 && together > 100);
}

/* ---- by hand -------------------------------------------------------------------------------------------------------- */

static uint64_t bound_of(const world *w, const bp_schedule *schedule)
{
    bp_plan_config config = plan_config(BP_POLICY_DYNAMIC, 0, BP_FALLBACK_PERSISTENT);
    bp_plan *plan;
    assert_ok(bp_plan_create(w->buckets, schedule, &config, &plan));
    uint64_t bytes = summary_of(plan).bytes;
    bp_plan_destroy(&plan);
    return bytes;
}

static bp_wait wait_at(const bp_schedule *schedule, size_t index)
{
    bp_wait wait = {.size = sizeof wait};
    assert_ok(bp_schedule_wait(schedule, index, &wait));
    return wait;
}

/* Units of 400, 1200, 1200, 400 bytes of parameters. The pair sets the peak of a forward pass in step 1. */
static void test_one_pair(void **state)
{
    (void)state;
    bp_model *model = new_model();
    static const uint64_t numel[] = {100, 300, 300, 100};
    for (uint32_t u = 0; u < 4; u++)
        add_bucket(model, add_numbered_unit(model, u), BP_DTYPE_FP32, numel[u], 0);
    world_options options = PARAM_ONLY;
    options.eval = 1;
    world w = make_world(model, options);
    assert_int_equal(bound_of(&w, w.schedule), 2 * 1280);
    bp_schedule *traded = trade(w.buckets, w.schedule, trade_config(5, 0, 0));
    assert_int_equal(bound_of(&w, traded), 1280);
    /* then step 0 and step 2 hold a small one beside a large one, and are given up together; then no more helps */
    assert_int_equal(bp_schedule_wait_count(traded), 3);
    static const struct {
        uint32_t step, waits, waits_for;
        uint64_t exposed;
    } waits[] = {{0, 1, 0, 1200}, {1, 2, 1, 1200}, {2, 3, 2, 400}};
    for (size_t i = 0; i < 3; i++) {
        bp_wait wait = wait_at(traded, i);
        assert_int_equal(wait.step, waits[i].step);
        assert_int_equal(wait.waits, waits[i].waits);
        assert_int_equal(wait.waits_for, waits[i].waits_for);
        assert_int_equal(wait.exposed_bytes, waits[i].exposed);
    }
    bp_wait wait = {.size = sizeof wait};
    assert_fails(bp_schedule_wait(traded, 3, &wait), BP_ERR_INVALID_ARGUMENT, "wait 3 of 3");
    bp_schedule_destroy(&traded);
    traded = trade(w.buckets, w.schedule, trade_config(1, 0, 0));
    assert_int_equal(bound_of(&w, traded), 1280 + 512);
    assert_int_equal(bp_schedule_wait_count(traded), 1);
    assert_int_equal(wait_at(traded, 0).step, 1);
    bp_schedule_destroy(&traded);
    end_world(&w);
}

/* The step of the largest unit: one gather has nothing left to run under, the larger one behind it has. */
static void test_each_wait(void **state)
{
    (void)state;
    bp_model *model = new_model();
    static const uint64_t numel[] = {100, 100, 1000, 100, 700, 100};
    for (uint32_t u = 0; u < 6; u++)
        add_bucket(model, add_numbered_unit(model, u), BP_DTYPE_FP32, numel[u], 0);
    world_options options = PARAM_ONLY;
    options.eval = 1;
    options.prefetch = 2;
    world w = make_world(model, options);
    bp_schedule *traded = trade(w.buckets, w.schedule, trade_config(1, 0, 0));
    assert_int_equal(bp_schedule_wait_count(traded), 2);
    for (uint32_t i = 0; i < 2; i++) {
        bp_wait wait = wait_at(traded, i);
        assert_int_equal(wait.step, 2);
        assert_int_equal(wait.waits, 3 + i);
        assert_int_equal(wait.waits_for, 2);
        assert_int_equal(wait.exposed_bytes, i == 0 ? 400 : 0);
    }
    bp_schedule_destroy(&traded);
    end_world(&w);
}

/* Units of 1, 8, 1, 1: two stalls lower what the gradients take, and no gather waits. */
static void test_no_cuts_in_vain(void **state)
{
    (void)state;
    bp_model *model = new_model();
    static const uint64_t numel[] = {256, 2048, 256, 256};
    for (uint32_t u = 0; u < 4; u++)
        add_bucket(model, add_numbered_unit(model, u), BP_DTYPE_FP32, numel[u], 0);
    world_options options = PARAM_ONLY;
    options.roles = PARAM | GRAD;
    options.grad_units = 2;
    world w = make_world(model, options);
    bp_schedule *traded = trade(w.buckets, w.schedule, trade_config(2, 0, 0));
    assert_int_equal(bound_of(&w, w.schedule) - bound_of(&w, traded), 1024);
    assert_int_equal(bp_schedule_wait_count(traded), 2);
    for (uint32_t i = 0; i < 2; i++) {
        bp_wait wait = wait_at(traded, i);
        assert_int_equal(request_at(&w, wait.waits).role, BP_ROLE_GRAD);
        assert_int_equal(request_at(&w, wait.waits_for).role, BP_ROLE_GRAD);
    }
    bp_schedule_destroy(&traded);
    end_world(&w);
}

/* Training has the pair twice, forward and backward: one stall alone lowers nothing. */
static void test_peaks_together(void **state)
{
    (void)state;
    world w = world_of_kinds("xzzx");
    uint64_t before = bound_of(&w, w.schedule);
    bp_schedule *traded = trade(w.buckets, w.schedule, trade_config(1, 0, 0));
    assert_int_equal(bound_of(&w, traded), before);
    assert_int_equal(bp_schedule_wait_count(traded), 0);
    bp_schedule_destroy(&traded);
    traded = trade(w.buckets, w.schedule, trade_config(2, 0, 0));
    assert_true(bound_of(&w, traded) < before);
    assert_int_equal(bp_schedule_wait_count(traded), 2);
    assert_int_equal(wait_at(traded, 0).step, 1);
    assert_int_equal(wait_at(traded, 1).step, 5);
    bp_schedule_destroy(&traded);
    end_world(&w);
}

/* Gradients: the step waits for the reduction of the unit before. With two units of drain the second step waits for nothing new. */
static void test_reductions(void **state)
{
    (void)state;
    bp_model *model = new_model();
    for (uint32_t u = 0; u < 3; u++)
        add_bucket(model, add_numbered_unit(model, u), BP_DTYPE_FP32, u == 2 ? 300 : 100, 0);
    world_options options = {.roles = GRAD, .prefetch = 1, .grad_units = 3};
    world w = make_world(model, options);
    assert_int_equal(bound_of(&w, w.schedule), 1280 + 512 + 512);
    bp_schedule *traded = trade(w.buckets, w.schedule, trade_config(1, 0, 0));
    assert_int_equal(bound_of(&w, traded), 1280 + 512);
    /* both reductions end before the last step; that of unit 1 has then nothing left to run under */
    assert_int_equal(bp_schedule_wait_count(traded), 2);
    for (uint32_t i = 0; i < 2; i++) {
        bp_wait wait = wait_at(traded, i);
        assert_int_equal(wait.step, 5);
        assert_int_equal(wait.waits, 0);
        assert_int_equal(wait.waits_for, 1 + i);
        assert_int_equal(wait.exposed_bytes, i == 0 ? 400 : 0);
    }
    bp_schedule_destroy(&traded);
    end_world(&w);
}

static void test_no_stalls(void **state)
{
    (void)state;
    world w = make_world(make_mixed(), DEFAULTS);
    bp_schedule *traded = trade(w.buckets, w.schedule, trade_config(0, 0, 1));
    assert_int_equal(bp_schedule_step_count(traded), bp_schedule_step_count(w.schedule));
    assert_int_equal(bp_schedule_wait_count(traded), 0);
    assert_int_equal(bp_schedule_wait_count(w.schedule), 0);
    for (size_t r = 0; r < bp_buckets_request_count(w.buckets); r++) {
        size_t count, expected_count;
        const bp_interval *intervals = bp_schedule_intervals(traded, r, &count);
        const bp_interval *expected = bp_schedule_intervals(w.schedule, r, &expected_count);
        assert_int_equal(count, expected_count);
        assert_memory_equal(intervals, expected, count * sizeof *intervals);
    }
    bp_schedule_destroy(&traded);
    end_world(&w);
}

/* What was given up before stays given up, and is listed before or after what comes to it. */
static void test_trading_again(void **state)
{
    (void)state;
    world w = world_of_kinds("xzzxyyx");
    bp_schedule *once = trade(w.buckets, w.schedule, trade_config(2, 0, 0));
    bp_schedule *again = trade(w.buckets, once, trade_config(8, 0, 0));
    assert_true(bound_of(&w, again) < bound_of(&w, once));
    size_t count = bp_schedule_wait_count(again);
    assert_true(count > bp_schedule_wait_count(once));
    for (size_t i = 1; i < count; i++)
        assert_true(wait_at(again, i - 1).step <= wait_at(again, i).step);
    bp_schedule_destroy(&again);
    bp_schedule_destroy(&once);
    end_world(&w);
}

static void test_errors(void **state)
{
    (void)state;
    world w = world_of_kinds("xyz"), other = world_of_kinds("xy");
    bp_schedule *traded = NULL;
    bp_trade_config config = trade_config(1, 0, 0);
    assert_fails(bp_trade_config_init(NULL, sizeof config), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_trade_config_init(&config, 3), BP_ERR_INVALID_ARGUMENT, "size 3");
    assert_fails(bp_schedule_create_traded(NULL, w.schedule, &config, &traded), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_schedule_create_traded(w.buckets, NULL, &config, &traded), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_schedule_create_traded(w.buckets, w.schedule, NULL, &traded), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_schedule_create_traded(w.buckets, w.schedule, &config, NULL), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_schedule_create_traded(w.buckets, other.schedule, &config, &traded), BP_ERR_INVALID_ARGUMENT,
                 "2 requests", "have 3");
    config.alignment = 96;
    assert_fails(bp_schedule_create_traded(w.buckets, w.schedule, &config, &traded), BP_ERR_INVALID_ARGUMENT, "96");
    config = trade_config(1, 1u << BP_ROLE_COUNT, 0);
    assert_fails(bp_schedule_create_traded(w.buckets, w.schedule, &config, &traded), BP_ERR_INVALID_ARGUMENT, "0x80");
    config = trade_config(1, 0, 0);
    config.alignment = UINT64_C(1) << 63;
    assert_fails(bp_schedule_create_traded(w.buckets, w.schedule, &config, &traded), BP_ERR_OVERFLOW, "64 bits");
    assert_null(traded);
    end_world(&w);
    end_world(&other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy_rule),    cmocka_unit_test(test_one_pair),
        cmocka_unit_test(test_each_wait),      cmocka_unit_test(test_no_cuts_in_vain),
        cmocka_unit_test(test_peaks_together), cmocka_unit_test(test_reductions),
        cmocka_unit_test(test_no_stalls),      cmocka_unit_test(test_trading_again),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

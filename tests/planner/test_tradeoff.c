/* The curve of bytes over stalls: by hand, against every choice of steps, and against one trade for each number. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <bucketpool/whatif.h>

#include <stdbool.h>

#include "planner/schedule.h"
#include "worlds.h"

#define BLOCK ALIGNMENT /* bytes that the units here are made of */
#define WORK (1u << 16) /* of a search: enough for all but some recordings */

static bp_tradeoff_config curve_config(void)
{
    bp_tradeoff_config config;
    assert_ok(bp_tradeoff_config_init(&config, sizeof config));
    assert_int_equal(config.most_stalls, 0);
    config.work = WORK;
    return config;
}

static bp_tradeoff *draw_curve(const bp_buckets *buckets, const bp_schedule *schedule, uint32_t joint,
                               bp_tradeoff_config config)
{
    bp_plan_config plan = plan_config(BP_POLICY_MAX, 0, BP_FALLBACK_PERSISTENT); /* the policy does not count */
    plan.joint = joint;
    plan.work = WORK;
    bp_tradeoff *tradeoff = NULL;
    assert_ok(bp_tradeoff_create(buckets, schedule, &plan, &config, &tradeoff));
    return tradeoff;
}

static bp_tradeoff_point point_at(const bp_tradeoff *tradeoff, size_t index)
{
    bp_tradeoff_point point = {.size = sizeof point};
    assert_ok(bp_tradeoff_get(tradeoff, index, &point));
    return point;
}

static bp_wait wait_at(const bp_tradeoff *tradeoff, size_t point, size_t index)
{
    bp_wait wait = {.size = sizeof wait};
    assert_ok(bp_tradeoff_wait(tradeoff, point, index, &wait));
    return wait;
}

/* What the curve says for so many stalls. */
static bp_tradeoff_point best_at(const bp_tradeoff *tradeoff, uint32_t stalls)
{
    bp_tradeoff_point best = point_at(tradeoff, 0);
    for (size_t i = 1; i < bp_tradeoff_count(tradeoff); i++) {
        if (point_at(tradeoff, i).stalls <= stalls)
            best = point_at(tradeoff, i);
    }
    return best;
}

/* Units of so many blocks each. */
static world world_of_blocks(const uint32_t *blocks, uint32_t units, world_options options)
{
    bp_model *model = new_model();
    for (uint32_t u = 0; u < units; u++)
        add_bucket(model, add_numbered_unit(model, u), BP_DTYPE_FP32, (uint64_t)blocks[u] * BLOCK / 4, 0);
    return make_world(model, options);
}

/* ---- by hand -------------------------------------------------------------------------------------------------------- */

/* 4, 10, 8 and 1 blocks, a prefetch of 1: forward holds 14, 18, 9, 1, backward 9, 18, 14, 4. The pair of 18 is given up in steps 1
 * and 5; then 14 are left, which go with steps 0 and 6; 10 is one unit alone. */
static void test_pairs_by_hand(void **state)
{
    (void)state;
    const uint32_t blocks[] = {4, 10, 8, 1};
    world w = world_of_blocks(blocks, 4, PARAM_ONLY);
    bp_tradeoff *curve = draw_curve(w.buckets, w.schedule, 0, curve_config());
    static const struct {
        uint32_t stalls, blocks, exposed;
    } expected[] = {{0, 18, 0}, {2, 14, 8 + 10}, {4, 10, 8 + 10 + 10 + 4}};
    assert_int_equal(bp_tradeoff_count(curve), 3);
    for (size_t i = 0; i < 3; i++) {
        bp_tradeoff_point point = point_at(curve, i);
        assert_int_equal(point.stalls, expected[i].stalls);
        assert_int_equal(point.bytes, expected[i].blocks * BLOCK);
        assert_int_equal(point.lower_bound_bytes, point.bytes);
        assert_int_equal(point.optimal, 1);
        assert_int_equal(point.exposed_bytes, expected[i].exposed * BLOCK);
        assert_int_equal(point.waits, expected[i].stalls);
    }
    const bp_wait first = wait_at(curve, 1, 0), second = wait_at(curve, 1, 1);
    assert_int_equal(first.step, 1);
    assert_int_equal(first.waits, 2); /* requests are in the order of the units */
    assert_int_equal(first.waits_for, 1);
    assert_int_equal(first.exposed_bytes, 8 * BLOCK);
    assert_int_equal(second.step, 5);
    assert_int_equal(second.waits, 1);
    assert_int_equal(second.waits_for, 2);
    bp_tradeoff_destroy(&curve);
    assert_null(curve);
    end_world(&w);
}

/* One stall is worth something where the pair comes once: in an evaluation. */
static void test_single_stall(void **state)
{
    (void)state;
    const uint32_t blocks[] = {1, 7, 7, 2};
    world_options options = PARAM_ONLY;
    options.eval = 1;
    world w = world_of_blocks(blocks, 4, options);
    bp_tradeoff *curve = draw_curve(w.buckets, w.schedule, 0, curve_config());
    assert_int_equal(bp_tradeoff_count(curve), 4);
    static const uint32_t takes[] = {14, 9, 8, 7};
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(point_at(curve, i).stalls, i);
        assert_int_equal(point_at(curve, i).bytes, takes[i] * BLOCK);
    }
    bp_tradeoff_destroy(&curve);
    bp_tradeoff_config config = curve_config();
    config.most_stalls = 2;
    curve = draw_curve(w.buckets, w.schedule, 0, config);
    assert_int_equal(bp_tradeoff_count(curve), 3);
    bp_tradeoff_destroy(&curve);
    end_world(&w);
}

static void test_nothing_to_give_up(void **state)
{
    (void)state;
    const uint32_t blocks[] = {3, 5};
    const world_options options = {.roles = PARAM | GRAD, .prefetch = 0, .grad_units = 1};
    world w = world_of_blocks(blocks, 2, options);
    bp_tradeoff *curve = draw_curve(w.buckets, w.schedule, 0, curve_config());
    assert_int_equal(bp_tradeoff_count(curve), 1);
    assert_int_equal(point_at(curve, 0).bytes, 10 * BLOCK);
    assert_int_equal(point_at(curve, 0).waits, 0);
    bp_tradeoff_destroy(&curve);
    end_world(&w);
}

/* ---- against every choice of steps ----------------------------------------------------------------------------------- */

#define MOST_STEPS 12

/* The sum of the slabs' peaks where the steps of the mask are given up. */
static uint64_t value_without(const world *w, uint32_t mask, bool joint)
{
    const bp_schedule *s = w->schedule;
    uint64_t live[BP_ROLE_COUNT][MOST_STEPS] = {{0}}, value = 0;
    for (size_t i = 0; i < s->use_count; i++) { /* a request has a span of its own here, and uses that never touch */
        bp_use use = s->uses[i];
        size_t span = 0;
        while (i >= s->spans[span].first_use + s->spans[span].use_count)
            span++;
        bp_request request = {.size = sizeof request};
        assert_int_equal(s->spans[span].request_count, 1);
        assert_ok(bp_buckets_request(w->buckets, s->spans[span].first_request, &request));
        for (uint32_t step = 0; step < s->step_count; step++) {
            bool given_up = (mask >> step & 1) != 0;
            if (given_up && use.begin <= step && step < use.needed_begin)
                use.begin = step + 1;
            else if (given_up && use.needed_end <= step && step < use.end)
                use.end = step;
        }
        for (uint32_t step = use.begin; step < use.end; step++)
            live[joint ? 0 : request.role][step] += aligned(request.bytes);
    }
    for (int slab = 0; slab < BP_ROLE_COUNT; slab++) {
        uint64_t peak = 0;
        for (size_t step = 0; step < s->step_count; step++)
            peak = live[slab][step] > peak ? live[slab][step] : peak;
        value += peak;
    }
    return value;
}

/* The least value for each number of stalls. */
static void try_everything(const world *w, bool joint, uint64_t best[MOST_STEPS + 1])
{
    size_t steps = w->schedule->step_count;
    assert_true(steps <= MOST_STEPS);
    for (size_t k = 0; k <= steps; k++)
        best[k] = UINT64_MAX;
    for (uint32_t mask = 0; mask < 1u << steps; mask++) {
        uint64_t value = value_without(w, mask, joint);
        for (size_t k = (size_t)__builtin_popcount(mask); k <= steps; k++)
            best[k] = value < best[k] ? value : best[k];
    }
}

static world random_world(world_options options, uint32_t most_units)
{
    uint32_t blocks[MOST_STEPS], units = 1 + random_below(most_units);
    for (uint32_t u = 0; u < units; u++)
        blocks[u] = 1 + random_below(6);
    return world_of_blocks(blocks, units, options);
}

/* One slab, a prefetch of 1 or two units of gradients: the greedy choice has the least bound there is, and plans reach it. */
static void test_greedy_is_best(void **state)
{
    (void)state;
    size_t points = 0;
    for (uint32_t round = 0; round < 400; round++) {
        seed(round);
        world_options options = {.roles = round % 2 ? GRAD : PARAM, .prefetch = 1, .grad_units = 2};
        options.eval = round % 8 == 2;
        world w = random_world(options, 6);
        uint64_t best[MOST_STEPS + 1];
        try_everything(&w, false, best);
        bp_tradeoff *curve = draw_curve(w.buckets, w.schedule, 0, curve_config());
        for (uint32_t k = 0; k <= w.schedule->step_count; k++)
            assert_int_equal(best_at(curve, k).bytes, best[k]);
        points += bp_tradeoff_count(curve);
        bp_tradeoff_destroy(&curve);
        end_world(&w);
    }
    assert_true(points > 1000);
}

/* Several slabs, or deeper prefetch: never better than the best choice, and not always as good. */
static void test_greedy_is_not_always_best(void **state)
{
    (void)state;
    size_t worse[3] = {0}, same[3] = {0};
    for (uint32_t round = 0; round < 600; round++) {
        seed(round);
        uint32_t kind = round % 3; /* two slabs, one slab of both roles, deeper prefetch */
        world_options options = {.roles = kind == 2 ? PARAM : PARAM | GRAD, .prefetch = kind == 2 ? 2 : 1};
        options.grad_units = 2;
        world w = random_world(options, 5);
        uint64_t best[MOST_STEPS + 1];
        try_everything(&w, kind == 1, best);
        bp_tradeoff *curve = draw_curve(w.buckets, w.schedule, kind == 1, curve_config());
        for (uint32_t k = 0; k <= w.schedule->step_count; k++) {
            assert_true(best_at(curve, k).lower_bound_bytes >= best[k]);
            worse[kind] += best_at(curve, k).lower_bound_bytes > best[k];
            same[kind] += best_at(curve, k).lower_bound_bytes == best[k];
        }
        bp_tradeoff_destroy(&curve);
        end_world(&w);
    }
    for (int kind = 0; kind < 3; kind++)
        assert_true(worse[kind] > 0 && same[kind] > worse[kind]);
}

/* ---- against a trade for each number --------------------------------------------------------------------------------- */

static bp_schedule *trade(const world *w, uint32_t stalls, uint32_t joint)
{
    bp_trade_config config;
    assert_ok(bp_trade_config_init(&config, sizeof config));
    config.stalls = stalls;
    config.joint = joint;
    config.roles = joint ? PARAM | GRAD : 0;
    bp_schedule *traded = NULL;
    assert_ok(bp_schedule_create_traded(w->buckets, w->schedule, &config, &traded));
    return traded;
}

static uint64_t planned_bytes(const world *w, const bp_schedule *schedule, uint32_t joint)
{
    bp_plan_config config = plan_config(BP_POLICY_SCHEDULED, 0, BP_FALLBACK_PERSISTENT);
    config.joint = joint;
    config.work = WORK;
    bp_plan *plan = NULL;
    assert_ok(bp_plan_create(w->buckets, schedule, &config, &plan));
    uint64_t bytes = summary_of(plan).bytes;
    bp_plan_destroy(&plan);
    return bytes;
}

/* What each number of stalls gives when it is traded alone, the best of it and of all before; every point with its price. */
static void check_curve(const world *w, const bp_tradeoff *curve, uint32_t joint)
{
    uint64_t best = UINT64_MAX;
    for (uint32_t k = 0; k <= w->schedule->step_count + 1; k++) {
        bp_schedule *traded = trade(w, k, joint);
        uint64_t bytes = planned_bytes(w, traded, joint), exposed = 0;
        best = bytes < best ? bytes : best;
        assert_int_equal(best_at(curve, k).bytes, best);
        for (size_t i = 0; i < bp_tradeoff_count(curve); i++) {
            bp_tradeoff_point point = point_at(curve, i);
            if (point.stalls != k)
                continue;
            assert_int_equal(point.bytes, bytes);
            assert_int_equal(point.waits, bp_schedule_wait_count(traded));
            for (size_t n = 0; n < point.waits; n++) {
                bp_wait wait = {.size = sizeof wait}, noted = wait_at(curve, i, n);
                assert_ok(bp_schedule_wait(traded, n, &wait));
                assert_int_equal(noted.step, wait.step);
                assert_int_equal(noted.waits, wait.waits);
                assert_int_equal(noted.waits_for, wait.waits_for);
                exposed += wait.exposed_bytes;
            }
            assert_int_equal(point.exposed_bytes, exposed);
        }
        bp_schedule_destroy(&traded);
    }
    for (size_t i = 1; i < bp_tradeoff_count(curve); i++) {
        assert_true(point_at(curve, i).stalls > point_at(curve, i - 1).stalls);
        assert_true(point_at(curve, i).bytes < point_at(curve, i - 1).bytes);
    }
}

static void test_every_number(void **state)
{
    (void)state;
    size_t points = 0;
    for (uint32_t round = 0; round < 150; round++) {
        seed(round);
        world_options options = {.roles = PARAM | GRAD, .prefetch = random_below(4), .grad_units = 1 + random_below(3)};
        uint32_t joint = random_below(2);
        world w = random_world(options, 6);
        bp_tradeoff *curve = draw_curve(w.buckets, w.schedule, joint, curve_config());
        check_curve(&w, curve, joint);
        points += bp_tradeoff_count(curve);
        bp_tradeoff_destroy(&curve);
        end_world(&w);
    }
    assert_true(points > 300);
}

/* A recording gives up windows between pairs of units. */
static void test_recorded(void **state)
{
    (void)state;
    for (uint32_t round = 0; round < 40; round++) {
        seed(round);
        bp_model *model = random_model(4);
        record_randomly(model, false);
        world_options options = PARAM_ONLY;
        options.recorded = 1;
        world w = make_world(model, options);
        bp_recorded_config config = {.size = sizeof config, .overlap_window = 2};
        bp_schedule_destroy(&w.schedule);
        assert_ok(bp_schedule_create_recorded(model, w.buckets, &config, &w.schedule));
        bp_tradeoff *curve = draw_curve(w.buckets, w.schedule, 0, curve_config());
        check_curve(&w, curve, 0);
        bp_tradeoff_destroy(&curve);
        end_world(&w);
    }
}

/* Where there is too little work for all of it, the curve has fewer points, each of them right. */
static void test_thinned(void **state)
{
    (void)state;
    const uint32_t blocks[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    world_options options = PARAM_ONLY;
    options.eval = 1;
    world w = world_of_blocks(blocks, 12, options);
    bp_tradeoff *all = draw_curve(w.buckets, w.schedule, 0, curve_config());
    assert_int_equal(bp_tradeoff_count(all), 7); /* pairs of 23, 21, .. 13 blocks, then one unit of 12 */
    assert_int_equal(bp_tradeoff_is_complete(all), 1);
    size_t counts[8] = {0}, before = 1;
    for (uint64_t work = 0; work < 1000000; work += 5000) {
        bp_tradeoff_config config = curve_config();
        config.total_work = work;
        bp_tradeoff *curve = draw_curve(w.buckets, w.schedule, 0, config);
        size_t count = bp_tradeoff_count(curve);
        assert_true(before <= count && count <= 7);
        assert_true(count == 7 || !bp_tradeoff_is_complete(curve));
        for (size_t i = 0; i < count; i++)
            assert_int_equal(point_at(curve, i).bytes, best_at(all, point_at(curve, i).stalls).bytes);
        counts[before = count]++;
        bp_tradeoff_destroy(&curve);
    }
    for (size_t count = 1; count <= 7; count++)
        assert_true(counts[count] > 0);
    bp_tradeoff_destroy(&all);
    end_world(&w);
}

/* ---- what is refused ------------------------------------------------------------------------------------------------- */

static void test_errors(void **state)
{
    (void)state;
    world w = world_of_kinds("xzzx"), other = world_of_kinds("xy");
    bp_plan_config plan = plan_config(BP_POLICY_SCHEDULED, 0, BP_FALLBACK_PERSISTENT);
    bp_tradeoff_config config = curve_config();
    bp_tradeoff *curve = NULL;
    assert_fails(bp_tradeoff_config_init(NULL, sizeof config), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_tradeoff_config_init(&config, 3), BP_ERR_INVALID_ARGUMENT, "size 3");
    assert_fails(bp_tradeoff_create(NULL, w.schedule, &plan, &config, &curve), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_tradeoff_create(w.buckets, NULL, &plan, &config, &curve), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_tradeoff_create(w.buckets, w.schedule, NULL, &config, &curve), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_tradeoff_create(w.buckets, w.schedule, &plan, NULL, &curve), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_tradeoff_create(w.buckets, w.schedule, &plan, &config, NULL), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_tradeoff_create(w.buckets, other.schedule, &plan, &config, &curve), BP_ERR_INVALID_ARGUMENT,
                 "2 requests");
    bp_schedule *traded = trade(&w, 2, 0);
    assert_fails(bp_tradeoff_create(w.buckets, traded, &plan, &config, &curve), BP_ERR_INVALID_ARGUMENT, "2 waits");
    bp_schedule_destroy(&traded);
    assert_null(curve);
    curve = draw_curve(w.buckets, w.schedule, 0, config);
    bp_tradeoff_point point = {.size = sizeof point};
    bp_wait wait = {.size = sizeof wait};
    assert_fails(bp_tradeoff_get(curve, 99, &point), BP_ERR_INVALID_ARGUMENT, "point 99");
    assert_fails(bp_tradeoff_wait(curve, 99, 0, &wait), BP_ERR_INVALID_ARGUMENT, "point 99");
    assert_fails(bp_tradeoff_wait(curve, 0, 0, &wait), BP_ERR_INVALID_ARGUMENT, "wait 0 of 0");
    point.size = 1;
    assert_fails(bp_tradeoff_get(curve, 0, &point), BP_ERR_INVALID_ARGUMENT, "size 1");
    bp_tradeoff_destroy(&curve);
    bp_tradeoff_destroy(&curve);
    bp_tradeoff_destroy(NULL);
    end_world(&w);
    end_world(&other);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pairs_by_hand),
        cmocka_unit_test(test_single_stall),
        cmocka_unit_test(test_nothing_to_give_up),
        cmocka_unit_test(test_greedy_is_best),
        cmocka_unit_test(test_greedy_is_not_always_best),
        cmocka_unit_test(test_every_number),
        cmocka_unit_test(test_recorded),
        cmocka_unit_test(test_thinned),
        cmocka_unit_test(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

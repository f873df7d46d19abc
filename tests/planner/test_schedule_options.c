/* SPDX-License-Identifier: Apache-2.0 */
/* Generated schedules under every option, against a simulated runtime, and by hand. */
#include "support/harness.h"

#include <bucketpool/plan.h>

#include <stdbool.h>
#include <string.h>

#include "planner/schedule/schedule.h"
#include "support/scenarios.h"

#define MAX_PLAYED_UNITS 6
#define MAX_PLAYED_STEPS 256

static bp_schedule_config default_config(void)
{
    bp_schedule_config config;
    assert_ok(bp_schedule_config_init(&config, sizeof config));
    return config;
}

/* ---- simulated runtime ---------------------------------------------------------------------------------------------- */

enum { ROW_WISE, COLUMN_WISE, GRADIENT, SHARD, MAIN_GRADIENT, OPTIMIZER, KINDS };

typedef struct player {
    const bp_schedule_config *config;
    bool transposes;
    int n, g;
    int forward_depth[MAX_PLAYED_UNITS], backward_depth[MAX_PLAYED_UNITS];
    bool for_forward[MAX_PLAYED_UNITS], for_backward[MAX_PLAYED_UNITS], kept[MAX_PLAYED_UNITS];
    bool for_recompute[MAX_PLAYED_UNITS], transposed[MAX_PLAYED_UNITS], gradient[MAX_PLAYED_UNITS];
    bool live[MAX_PLAYED_STEPS][MAX_PLAYED_UNITS][KINDS];
    bp_step steps[MAX_PLAYED_STEPS];
    int step_count;
} player;

static void note_step(player *p, bp_phase phase, int unit, int forward_unit)
{
    assert_true(p->step_count < MAX_PLAYED_STEPS);
    for (int u = 0; u < p->n; u++) {
        bool *live = p->live[p->step_count][u];
        live[ROW_WISE] = p->for_forward[u] || p->for_backward[u] || p->for_recompute[u] || p->kept[u];
        live[COLUMN_WISE] = p->transposed[u];
        live[GRADIENT] = p->gradient[u];
        live[SHARD] = live[MAIN_GRADIENT] = live[OPTIMIZER] = true;
    }
    p->steps[p->step_count++] = (bp_step){phase, unit, forward_unit};
}

static void gather(player *p, int unit, bool backward)
{
    if (!backward) {
        p->for_forward[unit] = true;
        p->kept[unit] |= p->config->keep_after_forward != 0;
    } else if (p->transposes) {
        p->transposed[unit] = true;
    } else {
        p->for_backward[unit] = true;
    }
}

/* Gathers the units up to the prefetch depth after `turn`; -1: the outside step before the first unit. */
static void gather_ahead(player *p, int turn, bool forward, bool backward)
{
    for (int later = turn + 1; later < p->n; later++) {
        int last = p->n - 1 - later;
        if (forward && later - p->forward_depth[later] <= turn)
            gather(p, later, false);
        if (backward && later - p->backward_depth[last] <= turn)
            gather(p, last, true);
    }
}

static void play_turn(player *p, int turn, bool forward, bool backward, bool is_last_backward)
{
    int there = turn, back = p->n - 1 - turn, forward_unit = forward && backward ? there : BP_OUTSIDE;
    bool halves = backward && p->config->streams == BP_STREAMS_UNIFIED;
    if (forward)
        gather(p, there, false);
    if (backward) {
        gather(p, back, true);
        p->gradient[back] = true;
        p->for_recompute[back] = p->transposes && p->config->recompute;
    }
    if (!halves)
        gather_ahead(p, turn, forward, backward);
    note_step(p,
              forward && backward ? BP_PHASE_COMBINED
              : backward          ? BP_PHASE_BACKWARD
                                  : BP_PHASE_FORWARD,
              backward ? back : there, forward_unit);
    int drained = back + p->g - 1;
    if (backward && p->g > 1 && drained < p->n)
        p->gradient[drained] = false;
    if (halves) {
        gather_ahead(p, turn, forward, backward);
        note_step(p, BP_PHASE_BACKWARD_GATHER, back, forward_unit);
    }
    if (forward)
        p->for_forward[there] = false;
    if (backward) {
        p->for_backward[back] = p->transposed[back] = p->for_recompute[back] = false;
        p->gradient[back] &= p->g > 1;
        p->kept[back] &= !is_last_backward;
    }
}

static void play_pass(player *p, bool forward, bool backward, bool is_last)
{
    if (p->config->outside == BP_OUTSIDE_PREFETCHES_SUCCESSOR) {
        gather_ahead(p, -1, forward, backward);
        note_step(p, BP_PHASE_OUTSIDE, BP_OUTSIDE, BP_OUTSIDE);
    }
    for (int turn = 0; turn < p->n; turn++)
        play_turn(p, turn, forward, backward, is_last);
    memset(p->gradient, 0, sizeof p->gradient);
}

static void play(player *p)
{
    const bp_schedule_config *c = p->config;
    int m = c->microbatches > 0 ? (int)c->microbatches : 1;
    bool pipeline = m > 1 || c->combined;
    if (c->passes != BP_PASSES_EVAL) {
        for (int i = 0; pipeline && i < m; i++)
            play_pass(p, true, false, false);
        for (int i = 0; i < m; i++) {
            play_pass(p, true, c->combined, false);
            if (!c->combined)
                play_pass(p, false, true, !pipeline);
        }
        for (int i = 0; pipeline && i < m; i++)
            play_pass(p, false, true, i == m - 1);
    }
    if (c->passes != BP_PASSES_TRAIN) {
        play_pass(p, true, false, false);
        memset(p->kept, 0, sizeof p->kept);
    }
}

static bp_model *model_of_units(int n)
{
    bp_model *model = new_model();
    for (int u = 0; u < n; u++)
        add_bucket(model, add_numbered_unit(model, (uint32_t)u), BP_DTYPE_FP8_E4M3, 10, 0);
    return model;
}

static bool is_live(const bp_schedule *schedule, size_t request, uint32_t step)
{
    size_t count;
    const bp_interval *intervals = intervals_of(schedule, request, &count);
    for (size_t i = 0; i < count; i++)
        if (intervals[i].begin <= step && step < intervals[i].end)
            return true;
    return false;
}

/* Lists the player's requests in the library's order. */
static size_t list_requests(const player *p, int *unit_of, int *kind_of)
{
    size_t count = 0;
    for (int u = 0; u < p->n; u++) {
        for (int kind = 0; kind < KINDS; kind++) {
            if (kind == COLUMN_WISE && !p->transposes)
                continue;
            unit_of[count] = u;
            kind_of[count++] = kind;
        }
    }
    return count;
}

static void assert_same_steps(const player *p, const bp_schedule *schedule)
{
    int unit_of[MAX_PLAYED_UNITS * KINDS], kind_of[MAX_PLAYED_UNITS * KINDS];
    size_t requests = list_requests(p, unit_of, kind_of);
    assert_int_equal(bp_schedule_get_info(schedule)->step_count, p->step_count);
    for (uint32_t t = 0; t < (uint32_t)p->step_count; t++) {
        bp_step step = bp_schedule_get_info(schedule)->steps[t];
        assert_int_equal(step.phase, p->steps[t].phase);
        assert_int_equal(step.unit, p->steps[t].unit);
        assert_int_equal(step.forward_unit, p->steps[t].forward_unit);
        for (size_t r = 0; r < requests; r++)
            assert_int_equal(is_live(schedule, r, t), p->live[t][unit_of[r]][kind_of[r]]);
    }
}

/* The library shortens pipelines, so only their conflicts are compared. */
static void assert_same_conflicts(const player *p, const bp_schedule *schedule)
{
    int unit_of[MAX_PLAYED_UNITS * KINDS], kind_of[MAX_PLAYED_UNITS * KINDS];
    size_t requests = list_requests(p, unit_of, kind_of);
    for (size_t a = 0; a < requests; a++) {
        for (size_t b = 0; b < a; b++) {
            bool played = false, planned = false;
            for (int t = 0; t < p->step_count; t++)
                played |= p->live[t][unit_of[a]][kind_of[a]] && p->live[t][unit_of[b]][kind_of[b]];
            for (uint32_t t = 0; t < bp_schedule_get_info(schedule)->step_count; t++)
                planned |= is_live(schedule, a, t) && is_live(schedule, b, t);
            assert_int_equal(played, planned);
        }
    }
}

static void draw_config(bp_schedule_config *config, bp_unit_prefetch *overrides, uint32_t n)
{
    *config = default_config();
    config->prefetch = random_below(4);
    config->prefetch_backward = random_below(2) ? BP_PREFETCH_SAME : random_below(4);
    config->grad_units = 1 + random_below(4);
    config->passes = (bp_passes)random_below(3);
    config->keep_after_forward = random_below(3) == 0;
    config->recompute = random_below(2);
    config->streams = (bp_streams)random_below(2);
    config->outside = (bp_outside)random_below(2);
    config->microbatches = random_below(2) ? 0 : random_below(5);
    config->combined = random_below(3) == 0;
    config->overrides = overrides;
    for (uint32_t u = 0; u < n; u++) {
        if (random_below(3) == 0)
            overrides[config->override_count++] =
                (bp_unit_prefetch){u, random_below(5), random_below(3) ? random_below(5) : BP_PREFETCH_SAME};
    }
}

TEST(test_options_against_simulated_runtime)
{
    for (uint32_t round = 0; round < 4000; round++) {
        seed(round);
        uint32_t n = 1 + random_below(MAX_PLAYED_UNITS);
        bp_unit_prefetch overrides[MAX_PLAYED_UNITS];
        bp_schedule_config config;
        draw_config(&config, overrides, n);
        static player p;
        memset(&p, 0, sizeof p);
        p.config = &config;
        p.n = (int)n;
        p.g = (int)config.grad_units;
        p.transposes = random_below(2);
        for (uint32_t u = 0; u < n; u++) {
            p.forward_depth[u] = (int)config.prefetch;
            p.backward_depth[u] =
                (int)(config.prefetch_backward == BP_PREFETCH_SAME ? config.prefetch : config.prefetch_backward);
        }
        for (uint32_t i = 0; i < config.override_count; i++) {
            const bp_unit_prefetch *o = &overrides[i];
            p.forward_depth[o->unit] = (int)o->forward;
            p.backward_depth[o->unit] = (int)(o->backward == BP_PREFETCH_SAME ? o->forward : o->backward);
        }
        play(&p);
        scenario_options options = DEFAULTS;
        options.roles = PARAM | GRAD | STATE | (p.transposes ? TRANSPOSE : 0);
        SCOPED(free_scenario) scenario s = make_scenario(model_of_units((int)n), options);
        SCOPED(bp_schedule_destroy) bp_schedule *schedule = NULL;
        assert_ok(bp_schedule_create_training(s.buckets, &config, &schedule));
        if (config.microbatches <= 2 || config.passes == BP_PASSES_EVAL)
            assert_same_steps(&p, schedule);
        else
            assert_same_conflicts(&p, schedule);
    }
}

/* ---- by hand -------------------------------------------------------------------------------------------------------- */

/* Expected live steps of three units' parameters and gradients: a string per request, a letter per step. */
static void assert_live(const bp_schedule_config *config, uint32_t roles, const char *const *expected)
{
    scenario_options options = DEFAULTS;
    options.roles = roles;
    SCOPED(free_scenario) scenario s = make_scenario(model_of_units(3), options);
    SCOPED(bp_schedule_destroy) bp_schedule *schedule = NULL;
    assert_ok(bp_schedule_create_training(s.buckets, config, &schedule));
    for (size_t r = 0; r < bp_buckets_get_info(s.buckets)->request_count; r++) {
        assert_int_equal(bp_schedule_get_info(schedule)->step_count, strlen(expected[r]));
        for (uint32_t t = 0; expected[r][t] != '\0'; t++)
            if (is_live(schedule, r, t) != (expected[r][t] == 'X'))
                fail_msg("request %zu, step %u: expected %c of %s", r, t, expected[r][t], expected[r]);
    }
}

/* The live sets of unit u's backward are {P(u), G(u), G(u+1)}, then {P(u), G(u), P(u-1)}. */
TEST(test_unified_streams)
{
    bp_schedule_config config = default_config();
    config.streams = BP_STREAMS_UNIFIED;
    /* steps 0 to 2 forward, then two halves each of units 2, 1, 0 */
    static const char *const expected[] = {"X.....XXX", ".......XX", "XX..XXX..",
                                           ".....XXX.", ".XXXX....", "...XXX..."};
    assert_live(&config, PARAM | GRAD, expected);
}

/* Step 0 is the embedding, step 4 the output layer. */
TEST(test_outside_steps)
{
    bp_schedule_config config = default_config();
    config.outside = BP_OUTSIDE_PREFETCHES_SUCCESSOR;
    config.prefetch = 2;
    static const char *const expected[] = {"XX...XXX", "XXX.XXX.", ".XXXXX.."};
    assert_live(&config, PARAM, expected);
    config.passes = BP_PASSES_EVAL;
    static const char *const forward[] = {"XX..", "XXX.", ".XXX"};
    assert_live(&config, PARAM, forward);
}

TEST(test_kept_parameters)
{
    bp_schedule_config config = default_config();
    config.keep_after_forward = 1;
    static const char *const expected[] = {"XXXXXX", "XXXXX.", ".XXX.."};
    assert_live(&config, PARAM, expected);
    config.passes = BP_PASSES_BOTH;
    static const char *const both[] = {"XXXXXXXXX", "XXXXX.XXX", ".XXX...XX"};
    assert_live(&config, PARAM, both);
}

/* A unit's row-wise parameters are live with its transpose and the next one. */
TEST(test_recompute_of_fp8)
{
    bp_schedule_config config = default_config();
    config.recompute = 1;
    static const char *const expected[] = {"X....X", "....XX", "XX..X.", "...XX.", ".XXX..", "...X.."};
    assert_live(&config, PARAM | TRANSPOSE, expected);
}

/* F F, then one combined pass per microbatch, then B B; here one microbatch: F C B. */
TEST(test_combined_pass)
{
    bp_schedule_config config = default_config();
    config.combined = 1;
    config.prefetch = 0;
    config.grad_units = 1;
    static const char *const expected[] = {"X..X.X..X", ".....X..X", ".X..X..X.",
                                           "....X..X.", "..XX.XX..", "...X..X.."};
    assert_live(&config, PARAM | GRAD, expected);
}

/* ---- lanes ---------------------------------------------------------------------------------------------------------- */

TEST(test_lanes_of_roles)
{
    static const uint32_t lanes[BP_ROLE_COUNT][2] = {
        {BP_LANE_GATHER, BP_LANE_COMPUTE},       {BP_LANE_GATHER, BP_LANE_COMPUTE},  {BP_LANE_COMPUTE, BP_LANE_REDUCE},
        {BP_LANE_COMPUTE, BP_LANE_OUTER_REDUCE}, {BP_LANE_COMPUTE, BP_LANE_COMPUTE}, {BP_LANE_COMPUTE, BP_LANE_COMPUTE},
        {BP_LANE_COMPUTE, BP_LANE_COMPUTE}};
    scenario_options options = DEFAULTS;
    options.roles = PARAM | TRANSPOSE | GRAD | GRAD_COMM | STATE;
    SCOPED(free_scenario) scenario s = make_scenario(model_of_units(4), options);
    size_t intervals = 0;
    for (size_t r = 0; r < bp_buckets_get_info(s.buckets)->request_count; r++) {
        bp_request request = bp_buckets_get_info(s.buckets)->requests[r];
        size_t count;
        const bp_interval *first = intervals_of(s.schedule, r, &count);
        for (size_t i = 0; i < count; i++, intervals++) {
            bp_use use = bp_schedule_use(s.schedule, (size_t)(first + i - s.schedule->intervals));
            assert_int_equal(use.acquire_lane, lanes[request.role][0]);
            assert_int_equal(use.release_lane, lanes[request.role][1]);
        }
    }
    assert_int_equal(intervals, 4 * BP_ROLE_COUNT);
}

/* ---- errors --------------------------------------------------------------------------------------------------------- */

TEST(test_config_errors)
{
    SCOPED(free_scenario) scenario s = scenario_of_kinds("xyz");
    bp_schedule *schedule = NULL;
    bp_schedule_config config = default_config();
    config.passes = (bp_passes)3;
    assert_fails(bp_schedule_create_training(s.buckets, &config, &schedule), BP_ERR_INVALID_ARGUMENT, "passes 3");
    config = default_config();
    config.streams = (bp_streams)2;
    assert_fails(bp_schedule_create_training(s.buckets, &config, &schedule), BP_ERR_INVALID_ARGUMENT, "streams 2");
    config = default_config();
    config.outside = (bp_outside)9;
    assert_fails(bp_schedule_create_training(s.buckets, &config, &schedule), BP_ERR_INVALID_ARGUMENT, "outside 9");
    config = default_config();
    config.microbatches = BP_MAX_MICROBATCHES + 1;
    assert_fails(bp_schedule_create_training(s.buckets, &config, &schedule), BP_ERR_INVALID_ARGUMENT, "1025", "1024");
    config = default_config();
    config.override_count = 1;
    assert_fails(bp_schedule_create_training(s.buckets, &config, &schedule), BP_ERR_INVALID_ARGUMENT, "overrides");
    bp_unit_prefetch overrides[] = {{2, 1, 1}, {3, 1, 1}};
    config.overrides = overrides;
    config.override_count = 2;
    assert_fails(bp_schedule_create_training(s.buckets, &config, &schedule), BP_ERR_INVALID_ARGUMENT, "overrides[1]",
                 "unit 3");
    overrides[1].unit = 2;
    assert_fails(bp_schedule_create_training(s.buckets, &config, &schedule), BP_ERR_INVALID_ARGUMENT, "overrides[1]",
                 "\"u2\"");
    assert_null(schedule);
}

TESTS(NULL, NULL)

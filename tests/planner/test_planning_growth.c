/* SPDX-License-Identifier: Apache-2.0 */
/* Planning time and memory grow about linearly with the number of units, for every stage and policy.
 *
 * Four times the units may take ten times the processor time: n log n with cache effects stays below, n^2 would take sixteen. The best
 * of several runs counts, because other processes disturb single ones. Allocated bytes do not depend on the machine. Linked with
 * -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc against the static library. */
#include "support/harness.h"

#include <bucketpool/plan.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "support/scenarios.h"

#define UNITS 5000u
#define GROWTH 4u
#define MAX_TIMES 10
#define MAX_BYTES 6
#define NOISE 0.02 /* seconds: page faults dominate shorter stages */
#define TRIES 8
#define LITTLE_WORK (UINT64_C(1) << 20) /* of the packer, which may use all of it in the larger plan only */

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);

static uint64_t bytes_asked;

void *__wrap_malloc(size_t bytes)
{
    bytes_asked += bytes;
    return __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    bytes_asked += count * bytes;
    return __real_calloc(count, bytes);
}

void *__wrap_realloc(void *memory, size_t bytes)
{
    bytes_asked += bytes;
    return __real_realloc(memory, bytes);
}

/* ---- stages --------------------------------------------------------------------------------------------------------- */

enum { MAX_STAGES = 32 };

typedef struct figure {
    char stage[48];
    double seconds;
    uint64_t bytes;
} figure;

typedef struct figures {
    figure list[MAX_STAGES];
    size_t count;
    double began;
} figures;

static double processor_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void begin_stage(figures *f)
{
    bytes_asked = 0;
    f->began = processor_seconds();
}

static void end_stage(figures *f, const char *stage, const char *policy)
{
    assert_true(f->count < MAX_STAGES);
    figure *added = &f->list[f->count++];
    *added = (figure){.seconds = processor_seconds() - f->began, .bytes = bytes_asked};
    snprintf(added->stage, sizeof added->stage, "%s %s", stage, policy);
}

/* Units of three kinds with buckets of many sizes. */
static bp_model *make_model(uint32_t units)
{
    bp_model *model = new_model();
    for (uint32_t u = 0; u < units; u++) {
        int32_t unit = add_numbered_unit(model, u);
        add_bucket(model, unit, BP_DTYPE_BF16, 4096 * (1 + u % 3), 0);
        add_bucket(model, unit, BP_DTYPE_BF16, 128 * (1 + u * 7919 % 97), 0);
        if (u % 3 == 1)
            add_bucket(model, unit, BP_DTYPE_FP32, 65536, 0);
    }
    return model;
}

static void plan_and_check(const scenario *w, bp_policy policy, uint32_t joint, const char *name, uint64_t work,
                           figures *f)
{
    bp_plan_config config = plan_config(policy, 0, BP_FALLBACK_PERSISTENT);
    char fingerprint[BP_FINGERPRINT_CHARS];
    bp_plan *plan;
    config.joint = joint;
    config.work = work;
    begin_stage(f);
    assert_ok(bp_plan_create(w->buckets, w->schedule, &config, &plan));
    end_stage(f, "plan", name);
    if (policy != BP_POLICY_DYNAMIC) {
        begin_stage(f);
        assert_ok(bp_plan_check(plan, w->buckets, w->schedule));
        end_stage(f, "check", name);
        begin_stage(f);
        bp_plan *copy = copy_plan(plan);
        end_stage(f, "copy", name);
        bp_plan_destroy(&copy);
        begin_stage(f);
        assert_ok(bp_plan_fingerprint(plan, fingerprint));
        end_stage(f, "fingerprint", name);
    }
    begin_stage(f);
    bp_plan_destroy(&plan);
    end_stage(f, "destroy", name);
}

typedef struct subject {
    uint32_t kept, prefetch; /* kept: parameters stay gathered after forward, so that all units are live at once */
    uint64_t work;
} subject;

static void run_stages(const subject *s, uint32_t units, figures *f)
{
    SCOPED(free_scenario) scenario w = {.model = make_model(units)};
    bp_buckets_config config;
    bp_schedule_config timing;
    assert_ok(bp_buckets_config_init(&config, sizeof config));
    assert_ok(bp_schedule_config_init(&timing, sizeof timing));
    config.bucketing = BP_BUCKETING_GIVEN;
    config.padding = BP_PADDING_GIVEN;
    config.roles = PARAM | GRAD | GRAD_COMM | STATE;
    config.grad_comm_dtype = BP_DTYPE_FP32;
    timing.keep_after_forward = s->kept;
    timing.prefetch = s->prefetch;
    f->count = 0;
    begin_stage(f);
    assert_ok(bp_buckets_create(w.model, &config, &w.buckets));
    end_stage(f, "buckets", "");
    begin_stage(f);
    assert_ok(bp_schedule_create_training(w.buckets, &timing, &w.schedule));
    end_stage(f, "schedule", "");
    plan_and_check(&w, BP_POLICY_DYNAMIC, 0, "dynamic", s->work, f);
    plan_and_check(&w, BP_POLICY_FIXED, 0, "fixed", s->work, f);
    plan_and_check(&w, BP_POLICY_MAX, 0, "max", s->work, f);
    plan_and_check(&w, BP_POLICY_SCHEDULED, 0, "scheduled", s->work, f);
    plan_and_check(&w, BP_POLICY_SCHEDULED, 1, "joint", s->work, f);
}

static bool is_slow(const figure *small, const figure *large)
{
    return large->seconds > MAX_TIMES * small->seconds + NOISE;
}

/* Repeats the stages until the least processor times grow little enough. */
static void assert_growth(const subject *s)
{
    figures min[2];
    size_t grows = 1;
    for (int i = 0; i < TRIES && grows > 0; i++) {
        grows = 0;
        for (int k = 0; k < 2; k++) {
            figures now;
            run_stages(s, k == 0 ? UNITS : GROWTH * UNITS, &now);
            for (size_t stage = 0; i > 0 && stage < now.count; stage++)
                if (min[k].list[stage].seconds < now.list[stage].seconds)
                    now.list[stage].seconds = min[k].list[stage].seconds;
            min[k] = now;
        }
        for (size_t stage = 0; stage < min[0].count; stage++)
            grows += is_slow(&min[0].list[stage], &min[1].list[stage]);
    }
    for (size_t stage = 0; stage < min[0].count; stage++) {
        const figure *small = &min[0].list[stage], *large = &min[1].list[stage];
        bool big = large->bytes > MAX_BYTES * small->bytes;
        if (big || is_slow(small, large))
            print_error("%s: %u units take %.4f s and %llu bytes, %u take %.4f s and %llu bytes\n", small->stage, UNITS,
                        small->seconds, (unsigned long long)small->bytes, GROWTH * UNITS, large->seconds,
                        (unsigned long long)large->bytes);
        grows += big;
    }
    assert_int_equal(grows, 0);
}

/* ---- tests ---------------------------------------------------------------------------------------------------------- */

TEST(test_stages_grow_linearly)
{
    assert_growth(&(subject){.prefetch = 1, .work = LITTLE_WORK});
}

TEST(test_stages_grow_linearly_where_all_units_are_live)
{
    assert_growth(&(subject){.kept = 1, .prefetch = 1, .work = LITTLE_WORK});
}

static uint64_t bytes_of_packing(uint32_t units)
{
    scenario w =
        make_scenario(make_model(units), (scenario_options){.roles = PARAM | GRAD, .prefetch = 2, .grad_units = 2});
    bp_plan_config config = plan_config(BP_POLICY_SCHEDULED, 0, BP_FALLBACK_PERSISTENT);
    config.joint = 1;
    bytes_asked = 0;
    bp_plan *plan = NULL;
    assert_ok(bp_plan_create(w.buckets, w.schedule, &config, &plan));
    uint64_t bytes = bytes_asked;
    bp_plan_destroy(&plan);
    free_scenario(&w);
    return bytes;
}

/* Windows are problems of a few hundred items each; their number grows with that of the units. */
TEST(test_memory_of_packing_windows_is_linear)
{
    uint64_t small = bytes_of_packing(2 * UNITS), large = bytes_of_packing(2 * GROWTH * UNITS);
    if (large > MAX_BYTES * small)
        print_error("%llu bytes for %u units, %llu for %u\n", (unsigned long long)small, 2 * UNITS,
                    (unsigned long long)large, 2 * GROWTH * UNITS);
    assert_true(large <= MAX_BYTES * small);
}

/* Classes times copies is 4.9e9 here; requests use 2 x 70,000 pairs of them. */
TEST(test_unused_copies_take_no_memory)
{
    const uint32_t units = 70000;
    bp_model *model = new_model();
    for (uint32_t u = 0; u < units; u++)
        add_bucket(model, add_numbered_unit(model, u), BP_DTYPE_BF16, 128, 0);
    for (uint32_t b = 1; b < units; b++)
        add_bucket(model, (int32_t)units - 1, BP_DTYPE_BF16, 128, 0);
    SCOPED(free_scenario)
    scenario w = make_scenario(model, (scenario_options){.roles = PARAM, .prefetch = units, .grad_units = 2});
    bytes_asked = 0;
    SCOPED(bp_plan_destroy) bp_plan *plan = make_max(&w, 0);
    assert_true(bytes_asked < (uint64_t)4000 * units);
    assert_int_equal(bp_plan_get_info(plan)->roles[0].copies, units);
    assert_int_equal(bp_plan_get_info(plan)->roles[0].buffer_count, units);
    assert_ok(bp_plan_check(plan, w.buckets, w.schedule));
}

TESTS(NULL, NULL)

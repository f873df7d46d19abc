/* SPDX-License-Identifier: Apache-2.0 */
/* bp_plan_check on invalid plans; plans from contents, look-up of requests, fingerprints, options. */
#include "support/harness.h"

#include <bucketpool/plan.h>

#include <stdbool.h>
#include <string.h>

#include "invariants.h"
#include "naive.h"
#include "planner/plan.h"
#include "support/scenarios.h"

/* ---- the checker --------------------------------------------------------------------------------------------------- */

/* Changed contents are refused by bp_plan_from_info or by bp_plan_check. */
static void assert_refused(const contents *c, const scenario *s, const char *word, const char *other)
{
    SCOPED(bp_plan_destroy) bp_plan *broken = NULL;
    bp_status status = bp_plan_from_info(&c->info, &broken);
    if (status == BP_OK)
        status = bp_plan_check(broken, s->buckets, s->schedule);
    assert_fails(status, BP_ERR_MISMATCH, word, other);
}

TEST(test_check_refuses_contents)
{
    SCOPED(free_scenario) scenario s = scenario_of_kinds("xyz");
    SCOPED(bp_plan_destroy) bp_plan *plan = make_max(&s, 0);
    SCOPED(free_contents) contents c = copy_contents(plan);
    bp_plan_request *r = &c.requests[1];
    const bp_plan_request original = *r;
    assert_int_equal(c.info.request_count, 3);
    c.info.request_count = 2;
    assert_refused(&c, &s, "has 2 requests", "have 3");
    c.info.request_count = 3;
    r->offset = c.requests[0].offset;
    assert_refused(&c, &s, "requests 0 (param of u0", "and 1 (param of u1");
    *r = original;
    r->bytes -= 4;
    r->used_bytes = r->bytes;
    assert_refused(&c, &s, "u1", "has 796 bytes; the buckets have 800");
    r->bytes += 8;
    assert_refused(&c, &s, "u1", "has 804 bytes; the buckets have 800");
    *r = original;
    r->used_bytes = 799;
    assert_refused(&c, &s, "u1", "uses 799 bytes; the buckets use 800");
    r->used_bytes = 801;
    assert_refused(&c, &s, "u1", "more bytes than it has");
    *r = original;
    r->offset += 4;
    assert_refused(&c, &s, "u1", "aligned");
    r->offset = c.slabs[0].bytes - ALIGNMENT;
    assert_refused(&c, &s, "u1", "beyond its slab");
    *r = original;
    r->dtype = BP_DTYPE_INT32;
    assert_refused(&c, &s, "u1", "has dtype int32; the buckets have fp32");
    *r = original;
    r->role = BP_ROLE_GRAD;
    assert_refused(&c, &s, "grad of u1", "is param of u1");
    *r = original;
    r->unit = "nobody";
    assert_refused(&c, &s, "param of nobody", "is param of u1");
    r->unit = "u0";
    assert_refused(&c, &s, "u0", "occurs twice");
    *r = original;
    r->ordinal = 7;
    assert_refused(&c, &s, "bucket.7", "bucket.0 in the buckets");
    *r = original;
    r->bucket = "wrong";
    assert_refused(&c, &s, "wrong", "bucket.0 in the buckets");
    r->bucket = "bucket.0"; /* the name of an unnamed bucket */
    bp_plan *same = NULL;
    assert_ok(bp_plan_from_info(&c.info, &same));
    assert_ok(bp_plan_check(same, s.buckets, s.schedule));
    bp_plan_destroy(&same);
    *r = original;
    r->slab = 1;
    assert_refused(&c, &s, "u1", "slab that does not exist");
    *r = original;
    r->placement = BP_PLACE_NONE;
    assert_refused(&c, &s, "u1", "is live but has no address");
    r->placement = BP_PLACE_DYNAMIC;
    assert_refused(&c, &s, "u1", "is live but has no address");
    *r = c.requests[2]; /* ids are indices: another order is another plan */
    c.requests[2] = original;
    assert_refused(&c, &s, "request 1 (param of u2", "is param of u1");
}

/* bp_plan_from_info would refuse these faults, so the plan is changed in place. */
TEST(test_check_refuses_changed)
{
    SCOPED(free_scenario) scenario s = scenario_of_kinds("xyz");
    SCOPED(bp_plan_destroy) bp_plan *plan = make_max(&s, 0);
    bp_plan_request *r = &plan->requests[1];
    const bp_plan_request original = *r;
    r->offset += 1;
    assert_fails(bp_plan_check(plan, s.buckets, s.schedule), BP_ERR_MISMATCH, "u1", "multiple");
    r->offset = plan->slabs[0].bytes;
    assert_fails(bp_plan_check(plan, s.buckets, s.schedule), BP_ERR_MISMATCH, "u1", "beyond slab 0");
    r->offset = UINT64_MAX - ALIGNMENT + 1;
    assert_fails(bp_plan_check(plan, s.buckets, s.schedule), BP_ERR_MISMATCH, "u1", "beyond slab 0");
    *r = original;
    r->slab = 9;
    assert_fails(bp_plan_check(plan, s.buckets, s.schedule), BP_ERR_MISMATCH, "u1", "slab 9");
    *r = original;
    r->unit = plan->requests[0].unit;
    assert_fails(bp_plan_check(plan, s.buckets, s.schedule), BP_ERR_MISMATCH, "request 1", "u0", "u1");
    *r = original;
    assert_ok(bp_plan_check(plan, s.buckets, s.schedule));
}

/* Requests of different slabs may have equal offsets; those of one slab may not, for every slab. */
TEST(test_check_slabs)
{
    SCOPED(free_scenario) scenario s = make_scenario(make_mixed(), DEFAULTS);
    SCOPED(bp_plan_destroy) bp_plan *plan = make_plan(&s, BP_POLICY_SCHEDULED, 0, BP_FALLBACK_PERSISTENT);
    const bp_plan_info *info = bp_plan_get_info(plan);
    assert_int_equal(info->slab_count, 2);
    size_t refused = 0;
    for (size_t i = 0; i < info->request_count; i++) {
        for (size_t k = 0; k < i; k++) {
            bp_plan_request *r = &plan->requests[i];
            const bp_plan_request original = *r, *other = &info->requests[k];
            if (r->placement != BP_PLACE_PLANNED || other->placement != BP_PLACE_PLANNED ||
                other->offset + r->bytes > info->slabs[r->slab].bytes)
                continue;
            r->offset = other->offset;
            bp_status status = bp_plan_check(plan, s.buckets, s.schedule);
            assert_int_equal(status, naive_check(plan, &s) ? BP_OK : BP_ERR_MISMATCH);
            refused += status != BP_OK;
            *r = original;
        }
    }
    assert_true(refused > 20);
}

/* Two units that are never live together, but within a window of each other. */
TEST(test_check_refuses_windows)
{
    bp_model *model = new_model();
    for (uint32_t u = 0; u < 2; u++)
        add_bucket(model, add_numbered_unit(model, u), BP_DTYPE_UINT8, ALIGNMENT, 0);
    for (int32_t u = 0; u < 2; u++) {
        add_event(model, 1, u, -1);
        add_event(model, 0, u, -1);
    }
    SCOPED(free_scenario) scenario s = make_scenario(model, (scenario_options){.roles = PARAM, .recorded = 1});
    SCOPED(bp_plan_destroy) bp_plan *plan = make_max(&s, 0);
    assert_int_equal(bp_plan_get_info(plan)->bytes, ALIGNMENT); /* both at offset 0 */
    assert_ok(bp_plan_check(plan, s.buckets, s.schedule));
    bp_recorded_config config;
    assert_ok(bp_recorded_config_init(&config, sizeof config));
    config.overlap_window = 2;
    bp_schedule_destroy(&s.schedule);
    assert_ok(bp_schedule_create_recorded(s.model, s.buckets, &config, &s.schedule));
    assert_true(bp_schedule_get_info(s.schedule)->overlap_count > 0);
    assert_false(naive_check(plan, &s));
    assert_fails(bp_plan_check(plan, s.buckets, s.schedule), BP_ERR_MISMATCH, "u0", "u1", "byte 0 of slab 0",
                 "overlap");
    bp_plan_destroy(&plan);
    plan = make_plan(&s, BP_POLICY_SCHEDULED, 0, BP_FALLBACK_PERSISTENT);
    assert_int_equal(bp_plan_get_info(plan)->bytes, 2 * ALIGNMENT);
    assert_ok(bp_plan_check(plan, s.buckets, s.schedule));
    assert_true(naive_check(plan, &s));
}

/* The error names both requests, the first step in which both are live, and a common byte. */
TEST(test_check_names_the_conflict)
{
    bp_model *model = new_model();
    for (uint32_t u = 0; u < 3; u++)
        add_bucket(model, add_numbered_unit(model, u), BP_DTYPE_UINT8, 2 * ALIGNMENT, 0);
    for (const char *event = "abABbcBC"; *event != '\0'; event++) /* lower case: acquired */
        add_event(model, *event >= 'a', (*event | 0x20) - 'a', -1);
    SCOPED(free_scenario) scenario s = make_scenario(model, (scenario_options){.roles = PARAM, .recorded = 1});
    SCOPED(bp_plan_destroy) bp_plan *plan = make_plan(&s, BP_POLICY_SCHEDULED, 0, BP_FALLBACK_PERSISTENT);
    assert_int_equal(bp_plan_get_info(plan)->bytes, 4 * ALIGNMENT);
    plan->requests[1].offset = 0;
    plan->requests[0].offset = plan->requests[2].offset = 2 * ALIGNMENT;
    assert_ok(bp_plan_check(plan, s.buckets, s.schedule));
    plan->requests[1].offset = ALIGNMENT;
    assert_false(naive_check(plan, &s));
    assert_fails(bp_plan_check(plan, s.buckets, s.schedule), BP_ERR_MISMATCH, "requests 0 (param of u0",
                 "1 (param of u1", "both live at step 1 and share byte 512 of slab 0");
    plan->requests[0].offset = 0;
    plan->requests[1].offset = 2 * ALIGNMENT;
    assert_fails(bp_plan_check(plan, s.buckets, s.schedule), BP_ERR_MISMATCH, "requests 1 (param of u1",
                 "2 (param of u2", "both live at step 5 and share byte 512 of slab 0");
}

/* Unused gradients of an evaluation are not checked, though they have more bytes than all slabs. */
TEST(test_check_unused_requests)
{
    bp_model *model = new_model();
    add_bucket(model, add_numbered_unit(model, 0), BP_DTYPE_BF16, ALIGNMENT / 2, 0);
    SCOPED(free_scenario)
    scenario s = make_scenario(
        model, (scenario_options){.roles = PARAM | GRAD, .grad_dtype = BP_DTYPE_FP32, .grad_units = 2, .eval = 1});
    for (int policy = BP_POLICY_FIXED; policy <= BP_POLICY_SCHEDULED; policy++) {
        SCOPED(bp_plan_destroy) bp_plan *plan = make_plan(&s, (bp_policy)policy, 0, BP_FALLBACK_PERSISTENT);
        assert_int_equal(bp_plan_get_info(plan)->bytes, ALIGNMENT);
        assert_int_equal(bp_plan_get_info(plan)->requests[1].bytes, 2 * ALIGNMENT);
        assert_int_equal(bp_plan_get_info(plan)->requests[1].placement, BP_PLACE_NONE);
        assert_plan_holds(plan, &s);
    }
}

/* Randomly moved requests, in plans with and without overlap windows: bp_plan_check agrees with the reference model. */
TEST(test_check_agrees_with_naive)
{
    seed(6);
    uint32_t refused = 0, accepted = 0;
    for (int i = 0; i < 3000; i++) {
        bp_model *model = random_model(2 + random_below(4));
        bool recorded = random_below(2) == 0;
        scenario_options options = DEFAULTS;
        options.prefetch = random_below(3);
        if (recorded) {
            options = (scenario_options){.roles = PARAM, .recorded = 1};
            record_randomly(model, random_below(2) == 0);
        }
        SCOPED(free_scenario) scenario s = make_scenario(model, options);
        if (recorded && random_below(2) == 0) {
            bp_recorded_config config;
            assert_ok(bp_recorded_config_init(&config, sizeof config));
            config.overlap_window = 1 + random_below(3);
            bp_schedule_destroy(&s.schedule);
            assert_ok(bp_schedule_create_recorded(s.model, s.buckets, &config, &s.schedule));
        }
        SCOPED(bp_plan_destroy) bp_plan *plan = make_max(&s, random_below(2) == 0 ? 0 : 6);
        if (!bp_plan_get_info(plan)->feasible) {
            bp_plan_destroy(&plan);
            free_scenario(&s);
            continue;
        }
        for (uint32_t changes = random_below(4); changes > 0; changes--) {
            bp_plan_request *r = &plan->requests[random_below((uint32_t)plan->request_count)];
            const bp_plan_request *other = &plan->requests[random_below((uint32_t)plan->request_count)];
            if (r->placement != BP_PLACE_PLANNED)
                continue;
            uint64_t room = plan->slabs[r->slab].bytes - aligned(r->bytes);
            switch (random_below(4)) {
            case 0: r->offset = other->offset; break;
            case 1: r->offset += random_below(2) == 0 && r->offset > 0 ? -(uint64_t)ALIGNMENT : ALIGNMENT; break;
            default: r->offset = random_below((uint32_t)(room / ALIGNMENT) + 1) * (uint64_t)ALIGNMENT; break;
            }
        }
        bool good = naive_check(plan, &s);
        bp_status status = bp_plan_check(plan, s.buckets, s.schedule);
        if (status != (good ? BP_OK : BP_ERR_MISMATCH))
            fail_msg("case %d: naive says %d, bp_plan_check %s: %s", i, good, bp_status_name(status),
                     bp_error_detail());
        refused += !good;
        accepted += good;
    }
    assert_true(refused > 500 && accepted > 500);
}

TEST(test_check_other_buckets)
{
    SCOPED(free_scenario)
    scenario s = scenario_of_kinds("xyz"), longer = scenario_of_kinds("xyzx"), other = scenario_of_kinds("xyy");
    SCOPED(bp_plan_destroy) bp_plan *plan = make_max(&s, 0);
    assert_fails(bp_plan_check(plan, s.buckets, longer.schedule), BP_ERR_INVALID_ARGUMENT, "3", "4");
    assert_fails(bp_plan_check(plan, longer.buckets, longer.schedule), BP_ERR_MISMATCH, "has 3", "have 4");
    assert_fails(bp_plan_check(plan, other.buckets, other.schedule), BP_ERR_MISMATCH, "u2", "1200", "800");
    assert_fails(bp_plan_check(NULL, s.buckets, s.schedule), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_plan_check(plan, NULL, s.schedule), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_plan_check(plan, s.buckets, NULL), BP_ERR_INVALID_ARGUMENT, NULL);
}

/* A plan of realistic size, without the reference model, which is too slow. */
TEST(test_check_large)
{
    seed(4);
    bp_model *model = new_model();
    for (uint32_t u = 0; u < 300; u++) {
        int32_t unit = add_numbered_unit(model, u);
        for (uint32_t b = 0; b <= u % 4; b++)
            add_bucket(model, unit, b == 3 ? BP_DTYPE_FP32 : BP_DTYPE_BF16, 1 + random_below(5000000), 0);
    }
    SCOPED(free_scenario) scenario s = make_scenario(model, DEFAULTS);
    for (int policy = BP_POLICY_FIXED; policy <= BP_POLICY_SCHEDULED; policy++) {
        SCOPED(bp_plan_destroy) bp_plan *plan = make_plan(&s, (bp_policy)policy, 0, BP_FALLBACK_PERSISTENT);
        assert_ok(bp_plan_check(plan, s.buckets, s.schedule));
    }
}

/* ---- plans from contents, look-up of requests ------------------------------------------------------------------------ */

static void assert_no_plan(const bp_plan_info *info, bp_status expected, const char *word)
{
    bp_plan *const untouched = (bp_plan *)(uintptr_t)1;
    bp_plan *plan = untouched;
    assert_fails(bp_plan_from_info(info, &plan), expected, word);
    assert_ptr_equal(plan, untouched);
}

TEST(test_contents)
{
    SCOPED(free_scenario) scenario s = scenario_of_kinds("xyz");
    SCOPED(bp_plan_destroy) bp_plan *plan = make_max(&s, 0);
    SCOPED(free_contents) contents c = copy_contents(plan);
    assert_no_plan(NULL, BP_ERR_INVALID_ARGUMENT, "contents");
    assert_fails(bp_plan_from_info(&c.info, NULL), BP_ERR_INVALID_ARGUMENT, "output");
    static const uint64_t alignments[] = {0, 3, ALIGNMENT + 1};
    for (size_t i = 0; i < sizeof alignments / sizeof *alignments; i++) {
        c.info.alignment = alignments[i];
        assert_no_plan(&c.info, BP_ERR_MISMATCH, "power of two");
    }
    c.info.alignment = ALIGNMENT;
    c.info.slab_count = UINT16_MAX + 1u; /* checked before the slabs are read */
    assert_no_plan(&c.info, BP_ERR_INVALID_ARGUMENT, "65536 slabs");
    c.info.slab_count = 0;
    assert_no_plan(&c.info, BP_ERR_MISMATCH, "u0");
    c.info.slab_count = 1;
    const char *group = c.slabs[0].group;
    c.slabs[0].group = NULL;
    assert_no_plan(&c.info, BP_ERR_INVALID_ARGUMENT, "slab 0");
    c.slabs[0].group = group;
    const bp_plan_request original = c.requests[1];
    bp_plan_request broken[6];
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++)
        broken[i] = original;
    broken[0].unit = NULL;
    broken[1].dtype = BP_DTYPE_COUNT;
    broken[2].role = BP_ROLE_COUNT;
    broken[3].placement = BP_PLACE_PERSISTENT; /* a placement of pools, not of plans */
    broken[4].placement = (bp_placement)9;
    broken[5].dtype = BP_DTYPE_NONE;
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        c.requests[1] = broken[i];
        assert_no_plan(&c.info, BP_ERR_INVALID_ARGUMENT, "request 1");
    }
    c.requests[1] = original;
    c.requests[1].bytes = c.requests[1].used_bytes = 0;
    assert_no_plan(&c.info, BP_ERR_MISMATCH, "no bytes");
    c.requests[1] = original;
    c.requests[1].offset = -(uint64_t)ALIGNMENT;
    assert_no_plan(&c.info, BP_ERR_MISMATCH, "beyond its slab");
    c.requests[1] = original;
    SCOPED(bp_plan_destroy) bp_plan *made = NULL;
    assert_ok(bp_plan_from_info(&c.info, &made));
    memset(c.requests, 0, 3 * sizeof *c.requests); /* the plan has copies */
    assert_ok(bp_plan_check(made, s.buckets, s.schedule));
}

TEST(test_contents_of_classes)
{
    SCOPED(free_scenario) scenario s = scenario_of_kinds("xyz");
    SCOPED(bp_plan_destroy) bp_plan *plan = make_max(&s, 3);
    SCOPED(free_contents) contents c = copy_contents(plan);
    assert_int_equal(c.info.class_count, 1);
    const bp_plan_class original = c.classes[0];
    struct {
        bp_plan_class with;
        const char *word;
    } broken[11];
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++)
        broken[i].with = original;
    broken[0].with.slab = 1, broken[0].word = "slab that does not exist";
    broken[1].with.copies = 0, broken[1].word = "no copies";
    broken[2].with.bytes = 0, broken[2].word = "no bytes";
    broken[3].with.dtype = BP_DTYPE_NONE, broken[3].word = "no dtype";
    broken[4].with.stride -= ALIGNMENT, broken[4].word = "overlap";
    broken[5].with.stride += 4, broken[5].word = "aligned";
    broken[6].with.offset += 4, broken[6].word = "aligned";
    broken[7].with.copies = 4, broken[7].word = "beyond its slab";
    broken[8].with.offset = ALIGNMENT, broken[8].word = "beyond its slab";
    broken[9].with.stride = UINT64_C(1) << 63, broken[9].word = "beyond its slab";
    broken[10].with.offset = -(uint64_t)ALIGNMENT, broken[10].word = "beyond its slab";
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        c.classes[0] = broken[i].with;
        assert_no_plan(&c.info, BP_ERR_MISMATCH, broken[i].word);
    }
}

TEST(test_find)
{
    bp_model *model = new_model();
    int32_t unit = add_unit(model, "a", BP_OUTSIDE);
    add_bucket(model, unit, BP_DTYPE_FP8_E4M3, 1000, 1024);
    add_bucket(model, unit, BP_DTYPE_BF16, 10, 0);
    add_bucket(model, unit, BP_DTYPE_BF16, 0, 0);
    SCOPED(free_scenario) scenario s = make_scenario(model, DEFAULTS);
    SCOPED(bp_plan_destroy) bp_plan *plan = make_max(&s, 0);
    uint32_t id = 99;
    assert_fails(bp_plan_find(NULL, "a", 0, BP_ROLE_PARAM, BP_DTYPE_NONE, BP_BYTES_ANY, &id), BP_ERR_INVALID_ARGUMENT,
                 NULL);
    assert_fails(bp_plan_find(plan, NULL, 0, BP_ROLE_PARAM, BP_DTYPE_NONE, BP_BYTES_ANY, &id), BP_ERR_INVALID_ARGUMENT,
                 NULL);
    assert_fails(bp_plan_find(plan, "a", 0, BP_ROLE_PARAM, BP_DTYPE_NONE, BP_BYTES_ANY, NULL), BP_ERR_INVALID_ARGUMENT,
                 NULL);
    assert_fails(bp_plan_find(plan, "b", 0, BP_ROLE_PARAM, BP_DTYPE_NONE, BP_BYTES_ANY, &id), BP_ERR_MISMATCH,
                 "param of b", "not in the plan");
    assert_fails(bp_plan_find(plan, "a", 3, BP_ROLE_PARAM, BP_DTYPE_NONE, BP_BYTES_ANY, &id), BP_ERR_MISMATCH,
                 "bucket.3");
    assert_fails(bp_plan_find(plan, "a", 0, BP_ROLE_STATE, BP_DTYPE_NONE, BP_BYTES_ANY, &id), BP_ERR_MISMATCH,
                 "state of a");
    assert_fails(bp_plan_find(plan, "a", 1, BP_ROLE_PARAM, BP_DTYPE_FP32, 20, &id), BP_ERR_MISMATCH, "hand-made",
                 "bf16", "fp32");
    assert_fails(bp_plan_find(plan, "a", 1, BP_ROLE_PARAM, BP_DTYPE_BF16, 22, &id), BP_ERR_MISMATCH, "hand-made",
                 "20 bytes in the plan, not 22");
    assert_int_equal(id, 99);
    /* fp8 is stored as bytes; NONE is not compared */
    static const bp_dtype dtypes[] = {BP_DTYPE_FP8_E4M3, BP_DTYPE_FP8_E5M2, BP_DTYPE_UINT8, BP_DTYPE_NONE};
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        assert_ok(bp_plan_find(plan, "a", 0, BP_ROLE_PARAM, dtypes[i], i % 2 == 0 ? 1024 : BP_BYTES_ANY, &id));
        assert_int_equal(bp_plan_get_info(plan)->requests[id].bytes, 1024);
    }
    assert_fails(bp_plan_find(plan, "a", 2, BP_ROLE_PARAM, BP_DTYPE_BF16, 0, &id), BP_ERR_MISMATCH,
                 "bucket.2"); /* empty, so it has no request */
}

/* ---- fingerprints and options -------------------------------------------------------------------------------------- */

TEST(test_determinism)
{
    for (int policy = BP_POLICY_FIXED; policy <= BP_POLICY_SCHEDULED; policy++) {
        scenario s = make_scenario(make_mixed(), DEFAULTS), again = make_scenario(make_mixed(), DEFAULTS);
        SCOPED(bp_plan_destroy) bp_plan *a = make_plan(&s, (bp_policy)policy, 0, BP_FALLBACK_PERSISTENT);
        SCOPED(bp_plan_destroy) bp_plan *b = make_plan(&again, (bp_policy)policy, 0, BP_FALLBACK_PERSISTENT);
        assert_same_fingerprint(a, b, true);
        assert_ok(bp_plan_set_model(b, "another name"));
        assert_ok(bp_plan_set_option(b, "dp", "8"));
        assert_same_fingerprint(a, b, true);
        free_scenario(&s);
        free_scenario(&again);
        /* The plan does not refer to its inputs. */
        SCOPED(bp_plan_destroy) bp_plan *copy = copy_plan(a);
        assert_same_fingerprint(copy, b, true);
    }
}

TEST(test_fingerprint_differs)
{
    SCOPED(free_scenario) scenario s = make_scenario(make_fp8(), DEFAULTS);
    SCOPED(bp_plan_destroy) bp_plan *plan = make_max(&s, 3);
    for (int kind = 0; kind < 10; kind++) {
        SCOPED(free_contents) contents c = copy_contents(plan);
        bp_plan_request *r = &c.requests[1];
        switch (kind) {
        case 0: c.slabs[0].bytes += ALIGNMENT; break;
        case 1: r->offset += r->offset == 0 ? ALIGNMENT : -(uint64_t)ALIGNMENT; break;
        case 2: r->bytes += 1; break;
        case 3: r->dtype = BP_DTYPE_FP16; break;
        case 4: r->unit = "elsewhere"; break;
        case 5: r->bucket = "renamed"; break;
        case 6: r->role = BP_ROLE_STATE; break;
        case 7: r->used_bytes -= 1; break;
        case 8: r->placement = BP_PLACE_DYNAMIC; break;
        default: c.info.request_count--; break;
        }
        SCOPED(bp_plan_destroy) bp_plan *other = NULL;
        assert_ok(bp_plan_from_info(&c.info, &other));
        assert_same_fingerprint(plan, other, false);
    }
}

TEST(test_options)
{
    SCOPED(free_scenario) scenario s = scenario_of_kinds("xy");
    SCOPED(bp_plan_destroy) bp_plan *plan = make_max(&s, 0);
    const bp_plan_info *info = bp_plan_get_info(plan);
    assert_int_equal(info->option_count, 0);
    assert_ok(bp_plan_set_option(plan, "dp", "8"));
    assert_ok(bp_plan_set_option(plan, "ep", "2"));
    assert_ok(bp_plan_set_option(plan, "dp", "16"));
    assert_int_equal(info->option_count, 2);
    assert_string_equal(info->options[0].key, "dp");
    assert_string_equal(info->options[0].value, "16");
    assert_ok(bp_plan_set_option(plan, "dp", NULL));
    assert_int_equal(info->option_count, 1);
    assert_string_equal(info->options[0].key, "ep");
    assert_string_equal(info->options[0].value, "2");
    assert_ok(bp_plan_set_option(plan, "never", NULL));
    assert_fails(bp_plan_set_option(plan, NULL, "x"), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_string_equal(info->model, "hand-made");
    assert_ok(bp_plan_set_model(plan, "m"));
    assert_string_equal(info->model, "m");
    assert_null(bp_plan_get_info(NULL));
}

TESTS(NULL, NULL)

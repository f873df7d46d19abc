/* The checker finds what is broken in a plan; the builder, fingerprints and options. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <bucketpool/plan.h>

#include <stdbool.h>
#include <string.h>

#include "holds.h"
#include "naive.h"
#include "planner/plan.h"
#include "worlds.h"

/* ---- the checker --------------------------------------------------------------------------------------------------- */

/* A rebuilt plan that differs by `e` is refused, by the builder or by the check. */
static void assert_refused(const bp_plan *plan, const world *w, const edit *e, const char *words)
{
    bp_plan *broken = NULL;
    bp_status status = rebuild(plan, e, &broken);
    if (status == BP_OK)
        status = bp_plan_check(broken, w->buckets, w->schedule);
    assert_fails(status, BP_ERR_MISMATCH, words);
    bp_plan_destroy(&broken);
}

static void test_check_refuses_rebuilt(void **state)
{
    (void)state;
    world w = world_of_kinds("xyz");
    bp_plan *plan = make_max(&w, 0);
    assert_int_equal(bp_plan_assignment_count(plan), 3);
    edit e = NO_EDIT;
    e.skip = 1;
    /* Predecessors are indices: with assignment 1 gone they no longer fit, whichever is found first. */
    assert_refused(plan, &w, &e, "u");
    const bp_assignment original = assignment_at(plan, 1);
    e = (edit){.skip = SIZE_MAX, .index = 1, .with = original};
    e.with.offset = assignment_at(plan, 0).offset;
    assert_refused(plan, &w, &e, "u1");
    e.with = original;
    e.with.bytes -= 4;
    assert_refused(plan, &w, &e, "796");
    e.with.bytes += 8;
    assert_refused(plan, &w, &e, "804");
    e.with = original;
    e.with.offset += 4;
    assert_refused(plan, &w, &e, "u1");
    e.with.offset = slab_at(plan, 0).bytes - ALIGNMENT;
    assert_refused(plan, &w, &e, "u1");
    e.with = original;
    e.with.dtype = BP_DTYPE_INT32;
    assert_refused(plan, &w, &e, "int32");
    e.with = original;
    e.with.role = BP_ROLE_GRAD;
    assert_refused(plan, &w, &e, "grad");
    e.with = original;
    e.with.unit = "nobody";
    assert_refused(plan, &w, &e, "nobody");
    e.with.unit = "u0";
    assert_refused(plan, &w, &e, "u0");
    e.with = original;
    e.with.ordinal = 7;
    assert_refused(plan, &w, &e, "7");
    e.with = original;
    e.with.bucket = "wrong";
    assert_refused(plan, &w, &e, "wrong");
    e.with = original;
    e.with.slab = 1;
    assert_refused(plan, &w, &e, "u1");
    /* u0 and u2 share a buffer and wait for each other, so u0's list must not be empty. */
    e = (edit){.skip = SIZE_MAX, .index = 0, .with = assignment_at(plan, 0)};
    assert_int_equal(e.with.predecessor_count, 1);
    e.with.predecessor_count = 0;
    assert_refused(plan, &w, &e, "predecessor");
    bp_plan_destroy(&plan);
    end_world(&w);
}

/* What the builder would refuse reaches the checker only in a plan that is changed in place. */
static void test_check_refuses_changed(void **state)
{
    (void)state;
    world w = world_of_kinds("xyz");
    bp_plan *plan = make_max(&w, 0);
    bp_assignment_data *a = &plan->assignments[1];
    const bp_assignment_data original = *a;
    a->offset += 1;
    assert_fails(bp_plan_check(plan, w.buckets, w.schedule), BP_ERR_MISMATCH, "u1", "multiple");
    a->offset = slab_at(plan, 0).bytes;
    assert_fails(bp_plan_check(plan, w.buckets, w.schedule), BP_ERR_MISMATCH, "u1", "leave slab 0");
    a->offset = UINT64_MAX - ALIGNMENT + 1;
    assert_fails(bp_plan_check(plan, w.buckets, w.schedule), BP_ERR_MISMATCH, "u1", "leave slab 0");
    *a = original;
    a->slab = 9;
    assert_fails(bp_plan_check(plan, w.buckets, w.schedule), BP_ERR_MISMATCH, "u1", "slab 9");
    *a = original;
    a->unit = plan->assignments[0].unit;
    assert_fails(bp_plan_check(plan, w.buckets, w.schedule), BP_ERR_MISMATCH, "u0", "same request");
    *a = original;
    uint32_t predecessor = plan->predecessors[0];
    plan->predecessors[0] = 3;
    assert_fails(bp_plan_check(plan, w.buckets, w.schedule), BP_ERR_MISMATCH, "predecessor 3");
    plan->predecessors[0] = predecessor;
    plan->summary.alignment = 0;
    assert_fails(bp_plan_check(plan, w.buckets, w.schedule), BP_ERR_MISMATCH, "alignment");
    plan->summary.alignment = ALIGNMENT;
    plan->assignment_count = 2;
    plan->predecessor_count = 0;
    plan->assignments[0].first_predecessor = plan->assignments[1].first_predecessor = 0;
    assert_fails(bp_plan_check(plan, w.buckets, w.schedule), BP_ERR_MISMATCH, "u2", "no address");
    bp_plan_destroy(&plan);
    end_world(&w);
}

/* Moves and list entries changed at random: the checker says what the naive one says. The exception are lists in which a
 * predecessor's use before its latest does: rare, and refused by the checker. */
static void test_check_agrees_with_naive(void **state)
{
    (void)state;
    seed(6);
    uint32_t refused = 0, accepted = 0, stricter = 0;
    for (int i = 0; i < 3000; i++) {
        bp_model *model = random_model(2 + random_below(4));
        bool recorded = random_below(2) == 0;
        world_options options = DEFAULTS;
        options.prefetch = random_below(3);
        if (recorded) {
            options = (world_options){.roles = PARAM, .recorded = 1};
            record_randomly(model, random_below(2) == 0);
        }
        world w = make_world(model, options);
        bp_plan *plan = make_max(&w, random_below(2) == 0 ? 0 : 6);
        if (!summary_of(plan).feasible) {
            bp_plan_destroy(&plan);
            end_world(&w);
            continue;
        }
        for (uint32_t changes = random_below(4); changes > 0; changes--) {
            size_t index = random_below((uint32_t)plan->assignment_count);
            bp_assignment_data *a = &plan->assignments[index];
            uint64_t room = plan->slabs[a->slab].bytes - aligned(a->bytes);
            switch (random_below(4)) {
            case 0: a->offset = random_below((uint32_t)(room / ALIGNMENT) + 1) * (uint64_t)ALIGNMENT; break;
            case 1:
                if (plan->predecessor_count > 0)
                    plan->predecessors[random_below((uint32_t)plan->predecessor_count)] = (uint32_t)index;
                break;
            case 2:
                if (plan->predecessor_count > 0) /* any other one may still do, by what it waits for itself */
                    plan->predecessors[random_below((uint32_t)plan->predecessor_count)] =
                        random_below((uint32_t)plan->assignment_count);
                break;
            default: a->offset = plan->assignments[random_below((uint32_t)plan->assignment_count)].offset; break;
            }
        }
        bool good = naive_check(plan, &w);
        bp_status status = bp_plan_check(plan, w.buckets, w.schedule);
        bool strict = good && status == BP_ERR_MISMATCH && strstr(bp_error_detail(), "is no predecessor") != NULL;
        stricter += strict;
        if (status != (good ? BP_OK : BP_ERR_MISMATCH) && !strict)
            fail_msg("case %d: naive says %d, bp_plan_check %s: %s", i, good, bp_status_name(status),
                     bp_error_detail());
        refused += !good;
        accepted += good;
        bp_plan_destroy(&plan);
        end_world(&w);
    }
    assert_true(refused > 500 && accepted > 500 && stricter < 5);
}

/* Each predecessor is needed: lists are not longer than the order asks for. */
static void test_predecessors_are_minimal(void **state)
{
    (void)state;
    seed(7);
    for (int i = 0; i < 100; i++) {
        bp_model *model = random_model(2 + random_below(4));
        world_options options = DEFAULTS;
        if (i % 2 == 0) {
            options = (world_options){.roles = PARAM, .recorded = 1};
            record_randomly(model, false);
        }
        world w = make_world(model, options);
        bp_plan *plan = make_max(&w, 0);
        for (size_t a = 0; a < bp_plan_assignment_count(plan); a++) {
            const uint32_t *first;
            size_t count = bp_predecessors_of(plan, a, &first);
            for (size_t k = 0; k < count; k++) {
                uint32_t *entry = &plan->predecessors[(size_t)(first - plan->predecessors) + k], kept = *entry;
                assert_int_not_equal(kept, a);
                for (size_t other = 0; other < k; other++)
                    assert_int_not_equal(kept, first[other]);
                *entry = (uint32_t)a;
                assert_fails(bp_plan_check(plan, w.buckets, w.schedule), BP_ERR_MISMATCH, "predecessor");
                *entry = kept;
            }
        }
        bp_plan_destroy(&plan);
        end_world(&w);
    }
}

/* A plan of three units, "u" and "r" in the same bytes, that is live by `events` ("u" acquires, "U" releases); r waits for p
 * only, and p for u. */
static bp_status check_chain(const char *events)
{
    static const char *const names[] = {"u", "p", "r"};
    bp_model *model = new_model();
    for (int32_t i = 0; i < 3; i++)
        add_bucket(model, add_unit(model, names[i], BP_OUTSIDE), BP_DTYPE_UINT8, ALIGNMENT, 0);
    for (; *events != '\0'; events++)
        add_event(model, *events >= 'a', (int32_t)(strchr("uprUPR", *events) - "uprUPR") % 3, -1);
    world_options options = {.roles = PARAM, .recorded = 1};
    world w = make_world(model, options);
    bp_plan_summary summary = {.size = sizeof summary,
                               .policy = BP_POLICY_MAX,
                               .copies = 2,
                               .feasible = 1,
                               .stable = 1,
                               .alignment = ALIGNMENT,
                               .bytes = 2 * ALIGNMENT};
    bp_plan_slab slab = {.size = sizeof slab, .bytes = 2 * ALIGNMENT, .group = "param"};
    bp_plan_builder *builder = NULL;
    bp_plan *plan = NULL;
    assert_ok(bp_plan_builder_create(&summary, &builder));
    assert_ok(bp_plan_builder_add_slab(builder, &slab));
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t predecessor = (i + 2) % 3;
        bp_assignment a = {.size = sizeof a,
                           .unit = names[i],
                           .dtype = BP_DTYPE_UINT8,
                           .bytes = ALIGNMENT,
                           .offset = i == 1 ? ALIGNMENT : 0,
                           .predecessors = &predecessor,
                           .predecessor_count = 1};
        assert_ok(bp_plan_builder_add_assignment(builder, &a));
    }
    assert_ok(bp_plan_builder_finish(&builder, &plan));
    bp_status status = bp_plan_check(plan, w.buckets, w.schedule);
    assert_int_equal(status == BP_OK, naive_check(plan, &w));
    bp_plan_destroy(&plan);
    end_world(&w);
    return status;
}

/* A predecessor passes on what it waited for only if it had begun after that and ended before the one that waits. */
static void test_check_chains(void **state)
{
    (void)state;
    assert_ok(check_chain("uUpPrR"));
    assert_fails(check_chain("uUprRP"), BP_ERR_MISMATCH, "r/", "u/", "predecessor");
    assert_fails(check_chain("uUprPR"), BP_ERR_MISMATCH, "r/", "u/", "predecessor");
    assert_fails(check_chain("upPUrR"), BP_ERR_MISMATCH, "r/", "u/", "predecessor");
    assert_fails(check_chain("pPuUrR"), BP_ERR_MISMATCH, "r/", "u/", "predecessor");
    assert_fails(check_chain("urURpP"), BP_ERR_MISMATCH, "r/", "u/", "both hold", "step 1"); /* for a single step */
    assert_fails(check_chain("urRUpP"), BP_ERR_MISMATCH, "r/", "u/", "both hold");
}

static void test_check_other_buckets(void **state)
{
    (void)state;
    world w = world_of_kinds("xyz"), longer = world_of_kinds("xyzx"), other = world_of_kinds("xyy");
    bp_plan *plan = make_max(&w, 0);
    assert_fails(bp_plan_check(plan, w.buckets, longer.schedule), BP_ERR_INVALID_ARGUMENT, "3", "4");
    assert_fails(bp_plan_check(plan, longer.buckets, longer.schedule), BP_ERR_MISMATCH, "u3");
    assert_fails(bp_plan_check(plan, other.buckets, other.schedule), BP_ERR_MISMATCH, "u2", "1200", "800");
    assert_fails(bp_plan_check(NULL, w.buckets, w.schedule), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_plan_check(plan, NULL, w.schedule), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_fails(bp_plan_check(plan, w.buckets, NULL), BP_ERR_INVALID_ARGUMENT, NULL);
    bp_plan_destroy(&plan);
    end_world(&w);
    end_world(&longer);
    end_world(&other);
}

/* A plan of real size, by the checker alone: the naive references are too slow. */
static void test_check_large(void **state)
{
    (void)state;
    seed(4);
    bp_model *model = new_model();
    for (uint32_t u = 0; u < 300; u++) {
        int32_t unit = add_numbered_unit(model, u);
        for (uint32_t b = 0; b <= u % 4; b++)
            add_bucket(model, unit, b == 3 ? BP_DTYPE_FP32 : BP_DTYPE_BF16, 1 + random_below(5000000), 0);
    }
    world w = make_world(model, DEFAULTS);
    for (int policy = BP_POLICY_FIXED; policy <= BP_POLICY_SCHEDULED; policy++) {
        bp_plan *plan = make_plan(&w, (bp_policy)policy, 0, BP_FALLBACK_PERSISTENT);
        assert_ok(bp_plan_check(plan, w.buckets, w.schedule));
        bp_plan_destroy(&plan);
    }
    end_world(&w);
}

/* ---- the builder --------------------------------------------------------------------------------------------------- */

static void test_builder_errors(void **state)
{
    (void)state;
    world w = world_of_kinds("xyz");
    bp_plan *plan = make_max(&w, 0), *out = NULL;
    bp_plan_summary summary = summary_of(plan);
    bp_plan_builder *builder = NULL;
    assert_fails(bp_plan_builder_create(NULL, &builder), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_null(builder);
    assert_ok(bp_plan_builder_create(&summary, &builder));
    bp_assignment a = assignment_at(plan, 0);
    a.unit = NULL;
    assert_fails(bp_plan_builder_add_assignment(builder, &a), BP_ERR_INVALID_ARGUMENT, NULL);
    a = assignment_at(plan, 0);
    assert_ok(bp_plan_builder_add_assignment(builder, &a));
    assert_fails(bp_plan_builder_finish(&builder, &out), BP_ERR_MISMATCH, "u0"); /* no slab */
    assert_null(builder);
    assert_null(out);
    bp_plan_builder_destroy(&builder);
    bp_plan_builder_destroy(NULL);
    bp_plan_destroy(&plan);
    end_world(&w);
}

/* ---- fingerprints and options -------------------------------------------------------------------------------------- */

static void test_determinism(void **state)
{
    (void)state;
    for (int policy = BP_POLICY_FIXED; policy <= BP_POLICY_SCHEDULED; policy++) {
        world w = make_world(make_mixed(), DEFAULTS), again = make_world(make_mixed(), DEFAULTS);
        bp_plan *a = make_plan(&w, (bp_policy)policy, 0, BP_FALLBACK_PERSISTENT);
        bp_plan *b = make_plan(&again, (bp_policy)policy, 0, BP_FALLBACK_PERSISTENT);
        assert_same_fingerprint(a, b, true);
        assert_ok(bp_plan_set_model(b, "another name"));
        assert_ok(bp_plan_set_option(b, "dp", "8"));
        assert_same_fingerprint(a, b, true);
        end_world(&w);
        end_world(&again);
        /* The plan keeps nothing of its inputs. */
        assert_ok(bp_plan_validate(a));
        bp_plan_destroy(&a);
        bp_plan_destroy(&b);
    }
}

static void test_fingerprint_differs(void **state)
{
    (void)state;
    world w = make_world(make_fp8(), DEFAULTS);
    bp_plan *plan = make_max(&w, 3);
    for (int kind = 0; kind < 7; kind++) {
        edit e = NO_EDIT;
        e.index = 1;
        e.with = assignment_at(plan, 1);
        if (kind == 0)
            e.more_slab_bytes = ALIGNMENT;
        else if (kind == 1)
            e.with.offset += e.with.offset == 0 ? ALIGNMENT : -(uint64_t)ALIGNMENT;
        else if (kind == 2)
            e.with.bytes -= 1;
        else if (kind == 3)
            e.with.dtype = BP_DTYPE_FP16;
        else if (kind == 4)
            e.with.unit = "elsewhere";
        else if (kind == 5)
            e.with.bucket = "renamed";
        else
            e.with.role = BP_ROLE_STATE;
        bp_plan *other = NULL;
        assert_ok(rebuild(plan, &e, &other));
        assert_same_fingerprint(plan, other, false);
        bp_plan_destroy(&other);
    }
    /* without its predecessors a request waits for nobody: that is another plan */
    edit e = NO_EDIT;
    e.index = 0;
    while (assignment_at(plan, e.index).predecessor_count == 0)
        e.index++;
    e.with = assignment_at(plan, e.index);
    e.with.predecessor_count = 0;
    bp_plan *other = NULL;
    assert_ok(rebuild(plan, &e, &other));
    assert_same_fingerprint(plan, other, false);
    bp_plan_destroy(&other);
    bp_plan_destroy(&plan);
    end_world(&w);
}

static void test_options(void **state)
{
    (void)state;
    world w = world_of_kinds("xy");
    bp_plan *plan = make_max(&w, 0);
    const char *key, *value;
    assert_ok(bp_plan_set_option(plan, "dp", "8"));
    assert_ok(bp_plan_set_option(plan, "ep", "2"));
    assert_ok(bp_plan_set_option(plan, "dp", "16"));
    assert_int_equal(bp_plan_option_count(plan), 2);
    assert_ok(bp_plan_option(plan, 0, &key, &value));
    assert_string_equal(key, "dp");
    assert_string_equal(value, "16");
    assert_ok(bp_plan_set_option(plan, "dp", NULL));
    assert_int_equal(bp_plan_option_count(plan), 1);
    assert_ok(bp_plan_option(plan, 0, &key, &value));
    assert_string_equal(key, "ep");
    assert_fails(bp_plan_option(plan, 1, &key, &value), BP_ERR_INVALID_ARGUMENT, NULL);
    assert_ok(bp_plan_set_model(plan, "m"));
    assert_string_equal(bp_plan_model(plan), "m");
    bp_plan_destroy(&plan);
    end_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_check_large),
        cmocka_unit_test(test_determinism),
        cmocka_unit_test(test_fingerprint_differs),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_check_refuses_rebuilt),
        cmocka_unit_test(test_check_refuses_changed),
        cmocka_unit_test(test_check_agrees_with_naive),
        cmocka_unit_test(test_predecessors_are_minimal),
        cmocka_unit_test(test_check_chains),
        cmocka_unit_test(test_check_other_buckets),
        cmocka_unit_test(test_builder_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Random programs and plans through a server, against the reference model: exact steps are served completely, at the planned addresses;
 * whatever else programs do, invariants 1 to 5 of step_serve.h hold. */
#include "support/harness.h"

#include "programs.h"
#include "support/brief.h"
#include "support/scenarios.h"

static void assert_right(const reference *r, uint64_t seed)
{
    if (reference_wrong(r) != NULL)
        fail_msg("seed %llu: %s", (unsigned long long)seed, reference_wrong(r));
}

static program_options random_options(void)
{
    return (program_options){.items = 4 + random_below(120),
                             .kinds = 1 + random_below(PROGRAM_KINDS),
                             .streams = 1 + random_below(4),
                             .sizes = 1 + random_below(20),
                             .has_large = random_below(4) == 0};
}

/* ---- exact programs ------------------------------------------------------------------------------------------------ */

static void check_exact(uint64_t number, const program_options *options, unsigned steps)
{
    SCOPED(program_destroy) program *p = program_create(options);
    SCOPED(bp_step_plan_destroy) bp_step_plan *plan = program_plan(p, false);
    reference *r = reference_create(plan, true);
    assert_non_null(r);
    runner run;
    runner_init(&run, p, r, NULL);
    for (unsigned step = 0; step < steps; step++) {
        const uint64_t planned = run.planned, changes = r->changes, waits = r->expected.waits;
        runner_step(&run);
        reference_check(r);
        assert_right(r, number);
        if (run.missed != 0)
            fail_msg("seed %llu, step %u: %llu of %llu allocations are not at their planned addresses",
                     (unsigned long long)number, step, (unsigned long long)run.missed,
                     (unsigned long long)(run.planned - planned));
        /* When the second stream appears, all memory counts as used by the first. */
        const bool is_steady = p->kind_count == 1 && step > 1;
        if (r->expected.waits > r->changes + options->streams - 1 ||
            (is_steady && r->expected.waits - waits > r->changes - changes))
            fail_msg("seed %llu, step %u: %llu waits for %llu changes of streams", (unsigned long long)number, step,
                     (unsigned long long)(r->expected.waits - waits), (unsigned long long)(r->changes - changes));
    }
    assert_int_equal(r->expected.outcomes[BP_STEP_SERVED], run.planned);
    assert_true(options->streams > 1 || (r->expected.events == 0 && r->expected.waits == 0));
    runner_free_all(&run);
    reference_check(r);
    assert_right(r, number);
    assert_int_equal(r->expected.live, 0);
    runner_finish(&run);
    reference_destroy(r);
}

TEST(test_exact_steps)
{
    for (int i = 0; i < share_of(400); i++) {
        seed((uint64_t)i);
        program_options options = random_options();
        check_exact((uint64_t)i, &options, 10);
    }
}

/* A step without marks ends with its last allocation. */
TEST(test_exact_steps_without_marks)
{
    for (int i = 0; i < share_of(200); i++) {
        seed((uint64_t)i);
        program_options options = random_options();
        options.kinds = 1;
        options.without_marks = true;
        check_exact((uint64_t)i, &options, 10);
    }
}

/* After another program's plan, and at a mark, a plan is served as by a new server. What lives then is moved by nothing. */
TEST(test_exact_steps_after_replacement)
{
    for (int i = 0; i < share_of(100); i++) {
        seed((uint64_t)i);
        program_options options = random_options();
        SCOPED(program_destroy) program *p = program_create(&options);
        SCOPED(program_destroy) program *q = program_create(&options);
        const program *large = p->slab_bytes > q->slab_bytes ? p : q, *small = large == p ? q : p;
        SCOPED(bp_step_plan_destroy)
        bp_step_plan *first = program_plan(large, random_below(2)), *second = program_plan(small, false);
        reference *r = reference_create(first, true);
        assert_non_null(r);
        runner before, after;
        runner_init(&before, large, r, NULL);
        runner_init(&after, small, r, NULL);
        after.step = 1; /* its first step was before */
        for (int step = 0; step < 3; step++)
            runner_step(&before);
        reference_replace(r, second);
        reference_check(r);
        runner_free_all(&before);
        for (int step = 0; step < 6; step++)
            runner_step(&after);
        reference_check(r);
        assert_right(r, (uint64_t)i);
        if (after.missed > 0)
            fail_msg("seed %d: %llu of %llu allocations are not at their planned addresses", i,
                     (unsigned long long)after.missed, (unsigned long long)after.planned);
        runner_free_all(&after);
        runner_finish(&before);
        runner_finish(&after);
        reference_destroy(r);
    }
}

/* ---- deviations ---------------------------------------------------------------------------------------------------- */

static run_deviations random_deviations(void)
{
    static const uint32_t chances[] = {0, 0, 5, 20, 100, 300};
    enum { CHANCES = sizeof chances / sizeof *chances };
    return (run_deviations){.omits = chances[random_below(CHANCES)],
                            .inserts = chances[random_below(CHANCES)],
                            .swaps = chances[random_below(CHANCES)],
                            .frees_late = chances[random_below(CHANCES)],
                            .drops_marks = chances[random_below(CHANCES)],
                            .adds_marks = chances[random_below(4)],
                            .leaves = chances[random_below(4)],
                            .uses = chances[random_below(CHANCES)],
                            .pauses = chances[random_below(4)],
                            .anywhere = chances[random_below(CHANCES)],
                            .captures = chances[random_below(CHANCES)],
                            .mistakes = chances[random_below(CHANCES)]};
}

static bool refuses_some(void *context)
{
    (void)context;
    return random_below(4) == 0;
}

/* Two runners, in turns, are two threads of a program. */
static uint64_t run_randomly(uint64_t number, unsigned steps, uint64_t *served)
{
    seed(number);
    program_options options = random_options(), others = random_options();
    SCOPED(program_destroy) program *p = program_create(&options);
    SCOPED(program_destroy) program *q = program_create(&others);
    const uint32_t plan_of = random_below(8); /* 0: another program's; 1, 2: a wrong one */
    SCOPED(bp_step_plan_destroy) bp_step_plan *plan = program_plan(plan_of == 0 ? q : p, plan_of == 1 || plan_of == 2);
    reference *r = reference_create(plan, random_below(8) > 0);
    assert_non_null(r);
    if (random_below(8) == 0)
        r->refuses = refuses_some;
    run_deviations deviations = random_deviations();
    runner runs[2];
    runner_init(&runs[0], p, r, &deviations);
    runner_init(&runs[1], random_below(2) ? p : q, r, &deviations);
    const size_t threads = 1 + (random_below(4) == 0);
    for (size_t i = 0; i < threads; i++)
        runner_begin(&runs[i]);
    const uint32_t replaces = random_below(4) == 0 ? 400 : 0;
    for (unsigned step = 0; step < steps;) {
        runner *run = &runs[random_below((uint32_t)threads)];
        if (!runner_advance(run)) {
            runner_begin(run);
            step++;
        }
        if (replaces > 0 && random_below(replaces) == 0) {
            SCOPED(bp_step_plan_destroy)
            bp_step_plan *other = program_plan(random_below(2) ? p : q, random_below(4) == 0);
            reference_replace(r, other);
        }
        if (random_below(16) == 0)
            assert_ok(bp_step_server_check(r->server));
        if (random_below(128) == 0)
            reference_check(r);
        assert_right(r, number);
    }
    for (size_t i = 0; i < threads; i++)
        runner_free_all(&runs[i]);
    reference_check(r);
    assert_right(r, number);
    assert_int_equal(r->expected.live, 0);
    const uint64_t planned = runs[0].planned + runs[1].planned;
    *served += r->expected.outcomes[BP_STEP_SERVED];
    for (size_t i = 0; i < 2; i++)
        runner_finish(&runs[i]);
    reference_destroy(r);
    return planned;
}

TEST(test_deviations)
{
    uint64_t planned = 0, served = 0;
    for (int i = 0; i < share_of(3000); i++)
        planned += run_randomly(1000 + (uint64_t)i, 12, &served);
    print_message("%llu of %llu allocations are served\n", (unsigned long long)served, (unsigned long long)planned);
    assert_true(served > planned / 4); /* else nothing was tested */
}

/* ---- recovery ------------------------------------------------------------------------------------------------------ */

/* However wrong steps were, those without deviations are served completely again, even if streams were bound wrongly. */
TEST(test_recovery)
{
    int unrecovered = 0;
    for (int i = 0; i < share_of(300); i++) {
        seed(5000 + (uint64_t)i);
        program_options options = random_options();
        options.sizes += 6; /* of few sizes a wrong stream has all, and so serves */
        SCOPED(program_destroy) program *p = program_create(&options);
        SCOPED(bp_step_plan_destroy) bp_step_plan *plan = program_plan(p, false);
        reference *r = reference_create(plan, true);
        assert_non_null(r);
        runner run;
        run_deviations deviations = random_deviations();
        runner_init(&run, p, r, &deviations);
        for (int step = 0; step < 4; step++)
            runner_step(&run);
        runner_free_all(&run);
        reference_pause(r, false);
        r->captured = 0;
        run.deviations = (run_deviations){0};
        uint64_t missed = 1;
        for (int step = 0; step < 20; step++) {
            missed = run.missed;
            runner_step(&run);
            runner_free_all(&run); /* what the plan does not carry */
            missed = run.missed - missed;
        }
        unrecovered += missed != 0;
        if (missed)
            reference_check(r);
        assert_right(r, (uint64_t)i);
        runner_finish(&run);
        reference_destroy(r);
    }
    print_message("%d programs do not recover\n", unrecovered);
    assert_int_equal(unrecovered, 0);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Rules of streams and events. */
#include "rules_support.h"

#include "fakes/cuda/rules.h"

BP_CUDA_RULES(BP_DECLARE_RULE)

void streams_run_in_order(rules *r)
{
    for (unsigned i = 1; i <= 100; i++) {
        OKAY(fill_part(r, r->a, 0, (unsigned char)i));
        OKAY(copy_part(r, r->a, 1 + i % 4, 0));
    }
    for (unsigned i = 0; i < 5; i++)
        OKAY(read_part(r, r->a, i));
    OKAY(r->driver.cuStreamSynchronize(r->a));
    HOLDS(host_part_is(r, 0, 100));
    for (unsigned i = 97; i <= 100; i++)
        HOLDS(host_part_is(r, 1 + i % 4, (unsigned char)i));
}

void streams_run_beside_each_other(rules *r)
{
    OKAY(hold_up(r, r->a));
    OKAY(fill_part(r, r->a, 1, 4));
    OKAY(fill_part(r, r->b, 0, 3));
    OKAY(read_part(r, r->b, 0));
    OKAY(read_part(r, r->b, 1));
    OKAY(r->driver.cuStreamSynchronize(r->b));
    HOLDS(host_part_is(r, 0, 3));
    HOLDS(host_part_is(r, 1, 0));
    open_gate(r);
}

void records_mark_what_was_given(rules *r)
{
    OKAY(fill_part(r, r->a, 0, 2));
    OKAY(read_part(r, r->a, 0));
    OKAY(r->driver.cuEventRecord(r->e, r->a));
    OKAY(hold_up(r, r->a));
    OKAY(r->driver.cuEventSynchronize(r->e));
    HOLDS(host_part_is(r, 0, 2));
    open_gate(r);
}

void waits_keep_their_mark(rules *r)
{
    OKAY(fill_part(r, r->a, 0, 2));
    OKAY(r->driver.cuEventRecord(r->e, r->a));
    OKAY(r->driver.cuStreamWaitEvent(r->b, r->e, 0));
    OKAY(hold_up(r, r->a));
    OKAY(r->driver.cuEventRecord(r->e, r->a));
    OKAY(read_part(r, r->b, 0));
    OKAY(r->driver.cuStreamSynchronize(r->b));
    HOLDS(host_part_is(r, 0, 2));
    open_gate(r);
}

void unrecorded_events_are_complete(rules *r)
{
    OKAY(r->driver.cuEventSynchronize(r->e));
    OKAY(r->driver.cuStreamWaitEvent(r->a, r->e, 0));
    OKAY(r->driver.cuStreamSynchronize(r->a));
}

void pending_events_may_be_destroyed(rules *r)
{
    OKAY(hold_up(r, r->a));
    OKAY(fill_part(r, r->a, 0, 7));
    OKAY(r->driver.cuEventRecord(r->e, r->a));
    OKAY(r->driver.cuStreamWaitEvent(r->b, r->e, 0));
    OKAY(r->driver.cuEventDestroy(r->e));
    r->e = NULL;
    OKAY(read_part(r, r->b, 0));
    pause_ms(2);
    open_gate(r);
    OKAY(r->driver.cuStreamSynchronize(r->b));
    HOLDS(host_part_is(r, 0, 7));
}

void busy_streams_may_be_destroyed(rules *r)
{
    OKAY(hold_up(r, r->a));
    OKAY(fill_part(r, r->a, 0, 9));
    OKAY(r->driver.cuStreamDestroy(r->a));
    r->a = NULL;
    open_gate(r);
    OKAY(r->driver.cuCtxSynchronize());
    OKAY(read_part(r, r->b, 0));
    OKAY(r->driver.cuStreamSynchronize(r->b));
    HOLDS(host_part_is(r, 0, 9));
}

void legacy_waits_for_blocking_streams(rules *r)
{
    OKAY(hold_up(r, r->blocking));
    OKAY(fill_part(r, r->blocking, 0, 5));
    OKAY(read_part(r, NULL, 0));
    pause_ms(2);
    open_gate(r);
    OKAY(r->driver.cuStreamSynchronize(NULL));
    HOLDS(host_part_is(r, 0, 5));
    OKAY(hold_up(r, NULL));
    OKAY(fill_part(r, NULL, 0, 6));
    OKAY(read_part(r, r->blocking, 0));
    pause_ms(2);
    open_gate(r);
    OKAY(r->driver.cuStreamSynchronize(r->blocking));
    HOLDS(host_part_is(r, 0, 6));
}

static atomic_int done;

static void be_slow(void *argument)
{
    (void)argument;
    pause_ms(20);
    atomic_store(&done, 1);
}

void waiting_for_legacy_waits_for_blocking_streams(rules *r)
{
    atomic_store(&done, 0);
    OKAY(r->driver.cuLaunchHostFunc(r->blocking, be_slow, NULL));
    OKAY(r->driver.cuStreamSynchronize(NULL));
    HOLDS(atomic_load(&done) == 1);
}

void legacy_ignores_non_blocking_streams(rules *r)
{
    OKAY(hold_up(r, r->a));
    OKAY(fill_part(r, NULL, 0, 5));
    OKAY(read_part(r, NULL, 0));
    OKAY(r->driver.cuStreamSynchronize(NULL));
    HOLDS(host_part_is(r, 0, 5));
    open_gate(r);
    OKAY(r->driver.cuStreamSynchronize(r->a));
    OKAY(hold_up(r, NULL));
    OKAY(fill_part(r, r->a, 1, 6));
    OKAY(read_part(r, r->a, 1));
    OKAY(r->driver.cuStreamSynchronize(r->a));
    HOLDS(host_part_is(r, 1, 6));
    open_gate(r);
}

/* The first part as a host function saw it. */
static bool saw_three;

static void look(void *argument)
{
    saw_three = host_part_is(argument, 0, 3);
}

void host_functions_are_in_order(rules *r)
{
    saw_three = false;
    OKAY(fill_part(r, r->a, 0, 3));
    OKAY(read_part(r, r->a, 0));
    OKAY(r->driver.cuLaunchHostFunc(r->a, look, r));
    OKAY(fill_part(r, r->a, 0, 4));
    OKAY(read_part(r, r->a, 0));
    OKAY(r->driver.cuStreamSynchronize(r->a));
    HOLDS(saw_three);
    HOLDS(host_part_is(r, 0, 4));
}

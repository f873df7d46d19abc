/* SPDX-License-Identifier: Apache-2.0 */
/* Rules of contexts. */
#include "rules_support.h"

#include "fakes/cuda/rules.h"

BP_CUDA_RULES(BP_DECLARE_RULE)

#define TWO_DEVICES "one device only"

void primary_contexts_are_counted(rules *r)
{
    void *again = NULL;
    OKAY(r->driver.cuDevicePrimaryCtxRetain(&again, 0));
    HOLDS(again == r->context);
    OKAY(r->driver.cuDevicePrimaryCtxRelease(0));
    OKAY(fill_part(r, r->a, 0, 1));
    OKAY(r->driver.cuStreamSynchronize(r->a));
    if (r->devices > 1)
        EXPECT(r->driver.cuDevicePrimaryCtxRelease(1), 201);
}

static void has_no_context(rules *r)
{
    void *current = r;
    OKAY(r->driver.cuCtxGetCurrent(&current));
    HOLDS(current == NULL);
    EXPECT(r->driver.cuCtxPopCurrent(&current), 201);
    OKAY(r->driver.cuCtxPushCurrent(r->context));
    OKAY(r->driver.cuCtxPopCurrent(&current));
    HOLDS(current == r->context);
}

void contexts_are_a_stack_per_thread(rules *r)
{
    void *current = NULL;
    OKAY(r->driver.cuCtxPushCurrent(r->context));
    OKAY(r->driver.cuCtxGetCurrent(&current));
    HOLDS(current == r->context);
    in_thread(r, has_no_context);
    current = NULL;
    OKAY(r->driver.cuCtxPopCurrent(&current));
    HOLDS(current == r->context);
    OKAY(r->driver.cuCtxGetCurrent(&current));
    HOLDS(current == r->context);
}

static void makes_nothing(rules *r)
{
    void *made;
    uint64_t address;
    EXPECT(r->driver.cuStreamCreate(&made, 1), 201);
    EXPECT(r->driver.cuEventCreate(&made, 2), 201);
    EXPECT(r->driver.cuMemAlloc(&address, 4096), 201);
}

void objects_need_a_context(rules *r)
{
    in_thread(r, makes_nothing);
}

static void does_nothing(rules *r)
{
    OKAY_OR_WANTS_CONTEXT(r->driver.cuEventRecord(r->e, r->a));
    OKAY_OR_WANTS_CONTEXT(r->driver.cuStreamWaitEvent(r->a, r->e, 0));
    OKAY_OR_WANTS_CONTEXT(fill_part(r, r->a, 0, 1));
    EXPECT(fill_part(r, NULL, 0, 1), 201);
    EXPECT(r->driver.cuEventRecord(r->e, NULL), 201);
    EXPECT(r->driver.cuCtxSynchronize(), 201);
}

void work_needs_a_context(rules *r)
{
    in_thread(r, does_nothing);
}

static void work_of_this_device(rules *r)
{
    OKAY(fill_part(r, r->a, 0, 5));
    OKAY(r->driver.cuEventRecord(r->e, r->a));
    OKAY(r->driver.cuStreamWaitEvent(r->b, r->e, 0));
    OKAY(read_part(r, r->b, 0));
    OKAY(r->driver.cuStreamSynchronize(r->b));
    HOLDS(host_part_is(r, 0, 5));
}

void another_device_may_be_current(rules *r)
{
    void *other, *popped;
    SKIP_UNLESS(r->devices > 1, TWO_DEVICES);
    OKAY(r->driver.cuDevicePrimaryCtxRetain(&other, 1));
    OKAY(r->driver.cuCtxPushCurrent(other));
    work_of_this_device(r);
    OKAY(r->driver.cuCtxPopCurrent(&popped));
    OKAY(r->driver.cuDevicePrimaryCtxRelease(1));
}

void streams_know_their_context(rules *r)
{
    void *context = NULL;
    OKAY(r->driver.cuStreamGetCtx(r->a, &context));
    HOLDS(context == r->context);
    context = NULL;
    OKAY(r->driver.cuStreamGetCtx(NULL, &context));
    HOLDS(context == r->context);
}

void events_stay_in_their_context(rules *r)
{
    void *other, *popped, *event = NULL;
    SKIP_UNLESS(r->devices > 1, TWO_DEVICES);
    OKAY(r->driver.cuDevicePrimaryCtxRetain(&other, 1));
    OKAY(r->driver.cuCtxPushCurrent(other));
    OKAY(r->driver.cuEventCreate(&event, 2));
    EXPECT(r->driver.cuEventRecord(event, r->a), 400);
    OKAY(r->driver.cuEventDestroy(event));
    OKAY(r->driver.cuCtxPopCurrent(&popped));
    OKAY(r->driver.cuDevicePrimaryCtxRelease(1));
}

void waits_may_cross_devices(rules *r)
{
    void *other, *popped, *stream = NULL;
    SKIP_UNLESS(r->devices > 1, TWO_DEVICES);
    OKAY(r->driver.cuDevicePrimaryCtxRetain(&other, 1));
    OKAY(r->driver.cuCtxPushCurrent(other));
    OKAY(r->driver.cuStreamCreate(&stream, 1));
    OKAY(hold_up(r, r->a));
    OKAY(fill_part(r, r->a, 0, 9));
    OKAY(read_part(r, r->a, 0));
    OKAY(r->driver.cuEventRecord(r->e, r->a));
    OKAY(r->driver.cuStreamWaitEvent(stream, r->e, 0));
    open_gate(r);
    OKAY(r->driver.cuStreamSynchronize(stream));
    HOLDS(host_part_is(r, 0, 9));
    OKAY(r->driver.cuStreamDestroy(stream));
    OKAY(r->driver.cuCtxPopCurrent(&popped));
    OKAY(r->driver.cuDevicePrimaryCtxRelease(1));
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Rules of captures: operations that are prohibited while a capture lasts. */
#include "rules_support.h"

#include "fakes/cuda/rules.h"

BP_CUDA_RULES(BP_DECLARE_RULE)

enum { GLOBAL = 0, THREAD_LOCAL = 1, RELAXED = 2 };

static int end(rules *r, void *stream)
{
    void *graph = r;
    int error = r->driver.cuStreamEndCapture(stream, &graph);
    return error == 0 ? r->driver.cuGraphDestroy(graph) : error;
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

void eager_events_stay_outside(rules *r)
{
    OKAY(r->driver.cuEventRecord(r->e, r->b));
    OKAY(r->driver.cuStreamBeginCapture(r->a, GLOBAL));
    OKAY(fill_part(r, r->a, 0, 1));
    EXPECT(r->driver.cuStreamWaitEvent(r->a, r->e, 0), 905);
    EXPECT(end(r, r->a), 901);
}

void captured_events_stay_inside(rules *r)
{
    OKAY(r->driver.cuStreamBeginCapture(r->a, GLOBAL));
    OKAY(fill_part(r, r->a, 0, 1));
    OKAY(r->driver.cuEventRecord(r->e, r->a));
    OKAY(end(r, r->a));
    EXPECT(r->driver.cuStreamWaitEvent(r->b, r->e, 0), 1);
    HOLDS(capture_status(r, r->b) == 0);
}

void captured_events_have_no_time(rules *r)
{
    OKAY(r->driver.cuStreamBeginCapture(r->a, RELAXED));
    OKAY(fill_part(r, r->a, 0, 1));
    OKAY(r->driver.cuEventRecord(r->e, r->a));
    EXPECT(r->driver.cuEventSynchronize(r->e), 907);
}

void captured_events_may_be_recorded_again(rules *r)
{
    OKAY(r->driver.cuStreamBeginCapture(r->a, GLOBAL));
    OKAY(fill_part(r, r->a, 0, 1));
    OKAY(r->driver.cuEventRecord(r->e, r->a));
    OKAY(end(r, r->a));
    OKAY(fill_part(r, r->a, 0, 6));
    OKAY(r->driver.cuEventRecord(r->e, r->a));
    OKAY(r->driver.cuStreamWaitEvent(r->b, r->e, 0));
    OKAY(read_part(r, r->b, 0));
    OKAY(r->driver.cuEventSynchronize(r->e));
    OKAY(r->driver.cuStreamSynchronize(r->b));
    HOLDS(host_part_is(r, 0, 6));
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

void captured_streams_are_not_waited_for(rules *r)
{
    OKAY(r->driver.cuStreamBeginCapture(r->a, RELAXED));
    OKAY(fill_part(r, r->a, 0, 1));
    EXPECT(r->driver.cuStreamSynchronize(r->a), 900);
}

void captured_contexts_are_not_waited_for(rules *r)
{
    OKAY(r->driver.cuStreamBeginCapture(r->a, RELAXED));
    OKAY(fill_part(r, r->a, 0, 1));
    EXPECT(r->driver.cuCtxSynchronize(), 900);
}

void errors_invalidate_captures(rules *r)
{
    OKAY(r->driver.cuEventRecord(r->e, r->b));
    OKAY(r->driver.cuStreamBeginCapture(r->a, GLOBAL));
    OKAY(fill_part(r, r->a, 0, 1));
    EXPECT(r->driver.cuStreamWaitEvent(r->a, r->e, 0), 905);
    HOLDS(capture_status(r, r->a) == 2);
    EXPECT(fill_part(r, r->a, 0, 1), 901);
    EXPECT(r->driver.cuEventRecord(r->f, r->a), 901);
    EXPECT(end(r, r->a), 901);
    HOLDS(capture_status(r, r->a) == 0);
    OKAY(fill_part(r, r->a, 0, 3));
    OKAY(r->driver.cuStreamSynchronize(r->a));
}

/* ---- the legacy stream ------------------------------------------------------------------------------------------- */

void legacy_is_unusable_in_captures(rules *r)
{
    OKAY(r->driver.cuStreamBeginCapture(r->blocking, RELAXED));
    OKAY(fill_part(r, r->blocking, 0, 1));
    EXPECT(fill_part(r, NULL, 0, 1), 906);
    EXPECT(end(r, r->blocking), 901);
}

void legacy_is_usable_beside_non_blocking_captures(rules *r)
{
    OKAY(r->driver.cuStreamBeginCapture(r->a, RELAXED));
    OKAY(fill_part(r, r->a, 0, 1));
    OKAY(fill_part(r, NULL, 1, 1));
    OKAY(r->driver.cuEventRecord(r->e, NULL));
    OKAY(end(r, r->a));
}

void asking_does_not_invalidate(rules *r)
{
    int status;
    OKAY(r->driver.cuStreamBeginCapture(r->blocking, RELAXED));
    OKAY(fill_part(r, r->blocking, 0, 1));
    EXPECT(r->driver.cuStreamGetCaptureInfo(NULL, &status, NULL, NULL, NULL, NULL), 906);
    HOLDS(capture_status(r, r->blocking) == 1);
    OKAY(end(r, r->blocking));
}

/* ---- calls that may be unsafe ------------------------------------------------------------------------------------ */

static uint64_t allocated;

static void is_refused_memory(rules *r)
{
    OKAY(r->driver.cuCtxPushCurrent(r->context));
    EXPECT(r->driver.cuMemAlloc(&allocated, PART_BYTES), 900);
}

static void gets_memory(rules *r)
{
    OKAY(r->driver.cuCtxPushCurrent(r->context));
    OKAY(r->driver.cuMemAlloc(&allocated, PART_BYTES));
}

void global_captures_forbid_unsafe_calls(rules *r)
{
    OKAY(r->driver.cuStreamBeginCapture(r->a, GLOBAL));
    OKAY(fill_part(r, r->a, 0, 1));
    EXPECT(r->driver.cuMemAlloc(&allocated, PART_BYTES), 900);
}

void global_captures_forbid_them_to_all(rules *r)
{
    OKAY(r->driver.cuStreamBeginCapture(r->a, GLOBAL));
    OKAY(fill_part(r, r->a, 0, 1));
    in_thread(r, is_refused_memory);
}

void local_captures_forbid_them_here_only(rules *r)
{
    OKAY(r->driver.cuStreamBeginCapture(r->a, THREAD_LOCAL));
    OKAY(fill_part(r, r->a, 0, 1));
    allocated = 0;
    in_thread(r, gets_memory);
    OKAY(end(r, r->a));
    OKAY(r->driver.cuMemFree(allocated));
    OKAY(r->driver.cuStreamBeginCapture(r->a, THREAD_LOCAL));
    EXPECT(r->driver.cuMemAlloc(&allocated, PART_BYTES), 900);
}

void relaxed_captures_forbid_nothing(rules *r)
{
    uint64_t address;
    OKAY(r->driver.cuStreamBeginCapture(r->a, RELAXED));
    OKAY(fill_part(r, r->a, 0, 1));
    OKAY(r->driver.cuMemAlloc(&address, PART_BYTES));
    OKAY(end(r, r->a));
    OKAY(r->driver.cuMemFree(address));
}

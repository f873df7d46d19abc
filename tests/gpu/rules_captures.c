/* SPDX-License-Identifier: Apache-2.0 */
/* Rules of captures: streams that join, and how captures end. */
#include "rules_support.h"

#include "fakes/cuda/rules.h"

BP_CUDA_RULES(BP_DECLARE_RULE)

enum { GLOBAL = 0, THREAD_LOCAL = 1, RELAXED = 2 };

/* Orders later work on `to` after the present work on `from`. */
static int follow(rules *r, void *to, void *from, void *event)
{
    int error = r->driver.cuEventRecord(event, from);
    return error == 0 ? r->driver.cuStreamWaitEvent(to, event, 0) : error;
}

void captured_work_does_not_run(rules *r)
{
    void *executable;
    OKAY(fill_part(r, r->a, 0, 1));
    OKAY(r->driver.cuStreamSynchronize(r->a));
    OKAY(r->driver.cuStreamBeginCapture(r->a, GLOBAL));
    OKAY(fill_part(r, r->a, 0, 2));
    OKAY(end_as_executable(r, r->a, &executable));
    OKAY(read_part(r, r->b, 0));
    OKAY(r->driver.cuStreamSynchronize(r->b));
    HOLDS(host_part_is(r, 0, 1));
    for (int i = 0; i < 3; i++) {
        OKAY(fill_part(r, r->a, 0, 1));
        OKAY(r->driver.cuGraphLaunch(executable, r->a));
        OKAY(read_part(r, r->a, 0));
        OKAY(r->driver.cuStreamSynchronize(r->a));
        HOLDS(host_part_is(r, 0, 2));
    }
    OKAY(r->driver.cuGraphExecDestroy(executable));
}

void captures_have_ids(rules *r)
{
    void *graph;
    uint64_t first;
    HOLDS(capture_status(r, r->a) == 0);
    OKAY(r->driver.cuStreamBeginCapture(r->a, GLOBAL));
    first = capture_id(r, r->a);
    OKAY(fill_part(r, r->a, 0, 2));
    OKAY(follow(r, r->b, r->a, r->e));
    HOLDS(capture_id(r, r->b) == first);
    OKAY(fill_part(r, r->b, 1, 2));
    OKAY(follow(r, r->a, r->b, r->f));
    OKAY(r->driver.cuStreamEndCapture(r->a, &graph));
    OKAY(r->driver.cuGraphDestroy(graph));
    OKAY(r->driver.cuStreamBeginCapture(r->a, GLOBAL));
    HOLDS(capture_id(r, r->a) != first);
    OKAY(fill_part(r, r->a, 0, 2));
    OKAY(r->driver.cuStreamEndCapture(r->a, &graph));
    OKAY(r->driver.cuGraphDestroy(graph));
}

void waits_join_captures(rules *r)
{
    void *graph;
    OKAY(r->driver.cuStreamBeginCapture(r->a, GLOBAL));
    HOLDS(capture_status(r, r->a) == 1);
    HOLDS(capture_status(r, r->b) == 0);
    OKAY(fill_part(r, r->a, 0, 2));
    OKAY(follow(r, r->b, r->a, r->e));
    HOLDS(capture_status(r, r->b) == 1);
    OKAY(fill_part(r, r->b, 0, 3));
    OKAY(follow(r, r->a, r->b, r->f));
    OKAY(r->driver.cuStreamEndCapture(r->a, &graph));
    HOLDS(capture_status(r, r->a) == 0);
    HOLDS(capture_status(r, r->b) == 0);
    OKAY(r->driver.cuGraphDestroy(graph));
}

void edges_order_nodes(rules *r)
{
    void *executable;
    OKAY(r->driver.cuStreamBeginCapture(r->a, GLOBAL));
    OKAY(fill_part(r, r->a, 0, 1));
    OKAY(follow(r, r->b, r->a, r->e));
    OKAY(copy_part(r, r->b, 1, 0));
    OKAY(follow(r, r->a, r->b, r->f));
    OKAY(fill_part(r, r->a, 0, 3));
    OKAY(end_as_executable(r, r->a, &executable));
    for (int i = 0; i < 20; i++) {
        OKAY(fill_part(r, r->a, 0, 9));
        OKAY(fill_part(r, r->a, 1, 9));
        OKAY(r->driver.cuGraphLaunch(executable, r->a));
        OKAY(read_part(r, r->a, 0));
        OKAY(read_part(r, r->a, 1));
        OKAY(r->driver.cuStreamSynchronize(r->a));
        HOLDS(host_part_is(r, 0, 3));
        HOLDS(host_part_is(r, 1, 1));
    }
    OKAY(r->driver.cuGraphExecDestroy(executable));
}

void forks_are_joined(rules *r)
{
    void *graph = r;
    OKAY(r->driver.cuStreamBeginCapture(r->a, GLOBAL));
    OKAY(fill_part(r, r->a, 0, 1));
    OKAY(follow(r, r->b, r->a, r->e));
    OKAY(fill_part(r, r->b, 1, 1));
    EXPECT(r->driver.cuStreamEndCapture(r->a, &graph), 904);
    HOLDS(capture_status(r, r->a) == 0);
    HOLDS(capture_status(r, r->b) == 0);
    OKAY(fill_part(r, r->b, 1, 4));
    OKAY(read_part(r, r->b, 1));
    OKAY(r->driver.cuStreamSynchronize(r->b));
    HOLDS(host_part_is(r, 1, 4));
}

void captures_end_where_they_began(rules *r)
{
    void *graph;
    OKAY(r->driver.cuStreamBeginCapture(r->a, GLOBAL));
    OKAY(fill_part(r, r->a, 0, 1));
    OKAY(follow(r, r->b, r->a, r->e));
    EXPECT(r->driver.cuStreamEndCapture(r->b, &graph), 903);
}

static void *captured;

static void end_elsewhere(rules *r)
{
    captured = NULL;
    OKAY(r->driver.cuCtxPushCurrent(r->context));
    EXPECT(r->driver.cuStreamEndCapture(r->a, &captured), 908);
}

void captures_end_in_their_thread(rules *r)
{
    OKAY(r->driver.cuStreamBeginCapture(r->a, THREAD_LOCAL));
    OKAY(fill_part(r, r->a, 0, 1));
    in_thread(r, end_elsewhere);
}

static void end_relaxed(rules *r)
{
    OKAY(r->driver.cuCtxPushCurrent(r->context));
    OKAY(r->driver.cuStreamEndCapture(r->a, &captured));
}

void relaxed_captures_end_anywhere(rules *r)
{
    captured = NULL;
    OKAY(r->driver.cuStreamBeginCapture(r->a, RELAXED));
    OKAY(fill_part(r, r->a, 0, 1));
    in_thread(r, end_relaxed);
    if (captured != NULL)
        OKAY(r->driver.cuGraphDestroy(captured));
}

void the_legacy_stream_is_not_captured(rules *r)
{
    REFUSED(r->driver.cuStreamBeginCapture(NULL, GLOBAL));
}

void captures_do_not_nest(rules *r)
{
    OKAY(r->driver.cuStreamBeginCapture(r->a, GLOBAL));
    REFUSED(r->driver.cuStreamBeginCapture(r->a, GLOBAL));
}

void captures_do_not_merge(rules *r)
{
    OKAY(r->driver.cuStreamBeginCapture(r->a, RELAXED));
    OKAY(r->driver.cuStreamBeginCapture(r->b, RELAXED));
    OKAY(fill_part(r, r->a, 0, 1));
    OKAY(fill_part(r, r->b, 1, 1));
    EXPECT(follow(r, r->b, r->a, r->e), 902);
}

void events_are_made_in_captures(rules *r)
{
    void *event, *stream, *graph;
    OKAY(r->driver.cuStreamBeginCapture(r->a, GLOBAL));
    OKAY(fill_part(r, r->a, 0, 1));
    OKAY(r->driver.cuEventCreate(&event, 2));
    OKAY(r->driver.cuStreamCreate(&stream, 1));
    OKAY(r->driver.cuStreamEndCapture(r->a, &graph));
    OKAY(r->driver.cuGraphDestroy(graph));
    OKAY(r->driver.cuEventDestroy(event));
    OKAY(r->driver.cuStreamDestroy(stream));
}

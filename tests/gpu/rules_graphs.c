/* SPDX-License-Identifier: Apache-2.0 */
/* Rules of graphs that are launched. */
#include "rules_support.h"

#include "fakes/cuda/rules.h"

BP_CUDA_RULES(BP_DECLARE_RULE)

static atomic_int inside, max, runs;

static void count_in(void *argument)
{
    (void)argument;
    int now = atomic_fetch_add(&inside, 1) + 1;
    if (now > atomic_load(&max))
        atomic_store(&max, now);
    pause_ms(1);
}

static void count_out(void *argument)
{
    (void)argument;
    atomic_fetch_sub(&inside, 1);
    atomic_fetch_add(&runs, 1);
}

void launches_are_in_order(rules *r)
{
    void *executable = NULL;
    atomic_store(&max, 0);
    atomic_store(&runs, 0);
    OKAY(r->driver.cuStreamBeginCapture(r->a, 0));
    OKAY(r->driver.cuLaunchHostFunc(r->a, count_in, NULL));
    OKAY(fill_part(r, r->a, 0, 1));
    OKAY(r->driver.cuLaunchHostFunc(r->a, count_out, NULL));
    OKAY(end_as_executable(r, r->a, &executable));
    for (int i = 0; i < 10; i++)
        OKAY(r->driver.cuGraphLaunch(executable, i % 2 == 0 ? r->a : r->b));
    OKAY(r->driver.cuCtxSynchronize());
    HOLDS(atomic_load(&runs) == 10);
    HOLDS(atomic_load(&max) == 1);
    OKAY(r->driver.cuGraphExecDestroy(executable));
}

/* A graph that copies the first part to the second. */
static int make_copier(rules *r, void **executable)
{
    int error = r->driver.cuStreamBeginCapture(r->a, 0);
    if (error == 0)
        error = copy_part(r, r->a, 1, 0);
    return error == 0 ? end_as_executable(r, r->a, executable) : error;
}

void launches_follow_their_stream(rules *r)
{
    void *executable = NULL;
    OKAY(make_copier(r, &executable));
    for (unsigned char i = 1; i <= 20; i++) {
        OKAY(fill_part(r, r->a, 0, i));
        OKAY(r->driver.cuGraphLaunch(executable, r->a));
        OKAY(fill_part(r, r->a, 0, 100));
        OKAY(read_part(r, r->a, 1));
        OKAY(r->driver.cuStreamSynchronize(r->a));
        HOLDS(host_part_is(r, 1, i));
    }
    OKAY(r->driver.cuGraphExecDestroy(executable));
}

void executable_graphs_outlive_graphs(rules *r)
{
    void *executable, *graph;
    OKAY(r->driver.cuStreamBeginCapture(r->a, 0));
    OKAY(fill_part(r, r->a, 0, 5));
    OKAY(r->driver.cuStreamEndCapture(r->a, &graph));
    OKAY(r->driver.cuGraphInstantiate(&executable, graph, 0));
    OKAY(r->driver.cuGraphDestroy(graph));
    OKAY(r->driver.cuGraphLaunch(executable, r->a));
    OKAY(read_part(r, r->a, 0));
    OKAY(r->driver.cuStreamSynchronize(r->a));
    HOLDS(host_part_is(r, 0, 5));
    OKAY(r->driver.cuGraphExecDestroy(executable));
}

void running_graphs_may_be_destroyed(rules *r)
{
    void *executable = NULL;
    OKAY(make_copier(r, &executable));
    OKAY(hold_up(r, r->a));
    OKAY(fill_part(r, r->a, 0, 8));
    OKAY(r->driver.cuGraphLaunch(executable, r->a));
    OKAY(r->driver.cuGraphExecDestroy(executable));
    open_gate(r);
    OKAY(read_part(r, r->a, 1));
    OKAY(r->driver.cuStreamSynchronize(r->a));
    HOLDS(host_part_is(r, 1, 8));
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs and executable graphs: nodes run one after another, in a random topological order. */
#include "driver.h"

#include <stdlib.h>

fake_graph *fake_graph_new(void)
{
    fake_graph *graph = fake_new(sizeof *graph);
    fake_object_add(&graph->object, FAKE_GRAPH);
    return graph;
}

static void free_nodes(fake_nodes *nodes)
{
    for (size_t i = 0; i < nodes->count; i++) {
        fake_work_release(&nodes->nodes[i]->work);
        free(nodes->nodes[i]->dependencies);
        free(nodes->nodes[i]);
    }
    fake_nodes_clear(nodes);
}

void fake_graph_free(fake_graph *graph)
{
    free_nodes(&graph->nodes);
}

void fake_exec_release(fake_exec *exec)
{
    if (--exec->references == 0)
        free_nodes(&exec->nodes);
}

void fake_work_retain(const fake_work *work)
{
    if (work->kind == FAKE_LAUNCH)
        work->exec->references++;
    if (work->kind == FAKE_KERNEL)
        work->launch->references++;
}

void fake_work_release(const fake_work *work)
{
    if (work->kind == FAKE_LAUNCH)
        fake_exec_release(work->exec);
    if (work->kind == FAKE_KERNEL)
        fake_launch_release(work->launch);
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

static bool is_ready(const fake_node *node, const bool *done)
{
    if (done[node->index])
        return false;
    for (size_t i = 0; i < node->dependency_count; i++)
        if (!done[node->dependencies[i]->index])
            return false;
    return true;
}

/* A random ready node, uniformly distributed. */
static const fake_node *choose(const fake_nodes *nodes, const bool *done, uint64_t *random)
{
    const fake_node *chosen = NULL;
    uint64_t ready = 0;
    for (size_t i = 0; i < nodes->count; i++)
        if (is_ready(nodes->nodes[i], done) && fake_random(random) % ++ready == 0)
            chosen = nodes->nodes[i];
    return chosen;
}

void fake_exec_run(fake_exec *exec, uint64_t *random)
{
    bool *done = fake_new(exec->nodes.count + 1);
    for (const fake_node *node; (node = choose(&exec->nodes, done, random)) != NULL; done[node->index] = true) {
        if (node->work.kind == FAKE_LAUNCH)
            fake_exec_run(node->work.exec, random);
        else
            fake_run(&node->work);
    }
    free(done);
}

/* ---- the driver's functions -------------------------------------------------------------------------------------- */

static void *find(void *handle, fake_kind kind)
{
    bool gone = false;
    void *found = handle != NULL ? fake_object_find(handle, kind, &gone) : NULL;
    if (found == NULL && handle != NULL)
        fake_break("handles_end_with_their_objects", "graph %p %s", handle, gone ? "is destroyed" : "is unknown");
    return found;
}

static bool is_being_captured(const fake_graph *graph)
{
    for (const fake_capture *capture = fake.captures; capture != NULL; capture = capture->next)
        if (capture->graph == graph)
            return true;
    return false;
}

static int instantiate(void **executable, void *handle, unsigned long long flags)
{
    fake_context *context;
    FAKE_TRY(fake_current(&context));
    const fake_graph *graph = find(handle, FAKE_GRAPH);
    if (graph == NULL || executable == NULL || (flags & ~15ull) != 0 || is_being_captured(graph))
        return INVALID_VALUE;
    fake_exec *exec = fake_new(sizeof *exec);
    fake_object_add(&exec->object, FAKE_EXEC);
    exec->references = 1;
    for (size_t i = 0; i < graph->nodes.count; i++) {
        const fake_node *from = graph->nodes.nodes[i];
        fake_node *node = fake_new(sizeof *node);
        *node = *from;
        node->dependencies = fake_new((from->dependency_count + 1) * sizeof(fake_node *));
        for (size_t j = 0; j < from->dependency_count; j++)
            node->dependencies[j] = exec->nodes.nodes[from->dependencies[j]->index];
        fake_work_retain(&node->work);
        fake_nodes_add(&exec->nodes, node);
    }
    *executable = exec;
    return OK;
}

int cuGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long flags)
{
    FAKE_ENTER(cuGraphInstantiate);
    return fake_leave(instantiate(executable, graph, flags));
}

static int launch(void *handle, void *stream_handle)
{
    fake_stream *stream;
    FAKE_TRY(fake_stream_for_work(stream_handle, &stream));
    fake_exec *exec = find(handle, FAKE_EXEC);
    if (exec == NULL)
        return INVALID_VALUE;
    FAKE_TRY(fake_capture_check_legacy(stream, true));
    fake_work work = {.kind = FAKE_LAUNCH, .exec = exec};
    int result =
        stream->capture != NULL ? fake_capture_node(stream, &work) : fake_enqueue(stream, &work, &exec->last, 1);
    if (result == OK)
        fake_work_retain(&work);
    if (result == OK && stream->capture == NULL)
        exec->last = (fake_mark){stream, stream->enqueued};
    return result;
}

int cuGraphLaunch(void *executable, void *stream)
{
    FAKE_ENTER(cuGraphLaunch);
    return fake_leave(launch(executable, stream));
}

static int destroy_exec(void *handle)
{
    fake_exec *exec = find(handle, FAKE_EXEC);
    if (exec == NULL)
        return INVALID_VALUE;
    exec->object.alive = false;
    fake_exec_release(exec);
    return OK;
}

int cuGraphExecDestroy(void *executable)
{
    FAKE_ENTER(cuGraphExecDestroy);
    return fake_leave(destroy_exec(executable));
}

static int destroy(void *handle)
{
    fake_graph *graph = find(handle, FAKE_GRAPH);
    if (graph == NULL || is_being_captured(graph))
        return INVALID_VALUE;
    graph->object.alive = false;
    fake_graph_free(graph);
    return OK;
}

int cuGraphDestroy(void *graph)
{
    FAKE_ENTER(cuGraphDestroy);
    return fake_leave(destroy(graph));
}

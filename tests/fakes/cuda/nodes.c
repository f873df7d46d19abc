/* SPDX-License-Identifier: Apache-2.0 */
/* Sets of nodes, and the nodes of graphs. */
#include "fake.h"

#include <stdlib.h>

void fake_nodes_add(fake_nodes *nodes, fake_node *node)
{
    for (size_t i = 0; i < nodes->count; i++)
        if (nodes->nodes[i] == node)
            return;
    if (nodes->count == nodes->capacity) {
        nodes->capacity = nodes->capacity == 0 ? 4 : 2 * nodes->capacity;
        nodes->nodes = realloc(nodes->nodes, nodes->capacity * sizeof(fake_node *));
        if (nodes->nodes == NULL)
            abort();
    }
    nodes->nodes[nodes->count++] = node;
}

void fake_nodes_set(fake_nodes *nodes, const fake_nodes *from)
{
    nodes->count = 0;
    for (size_t i = 0; i < from->count; i++)
        fake_nodes_add(nodes, from->nodes[i]);
}

void fake_nodes_clear(fake_nodes *nodes)
{
    free(nodes->nodes);
    *nodes = (fake_nodes){0};
}

fake_node *fake_graph_add(fake_graph *graph, const fake_work *work, const fake_nodes *dependencies)
{
    size_t count = dependencies->count;
    fake_node *node = fake_new(sizeof *node);
    node->work = *work;
    node->index = graph->nodes.count;
    node->dependency_count = count;
    node->dependencies = fake_new((count == 0 ? 1 : count) * sizeof(fake_node *));
    for (size_t i = 0; i < count; i++)
        node->dependencies[i] = dependencies->nodes[i];
    fake_nodes_add(&graph->nodes, node);
    return node;
}

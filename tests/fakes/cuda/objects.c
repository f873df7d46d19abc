/* SPDX-License-Identifier: Apache-2.0 */
/* A hash table of all objects by address, to recognize handles. */
#include "fake.h"

#include <stdlib.h>

#define BUCKETS 4096u

static fake_object *buckets[BUCKETS];

static fake_object **bucket(const void *handle)
{
    uint64_t hash = (uint64_t)(uintptr_t)handle * 0x9e3779b97f4a7c15u;
    return &buckets[hash >> 52];
}

void fake_object_add(fake_object *object, fake_kind kind)
{
    fake_object **first = bucket(object);
    object->kind = kind;
    object->alive = true;
    object->next = *first;
    *first = object;
}

void *fake_object_find(const void *handle, fake_kind kind, bool *gone)
{
    bool found = false;
    for (fake_object *object = *bucket(handle); object != NULL; object = object->next) {
        if (object != handle || object->kind != kind)
            continue;
        if (object->alive)
            return object;
        found = true;
    }
    if (gone != NULL)
        *gone = found;
    return NULL;
}

void fake_objects_each(void (*visit)(fake_object *object, void *argument), void *argument)
{
    for (size_t i = 0; i < BUCKETS; i++)
        for (fake_object *object = buckets[i], *next; object != NULL; object = next) {
            next = object->next;
            visit(object, argument);
        }
}

/* Nodes first: they refer to other graphs. */
static void forget_nodes(fake_object *object, void *argument)
{
    (void)argument;
    if (object->kind == FAKE_EVENT)
        fake_nodes_clear(&((fake_event *)object)->nodes);
    if (object->kind == FAKE_STREAM)
        fake_nodes_clear(&((fake_stream *)object)->dependencies);
    if (object->kind == FAKE_GRAPH && object->alive)
        fake_graph_free((fake_graph *)object);
    if (object->kind == FAKE_EXEC && object->alive)
        fake_exec_release((fake_exec *)object);
}

void fake_objects_forget(void)
{
    fake_objects_each(forget_nodes, NULL);
    for (size_t i = 0; i < BUCKETS; i++)
        while (buckets[i] != NULL) {
            fake_object *object = buckets[i];
            buckets[i] = object->next;
            free(object);
        }
}

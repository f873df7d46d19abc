/* SPDX-License-Identifier: Apache-2.0 */
#include "step_programs.h"

#include <stdlib.h>

static uint64_t next_random(step_program *p)
{
    p->random = p->random * 6364136223846793005u + 1442695040888963407u;
    return p->random >> 33;
}

static void add(step_program *p, bp_step_event event)
{
    if (p->count == p->capacity) {
        p->capacity = p->capacity * 2 + 256;
        p->events = realloc(p->events, p->capacity * sizeof *p->events);
        if (p->events == NULL)
            abort();
    }
    p->events[p->count++] = event;
}

static uint64_t allocate(step_program *p, uint64_t bytes, uint32_t stream)
{
    const uint64_t address = p->next_address += (uint64_t)1 << 40;
    add(p, (bp_step_event){.address = address, .bytes = bytes, .stream = stream, .action = BP_STEP_ALLOCATE});
    return address;
}

static void release(step_program *p, uint64_t address)
{
    add(p, (bp_step_event){.address = address, .action = BP_STEP_FREE});
}

void program_build(step_program *p, uint64_t seed, unsigned layers)
{
    *p = (step_program){.random = seed * 7919 + 17};
    for (unsigned i = 0; i < layers; i++) {
        p->sizes[i] = 4000 + next_random(p) % 60000;
        const uint64_t loaded = allocate(p, p->sizes[i] * 2 + 1, 0); /* before it is converted */
        allocate(p, p->sizes[i] + 4096, 0);
        release(p, loaded);
    }
}

static void free_gradients(step_program *p)
{
    while (p->gradient_count > 0)
        release(p, p->gradients[--p->gradient_count]);
}

static void forward(step_program *p, const step_shape *shape, uint64_t *kept)
{
    for (unsigned i = 0; i < shape->layers; i++) {
        const uint64_t gathered = shape->has_streams ? allocate(p, p->sizes[i] + 77, 1) : 0;
        kept[i] = allocate(p, p->sizes[i] * shape->scale + 1000, 0);
        release(p, allocate(p, p->sizes[i] / 2 + 3, 0));
        if (shape->has_streams)
            release(p, gathered);
    }
}

static void backward(step_program *p, const step_shape *shape, const uint64_t *kept)
{
    for (unsigned i = shape->layers; i-- > 0;) {
        const uint64_t gathered = shape->has_streams ? allocate(p, p->sizes[i] + 77, 1) : 0;
        const uint64_t local = allocate(p, p->sizes[i] * shape->scale + 555, 0);
        release(p, kept[i]);
        const uint64_t gradient = allocate(p, p->sizes[i], 0);
        if (shape->has_streams) {
            release(p, gathered);
            release(p, allocate(p, p->sizes[i] + 99, 2));
        }
        release(p, local);
        p->gradients[p->gradient_count++] = gradient;
    }
}

void program_step(step_program *p, const step_shape *shape)
{
    uint64_t kept[64], inputs = allocate(p, 640 * shape->scale, 0);
    forward(p, shape, kept);
    if (shape->frees_late)
        free_gradients(p);
    backward(p, shape, kept);
    release(p, inputs);
    if (shape->evaluates) {
        forward(p, shape, kept);
        for (unsigned i = shape->layers; i-- > 0;)
            release(p, kept[i]);
    }
    for (unsigned o = 0; o < shape->optimizers; o++) {
        for (unsigned i = o; i < shape->layers; i += shape->optimizers) {
            if (p->marks < shape->optimizers)
                allocate(p, p->sizes[i], 0); /* of the size of a gradient */
            release(p, allocate(p, p->sizes[i] + 512, 0));
        }
        add(p, (bp_step_event){.action = BP_STEP_MARK});
        p->marks++;
    }
    if (!shape->frees_late)
        free_gradients(p);
}

void program_finish(step_program *p)
{
    free(p->events);
    *p = (step_program){0};
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "rules_support.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define PATIENCE_MS 10000

bool rules_check(rules *r, const char *file, int line, const char *call, int result, int wanted)
{
    const char *name = NULL;
    if (result == wanted)
        return true;
    (void)r->driver.cuGetErrorName(result, &name);
    (void)snprintf(r->failed, sizeof r->failed, "%s:%d: %s answered %d (%s), expected %d", file, line, call, result,
                   name != NULL ? name : "?", wanted);
    return false;
}

bool rules_hold(rules *r, const char *file, int line, const char *condition, bool holds)
{
    if (!holds)
        (void)snprintf(r->failed, sizeof r->failed, "%s:%d: expected: %s", file, line, condition);
    return holds;
}

void pause_ms(int milliseconds)
{
    nanosleep(&(struct timespec){milliseconds / 1000, (long)(milliseconds % 1000) * 1000000}, NULL);
}

static void wait_at_gate(void *argument)
{
    rules *r = argument;
    for (int i = 0; i < PATIENCE_MS && !atomic_load(&r->open); i++)
        pause_ms(1);
    if (!atomic_load(&r->open))
        atomic_store(&r->late, 1);
}

int hold_up(rules *r, void *stream)
{
    atomic_store(&r->open, 0);
    return r->driver.cuLaunchHostFunc(stream, wait_at_gate, r);
}

void open_gate(rules *r)
{
    atomic_store(&r->open, 1);
}

uint64_t part(const rules *r, unsigned index)
{
    return r->memory + (uint64_t)index * PART_BYTES;
}

int fill_part(rules *r, void *stream, unsigned index, unsigned char value)
{
    return r->driver.cuMemsetD8Async(part(r, index), value, PART_BYTES, stream);
}

int read_part(rules *r, void *stream, unsigned index)
{
    uint64_t to = (uint64_t)(uintptr_t)(r->host + (size_t)index * PART_BYTES);
    return r->driver.cuMemcpyAsync(to, part(r, index), PART_BYTES, stream);
}

int copy_part(rules *r, void *stream, unsigned to, unsigned from)
{
    return r->driver.cuMemcpyAsync(part(r, to), part(r, from), PART_BYTES, stream);
}

bool host_part_is(const rules *r, unsigned index, unsigned char value)
{
    for (size_t i = 0; i < PART_BYTES; i++)
        if (r->host[(size_t)index * PART_BYTES + i] != value)
            return false;
    return true;
}

typedef struct errand {
    rules *r;
    void (*function)(rules *r);
} errand;

static void *run(void *argument)
{
    errand *work = argument;
    work->function(work->r);
    return NULL;
}

void in_thread(rules *r, void (*function)(rules *r))
{
    errand work = {r, function};
    pthread_t thread;
    if (!rules_hold(r, __FILE__, __LINE__, "a thread starts", pthread_create(&thread, NULL, run, &work) == 0))
        return;
    pthread_join(thread, NULL);
}

int capture_status(rules *r, void *stream)
{
    int status;
    return r->driver.cuStreamGetCaptureInfo(stream, &status, NULL, NULL, NULL, NULL) == 0 ? status : -1;
}

uint64_t capture_id(rules *r, void *stream)
{
    int status;
    uint64_t id = 0;
    (void)r->driver.cuStreamGetCaptureInfo(stream, &status, &id, NULL, NULL, NULL);
    return id;
}

int end_as_executable(rules *r, void *stream, void **executable)
{
    void *graph = NULL;
    int error = r->driver.cuStreamEndCapture(stream, &graph);
    if (error == 0)
        error = r->driver.cuGraphInstantiate(executable, graph, 0);
    if (error == 0)
        error = r->driver.cuGraphDestroy(graph);
    return error;
}

static const bp_cu_allocation_prop on_device = {.type = 1, .handle_types = 1, .location_type = 1};

int give_access(rules *r, const memory_part *memory)
{
    const bp_cu_access access = {.location_type = 1, .flags = 3};
    return r->driver.cuMemSetAccess(memory->address, memory->bytes, &access, 1);
}

int make_memory(rules *r, size_t granules, bool mapped, memory_part *made)
{
    memory_part memory = {.bytes = granules * r->granularity};
    int error = r->driver.cuMemAddressReserve(&memory.address, memory.bytes, 0, 0, 0);
    if (error == 0)
        error = r->driver.cuMemCreate(&memory.handle, memory.bytes, &on_device, 0);
    if (error == 0 && mapped)
        error = r->driver.cuMemMap(memory.address, memory.bytes, 0, memory.handle, 0);
    if (error == 0 && mapped)
        error = give_access(r, &memory);
    *made = memory;
    return error;
}

int end_memory(rules *r, const memory_part *memory, bool mapped)
{
    int error = mapped ? r->driver.cuMemUnmap(memory->address, memory->bytes) : 0;
    if (error == 0)
        error = r->driver.cuMemRelease(memory->handle);
    return error == 0 ? r->driver.cuMemAddressFree(memory->address, memory->bytes) : error;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Plain allocations and stream-ordered ones. */
#include "driver.h"

#include <sys/mman.h>
#include <unistd.h>

#define STEP UINT64_C(4096) /* allocations do not share pages, so an access past the end faults */

static int take(const fake_context *context, bool pooled, uint64_t bytes)
{
    return pooled ? fake_pool_take(context->device, bytes) : fake_memory_take(context->device, bytes);
}

static void give(const fake_context *context, bool pooled, uint64_t bytes)
{
    if (pooled)
        fake_pool_give(context->device, bytes);
    else
        fake_memory_give(context->device, bytes);
}

static int allocate(uint64_t *address, size_t bytes, fake_context *context, bool pooled, fake_range **range)
{
    if (address == NULL || bytes == 0)
        return INVALID_VALUE;
    if (bytes > fake.config.memory)
        return OUT_OF_MEMORY;
    uint64_t whole = (bytes + STEP - 1) / STEP * STEP;
    FAKE_TRY(take(context, pooled, whole));
    int file = -1;
    if (fake_physical_open(whole, &file) != OK) {
        give(context, pooled, whole);
        return OUT_OF_MEMORY;
    }
    void *memory = fake_view_map(0, whole, file);
    void *view = fake.config.host_faults && memory != NULL ? fake_view_map(0, whole, file) : memory;
    close(file);
    if (view == NULL) {
        if (memory != NULL)
            munmap(memory, whole);
        give(context, pooled, whole);
        return OUT_OF_MEMORY;
    }
    *range = fake_range_add(&fake.allocations, (uint64_t)(uintptr_t)memory, whole);
    (*range)->context = context;
    (*range)->pooled = pooled;
    (*range)->view = view;
    *address = (*range)->address;
    return OK;
}

static void open_range(fake_range *range)
{
    range->open = true;
    (void)mprotect(range->view, range->bytes, PROT_READ | PROT_WRITE);
}

void fake_allocation_release(fake_range *range)
{
    fake_view_unmap(range->address, range->bytes, range->view);
    munmap(fake_at(range->address), range->bytes);
    give(range->context, range->pooled, range->bytes);
    fake_range_remove(&fake.allocations, range);
}

static int allocate_now(uint64_t *address, size_t bytes)
{
    fake_context *context;
    fake_range *range;
    FAKE_TRY(fake_current(&context));
    FAKE_TRY(allocate(address, bytes, context, false, &range));
    open_range(range);
    return OK;
}

int cuMemAlloc_v2(uint64_t *address, size_t bytes)
{
    FAKE_ENTER(cuMemAlloc);
    return fake_leave(allocate_now(address, bytes));
}

static int find(uint64_t address, fake_range **range)
{
    fake_range *found = fake_range_at(fake.allocations, address);
    if (found == NULL || found->freed) {
        fake_break("memory_is_freed_once", "0x%llx is not allocated", (unsigned long long)address);
        return INVALID_VALUE;
    }
    *range = found;
    return OK;
}

/* Waits for the work of the context before freeing. */
static int free_now(uint64_t address)
{
    fake_context *context;
    fake_range *range;
    FAKE_TRY(fake_current(&context));
    if (address == 0)
        return OK;
    FAKE_TRY(find(address, &range));
    range->freed = true;
    fake_await_context(range->context);
    fake_allocation_release(range);
    return OK;
}

int cuMemFree_v2(uint64_t address)
{
    FAKE_ENTER(cuMemFree);
    return fake_leave(free_now(address));
}

/* ---- stream-ordered allocations ---------------------------------------------------------------------------------- */

static int find_stream(void *handle, fake_stream **stream)
{
    FAKE_TRY(fake_stream_for_work(handle, stream));
    FAKE_TRY(fake_capture_check_legacy(*stream, true));
    if ((*stream)->capture != NULL || !fake_attribute(115, (*stream)->context->device))
        return NOT_SUPPORTED; /* memory nodes of graphs are not emulated */
    return OK;
}

static int allocate_async(uint64_t *address, size_t bytes, void *handle)
{
    fake_stream *stream;
    fake_range *range;
    FAKE_TRY(find_stream(handle, &stream));
    FAKE_TRY(allocate(address, bytes, stream->context, true, &range));
    int result = fake_enqueue(stream, &(fake_work){.kind = FAKE_OPEN, .to = range->address}, NULL, 0);
    if (result != OK)
        fake_allocation_release(range);
    return result;
}

int cuMemAllocAsync(uint64_t *address, size_t bytes, void *stream)
{
    FAKE_ENTER(cuMemAllocAsync);
    return fake_leave(allocate_async(address, bytes, stream));
}

static int free_async(uint64_t address, void *handle)
{
    fake_stream *stream;
    fake_range *range;
    FAKE_TRY(find_stream(handle, &stream));
    FAKE_TRY(find(address, &range));
    FAKE_TRY(fake_enqueue(stream, &(fake_work){.kind = FAKE_CLOSE, .to = address}, NULL, 0));
    range->freed = true;
    return OK;
}

int cuMemFreeAsync(uint64_t address, void *stream)
{
    FAKE_ENTER(cuMemFreeAsync);
    return fake_leave(free_async(address, stream));
}

void fake_allocation_open(uint64_t address)
{
    pthread_mutex_lock(&fake.lock);
    fake_range *range = fake_range_at(fake.allocations, address);
    if (range != NULL)
        open_range(range);
    pthread_mutex_unlock(&fake.lock);
}

void fake_allocation_close(uint64_t address)
{
    pthread_mutex_lock(&fake.lock);
    fake_range *range = fake_range_at(fake.allocations, address);
    if (range != NULL)
        fake_allocation_release(range);
    pthread_mutex_unlock(&fake.lock);
}

/* Memory that is allocated as a whole: at once, or in the order of a stream. */
#include "driver.h"

#include <string.h>
#include <sys/mman.h>

#define STEP UINT64_C(4096) /* an allocation has pages of its own: what is beyond them faults */

static int allocate(uint64_t *address, size_t bytes, fake_context *context, int protection, fake_range **range)
{
    if (address == NULL || bytes == 0)
        return INVALID_VALUE;
    if (bytes > fake.config.memory)
        return OUT_OF_MEMORY;
    uint64_t whole = (bytes + STEP - 1) / STEP * STEP;
    FAKE_TRY(fake_memory_take(context->device, whole));
    void *memory = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        fake_memory_give(context->device, whole);
        return OUT_OF_MEMORY;
    }
    memset(memory, fake_poison, whole < fake.config.poison ? whole : fake.config.poison);
    (void)mprotect(memory, whole, protection);
    *range = fake_range_add(&fake.allocations, (uint64_t)(uintptr_t)memory, whole);
    (*range)->context = context;
    *address = (*range)->address;
    return OK;
}

static void release(fake_range *range)
{
    munmap(fake_at(range->address), range->bytes);
    fake_memory_give(range->context->device, range->bytes);
    fake_range_remove(&fake.allocations, range);
}

static int allocate_now(uint64_t *address, size_t bytes)
{
    fake_context *context;
    fake_range *range;
    FAKE_TRY(fake_current(&context));
    return allocate(address, bytes, context, PROT_READ | PROT_WRITE, &range);
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

/* Waits for the work of the context: the memory is gone when this returns. */
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
    release(range);
    return OK;
}

int cuMemFree_v2(uint64_t address)
{
    FAKE_ENTER(cuMemFree);
    return fake_leave(free_now(address));
}

/* ---- in the order of a stream ------------------------------------------------------------------------------------ */

static int find_stream(void *handle, fake_stream **stream)
{
    FAKE_TRY(fake_stream_for_work(handle, stream));
    FAKE_TRY(fake_capture_check_legacy(*stream, true));
    if ((*stream)->capture != NULL || !fake_attribute(115, (*stream)->context->device))
        return NOT_SUPPORTED; /* graphs with memory of their own are not emulated */
    return OK;
}

static int allocate_async(uint64_t *address, size_t bytes, void *handle)
{
    fake_stream *stream;
    fake_range *range;
    FAKE_TRY(find_stream(handle, &stream));
    FAKE_TRY(allocate(address, bytes, stream->context, PROT_NONE, &range));
    range->stream_ordered = true;
    int result = fake_enqueue(stream, &(fake_work){.kind = FAKE_OPEN, .to = range->address}, NULL, 0);
    if (result != OK)
        release(range);
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
    const fake_range *range = fake_range_at(fake.allocations, address);
    if (range != NULL)
        (void)mprotect(fake_at(address), range->bytes, PROT_READ | PROT_WRITE);
    pthread_mutex_unlock(&fake.lock);
}

void fake_allocation_close(uint64_t address)
{
    pthread_mutex_lock(&fake.lock);
    fake_range *range = fake_range_at(fake.allocations, address);
    if (range != NULL)
        release(range);
    pthread_mutex_unlock(&fake.lock);
}

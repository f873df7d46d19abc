/* SPDX-License-Identifier: Apache-2.0 */
/* Memory, configuration and table of the host device. Physical memory is a shared anonymous mapping, which mremap duplicates into
 * reserved address space. Private memory has no duplicate mappings, and cannot keep its bytes while its first address is unmapped.
 * Emulators of system calls, like qemu's, lack these duplicates: there, each memory has a file and its descriptor. */
#include "devices/host.h"

#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>
#include <bucketpool/core/structs.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/memory.h"

/* ---- memory limit ------------------------------------------------------------------------------------------------ */

static bp_status host_memory_take(bp_host *host, uint64_t bytes, const char *operation)
{
    uint64_t used = atomic_load(&host->used_bytes), limit = host->config.memory_bytes;
    do {
        if (bytes > limit - used)
            return bp_fail(BP_ERR_NO_DEVICE_MEMORY, "host: %s of %llu bytes, %llu of %llu are left", operation,
                           (unsigned long long)bytes, (unsigned long long)(limit - used), (unsigned long long)limit);
    } while (!atomic_compare_exchange_weak(&host->used_bytes, &used, used + bytes));
    return BP_OK;
}

static void host_memory_give_back(bp_host *host, uint64_t bytes)
{
    atomic_fetch_sub(&host->used_bytes, bytes);
}

static bp_status fail_memory(const bp_host *host, uint64_t bytes, const char *operation, int reason)
{
    uint64_t limit = host->config.memory_bytes;
    return bp_fail(BP_ERR_NO_DEVICE_MEMORY, "host: %s of %llu bytes failed, %llu of %llu were left: %s", operation,
                   (unsigned long long)bytes, (unsigned long long)(limit - atomic_load(&host->used_bytes)),
                   (unsigned long long)limit, strerror(reason));
}

/* ---- physical memory --------------------------------------------------------------------------------------------- */

/* False: mremap refuses to duplicate mappings. */
static bp_status probe_duplicates(uint64_t page_bytes, bool *has_duplicates)
{
    void *page = mmap(NULL, page_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (page == MAP_FAILED)
        return bp_fail(BP_ERR_NO_DEVICE_MEMORY, "bp_device_create_host: no page can be mapped: %s", strerror(errno));
    void *duplicate = mremap(page, 0, page_bytes, MREMAP_MAYMOVE);
    *has_duplicates = duplicate != MAP_FAILED;
    if ((duplicate != MAP_FAILED && munmap(duplicate, page_bytes) != 0) || munmap(page, page_bytes) != 0)
        return bp_fail(BP_ERR_NO_HOST_MEMORY, "bp_device_create_host: a page cannot be unmapped: %s", strerror(errno));
    return BP_OK;
}

static void drop_pages(const bp_host_memory *memory)
{
    if (memory->pages != MAP_FAILED)
        munmap(memory->pages, memory->bytes);
    if (memory->file >= 0)
        close(memory->file);
}

static bp_status make_pages(const bp_host *host, uint64_t bytes, bp_host_memory *memory)
{
    bp_host_memory made = {.pages = MAP_FAILED, .bytes = bytes, .file = -1};
    bool good = true;
    if (host->by_files) {
        made.file = memfd_create("bucketpool", MFD_CLOEXEC);
        good = made.file >= 0 && ftruncate(made.file, (off_t)bytes) == 0;
    }
    if (good)
        made.pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_NORESERVE | (host->by_files ? 0 : MAP_ANONYMOUS), made.file, 0);
    if (!good || made.pages == MAP_FAILED || madvise(made.pages, bytes, MADV_DONTFORK) != 0) {
        int reason = errno;
        drop_pages(&made);
        return fail_memory(host, bytes, "commit", reason);
    }
    *memory = made;
    return BP_OK;
}

static bp_status host_commit(void *self, uint64_t bytes, uint64_t *handle)
{
    bp_host *host = self;
    BP_TRY(bp_address_space_check_bytes(&host->space, bytes, "commit"));
    BP_TRY(host_memory_take(host, bytes, "commit"));
    size_t entry = 0;
    pthread_mutex_lock(&host->lock);
    while (entry < host->memory_count && host->memories[entry].pages != NULL)
        entry++;
    bp_status status = BP_OK;
    if (entry == host->memory_count) {
        status = bp_grow_array((void **)&host->memories, &host->memory_capacity, entry, sizeof *host->memories);
        if (status == BP_OK)
            host->memories[host->memory_count++] = (bp_host_memory){0};
    }
    if (status == BP_OK)
        status = make_pages(host, bytes, &host->memories[entry]);
    pthread_mutex_unlock(&host->lock);
    if (status == BP_OK)
        *handle = entry + 1;
    else
        host_memory_give_back(host, bytes);
    return status;
}

static bool host_memory_find_memory(bp_host *host, uint64_t handle, bp_host_memory *memory)
{
    pthread_mutex_lock(&host->lock);
    bool found = handle > 0 && handle <= host->memory_count && host->memories[handle - 1].pages != NULL;
    if (found)
        *memory = host->memories[handle - 1];
    pthread_mutex_unlock(&host->lock);
    return found;
}

static bp_status host_decommit(void *self, uint64_t handle)
{
    bp_host *host = self;
    bp_host_memory memory;
    if (!host_memory_find_memory(host, handle, &memory))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "host: decommit of unknown handle %llu", (unsigned long long)handle);
    if (munmap(memory.pages, memory.bytes) != 0)
        return bp_fail(BP_ERR_NO_HOST_MEMORY, "host: decommit of %llu bytes: %s", (unsigned long long)memory.bytes,
                       strerror(errno));
    if (memory.file >= 0)
        close(memory.file);
    pthread_mutex_lock(&host->lock);
    host->memories[handle - 1].pages = NULL;
    pthread_mutex_unlock(&host->lock);
    host_memory_give_back(host, memory.bytes);
    return BP_OK;
}

/* ---- mappings ---------------------------------------------------------------------------------------------------- */

static bool map_nothing(void *address, uint64_t bytes)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    return mmap(address, bytes, PROT_NONE, flags, -1, 0) != MAP_FAILED;
}

/* Maps the memory at the address, too. */
static bool map_duplicate(const bp_host_memory *memory, void *address)
{
    if (memory->file < 0)
        /* Old size 0 leaves the first mapping in place; the second one inherits its flags, including MADV_DONTFORK. */
        return mremap(memory->pages, 0, memory->bytes, MREMAP_MAYMOVE | MREMAP_FIXED, address) != MAP_FAILED;
    return mmap(address, memory->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED, memory->file,
                0) != MAP_FAILED &&
           madvise(address, memory->bytes, MADV_DONTFORK) == 0;
}

static bp_status host_map(void *self, void *address, uint64_t bytes, uint64_t handle)
{
    bp_host *host = self;
    bp_host_memory memory;
    if (!host_memory_find_memory(host, handle, &memory))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "host: map of unknown handle %llu", (unsigned long long)handle);
    if (bytes != memory.bytes)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "host: map of %llu bytes of handle %llu, which has %llu",
                       (unsigned long long)bytes, (unsigned long long)handle, (unsigned long long)memory.bytes);
    BP_TRY(bp_address_space_check(&host->space, address, bytes, host->traits.granularity, "map"));
    if (!map_duplicate(&memory, address)) {
        int reason = errno;
        map_nothing(address, bytes); /* the kernel may have removed the reservation already */
        return bp_fail(BP_ERR_NO_HOST_MEMORY, "host: map of %llu bytes at %p: %s", (unsigned long long)bytes, address,
                       strerror(reason));
    }
    return BP_OK;
}

static bp_status host_unmap(void *self, void *address, uint64_t bytes)
{
    bp_host *host = self;
    BP_TRY(bp_address_space_check(&host->space, address, bytes, host->traits.granularity, "unmap"));
    if (!map_nothing(address, bytes))
        return bp_fail(BP_ERR_NO_HOST_MEMORY, "host: unmap of %llu bytes at %p: %s", (unsigned long long)bytes, address,
                       strerror(errno));
    return BP_OK;
}

static bp_status host_protect(void *self, void *address, uint64_t bytes, bp_access access)
{
    bp_host *host = self;
    if (access != BP_ACCESS_NONE && access != BP_ACCESS_READ_WRITE)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "host: protect with unknown access %d", (int)access);
    BP_TRY(bp_address_space_check(&host->space, address, bytes, host->traits.page_bytes, "protect"));
    if (mprotect(address, bytes, access == BP_ACCESS_NONE ? PROT_NONE : PROT_READ | PROT_WRITE) != 0)
        return bp_fail(BP_ERR_NO_HOST_MEMORY, "host: protect of %llu bytes at %p: %s", (unsigned long long)bytes,
                       address, strerror(errno));
    return BP_OK;
}

/* ---- memory in stream order -------------------------------------------------------------------------------------- */

#define ALLOCATION_ALIGNMENT 256

/* Immediate: memory may be available before the stream's work uses it. */
static bp_status host_allocate(void *self, uint64_t bytes, void *stream, void **address)
{
    (void)stream;
    bp_host *host = self;
    BP_TRY(host_memory_take(host, bytes, "allocate"));
    void *memory;
    int reason = bytes > SIZE_MAX - ALLOCATION_ALIGNMENT
                     ? ENOMEM
                     : posix_memalign(&memory, ALLOCATION_ALIGNMENT, bytes + ALLOCATION_ALIGNMENT);
    if (reason != 0) {
        host_memory_give_back(host, bytes);
        return fail_memory(host, bytes, "allocate", reason);
    }
    bp_host_allocation *allocation = memory, *head = &host->allocations;
    pthread_mutex_lock(&host->lock);
    *allocation = (bp_host_allocation){head->next, head, host, bytes};
    head->next->previous = allocation;
    head->next = allocation;
    pthread_mutex_unlock(&host->lock);
    *address = (char *)memory + ALLOCATION_ALIGNMENT;
    return BP_OK;
}

static bp_status host_free(void *self, void *address, uint64_t bytes, void *stream)
{
    bp_host *host = self;
    bp_host_allocation *allocation = address != NULL ? (void *)((char *)address - ALLOCATION_ALIGNMENT) : NULL;
    if (allocation == NULL || allocation->bytes != bytes)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "host: free of %llu bytes at %p, which were not allocated as one",
                       (unsigned long long)bytes, address);
    pthread_mutex_lock(&host->lock);
    allocation->previous->next = allocation->next;
    allocation->next->previous = allocation->previous;
    pthread_mutex_unlock(&host->lock);
    bp_host_stream_enqueue(stream, &(bp_host_work){.kind = BP_HOST_FREE, .to = allocation});
    return BP_OK;
}

/* Releases the memory when the stream reaches the free: until then its work may use it. */
void bp_host_take_back(bp_host_allocation *allocation)
{
    host_memory_give_back(allocation->host, allocation->bytes);
    free(allocation);
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */

/* Takes a stream struct without a thread, used before or new, and starts its thread. */
static bp_status host_create_stream(void *self, void **stream)
{
    bp_host *host = self;
    bp_status status = BP_OK;
    pthread_mutex_lock(&host->lock);
    bp_host_stream *found = host->idle_streams;
    const uint32_t index = atomic_load(&host->stream_count);
    if (found == NULL && index == BP_HOST_STREAMS)
        status = bp_fail(BP_ERR_UNSUPPORTED, "host: %u streams are live, the largest number; destroy some", index);
    else if (found == NULL)
        status = bp_host_stream_new(index, host->config.queue_length, host->config.max_delay_us, &found);
    if (status == BP_OK && host->idle_streams == NULL) {
        atomic_store(&host->streams[index], found);
        atomic_store(&host->stream_count, index + 1);
        host->idle_streams = found;
    }
    if (status == BP_OK)
        status = bp_host_stream_start(found, host->config.delay_seed + (host->stream_number << 32));
    if (status == BP_OK) {
        host->stream_number++;
        host->idle_streams = found->next;
    }
    pthread_mutex_unlock(&host->lock);
    if (status == BP_OK)
        *stream = found;
    return status;
}

static bp_status destroy_stream(void *self, void *stream)
{
    bp_host *host = self;
    bp_host_stream *destroyed = stream;
    bp_host_stream_stop(destroyed);
    pthread_mutex_lock(&host->lock);
    destroyed->next = host->idle_streams;
    host->idle_streams = destroyed;
    pthread_mutex_unlock(&host->lock);
    return BP_OK;
}

static bp_status synchronize_stream(void *self, void *stream)
{
    (void)self;
    bp_host_stream *s = stream;
    bp_host_stream_await(s, atomic_load(&s->enqueued));
    return BP_OK;
}

static bp_status host_synchronize(void *self)
{
    bp_host *host = self;
    uint32_t count = atomic_load(&host->stream_count);
    for (uint32_t i = 0; i < count; i++)
        synchronize_stream(host, atomic_load(&host->streams[i]));
    return BP_OK;
}

static bp_status host_call(void *self, void *stream, bp_host_function *function, void *argument)
{
    (void)self;
    bp_host_stream_enqueue(stream, &(bp_host_work){.kind = BP_HOST_CALL, .function = function, .argument = argument});
    return BP_OK;
}

static bp_status host_fill(void *self, void *stream, void *address, uint8_t value, uint64_t bytes)
{
    (void)self;
    bp_host_stream_enqueue(stream,
                           &(bp_host_work){.kind = BP_HOST_FILL, .value = value, .to = address, .count = bytes});
    return BP_OK;
}

static bp_status host_copy(void *self, void *stream, void *to, const void *from, uint64_t bytes)
{
    (void)self;
    bp_host_stream_enqueue(stream, &(bp_host_work){.kind = BP_HOST_COPY, .to = to, .from = from, .count = bytes});
    return BP_OK;
}

/* ---- the device -------------------------------------------------------------------------------------------------- */

static bp_status host_traits(void *self, bp_device_traits *traits)
{
    bp_host *host = self;
    *traits = host->traits;
    return BP_OK;
}

static void host_destroy(void *self)
{
    bp_host *host = self;
    uint32_t count = atomic_load(&host->stream_count);
    /* All threads end before any stream is freed: work may wait for other streams. */
    for (uint32_t i = 0; i < count; i++) {
        bp_host_stream *stream = atomic_load(&host->streams[i]);
        if (stream->running)
            bp_host_stream_stop(stream);
    }
    for (uint32_t i = 0; i < count; i++)
        bp_host_stream_free(atomic_load(&host->streams[i]));
    bp_host_events_finish(host);
    while (host->allocations.next != &host->allocations) {
        bp_host_allocation *allocation = host->allocations.next;
        host->allocations.next = allocation->next;
        free(allocation);
    }
    for (size_t i = 0; i < host->memory_count; i++)
        if (host->memories[i].pages != NULL)
            drop_pages(&host->memories[i]);
    free(host->memories);
    bp_address_space_finish(&host->space);
    pthread_mutex_destroy(&host->lock);
    free(host);
}

static const bp_device_ops host_ops = {
    .size = sizeof host_ops,
    .name = "host",
    .destroy = host_destroy,
    .traits = host_traits,
    .reserve = bp_address_space_reserve,
    .unreserve = bp_address_space_unreserve,
    .commit = host_commit,
    .decommit = host_decommit,
    .map = host_map,
    .unmap = host_unmap,
    .protect = host_protect,
    .allocate = host_allocate,
    .free = host_free,
    .stream_create = host_create_stream,
    .stream_destroy = destroy_stream,
    .stream_synchronize = synchronize_stream,
    .synchronize = host_synchronize,
    .call = host_call,
    .fill = host_fill,
    .copy = host_copy,
    .event_create = bp_host_event_create,
    .event_destroy = bp_host_event_destroy,
    .event_record = bp_host_event_record,
    .stream_wait = bp_host_stream_wait,
    .event_synchronize = bp_host_event_synchronize,
};

#define QUEUE_LENGTH 16384u

static const bp_host_config host_config_defaults = {.size = sizeof host_config_defaults, .queue_length = QUEUE_LENGTH};

bp_status bp_host_config_init(bp_host_config *config, size_t size)
{
    return bp_struct_init("bp_host_config_init", config, size, &host_config_defaults, sizeof host_config_defaults);
}

bp_status bp_device_create_host(const bp_host_config *config, bp_device **device)
{
    if (device == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_device_create_host: the output is NULL");
    uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    bp_host_config completed = host_config_defaults;
    BP_TRY(bp_struct_read("bp_device_create_host", config, true, &completed, sizeof completed));
    if (completed.granularity == 0)
        completed.granularity = page_bytes;
    if (completed.queue_length == 0)
        completed.queue_length = QUEUE_LENGTH;
    if (completed.memory_bytes == 0)
        completed.memory_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * page_bytes;
    if (!bp_is_power_of_two(completed.granularity) || completed.granularity % page_bytes != 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "bp_device_create_host: granularity %llu, expected a power of two and a multiple of %llu",
                       (unsigned long long)completed.granularity, (unsigned long long)page_bytes);
    if (!bp_is_power_of_two(completed.queue_length))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_device_create_host: queue length %u, expected a power of two",
                       completed.queue_length);

    bool has_duplicates;
    BP_TRY(probe_duplicates(page_bytes, &has_duplicates));
    void *memory;
    BP_TRY(bp_new_array(1, sizeof(bp_host), &memory));
    bp_host *host = memory;
    host->config = completed;
    host->by_files = !has_duplicates;
    host->traits = (bp_device_traits){.size = sizeof host->traits,
                                      .granularity = completed.granularity,
                                      .page_bytes = page_bytes,
                                      .host_accessible = 1};
    bp_address_space_init(&host->space, host_ops.name, completed.granularity);
    pthread_mutex_init(&host->lock, NULL);
    host->allocations.next = host->allocations.previous = &host->allocations;
    return bp_device_create(&host_ops, host, device);
}

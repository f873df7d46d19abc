/* The host device: configuration, table, and the streams it has. */
#include "devices/host.h"

#include <stdlib.h>
#include <unistd.h>

#include "core/fail.h"
#include "core/memory.h"
#include "core/structs.h"

#define QUEUE_LENGTH 16384u

/* ---- streams ----------------------------------------------------------------------------------------------------- */

/* A stream without a thread: one that was used before, or a new one. Under the lock. */
static bp_status find_idle(bp_host *host, bp_host_stream **stream)
{
    if (host->idle_streams == NULL) {
        uint32_t index = atomic_load(&host->stream_count);
        if (index == BP_HOST_STREAMS)
            return bp_fail(BP_ERR_UNSUPPORTED, "host: %u streams live, more than that it does not have", index);
        bp_host_stream *created;
        BP_TRY(bp_host_stream_new(index, host->config.queue_length, host->config.max_delay_us, &created));
        atomic_store(&host->streams[index], created);
        atomic_store(&host->stream_count, index + 1);
        host->idle_streams = created;
    }
    *stream = host->idle_streams;
    return BP_OK;
}

static bp_status host_create_stream(void *self, void **stream)
{
    bp_host *host = self;
    bp_host_stream *found = NULL;
    pthread_mutex_lock(&host->lock);
    bp_status status = find_idle(host, &found);
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
    /* All threads end before any stream goes: work may wait for other streams. */
    for (uint32_t i = 0; i < count; i++) {
        bp_host_stream *stream = atomic_load(&host->streams[i]);
        if (stream->running)
            bp_host_stream_stop(stream);
    }
    for (uint32_t i = 0; i < count; i++)
        bp_host_stream_free(atomic_load(&host->streams[i]));
    bp_host_events_finish(host);
    bp_host_memory_finish(host);
    bp_address_space_finish(&host->space);
    pthread_mutex_destroy(&host->lock);
    free(host);
}

static const bp_device_ops host_ops = {
    .size = sizeof host_ops,
    .name = "host",
    .destroy = host_destroy,
    .traits = host_traits,
    .reserve = bp_host_reserve,
    .unreserve = bp_host_unreserve,
    .commit = bp_host_commit,
    .decommit = bp_host_decommit,
    .map = bp_host_map,
    .unmap = bp_host_unmap,
    .protect = bp_host_protect,
    .allocate = bp_host_allocate,
    .free = bp_host_free,
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

static const bp_host_config host_config_defaults = {.size = sizeof host_config_defaults, .queue_length = QUEUE_LENGTH};

bp_status bp_host_config_init(bp_host_config *config, size_t size)
{
    return bp_struct_init("bp_host_config_init", config, size, &host_config_defaults, sizeof host_config_defaults);
}

/* Puts defaults in the place of zeros. */
static bp_status complete_config(bp_host_config *config, uint64_t page_bytes)
{
    if (config->granularity == 0)
        config->granularity = page_bytes;
    if (config->queue_length == 0)
        config->queue_length = QUEUE_LENGTH;
    if (config->memory_bytes == 0)
        config->memory_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * page_bytes;
    if ((config->granularity & (config->granularity - 1)) != 0 || config->granularity % page_bytes != 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "bp_device_create_host: granularity %llu, expected a power of two and a multiple of %llu",
                       (unsigned long long)config->granularity, (unsigned long long)page_bytes);
    if ((config->queue_length & (config->queue_length - 1)) != 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_device_create_host: queue length %u, expected a power of two",
                       config->queue_length);
    return BP_OK;
}

bp_status bp_device_create_host(const bp_host_config *config, bp_device **device)
{
    if (device == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_device_create_host: needs an output");
    uint64_t page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    bp_host_config completed = host_config_defaults;
    BP_TRY(bp_struct_read("bp_device_create_host", config, true, &completed, sizeof completed));
    BP_TRY(complete_config(&completed, page_bytes));
    void *memory;
    BP_TRY(bp_new_array(1, sizeof(bp_host), &memory));
    bp_host *host = memory;
    host->config = completed;
    host->traits = (bp_device_traits){.size = sizeof host->traits,
                                      .granularity = completed.granularity,
                                      .page_bytes = page_bytes,
                                      .host_accessible = 1};
    bp_address_space_init(&host->space, host_ops.name, completed.granularity);
    pthread_mutex_init(&host->lock, NULL);
    host->allocations.next = host->allocations.previous = &host->allocations;
    return bp_device_create(&host_ops, host, device);
}

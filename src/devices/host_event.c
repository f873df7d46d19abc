/* Events of the host device: one word, which marks how much of which stream's work had been enqueued. */
#include "devices/host.h"

#include <stdlib.h>

#include "core/fail.h"
#include "core/memory.h"

static bp_status add_block(bp_host *host)
{
    void *memory;
    BP_TRY(bp_new_array(1, sizeof(bp_host_event_block), &memory));
    bp_host_event_block *block = memory;
    block->next = host->event_blocks;
    host->event_blocks = block;
    for (size_t i = BP_HOST_BLOCK_EVENTS; i-- > 0;) {
        block->events[i].next = host->unused_events;
        host->unused_events = &block->events[i];
    }
    return BP_OK;
}

bp_status bp_host_event_create(void *self, void **event)
{
    bp_host *host = self;
    pthread_mutex_lock(&host->lock);
    bp_status status = host->unused_events != NULL ? BP_OK : add_block(host);
    bp_host_event *created = host->unused_events;
    if (status == BP_OK)
        host->unused_events = created->next;
    pthread_mutex_unlock(&host->lock);
    if (status == BP_OK) {
        atomic_store(&created->mark, 0);
        *event = created;
    }
    return status;
}

bp_status bp_host_event_destroy(void *self, void *event)
{
    bp_host *host = self;
    bp_host_event *destroyed = event;
    pthread_mutex_lock(&host->lock);
    destroyed->next = host->unused_events;
    host->unused_events = destroyed;
    pthread_mutex_unlock(&host->lock);
    return BP_OK;
}

void bp_host_events_finish(bp_host *host)
{
    while (host->event_blocks != NULL) {
        bp_host_event_block *block = host->event_blocks;
        host->event_blocks = block->next;
        free(block);
    }
}

/* The mark is read, then the stream, and the exchange fails if another record came between: so marks of one stream
 * never go back, whoever records. */
bp_status bp_host_event_record(void *self, void *event, void *stream)
{
    (void)self;
    bp_host_event *e = event;
    bp_host_stream *s = stream;
    uint64_t old = atomic_load(&e->mark), mark;
    do {
        mark = (uint64_t)s->index << BP_HOST_MARK_BITS | atomic_load(&s->enqueued);
    } while (old != mark && !atomic_compare_exchange_weak(&e->mark, &old, mark));
    return BP_OK;
}

/* Which stream and how much of its work an event marks. */
static bp_host_stream *marked(bp_host *host, const bp_host_event *event, uint64_t *count)
{
    uint64_t mark = atomic_load_explicit(&event->mark, memory_order_acquire);
    *count = mark & ((UINT64_C(1) << BP_HOST_MARK_BITS) - 1);
    return atomic_load_explicit(&host->streams[mark >> BP_HOST_MARK_BITS], memory_order_acquire);
}

bp_status bp_host_stream_wait(void *self, void *stream, void *event)
{
    uint64_t count;
    bp_host_stream *other = marked(self, event, &count);
    if (count == 0 || other == stream || atomic_load_explicit(&other->completed, memory_order_acquire) >= count)
        return BP_OK;
    bp_host_stream_enqueue(stream, &(bp_host_work){.kind = BP_HOST_WAIT, .stream = other, .count = count});
    return BP_OK;
}

bp_status bp_host_event_synchronize(void *self, void *event)
{
    uint64_t count;
    bp_host_stream *other = marked(self, event, &count);
    if (count > 0)
        bp_host_stream_await(other, count);
    return BP_OK;
}

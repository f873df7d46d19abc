/* Calls the observers of a pool that are on. */
#include "allocators/observers.h"

static const bp_observer *const observers[BP_OBSERVERS] = {
    &bp_guard_observer, &bp_annotations_observer, &bp_zeros_observer, &bp_capture_observer, &bp_recorder_observer};

/* The observers of `bits` below number `end`, last first. */
static void undo_below(bp_pool *pool, uint32_t id, bp_stream *stream, unsigned bits, unsigned end)
{
    while (end-- > 0) {
        if ((bits >> end & 1) != 0 && observers[end]->undo != NULL)
            observers[end]->undo(pool, id, stream);
    }
}

bp_status bp_observers_prepare(bp_pool *pool, uint32_t id, bp_stream *stream)
{
    const unsigned bits = bp_observed(pool, BP_OBSERVERS_PREPARE);
    for (unsigned i = 0; i < BP_OBSERVERS; i++) {
        bp_status status = (bits >> i & 1) != 0 ? observers[i]->prepare(pool, id, stream) : BP_OK;
        if (status != BP_OK) {
            undo_below(pool, id, stream, bits, i);
            return status;
        }
    }
    return BP_OK;
}

void bp_observers_undo(bp_pool *pool, uint32_t id, bp_stream *stream)
{
    undo_below(pool, id, stream, bp_observed(pool, BP_OBSERVERS_PREPARE), BP_OBSERVERS);
}

bp_status bp_observers_check(bp_pool *pool, uint32_t id, uint64_t word, bp_stream *stream)
{
    const unsigned bits = bp_observed(pool, BP_OBSERVERS_CHECK);
    bp_status status = BP_OK;
    for (unsigned i = 0; status == BP_OK && i < BP_OBSERVERS; i++) {
        if ((bits >> i & 1) != 0)
            status = observers[i]->check(pool, id, word, stream);
    }
    return status;
}

void bp_observers_close(bp_pool *pool, uint32_t id)
{
    const unsigned bits = bp_observed(pool, ~0u);
    for (unsigned i = 0; i < BP_OBSERVERS; i++) {
        if ((bits >> i & 1) != 0 && observers[i]->close != NULL)
            observers[i]->close(pool, id);
    }
}

void bp_observers_note(bp_pool *pool, bp_pool_event_kind kind, uint32_t id, const bp_stream *stream)
{
    const unsigned bits = bp_observed(pool, ~0u);
    for (unsigned i = 0; i < BP_OBSERVERS; i++) {
        if ((bits >> i & 1) != 0 && observers[i]->note != NULL)
            observers[i]->note(pool, kind, id, stream);
    }
}

#include "offload/movers.h"

#include "core/fail.h"

#define STREAMS 4

static void list(const bp_movers *movers, bp_stream *streams[STREAMS])
{
    streams[0] = movers->away.copies;
    streams[1] = movers->away.helper;
    streams[2] = movers->back.copies;
    streams[3] = movers->back.helper;
}

bp_status bp_movers_create(bp_device *device, bp_movers *movers)
{
    bp_movers made = {{NULL, NULL}, {NULL, NULL}};
    bp_status status = bp_stream_create(device, "offload.copies", &made.away.copies);
    if (status == BP_OK)
        status = bp_stream_create(device, "offload.helper", &made.away.helper);
    if (status == BP_OK)
        status = bp_stream_create(device, "restore.copies", &made.back.copies);
    if (status == BP_OK)
        status = bp_stream_create(device, "restore.helper", &made.back.helper);
    if (status == BP_OK)
        *movers = made;
    else
        bp_movers_destroy(&made);
    return status;
}

void bp_movers_destroy(bp_movers *movers)
{
    bp_stream_destroy(&movers->back.helper);
    bp_stream_destroy(&movers->back.copies);
    bp_stream_destroy(&movers->away.helper);
    bp_stream_destroy(&movers->away.copies);
}

bp_status bp_movers_order(bp_stream *first, bp_stream *then)
{
    uint64_t point;
    bool recorded;
    BP_TRY(bp_stream_record_point(first, &point, &recorded));
    return recorded ? bp_stream_wait_point(then, first, point) : BP_OK;
}

/* A stream may be destroyed by another thread meanwhile; its work is waited for as long as there is some. */
static bp_status order_unless_captured(bp_stream *first, bp_stream *then)
{
    uint64_t capture = 0;
    if (bp_stream_is_over(first))
        return BP_OK;
    if (bp_stream_is_usable(first, then->device)) {
        bp_status status = bp_stream_capture_of(first, &capture);
        if (status != BP_OK && bp_stream_is_usable(first, then->device))
            return status;
    }
    return capture == 0 ? bp_movers_order(first, then) : BP_OK;
}

bp_status bp_movers_after_device(const bp_movers *movers, bp_stream *then)
{
    bp_stream *own[STREAMS];
    list(movers, own);
    for (bp_stream *s = atomic_load_explicit(&then->device->streams, memory_order_acquire); s != NULL; s = s->next) {
        if (s != own[0] && s != own[1] && s != own[2] && s != own[3])
            BP_TRY(order_unless_captured(s, then));
    }
    return BP_OK;
}

bp_status bp_movers_after_all(const bp_movers *movers, bp_stream *then)
{
    bp_stream *own[STREAMS];
    list(movers, own);
    for (int i = 0; i < STREAMS; i++) {
        if (own[i] != then)
            BP_TRY(bp_movers_order(own[i], then));
    }
    return BP_OK;
}

static bool is_quiet(bp_stream *const streams[STREAMS])
{
    bool quiet = true;
    for (int i = 0; i < STREAMS && quiet; i++)
        quiet = bp_stream_quiesce(streams[i]) == BP_OK;
    return quiet;
}

bool bp_movers_quiesce(const bp_movers *movers)
{
    bp_stream *own[STREAMS];
    bool quiet = false;
    list(movers, own);
    for (int tries = 0; tries < 2 && !quiet; tries++) /* what a copy may still write to cannot be freed */
        quiet = is_quiet(own);
    return quiet;
}

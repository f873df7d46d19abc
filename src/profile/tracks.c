#include "profile/tracks.h"

#include <stdlib.h>

#include "core/fail.h"

void bp_tracks_finish(bp_tracks *tracks)
{
    for (size_t i = 0; i < tracks->count; i++)
        free(tracks->streams[i].taken);
    free(tracks->streams);
}

static bp_status find_stream(bp_tracks *tracks, uint32_t device, uint32_t stream, uint32_t *index)
{
    for (*index = 0; *index < tracks->count; ++*index) {
        if (tracks->streams[*index].device == device && tracks->streams[*index].stream == stream)
            return BP_OK;
    }
    BP_TRY(bp_grow_array((void **)&tracks->streams, &tracks->capacity, tracks->count, sizeof *tracks->streams));
    tracks->streams[tracks->count++] = (bp_stream_tracks){.device = device, .stream = stream};
    return BP_OK;
}

bp_status bp_tracks_take(bp_tracks *tracks, uint32_t device, uint32_t stream, bool from_before, bp_track *track)
{
    uint32_t index, free_track = 0;
    BP_TRY(find_stream(tracks, device, stream, &index));
    bp_stream_tracks *s = &tracks->streams[index];
    if (from_before) {
        s->has_from_before = true;
        *track = (bp_track){index, 0};
        return BP_OK;
    }
    while (free_track < s->count && s->taken[free_track])
        free_track++;
    BP_TRY(bp_grow_array((void **)&s->taken, &s->capacity, free_track, sizeof *s->taken));
    s->count += free_track == s->count;
    s->taken[free_track] = true;
    *track = (bp_track){index, free_track + 1};
    return BP_OK;
}

void bp_tracks_give_back(bp_tracks *tracks, bp_track track)
{
    if (track.track > 0)
        tracks->streams[track.stream].taken[track.track - 1] = false;
}

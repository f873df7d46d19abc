/* Tracks of a trace: each stream has as many as holds acquired on it overlap, so that no two slices of a track do; and one for holds from before
 * the recording, which begin together and so lie within each other. */
#ifndef BP_PROFILE_TRACKS_H
#define BP_PROFILE_TRACKS_H

#include "profile/play.h"

/* The tracks of one stream of one device. */
typedef struct bp_stream_tracks {
    uint32_t device, stream;
    bool has_from_before;
    uint32_t count; /* of the others, from 1 */
    bool *taken;    /* by track, from 0 */
    size_t capacity;
} bp_stream_tracks;

typedef struct bp_tracks {
    bp_stream_tracks *streams;
    size_t count, capacity;
} bp_tracks;

/* A place for a slice: stream by index, track 0 for those from before. */
typedef struct bp_track {
    uint32_t stream, track;
} bp_track;

void bp_tracks_finish(bp_tracks *tracks);
/* The lowest free one of the stream, which is taken until it is given back. Errors: BP_ERR_NO_HOST_MEMORY. */
bp_status bp_tracks_take(bp_tracks *tracks, uint32_t device, uint32_t stream, bool from_before, bp_track *track);
void bp_tracks_give_back(bp_tracks *tracks, bp_track track);
/* The same for a track in all the file. */
static inline uint32_t bp_track_number(bp_track track)
{
    return (track.stream + 1) << 20 | track.track;
}

#endif

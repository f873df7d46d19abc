/* A profile's own data: what was configured, and of each pool a ring of events, what was live when recording began and ended, and which slabs
 * had memory. */
#ifndef BP_PROFILE_PROFILE_H
#define BP_PROFILE_PROFILE_H

#include <bucketpool/profile.h>

#include "allocators/recorder.h"

#define BP_NAME_BYTES 64     /* of coordinates and labels */
#define BP_SLAB_EVENTS 1024u /* that are kept of a pool */

/* A request at some moment. */
typedef struct bp_live_note {
    const uint8_t *address;
    uint64_t step; /* of its acquire */
    uint32_t stream;
    bool live;
    bool unsure; /* the acquire is lost: stream and step are those of a later event of the hold */
} bp_live_note;

typedef struct bp_slab_event {
    uint64_t before; /* number of the event in the ring that it comes before */
    uint64_t time_ns;
    uint32_t slab;
    bool gained;
} bp_slab_event;

typedef struct bp_role_note {
    uint32_t roles; /* mask */
    uint64_t bytes, lower_bound_bytes;
} bp_role_note;

/* What the plan said; roles NULL: there was none. */
typedef struct bp_plan_note {
    uint64_t bytes, lower_bound_bytes;
    bool optimal;
    bp_role_note *roles;
    size_t role_count;
} bp_plan_note;

/* One of the pools. */
typedef struct bp_profiled {
    struct bp_profile *profile;
    bp_pool *pool;   /* NULL: destroyed */
    bool attached;   /* to its slabs */
    uint32_t device; /* place of its device among the devices of all pools */
    bp_recorder *recorder;
    uint64_t first; /* events before this number are not told: slab events of their time were dropped */
    bool *resident, *resident_first; /* by slab: now; when the first of slab_events had not been */
    bp_slab_event *slab_events;
    uint32_t slab_event_count;
    bp_live_note *begin, *end; /* of the recording, by id */
    uint32_t begin_count, end_count;
    bp_plan_note plan;
} bp_profiled;

/* What is open: a step's recording, or one by hand; also on ranks that do not record. */
typedef enum bp_open { BP_OPEN_NOTHING, BP_OPEN_STEP, BP_OPEN_LABEL } bp_open;

struct bp_profile {
    bp_profiled *pools;
    size_t count;
    char *directory;
    uint64_t *steps;
    size_t step_count;
    uint32_t rank, ranks, formats;
    bool records; /* this rank does */
    bp_profile_info info;
    char coordinates[BP_NAME_BYTES];
    bp_open open;
    bool recorded; /* something was, ever */
    bool ending;   /* the recording has ended in this call: nothing has happened since */
    bool by_hand;  /* the last recording is */
    uint64_t step; /* of the last recording */
    char label[BP_NAME_BYTES];
    uint64_t first_ns, last_ns; /* of the last recording */
    int64_t realtime_offset_ns;
    bp_process process; /* that made it */
    char *paths[2];     /* pickle, trace: written last; NULL: none */
};

/* ---- recording.c ---------------------------------------------------------------------------------------------------- */

uint64_t bp_profile_now_ns(void);
/* Recording begins now, as far as times go. */
void bp_profile_note_clocks(bp_profile *profile);
/* The requests of a pool as they are. `notes` has room for all that can be bound. */
uint32_t bp_profile_note_live(const bp_pool *pool, bp_live_note *notes);
/* Makes what recording one pool needs, and attaches to its slabs. */
bp_status bp_profiled_init(bp_profiled *profiled, uint64_t entries);
void bp_profiled_finish(bp_profiled *profiled);
/* All pools, or none. Errors: BP_ERR_SCHEDULE. */
bp_status bp_profile_begin(bp_profile *profile);
void bp_profile_end(bp_profile *profile);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* A profile: its configuration and, for each pool, a ring of events, the live requests at the beginning and end of
 * the recording, and the residency of the slabs. */
#ifndef BP_PROFILE_PROFILE_H
#define BP_PROFILE_PROFILE_H

#include <bucketpool/profile.h>

#include "allocators/recorder.h"
#include "core/files.h"

#define BP_NAME_BYTES 64     /* coordinates and labels, with the NUL */
#define BP_SLAB_EVENTS 1024u /* slab events kept for each pool */

/* The state of a request at one moment. */
typedef struct bp_live_note {
    const uint8_t *address;
    uint64_t step; /* of its acquire */
    uint32_t stream;
    bool live;
    bool unsure; /* the acquire was overwritten: stream and step are those of a later event of the same live range */
} bp_live_note;

typedef struct bp_slab_event {
    uint64_t before; /* it precedes this event of the ring */
    uint64_t time_ns;
    uint32_t slab;
    bool gained;
} bp_slab_event;

typedef struct bp_role_note {
    uint32_t roles; /* mask */
    uint64_t bytes, lower_bound_bytes;
} bp_role_note;

/* Facts of the plan; roles NULL: the pool has no plan. */
typedef struct bp_plan_note {
    uint64_t bytes, lower_bound_bytes;
    bool optimal;
    bp_role_note *roles;
    size_t role_count;
} bp_plan_note;

/* The recording state of one pool. */
typedef struct bp_profiled {
    struct bp_profile *profile;
    bp_pool *pool;   /* NULL: destroyed */
    bool attached;   /* to the pool's slabs */
    uint32_t device; /* index of its device among the devices of all pools */
    bp_recorder *recorder;
    uint64_t first;                  /* first event that is shown: slab events before it were dropped */
    bool *resident, *resident_first; /* by slab: now; before the first of slab_events */
    bp_slab_event *slab_events;
    uint32_t slab_event_count;
    bp_live_note *begin, *end; /* of the recording, by id */
    uint32_t begin_count, end_count;
    bp_plan_note plan;
} bp_profiled;

/* The open recording: of a step, or with a label; also set on ranks that do not record. */
typedef enum bp_open { BP_OPEN_NOTHING, BP_OPEN_STEP, BP_OPEN_LABEL } bp_open;

struct bp_profile {
    bp_profiled *pools;
    size_t count;
    char *directory;
    uint64_t *steps;
    size_t step_count;
    uint32_t rank, ranks, formats;
    bool records; /* this rank records */
    bp_profile_info info;
    char coordinates[BP_NAME_BYTES];
    bp_open open;
    bool recorded; /* at least once */
    bool ending;   /* the recording ends in this call, so no event can have been missed */
    bool by_hand;  /* the last recording has a label instead of a step */
    uint64_t step; /* of the last recording */
    char label[BP_NAME_BYTES];
    uint64_t first_ns, last_ns; /* of the last recording */
    int64_t realtime_offset_ns;
    bp_process process; /* the process that made it */
    char *paths[2];     /* pickle, trace: the files written last; NULL: none */
};

/* Reads the live requests of a pool. `notes` has room for every id that can be bound. */
uint32_t bp_profile_note_live(const bp_pool *pool, bp_live_note *notes);

/* ---- recordings ----------------------------------------------------------------------------------------------------- */

typedef struct bp_recorded_pool {
    const bp_profiled *of;
    const bp_pool *pool;
    uint64_t first, next;      /* numbers of events */
    uint32_t first_slab_event; /* the first slab event at or after event `first` */
    uint64_t begin_ns;
    bp_live_note *begin, *end, *now; /* by id; end: after the last event */
    bool *resident;                  /* by slab, at the beginning */
    uint32_t count;                  /* number of ids */
} bp_recorded_pool;

typedef struct bp_recording {
    const bp_profile *profile;
    bp_recorded_pool *pools; /* without destroyed pools */
    size_t count;
    uint32_t devices;
    uint64_t now_ns, last_ns;
    int64_t realtime_offset_ns;
    bool has_gap; /* the pools were used after the last event, unrecorded */
} bp_recording;

/* Call bp_recording_finish also after an error. Errors: BP_ERR_NO_HOST_MEMORY. */
bp_status bp_recording_init(const bp_profile *profile, bp_recording *recording);
void bp_recording_finish(bp_recording *recording);

/* The name of a request, "layers.0/dense", as pieces of a text. */
#define BP_NAME_PIECES 5
typedef struct bp_request_name {
    const char *pieces[BP_NAME_PIECES]; /* "param", " ", unit, "/", bucket */
    const char *unit, *bucket;
    char number[24];
} bp_request_name;

void bp_request_name_of(const bp_pool *pool, uint32_t id, bp_request_name *name);

/* ---- replaying --------------------------------------------------------------------------------------------------- */

/* A replay turns recorded events into calls of an observer: slabs are mapped and unmapped, blocks begin and end in
 * them, from an empty device to the current state. However many events the ring has overwritten, a block is only
 * shown in a mapped slab, and never twice. */

/* The memory of one live range. */
typedef struct bp_block {
    const bp_pool *pool;
    uint32_t id;
    uint32_t stream; /* of its acquire */
    uint64_t step;
    const uint8_t *address;
    uint64_t bytes; /* not 0 */
    bool is_dynamic;
    bool from_before; /* live at the beginning of the recording */
} bp_block;

/* Times never decrease. */
typedef struct bp_replay_observer {
    void *user;
    void (*slab)(void *user, const bp_pool *pool, uint32_t slab, bool gained, bool from_before, uint64_t time_ns);
    void (*block)(void *user, const bp_block *block, bool begins, uint64_t time_ns);
} bp_replay_observer;

#define BP_ALL_DEVICES UINT32_MAX

/* Replays the pools of one device, or of all. Errors: BP_ERR_NO_HOST_MEMORY. */
bp_status bp_replay(const bp_recording *recording, uint32_t device, const bp_replay_observer *observer);

/* ---- files: docs/reference/snapshot_files.md ------------------------------------------------------------------------------------------ */

/* The pickle. Errors: BP_ERR_NO_HOST_MEMORY. */
bp_status bp_snapshot_write(const bp_recording *recording, bp_output *output);
/* Chrome's trace format, which Perfetto reads. Errors: BP_ERR_NO_HOST_MEMORY. */
bp_status bp_trace_write(const bp_recording *recording, bp_output *output);

#endif

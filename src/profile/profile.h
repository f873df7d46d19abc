/* A profile's own data: what was configured, and of each pool a ring of events, what was live when recording began and ended, and which slabs
 * had memory. */
#ifndef BP_PROFILE_PROFILE_H
#define BP_PROFILE_PROFILE_H

#include <bucketpool/profile.h>

#include "allocators/recorder.h"
#include "files/files.h"

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

/* The requests of a pool as they are. `notes` has room for all that can be bound. */
uint32_t bp_profile_note_live(const bp_pool *pool, bp_live_note *notes);

/* ---- scenes ------------------------------------------------------------------------------------------------------ */

typedef struct bp_scene_pool {
    const bp_profiled *of;
    const bp_pool *pool;
    uint64_t first, next;      /* numbers of events */
    uint32_t first_slab_event; /* that comes after the first event's predecessor */
    uint64_t begin_ns;
    bp_live_note *begin, *end, *now; /* by id; end: after the last event */
    bool *resident;                  /* by slab, at the beginning */
    uint32_t count;                  /* of ids */
} bp_scene_pool;

typedef struct bp_scene {
    const bp_profile *profile;
    bp_scene_pool *pools; /* without those that are gone */
    size_t count;
    uint32_t devices;
    uint64_t now_ns, last_ns;
    int64_t realtime_offset_ns;
    bool has_gap; /* the pools went on after the last event, unrecorded */
} bp_scene;

/* Call bp_scene_finish either way. Errors: BP_ERR_NO_HOST_MEMORY. */
bp_status bp_scene_init(const bp_profile *profile, bp_scene *scene);
void bp_scene_finish(bp_scene *scene);

/* How a request is called: "layers.0/dense", with its unit and bucket as pieces of a text. */
#define BP_NAME_PIECES 5
typedef struct bp_request_name {
    const char *pieces[BP_NAME_PIECES]; /* "param", " ", unit, "/", bucket */
    const char *unit, *bucket;
    char number[24];
} bp_request_name;

void bp_scene_name(const bp_pool *pool, uint32_t id, bp_request_name *name);

/* ---- stories ----------------------------------------------------------------------------------------------------- */

/* Events as a story: slabs that get and lose memory, blocks that come and go in them, from nothing to what there is now. However much the
 * ring has forgotten, no block comes in memory that is not there, and none twice. */

/* The memory of one hold. */
typedef struct bp_block {
    const bp_pool *pool;
    uint32_t id;
    uint32_t stream; /* of its acquire */
    uint64_t step;
    const uint8_t *address;
    uint64_t bytes; /* more than 0 */
    bool is_dynamic;
    bool from_before; /* it was there at the beginning */
} bp_block;

/* Times never go back. */
typedef struct bp_audience {
    void *user;
    void (*slab)(void *user, const bp_pool *pool, uint32_t slab, bool gained, bool from_before, uint64_t time_ns);
    void (*block)(void *user, const bp_block *block, bool begins, uint64_t time_ns);
} bp_audience;

#define BP_ALL_DEVICES UINT32_MAX

/* For the pools of one device, or of all. Errors: BP_ERR_NO_HOST_MEMORY. */
bp_status bp_play(const bp_scene *scene, uint32_t device, const bp_audience *audience);

/* ---- files, as docs/reference/snapshot_files.md describes them ------------------------------------------------------------------------ */

/* The pickle. Errors: BP_ERR_NO_HOST_MEMORY. */
bp_status bp_snapshot_write(const bp_scene *scene, bp_output *output);
/* Chrome's trace format, which Perfetto reads. Errors: BP_ERR_NO_HOST_MEMORY. */
bp_status bp_trace_write(const bp_scene *scene, bp_output *output);

#endif

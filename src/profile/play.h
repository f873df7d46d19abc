/* Events as a story, and the files that tell it: slabs that get and lose memory, blocks that come and go in them, from nothing to what there
 * is now. However much the ring has forgotten, no block comes in memory that is not there, and none twice. */
#ifndef BP_PROFILE_PLAY_H
#define BP_PROFILE_PLAY_H

#include "files/files.h"
#include "profile/profile.h"

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

/* ---- files, as docs/snapshots.md describes them ------------------------------------------------------------------------ */

/* The pickle. Errors: BP_ERR_NO_HOST_MEMORY. */
bp_status bp_snapshot_write(const bp_scene *scene, bp_output *output);
/* Chrome's trace format, which Perfetto reads. Errors: BP_ERR_NO_HOST_MEMORY. */
bp_status bp_trace_write(const bp_scene *scene, bp_output *output);

#endif

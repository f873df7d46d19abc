/* What a file is about: the events that can be told, what was live before the first of them, and what is live now. */
#ifndef BP_PROFILE_SCENE_H
#define BP_PROFILE_SCENE_H

#include "profile/profile.h"

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

/* The slab that has the address; BP_NONE: none, or it is dynamic. */
uint32_t bp_scene_slab(const bp_pool *pool, uint32_t id, const uint8_t *address);
bool bp_scene_is_dynamic(const bp_pool *pool, uint32_t id);

/* How a request is called: "layers.0/dense", with its unit and bucket as pieces of a text. */
#define BP_NAME_PIECES 5
typedef struct bp_request_name {
    const char *pieces[BP_NAME_PIECES]; /* "param", " ", unit, "/", bucket */
    const char *unit, *bucket;
    char number[24];
} bp_request_name;

void bp_scene_name(const bp_pool *pool, uint32_t id, bp_request_name *name);

#endif

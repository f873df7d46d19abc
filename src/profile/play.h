/* Events as a story: slabs that get and lose memory, blocks that come and go in them, from nothing to what there is now. However much the ring has
 * forgotten, no block comes in memory that is not there, and none twice. */
#ifndef BP_PROFILE_PLAY_H
#define BP_PROFILE_PLAY_H

#include "profile/scene.h"

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

#endif

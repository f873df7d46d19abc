/* SPDX-License-Identifier: Apache-2.0 */
/* Slabs: contiguous device allocations with one physical handle each, and their residency observers. */
#ifndef BP_MEMORY_SLABS_H
#define BP_MEMORY_SLABS_H

#include "devices/device.h"
#include "devices/memory/slab_callbacks.h"

typedef struct bp_slab {
    uint8_t *address;
    uint64_t bytes; /* as allocated: a multiple of the device's granularity */
    uint64_t handle;
    bool committed; /* the handle is valid */
    bool mapped;    /* mapped at the address */
    bool absent;    /* observers were told that it is unmapped */
} bp_slab;

typedef struct bp_slab_observer {
    bp_slab_callbacks callbacks;
    void *user;
} bp_slab_observer;

/* The slabs of one pool, in order; initialise with {.device = device}. */
typedef struct bp_slabs {
    bp_device *device;
    bp_slab *slabs;
    size_t count, capacity;
    bp_slab_observer *observers; /* in the order of attachment */
    size_t observer_count, observer_capacity;
} bp_slabs;

/* Reserves, commits and maps one more slab of at least `bytes` (not 0) at a multiple of `alignment`, a power of two. All or nothing. */
bp_status bp_slabs_add(bp_slabs *slabs, uint64_t bytes, uint64_t alignment);

bp_status bp_slabs_attach(bp_slabs *slabs, const bp_slab_callbacks *callbacks, void *user);
bp_status bp_slabs_detach(bp_slabs *slabs, const bp_slab_callbacks *callbacks, void *user);

/* Collective status agreement: returns the status of all participants, given the local one. */
bp_status bp_slabs_agree(const bp_slabs *slabs, bp_status so_far);

/* True if graphs captured now contain objects of the slab's observers. */
bool bp_slabs_are_captured(const bp_slabs *slabs, uint32_t slab);

/* Unmaps and frees the slabs marked in `chosen` (one entry per slab), which must be idle: calls detach in reverse order, unmaps all,
 * agrees on the status with all participants, and decommits. If a participant cannot unmap, the slabs are mapped again with their bytes
 * and attached: an error without effect. If a device cannot decommit, its error is returned and the slabs keep the memory unmapped
 * (committed, not mapped) until they are loaded. `mapped` tells the two apart. */
bp_status bp_slabs_unload(bp_slabs *slabs, const bool *chosen);

/* Maps memory at the slabs' addresses, agrees on the status with all participants, and calls attach. All or nothing. The contents are
 * unspecified. */
bp_status bp_slabs_load(bp_slabs *slabs, const bool *chosen);

/* Detaches all observers in reverse order, then calls their gone functions. */
void bp_slabs_detach_all(bp_slabs *slabs);
/* bp_slabs_detach_all, then frees all memory in reverse order. The memory must be idle. */
void bp_slabs_finish(bp_slabs *slabs);

#endif

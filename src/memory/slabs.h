/* Slabs: contiguous device allocations with one physical handle each, and those who want to know when they have memory. */
#ifndef BP_MEMORY_SLABS_H
#define BP_MEMORY_SLABS_H

#include <bucketpool/pool.h>

#include "devices/device.h"
#include "memory/slab_callbacks.h"

typedef struct bp_slab {
    uint8_t *address;
    uint64_t bytes; /* as made: a multiple of the device's granularity */
    uint64_t handle;
    bool committed; /* there is a handle */
    bool mapped;    /* at the address: the slab has its memory */
    bool absent;    /* observers were told that it has none */
} bp_slab;

typedef struct bp_slab_observer {
    bp_slab_callbacks callbacks;
    void *user;
} bp_slab_observer;

/* The slabs of one pool, in order; begins as {.device = device}. */
typedef struct bp_slabs {
    bp_device *device;
    bp_slab *slabs;
    size_t count, capacity;
    bp_slab_observer *observers; /* in the order in which they attached */
    size_t observer_count, observer_capacity;
} bp_slabs;

/* Reserves, commits and maps one more slab of at least `bytes` (not 0) at a multiple of `alignment`, a power of two. All or nothing. */
bp_status bp_slabs_add(bp_slabs *slabs, uint64_t bytes, uint64_t alignment);

bp_status bp_slabs_attach(bp_slabs *slabs, const bp_slab_callbacks *callbacks, void *user);
bp_status bp_slabs_detach(bp_slabs *slabs, const bp_slab_callbacks *callbacks, void *user);

/* What everybody who takes part says of how it went here so far. */
bp_status bp_slabs_agree(const bp_slabs *slabs, bp_status so_far);

/* Whether graphs that are captured now keep something of the slab's observers. */
bool bp_slabs_are_captured(const bp_slabs *slabs, uint32_t slab);

/* The slabs marked in `chosen` (one entry for each slab) lose their memory: observers are told (last first), all are unmapped, everybody agrees, and the memory is given back to the device.
 * Nothing may use it. Where somebody cannot unmap, slabs get their memory back with what it held, and observers are told again: an error that
 * leaves everything as it was. Where a device does not take memory back, slabs keep it unmapped (committed and not mapped) until they are
 * loaded, and its error is returned. `mapped` says which it was. */
bp_status bp_slabs_unload(bp_slabs *slabs, const bool *chosen);

/* The slabs get memory at their addresses, everybody agrees, and observers are told. All or nothing. What the memory holds is not specified. */
bp_status bp_slabs_load(bp_slabs *slabs, const bool *chosen);

/* Detaches everybody in reverse order, then tells them that it is over. */
void bp_slabs_detach_all(bp_slabs *slabs);
/* The same, and gives all memory back, last slab first. Nothing may use the memory any more. */
void bp_slabs_finish(bp_slabs *slabs);

#endif

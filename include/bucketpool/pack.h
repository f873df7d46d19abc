/** @file
 * Packing: offsets for items of given sizes, so that items in conflict share no bytes and the total is as small as possible.
 *
 * Offline dynamic storage allocation with gaps: an item is live in half-open intervals of time, and two items conflict when any of
 * their intervals overlap, or when they are said to. The planner packs requests with it; it knows nothing of models, and any
 * instance will do. NP-hard in general, so the search is bounded, in work and not in time: the same instance and configuration give
 * the same offsets on every machine.
 *
 * Sizes and offsets are in whatever unit the caller counts (bytes, or multiples of an alignment): offsets are sums of sizes, so
 * that a common divisor of all sizes divides every offset.
 *
 * Pure host data. A packing that is no longer added to may be read from many threads. Capture-safe. */
#ifndef BUCKETPOOL_PACK_H
#define BUCKETPOOL_PACK_H

#include <bucketpool/status.h>

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** An instance: items with sizes, and which of them conflict. */
typedef struct bp_packing bp_packing;

/** Without items. The caller owns it: bp_packing_destroy. Errors: BP_ERR_INVALID_ARGUMENT, BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_packing_create(bp_packing **packing);
/** Accepts NULL and pointers to NULL; sets *packing to NULL. */
BP_API void bp_packing_destroy(bp_packing **packing);

/** Adds an item that is never live; items are numbered from 0. It takes space when it has an interval or a conflict, and a size: one of
 * size 0 conflicts with nothing.
 * `item` may be NULL. Errors: BP_ERR_OVERFLOW (more than 2^31-1 items), BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_packing_add_item(bp_packing *packing, uint64_t size, size_t *item);

/** Makes the item live in [begin, end) too. Any order; intervals may touch and overlap.
 * Errors: BP_ERR_INVALID_ARGUMENT (no such item, end <= begin), BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_packing_add_interval(bp_packing *packing, size_t item, uint64_t begin, uint64_t end);

/** Makes two items conflict, whenever they are live, and if they never are. Saying it again changes nothing.
 * Errors: BP_ERR_INVALID_ARGUMENT (no such item, an item with itself), BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_packing_add_conflict(bp_packing *packing, size_t item, size_t other);

typedef struct bp_packing_interval {
    uint64_t begin, end; /**< half-open */
    uint32_t item;
} bp_packing_interval;

typedef struct bp_packing_info {
    const uint64_t *sizes; /**< by item */
    size_t item_count;
    const bp_packing_interval *intervals; /**< as they were added */
    size_t interval_count;
} bp_packing_info;

/** Lives as long as the packing; adding an item or an interval changes it and may move its arrays. NULL for NULL. */
BP_API const bp_packing_info *bp_packing_get_info(const bp_packing *packing);

/** The largest sum of sizes found of items that all conflict with each other: no placement takes less. For items with intervals
 * only that is the largest sum live at once; added conflicts are counted where they extend such a set.
 * `witness`, unless NULL, has room for all items and gets those of the set, in increasing order; `count` how many.
 * Errors: BP_ERR_OVERFLOW (the sizes of all that takes space do not fit 64 bits together), BP_ERR_UNSUPPORTED (more than 2^25
 * conflicts), BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_packing_bound(const bp_packing *packing, uint32_t *witness, size_t *count, uint64_t *bound);

typedef struct bp_pack_config {
    size_t size;
    uint64_t capacity; /**< 0: as small as possible; else any placement that takes no more will do */
    uint64_t work;     /**< bound of the search, in elementary steps, very roughly a nanosecond each. 0: the default */
    const uint64_t *known; /**< offsets of a placement to begin with, one per item; NULL: none */
} bp_pack_config;

/** No capacity, the default work, nothing known. */
BP_API bp_status bp_pack_config_init(bp_pack_config *config, size_t size);

typedef enum bp_pack_outcome {
    BP_PACK_PLACED = 1,     /**< offsets are written */
    BP_PACK_INFEASIBLE = 2, /**< proven: nothing fits the capacity */
    BP_PACK_NOT_FOUND = 3   /**< the work ended before the search did */
} bp_pack_outcome;

typedef struct bp_pack_result {
    size_t size;
    bp_pack_outcome outcome;
    uint32_t optimal; /**< 1: proven that nothing takes less: the bound is reached, or the search is exhausted */
    uint64_t
        bytes; /**< the largest end of an item, of the best placement found (whether it fits the capacity or not) */
    uint64_t bound;     /**< as bp_packing_bound */
    uint64_t proven;    /**< nothing takes less: at least the bound, more where the search proved it */
    uint64_t work;      /**< that was done */
    const char *method; /**< what found the placement, a static string: "known", "parity", "order sweep", ... */
} bp_pack_result;

/** Packs. `offsets` has room for all items and is written when the outcome is BP_PACK_PLACED; items that take no space
 * get 0. The same sequence of attempts whatever the work: more work never gives more bytes. With a capacity, an infeasible one is an answer, not an error.
 * Errors: BP_ERR_INVALID_ARGUMENT (a capacity smaller than the largest live item; a known placement that
 * bp_packing_check refuses), and those of bp_packing_bound.
 * Source of the problem and of canonical placements: MiniMalloc (ASPLOS 2023); parity and the order sweep are this library's. */
BP_API bp_status bp_pack(const bp_packing *packing, const bp_pack_config *config, uint64_t *offsets,
                         bp_pack_result *result);

/** Checks a placement with arithmetic of its own, sharing none with bp_pack: every live item ends at or before `bytes`, and no two
 * that conflict share a byte. Errors: BP_ERR_MISMATCH naming the first items in the way by number, BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_packing_check(const bp_packing *packing, const uint64_t *offsets, uint64_t bytes);

typedef struct bp_packing_fault {
    size_t size;
    uint32_t found;       /**< 0: the placement is good */
    uint32_t item, other; /**< conflict and share bytes, item < other; the same twice: it ends after `bytes` */
} bp_packing_fault;

/** What bp_packing_check objects to, for callers that have names for items. Errors: BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_packing_find_fault(const bp_packing *packing, const uint64_t *offsets, uint64_t bytes,
                                       bp_packing_fault *fault);

#ifdef __cplusplus
}
#endif
#endif

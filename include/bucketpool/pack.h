/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * Packing: offset assignment for items with sizes and live ranges, so that conflicting items share no bytes and the
 * total is as small as possible.
 *
 * The problem is offline dynamic storage allocation with gaps: an item is live in several half-open intervals of
 * time. Two items conflict if their intervals overlap, or if the caller declares a conflict. It is NP-hard; the
 * search is limited by work and not by time, so that the same instance and configuration give the same offsets on
 * every machine. The planner uses it for requests, but it knows nothing about models:
 * @code
 * bp_packing_create(&packing);
 * bp_packing_add_item(packing, 300, &a);
 * bp_packing_add_item(packing, 100, &b);
 * bp_packing_add_interval(packing, a, 0, 2);
 * bp_packing_add_interval(packing, b, 1, 3);
 * uint64_t offsets[2];
 * bp_pack_result result;
 * result.size = sizeof result;
 * bp_pack(packing, NULL, offsets, &result); // result.bytes 400, result.optimal 1
 * @endcode
 *
 * Sizes and offsets are in any unit of the caller (bytes, or multiples of an alignment). Offsets are sums of sizes,
 * so a common divisor of all sizes divides every offset.
 *
 * Thread safety: any number of threads may read a packing while no thread adds to it. Capture: allowed, no function
 * here uses a device. */
#ifndef BUCKETPOOL_PACK_H
#define BUCKETPOOL_PACK_H

#include <bucketpool/status.h>

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** An instance of the problem: items with sizes, intervals and conflicts. */
typedef struct bp_packing bp_packing;

/** Creates a packing without items. The caller owns it: bp_packing_destroy. Errors: BP_ERR_INVALID_ARGUMENT,
 * BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_packing_create(bp_packing **packing);
/** Destroys a packing. Accepts NULL and a pointer to NULL; sets *packing to NULL. */
BP_API void bp_packing_destroy(bp_packing **packing);

/** Adds an item without intervals. `item` gets its number, counted from 0; NULL if not wanted. An item takes space if
 * it has a size and an interval or a conflict. An item of size 0 conflicts with nothing.
 *
 * Errors: BP_ERR_OVERFLOW (more than 2^31 - 1 items), BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_packing_add_item(bp_packing *packing, uint64_t size, size_t *item);

/** Adds the interval [begin, end) to an item, in any order. Intervals of an item may touch and overlap.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (no such item, end <= begin), BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_packing_add_interval(bp_packing *packing, size_t item, uint64_t begin, uint64_t end);

/** Declares a conflict between two items, whatever their intervals are. Declaring it again has no effect.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (no such item, an item with itself), BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_packing_add_conflict(bp_packing *packing, size_t item, size_t other);

typedef struct bp_packing_interval {
    uint64_t begin, end; /**< half-open */
    uint32_t item;
} bp_packing_interval;

typedef struct bp_packing_info {
    const uint64_t *sizes; /**< by item */
    size_t item_count;
    const bp_packing_interval *intervals; /**< in the order of addition */
    size_t interval_count;
} bp_packing_info;

/** The contents of a packing. Lives as long as the packing; adding to the packing changes it and may move its arrays.
 * NULL for NULL. */
BP_API const bp_packing_info *bp_packing_get_info(const bp_packing *packing);

/** A lower bound of every placement: the largest sum of sizes of items that all conflict. Without declared conflicts
 * it is the peak of the live sizes; declared conflicts count where they extend such a set, in components of the
 * conflict graph with at most 2^22 conflicts. `witness` gets the items
 * of the set in increasing order and has room for all items; NULL if not wanted. `count` gets their number.
 *
 * Errors: BP_ERR_OVERFLOW (the sizes together do not fit 64 bits; more than 2^31 - 1 intervals), BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_packing_bound(const bp_packing *packing, uint32_t *witness, size_t *count, uint64_t *bound);

/** The state of a search, for another thread or a signal handler of the caller. Zero at first. Read and write it with atomic accesses
 * while the search runs. */
typedef struct bp_pack_progress {
    uint64_t bytes;  /**< total of the best placement so far; 0: none yet */
    uint64_t proven; /**< proven minimum so far */
    uint32_t stop;   /**< written by the caller: not 0 ends the search soon, with the best placement so far */
} bp_pack_progress;

typedef struct bp_pack_config {
    size_t size;
    uint64_t capacity; /**< 0: minimize the total; else accept any placement of at most this size */
    uint64_t work;     /**< search limit in elementary steps, very roughly a nanosecond each. 0: the default */
    /** offsets of a known placement, one for each item, with which the search starts; NULL: none */
    const uint64_t *known;
    bp_pack_progress *progress; /**< valid during the call; NULL: none */
} bp_pack_config;

/** Sets the defaults: no capacity, the default work, no known placement. */
BP_API bp_status bp_pack_config_init(bp_pack_config *config, size_t size);

typedef enum bp_pack_outcome {
    BP_PACK_PLACED = 1,     /**< offsets are written */
    BP_PACK_INFEASIBLE = 2, /**< proven: no placement fits the capacity */
    BP_PACK_NOT_FOUND = 3   /**< the search reached its limit without a placement */
} bp_pack_outcome;

typedef struct bp_pack_result {
    size_t size;
    bp_pack_outcome outcome;
    uint32_t optimal; /**< 1: proven minimum, because the bound is reached or the search is exhausted */
    uint64_t bytes;   /**< total of the best placement found, even if it does not fit the capacity */
    uint64_t bound;   /**< as bp_packing_bound */
    uint64_t proven;  /**< proven minimum: the bound, or more where the search proved it */
    uint64_t work;    /**< work done */
    /** search method that found the placement: "known", "parity", "order sweep", ...; static */
    const char *method;
} bp_pack_result;

/** Searches a placement. `config` NULL: the defaults. `offsets` has room for all items and is written if the outcome
 * is BP_PACK_PLACED; items that take no space get 0. The sequence of attempts does not depend on `work`, so more work
 * never gives a larger total. An infeasible capacity is an outcome, not an error.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (a capacity smaller than the largest item; a known placement that bp_packing_check
 * refuses), and those of bp_packing_bound.
 *
 * Memory is linear in the instance, up to 100 MiB more for a conflict graph of up to 2^22 conflicts.
 *
 * Sources: MiniMalloc (ASPLOS 2023) for the problem and for canonical placements; Sekiyama et al. (2018) and Burke et
 * al. (2004) for best fit on a skyline. Parity and the order sweep are from this library. */
BP_API bp_status bp_pack(const bp_packing *packing, const bp_pack_config *config, uint64_t *offsets,
                         bp_pack_result *result);

/** Verifies a placement, with code that bp_pack does not share: every live item ends at or before `bytes`, and no two
 * conflicting items overlap.
 *
 * Errors: BP_ERR_MISMATCH (the message has the numbers of the first items at fault), BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_packing_check(const bp_packing *packing, const uint64_t *offsets, uint64_t bytes);

typedef struct bp_packing_fault {
    size_t size;
    uint32_t found; /**< 0: the placement is valid */
    /** two conflicting items that overlap, item < other; if equal, the item ends after `bytes` */
    uint32_t item, other;
} bp_packing_fault;

/** Finds the first fault of a placement, as bp_packing_check does, for callers with names for items. Errors:
 * BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_packing_find_fault(const bp_packing *packing, const uint64_t *offsets, uint64_t bytes,
                                       bp_packing_fault *fault);

#ifdef __cplusplus
}
#endif
#endif

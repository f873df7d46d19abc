/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * The plan of a training step: one address in a slab for each allocation that the step repeats, valid in all steps that
 * were recorded. bp_step_server (step_serve.h) serves it.
 * @code
 * bp_step_plan *plan;
 * bp_step_plan_create(events, count, NULL, &plan);    // or bp_step_plan_read, bp_step_plan_read_snapshot (formats.h)
 * printf("%llu bytes\n", (unsigned long long)bp_step_plan_get_info(plan)->bytes);
 * bp_step_plan_destroy(&plan);
 * @endcode
 *
 * Steps are of kinds: the first step of a process, steps of different lengths, steps with an evaluation. All kinds share
 * the slab; what a kind has in common with another one from its beginning on has the same addresses where that costs
 * nothing. Memory that outlives its step by more than a step is outside of the plan.
 *
 * Thread safety: a plan does not change; any number of threads may read it. Capture: allowed, no function here uses a
 * device. */
#ifndef BUCKETPOOL_STEP_PLAN_H
#define BUCKETPOOL_STEP_PLAN_H

#include <bucketpool/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BP_STEP_ALIGNMENT 512u       /**< bytes; offsets and taken sizes are multiples, as in PyTorch's allocator */
#define BP_STEP_OUTSIDE UINT64_MAX   /**< offset of an allocation that is not planned */
#define BP_STEP_NO_PLACE UINT32_MAX  /**< place of an allocation whose code is not known */
#define BP_STEP_LEAD_AUTO UINT32_MAX /**< see bp_step_plan_config */
#define BP_STEP_PLAN_STREAMS 32u     /**< streams of a plan are fewer than this, or as many */
#define BP_STEP_PLAN_KINDS 8u        /**< kinds of steps are fewer than this, or as many */

/** Bytes of an allocation in PyTorch's allocator and in plans: a multiple of BP_STEP_ALIGNMENT. */
static inline uint64_t bp_step_round(uint64_t bytes)
{
    return (bytes + BP_STEP_ALIGNMENT - 1) / BP_STEP_ALIGNMENT * BP_STEP_ALIGNMENT;
}

typedef struct bp_step_plan bp_step_plan;

/* ---- contents ------------------------------------------------------------------------------------------------------ */

/** An allocation of a step. */
typedef struct bp_step_plan_item {
    uint64_t bytes;  /**< as requested; at `offset` it takes them rounded up to BP_STEP_ALIGNMENT */
    uint64_t offset; /**< in the slab; BP_STEP_OUTSIDE: not planned */
    uint32_t stream; /**< of the plan */
    uint32_t place;  /**< code that allocates: a string of `places`; or BP_STEP_NO_PLACE */
    /** 1: its next user in the slab is on another stream, so that a server records an event when it is freed */
    uint32_t precedes_stream;
} bp_step_plan_item;

/** A kind of step. */
typedef struct bp_step_plan_kind {
    const bp_step_plan_item *items; /**< in the order of allocation */
    size_t item_count;
    /** Ends of optimizers in the step: items before which one lies, ascending. 0: the step begins behind an optimizer. */
    const uint32_t *marks;
    size_t mark_count;
    uint32_t is_first;          /**< 1: the first step of a process, and what comes before it */
    uint32_t steps;             /**< recorded steps of the kind */
    uint64_t bytes;             /**< the slab that this kind alone takes */
    uint64_t lower_bound_bytes; /**< peak live bytes of its planned items, windows included */
    uint64_t proven_bytes;      /**< no placement takes less */
    const char *method;         /**< of the packer (bp_pack_result) */
} bp_step_plan_kind;

/** A pair of streams of which a step makes one wait for the other, because memory changes streams. */
typedef struct bp_step_plan_waits {
    uint32_t waiting, before; /**< streams of the plan */
    uint64_t waits;           /**< of the largest kind, in a steady step */
} bp_step_plan_waits;

typedef struct bp_step_plan_info {
    uint64_t bytes;                 /**< of the slab */
    uint64_t bytes_without_windows; /**< the slab without leads: what overlap between streams costs is the difference */
    uint64_t lower_bound_bytes;     /**< of the largest kind */
    uint64_t persistent_bytes;      /**< live during whole steps */
    uint64_t outside_bytes;         /**< peak live bytes of the allocations of steps without an offset */
    uint64_t peak_live_bytes;       /**< of the recorded steps, rounded: no allocator takes less */
    uint64_t reserved_before_bytes; /**< what PyTorch reserved without the plan, at most; 0: not known */
    int optimal;                    /**< 1: the slab is proven to be the smallest */
    const bp_step_plan_kind *kinds;
    size_t kind_count;
    const uint64_t *streams; /**< handles in the recording; 0 is the default stream */
    size_t stream_count;
    const bp_step_plan_waits *waits; /**< pairs that wait */
    size_t waits_count;
    const char *const *places;
    size_t place_count;
} bp_step_plan_info;

/** The contents; live as long as the plan. NULL for NULL. */
BP_API const bp_step_plan_info *bp_step_plan_get_info(const bp_step_plan *plan);

/** Makes a plan with these contents, which are copied. For plans of other planners and for tests: two items at
 * overlapping addresses may be live together, and a server then serves the first only.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (an offset that is not a multiple of BP_STEP_ALIGNMENT or an item that ends behind
 * `bytes`; a stream, place or mark that does not exist; marks that do not ascend; too many kinds or streams; more than
 * 2^31 items), BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_step_plan_from_info(const bp_step_plan_info *info, bp_step_plan **plan);

/** Accepts NULL and a pointer to NULL; sets *plan to NULL. */
BP_API void bp_step_plan_destroy(bp_step_plan **plan);

/* ---- planning ------------------------------------------------------------------------------------------------------ */

typedef enum bp_step_action {
    BP_STEP_ALLOCATE = 1,
    BP_STEP_FREE = 2, /**< the last use was issued; the allocator orders later users of the memory behind it */
    BP_STEP_MARK = 3  /**< an optimizer has ended its step */
} bp_step_action;

/** An event of a recording. */
typedef struct bp_step_event {
    uint64_t address; /**< of the allocation, unique while it is live */
    uint64_t bytes;   /**< as requested */
    uint32_t stream;  /**< number given by the caller; 0 is the default stream */
    uint32_t action;  /**< a bp_step_action */
} bp_step_event;

/** A part of the slab that a replanned step must leave alone, because something is live there. */
typedef struct bp_step_held {
    uint64_t offset, bytes; /**< multiples of BP_STEP_ALIGNMENT */
} bp_step_held;

typedef struct bp_step_plan_config {
    size_t size;
    uint64_t work; /**< limit of the search, as in bp_pack_config. 0: the default */
    /** Windows: memory of a stream other than the one that allocates most is kept free for so many events before its
     * allocation, so that work that was issued before can overlap with what that stream computes. BP_STEP_LEAD_AUTO: since
     * the last allocation of the same size on such streams, which is a layer for all-gathers; the first of a size has the
     * window of the second, and one alone in its size since the last of any size. They are shortened, the largest first, where
     * they would cost more than 2 % of the slab and persistent memory. 0: none. The first step of a process has none */
    uint32_t lead;
    /** 1: the events begin with the process. The first step, with all that comes before it, is a separate kind; it does not make
     * the slab larger, and its items that do not fit or that outlive the next step are outside */
    uint32_t is_from_start;
    const bp_step_held *held; /**< items avoid them; the slab is as large as it then has to be */
    size_t held_count;
    uint64_t reserved_before_bytes; /**< copied to the plan */
} bp_step_plan_config;

/** Sets the defaults: the default work, BP_STEP_LEAD_AUTO, from the start, nothing held. */
BP_API bp_status bp_step_plan_config_init(bp_step_plan_config *config, size_t size);

/** Plans the steps of a recording: from mark to mark, or what repeats where there are no marks. `config` NULL: the
 * defaults. The caller owns the plan: bp_step_plan_destroy. Deterministic.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (no steps, an unknown action, more streams than BP_STEP_PLAN_STREAMS, held ranges that
 * are not multiples of BP_STEP_ALIGNMENT), BP_ERR_NO_HOST_MEMORY, and those of bp_pack. */
BP_API bp_status bp_step_plan_create(const bp_step_event *events, size_t count, const bp_step_plan_config *config,
                                     bp_step_plan **plan);

#ifdef __cplusplus
}
#endif
#endif

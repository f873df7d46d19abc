/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * Plans: the address of each request. A plan maps requests to offsets in slabs, with the bytes that this takes and a
 * lower bound of the bytes of any plan.
 *
 * Plans are host data. They are made offline or at start-up, saved, loaded and compared:
 * @code
 * bp_plan_config config;
 * bp_plan_config_init(&config, sizeof config);
 * config.joint = 1;
 * bp_plan_create(buckets, schedule, &config, &plan);
 * const bp_plan_info *info = bp_plan_get_info(plan);
 * printf("%" PRIu64 " bytes, lower bound %" PRIu64 "\n", info->bytes, info->lower_bound_bytes);
 * @endcode
 *
 * The id of a request is its index in the plan, which is its index in the buckets. Pools, captures, traces and
 * schedules use the same number. bp_plan_find gives a runtime the id of its bucket.
 *
 * Planning is deterministic: the same buckets, schedule and configuration give the same plan, byte for byte.
 *
 * Thread safety: many threads may read a plan while no thread sets its model, options or groups. Capture: allowed, no
 * function here uses a device. */
#ifndef BUCKETPOOL_PLAN_H
#define BUCKETPOOL_PLAN_H

#include <bucketpool/model.h>
#include <bucketpool/schedule.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bp_plan bp_plan;

/** Policies, by the way a request gets memory.
 * - BP_POLICY_DYNAMIC: every acquire allocates and every release frees. No address is stable. The bytes of the plan
 *   are the peak live bytes.
 * - BP_POLICY_FIXED: the most frequent set of units with equal buckets (unpadded sizes and storage dtypes, in order;
 *   on a tie the first such set) shares `copies` sets of buffers. Other units are persistent or dynamic
 *   (bp_fallback). Source: FixedPoolAllocator of Megatron-FSDP.
 * - BP_POLICY_MAX: for each storage dtype the buckets of a unit are sorted by unpadded elements, the largest first
 *   (on a tie the larger bucket index first). Buffer k has the padded bytes of the largest k-th bucket of all units.
 *   There are `copies` sets of these buffers. Source: MaxPoolAllocator of Megatron-FSDP, Megatron-LM PR 5462.
 * - BP_POLICY_SCHEDULED: one offset for each request, from offset assignment over the live ranges; requests may
 *   overlap partly. Takes as few bytes as the search finds and never more than BP_POLICY_MAX, and says if fewer are
 *   possible.
 *
 * The roles in BP_ROLES_STATE are live all the time: under every policy but dynamic their requests have separate
 * memory, and their `copies` are 0. */
typedef enum bp_policy {
    BP_POLICY_DYNAMIC = 1,
    BP_POLICY_FIXED = 2,
    BP_POLICY_MAX = 3,
    BP_POLICY_SCHEDULED = 4
} bp_policy;

/** The name of a policy: "dynamic", "fixed", "max", "scheduled"; "invalid" for other values. Static. */
BP_API const char *bp_policy_name(bp_policy policy);
/** The policy with this name. Errors: BP_ERR_INVALID_ARGUMENT (an unknown name; the message lists the names). */
BP_API bp_status bp_policy_parse(const char *name, bp_policy *policy);

/** Policy fixed: the memory of units that are not in the pool. Persistent: allocated once. Dynamic: allocated at each
 * acquire. */
typedef enum bp_fallback { BP_FALLBACK_PERSISTENT = 1, BP_FALLBACK_DYNAMIC = 2 } bp_fallback;

typedef struct bp_plan_config {
    size_t size;
    bp_policy policy;
    /** sets of buffers (fixed, max). 0: the largest number of units live at once in the schedule */
    uint32_t copies;
    bp_fallback fallback; /**< fixed only */
    uint64_t alignment;   /**< bytes, a power of two; all offsets and placed sizes are multiples */
    /** scheduled only. 1: all roles except those in BP_ROLES_STATE share one slab, release group "joint" */
    uint32_t joint;
    uint64_t work; /**< scheduled only: search limit for each slab, as in bp_pack_config. 0: the default */
} bp_plan_config;

/** Sets the defaults: policy scheduled, as many copies as the schedule needs, persistent fallback, 256-byte alignment, one
 * slab for each role. */
BP_API bp_status bp_plan_config_init(bp_plan_config *config, size_t size);

/** Plans every role of the buckets, each in its slab, or together in one with `joint`. `config` NULL: the defaults.
 * Too few copies are not an error: the plan is infeasible, says why, and has no addresses.
 *
 * The caller owns the plan: bp_plan_destroy. The inputs are only read.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (an unknown policy, an alignment that is not a power of two, a schedule of other
 * buckets, nothing to place), BP_ERR_OVERFLOW, BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_plan_create(const bp_buckets *buckets, const bp_schedule *schedule, const bp_plan_config *config,
                                bp_plan **plan);
/** Destroys a plan. Accepts NULL and a pointer to NULL; sets *plan to NULL. */
BP_API void bp_plan_destroy(bp_plan **plan);

/* ---- the contents of a plan ---------------------------------------------------------------------------------------- */

/** Source of the memory of a request.
 * - BP_PLACE_NONE: no memory, because the request has no bytes or the schedule never uses it.
 * - BP_PLACE_PLANNED: an offset in a slab of the plan.
 * - BP_PLACE_PERSISTENT: separate memory outside the slabs of the plan, for the life of the pool (bp_pool_bind).
 * - BP_PLACE_DYNAMIC: allocated at each acquire, in stream order. */
typedef enum bp_placement {
    BP_PLACE_NONE = 0,
    BP_PLACE_PLANNED = 1,
    BP_PLACE_PERSISTENT = 2,
    BP_PLACE_DYNAMIC = 3
} bp_placement;

/** One request: memory for one bucket in one role. Strings live as long as the plan. */
typedef struct bp_plan_request {
    const char *unit;
    const char *bucket; /**< NULL: "bucket.<ordinal>" */
    uint32_t ordinal;   /**< of the bucket in its unit */
    uint32_t role;      /**< a bp_role */
    bp_dtype dtype;     /**< storage dtype */
    bp_placement placement;
    uint32_t slab;       /**< planned: index of the slab; else 0 */
    uint64_t offset;     /**< planned: bytes from the start of the slab; else 0 */
    uint64_t bytes;      /**< with padding, before alignment */
    uint64_t used_bytes; /**< without padding */
} bp_plan_request;

/** A slab: one contiguous allocation. */
typedef struct bp_plan_slab {
    uint64_t bytes;
    /** release group: slabs of one name are offloaded together. The name of the role or "joint", unless
     * bp_plan_set_group changed it */
    const char *group;
} bp_plan_slab;

/** A size class that requests share: `copies` buffers of `bytes` each, the first at `offset`, the next ones `stride`
 * apart. The plan assigns one copy to each request of the class; bp_strict says if a request may take another one at
 * run time. */
typedef struct bp_plan_class {
    uint32_t slab;
    bp_dtype dtype; /**< storage dtype of all its requests */
    uint32_t copies;
    uint64_t offset;
    uint64_t stride;
    uint64_t bytes;
} bp_plan_class;

typedef enum bp_buffer_kind { BP_BUFFER_POOLED = 1, BP_BUFFER_PERSISTENT = 2 } bp_buffer_kind;

/** One size class of a role in the report of a plan: `copies` buffers of `bytes` each. */
typedef struct bp_plan_buffer {
    bp_buffer_kind kind;
    bp_dtype dtype; /**< storage dtype */
    uint32_t rank;  /**< 0 is the largest of its dtype */
    uint32_t copies;
    uint64_t bytes;  /**< of one copy, aligned */
    uint32_t set_by; /**< the request that needs the most */
    uint32_t users;  /**< requests that use the class */
} bp_plan_buffer;

/** One role, or several that share a slab in a joint plan. */
typedef struct bp_plan_role {
    uint32_t role;       /**< the first of `roles` */
    uint32_t roles;      /**< BP_ROLE_BIT mask */
    uint32_t copies;     /**< buffer sets of this role's pool */
    uint32_t live_units; /**< the largest number of units live at once */
    uint64_t bytes;
    uint64_t pool_bytes;       /**< part of `bytes` in shared buffers */
    uint64_t persistent_bytes; /**< part of `bytes` in persistent memory */
    uint64_t dynamic_bytes;    /**< part of `bytes` allocated on demand: peak live bytes */
    /** peak live bytes, or the sum of a larger set of requests that all conflict */
    uint64_t lower_bound_bytes;
    uint32_t lower_bound_step; /**< the first step that reaches the lower bound */
    int32_t optimal;           /**< 1: no plan takes fewer bytes */
    uint64_t proven_bytes;     /**< proven minimum: the lower bound, or more where the search proved it */
    const char *method;        /**< search method that found the placement (scheduled), else ""; static */
    size_t buffer_count;
    const bp_plan_buffer *buffers;
    size_t witness_count;
    const uint32_t *witnesses; /**< requests whose aligned bytes add up to the lower bound */
} bp_plan_role;

/** An option that the plan was made with, as text. */
typedef struct bp_plan_option {
    const char *key, *value;
} bp_plan_option;

typedef struct bp_plan_info {
    const char *model; /**< "" if not set */
    bp_policy policy;
    uint32_t copies;  /**< sets of buffers, the largest number of all roles; 0 for dynamic and scheduled */
    int32_t feasible; /**< 0: see `infeasible_because` */
    int32_t stable;   /**< 1: every live request keeps one address */
    int32_t optimal;  /**< 1: no plan takes fewer bytes */
    uint64_t alignment;
    uint64_t bytes;                 /**< of all roles */
    uint64_t lower_bound_bytes;     /**< no plan with the same slabs takes less: the sum of the roles */
    const char *infeasible_because; /**< "" when feasible */
    size_t request_count;
    const bp_plan_request *requests; /**< by id */
    size_t slab_count;
    const bp_plan_slab *slabs; /**< none in dynamic and infeasible plans */
    size_t class_count;
    const bp_plan_class *classes; /**< policies fixed and max; memory of a single request is not a class */
    size_t role_count;
    const bp_plan_role *roles; /**< none in a plan that was read from a file */
    size_t option_count;
    const bp_plan_option *options;
} bp_plan_info;

/** The contents of a plan. The struct lives as long as the plan; its pointers and strings are valid until the model,
 * an option or a group of the plan is set. NULL for NULL. */
BP_API const bp_plan_info *bp_plan_get_info(const bp_plan *plan);

/** Finds the id of a request by unit, ordinal and role. O(1), a hash lookup. `dtype` and `bytes` (with padding) are
 * those of the runtime's bucket and are compared with the plan; BP_DTYPE_NONE and BP_BYTES_ANY skip the comparison.
 * fp8 and uint8 are the same storage dtype.
 * @code
 * uint32_t id;
 * bp_plan_find(plan, "layers.7", 0, BP_ROLE_PARAM, BP_DTYPE_BF16, bytes, &id);
 * @endcode
 *
 * Errors: BP_ERR_MISMATCH (the plan does not have the request, as for a bucket without elements; another dtype or
 * size, with both; the schedule of the plan never uses the request, so it has no memory), BP_ERR_INVALID_ARGUMENT
 * (NULL). */
BP_API bp_status bp_plan_find(const bp_plan *plan, const char *unit, uint32_t ordinal, bp_role role, bp_dtype dtype,
                              uint64_t bytes, uint32_t *id);
#define BP_BYTES_ANY UINT64_MAX

/** Sets the release group of a slab: slabs of one group are offloaded together. Set groups before the plan is saved
 * and before pools are made, because the fingerprint covers groups. The name is copied.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (no such slab, an empty name), BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_plan_set_group(bp_plan *plan, size_t slab, const char *group);

/** Sets the name of the model, which is saved and displayed. Copied. Errors: BP_ERR_INVALID_ARGUMENT (NULL),
 * BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_plan_set_model(bp_plan *plan, const char *name);
/** Sets an option of the plan as text, which is saved and displayed. Copied. `value` NULL removes the key.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (NULL), BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_plan_set_option(bp_plan *plan, const char *key, const char *value);

#define BP_FINGERPRINT_CHARS 65 /**< 64 hexadecimal digits and a terminator */

/** SHA-256 of policy, copies, bound, alignment, slabs, requests and classes in canonical form. Plans that can serve the
 * ranks of one job have the same fingerprint; the names of models and options are free. docs/reference/formats.md lists
 * the hashed bytes. O(requests); not for the training loop.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (NULL). */
BP_API bp_status bp_plan_fingerprint(const bp_plan *plan, char fingerprint[BP_FINGERPRINT_CHARS]);

/** Verifies a plan against buckets and schedule, with code that the planner does not share: the plan has the requests
 * of the buckets; each live request is inside its slab, aligned and of the right size; conflicting requests share no
 * byte, overlap windows included.
 *
 * Errors: BP_ERR_MISMATCH (the message names the first fault), BP_ERR_UNSUPPORTED (a plan without addresses),
 * BP_ERR_INVALID_ARGUMENT (NULL, a schedule of other buckets). */
BP_API bp_status bp_plan_check(const bp_plan *plan, const bp_buckets *buckets, const bp_schedule *schedule);

#ifdef __cplusplus
}
#endif
#endif

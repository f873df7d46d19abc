/** @file
 * Plans: the place of each request. A plan maps requests to offsets in slabs, and says how many bytes that takes and how few it could take.
 * Pure data: planned offline or at start-up, saved, loaded, compared.
 *
 * The id of a request is its index in the plan, which is its index in the buckets too. Pools, captures, traces and schedules use the same
 * number; bp_plan_find tells a runtime which one its bucket has.
 *
 * Planning is pure and deterministic: the same buckets, schedule and configuration give the same plan, byte for byte. A plan may be read
 * from many threads while nothing sets its model, options or groups. Capture-safe, as nothing touches a device. */
#ifndef BUCKETPOOL_PLAN_H
#define BUCKETPOOL_PLAN_H

#include <bucketpool/model.h>
#include <bucketpool/schedule.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bp_plan bp_plan;

/** BP_POLICY_DYNAMIC: no pool. Every acquire allocates, every release frees; bytes are the peak live bytes, and no address is stable.
 * BP_POLICY_FIXED: the most frequent set of units with equal buckets (unpadded sizes and storage dtypes, in order; ties: the first
 *   seen) shares `copies` buffer sets; every other unit is persistent or dynamic. Source: Megatron-FSDP FixedPoolAllocator.
 * BP_POLICY_MAX: for each storage dtype a unit's buckets are sorted by unpadded elements from large to small (equal: larger
 *   bucket index first); the k-th buffer is the maximum over units of the k-th bucket's padded bytes; `copies` of all of
 *   them. Source: Megatron-FSDP MaxPoolAllocator, Megatron-LM PR 5462.
 * BP_POLICY_SCHEDULED: one offset per request for all its intervals; buffers may overlap partly. Takes as few bytes as the search
 *   finds, never more than BP_POLICY_MAX, and says whether fewer are possible.
 * The roles of state (BP_ROLES_STATE) are live all the time: under all policies but dynamic their requests have memory of their own, and
 * copies are 0. */
typedef enum bp_policy {
    BP_POLICY_DYNAMIC = 1,
    BP_POLICY_FIXED = 2,
    BP_POLICY_MAX = 3,
    BP_POLICY_SCHEDULED = 4
} bp_policy;

/** "dynamic", "fixed", "max", "scheduled"; "invalid" otherwise. Static. */
BP_API const char *bp_policy_name(bp_policy policy);
/** Errors: BP_ERR_INVALID_ARGUMENT listing the names. */
BP_API bp_status bp_policy_parse(const char *name, bp_policy *policy);

/** Memory of the units that do not fit the fixed pool. */
typedef enum bp_fallback { BP_FALLBACK_PERSISTENT = 1, BP_FALLBACK_DYNAMIC = 2 } bp_fallback;

typedef struct bp_plan_config {
    size_t size;
    bp_policy policy;
    uint32_t copies; /**< buffer sets (fixed, max). 0: as many as the schedule needs, at least the units live at once */
    bp_fallback fallback; /**< fixed only */
    uint64_t alignment;   /**< bytes, a power of two; every offset and every placed size is a multiple */
    uint32_t joint;       /**< scheduled only. 1: all roles but those of state share one slab, release group "joint" */
    uint64_t work;        /**< scheduled only: limit of the search per slab, as in bp_pack_config. 0: the default */
} bp_plan_config;

/** Policy max, as many copies as needed, persistent fallback, 256-byte alignment, a slab for each role. */
BP_API bp_status bp_plan_config_init(bp_plan_config *config, size_t size);

/** Plans every role of the buckets, each in a slab of its own unless `joint`. `config` NULL: the defaults.
 * Too few copies is an answer, not an error: the plan is then infeasible and gives no request an address.
 * Errors: BP_ERR_INVALID_ARGUMENT (unknown policy, alignment no power of two, schedule of other buckets, nothing to place),
 * BP_ERR_OVERFLOW, BP_ERR_NO_HOST_MEMORY. The caller owns the plan: bp_plan_destroy. It keeps nothing of its inputs. */
BP_API bp_status bp_plan_create(const bp_buckets *buckets, const bp_schedule *schedule, const bp_plan_config *config,
                                bp_plan **plan);
/** Accepts NULL and pointers to NULL; sets *plan to NULL. */
BP_API void bp_plan_destroy(bp_plan **plan);

/* ---- the contents of a plan ---------------------------------------------------------------------------------------- */

/** Source of a request's memory.
 * BP_PLACE_NONE: it has none: no bytes, or the plan's schedule never uses it.
 * BP_PLACE_PLANNED: an offset in a slab of the plan.
 * BP_PLACE_PERSISTENT: memory of its own beside the plan (bp_pool_bind).
 * BP_PLACE_DYNAMIC: allocated at each acquire in stream order. */
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
    uint64_t offset;     /**< planned: in the slab; else 0 */
    uint64_t bytes;      /**< padded, not aligned */
    uint64_t used_bytes; /**< without padding */
} bp_plan_request;

/** A slab: one contiguous allocation. */
typedef struct bp_plan_slab {
    uint64_t bytes;
    const char *group; /**< release group, whose slabs are offloaded together: the role's name, or "joint", unless
                          bp_plan_set_group said otherwise */
} bp_plan_slab;

/** A size class that requests share: `copies` buffers of `bytes` each, the first at `offset`, the next `stride` further. The plan assigns
 * one copy to each request of the class; bp_pool_config.strict says whether another one may be taken at run time. */
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
    uint64_t pool_bytes;        /**< of which: shared buffers */
    uint64_t persistent_bytes;  /**< of which: units with memory of their own */
    uint64_t dynamic_bytes;     /**< of which: peak live bytes of what is allocated on demand */
    uint64_t lower_bound_bytes; /**< peak live bytes, or those of a larger set of requests in conflict */
    uint32_t lower_bound_step;  /**< the first step that reaches the lower bound */
    int32_t optimal;            /**< 1: `bytes` are the least possible */
    uint64_t proven_bytes;      /**< no plan takes less: the lower bound, or more where a search proved it */
    const char *method;         /**< the search that found the placement (scheduled), "" otherwise; static */
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
    const char *model; /**< "" where it was never set */
    bp_policy policy;
    uint32_t copies;  /**< buffer sets, the largest of all roles; 0 for dynamic and scheduled */
    int32_t feasible; /**< 0: see `infeasible_because` */
    int32_t stable;   /**< 1: every request that is ever live has one address for the whole run */
    int32_t optimal;  /**< 1: bytes are proven to be the least possible */
    uint64_t alignment;
    uint64_t bytes;                 /**< of all roles */
    uint64_t lower_bound_bytes;     /**< no plan with one slab per role takes less */
    const char *infeasible_because; /**< "" when feasible */
    size_t request_count;
    const bp_plan_request *requests; /**< by id */
    size_t slab_count;
    const bp_plan_slab *slabs; /**< none of dynamic and infeasible plans */
    size_t class_count;
    const bp_plan_class *classes; /**< of policies fixed and max; memory of a single request is in none */
    size_t role_count;
    const bp_plan_role *roles; /**< none of plans that were read from a file */
    size_t option_count;
    const bp_plan_option *options;
} bp_plan_info;

/** The contents. Lives as long as the plan; pointers and strings in it until the plan's model, options or groups are next set. NULL for NULL. */
BP_API const bp_plan_info *bp_plan_get_info(const bp_plan *plan);

/** The id of a request, by a hash of its name: O(1). `dtype` and `bytes` (with padding) are what the runtime has; BP_DTYPE_NONE and
 * BP_BYTES_ANY are not compared. fp8 and uint8 are one storage dtype.
 * Errors: BP_ERR_INVALID_ARGUMENT (NULL), BP_ERR_MISMATCH (the plan does not have the request, as that of a bucket without elements; another dtype
 * or size: names both; the plan's schedule never uses it, so that it has no memory). */
BP_API bp_status bp_plan_find(const bp_plan *plan, const char *unit, uint32_t ordinal, bp_role role, bp_dtype dtype,
                              uint64_t bytes, uint32_t *id);
#define BP_BYTES_ANY UINT64_MAX

/** Names the release group of a slab: slabs of one name are offloaded together. For groups other than the roles, before pools are made
 * and before the plan is saved: the fingerprint covers groups. Copied. Errors: BP_ERR_INVALID_ARGUMENT (no such slab, an empty name),
 * BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_plan_set_group(bp_plan *plan, size_t slab, const char *group);

/** The name of the model, for saving and display. Copied. Errors: BP_ERR_INVALID_ARGUMENT (NULL), BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_plan_set_model(bp_plan *plan, const char *name);
/** An option that the plan was made with, as text, for saving and display. Copied; `value` NULL removes the key. Errors:
 * BP_ERR_INVALID_ARGUMENT (NULL), BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_plan_set_option(bp_plan *plan, const char *key, const char *value);

#define BP_FINGERPRINT_CHARS 65 /**< 64 hexadecimal digits and a terminator */

/** SHA-256 over alignment, slabs, requests and classes in canonical form: equal on every rank that can work together. docs/reference/formats.md
 * describes the bytes that are hashed. Costs a pass over the plan; not for hot paths. Errors: BP_ERR_INVALID_ARGUMENT (NULL). */
BP_API bp_status bp_plan_fingerprint(const bp_plan *plan, char fingerprint[BP_FINGERPRINT_CHARS]);

/** Checks a plan against buckets and schedule by its own arithmetic, sharing none with the planner: the plan's requests are those of the
 * buckets, each that is ever live is inside its slab, aligned and of the right size, and no two conflicting requests (overlaps too) share a byte.
 * Errors: BP_ERR_MISMATCH naming the first thing that is wrong; BP_ERR_UNSUPPORTED for a plan without addresses;
 * BP_ERR_INVALID_ARGUMENT for NULL and for a schedule of other buckets. */
BP_API bp_status bp_plan_check(const bp_plan *plan, const bp_buckets *buckets, const bp_schedule *schedule);

#ifdef __cplusplus
}
#endif
#endif

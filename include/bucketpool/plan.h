/* Plans: where each request lives. A plan maps requests to offsets in slabs, says how many bytes that takes, how few it
 * could take, and whose memory each request reuses. Pure data: planned offline or at start-up, saved, loaded, compared.
 *
 * Planning is pure and deterministic: the same buckets, schedule and configuration give the same plan, byte for byte.
 * Finished plans may be read from many threads. Capture-safe, as nothing touches a device. */
#ifndef BUCKETPOOL_PLAN_H
#define BUCKETPOOL_PLAN_H

#include <bucketpool/model.h>
#include <bucketpool/schedule.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bp_plan bp_plan;

/* BP_POLICY_DYNAMIC: no pool. Bytes are the largest live sum: the floor of memory, without stable addresses.
 * BP_POLICY_FIXED: the most frequent set of units with equal buckets (unpadded sizes and storage dtypes, in order; ties: the first
 *   seen) shares `copies` buffer sets; every other unit is persistent or dynamic. Source: Megatron-FSDP FixedPoolAllocator.
 * BP_POLICY_MAX: for each storage dtype a unit's buckets are sorted by unpadded elements from large to small (equal: larger
 *   bucket index first); the k-th buffer is the maximum over units of the k-th bucket's padded bytes; `copies` of all of
 *   them. Source: Megatron-FSDP MaxPoolAllocator, Megatron-LM PR 5462.
 * BP_POLICY_SCHEDULED: one offset per request for all its intervals; buffers may overlap partly. Takes as few bytes as the search
 *   finds, never more than BP_POLICY_MAX, and says whether fewer are possible.
 * The roles of state (BP_ROLES_STATE) are live all the time: under all policies but dynamic their requests keep memory of their own, and
 * copies are 0. */
typedef enum bp_policy {
    BP_POLICY_DYNAMIC = 1,
    BP_POLICY_FIXED = 2,
    BP_POLICY_MAX = 3,
    BP_POLICY_SCHEDULED = 4
} bp_policy;

BP_API const char *bp_policy_name(bp_policy policy);
BP_API bp_status bp_policy_parse(const char *name, bp_policy *policy);

/* What happens to units that do not fit the fixed pool. */
typedef enum bp_fallback { BP_FALLBACK_PERSISTENT = 1, BP_FALLBACK_DYNAMIC = 2 } bp_fallback;

typedef struct bp_plan_config {
    size_t size;
    bp_policy policy;
    uint32_t copies; /* buffer sets (fixed, max). 0: as many as the schedule needs, at least the units live at once */
    bp_fallback fallback; /* fixed only */
    uint64_t alignment;   /* bytes, a power of two; every offset and every placed size is a multiple */
    uint32_t
        joint; /* scheduled only. 1: all roles but those of state share one slab, a release group of its own, "joint" */
    uint64_t work; /* scheduled only: bound of the search per slab, as in bp_pack_config. 0: the default */
} bp_plan_config;

/* Policy max, as many copies as needed, persistent fallback, 256-byte alignment, a slab for each role. */
BP_API bp_status bp_plan_config_init(bp_plan_config *config, size_t size);

/* Plans every role of the buckets, each in a slab of its own unless `joint`.
 * Too few copies is an answer, not an error: the plan then says it is infeasible and assigns nothing.
 * Errors: BP_ERR_INVALID_ARGUMENT (unknown policy, alignment no power of two, schedule of other buckets, nothing to place),
 * BP_ERR_OVERFLOW, BP_ERR_NO_HOST_MEMORY. The caller owns the plan: bp_plan_destroy. It keeps nothing of its inputs. */
BP_API bp_status bp_plan_create(const bp_buckets *buckets, const bp_schedule *schedule, const bp_plan_config *config,
                                bp_plan **plan);
BP_API void bp_plan_destroy(bp_plan **plan);

typedef struct bp_plan_summary {
    size_t size;
    bp_policy policy;
    uint32_t copies;   /* buffer sets, the largest of all roles; 0 for dynamic */
    uint32_t feasible; /* 0: see `infeasible_because` */
    uint32_t stable;   /* 1: every request has one address for the whole run */
    uint32_t optimal;  /* 1: bytes are proven to be the least possible */
    uint64_t alignment;
    uint64_t bytes;                 /* of all roles */
    uint64_t lower_bound_bytes;     /* no plan with one slab per role takes less */
    const char *infeasible_because; /* "" when feasible; lives as long as the plan */
} bp_plan_summary;

BP_API bp_status bp_plan_summary_get(const bp_plan *plan, bp_plan_summary *summary);

typedef struct bp_plan_role {
    size_t size;
    uint32_t role;
    uint32_t copies; /* buffer sets of this role's pool */
    uint64_t bytes;
    uint64_t pool_bytes;       /* of which: shared buffers */
    uint64_t persistent_bytes; /* of which: units that keep their own memory */
    uint64_t dynamic_bytes;    /* of which: the largest live sum of what is allocated on demand */
    uint64_t lower_bound_bytes;
    uint32_t lower_bound_step; /* the first step that reaches the bound */
    size_t buffers;            /* how many bp_plan_buffer it has */
    uint32_t live_units;       /* the largest number of units live at once */
    uint32_t
        roles; /* BP_ROLE_BIT mask of the roles this entry is about: several in a joint plan, of which `role` is the
                                  first */
    uint64_t proven_bytes; /* no plan takes less: the bound, or more where a search proved it */
    uint32_t optimal;      /* 1: `bytes` are the least possible */
    const char *method;    /* what found the placement (scheduled), "" otherwise; static */
} bp_plan_role;

BP_API size_t bp_plan_role_count(const bp_plan *plan);
BP_API bp_status bp_plan_role_get(const bp_plan *plan, size_t index, bp_plan_role *role);

typedef enum bp_buffer_kind { BP_BUFFER_POOLED = 1, BP_BUFFER_PERSISTENT = 2, BP_BUFFER_DYNAMIC = 3 } bp_buffer_kind;

/* One size class of a role: `copies` buffers of `bytes` each. */
typedef struct bp_plan_buffer {
    size_t size;
    bp_buffer_kind kind;
    bp_dtype dtype; /* storage dtype */
    uint32_t rank;  /* 0 is the largest of its dtype */
    uint32_t copies;
    uint64_t bytes;            /* of one copy, aligned */
    const char *set_by_unit;   /* the request that needs the most; live as long as the plan */
    const char *set_by_bucket; /* NULL: "bucket.<set_by_ordinal>" */
    uint32_t set_by_ordinal;
    uint32_t tenants; /* requests that use the class */
} bp_plan_buffer;

BP_API bp_status bp_plan_buffer_get(const bp_plan *plan, size_t role_index, size_t buffer, bp_plan_buffer *out);

/* The requests that are live at the step that sets a role's lower bound. */
typedef struct bp_plan_witness {
    size_t size;
    const char *unit;
    const char *bucket; /* NULL: "bucket.<ordinal>" */
    uint32_t ordinal;
    uint64_t bytes; /* aligned */
    uint32_t role;
} bp_plan_witness;

BP_API size_t bp_plan_witness_count(const bp_plan *plan, size_t role_index);
BP_API bp_status bp_plan_witness_get(const bp_plan *plan, size_t role_index, size_t index, bp_plan_witness *witness);

/* A slab: one contiguous allocation. `group` is its release group: slabs of a group are offloaded together. */
typedef struct bp_plan_slab {
    size_t size;
    uint64_t bytes;
    const char
        *group; /* the role's name, or "joint", unless bp_plan_set_group said otherwise; lives as long as the plan */
} bp_plan_slab;

BP_API size_t bp_plan_slab_count(const bp_plan *plan);
BP_API bp_status bp_plan_slab_get(const bp_plan *plan, size_t index, bp_plan_slab *slab);

typedef struct bp_assignment {
    size_t size;
    const char *unit;
    const char *bucket; /* NULL: "bucket.<ordinal>" */
    uint32_t unit_index;
    uint32_t ordinal; /* of the bucket in its unit */
    uint32_t role;
    bp_dtype dtype;
    uint32_t slab;
    uint64_t offset;
    uint64_t bytes;               /* padded, not aligned */
    const uint32_t *predecessors; /* assignments whose release points an acquire waits for; live as long as the plan */
    size_t predecessor_count;
} bp_assignment;

/* Names the release group of a slab: slabs of one name are offloaded together. For groups other than the roles, before pools are made
 * and before the plan is saved: the fingerprint covers groups. Copied. Errors: BP_ERR_INVALID_ARGUMENT (no such slab, an empty name),
 * BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_plan_set_group(bp_plan *plan, size_t slab, const char *group);

/* A size class that requests share: `copies` buffers of `bytes` each, the first at `offset`, the next `stride` further. Each
 * request of the class is assigned one copy; at run time it may be given any (bp_pool_config.selection). */
typedef struct bp_plan_class {
    size_t size;
    uint32_t slab;
    bp_dtype dtype; /* storage dtype of all its requests */
    uint32_t copies;
    uint64_t offset;
    uint64_t stride;
    uint64_t bytes;
} bp_plan_class;

/* Classes of plans of policy fixed and max; memory of a single request is in none. */
BP_API size_t bp_plan_class_count(const bp_plan *plan);
BP_API bp_status bp_plan_class_get(const bp_plan *plan, size_t index, bp_plan_class *out);

/* Requests that have an address, in the order of the requests. None when infeasible or dynamic. */
BP_API size_t bp_plan_assignment_count(const bp_plan *plan);
BP_API bp_status bp_plan_assignment_get(const bp_plan *plan, size_t index, bp_assignment *assignment);

/* Model name, and the options it was planned with as text, for saving and display. `value` NULL removes a key. */
BP_API bp_status bp_plan_set_model(bp_plan *plan, const char *name);
BP_API const char *bp_plan_model(const bp_plan *plan);
BP_API bp_status bp_plan_set_option(bp_plan *plan, const char *key, const char *value);
BP_API size_t bp_plan_option_count(const bp_plan *plan);
BP_API bp_status bp_plan_option(const bp_plan *plan, size_t index, const char **key, const char **value);

#define BP_FINGERPRINT_CHARS 65 /* 64 hexadecimal digits and a terminator */

/* SHA-256 over alignment, slabs, assignments (keys, dtypes, bytes, slabs, offsets, predecessors) and classes in canonical form: equal on every rank that can
 * work together. docs/formats.md describes the bytes that are hashed. Costs a pass over the plan; not for hot paths. */
BP_API bp_status bp_plan_fingerprint(const bp_plan *plan, char fingerprint[BP_FINGERPRINT_CHARS]);

/* Checks a plan against buckets and schedule by its own arithmetic, sharing none with the planner: every request placed
 * once, inside its slab, aligned, of the right size, no two conflicting requests (overlaps too) on the same bytes, and every earlier user of
 * a request's bytes ordered before it by the predecessor lists.
 * Errors: BP_ERR_MISMATCH naming the first thing that is wrong; BP_ERR_UNSUPPORTED for a plan without addresses;
 * BP_ERR_INVALID_ARGUMENT for NULL and for a schedule of other buckets. */
BP_API bp_status bp_plan_check(const bp_plan *plan, const bp_buckets *buckets, const bp_schedule *schedule);

/* Checks what a plan says of itself: assignments inside their slabs, aligned, unique, predecessors in range, classes inside their slabs.
 * Errors: BP_ERR_MISMATCH naming the assignment. */
BP_API bp_status bp_plan_validate(const bp_plan *plan);

/* ---- plans from elsewhere (readers of saved plans) ---------------------------------------------------------------- */

typedef struct bp_plan_builder bp_plan_builder;

BP_API bp_status bp_plan_builder_create(const bp_plan_summary *summary, bp_plan_builder **builder);
BP_API bp_status bp_plan_builder_add_slab(bp_plan_builder *builder, const bp_plan_slab *slab);
BP_API bp_status bp_plan_builder_add_class(bp_plan_builder *builder, const bp_plan_class *added);
/* unit_index is ignored: units are numbered by first appearance of their name. All strings and arrays are copied. */
BP_API bp_status bp_plan_builder_add_assignment(bp_plan_builder *builder, const bp_assignment *assignment);
/* Validates and hands over the plan; the builder is consumed and *builder set to NULL, also on error. */
BP_API bp_status bp_plan_builder_finish(bp_plan_builder **builder, bp_plan **plan);
BP_API void bp_plan_builder_destroy(bp_plan_builder **builder);

#ifdef __cplusplus
}
#endif
#endif

/** @file
 * Models, units, parameters, buckets and requests: what has to be held in memory.
 *
 *   bp_model    parameters (names, shapes, dtypes), grouped into units in execution order
 *   bp_buckets  the model's parameters flattened into buckets by a runtime's rule, padded for sharding, and the requests
 *               (bucket, role) that a schedule times and a plan places
 *
 * Everything here is host-side data: no device, no clock, no files (readers are in formats.h). No function here uses a stream, and all
 * may be called during stream capture. Objects are not synchronised: build in one thread; a finished object may be read from many.
 *
 * An object shows its contents as one const struct with arrays (bp_model_info, bp_buckets_info). Newer versions only add fields at its
 * end. The structs that are elements of its arrays never grow: what is added comes as another array. */
#ifndef BUCKETPOOL_MODEL_H
#define BUCKETPOOL_MODEL_H

#include <bucketpool/dtype.h>
#include <bucketpool/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- models ------------------------------------------------------------------------------------------------------ */

typedef struct bp_model bp_model;

#define BP_MAX_DIMS 8
#define BP_MAX_COPIES (1 << 20)
#define BP_OUTSIDE (-1) /**< unit of persistent parameters: outside units, gathered once and kept */

enum {
    BP_PARAMETER_FROZEN = 1u << 0, /**< requires_grad is false: it gets no gradient */
    BP_PARAMETER_GEMM = 1u << 1,   /**< a matrix-multiplication weight: the ones stored in fp8 when that is asked for */
    BP_PARAMETER_PREDICTION = 1u << 2,    /**< belongs to a multi-token prediction layer: counted apart */
    BP_PARAMETER_EXPERT_COPIES = 1u << 3, /**< the copies are experts: expert parallelism splits them */
    BP_PARAMETER_JOINT =
        1u << 4 /**< joins a prediction layer to the model (projection, norms): outside units in Megatron */
};

typedef struct bp_parameter {
    size_t size;      /**< sizeof(bp_parameter) */
    const char *name; /**< unique in the model. With copies > 1 it contains one '*' that stands for 0 .. copies-1 */
    int32_t unit;     /**< unit index or BP_OUTSIDE */
    uint32_t dims;    /**< 0 (a scalar) to BP_MAX_DIMS */
    uint64_t shape[BP_MAX_DIMS];
    bp_dtype dtype;
    uint32_t flags;     /**< BP_PARAMETER_* */
    uint32_t copies;    /**< how many parameters of this very shape the entry stands for (experts); 0 is read as 1 */
    int32_t tp_dim;     /**< dimension that tensor parallelism splits, -1: replicated */
    uint32_t tp_parts;  /**< what is split (heads, experts' columns): must be a multiple of tp; 0: shape[tp_dim] */
    int32_t expert_dim; /**< dimension that expert parallelism splits (stacked experts), -1: none */
} bp_parameter;

/** Sets `parameter` to a trainable persistent parameter that is not split, without a name, shape or dtype. `size` is sizeof *parameter.
 * Errors: BP_ERR_INVALID_ARGUMENT (NULL, no size). */
BP_API bp_status bp_parameter_init(bp_parameter *parameter, size_t size);

/** A new, empty model. `name` is copied. The caller owns it: bp_model_destroy.
 * Errors: BP_ERR_INVALID_ARGUMENT (no name), BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_model_create(const char *name, bp_model **model);
/** Accepts NULL and pointers to NULL; sets *model to NULL. */
BP_API void bp_model_destroy(bp_model **model);

/** Appends a unit in execution order. `parent` is the index of the enclosing unit, or BP_OUTSIDE. Names are unique.
 * `unit` gets its index; NULL where it is not wanted. The name is copied.
 * Errors: BP_ERR_INVALID_ARGUMENT (empty name, parent not an earlier unit), BP_ERR_OVERFLOW, BP_ERR_NO_HOST_MEMORY. A repeated name is
 * found by bp_model_validate. */
BP_API bp_status bp_model_add_unit(bp_model *model, const char *name, int32_t parent, uint32_t *unit);

/** Appends a parameter; everything is copied.
 * Errors: BP_ERR_INVALID_ARGUMENT (no name, unknown unit or dtype, zero dimension, copies without '*'),
 * BP_ERR_OVERFLOW (the element or bit count does not fit 63 bits; also the model's total), BP_ERR_NO_HOST_MEMORY. A repeated name is
 * found by bp_model_validate, not here, so that adding stays linear. */
BP_API bp_status bp_model_add_parameter(bp_model *model, const bp_parameter *parameter);

/** A bucket given as it is, for runtimes that did their own bucketing (used by BP_BUCKETING_GIVEN). */
typedef struct bp_given_bucket {
    size_t size;
    const char *name; /**< unique in its unit; NULL: "bucket.<ordinal>" */
    int32_t unit;     /**< unit index or BP_OUTSIDE */
    bp_dtype dtype;
    uint64_t numel;        /**< unpadded elements; 0 is allowed and never placed */
    uint64_t padded_numel; /**< 0: not given, the padding rule decides (`given` then takes numel) */
    uint32_t expert;       /**< 1: expert parameters, sharded over dp / ep ranks */
    uint32_t frozen;       /**< 1: no gradient */
    uint32_t roles;        /**< BP_ROLE_BIT mask, 0: every role asked for that applies */
} bp_given_bucket;

/** Appends a given bucket; copied. Errors as bp_model_add_parameter. */
BP_API bp_status bp_model_add_bucket(bp_model *model, const bp_given_bucket *bucket);

/** One event of an explicit schedule, in the order the runtime's host issues them. */
typedef struct bp_model_event {
    size_t size;
    uint32_t acquire; /**< 1 acquire, 0 release */
    int32_t unit;     /**< a unit index */
    int32_t bucket;   /**< ordinal of the bucket in its unit, -1: all buckets of the unit */
    uint32_t role;    /**< a bp_role */
    uint32_t lane; /**< BP_LANE_*, or a runtime's own below BP_LANE_COUNT; BP_MODEL_EVENT_NO_LANE: that of the role */
} bp_model_event;
#define BP_MODEL_EVENT_NO_LANE UINT32_MAX

/** Appends an event of the schedule that the model brings along (bp_schedule_create_recorded turns it into intervals); copied.
 * Errors: BP_ERR_INVALID_ARGUMENT (unknown unit or lane), BP_ERR_NO_HOST_MEMORY. Order is checked when the schedule is made. */
BP_API bp_status bp_model_add_event(bp_model *model, const bp_model_event *event);

/** The order in which units run forward in one step; a unit may appear several times (shared weights, repeated prediction
 * layers). Without this call every unit that has no parent runs once, in the order added; nested units run within their
 * parents. `units` is copied. Errors: BP_ERR_INVALID_ARGUMENT (unknown unit, a unit missing), BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_model_set_order(bp_model *model, const uint32_t *units, size_t count);

/** Checks what could not be checked while adding: duplicate parameter names, no parameters and buckets at all.
 * Errors: BP_ERR_INVALID_ARGUMENT (names the duplicate; NULL), BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_model_validate(const bp_model *model);

/** Appends a sentence about parts of the file that the model does not count; copied, and kept by layouts and sharding.
 * Errors: BP_ERR_INVALID_ARGUMENT (NULL), BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_model_add_note(bp_model *model, const char *note);

/* ---- the contents of a model --------------------------------------------------------------------------------------- */

/** A module whose parameters are gathered together. */
typedef struct bp_unit {
    const char *name;
    int32_t parent; /**< index of the enclosing unit, or BP_OUTSIDE */
} bp_unit;

typedef struct bp_model_info {
    const char *name;
    size_t unit_count;
    const bp_unit *units;
    size_t parameter_count;
    const bp_parameter *parameters; /**< `copies` is 1 or more */
    size_t given_bucket_count;
    const bp_given_bucket *given_buckets;
    size_t event_count;
    const bp_model_event *events; /**< of the recorded schedule */
    size_t order_count;
    const uint32_t *order; /**< units in forward order, as set or by default */
    size_t note_count;
    const char *const *notes;
    uint64_t numel; /**< elements of all parameters and given buckets without multi-token prediction layers */
    uint64_t prediction_numel; /**< of only those layers */
} bp_model_info;

/** The contents. Valid until the model is next changed or destroyed. NULL for NULL. */
BP_API const bp_model_info *bp_model_get_info(const bp_model *model);

/* ---- models made of models ------------------------------------------------------------------------------------------ */

/** The module layout of the parameters.
 * BP_LAYOUT_HF: the published modelling code. BP_LAYOUT_MEGATRON: what Megatron-Core builds from it: query, key and value
 * fused, gate and up projections fused, expert stacks as one matrix per expert under `.experts.`, the router's correction
 * bias a buffer, a prediction layer's projection and norms outside units. */
typedef enum bp_layout { BP_LAYOUT_HF = 1, BP_LAYOUT_MEGATRON = 2 } bp_layout;

/** A copy of the model in another layout, which the caller owns. Given buckets and unit order are kept.
 * Errors: BP_ERR_INVALID_ARGUMENT (NULL, unknown layout), BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_model_with_layout(const bp_model *model, bp_layout layout, bp_model **out);

/** The part of one rank (rank 0) of `tp` tensor-parallel and `ep` expert-parallel ranks, before data-parallel sharding. The caller owns it.
 * Errors: BP_ERR_INVALID_ARGUMENT when tp or ep is 0 or does not divide what it splits, naming the parameter;
 * BP_ERR_UNSUPPORTED when tp > 1 and the model says of no parameter how it splits; BP_ERR_NO_HOST_MEMORY. Given buckets stay as they
 * are. */
BP_API bp_status bp_model_shard(const bp_model *model, uint32_t tp, uint32_t ep, bp_model **out);

/* ---- buckets and requests ----------------------------------------------------------------------------------------- */

/** The use of a bucket's memory. */
typedef enum bp_role {
    BP_ROLE_PARAM = 0,           /**< gathered parameters */
    BP_ROLE_PARAM_TRANSPOSE = 1, /**< column-wise copy of fp8 parameters, gathered for backward */
    BP_ROLE_GRAD = 2,            /**< unreduced gradients, in the communication dtype */
    BP_ROLE_GRAD_COMM = 3,       /**< the reduced shard's copy for the outer reduction of hybrid sharding */
    BP_ROLE_STATE = 4,           /**< this rank's shard of the parameters */
    BP_ROLE_MAIN_GRAD = 5,       /**< this rank's shard of the reduced gradients */
    BP_ROLE_OPTIMIZER =
        6 /**< this rank's shard of the optimizer: main weights and moments, one tensor after the other */
} bp_role;
#define BP_ROLE_COUNT 7
#define BP_ROLE_BIT(role) (1u << (role))
/** Roles that live as long as training does: memory of their own, never shared. */
#define BP_ROLES_STATE (BP_ROLE_BIT(BP_ROLE_STATE) | BP_ROLE_BIT(BP_ROLE_MAIN_GRAD) | BP_ROLE_BIT(BP_ROLE_OPTIMIZER))

/** "param", "param_transpose", "grad", "grad_comm", "state", "main_grad", "optimizer"; "invalid" otherwise. */
BP_API const char *bp_role_name(bp_role role);
/** The role of that name. Errors: BP_ERR_INVALID_ARGUMENT (unknown, which lists the known ones). */
BP_API bp_status bp_role_parse(const char *name, bp_role *role);

/** The rule by which parameters share a bucket.
 * BP_BUCKETING_MEGATRON: of one outermost unit, same dtype, expert (the name contains ".experts.") or not, same
 *   requires_grad. Source: Megatron-LM d98e8a64, param_and_grad_buffer.py, _get_parameter_groups.
 * BP_BUCKETING_FSDP2: one bucket per innermost unit, mixed dtypes packed as bytes (uint8). Source: PyTorch FSDP2,
 *   _fsdp_collectives.py.
 * BP_BUCKETING_GIVEN: the buckets of bp_model_add_bucket as they are.
 * Given buckets are taken under every rule; parameters of a model that has both follow the rule, BP_BUCKETING_MEGATRON's under
 * BP_BUCKETING_GIVEN. */
typedef enum bp_bucketing { BP_BUCKETING_MEGATRON = 1, BP_BUCKETING_FSDP2 = 2, BP_BUCKETING_GIVEN = 3 } bp_bucketing;

/** The rule by which a bucket is padded, so that every shard has the same size. dp is the bucket's own: dp / ep for experts.
 * BP_PADDING_MEGATRON_LCM: parameters are laid out in chunks of the least common multiple of the row sizes, the bucket is a
 *   multiple of dp chunks. Source: Megatron-LM d98e8a64, build_data_parallel_buffer_index.
 * BP_PADDING_MEGATRON_SPLIT: parameters with incompatible row sizes go to buckets of their own, each a multiple of
 *   dp x its row size. Source: Megatron-LM before the LCM rule.
 * BP_PADDING_FLAT: a multiple of dp x flat_alignment elements.
 * BP_PADDING_GIVEN: as given (derived buckets: unpadded).
 * BP_PADDING_FSDP2: every parameter's first dimension is padded to a multiple of dp. Source: PyTorch FSDP2,
 *   _fsdp_param.py. */
typedef enum bp_padding {
    BP_PADDING_MEGATRON_LCM = 1,
    BP_PADDING_MEGATRON_SPLIT = 2,
    BP_PADDING_FLAT = 3,
    BP_PADDING_GIVEN = 4,
    BP_PADDING_FSDP2 = 5
} bp_padding;

typedef struct bp_buckets_config {
    size_t size;
    bp_bucketing bucketing;
    bp_padding padding;
    uint32_t dp;             /**< data-parallel ranks a dense bucket is sharded over */
    uint32_t ep;             /**< expert-parallel ranks; must divide dp */
    uint64_t flat_alignment; /**< elements, for BP_PADDING_FLAT */
    bp_dtype param_dtype; /**< BP_DTYPE_NONE: as in the model. fp8: GEMM weights in units only. Not of given buckets */
    bp_dtype grad_dtype;  /**< BP_DTYPE_NONE: the parameter's, bf16 where that cannot hold a gradient */
    bp_dtype grad_comm_dtype;   /**< BP_DTYPE_NONE: not overridden. Overrides grad_dtype for what is communicated */
    uint32_t roles;             /**< BP_ROLE_BIT mask of the roles to make requests for */
    bp_dtype main_grad_dtype;   /**< BP_DTYPE_NONE: fp32 */
    bp_dtype optimizer_dtype;   /**< BP_DTYPE_NONE: fp32 */
    uint32_t optimizer_tensors; /**< of a shard's size each; Adam has main weights and two moments. 0: none */
} bp_buckets_config;

/** Megatron bucketing with LCM padding, dp 64 (as the command and Python), ep 1, flat_alignment 128, roles param and
 * grad, three optimizer tensors.
 * Errors: BP_ERR_INVALID_ARGUMENT (NULL, no size). */
BP_API bp_status bp_buckets_config_init(bp_buckets_config *config, size_t size);

typedef struct bp_buckets bp_buckets;

/** Buckets of the (already sharded) model, which the caller owns: bp_buckets_destroy. The model is only read and may be destroyed
 * afterwards.
 * Errors: BP_ERR_INVALID_ARGUMENT (dp or ep 0, dp not a multiple of ep, unknown rules, padding smaller than numel, empty
 * model), BP_ERR_OVERFLOW, BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_buckets_create(const bp_model *model, const bp_buckets_config *config, bp_buckets **buckets);
/** The buckets of several models that share a pool (policy and reference, chunks of a virtual pipeline). Unit u of part p is called
 * "<names[p]>/<u's name>"; units and requests follow part by part. Parts are only read, names copied. Their schedules go through
 * bp_schedule_create_embedded, then bp_schedule_create_merged.
 * Errors: BP_ERR_INVALID_ARGUMENT (no parts, a name twice, empty or with a '/'), BP_ERR_OVERFLOW, BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_buckets_create_merged(const bp_buckets *const *parts, const char *const *names, size_t count,
                                          bp_buckets **merged);
/** Accepts NULL and pointers to NULL; sets *buckets to NULL. */
BP_API void bp_buckets_destroy(bp_buckets **buckets);

/* ---- the contents of buckets --------------------------------------------------------------------------------------- */

typedef struct bp_bucket {
    const char *name; /**< "dense", "experts", "dense.1"; NULL for a given bucket without a name: "bucket.<ordinal>" */
    uint64_t numel;   /**< without padding */
    uint64_t padded_numel; /**< allocated and communicated */
    /** Of its gradients, 0 where it is frozen: other numbers where parameters are packed as bytes or some are frozen. */
    uint64_t grad_numel;
    uint64_t grad_padded_numel;
    int32_t unit;     /**< index of a unit, or BP_OUTSIDE */
    uint32_t ordinal; /**< position among the buckets of its unit */
    bp_dtype dtype;
    bp_dtype grad_dtype;      /**< gradients are communicated in it */
    uint32_t expert;          /**< 1: expert parameters */
    uint32_t frozen;          /**< 1: no gradient */
    uint32_t shards;          /**< ranks that it is sharded over: dp, or dp / ep for experts */
    uint32_t parameter_count; /**< 0 for given buckets */
    uint32_t roles;           /**< BP_ROLE_BIT mask of the roles that it may have */
} bp_bucket;

/** A request: memory for one bucket in one role. */
typedef struct bp_request {
    uint64_t numel;  /**< without padding: policy max ranks buckets by it */
    uint64_t bytes;  /**< with padding */
    uint32_t bucket; /**< index of a bucket */
    uint32_t role;   /**< a bp_role */
    bp_dtype dtype;  /**< storage dtype of this role's memory */
} bp_request;

typedef struct bp_buckets_info {
    size_t unit_count;
    const bp_unit *units;
    size_t bucket_count;
    const bp_bucket *buckets; /**< unit by unit, those of persistent parameters last */
    size_t request_count;
    const bp_request *requests; /**< by unit, role, bucket; persistent parameters are not pooled and have none */
    uint64_t persistent_bytes;  /**< of all persistent parameters, gathered (with padding) */
} bp_buckets_info;

/** The contents. Lives as long as the buckets. NULL for NULL. */
BP_API const bp_buckets_info *bp_buckets_get_info(const bp_buckets *buckets);

#ifdef __cplusplus
}
#endif
#endif

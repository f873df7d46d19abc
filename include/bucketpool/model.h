/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * Models, units, parameters, buckets and requests.
 * - bp_model: parameters (names, shapes, dtypes), grouped into units in execution order
 * - bp_buckets: the parameters flattened into buckets by the rule of a runtime and padded for sharding, and the
 *   requests (bucket, role), to which a schedule gives live ranges and a plan gives addresses
 *
 * @code
 * uint32_t unit;
 * bp_model_create("two layers", &model);
 * bp_model_add_unit(model, "layers.0", BP_OUTSIDE, &unit);
 * bp_parameter weight;
 * bp_parameter_init(&weight, sizeof weight);
 * weight.name = "layers.0.weight";
 * weight.unit = (int32_t)unit;
 * weight.dims = 2;
 * weight.shape[0] = 4096;
 * weight.shape[1] = 1024;
 * weight.dtype = BP_DTYPE_BF16;
 * bp_model_add_parameter(model, &weight);
 * @endcode
 *
 * Everything here is host data without devices, clocks or files; formats.h reads models from files.
 *
 * Thread safety: objects are not synchronized. One thread builds an object; any number of threads may read the
 * finished one. Capture: allowed, no function here uses a stream. */
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
/** Unit of parameters outside FSDP units: persistent (gathered once and kept), or FSDP2's root group. */
#define BP_OUTSIDE (-1)

enum {
    BP_PARAMETER_FROZEN = 1u << 0, /**< requires_grad is false: no gradient */
    /** a weight of a matrix multiplication: stored in fp8 with an fp8 param_dtype */
    BP_PARAMETER_GEMM = 1u << 1,
    BP_PARAMETER_PREDICTION = 1u << 2,    /**< part of a multi-token prediction layer: counted separately */
    BP_PARAMETER_EXPERT_COPIES = 1u << 3, /**< the copies are experts, which expert parallelism distributes */
    /** connects a prediction layer to the model (projection, norms): outside units in the Megatron layout */
    BP_PARAMETER_JOINT = 1u << 4
};

typedef struct bp_parameter {
    size_t size; /**< sizeof(bp_parameter) */
    /** unique in the model. With copies > 1 it contains one '*' for the numbers 0 to copies - 1 */
    const char *name;
    int32_t unit;  /**< unit index or BP_OUTSIDE */
    uint32_t dims; /**< 0 (a scalar) to BP_MAX_DIMS */
    uint64_t shape[BP_MAX_DIMS];
    bp_dtype dtype;
    uint32_t flags;  /**< BP_PARAMETER_* */
    uint32_t copies; /**< number of parameters of this shape that the entry stands for (experts); 0 means 1 */
    int32_t tp_dim;  /**< dimension that tensor parallelism splits; -1: replicated */
    /** number of parts to split (heads, columns of experts), a multiple of tp; 0: shape[tp_dim] */
    uint32_t tp_parts;
    int32_t expert_dim; /**< dimension that expert parallelism splits (stacked experts); -1: none */
} bp_parameter;

/** Sets the defaults: a trainable persistent parameter that is not split, without name, shape and dtype. `size` is
 * sizeof *parameter.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (NULL, an unknown size). */
BP_API bp_status bp_parameter_init(bp_parameter *parameter, size_t size);

/** Creates an empty model. `name` is copied. The caller owns the model: bp_model_destroy.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (no name), BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_model_create(const char *name, bp_model **model);
/** Destroys a model. Accepts NULL and a pointer to NULL; sets *model to NULL. */
BP_API void bp_model_destroy(bp_model **model);

/** Appends a unit in execution order. `parent` is the index of the enclosing unit, or BP_OUTSIDE. `unit` gets the
 * index; NULL if not wanted. The name is copied; bp_model_validate detects duplicates.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (an empty name, a parent that is not an earlier unit), BP_ERR_OVERFLOW,
 * BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_model_add_unit(bp_model *model, const char *name, int32_t parent, uint32_t *unit);

/** Appends a parameter, which is copied. O(1): bp_model_validate detects duplicate names.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (no name, an unknown unit or dtype, a zero dimension, copies without '*'),
 * BP_ERR_OVERFLOW (elements or bits of the parameter or the model do not fit 63 bits), BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_model_add_parameter(bp_model *model, const bp_parameter *parameter);

/** A bucket with a given size, for runtimes that do their own bucketing (BP_BUCKETING_GIVEN). */
typedef struct bp_given_bucket {
    size_t size;
    const char *name; /**< unique in its unit; NULL: "bucket.<ordinal>" */
    int32_t unit;     /**< unit index or BP_OUTSIDE */
    bp_dtype dtype;
    uint64_t numel;        /**< elements without padding; a bucket with 0 gets no memory */
    uint64_t padded_numel; /**< elements with padding; 0: by the padding rule (BP_PADDING_GIVEN: numel) */
    uint32_t expert;       /**< 1: expert parameters, sharded over dp / ep ranks */
    uint32_t frozen;       /**< 1: no gradient */
    uint32_t roles;        /**< BP_ROLE_BIT mask; 0: all requested roles that apply */
} bp_given_bucket;

/** Appends a given bucket, which is copied. Errors: as bp_model_add_parameter. */
BP_API bp_status bp_model_add_bucket(bp_model *model, const bp_given_bucket *bucket);

/** An event of a recorded schedule, in the order in which the host of the runtime issues events. */
typedef struct bp_model_event {
    size_t size;
    uint32_t acquire; /**< 1 acquire, 0 release */
    int32_t unit;     /**< a unit index */
    int32_t bucket;   /**< ordinal of the bucket in its unit; -1: all buckets of the unit */
    uint32_t role;    /**< a bp_role */
    /** BP_LANE_*, or another lane below BP_LANE_COUNT; BP_MODEL_EVENT_NO_LANE: the lane of the role */
    uint32_t lane;
} bp_model_event;
#define BP_MODEL_EVENT_NO_LANE UINT32_MAX

/** Appends an event to the recorded schedule of the model, from which bp_schedule_create_recorded makes live ranges.
 * The event is copied. The order of events is checked when the schedule is made.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (an unknown unit or lane), BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_model_add_event(bp_model *model, const bp_model_event *event);

/** Sets the order in which units run forward in a step. A unit may appear several times (shared weights, repeated
 * prediction layers). Default: each unit without a parent runs once, in the order of addition. Nested units run
 * within their parents. `units` is copied.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (an unknown unit, a missing unit), BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_model_set_order(bp_model *model, const uint32_t *units, size_t count);

/** Checks a finished model: duplicate parameter and unit names, and a model without parameters and buckets. O(n log
 * n).
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (the message names the duplicate; NULL), BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_model_validate(const bp_model *model);

/** Appends a note about parts of the input that the model leaves out. Copied; layouts and sharded models keep notes.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (NULL), BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_model_add_note(bp_model *model, const char *note);

/* ---- the contents of a model --------------------------------------------------------------------------------------- */

/** An FSDP unit: a module whose parameters are gathered together. */
typedef struct bp_unit {
    const char *name;
    int32_t parent; /**< index of the enclosing unit, or BP_OUTSIDE */
} bp_unit;

typedef struct bp_model_info {
    const char *name;
    size_t unit_count;
    const bp_unit *units;
    size_t parameter_count;
    const bp_parameter *const *parameters; /**< `copies` is 1 or more */
    size_t given_bucket_count;
    const bp_given_bucket *const *given_buckets;
    size_t event_count;
    const bp_model_event *const *events; /**< of the recorded schedule */
    size_t order_count;
    const uint32_t *order; /**< units in forward order, as set or by default */
    size_t note_count;
    const char *const *notes;
    uint64_t numel;            /**< elements of parameters and given buckets, without multi-token prediction layers */
    uint64_t prediction_numel; /**< elements of multi-token prediction layers */
    /** 1: read from a config.json or safetensors, whose experts a runtime may stack (BP_LAYOUT_STACKED). 0: the
     * parameters are those of the runtime */
    uint32_t published;
} bp_model_info;

/** The contents of a model. Valid until the model is changed or destroyed. NULL for NULL. */
BP_API const bp_model_info *bp_model_get_info(const bp_model *model);

/* ---- models made of models ------------------------------------------------------------------------------------------ */

/** The module layout: which parameters a model has.
 * - BP_LAYOUT_HF: the published modelling code, and checkpoints: each expert has its own matrices.
 * - BP_LAYOUT_MEGATRON: the modules of Megatron-Core. Query, key and value are fused, gate and up projections are
 *   fused, an expert stack is one matrix for each expert under `.experts.`, the correction bias of the router is a
 *   buffer, and the projection and norms of a prediction layer are outside units.
 * - BP_LAYOUT_STACKED: the modules of transformers 5. As BP_LAYOUT_HF, but the experts of a layer are one tensor
 *   [experts, out, in], with gate and up projections fused, the correction bias of the router is a buffer, and there
 *   are no prediction layers, which a note says. */
typedef enum bp_layout { BP_LAYOUT_HF = 1, BP_LAYOUT_MEGATRON = 2, BP_LAYOUT_STACKED = 3 } bp_layout;

/** Copies a model in another layout. Given buckets and the order of units are kept. The caller owns the copy.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (NULL, an unknown layout), BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_model_with_layout(const bp_model *model, bp_layout layout, bp_model **out);

/** Creates the model of rank 0 of `tp` tensor-parallel and `ep` expert-parallel ranks, before data-parallel sharding.
 * Given buckets are unchanged. The caller owns the new model.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (tp or ep is 0 or does not divide a parameter, which the message names),
 * BP_ERR_UNSUPPORTED (tp > 1, and no parameter says how it splits), BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_model_shard(const bp_model *model, uint32_t tp, uint32_t ep, bp_model **out);

/* ---- buckets and requests ----------------------------------------------------------------------------------------- */

/** The role of a request: how its memory is used. */
typedef enum bp_role {
    BP_ROLE_PARAM = 0,           /**< gathered parameters */
    BP_ROLE_PARAM_TRANSPOSE = 1, /**< column-wise copy of fp8 parameters, gathered in backward; none with FSDP2 */
    BP_ROLE_GRAD = 2,            /**< unreduced gradients, in the communication dtype */
    BP_ROLE_GRAD_COMM = 3,       /**< copy of the reduced shard for the outer all-reduce of hybrid sharding */
    BP_ROLE_STATE = 4,           /**< this rank's shard of the parameters */
    BP_ROLE_MAIN_GRAD = 5,       /**< this rank's shard of the reduced gradients */
    /** this rank's shard of the optimizer state: main weights and moments, one tensor after the other */
    BP_ROLE_OPTIMIZER = 6
} bp_role;
#define BP_ROLE_COUNT 7
#define BP_ROLE_BIT(role) (1u << (role))
/** Roles that are live during the whole training. Their memory is separate and never shared. */
#define BP_ROLES_STATE (BP_ROLE_BIT(BP_ROLE_STATE) | BP_ROLE_BIT(BP_ROLE_MAIN_GRAD) | BP_ROLE_BIT(BP_ROLE_OPTIMIZER))

/** The name of a role: "param", "param_transpose", "grad", "grad_comm", "state", "main_grad", "optimizer"; "invalid"
 * for other values. Static. */
BP_API const char *bp_role_name(bp_role role);
/** The role with this name. Errors: BP_ERR_INVALID_ARGUMENT (an unknown name; the message lists the names). */
BP_API bp_status bp_role_parse(const char *name, bp_role *role);

/** The rule that assigns parameters to buckets. Given buckets are used under every rule. The parameters of a model
 * that also has given buckets follow the rule, under BP_BUCKETING_GIVEN that of BP_BUCKETING_MEGATRON.
 * - BP_BUCKETING_MEGATRON: one bucket for each combination of outermost unit, dtype, expert (".experts." in the name)
 *   and requires_grad. Source: Megatron-LM d98e8a64, param_and_grad_buffer.py, _get_parameter_groups.
 * - BP_BUCKETING_FSDP2: one bucket for each innermost unit; mixed dtypes are packed as bytes (uint8). Parameters
 *   outside units are those of fully_shard(model): its root group, a unit "(root)" after the others, gathered and
 *   reduced like any other. A model with recorded events gets none: its events say what is gathered. Source: PyTorch
 *   FSDP2, _fsdp_collectives.py, _fsdp_state.py.
 * - BP_BUCKETING_GIVEN: the buckets of bp_model_add_bucket. */
typedef enum bp_bucketing { BP_BUCKETING_MEGATRON = 1, BP_BUCKETING_FSDP2 = 2, BP_BUCKETING_GIVEN = 3 } bp_bucketing;

/** The rule that pads a bucket so that all shards have the same size. Here dp is the number of ranks of the bucket: dp
 * / ep for experts.
 * - BP_PADDING_BY_BUCKETING: the rule of the runtime whose bucketing it is: BP_PADDING_MEGATRON_LCM, BP_PADDING_FSDP2
 *   or BP_PADDING_GIVEN.
 * - BP_PADDING_MEGATRON_LCM: parameters are laid out in chunks of the least common multiple of the row sizes; the
 *   bucket is a multiple of dp chunks. Source: Megatron-LM d98e8a64, build_data_parallel_buffer_index.
 * - BP_PADDING_MEGATRON_SPLIT: parameters with incompatible row sizes go to separate buckets, each a multiple of dp x
 *   its row size. Source: Megatron-LM before the LCM rule.
 * - BP_PADDING_FLAT: a multiple of dp x flat_alignment elements.
 * - BP_PADDING_GIVEN: as given; buckets made from parameters are not padded.
 * - BP_PADDING_FSDP2: the first dimension of every parameter is padded to a multiple of dp; of stacked experts it is
 *   the number of experts. Source: PyTorch FSDP2, _fsdp_param.py.
 * - BP_PADDING_FSDP2_SHARD1: the same, with stacked experts sharded along dimension 1 (a shard_placement_fn that
 *   returns Shard(1)), which must be a multiple of dp. */
typedef enum bp_padding {
    BP_PADDING_BY_BUCKETING = 0,
    BP_PADDING_MEGATRON_LCM = 1,
    BP_PADDING_MEGATRON_SPLIT = 2,
    BP_PADDING_FLAT = 3,
    BP_PADDING_GIVEN = 4,
    BP_PADDING_FSDP2 = 5,
    BP_PADDING_FSDP2_SHARD1 = 6
} bp_padding;

typedef struct bp_buckets_config {
    size_t size;
    bp_bucketing bucketing;
    bp_padding padding;
    uint32_t dp;             /**< data-parallel ranks that a dense bucket is sharded over */
    uint32_t ep;             /**< expert-parallel ranks; must divide dp */
    uint64_t flat_alignment; /**< elements, for BP_PADDING_FLAT */
    /** BP_DTYPE_NONE: as in the model. fp8: only GEMM weights in units. Not for given buckets */
    bp_dtype param_dtype;
    /** BP_DTYPE_NONE: the dtype of the parameter, or bf16 if that cannot hold gradients */
    bp_dtype grad_dtype;
    /** overrides grad_dtype for communicated gradients; BP_DTYPE_NONE: no override */
    bp_dtype grad_comm_dtype;
    uint32_t roles;           /**< BP_ROLE_BIT mask of the roles that get requests */
    bp_dtype main_grad_dtype; /**< BP_DTYPE_NONE: fp32 */
    bp_dtype optimizer_dtype; /**< BP_DTYPE_NONE: fp32 */
    /** tensors of the size of a shard; 3 for Adam (main weights, two moments). 0: none */
    uint32_t optimizer_tensors;
    /** 1: buckets of one rank get requests in every role, for a runtime that gathers and reduces there, too */
    uint32_t single_rank;
} bp_buckets_config;

/** Sets the defaults: Megatron bucketing, padding by bucketing, dp 64, ep 1, flat_alignment 128, roles param and grad,
 * three optimizer tensors. The command and the Python package have the same defaults.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (NULL, an unknown size). */
BP_API bp_status bp_buckets_config_init(bp_buckets_config *config, size_t size);

typedef struct bp_buckets bp_buckets;

/** Makes the buckets and requests of a model that is already sharded by tp and ep (bp_model_shard). `config` NULL: the
 * defaults. The model is only read and may be destroyed afterwards. The caller owns the buckets: bp_buckets_destroy.
 *
 * A bucket of one rank communicates nothing: the shard is the parameter. Only its roles in BP_ROLES_STATE get
 * requests, unless config->single_rank. Given buckets are what a runtime allocates, whatever the ranks.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (dp or ep is 0, dp is not a multiple of ep, an unknown rule, padding smaller than
 * numel, a dimension that Shard(1) cannot split, a unit "(root)" beside parameters outside units, an empty model),
 * BP_ERR_OVERFLOW, BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_buckets_create(const bp_model *model, const bp_buckets_config *config, bp_buckets **buckets);
/** Merges the buckets of several models that share a pool (policy and reference, chunks of a virtual pipeline). Unit u
 * of part p is named "<names[p]>/<name of u>". Units and requests follow part by part. For the schedules of the parts
 * see bp_schedule_create_embedded and bp_schedule_create_merged. Parts are only read, names are copied. The caller
 * owns the result.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (no parts; a name that is empty, has a '/', or occurs twice), BP_ERR_OVERFLOW,
 * BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_buckets_create_merged(const bp_buckets *const *parts, const char *const *names, size_t count,
                                          bp_buckets **merged);
/** Destroys buckets. Accepts NULL and a pointer to NULL; sets *buckets to NULL. */
BP_API void bp_buckets_destroy(bp_buckets **buckets);

/* ---- the contents of buckets --------------------------------------------------------------------------------------- */

typedef struct bp_bucket {
    /** "dense", "experts", "dense.1"; NULL: a given bucket without a name, displayed as "bucket.<ordinal>" */
    const char *name;
    uint64_t numel;        /**< without padding */
    uint64_t padded_numel; /**< with padding: allocated and communicated */
    /** Elements of the gradients; 0 for a frozen bucket. Differs from numel if parameters are packed as bytes or some
     * are frozen. */
    uint64_t grad_numel;
    uint64_t grad_padded_numel;
    int32_t unit;     /**< index of a unit, or BP_OUTSIDE */
    uint32_t ordinal; /**< position among the buckets of its unit */
    bp_dtype dtype;
    bp_dtype grad_dtype;      /**< dtype of communicated gradients */
    uint32_t expert;          /**< 1: expert parameters */
    uint32_t frozen;          /**< 1: no gradient */
    uint32_t shards;          /**< ranks that the bucket is sharded over: dp, or dp / ep for experts */
    uint32_t parameter_count; /**< 0 for given buckets */
    uint32_t roles;           /**< BP_ROLE_BIT mask of possible roles */
} bp_bucket;

/** A request: memory for one bucket in one role. */
typedef struct bp_request {
    uint64_t numel;  /**< without padding; policy max sorts by it */
    uint64_t bytes;  /**< with padding */
    uint32_t bucket; /**< index of a bucket */
    uint32_t role;   /**< a bp_role */
    bp_dtype dtype;  /**< storage dtype */
} bp_request;

typedef struct bp_buckets_info {
    size_t unit_count;
    const bp_unit *units;
    size_t bucket_count;
    const bp_bucket *buckets; /**< unit by unit, then the buckets of persistent parameters */
    size_t request_count;
    const bp_request *requests; /**< by unit, role, bucket; persistent parameters have no requests */
    uint64_t persistent_bytes;  /**< gathered bytes of all persistent parameters, with padding */
    int32_t root;               /**< unit of FSDP2's root group, the last; BP_OUTSIDE: none */
} bp_buckets_info;

/** The contents of buckets. Lives as long as the buckets. NULL for NULL. */
BP_API const bp_buckets_info *bp_buckets_get_info(const bp_buckets *buckets);

#ifdef __cplusplus
}
#endif
#endif

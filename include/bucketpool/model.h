/* Models, units, parameters, buckets and requests: what has to be held in memory.
 *
 *   bp_model    parameters (names, shapes, dtypes), grouped into units in execution order
 *   bp_buckets  the model's parameters flattened into buckets by a runtime's rule, padded for sharding, and the requests
 *               (bucket, role) that a schedule times and a plan places
 *
 * Everything here is host-side data: no device, no clock, no files (readers are in formats.h). Objects are not
 * synchronised: build in one thread; a finished object may be read from many. Capture-safe, as nothing touches a device. */
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
#define BP_OUTSIDE (-1) /* unit of parameters outside units: gathered once and kept */

enum {
    BP_PARAMETER_FROZEN = 1u << 0, /* requires_grad is false: it gets no gradient */
    BP_PARAMETER_GEMM = 1u << 1,   /* a matrix-multiplication weight: the ones stored in fp8 when that is asked for */
    BP_PARAMETER_PREDICTION = 1u << 2,    /* belongs to a multi-token prediction layer: counted apart */
    BP_PARAMETER_EXPERT_COPIES = 1u << 3, /* the copies are experts: expert parallelism splits them */
    BP_PARAMETER_JOINT =
        1u << 4 /* joins a prediction layer to the model (projection, norms): outside units in Megatron */
};

typedef struct bp_parameter {
    size_t size;      /* sizeof(bp_parameter), set by the caller (in and out) */
    const char *name; /* unique in the model. With copies > 1 it contains one '*' that stands for 0 .. copies-1 */
    int32_t unit;     /* unit index or BP_OUTSIDE */
    uint32_t dims;    /* 0 (a scalar) to BP_MAX_DIMS */
    uint64_t shape[BP_MAX_DIMS];
    bp_dtype dtype;
    uint32_t flags;     /* BP_PARAMETER_* */
    uint32_t copies;    /* how many parameters of this very shape the entry stands for (experts); 0 is read as 1 */
    int32_t tp_dim;     /* dimension that tensor parallelism splits, -1: replicated */
    uint32_t tp_parts;  /* what is split (heads, experts' columns): must be a multiple of tp; 0: shape[tp_dim] */
    int32_t expert_dim; /* dimension that expert parallelism splits (stacked experts), -1: none */
} bp_parameter;

/* Sets `parameter` to an unsplit trainable outside parameter without a name, shape or dtype. size is sizeof. */
BP_API bp_status bp_parameter_init(bp_parameter *parameter, size_t size);

/* A new, empty model. `name` is copied. The caller owns it: bp_model_destroy. */
BP_API bp_status bp_model_create(const char *name, bp_model **model);
/* Accepts NULL and pointers to NULL; sets *model to NULL. */
BP_API void bp_model_destroy(bp_model **model);

/* Appends a unit in execution order. `parent` is the index of the enclosing unit, or BP_OUTSIDE. Names are unique.
 * Errors: BP_ERR_INVALID_ARGUMENT (empty name, parent not an earlier unit). A repeated name is found by bp_model_validate. */
BP_API bp_status bp_model_add_unit(bp_model *model, const char *name, int32_t parent, uint32_t *unit);

/* Appends a parameter; everything is copied.
 * Errors: BP_ERR_INVALID_ARGUMENT (no name, unknown unit or dtype, zero dimension, copies without '*'),
 * BP_ERR_OVERFLOW (the element or bit count does not fit 63 bits; also the model's total). A repeated name is found by
 * bp_model_validate, not here, so that adding stays linear. */
BP_API bp_status bp_model_add_parameter(bp_model *model, const bp_parameter *parameter);

/* A bucket given as it is, for runtimes that did their own bucketing (used by BP_BUCKETING_GIVEN). */
typedef struct bp_given_bucket {
    size_t size;
    const char *name; /* unique in its unit; NULL: "bucket.<ordinal>" */
    int32_t unit;     /* unit index or BP_OUTSIDE */
    bp_dtype dtype;
    uint64_t numel;        /* unpadded elements; 0 is allowed and never placed */
    uint64_t padded_numel; /* 0: not given, the padding rule decides (`given` then takes numel) */
    uint32_t expert;       /* 1: expert parameters, sharded over dp / ep ranks */
    uint32_t frozen;       /* 1: no gradient */
    uint32_t roles;        /* BP_ROLE_BIT mask, 0: every role asked for that applies */
} bp_given_bucket;

/* Appends a given bucket; copied. Errors as bp_model_add_parameter. */
BP_API bp_status bp_model_add_bucket(bp_model *model, const bp_given_bucket *bucket);

/* One event of an explicit schedule, in the order the runtime's host issues them. */
typedef struct bp_model_event {
    size_t size;
    uint32_t acquire; /* 1 acquire, 0 release */
    int32_t unit;     /* a unit index */
    int32_t bucket;   /* ordinal of the bucket in its unit, -1: all buckets of the unit */
    uint32_t role;    /* a bp_role */
    uint32_t lane;    /* BP_LANE_*, or a runtime's own below BP_LANE_COUNT; BP_MODEL_EVENT_NO_LANE: that of the role */
} bp_model_event;
#define BP_MODEL_EVENT_NO_LANE UINT32_MAX

/* Appends an event of the schedule that the model brings along (bp_schedule_create_recorded turns it into intervals).
 * Errors: BP_ERR_INVALID_ARGUMENT (unknown unit or lane). Order is checked when the schedule is made. */
BP_API bp_status bp_model_add_event(bp_model *model, const bp_model_event *event);
BP_API size_t bp_model_event_count(const bp_model *model);
BP_API bp_status bp_model_event_get(const bp_model *model, size_t index, bp_model_event *event);

/* The order in which units run forward in one step; a unit may appear several times (shared weights, repeated prediction
 * layers). Without this call every unit that has no parent runs once, in the order added; nested units run within their
 * parents. Errors: BP_ERR_INVALID_ARGUMENT (unknown unit, a unit missing). */
BP_API bp_status bp_model_set_order(bp_model *model, const uint32_t *units, size_t count);

/* Checks what could not be checked while adding: duplicate parameter names, no parameters and buckets at all.
 * Errors: BP_ERR_INVALID_ARGUMENT naming the duplicate, or "the model is empty". */
BP_API bp_status bp_model_validate(const bp_model *model);

BP_API const char *bp_model_name(const bp_model *model);
BP_API size_t bp_model_unit_count(const bp_model *model);
/* NULL when `unit` is not an index. The string lives as long as the model. */
BP_API const char *bp_model_unit_name(const bp_model *model, size_t unit);
/* Index of the enclosing unit or BP_OUTSIDE. */
BP_API int32_t bp_model_unit_parent(const bp_model *model, size_t unit);
BP_API size_t bp_model_parameter_count(const bp_model *model);
/* Fills *parameter (set its size first); the name pointer lives as long as the model. */
BP_API bp_status bp_model_parameter(const bp_model *model, size_t index, bp_parameter *parameter);
BP_API size_t bp_model_given_bucket_count(const bp_model *model);
BP_API bp_status bp_model_given_bucket(const bp_model *model, size_t index, bp_given_bucket *bucket);
/* The forward order, as set or by default. The array lives until the model changes. */
BP_API const uint32_t *bp_model_order(const bp_model *model, size_t *count);
/* Elements of all parameters and given buckets without, and of only, the multi-token prediction layers. */
BP_API uint64_t bp_model_numel(const bp_model *model);
BP_API uint64_t bp_model_prediction_numel(const bp_model *model);

/* Appends a sentence about parts of the file that the model does not count; copied, and kept by layouts and sharding.
 * Errors: BP_ERR_INVALID_ARGUMENT (NULL), BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_model_add_note(bp_model *model, const char *note);
/* The note at `index`, NULL past the end. The string lives as long as the model. */
BP_API const char *bp_model_note(const bp_model *model, size_t index);

/* ---- models made of models ------------------------------------------------------------------------------------------ */

/* Which module layout the parameters have.
 * BP_LAYOUT_HF: the published modelling code. BP_LAYOUT_MEGATRON: what Megatron-Core builds from it: query, key and value
 * fused, gate and up projections fused, expert stacks as one matrix per expert under `.experts.`, the router's correction
 * bias a buffer, a prediction layer's projection and norms outside units. */
typedef enum bp_layout { BP_LAYOUT_HF = 1, BP_LAYOUT_MEGATRON = 2 } bp_layout;

/* A copy of the model in another layout. Given buckets and unit order are kept. */
BP_API bp_status bp_model_with_layout(const bp_model *model, bp_layout layout, bp_model **out);

/* What one rank of `tp` tensor-parallel and `ep` expert-parallel ranks holds before data-parallel sharding (rank 0).
 * Errors: BP_ERR_INVALID_ARGUMENT when tp or ep is 0 or does not divide what it splits, naming the parameter;
 * BP_ERR_UNSUPPORTED when tp > 1 and the model says of no parameter how it splits. Given buckets are left alone. */
BP_API bp_status bp_model_shard(const bp_model *model, uint32_t tp, uint32_t ep, bp_model **out);

/* ---- buckets and requests ----------------------------------------------------------------------------------------- */

/* What a bucket's memory is for. */
typedef enum bp_role {
    BP_ROLE_PARAM = 0,           /* gathered parameters */
    BP_ROLE_PARAM_TRANSPOSE = 1, /* column-wise copy of fp8 parameters, gathered for backward */
    BP_ROLE_GRAD = 2,            /* unreduced gradients, in the communication dtype */
    BP_ROLE_GRAD_COMM = 3,       /* the reduced shard's copy for the outer reduction of hybrid sharding */
    BP_ROLE_STATE = 4,           /* this rank's shard of the parameters */
    BP_ROLE_MAIN_GRAD = 5,       /* this rank's shard of the reduced gradients */
    BP_ROLE_OPTIMIZER = 6        /* its share of the optimizer: main weights and moments, one tensor after the other */
} bp_role;
#define BP_ROLE_COUNT 7
#define BP_ROLE_BIT(role) (1u << (role))
/* What lives as long as training does: memory of its own, never shared. */
#define BP_ROLES_STATE (BP_ROLE_BIT(BP_ROLE_STATE) | BP_ROLE_BIT(BP_ROLE_MAIN_GRAD) | BP_ROLE_BIT(BP_ROLE_OPTIMIZER))

/* "param", "param_transpose", "grad", "grad_comm", "state", "main_grad", "optimizer"; "invalid" otherwise. */
BP_API const char *bp_role_name(bp_role role);
BP_API bp_status bp_role_parse(const char *name, bp_role *role);

/* Which parameters share a bucket.
 * BP_BUCKETING_MEGATRON: of one outermost unit, same dtype, expert (the name contains ".experts.") or not, same
 *   requires_grad. Source: Megatron-LM d98e8a64, param_and_grad_buffer.py, _get_parameter_groups.
 * BP_BUCKETING_FSDP2: one bucket per innermost unit, mixed dtypes packed as bytes (uint8). Source: PyTorch FSDP2,
 *   _fsdp_collectives.py.
 * BP_BUCKETING_GIVEN: the buckets of bp_model_add_bucket as they are.
 * Given buckets are taken under every rule; parameters of a model that has both follow the rule, BP_BUCKETING_MEGATRON's under
 * BP_BUCKETING_GIVEN. */
typedef enum bp_bucketing { BP_BUCKETING_MEGATRON = 1, BP_BUCKETING_FSDP2 = 2, BP_BUCKETING_GIVEN = 3 } bp_bucketing;

/* How a bucket is padded so that every shard has the same size. dp is the bucket's own: dp / ep for experts.
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
    uint32_t dp;             /* data-parallel ranks a dense bucket is sharded over */
    uint32_t ep;             /* expert-parallel ranks; must divide dp */
    uint64_t flat_alignment; /* elements, for BP_PADDING_FLAT */
    bp_dtype param_dtype;    /* BP_DTYPE_NONE: as in the model. fp8: GEMM weights in units only. Not of given buckets */
    bp_dtype grad_dtype;     /* BP_DTYPE_NONE: the parameter's, bf16 where that cannot hold a gradient */
    bp_dtype grad_comm_dtype;   /* BP_DTYPE_NONE: not overridden. Overrides grad_dtype for what is communicated */
    uint32_t roles;             /* BP_ROLE_BIT mask of the roles to make requests for */
    bp_dtype main_grad_dtype;   /* BP_DTYPE_NONE: fp32 */
    bp_dtype optimizer_dtype;   /* BP_DTYPE_NONE: fp32 */
    uint32_t optimizer_tensors; /* of a shard's size each; Adam has main weights and two moments. 0: none */
} bp_buckets_config;

/* Megatron bucketing with LCM padding, dp 64 (as the command and Python), ep 1, flat_alignment 128, roles param and
 * grad, three optimizer tensors. */
BP_API bp_status bp_buckets_config_init(bp_buckets_config *config, size_t size);

typedef struct bp_buckets bp_buckets;

/* Buckets of the (already sharded) model. The model is only read and may be destroyed afterwards.
 * Errors: BP_ERR_INVALID_ARGUMENT (dp or ep 0, dp not a multiple of ep, unknown rules, padding smaller than numel, empty
 * model), BP_ERR_OVERFLOW, BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_buckets_create(const bp_model *model, const bp_buckets_config *config, bp_buckets **buckets);
/* The buckets of several models that share a pool (policy and reference, chunks of a virtual pipeline). Unit u of part p is called
 * "<names[p]>/<u's name>"; units and requests follow part by part. Parts are only read, names copied. Their schedules go through
 * bp_schedule_create_embedded, then bp_schedule_create_merged.
 * Errors: BP_ERR_INVALID_ARGUMENT (no parts, a name twice, empty or with a '/'), BP_ERR_OVERFLOW, BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_buckets_create_united(const bp_buckets *const *parts, const char *const *names, size_t count,
                                          bp_buckets **united);
BP_API void bp_buckets_destroy(bp_buckets **buckets);

typedef struct bp_bucket {
    size_t size;
    int32_t unit;     /* index as in bp_buckets_unit_name, or BP_OUTSIDE */
    uint32_t ordinal; /* position among the buckets of its unit */
    const char *name; /* "dense", "experts", "dense.1"; NULL for a given bucket without a name */
    bp_dtype dtype;
    uint64_t numel;        /* unpadded */
    uint64_t padded_numel; /* what is allocated and communicated */
    uint32_t expert;
    uint32_t frozen;
    uint32_t shards;          /* ranks it is sharded over: dp, or dp / ep for experts */
    uint32_t parameter_count; /* 0 for given buckets */
    /* of its gradients: other numbers where parameters are packed as bytes or some are frozen */
    uint64_t grad_numel;
    uint64_t grad_padded_numel;
} bp_bucket;

BP_API size_t bp_buckets_count(const bp_buckets *buckets);
BP_API bp_status bp_buckets_get(const bp_buckets *buckets, size_t index, bp_bucket *bucket);
BP_API size_t bp_buckets_unit_count(const bp_buckets *buckets);
BP_API const char *bp_buckets_unit_name(const bp_buckets *buckets, size_t unit);
/* Bytes of all parameters outside units, gathered (padded). */
BP_API uint64_t bp_buckets_outside_bytes(const bp_buckets *buckets);

/* A request: memory for one bucket in one role. Requests are ordered by unit, role, bucket. */
typedef struct bp_request {
    size_t size;
    uint32_t bucket; /* index as in bp_buckets_get */
    uint32_t role;   /* a bp_role */
    bp_dtype dtype;  /* storage dtype of this role's memory */
    uint64_t numel;  /* unpadded: what ranks buckets in the max policy */
    uint64_t bytes;  /* padded */
} bp_request;

/* Requests of buckets in units; those outside units are not pooled and have none. */
BP_API size_t bp_buckets_request_count(const bp_buckets *buckets);
BP_API bp_status bp_buckets_request(const bp_buckets *buckets, size_t index, bp_request *request);

#ifdef __cplusplus
}
#endif
#endif

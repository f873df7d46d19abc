/* SPDX-License-Identifier: Apache-2.0 */
/* The calls behind grown_calls.h, and the tables of structs. */
#include "support/harness.h"

#include <bucketpool/bucketpool.h>
#include <bucketpool/cp.h>
#include <bucketpool/lm_head.h>
#include <bucketpool/logprob.h>
#include <bucketpool/loss.h>
#include <bucketpool/torch_allocator.h>

#include <string.h>

#include "grown_calls.h"

kit grown;

/* ---- schedules and what-ifs -------------------------------------------------------------------------------------- */

/* A recording of two units, acquired and released in sequence. */
bp_model *two_units(void)
{
    bp_model *model;
    assert_ok(bp_model_create("two", &model));
    for (int32_t u = 0; u < 2; u++) {
        const bp_given_bucket bucket = {.size = sizeof bucket, .unit = u, .dtype = BP_DTYPE_FP32, .numel = 100};
        uint32_t index;
        assert_ok(bp_model_add_unit(model, u == 0 ? "first" : "second", BP_OUTSIDE, &index));
        assert_ok(bp_model_add_bucket(model, &bucket));
        for (uint32_t half = 0; half < 2; half++) {
            const bp_model_event event = {.size = sizeof event,
                                          .acquire = half == 0,
                                          .unit = u,
                                          .bucket = -1,
                                          .role = BP_ROLE_PARAM,
                                          .lane = BP_MODEL_EVENT_NO_LANE};
            assert_ok(bp_model_add_event(model, &event));
        }
    }
    return model;
}

bp_buckets *buckets_of(const bp_model *model)
{
    bp_buckets_config config;
    bp_buckets *buckets;
    assert_ok(bp_buckets_config_init(&config, sizeof config));
    config.roles = BP_ROLE_BIT(BP_ROLE_PARAM);
    assert_ok(bp_buckets_create(model, &config, &buckets));
    return buckets;
}

/* A call that reads the struct `c`, with a new model and its buckets. */
#define WITH_MODEL(name, type, set, call)                                                                              \
    static bp_status name(void *config)                                                                                \
    {                                                                                                                  \
        type *c = config;                                                                                              \
        bp_model *model = two_units();                                                                                 \
        bp_buckets *buckets = buckets_of(model);                                                                       \
        set;                                                                                                           \
        bp_status status = call;                                                                                       \
        bp_buckets_destroy(&buckets);                                                                                  \
        bp_model_destroy(&model);                                                                                      \
        return status;                                                                                                 \
    }

/* A call that reads the struct `c` and creates `made`. */
#define CREATES(name, type, handle, set, call)                                                                         \
    static bp_status name(void *config)                                                                                \
    {                                                                                                                  \
        type *c = config;                                                                                              \
        handle *made = NULL;                                                                                           \
        set;                                                                                                           \
        bp_status status = call;                                                                                       \
        handle##_destroy(&made);                                                                                       \
        return status;                                                                                                 \
    }

static bp_status create_training(const bp_buckets *buckets, const bp_schedule_config *config)
{
    bp_schedule *schedule = NULL;
    bp_status status = bp_schedule_create_training(buckets, config, &schedule);
    bp_schedule_destroy(&schedule);
    return status;
}
WITH_MODEL(call_training, bp_schedule_config, , create_training(buckets, c))

static bp_status create_recorded(const bp_model *model, const bp_buckets *buckets, const bp_recorded_config *config)
{
    bp_schedule *schedule = NULL;
    bp_status status = bp_schedule_create_recorded(model, buckets, config, &schedule);
    bp_schedule_destroy(&schedule);
    return status;
}
WITH_MODEL(call_recorded, bp_recorded_config, , create_recorded(model, buckets, c))

/* NULL: the defaults of that config. */
static bp_status create_alternatives(const bp_buckets *buckets, const bp_schedule_config *timing,
                                     const bp_alternatives_config *config)
{
    bp_schedule_config default_timing;
    bp_plan_config plan;
    bp_alternatives_config default_config;
    assert_ok(bp_schedule_config_init(&default_timing, sizeof default_timing));
    assert_ok(bp_plan_config_init(&plan, sizeof plan));
    assert_ok(bp_alternatives_config_init(&default_config, sizeof default_config));
    bp_alternatives *alternatives = NULL;
    bp_status status = bp_alternatives_create(buckets, timing != NULL ? timing : &default_timing, &plan,
                                              config != NULL ? config : &default_config, &alternatives);
    bp_alternatives_destroy(&alternatives);
    return status;
}
WITH_MODEL(call_alternatives_schedule, bp_schedule_config, , create_alternatives(buckets, c, NULL))
WITH_MODEL(call_alternatives_own, bp_alternatives_config, , create_alternatives(buckets, NULL, c))

/* ---- parts of a model --------------------------------------------------------------------------------------------- */

WITH_MODEL(call_parameter, bp_parameter, (c->name = "a", c->dtype = BP_DTYPE_FP32), bp_model_add_parameter(model, c))
WITH_MODEL(call_given_bucket, bp_given_bucket, (c->dtype = BP_DTYPE_FP32, c->numel = 100),
           bp_model_add_bucket(model, c))
WITH_MODEL(call_event, bp_model_event, , bp_model_add_event(model, c))

static bp_status create_buckets(const bp_model *model, const bp_buckets_config *config)
{
    bp_buckets *buckets = NULL;
    bp_status status = bp_buckets_create(model, config, &buckets);
    bp_buckets_destroy(&buckets);
    return status;
}
WITH_MODEL(call_buckets, bp_buckets_config, , create_buckets(model, c))

CREATES(call_plan, bp_plan_config, bp_plan, , bp_plan_create(grown.w.buckets, grown.w.schedule, c, &made))

/* ---- pools ------------------------------------------------------------------------------------------------------- */

CREATES(call_pool, bp_pool_config, bp_pool, , bp_pool_create(grown.device, grown.plan, c, &made))
static bp_status call_bind(void *bind)
{
    bp_pool *pool;
    uint32_t id;
    assert_ok(bp_pool_create(grown.device, grown.plan, NULL, &pool));
    ((bp_bind *)bind)->role = BP_ROLE_PARAM;
    ((bp_bind *)bind)->dtype = BP_DTYPE_FP32;
    bp_status status = bp_pool_bind(pool, bind, &id);
    bp_pool_destroy(&pool);
    return status;
}

/* ---- calls that read a config ------------------------------------------------------------------------------------ */

CREATES(call_host, bp_host_config, bp_device, , bp_device_create_host(c, &made))
/* A missing driver: the call reads the config before it fails. */
static bp_status call_cuda(void *config)
{
    bp_device *device = NULL;
    ((bp_cuda_config *)config)->driver = "/nowhere/libcuda.so.1";
    bp_status status = bp_device_create_cuda(config, &device);
    return status == BP_ERR_NO_DEVICE ? BP_OK : status;
}

CREATES(call_pinned, bp_pinned_config, bp_pinned, , bp_pinned_create(grown.device, c, &made))
CREATES(call_offload, bp_offload_config, bp_offload, , bp_offload_create(grown.pool, c, &made))
CREATES(call_capture, bp_capture_config, bp_capture, , bp_capture_begin(grown.pool, c, &made))
CREATES(call_profile, bp_profile_config, bp_profile, , bp_profile_create(&grown.pool, 1, c, &made))
static bp_status call_export(void *config)
{
    void *tensor = NULL;
    ((bp_export_config *)config)->id = param(&grown, 0);
    bp_status status = bp_pool_export(grown.pool, config, &tensor);
    bp_export_delete(&tensor);
    return status;
}

static bp_status call_registration(void *config)
{
    bp_comm *comm;
    bp_registration *registration = NULL;
    assert_ok(bp_comm_create_self(&comm));
    ((bp_registration_entry *)config)->comm = comm;
    bp_status status = bp_registration_create(grown.pool, config, 1, &registration);
    bp_registration_destroy(&registration);
    bp_comm_destroy(&comm);
    return status;
}

static bp_packing *new_packing(void)
{
    bp_packing *packing;
    assert_ok(bp_packing_create(&packing));
    for (size_t i = 0; i < 2; i++) {
        assert_ok(bp_packing_add_item(packing, 10, NULL));
        assert_ok(bp_packing_add_interval(packing, i, 0, 1));
    }
    return packing;
}

static bp_status call_pack(void *config)
{
    bp_packing *packing = new_packing();
    uint64_t offsets[2];
    bp_pack_result result = {.size = sizeof result};
    bp_status status = bp_pack(packing, config, offsets, &result);
    bp_packing_destroy(&packing);
    return status;
}

CREATES(call_logprob, bp_logprob_config, bp_logprob, (c->max_tokens = 4, c->vocab = 8),
        bp_logprob_create(grown.device, c, &made))
CREATES(call_cp, bp_cp_config, bp_cp, , bp_cp_create(grown.device, c, &made))
static const int64_t FIVE_TOKENS[] = {0, 5};
CREATES(call_split, bp_cp_split_config, bp_cp_split, (c->cu_seqlens = FIVE_TOKENS, c->sequences = 1),
        bp_cp_split_create(c, &made))
CREATES(call_loss, bp_loss_config, bp_loss, c->max_sequences = 2, bp_loss_create(grown.device, c, &made))

static bp_logprob *new_logprob(bp_logprob_batch *empty)
{
    bp_logprob_config config;
    bp_logprob *client;
    assert_ok(bp_logprob_config_init(&config, sizeof config));
    config.max_tokens = 4;
    config.vocab = 8;
    assert_ok(bp_logprob_create(grown.device, &config, &client));
    assert_ok(bp_logprob_batch_init(empty, sizeof *empty));
    empty->logits = (bp_token_rows){.dtype = BP_DTYPE_FP32, .columns = 8};
    return client;
}

/* A forward pass over an empty batch; outputs and gradients may be NULL. */
static bp_status forward_with(const void *batch, const void *outputs, const void *gradients)
{
    bp_logprob_batch own_batch;
    bp_logprob_outputs own_outputs;
    bp_logprob *client = new_logprob(&own_batch);
    assert_ok(bp_logprob_outputs_init(&own_outputs, sizeof own_outputs));
    if (batch == NULL)
        batch = &own_batch;
    bp_status status = gradients != NULL
                           ? bp_logprob_backward(client, batch, gradients, NULL)
                           : bp_logprob_forward(client, batch, outputs != NULL ? outputs : &own_outputs, NULL);
    bp_logprob_destroy(&client);
    return status;
}

static bp_status call_batch(void *batch)
{
    ((bp_logprob_batch *)batch)->logits = (bp_token_rows){.dtype = BP_DTYPE_FP32, .columns = 8};
    return forward_with(batch, NULL, NULL);
}

static bp_status call_divergence(void *args)
{
    bp_logprob_batch batch;
    bp_logprob *client = new_logprob(&batch);
    bp_status status = bp_logprob_divergence(client, &batch, args, NULL);
    bp_logprob_destroy(&client);
    return status;
}

static bp_status call_outputs(void *outputs)
{
    return forward_with(NULL, outputs, NULL);
}

static bp_status call_gradients(void *gradients)
{
    return forward_with(NULL, NULL, gradients);
}

static bp_status call_merge(void *statistics)
{
    bp_loss_statistics total;
    assert_ok(bp_loss_statistics_init(&total, sizeof total));
    return bp_loss_statistics_merge(statistics, &total);
}

/* ---- calls that need a driver or a library: the error shows that the struct was read ----------------------------- */

/* BP_OK if the call failed with these words. */
static bp_status refused_for(bp_status status, const char *words)
{
    return status != BP_OK && strstr(bp_error_detail(), words) != NULL ? BP_OK : status;
}

static bp_status call_nccl(void *config)
{
    bp_comm *comm = NULL;
    ((bp_nccl_config *)config)->comm = &grown;
    return refused_for(bp_comm_create_nccl(config, &comm), "needs the device");
}

static bp_status call_torch(void *config)
{
    ((bp_torch_config *)config)->ordinal = BP_TORCH_DEVICES;
    return refused_for(bp_torch_serve(config), "expected 0 to 63");
}

static bp_status fake_exchange(void *user, const void *mine, uint64_t bytes, void *all)
{
    (void)user;
    memcpy(all, mine, bytes);
    return BP_OK;
}

CREATES(call_callbacks, bp_comm_callbacks, bp_comm, (c->ranks = 1, c->exchange = fake_exchange),
        bp_comm_create_callback(c, NULL, NULL, &made))

/* ---- the fused head: unsupported without a BLAS library ---------------------------------------------------------- */

static float numbers[8 * 4];

CREATES(call_head, bp_lm_head_config, bp_lm_head, (c->max_tokens = 4, c->hidden = 4, c->vocab = 8),
        bp_lm_head_create(grown.device, c, &made))

/* An empty batch. NULL: the defaults of that struct. */
static bp_status head_with(const void *batch, const void *gradients)
{
    bp_lm_head_config config;
    bp_lm_head *head;
    bp_lm_head_batch own_batch;
    bp_logprob_outputs outputs;
    assert_ok(bp_lm_head_config_init(&config, sizeof config));
    config.max_tokens = 4;
    config.hidden = 4;
    config.vocab = 8;
    config.dtype = BP_DTYPE_FP32;
    bp_status status = bp_lm_head_create(grown.device, &config, &head);
    if (status != BP_OK)
        return status;
    assert_ok(bp_lm_head_batch_init(&own_batch, sizeof own_batch));
    own_batch.hidden = (bp_token_rows){.dtype = BP_DTYPE_FP32, .columns = 4};
    own_batch.weight = numbers;
    assert_ok(bp_logprob_outputs_init(&outputs, sizeof outputs));
    status = gradients != NULL ? bp_lm_head_backward(head, &own_batch, gradients, NULL)
                               : bp_lm_head_forward(head, batch, &outputs, NULL);
    bp_lm_head_destroy(&head);
    return status;
}

static bp_status call_head_batch(void *batch)
{
    ((bp_lm_head_batch *)batch)->hidden = (bp_token_rows){.dtype = BP_DTYPE_FP32, .columns = 4};
    ((bp_lm_head_batch *)batch)->weight = numbers;
    return head_with(batch, NULL);
}

static bp_status call_head_gradients(void *gradients)
{
    return head_with(NULL, gradients);
}

/* ---- packed batches ---------------------------------------------------------------------------------------------- */

/* One sequence of five tokens. */
static bp_cp_split *new_split(void)
{
    bp_cp_split_config config;
    bp_cp_split *split;
    assert_ok(bp_cp_split_config_init(&config, sizeof config));
    config.cu_seqlens = FIVE_TOKENS;
    config.sequences = 1;
    assert_ok(bp_cp_split_create(&config, &split));
    return split;
}

static bp_status call_rearrangement(void *rearrangement)
{
    static uint8_t from[5], to[5];
    bp_cp_config config;
    bp_cp *cp;
    bp_cp_split *split = new_split();
    assert_ok(bp_cp_config_init(&config, sizeof config));
    assert_ok(bp_cp_create(grown.device, &config, &cp));
    bp_cp_rearrangement *r = rearrangement;
    r->from = (bp_cp_tensor){.data = from, .tokens = 5, .token_bytes = 1};
    r->to = (bp_cp_tensor){.data = to, .tokens = 5, .token_bytes = 1};
    bp_status status = bp_cp_rearrange(cp, split, rearrangement, NULL);
    bp_cp_destroy(&cp);
    bp_cp_split_destroy(&split);
    return status;
}

static bp_loss *new_loss(void)
{
    bp_loss_config config;
    bp_loss *loss;
    assert_ok(bp_loss_config_init(&config, sizeof config));
    config.max_sequences = 2;
    assert_ok(bp_loss_create(grown.device, &config, &loss));
    assert_ok(bp_loss_begin(loss));
    return loss;
}

static bp_status call_values(void *values)
{
    static uint8_t mask[5];
    bp_loss *loss = new_loss();
    bp_cp_split *split = new_split();
    ((bp_loss_values *)values)->tokens = 5;
    ((bp_loss_values *)values)->mask = (bp_token_values){mask, 0, 1};
    bp_status status = bp_loss_add(loss, split, values, NULL);
    bp_cp_split_destroy(&split);
    bp_loss_destroy(&loss);
    return status;
}

/* ---- calls that fill an output ----------------------------------------------------------------------------------- */

static bp_status fill_usage(void *usage)
{
    return bp_device_usage_get(grown.device, usage);
}

static bp_status fill_pinned(void *statistics)
{
    bp_pinned *pinned;
    bp_pinned_config config;
    assert_ok(bp_pinned_config_init(&config, sizeof config));
    config.allocator = BP_PINNED_PLAIN;
    assert_ok(bp_pinned_create(grown.device, &config, &pinned));
    bp_status status = bp_pinned_statistics_get(pinned, statistics);
    if (status == BP_OK && ((bp_pinned_statistics *)statistics)->size == sizeof(bp_pinned_statistics))
        ((bp_pinned_statistics *)statistics)->because = NULL; /* a pointer into this object */
    bp_pinned_destroy(&pinned);
    return status;
}

static bp_status fill_pack(void *result)
{
    bp_packing *packing = new_packing();
    bp_pack_config config;
    uint64_t offsets[2];
    assert_ok(bp_pack_config_init(&config, sizeof config));
    bp_status status = bp_pack(packing, &config, offsets, result);
    bp_packing_destroy(&packing);
    return status;
}

static bp_status fill_fault(void *fault)
{
    static const uint64_t offsets[] = {0, 5};
    bp_packing *packing = new_packing();
    bp_status status = bp_packing_find_fault(packing, offsets, 20, fault);
    bp_packing_destroy(&packing);
    return status;
}

static bp_status fill_pool(void *statistics)
{
    return bp_pool_statistics_get(grown.pool, statistics);
}

static bp_status fill_live(void *entry)
{
    size_t count;
    const uint32_t id = param(&grown, 0);
    take(&grown, id, grown.streams[0]);
    bp_status status = bp_pool_live(grown.pool, entry, 1, &count);
    drop(&grown, id, grown.streams[0]);
    return status;
}

static bp_status fill_pool_event(void *event)
{
    const uint32_t id = param(&grown, 0);
    assert_ok(bp_pool_trace_start(grown.pool, 4, 0));
    take(&grown, id, grown.streams[0]);
    drop(&grown, id, grown.streams[0]);
    bp_status status = bp_pool_trace_get(grown.pool, 1, event);
    enum { PADDING = offsetof(bp_pool_event, stream) + sizeof(uint32_t), STEP = offsetof(bp_pool_event, step) };
    if (status == BP_OK && ((bp_pool_event *)event)->size >= STEP)
        memset((char *)event + PADDING, 0, STEP - PADDING); /* its bytes are arbitrary */
    bp_pool_trace_stop(grown.pool);
    return status;
}

static bp_status fill_statistics(void *statistics)
{
    bp_loss *loss = new_loss();
    assert_ok(bp_loss_reduce(loss, BP_OK, NULL));
    bp_status status = bp_loss_statistics_get(loss, statistics);
    bp_loss_destroy(&loss);
    return status;
}

static bp_status fill_sizes(void *sizes)
{
    bp_lm_head_config config;
    assert_ok(bp_lm_head_config_init(&config, sizeof config));
    config.max_tokens = config.hidden = config.vocab = 8;
    return bp_lm_head_estimate(&config, 1, 1, sizes);
}

/* ---- the tables -------------------------------------------------------------------------------------------------- */

/* Init functions differ in the type of their pointer: calling them through another type is undefined. */
#define INIT(type)                                                                                                     \
    static bp_status init_##type(void *config, size_t size)                                                            \
    {                                                                                                                  \
        return bp_##type##_init(config, size);                                                                         \
    }
/* clang-format off */
INIT(schedule_config) INIT(recorded_config) INIT(alternatives_config) INIT(host_config) INIT(cuda_config)
INIT(pinned_config) INIT(offload_config) INIT(capture_config) INIT(profile_config) INIT(export_config)
INIT(registration_entry) INIT(pack_config) INIT(logprob_config) INIT(cp_config) INIT(cp_split_config)
INIT(loss_config) INIT(loss_statistics) INIT(logprob_batch) INIT(logprob_outputs) INIT(logprob_gradients)
INIT(logprob_divergence_args) INIT(parameter) INIT(buckets_config) INIT(plan_config) INIT(pool_config) INIT(bind)
INIT(nccl_config) INIT(torch_config) INIT(lm_head_config) INIT(lm_head_batch) INIT(lm_head_gradients)
INIT(cp_rearrangement) INIT(loss_values)
/* clang-format on */

#define THROUGH(type, field) (offsetof(bp_##type, field) + sizeof(((bp_##type *)NULL)->field))

/* The oldest layout had `size` and the fields through `first`. */
#define ROW(type, first, call)                                                                                         \
    {                                                                                                                  \
#call, sizeof(bp_##type), THROUGH(type, first), init_##type, call                                              \
    }
/* A struct without an init function: zeros are the defaults. */
#define PLAIN(type, first, call)                                                                                       \
    {                                                                                                                  \
#call, sizeof(bp_##type), THROUGH(type, first), NULL, call                                                     \
    }
                            const config_row GROWN_CONFIGS[] = {
                                ROW(schedule_config, prefetch, call_training),
                                ROW(schedule_config, prefetch, call_alternatives_schedule),
                                ROW(recorded_config, overlap_window, call_recorded),
                                ROW(alternatives_config, max_prefetch, call_alternatives_own),
                                ROW(host_config, memory_bytes, call_host),
                                ROW(cuda_config, driver, call_cuda),
                                ROW(pinned_config, allocator, call_pinned),
                                ROW(offload_config, pinned, call_offload),
                                ROW(capture_config, name, call_capture),
                                ROW(profile_config, directory, call_profile),
                                ROW(export_config, id, call_export),
                                ROW(registration_entry, comm, call_registration),
                                ROW(pack_config, capacity, call_pack),
                                ROW(logprob_config, vocab, call_logprob),
                                ROW(cp_config, comm, call_cp),
                                ROW(cp_split_config, sequences, call_split),
                                ROW(loss_config, max_sequences, call_loss),
                                ROW(loss_statistics, sequences, call_merge),
                                ROW(logprob_batch, logits, call_batch),
                                ROW(logprob_outputs, logprob, call_outputs),
                                ROW(logprob_gradients, logprob_grad, call_gradients),
                                ROW(logprob_divergence_args, reference, call_divergence),
                                ROW(parameter, dtype, call_parameter),
                                ROW(buckets_config, bucketing, call_buckets),
                                ROW(plan_config, policy, call_plan),
                                ROW(pool_config, name, call_pool),
                                ROW(bind, dtype, call_bind),
                                ROW(nccl_config, comm, call_nccl),
                                ROW(torch_config, ordinal, call_torch),
                                ROW(lm_head_config, vocab, call_head),
                                ROW(lm_head_batch, weight, call_head_batch),
                                ROW(lm_head_gradients, logprob_grad, call_head_gradients),
                                ROW(cp_rearrangement, to, call_rearrangement),
                                ROW(loss_values, mask, call_values),
                                PLAIN(given_bucket, numel, call_given_bucket),
                                PLAIN(model_event, lane, call_event),
                                PLAIN(comm_callbacks, exchange, call_callbacks),
};
const size_t GROWN_CONFIG_COUNT = sizeof GROWN_CONFIGS / sizeof *GROWN_CONFIGS;

const output_row GROWN_OUTPUTS[] = {
    {"bp_device_usage", sizeof(bp_device_usage), THROUGH(device_usage, committed_bytes), fill_usage,
     THROUGH(device_usage, peak_committed_bytes)},
    {"bp_pinned_statistics", sizeof(bp_pinned_statistics), THROUGH(pinned_statistics, pinned_bytes), fill_pinned,
     THROUGH(pinned_statistics, numa_node)},
    {"bp_pack_result", sizeof(bp_pack_result), THROUGH(pack_result, outcome), fill_pack, sizeof(bp_pack_result)},
    {"bp_packing_fault", sizeof(bp_packing_fault), THROUGH(packing_fault, found), fill_fault,
     THROUGH(packing_fault, other)},
    {"bp_pool_statistics", sizeof(bp_pool_statistics), THROUGH(pool_statistics, slab_bytes), fill_pool,
     sizeof(bp_pool_statistics)},
    {"bp_live_request", sizeof(bp_live_request), THROUGH(live_request, id), fill_live, THROUGH(live_request, bytes)},
    {"bp_pool_event", sizeof(bp_pool_event), THROUGH(pool_event, id), fill_pool_event, sizeof(bp_pool_event)},
    {"bp_loss_statistics", sizeof(bp_loss_statistics), THROUGH(loss_statistics, sequences), fill_statistics,
     sizeof(bp_loss_statistics)},
    {"bp_lm_head_sizes", sizeof(bp_lm_head_sizes), THROUGH(lm_head_sizes, forward_tokens), fill_sizes,
     sizeof(bp_lm_head_sizes)},
};
const size_t GROWN_OUTPUT_COUNT = sizeof GROWN_OUTPUTS / sizeof *GROWN_OUTPUTS;

/* SPDX-License-Identifier: Apache-2.0 */
#include "clients.h"

#include "support/harness.h"

#include <string.h>

#include <bucketpool/core/fail.h>

#include "base.h"
#include "devices/device.h"
#include "support/pools.h"

/* ---- a second rank with the first rank's data, and the next shard of the vocabulary ------------------------------------ */

static bp_status exchange(void *user, const void *mine, uint64_t bytes, void *all)
{
    (void)user;
    memcpy(all, mine, bytes);
    memcpy((char *)all + bytes, mine, bytes);
    if (bytes == sizeof(bp_rank_words)) {
        uint64_t *other = ((bp_rank_words *)all)[1].values;
        if (other[BP_SHARD_SAME + 1] == CLIENT_VOCAB)
            other[BP_SHARD_SAME] += CLIENT_VOCAB;
    }
    return BP_OK;
}

static bp_status all_gather(void *user, const void *mine, void *all, uint64_t bytes, bp_stream *stream)
{
    (void)user;
    BP_TRY(bp_stream_copy(stream, all, mine, bytes));
    return bp_stream_copy(stream, (char *)all + bytes, mine, bytes);
}

static bp_status reduce(void *user, const void *from, void *to, uint64_t count, bp_dtype dtype, bp_reduction reduction,
                        bp_stream *stream)
{
    (void)user;
    (void)reduction;
    return from == to ? BP_OK : bp_stream_copy(stream, to, from, count * bp_dtype_bits(dtype) / 8);
}

/* ---- kinds --------------------------------------------------------------------------------------------------------------- */

static bp_token_values values_at(void *data)
{
    return (bp_token_values){.data = data, .batch_stride = CLIENT_TOKENS, .stride = 1};
}

static bp_token_rows rows_at(void *data, uint64_t columns)
{
    return (bp_token_rows){
        .data = data, .dtype = BP_DTYPE_FP32, .batch = 1, .sequence = CLIENT_TOKENS, .columns = columns};
}

static bp_logprob_tokens tokens_of(const job *j)
{
    bp_logprob_batch batch;
    bp_logprob_batch_init(&batch, sizeof batch);
    batch.tokens.target = values_at(j->there->target);
    batch.tokens.mask = values_at(j->there->mask);
    return batch.tokens;
}

static bp_logprob_outputs outputs_of(const job *j)
{
    bp_logprob_outputs outputs;
    bp_logprob_outputs_init(&outputs, sizeof outputs);
    outputs.logprob = values_at(j->there->logprob);
    outputs.entropy = values_at(j->there->entropy);
    outputs.saved = j->there->saved;
    outputs.saved_bytes = sizeof j->there->saved;
    return outputs;
}

static bp_comm *comm_of(const client *c)
{
    return c->comm != NULL ? c->comm : c->echo;
}

static bp_status create_logprob_with(client *c, bp_targets targets)
{
    bp_logprob_config config;
    bp_logprob_config_init(&config, sizeof config);
    config.max_tokens = CLIENT_TOKENS;
    config.vocab = CLIENT_VOCAB;
    config.vocab_start = c->rank * CLIENT_VOCAB;
    config.comm = comm_of(c);
    config.targets = targets;
    return bp_logprob_create(c->device, &config, &c->logprob);
}

static bp_status create_logprob(client *c)
{
    return create_logprob_with(c, BP_TARGETS_MASK);
}

static bp_status create_checked(client *c)
{
    return create_logprob_with(c, BP_TARGETS_ERROR);
}

static bp_status check_logprob(client *c)
{
    return bp_logprob_check(c->logprob);
}

static bp_status call_logprob(client *c, job *j, bp_stream *stream, bool enqueues)
{
    bp_logprob_batch batch;
    bp_logprob_gradients gradients;
    bp_logprob_divergence_args divergence;
    const bp_logprob_outputs outputs = outputs_of(j);
    const bp_token_values min = values_at(j->there->min), none = {0};
    bp_logprob_batch_init(&batch, sizeof batch);
    batch.logits = rows_at(j->there->logits, CLIENT_VOCAB);
    batch.tokens = tokens_of(j);
    bp_logprob_gradients_init(&gradients, sizeof gradients);
    gradients.logprob_grad = gradients.entropy_grad = values_at(j->there->upstream);
    gradients.saved = outputs.saved;
    gradients.saved_bytes = outputs.saved_bytes;
    gradients.logits_grad = rows_at(j->there->grad, CLIENT_VOCAB);
    bp_logprob_divergence_args_init(&divergence, sizeof divergence);
    divergence.reference = rows_at(j->there->reference, CLIENT_VOCAB);
    divergence.saved = j->there->divergence_saved;
    divergence.saved_bytes = sizeof j->there->divergence_saved;
    divergence.divergence = values_at(j->there->divergence);
    divergence.divergence_grad = values_at(j->there->upstream);
    divergence.logits_grad = gradients.logits_grad;
    BP_TRY(bp_logprob_forward(c->logprob, &batch, &outputs, stream));
    BP_TRY(bp_logprob_backward(c->logprob, &batch, &gradients, stream));
    BP_TRY(bp_logprob_divergence(c->logprob, &batch, &divergence, stream));
    BP_TRY(bp_logprob_divergence_backward(c->logprob, &batch, &divergence, stream));
    BP_TRY(bp_logprob_forward_backward(c->logprob, &batch, &outputs, &gradients, stream));
    BP_TRY(bp_logprob_range(c->logprob, &batch, &min, &none, stream));
    return enqueues ? BP_OK : check_logprob(c);
}

static bp_pool *pool_of_logprob(const client *c)
{
    return bp_logprob_get_info(c->logprob)->pool;
}

static bp_status create_head(client *c)
{
    bp_lm_head_config config;
    bp_lm_head_config_init(&config, sizeof config);
    config.max_tokens = CLIENT_TOKENS;
    config.hidden = CLIENT_HIDDEN;
    config.vocab = CLIENT_VOCAB;
    config.vocab_start = c->rank * CLIENT_VOCAB;
    config.dtype = BP_DTYPE_FP32;
    config.chunk = 3;
    config.comm = comm_of(c);
    config.targets = BP_TARGETS_ERROR;
    config.passes |= BP_LM_HEAD_ONE_CALL | BP_LM_HEAD_KEPT;
    return bp_lm_head_create(c->device, &config, &c->head);
}

static bp_status check_head(client *c)
{
    return bp_lm_head_check(c->head);
}

static bp_status call_head(client *c, job *j, bp_stream *stream, bool enqueues)
{
    bp_lm_head_batch batch;
    bp_lm_head_gradients gradients;
    const bp_logprob_outputs outputs = outputs_of(j);
    bp_lm_head_batch_init(&batch, sizeof batch);
    batch.hidden = rows_at(j->there->hidden, CLIENT_HIDDEN);
    batch.weight = j->there->weight;
    batch.tokens = tokens_of(j);
    bp_lm_head_gradients_init(&gradients, sizeof gradients);
    gradients.logprob_grad = values_at(j->there->upstream);
    gradients.saved = outputs.saved;
    gradients.saved_bytes = outputs.saved_bytes;
    gradients.hidden_grad = rows_at(j->there->hidden_grad, CLIENT_HIDDEN);
    gradients.weight_grad = j->there->weight_grad;
    BP_TRY(bp_lm_head_forward(c->head, &batch, &outputs, stream));
    BP_TRY(bp_lm_head_backward(c->head, &batch, &gradients, stream));
    BP_TRY(bp_lm_head_forward_backward(c->head, &batch, &outputs, &gradients, stream));
    batch.logits = j->there->grad;
    BP_TRY(bp_lm_head_forward(c->head, &batch, &outputs, stream));
    BP_TRY(bp_lm_head_backward(c->head, &batch, &gradients, stream));
    return enqueues ? BP_OK : check_head(c);
}

static bp_pool *pool_of_head(const client *c)
{
    return bp_lm_head_get_info(c->head)->pool;
}

static bp_status create_cp(client *c)
{
    bp_cp_config config;
    bp_cp_config_init(&config, sizeof config);
    config.comm = comm_of(c);
    config.max_gathered_bytes = config.comm == NULL ? 0 : sizeof(float[CLIENT_TOKENS]);
    return bp_cp_create(c->device, &config, &c->cp);
}

static bp_status call_cp(client *c, job *j, bp_stream *stream, bool enqueues)
{
    const bp_cp_tensor whole = {.data = j->there->whole, .tokens = CLIENT_TOKENS, .token_bytes = 4};
    const bp_cp_tensor back = {.data = j->there->back, .tokens = CLIENT_LOCAL, .token_bytes = 4};
    const bool is_alone = comm_of(c) == NULL;
    bp_cp_rearrangement r;
    bp_cp_rearrangement_init(&r, sizeof r);
    r.from = (bp_cp_tensor){.data = j->there->upstream, .tokens = CLIENT_TOKENS, .token_bytes = 4};
    r.to = (bp_cp_tensor){.data = is_alone ? j->there->whole : j->there->local,
                          .tokens = bp_cp_split_get_info(c->split)->local_tokens,
                          .token_bytes = 4};
    BP_TRY(bp_cp_rearrange(c->cp, c->split, &r, stream));
    if (is_alone || enqueues)
        return BP_OK;
    BP_TRY(bp_cp_gather(c->cp, c->split, &r.to, BP_CP_PACKED, &whole, stream));
    return bp_cp_gather_backward(c->cp, c->split, &whole, BP_CP_PACKED, BP_DTYPE_FP32, &back, stream);
}

static bp_pool *pool_of_cp(const client *c)
{
    return bp_cp_pool(c->cp);
}

static bp_status create_loss(client *c)
{
    bp_loss_config config;
    bp_loss_config_init(&config, sizeof config);
    config.max_sequences = CLIENT_SEQUENCES;
    config.comm = c->comm;
    config.dp = c->ranks;
    config.dp_rank = c->rank;
    return bp_loss_create(c->device, &config, &c->loss);
}

static bp_status call_loss(client *c, job *j, bp_stream *stream, bool enqueues)
{
    const bp_token_values mask = values_at(j->there->mask), seeds = values_at(j->there->seed);
    bp_loss_values values;
    bp_loss_values_init(&values, sizeof values);
    values.tokens = CLIENT_TOKENS;
    values.mask = mask;
    values.logprob = values_at(j->there->upstream);
    if (enqueues) {
        BP_TRY(bp_loss_count_set(c->loss, CLIENT_TOKENS));
    } else {
        BP_TRY(bp_loss_begin(c->loss));
        BP_TRY(bp_loss_add(c->loss, c->split, &values, stream));
        BP_TRY(bp_loss_reduce(c->loss, BP_OK, stream));
        bp_loss_statistics_init(&j->here.statistics, sizeof j->here.statistics);
        BP_TRY(bp_loss_statistics_get(c->loss, &j->here.statistics));
    }
    return bp_loss_seed(c->loss, c->split, CLIENT_TOKENS, &mask, -1, &seeds, stream);
}

static bp_pool *no_pool(const client *c)
{
    (void)c;
    return NULL;
}

const client_kind CLIENTS[CLIENT_COUNT] = {
    {"logprob", false, create_logprob, call_logprob, check_logprob, pool_of_logprob},
    {"logprob, checked", false, create_checked, call_logprob, check_logprob, pool_of_logprob},
    {"logprob, two ranks", true, create_checked, call_logprob, check_logprob, pool_of_logprob},
    {"head", false, create_head, call_head, check_head, pool_of_head},
    {"head, two ranks", true, create_head, call_head, check_head, pool_of_head},
    {"cp", false, create_cp, call_cp, NULL, pool_of_cp},
    {"cp, two ranks", true, create_cp, call_cp, NULL, pool_of_cp},
    {"loss", false, create_loss, call_loss, NULL, no_pool},
};

/* ---- clients ------------------------------------------------------------------------------------------------------------- */

void begin_client(client *c, const client_kind *kind, bp_device *device, bp_comm *comm)
{
    const bp_comm_callbacks callbacks = {.size = sizeof callbacks,
                                         .ranks = 2,
                                         .exchange = exchange,
                                         .all_gather = all_gather,
                                         .all_reduce = reduce,
                                         .reduce_scatter = reduce};
    static const int64_t cu[CLIENT_SEQUENCES + 1] = {0, CLIENT_TOKENS / 2, CLIENT_TOKENS};
    bp_cp_split_config split;
    *c = (client){.kind = kind, .device = device, .comm = comm, .ranks = 1};
    if (comm != NULL) {
        c->ranks = bp_comm_get_info(comm)->ranks;
        c->rank = bp_comm_get_info(comm)->rank;
    } else if (kind->two_ranks) {
        bp_comm_create_callback(&callbacks, NULL, "echo", &c->echo);
    }
    bp_cp_split_config_init(&split, sizeof split);
    split.cu_seqlens = cu;
    split.sequences = CLIENT_SEQUENCES;
    split.ranks = comm == NULL && kind->two_ranks ? 2 : 1;
    bp_cp_split_create(&split, &c->split);
}

void destroy_client(client *c)
{
    bp_logprob_destroy(&c->logprob);
    bp_lm_head_destroy(&c->head);
    bp_cp_destroy(&c->cp);
    bp_loss_destroy(&c->loss);
}

bool has_client(const client *c)
{
    return c->logprob != NULL || c->head != NULL || c->cp != NULL || c->loss != NULL;
}

void end_client(client *c)
{
    destroy_client(c);
    bp_cp_split_destroy(&c->split);
    bp_comm_destroy(&c->echo);
}

bool is_served(bp_device *device, const client_kind *kind)
{
    client c;
    begin_client(&c, kind, device, NULL);
    const bp_status status = kind->create(&c);
    end_client(&c);
    return status != BP_ERR_UNSUPPORTED;
}

/* ---- jobs ---------------------------------------------------------------------------------------------------------------- */

void fill_job(job *j, uint32_t variant)
{
    const int shift = (int)variant;
    memset(&j->here, 0xee, sizeof j->here);
    for (int i = 0; i < CLIENT_TOKENS * CLIENT_VOCAB; i++) {
        j->here.logits[i] = (float)((i + shift) * 7 % 19) / 4 - 2;
        j->here.reference[i] = (float)((i + shift) * 5 % 17) / 4 - 2;
    }
    for (int i = 0; i < CLIENT_TOKENS * CLIENT_HIDDEN; i++)
        j->here.hidden[i] = (float)((i + shift) * 3 % 11) / 4 - 1;
    for (int i = 0; i < CLIENT_VOCAB * CLIENT_HIDDEN; i++)
        j->here.weight[i] = (float)((i + shift) * 5 % 13) / 8 - 1;
    for (int i = 0; i < CLIENT_TOKENS; i++) {
        j->here.upstream[i] = (float)(i + 1 + shift) / 8;
        j->here.target[i] = (i + shift) * 3 % CLIENT_VOCAB;
        j->here.mask[i] = (i + shift) % CLIENT_TOKENS != 2;
    }
}

void upload_job(job *j, bp_stream *stream)
{
    assert_ok(bp_stream_copy(stream, j->there, &j->here, sizeof j->here));
    assert_ok(bp_stream_synchronize(stream));
}

void download_job(job *j, bp_stream *stream)
{
    const bp_loss_statistics statistics = j->here.statistics;
    assert_ok(bp_stream_copy(stream, &j->here, j->there, sizeof j->here));
    assert_ok(bp_stream_synchronize(stream));
    j->here.statistics = statistics;
}

void begin_job(job *j, bp_device *device, uint32_t variant)
{
    bp_stream *stream;
    void *memory;
    j->device = device;
    assert_ok(bp_stream_create(device, "job", &stream));
    assert_ok(bp_device_allocate(device, sizeof *j->there, stream, &memory));
    j->there = memory;
    fill_job(j, variant);
    upload_job(j, stream);
    bp_stream_destroy(&stream);
}

bp_status end_job(job *j)
{
    bp_stream *stream;
    BP_TRY(bp_stream_create(j->device, "job", &stream));
    const bp_status status = bp_device_free(j->device, j->there, sizeof *j->there, stream);
    bp_stream_destroy(&stream);
    return status;
}

client_tensors results_of(const client_kind *kind, bp_device *device, uint32_t variant, bool enqueues)
{
    client c;
    job j;
    bp_stream *stream;
    begin_client(&c, kind, device, NULL);
    assert_ok(kind->create(&c));
    assert_ok(bp_stream_create(device, "results", &stream));
    begin_job(&j, device, variant);
    assert_ok(kind->call(&c, &j, stream, enqueues));
    download_job(&j, stream);
    assert_ok(end_job(&j));
    end_client(&c);
    bp_stream_destroy(&stream);
    return j.here;
}

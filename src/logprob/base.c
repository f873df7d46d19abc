/* The parts that all clients share: engine, workspaces, ranks, and the way from partial sums to outputs. */
#include "logprob/base.h"

#include <bucketpool/cuda.h>

#include <stdio.h>
#include <string.h>

#include "core/arith.h"
#include "core/fail.h"
#include "logprob/arguments.h"
#include "logprob/ranks.h"

bp_status bp_engine_create(bp_device *device, uint32_t threads, uint32_t kernels, uint64_t columns, bp_engine **engine)
{
    if (bp_device_is_host_accessible(device))
        return bp_engine_create_host(threads, kernels, columns, engine);
    if (bp_cuda_get_info(device) != NULL)
        return bp_engine_create_cuda(device, engine);
    return bp_fail(BP_ERR_UNSUPPORTED, "there are no log-probability kernels for device %s: host and cuda have some",
                   bp_device_name(device));
}

bp_status bp_call_end(bp_stream *own, bp_stream *given, bp_status status)
{
    if (given != NULL)
        return status;
    if (status == BP_OK)
        return bp_stream_synchronize(own);
    char detail[BP_DETAIL_BYTES];
    snprintf(detail, sizeof detail, "%s", bp_error_detail());
    (void)bp_stream_synchronize(own);
    return bp_error_record(status, detail);
}

bp_status bp_gather_bytes(const bp_device *device, bp_comm *comm, const void *mine, uint64_t bytes, void *all,
                          bp_stream *stream)
{
    bp_status status = bp_comm_all_gather(comm, mine, all, bytes, stream);
    if (status != BP_ERR_UNSUPPORTED || !bp_device_is_host_accessible(device))
        return status;
    BP_TRY(bp_stream_synchronize(stream));
    return bp_comm_exchange(comm, mine, bytes, all);
}

bp_status bp_check_not_captured(const char *call, bp_stream *stream)
{
    uint64_t capture = 0;
    BP_TRY(bp_stream_capture_of(stream, &capture));
    if (capture != 0)
        return bp_fail(BP_ERR_CAPTURE, "%s: stream %s is being captured (capture %llu)", call, bp_stream_name(stream),
                       (unsigned long long)capture);
    return BP_OK;
}

/* ---- life ----------------------------------------------------------------------------------------------------------- */

static bp_status base_check_config(const bp_base_config *config)
{
    if (config->max_tokens == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: max_tokens is 0", config->call);
    if (config->targets != BP_TARGETS_ANY && config->targets != BP_TARGETS_CHECKED)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: targets %d is neither any nor checked", config->call,
                       (int)config->targets);
    return BP_OK;
}

static bp_status base_make_workspace(bp_device *device, const bp_base_config *config, bp_base *base)
{
    uint64_t partials, gathered;
    if (!bp_mul_u64(config->max_tokens, sizeof(bp_partial), &partials) ||
        !bp_mul_u64(partials, base->shards.ranks, &gathered))
        return bp_fail(BP_ERR_OVERFLOW, "%s: the partial sums of %llu tokens on %u ranks do not fit 64 bits",
                       config->call, (unsigned long long)config->max_tokens, base->shards.ranks);
    bp_workspace_need needs[BP_WORKSPACES] = {
        [BP_WORK_BAD_TARGET] = {"bad_target", config->targets == BP_TARGETS_CHECKED ? sizeof(bp_bad_target) : 0,
                                UINT32_MAX},
        [BP_WORK_PARTIALS] = {"partials", partials, BP_STAGE_PARTIALS | BP_STAGE_FINISH},
        [BP_WORK_GATHERED] = {"gathered", base->shards.ranks == 1 ? 0 : gathered, BP_STAGE_FINISH}};
    if (config->need_count != 0)
        memcpy(needs + BP_WORK_OWN, config->needs, config->need_count * sizeof *needs);
    return bp_workspace_init(device, config->name, needs, BP_WORK_OWN + config->need_count, &base->workspace);
}

/* Targets outside the vocabulary are noted in memory of the device: nothing noted is all ones. */
static bp_status clear_bad(bp_base *base)
{
    return bp_stream_fill(base->own, base->bad, 0xff, sizeof *base->bad);
}

static bp_status make_bad(const bp_base_config *config, bp_base *base)
{
    void *address;
    if (config->targets == BP_TARGETS_ANY)
        return BP_OK;
    BP_TRY(bp_event_create(base->device, &base->done));
    BP_TRY(bp_workspace_take(&base->workspace, BP_WORK_BAD_TARGET, base->own, &address));
    base->bad = address;
    base->keeps_bad = bp_device_is_host_accessible(base->device);
    BP_TRY(clear_bad(base));
    if (!base->keeps_bad)
        BP_TRY(bp_workspace_give(&base->workspace, BP_WORK_BAD_TARGET, base->own));
    return bp_stream_synchronize(base->own);
}

/* On the host the memory is held all the time: guard mode would spoil it in between. On cuda, where captures want nothing held before they
 * begin, it is held around each use; nothing else is ever there. */
static bp_status take_bad(bp_base *base, bp_stream *stream)
{
    void *address;
    if (base->bad == NULL || base->keeps_bad)
        return BP_OK;
    BP_TRY(bp_workspace_drop(&base->workspace, 1u << BP_WORK_BAD_TARGET, stream)); /* of a call that failed */
    return bp_workspace_take(&base->workspace, BP_WORK_BAD_TARGET, stream, &address);
}

static bp_status give_bad(bp_base *base, bp_stream *stream, bp_status status)
{
    if (base->bad == NULL || base->keeps_bad)
        return status;
    bp_status given = bp_workspace_give(&base->workspace, BP_WORK_BAD_TARGET, stream);
    return status == BP_OK ? given : status;
}

static bp_status base_make(bp_device *device, const bp_base_config *config, bp_base *base)
{
    base->device = device;
    base->max_tokens = config->max_tokens;
    base->columns = config->shard.columns;
    base->start = (int64_t)config->shard.start;
    BP_TRY(bp_engine_create(device, config->threads, config->kernels, base->columns, &base->engine));
    BP_TRY(bp_stream_create(device, config->name, &base->own));
    BP_TRY(base_make_workspace(device, config, base));
    return make_bad(config, base);
}

bp_status bp_base_init(bp_device *device, const bp_base_config *config, bp_status status, bp_base *base)
{
    bp_base made = {0};
    if (status == BP_OK)
        status = base_check_config(config);
    BP_TRY(bp_vocab_shards_init(config->call, config->comm, &config->shard, config->same, status, &made.shards));
    status = bp_ranks_agree(config->call, made.shards.comm, base_make(device, config, &made));
    if (status != BP_OK) {
        bp_base_finish(&made);
        return status;
    }
    *base = made;
    return BP_OK;
}

void bp_base_finish(bp_base *base)
{
    bp_workspace_finish(&base->workspace);
    bp_event_destroy(&base->done);
    bp_stream_destroy(&base->own);
    if (base->engine != NULL)
        base->engine->ops->destroy(base->engine);
    *base = (bp_base){0};
}

/* ---- calls ---------------------------------------------------------------------------------------------------------- */

bp_stream *bp_base_stream(const bp_base *base, bp_stream *stream)
{
    return stream != NULL ? stream : base->own;
}

/* The own stream waits for every call that may note a bad target; where the memory is taken for each, the pool sees to that. */
static bp_status base_follow(bp_base *base, bp_stream *stream)
{
    if (base->bad == NULL || !base->keeps_bad)
        return BP_OK;
    BP_TRY(bp_event_record(base->done, stream));
    return bp_stream_wait(base->own, base->done);
}

/* What was noted, and forgets it. */
static bp_status read_bad(bp_base *base, bp_bad_target *bad)
{
    BP_TRY(bp_stream_copy(base->own, bad, base->bad, sizeof *bad));
    BP_TRY(bp_stream_synchronize(base->own));
    if (bad->token == UINT64_MAX)
        return BP_OK;
    BP_TRY(clear_bad(base));
    return bp_stream_synchronize(base->own);
}

/* What was noted by calls that the own stream waits for. */
static bp_status tell_bad(bp_base *base)
{
    bp_bad_target bad = {.token = UINT64_MAX};
    BP_TRY(take_bad(base, base->own));
    BP_TRY(give_bad(base, base->own, read_bad(base, &bad)));
    if (bad.token == UINT64_MAX)
        return BP_OK;
    return bp_fail(BP_ERR_INVALID_ARGUMENT, "token %llu has the target %lld: the vocabulary's ids are %lld to %lld",
                   (unsigned long long)bad.token, (long long)bad.value, (long long)base->shards.first,
                   (long long)(base->shards.first + (int64_t)(base->shards.vocab - 1)));
}

/* A call that failed may have enqueued work before: nobody but the base waits for that on its own stream. What waiting says then is of no
 * interest. */
static bp_status end_failed(bp_base *base, bp_stream *given, bp_status status)
{
    char detail[BP_DETAIL_BYTES];
    snprintf(detail, sizeof detail, "%s", bp_error_detail());
    if (given == NULL)
        (void)bp_stream_synchronize(base->own);
    else
        (void)base_follow(base, given);
    return bp_error_record(status, detail);
}

bp_status bp_base_end(bp_base *base, bp_stream *given, bp_status status)
{
    if (status == BP_OK && given != NULL)
        return base_follow(base, given);
    if (status == BP_OK)
        status = base->bad != NULL ? tell_bad(base) : bp_stream_synchronize(base->own);
    return status == BP_OK ? BP_OK : end_failed(base, given, status);
}

bp_status bp_base_check(bp_base *base)
{
    const bool own_waits = base->bad != NULL && base->keeps_bad;
    if (!own_waits)
        BP_TRY(bp_device_synchronize(base->device));
    return base->bad != NULL ? tell_bad(base) : BP_OK;
}

/* ---- outputs -------------------------------------------------------------------------------------------------------- */

bp_status bp_check_outputs(const char *call, const bp_logprob_outputs *outputs, uint64_t batch, uint64_t sequence,
                           bp_outputs_work *work)
{
    *work = (bp_outputs_work){.outputs = outputs};
    BP_TRY(bp_check_values(call, "log-probabilities", &outputs->logprob, batch, sequence, true));
    BP_TRY(bp_check_values(call, "entropies", &outputs->entropy, batch, sequence, true));
    if (outputs->saved == NULL)
        return BP_OK;
    return bp_check_saved(call, outputs->saved, outputs->saved_bytes, batch * sequence, outputs->entropy.data != NULL,
                          &work->saved);
}

/* All ranks' partial sums, in rank order. */
static bp_status base_gather(bp_base *base, const bp_partial *partials, uint64_t tokens, bp_stream *stream,
                             void **gathered)
{
    BP_TRY(bp_workspace_take(&base->workspace, BP_WORK_GATHERED, stream, gathered));
    bp_status status =
        bp_gather_bytes(base->device, base->shards.comm, partials, tokens * sizeof *partials, *gathered, stream);
    if (status != BP_OK)
        (void)bp_workspace_give(&base->workspace, BP_WORK_GATHERED, stream);
    return status;
}

static bp_status base_finish(bp_base *base, const bp_tokens_work *tokens, const bp_partial *partials, float scale,
                             const bp_outputs_work *out, bp_stream *stream)
{
    const bp_logprob_outputs *outputs = out->outputs;
    const bp_finish_work work = {.tokens = *tokens,
                                 .partials = partials,
                                 .ranks = base->shards.ranks,
                                 .scale = scale,
                                 .vocab_first = base->shards.first,
                                 .vocab = base->shards.vocab,
                                 .logprob = outputs->logprob.data,
                                 .logprob_batch_stride = outputs->logprob.batch_stride,
                                 .logprob_stride = outputs->logprob.stride,
                                 .entropy = outputs->entropy.data,
                                 .entropy_batch_stride = outputs->entropy.batch_stride,
                                 .entropy_stride = outputs->entropy.stride,
                                 .saved = out->saved,
                                 .bad = base->bad};
    BP_TRY(take_bad(base, stream));
    return give_bad(base, stream, base->engine->ops->finish(base->engine, &work, stream));
}

bp_status bp_base_finish_partials(bp_base *base, const bp_tokens_work *tokens, const bp_partial *partials, float scale,
                                  const bp_outputs_work *outputs, bp_stream *stream)
{
    void *all = NULL;
    bp_status status = BP_OK;
    if (base->shards.comm != NULL)
        status = base_gather(base, partials, tokens->batch * tokens->sequence, stream, &all);
    if (status == BP_OK) {
        status = base_finish(base, tokens, all != NULL ? all : partials, scale, outputs, stream);
        bp_status given = all != NULL ? bp_workspace_give(&base->workspace, BP_WORK_GATHERED, stream) : BP_OK;
        status = status == BP_OK ? given : status;
    }
    bp_status given = bp_workspace_give(&base->workspace, BP_WORK_PARTIALS, stream);
    return status == BP_OK ? given : status;
}

bp_status bp_check_upstream(const char *call, const bp_token_values *logprob_grad, const bp_token_values *entropy_grad,
                            const void *saved, uint64_t saved_bytes, uint64_t batch, uint64_t sequence,
                            bp_gradient_work *work)
{
    BP_TRY(bp_check_values(call, "upstream gradients of log-probabilities", logprob_grad, batch, sequence, false));
    BP_TRY(bp_check_values(call, "upstream gradients of entropies", entropy_grad, batch, sequence, false));
    if (saved == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: saved is missing: forward writes it when it is given", call);
    BP_TRY(bp_check_saved(call, saved, saved_bytes, batch * sequence, entropy_grad->data != NULL, &work->saved));
    work->logprob_grad = logprob_grad->data;
    work->logprob_grad_batch_stride = logprob_grad->batch_stride;
    work->logprob_grad_stride = logprob_grad->stride;
    work->entropy_grad = entropy_grad->data;
    work->entropy_grad_batch_stride = entropy_grad->batch_stride;
    work->entropy_grad_stride = entropy_grad->stride;
    return BP_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Shared parts of the clients: status agreement of ranks, vocabulary shards, bad-target checks, and the exchange of partial sums. */
#include "base.h"

#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>
#include <bucketpool/cuda.h>
#include <bucketpool/kernels.h>

#include <stdlib.h>
#include <string.h>

/* One byte of each is on the stack while words are allocated. */
enum { MAX_RANKS_OF_ALL = 65536 };

/* ---- ranks ------------------------------------------------------------------------------------------------------- */

bool bp_is_alone(const bp_comm *comm)
{
    return comm == NULL || bp_comm_get_info(comm)->ranks == 1;
}

bp_status bp_ranks_exchange(const char *call, bp_comm *comm, const bp_rank_words *mine, const char *const *names,
                            bp_rank_words *told)
{
    bp_status status = (bp_status)mine->status;
    if (bp_is_alone(comm)) {
        told[0] = *mine;
        return status;
    }
    const uint32_t ranks = bp_comm_get_info(comm)->ranks;
    bp_rank_words own = *mine;
    if (status != BP_OK)
        snprintf(own.words, sizeof own.words, "%s", bp_error_detail());
    bp_status exchanged = bp_comm_exchange(comm, &own, sizeof own, told);
    if (exchanged != BP_OK)
        return status != BP_OK ? bp_error_record(status, own.words)
                               : bp_fail(exchanged, "%s: %s", call, bp_error_detail());
    if (status != BP_OK)
        return status;

    for (uint32_t r = 0; r < ranks; r++) {
        if (!bp_is_status(told[r].status))
            return bp_fail(BP_ERR_COMM, "%s: rank %u of %u sent the unknown status %lld: %.*s", call, r, ranks,
                           (long long)told[r].status, BP_RANK_WORDS_CHARS - 1, told[r].words);
        if (told[r].status != BP_OK)
            return bp_fail((bp_status)told[r].status, "%s: rank %u of %u failed: %s: %.*s", call, r, ranks,
                           bp_status_name((bp_status)told[r].status), BP_RANK_WORDS_CHARS - 1, told[r].words);
    }
    for (uint32_t r = 1; r < ranks; r++)
        for (size_t i = 0; i < BP_TOLD_VALUES && names[i] != NULL; i++)
            if (told[r].values[i] != told[0].values[i])
                return bp_fail(BP_ERR_MISMATCH, "%s: rank %u has %s %llu, rank 0 has %llu", call, r, names[i],
                               (unsigned long long)told[r].values[i], (unsigned long long)told[0].values[i]);
    return BP_OK;
}

/* Not inlined, as 64 KiB of the stack are not to be part of the caller's frame. */
static __attribute__((noinline)) bp_status allocate_words(const char *call, bp_comm *comm, uint32_t ranks,
                                                          bp_rank_words **told)
{
    uint8_t lacking[MAX_RANKS_OF_ALL];
    bp_rank_words *made = calloc(ranks, sizeof *made);
    const uint8_t lacks = made == NULL;
    bp_status status = bp_comm_exchange(comm, &lacks, sizeof lacks, lacking);
    for (uint32_t r = 0; r < ranks && status == BP_OK; r++)
        if (lacking[r])
            status = bp_fail(BP_ERR_NO_HOST_MEMORY, "%s: rank %u of %u could not allocate the words of all ranks", call,
                             r, ranks);
    if (status == BP_OK)
        *told = made;
    else
        free(made);
    return status;
}

bp_status bp_rank_words_take(const char *call, bp_comm *comm, uint32_t max, bp_rank_words *few, bp_rank_words **told)
{
    const uint32_t ranks = bp_is_alone(comm) ? 1 : bp_comm_get_info(comm)->ranks;
    if (ranks > max || ranks > MAX_RANKS_OF_ALL)
        return bp_fail(BP_ERR_UNSUPPORTED, "%s: %u ranks exceed the limit of %u", call, ranks, max);
    if (ranks > BP_FEW_RANKS)
        return allocate_words(call, comm, ranks, told);
    *told = few;
    return BP_OK;
}

void bp_rank_words_give(const bp_rank_words *few, bp_rank_words *told)
{
    if (told != few)
        free(told);
}

bp_status bp_ranks_compare(const char *call, bp_comm *comm, const bp_rank_words *mine, const char *const *names)
{
    bp_rank_words few[BP_FEW_RANKS], *told;
    BP_TRY(bp_rank_words_take(call, comm, BP_MAX_RANKS, few, &told));
    const bp_status status = bp_ranks_exchange(call, comm, mine, names, told);
    bp_rank_words_give(few, told);
    return status;
}

bp_status bp_ranks_agree(const char *call, bp_comm *comm, bp_status status)
{
    static const char *const nothing[] = {NULL};
    const bp_rank_words mine = {.status = status};
    return bp_ranks_compare(call, comm, &mine, nothing);
}

/* Words of a rank: values that must be equal, then first column and column count of its shard. */
enum { START = BP_SHARD_SAME, COLUMNS = BP_SHARD_SAME + 1 };

static bp_status check_shard(const char *call, const bp_shard *mine)
{
    uint64_t end;
    if (mine->columns == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: the vocabulary has 0 columns", call);
    if (!bp_add_u64(mine->start, mine->columns, &end) || end > INT64_MAX)
        return bp_fail(BP_ERR_OVERFLOW, "%s: ids of %llu.. with %llu columns do not fit 63 bits", call,
                       (unsigned long long)mine->start, (unsigned long long)mine->columns);
    if (mine->columns > INT32_MAX)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: a shard of %llu columns exceeds the limit of %d", call,
                       (unsigned long long)mine->columns, INT32_MAX);
    return BP_OK;
}

/* Shard sizes are free, but shards are in rank order. `told`: of the ranks. */
static bp_status join_shards(const char *call, bp_comm *comm, const bp_rank_words *told, bp_vocab_shards *shards)
{
    const uint32_t ranks = bp_comm_get_info(comm)->ranks;
    for (uint32_t r = 1; r < ranks; r++) {
        const uint64_t end = told[r - 1].values[START] + told[r - 1].values[COLUMNS];
        const uint64_t start = told[r].values[START];
        if (start != end)
            return bp_fail(BP_ERR_INVALID_ARGUMENT,
                           "%s: the shards have %s: rank %u ends before id %llu, rank %u starts at %llu", call,
                           start > end ? "a gap" : "an overlap", r - 1, (unsigned long long)end, r,
                           (unsigned long long)start);
    }
    const uint64_t *last = told[ranks - 1].values;
    *shards = (bp_vocab_shards){.comm = comm,
                                .ranks = ranks,
                                .first = (int64_t)told[0].values[START],
                                .vocab = last[START] + last[COLUMNS] - told[0].values[START]};
    return BP_OK;
}

bp_status bp_vocab_shards_init(const char *call, bp_comm *comm, const bp_shard *mine, const char *const *names,
                               bp_status status, bp_vocab_shards *shards)
{
    if (status == BP_OK)
        status = check_shard(call, mine);
    if (bp_is_alone(comm)) {
        BP_TRY(status);
        *shards = (bp_vocab_shards){.ranks = 1, .first = (int64_t)mine->start, .vocab = mine->columns};
        return BP_OK;
    }
    const uint32_t ranks = bp_comm_get_info(comm)->ranks;
    if (ranks > BP_MAX_RANKS)
        return bp_fail(BP_ERR_UNSUPPORTED, "%s: %u ranks share a vocabulary, which exceeds the limit of %d", call,
                       ranks, BP_MAX_RANKS);
    bp_rank_words own = {.status = status, .values = {[START] = mine->start, [COLUMNS] = mine->columns}};
    memcpy(own.values, mine->same, sizeof mine->same);
    bp_rank_words few[BP_FEW_RANKS], *told;
    BP_TRY(bp_rank_words_take(call, comm, BP_MAX_RANKS, few, &told));
    status = bp_ranks_exchange(call, comm, &own, names, told);
    if (status == BP_OK)
        status = join_shards(call, comm, told, shards);
    bp_rank_words_give(few, told);
    return status;
}

/* ---- shared by all clients, with or without a base ------------------------------------------------------------------- */

bp_status bp_engine_create(bp_device *device, uint32_t threads, uint32_t kernels, uint64_t columns, bp_engine **engine)
{
    if (bp_device_is_host_accessible(device))
        return bp_engine_create_host(threads, kernels, columns, engine);
    if (bp_cuda_get_info(device) != NULL)
        return bp_engine_create_cuda(device, engine);
    return bp_fail(BP_ERR_UNSUPPORTED, "device %s has no log-probability kernels; use a host or cuda device",
                   bp_device_name(device));
}

bp_status bp_call_end(bp_stream *own, bp_stream *given, bp_status status)
{
    if (given != NULL)
        return status;
    if (status == BP_OK)
        return bp_stream_synchronize(own);
    BP_KEEP_ERROR;
    (void)bp_stream_synchronize(own);
    return status;
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

#define BP_PIECE_ALIGNMENT 16 /* of the partials and target logits of a rank */

/* ---- creation and destruction ---------------------------------------------------------------------------------------- */

/* Bad targets are recorded in device memory; all ones means none. */
static bp_status clear_bad(bp_base *base)
{
    return bp_stream_fill(base->own, base->bad, 0xff, sizeof *base->bad);
}

bp_status bp_base_partials(const char *call, uint64_t tokens, uint32_t targets, uint32_t ranks, uint64_t *mine,
                           uint64_t *all)
{
    uint64_t bytes;
    if (!bp_mul_u64(tokens, sizeof(bp_partial) + targets * sizeof(float), &bytes) ||
        !bp_round_up_u64(bytes, BP_PIECE_ALIGNMENT, mine) || !bp_mul_u64(*mine, ranks, all))
        return bp_fail(BP_ERR_OVERFLOW, "%s: the partial sums of %llu tokens on %u ranks do not fit 64 bits", call,
                       (unsigned long long)tokens, ranks);
    return BP_OK;
}

static bp_status base_make(bp_device *device, const bp_base_config *config, bp_base *base)
{
    base->device = device;
    base->max_tokens = config->max_tokens;
    base->max_targets = config->max_targets;
    base->columns = config->shard.columns;
    base->start = (int64_t)config->shard.start;
    BP_TRY(bp_engine_create(device, config->threads, config->kernels, base->columns, &base->engine));
    BP_TRY(bp_stream_create(device, config->name, &base->own));
    base->engine->own = base->own;

    const bool checks = config->targets == BP_TARGETS_ERROR;
    uint64_t piece, gathered;
    BP_TRY(
        bp_base_partials(config->call, config->max_tokens, config->max_targets, base->shards.ranks, &piece, &gathered));
    if (base->shards.comm == NULL && !config->continues)
        piece = 0; /* results are written directly */
    if (base->shards.comm == NULL)
        gathered = 0;
    bp_workspace_need needs[BP_WORKSPACES] = {
        [BP_WORK_BAD_TARGET] = {"bad_target", checks ? sizeof *base->bad : 0, UINT32_MAX},
        [BP_WORK_PARTIALS] = {"partials", piece, BP_STAGE_PARTIALS | BP_STAGE_FINISH},
        [BP_WORK_GATHERED] = {"gathered", gathered, BP_STAGE_FINISH}};
    if (config->need_count != 0)
        memcpy(needs + BP_WORK_OWN, config->needs, config->need_count * sizeof *needs);
    BP_TRY(bp_workspace_init(device, config->name, needs, BP_WORK_OWN + config->need_count, &base->workspace));
    if (!checks)
        return BP_OK;

    void *address;
    BP_TRY(bp_event_create(base->device, &base->done));
    BP_TRY(bp_workspace_take(&base->workspace, BP_WORK_BAD_TARGET, base->own, &address));
    base->bad = address;
    base->keeps_bad = bp_device_is_host_accessible(base->device);
    BP_TRY(clear_bad(base));
    if (!base->keeps_bad)
        BP_TRY(bp_workspace_give(&base->workspace, BP_WORK_BAD_TARGET, base->own));
    return bp_stream_synchronize(base->own);
}

bp_status bp_base_init(bp_device *device, const bp_base_config *config, bp_status status, bp_base *base)
{
    bp_base made = {0};
    if (status == BP_OK && config->max_tokens == 0)
        status = bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: max_tokens is 0", config->call);
    else if (status == BP_OK && (config->max_targets == 0 || config->max_targets > BP_MAX_TARGETS))
        status = bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: max_targets is %u; use 1 to %u", config->call,
                         config->max_targets, BP_MAX_TARGETS);
    else if (status == BP_OK && config->targets != BP_TARGETS_ERROR && config->targets != BP_TARGETS_MASK)
        status = bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: targets is %d; use BP_TARGETS_ERROR or BP_TARGETS_MASK",
                         config->call, (int)config->targets);
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

/* Reads the recorded target into the base, where it may still arrive if waiting fails, and clears the record. On the host without work for
 * the stream, whose thread would have to wake. */
static bp_status read_bad(bp_base *base)
{
    if (base->keeps_bad) {
        BP_TRY(bp_stream_synchronize(base->own));
        base->told = __atomic_exchange_n(base->bad, UINT64_MAX, __ATOMIC_RELAXED);
        return BP_OK;
    }
    BP_TRY(bp_stream_copy(base->own, &base->told, base->bad, sizeof base->told));
    BP_TRY(bp_stream_synchronize(base->own));
    if (base->told == UINT64_MAX)
        return BP_OK;
    BP_TRY(clear_bad(base));
    return bp_stream_synchronize(base->own);
}

/* `bad`: as bp_bad_target makes it. */
static bp_status fail_bad(const bp_base *base, uint64_t bad)
{
    const int64_t distance = (int64_t)(bad & UINT32_MAX) - INT64_C(0x80000000), first = base->shards.first;
    const int64_t target_id = first + distance, last_id = first + (int64_t)base->shards.vocab - 1;
    const long long target = target_id, last = last_id;
    const unsigned long long token = bad >> 32;
    if (distance >= 0 && (uint64_t)distance < base->shards.vocab)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "token %llu has a target outside the vocabulary on another rank, and %lld on this one; pass the "
                       "same targets on all ranks",
                       token, target);
    return bp_fail(BP_ERR_INVALID_ARGUMENT,
                   "token %llu has target %lld%s, outside the vocabulary of %llu ids, [%lld, %lld]; if it is a shard, "
                   "pass the communicator of its ranks and vocab_start; tokens.ignore_index is for targets without a "
                   "result, BP_TARGETS_MASK for the log-probability 0",
                   token, target,
                   distance == INT32_MAX   ? " or more"
                   : distance == INT32_MIN ? " or less"
                                           : "",
                   (unsigned long long)base->shards.vocab, (long long)first, last);
}

/* Reports the bad target recorded by the calls that the own stream waits for. */
static bp_status report_bad(bp_base *base)
{
    if (!base->keeps_bad)
        BP_TRY(bp_device_synchronize(base->device));
    BP_TRY(read_bad(base));
    return base->told == UINT64_MAX ? BP_OK : fail_bad(base, base->told);
}

/* On the host the own stream waits for every call that may record a bad target. On cuda, where each event costs the host time, reports wait
 * for the device. */
static bp_status base_follow(bp_base *base, bp_stream *stream)
{
    if (base->bad == NULL || !base->keeps_bad)
        return BP_OK;
    BP_TRY(bp_event_record(base->done, stream));
    return bp_stream_wait(base->own, base->done);
}

bp_status bp_base_end(bp_base *base, bp_stream *given, bp_status status)
{
    if (status == BP_OK && given != NULL)
        return base_follow(base, given);
    if (status == BP_OK)
        status = base->bad != NULL ? report_bad(base) : bp_stream_synchronize(base->own);
    if (status == BP_OK)
        return BP_OK;

    /* a failed call may have enqueued work; the status of waiting for it is ignored */
    if (given == NULL)
        return bp_call_end(base->own, NULL, status);
    BP_KEEP_ERROR;
    (void)base_follow(base, given);
    return status;
}

bp_status bp_base_check(bp_base *base)
{
    return base->bad != NULL ? report_bad(base) : bp_device_synchronize(base->device);
}

/* ---- forward passes ------------------------------------------------------------------------------------------------- */

bp_status bp_base_begin_forward(const char *call, bp_base *base, const bp_tokens_work *tokens, bool in_parts,
                                bp_stream *stream, bp_forward_pass *pass)
{
    const uint64_t count = tokens->batch * tokens->sequence;
    void *memory = NULL;
    *pass = (bp_forward_pass){0};
    BP_TRY(bp_stream_check(stream, base->device, call)); /* workspaces, which would check it, may be absent */
    if (base->shards.comm == NULL && !in_parts)
        return BP_OK;
    BP_TRY(bp_workspace_take(&base->workspace, BP_WORK_PARTIALS, stream, &memory));
    pass->partials = memory;
    pass->target_logits = (float *)(pass->partials + count);
    const uint64_t bytes = count * (sizeof(bp_partial) + tokens->targets * sizeof(float)); /* checked at creation */
    pass->rank_bytes = (bytes + BP_PIECE_ALIGNMENT - 1) / BP_PIECE_ALIGNMENT * BP_PIECE_ALIGNMENT;
    return BP_OK;
}

bp_forward_work bp_forward_work_of(const bp_forward_pass *pass, const bp_tokens_work *tokens, uint64_t token,
                                   const bp_results_work *results)
{
    bp_forward_work work = {.tokens = *tokens, .level = bp_sums_level(results)};
    if (pass->partials != NULL) {
        work.partials = pass->partials + token;
        work.target_logits = pass->target_logits + token * tokens->targets;
    } else {
        work.results = *results;
        work.results.first_token = token;
    }
    return work;
}

static bp_status gather_and_finish(bp_base *base, const bp_tokens_work *tokens, const bp_forward_pass *pass,
                                   const bp_results_work *results, bp_stream *stream)
{
    void *all = pass->partials; /* in rank order */
    if (base->shards.comm != NULL) {
        BP_TRY(bp_workspace_take(&base->workspace, BP_WORK_GATHERED, stream, &all));
        BP_TRY(bp_gather_bytes(base->device, base->shards.comm, pass->partials, pass->rank_bytes, all, stream));
    }
    const bp_partial *partials = all;
    const bp_finish_work work = {.tokens = *tokens,
                                 .partials = partials,
                                 .target_logits = (const float *)(partials + tokens->batch * tokens->sequence),
                                 .rank_bytes = pass->rank_bytes,
                                 .ranks = base->shards.ranks,
                                 .results = *results};
    return base->engine->ops->finish(base->engine, &work, stream);
}

bp_status bp_base_end_forward(bp_base *base, const bp_tokens_work *tokens, const bp_forward_pass *pass,
                              const bp_results_work *results, bp_stream *stream, bp_status status)
{
    if (pass->partials == NULL)
        return status;
    if (status == BP_OK)
        status = gather_and_finish(base, tokens, pass, results, stream);
    return bp_workspace_drop(&base->workspace, 1u << BP_WORK_PARTIALS | 1u << BP_WORK_GATHERED, stream, status);
}

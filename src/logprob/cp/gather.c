/* Everybody's local tokens to everybody, and its backward. */
#include "core/arith.h"
#include "core/fail.h"
#include "devices/clients.h"
#include "logprob/agreement.h"
#include "logprob/base.h"
#include "logprob/cp/cp.h"

/* A gather or its backward, checked: `local` and `whole` with their strides. */
typedef struct gathering {
    const char *call;
    const bp_cp_split *split;
    bp_cp_tensor local, whole;
    bp_cp_order order; /* of the whole */
    bool backward;
    bp_dtype dtype;         /* backward: of elements */
    uint64_t bytes;         /* of everybody's tokens */
    bp_cp_tensor all, mine; /* what the communicator sees */
} gathering;

/* ---- before --------------------------------------------------------------------------------------------------------- */

static bp_status cp_gather_check_ranks(const bp_cp *cp, const gathering *g)
{
    const bp_cp_split_info *info = &g->split->info;
    if (cp->comm == NULL && info->ranks > 1)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "%s: a split for %u CP ranks, but this client was made without their communicator", g->call,
                       info->ranks);
    if (cp->comm != NULL &&
        (info->ranks != bp_comm_get_info(cp->comm)->ranks || info->rank != bp_comm_get_info(cp->comm)->rank))
        return bp_fail(BP_ERR_MISMATCH,
                       "%s: a split for rank %u of %u CP ranks, the communicator has %u and this is rank %u", g->call,
                       info->rank, info->ranks, bp_comm_get_info(cp->comm)->ranks, bp_comm_get_info(cp->comm)->rank);
    return BP_OK;
}

static bp_status check_dtype(const gathering *g)
{
    if (g->dtype != BP_DTYPE_FP32 && g->dtype != BP_DTYPE_FP16 && g->dtype != BP_DTYPE_BF16)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: gradients in %s: fp32, fp16 and bf16 are possible", g->call,
                       bp_dtype_name(g->dtype));
    const uint64_t element = bp_dtype_bits(g->dtype) / 8;
    if (g->local.token_bytes % element != 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: tokens of %llu bytes are no whole number of %s", g->call,
                       (unsigned long long)g->local.token_bytes, bp_dtype_name(g->dtype));
    return BP_OK;
}

static bp_status cp_gather_check(const bp_cp *cp, const bp_cp_tensor *local, const bp_cp_tensor *whole, gathering *g)
{
    if (g->split == NULL || local == NULL || whole == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: needs a split and two tensors", g->call);
    BP_TRY(bp_check_order(g->call, g->order));
    if (g->order != BP_CP_PACKED && g->order != BP_CP_PADDED)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: packed and padded order are possible, not %s", g->call,
                       bp_cp_order_name(g->order));
    BP_TRY(cp_gather_check_ranks(cp, g));
    BP_TRY(bp_check_cp_tensor(g->call, "local", g->split, BP_CP_LOCAL, local, g->backward, &g->local));
    BP_TRY(bp_check_cp_tensor(g->call, "whole", g->split, g->order, whole, !g->backward, &g->whole));
    if (local->token_bytes != whole->token_bytes)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: local tokens of %llu bytes, whole ones of %llu", g->call,
                       (unsigned long long)local->token_bytes, (unsigned long long)whole->token_bytes);
    BP_TRY(bp_check_cp_apart(g->call, &g->local, &g->whole));
    if (g->backward)
        BP_TRY(check_dtype(g));
    if (!bp_mul_u64(g->split->info.padded_tokens, local->token_bytes, &g->bytes) ||
        (cp->comm != NULL && g->bytes > cp->max_gathered_bytes))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: %llu tokens of %llu bytes, made for at most %llu bytes", g->call,
                       (unsigned long long)g->split->info.padded_tokens, (unsigned long long)local->token_bytes,
                       (unsigned long long)cp->max_gathered_bytes);
    return BP_OK;
}

/* Whether all ranks are about to do the same. */
static bp_status cp_gather_agree(const bp_cp *cp, const gathering *g, bp_status status)
{
    static const char *const names[] = {"a batch with the fingerprint", "bytes of a token", "an order", "a dtype",
                                        NULL};
    const bp_told mine = {.status = status,
                          .values = {status == BP_OK ? g->split->info.fingerprint : 0, g->local.token_bytes,
                                     (uint64_t)g->order, (uint64_t)g->dtype}};
    return cp->trusting ? status : bp_ranks_compare(g->call, cp->comm, &mine, names);
}

/* ---- parts ---------------------------------------------------------------------------------------------------------- */

static bp_status rearrange(bp_cp *cp, const gathering *g, const bp_cp_tensor *from, bp_cp_order from_order,
                           const bp_cp_tensor *to, bp_cp_order to_order, bp_stream *stream)
{
    const bp_cp_rearrangement moved = {
        .from_order = from_order, .to_order = to_order, .from = *from, .to = *to, .shift = BP_CP_KEEP};
    return bp_cp_enqueue(cp, g->split, &moved, stream);
}

static bp_cp_tensor without_gaps(void *data, const bp_cp_tensor *like, uint64_t tokens)
{
    return (bp_cp_tensor){
        .data = data, .tokens = tokens, .token_bytes = like->token_bytes, .stride = (int64_t)like->token_bytes};
}

/* Communicators take memory without gaps, and elements at their natural alignment. */
static bool is_sendable(const gathering *g)
{
    const uint64_t alignment = g->backward ? bp_dtype_bits(g->dtype) / 8 : 1;
    return (g->local.tokens < 2 || g->local.stride == (int64_t)g->local.token_bytes) &&
           (uintptr_t)g->local.data % alignment == 0;
}

/* Workspaces, and everything before the collective. */
static bp_status cp_gather_prepare(bp_cp *cp, gathering *g, bp_stream *stream)
{
    void *gathered, *slice;
    BP_TRY(bp_workspace_take(&cp->workspace, BP_CP_WORK_GATHERED, stream, &gathered));
    BP_TRY(bp_workspace_take(&cp->workspace, BP_CP_WORK_SLICE, stream, &slice));
    const bool sendable = is_sendable(g);
    g->all = without_gaps(gathered, &g->local, g->split->info.padded_tokens);
    g->mine = without_gaps(sendable ? g->local.data : slice, &g->local, g->local.tokens);
    if (g->backward)
        return rearrange(cp, g, &g->whole, g->order, &g->all, BP_CP_GATHERED, stream);
    return sendable ? BP_OK : rearrange(cp, g, &g->local, BP_CP_LOCAL, &g->mine, BP_CP_LOCAL, stream);
}

static bp_status communicate(bp_cp *cp, const gathering *g, bp_stream *stream)
{
    const uint64_t bytes = g->mine.tokens * g->mine.token_bytes;
    if (!g->backward) {
        BP_TRY(bp_gather_bytes(cp->device, cp->comm, g->mine.data, bytes, g->all.data, stream));
        return rearrange(cp, g, &g->all, BP_CP_GATHERED, &g->whole, g->order, stream);
    }
    const uint64_t count = bytes / (bp_dtype_bits(g->dtype) / 8);
    BP_TRY(bp_comm_reduce_scatter(cp->comm, g->all.data, g->mine.data, count, g->dtype, BP_REDUCE_SUM, stream));
    return g->mine.data == g->local.data ? BP_OK
                                         : rearrange(cp, g, &g->mine, BP_CP_LOCAL, &g->local, BP_CP_LOCAL, stream);
}

/* ---- calls ---------------------------------------------------------------------------------------------------------- */

static bp_status run_with_others(bp_cp *cp, gathering *g, bp_status status, bp_stream *stream)
{
    const bool sends = status == BP_OK && g->bytes != 0;
    if (sends)
        status = cp_gather_prepare(cp, g, stream);
    status = cp_gather_agree(cp, g, status);
    if (sends && status == BP_OK)
        status = communicate(cp, g, stream);
    if (!sends)
        return status;
    bp_status given = bp_workspace_drop(&cp->workspace, 1u << BP_CP_WORK_GATHERED | 1u << BP_CP_WORK_SLICE, stream);
    return status == BP_OK ? given : status;
}

static bp_status run_alone(bp_cp *cp, const gathering *g, bp_stream *stream)
{
    if (g->backward)
        return rearrange(cp, g, &g->whole, g->order, &g->local, BP_CP_LOCAL, stream);
    return rearrange(cp, g, &g->local, BP_CP_LOCAL, &g->whole, g->order, stream);
}

static bp_status cp_gather_run(bp_cp *cp, gathering *g, const bp_cp_tensor *local, const bp_cp_tensor *whole,
                               bp_stream *stream)
{
    if (cp == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: needs a client", g->call);
    bp_stream *used = stream != NULL ? stream : cp->own;
    bp_status status = cp_gather_check(cp, local, whole, g);
    if (status == BP_OK)
        status = bp_stream_check(used, cp->device, g->call);
    if (status == BP_OK)
        status = bp_check_not_captured(g->call, used);
    if (cp->comm != NULL)
        status = run_with_others(cp, g, status, used);
    else if (status == BP_OK)
        status = run_alone(cp, g, used);
    return bp_call_end(cp->own, stream, status);
}

bp_status bp_cp_gather(bp_cp *cp, const bp_cp_split *split, const bp_cp_tensor *local, bp_cp_order order,
                       const bp_cp_tensor *whole, bp_stream *stream)
{
    gathering g = {.call = "bp_cp_gather", .split = split, .order = order};
    return cp_gather_run(cp, &g, local, whole, stream);
}

bp_status bp_cp_gather_backward(bp_cp *cp, const bp_cp_split *split, const bp_cp_tensor *whole, bp_cp_order order,
                                bp_dtype dtype, const bp_cp_tensor *local, bp_stream *stream)
{
    gathering g = {.call = "bp_cp_gather_backward", .split = split, .order = order, .backward = true, .dtype = dtype};
    return cp_gather_run(cp, &g, local, whole, stream);
}

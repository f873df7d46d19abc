/* SPDX-License-Identifier: Apache-2.0 */
/* Client that rearranges tensors of packed batches between token orders, and gathers them over context-parallel ranks. */
#include "cp/cp.h"

#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>
#include <bucketpool/core/structs.h>
#include <bucketpool/kernels.h>

#include <stdlib.h>

/* ---- the client -------------------------------------------------------------------------------------------------- */

/* Workspaces of gathers: the tokens of all ranks, and a contiguous copy of this rank's. */
enum { WORK_GATHERED = 0, WORK_SLICE = 1, WORKSPACES = 2 };

struct bp_cp {
    bp_device *device; /* kept alive by `own` */
    bp_engine *engine;
    bp_stream *own; /* for calls without a stream */
    bp_comm *comm;  /* NULL: one rank */
    bp_workspace workspace;
    uint64_t max_gathered_bytes;
    bool trusting;
};

static const bp_cp_config cp_config_defaults = {.size = sizeof cp_config_defaults};

bp_status bp_cp_config_init(bp_cp_config *config, size_t size)
{
    return bp_struct_init("bp_cp_config_init", config, size, &cp_config_defaults, sizeof cp_config_defaults);
}

static bp_status cp_make(bp_device *device, const bp_cp_config *config, bp_cp *cp)
{
    const uint64_t bytes = config->max_gathered_bytes;
    cp->device = device;
    cp->comm = bp_is_alone(config->comm) ? NULL : config->comm;
    cp->max_gathered_bytes = bytes;
    cp->trusting = config->trusting != 0;
    BP_TRY(bp_engine_create(device, config->threads, BP_KERNELS_PLAIN, 1, &cp->engine));
    BP_TRY(bp_stream_create(device, "cp", &cp->own));
    if (cp->comm == NULL || bytes == 0)
        return BP_OK;
    const bp_workspace_need needs[WORKSPACES] = {{"gathered", bytes, BP_STAGE_OWN},
                                                 {"slice", bytes / bp_comm_get_info(cp->comm)->ranks, BP_STAGE_OWN}};
    return bp_workspace_init(device, "cp", needs, WORKSPACES, &cp->workspace);
}

static void cp_finish(bp_cp *cp)
{
    BP_KEEP_ERROR;
    if (cp->own != NULL)
        (void)bp_device_synchronize(cp->device); /* wait for running kernels */
    bp_workspace_finish(&cp->workspace);
    bp_stream_destroy(&cp->own);
    if (cp->engine != NULL)
        cp->engine->ops->destroy(cp->engine);
    free(cp);
}

bp_status bp_cp_create(bp_device *device, const bp_cp_config *config, bp_cp **cp)
{
    static const char *const same[] = {"max_gathered_bytes", "trusting", NULL};
    const char *call = "bp_cp_create";
    bp_cp_config own = cp_config_defaults;
    BP_TRY(bp_struct_read(call, config, false, &own, sizeof own));
    config = &own;
    bp_status status = BP_OK;
    bp_cp *made = calloc(1, sizeof *made);
    if (device == NULL || cp == NULL)
        status = bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: needs a device and an output", call);
    else
        status = made != NULL ? cp_make(device, config, made) : bp_fail_memory(sizeof *made);
    const bp_rank_words mine = {.status = status, .values = {config->max_gathered_bytes, config->trusting != 0}};
    status = bp_ranks_compare(call, config->comm, &mine, same);
    if (status != BP_OK || cp == NULL) { /* without `cp` the status cannot be BP_OK */
        if (made != NULL)
            cp_finish(made);
        return status;
    }
    *cp = made;
    return BP_OK;
}

void bp_cp_destroy(bp_cp **cp)
{
    if (cp == NULL || *cp == NULL)
        return;
    bp_cp *gone = *cp;
    *cp = NULL;
    if (!bp_device_is_inherited(gone->device)) /* waiting would be for the parent's work */
        cp_finish(gone);
}

bp_pool *bp_cp_pool(const bp_cp *cp)
{
    return cp == NULL ? NULL : cp->workspace.pool;
}

/* ---- rearranging ------------------------------------------------------------------------------------------------- */

static const bp_cp_rearrangement cp_rearrangement_defaults = {
    .size = sizeof cp_rearrangement_defaults, .from_order = BP_CP_PACKED, .to_order = BP_CP_LOCAL, .shift = BP_CP_KEEP};

bp_status bp_cp_rearrangement_init(bp_cp_rearrangement *rearrangement, size_t size)
{
    return bp_struct_init("bp_cp_rearrangement_init", rearrangement, size, &cp_rearrangement_defaults,
                          sizeof cp_rearrangement_defaults);
}

/* Checks a tensor of `split` in `order` and fills in its stride. `written`: tokens must not overlap. */
static bp_status check_cp_tensor(const char *call, const char *name, const bp_cp_split *split, bp_cp_order order,
                                 const bp_cp_tensor *tensor, bool written, bp_cp_tensor *checked)
{
    const uint64_t tokens = bp_split_tokens(split, order);
    uint64_t reach;
    if (tensor->tokens != tokens)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: %s has %llu tokens, the batch has %llu in %s order", call, name,
                       (unsigned long long)tensor->tokens, (unsigned long long)tokens, bp_cp_order_name(order));
    *checked = *tensor;
    if (tokens == 0 || tensor->token_bytes == 0)
        return BP_OK;
    if (tensor->data == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: %s is missing (data is NULL)", call, name);
    if (tensor->token_bytes > INT64_MAX)
        return bp_fail(BP_ERR_OVERFLOW, "%s: %s has %llu bytes per token", call, name,
                       (unsigned long long)tensor->token_bytes);
    if (tensor->stride == 0)
        checked->stride = (int64_t)tensor->token_bytes;
    if (!bp_mul_u64(tokens - 1, bp_magnitude(checked->stride), &reach) ||
        !bp_add_u64(reach, tensor->token_bytes, &reach) || reach > INT64_MAX)
        return bp_fail(BP_ERR_OVERFLOW, "%s: %s spans more than 2^63 bytes: %llu tokens at a stride of %lld bytes",
                       call, name, (unsigned long long)tokens, (long long)checked->stride);
    if (written && tokens > 1 && bp_magnitude(checked->stride) < tensor->token_bytes)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "%s: %s is an output, but its tokens overlap: %llu bytes each at a stride of %lld", call, name,
                       (unsigned long long)tensor->token_bytes, (long long)checked->stride);
    return BP_OK;
}

static bp_token_rows cp_rearrange_rows_of(const bp_cp_tensor *tensor)
{
    return (bp_token_rows){.data = tensor->data,
                           .dtype = BP_DTYPE_UINT8,
                           .batch = 1,
                           .sequence = tensor->tokens,
                           .columns = tensor->token_bytes,
                           .stride = tensor->stride};
}

/* Error: the two checked tensors share memory, gaps between tokens included. */
static bp_status check_cp_apart(const char *call, const bp_cp_tensor *from, const bp_cp_tensor *to)
{
    const bp_token_rows from_rows = cp_rearrange_rows_of(from), to_rows = cp_rearrange_rows_of(to);
    if (from->tokens == 0 || to->tokens == 0 || from->token_bytes == 0 || to->token_bytes == 0)
        return BP_OK;
    if (bp_rows_overlap(&from_rows, &to_rows))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: from at %p and to at %p share memory", call, from->data, to->data);
    return BP_OK;
}

static bp_status cp_rearrange_check(const char *call, const bp_cp_split *split, const bp_cp_rearrangement *r,
                                    bp_cp_rearrangement *checked)
{
    *checked = *r;
    BP_TRY(bp_check_order(call, r->from_order));
    BP_TRY(bp_check_order(call, r->to_order));
    BP_TRY(bp_check_shift(call, split, r->from_order, r->shift));
    BP_TRY(check_cp_tensor(call, "from", split, r->from_order, &r->from, false, &checked->from));
    BP_TRY(check_cp_tensor(call, "to", split, r->to_order, &r->to, true, &checked->to));
    if (r->from.token_bytes != r->to.token_bytes)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: from has tokens of %llu bytes, to of %llu", call,
                       (unsigned long long)r->from.token_bytes, (unsigned long long)r->to.token_bytes);
    const uint32_t fill = r->fill_bytes;
    if (fill != 0 && (fill > sizeof r->fill || (fill & (fill - 1)) != 0 || r->to.token_bytes % fill != 0))
        return bp_fail(
            BP_ERR_INVALID_ARGUMENT,
            "%s: a fill of %u bytes for tokens of %llu bytes; use 1, 2, 4, 8 or 16 bytes that divide a token", call,
            fill, (unsigned long long)r->to.token_bytes);
    return check_cp_apart(call, &checked->from, &checked->to);
}

/* Enqueues the rearrangement of checked tensors. */
static bp_status cp_enqueue(bp_cp *cp, const bp_cp_split *split, const bp_cp_rearrangement *r, bp_stream *stream)
{
    bp_rearrange_work work = {.from = r->from.data,
                              .to = r->to.data,
                              .from_stride = r->from.stride,
                              .to_stride = r->to.stride,
                              .token_bytes = r->to.token_bytes,
                              .from_order = (int32_t)r->from_order,
                              .to_order = (int32_t)r->to_order,
                              .shift = (int32_t)r->shift,
                              .word_bytes = BP_FILL_BYTES};
    if (work.token_bytes == 0)
        return BP_OK;
    const uint64_t all = (uint64_t)(uintptr_t)work.from | (uint64_t)(uintptr_t)work.to | (uint64_t)work.from_stride |
                         (uint64_t)work.to_stride | work.token_bytes;
    while (all % work.word_bytes != 0) /* the largest word size that divides addresses, strides and tokens */
        work.word_bytes /= 2;
    for (uint32_t i = 0; i < BP_FILL_BYTES && r->fill_bytes != 0; i++)
        work.fill[i] = r->fill[i % r->fill_bytes];
    for (uint64_t g = 0; g < bp_split_group_count(split); g++) {
        bp_split_group(split, g, &work.group);
        if (bp_group_places(&work.group, r->to_order) != 0)
            BP_TRY(cp->engine->ops->rearrange(cp->engine, &work, stream));
    }
    return BP_OK;
}

bp_status bp_cp_rearrange(bp_cp *cp, const bp_cp_split *split, const bp_cp_rearrangement *rearrangement,
                          bp_stream *stream)
{
    const char *call = "bp_cp_rearrange";
    bp_cp_rearrangement own = cp_rearrangement_defaults, checked;
    if (cp == NULL || split == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: needs a client and a split", call);
    BP_TRY(bp_struct_read(call, rearrangement, false, &own, sizeof own));
    BP_TRY(cp_rearrange_check(call, split, &own, &checked));
    bp_stream *used = stream != NULL ? stream : cp->own;
    BP_TRY(bp_stream_check(used, cp->device, call));
    return bp_call_end(cp->own, stream, cp_enqueue(cp, split, &checked, used));
}

/* ---- all-gather of local tokens, and its backward --------------------------------------------------------------------- */

/* A checked gather or its backward; `local` and `whole` have strides. */
typedef struct gathering {
    const char *call;
    const bp_cp_split *split;
    bp_cp_tensor local, whole;
    bp_cp_order order; /* of `whole` */
    bool backward;
    bp_dtype dtype;         /* backward: element type */
    uint64_t bytes;         /* of the tokens of all ranks */
    bp_cp_tensor all, mine; /* contiguous tensors for the communicator */
} gathering;

static bp_status cp_gather_check_ranks(const bp_cp *cp, const gathering *g)
{
    const bp_cp_split_info *info = &g->split->info;
    if (cp->comm == NULL && info->ranks > 1)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "%s: the split is for %u CP ranks, but the client has no communicator; create it with theirs",
                       g->call, info->ranks);
    if (cp->comm != NULL &&
        (info->ranks != bp_comm_get_info(cp->comm)->ranks || info->rank != bp_comm_get_info(cp->comm)->rank))
        return bp_fail(
            BP_ERR_MISMATCH,
            "%s: the split is for rank %u of %u CP ranks, but the communicator has %u ranks and this is rank %u",
            g->call, info->rank, info->ranks, bp_comm_get_info(cp->comm)->ranks, bp_comm_get_info(cp->comm)->rank);
    return BP_OK;
}

static bp_status cp_gather_check(const bp_cp *cp, const bp_cp_tensor *local, const bp_cp_tensor *whole, gathering *g)
{
    if (g->split == NULL || local == NULL || whole == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: needs a split and two tensors", g->call);
    BP_TRY(bp_check_order(g->call, g->order));
    if (g->order != BP_CP_PACKED && g->order != BP_CP_PADDED)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: the whole tensor is in packed or padded order, not in %s order",
                       g->call, bp_cp_order_name(g->order));
    BP_TRY(cp_gather_check_ranks(cp, g));
    BP_TRY(check_cp_tensor(g->call, "local", g->split, BP_CP_LOCAL, local, g->backward, &g->local));
    BP_TRY(check_cp_tensor(g->call, "whole", g->split, g->order, whole, !g->backward, &g->whole));
    if (local->token_bytes != whole->token_bytes)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: local tokens have %llu bytes, whole tokens %llu", g->call,
                       (unsigned long long)local->token_bytes, (unsigned long long)whole->token_bytes);
    BP_TRY(check_cp_apart(g->call, &g->local, &g->whole));
    if (g->backward && !bp_is_row_dtype(g->dtype))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: gradients are %s; use fp32, fp16 or bf16", g->call,
                       bp_dtype_name(g->dtype));
    if (g->backward && local->token_bytes % (bp_dtype_bits(g->dtype) / 8) != 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: tokens of %llu bytes are not a multiple of the size of %s",
                       g->call, (unsigned long long)local->token_bytes, bp_dtype_name(g->dtype));
    if (!bp_mul_u64(g->split->info.padded_tokens, local->token_bytes, &g->bytes) ||
        (cp->comm != NULL && g->bytes > cp->max_gathered_bytes))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: %llu tokens of %llu bytes exceed the client's limit of %llu bytes",
                       g->call, (unsigned long long)g->split->info.padded_tokens,
                       (unsigned long long)local->token_bytes, (unsigned long long)cp->max_gathered_bytes);
    return BP_OK;
}

static bp_status rearrange(bp_cp *cp, const gathering *g, const bp_cp_tensor *from, bp_cp_order from_order,
                           const bp_cp_tensor *to, bp_cp_order to_order, bp_stream *stream)
{
    const bp_cp_rearrangement moved = {
        .from_order = from_order, .to_order = to_order, .from = *from, .to = *to, .shift = BP_CP_KEEP};
    return cp_enqueue(cp, g->split, &moved, stream);
}

static bp_cp_tensor without_gaps(void *data, const bp_cp_tensor *like, uint64_t tokens)
{
    return (bp_cp_tensor){
        .data = data, .tokens = tokens, .token_bytes = like->token_bytes, .stride = (int64_t)like->token_bytes};
}

/* Acquires the workspaces and enqueues everything before the collective. */
static bp_status cp_gather_prepare(bp_cp *cp, gathering *g, bp_stream *stream)
{
    void *gathered, *slice;
    BP_TRY(bp_workspace_take(&cp->workspace, WORK_GATHERED, stream, &gathered));
    BP_TRY(bp_workspace_take(&cp->workspace, WORK_SLICE, stream, &slice));
    /* communicators take contiguous memory with naturally aligned elements */
    const uint64_t alignment = g->backward ? bp_dtype_bits(g->dtype) / 8 : 1;
    const bool sendable = (g->local.tokens < 2 || g->local.stride == (int64_t)g->local.token_bytes) &&
                          (uintptr_t)g->local.data % alignment == 0;
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

static bp_status run_with_others(bp_cp *cp, gathering *g, bp_status status, bp_stream *stream)
{
    static const char *const names[] = {"a batch with the fingerprint", "bytes of a token", "an order", "a dtype",
                                        NULL};
    const bool sends = status == BP_OK && g->bytes != 0;
    if (sends)
        status = cp_gather_prepare(cp, g, stream);
    const bp_rank_words mine = {.status = status,
                                .values = {status == BP_OK ? g->split->info.fingerprint : 0, g->local.token_bytes,
                                           (uint64_t)g->order, (uint64_t)g->dtype}};
    if (!cp->trusting) /* compares the call between ranks */
        status = bp_ranks_compare(g->call, cp->comm, &mine, names);
    if (!sends)
        return status;
    if (status == BP_OK)
        status = communicate(cp, g, stream);
    return bp_workspace_drop(&cp->workspace, 1u << WORK_GATHERED | 1u << WORK_SLICE, stream, status);
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
    else if (status == BP_OK && g->backward)
        status = rearrange(cp, g, &g->whole, g->order, &g->local, BP_CP_LOCAL, used);
    else if (status == BP_OK)
        status = rearrange(cp, g, &g->local, BP_CP_LOCAL, &g->whole, g->order, used);
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

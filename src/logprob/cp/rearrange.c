/* Tensors brought from one order to another, on one rank. */
#include <string.h>

#include "core/arith.h"
#include "core/fail.h"
#include "core/structs.h"
#include "devices/clients.h"
#include "logprob/arguments.h"
#include "logprob/base.h"
#include "logprob/cp/cp.h"

static const bp_cp_rearrangement cp_rearrangement_defaults = {
    .size = sizeof cp_rearrangement_defaults, .from_order = BP_CP_PACKED, .to_order = BP_CP_LOCAL, .shift = BP_CP_KEEP};

bp_status bp_cp_rearrangement_init(bp_cp_rearrangement *rearrangement, size_t size)
{
    return bp_struct_init("bp_cp_rearrangement_init", rearrangement, size, &cp_rearrangement_defaults,
                          sizeof cp_rearrangement_defaults);
}

/* ---- tensors -------------------------------------------------------------------------------------------------------- */

bp_status bp_check_cp_tensor(const char *call, const char *name, const bp_cp_split *split, bp_cp_order order,
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
        return bp_fail(BP_ERR_OVERFLOW, "%s: %s has %llu bytes a token", call, name,
                       (unsigned long long)tensor->token_bytes);
    if (tensor->stride == 0)
        checked->stride = (int64_t)tensor->token_bytes;
    if (!bp_mul_u64(tokens - 1, bp_magnitude(checked->stride), &reach) ||
        !bp_add_u64(reach, tensor->token_bytes, &reach) || reach > INT64_MAX)
        return bp_fail(BP_ERR_OVERFLOW, "%s: %s reaches over more than 2^63 bytes: %llu tokens, %lld bytes apart", call,
                       name, (unsigned long long)tokens, (long long)checked->stride);
    if (written && tokens > 1 && bp_magnitude(checked->stride) < tensor->token_bytes)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "%s: %s is written, but its tokens overlap: %llu bytes each, %lld bytes apart", call, name,
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

bp_status bp_check_cp_apart(const char *call, const bp_cp_tensor *from, const bp_cp_tensor *to)
{
    const bp_token_rows from_rows = cp_rearrange_rows_of(from), to_rows = cp_rearrange_rows_of(to);
    if (from->tokens == 0 || to->tokens == 0 || from->token_bytes == 0 || to->token_bytes == 0)
        return BP_OK;
    if (bp_rows_meet(&from_rows, &to_rows))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: from at %p and to at %p share memory", call, from->data, to->data);
    return BP_OK;
}

static bp_status check_fill(const char *call, const bp_cp_rearrangement *r)
{
    const uint32_t bytes = r->fill_bytes;
    if (bytes != 0 && (bytes > sizeof r->fill || (bytes & (bytes - 1)) != 0 || r->to.token_bytes % bytes != 0))
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "%s: a fill of %u bytes for tokens of %llu: 1, 2, 4, 8 or 16 that divide them are possible",
                       call, bytes, (unsigned long long)r->to.token_bytes);
    return BP_OK;
}

static bp_status cp_rearrange_check(const char *call, const bp_cp_split *split, const bp_cp_rearrangement *r,
                                    bp_cp_rearrangement *checked)
{
    *checked = *r;
    BP_TRY(bp_check_order(call, r->from_order));
    BP_TRY(bp_check_order(call, r->to_order));
    BP_TRY(bp_check_shift(call, split, r->from_order, r->shift));
    BP_TRY(bp_check_cp_tensor(call, "from", split, r->from_order, &r->from, false, &checked->from));
    BP_TRY(bp_check_cp_tensor(call, "to", split, r->to_order, &r->to, true, &checked->to));
    if (r->from.token_bytes != r->to.token_bytes)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: from tokens of %llu bytes to tokens of %llu", call,
                       (unsigned long long)r->from.token_bytes, (unsigned long long)r->to.token_bytes);
    BP_TRY(check_fill(call, r));
    return bp_check_cp_apart(call, &checked->from, &checked->to);
}

/* ---- kernels -------------------------------------------------------------------------------------------------------- */

/* The most bytes that everything is a multiple of. */
static uint32_t word_bytes(const bp_rearrange_work *work)
{
    const uint64_t all = (uint64_t)(uintptr_t)work->from | (uint64_t)(uintptr_t)work->to | (uint64_t)work->from_stride |
                         (uint64_t)work->to_stride | work->token_bytes;
    uint32_t bytes = BP_FILL_BYTES;
    while (all % bytes != 0)
        bytes /= 2;
    return bytes;
}

static bp_rearrange_work work_of(const bp_cp_rearrangement *r)
{
    bp_rearrange_work work = {.from = r->from.data,
                              .to = r->to.data,
                              .from_stride = r->from.stride,
                              .to_stride = r->to.stride,
                              .token_bytes = r->to.token_bytes,
                              .from_order = (int32_t)r->from_order,
                              .to_order = (int32_t)r->to_order,
                              .shift = (int32_t)r->shift};
    for (uint32_t i = 0; i < BP_FILL_BYTES && r->fill_bytes != 0; i++)
        work.fill[i] = r->fill[i % r->fill_bytes];
    work.word_bytes = word_bytes(&work);
    return work;
}

bp_status bp_cp_enqueue(bp_cp *cp, const bp_cp_split *split, const bp_cp_rearrangement *checked, bp_stream *stream)
{
    bp_rearrange_work work = work_of(checked);
    if (work.token_bytes == 0)
        return BP_OK;
    for (uint64_t g = 0; g < bp_split_group_count(split); g++) {
        bp_split_group(split, g, &work.group);
        if (bp_group_places(&work.group, checked->to_order) != 0)
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
    return bp_call_end(cp->own, stream, bp_cp_enqueue(cp, split, &checked, used));
}

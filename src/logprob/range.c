/* The least and the largest logit of each token. */
#include "core/fail.h"
#include "core/structs.h"
#include "devices/clients.h"
#include "logprob/arguments.h"
#include "logprob/logprob.h"

bp_status bp_logprob_range(bp_logprob *client, const bp_logprob_batch *batch, const bp_token_values *least,
                           const bp_token_values *largest, bp_stream *stream)
{
    static const bp_token_values none = {0};
    static int64_t unread;
    const char *call = "bp_logprob_range";
    bp_batch_work checked;
    bp_logprob_batch given;
    if (client == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: needs a client", call);
    BP_TRY(bp_logprob_batch_init(&given, sizeof given));
    BP_TRY(bp_struct_read(call, batch, false, &given, sizeof given));
    if (given.target.data == NULL)
        given.target = (bp_token_values){.data = &unread};
    BP_TRY(bp_check_batch(call, client, &given, &checked));
    if (checked.token_count == 0)
        return BP_OK;
    least = least != NULL ? least : &none;
    largest = largest != NULL ? largest : &none;
    BP_TRY(bp_check_values(call, "least", least, checked.tokens.batch, checked.tokens.sequence, true));
    BP_TRY(bp_check_values(call, "largest", largest, checked.tokens.batch, checked.tokens.sequence, true));
    const bp_range_work work = {.tokens = checked.tokens,
                                .logits = checked.work,
                                .least = least->data,
                                .least_batch_stride = least->batch_stride,
                                .least_stride = least->stride,
                                .largest = largest->data,
                                .largest_batch_stride = largest->batch_stride,
                                .largest_stride = largest->stride};
    bp_base *base = &client->base;
    bp_stream *used = bp_base_stream(base, stream);
    BP_TRY(bp_stream_check(used, base->device, call));
    return bp_base_end(base, stream, base->engine->ops->range(base->engine, &work, used));
}

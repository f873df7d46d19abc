/* SPDX-License-Identifier: Apache-2.0 */
/* Notes on the buckets of a model that set its bytes: groups of one rank, and padding. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "plan/analysis.h"
#include "shared/cli.h"

__attribute__((format(printf, 2, 3))) static void note(analysis *a, const char *format, ...)
{
    char text[sizeof a->notes];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    cli_append(a->notes, sizeof a->notes, "%s%s", a->notes[0] != '\0' ? "; " : "", text);
}

/* Derived buckets of one rank get no requests for communication: bp_buckets_create. */
static void note_single_ranks(const plan_options *o, analysis *a)
{
    const bp_buckets_info *info = bp_buckets_get_info(a->buckets);
    size_t single = 0, several = 0;
    for (size_t i = 0; i < info->bucket_count; i++) {
        single += info->buckets[i].parameter_count > 0 && info->buckets[i].shards == 1;
        several += info->buckets[i].shards > 1;
    }
    a->single_ranks = single > 0 && info->request_count == 0;
    if (single > 0 && several == 0)
        note(a, "one rank (--dp %u) communicates nothing: no all-gathers and reduce-scatters are planned", o->dp);
    else if (single > 0)
        note(a, "expert groups of one rank (--dp %u, --ep %u) communicate nothing and are not planned", o->dp, o->ep);
}

/* Stacked experts that FSDP2 pads along dimension 0, and whether it could shard all of them along dimension 1. */
static bool pads_experts(const bp_model_info *model, uint32_t shards, bool *shard1)
{
    bool pads = false;
    *shard1 = true;
    for (size_t i = 0; i < model->parameter_count; i++) {
        const bp_parameter *p = model->parameters[i];
        if (p->expert_dim != 0 || p->dims < 2)
            continue;
        pads = pads || p->shape[0] % shards != 0;
        *shard1 = *shard1 && p->shape[1] % shards == 0;
    }
    return pads;
}

static void note_padding(const plan_options *o, const bp_model *model, analysis *a)
{
    const bp_buckets_info *info = bp_buckets_get_info(a->buckets);
    double padded = 0, used = 0; /* of gathered buckets; checked totals may exceed 64 bits together */
    for (size_t i = 0; i < info->bucket_count; i++) {
        const bp_bucket *b = &info->buckets[i];
        uint32_t bits = b->shards > 1 ? bp_dtype_bits(b->dtype) : 0;
        padded += (double)b->padded_numel * bits / 8;
        used += (double)b->numel * bits / 8;
    }
    double part = padded > 0 ? (padded - used) / padded : 0;
    if (part <= 0.1)
        return;
    bool shard1;
    uint32_t ranks = o->dp / o->ep;
    note(a, "padding is %.0f %% of the gathered bytes", 100 * part);
    if (a->padding != BP_PADDING_FSDP2 || !pads_experts(bp_model_get_info(model), ranks, &shard1))
        return;
    bool separate = a->layout == BP_LAYOUT_STACKED && a->separate_experts;
    cli_append(a->notes, sizeof a->notes, ": FSDP2 pads stacked experts to a multiple of %u ranks", ranks);
    if (shard1)
        cli_append(a->notes, sizeof a->notes, "; Shard(1) (--padding fsdp2-shard1) has none");
    if (separate)
        cli_append(a->notes, sizeof a->notes, "%s separate experts (--layout hf) have less", shard1 ? "," : ";");
}

void analysis_note_buckets(const plan_options *options, const bp_model *model, analysis *a)
{
    note_single_ranks(options, a);
    note_padding(options, model, a);
}

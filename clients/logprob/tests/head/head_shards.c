/* SPDX-License-Identifier: Apache-2.0 */
#include "head_shards.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../support/ranks.h"

#define OK(call) is_status(call, BP_OK, NULL, #call)

static bool run_part(bp_lm_head *head, head_batch *h, shard part, bp_stream *stream)
{
    bp_lm_head_batch call = head_call_of(h, part);
    bp_logprob_outputs outputs = outputs_of(&h->tokens);
    bp_lm_head_gradients gradients = head_gradients_of(h, part);
    poison_head(h);
    return OK(call_head(head, h->o.way, &call, &outputs, &gradients, stream)) &&
           (stream == NULL || OK(bp_stream_synchronize(stream)));
}

static bool is_true(const head_batch *h, shard part)
{
    return head_outputs_are_true(h) && hidden_grad_is_true(h, h->o.partial ? part : whole_shard(&h->tokens)) &&
           weight_grad_is_true(h, part);
}

/* The rows of weight_grad of other ranks are untouched. */
static bool others_are_left_alone(const head_batch *h, shard part)
{
    for (uint64_t v = 0; v < h->o.columns && !h->o.accumulate; v++) {
        const uint8_t *row = row_at(&h->weight_grad, 0, v);
        for (uint64_t i = 0; i < h->o.hidden * 4 && (v < part.first || v >= part.end); i++) {
            if (row[i] != POISON) {
                fprintf(stderr, "row %llu of weight_grad belongs to another rank and was written\n",
                        (unsigned long long)v);
                return false;
            }
        }
    }
    return true;
}

static bool same_everywhere(bp_comm *comm, const view *v, const char *name)
{
    uint8_t *all = malloc(v->bytes * bp_comm_get_info(comm)->ranks);
    bool same = all != NULL && OK(bp_comm_exchange(comm, v->memory, v->bytes, all));
    for (uint32_t r = 0; r < bp_comm_get_info(comm)->ranks && same; r++)
        same = memcmp(all + r * v->bytes, v->memory, v->bytes) == 0;
    if (!same)
        fprintf(stderr, "ranks have different %s\n", name);
    free(all);
    return same;
}

static uint8_t *kept(const view *v)
{
    uint8_t *copy = malloc(v->bytes);
    if (copy == NULL)
        abort();
    return memcpy(copy, v->memory, v->bytes);
}

static bool repeats(bp_lm_head *head, head_batch *h, shard part, bp_stream *stream)
{
    const view *const views[] = {&h->tokens.logprob, &h->tokens.entropy, &h->hidden_grad, &h->weight_grad};
    uint8_t *before[4];
    for (size_t i = 0; i < 4; i++)
        before[i] = kept(views[i]);
    bool good = run_part(head, h, part, stream);
    for (size_t i = 0; i < 4; i++) {
        bool same = memcmp(before[i], views[i]->memory, views[i]->bytes) == 0;
        if (good && !same)
            fprintf(stderr, "output %zu has different bits in the second run\n", i);
        good = good && same;
        free(before[i]);
    }
    return good;
}

bool sharded_head_is_true(bp_device *device, bp_stream *stream, bp_comm *comm, head_batch *h, split where)
{
    uint32_t rank = bp_comm_get_info(comm)->rank;
    shard part = {where.edges[rank], where.edges[rank + 1]};
    bp_lm_head_config config = head_config_of(h, part);
    bp_lm_head *head = NULL;
    config.comm = comm;
    config.threads = 1;
    bool good = OK(bp_lm_head_create(device, &config, &head));
    const bp_lm_head_info *info = bp_lm_head_get_info(head);
    good = good && info->vocab == h->o.columns && info->planned_bytes == info->workspace_bytes;
    good = good && run_part(head, h, part, stream) && is_true(h, part) && others_are_left_alone(h, part);
    good = good && same_everywhere(comm, &h->tokens.logprob, "log-probabilities") &&
           same_everywhere(comm, &h->tokens.entropy, "entropies") &&
           (h->o.partial || same_everywhere(comm, &h->hidden_grad, "hidden_grad"));
    good = good && repeats(head, h, part, stream);
    bp_lm_head_destroy(&head);
    return good;
}

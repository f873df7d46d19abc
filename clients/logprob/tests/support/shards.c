/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of sharded vocabularies on any kind of ranks. */
#include "shards.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ranks.h"

#define OK(call) is_status(call, BP_OK, NULL, #call)

split even_split(uint64_t columns, uint32_t ranks)
{
    split where = {0};
    for (uint32_t r = 0; r <= ranks; r++)
        where.edges[r] = columns * r / ranks;
    return where;
}

split uneven_split(uint64_t columns, uint32_t ranks)
{
    split where = even_split(columns, ranks);
    where.edges[1] = 1;
    if (ranks > 2)
        where.edges[2] = 6;
    return where;
}

/* ---- results ------------------------------------------------------------------------------------------------------- */

static bool make_client(bp_device *device, bp_comm *comm, const batch *b, shard part, uint32_t kernels,
                        bp_logprob **client)
{
    bp_logprob_config config;
    bp_logprob_config_init(&config, sizeof config);
    config.max_tokens = token_count(b);
    config.max_targets = b->o.targets;
    config.vocab = part.end - part.first;
    config.vocab_start = (uint64_t)b->o.vocab_start + part.first;
    config.comm = comm;
    config.kernels = kernels;
    config.threads = 1;
    config.targets = b->o.strict ? BP_TARGETS_ERROR : BP_TARGETS_MASK;
    if (!OK(bp_logprob_create(device, &config, client)))
        return false;
    const bp_logprob_info *info = bp_logprob_get_info(*client);
    return info->vocab == b->o.columns && info->workspace_bytes == info->planned_bytes;
}

static bool run_shard(bp_logprob *client, batch *b, shard part, bp_stream *stream)
{
    bp_logprob_batch call = call_of(b, part);
    bp_logprob_outputs outputs = outputs_of(b);
    bp_logprob_gradients gradients = gradients_of(b, part);
    poison_outputs(b, POISON);
    poison_gradient(b, POISON);
    if (b->o.fused)
        return OK(bp_logprob_forward_backward(client, &call, &outputs, &gradients, stream)) &&
               (stream == NULL || OK(bp_stream_synchronize(stream)));
    return OK(bp_logprob_forward(client, &call, &outputs, stream)) &&
           OK(bp_logprob_backward(client, &call, &gradients, stream)) &&
           (stream == NULL || OK(bp_stream_synchronize(stream)));
}

/* The columns of other ranks are untouched. */
static bool others_are_poison(const batch *b, shard part)
{
    for (uint64_t i = 0; i < b->o.batch && !b->o.in_place; i++) {
        for (uint64_t s = 0; s < b->o.sequence; s++) {
            const uint8_t *row = row_at(&b->grad, i, s);
            for (uint64_t v = 0; v < b->o.columns * b->grad.element; v++) {
                bool mine = v >= part.first * b->grad.element && v < part.end * b->grad.element;
                if (!mine && row[v] != POISON) {
                    fprintf(stderr, "byte %llu of another rank's gradient was written\n", (unsigned long long)v);
                    return false;
                }
            }
        }
    }
    return true;
}

static bool same_on_all_ranks(bp_comm *comm, const view *v, const char *name)
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

static bool like_one_rank(bp_device *device, const batch *b, const view *logprob, const view *entropy)
{
    bp_logprob *alone = NULL;
    if (!make_client(device, NULL, b, whole_shard(b), 7, &alone))
        return false;
    bp_logprob_batch call = call_of(b, whole_shard(b));
    bp_logprob_outputs outputs = outputs_of(b);
    bool good = OK(bp_logprob_forward(alone, &call, &outputs, NULL));
    bp_logprob_destroy(&alone);
    for (uint64_t i = 0; i < b->o.batch && good; i++) {
        for (uint64_t s = 0; s < b->o.sequence && good; s++) {
            double one = upstream_at(&b->logprob, i, s), many = upstream_at(logprob, i, s);
            good = b->o.without_logprob || is_within(many, one, 1e-5 + 1e-4 * fabs(one));
            one = upstream_at(&b->entropy, i, s);
            many = upstream_at(entropy, i, s);
            good = good && (!b->o.with_entropy || is_within(many, one, 1e-5 + 1e-4 * fabs(one)));
        }
    }
    if (!good)
        fprintf(stderr, "several ranks differ from one\n");
    return good;
}

static view copy_of(const view *v)
{
    view copy = *v;
    copy.memory = malloc(v->bytes);
    if (copy.memory == NULL)
        abort();
    memcpy(copy.memory, v->memory, v->bytes);
    copy.data = copy.memory + (v->data - v->memory);
    return copy;
}

/* A second run has the same bits; and rank 0 computes the gradient without the other ranks. */
static bool repeats(bp_logprob *client, bp_stream *stream, bool alone, batch *b, shard part)
{
    view logprob = copy_of(&b->logprob), entropy = copy_of(&b->entropy), grad = copy_of(&b->grad);
    if (b->o.in_place)
        restore_logits(b);
    bool good = run_shard(client, b, part, stream);
    if (good && alone && !b->o.in_place) {
        bp_logprob_batch call = call_of(b, part);
        bp_logprob_gradients gradients = gradients_of(b, part);
        good = OK(bp_logprob_backward(client, &call, &gradients, NULL));
    }
    good = good && same_rows(&logprob, &b->logprob, "log-probabilities") &&
           same_rows(&entropy, &b->entropy, "entropies") && same_rows(&grad, &b->grad, "gradients");
    free_view(&logprob);
    free_view(&entropy);
    free_view(&grad);
    return good;
}

bool sharded_is_true(bp_device *device, bp_stream *stream, bp_comm *comm, batch *b, split where, uint32_t kernels)
{
    uint32_t rank = bp_comm_get_info(comm)->rank;
    shard part = {where.edges[rank], where.edges[rank + 1]};
    bp_logprob *client = NULL;
    bool good = make_client(device, comm, b, part, kernels, &client) && run_shard(client, b, part, stream);
    good = good && outputs_are_true(b) && gradient_is_true(b, part) && others_are_poison(b, part);
    good = good && same_on_all_ranks(comm, &b->logprob, "log-probabilities") &&
           same_on_all_ranks(comm, &b->entropy, "entropies") && repeats(client, stream, rank == 0, b, part);
    if (good && !b->o.in_place) {
        view logprob = copy_of(&b->logprob), entropy = copy_of(&b->entropy);
        good = like_one_rank(device, b, &logprob, &entropy);
        free_view(&logprob);
        free_view(&entropy);
    }
    bp_logprob_destroy(&client);
    return good;
}

/* ---- errors -------------------------------------------------------------------------------------------------------- */

#define INVALID BP_ERR_INVALID_ARGUMENT
const bad_shards BAD_SHARDS[] = {
    {"a gap", {0, 60, 160, 260}, {50, 100, 100, 100}, INVALID, {"rank 0", "rank 1", "gap", NULL}},
    {"an overlap", {0, 40, 140, 240}, {50, 100, 100, 100}, INVALID, {"rank 0", "rank 1", "overlap", NULL}},
    {"swapped", {100, 0, 200, 300}, {100, 100, 100, 100}, INVALID, {"rank 0", "rank 1", NULL}},
    {"the same shard twice", {0, 0, 100, 200}, {100, 100, 100, 100}, INVALID, {"rank 0", "rank 1", "overlap", NULL}},
    {"an empty shard", {0, 100, 100, 200}, {100, 0, 100, 100}, INVALID, {"rank 1", NULL}},
    {"an empty first shard", {0, 0, 100, 200}, {0, 100, 100, 100}, INVALID, {"rank 0", NULL}},
};
const size_t BAD_SHARDS_COUNT = sizeof BAD_SHARDS / sizeof *BAD_SHARDS;

static bp_logprob_config good_config(bp_comm *comm)
{
    bp_logprob_config config;
    bp_logprob_config_init(&config, sizeof config);
    config.max_tokens = 10;
    config.vocab = 50;
    config.vocab_start = 50 * (uint64_t)bp_comm_get_info(comm)->rank;
    config.comm = comm;
    return config;
}

static bool is_refused(bp_device *device, const bp_logprob_config *config, bp_status status, const char *const *words,
                       const char *name)
{
    bp_logprob *client = NULL;
    bool good = is_status(bp_logprob_create(device, config, &client), status, words, name) && client == NULL;
    bp_logprob_destroy(&client);
    return good;
}

bool bad_shards_are_refused(bp_device *device, bp_comm *comm)
{
    uint32_t rank = bp_comm_get_info(comm)->rank, last = bp_comm_get_info(comm)->ranks - 1;
    bool good = true;
    for (size_t i = 0; i < BAD_SHARDS_COUNT; i++) {
        const bad_shards *bad = &BAD_SHARDS[i];
        bp_logprob_config config = good_config(comm);
        config.vocab = bad->vocab[rank];
        config.vocab_start = bad->first[rank];
        const char *const own[] = {"0 columns", NULL}; /* in the rank's own error */
        good = is_refused(device, &config, bad->status, config.vocab == 0 ? own : bad->words, bad->name) && good;
    }
    char named[32];
    snprintf(named, sizeof named, "rank %u", last);
    const char *const words[] = {named, NULL};
    bp_logprob_config config = good_config(comm);
    config.max_tokens = rank == last ? 11 : 10;
    good = is_refused(device, &config, BP_ERR_MISMATCH, words, "different max_tokens") && good;
    config = good_config(comm);
    config.targets = rank == last ? BP_TARGETS_MASK : BP_TARGETS_ERROR;
    good = is_refused(device, &config, BP_ERR_MISMATCH, words, "other targets") && good;
    config = good_config(comm);
    config.max_tokens = rank == last ? 0 : 10;
    good = is_refused(device, &config, INVALID, NULL, "max_tokens 0 on one") && good;
    config = good_config(comm);
    bp_logprob *client = NULL;
    good = OK(bp_logprob_create(device, &config, &client)) && good;
    bp_logprob_destroy(&client);
    return good;
}

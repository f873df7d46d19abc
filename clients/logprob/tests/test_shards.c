/* SPDX-License-Identifier: Apache-2.0 */
/* A vocabulary sharded over ranks that are threads, with blocking and enqueued collectives. */
#include "support/harness.h"

#include "support/ranks.h"
#include "support/shards.h"

#include "head/heads.h"
#include "support/hosts.h"
#include "support/scenarios.h"

#include <math.h>

typedef struct setting {
    batch b[SHARD_RANKS];
    split where;
    uint32_t kernels;
    bool own_stream; /* the call has no stream */
} setting;

static bool run_scene(host_rank *r)
{
    setting *s = r->user;
    return sharded_is_true(r->device, s->own_stream ? NULL : r->stream, r->comm, &s->b[r->number], s->where,
                           s->kernels);
}

static void check_split(const batch_options *options, uint32_t ranks, split where, uint32_t kernels, unsigned variant)
{
    setting s = {.where = where, .kernels = kernels, .own_stream = (variant & 1) != 0};
    for (uint32_t r = 0; r < ranks; r++) {
        seed(51);
        s.b[r] = new_batch(options);
    }
    run_host_ranks(ranks, (variant & 2) != 0, variant == 2 ? 300 : 0, run_scene, &s);
    for (uint32_t r = 0; r < ranks; r++)
        free_batch(&s.b[r]);
}

TEST(shards_match_a_single_rank)
{
    FOR_KERNELS(kernels)
    {
        for (uint32_t ranks = 1; ranks <= 4; ranks++) {
            for (unsigned variant = 0; variant < 4; variant++) {
                batch_options options = {.batch = 2,
                                         .sequence = 7,
                                         .columns = 4099,
                                         .dtype = (bp_dtype)(BP_DTYPE_FP32 + variant % 3),
                                         .with_entropy = variant != 1,
                                         .without_logprob = variant == 2,
                                         .masked = variant == 3,
                                         .temperature = 0.9,
                                         .vocab_start = variant == 2 ? 500 : 0,
                                         .outside_in_16 = 2};
                if (variant == 2)
                    options.fused = options.with_mean = true;
                if (variant == 3) {
                    options.targets = 5;
                    options.with_logsumexp = options.with_mean = options.heated = true;
                    options.soft_cap = 7;
                    options.rounding = BP_DTYPE_BF16;
                }
                check_split(&options, ranks, even_split(4099, ranks), kernels->bit, variant);
                if (ranks > 1)
                    check_split(&options, ranks, uneven_split(4099, ranks), kernels->bit, variant);
            }
        }
    }
}

/* The first and last id of each shard, and those just outside the vocabulary. */
TEST(targets_may_be_at_edges)
{
    batch_options options = {.batch = 1,
                             .sequence = 10,
                             .columns = 40,
                             .with_entropy = true,
                             .target_dtype = BP_DTYPE_INT32,
                             .vocab_start = 500};
    for (uint32_t ranks = 2; ranks <= 4; ranks++) {
        setting s = {.where = uneven_split(40, ranks), .kernels = 7, .own_stream = ranks == 3};
        for (uint32_t r = 0; r < ranks; r++) {
            seed(7);
            s.b[r] = new_batch(&options);
            for (uint64_t edge = 0; edge <= ranks; edge++)
                for (uint64_t before = 0; before < 2; before++)
                    put_whole(&s.b[r].target, 0, 2 * edge + before, (int64_t)(500 + s.where.edges[edge] - before));
        }
        run_host_ranks(ranks, ranks == 2, 0, run_scene, &s);
        for (uint32_t r = 0; r < ranks; r++)
            free_batch(&s.b[r]);
    }
}

TEST(in_place_works_in_shards)
{
    batch_options options = {.batch = 1, .sequence = 5, .columns = 900, .in_place = true, .with_entropy = true};
    for (uint32_t ranks = 2; ranks <= 4; ranks += 2)
        check_split(&options, ranks, uneven_split(900, ranks), 7, 1);
}

/* A shard of only -inf, or far below the others. */
TEST(shards_may_be_only_minus_infinity)
{
    batch_options options = {.batch = 1, .sequence = 3, .columns = 400, .with_entropy = true};
    setting s = {.where = even_split(400, 4), .kernels = 7, .own_stream = true};
    for (uint32_t r = 0; r < 4; r++) {
        seed(3);
        s.b[r] = new_batch(&options);
        for (uint64_t v = 0; v < 400; v++) {
            if (v < 100)
                put_logit(&s.b[r], 0, 0, v, -1.0 / 0.0);
            if (v >= 100)
                put_logit(&s.b[r], 0, 1, v, -500);
            put_logit(&s.b[r], 0, 2, v, -1.0 / 0.0); /* no distribution */
        }
        put_whole(&s.b[r].target, 0, 0, 250);
        put_whole(&s.b[r].target, 0, 1, 350);
    }
    run_host_ranks(4, false, 0, run_scene, &s);
    for (uint32_t r = 0; r < 4; r++)
        free_batch(&s.b[r]);
}

static bool run_errors(host_rank *r)
{
    return bad_shards_are_refused(r->device, r->comm);
}

TEST(shards_that_do_not_tile_are_refused_on_all_ranks)
{
    for (uint32_t ranks = 2; ranks <= 4; ranks++)
        run_host_ranks(ranks, false, 0, run_errors, NULL);
}

/* Creation fails on all ranks if one rank's device has no kernels or no memory. */
static bool run_poor_rank(host_rank *r)
{
    bp_device *poor = NULL;
    bp_host_config small;
    bp_logprob_config config;
    bp_logprob *client = NULL;
    bool is_poor = r->number == 1, lacks_kernels = r->user != NULL;
    bp_host_config_init(&small, sizeof small);
    small.memory_bytes = 65536;
    if (is_poor && (lacks_kernels ? bp_device_create_null(&poor) : bp_device_create_host(&small, &poor)) != BP_OK)
        return false;
    bp_logprob_config_init(&config, sizeof config);
    config.max_tokens = 1000000;
    config.vocab = 10;
    config.vocab_start = 10 * (uint64_t)r->number;
    config.comm = r->comm;
    bp_status status = bp_logprob_create(is_poor ? poor : r->device, &config, &client);
    bp_status expected = lacks_kernels ? BP_ERR_UNSUPPORTED : BP_ERR_NO_DEVICE_MEMORY;
    const char *const words[] = {is_poor ? "" : "rank 1", NULL};
    bool good = is_status(status, status == BP_OK ? expected : status, words, "a rank that cannot") && client == NULL;
    good = good && (!is_poor || is_status(status, expected, words, "the rank that cannot"));
    bp_logprob_destroy(&client);
    bp_device_destroy(&poor);
    return good;
}

TEST(creation_failure_on_one_rank_fails_on_all)
{
    int anything = 0;
    run_host_ranks(3, false, 0, run_poor_rank, NULL);
    run_host_ranks(3, false, 0, run_poor_rank, &anything);
}

/* A rank that calls with invalid arguments does not leave the others waiting. */
static bool run_careless_rank(host_rank *r)
{
    const bool is_careless = r->number == 1;
    const char *const words[] = {is_careless ? "needs a device" : "rank 1", NULL};
    bp_logprob_config config;
    bp_lm_head_config head_config;
    bp_logprob *client = NULL;
    bp_lm_head *head = NULL;
    bp_logprob_config_init(&config, sizeof config);
    bp_lm_head_config_init(&head_config, sizeof head_config);
    config.max_tokens = head_config.max_tokens = head_config.hidden = 4;
    config.vocab = head_config.vocab = 10;
    config.vocab_start = head_config.vocab_start = 10 * (uint64_t)r->number;
    config.comm = head_config.comm = r->comm;
    bool good = is_status(bp_logprob_create(is_careless ? NULL : r->device, &config, &client), BP_ERR_INVALID_ARGUMENT,
                          words, "no device");
    good = is_status(bp_logprob_create(r->device, &config, is_careless ? NULL : &client), BP_ERR_INVALID_ARGUMENT,
                     words, "no output") &&
           good;
    if (r->user == NULL) /* fails here because matrix products are missing */
        return good && client == NULL;
    good = is_status(bp_lm_head_create(is_careless ? NULL : r->device, &head_config, &head), BP_ERR_INVALID_ARGUMENT,
                     words, "no device") &&
           good;
    return good && client == NULL && head == NULL;
}

TEST(invalid_arguments_on_one_rank_fail_on_all)
{
    run_host_ranks(2, false, 0, run_careless_rank, has_products(device) ? device : NULL);
}

/* A client of 20 ids for each rank. */
static bool create_part(host_rank *r, const batch *b, shard *part, bp_logprob **client)
{
    bp_logprob_config config;
    bp_logprob_config_init(&config, sizeof config);
    config.max_tokens = token_count(b);
    config.vocab = 20;
    config.vocab_start = 20 * (uint64_t)r->number;
    config.comm = r->comm;
    *part = (shard){config.vocab_start, config.vocab_start + 20};
    *client = NULL;
    return is_status(bp_logprob_create(r->device, &config, client), BP_OK, NULL, "create");
}

/* Targets are checked on every rank against the whole vocabulary. */
static bool run_targets(host_rank *r)
{
    const batch *b = &((const batch *)r->user)[r->number];
    bp_logprob *client;
    shard part;
    bool good = create_part(r, b, &part, &client);
    bp_logprob_batch call = call_of(b, part);
    bp_logprob_outputs outputs = outputs_of(b);
    const char *const words[] = {"60", NULL};
    good =
        good && is_status(bp_logprob_forward(client, &call, &outputs, NULL), BP_ERR_INVALID_ARGUMENT, words, "forward");
    bp_logprob_destroy(&client);
    return good;
}

TEST(targets_outside_are_reported_on_every_rank)
{
    batch_options options = {.batch = 1, .sequence = 6, .columns = 60};
    batch b[3];
    for (uint32_t r = 0; r < 3; r++) {
        seed(1);
        b[r] = new_batch(&options);
        put_whole(&b[r].target, 0, 4, 60);
    }
    run_host_ranks(3, false, 0, run_targets, b);
    for (uint32_t r = 0; r < 3; r++)
        free_batch(&b[r]);
}

/* One rank alone has the target outside: all ranks report it, and their results of the token are NaN. */
static bool run_unequal_targets(host_rank *r)
{
    const batch *b = &((const batch *)r->user)[r->number];
    bp_logprob *client;
    shard part;
    bool good = create_part(r, b, &part, &client);
    bp_logprob_batch call = call_of(b, part);
    bp_logprob_outputs outputs = outputs_of(b);
    bp_logprob_gradients gradients = gradients_of(b, part);
    const char *const mine[] = {"token 4 ", "-7", "60 ids", NULL}, *const others[] = {"token 4 ", "another rank", NULL};
    good = good && is_status(bp_logprob_forward(client, &call, &outputs, NULL), BP_ERR_INVALID_ARGUMENT,
                             r->number == 1 ? mine : others, "forward");
    good = good && is_status(bp_logprob_backward(client, &call, &gradients, NULL), BP_OK, NULL, "backward");
    const float *row = (const float *)row_at(&b->grad, 0, 4) + part.first;
    for (int v = 0; v < 20 && good; v++)
        good = isnan(row[v]);
    good = good && isnan(upstream_at(&b->logprob, 0, 4)) && !isnan(upstream_at(&b->logprob, 0, 3));
    good = good && is_status(bp_logprob_check(client), BP_OK, NULL, "check");
    bp_logprob_destroy(&client);
    return good;
}

TEST(a_target_outside_on_one_rank_fails_on_all)
{
    batch_options options = {.batch = 1, .sequence = 6, .columns = 60};
    batch b[3];
    for (uint32_t r = 0; r < 3; r++) {
        seed(1);
        b[r] = new_batch(&options);
    }
    put_whole(&b[1].target, 0, 4, -7);
    run_host_ranks(3, false, 0, run_unequal_targets, b);
    for (uint32_t r = 0; r < 3; r++)
        free_batch(&b[r]);
}

TESTS(open_host, close_host)

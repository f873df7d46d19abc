/* SPDX-License-Identifier: Apache-2.0 */
/* The fused head on ranks that are threads. */
#include "support/harness.h"

#include "../support/ranks.h"
#include "head_shards.h"

#include "../support/hosts.h"
#include "support/scenarios.h"

typedef struct setting {
    head_batch h[SHARD_RANKS];
    split where;
    bool own_stream;
} setting;

static bool run_scene(host_rank *r)
{
    setting *s = r->user;
    return sharded_head_is_true(r->device, s->own_stream ? NULL : r->stream, r->comm, &s->h[r->number], s->where);
}

static void check_split(const head_options *options, uint32_t ranks, split where, unsigned variant)
{
    setting s = {.where = where, .own_stream = (variant & 1) != 0};
    for (uint32_t r = 0; r < ranks; r++) {
        seed(71);
        s.h[r] = new_head_batch(options);
    }
    run_host_ranks(ranks, (variant & 2) != 0, variant == 2 ? 300 : 0, run_scene, &s);
    for (uint32_t r = 0; r < ranks; r++)
        free_head_batch(&s.h[r]);
}

TEST(heads_share_a_vocabulary)
{
    for (uint32_t ranks = 1; ranks <= 4; ranks++) {
        for (unsigned variant = 0; variant < 4; variant++) {
            for (int dtype = BP_DTYPE_FP32; dtype <= BP_DTYPE_BF16; dtype++) {
                head_options o = {.batch = 2,
                                  .sequence = 11,
                                  .hidden = 20,
                                  .columns = 203,
                                  .dtype = (bp_dtype)dtype,
                                  .chunk = 4,
                                  .with_entropy = variant != 1,
                                  .masked = variant == 2,
                                  .accumulate = variant == 3,
                                  .partial = variant == 1,
                                  .temperature = 0.8,
                                  .outside_in_16 = 2};
                if (variant >= 2) {
                    o.targets = 3;
                    o.biased = o.with_logsumexp = o.with_mean = true;
                    o.heated = variant == 3;
                    o.soft_cap = variant == 2 ? 6 : 0;
                }
                for (int way = 0; way < HEAD_WAYS; way++) {
                    o.way = (head_way)way;
                    check_split(&o, ranks, even_split(203, ranks), variant);
                    if (ranks > 1)
                        check_split(&o, ranks, uneven_split(203, ranks), variant);
                }
            }
        }
    }
}

static bool run_bad_shards(host_rank *r)
{
    bool good = true;
    for (size_t i = 0; i < BAD_SHARDS_COUNT; i++) {
        const bad_shards *bad = &BAD_SHARDS[i];
        bp_lm_head_config config;
        bp_lm_head *head = NULL;
        bp_lm_head_config_init(&config, sizeof config);
        config.max_tokens = config.hidden = 8;
        config.vocab = bad->vocab[r->number];
        config.vocab_start = bad->first[r->number];
        config.comm = r->comm;
        good = is_status(bp_lm_head_create(r->device, &config, &head), bad->status,
                         config.vocab == 0 ? NULL : bad->words, bad->name) &&
               head == NULL && good;
        bp_lm_head_destroy(&head);
    }
    return good;
}

TEST(heads_refuse_shards_that_do_not_tile)
{
    for (uint32_t ranks = 2; ranks <= 4; ranks++)
        run_host_ranks(ranks, false, 0, run_bad_shards, NULL);
}

/* Ranks with different chunks, hidden sizes or dtypes are refused. */
static bool run_mismatch(host_rank *r)
{
    bool good = true;
    for (int which = 0; which < 4; which++) {
        bool odd = r->number == 1;
        bp_lm_head_config config;
        bp_lm_head *head = NULL;
        bp_lm_head_config_init(&config, sizeof config);
        config.max_tokens = config.hidden = 8;
        config.vocab = 10;
        config.vocab_start = 10 * (uint64_t)r->number;
        config.comm = r->comm;
        config.hidden = which == 0 && odd ? 9 : 8;
        config.max_tokens = which == 1 && odd ? 9 : 8;
        config.dtype = which == 2 && odd ? BP_DTYPE_FP16 : BP_DTYPE_BF16;
        config.partial_hidden_grad = which == 3 && odd;
        const char *const words[] = {"rank 1", NULL};
        static const char *const names[] = {"other hidden", "different max_tokens", "other dtype",
                                            "different partial_hidden_grad"};
        good = is_status(bp_lm_head_create(r->device, &config, &head), BP_ERR_MISMATCH, words, names[which]) && good;
        bp_lm_head_destroy(&head);
    }
    return good;
}

TEST(heads_compare_their_configurations)
{
    run_host_ranks(2, false, 0, run_mismatch, NULL);
    run_host_ranks(3, false, 0, run_mismatch, NULL);
}

int main(void)
{
    void *none = NULL;
    if (open_host(&none) != 0)
        return 1;
    bool has = has_products(device);
    close_host(&none);
    if (!has)
        return 77;
    return run_registered(NULL, NULL, open_host, close_host);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Divergences from reference logits and their gradients against fp64, for all kernels, and on ranks that share a vocabulary. */
#include "support/harness.h"

#include "support/ranks.h"
#include "support/shards.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/brief.h"
#include "support/hosts.h"
#include "support/scenarios.h"

/* Logits and reference of one shape; upstream gradients, output and gradient are those of the logits' batch. */
typedef struct pair {
    batch b, reference;
    float beta;
    float *saved;
    uint64_t saved_bytes;
} pair;

static const float betas[] = {0, 1, 0.5f, 0.1f, 0.93f};
#define BETAS 5

static pair new_pair(const batch_options *options, float beta, uint64_t number)
{
    batch_options other = *options;
    pair p = {.beta = beta};
    seed(number);
    p.b = new_batch(options);
    other.logits = options->grad;
    other.in_place = other.masked = false;
    p.reference = new_batch(&other);
    assert_ok(bp_logprob_divergence_saved_bytes(token_count(&p.b), &p.saved_bytes));
    assert_int_equal(p.saved_bytes, 20 * token_count(&p.b));
    p.saved = malloc(p.saved_bytes + 1);
    assert_non_null(p.saved);
    return p;
}

static void free_pair(pair *p)
{
    free_batch(&p->b);
    free_batch(&p->reference);
    free(p->saved);
}

static bp_logprob_divergence_args args_of(const pair *p, shard part)
{
    bp_logprob_divergence_args args;
    (void)bp_logprob_divergence_args_init(&args, sizeof args);
    const bp_logprob_gradients gradients = gradients_of(&p->b, part);
    args.reference = call_of(&p->reference, part).logits;
    args.beta = p->beta;
    args.saved = p->saved;
    args.saved_bytes = p->saved_bytes;
    args.divergence = values_of(&p->b.entropy);
    args.divergence_grad = values_of(&p->b.entropy_grad);
    args.logits_grad = gradients.logits_grad;
    args.in_place = gradients.in_place;
    return args;
}

static bp_logprob_batch divergence_call(const pair *p, shard part)
{
    bp_logprob_batch call = call_of(&p->b, part);
    call.tokens.target.data = NULL; /* not read */
    return call;
}

/* ---- fp64 ---------------------------------------------------------------------------------------------------------- */

/* Log-probabilities of both rows. */
static double *logs_of(const batch *of, const batch *tokens, uint64_t i, uint64_t s)
{
    double *logs = calloc(of->o.columns + 1, sizeof *logs), max = -INFINITY, sum = 0;
    const double temperature = tokens->o.heated ? upstream_at(&tokens->temperatures, i, s) : tokens->o.temperature;
    if (logs == NULL)
        abort();
    for (uint64_t v = 0; v < of->o.columns; v++) {
        logs[v] = logit_at(of, i, s, v) / temperature;
        max = fmax(max, logs[v]);
    }
    for (uint64_t v = 0; v < of->o.columns; v++)
        sum += exp(logs[v] - max);
    for (uint64_t v = 0; v < of->o.columns; v++)
        logs[v] -= max + log(sum);
    return logs;
}

static double term(double log_a, double log_b)
{
    return exp(log_a) == 0 ? 0 : exp(log_a) * (log_a - log_b);
}

static bool pair_token_is_true(const pair *p, shard part, uint64_t i, uint64_t s)
{
    const double beta = (double)p->beta, g = upstream_at(&p->b.entropy_grad, i, s);
    const bool masked = is_masked(&p->b, i, s);
    double expected = 0, kept = 0, *log_p = NULL, *log_q = NULL, *log_m = NULL;
    const uint64_t columns = p->b.o.columns;
    bool good = true;
    if (!masked) {
        log_p = logs_of(&p->b, &p->b, i, s);
        log_q = logs_of(&p->reference, &p->b, i, s);
        log_m = calloc(columns + 1, sizeof *log_m);
        if (log_m == NULL)
            abort();
        for (uint64_t v = 0; v < columns; v++) {
            log_m[v] = log((1 - beta) * exp(log_p[v]) + beta * exp(log_q[v]));
            log_m[v] = beta == 0 ? log_p[v] : beta == 1 ? log_q[v] : log_m[v];
            kept += term(log_p[v], log_m[v]);
            expected += beta == 1 ? 0 : (beta == 0 ? 1 : beta) * term(log_q[v], log_m[v]);
        }
        expected += beta == 0 ? 0 : (beta == 1 ? 1 : 1 - beta) * kept;
    }
    const double value = upstream_at(&p->b.entropy, i, s),
                 T = p->b.o.heated && !masked ? upstream_at(&p->b.temperatures, i, s) : p->b.o.temperature;
    const double of_cap = p->b.o.soft_cap == 0 ? 0 : 4e-6 * p->b.o.soft_cap / T;
    const double slack = masked ? 0 : 4e-6 + 2e-6 * fabs(expected) + of_cap;
    if (!is_within(value, expected, slack)) {
        print_error("divergence of %llu, %llu (beta %g, %llu columns) is %.9g, expected %.9g\n", (unsigned long long)i,
                    (unsigned long long)s, beta, (unsigned long long)columns, value, expected);
        good = false;
    }
    for (uint64_t v = part.first; v < part.end && good; v++) {
        const double is = element_at(row_at(&p->b.grad, i, s), p->b.o.grad_dtype, (int64_t)v);
        double d = 0, allowed = 0;
        if (!masked) {
            const double share = exp(log_p[v]),
                         u = p->b.o.soft_cap == 0 ? 0 : logit_at(&p->b, i, s, v) / p->b.o.soft_cap;
            const double inner = share == 0 ? 0 : share * (log_p[v] - log_m[v] - kept);
            d = g / T * (beta == 0 ? share - exp(log_q[v]) : (beta == 1 ? 1 : 1 - beta) * inner) * (1 - u * u);
            const double size =
                share * (1 + (share == 0 ? 0 : fabs(log_p[v] - log_m[v]) + fabs(log_p[v])) + fabs(kept)) +
                (beta == 0 ? exp(log_q[v]) * (1 + (log_q[v] == -INFINITY ? 0 : fabs(log_q[v]))) : 0);
            allowed = fabs(g) / T * size * (4e-6 + 4 * of_cap) + 1e-35;
            allowed += p->b.o.grad_dtype == BP_DTYPE_BF16   ? ldexp(fabs(d), -8)
                       : p->b.o.grad_dtype == BP_DTYPE_FP16 ? ldexp(fabs(d), -11) + ldexp(1, -24)
                                                            : 0;
        }
        good = is_within(is, d, allowed);
        if (!good)
            print_error("gradient of %llu, %llu, column %llu (beta %g) is %.9g, expected %.9g within %.3g\n",
                        (unsigned long long)i, (unsigned long long)s, (unsigned long long)v, beta, is, d, allowed);
    }
    free(log_p);
    free(log_q);
    free(log_m);
    return good;
}

static bool pair_is_true(const pair *p, shard part)
{
    for (uint64_t i = 0; i < p->b.o.batch; i++)
        for (uint64_t s = 0; s < p->b.o.sequence; s++)
            if (!pair_token_is_true(p, part, i, s))
                return false;
    return gaps_are_whole(&p->b.entropy, "divergences") && gaps_are_whole(&p->b.grad, "the gradient") &&
           inputs_are_whole(&p->reference) && (p->b.o.in_place || inputs_are_whole(&p->b));
}

/* ---- one rank ------------------------------------------------------------------------------------------------------ */

static void run_pair(bp_logprob *client, pair *p)
{
    const shard all = whole_shard(&p->b);
    const bp_logprob_batch call = divergence_call(p, all);
    const bp_logprob_divergence_args args = args_of(p, all);
    poison_outputs(&p->b, POISON);
    poison_gradient(&p->b, POISON);
    assert_ok(bp_logprob_divergence(client, &call, &args, NULL));
    assert_true(inputs_are_whole(&p->b));
    assert_ok(bp_logprob_divergence_backward(client, &call, &args, NULL));
}

static batch_options pair_options(uint64_t round)
{
    static const uint64_t columns[] = {1, 7, 64, 129, 2047, 2048, 5003};
    batch_options o = {.batch = 1 + random_below(3), .sequence = 1 + random_below(7), .columns = columns[round % 7]};
    o.dtype = (bp_dtype)(BP_DTYPE_FP32 + random_below(3));
    o.grad_dtype = random_below(2) == 0 ? BP_DTYPE_FP32 : o.dtype;
    o.logits = random_layout();
    o.grad = random_layout();
    o.outputs = random_layout();
    o.mask = random_layout();
    o.upstream = random_layout();
    o.masked = random_below(3) == 0;
    o.in_place = random_below(4) == 0;
    o.with_entropy = true; /* its views have the divergence */
    o.spread = random_below(4) == 0 ? 25 : 0;
    o.temperature = random_below(2) == 0 ? 0 : 0.5 + random_below(3);
    o.heated = random_below(3) == 0;
    o.soft_cap = random_below(3) == 0 ? 4 + random_below(20) : 0;
    o.rounding = random_below(3) == 0 ? BP_DTYPE_BF16 : BP_DTYPE_FP32;
    return o;
}

TEST(random_pairs_are_true)
{
    FOR_KERNELS(kernels)
    {
        for (uint64_t round = 0, rounds = (uint64_t)share_of(100); round < rounds; round++) {
            seed(300 + round);
            const batch_options options = pair_options(round);
            pair p = new_pair(&options, betas[round % BETAS], 700 + round);
            bp_logprob *client = new_client(device, &p.b, kernels->bit, (uint32_t)(round % 3));
            run_pair(client, &p);
            assert_true(pair_is_true(&p, whole_shard(&p.b)));
            bp_logprob_destroy(&client);
            free_pair(&p);
        }
    }
}

/* Equal rows: exactly 0. The same bits for any number of threads and in place. */
TEST(equal_rows_have_no_divergence)
{
    FOR_KERNELS(kernels)
    {
        for (int beta = 0; beta < BETAS; beta++) {
            const batch_options options = {.batch = 2,
                                           .sequence = 3,
                                           .columns = 3001,
                                           .with_entropy = true,
                                           .dtype = BP_DTYPE_BF16,
                                           .soft_cap = 9};
            pair p = new_pair(&options, betas[beta], 5);
            for (uint64_t t = 0; t < 6; t++)
                memcpy(row_at(&p.reference.logits, t / 3, t % 3), row_at(&p.b.logits, t / 3, t % 3), 2 * 3001);
            bp_logprob *client = new_client(device, &p.b, kernels->bit, 2);
            run_pair(client, &p);
            for (uint64_t t = 0; t < 6; t++) {
                assert_true(upstream_at(&p.b.entropy, t / 3, t % 3) == 0);
                for (uint64_t v = 0; v < 3001; v++)
                    assert_true(((float *)row_at(&p.b.grad, t / 3, t % 3))[v] == 0);
            }
            bp_logprob_destroy(&client);
            free_pair(&p);
        }
    }
}

TEST(threads_and_places_change_nothing)
{
    FOR_KERNELS(kernels)
    {
        for (int beta = 0; beta < BETAS; beta++) {
            batch_options options = {.batch = 2, .sequence = 9, .columns = 4500, .with_entropy = true};
            pair expected = new_pair(&options, betas[beta], 5);
            options.in_place = true;
            pair p = new_pair(&options, betas[beta], 5);
            memcpy(p.reference.logits.memory, expected.reference.logits.memory, p.reference.logits.bytes);
            memcpy(p.reference.original, expected.reference.original, p.reference.logits.bytes);
            for (uint32_t threads = 1; threads < 4; threads++) {
                bp_logprob *client = new_client(device, &p.b, kernels->bit, threads);
                if (threads == 1)
                    run_pair(client, &expected);
                restore_logits(&p.b);
                run_pair(client, &p);
                assert_true(same_rows(&expected.b.entropy, &p.b.entropy, "divergences"));
                assert_true(same_rows(&expected.b.grad, &p.b.grad, "gradients"));
                bp_logprob_destroy(&client);
            }
            free_pair(&p);
            free_pair(&expected);
        }
    }
}

/* Columns: both -inf; p = 0 alone; q = 0 alone. */
TEST(impossible_tokens_are_handled)
{
    FOR_KERNELS(kernels)
    {
        for (int beta = 0; beta < BETAS; beta++) {
            const batch_options options = {.batch = 1, .sequence = 4, .columns = 70, .with_entropy = true};
            pair p = new_pair(&options, betas[beta], 5);
            for (uint64_t v = 0; v < 20; v++) {
                for (uint64_t s = 0; s < 3; s++) {
                    put_logit(&p.b, 0, s, v, s == 2 ? 0.5 : -INFINITY);
                    put_logit(&p.reference, 0, s, v, s == 1 ? 0.5 : -INFINITY);
                }
            }
            put_logit(&p.reference, 0, 3, 69, NAN);
            bp_logprob *client = new_client(device, &p.b, kernels->bit, 1);
            run_pair(client, &p);
            const double only_q = upstream_at(&p.b.entropy, 0, 1), only_p = upstream_at(&p.b.entropy, 0, 2);
            assert_true(pair_token_is_true(&p, whole_shard(&p.b), 0, 0));
            assert_true(isinf(only_q) ? p.beta == 0 : p.beta != 0);
            assert_true(isinf(only_p) ? p.beta == 1 : p.beta != 1);
            for (uint64_t s = 1; s < 3; s++)
                assert_true(isinf(upstream_at(&p.b.entropy, 0, s)) || pair_token_is_true(&p, whole_shard(&p.b), 0, s));
            assert_true(isnan(upstream_at(&p.b.entropy, 0, 3)));
            bp_logprob_destroy(&client);
            free_pair(&p);
        }
    }
}

/* ---- errors -------------------------------------------------------------------------------------------------------- */

TEST(wrong_arguments_are_refused)
{
    const batch_options options = {.batch = 2, .sequence = 3, .columns = 50, .with_entropy = true};
    pair p = new_pair(&options, 0.5f, 5);
    bp_logprob *client = new_client(device, &p.b, BP_KERNELS_PLAIN, 1);
    const bp_logprob_batch call = divergence_call(&p, whole_shard(&p.b));
    const bp_logprob_divergence_args good = args_of(&p, whole_shard(&p.b));
    bp_logprob_divergence_args args = good;
#define BOTH_FAIL(field, value, ...)                                                                                   \
    args.field = (value);                                                                                              \
    assert_fails(bp_logprob_divergence(client, &call, &args, NULL), BP_ERR_INVALID_ARGUMENT, __VA_ARGS__);             \
    assert_fails(bp_logprob_divergence_backward(client, &call, &args, NULL), BP_ERR_INVALID_ARGUMENT, __VA_ARGS__);    \
    args = good
    BOTH_FAIL(beta, -0.01f, "beta");
    BOTH_FAIL(beta, 1.01f, "beta");
    BOTH_FAIL(beta, NAN, "beta");
    BOTH_FAIL(reference.dtype, BP_DTYPE_BF16, "reference", "bf16", "fp32");
    BOTH_FAIL(reference.columns, 49, "reference", "49");
    BOTH_FAIL(reference.sequence, 4, "reference", "2 x 4");
    BOTH_FAIL(reference.data, NULL, "reference");
    BOTH_FAIL(saved, NULL, "saved");
    BOTH_FAIL(saved_bytes, 119, "saved_bytes", "119", "120");
    args.divergence.stride = 0;
    assert_fails(bp_logprob_divergence(client, &call, &args, NULL), BP_ERR_INVALID_ARGUMENT, "divergences", "overlap");
    args = good;
    args.logits_grad = args.reference;
    assert_fails(bp_logprob_divergence_backward(client, &call, &args, NULL), BP_ERR_INVALID_ARGUMENT, "reference");
    args = good;
    args.logits_grad = call.logits;
    assert_fails(bp_logprob_divergence_backward(client, &call, &args, NULL), BP_ERR_INVALID_ARGUMENT, "in_place");
    assert_fails(bp_logprob_divergence(NULL, &call, &good, NULL), BP_ERR_INVALID_ARGUMENT, "");
    assert_fails(bp_logprob_divergence(client, NULL, &good, NULL), BP_ERR_INVALID_ARGUMENT, "");
    assert_fails(bp_logprob_divergence(client, &call, NULL, NULL), BP_ERR_INVALID_ARGUMENT, "");
    assert_fails(bp_logprob_divergence_saved_bytes(UINT64_MAX, &p.saved_bytes), BP_ERR_OVERFLOW, "");
    assert_fails(bp_logprob_divergence_saved_bytes(1, NULL), BP_ERR_INVALID_ARGUMENT, "");
    run_pair(client, &p);
    assert_true(pair_is_true(&p, whole_shard(&p.b)));
    bp_logprob_destroy(&client);
    free_pair(&p);
}

/* ---- ranks --------------------------------------------------------------------------------------------------------- */

typedef struct sharing {
    pair p[SHARD_RANKS];
    split where;
    uint32_t kernels;
} sharing;

#define OK(call) is_status(call, BP_OK, NULL, #call)

static bool run_share(host_rank *r)
{
    sharing *s = r->user;
    pair *p = &s->p[r->number];
    const shard part = {s->where.edges[r->number], s->where.edges[r->number + 1]};
    const bp_logprob_batch call = divergence_call(p, part);
    const bp_logprob_divergence_args args = args_of(p, part);
    bp_logprob_config config;
    bp_logprob *client = NULL;
    bp_logprob_config_init(&config, sizeof config);
    config.max_tokens = token_count(&p->b);
    config.vocab = part.end - part.first;
    config.vocab_start = part.first;
    config.comm = r->comm;
    config.kernels = s->kernels;
    config.threads = 1;
    poison_outputs(&p->b, POISON);
    poison_gradient(&p->b, POISON);
    bool good = OK(bp_logprob_create(r->device, &config, &client));
    for (int run = 0; good && run < 2; run++) /* again, over leftovers in the workspaces */
        good = OK(bp_logprob_divergence(client, &call, &args, r->stream)) &&
               OK(bp_logprob_divergence_backward(client, &call, &args, r->stream)) &&
               OK(bp_stream_synchronize(r->stream)) && pair_is_true(p, part);
    bp_logprob_destroy(&client);
    return good;
}

TEST(ranks_share_a_vocabulary)
{
    FOR_KERNELS(kernels)
    {
        for (uint32_t ranks = 2; ranks <= 3; ranks++) {
            for (int beta = 0; beta < BETAS; beta++) {
                const batch_options options = {
                    .batch = 2, .sequence = 4, .columns = 2500, .with_entropy = true, .masked = beta == 2};
                sharing s = {.where = beta % 2 == 0 ? uneven_split(2500, ranks) : even_split(2500, ranks),
                             .kernels = kernels->bit};
                for (uint32_t r = 0; r < ranks; r++)
                    s.p[r] = new_pair(&options, betas[beta], 5);
                run_host_ranks(ranks, beta == 1, 0, run_share, &s);
                for (uint32_t r = 1; r < ranks; r++)
                    assert_true(same_rows(&s.p[0].b.entropy, &s.p[r].b.entropy, "divergences of ranks"));
                for (uint32_t r = 0; r < ranks; r++)
                    free_pair(&s.p[r]);
            }
        }
    }
}

TESTS(open_host, close_host)

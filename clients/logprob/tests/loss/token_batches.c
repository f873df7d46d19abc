/* SPDX-License-Identifier: Apache-2.0 */
/* Random corpora, their fp64 statistics, and their distribution to ranks. */
#include "token_batches.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/scenarios.h"

/* ---- tokens -------------------------------------------------------------------------------------------------------- */

static float fraction(void)
{
    return ((float)random_below(1u << 20) + 0.5f) / (float)(1u << 20);
}

static void fill_token(corpus *c, const corpus_options *o, uint64_t token, bool valid)
{
    static const uint8_t masks[] = {1, 1, 2, 255};
    float *logits = c->logits + token * CORPUS_LOGITS;
    c->mask[token] = valid ? masks[random_below(4)] : 0;
    c->logprob[token] = valid ? -9 * fraction() : NAN;
    c->entropy[token] = valid ? 11 * fraction() : NAN;
    for (uint32_t i = 0; i < CORPUS_LOGITS; i++)
        logits[i] = valid ? 40 * (fraction() - 0.5f) : NAN;
    if (valid && o->infinite && random_below(4) == 0)
        logits[random_below(CORPUS_LOGITS)] = random_below(2) == 0 ? INFINITY : -INFINITY;
    for (uint32_t w = 0; w < CORPUS_WEIGHTS; w++)
        c->weights[token * CORPUS_WEIGHTS + w] = (double)fraction() - 0.3;
}

static void break_a_logit(corpus *c)
{
    uint64_t valid = 0, last = 0;
    for (uint64_t token = 0; token < c->tokens; token++)
        if (c->mask[token] != 0 && random_below((uint32_t)++valid) == 0) /* reservoir sampling */
            last = token;
    if (valid > 0)
        c->logits[last * CORPUS_LOGITS + random_below(CORPUS_LOGITS)] = NAN;
}

corpus new_corpus(const corpus_options *o)
{
    corpus c = {.sequences = o->sequences};
    bool masked[CORPUS_SEQUENCES] = {false};
    seed(o->seed);
    for (uint64_t i = 0; i < c.sequences; i++) {
        const bool is_empty = random_below(8) < o->empty_in_8;
        masked[i] = o->nothing || random_below(8) < o->masked_in_8;
        c.first[i + 1] = c.first[i] + (is_empty ? 0 : 1 + random_below((uint32_t)o->longest));
    }
    c.tokens = c.first[c.sequences];
    c.mask = calloc(c.tokens + 1, 1);
    c.logprob = calloc(c.tokens + 1, sizeof *c.logprob);
    c.entropy = calloc(c.tokens + 1, sizeof *c.entropy);
    c.logits = calloc((c.tokens + 1) * CORPUS_LOGITS, sizeof *c.logits);
    c.weights = calloc((c.tokens + 1) * CORPUS_WEIGHTS, sizeof *c.weights);
    for (uint64_t i = 0; i < c.sequences; i++)
        for (uint64_t token = c.first[i]; token < c.first[i + 1]; token++)
            fill_token(&c, o, token, !masked[i] && random_below(3) > 0);
    if (o->broken)
        break_a_logit(&c);
    return c;
}

void free_corpus(corpus *c)
{
    free(c->mask);
    free(c->logprob);
    free(c->entropy);
    free(c->logits);
    free(c->weights);
}

float logit_of(const corpus *c, uint64_t token, uint32_t part, uint32_t parts, bool largest)
{
    const uint32_t each = CORPUS_LOGITS / parts;
    const float *logits = c->logits + token * CORPUS_LOGITS + (size_t)part * each;
    float found = logits[0];
    for (uint32_t i = 1; i < each; i++)
        if (isnan(logits[i]) || (largest ? logits[i] > found : logits[i] < found))
            found = logits[i];
    return found;
}

/* ---- fp64 reference ------------------------------------------------------------------------------------------------ */

/* NaN without log-probabilities. */
bp_loss_sequence true_sequence(const corpus *c, uint64_t sequence, unsigned planes)
{
    long double logprob = 0, entropy = 0;
    uint64_t valid = 0;
    for (uint64_t token = c->first[sequence]; token < c->first[sequence + 1]; token++)
        if (c->mask[token] != 0) {
            valid++;
            logprob += (planes & WITH_LOGPROB) != 0 ? (long double)c->logprob[token] : 0;
            entropy += (planes & WITH_ENTROPY) != 0 ? (long double)c->entropy[token] : 0;
        }
    return (bp_loss_sequence){
        .valid = valid,
        .logprob_sum = (double)logprob,
        .entropy_sum = (double)entropy,
        .perplexity = valid == 0 || (planes & WITH_LOGPROB) == 0 ? 0 : (double)expl(-logprob / (long double)valid)};
}

static double bound(double found, double value, bool largest)
{
    if (isnan(found) || isnan(value))
        return NAN;
    return largest == (value > found) ? value : found;
}

static void range_over(const corpus *c, uint64_t first, uint64_t end, unsigned planes, bp_loss_statistics *s)
{
    for (uint64_t token = c->first[first]; token < c->first[end]; token++)
        for (uint32_t i = 0; c->mask[token] != 0 && i < CORPUS_LOGITS; i++) {
            const double logit = c->logits[token * CORPUS_LOGITS + i];
            if ((planes & WITH_LEAST) != 0)
                s->logit_min = bound(s->logit_min, logit, false);
            if ((planes & WITH_LARGEST) != 0)
                s->logit_max = bound(s->logit_max, logit, true);
        }
}

bp_loss_statistics true_statistics_of(const corpus *c, uint64_t first, uint64_t end, double epsilon, unsigned planes)
{
    bp_loss_statistics s = {.sequences = end - first,
                            .tokens = c->first[end] - c->first[first],
                            .logit_min = INFINITY,
                            .logit_max = -INFINITY,
                            .epsilon = epsilon};
    long double logprob = 0, entropy = 0, perplexity = 0;
    for (uint64_t i = first; i < end; i++) {
        const bp_loss_sequence one = true_sequence(c, i, planes);
        s.valid += one.valid;
        logprob += (long double)one.logprob_sum;
        entropy += (long double)one.entropy_sum;
        perplexity += (long double)one.perplexity;
        s.perplexity_sequences += one.valid > 0 && (planes & WITH_LOGPROB) != 0;
    }
    range_over(c, first, end, planes, &s);
    s.logprob_sum = (double)logprob;
    s.entropy_sum = (double)entropy;
    s.perplexity_sum = (double)perplexity;
    if (s.valid > 0) {
        s.loss = (double)(-logprob / ((long double)epsilon + (long double)s.valid));
        s.entropy = (double)(entropy / (long double)s.valid);
        s.perplexity = s.perplexity_sequences == 0 ? 0 : (double)(perplexity / (long double)s.perplexity_sequences);
    }
    return s;
}

bp_loss_statistics true_statistics(const corpus *c, double epsilon, unsigned planes)
{
    return true_statistics_of(c, 0, c->sequences, epsilon, planes);
}

double true_gradient(const corpus *c, double epsilon, uint32_t w)
{
    long double sum = 0;
    uint64_t valid = 0;
    for (uint64_t token = 0; token < c->tokens; token++)
        if (c->mask[token] != 0) {
            sum += (long double)c->weights[token * CORPUS_WEIGHTS + w];
            valid++;
        }
    return valid == 0 ? 0 : (double)(-sum / ((long double)epsilon + (long double)valid));
}

bool is_close(double value, double expected)
{
    if (isnan(expected) || isinf(expected))
        return isnan(expected) ? isnan(value) : value == expected;
    return fabs(value - expected) <= 1e-12 * fabs(expected);
}

static bool same_number(const char *where, const char *name, double value, double expected)
{
    if (!is_close(value, expected))
        fprintf(stderr, "%s: %s is %.17g, expected %.17g\n", where, name, value, expected);
    return is_close(value, expected);
}

static bool same_count(const char *where, const char *name, uint64_t value, uint64_t expected)
{
    if (value != expected)
        fprintf(stderr, "%s: %s is %llu, expected %llu\n", where, name, (unsigned long long)value,
                (unsigned long long)expected);
    return value == expected;
}

bool same_statistics(const bp_loss_statistics *v, const bp_loss_statistics *e, const char *where)
{
    bool same = same_count(where, "sequences", v->sequences, e->sequences);
    same = same_count(where, "tokens", v->tokens, e->tokens) && same;
    same = same_count(where, "valid", v->valid, e->valid) && same;
    same = same_count(where, "perplexity_sequences", v->perplexity_sequences, e->perplexity_sequences) && same;
    same = same_number(where, "logprob_sum", v->logprob_sum, e->logprob_sum) && same;
    same = same_number(where, "entropy_sum", v->entropy_sum, e->entropy_sum) && same;
    same = same_number(where, "perplexity_sum", v->perplexity_sum, e->perplexity_sum) && same;
    same = same_number(where, "logit_min", v->logit_min, e->logit_min) && same;
    same = same_number(where, "logit_max", v->logit_max, e->logit_max) && same;
    same = same_number(where, "epsilon", v->epsilon, e->epsilon) && same;
    same = same_number(where, "loss", v->loss, e->loss) && same;
    same = same_number(where, "entropy", v->entropy, e->entropy) && same;
    return same_number(where, "perplexity", v->perplexity, e->perplexity) && same;
}

bool same_sequence(const bp_loss_sequence *v, const bp_loss_sequence *e, const char *where)
{
    bool same = same_count(where, "valid of a sequence", v->valid, e->valid);
    same = same_number(where, "logprob_sum of a sequence", v->logprob_sum, e->logprob_sum) && same;
    same = same_number(where, "entropy_sum of a sequence", v->entropy_sum, e->entropy_sum) && same;
    return same_number(where, "perplexity of a sequence", v->perplexity, e->perplexity) && same;
}

/* ---- packs --------------------------------------------------------------------------------------------------------- */

static int64_t rounded_up(int64_t value, uint64_t multiple)
{
    return (value + (int64_t)multiple - 1) / (int64_t)multiple * (int64_t)multiple;
}

pack new_pack(const corpus *c, uint32_t cp, uint64_t first, uint64_t step)
{
    const uint64_t min = cp == 1 ? 1 : 2 * (uint64_t)cp;
    pack p = {.cp = cp, .multiple = min * (1 + random_below(3)), .pads_itself = random_below(3) == 0};
    for (uint64_t i = first; i < c->sequences; i += step) {
        const int64_t length = (int64_t)(c->first[i + 1] - c->first[i]);
        p.source[p.sequences++] = i;
        p.cu[p.sequences] = p.cu[p.sequences - 1] + length;
    }
    p.has_dummy = random_below(3) == 0;
    if (p.has_dummy) {
        p.sequences++;
        p.cu[p.sequences] = p.cu[p.sequences - 1] + random_below(20);
    }
    for (uint64_t i = 0; i < p.sequences; i++) {
        const uint64_t more = p.pads_itself ? min * random_below(3) : 0;
        const int64_t length = rounded_up(p.cu[i + 1] - p.cu[i], p.pads_itself ? min : p.multiple);
        p.padded[i + 1] = p.padded[i] + length + (int64_t)more;
    }
    if (!p.pads_itself && !p.has_dummy && random_below(2) == 0)
        p.total_multiple = p.multiple * (2 + random_below(6));
    return p;
}

bp_status split_pack(const pack *p, uint32_t rank, bp_comm *comm, bp_cp_split **split)
{
    bp_cp_split_config config;
    bp_status status = bp_cp_split_config_init(&config, sizeof config);
    if (status != BP_OK)
        return status;
    config.cu_seqlens = p->cu;
    config.cu_padded = p->pads_itself ? p->padded : NULL;
    config.cu_dtype = BP_DTYPE_INT64;
    config.sequences = p->sequences;
    config.ranks = p->cp;
    config.rank = rank;
    config.multiple = p->pads_itself ? 0 : p->multiple;
    config.total_multiple = p->total_multiple;
    config.last_is_dummy = p->has_dummy;
    config.comm = comm;
    return bp_cp_split_create(&config, split);
}

uint32_t rank_of_token(const pack *p, uint64_t sequence, uint64_t offset, uint64_t *local)
{
    const uint64_t begin = (uint64_t)p->padded[sequence], length = (uint64_t)p->padded[sequence + 1] - begin;
    const uint64_t cp = p->cp;
    if (cp == 1) {
        *local = begin + offset;
        return 0;
    }
    const uint64_t chunk = length / (2 * cp), k = offset / chunk;
    *local = begin / cp + (k < cp ? 0 : chunk) + offset - k * chunk;
    return (uint32_t)(k < cp ? k : 2 * cp - 1 - k);
}

/* ---- slices -------------------------------------------------------------------------------------------------------- */

/* Element 0 of a strided plane that is filled with the padding's value. */
static void *new_plane(slice *s, size_t which, size_t element, bp_token_values *values)
{
    const uint64_t step = (uint64_t)llabs((long long)s->stride), count = s->tokens * step + 1;
    s->elements = count;
    char *memory = malloc(count * element);
    for (uint64_t i = 0; i < count; i++) {
        const float nan = NAN;
        if (element == 1)
            memory[i] = 1;
        else
            memcpy(memory + i * element, &nan, element);
    }
    s->memory[which] = memory;
    const bool is_backward = s->stride < 0 && s->tokens > 0;
    values->data = memory + (is_backward ? (s->tokens - 1) * step * element : 0);
    values->stride = s->stride;
    values->batch_stride = INT64_MIN; /* ignored */
    return values->data;
}

static void put(const bp_token_values *values, uint64_t local, float value)
{
    if (values->data != NULL)
        ((float *)values->data)[(int64_t)local * values->stride] = value;
}

static void put_token(const corpus *c, slice *s, uint64_t token, uint64_t local, uint32_t tp_rank, uint32_t tp)
{
    ((uint8_t *)s->values.mask.data)[(int64_t)local * s->stride] = c->mask[token];
    put(&s->values.logprob, local, c->logprob[token]);
    put(&s->values.entropy, local, c->entropy[token]);
    put(&s->values.logit_min, local, logit_of(c, token, tp_rank, tp, false));
    put(&s->values.logit_max, local, logit_of(c, token, tp_rank, tp, true));
}

slice new_slice(const corpus *c, const pack *p, uint64_t tokens, uint32_t cp_rank, uint32_t tp_rank, uint32_t tp,
                unsigned planes, int64_t stride)
{
    slice s = {.tokens = tokens, .stride = stride};
    bp_loss_values *v = &s.values;
    (void)bp_loss_values_init(v, sizeof *v);
    v->tokens = tokens;
    new_plane(&s, 0, 1, &v->mask);
    new_plane(&s, 1, sizeof(float), &s.seed);
    if ((planes & WITH_LOGPROB) != 0)
        new_plane(&s, 2, sizeof(float), &v->logprob);
    if ((planes & WITH_ENTROPY) != 0)
        new_plane(&s, 3, sizeof(float), &v->entropy);
    if ((planes & WITH_LEAST) != 0)
        new_plane(&s, 4, sizeof(float), &v->logit_min);
    if ((planes & WITH_LARGEST) != 0)
        new_plane(&s, 5, sizeof(float), &v->logit_max);
    for (uint64_t i = 0; i < p->sequences - (p->has_dummy ? 1 : 0); i++) {
        const uint64_t first = c->first[p->source[i]], length = c->first[p->source[i] + 1] - first;
        for (uint64_t offset = 0; offset < length; offset++) {
            uint64_t local;
            if (rank_of_token(p, i, offset, &local) == cp_rank)
                put_token(c, &s, first + offset, local, tp_rank, tp);
        }
    }
    return s;
}

void free_slice(slice *s)
{
    for (size_t i = 0; i < sizeof s->memory / sizeof *s->memory; i++)
        free(s->memory[i]);
    *s = (slice){0};
}

float seed_at(const slice *s, uint64_t local)
{
    return ((const float *)s->seed.data)[(int64_t)local * s->seed.stride];
}

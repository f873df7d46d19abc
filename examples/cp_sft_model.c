/* SPDX-License-Identifier: Apache-2.0 */
/* A toy loader and model: plain loops over numbers from a hash of the seed. */
#include "cp_sft_model.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

enum { HIDDEN = 16, LONGEST = 60 };

/* ---- options -------------------------------------------------------------------------------------------------------- */

static const char usage[] = "Usage: mpirun -n RANKS cp_sft_loss [OPTION...]\n"
                            "The loss of packed sequences, its gradient's norm and its statistics: the same for every "
                            "arrangement of the ranks.\n\n"
                            "  --tp N             ranks that share the vocabulary (1)\n"
                            "  --cp N             ranks that share each sequence (1)\n"
                            "  --dp N             ranks with different sequences (1); RANKS = tp x cp x dp\n"
                            "  --seed S           of sequences and weights (1)\n"
                            "  --sequences N      of the step, on all ranks together (32)\n"
                            "  --vocab N          size of the vocabulary; shards may be uneven (211)\n"
                            "  --micro-batches N  of each DP rank (2)\n"
                            "  --help             this text\n";

typedef struct option_row {
    const char *name;
    size_t offset;
    uint64_t min, max;
} option_row;

static const option_row rows[] = {
    {"tp", offsetof(settings, tp), 1, 4096},
    {"cp", offsetof(settings, cp), 1, 4096},
    {"dp", offsetof(settings, dp), 1, 4096},
    {"seed", offsetof(settings, seed), 0, UINT64_MAX},
    {"sequences", offsetof(settings, sequences), 0, 1000000},
    {"vocab", offsetof(settings, vocab), 1, 1000000},
    {"micro-batches", offsetof(settings, micro_batches), 1, 1000},
};
enum { ROWS = sizeof rows / sizeof *rows };

static int complain(const char *word, const char *text)
{
    fprintf(stderr, "cp_sft_loss: %s %s; --help lists the options\n", word, text);
    return 2;
}

static int take(const option_row *row, const char *text, settings *s)
{
    char *end;
    errno = 0;
    const uint64_t value = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || errno != 0 || value < row->min || value > row->max) {
        fprintf(stderr, "cp_sft_loss: --%s: expected an integer in [%" PRIu64 ", %" PRIu64 "], got \"%s\"\n", row->name,
                row->min, row->max, text);
        return 2;
    }
    *(uint64_t *)((char *)s + row->offset) = value;
    return GO_ON;
}

int parse(int argc, char **argv, settings *s)
{
    struct option options[ROWS + 2] = {{0}};
    for (int i = 0; i < ROWS; i++)
        options[i] = (struct option){rows[i].name, required_argument, NULL, i};
    options[ROWS] = (struct option){"help", no_argument, NULL, ROWS};
    *s = (settings){.tp = 1, .cp = 1, .dp = 1, .seed = 1, .sequences = 32, .vocab = 211, .micro_batches = 2};
    opterr = 0;
    for (int at = optind, found; (found = getopt_long(argc, argv, "+", options, NULL)) != -1; at = optind) {
        if (found == ROWS)
            return fputs(usage, stdout) < 0;
        if (found == '?')
            return complain(argv[at], "is an unknown option, or its value is missing");
        const int code = take(&rows[found], optarg, s);
        if (code != GO_ON)
            return code;
    }
    if (optind < argc)
        return complain(argv[optind], "is an unexpected argument");
    if (s->vocab < s->tp) {
        fprintf(stderr, "cp_sft_loss: %" PRIu64 " TP ranks cannot share a vocabulary of %" PRIu64 "\n", s->tp,
                s->vocab);
        return 2;
    }
    return GO_ON;
}

/* ---- numbers -------------------------------------------------------------------------------------------------------- */

enum { LENGTHS = 1, PROMPTS, TOKENS, EMBEDDING, WEIGHT };

static uint64_t noise(uint64_t seed, uint64_t what, uint64_t i, uint64_t j)
{
    const uint64_t words[] = {what, i, j};
    for (int k = 0; k < 3; k++) {
        seed = (seed ^ words[k]) * 0x9e3779b97f4a7c15u;
        seed = (seed ^ seed >> 29) * 0xbf58476d1ce4e5b9u;
        seed ^= seed >> 32;
    }
    return seed;
}

/* From -1 to 1. */
static float between_ones(uint64_t seed, uint64_t what, uint64_t i, uint64_t j)
{
    return (float)(noise(seed, what, i, j) >> 40) / (1 << 23) - 1;
}

/* Includes an empty sequence, one of a single token, which has nothing to predict, and one without a response. */
static uint64_t length_of(const settings *s, uint64_t sequence)
{
    if (sequence == 1 || sequence == 2)
        return sequence - 1;
    return 2 + noise(s->seed, LENGTHS, sequence, 0) % (LONGEST - 1);
}

static uint64_t prompt_of(const settings *s, uint64_t sequence)
{
    const uint64_t length = length_of(s, sequence);
    return sequence == 3 ? length : noise(s->seed, PROMPTS, sequence, 0) % (length / 2 + 1);
}

/* ---- the loader ----------------------------------------------------------------------------------------------------- */

uint64_t longest_sequence(void)
{
    return LONGEST;
}

uint64_t max_sequences(const settings *s)
{
    const uint64_t turns = s->dp * s->micro_batches;
    return s->sequences > 0 ? (s->sequences - 1) / turns + 1 : 1;
}

int load(const settings *s, uint64_t dp_rank, uint64_t micro_batch, packed_batch *b)
{
    const uint64_t first = dp_rank + micro_batch * s->dp, step = s->dp * s->micro_batches;
    *b = (packed_batch){0};
    for (uint64_t i = first; i < s->sequences; i += step, b->sequences++)
        b->tokens += length_of(s, i);
    b->cu_seqlens = calloc(b->sequences + 1, sizeof *b->cu_seqlens);
    b->ids = calloc(b->tokens + 1, sizeof *b->ids); /* one more: never 0 bytes */
    b->offsets = calloc(b->tokens + 1, sizeof *b->offsets);
    b->mask = calloc(b->tokens + 1, sizeof *b->mask);
    if (b->cu_seqlens == NULL || b->ids == NULL || b->offsets == NULL || b->mask == NULL)
        return 0;
    int64_t end = 0, *next = b->cu_seqlens + 1;
    for (uint64_t i = first; i < s->sequences; i += step, *next++ = end)
        for (uint64_t offset = 0; offset < length_of(s, i); offset++, end++) {
            b->ids[end] = (int32_t)(noise(s->seed, TOKENS, i, offset) % s->vocab);
            b->offsets[end] = (int32_t)offset;
            b->mask[end] = offset >= prompt_of(s, i);
        }
    return 1;
}

void unload(packed_batch *b)
{
    free(b->cu_seqlens);
    free(b->ids);
    free(b->offsets);
    free(b->mask);
}

/* ---- the model ------------------------------------------------------------------------------------------------------ */

void shard_of(uint64_t vocab, uint64_t ranks, uint64_t rank, uint64_t *start, uint64_t *columns)
{
    *start = vocab * rank / ranks;
    *columns = vocab * (rank + 1) / ranks - *start;
}

int make_model(const settings *s, uint64_t tp_rank, model *m)
{
    *m = (model){0};
    shard_of(s->vocab, s->tp, tp_rank, &m->vocab_start, &m->vocab);
    m->weights = m->vocab * HIDDEN;
    m->embedding = calloc(s->vocab * HIDDEN, sizeof *m->embedding);
    m->weight = calloc(m->weights, sizeof *m->weight);
    m->weight_grad = calloc(m->weights, sizeof *m->weight_grad);
    m->mean_grad = calloc(m->weights, sizeof *m->mean_grad);
    if (m->embedding == NULL || m->weight == NULL || m->weight_grad == NULL || m->mean_grad == NULL)
        return 0;
    for (uint64_t i = 0; i < s->vocab * HIDDEN; i++)
        m->embedding[i] = between_ones(s->seed, EMBEDDING, i / HIDDEN, i % HIDDEN);
    for (uint64_t i = 0; i < m->weights; i++)
        m->weight[i] = between_ones(s->seed, WEIGHT, m->vocab_start + i / HIDDEN, i % HIDDEN);
    return 1;
}

void free_model(model *m)
{
    free(m->embedding);
    free(m->weight);
    free(m->weight_grad);
    free(m->mean_grad);
}

int make_local(const model *m, uint64_t tokens, uint64_t saved_bytes, local_batch *l)
{
    const uint64_t n = tokens;
    *l = (local_batch){.tokens = n, .saved_bytes = saved_bytes};
    l->saved = calloc(saved_bytes + 1, 1);
    l->mask = calloc(n + 1, 1);
    l->ids = calloc(3 * n + 1, sizeof *l->ids);
    l->logprob = calloc(5 * n + 1, sizeof *l->logprob);
    l->hidden = calloc(n + 1, HIDDEN * sizeof *l->hidden);
    l->logits = calloc(n + 1, m->vocab * sizeof *l->logits);
    l->logits_grad = calloc(n + 1, m->vocab * sizeof *l->logits_grad);
    if (l->saved == NULL || l->mask == NULL || l->ids == NULL || l->logprob == NULL || l->hidden == NULL ||
        l->logits == NULL || l->logits_grad == NULL)
        return 0;
    l->offsets = l->ids + n;
    l->labels = l->ids + 2 * n;
    l->entropy = l->logprob + n;
    l->logit_min = l->logprob + 2 * n;
    l->logit_max = l->logprob + 3 * n;
    l->seed = l->logprob + 4 * n;
    return 1;
}

void free_local(local_batch *l)
{
    void *blocks[] = {l->saved, l->mask, l->ids, l->logprob, l->hidden, l->logits, l->logits_grad};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        free(blocks[i]);
}

void compute_logits(const model *m, local_batch *l)
{
    for (uint64_t t = 0; t < l->tokens; t++) {
        float *hidden = l->hidden + t * HIDDEN, *logits = l->logits + t * m->vocab;
        for (int d = 0; d < HIDDEN; d++)
            hidden[d] = m->embedding[l->ids[t] * HIDDEN + d] + sinf((float)l->offsets[t] / (float)(d + 1)) / 2;
        for (uint64_t v = 0; v < m->vocab; v++)
            for (int d = 0; d < HIDDEN; d++)
                logits[v] += hidden[d] * m->weight[v * HIDDEN + d];
    }
}

void add_weight_grad(const model *m, const local_batch *l)
{
    for (uint64_t t = 0; t < l->tokens; t++)
        for (uint64_t v = 0; v < m->vocab; v++)
            for (int d = 0; d < HIDDEN; d++)
                m->weight_grad[v * HIDDEN + d] += (double)l->logits_grad[t * m->vocab + v] * l->hidden[t * HIDDEN + d];
}

static void print_bytes(const char *where, uint64_t ranks, uint64_t local_bytes)
{
    printf("bytes of logits gathered%s %" PRIu64 "\n", where, ranks * local_bytes);
    printf("bytes of logits kept%s %" PRIu64 "\n", where, local_bytes);
    printf("bytes saved%s %" PRIu64 "\n", where, (ranks - 1) * local_bytes);
}

void print_saved_bytes(const settings *s, uint64_t local_tokens)
{
    uint64_t start, columns;
    shard_of(s->vocab, s->tp, 0, &start, &columns);
    print_bytes(" on rank 0", s->cp, local_tokens * columns * sizeof(float));
    shard_of(151936, s->tp, 0, &start, &columns);
    print_bytes(" on each rank with 131072 tokens, vocabulary 151936 and bf16", s->cp, 131072 / s->cp * columns * 2);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Times of context-parallel splits and the loss on the host: rearrangements against memcpy and against loops over sequence chunks, as
 * runtimes write them, and a step of the loss.
 * Run: meson test -C build --benchmark --verbose
 *
 * Figures are nanoseconds per token; "ratio" is to the first line of a table. One thread. Calls run on a stream's thread and are waited
 * for; a line for an empty job shows that overhead. */
#include "measure.h"

#include <bucketpool/loss.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS 4u
#define SEQUENCES 64u

static void *take(size_t bytes)
{
    void *memory = malloc(bytes);
    if (memory == NULL) {
        perror("bench");
        exit(1);
    }
    memset(memory, 1, bytes);
    return memory;
}

/* Nanoseconds per token. */
static void add_figure(const char *name, bench_once *once, void *user, size_t tokens)
{
    bench_per(bench_add_once(name, once, user, NULL, 0), (unsigned)tokens);
}

typedef struct batch {
    bp_device *device;
    bp_stream *stream;
    bp_cp *cp;
    bp_cp_split *split;
    int64_t cu[SEQUENCES + 1];
    bp_cp_split_info info;
    size_t token_bytes;
    char *packed, *local;
} batch;

/* Ragged sequences of `tokens` in total, split for rank 1. */
static void open_batch(size_t tokens, size_t token_bytes, batch *b)
{
    bp_cp_config config;
    bp_cp_split_config split;
    *b = (batch){.token_bytes = token_bytes};
    for (size_t i = 0; i <= SEQUENCES; i++)
        b->cu[i] = i == SEQUENCES ? (int64_t)tokens : (int64_t)(tokens * i * (i + 3) / (SEQUENCES * (SEQUENCES + 3)));
    must(bp_device_create_host(NULL, &b->device));
    must(bp_stream_create(b->device, NULL, &b->stream));
    must(bp_cp_config_init(&config, sizeof config));
    config.threads = 1;
    must(bp_cp_create(b->device, &config, &b->cp));
    must(bp_cp_split_config_init(&split, sizeof split));
    split.cu_seqlens = b->cu;
    split.sequences = SEQUENCES;
    split.ranks = RANKS;
    split.rank = 1;
    must(bp_cp_split_create(&split, &b->split));
    b->info = *bp_cp_split_get_info(b->split);
    b->packed = take(tokens * token_bytes);
    b->local = take(b->info.local_tokens * token_bytes);
}

static void close_batch(batch *b)
{
    free(b->packed);
    free(b->local);
    bp_cp_split_destroy(&b->split);
    bp_cp_destroy(&b->cp);
    bp_stream_destroy(&b->stream);
    bp_device_destroy(&b->device);
}

static void run_nothing(void *user)
{
    const batch *b = user;
    must(bp_stream_fill(b->stream, b->local, 0, 1));
    must(bp_stream_synchronize(b->stream));
}

/* ---- rearrangements ------------------------------------------------------------------------------------------------- */

static void run_copy(void *user)
{
    const batch *b = user;
    memcpy(b->local, b->packed, b->info.local_tokens * b->token_bytes);
}

static void run_rearrange(void *user)
{
    const batch *b = user;
    bp_cp_rearrangement r;
    must(bp_cp_rearrangement_init(&r, sizeof r));
    r.from = (bp_cp_tensor){.data = b->packed, .tokens = b->info.packed_tokens, .token_bytes = b->token_bytes};
    r.to = (bp_cp_tensor){.data = b->local, .tokens = b->info.local_tokens, .token_bytes = b->token_bytes};
    must(bp_cp_rearrange(b->cp, b->split, &r, NULL));
}

/* A chunk at `at` of a sequence: its data, then zeros. */
static char *copy_chunk(const batch *b, size_t begin, size_t length, size_t at, size_t chunk, char *to)
{
    const size_t there = at >= length ? 0 : length - at < chunk ? length - at : chunk;
    memcpy(to, b->packed + (begin + at) * b->token_bytes, there * b->token_bytes);
    memset(to + there * b->token_bytes, 0, (chunk - there) * b->token_bytes);
    return to + chunk * b->token_bytes;
}

static void run_chunks(void *user)
{
    const batch *b = user;
    char *to = b->local;
    for (size_t s = 0; s < SEQUENCES; s++) {
        const size_t begin = (size_t)b->cu[s], length = (size_t)b->cu[s + 1] - begin;
        const size_t chunk = (length + 2 * RANKS - 1) / (2 * RANKS);
        to = copy_chunk(b, begin, length, chunk, chunk, to);
        to = copy_chunk(b, begin, length, (2 * RANKS - 2) * chunk, chunk, to);
    }
}

static void measure_rearrange(size_t tokens, size_t token_bytes)
{
    char name[72];
    batch b;
    snprintf(name, sizeof name, "to local order, rank 1 of %u, %zu x %zu bytes", RANKS, tokens, token_bytes);
    if (!bench_begin(name))
        return;
    open_batch(tokens, token_bytes, &b);
    const size_t local = b.info.local_tokens;
    add_figure("memcpy of the same bytes", run_copy, &b, local);
    add_figure("bp_cp_rearrange", run_rearrange, &b, local);
    add_figure("memcpy per chunk, a loop over sequences", run_chunks, &b, local);
    add_figure("empty job on the stream's thread", run_nothing, &b, local);
    bench_end();
    close_batch(&b);
}

/* ---- the loss ------------------------------------------------------------------------------------------------------- */

typedef struct stepping {
    batch b;
    bp_loss *loss;
    bp_loss_values values;
    float *logprob, *seed;
} stepping;

static void run_step(void *user)
{
    const stepping *s = user;
    must(bp_loss_begin(s->loss));
    must(bp_loss_add(s->loss, s->b.split, &s->values, NULL));
    must(bp_loss_reduce(s->loss, BP_OK, NULL));
}

static void run_seed(void *user)
{
    const stepping *s = user;
    const bp_token_values seed = {.data = s->seed, .stride = 1};
    must(bp_loss_seed(s->loss, s->b.split, s->values.tokens, &s->values.mask, -1, &seed, NULL));
}

static void run_sum(void *user)
{
    const stepping *s = user;
    static volatile double sink;
    double sum = 0;
    for (uint64_t t = 0; t < s->values.tokens; t++)
        sum += s->b.local[t] != 0 ? s->logprob[t] : 0;
    sink = sum;
    (void)sink;
}

/* All tokens on one rank. */
static void measure_loss(size_t tokens)
{
    stepping s;
    bp_loss_config config;
    bp_cp_split_config split;
    if (!bench_begin("a step of the loss, 64 sequences"))
        return;
    open_batch(tokens, 1, &s.b);
    bp_cp_split_destroy(&s.b.split);
    must(bp_cp_split_config_init(&split, sizeof split));
    split.cu_seqlens = s.b.cu;
    split.sequences = SEQUENCES;
    must(bp_cp_split_create(&split, &s.b.split));
    must(bp_loss_config_init(&config, sizeof config));
    config.max_sequences = SEQUENCES;
    config.threads = 1;
    must(bp_loss_create(s.b.device, &config, &s.loss));
    free(s.b.local);
    s.b.local = take(tokens); /* the mask */
    s.logprob = take(tokens * sizeof *s.logprob);
    s.seed = take(tokens * sizeof *s.seed);
    must(bp_loss_values_init(&s.values, sizeof s.values));
    s.values.tokens = tokens;
    s.values.mask = (bp_token_values){.data = s.b.local, .stride = 1};
    s.values.logprob = (bp_token_values){.data = s.logprob, .stride = 1};
    add_figure("plain loop, one sum of all tokens", run_sum, &s, tokens);
    add_figure("bp_loss_add and bp_loss_reduce", run_step, &s, tokens);
    add_figure("bp_loss_seed", run_seed, &s, tokens);
    add_figure("empty job on the stream's thread", run_nothing, &s.b, tokens);
    bench_end();
    bp_loss_destroy(&s.loss);
    free(s.logprob);
    free(s.seed);
    close_batch(&s.b);
}

int main(int argc, char **argv)
{
    bench_start(argc, argv, 31, "", NULL, 0, 0);
    measure_rearrange(131072, 1);
    measure_rearrange(131072, 8);
    measure_rearrange(16384, 8192);
    measure_loss(131072);
    return bench_finish_groups();
}

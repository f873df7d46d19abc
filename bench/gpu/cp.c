/* SPDX-License-Identifier: Apache-2.0 */
/* On a GPU: the range of logits, sums and seeds of the loss, and rearranging tokens of split batches. All are memory-bound, so their
 * baseline is a copy of the same bytes. */
#include "gpu/gpu.h"

#include <bucketpool/loss.h>

#include <stdio.h>
#include <stdlib.h>

#define RANKS 8u
#define TOKENS 131072u
#define SMALL_TOKENS 268435456u /* of 4 bytes; an eighth of them exceeds the caches */
#define LOSS_TOKENS 33554432u
#define RANGE_TOKENS 65536u
#define RANGE_COLUMNS 128000u
#define MAX_SEQUENCES 160u
#define SMALL_BYTES (16u << 20)

typedef struct cp_bench {
    bp_stream *stream;
    char *from, *to;
    uint64_t half; /* bytes from source to destination of a copy */
    bp_cp *cp;
    bp_loss *loss;
    bp_logprob *logprob;
    bp_cp_split *splits[3]; /* for RANKS ranks, for one rank, for one sequence on one rank */
    uint64_t tokens, token_bytes, columns, sequences;
} cp_bench;

/* ---- batches ------------------------------------------------------------------------------------------------------- */

/* Random lengths in [16, 4080] per TOKENS tokens; padding at the end. */
static uint64_t make_lengths(uint64_t tokens, uint64_t *cu)
{
    const uint64_t scale = tokens > TOKENS ? tokens / TOKENS : 1;
    uint64_t sequences = 0;
    for (cu[0] = 0; cu[sequences] < tokens && sequences < MAX_SEQUENCES; sequences++) {
        uint64_t length = scale * 16 * (1 + sequences * 97 % 255), left = tokens - cu[sequences];
        cu[sequences + 1] = cu[sequences] + (length < left ? length : left);
    }
    return sequences;
}

static bp_cp_split *new_split(const uint64_t *cu, uint64_t sequences, uint32_t ranks)
{
    bp_cp_split_config config;
    bp_cp_split *split;
    must(bp_cp_split_config_init(&config, sizeof config));
    config.cu_seqlens = cu;
    config.cu_dtype = BP_DTYPE_INT64;
    config.sequences = sequences;
    config.ranks = ranks;
    config.rank = ranks / 2;
    must(bp_cp_split_create(&config, &split));
    return split;
}

static void make_splits(cp_bench *b)
{
    uint64_t cu[MAX_SEQUENCES + 1];
    const uint64_t one[] = {0, b->tokens};
    b->sequences = make_lengths(b->tokens, cu);
    b->splits[0] = new_split(cu, b->sequences, RANKS);
    b->splits[1] = new_split(cu, b->sequences, 1);
    b->splits[2] = new_split(one, 1, 1);
}

/* ---- work -------------------------------------------------------------------------------------------------------- */

static void rearrange(const cp_bench *b, bp_cp_order from, bp_cp_order to, bp_cp_shift shift)
{
    const bp_cp_split_info info = *bp_cp_split_get_info(b->splits[0]);
    const uint64_t places[] = {info.packed_tokens, info.padded_tokens, info.local_tokens, info.padded_tokens};
    bp_cp_rearrangement r;
    must(bp_cp_rearrangement_init(&r, sizeof r));
    r.from_order = from;
    r.to_order = to;
    r.shift = shift;
    r.from = (bp_cp_tensor){.data = b->from, .tokens = places[from], .token_bytes = b->token_bytes};
    r.to = (bp_cp_tensor){.data = b->to, .tokens = places[to], .token_bytes = b->token_bytes};
    must(bp_cp_rearrange(b->cp, b->splits[0], &r, b->stream));
}

static void copy(void *user)
{
    const cp_bench *b = user;
    must(bp_stream_copy(b->stream, b->to, b->from, b->half));
}

static void to_gathered(void *user)
{
    rearrange(user, BP_CP_PACKED, BP_CP_GATHERED, BP_CP_KEEP);
}

static void from_gathered(void *user)
{
    rearrange(user, BP_CP_GATHERED, BP_CP_PACKED, BP_CP_KEEP);
}

static void to_padded(void *user)
{
    rearrange(user, BP_CP_PACKED, BP_CP_PADDED, BP_CP_NEXT);
}

static void to_local(void *user)
{
    rearrange(user, BP_CP_PACKED, BP_CP_LOCAL, BP_CP_KEEP);
}

static void add(const cp_bench *b, const bp_cp_split *split)
{
    bp_loss_values values;
    bp_token_values *const planes[] = {&values.logprob, &values.entropy, &values.logit_min, &values.logit_max};
    must(bp_loss_values_init(&values, sizeof values));
    values.tokens = b->tokens;
    values.mask = (bp_token_values){b->from + 16 * b->tokens, 0, 1};
    for (unsigned i = 0; i < 4; i++)
        *planes[i] = (bp_token_values){b->from + 4 * i * b->tokens, 0, 1};
    must(bp_loss_begin(b->loss));
    must(bp_loss_add(b->loss, split, &values, b->stream));
}

static void add_sequences(void *user)
{
    const cp_bench *b = user;
    add(b, b->splits[1]);
}

static void add_one_sequence(void *user)
{
    const cp_bench *b = user;
    add(b, b->splits[2]);
}

static void seed(void *user)
{
    const cp_bench *b = user;
    const bp_token_values mask = {b->from + 16 * b->tokens, 0, 1}, seeds = {b->to, 0, 1};
    must(bp_loss_seed(b->loss, b->splits[1], b->tokens, &mask, -1, &seeds, b->stream));
}

static void range(void *user)
{
    const cp_bench *b = user;
    const bp_token_values min = {b->to, 0, 1}, largest = {b->to + 4 * b->tokens, 0, 1};
    bp_logprob_batch batch;
    must(bp_logprob_batch_init(&batch, sizeof batch));
    batch.logits = (bp_token_rows){
        .data = b->from, .dtype = BP_DTYPE_BF16, .batch = 1, .sequence = b->tokens, .columns = b->columns};
    must(bp_logprob_range(b->logprob, &batch, &min, &largest, b->stream));
}

/* ---- groups ------------------------------------------------------------------------------------------------------ */

typedef struct line {
    const char *name;
    bench_once *work;
    uint64_t bytes, logits; /* bytes moved; 0: no logits */
} line;

/* Windows of several milliseconds; a single run for the small shapes of --divide or an emulated GPU. */
static void measure(cp_bench *b, const line *lines, size_t count)
{
    const int small = b->half < SMALL_BYTES;
    bench_turns(small ? 3 : 11);
    for (size_t i = 0; i < count; i++) {
        const uint64_t many = small ? 1 : 1 + (8ull << 30) / (1 + lines[i].bytes);
        bench_moves(bench_add_once(lines[i].name, lines[i].work, b, b->stream, many < 200 ? (size_t)many : 200),
                    lines[i].bytes, lines[i].logits);
    }
    bench_end();
}

static void measure_rearrangements(cp_bench *b)
{
    const uint64_t all = 2 * b->tokens * b->token_bytes;
    const line lines[] = {{"copy", copy, all, 0},
                          {"packed to gathered order", to_gathered, all, 0},
                          {"gathered to packed order", from_gathered, all, 0},
                          {"packed to padded order, the next token's", to_padded, all, 0},
                          {"packed to local order, one of 8 ranks", to_local, all / RANKS, 0}};
    measure(b, lines, sizeof lines / sizeof *lines);
}

static void measure_loss(cp_bench *b)
{
    char sums[40];
    snprintf(sums, sizeof sums, "sums, %llu sequences", (unsigned long long)b->sequences);
    const line lines[] = {{"copy, 17 bytes per token", copy, 2 * b->half, 0},
                          {sums, add_sequences, 17 * b->tokens, 0},
                          {"sums, one sequence", add_one_sequence, 17 * b->tokens, 0},
                          {"seeds", seed, 5 * b->tokens, 0}};
    must(bp_loss_count_set(b->loss, b->tokens));
    measure(b, lines, sizeof lines / sizeof *lines);
}

static void measure_range(cp_bench *b)
{
    const uint64_t logits = b->tokens * b->columns;
    const line lines[] = {{"copy, 2 bytes per logit", copy, 2 * b->half, logits},
                          {"smallest and largest logit", range, 2 * logits, logits}};
    measure(b, lines, sizeof lines / sizeof *lines);
}

static bp_status make_clients(cp_bench *b, bp_device *device)
{
    bp_cp_config cp;
    bp_loss_config loss;
    bp_logprob_config logprob;
    must(bp_cp_config_init(&cp, sizeof cp));
    must(bp_loss_config_init(&loss, sizeof loss));
    must(bp_logprob_config_init(&logprob, sizeof logprob));
    loss.max_sequences = MAX_SEQUENCES;
    logprob.max_tokens = b->tokens;
    logprob.vocab = b->columns;
    if (b->columns > 0)
        return bp_logprob_create(device, &logprob, &b->logprob);
    bp_status status = bp_cp_create(device, &cp, &b->cp);
    return status == BP_OK ? bp_loss_create(device, &loss, &b->loss) : status;
}

/* Allocates bytes to read and to write, filled with small numbers of every dtype. */
static void group(const gpu *g, cp_bench *b, const char *name, uint64_t from_bytes, uint64_t to_bytes,
                  void (*run)(cp_bench *))
{
    const gpu_part parts[] = {{&b->from, from_bytes}, {&b->to, to_bytes}};
    if (!bench_begin(name) || !gpu_has_room(g, from_bytes + to_bytes + (64u << 20)))
        return;
    bp_device *device = gpu_device(g);
    if (make_clients(b, device) == BP_OK) {
        must(bp_stream_create(device, "cp", &b->stream));
        make_splits(b);
        const uint64_t memory = gpu_place(g, parts, 2);
        must(bp_stream_fill(b->stream, b->from, 0x3c, from_bytes));
        must(bp_stream_fill(b->stream, b->to, 0x3c, to_bytes));
        must(bp_stream_synchronize(b->stream));
        run(b);
        gpu_free(g, memory);
        for (size_t i = 0; i < sizeof b->splits / sizeof *b->splits; i++)
            bp_cp_split_destroy(&b->splits[i]);
    } else {
        bench_skip("%s", bp_error_detail());
    }
    bp_cp_destroy(&b->cp);
    bp_loss_destroy(&b->loss);
    bp_logprob_destroy(&b->logprob);
    bp_stream_destroy(&b->stream);
    bp_device_destroy(&device);
}

static void rearrangement(const gpu *g, uint64_t tokens, uint64_t token_bytes)
{
    char name[64];
    cp_bench b = {.tokens = tokens, .token_bytes = token_bytes, .half = tokens * token_bytes};
    const uint64_t bytes = (tokens + 2 * RANKS * MAX_SEQUENCES) * token_bytes;
    snprintf(name, sizeof name, "gpu: rearrange %llu x %llu bytes", (unsigned long long)tokens,
             (unsigned long long)token_bytes);
    group(g, &b, name, bytes, bytes, measure_rearrangements);
}

void gpu_cp(const gpu *g)
{
    char name[64];
    cp_bench logits = {.tokens = gpu_divided(g, RANGE_TOKENS), .columns = gpu_divided(g, RANGE_COLUMNS)};
    logits.half = logits.tokens * logits.columns;
    snprintf(name, sizeof name, "gpu: range %llu x %llu", (unsigned long long)logits.tokens,
             (unsigned long long)logits.columns);
    group(g, &logits, name, 2 * logits.half, logits.half + 8 * logits.tokens, measure_range);
    cp_bench loss = {.tokens = gpu_divided(g, LOSS_TOKENS)};
    loss.half = 17 * loss.tokens / 2;
    snprintf(name, sizeof name, "gpu: loss of %llu tokens", (unsigned long long)loss.tokens);
    group(g, &loss, name, 17 * loss.tokens, 17 * loss.tokens, measure_loss);
    rearrangement(g, gpu_divided(g, TOKENS), 8192);
    rearrangement(g, gpu_divided(g, SMALL_TOKENS), 4);
}

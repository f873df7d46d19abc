/* SPDX-License-Identifier: Apache-2.0 */
/* Log-probabilities, threads as ranks of a communicator, and threads that share a pool. */
#include "soak.h"

#include <bucketpool/cp.h>
#include <bucketpool/lm_head.h>
#include <bucketpool/logprob.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 24, HIDDEN = 8, VOCAB = 96, RANKS = 3 };

/* ---- log-probabilities ---------------------------------------------------------------------------------------------- */

/* Inputs and outputs of a call, on the heap so that accesses beyond them are found. */
typedef struct tensors {
    float *logits, *gradient, *hidden, *weight, *hidden_grad, *weight_grad;
    float *logprob, *entropy, *upstream;
    int64_t *target;
    uint8_t *saved;
    uint64_t saved_bytes;
} tensors;

static float *random_floats(dice *d, size_t count)
{
    float *made = malloc(count * sizeof *made);
    must(made != NULL);
    for (size_t i = 0; i < count; i++)
        made[i] = (float)below(d, 1000) / 500 - 1;
    return made;
}

static tensors random_tensors(dice *d, uint64_t vocab)
{
    tensors t = {.logits = random_floats(d, TOKENS * vocab),
                 .gradient = random_floats(d, TOKENS * vocab),
                 .hidden = random_floats(d, TOKENS * HIDDEN),
                 .hidden_grad = random_floats(d, TOKENS * HIDDEN),
                 .weight = random_floats(d, vocab * HIDDEN),
                 .weight_grad = random_floats(d, vocab * HIDDEN),
                 .logprob = random_floats(d, TOKENS),
                 .entropy = random_floats(d, TOKENS),
                 .upstream = random_floats(d, TOKENS),
                 .target = malloc(TOKENS * sizeof(int64_t))};
    must_ok(bp_logprob_saved_bytes(TOKENS, 1, &t.saved_bytes));
    t.saved = malloc(t.saved_bytes);
    must(t.target != NULL && t.saved != NULL);
    for (size_t i = 0; i < TOKENS; i++)
        t.target[i] = below(d, (uint32_t)vocab);
    return t;
}

static void free_tensors(tensors *t)
{
    void *const all[] = {t->logits,  t->gradient, t->hidden,   t->hidden_grad, t->weight, t->weight_grad,
                         t->logprob, t->entropy,  t->upstream, t->target,      t->saved};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static bp_token_values values(void *data)
{
    return (bp_token_values){.data = data, .stride = 1};
}

static bp_token_rows rows(void *data, uint64_t columns)
{
    return (bp_token_rows){.data = data, .dtype = BP_DTYPE_FP32, .batch = 1, .sequence = TOKENS, .columns = columns};
}

static bp_logprob_outputs outputs_of(const tensors *t)
{
    bp_logprob_outputs outputs;
    must_ok(bp_logprob_outputs_init(&outputs, sizeof outputs));
    outputs.logprob = values(t->logprob);
    outputs.entropy = values(t->entropy);
    outputs.saved = t->saved;
    outputs.saved_bytes = t->saved_bytes;
    return outputs;
}

/* Forward and backward of a client; the first failure of a rank ends it. */
static bp_status pass(dice *d, bp_device *device, bp_comm *comm, uint64_t vocab, uint64_t start, bp_stream *stream)
{
    bp_logprob_config config;
    bp_logprob_batch batch;
    bp_logprob_gradients gradients;
    bp_logprob *client = NULL;
    tensors t = random_tensors(d, vocab);
    bp_logprob_outputs outputs = outputs_of(&t);
    must_ok(bp_logprob_config_init(&config, sizeof config));
    must_ok(bp_logprob_batch_init(&batch, sizeof batch));
    must_ok(bp_logprob_gradients_init(&gradients, sizeof gradients));
    config.max_tokens = TOKENS;
    config.vocab = vocab;
    config.vocab_start = start;
    config.comm = comm;
    config.threads = 1;
    batch.logits = rows(t.logits, vocab);
    batch.tokens.target = values(t.target);
    gradients.logprob_grad = values(t.upstream);
    gradients.saved = t.saved;
    gradients.saved_bytes = t.saved_bytes;
    gradients.logits_grad = rows(t.gradient, vocab);
    bp_status status = bp_logprob_create(device, &config, &client);
    if (status == BP_OK)
        status = bp_logprob_forward(client, &batch, &outputs, stream);
    if (status == BP_OK)
        status = bp_logprob_backward(client, &batch, &gradients, stream);
    if (stream != NULL)
        must_ok(bp_stream_synchronize(stream));
    for (size_t i = 0; i < TOKENS && status == BP_OK; i++)
        must(t.logprob[i] <= 0 && t.entropy[i] >= 0);
    bp_logprob_destroy(&client);
    free_tensors(&t);
    return status;
}

static void fused_head(dice *d, bp_device *device)
{
    bp_lm_head_config config;
    bp_lm_head_batch batch;
    bp_lm_head_gradients gradients;
    bp_lm_head *head = NULL;
    must_ok(bp_lm_head_config_init(&config, sizeof config));
    must_ok(bp_lm_head_batch_init(&batch, sizeof batch));
    must_ok(bp_lm_head_gradients_init(&gradients, sizeof gradients));
    config.max_tokens = TOKENS;
    config.hidden = HIDDEN;
    config.vocab = VOCAB;
    config.dtype = BP_DTYPE_FP32;
    config.chunk = 7;
    config.threads = 1;
    bp_status status = bp_lm_head_create(device, &config, &head);
    if (status == BP_ERR_UNSUPPORTED) /* no BLAS library */
        return;
    must_ok(status);
    tensors t = random_tensors(d, VOCAB);
    bp_logprob_outputs outputs = outputs_of(&t);
    batch.hidden = rows(t.hidden, HIDDEN);
    batch.weight = t.weight;
    batch.tokens.target = values(t.target);
    gradients.logprob_grad = values(t.upstream);
    gradients.saved = t.saved;
    gradients.saved_bytes = t.saved_bytes;
    gradients.hidden_grad = rows(t.hidden_grad, HIDDEN);
    gradients.weight_grad = t.weight_grad;
    must_ok(bp_lm_head_forward(head, &batch, &outputs, NULL));
    must_ok(bp_lm_head_backward(head, &batch, &gradients, NULL));
    bp_lm_head_destroy(&head);
    free_tensors(&t);
}

/* Packed sequences in the order of a context-parallel rank and back. */
static void rearrange(dice *d, bp_device *device)
{
    int64_t ends[] = {0, 3, 3 + (int64_t)below(d, 20), 30}, *there, *local, *back;
    bp_cp_split_config config;
    bp_cp_config client;
    bp_cp_split *split = NULL;
    bp_cp *cp = NULL;
    bp_cp_rearrangement r;
    must_ok(bp_cp_split_config_init(&config, sizeof config));
    config.cu_seqlens = ends;
    config.sequences = 3;
    config.ranks = 1;
    must_ok(bp_cp_split_create(&config, &split));
    const bp_cp_split_info *info = bp_cp_split_get_info(split);
    there = calloc(info->packed_tokens + 1, sizeof *there);
    back = calloc(info->packed_tokens + 1, sizeof *back);
    local = calloc(info->local_tokens + 1, sizeof *local);
    must(there != NULL && back != NULL && local != NULL);
    for (size_t i = 0; i < info->packed_tokens; i++)
        there[i] = (int64_t)i + 1;
    must_ok(bp_cp_config_init(&client, sizeof client));
    client.threads = 1;
    must_ok(bp_cp_create(device, &client, &cp));
    must_ok(bp_cp_rearrangement_init(&r, sizeof r));
    r.from = (bp_cp_tensor){.data = there, .tokens = info->packed_tokens, .token_bytes = sizeof *there};
    r.to = (bp_cp_tensor){.data = local, .tokens = info->local_tokens, .token_bytes = sizeof *local};
    must_ok(bp_cp_rearrange(cp, split, &r, NULL));
    r.from = r.to;
    r.from_order = BP_CP_LOCAL;
    r.to_order = BP_CP_PACKED;
    r.to = (bp_cp_tensor){.data = back, .tokens = info->packed_tokens, .token_bytes = sizeof *back};
    must_ok(bp_cp_rearrange(cp, split, &r, NULL));
    must(memcmp(there, back, info->packed_tokens * sizeof *there) == 0);
    bp_cp_destroy(&cp);
    bp_cp_split_destroy(&split);
    free(there);
    free(back);
    free(local);
}

void logprob_round(soak *s)
{
    dice *d = &s->dice;
    bp_device *device = random_device(s, HOST);
    bp_stream *stream = NULL;
    must_ok(bp_stream_create(device, "logprob", &stream));
    must_ok(pass(d, device, NULL, VOCAB, 0, chance(d, 2) ? stream : NULL));
    fused_head(d, device);
    rearrange(d, device);
    bp_stream_destroy(&stream);
    bp_device_destroy(&device);
}

/* ---- ranks ------------------------------------------------------------------------------------------------------------ */

/* The rendezvous of an exchange: all ranks arrive, copy what the others gave, and leave. */
typedef struct room {
    pthread_barrier_t all;
    const void *given[RANKS];
    uint32_t ranks, countdown; /* the exchange that all ranks fail; 0: none */
} room;

typedef struct seat {
    room *room;
    uint32_t rank, exchanges;
    dice dice;
    soak *s;
} seat;

static bp_status exchange(void *user, const void *mine, uint64_t bytes, void *all)
{
    seat *me = user;
    room *r = me->room;
    if (++me->exchanges == r->countdown)
        return bp_error_record(BP_ERR_COMM, "the exchange fails on all ranks");
    r->given[me->rank] = mine;
    pthread_barrier_wait(&r->all);
    for (uint32_t i = 0; i < r->ranks; i++)
        memcpy((char *)all + i * bytes, r->given[i], bytes);
    pthread_barrier_wait(&r->all);
    return BP_OK;
}

static void *run_rank(void *argument)
{
    seat *me = argument;
    bp_comm_callbacks callbacks = {
        .size = sizeof callbacks, .rank = me->rank, .ranks = me->room->ranks, .exchange = exchange};
    bp_comm *comm = NULL;
    soak mine = {.dice = me->dice}; /* with the random numbers of this thread */
    bp_device *device = random_device(&mine, HOST);
    must_ok(bp_comm_create_callback(&callbacks, me, "threads", &comm));
    for (int n = 0; n < 2; n++) {
        bp_status status = pass(&mine.dice, device, comm, VOCAB, (uint64_t)me->rank * VOCAB, NULL);
        must(status == BP_OK || me->room->countdown > 0);
        if (status != BP_OK)
            break;
    }
    bp_comm_destroy(&comm);
    bp_device_destroy(&device);
    return NULL;
}

void rank_round(soak *s)
{
    room r = {.ranks = 2 + below(&s->dice, RANKS - 1)};
    seat seats[RANKS];
    pthread_t threads[RANKS];
    r.countdown = chance(&s->dice, 3) ? 1 + below(&s->dice, 5) : 0;
    s->refusals += r.countdown > 0;
    must(pthread_barrier_init(&r.all, NULL, r.ranks) == 0);
    for (uint32_t i = 0; i < r.ranks; i++) {
        seats[i] = (seat){.room = &r, .rank = i, .dice = {s->dice.state + i + 1}};
        must(pthread_create(&threads[i], NULL, run_rank, &seats[i]) == 0);
    }
    for (uint32_t i = 0; i < r.ranks; i++)
        must(pthread_join(threads[i], NULL) == 0);
    pthread_barrier_destroy(&r.all);
}

/* ---- threads ---------------------------------------------------------------------------------------------------------- */

#define THREADS 3

typedef struct worker {
    const bench *b;
    uint32_t number;
    dice dice;
} worker;

/* Each thread has separate requests and a stream; buffers are shared, so that acquires find them busy. */
static void *work(void *argument)
{
    worker *w = argument;
    const bench *b = w->b;
    uint32_t requests = (uint32_t)bp_plan_get_info(b->plan)->request_count;
    for (int n = 0; n < 60; n++) {
        uint32_t id = THREADS * below(&w->dice, requests / THREADS + 1) + w->number;
        int acquired = 0;
        if (id >= requests)
            continue;
        bp_status status = bp_pool_try_acquire(b->pool, &id, 1, b->streams[w->number], NULL, &acquired);
        must(status == BP_OK || status == BP_ERR_SCHEDULE);
        if (status == BP_OK && acquired)
            must_ok(bp_pool_release(b->pool, &id, 1, b->streams[w->number]));
    }
    scenario c = random_scenario(&w->dice);
    bp_plan *plan = random_plan(&w->dice, &c), *none = NULL;
    must(bp_plan_create(c.buckets, NULL, NULL, &none) == BP_ERR_INVALID_ARGUMENT && *bp_error_detail() != '\0');
    bp_plan_destroy(&plan);
    free_scenario(&c);
    return NULL;
}

void thread_round(soak *s)
{
    bench b = open_bench(s, HOST, false);
    worker workers[THREADS];
    pthread_t threads[THREADS];
    for (uint32_t i = 0; i < THREADS; i++) {
        workers[i] = (worker){.b = &b, .number = i, .dice = {s->dice.state + i + 1}};
        must(pthread_create(&threads[i], NULL, work, &workers[i]) == 0);
    }
    for (uint32_t i = 0; i < THREADS; i++)
        must(pthread_join(threads[i], NULL) == 0);
    close_bench(&b);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The loss of a fine-tuning step on packed sequences, under MPI. Data-parallel (DP) ranks have different sequences, context-parallel (CP)
 * ranks different tokens of every sequence, tensor-parallel (TP) ranks different columns of the vocabulary. Nobody gathers logits, and what
 * is printed is the same however the ranks are arranged:
 *
 *   mpirun -n 8 cp_sft_loss --tp 2 --cp 2 --dp 2 --seed 1
 *
 * docs/guides/context_parallelism.md explains the calls; the loader and the model are toys (cp_sft_model.c). A rank that fails must not leave the others waiting.
 * So bp_loss_create comes first; from then on what fails is kept as a status until bp_loss_reduce, which tells it to all, and calls
 * that wait for other ranks are made by all ranks, come what may. */
#include <bucketpool/bucketpool.h>
#include <bucketpool/comm_mpi.h>
#include <bucketpool/loss.h>
#include <inttypes.h>
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "cp_sft_model.h"

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        bp_status try_status = (call);                                                                                 \
        if (try_status != BP_OK)                                                                                       \
            return try_status;                                                                                         \
    } while (0)

/* Of this rank: the whole batch, how it is split, and its own tokens. */
typedef struct micro_batch {
    packed_batch packed;
    bp_cp_split *split;
    local_batch local;
} micro_batch;

typedef struct job {
    settings s;
    uint32_t rank, tp_rank, cp_rank, dp_rank;
    bp_comm *all, *vocab, *replicas; /* all ranks; ranks of one vocabulary; ranks whose gradients are averaged */
    bp_device *device;
    bp_stream *stream;
    bp_loss *loss;
    bp_logprob *logprobs;
    bp_cp *cp;
    uint64_t multiple; /* of padded lengths */
    model model;
    micro_batch *batches;
    double *squares; /* a number from each TP rank */
} job;

static bp_status no_memory(void)
{
    return bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory for the batches and the model");
}

/* ---- before the step ------------------------------------------------------------------------------------------------ */

static bp_status split_ranks(uint32_t color, uint32_t rank, bp_comm **comm)
{
    MPI_Comm part;
    if (MPI_Comm_split(MPI_COMM_WORLD, (int)color, (int)rank, &part) != MPI_SUCCESS)
        return bp_error_record(BP_ERR_COMM, "MPI_Comm_split failed");
    const bp_status status = bp_comm_create_mpi(&part, 0, comm);
    MPI_Comm_free(&part); /* bp_comm_create_mpi made its own of it */
    return status;
}

/* TP ranks are neighbours, then come CP and DP. */
static bp_status find_place(job *j)
{
    const uint32_t tp = (uint32_t)j->s.tp, cp = (uint32_t)j->s.cp;
    j->tp_rank = j->rank % tp;
    j->cp_rank = j->rank / tp % cp;
    j->dp_rank = j->rank / tp / cp;
    TRY(bp_cp_multiple(cp, tp, 0, &j->multiple));
    TRY(bp_device_create_host(NULL, &j->device));
    return bp_stream_create(j->device, "step", &j->stream);
}

/* Collective over all ranks, which compare how they are arranged: where it fails, it does so on all of them. */
static bp_status make_loss(job *j)
{
    bp_loss_config config;
    TRY(bp_loss_config_init(&config, sizeof config)); /* epsilon 1e-5, gradients averaged over DP x CP ranks */
    config.tp = (uint32_t)j->s.tp;
    config.cp = (uint32_t)j->s.cp;
    config.dp = (uint32_t)j->s.dp;
    config.tp_rank = j->tp_rank;
    config.cp_rank = j->cp_rank;
    config.dp_rank = j->dp_rank;
    config.comm = j->all;
    config.max_sequences = max_sequences(&j->s) * j->s.micro_batches;
    return bp_loss_create(j->device, &config, &j->loss);
}

static bp_status make_groups(job *j)
{
    TRY(split_ranks(j->rank / (uint32_t)j->s.tp, j->rank, &j->vocab));
    return split_ranks(j->tp_rank, j->rank, &j->replicas);
}

/* Collective over TP ranks, so before anything that may fail on one of them alone. */
static bp_status make_logprobs(job *j)
{
    bp_logprob_config config;
    TRY(bp_logprob_config_init(&config, sizeof config));
    config.max_tokens = max_sequences(&j->s) * (longest_sequence() + j->multiple) / j->s.cp + 1;
    shard_of(j->s.vocab, j->s.tp, j->tp_rank, &config.vocab_start, &config.vocab);
    config.comm = j->vocab;
    return bp_logprob_create(j->device, &config, &j->logprobs);
}

/* ---- a micro-batch and its split ------------------------------------------------------------------------------------ */

/* Without a communicator: bp_loss_reduce compares what CP ranks added, and until then nobody waits for a rank that
 * failed. */
static bp_status split_batch(const job *j, micro_batch *b)
{
    bp_cp_split_config config;
    uint64_t saved_bytes;
    TRY(bp_cp_split_config_init(&config, sizeof config));
    config.cu_seqlens = b->packed.cu_seqlens;
    config.sequences = b->packed.sequences;
    config.ranks = (uint32_t)j->s.cp;
    config.rank = j->cp_rank;
    config.multiple = j->multiple;
    TRY(bp_cp_split_create(&config, &b->split));
    const uint64_t tokens = bp_cp_split_get_info(b->split)->local_tokens;
    TRY(bp_logprob_saved_bytes(tokens, 1, &saved_bytes));
    return make_local(&j->model, tokens, saved_bytes, &b->local) ? BP_OK : no_memory();
}

static bp_status to_local(const job *j, const micro_batch *b, void *packed, void *local, uint64_t bytes,
                          bp_cp_shift shift)
{
    bp_cp_rearrangement r;
    TRY(bp_cp_rearrangement_init(&r, sizeof r)); /* packed to local; places without a token become 0 */
    r.from = (bp_cp_tensor){.data = packed, .tokens = b->packed.tokens, .token_bytes = bytes};
    r.to = (bp_cp_tensor){.data = local, .tokens = b->local.tokens, .token_bytes = bytes};
    r.shift = shift;
    return bp_cp_rearrange(j->cp, b->split, &r, j->stream);
}

/* Ids and positions belong to the token itself, labels and the loss mask to the next one. */
static bp_status distribute(const job *j, const micro_batch *b)
{
    const packed_batch *from = &b->packed;
    const local_batch *to = &b->local;
    TRY(to_local(j, b, from->ids, to->ids, sizeof *to->ids, BP_CP_KEEP));
    TRY(to_local(j, b, from->offsets, to->offsets, sizeof *to->offsets, BP_CP_KEEP));
    TRY(to_local(j, b, from->ids, to->labels, sizeof *to->labels, BP_CP_NEXT));
    TRY(to_local(j, b, from->mask, to->mask, sizeof *to->mask, BP_CP_NEXT));
    return bp_stream_synchronize(j->stream); /* the model runs on the host */
}

static bp_token_values each(void *data)
{
    return (bp_token_values){.data = data, .stride = 1};
}

/* Tokens are counted first: the gradients of every micro-batch are divided by the number of all. */
static bp_status prepare(const job *j, uint64_t number, micro_batch *b)
{
    bp_loss_values count;
    if (!load(&j->s, j->dp_rank, number, &b->packed))
        return no_memory();
    TRY(split_batch(j, b));
    TRY(distribute(j, b));
    compute_logits(&j->model, &b->local);
    TRY(bp_loss_values_init(&count, sizeof count));
    count.tokens = b->local.tokens;
    count.mask = each(b->local.mask);
    return bp_loss_add(j->loss, b->split, &count, j->stream);
}

/* Everything that may fail on one rank alone. */
static bp_status prepare_all(job *j)
{
    bp_cp_config config;
    TRY(bp_cp_config_init(&config, sizeof config)); /* nothing is gathered: no communicator, no memory */
    TRY(bp_cp_create(j->device, &config, &j->cp));
    j->squares = calloc(j->s.tp, sizeof *j->squares);
    j->batches = calloc(j->s.micro_batches, sizeof *j->batches);
    if (j->squares == NULL || j->batches == NULL || !make_model(&j->s, j->tp_rank, &j->model))
        return no_memory();
    TRY(bp_loss_begin(j->loss));
    for (uint64_t i = 0; i < j->s.micro_batches; i++)
        TRY(prepare(j, i, &j->batches[i]));
    return BP_OK;
}

/* ---- forward and backward ------------------------------------------------------------------------------------------- */

static bp_token_rows rows(const job *j, const local_batch *l, float *data)
{
    return (bp_token_rows){
        .data = data, .dtype = BP_DTYPE_FP32, .batch = 1, .sequence = l->tokens, .columns = j->model.vocab};
}

static bp_status describe(const job *j, const local_batch *l, bp_logprob_batch *call)
{
    TRY(bp_logprob_batch_init(call, sizeof *call));
    call->logits = rows(j, l, l->logits);
    call->tokens.target = each(l->labels);
    call->tokens.target_dtype = BP_DTYPE_INT32;
    call->tokens.mask = each(l->mask); /* logits of tokens that do not count are not even read */
    return BP_OK;
}

static bp_status forward(const job *j, const micro_batch *b)
{
    const local_batch *l = &b->local;
    bp_logprob_batch call;
    bp_logprob_outputs outputs;
    bp_loss_values values;
    TRY(describe(j, l, &call));
    TRY(bp_logprob_outputs_init(&outputs, sizeof outputs));
    TRY(bp_loss_values_init(&values, sizeof values));
    outputs.logprob = values.logprob = each(l->logprob);
    outputs.entropy = values.entropy = each(l->entropy);
    outputs.saved = l->saved;
    outputs.saved_bytes = l->saved_bytes;
    values.tokens = l->tokens;
    values.mask = each(l->mask);
    values.logit_min = each(l->logit_min);
    values.logit_max = each(l->logit_max);
    TRY(bp_logprob_forward(j->logprobs, &call, &outputs, j->stream)); /* waits for the other TP ranks */
    TRY(bp_logprob_range(j->logprobs, &call, &values.logit_min, &values.logit_max, j->stream));
    return bp_loss_add(j->loss, b->split, &values, j->stream);
}

static bp_status backward(const job *j, const micro_batch *b)
{
    const local_batch *l = &b->local;
    const bp_token_values mask = each(l->mask), seed = each(l->seed);
    bp_logprob_batch call;
    bp_logprob_gradients gradients;
    TRY(describe(j, l, &call));
    TRY(bp_logprob_gradients_init(&gradients, sizeof gradients));
    gradients.logprob_grad = seed;
    gradients.saved = l->saved;
    gradients.saved_bytes = l->saved_bytes;
    gradients.logits_grad = rows(j, l, l->logits_grad);
    TRY(bp_loss_seed(j->loss, b->split, l->tokens, &mask, -1, &seed, j->stream));
    TRY(bp_logprob_backward(j->logprobs, &call, &gradients, j->stream));
    TRY(bp_stream_synchronize(j->stream));
    add_weight_grad(&j->model, l);
    return BP_OK;
}

/* As in data-parallel runtimes: the mean over DP x CP ranks, and the norm over all shards. */
static bp_status average_gradients(const job *j, double *norm)
{
    const model *m = &j->model;
    double mine = 0, sum = 0;
    for (uint64_t i = 0; i < m->weights; i++)
        m->mean_grad[i] = (float)m->weight_grad[i];
    TRY(bp_comm_all_reduce(j->replicas, m->mean_grad, m->mean_grad, m->weights, BP_DTYPE_FP32, BP_REDUCE_SUM,
                           j->stream));
    TRY(bp_stream_synchronize(j->stream));
    for (uint64_t i = 0; i < m->weights; i++) {
        m->mean_grad[i] /= (float)(j->s.dp * j->s.cp);
        mine += (double)m->mean_grad[i] * m->mean_grad[i];
    }
    TRY(bp_comm_exchange(j->vocab, &mine, sizeof mine, j->squares));
    for (uint64_t i = 0; i < j->s.tp; i++)
        sum += j->squares[i];
    *norm = sqrt(sum);
    return BP_OK;
}

/* ---- the step ------------------------------------------------------------------------------------------------------- */

static bp_status run_step(job *j, bp_loss_statistics *statistics, double *norm)
{
    bp_status status = make_logprobs(j);
    if (status == BP_OK)
        status = prepare_all(j);
    TRY(bp_loss_reduce(j->loss, status, j->stream)); /* counts; and all ranks hear of failures */

    status = bp_loss_begin(j->loss);
    for (uint64_t i = 0; i < j->s.micro_batches; i++) {
        const bp_status done = forward(j, &j->batches[i]);
        if (status == BP_OK)
            status = done;
        if (status == BP_OK)
            status = backward(j, &j->batches[i]);
    }
    TRY(bp_loss_reduce(j->loss, status, j->stream)); /* statistics */
    TRY(bp_loss_statistics_get(j->loss, statistics));
    return average_gradients(j, norm);
}

static void print(const job *j, const bp_loss_statistics *s, double norm)
{
    uint64_t local = 0;
    printf("loss %.17g\ngradient norm %.17g\n", s->loss, norm);
    printf("sequences %" PRIu64 "\ntokens %" PRIu64 "\nvalid tokens %" PRIu64 "\n", s->sequences, s->tokens, s->valid);
    printf("entropy %.17g\nperplexity %.17g\n", s->entropy, s->perplexity);
    printf("least logit %.17g\nlargest logit %.17g\n", s->logit_min, s->logit_max);
    for (uint64_t i = 0; i < j->s.micro_batches; i++)
        local += j->batches[i].local.tokens;
    print_saved_bytes(&j->s, local);
}

/* Clients and streams wait for their work, which uses the rest. */
static void clean_up(job *j)
{
    bp_cp_destroy(&j->cp);
    bp_logprob_destroy(&j->logprobs);
    bp_loss_destroy(&j->loss);
    bp_stream_destroy(&j->stream);
    bp_device_destroy(&j->device);
    for (uint64_t i = 0; j->batches != NULL && i < j->s.micro_batches; i++) {
        bp_cp_split_destroy(&j->batches[i].split);
        free_local(&j->batches[i].local);
        unload(&j->batches[i].packed);
    }
    free(j->batches);
    free(j->squares);
    free_model(&j->model);
    bp_comm_destroy(&j->replicas);
    bp_comm_destroy(&j->vocab);
    bp_comm_destroy(&j->all); /* the last communicator ends MPI, when all ranks destroy it */
}

static int report(const job *j, bp_status status)
{
    fprintf(stderr, "cp_sft_loss: rank %u: %s: %s\n", j->rank, bp_status_name(status), bp_error_detail());
    return 1;
}

/* For a failure on one rank: exits without MPI_Finalize, so that mpirun ends the waiting ranks. */
static void must(const job *j, bp_status status)
{
    if (status != BP_OK)
        exit(report(j, status));
}

int main(int argc, char **argv)
{
    job j = {0};
    bp_loss_statistics statistics = {.size = sizeof statistics};
    double norm = 0;
    int code = parse(argc, argv, &j.s);
    if (code != GO_ON)
        return code;
    must(&j, bp_comm_create_mpi(NULL, 0, &j.all)); /* starts MPI */
    j.rank = bp_comm_get_info(j.all)->rank;
    must(&j, find_place(&j));
    bp_status status = make_loss(&j);
    if (status == BP_OK) {
        must(&j, make_groups(&j));
        status = run_step(&j, &statistics, &norm);
    }
    code = status == BP_OK ? 0 : report(&j, status);
    if (status == BP_OK && j.rank == 0)
        print(&j, &statistics, norm);
    clean_up(&j);
    return code;
}

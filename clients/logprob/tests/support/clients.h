/* SPDX-License-Identifier: Apache-2.0 */
/* The clients behind one table, for suites that every client has to pass: streams, faults, shortages, no allocation. Small tensors are in the
 * memory of any device; results are compared bit by bit with those of an undisturbed call. */
#ifndef BP_TESTS_KERNELS_SUPPORT_CLIENTS_H
#define BP_TESTS_KERNELS_SUPPORT_CLIENTS_H

#include <bucketpool/lm_head.h>
#include <bucketpool/loss.h>

#include <stdbool.h>

enum {
    CLIENT_SEQUENCES = 2,
    CLIENT_TOKENS = 8,
    CLIENT_LOCAL = CLIENT_TOKENS / 2,
    CLIENT_VOCAB = 24,
    CLIENT_HIDDEN = 4
};

/* Inputs, then outputs. */
typedef struct client_tensors {
    float logits[CLIENT_TOKENS * CLIENT_VOCAB], reference[CLIENT_TOKENS * CLIENT_VOCAB];
    float hidden[CLIENT_TOKENS * CLIENT_HIDDEN], weight[CLIENT_VOCAB * CLIENT_HIDDEN];
    float upstream[CLIENT_TOKENS];
    int64_t target[CLIENT_TOKENS];
    uint8_t mask[CLIENT_TOKENS];
    float logprob[CLIENT_TOKENS], entropy[CLIENT_TOKENS], divergence[CLIENT_TOKENS], min[CLIENT_TOKENS];
    float seed[CLIENT_TOKENS], saved[3 * CLIENT_TOKENS], divergence_saved[5 * CLIENT_TOKENS];
    float grad[CLIENT_TOKENS * CLIENT_VOCAB], hidden_grad[CLIENT_TOKENS * CLIENT_HIDDEN];
    float weight_grad[CLIENT_VOCAB * CLIENT_HIDDEN];
    float whole[CLIENT_TOKENS], local[CLIENT_LOCAL], back[CLIENT_LOCAL];
    bp_loss_statistics statistics; /* the host's */
} client_tensors;

/* A call's tensors on the device, and the host's copy. */
typedef struct job {
    bp_device *device;
    client_tensors *there, here;
} job;

typedef struct client_kind client_kind;

typedef struct client {
    const client_kind *kind;
    bp_device *device;
    bp_comm *comm; /* NULL: one rank */
    bp_comm *echo; /* a second rank that repeats the first one's data, with the next shard of the vocabulary */
    uint32_t rank, ranks;
    bp_cp_split *split;
    bp_logprob *logprob;
    bp_lm_head *head;
    bp_cp *cp;
    bp_loss *loss;
} client;

struct client_kind {
    const char *name;
    bool two_ranks;
    bp_status (*create)(client *c);
    /* All kinds of calls; `enqueues`: only those that neither wait for the stream nor exchange. */
    bp_status (*call)(client *c, job *j, bp_stream *stream, bool enqueues);
    bp_status (*check)(client *c); /* waits for the client's work; NULL: there is none */
    bp_pool *(*pool)(const client *c);
};

extern const client_kind CLIENTS[];
#define CLIENT_COUNT 8
#define FOR_CLIENTS(k) for (const client_kind *k = CLIENTS; k < CLIENTS + CLIENT_COUNT; k++)
/* Heads need a BLAS library, or cuBLAS. */
#define FOR_CLIENTS_ON(device, k) FOR_CLIENTS(k) if (is_served(device, k))
bool is_served(bp_device *device, const client_kind *kind);

/* Makes its split and the echoing rank, not the client; `comm`: that of real ranks, or NULL. */
void begin_client(client *c, const client_kind *kind, bp_device *device, bp_comm *comm);
void destroy_client(client *c);
void end_client(client *c);
bool has_client(const client *c);

void begin_job(job *j, bp_device *device, uint32_t variant);
bp_status end_job(job *j);
/* Inputs of this variant, on the host. */
void fill_job(job *j, uint32_t variant);
void upload_job(job *j, bp_stream *stream);
void download_job(job *j, bp_stream *stream);
/* Results of an undisturbed call on the device. */
client_tensors results_of(const client_kind *kind, bp_device *device, uint32_t variant, bool enqueues);

#endif

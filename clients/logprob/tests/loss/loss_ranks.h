/* SPDX-License-Identifier: Apache-2.0 */
/* Threads as tp x cp x dp ranks, each with its part of a corpus and a loss client. */
#ifndef BP_TESTS_KERNELS_LOSS_LOSS_RANKS_H
#define BP_TESTS_KERNELS_LOSS_LOSS_RANKS_H

#include "../support/ranks.h"
#include "token_batches.h"

#define MAX_MICROS 3

/* Rank i of the communicator has place[i] = (dp_rank cp + cp_rank) tp + tp_rank. */
typedef struct topology {
    uint32_t tp, cp, dp;
    uint32_t place[EXCHANGE_RANKS];
} topology;

/* Ranks in place order. */
topology topology_of(uint32_t tp, uint32_t cp, uint32_t dp);
/* A random order from random_below. */
topology shuffled_topology(uint32_t tp, uint32_t cp, uint32_t dp);
uint32_t rank_count(const topology *t);

/* Calls the function with every factorization of 1, 2, 4, 6 and 8 ranks, in a shuffled order. */
typedef void topology_function(const topology *t);
void for_topologies(topology_function *function);

/* A corpus distributed to ranks. Created by the test's thread, read by all. */
typedef struct setting {
    const corpus *c;
    topology t;
    uint32_t micros[EXCHANGE_RANKS]; /* per DP rank */
    pack packs[EXCHANGE_RANKS][MAX_MICROS];
    double epsilon;
    bp_loss_gradients gradients;
    unsigned planes;
    uint64_t max_sequences;
    uint32_t max_delay_us;
    bool enqueues;                           /* collectives are enqueued on streams */
    bool own_streams;                        /* calls without a stream */
    float *seeds;                            /* [tp, tokens of the corpus]; NaN where no rank wrote */
    double (*gradient)[CORPUS_WEIGHTS];      /* per place */
    bp_loss_statistics told[EXCHANGE_RANKS]; /* statistics of the last statistics_are_true, per place */
    void *user;
} setting;

/* Random micro-batches and packs; a DP rank may have none. epsilon 1e-5, averaged, all planes. */
setting new_setting(const corpus *c, const topology *t, uint32_t max_micros);
void free_setting(setting *s);
void run_scene_ranks(setting *s, rank_function *function);

/* Splits, tensors and client of one rank. */
typedef struct seat {
    host_rank *r;
    setting *s;
    uint32_t tp_rank, cp_rank, dp_rank, place;
    uint32_t micros;
    bp_stream *stream;
    bp_loss *loss;
    const pack *packs;
    bp_cp_split *splits[MAX_MICROS];
    slice slices[MAX_MICROS];
} seat;

/* False: an error, which was printed. Call `leave_seat` either way. */
bool take_seat(host_rank *r, seat *at);
void leave_seat(seat *at);
bp_loss_config loss_config_of(const host_rank *r, const setting *s);

/* begin, all micro-batches (masks only, if `counts`), reduce. */
bool step(seat *at, bool counts);
/* Adds without begin or reduce. */
bool add_all(seat *at, bool counts);
/* Statistics and the sequences of this DP rank match the corpus. */
bool statistics_are_true(const seat *at);
/* Computes the seeds of all micro-batches, stores them in setting.seeds through the split's maps, and sums the gradient they give. */
bool make_seeds(seat *at, float factor);
/* On the test's thread: all ranks have statistics with equal bits. */
bool statistics_are_equal_on_ranks(const setting *s);
/* On the test's thread: every token's seed on every TP rank, to two units in the last place; `scale`: number of averaged ranks. */
bool seeds_are_true(const setting *s, float factor, double scale);
/* The mean (or sum) of the ranks' gradients is that of the whole corpus on one rank. */
bool gradients_are_true(const setting *s);

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!expected_here((condition) != 0, #condition, __FILE__, __LINE__))                                          \
            return false;                                                                                              \
    } while (0)
/* Prints a failed expectation with the last error. */
bool expected_here(bool condition, const char *text, const char *file, int line);
/* The last error contains "rank N", "ranks N and M" or "ranks M and N" with exactly this N. Otherwise prints it. */
bool names_rank(uint32_t rank, const char *name);

#endif

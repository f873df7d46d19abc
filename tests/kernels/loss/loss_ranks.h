/* Threads that are tp x cp x dp ranks, each with its part of a corpus and a client of the loss. */
#ifndef BP_TESTS_KERNELS_LOSS_LOSS_RANKS_H
#define BP_TESTS_KERNELS_LOSS_LOSS_RANKS_H

#include "../support/ranks.h"
#include "token_batches.h"

#define MOST_MICROS 3

/* Rank i of the communicator is at place[i] = (dp_rank cp + cp_rank) tp + tp_rank. */
typedef struct topology {
    uint32_t tp, cp, dp;
    uint32_t place[EXCHANGE_RANKS];
} topology;

/* In the order of places. */
topology topology_of(uint32_t tp, uint32_t cp, uint32_t dp);
/* In an order from random_below. */
topology shuffled_topology(uint32_t tp, uint32_t cp, uint32_t dp);
uint32_t rank_count(const topology *t);

/* Calls the function with every factorisation of 1, 2, 4, 6 and 8 ranks, in a shuffled order. */
typedef void topology_function(const topology *t);
void for_topologies(topology_function *function);

/* A corpus on ranks. Made by the thread of the test, read by all. */
typedef struct scene {
    const corpus *c;
    topology t;
    uint32_t micros[EXCHANGE_RANKS]; /* of each DP rank */
    pack packs[EXCHANGE_RANKS][MOST_MICROS];
    double epsilon;
    bp_loss_gradients gradients;
    unsigned planes;
    uint64_t max_sequences;
    uint32_t max_delay_us;
    bool enqueues;                           /* collectives are work of streams */
    bool own_streams;                        /* calls without a stream */
    float *seeds;                            /* [tp, tokens of the corpus]; what no rank wrote is NaN */
    double (*gradient)[CORPUS_WEIGHTS];      /* of each place */
    bp_loss_statistics told[EXCHANGE_RANKS]; /* what the last statistics_are_true saw, of each place */
    void *user;
} scene;

/* Micro-batches and packs at random; a DP rank may have none. epsilon 1e-5, averaged, all planes. */
scene new_scene(const corpus *c, const topology *t, uint32_t most_micros);
void free_scene(scene *s);
void run_scene_ranks(scene *s, rank_function *function);

/* What one rank has. */
typedef struct seat {
    host_rank *r;
    scene *s;
    uint32_t tp_rank, cp_rank, dp_rank, place;
    uint32_t micros;
    bp_stream *stream;
    bp_loss *loss;
    const pack *packs;
    bp_cp_split *splits[MOST_MICROS];
    slice slices[MOST_MICROS];
} seat;

/* False: something failed, and was printed. `leave_seat` either way. */
bool take_seat(host_rank *r, seat *at);
void leave_seat(seat *at);
bp_loss_config loss_config_of(const host_rank *r, const scene *s);

/* begin, all micro-batches (masks alone, where `counts`), reduce. */
bool step(seat *at, bool counts);
/* Adds without begin or reduce. */
bool add_all(seat *at, bool counts);
/* Statistics, and the sequences of this DP rank, are those of the corpus. */
bool statistics_are_true(const seat *at);
/* Seeds of all micro-batches, which go to scene.seeds by the split's index maps, and the gradient that they give. */
bool make_seeds(seat *at, float factor);
/* On the thread of the test: the statistics of all ranks have the same bits. */
bool all_were_told_the_same(const scene *s);
/* There, too: every token's seed on every TP rank, to two units in the last place; `scale`: ranks that are averaged. */
bool seeds_are_true(const scene *s, float factor, double scale);
/* The mean (or sum) of what ranks computed from their seeds is the gradient of the whole corpus on one rank. */
bool gradients_are_true(const scene *s);

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!expected_here((condition) != 0, #condition, __FILE__, __LINE__))                                          \
            return false;                                                                                              \
    } while (0)
/* Prints, with the last error's words, what was not as expected. */
bool expected_here(bool condition, const char *text, const char *file, int line);
/* The last error has "rank N", "ranks N and M" or "ranks M and N", and N not just as the beginning of a longer number. Else prints. */
bool names_rank(uint32_t rank, const char *name);

#endif

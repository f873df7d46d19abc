/* SPDX-License-Identifier: Apache-2.0 */
/* The command line. */
#ifndef FSDP_TRAIN_OPTIONS_H
#define FSDP_TRAIN_OPTIONS_H

#include <bucketpool/bucketpool.h>

#include <stdbool.h>

#define MAX_UNITS 32

typedef enum precision { PRECISION_MIXED, PRECISION_FP32, PRECISION_BF16 } precision;

/* Streams that are slow, a bit each. */
enum { SLOW_GATHER = 1, SLOW_COMPUTE = 2, SLOW_REDUCE = 4 };

typedef struct options {
    const char *stack; /* a letter for each unit: a attention, m MLP, e experts */
    bp_policy policy;
    precision precision;
    uint64_t steps, rows, length, hidden, vocab, seed;
    uint64_t offload_every; /* 0: never */
    uint64_t slow_us;
    unsigned slow;
    bool cuda, graph, registered, check_gradients;
    const char *profile;  /* folder, NULL: none */
    uint64_t max_entries; /* events of a snapshot */
    const char *nccl;     /* file; NULL: as the loader finds it */
} options;

/* Exit code when there is nothing to run. */
enum { GO_ON = -1, EXIT_OPTIONS = 2 };

/* `speaks`: this rank prints errors. */
int options_parse(int argc, char **argv, bool speaks, options *o);

#define SHARED_OPTIONS_BYTES 256
/* Formats the options that must be equal on all ranks, padded with zeros. */
void options_shared(const options *o, char words[SHARED_OPTIONS_BYTES]);

#endif

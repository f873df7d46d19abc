/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL and driver functions without their headers, memory of ranks, and execution of a rule. */
#ifndef BP_TEST_NCCL_API_H
#define BP_TEST_NCCL_API_H

#include "devices/cuda_driver.h"

#include <stdbool.h>
#include <stdio.h>

#include "fakes/nccl/fake_nccl.h"

typedef struct unique_id { /* the tag of the emulation: sanitizers compare the types of functions */
    char internal[128];
} unique_id;

/* Missing functions are NULL. `fake_`: of the emulation; NULL with a real NCCL. */
typedef struct nccl_api {
    int (*ncclGetVersion)(int *version);
    int (*ncclGetUniqueId)(unique_id *id);
    int (*ncclCommInitRank)(void **comm, int ranks, unique_id id, int rank);
    int (*ncclCommDestroy)(void *comm);
    int (*ncclCommAbort)(void *comm);
    int (*ncclCommGetAsyncError)(void *comm, int *result);
    int (*ncclAllGather)(const void *from, void *to, size_t count, int dtype, void *comm, void *stream);
    int (*ncclAllReduce)(const void *from, void *to, size_t count, int dtype, int op, void *comm, void *stream);
    int (*ncclCommRegister)(void *comm, void *address, size_t bytes, void **handle);
    int (*ncclCommDeregister)(void *comm, void *handle);
    int (*ncclCommWindowRegister)(void *comm, void *address, size_t bytes, void **window, int flags);
    int (*ncclCommWindowDeregister)(void *comm, void *window);
    int (*fake_nccl_set)(const char *settings);
    unsigned (*fake_nccl_broken)(char *text, size_t capacity);
    unsigned (*fake_nccl_take_broken)(fake_nccl_rule rule);
    void (*fake_nccl_count)(fake_nccl_counts *counts);
} nccl_api;

/* A rank of a rule's communicator: a thread on the emulation, else a process. */
typedef struct rule_rank {
    int rank, ranks;
    int version;
    void *comm;
    void *context, *stream;
    unique_id id;
} rule_rank;

extern nccl_api nccl;
extern bp_cuda_driver cuda;

/* ncclResult_t */
enum { SUCCESS = 0, CUDA_ERROR = 1, INVALID_ARGUMENT = 4, INVALID_USAGE = 5 };

/* Results of a rule's function. */
enum { HOLDS = 0, FAILS = 1, SKIPPED = 77 };

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            printf("    %s:%d: expected: %s\n", __FILE__, __LINE__, #condition);                                       \
            return FAILS;                                                                                              \
        }                                                                                                              \
    } while (0)

#define SKIP(reason)                                                                                                   \
    do {                                                                                                               \
        printf("    %s\n", reason);                                                                                    \
        return SKIPPED;                                                                                                \
    } while (0)

/* A real NCCL's answer is undefined: only the emulation is tested. */
#define ONLY_EMULATED(reason)                                                                                          \
    do {                                                                                                               \
        if (!is_emulated())                                                                                            \
            SKIP(reason);                                                                                              \
    } while (0)

bool is_emulated(void);
/* True if the emulation noticed the broken rule, which it then forgets; always true with a real NCCL, which does not check. */
bool was_noticed(fake_nccl_rule rule);

/* "": found. Else why there is nothing to test. */
const char *find_libraries(void);

int open_rank(rule_rank *r); /* context and stream; not the communicator */
int join_ranks(rule_rank *r);
void close_rank(rule_rank *r);

/* ---- memory -------------------------------------------------------------------------------------------------------- */

#define MAX_PIECES 2

/* Virtual memory of `pieces` adjacent physical allocations of one granule each, with NCCL's properties. */
typedef struct granules {
    uint64_t address;
    size_t step; /* bytes of each */
    int pieces;
    unsigned long long handles[MAX_PIECES];
} granules;

int map_granules(int pieces, granules *g);
int unmap_granules(granules *g);
void *at(const granules *g, size_t offset);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that are threads, each with a host device, a stream and a callback communicator over all of them. */
#ifndef BP_TESTS_KERNELS_SUPPORT_RANKS_H
#define BP_TESTS_KERNELS_SUPPORT_RANKS_H

#include "support/exchange.h"

typedef struct host_rank {
    exchange_seat seat; /* first member: callbacks get both */
    bool enqueues;      /* collectives are enqueued; otherwise they wait for the stream, then block */
    uint32_t number, ranks;
    bp_device *device;
    bp_stream *stream;
    bp_comm *comm;
    void *user; /* of the test */
    bool good;
} host_rank;

/* Runs the function on all ranks concurrently and asserts that all return true. Delays of streams as in bp_host_config. If a rank stays
 * away, the others get an error after 20 seconds. */
typedef bool rank_function(host_rank *r);
void run_host_ranks(uint32_t ranks, bool enqueues, uint32_t max_delay_us, rank_function *function, void *user);

/* For rank threads, where cmocka's assertions do not work: prints and returns false. The words must be in the error detail. */
bool is_status(bp_status status, bp_status expected, const char *const *words, const char *where);

#endif

/* Ranks that are threads, each with a host device, a stream and a callback communicator over all of them. */
#ifndef BP_TESTS_KERNELS_SUPPORT_RANKS_H
#define BP_TESTS_KERNELS_SUPPORT_RANKS_H

#include "../../comms/exchange.h"

typedef struct host_rank {
    exchange_seat seat; /* first: the user of the callbacks is both */
    bool enqueues;      /* collectives are work of the stream; else they wait for it, then block */
    uint32_t number, ranks;
    bp_device *device;
    bp_stream *stream;
    bp_comm *comm;
    void *user; /* of the test */
    bool good;
} host_rank;

/* Runs the function on each rank at once; all must say true: asserted. Pauses of streams as in bp_host_config. Where a rank stays away
 * the others get an error after 20 seconds. */
typedef bool rank_function(host_rank *r);
void run_host_ranks(uint32_t ranks, bool enqueues, uint32_t max_delay_us, rank_function *function, void *user);

/* On a rank's thread, where assertions of cmocka do not work: prints, and is false. The words must be in the detail. */
bool is_status(bp_status status, bp_status expected, const char *const *words, const char *where);

#endif

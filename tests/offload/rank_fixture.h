/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that are threads, each with a pool of registered memory, on a device that records its calls. */
#ifndef BP_TEST_OFFLOAD_RANK_FIXTURE_H
#define BP_TEST_OFFLOAD_RANK_FIXTURE_H

#include "faults.h"
#include "support/scripted_ranks.h"

#define MAX_COMMS 2

typedef struct scene scene;

/* Counts of a rank's device calls, and the call that fails. */
typedef struct watch {
    scene *s;
    uint32_t rank;
    faults faults;
    unsigned wrong; /* memory mapped or unmapped while it was registered */
} watch;

struct scene {
    uint32_t ranks, comms;
    store stores[MAX_RANKS];
    watch watches[MAX_RANKS];
    barrier barriers[MAX_COMMS][MAX_RANKS], joints[MAX_COMMS][MAX_RANKS];
    rank ends[MAX_COMMS][MAX_RANKS];
    bp_comm *handles[MAX_COMMS][MAX_RANKS];
    bp_registration_entry entries[MAX_RANKS][4];
    size_t count[MAX_RANKS];
    bp_registration *made[MAX_RANKS];
    /* of the last call */
    trip trip;
    stage which;
    bp_status status[MAX_RANKS];
    char detail[MAX_RANKS][512];
};

/* All ranks in one communicator "dp"; every slab is registered, the persistent one by a separate entry. Without `options` those of
 * state, main gradients and optimizer are a group "shards". */
scene *new_line(uint32_t ranks, const store_options *options);
/* Four ranks: rows of two ("dp") for all slabs, columns of two ("outer") for this group. */
scene *new_grid(const char *outer, const store_options *options);
/* A rank's device and store, anew if it was closed. */
void open_rank(scene *s, uint32_t i, const store_options *options);
void close_scene(scene *s); /* asserts that nothing is left and nothing went wrong */

/* Of one rank of the scene `user`; the outcome is noted. */
void register_rank(void *user, uint32_t i);
void deregister_rank(void *user, uint32_t i);
/* Of all, asserted. */
void register_all(scene *s);
void deregister_all(scene *s);
size_t live_in(const scene *s); /* windows */

/* Makes a call on all ranks at once. */
void call_all(scene *s, const trip *t, stage which);
void assert_all_ok(const scene *s);
/* Asserts the same error on all ranks. */
void assert_common(const scene *s, bp_status status, const char *word, const char *more);
/* Asserts that the group is resident on every rank. */
void assert_all(const scene *s, const char *group, bp_residency residency);
/* Asserts the calls until all ranks are before the stage. */
void advance_all(scene *s, const trip *t, stage which);
void assert_bytes_everywhere(scene *s);

#endif

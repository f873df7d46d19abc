/* SPDX-License-Identifier: Apache-2.0 */
/* A sharded training loop and its parts. */
#ifndef FSDP_TRAIN_TRAINER_H
#define FSDP_TRAIN_TRAINER_H

#include <bucketpool/bucketpool.h>

#include "data.h"
#include "engine.h"
#include "net.h"
#include "options.h"
#include "ranks.h"
#include "sharding.h"

/* Memory of the host that streams copy from and to; page-locked where the device wants that. */
typedef struct staging {
    uint8_t *memory;
    uint64_t bytes;
    void *inputs;   /* of a step: net.h has their order */
    float *losses;  /* of the tokens of this rank */
    void *transfer; /* anything else, when nothing else is on its way */
} staging;

typedef struct gradient_report {
    uint32_t tensors;
    double fp32, bf16; /* the largest difference of a tensor of that dtype, relative to its norm */
} gradient_report;

typedef struct trainer {
    const options *options;
    model model;
    sharding sharding;
    driver cuda;
    engine engine;
    net net;
    bp_comm *control; /* all ranks, from the host */
    nccl_ranks nccl;
    bp_comm *comm; /* all ranks, on streams: one of the two */
    bp_device *device;
    bp_stream *gather, *compute, *reduce;
    bp_event *start, *outside_gathered, *outside_ready, *reduced;
    bp_event *gathered[MAX_UNITS], *backward_done[MAX_UNITS];
    bp_pool *pool;
    uint32_t *lasting; /* requests that are held as long as training lasts: of the plan, and then persistent ones */
    size_t lasting_planned, lasting_count;
    uint64_t persistent_bytes; /* of the latter */
    /* of each role, as pools round them: of the requests that are held now, and of those at most */
    uint64_t held_bytes[BP_ROLE_COUNT], max_bytes[BP_ROLE_COUNT];
    void *activations;
    staging staging;
    bp_registration *registration;
    bp_offload *offload;
    bp_profile *profile;
    bp_capture *capture;
    bp_graph *graph;
    row_range rows;
    uint64_t max_rows;             /* that a rank has */
    float *my_losses, *all_losses; /* of the tokens of the rows that the largest rank has; of all ranks */
    uint64_t replays, captures, offloads;
    gradient_report gradients;        /* where that was asked for */
    uint64_t away_before, away_bytes; /* of device memory, before the last offload and after it */
} trainer;

/* Everything that training needs, with first values. What was made is destroyed by trainer_destroy, after an error too. */
bp_status trainer_create(const options *o, const launched *l, bp_comm *control, trainer *t);
void trainer_destroy(trainer *t);

/* One step, and its loss: the mean over the global batch, with the same bits on all ranks. */
bp_status trainer_step(trainer *t, uint64_t step, double *loss);

/* ---- memory.c ------------------------------------------------------------------------------------------------------- */

/* The pool, with memory for what the plan does not have, what lasts acquired, and the streams of all requests. */
bp_status memory_create(trainer *t);
/* Weights of a unit in their buckets' memory, as it is now. */
weights memory_weights(const trainer *t, int32_t unit);
void memory_count_held(trainer *t, const bucket *b, bp_role role);
void memory_count_released(trainer *t, const bucket *b, bp_role role);
/* Bytes of the pool for the plan's requests: its slabs, or without slabs the high-water mark of each role. */
bp_status memory_peak(const trainer *t, uint64_t *bytes);
/* Fails if these bytes, or the peak live bytes, differ from plan and schedule. */
bp_status memory_check(const trainer *t);

/* ---- first_values.c ------------------------------------------------------------------------------------------------- */

bp_status first_values(trainer *t);

/* ---- step.c, collectives.c ------------------------------------------------------------------------------------------- */

/* Puts a step on the streams, which begin and end with compute's. May be captured. */
bp_status step_enqueue(trainer *t);

bp_status acquire_params(trainer *t, uint32_t unit);
bp_status gather_params(trainer *t, uint32_t unit);
bp_status release_params(trainer *t, uint32_t unit);
bp_status acquire_grads(trainer *t, uint32_t unit);
/* Reduces to the shard, and lets go of the whole. */
bp_status reduce_grads(trainer *t, uint32_t unit);
bp_status gather_outside(trainer *t);
bp_status reduce_outside(trainer *t);

/* ---- graphs.c, offloading.c, gradients.c ---------------------------------------------------------------------------- */

/* Launches the step's graph, after capturing it where there is none. */
bp_status graph_step(trainer *t);
void graph_forget(trainer *t);

/* Gives memory back; and gets it again where it was given back. */
bp_status offload_all(trainer *t);
bp_status restore_all(trainer *t);

/* Compares the gradients of step 0, which has just run, with those of one process without shards and pools. */
bp_status gradients_check(trainer *t, gradient_report *report);

#endif

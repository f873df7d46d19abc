/* SPDX-License-Identifier: Apache-2.0 */
/* Iterations of a training loop: all-gathers, compute and reduce-scatters on a stream each, through a pool. The contents of buckets
 * change with each iteration, and all results are kept, so that ways of running can be compared. */
#ifndef BP_TEST_TRAINING_H
#define BP_TEST_TRAINING_H

#include "support/pools.h"

#define MAX_INTERVALS 4 /* of a request */

typedef struct training {
    kit *k;
    bp_stream *gather, *compute, *reduce; /* of the kit */
    bp_event **events;                    /* one per hand-over of an iteration */
    size_t event_count, next_event;
    uint8_t **inputs;  /* by request: input of the all-gather or compute */
    uint8_t **outputs; /* by request and interval: what was read from it */
    uint64_t *bytes;
} training;

void training_begin(training *t, kit *k);
void training_end(training *t);

/* Waits for all streams, then changes the inputs. */
void training_set_iteration(training *t, uint32_t iteration);

/* Enqueues one iteration of the schedule. */
void training_iterate(training *t);
/* The single layer `unit`: all-gathers, uses and releases its parameters; likewise its gradients. */
void training_layer(training *t, uint32_t unit);

/* Joins the other streams to a capture that began on `compute`, and back. */
void training_fork(training *t);
void training_join(training *t);

/* Asserts that the outputs since set_iteration match the inputs. Waits for all streams. */
void training_assert_outputs(training *t);
/* The same for a single layer. */
void training_assert_layer(training *t, uint32_t unit);

#endif

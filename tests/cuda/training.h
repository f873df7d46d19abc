/* Iterations as a training loop makes them: gathers, computes and reduces on a stream each, through a pool. What goes into the buckets
 * changes from one iteration to the next, and everything that comes out of them is kept, so that ways of running can be compared. */
#ifndef BP_TEST_TRAINING_H
#define BP_TEST_TRAINING_H

#include "../contract/support.h"

#define MOST_INTERVALS 4 /* of a request */

typedef struct training {
    kit *k;
    bp_stream *gather, *compute, *reduce; /* of the kit */
    bp_event **events;                    /* one for each hand-over of an iteration */
    size_t event_count, next_event;
    uint8_t **inputs;  /* by request: what is gathered or computed into it */
    uint8_t **outputs; /* by request and interval: what was read from it */
    uint64_t *bytes;
} training;

void training_begin(training *t, kit *k);
void training_end(training *t);

/* Waits for all streams, then changes what goes in. */
void training_set_iteration(training *t, uint32_t iteration);

/* Enqueues one iteration of the schedule. */
void training_iterate(training *t);
/* The layer `unit` alone: its parameters are gathered, used, released; so are its gradients. */
void training_layer(training *t, uint32_t unit);

/* The other streams join a capture that began on `compute`, and are joined back. */
void training_fork(training *t);
void training_join(training *t);

/* What came out since set_iteration is what went in. Waits for all streams. */
void training_assert_outputs(training *t);
/* Of the layer alone. */
void training_assert_layer(training *t, uint32_t unit);

#endif

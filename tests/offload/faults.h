/* SPDX-License-Identifier: Apache-2.0 */
/* The four calls of a group in order, made while something fails. */
#ifndef BP_TEST_OFFLOAD_FAULTS_H
#define BP_TEST_OFFLOAD_FAULTS_H

#include "stores.h"
#include "support/failures/faulty.h"

/* The four calls of a group. */
typedef enum stage { BEGIN_OFFLOAD, FINISH_OFFLOAD, BEGIN_RESTORE, FINISH_RESTORE } stage;
#define STAGES 4

/* An offload and restore with these options. */
typedef struct trip {
    const char *group;
    bool kept;
    bp_restore fill;
} trip;

/* Makes the call; after a success the model of the bytes is updated. */
bp_status make_stage(store *s, const trip *t, stage which);
/* The group's residency before that call. */
bp_residency residency_before(stage which);
/* Asserts the calls from the group's present residency up to before the stage; the model of the bytes is updated. */
void advance_to(store *s, const trip *t, stage which);
/* Asserts that the group can be restored with its bytes, whatever happened before. */
void recover(store *s, const trip *t);

#endif

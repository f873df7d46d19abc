/* A device whose nth call fails, and the calls of one group in their order, made while something fails. */
#ifndef BP_TEST_OFFLOAD_FAULTS_H
#define BP_TEST_OFFLOAD_FAULTS_H

#include "../support/trace_device.h"
#include "stores.h"

typedef struct faults {
    unsigned until; /* 0: none; 1: the next call fails */
    bool keep;      /* and all after it */
    uint32_t only;  /* OP_COUNT: any operation */
    bp_status status;
    bool met;
    device_operation where; /* the first that failed */
    unsigned reservations;  /* calls of reserve and unreserve so far */
} faults;

/* Takes `inner` over. */
bp_device *new_faulty(bp_device *inner, faults *f);
void inject(faults *f, unsigned nth, uint32_t only, bool keep, bp_status status);
void no_faults(faults *f);

/* The four calls of a group. */
typedef enum stage { BEGIN_OFFLOAD, FINISH_OFFLOAD, BEGIN_RESTORE, FINISH_RESTORE } stage;
#define STAGES 4

/* How a group goes and comes. */
typedef struct trip {
    const char *group;
    bool kept;
    bp_restore fill;
} trip;

/* The call with its status; where it succeeds what is known of the bytes follows. */
bp_status make_stage(store *s, const trip *t, stage which);
/* The group's residency before that call. */
bp_residency residency_before(stage which);
/* Asserted calls from where the group is now up to before the stage; what is known of its bytes follows. */
void advance_to(store *s, const trip *t, stage which);
/* Whatever happened: the group comes back, with the bytes that it must have. */
void recover(store *s, const trip *t);

#endif

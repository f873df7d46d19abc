/* SPDX-License-Identifier: Apache-2.0 */
/* A device whose nth call fails. */
#ifndef BP_TEST_FAULTY_H
#define BP_TEST_FAULTY_H

#include "devices/device.h"

#include <stdbool.h>

#include "support/trace_device.h"

typedef struct faults {
    unsigned until; /* 0: none; 1: the next call fails */
    bool keep;      /* and all later ones */
    uint32_t only;  /* OP_COUNT: any operation */
    bp_status status;
    bool met;
    device_operation where; /* the first that failed */
    unsigned reservations;  /* calls of reserve and unreserve so far */
} faults;

/* Takes ownership of `inner`. */
bp_device *new_faulty(bp_device *inner, faults *f);
/* BP_OK, or the injected failure, for devices that also look at the calls. */
bp_status fault_of(faults *f, const device_call *call);
void inject(faults *f, unsigned nth, uint32_t only, bool keep, bp_status status);
void no_faults(faults *f);
/* Ends the injection, and returns what it met. */
faults end_faults(faults *f);

#endif

/* Devices of which one call fails: for tests that try each in turn. */
#ifndef BP_TESTS_KERNELS_SUPPORT_FAULTS_H
#define BP_TESTS_KERNELS_SUPPORT_FAULTS_H

#include <bucketpool/device.h>

#include <stdbool.h>
#include <stddef.h>

#include "../../support/trace_device.h"

typedef struct faults {
    unsigned until;    /* 0: none; 1: the next call */
    bool spares_waits; /* for streams: they neither fail nor count */
    bool met;
    device_operation where;
} faults;

/* A device_trace; `user` is the faults. What fails is BP_ERR_IO. */
bp_status fail_at(void *user, const device_call *call);

/* Undoing is best effort: what fails there may leave something behind, but must not crash. */
bool undoes(device_operation operation);

/* Nobody writes there any more: the caller of a call that failed may free it. */
void assert_quiet(const void *memory, size_t bytes);

#endif

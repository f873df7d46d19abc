/* SPDX-License-Identifier: Apache-2.0 */
/* Fault injection: devices whose nth call fails. */
#ifndef BP_TESTS_KERNELS_SUPPORT_FAULTS_H
#define BP_TESTS_KERNELS_SUPPORT_FAULTS_H

#include <bucketpool/device.h>

#include <stdbool.h>
#include <stddef.h>

#include "support/trace_device.h"

typedef struct faults {
    unsigned until;    /* 0: none; 1: the next call */
    bool spares_waits; /* stream waits neither fail nor count */
    bool met;
    device_operation where;
} faults;

/* A device_trace; `user` is the faults. The failing call returns BP_ERR_IO. */
bp_status fail_at(void *user, const device_call *call);

/* Operations that undo are best effort: a failure may leak, but must not crash. */
bool undoes(device_operation operation);

/* No more writes: the caller of a failed call may free the memory. */
void assert_quiet(const void *memory, size_t bytes);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Errors go up, unchanged. */
#ifndef FSDP_TRAIN_TRY_H
#define FSDP_TRAIN_TRY_H

#include <bucketpool/status.h>

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        bp_status try_status = (call);                                                                                 \
        if (try_status != BP_OK)                                                                                       \
            return try_status;                                                                                         \
    } while (0)

/* A sentence of our own. */
bp_status fail(bp_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
bp_status fail_memory(void);

#endif

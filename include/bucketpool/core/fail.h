/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * Error recording, for libraries built on this one. The function that detects an error records its detail; callers
 * propagate the status. */
#ifndef BUCKETPOOL_CORE_FAIL_H
#define BUCKETPOOL_CORE_FAIL_H

#include <bucketpool/status.h>

#include <stdbool.h>
#include <stdio.h>

#define BP_DETAIL_BYTES 512
#define BP_STATUS_COUNT 17

/* Statuses from other ranks and callbacks are untrusted. */
static inline bool bp_is_status(int64_t number)
{
    return number >= 0 && number < BP_STATUS_COUNT;
}

/* Formats the detail and evaluates to `status`: `return bp_fail(BP_ERR_FORMAT, "%s: ...", path);`. A macro, because static analysis does
 * not follow variadic functions and would take a failure for a success. */
#define bp_fail(status, ...) (bp_error_recordf((status), __VA_ARGS__), (status))

static inline bp_status bp_fail_memory(size_t bytes)
{
    return bp_fail(BP_ERR_NO_HOST_MEMORY, "out of host memory: %zu bytes could not be allocated", bytes);
}

/* The thread's error while a function undoes or destroys: calls that fail meanwhile must not hide the error that is reported. */
typedef struct bp_kept_error {
    char detail[BP_DETAIL_BYTES];
} bp_kept_error;

static inline bp_kept_error bp_error_keep(void)
{
    bp_kept_error kept;
    snprintf(kept.detail, sizeof kept.detail, "%s", bp_error_detail());
    return kept;
}

static inline void bp_error_put_back(const bp_kept_error *kept)
{
    bp_error_record(BP_OK, kept->detail);
}

/* A declaration: restores the thread's error where the block is left. */
#define BP_KEEP_ERROR __attribute__((cleanup(bp_error_put_back))) const bp_kept_error bp_kept_here = bp_error_keep()

/* Propagates a failure. */
#define BP_TRY(call)                                                                                                   \
    do {                                                                                                               \
        bp_status bp_try_status = (call);                                                                              \
        if (__builtin_expect(bp_try_status != BP_OK, 0))                                                               \
            return bp_try_status;                                                                                      \
    } while (0)

#endif

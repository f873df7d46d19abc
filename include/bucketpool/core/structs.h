/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * Versioned structs of the interface. Each begins with its size in bytes as the caller compiled it. Fields are only added at the end,
 * never into padding of an older struct (padding may hold anything), so that callers and libraries of different versions share the older
 * one's fields. */
#ifndef BUCKETPOOL_CORE_STRUCTS_H
#define BUCKETPOOL_CORE_STRUCTS_H

#include <bucketpool/core/fail.h>

#include <stddef.h>
#include <string.h>

static inline bp_status bp_struct_check(const char *function, const void *theirs, size_t bytes)
{
    if (theirs == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: the struct is NULL", function);
    if (bytes <= sizeof(size_t))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: the size of a struct is %zu; set it to sizeof the struct",
                       function, bytes);
    return BP_OK;
}

/* Copies the caller's fields over `ours`, which holds the defaults. NULL copies nothing if `optional`. Errors: BP_ERR_INVALID_ARGUMENT
 * (NULL, an invalid size); BP_ERR_UNSUPPORTED (a newer caller sets fields that this library does not know). */
static inline bp_status bp_struct_read(const char *function, const void *theirs, bool optional, void *ours,
                                       size_t our_bytes)
{
    if (theirs == NULL && optional)
        return BP_OK;
    size_t bytes = 0;
    if (theirs != NULL)
        memcpy(&bytes, theirs, sizeof bytes);
    BP_TRY(bp_struct_check(function, theirs, bytes));
    for (size_t i = our_bytes; i < bytes; i++) {
        if (((const unsigned char *)theirs)[i] != 0)
            return bp_fail(BP_ERR_UNSUPPORTED,
                           "%s: the struct has %zu bytes and sets fields after the %zu that this library knows; "
                           "update the library",
                           function, bytes, our_bytes);
    }
    memcpy(ours, theirs, bytes < our_bytes ? bytes : our_bytes);
    memcpy(ours, &our_bytes, sizeof our_bytes);
    return BP_OK;
}

/* Fills the caller's uninitialised struct of `bytes` bytes and sets its size. Fields that this library does not know are zero. Errors:
 * BP_ERR_INVALID_ARGUMENT (NULL, an invalid size). */
static inline bp_status bp_struct_init(const char *function, void *theirs, size_t bytes, const void *ours,
                                       size_t our_bytes)
{
    BP_TRY(bp_struct_check(function, theirs, bytes));
    memcpy(theirs, ours, bytes < our_bytes ? bytes : our_bytes);
    if (bytes > our_bytes)
        memset((unsigned char *)theirs + our_bytes, 0, bytes - our_bytes);
    memcpy(theirs, &bytes, sizeof bytes);
    return BP_OK;
}

/* bp_struct_init for an output whose size the caller has set. */
static inline bp_status bp_struct_write(const char *function, const void *ours, size_t our_bytes, void *theirs)
{
    size_t bytes = 0;
    if (theirs != NULL)
        memcpy(&bytes, theirs, sizeof bytes);
    return bp_struct_init(function, theirs, bytes, ours, our_bytes);
}

#endif

/* Structs of the interface that may grow: each begins with its size in bytes, as the caller was compiled. A field is only ever added at the
 * end, and not into padding that an older struct had there (it may be anything), so that callers and library of different versions share what
 * the older one has. */
#ifndef BP_CORE_STRUCTS_H
#define BP_CORE_STRUCTS_H

#include <stddef.h>
#include <string.h>

#include "core/fail.h"

static inline bp_status bp_struct_check(const char *function, const void *theirs, size_t bytes)
{
    if (theirs == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: a struct is missing (NULL)", function);
    if (bytes <= sizeof(size_t))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: the size of a struct is %zu; set it to sizeof the struct",
                       function, bytes);
    return BP_OK;
}

/* Copies what the caller has over `ours`, which holds the defaults. NULL: nothing is copied, if `optional`.
 * Errors: BP_ERR_INVALID_ARGUMENT (NULL, a size that was not set); BP_ERR_UNSUPPORTED (the caller is newer than this library and sets
 * fields that it does not know). */
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

/* Fills the caller's struct of `bytes` bytes, whatever is in it, and sets its size. Fields that this library does not know are zero.
 * Errors: BP_ERR_INVALID_ARGUMENT (NULL, a size that is none). */
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

/* The same for an output, whose size the caller has set. */
static inline bp_status bp_struct_write(const char *function, const void *ours, size_t our_bytes, void *theirs)
{
    size_t bytes = 0;
    if (theirs != NULL)
        memcpy(&bytes, theirs, sizeof bytes);
    return bp_struct_init(function, theirs, bytes, ours, our_bytes);
}

#endif

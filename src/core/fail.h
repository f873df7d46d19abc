/* Recording an error where it is first decided. Callers further up only propagate the status. */
#ifndef BP_CORE_FAIL_H
#define BP_CORE_FAIL_H

#include <bucketpool/status.h>

#include <stdarg.h>
#include <stdio.h>

#define BP_DETAIL_BYTES 512

/* Formats the detail and returns `status`: `return bp_fail(BP_ERR_FORMAT, "%s: ...", path);` */
__attribute__((format(printf, 2, 3))) static inline bp_status bp_fail(bp_status status, const char *format, ...)
{
    char detail[BP_DETAIL_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(detail, sizeof detail, format, args);
    va_end(args);
    return bp_error_record(status, detail);
}

static inline bp_status bp_fail_memory(size_t bytes)
{
    return bp_fail(BP_ERR_NO_HOST_MEMORY, "out of host memory: %zu bytes could not be allocated", bytes);
}

/* Propagates a failure. */
#define BP_TRY(call)                                                                                                   \
    do {                                                                                                               \
        bp_status bp_try_status = (call);                                                                              \
        if (bp_try_status != BP_OK)                                                                                    \
            return bp_try_status;                                                                                      \
    } while (0)

#endif

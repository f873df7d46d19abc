/* SPDX-License-Identifier: Apache-2.0 */
#include "try.h"

#include <stdarg.h>
#include <stdio.h>

bp_status fail(bp_status status, const char *format, ...)
{
    char detail[512];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(detail, sizeof detail, format, arguments);
    va_end(arguments);
    return bp_error_record(status, detail);
}

bp_status fail_memory(void)
{
    return bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory for the lists of the training loop");
}

/* Names of status codes, the version, and the error detail of each thread. */
#include <bucketpool/status.h>

#include <string.h>

#include "core/fail.h"
#include "core/text.h"
#include "version.h"

/* Allocated with a thread's first use: shared libraries reach it by __tls_get_addr, which is no cost where a call has failed. */
static _Thread_local char thread_detail[BP_DETAIL_BYTES];

const char *bp_status_name(bp_status status)
{
    switch (status) {
    case BP_OK: return "ok";
    case BP_ERR_INVALID_ARGUMENT: return "invalid argument";
    case BP_ERR_NO_HOST_MEMORY: return "no host memory";
    case BP_ERR_NO_DEVICE_MEMORY: return "no device memory";
    case BP_ERR_NO_DEVICE: return "no device";
    case BP_ERR_SCHEDULE: return "schedule violation";
    case BP_ERR_CAPTURE: return "capture violation";
    case BP_ERR_UNSUPPORTED: return "unsupported";
    case BP_ERR_OVERFLOW: return "overflow";
    case BP_ERR_INFEASIBLE: return "infeasible";
    case BP_ERR_IO: return "input or output failed";
    case BP_ERR_FORMAT: return "malformed input";
    case BP_ERR_MISMATCH: return "mismatch";
    case BP_ERR_INTERNAL: return "internal error";
    case BP_ERR_DEVICE: return "device error";
    case BP_ERR_COMM: return "communicator error";
    case BP_ERR_TIMEOUT: return "timed out";
    }
    return "unknown status";
}

const char *bp_error_detail(void)
{
    return thread_detail;
}

bp_status bp_error_record(bp_status status, const char *detail)
{
    size_t length = detail != NULL ? strnlen(detail, BP_DETAIL_BYTES - 1) : 0;
    if (length > 0)
        memmove(thread_detail, detail, length); /* a caller may pass our own buffer back */
    thread_detail[length] = '\0';
    bp_make_printable(thread_detail);
    return status;
}

const char *bp_version(void)
{
    return BP_VERSION;
}

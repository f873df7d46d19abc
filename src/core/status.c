/* SPDX-License-Identifier: Apache-2.0 */
/* Names of status codes, the version, the error detail of each thread, and errors of objects in forked children. */
#include <bucketpool/core/fail.h>
#include <bucketpool/status.h>

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "core/print.h"
#include "core/process.h"
#include "version.h"

/* Allocated at a thread's first use: shared libraries reach it through __tls_get_addr, whose cost does not matter after a failure. */
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
    char shown[BP_DETAIL_BYTES]; /* a caller may pass the thread's buffer back */
    bp_print(shown, sizeof shown, "%s", detail != NULL ? detail : "");
    memcpy(thread_detail, shown, sizeof shown);
    return status;
}

void bp_error_recordf(bp_status status, const char *format, ...)
{
    char detail[BP_DETAIL_BYTES];
    va_list args;
    va_start(args, format);
    bp_vprint(detail, sizeof detail, format, args);
    va_end(args);
    bp_error_record(status, detail);
}

const char *bp_version(void)
{
    return BP_VERSION;
}

/* ---- forked children ------------------------------------------------------------------------------------------------ */

atomic_uint bp_process_forks;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int reason; /* errno of the registration that failed */

static void note_fork(void)
{
    atomic_fetch_add_explicit(&bp_process_forks, 1, memory_order_relaxed);
}

static void watch_forks(void)
{
    reason = pthread_atfork(NULL, NULL, note_fork);
}

bp_status bp_process_init(bp_process *process)
{
    pthread_once(&once, watch_forks);
    if (reason != 0)
        return bp_fail(BP_ERR_NO_HOST_MEMORY, "the fork handler could not be registered: %s", strerror(reason));
    process->forks = atomic_load_explicit(&bp_process_forks, memory_order_relaxed);
    process->id = (long)getpid();
    return BP_OK;
}

bp_status bp_process_fail(const bp_process *process, const char *function, const char *kind, const char *name)
{
    return bp_fail(BP_ERR_INVALID_ARGUMENT,
                   "%s: %s %.80s was made by process %ld and is used in its forked child %ld; make one in the child",
                   function, kind, name, process->id, (long)getpid());
}

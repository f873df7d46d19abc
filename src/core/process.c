/* Counts forks, and words the error of an object that is used in a forked child. */
#include "core/process.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "core/fail.h"

atomic_uint bp_process_forks;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int reason; /* why there is no handler */

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
        return bp_fail(BP_ERR_NO_HOST_MEMORY, "no handler of forks could be registered: %s", strerror(reason));
    process->forks = atomic_load_explicit(&bp_process_forks, memory_order_relaxed);
    process->id = (long)getpid();
    return BP_OK;
}

bp_status bp_process_fail(const bp_process *process, const char *function, const char *kind, const char *name)
{
    return bp_fail(BP_ERR_INVALID_ARGUMENT,
                   "%s: %s %.80s was made by process %ld and is used in its forked child %ld: make one in the child",
                   function, kind, name, process->id, (long)getpid());
}

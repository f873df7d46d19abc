/* SPDX-License-Identifier: Apache-2.0 */
/* The process that owns an object. fork() copies memory into the child, but neither threads, nor the locks that they hold, nor peers:
 * objects that depend on these serve only the process that made them. Children of vfork and posix_spawn are not affected: they execute
 * another program at once. */
#ifndef BP_CORE_PROCESS_H
#define BP_CORE_PROCESS_H

#include <bucketpool/status.h>

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct bp_process {
    unsigned forks; /* bp_process_forks when the object was made */
    long id;
} bp_process;

/* Forks between the process that loaded the library and this one. getpid() would cost a system call per acquire. */
extern atomic_uint bp_process_forks __attribute__((visibility("hidden")));

/* Records the present process. Errors: BP_ERR_NO_HOST_MEMORY: the fork handler could not be registered. */
bp_status bp_process_init(bp_process *process);

/* Hot. */
static inline bool bp_process_is_here(const bp_process *process)
{
    return process->forks == atomic_load_explicit(&bp_process_forks, memory_order_relaxed);
}

/* Error of a call in a forked child: "FUNCTION: KIND NAME was made by process 12 and is used in its forked child 13". */
bp_status bp_process_fail(const bp_process *process, const char *function, const char *kind, const char *name);

/* BP_OK, or bp_process_fail in a forked child. */
static inline bp_status bp_process_check(const bp_process *process, const char *function, const char *kind,
                                         const char *name)
{
    return bp_process_is_here(process) ? BP_OK : bp_process_fail(process, function, kind, name);
}

/* pthread_create with all signals blocked, so that the program's threads receive them; faults stay with the faulting thread. Returns the
 * result of pthread_create. */
static inline int bp_thread_start(pthread_t *thread, void *(*function)(void *), void *argument)
{
    sigset_t ours, theirs;
    sigfillset(&ours);
    static const int synchronous[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT};
    for (size_t i = 0; i < sizeof synchronous / sizeof *synchronous; i++)
        sigdelset(&ours, synchronous[i]);
    pthread_sigmask(SIG_SETMASK, &ours, &theirs);
    int reason = pthread_create(thread, NULL, function, argument);
    pthread_sigmask(SIG_SETMASK, &theirs, NULL);
    return reason;
}

#endif

/* The process that an object belongs to. fork() copies memory into the child, but no threads, no locks that those hold, and no peers: what
 * depends on them serves only the process that made it. Children of vfork and posix_spawn run another program at once and are no case. */
#ifndef BP_CORE_PROCESS_H
#define BP_CORE_PROCESS_H

#include <bucketpool/status.h>

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct bp_process {
    unsigned forks; /* bp_process_forks, where it was made */
    long id;
} bp_process;

/* How many forks lie between the process that loaded the library and this one. getpid() would be a system call for each acquire. */
extern atomic_uint bp_process_forks __attribute__((visibility("hidden")));

/* This process. Errors: BP_ERR_NO_HOST_MEMORY: no room for the handler of forks. */
bp_status bp_process_init(bp_process *process);

/* Hot. */
static inline bool bp_process_is_here(const bp_process *process)
{
    return process->forks == atomic_load_explicit(&bp_process_forks, memory_order_relaxed);
}

/* The error of a call in a forked child: "FUNCTION: KIND NAME was made by process 12 and is used in its forked child 13". */
bp_status bp_process_fail(const bp_process *process, const char *function, const char *kind, const char *name);

/* BP_OK, or that error. */
static inline bp_status bp_process_check(const bp_process *process, const char *function, const char *kind,
                                         const char *name)
{
    return bp_process_is_here(process) ? BP_OK : bp_process_fail(process, function, kind, name);
}

/* The program's signals are its own threads' business; faults stay with the thread that makes them. Returns what pthread_create does. */
static inline int bp_thread_start(pthread_t *thread, void *(*function)(void *), void *argument)
{
    sigset_t ours, theirs;
    sigfillset(&ours);
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        sigdelset(&ours, faults[i]);
    pthread_sigmask(SIG_SETMASK, &ours, &theirs);
    int reason = pthread_create(thread, NULL, function, argument);
    pthread_sigmask(SIG_SETMASK, &theirs, NULL);
    return reason;
}

#endif

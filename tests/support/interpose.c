/* SPDX-License-Identifier: Apache-2.0 */
/* The wrapped functions. Counts are per thread: the device's threads are not counted. */
#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "interpose.h"

static _Thread_local bool watching;
static _Thread_local watched seen;

void watch(void)
{
    seen = (watched){.last = ""};
    watching = true;
}

watched unwatch(void)
{
    watching = false;
    return seen;
}

static void note(size_t *counter, const char *name)
{
    if (watching) {
        ++*counter;
        seen.last = name;
    }
}

/* Counts and calls the real function. */
#define WRAP(counter, type, name, parameters, arguments)                                                               \
    type __real_##name parameters;                                                                                     \
    type __wrap_##name parameters;                                                                                     \
    type __wrap_##name parameters                                                                                      \
    {                                                                                                                  \
        note(&seen.counter, #name);                                                                                    \
        return __real_##name arguments;                                                                                \
    }

void __real_free(void *memory);
void __wrap_free(void *memory);
void __wrap_free(void *memory)
{
    note(&seen.allocations, "free");
    __real_free(memory);
}

WRAP(allocations, void *, malloc, (size_t bytes), (bytes))
WRAP(allocations, void *, calloc, (size_t count, size_t bytes), (count, bytes))
WRAP(allocations, void *, realloc, (void *memory, size_t bytes), (memory, bytes))
WRAP(allocations, void *, aligned_alloc, (size_t alignment, size_t bytes), (alignment, bytes))
WRAP(allocations, int, posix_memalign, (void **memory, size_t alignment, size_t bytes), (memory, alignment, bytes))
WRAP(allocations, char *, strdup, (const char *text), (text))
WRAP(allocations, void *, mmap, (void *at, size_t bytes, int protection, int flags, int file, off_t offset),
     (at, bytes, protection, flags, file, offset))
WRAP(allocations, void *, mmap64, (void *at, size_t bytes, int protection, int flags, int file, off_t offset),
     (at, bytes, protection, flags, file, offset))
WRAP(allocations, int, munmap, (void *at, size_t bytes), (at, bytes))
WRAP(allocations, int, mprotect, (void *at, size_t bytes, int protection), (at, bytes, protection))
WRAP(locks, int, pthread_mutex_lock, (pthread_mutex_t * mutex), (mutex))
WRAP(locks, int, pthread_mutex_trylock, (pthread_mutex_t * mutex), (mutex))
WRAP(locks, int, pthread_mutex_timedlock, (pthread_mutex_t * mutex, const struct timespec *until), (mutex, until))
WRAP(locks, int, pthread_rwlock_rdlock, (pthread_rwlock_t * lock), (lock))
WRAP(locks, int, pthread_rwlock_tryrdlock, (pthread_rwlock_t * lock), (lock))
WRAP(locks, int, pthread_rwlock_wrlock, (pthread_rwlock_t * lock), (lock))
WRAP(locks, int, pthread_rwlock_trywrlock, (pthread_rwlock_t * lock), (lock))
WRAP(locks, int, pthread_spin_lock, (pthread_spinlock_t * lock), (lock))
WRAP(locks, int, pthread_cond_wait, (pthread_cond_t * condition, pthread_mutex_t *mutex), (condition, mutex))
WRAP(locks, int, pthread_cond_timedwait,
     (pthread_cond_t * condition, pthread_mutex_t *mutex, const struct timespec *until), (condition, mutex, until))
WRAP(locks, int, pthread_cond_signal, (pthread_cond_t * condition), (condition))
WRAP(locks, int, pthread_cond_broadcast, (pthread_cond_t * condition), (condition))
WRAP(locks, int, sem_wait, (sem_t * semaphore), (semaphore))
WRAP(locks, int, sem_timedwait, (sem_t * semaphore, const struct timespec *until), (semaphore, until))
WRAP(locks, int, nanosleep, (const struct timespec *span, struct timespec *rest), (span, rest))
WRAP(locks, int, usleep, (useconds_t span), (span))

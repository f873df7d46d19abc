/* How many acquires there were and how much is live. Most pools are served by one thread: the first that acquires owns a tally that
 * it adds to without locked instructions; all others share one. */
#ifndef BP_ALLOCATORS_TALLY_H
#define BP_ALLOCATORS_TALLY_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Owner and others on lines of their own: NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding) */
typedef struct bp_tally {
    _Atomic(const void *) owner; /* identity of a thread; NULL: none yet */
    _Atomic uint64_t acquires,
        live; /* of the owner; live counts down below zero where others release what it acquired */
    _Alignas(64) _Atomic uint64_t shared_acquires, shared_live; /* of all other threads */
    _Atomic uint64_t peak;
} bp_tally;

/* Tells threads apart: the address of their control block. No variable of our own: an initial-exec one would put all thread-local data
 * of the library, 512 bytes of error text, into the small static block that a process shares among the libraries it loads late. */
static inline const void *bp_tally_thread(void)
{
#if __has_builtin(__builtin_thread_pointer)
    return __builtin_thread_pointer();
#else
    return (const void *)pthread_self(); /* the same address, by a call */
#endif
}

static inline bool bp_tally_is_owner(bp_tally *t)
{
    const void *owner = atomic_load_explicit(&t->owner, memory_order_relaxed), *self = bp_tally_thread();
    return owner == self || (owner == NULL && atomic_compare_exchange_strong_explicit(
                                                  &t->owner, &owner, self, memory_order_relaxed, memory_order_relaxed));
}

static inline uint64_t bp_tally_read(const _Atomic uint64_t *counter)
{
    return atomic_load_explicit((_Atomic uint64_t *)counter, memory_order_acquire);
}

/* Only the owner writes these. */
static inline void bp_tally_add(_Atomic uint64_t *counter, uint64_t more)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + more, memory_order_release);
}

static inline uint64_t bp_tally_acquires(const bp_tally *t)
{
    return bp_tally_read(&t->acquires) + bp_tally_read(&t->shared_acquires);
}

/* Live bytes modulo 2^48; the shared word counts its changes above them, so that one that changes there and back is seen. */
#define BP_TALLY_BYTES ((1ull << 48) - 1)
#define BP_TALLY_CHANGE (2ull << 48) /* two: a borrow from the bytes takes one away */

/* Both parts as they were at one moment: what one thread released and another took since must not be counted twice. */
static inline uint64_t bp_tally_live(const bp_tally *t)
{
    uint64_t own, shared;
    do {
        shared = bp_tally_read(&t->shared_live);
        own = bp_tally_read(&t->live);
    } while (shared != bp_tally_read(&t->shared_live));
    return (own + shared) & BP_TALLY_BYTES;
}

/* Counts acquires and the bytes that became live. Returns how many acquires there were before. */
static inline uint64_t bp_tally_acquire(bp_tally *t, uint64_t acquires, uint64_t bytes)
{
    uint64_t before;
    if (bp_tally_is_owner(t)) {
        before = bp_tally_acquires(t);
        bp_tally_add(&t->acquires, acquires);
        bp_tally_add(&t->live, bytes);
    } else {
        before = atomic_fetch_add_explicit(&t->shared_acquires, acquires, memory_order_relaxed) +
                 bp_tally_read(&t->acquires);
        atomic_fetch_add_explicit(&t->shared_live, BP_TALLY_CHANGE + bytes, memory_order_acq_rel);
    }
    uint64_t live = bp_tally_live(t), peak = atomic_load_explicit(&t->peak, memory_order_relaxed);
    while (live > peak &&
           !atomic_compare_exchange_weak_explicit(&t->peak, &peak, live, memory_order_relaxed, memory_order_relaxed)) {
    }
    return before;
}

/* Before the memory can be had again. */
static inline void bp_tally_release(bp_tally *t, uint64_t bytes)
{
    if (bp_tally_is_owner(t))
        bp_tally_add(&t->live, 0 - bytes);
    else
        atomic_fetch_add_explicit(&t->shared_live, BP_TALLY_CHANGE - bytes, memory_order_acq_rel);
}

#endif

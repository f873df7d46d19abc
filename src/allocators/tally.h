/* SPDX-License-Identifier: Apache-2.0 */
/* Counts of a pool that all its requests share: acquires in order, live bytes and their high-water mark. Each thread writes to a separate
 * cache line, so that threads which serve different requests do not slow each other down. */
#ifndef BP_ALLOCATORS_TALLY_H
#define BP_ALLOCATORS_TALLY_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* On the path of every acquire and release, where a function call costs as much as its body. */
#define BP_HOT static inline __attribute__((always_inline))
#define BP_SLOW static __attribute__((noinline)) /* beside that path */
#define BP_LIKELY(condition) __builtin_expect(condition, 1)

#define BP_LINE 64 /* bytes of a cache line */

/* Threads with a private lane. Further threads share the last lane. */
#define BP_LANES 8u

/* Each byte below the high-water mark is live, or spare on one lane. A release leaves its bytes on its thread's lane; an acquire takes
 * spare bytes, those of its thread's lane first. Only if no lane has any does the mark rise, so threads meet in rare cases alone: while the
 * mark rises, and when a thread needs bytes that another one released.
 *
 * Bytes are spare before their memory is free (bp_tally_release), and are taken when an acquire has its memory and can no longer fail.
 * So the mark is at least the live bytes of every moment, and at most the bytes of the memory held at some moment, which includes that of
 * calls in progress. */
typedef struct bp_lane {
    /* Bytes modulo 2^48; the bits above count changes, so that a change and its reversal differ. */
    _Alignas(BP_LINE) _Atomic uint64_t spare;
    _Atomic uint64_t acquires; /* of its threads */
} bp_lane;

#define BP_SPARE_BYTES ((UINT64_C(1) << 48) - 1)
#define BP_SPARE_CHANGE (UINT64_C(1) << 48)

typedef struct bp_tally {
    /* Identities of the lanes' threads; NULL: free. Each is written once. */
    _Alignas(BP_LINE) _Atomic(const void *) owners[BP_LANES];
    bp_lane lanes[BP_LANES + 1];
    _Alignas(BP_LINE) _Atomic uint64_t peak;
} bp_tally;

/* Identity of the thread: the address of its control block. A thread-local variable would cost more: an initial-exec one would put all
 * thread-local data of the library (512 bytes of error text) into the small static TLS block that late-loaded libraries share. */
static inline const void *bp_tally_thread(void)
{
/* Compilers know the name on machines where the builtin does not exist; gcc 10 on x86-64, too. */
#if __has_builtin(__builtin_thread_pointer) &&                                                                         \
    (defined(__aarch64__) || (defined(__x86_64__) && (defined(__clang__) || __GNUC__ > 10)))
    return __builtin_thread_pointer();
#else
    return (const void *)pthread_self(); /* the same address, by a call */
#endif
}

/* Assigns a lane to the calling thread at its first call. */
bp_lane *bp_tally_join(bp_tally *t);

/* The thread's lane. A thread may get the lane of one that has ended, with the same control block. */
BP_HOT bp_lane *bp_tally_lane(bp_tally *t)
{
    const void *self = bp_tally_thread();
    for (uint32_t i = 0; i < BP_LANES; i++) {
        if (BP_LIKELY(atomic_load_explicit(&t->owners[i], memory_order_relaxed) == self))
            return &t->lanes[i];
    }
    return bp_tally_join(t);
}

/* Takes bytes of all lanes; raises the mark by those that no lane has. */
void bp_tally_take(bp_tally *t, uint64_t bytes);

/* Counts acquires and the bytes that became live. Returns the number of earlier acquires of the thread. */
BP_HOT uint64_t bp_tally_acquire(bp_tally *t, uint64_t acquires, uint64_t bytes)
{
    bp_lane *lane = bp_tally_lane(t);
    uint64_t number = atomic_load_explicit(&lane->acquires, memory_order_relaxed);
    if (lane != &t->lanes[BP_LANES]) /* only this thread writes it */
        atomic_store_explicit(&lane->acquires, number + acquires, memory_order_relaxed);
    else
        number = atomic_fetch_add_explicit(&lane->acquires, acquires, memory_order_relaxed);
    uint64_t spare = atomic_load_explicit(&lane->spare, memory_order_relaxed);
    if (bytes > 0 && ((spare & BP_SPARE_BYTES) < bytes ||
                      !atomic_compare_exchange_strong(&lane->spare, &spare, spare - bytes + BP_SPARE_CHANGE)))
        bp_tally_take(t, bytes);
    return number;
}

/* Called before the memory can be acquired again: the next acquire finds the bytes. */
BP_HOT void bp_tally_release(bp_tally *t, uint64_t bytes)
{
    atomic_fetch_add(&bp_tally_lane(t)->spare, bytes + BP_SPARE_CHANGE);
}

/* Acquires of all threads. */
uint64_t bp_tally_acquires(const bp_tally *t);

/* Live bytes, and the mark at the same moment; `peak` may be NULL. */
uint64_t bp_tally_live(const bp_tally *t, uint64_t *peak);

#endif

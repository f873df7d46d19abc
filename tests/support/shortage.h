/* Counts allocations of the calling thread, or fails one of them. Programs are linked with shortage.c and -Wl,--wrap
 * for each function there. */
#ifndef BP_TEST_SUPPORT_SHORTAGE_H
#define BP_TEST_SUPPORT_SHORTAGE_H

#include <stdbool.h>

typedef struct allocation_shortage {
    bool counts;
    unsigned long allocations; /* number since counting began */
    unsigned fails;            /* 0: none fails; n: the nth from now on fails */
} allocation_shortage;

extern _Thread_local allocation_shortage shortage;

/* No more fail. True if the failing allocation was reached. */
static inline bool end_shortage(void)
{
    const bool reached = shortage.fails == 0;
    shortage.fails = 0;
    return reached;
}

/* Makes a call again and again, with each of its allocations failing in turn: each time it reports it, and in the end succeeds. */
#define EACH_SHORTAGE(failures, call)                                                                                  \
    do {                                                                                                               \
        bool reached_ = true;                                                                                          \
        for (unsigned nth_ = 1; reached_; nth_++) {                                                                    \
            shortage.fails = nth_;                                                                                     \
            const bp_status status_ = (call);                                                                          \
            reached_ = end_shortage();                                                                                 \
            (failures) += reached_;                                                                                    \
            assert_int_equal(status_, reached_ ? BP_ERR_NO_HOST_MEMORY : BP_OK);                                       \
        }                                                                                                              \
    } while (0)

#endif

/* How much of some memory the system has put into huge pages. */
#ifndef BP_PINNED_HUGE_H
#define BP_PINNED_HUGE_H

#include <stdint.h>

/* Of memory that is a mapping of its own. 0 where the system does not say. */
uint64_t bp_huge_bytes(const uint8_t *address, uint64_t bytes);

#endif

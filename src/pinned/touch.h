/* The first touch of new memory, which is when the system finds it. */
#ifndef BP_PINNED_TOUCH_H
#define BP_PINNED_TOUCH_H

#include <stdint.h>

#define BP_MOST_TOUCH_THREADS 64u

/* Of pages of `page` bytes each, by at most `threads` (at least 1) at once; with fewer where no more can be started or less is to do. */
void bp_touch(uint8_t *address, uint64_t bytes, uint64_t page, uint32_t threads);

/* The processors that this process may use, at most 8: more do not find memory any faster. */
uint32_t bp_touch_default_threads(void);

#endif

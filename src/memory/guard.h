/* Guard mode: makes uses after release and writes past the end visible. Debugging only: it touches every byte.
 *
 * A range is `bytes` of a bucket in `room` bytes that belong to it alone (room >= bytes). Closed, nobody may touch it: whole
 * pages of it trap, and AddressSanitizer, where the program has it, knows the rest. Open, the bucket is accessible and what
 * follows it is a redzone.
 *
 * Streams must be idle on the range when these are called. Source of the ideas: Electric Fence (pages), AddressSanitizer's manual poisoning. */
#ifndef BP_MEMORY_GUARD_H
#define BP_MEMORY_GUARD_H

#include "devices/device.h"

#define BP_GUARD_REDZONE 4096u /* bytes of a redzone that are checked, at most */

/* Whether the device lets the host watch its memory. */
bool bp_guard_is_possible(const bp_device *device);

/* Access to the pages that lie whole in a range. */
bp_status bp_guard_permit(const bp_device *device, uint8_t *address, uint64_t bytes, bp_access access);
/* Fills the bucket with bytes 0xff, which are NaN in every floating-point type that has one, and the redzone. */
void bp_guard_open(uint8_t *address, uint64_t bytes, uint64_t room);
/* The offset of the first byte past the bucket that was overwritten, 0 when none was. The redzone is whole again afterwards. */
uint64_t bp_guard_check(uint8_t *address, uint64_t bytes, uint64_t room);
/* AddressSanitizer reports every touch from now on. */
void bp_guard_close(const uint8_t *address, uint64_t room);
/* Before the memory goes back: its addresses may be somebody else's next. */
void bp_guard_end(const uint8_t *address, uint64_t room);

#endif

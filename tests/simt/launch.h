/* Launches of kernels on the emulation. */
#ifndef SIMT_LAUNCH_H
#define SIMT_LAUNCH_H

#include "simt.h"

#include <cstdint>
#include <string>

namespace simt
{

/* Blocks one after the other, blocks and threads in an order that the seed decides. Returns what is wrong with the kernel: meetings at
 * which not all threads are, or not the same, and misaligned accesses; empty if nothing is. */
std::string launch(index grid, index block, uint64_t seed, void (*kernel)(const void *), const void *argument);

} // namespace simt

#endif

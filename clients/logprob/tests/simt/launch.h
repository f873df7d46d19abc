/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of kernels on the emulation. */
#ifndef SIMT_LAUNCH_H
#define SIMT_LAUNCH_H

#include "simt.h"

#include <cstdint>
#include <string>

namespace simt
{

/* Runs blocks one after the other; the seed determines the order of blocks and threads. Returns the kernel's error: barriers that not all
 * threads reach, or at which they differ, misaligned accesses, and copies that were not waited for; empty if there is none. */
std::string launch(index grid, index block, uint64_t seed, void (*kernel)(const void *), const void *argument,
                   unsigned shared_bytes = 0);

} // namespace simt

#endif

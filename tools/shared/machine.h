/* SPDX-License-Identifier: Apache-2.0 */
/* Facts about the machine: available memory, cache size, clock. */
#ifndef TOOLS_SHARED_MACHINE_H
#define TOOLS_SHARED_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads at most `room` - 1 bytes of a system file; false on failure. Allocates nothing, so that it works when memory
 * is short. */
bool machine_read(const char *path, char *text, size_t room);

/* Memory available without swapping and within the limits of control groups; 0: unknown. */
uint64_t machine_available_bytes(void);
/* Sum of all L3 caches, or BUCKETPOOL_CACHE_BYTES; 64 MiB where the system does not report them. */
uint64_t machine_cache_bytes(void);
/* Monotonic clock. */
double machine_seconds(void);

#endif

/* What the machine says of itself. */
#ifndef TOOLS_SHARED_MACHINE_H
#define TOOLS_SHARED_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The beginning of a file of the system, at most `room` - 1 bytes, as text; false where it cannot be read. Takes no memory, as a stream would:
 * the answer must not depend on how much is left. */
bool machine_read(const char *path, char *text, size_t room);

/* Memory that can be had without swapping, and without going beyond a container's limit; 0 when the system does not say. */
uint64_t machine_available_bytes(void);
/* Of the third level, of all cores, or BUCKETPOOL_CACHE_BYTES; a guess when the system does not say. */
uint64_t machine_cache_bytes(void);
/* Since some moment in the past. */
double machine_seconds(void);

#endif

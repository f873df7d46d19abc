/* What the machine says of itself. */
#ifndef TOOLS_MACHINE_H
#define TOOLS_MACHINE_H

#include <stdint.h>

/* Memory that can be had without swapping, and without going beyond a container's limit; 0 when the system does not say. */
uint64_t machine_available_bytes(void);
/* Of the third level, of all cores; a guess when the system does not say. */
uint64_t machine_cache_bytes(void);
/* Since some moment in the past. */
double machine_seconds(void);

#endif

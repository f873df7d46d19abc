/* The NUMA node that memory should be on. */
#ifndef BP_PINNED_NUMA_H
#define BP_PINNED_NUMA_H

#include <bucketpool/device.h>

#include <stdbool.h>

/* The node next to a cuda device; -1: another device, or the system does not know. */
int32_t bp_numa_node_of(const bp_device *device);

/* Where the system says it. */
#define BP_NUMA_PATH_BYTES 96u
void bp_numa_path(unsigned domain, unsigned bus, unsigned slot, char path[BP_NUMA_PATH_BYTES]);

/* What a file of the system's says ("numa_node" of a PCI device); -1: nothing. */
int32_t bp_numa_read_node(const char *path);

/* New pages come from that node as long as it has some. False: the system does not do that. */
bool bp_numa_bind(void *address, uint64_t bytes, int32_t node);

/* Whether that would work. */
bool bp_numa_is_usable(int32_t node);

#endif

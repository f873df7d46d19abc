/* Asks the system itself (sysfs, mbind): hwloc answers from the same files, and would be one more library to find. */
#include "pinned/numa.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "devices/cuda.h"
#include "pinned/pages.h"

#define MOST_NODES 1024u
#define WORD_BITS (8 * (uint32_t)sizeof(unsigned long))

/* Attributes of the driver. */
enum { PCI_BUS = 33, PCI_DEVICE = 34, PCI_DOMAIN = 50 };

void bp_numa_path(unsigned domain, unsigned bus, unsigned slot, char path[BP_NUMA_PATH_BYTES])
{
    snprintf(path, BP_NUMA_PATH_BYTES, "/sys/bus/pci/devices/%04x:%02x:%02x.0/numa_node", domain, bus, slot);
}

int32_t bp_numa_read_node(const char *path)
{
    int node = -1;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return -1;
    if (fscanf(file, "%d", &node) != 1 || node < 0 || node >= (int)MOST_NODES)
        node = -1;
    fclose(file);
    return node;
}

int32_t bp_numa_node_of(const bp_device *device)
{
    const bp_cuda *cuda = bp_cuda_of(device);
    int domain, bus, slot;
    if (cuda == NULL || cuda->driver.cuDeviceGetAttribute(&domain, PCI_DOMAIN, cuda->device) != BP_CU_SUCCESS ||
        cuda->driver.cuDeviceGetAttribute(&bus, PCI_BUS, cuda->device) != BP_CU_SUCCESS ||
        cuda->driver.cuDeviceGetAttribute(&slot, PCI_DEVICE, cuda->device) != BP_CU_SUCCESS)
        return -1;
    char path[BP_NUMA_PATH_BYTES];
    bp_numa_path((unsigned)domain, (unsigned)bus, (unsigned)slot, path);
    return bp_numa_read_node(path);
}

/* Preferred, not bound: memory that is far away is better than none. */
bool bp_numa_bind(void *address, uint64_t bytes, int32_t node)
{
    unsigned long mask[MOST_NODES / WORD_BITS] = {0};
    if (node < 0 || node >= (int32_t)MOST_NODES) {
        errno = EINVAL;
        return false;
    }
    mask[(uint32_t)node / WORD_BITS] = 1ul << ((uint32_t)node % WORD_BITS);
    return syscall(SYS_mbind, address, bytes, MPOL_PREFERRED, mask, (unsigned long)MOST_NODES + 1, 0u) == 0;
}

bool bp_numa_is_usable(int32_t node)
{
    const uint64_t page = bp_page_bytes();
    void *probe = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (probe == MAP_FAILED)
        return false;
    const bool usable = bp_numa_bind(probe, page, node);
    munmap(probe, page);
    return usable;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Memory in whole pages: mapped, bound to a NUMA node, touched and pinned, and the reverse. */
#include "devices/pinned/pages.h"

#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>

#include <errno.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/process.h"
#include "devices/cuda.h"
#include "devices/device.h"

/* ---- NUMA nodes -------------------------------------------------------------------------------------------------- */

#define MAX_NODES 1024u
#define WORD_BITS (8 * (uint32_t)sizeof(unsigned long))

/* Driver device attributes. */
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
    if (fscanf(file, "%d", &node) != 1 || node < 0 || node >= (int)MAX_NODES)
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

/* Preferred, not bound: memory of a remote node is better than none. */
static bool numa_bind(void *address, uint64_t bytes, int32_t node)
{
    unsigned long mask[MAX_NODES / WORD_BITS] = {0};
    if (node < 0 || node >= (int32_t)MAX_NODES) {
        errno = EINVAL;
        return false;
    }
    mask[(uint32_t)node / WORD_BITS] = 1ul << ((uint32_t)node % WORD_BITS);
    return syscall(SYS_mbind, address, bytes, MPOL_PREFERRED, mask, (unsigned long)MAX_NODES + 1, 0u) == 0;
}

bool bp_numa_is_usable(int32_t node)
{
    const uint64_t page = bp_page_bytes();
    void *probe = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (probe == MAP_FAILED)
        return false;
    const bool usable = numa_bind(probe, page, node);
    munmap(probe, page);
    return usable;
}

/* ---- first touch ------------------------------------------------------------------------------------------------- */

/* Threads for the first touch; they end with it. */

#define MIN_PART (2 * BP_HUGE_PAGE_BYTES) /* smaller parts are done before a thread has started */

typedef struct part {
    uint8_t *address;
    uint64_t bytes, page;
    pthread_t thread;
} part;

static void *touch(void *argument)
{
    const part *p = argument;
    for (uint64_t at = 0; at < p->bytes; at += p->page)
        *(volatile uint8_t *)(p->address + at) = 0;
    return NULL;
}

/* The caller touches the last part, and the parts whose threads could not be started. */
void bp_touch(uint8_t *address, uint64_t bytes, uint64_t page, uint32_t threads)
{
    part parts[BP_MAX_TOUCH_THREADS];
    uint64_t count = bytes / MIN_PART, each = bytes;
    count = bp_min_u64(count, bp_min_u64(threads, BP_MAX_TOUCH_THREADS));
    if (count > 1)
        each = bytes / count / BP_HUGE_PAGE_BYTES * BP_HUGE_PAGE_BYTES;
    uint32_t started = 0;
    uint64_t done = 0;
    while (started + 1 < count) {
        part *p = &parts[started];
        *p = (part){.address = address + done, .bytes = each, .page = page};
        if (bp_thread_start(&p->thread, touch, p) != 0)
            break;
        done += each;
        started++;
    }
    touch(&(part){.address = address + done, .bytes = bytes - done, .page = page});
    while (started > 0)
        pthread_join(parts[--started].thread, NULL);
}

uint32_t bp_touch_default_threads(void)
{
    cpu_set_t set;
    int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return count > 8 ? 8 : (uint32_t)count;
}

/* Reads the list of mappings (smaps), where each is followed by its figures. */
uint64_t bp_huge_bytes(const uint8_t *address, uint64_t bytes)
{
    FILE *file = fopen("/proc/self/smaps", "re");
    if (file == NULL)
        return 0;
    const unsigned long long first = (uintptr_t)address, end = first + bytes;
    unsigned long long from, to, kib, huge = 0;
    bool ours = false, behind = false;
    char line[512];
    while (!behind && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "%llx-%llx ", &from, &to) == 2) {
            ours = from >= first && to <= end;
            behind = from >= end;
        } else if (ours && sscanf(line, "AnonHugePages: %llu kB", &kib) == 1) {
            huge += kib * 1024;
        }
    }
    fclose(file);
    return huge;
}

/* ---- pages ------------------------------------------------------------------------------------------------------- */

uint64_t bp_page_bytes(void)
{
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

static bp_status fail_mapping(uint64_t bytes)
{
    return bp_fail(BP_ERR_NO_HOST_MEMORY, "out of host memory: %llu bytes of pages could not be mapped: %s",
                   (unsigned long long)bytes, strerror(errno));
}

static bp_status pages_map(uint64_t bytes, uint64_t alignment, bp_pages *pages)
{
    const uint64_t page = bp_page_bytes();
    bp_pages made = {.bytes = bytes};
    if (!bp_add_u64(bytes, alignment + 2 * page, &made.mapping_bytes))
        return bp_fail(BP_ERR_NO_HOST_MEMORY, "out of host memory: %llu bytes exceed the address space",
                       (unsigned long long)bytes);
    void *mapping = mmap(NULL, made.mapping_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED)
        return fail_mapping(bytes);
    made.mapping = mapping;
    const uint64_t before = page + (alignment - ((uintptr_t)mapping + page) % alignment) % alignment;
    made.address = made.mapping + before;
    if (mmap(made.address, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
        MAP_FAILED) {
        bp_status status = fail_mapping(bytes);
        munmap(mapping, made.mapping_bytes);
        return status;
    }
    *pages = made;
    return BP_OK;
}

/* Splitting a mapping may exceed the process's limit of mappings: then at least the memory is freed. */
static void pages_unmap(const bp_pages *pages)
{
    if (munmap(pages->mapping, pages->mapping_bytes) != 0)
        madvise(pages->address, pages->bytes, MADV_DONTNEED);
}

bp_status bp_pages_get(bp_page_source *source, uint64_t bytes, uint64_t alignment, bp_pages *pages)
{
    const uint64_t page = bp_page_bytes();
    const bool huge = source->huge && bytes >= BP_HUGE_PAGE_BYTES;
    const uint64_t min = huge ? BP_HUGE_PAGE_BYTES : page;
    bp_pages made;
    if (!bp_round_up_u64(bytes, page, &bytes))
        return bp_fail(BP_ERR_NO_HOST_MEMORY, "out of host memory: %llu bytes exceed the address space",
                       (unsigned long long)bytes);
    BP_TRY(pages_map(bytes, alignment > min ? alignment : min, &made));
    madvise(made.address, made.bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE); /* some systems support neither */
    if (source->node >= 0)
        (void)numa_bind(made.address, made.bytes, source->node); /* if this fails, memory is on another node */
    /* Touched before it is pinned: a pinning driver touches page after page on one thread, and pages of ordinary size. */
    const uint64_t begin = bp_clock_ns();
    bp_touch(made.address, made.bytes, page, source->threads);
    const uint64_t touched = bp_clock_ns();
    bp_status status = bp_device_pin(source->device, made.address, made.bytes);
    if (status != BP_OK) {
        pages_unmap(&made);
        return status;
    }
    source->touch_ns += touched - begin;
    source->pin_ns += bp_clock_ns() - touched;
    if (huge)
        source->huge_bytes += bp_huge_bytes(made.address, made.bytes);
    *pages = made;
    return BP_OK;
}

bp_status bp_pages_give_back(const bp_page_source *source, const bp_pages *pages)
{
    BP_TRY(bp_device_unpin(source->device, pages->address, pages->bytes));
    pages_unmap(pages);
    return BP_OK;
}

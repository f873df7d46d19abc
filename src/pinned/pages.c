/* Touched before it is pinned: a driver that pins touches page after page on one thread, and ordinary ones. */
#include "pinned/pages.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "core/arith.h"
#include "core/fail.h"
#include "devices/device.h"
#include "pinned/huge.h"
#include "pinned/numa.h"
#include "pinned/touch.h"

uint64_t bp_page_bytes(void)
{
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static bp_status fail_mapping(uint64_t bytes)
{
    return bp_fail(BP_ERR_NO_HOST_MEMORY, "out of host memory: %llu bytes of pages could not be mapped: %s",
                   (unsigned long long)bytes, strerror(errno));
}

static bool is_worth_huge_pages(const bp_page_source *source, uint64_t bytes)
{
    return source->huge && bytes >= BP_HUGE_PAGE_BYTES;
}

static bp_status pages_map(uint64_t bytes, uint64_t alignment, bp_pages *pages)
{
    const uint64_t page = bp_page_bytes();
    bp_pages made = {.bytes = bytes};
    if (!bp_add_u64(bytes, alignment + 2 * page, &made.mapping_bytes))
        return bp_fail(BP_ERR_NO_HOST_MEMORY, "out of host memory: %llu bytes do not fit any address space",
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

/* A process may have too many mappings to lose part of one: then at least the memory goes. */
static void pages_unmap(const bp_pages *pages)
{
    if (munmap(pages->mapping, pages->mapping_bytes) != 0)
        madvise(pages->address, pages->bytes, MADV_DONTNEED);
}

bp_status bp_pages_get(bp_page_source *source, uint64_t bytes, uint64_t alignment, bp_pages *pages)
{
    const uint64_t page = bp_page_bytes();
    const bool huge = is_worth_huge_pages(source, bytes);
    const uint64_t least = huge ? BP_HUGE_PAGE_BYTES : page;
    bp_pages made;
    if (!bp_round_up_u64(bytes, page, &bytes))
        return bp_fail(BP_ERR_NO_HOST_MEMORY, "out of host memory: %llu bytes do not fit any address space",
                       (unsigned long long)bytes);
    BP_TRY(pages_map(bytes, alignment > least ? alignment : least, &made));
    madvise(made.address, made.bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE); /* some systems have none of either */
    if (source->node >= 0)
        (void)bp_numa_bind(made.address, made.bytes,
                           source->node); /* it worked when we began; where it does not, memory is elsewhere */
    const uint64_t begin = now_ns();
    bp_touch(made.address, made.bytes, page, source->threads);
    const uint64_t touched = now_ns();
    bp_status status = bp_device_pin(source->device, made.address, made.bytes);
    if (status != BP_OK) {
        pages_unmap(&made);
        return status;
    }
    source->touch_ns += touched - begin;
    source->pin_ns += now_ns() - touched;
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

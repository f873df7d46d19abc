/* Guard mode's pages and redzones. */
#include "memory/guard.h"

#include <string.h>

#define REDZONE_BYTE 0xfd

/* There when the program runs under AddressSanitizer, whether or not this library was built for it. */
extern __attribute__((weak)) void __asan_poison_memory_region(const volatile void *address, size_t bytes);
extern __attribute__((weak)) void __asan_unpoison_memory_region(const volatile void *address, size_t bytes);

static void poison(const uint8_t *address, uint64_t bytes)
{
    if (__asan_poison_memory_region != NULL && bytes > 0)
        __asan_poison_memory_region(address, bytes);
}

static void unpoison(const uint8_t *address, uint64_t bytes)
{
    if (__asan_unpoison_memory_region != NULL && bytes > 0)
        __asan_unpoison_memory_region(address, bytes);
}

bool bp_guard_is_possible(const bp_device *device)
{
    return device->traits.host_accessible && device->traits.page_bytes > 0;
}

bp_status bp_guard_permit(const bp_device *device, uint8_t *address, uint64_t bytes, bp_access access)
{
    uint64_t page = device->traits.page_bytes;
    uint64_t skipped = (page - (uintptr_t)address % page) % page;
    if (skipped >= bytes)
        return BP_OK;
    uint64_t whole = (bytes - skipped) / page * page;
    return whole > 0 ? device->ops->protect(device->self, address + skipped, whole, access) : BP_OK;
}

static uint64_t redzone_bytes(uint64_t bytes, uint64_t room)
{
    return room - bytes < BP_GUARD_REDZONE ? room - bytes : BP_GUARD_REDZONE;
}

void bp_guard_open(uint8_t *address, uint64_t bytes, uint64_t room)
{
    unpoison(address, room);
    memset(address, 0xff, bytes);
    memset(address + bytes, REDZONE_BYTE, redzone_bytes(bytes, room));
    poison(address + bytes, room - bytes);
}

uint64_t bp_guard_check(uint8_t *address, uint64_t bytes, uint64_t room)
{
    uint64_t watched = redzone_bytes(bytes, room), bad = 0;
    unpoison(address + bytes, room - bytes);
    for (uint64_t i = 0; i < watched && bad == 0; i++) {
        if (address[bytes + i] != REDZONE_BYTE)
            bad = bytes + i;
    }
    if (bad != 0)
        memset(address + bytes, REDZONE_BYTE, watched);
    poison(address + bytes, room - bytes);
    return bad;
}

void bp_guard_close(const uint8_t *address, uint64_t room)
{
    poison(address, room);
}

void bp_guard_end(const uint8_t *address, uint64_t room)
{
    unpoison(address, room);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Rules of virtual memory and of allocations. */
#include "rules_support.h"

#include "fakes/cuda/rules.h"

BP_CUDA_RULES(BP_DECLARE_RULE)

static const bp_cu_allocation_prop on_device = {.type = 1, .handle_types = 1, .location_type = 1};

/* ---- virtual memory ---------------------------------------------------------------------------------------------- */

static bool is_power_of_two(size_t value)
{
    return value != 0 && (value & (value - 1)) == 0;
}

void granularity_is_a_power_of_two(rules *r)
{
    size_t min = 0, recommended = 0;
    OKAY(r->driver.cuMemGetAllocationGranularity(&min, &on_device, 0));
    OKAY(r->driver.cuMemGetAllocationGranularity(&recommended, &on_device, 1));
    HOLDS(is_power_of_two(min));
    HOLDS(is_power_of_two(recommended));
    HOLDS(recommended % min == 0);
}

void reservations_are_aligned(rules *r)
{
    for (size_t factor = 1; factor <= 64; factor *= 4) {
        uint64_t address = 1;
        OKAY(r->driver.cuMemAddressReserve(&address, r->granularity, factor * r->granularity, 0, 0));
        HOLDS(address % (factor * r->granularity) == 0);
        OKAY(r->driver.cuMemAddressFree(address, r->granularity));
    }
}

void alignment_is_a_power_of_two(rules *r)
{
    uint64_t address;
    EXPECT(r->driver.cuMemAddressReserve(&address, r->granularity, 3 * r->granularity, 0, 0), 1);
}

void reservations_are_freed_whole(rules *r)
{
    uint64_t address;
    OKAY(r->driver.cuMemAddressReserve(&address, 2 * r->granularity, 0, 0, 0));
    EXPECT(r->driver.cuMemAddressFree(address, r->granularity), 1);
    EXPECT(r->driver.cuMemAddressFree(address + r->granularity, r->granularity), 1);
    OKAY(r->driver.cuMemAddressFree(address, 2 * r->granularity));
}

void physical_sizes_are_multiples(rules *r)
{
    unsigned long long handle;
    EXPECT(r->driver.cuMemCreate(&handle, r->granularity + 4096, &on_device, 0), 1);
    EXPECT(r->driver.cuMemCreate(&handle, 0, &on_device, 0), 1);
}

void physical_memory_runs_out(rules *r)
{
    unsigned long long handle;
    size_t left, total;
    OKAY(r->driver.cuMemGetInfo(&left, &total));
    size_t granules = total / r->granularity + 1;
    EXPECT(r->driver.cuMemCreate(&handle, granules * r->granularity, &on_device, 0), 2);
}

void maps_start_at_offset_0(rules *r)
{
    memory_part memory;
    OKAY(make_memory(r, 2, false, &memory));
    REFUSED(r->driver.cuMemMap(memory.address, r->granularity, r->granularity, memory.handle, 0));
    OKAY(end_memory(r, &memory, false));
}

void maps_need_a_reservation(rules *r)
{
    memory_part memory;
    OKAY(make_memory(r, 1, false, &memory));
    OKAY(r->driver.cuMemAddressFree(memory.address, memory.bytes));
    EXPECT(r->driver.cuMemMap(memory.address, memory.bytes, 0, memory.handle, 0), 1);
    OKAY(r->driver.cuMemRelease(memory.handle));
}

void maps_do_not_overlap(rules *r)
{
    memory_part memory;
    unsigned long long other;
    OKAY(make_memory(r, 1, true, &memory));
    OKAY(r->driver.cuMemCreate(&other, memory.bytes, &on_device, 0));
    REFUSED(r->driver.cuMemMap(memory.address, memory.bytes, 0, other, 0));
    OKAY(r->driver.cuMemRelease(other));
    OKAY(end_memory(r, &memory, true));
}

void access_needs_a_whole_mapping(rules *r)
{
    unsigned long long handle;
    uint64_t address;
    OKAY(r->driver.cuMemAddressReserve(&address, 2 * r->granularity, 0, 0, 0));
    OKAY(r->driver.cuMemCreate(&handle, r->granularity, &on_device, 0));
    OKAY(r->driver.cuMemMap(address, r->granularity, 0, handle, 0));
    EXPECT(give_access(r, &(memory_part){.address = address, .bytes = 2 * r->granularity}), 1);
    OKAY(r->driver.cuMemUnmap(address, r->granularity));
    EXPECT(give_access(r, &(memory_part){.address = address, .bytes = r->granularity}), 1);
    OKAY(r->driver.cuMemRelease(handle));
    OKAY(r->driver.cuMemAddressFree(address, 2 * r->granularity));
}

void unmap_takes_whole_mappings(rules *r)
{
    memory_part memory;
    OKAY(make_memory(r, 2, true, &memory));
    EXPECT(r->driver.cuMemUnmap(memory.address, r->granularity), 1);
    EXPECT(r->driver.cuMemUnmap(memory.address + r->granularity, r->granularity), 1);
    OKAY(end_memory(r, &memory, true));
}

/* Fills the memory's first part, or reads it into the host's buffer. */
static int fill_memory(rules *r, const memory_part *memory, unsigned char value)
{
    int error = r->driver.cuMemsetD8Async(memory->address, value, PART_BYTES, r->a);
    return error == 0 ? r->driver.cuStreamSynchronize(r->a) : error;
}

static int read_memory(rules *r, const memory_part *memory)
{
    int error = r->driver.cuMemcpyAsync((uint64_t)(uintptr_t)r->host, memory->address, PART_BYTES, r->a);
    return error == 0 ? r->driver.cuStreamSynchronize(r->a) : error;
}

void released_memory_lives_while_mapped(rules *r)
{
    memory_part memory;
    OKAY(make_memory(r, 1, true, &memory));
    OKAY(r->driver.cuMemRelease(memory.handle));
    OKAY(fill_memory(r, &memory, 8));
    OKAY(read_memory(r, &memory));
    HOLDS(host_part_is(r, 0, 8));
    OKAY(r->driver.cuMemUnmap(memory.address, memory.bytes));
    OKAY(r->driver.cuMemAddressFree(memory.address, memory.bytes));
}

/* Maps the handle at another address. */
static int move(rules *r, memory_part *memory)
{
    memory_part moved = *memory;
    int error = r->driver.cuMemAddressReserve(&moved.address, moved.bytes, 0, 0, 0);
    if (error == 0)
        error = r->driver.cuMemUnmap(memory->address, memory->bytes);
    if (error == 0)
        error = r->driver.cuMemAddressFree(memory->address, memory->bytes);
    if (error == 0)
        error = r->driver.cuMemMap(moved.address, moved.bytes, 0, moved.handle, 0);
    *memory = moved;
    return error == 0 ? give_access(r, &moved) : error;
}

void handles_keep_their_bytes(rules *r)
{
    memory_part memory;
    OKAY(make_memory(r, 1, true, &memory));
    OKAY(fill_memory(r, &memory, 66));
    OKAY(move(r, &memory));
    OKAY(read_memory(r, &memory));
    HOLDS(host_part_is(r, 0, 66));
    OKAY(end_memory(r, &memory, true));
}

/* Swaps the handle at the memory's address. */
static int swap(rules *r, memory_part *memory, unsigned long long *handle)
{
    unsigned long long mapped = memory->handle;
    int error = r->driver.cuMemUnmap(memory->address, memory->bytes);
    if (error == 0)
        error = r->driver.cuMemMap(memory->address, memory->bytes, 0, *handle, 0);
    memory->handle = *handle;
    *handle = mapped;
    return error == 0 ? give_access(r, memory) : error;
}

void remapped_addresses_have_new_memory(rules *r)
{
    memory_part memory;
    unsigned long long other;
    OKAY(make_memory(r, 1, true, &memory));
    OKAY(r->driver.cuMemCreate(&other, memory.bytes, &on_device, 0));
    OKAY(fill_memory(r, &memory, 1));
    OKAY(swap(r, &memory, &other));
    OKAY(fill_memory(r, &memory, 2));
    OKAY(swap(r, &memory, &other));
    OKAY(read_memory(r, &memory));
    HOLDS(host_part_is(r, 0, 1));
    OKAY(swap(r, &memory, &other));
    OKAY(read_memory(r, &memory));
    HOLDS(host_part_is(r, 0, 2));
    OKAY(r->driver.cuMemRelease(other));
    OKAY(end_memory(r, &memory, true));
}

void reservations_hold_mappings(rules *r)
{
    memory_part memory;
    OKAY(make_memory(r, 1, true, &memory));
    REFUSED(r->driver.cuMemAddressFree(memory.address, memory.bytes));
    OKAY(end_memory(r, &memory, true));
}

/* ---- allocations ------------------------------------------------------------------------------------------------- */

void allocations_are_aligned(rules *r)
{
    uint64_t now[3], ordered;
    for (size_t i = 0; i < 3; i++) {
        OKAY(r->driver.cuMemAlloc(&now[i], 1 + i));
        HOLDS(now[i] % 256 == 0);
    }
    for (size_t i = 0; i < 3; i++)
        OKAY(r->driver.cuMemFree(now[i]));
    if (!r->pools)
        return;
    OKAY(r->driver.cuMemAllocAsync(&ordered, 3, r->a));
    HOLDS(ordered % 256 == 0);
    OKAY(r->driver.cuMemFreeAsync(ordered, r->a));
}

void empty_allocations_are_refused(rules *r)
{
    uint64_t address;
    EXPECT(r->driver.cuMemAlloc(&address, 0), 1);
}

static atomic_int opened;

static void open_late(void *argument)
{
    pause_ms(20);
    atomic_store(&opened, 1);
    (void)argument;
}

void free_waits_for_work(rules *r)
{
    uint64_t address;
    atomic_store(&opened, 0);
    OKAY(r->driver.cuMemAlloc(&address, PART_BYTES));
    OKAY(r->driver.cuLaunchHostFunc(r->a, open_late, NULL));
    OKAY(r->driver.cuMemsetD8Async(address, 1, PART_BYTES, r->a));
    OKAY(r->driver.cuMemFree(address));
    HOLDS(atomic_load(&opened) == 1);
}

void async_memory_follows_its_stream(rules *r)
{
    uint64_t address = 0;
    SKIP_UNLESS(r->pools, "the device has no memory pools");
    OKAY(hold_up(r, r->a));
    OKAY(r->driver.cuMemAllocAsync(&address, PART_BYTES, r->a));
    OKAY(r->driver.cuMemsetD8Async(address, 5, PART_BYTES, r->a));
    OKAY(r->driver.cuMemcpyAsync((uint64_t)(uintptr_t)r->host, address, PART_BYTES, r->a));
    OKAY(r->driver.cuMemFreeAsync(address, r->a));
    open_gate(r);
    OKAY(r->driver.cuStreamSynchronize(r->a));
    HOLDS(host_part_is(r, 0, 5));
}

void host_memory_is_registered_once(rules *r)
{
    static _Alignas(65536) unsigned char memory[65536];
    OKAY(r->driver.cuMemHostRegister(memory, sizeof memory, 0));
    EXPECT(r->driver.cuMemHostRegister(memory, sizeof memory, 0), 712);
    OKAY(r->driver.cuMemHostUnregister(memory));
    EXPECT(r->driver.cuMemHostUnregister(memory), 713);
}

/* Memory of the cuda device that is not slabs of virtual memory: slabs of plain allocations (for legacy IPC), memory in stream order,
 * host memory that is pinned. */
#include "core/arith.h"
#include "core/fail.h"
#include "devices/cuda.h"

#define PORTABLE 1u /* pinned for every context */

/* ---- slabs of plain allocations ------------------------------------------------------------------------------------- */

/* The memory comes with the addresses; what follows has nothing left to do. */
static bp_status allocate_aligned(bp_cuda *cuda, uint64_t bytes, uint64_t alignment, void **address)
{
    uint64_t made;
    BP_TRY(bp_cuda_push(cuda));
    int error = cuda->driver.cuMemAlloc(&made, (size_t)bytes);
    bp_cuda_pop(cuda);
    if (error != BP_CU_SUCCESS)
        return bp_cuda_fail_memory(cuda, error, bytes, "allocating");
    const uint64_t aligned = (made + alignment - 1) / alignment * alignment;
    bp_status status =
        bp_cuda_note_block(cuda, &(bp_cuda_memory_block){.handle = aligned, .address = made, .bytes = bytes});
    if (status != BP_OK) {
        if (bp_cuda_push(cuda) == BP_OK) {
            (void)cuda->driver.cuMemFree(made);
            bp_cuda_pop(cuda);
        }
        return status;
    }
    *address = (void *)(uintptr_t)aligned; /* NOLINT(performance-no-int-to-ptr): it is one of the device */
    return BP_OK;
}

bp_status bp_cuda_plain_reserve(void *self, uint64_t bytes, uint64_t alignment, void **address)
{
    bp_cuda *cuda = self;
    uint64_t total;
    if (!bp_add_u64(bytes, alignment, &total))
        return bp_fail(BP_ERR_OVERFLOW, "cuda: %llu bytes at a multiple of %llu do not fit 64 bits",
                       (unsigned long long)bytes, (unsigned long long)alignment);
    BP_TRY(bp_cuda_take_budget(cuda, total));
    bp_status status = allocate_aligned(cuda, total, alignment, address);
    if (status != BP_OK)
        bp_cuda_give_budget(cuda, total);
    return status;
}

bp_status bp_cuda_plain_unreserve(void *self, void *address, uint64_t bytes)
{
    bp_cuda *cuda = self;
    bp_cuda_memory_block block;
    BP_TRY(bp_cuda_push(cuda));
    const bool known = bp_cuda_take_block(cuda, (uintptr_t)address, &block);
    int error = known ? cuda->driver.cuMemFree(block.address) : BP_CU_SUCCESS;
    bp_cuda_pop(cuda);
    if (!known)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "cuda: %llu bytes at %p were not allocated", (unsigned long long)bytes,
                       address);
    if (error == BP_CU_SUCCESS) {
        bp_cuda_give_budget(cuda, block.bytes);
        return BP_OK;
    }
    (void)bp_cuda_note_block(cuda, &block); /* there was room for it a moment ago */
    return bp_cuda_fail(&cuda->driver, error, "freeing memory");
}

bp_status bp_cuda_plain_commit(void *self, uint64_t bytes, uint64_t *handle)
{
    (void)self;
    *handle = bytes;
    return BP_OK;
}

bp_status bp_cuda_plain_decommit(void *self, uint64_t handle)
{
    (void)self;
    (void)handle;
    return BP_OK;
}

bp_status bp_cuda_plain_map(void *self, void *address, uint64_t bytes, uint64_t handle)
{
    (void)self;
    (void)address;
    if (handle != bytes)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "cuda: map of %llu bytes of a plain allocation of %llu",
                       (unsigned long long)bytes, (unsigned long long)handle);
    return BP_OK;
}

bp_status bp_cuda_plain_unmap(void *self, void *address, uint64_t bytes)
{
    (void)self;
    (void)address;
    (void)bytes;
    return BP_OK;
}

/* ---- memory in stream order ----------------------------------------------------------------------------------------- */

bp_status bp_cuda_allocate(void *self, uint64_t bytes, void *stream, void **address)
{
    bp_cuda *cuda = self;
    const bp_cuda_stream *s = stream;
    uint64_t made;
    BP_TRY(bp_cuda_push(cuda));
    int error = cuda->info.stream_ordered ? cuda->driver.cuMemAllocAsync(&made, (size_t)bytes, s->handle)
                                          : cuda->driver.cuMemAlloc(&made, (size_t)bytes);
    bp_cuda_pop(cuda);
    if (error != BP_CU_SUCCESS)
        return bp_cuda_fail_memory(cuda, error, bytes, "allocating");
    *address = (void *)(uintptr_t)made; /* NOLINT(performance-no-int-to-ptr): it is one of the device */
    return BP_OK;
}

/* Without the stream-ordered allocator the host waits for the stream, as freed memory may be handed out again at once. */
bp_status bp_cuda_free(void *self, void *address, uint64_t bytes, void *stream)
{
    bp_cuda *cuda = self;
    const bp_cuda_stream *s = stream;
    (void)bytes;
    BP_TRY(bp_cuda_push(cuda));
    int error;
    if (cuda->info.stream_ordered) {
        error = cuda->driver.cuMemFreeAsync((uintptr_t)address, s->handle);
    } else {
        error = cuda->driver.cuStreamSynchronize(s->handle);
        if (error == BP_CU_SUCCESS)
            error = cuda->driver.cuMemFree((uintptr_t)address);
    }
    bp_cuda_pop(cuda);
    return bp_cuda_check(cuda, error, "freeing memory");
}

/* ---- host memory ---------------------------------------------------------------------------------------------------- */

bp_status bp_cuda_pin(void *self, void *address, uint64_t bytes)
{
    bp_cuda *cuda = self;
    BP_TRY(bp_cuda_push(cuda));
    int error = cuda->driver.cuMemHostRegister(address, (size_t)bytes, PORTABLE);
    bp_cuda_pop(cuda);
    if (error == BP_CU_OUT_OF_MEMORY)
        return bp_fail(BP_ERR_NO_HOST_MEMORY, "cuda: %llu bytes of host memory could not be pinned: out of memory",
                       (unsigned long long)bytes);
    return bp_cuda_check(cuda, error, "pinning host memory");
}

bp_status bp_cuda_unpin(void *self, void *address, uint64_t bytes)
{
    bp_cuda *cuda = self;
    (void)bytes;
    BP_TRY(bp_cuda_push(cuda));
    int error = cuda->driver.cuMemHostUnregister(address);
    bp_cuda_pop(cuda);
    return bp_cuda_check(cuda, error, "unpinning host memory");
}

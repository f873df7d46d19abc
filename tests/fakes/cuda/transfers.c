/* SPDX-License-Identifier: Apache-2.0 */
/* Work of streams: fills, copies, waits on memory, host functions. */
#include "driver.h"

int cuLaunchHostFunc(void *handle, void (*function)(void *), void *argument)
{
    FAKE_ENTER(cuLaunchHostFunc);
    fake_stream *stream;
    int result = fake_stream_for_work(handle, &stream);
    if (result == OK && function == NULL)
        result = INVALID_VALUE;
    if (result == OK)
        result = fake_submit(stream, &(fake_work){.kind = FAKE_CALL, .function = function, .argument = argument});
    return fake_leave(result);
}

static int wait_value(uint64_t address, uint32_t min, unsigned flags, void *handle)
{
    fake_stream *stream;
    FAKE_TRY(fake_stream_for_work(handle, &stream));
    if (address % sizeof min != 0)
        return INVALID_VALUE;
    if (flags != 0) /* CU_STREAM_WAIT_VALUE_GEQ; no other comparison is emulated */
        return NOT_SUPPORTED;
    FAKE_TRY(fake_memory_check(stream->context->device, address, sizeof min, false, false));
    return fake_submit(stream, &(fake_work){.kind = FAKE_WAIT, .to = address, .min = min});
}

int cuStreamWaitValue32_v2(void *stream, uint64_t address, uint32_t value, unsigned flags)
{
    FAKE_ENTER(cuStreamWaitValue32);
    return fake_leave(wait_value(address, value, flags, stream));
}

static int fill(uint64_t address, unsigned char value, size_t count, void *handle)
{
    fake_stream *stream;
    FAKE_TRY(fake_stream_for_work(handle, &stream));
    FAKE_TRY(fake_memory_check(stream->context->device, address, count, true, false));
    return fake_submit(stream, &(fake_work){.kind = FAKE_FILL, .to = address, .value = value, .bytes = count});
}

int cuMemsetD8Async(uint64_t address, unsigned char value, size_t count, void *stream)
{
    FAKE_ENTER(cuMemsetD8Async);
    return fake_leave(fill(address, value, count, stream));
}

static int copy(uint64_t to, uint64_t from, size_t bytes, void *handle)
{
    fake_stream *stream;
    FAKE_TRY(fake_stream_for_work(handle, &stream));
    FAKE_TRY(fake_memory_check(stream->context->device, to, bytes, true, true));
    FAKE_TRY(fake_memory_check(stream->context->device, from, bytes, false, true));
    return fake_submit(stream, &(fake_work){.kind = FAKE_COPY, .to = to, .from = from, .bytes = bytes});
}

int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, void *stream)
{
    FAKE_ENTER(cuMemcpyAsync);
    return fake_leave(copy(to, from, bytes, stream));
}

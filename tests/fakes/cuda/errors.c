/* SPDX-License-Identifier: Apache-2.0 */
/* Names and texts of errors. */
#include "driver.h"

static const struct {
    int number;
    const char *name, *text;
} errors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {34, "CUDA_ERROR_STUB_LIBRARY", "the library is a stub"},
    {100, "CUDA_ERROR_NO_DEVICE", "no device"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "no such device"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "the image is not one of kernels"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "no current context, or not a valid one"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no code for this GPU"},
    {218, "CUDA_ERROR_INVALID_PTX", "the PTX does not compile"},
    {221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND", "no compiler for PTX"},
    {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "PTX of a later version"},
    {223, "CUDA_ERROR_JIT_COMPILATION_DISABLED", "PTX is not compiled"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid handle"},
    {401, "CUDA_ERROR_ILLEGAL_STATE", "not in a state for this operation"},
    {500, "CUDA_ERROR_NOT_FOUND", "no such name"},
    {600, "CUDA_ERROR_NOT_READY", "not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "illegal memory access"},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "the context is destroyed"},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "host memory is registered already"},
    {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "host memory is not registered"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "launch failed"},
    {800, "CUDA_ERROR_NOT_PERMITTED", "not permitted"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "not supported"},
    {802, "CUDA_ERROR_SYSTEM_NOT_READY", "the system is not ready"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "the driver does not match the system's"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "not permitted while a stream is capturing"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "an earlier error has invalidated the capture"},
    {902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "would merge two captures"},
    {903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "the capture was not begun in this stream"},
    {904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "the capture has a fork that is not joined"},
    {905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "a dependency would cross the capture's boundary"},
    {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "the legacy stream would depend on a capture"},
    {907, "CUDA_ERROR_CAPTURED_EVENT", "the event was recorded in a capture"},
    {908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "another thread began the capture"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static int describe(int error, bool name, const char **text)
{
    if (text == NULL)
        return INVALID_VALUE;
    *text = NULL;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].number == error)
            *text = name ? errors[i].name : errors[i].text;
    return *text != NULL ? OK : INVALID_VALUE;
}

int cuGetErrorName(int error, const char **name)
{
    FAKE_ENTER(cuGetErrorName);
    return fake_leave(describe(error, true, name));
}

int cuGetErrorString(int error, const char **text)
{
    FAKE_ENTER(cuGetErrorString);
    return fake_leave(describe(error, false, text));
}

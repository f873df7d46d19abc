/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled if the toolkit's headers are installed: compares the ABI in cuda_driver.h and in the emulated driver with cuda.h. */
#include "devices/cuda_driver.h"
#include <cuda.h>

#include <stddef.h>

#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #theirs)
#define SAME_SIZE(ours, theirs) _Static_assert(sizeof(ours) == sizeof(theirs), #theirs)
#define SAME_PLACE(ours, field, theirs, their_field)                                                                   \
    _Static_assert(offsetof(ours, field) == offsetof(theirs, their_field), #theirs "." #their_field)

SAME_SIZE(bp_cu_allocation_prop, CUmemAllocationProp);
SAME_PLACE(bp_cu_allocation_prop, type, CUmemAllocationProp, type);
SAME_PLACE(bp_cu_allocation_prop, handle_types, CUmemAllocationProp, requestedHandleTypes);
SAME_PLACE(bp_cu_allocation_prop, location_type, CUmemAllocationProp, location.type);
SAME_PLACE(bp_cu_allocation_prop, location_id, CUmemAllocationProp, location.id);
SAME_PLACE(bp_cu_allocation_prop, win32_metadata, CUmemAllocationProp, win32HandleMetaData);
SAME_PLACE(bp_cu_allocation_prop, compression_type, CUmemAllocationProp, allocFlags.compressionType);
SAME_PLACE(bp_cu_allocation_prop, gpu_direct_rdma_capable, CUmemAllocationProp, allocFlags.gpuDirectRDMACapable);
SAME_PLACE(bp_cu_allocation_prop, usage, CUmemAllocationProp, allocFlags.usage);
SAME_PLACE(bp_cu_allocation_prop, reserved, CUmemAllocationProp, allocFlags.reserved);

SAME_SIZE(bp_cu_access, CUmemAccessDesc);
SAME_PLACE(bp_cu_access, location_type, CUmemAccessDesc, location.type);
SAME_PLACE(bp_cu_access, location_id, CUmemAccessDesc, location.id);
SAME_PLACE(bp_cu_access, flags, CUmemAccessDesc, flags);

SAME_SIZE(bp_cu_multicast_prop, CUmulticastObjectProp);
SAME_PLACE(bp_cu_multicast_prop, devices, CUmulticastObjectProp, numDevices);
SAME_PLACE(bp_cu_multicast_prop, bytes, CUmulticastObjectProp, size);
SAME_PLACE(bp_cu_multicast_prop, handle_types, CUmulticastObjectProp, handleTypes);
SAME_PLACE(bp_cu_multicast_prop, flags, CUmulticastObjectProp, flags);

SAME_SIZE(uint64_t, CUdeviceptr);
SAME_SIZE(int, CUdevice);
SAME_SIZE(int, CUresult);
SAME_SIZE(int, CUstreamCaptureStatus);
SAME_SIZE(unsigned long long, CUmemGenericAllocationHandle);
SAME_SIZE(void *, CUstream);

SAME(1, CU_MEM_ALLOCATION_TYPE_PINNED);
SAME(1, CU_MEM_LOCATION_TYPE_DEVICE);
SAME(1, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
SAME(1, CU_MEM_ACCESS_FLAGS_PROT_READ);
SAME(3, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
SAME(0, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
SAME(1, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
SAME(1, CU_STREAM_NON_BLOCKING);
SAME(2, CU_EVENT_DISABLE_TIMING);
SAME(4, CU_EVENT_INTERPROCESS);
SAME(0, CU_STREAM_CAPTURE_MODE_GLOBAL);
SAME(1, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
SAME(2, CU_STREAM_CAPTURE_MODE_RELAXED);
SAME(0, CU_STREAM_CAPTURE_STATUS_NONE);
SAME(1, CU_STREAM_CAPTURE_STATUS_ACTIVE);
SAME(2, CU_STREAM_CAPTURE_STATUS_INVALIDATED);

SAME(33, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
SAME(41, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
SAME(75, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(76, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME(91, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
SAME(102, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
SAME(103, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
SAME(110, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
SAME(115, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
#if CUDA_VERSION >= 12040
SAME(8, CU_MEM_HANDLE_TYPE_FABRIC);
SAME(128, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED);
#endif
#if CUDA_VERSION >= 12010
SAME(132, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED);
#endif

SAME(1, CUDA_ERROR_INVALID_VALUE);
SAME(2, CUDA_ERROR_OUT_OF_MEMORY);
SAME(3, CUDA_ERROR_NOT_INITIALIZED);
SAME(34, CUDA_ERROR_STUB_LIBRARY);
SAME(100, CUDA_ERROR_NO_DEVICE);
SAME(101, CUDA_ERROR_INVALID_DEVICE);
SAME(200, CUDA_ERROR_INVALID_IMAGE);
SAME(209, CUDA_ERROR_NO_BINARY_FOR_GPU);
SAME(218, CUDA_ERROR_INVALID_PTX);
SAME(221, CUDA_ERROR_JIT_COMPILER_NOT_FOUND);
SAME(222, CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
SAME(223, CUDA_ERROR_JIT_COMPILATION_DISABLED);
SAME(500, CUDA_ERROR_NOT_FOUND);
SAME(201, CUDA_ERROR_INVALID_CONTEXT);
SAME(400, CUDA_ERROR_INVALID_HANDLE);
SAME(401, CUDA_ERROR_ILLEGAL_STATE);
SAME(600, CUDA_ERROR_NOT_READY);
SAME(709, CUDA_ERROR_CONTEXT_IS_DESTROYED);
SAME(712, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
SAME(713, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
SAME(800, CUDA_ERROR_NOT_PERMITTED);
SAME(801, CUDA_ERROR_NOT_SUPPORTED);
SAME(900, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
SAME(901, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
SAME(902, CUDA_ERROR_STREAM_CAPTURE_MERGE);
SAME(903, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
SAME(904, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
SAME(905, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
SAME(906, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
SAME(907, CUDA_ERROR_CAPTURED_EVENT);
SAME(908, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);

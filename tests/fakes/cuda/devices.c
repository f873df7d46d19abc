/* SPDX-License-Identifier: Apache-2.0 */
/* Devices and their attributes. */
#include "driver.h"

#include <stdio.h>

/* Values of CUdevice_attribute that are not 0 by default. */
static int default_attribute(int attribute, int device)
{
    switch (attribute) {
    case 1: return 1024;                         /* MAX_THREADS_PER_BLOCK */
    case 10: return 32;                          /* WARP_SIZE */
    case 16: return 4;                           /* MULTIPROCESSOR_COUNT */
    case 33: return device + 1;                  /* PCI_BUS_ID */
    case 41: return 1;                           /* UNIFIED_ADDRESSING */
    case 75: return 9;                           /* COMPUTE_CAPABILITY_MAJOR */
    case 91: return 1;                           /* CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM */
    case 97: return 232448;                      /* MAX_SHARED_MEMORY_PER_BLOCK_OPTIN */
    case 102: return 1;                          /* VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED */
    case 103: return 1;                          /* HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED */
    case 110: return 1;                          /* GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED */
    case 115: return 1;                          /* MEMORY_POOLS_SUPPORTED */
    case 128: return 1;                          /* HANDLE_TYPE_FABRIC_SUPPORTED */
    case 132: return fake.config.multicast != 0; /* MULTICAST_SUPPORTED */
    default: return 0;
    }
}

static bool exists(int device)
{
    return device >= 0 && device < fake.config.devices;
}

int fake_attribute(int attribute, int device)
{
    return fake.attributes[attribute] >= 0 ? fake.attributes[attribute] : default_attribute(attribute, device);
}

static int start(unsigned flags)
{
    if (flags != 0)
        return INVALID_VALUE;
    if (fake.config.devices == 0)
        return NO_DEVICE;
    fake.started = true;
    return OK;
}

int cuInit(unsigned flags)
{
    FAKE_ENTER(cuInit);
    return fake_leave(start(flags));
}

int cuDriverGetVersion(int *version)
{
    FAKE_ENTER(cuDriverGetVersion);
    if (version == NULL)
        return fake_leave(INVALID_VALUE);
    *version = fake.config.version;
    return fake_leave(OK);
}

int cuDeviceGetCount(int *count)
{
    FAKE_ENTER(cuDeviceGetCount);
    if (count == NULL)
        return fake_leave(INVALID_VALUE);
    *count = fake.config.devices;
    return fake_leave(OK);
}

int cuDeviceGet(int *device, int ordinal)
{
    FAKE_ENTER(cuDeviceGet);
    if (device == NULL || !exists(ordinal))
        return fake_leave(device == NULL ? INVALID_VALUE : INVALID_DEVICE);
    *device = ordinal;
    return fake_leave(OK);
}

int cuDeviceGetName(char *name, int length, int device)
{
    FAKE_ENTER(cuDeviceGetName);
    if (name == NULL || length <= 0 || !exists(device))
        return fake_leave(exists(device) ? INVALID_VALUE : INVALID_DEVICE);
    (void)snprintf(name, (size_t)length, "Emulated GPU");
    return fake_leave(OK);
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    FAKE_ENTER(cuDeviceGetAttribute);
    bool known = attribute > 0 && (size_t)attribute < sizeof fake.attributes / sizeof *fake.attributes;
    if (value == NULL || !known || !exists(device))
        return fake_leave(exists(device) ? INVALID_VALUE : INVALID_DEVICE);
    *value = fake_attribute(attribute, device);
    return fake_leave(OK);
}

int cuDeviceCanAccessPeer(int *can, int device, int peer)
{
    FAKE_ENTER(cuDeviceCanAccessPeer);
    if (can == NULL || !exists(device) || !exists(peer))
        return fake_leave(can == NULL ? INVALID_VALUE : INVALID_DEVICE);
    *can = device != peer && fake.config.peers != 0;
    return fake_leave(OK);
}

int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    FAKE_ENTER(cuDeviceTotalMem);
    if (bytes == NULL || !exists(device))
        return fake_leave(bytes == NULL ? INVALID_VALUE : INVALID_DEVICE);
    *bytes = fake.config.memory;
    return fake_leave(OK);
}

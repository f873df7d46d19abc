/* SPDX-License-Identifier: Apache-2.0 */
#include "hosts.h"

bp_device *device;

int open_host(void **state)
{
    (void)state;
    return bp_device_create_host(NULL, &device) == BP_OK ? 0 : 1;
}

int close_host(void **state)
{
    (void)state;
    bp_device_destroy(&device);
    return 0;
}

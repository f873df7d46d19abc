/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA driver as this program calls it itself: the current context, kernels. The library has found and started the driver already. */
#ifndef FSDP_TRAIN_DRIVER_H
#define FSDP_TRAIN_DRIVER_H

#include <bucketpool/device.h>

#include <stddef.h>
#include <stdint.h>

typedef struct driver {
    void *library, *context, *module;
    int device;
    int (*launch)(void *kernel, unsigned blocks_x, unsigned blocks_y, unsigned blocks_z, unsigned threads_x,
                  unsigned threads_y, unsigned threads_z, unsigned shared_bytes, void *stream, void **arguments,
                  void **extra);
} driver;

/* Makes the GPU's primary context current on this thread until driver_finish. The device that the library made must live as long. */
bp_status driver_init(driver *d, int ordinal);
/* Work that was launched must be done. For a driver of zeros, or one that driver_init did not finish, too. */
void driver_finish(driver *d);

/* Kernels of an image by their names, loaded here: a first launch may be captured. */
bp_status driver_load(driver *d, const void *image, const char *const *names, size_t count, void **kernels);
/* One launch in stream order. `arguments` point to the values of the kernel's parameters. */
bp_status driver_launch(const driver *d, void *kernel, uint32_t blocks, uint32_t threads, void **arguments,
                        const bp_stream *stream);

#endif

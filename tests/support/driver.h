/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA driver for tests. BP_TEST_DRIVER is "real" for the machine's own, or the file of another library with the
 * driver's symbols (the emulated one); if it is not set, tests run on the host device. */
#ifndef BP_TEST_DRIVER_H
#define BP_TEST_DRIVER_H

#include "devices/cuda.h"

#include <stdbool.h>

bool has_driver(void);
/* True for a real driver with a GPU. */
bool has_real_driver(void);

/* The driver's table, loaded once. Exits with 77 and the reason if the machine's driver finds no GPU, with 1 if the
 * named library cannot be loaded. */
const bp_cuda_driver *driver(void);
/* Allows leaks at the end, for programs in which releasing calls fail. Without it leaks and broken rules of the
 * emulated driver fail the program. */
void expect_leaks(void);
/* A symbol that is not in the table; NULL if the driver lacks it. */
void *driver_symbol(const char *name);

/* The context of device 0, kept until the program ends because creating one is slow. */
void *driver_context(void);

/* A device on GPU 0. */
bp_device *new_cuda(void);

/* Page-locked host memory of PINNED_BYTES, for asynchronous copies of a stream. Thread-safe. */
#define PINNED_BYTES 65536u
void *take_pinned(void);
void give_pinned(void *memory);

/* Blocks a stream until *word is not 0, or for 15 seconds. Uses no host function, because drivers may run those of
 * all streams one after another. *word may point to the word; if NULL, one is allocated. False if the driver lacks
 * the operation. */
bool hold_stream(bp_stream *stream, uint32_t **word);

#endif

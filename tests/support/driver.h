/* The driver that tests of GPUs run on. BP_TEST_DRIVER is "real" for the machine's own, or the file of another library with the driver's
 * symbols (the emulated one); without it there is none, and tests run on the host device. */
#ifndef BP_TEST_DRIVER_H
#define BP_TEST_DRIVER_H

#include "devices/cuda.h"

#include <stdbool.h>

bool has_driver(void);
/* A real one, with a GPU behind it. */
bool has_real_driver(void);

/* The table, loaded once. Where the machine's driver finds no GPU the program ends with status 77 and the reason; where a library that
 * was named cannot be loaded, with 1. */
const bp_cuda_driver *driver(void);
/* The program makes calls fail that give things back, so that some are left when it ends. Without this what the emulated driver finds
 * left makes the program fail, as do the rules that it finds broken. */
void expect_leaks(void);
/* A symbol that the table has not; NULL where the driver lacks it. */
void *driver_symbol(const char *name);

/* The context of device 0, which lives as long as the program: making one takes long. */
void *driver_context(void);

/* Device 0. */
bp_device *new_cuda(void);

/* Host memory that copies of a stream go to and come from without holding up the caller; of PINNED_BYTES each. Any thread. */
#define PINNED_BYTES 65536u
void *take_pinned(void);
void give_pinned(void *memory);

/* Holds a stream up until *word is not 0, or for 15 seconds, without a host function: drivers may run those of all streams one after the
 * other. The word is at `*word` if that is not NULL, else taken. False where the driver has no such operation. */
bool hold_stream(bp_stream *stream, uint32_t **word);

#endif

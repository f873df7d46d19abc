/* SPDX-License-Identifier: Apache-2.0 */
/* An emulated CUDA driver: a library named libcuda.so.1 with the real names and the real ABI, for machines without a
 * GPU.
 *
 * Streams are threads, so work is asynchronous; memory is mapped and unmapped in the process, so access to unmapped
 * memory faults; graphs run their nodes in a random order within their edges. Calls that the real driver refuses are
 * refused with the same number (rules.h); mistakes that it accepts silently are recorded, see fake_cuda_broken.
 *
 * Programs that are not linked with this library configure it by the environment:
 * FAKE_CUDA="devices=2,memory=1g,version=12040, granularity=65536,delay_us=50,fail=cuMemCreate:3:2". Every field of
 * fake_cuda_config may be named; sizes take k, m and g. `report=1` writes broken rules and leaks to stderr when the
 * program ends. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include "devices/cuda_driver.h"

#include "fake_kernels.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct fake_cuda_config {
    int devices;
    uint64_t memory;                              /* bytes of each device */
    int version;                                  /* of the driver: 12040 is 12.4 */
    uint64_t granularity, recommended, multicast; /* bytes, powers of two; multicast 0: not supported */
    int fabric;                                   /* result of cuMemCreate for fabric handles: 0, 800 or 801 */
    int peers;                                    /* 1: devices have peer access */
    int vmm_unsafe; /* 1: mapping and similar calls are refused during captures wherever cuMemAlloc is, as no source rules it out */
    uint64_t poison; /* number of bytes at the start of new memory that are not zero */
    int host_faults; /* 1: the host faults on device memory, as with a real GPU; only work can access it */
    int serial_host; /* 1: the host functions of all streams run on one thread, in the order in which they become ready */
    uint32_t delay_us; /* random delay, up to this, before each piece of work */
    uint64_t seed;
    const char *kernels; /* a library of kernels (fake_kernels.h), copied; NULL: no image has code for this GPU */
} fake_cuda_config;

/* One device of 256 MiB, CUDA 13.0, 64 KiB, no multicast, fabric not permitted, no delays, no kernels. */
void fake_cuda_config_init(fake_cuda_config *config);
/* Before cuInit, or after fake_cuda_reset. Overrides the environment. */
void fake_cuda_configure(const fake_cuda_config *config);
/* The value that cuDeviceGetAttribute returns for all devices. */
void fake_cuda_set_attribute(int attribute, int value);

/* Restores the initial state of the library: waits for all work, and forgets every object, failure and count. No
 * other thread may call the driver any more. */
void fake_cuda_reset(void);

/* Instead of an error: the function returns success but does nothing. */
#define FAKE_CUDA_FORGETS (-1)

/* The nth use of a function from now on (1: the next; 0: each) returns `error` and does nothing. Names are those of
 * the table: "cuMemAlloc", not "cuMemAlloc_v2". False: unknown function. Up to 64 failures can be pending. */
bool fake_cuda_fail(const char *function, uint64_t nth, int error);
/* From the nth use of the function on, every function that needs the context returns `error`, until the reset: as after an illegal address
 * (700) in a kernel. */
bool fake_cuda_fail_for_good(const char *function, uint64_t nth, int error);
void fake_cuda_fail_none(void);
/* Calls since the start or the last reset; UINT64_MAX: unknown function. */
uint64_t fake_cuda_calls(const char *function);
uint64_t fake_cuda_calls_all(void);
/* Names of the functions that can fail on demand; NULL after the last. */
const char *fake_cuda_function(size_t index);

/* Rules that the program broke, a line each: "id: what happened (the rule)"; "" if none. Do not free; valid until
 * the next call of the same thread. */
const char *fake_cuda_broken(void);
void fake_cuda_forgive(void);
/* Objects that are left: contexts, streams, events, graphs, memory, reservations, a line each; "" if none. */
const char *fake_cuda_leaks(void);
/* Bytes of a device that are in use. */
uint64_t fake_cuda_used(int device);

/* Fills the table from this library, as bp_cuda_driver_load does, without cuInit. */
void fake_cuda_table(bp_cuda_driver *driver);

/* ---- for emulated libraries on top of the driver ---------------------------------------------------------------------- */

/* Launches a kernel without an image on the stream of a handle: one block of one thread; copies the argument.
 * Returns what cuLaunchKernel does. */
int fake_cuda_launch(const fake_kernel *kernel, const void *argument, void *handle);

/* ---- for the emulated NCCL --------------------------------------------------------------------------------------- */

typedef struct fake_cuda_segment {
    uint64_t address, bytes; /* of the whole mapping */
    uint64_t physical;       /* id of the physical memory, never reused */
    int device;
    int handle_types; /* types it can be exported as */
    bool accessible, rdma;
} fake_cuda_segment;

/* The mappings that overlap [address, address + bytes), in order. Returns their number and writes up to `count`; 0
 * if part of the range is not mapped. */
size_t fake_cuda_segments(uint64_t address, uint64_t bytes, fake_cuda_segment *segments, size_t count);
/* Marks a range: unmapping a registered range breaks a rule. */
void fake_cuda_mark_registered(uint64_t address, uint64_t bytes, bool registered);
/* The address at which the process can access device memory, also with `host_faults`. Faults if the memory is not
 * accessible to work. */
void *fake_cuda_view(uint64_t address);
/* Adds a broken rule of another emulated library to the list. */
void fake_cuda_record_broken(const char *rule, const char *text);
bool fake_cuda_stream_is_capturing(void *stream);
bool fake_cuda_any_capture(void);
/* True if the calling thread runs a host function of a stream. */
bool fake_cuda_in_host_function(void);

#endif

/* An emulated CUDA driver: a library named libcuda.so.1 with the real names and the real ABI, for machines without a GPU.
 *
 * Streams are threads, so work really is asynchronous; memory is mapped and unmapped in the process, so that what is not mapped
 * faults; graphs run their nodes in a random order that only their edges restrict. What the real driver refuses is refused with the
 * same number (rules.h); what it would take silently and then go wrong is recorded, see fake_cuda_broken.
 *
 * Programs that do not link this library set it up by the environment: FAKE_CUDA="devices=2,memory=1g,version=12040,
 * granularity=65536,delay_us=50,fail=cuMemCreate:3:2". Every field of fake_cuda_config may be named; sizes take k, m and g. `report=1`
 * writes to stderr, when the program ends, what was broken and leaked. */
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
    int fabric;                                   /* what cuMemCreate answers for fabric handles: 0, 800 or 801 */
    int peers;                                    /* 1: devices may access each other's memory */
    int vmm_unsafe; /* 1: mapping and the like are refused where cuMemAlloc is, during captures: nothing says that they are not */
    uint64_t poison;   /* bytes at the start of new memory that are not zero */
    int host_faults;   /* 1: the host cannot touch memory of devices, as with a real one; only work can */
    int serial_host;   /* 1: host functions of all streams run one after another on one thread, as they become ready */
    uint32_t delay_us; /* pieces of work start up to so much later, at random */
    uint64_t seed;
    const char *kernels; /* a library of kernels (fake_kernels.h), copied; NULL: no image has code for this GPU */
} fake_cuda_config;

/* One device of 256 MiB, CUDA 13.0, 64 KiB, no multicast, fabric not permitted, no delays, no kernels. */
void fake_cuda_config_init(fake_cuda_config *config);
/* Before cuInit, or after fake_cuda_reset. The environment does not count then. */
void fake_cuda_configure(const fake_cuda_config *config);
/* What cuDeviceGetAttribute answers, of all devices. */
void fake_cuda_set_attribute(int attribute, int value);

/* The driver as it was when the library was loaded: waits for all work, and forgets every object, failure and count. Threads that still
 * call the driver must be gone. */
void fake_cuda_reset(void);

/* An error that no driver has: the function answers success, and does nothing all the same. */
#define FAKE_CUDA_FORGETS (-1)

/* The nth use of a function from now on (1: the next; 0: each) answers `error` and does nothing. Names are those of the table:
 * "cuMemAlloc", not "cuMemAlloc_v2". False: no such function. Up to 64 wait at once. */
bool fake_cuda_fail(const char *function, uint64_t nth, int error);
void fake_cuda_fail_none(void);
/* Uses since the start or the last reset; UINT64_MAX: no such function. */
uint64_t fake_cuda_calls(const char *function);
uint64_t fake_cuda_calls_all(void);
/* Names of the functions that may be failed, and NULL after the last. */
const char *fake_cuda_function(size_t index);

/* Rules that the program broke, a line each: "id: what happened (the rule)". "": none. The caller frees neither; valid until the next
 * call of the same thread. */
const char *fake_cuda_broken(void);
void fake_cuda_forgive(void);
/* What is still there: contexts, streams, events, graphs, memory, reservations, a line each. "": nothing. */
const char *fake_cuda_leaks(void);
/* Bytes of a device that are in use. */
uint64_t fake_cuda_used(int device);

/* Fills the table from this library, as bp_cuda_driver_load would do. Without cuInit. */
void fake_cuda_table(bp_cuda_driver *driver);

/* ---- for emulated libraries on top of the driver ---------------------------------------------------------------------- */

/* A launch, on the stream of a handle, of a kernel that is in no image: one block of one thread; the argument is copied. Answers as
 * cuLaunchKernel. */
int fake_cuda_launch(const fake_kernel *kernel, const void *argument, void *handle);

/* ---- for the emulated NCCL --------------------------------------------------------------------------------------- */

typedef struct fake_cuda_segment {
    uint64_t address, bytes; /* of the whole mapping */
    uint64_t physical;       /* of the physical memory, never used twice */
    int device;
    int handle_types; /* exportable as */
    bool accessible, rdma;
} fake_cuda_segment;

/* Mappings of virtual memory that [address, address + bytes) touches, in order. Returns how many there are, and writes up to `count`;
 * 0 where some of the range is not mapped. */
size_t fake_cuda_segments(uint64_t address, uint64_t bytes, fake_cuda_segment *segments, size_t count);
/* Unmapping a range that is registered breaks a rule. */
void fake_cuda_mark_registered(uint64_t address, uint64_t bytes, bool registered);
/* Where the process can touch a byte of a device, with `host_faults` too; what is not accessible faults. */
void *fake_cuda_view(uint64_t address);
/* Rules of others, in the same list. */
void fake_cuda_record_broken(const char *rule, const char *text);
bool fake_cuda_stream_is_capturing(void *stream);
bool fake_cuda_any_capture(void);
/* The calling thread is in a host function of a stream. */
bool fake_cuda_in_host_function(void);

#endif

/** @file
 * Everything of the core library.
 *
 * Plan: offline or at start-up, pure data, no device.
 *
 *   status.h     status codes and the sentence of the last error      dtype.h      element types
 *   model.h      models, their buckets, the requests of the buckets   schedule.h   when each request is live
 *   plan.h       the place of each request                            whatif.h     plans of other schedules, peaks
 *   pack.h       the packer by itself
 *
 *     bp_model -> bp_buckets -> bp_schedule -> bp_plan         each made from those before it
 *
 * Serve: a plan made real on a device.
 *
 *   device.h     devices, streams, events, graphs                     cuda.h       the device of a GPU
 *   pool.h       acquire and release                                  capture.h    pools inside CUDA graphs
 *   comm.h       communicators, registration of slabs                 nccl.h       those of NCCL
 *   offload.h    release groups to host memory and back               pinned.h     host memory for copies
 *   profile.h    snapshots of chosen steps                            dlpack.h     tensors over a pool's memory
 *   torch_allocator.h   segments of PyTorch's allocator
 *
 *   For providers of devices and communicators of their own: device_ops.h, comm_ops.h.
 *
 * Clients and libraries of their own: formats.h (files, bucketpool-formats), comm_mpi.h (bucketpool-mpi), and in bucketpool-logprob
 * logprob.h, lm_head.h, cp.h, loss.h (log-probabilities, the fused head, context parallelism, losses).
 *
 * Rules of all of it:
 * - A function returns a bp_status unless it cannot fail. After an error outputs are as before, and bp_error_detail has a sentence for the
 *   calling thread. Outputs come last. Each such function that is given NULL for an object, an output or a struct that it needs returns
 *   BP_ERR_INVALID_ARGUMENT; comments name further errors.
 * - bp_x_create gives an object to the caller, bp_x_destroy takes a pointer to it and sets that to NULL; both NULLs are accepted.
 * - bp_x_get_info shows an object as a const struct with arrays, which lives as long as the object unless its comment says otherwise. Elements
 *   of its arrays never grow: what is added later is an array of its own beside them.
 * - Structs that the caller makes begin with `size`, set to sizeof. bp_x_init fills one with the defaults. A field is only ever added at the end,
 *   where no padding was: a library reads what an older caller has over its defaults, and accepts a newer caller's longer struct as long as the
 *   bytes that it does not know are 0 (else BP_ERR_UNSUPPORTED).
 * - The id of a request is its index in the plan, in all headers. Sizes and offsets are bytes, times nanoseconds, unless a name says otherwise.
 * - A header says which calls may run at the same time, on which thread a callback runs, and what is refused while a CUDA graph is captured. */
#ifndef BUCKETPOOL_H
#define BUCKETPOOL_H

#include <bucketpool/capture.h>
#include <bucketpool/comm.h>
#include <bucketpool/cuda.h>
#include <bucketpool/device.h>
#include <bucketpool/dlpack.h>
#include <bucketpool/dtype.h>
#include <bucketpool/model.h>
#include <bucketpool/nccl.h>
#include <bucketpool/offload.h>
#include <bucketpool/pack.h>
#include <bucketpool/pinned.h>
#include <bucketpool/plan.h>
#include <bucketpool/pool.h>
#include <bucketpool/profile.h>
#include <bucketpool/schedule.h>
#include <bucketpool/status.h>
#include <bucketpool/torch_allocator.h>
#include <bucketpool/whatif.h>

#endif

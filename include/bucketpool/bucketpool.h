/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * All headers of the core library. bucketpool plans the memory that FSDP training gathers parameters into and reduces
 * gradients from, and serves it at run time.
 *
 * Planning is host data only: it needs no device and runs offline or at start-up.
 * - status.h: status codes, and the message of the last error
 * - dtype.h: element types
 * - model.h: a model, its buckets, and the requests of the buckets
 * - schedule.h: the steps in which each request is live
 * - plan.h: the address of each request
 * - pack.h: the packing algorithm, for any items with sizes and live ranges
 * - whatif.h: plans of other schedules; the units that set the peak
 *
 * Serving needs a device and a plan.
 * - device.h: devices, streams, events and graphs; cuda.h: the device of an NVIDIA GPU
 * - pool.h: acquire and release; capture.h: pools inside CUDA graphs
 * - comm.h: communicators, and registration of slabs; nccl.h: communicators of NCCL
 * - offload.h: physical memory of release groups, moved to the host and back; pinned.h: pinned host memory
 * - profile.h: snapshots of chosen steps
 * - dlpack.h: export of a pool's memory; torch_allocator.h: a segment allocator for PyTorch
 * - device_ops.h, comm_ops.h: interfaces that a new device or communicator implements
 *
 * Other libraries have separate headers, which this one does not include: formats.h (bucketpool-formats: files),
 * comm_mpi.h (bucketpool-mpi), and logprob.h, lm_head.h, cp.h, loss.h (bucketpool-logprob: log-probabilities, the
 * fused head, context parallelism, losses).
 *
 * From a model to a served bucket, without error checks:
 * @code
 * bp_model_read("Qwen3-8B", NULL, &model);
 * bp_buckets_create(model, NULL, &buckets);
 * bp_schedule_create_training(buckets, NULL, &schedule);
 * bp_plan_create(buckets, schedule, NULL, &plan);
 *
 * bp_device_create_cuda(NULL, &device);
 * bp_pool_create(device, plan, NULL, &pool);
 * bp_plan_find(plan, "model.layers.7", 0, BP_ROLE_PARAM, BP_DTYPE_BF16, bytes, &id);
 * bp_pool_acquire(pool, &id, 1, gather_stream, &address);
 * // all-gather into `address` on gather_stream, then the layer on compute_stream
 * bp_pool_release(pool, &id, 1, compute_stream);
 * @endcode
 *
 * Rules of all headers:
 * - Errors. A function that can fail returns a bp_status. After an error the outputs are unchanged, and
 *   bp_error_detail returns a message for the calling thread. NULL for an object, an output or a struct that a
 *   function needs is BP_ERR_INVALID_ARGUMENT; the comments name the other errors.
 * - Arguments. Outputs are the last arguments. An object that is only read is const.
 * - Ownership. bp_x_create gives an object to the caller. bp_x_destroy takes a pointer to the object and sets it to
 *   NULL; it accepts NULL and a pointer to NULL.
 * - Contents. bp_x_get_info returns the contents of an object as a const struct with arrays. The struct lives as long
 *   as the object, unless its comment says otherwise.
 * - Versions. A struct that the caller fills begins with `size`, which is its sizeof. bp_x_init sets all fields to
 *   their defaults. New fields are only added at the end, where no padding was. A library uses its defaults for
 *   fields that an older caller lacks. It accepts the longer struct of a newer caller if the unknown bytes are 0, and
 *   returns BP_ERR_UNSUPPORTED otherwise. Structs that are elements of arrays have no size and never grow: new values
 *   are in a new array. Arrays of structs that may grow are arrays of pointers.
 * - Units. Sizes and offsets are bytes and times are nanoseconds, unless a name says otherwise. The id of a request
 *   is its index in the plan, in all headers.
 * - Threads and captures. Each header says which calls may run at the same time, on which thread a callback runs, and
 *   which calls fail while a CUDA graph is captured. */
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

/* Everything of the core library. Libraries of their own: files (formats.h), log-probabilities and losses (logprob.h, lm_head.h, cp.h,
 * loss.h), communicators of MPI (comm_mpi.h). */
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

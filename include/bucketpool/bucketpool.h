/* Everything of the core library. Files are in <bucketpool/formats.h>, a library of its own. */
#ifndef BUCKETPOOL_H
#define BUCKETPOOL_H

#include <bucketpool/capture.h>
#include <bucketpool/comm.h>
#include <bucketpool/cuda.h>
#include <bucketpool/device.h>
#include <bucketpool/dtype.h>
#include <bucketpool/model.h>
#include <bucketpool/nccl.h>
#include <bucketpool/pack.h>
#include <bucketpool/plan.h>
#include <bucketpool/pool.h>
#include <bucketpool/schedule.h>
#include <bucketpool/status.h>
#include <bucketpool/whatif.h>

#endif

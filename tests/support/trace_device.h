/* SPDX-License-Identifier: Apache-2.0 */
/* Test double of a device: forwards each call to another device, after a function of the test has seen it and may have made it fail. */
#ifndef BP_TEST_TRACE_DEVICE_H
#define BP_TEST_TRACE_DEVICE_H

#include <bucketpool/device.h>

/* A call of a device. Fields that an operation does not use are 0. */
typedef enum device_operation {
    OP_RESERVE = 0,
    OP_UNRESERVE = 1,
    OP_COMMIT = 2,
    OP_DECOMMIT = 3,
    OP_MAP = 4,
    OP_UNMAP = 5,
    OP_PROTECT = 6,
    OP_ALLOCATE = 7,
    OP_FREE = 8,
    OP_STREAM_CREATE = 9,
    OP_STREAM_IMPORT = 10,
    OP_STREAM_DESTROY = 11,
    OP_STREAM_SYNCHRONIZE = 12,
    OP_SYNCHRONIZE = 13,
    OP_CALL = 14,
    OP_FILL = 15,
    OP_COPY = 16,
    OP_EVENT_CREATE = 17,
    OP_EVENT_DESTROY = 18,
    OP_EVENT_RECORD = 19,
    OP_STREAM_WAIT = 20,
    OP_EVENT_SYNCHRONIZE = 21,
    OP_PIN = 22,
    OP_UNPIN = 23,
    OP_CAPTURE_OF = 24,
    OP_GRAPH_BEGIN = 25,
    OP_GRAPH_END = 26,
    OP_GRAPH_LAUNCH = 27,
    OP_GRAPH_DESTROY = 28
} device_operation;
#define OP_COUNT 29

/* "reserve", "stream_wait", ...; "invalid" for other values. Static. */
const char *device_operation_name(device_operation operation);

typedef struct device_call {
    device_operation operation;
    uint32_t access;     /* protect: a bp_access */
    const void *address; /* memory operations, fill, copy (destination) */
    uint64_t bytes;
    uint64_t handle;    /* physical memory: decommit, map */
    const void *stream; /* the inner device's object: equal pointers are the same stream or event while it lives */
    const void *event;
    const void *graph;
} device_call;

/* Called before each call, on the calling thread. A status other than BP_OK is returned instead of making the call;
 * functions that return one may record a detail, else one is recorded for them. Releasing calls (unreserve,
 * decommit, unmap, free, destroys) can fail like any other. */
typedef bp_status device_trace(void *user, const device_call *call);

/* Wraps `inner` and keeps a reference: the caller may destroy its own at once. Errors: those of bp_device_create. */
bp_status trace_device_create(bp_device *inner, device_trace *trace, void *user, bp_device **device);

#endif

/* Work of host devices on its way: copies of what functions need, in slots made beforehand. */
#ifndef BP_LOGPROB_HOST_RING_H
#define BP_LOGPROB_HOST_RING_H

#include <bucketpool/device.h>

#define BP_RING_JOBS 64 /* that are on their way at once; more wait */

typedef struct bp_ring bp_ring;

/* Runs on the stream's thread. `owner` is whoever enqueued, `work` the copy. */
typedef void bp_job_function(void *owner, void *work);

/* `work_bytes`: the most that a copy takes. Freed with bp_ring_destroy. */
bp_status bp_ring_create(size_t work_bytes, bp_ring **ring);
/* Waits until all have run. Accepts NULL and pointers to NULL; sets *ring to NULL. */
void bp_ring_destroy(bp_ring **ring);

/* In stream order; any thread. Waits while all slots are on their way. */
bp_status bp_ring_enqueue(bp_ring *ring, bp_stream *stream, bp_job_function *function, void *owner, const void *work,
                          size_t work_bytes);

#endif

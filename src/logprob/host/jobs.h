/* Work of host devices on its way: copies of what functions need, in slots made beforehand. */
#ifndef BP_LOGPROB_HOST_JOBS_H
#define BP_LOGPROB_HOST_JOBS_H

#include <bucketpool/device.h>

#define BP_JOBS 64 /* that are on their way at once; more wait */

typedef struct bp_jobs bp_jobs;

/* Runs on the stream's thread. `owner` is whoever enqueued, `work` the copy. */
typedef void bp_job_function(void *owner, void *work);

/* `work_bytes`: the most that a copy takes. Freed with bp_jobs_destroy. */
bp_status bp_jobs_create(size_t work_bytes, bp_jobs **jobs);
/* Waits until all have run. Accepts NULL and pointers to NULL; sets *jobs to NULL. */
void bp_jobs_destroy(bp_jobs **jobs);

/* In stream order; any thread. Waits while all slots are on their way. */
bp_status bp_jobs_enqueue(bp_jobs *jobs, bp_stream *stream, bp_job_function *function, void *owner, const void *work,
                          size_t work_bytes);

#endif

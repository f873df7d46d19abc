/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * Snapshots of pools in chosen steps, for PyTorch's memory viewer, Chrome's trace viewer and `bucketpool view`.
 * @code
 * bp_profile_create(&pool, 1, NULL, &profile); // steps 0 and 1, 100,000 events, ./memory_snapshots
 * for (uint64_t step = 0; step < steps; step++) {
 *     bp_profile_step(profile, step);          // writes the last step if it was recorded, begins this one
 *     train();
 * }
 * bp_profile_destroy(&profile);                // writes the open step
 * @endcode
 *
 * Each chosen rank writes one file for each recorded step and format, in a folder for the step:
 * @verbatim
 * memory_snapshots/step_0/snapshot_rank03_p0d1c0t1.pickle      pytorch.org/memory_viz, bucketpool view
 * memory_snapshots/step_0/trace_rank03_p0d1c0t1.json           Perfetto, chrome://tracing
 * @endverbatim
 *
 * docs/reference/snapshot_files.md describes the contents. Outside recorded steps acquire and release cost nothing
 * more. A recorded event costs a read of the clock and a few stores, without allocation: the ring buffer is allocated
 * at creation. A full ring overwrites its oldest events, and the file says so. Files are written under a temporary
 * name and renamed.
 *
 * A call that cannot write a file returns BP_ERR_IO and records the next step all the same, so training can continue.
 *
 * Thread safety: one call at a time, with no acquire or release of the pools at the same time. Capture: allowed;
 * events of a capture are those of the capturing host, not of launches. */
#ifndef BUCKETPOOL_PROFILE_H
#define BUCKETPOOL_PROFILE_H

#include <bucketpool/plan.h>
#include <bucketpool/pool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bp_profile bp_profile;

/** File formats. */
#define BP_PROFILE_PICKLE 1u
#define BP_PROFILE_TRACE 2u

typedef struct bp_profile_config {
    size_t size;
    const char *directory;         /**< created with its parents if missing. NULL: "memory_snapshots" */
    const uint64_t *profile_steps; /**< steps to record. NULL: 0 and 1 */
    size_t profile_step_count;     /**< 0 and profile_steps not NULL: record only between start and stop */
    /** events in the ring of each pool, at most 2^30, rounded up to a power of two. 0: 100,000 */
    uint64_t max_entries;
    /** rank of this process and number of ranks, for file names and contents. ranks 0: 1 */
    uint32_t rank, ranks;
    const uint32_t *record_ranks; /**< ranks that record. NULL: all */
    size_t record_rank_count;
    /** parallel coordinates of this rank for file names: "p0d1c0t1". Letters, digits, '_' and '-', at most 63; NULL:
     * none */
    const char *coordinates;
    uint32_t formats; /**< BP_PROFILE bits. 0: pickle */
    /** plans of the pools in their order, for lower bounds and roles; NULL, or an array with NULLs. Only read during
     * the call */
    const bp_plan *const *plans;
} bp_profile_config;

/** Sets the defaults: steps 0 and 1, 100,000 events, one rank, pickles in ./memory_snapshots. Errors:
 * BP_ERR_INVALID_ARGUMENT. */
BP_API bp_status bp_profile_config_init(bp_profile_config *config, size_t size);

/** Creates a profile of some pools and allocates their ring buffers. The pools must outlive the profile and have no
 * other trace while it records. `config` NULL: the defaults. The caller owns the profile: bp_profile_destroy. The
 * directory is created with the first file.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (the message names the field; a pool listed twice), BP_ERR_SCHEDULE (a sealed pool,
 * a pool of another profile), BP_ERR_CAPTURE, BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_profile_create(bp_pool *const *pools, size_t count, const bp_profile_config *config,
                                   bp_profile **profile);
/** Writes the open step, as bp_profile_stop does but without reporting errors, and destroys the profile. Accepts NULL
 * and a pointer to NULL; sets *profile to NULL. */
BP_API void bp_profile_destroy(bp_profile **profile);

/** Begins step `step` of the training loop: ends the step before, writes it if it was recorded, calls bp_pool_set_step
 * for all pools, and records if `step` is chosen. Steps may come in any order; a repeated step overwrites its file.
 * On ranks that do not record, only sets the step.
 *
 * Errors: BP_ERR_IO (the message names the file and the reason; the new step is recorded all the same),
 * BP_ERR_NO_HOST_MEMORY (nothing was written; likewise), BP_ERR_SCHEDULE (the caller runs a trace: the step is not
 * recorded). */
BP_API bp_status bp_profile_step(bp_profile *profile, uint64_t step);

/** Starts recording until bp_profile_stop, across steps. `label` is the name of the folder, with the characters of
 * `coordinates`.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT, BP_ERR_SCHEDULE (recording already). */
BP_API bp_status bp_profile_start(bp_profile *profile, const char *label);
/** Stops recording and writes the files. Errors: as bp_profile_step; BP_ERR_SCHEDULE (not recording). */
BP_API bp_status bp_profile_stop(bp_profile *profile);

typedef struct bp_profile_info {
    int32_t recording;       /**< 1: recording now */
    const char *pickle_path; /**< last written file; "": none yet */
    const char *trace_path;
} bp_profile_info;

/** The state of a profile. Lives as long as the profile; the next call for the profile may change it, paths included.
 * NULL for NULL. */
BP_API const bp_profile_info *bp_profile_get_info(const bp_profile *profile);

/** Writes the present state of the pools and the recorded events to a file at `path`, at any time, also after an
 * error. Recording continues.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT, BP_ERR_IO, BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_profile_write(bp_profile *profile, uint32_t format, const char *path);

#ifdef __cplusplus
}
#endif
#endif

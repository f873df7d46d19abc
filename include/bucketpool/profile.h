/** @file
 * Snapshots of what pools did in chosen steps, for PyTorch's memory viewer, Chrome's trace viewer and `bucketpool view`.
 *
 *   bp_profile_create(&pool, 1, NULL, &profile);           steps 0 and 1, 100,000 events, ./memory_snapshots
 *   for (step = 0; ...; step++) {
 *       bp_profile_step(profile, step);                    writes what a recorded step left, starts the next
 *       ...
 *   }
 *   bp_profile_destroy(&profile);                          writes what is still open
 *
 * On every chosen rank a recorded step becomes one file for each format in a folder of its own:
 *   memory_snapshots/step_0/snapshot_rank03_p0d1c0t1.pickle      pytorch.org/memory_viz, `bucketpool view`
 *   memory_snapshots/step_0/trace_rank03_p0d1c0t1.json           Perfetto, chrome://tracing
 *
 * docs/reference/snapshot_files.md describes what is in them. Between steps nothing is recorded and acquire and release cost nothing more; while recording,
 * an event costs a read of the clock and a few stores, and allocates nothing: the ring has been made before. A ring that is full forgets
 * its oldest events, which the file says. Files are written whole under another name and then renamed, so that there never is half a file.
 *
 * A call that cannot write says so (BP_ERR_IO) and recording goes on as if it had: training need not stop.
 *
 * Thread safety: one call at a time, no acquire or release of the pools beside it. Capture: any time; events of captures are those of the
 * host that captures, not of launches. */
#ifndef BUCKETPOOL_PROFILE_H
#define BUCKETPOOL_PROFILE_H

#include <bucketpool/plan.h>
#include <bucketpool/pool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bp_profile bp_profile;

/** What is written. */
#define BP_PROFILE_PICKLE 1u
#define BP_PROFILE_TRACE 2u

typedef struct bp_profile_config {
    size_t size;
    const char *directory;         /**< made where there is none, with its parents. NULL: "memory_snapshots" */
    const uint64_t *profile_steps; /**< that are recorded. NULL: 0 and 1 */
    size_t profile_step_count;     /**< 0 with profile_steps not NULL: none; start and stop still record */
    uint64_t max_entries; /**< events of each pool's ring, at most 2^30, rounded up to a power of two. 0: 100,000 */
    uint32_t rank, ranks; /**< of this process; for names and contents. ranks 0: 1 */
    const uint32_t *record_ranks; /**< that record. NULL: all */
    size_t record_rank_count;
    const char
        *coordinates; /**< of this rank, for names: "p0d1c0t1". Letters, digits, '_' and '-', at most 63; NULL: none */
    uint32_t formats; /**< BP_PROFILE bits. 0: pickle */
    const bp_plan *const
        *plans; /**< of the pools, in their order, NULL or with NULLs: for bounds and roles; read by create, not kept */
} bp_profile_config;

/** Steps 0 and 1, 100,000 entries, one rank, pickles in ./memory_snapshots. Errors: BP_ERR_INVALID_ARGUMENT. */
BP_API bp_status bp_profile_config_init(bp_profile_config *config, size_t size);

/** Makes the rings of all pools. The pools must outlive the profile, and have no other trace running while it records. `config` NULL: the
 * defaults. The caller owns it: bp_profile_destroy. Errors: BP_ERR_INVALID_ARGUMENT (names the field; a pool twice), BP_ERR_SCHEDULE (a sealed
 * pool; one that a profile has already), BP_ERR_CAPTURE, BP_ERR_NO_HOST_MEMORY. The directory is not touched before there is something to write. */
BP_API bp_status bp_profile_create(bp_pool *const *pools, size_t count, const bp_profile_config *config,
                                   bp_profile **profile);
/** Writes what is still open, as stop does (a failure is not reported: stop before to know), and ends. Accepts NULL and pointers to NULL; sets
 * *profile to NULL. */
BP_API void bp_profile_destroy(bp_profile **profile);

/** Step `step` of the training loop begins: the step before ends, and is written when it was recorded; bp_pool_set_step of all pools; records
 * when `step` is chosen. Any sequence of numbers: a step that comes again is written again, over its file. On ranks that do not record it only
 * sets the step. Errors: BP_ERR_IO (names the file and why; the step that begins is recorded all the same), BP_ERR_NO_HOST_MEMORY (nothing was
 * written, likewise), BP_ERR_SCHEDULE (a trace of the caller's runs: the step is not recorded). */
BP_API bp_status bp_profile_step(bp_profile *profile, uint64_t step);

/** Recording by hand: from here to stop, whatever steps come in between; the folder is called `label` (as coordinates are). Errors:
 * BP_ERR_INVALID_ARGUMENT, BP_ERR_SCHEDULE (recording already). */
BP_API bp_status bp_profile_start(bp_profile *profile, const char *label);
/** Ends that, and writes what was recorded. Errors: as bp_profile_step; BP_ERR_SCHEDULE (not recording). */
BP_API bp_status bp_profile_stop(bp_profile *profile);

typedef struct bp_profile_info {
    int32_t recording;       /**< 1: now */
    const char *pickle_path; /**< file that was written last; "": none yet */
    const char *trace_path;
} bp_profile_info;

/** Lives as long as the profile; the next call for it may change what is shown, paths included. NULL for NULL. */
BP_API const bp_profile_info *bp_profile_get_info(const bp_profile *profile);

/** What the pools have now and what they recorded, as a file at `path`: at any time, also when something went wrong. The ring goes on. Errors:
 * BP_ERR_INVALID_ARGUMENT, BP_ERR_IO, BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_profile_write(bp_profile *profile, uint32_t format, const char *path);

#ifdef __cplusplus
}
#endif
#endif

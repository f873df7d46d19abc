/* The threads of a host engine, what they share, and how work is dealt out to them. */
#include <stdlib.h>

#include "core/fail.h"
#include "logprob/host/jobs.h"

#define MOST_THREADS 1024u

#ifdef _OPENMP
int omp_get_max_threads(void); /* of omp.h, which is not everywhere where OpenMP is */

static uint32_t threads_of(uint32_t wanted)
{
    return wanted > 0 ? wanted : (uint32_t)omp_get_max_threads();
}
#else
static uint32_t threads_of(uint32_t wanted)
{
    (void)wanted;
    return 1;
}
#endif

bp_status bp_host_team_init(uint32_t threads, uint32_t kernels, uint64_t columns, bp_host_team *team)
{
    if (threads > MOST_THREADS)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%u threads for host kernels: at most %u", threads, MOST_THREADS);
    uint64_t tiles = columns / BP_TILE_COLUMNS + 1;
    bp_partial *memory = calloc(tiles, sizeof *memory);
    if (memory == NULL)
        return bp_fail_memory(tiles * sizeof *memory);
    team->kernels = bp_kernels_choose(kernels);
    team->threads = threads_of(threads);
    team->tiles = memory;
    pthread_mutex_init(&team->tiles_lock, NULL);
    return BP_OK;
}

void bp_host_team_finish(bp_host_team *team)
{
    pthread_mutex_destroy(&team->tiles_lock);
    free(team->tiles);
}

/* ---- dealing out --------------------------------------------------------------------------------------------------- */

void bp_host_deal(const bp_host_team *team, uint64_t count, uint64_t piece, bp_host_piece *run, const void *job)
{
    const uint64_t pieces = count / piece + (count % piece != 0);
    if (team->threads == 1 || pieces < 2) {
        run(job, 0, count);
        return;
    }
#ifdef _OPENMP
#pragma omp parallel for num_threads((int)team->threads) schedule(dynamic, 1)
#endif
    for (uint64_t i = 0; i < pieces; i++)
        run(job, i * piece, (i + 1) * piece < count ? (i + 1) * piece : count);
}

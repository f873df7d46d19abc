/* Where the ranks of a communicator are: tensor, context and data parallelism. */
#include <stdlib.h>
#include <string.h>

#include "core/arith.h"
#include "logprob/agreement.h"
#include "logprob/loss/loss.h"

#define NOBODY UINT32_MAX
#define MOST_RANKS 65536 /* of whom a byte each is kept on the stack */

static const char *const call = "bp_loss_create";

/* What ranks tell each other: what must be the same, then the rank's place. */
enum { TOLD_PLACE = 6 };
static const char *const same[] = {"tp", "cp", "dp", "max_sequences", "gradients", "an epsilon with the bits", NULL};

static bp_status loss_grid_check_sizes(const bp_loss_config *config)
{
    const uint64_t ranks = config->comm != NULL ? bp_comm_get_info(config->comm)->ranks : 1;
    uint64_t places;
    if (config->tp == 0 || config->cp == 0 || config->dp == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: tp %u, cp %u, dp %u: none may be 0", call, config->tp, config->cp,
                       config->dp);
    if (!bp_mul_u64((uint64_t)config->tp * config->cp, config->dp, &places) || places != ranks)
        return bp_fail(BP_ERR_MISMATCH, "%s: tp %u x cp %u x dp %u ranks, the communicator has %llu", call, config->tp,
                       config->cp, config->dp, (unsigned long long)ranks);
    if (config->tp_rank >= config->tp || config->cp_rank >= config->cp || config->dp_rank >= config->dp)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "%s: rank %u of tp %u, %u of cp %u, %u of dp %u: each is below its size", call, config->tp_rank,
                       config->tp, config->cp_rank, config->cp, config->dp_rank, config->dp);
    return BP_OK;
}

static bp_status place_ranks(const bp_told *told, uint32_t ranks, bp_loss_grid *grid)
{
    for (uint32_t r = 0; r < ranks; r++)
        grid->ranks[r] = NOBODY;
    for (uint32_t r = 0; r < ranks; r++) {
        const uint64_t place = told[r].values[TOLD_PLACE];
        if (grid->ranks[place] != NOBODY)
            return bp_fail(BP_ERR_MISMATCH, "%s: ranks %u and %u both are rank %llu of tp, %llu of cp, %llu of dp",
                           call, grid->ranks[place], r, (unsigned long long)(place % grid->tp),
                           (unsigned long long)(place / grid->tp % grid->cp),
                           (unsigned long long)(place / grid->tp / grid->cp));
        grid->ranks[place] = r;
    }
    return BP_OK;
}

static bp_told loss_grid_told_of(const bp_loss_config *config, bp_status status)
{
    bp_told told = {.status = status,
                    .values = {config->tp, config->cp, config->dp, config->max_sequences, (uint64_t)config->gradients}};
    memcpy(&told.values[5], &config->epsilon, sizeof config->epsilon);
    told.values[TOLD_PLACE] = ((uint64_t)config->dp_rank * config->cp + config->cp_rank) * config->tp + config->tp_rank;
    return told;
}

/* Memory for what more ranks tell than fit the stack. A rank that has none says so in a byte, or the others would wait for it. */
static bp_status loss_grid_make_room(bp_comm *comm, uint32_t ranks, bp_told **told)
{
    uint8_t lacking[MOST_RANKS];
    if (ranks > MOST_RANKS)
        return bp_fail(BP_ERR_UNSUPPORTED, "%s: %u ranks, at most %d are possible", call, ranks, MOST_RANKS);
    bp_told *made = calloc(ranks, sizeof *made);
    const uint8_t lacks = made == NULL;
    bp_status status = bp_comm_exchange(comm, &lacks, sizeof lacks, lacking);
    for (uint32_t r = 0; r < ranks && status == BP_OK; r++)
        if (lacking[r])
            status =
                bp_fail(BP_ERR_NO_HOST_MEMORY, "%s: rank %u of %u has no memory for the words of all", call, r, ranks);
    if (status == BP_OK)
        *told = made;
    else
        free(made);
    return status;
}

bp_status bp_loss_grid_init(const bp_loss_config *config, bp_status status, bp_loss_grid *grid)
{
    const uint32_t ranks = config->comm != NULL ? bp_comm_get_info(config->comm)->ranks : 1;
    bp_told few[BP_MOST_RANKS], *told = few;
    if (ranks > BP_MOST_RANKS)
        BP_TRY(loss_grid_make_room(config->comm, ranks, &told));
    if (status == BP_OK)
        status = loss_grid_check_sizes(config);
    const bp_told mine = loss_grid_told_of(config, status);
    status = bp_ranks_tell(call, config->comm, &mine, same, told);
    if (status == BP_OK)
        status = place_ranks(told, ranks, grid);
    if (told != few)
        free(told);
    return status;
}

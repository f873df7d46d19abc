/* The life of the loss client. */
#include "logprob/loss/loss.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/arith.h"
#include "core/structs.h"
#include "devices/clients.h"
#include "logprob/base.h"

/* ---- the grid of ranks ------------------------------------------------------------------------------------------- */

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
    if (grid->ranks == NULL) /* without memory this rank has told so, and no rank comes here */
        return bp_fail(BP_ERR_INTERNAL, "%s: the grid of ranks has no memory, and nobody said so", call);
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

/* Collective: where everybody is. `status`: how this rank fared until here; the grid's own numbers are in it. Memory of `ranks` is the
 * caller's, also after a failure. */
static bp_status loss_grid_init(const bp_loss_config *config, bp_status status, bp_loss_grid *grid)
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

/* ---- the client -------------------------------------------------------------------------------------------------- */

static const bp_loss_config loss_config_defaults = {
    .size = sizeof loss_config_defaults, .tp = 1, .cp = 1, .dp = 1, .epsilon = 1e-5, .gradients = BP_LOSS_AVERAGED};

bp_status bp_loss_config_init(bp_loss_config *config, size_t size)
{
    return bp_struct_init("bp_loss_config_init", config, size, &loss_config_defaults, sizeof loss_config_defaults);
}

static bp_status loss_check_config(const bp_loss_config *config)
{
    if (config->max_sequences == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: max_sequences is 0", call);
    if (!(config->epsilon >= 0) || isinf(config->epsilon))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: epsilon %g: it is 0 or more", call, config->epsilon);
    if (config->gradients != BP_LOSS_AVERAGED && config->gradients != BP_LOSS_SUMMED)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: gradients %d are neither averaged nor summed", call,
                       (int)config->gradients);
    return BP_OK;
}

/* ---- memory --------------------------------------------------------------------------------------------------------- */

static bp_status make_words(const bp_loss_config *config, uint32_t ranks, bp_loss *loss)
{
    uint64_t records, word, words;
    if (!bp_mul_u64(config->max_sequences, sizeof(bp_loss_record), &records) ||
        !bp_add_u64(records, sizeof(bp_loss_word), &word) || !bp_mul_u64(word, ranks, &words) || words > PTRDIFF_MAX)
        return bp_fail(BP_ERR_OVERFLOW, "%s: sums of %llu sequences on %u ranks do not fit 63 bits", call,
                       (unsigned long long)config->max_sequences, ranks);
    loss->max_sequences = config->max_sequences;
    loss->word_bytes = word;
    loss->mine = calloc(1, word);
    loss->all = calloc(1, words);
    loss->sequences = calloc(config->max_sequences, sizeof *loss->sequences);
    loss->grid.ranks = calloc(ranks, sizeof *loss->grid.ranks);
    if (loss->mine == NULL || loss->all == NULL || loss->sequences == NULL || loss->grid.ranks == NULL)
        return bp_fail_memory(word + words);
    return BP_OK;
}

/* The records are held as long as the client lives. */
static bp_status make_records(bp_device *device, bp_loss *loss)
{
    const bp_workspace_need need = {"records", loss->max_sequences * sizeof(bp_loss_record), BP_STAGE_OWN};
    void *address;
    BP_TRY(bp_workspace_init(device, "loss", &need, 1, &loss->workspace));
    BP_TRY(bp_workspace_take(&loss->workspace, 0, loss->own, &address));
    loss->records = address;
    return bp_stream_synchronize(loss->own);
}

/* ---- creation ------------------------------------------------------------------------------------------------------- */

static bp_status loss_make(bp_device *device, const bp_loss_config *config, bp_loss *loss)
{
    BP_TRY(loss_check_config(config));
    loss->device = device;
    loss->comm = bp_is_alone(config->comm) ? NULL : config->comm;
    loss->epsilon = config->epsilon;
    loss->gradients = config->gradients;
    loss->grid.tp = config->tp;
    loss->grid.cp = config->cp;
    loss->grid.dp = config->dp;
    loss->grid.tp_rank = config->tp_rank;
    loss->grid.cp_rank = config->cp_rank;
    loss->grid.dp_rank = config->dp_rank;
    BP_TRY(make_words(config, config->comm != NULL ? bp_comm_get_info(config->comm)->ranks : 1, loss));
    BP_TRY(bp_engine_create(device, config->threads, BP_KERNELS_PLAIN, 1, &loss->engine));
    BP_TRY(bp_stream_create(device, "loss", &loss->own));
    BP_TRY(bp_event_create(device, &loss->done));
    return make_records(device, loss);
}

static void loss_finish(bp_loss *loss)
{
    bp_workspace_finish(&loss->workspace);
    bp_event_destroy(&loss->done);
    bp_stream_destroy(&loss->own);
    if (loss->engine != NULL)
        loss->engine->ops->destroy(loss->engine);
    free(loss->mine);
    free(loss->all);
    free(loss->sequences);
    free(loss->grid.ranks);
}

bp_status bp_loss_create(bp_device *device, const bp_loss_config *config, bp_loss **loss)
{
    bp_loss_config own = loss_config_defaults;
    BP_TRY(bp_struct_read(call, config, false, &own, sizeof own));
    config = &own;
    bp_status status = BP_OK;
    bp_loss unmade = {0}; /* where there is no memory, the other ranks must still learn of it */
    bp_loss *made = calloc(1, sizeof *made);
    if (device == NULL || loss == NULL)
        status = bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: needs a device and an output", call);
    else
        status = made != NULL ? loss_make(device, config, made) : bp_fail_memory(sizeof *made);
    status = loss_grid_init(config, status, made != NULL ? &made->grid : &unmade.grid);
    if (status != BP_OK || made == NULL || loss == NULL) { /* without either BP_OK was never to be had */
        if (made != NULL)
            loss_finish(made);
        free(made);
        return status;
    }
    made->info = (bp_loss_info){.pool = made->workspace.pool, .sequences = made->sequences};
    *loss = made;
    return BP_OK;
}

void bp_loss_destroy(bp_loss **loss)
{
    if (loss == NULL || *loss == NULL)
        return;
    bp_loss *gone = *loss;
    *loss = NULL;
    if (bp_device_is_inherited(gone->device)) /* work of the parent would be waited for */
        return;
    loss_finish(gone);
    free(gone);
}

const bp_loss_info *bp_loss_get_info(const bp_loss *loss)
{
    return loss != NULL ? &loss->info : NULL;
}

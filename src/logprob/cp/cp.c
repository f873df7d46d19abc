/* The life of the client that moves tensors. */
#include "logprob/cp/cp.h"

#include <stdlib.h>

#include "core/fail.h"
#include "core/structs.h"
#include "devices/clients.h"
#include "logprob/agreement.h"
#include "logprob/base.h"

static const char *const call = "bp_cp_create";

static const bp_cp_config cp_config_defaults = {.size = sizeof cp_config_defaults};

bp_status bp_cp_config_init(bp_cp_config *config, size_t size)
{
    return bp_struct_init("bp_cp_config_init", config, size, &cp_config_defaults, sizeof cp_config_defaults);
}

static bp_status cp_make_workspace(bp_device *device, const bp_cp_config *config, bp_cp *cp)
{
    const uint64_t ranks = cp->comm != NULL ? bp_comm_get_info(cp->comm)->ranks : 1;
    const uint64_t slice = config->max_gathered_bytes / ranks;
    const bp_workspace_need needs[BP_CP_WORKSPACES] = {{"gathered", config->max_gathered_bytes, BP_STAGE_OWN},
                                                       {"slice", slice, BP_STAGE_OWN}};
    if (ranks == 1 || config->max_gathered_bytes == 0)
        return BP_OK;
    return bp_workspace_init(device, "cp", needs, BP_CP_WORKSPACES, &cp->workspace);
}

static bp_status cp_make(bp_device *device, const bp_cp_config *config, bp_cp *cp)
{
    cp->device = device;
    cp->comm = bp_is_alone(config->comm) ? NULL : config->comm;
    cp->max_gathered_bytes = config->max_gathered_bytes;
    cp->trusting = config->trusting != 0;
    BP_TRY(bp_engine_create(device, config->threads, BP_KERNELS_PLAIN, 1, &cp->engine));
    BP_TRY(bp_stream_create(device, "cp", &cp->own));
    return cp_make_workspace(device, config, cp);
}

static void cp_finish(bp_cp *cp)
{
    if (cp->own != NULL)
        (void)bp_device_synchronize(cp->device); /* kernels that are on their way */
    bp_workspace_finish(&cp->workspace);
    bp_stream_destroy(&cp->own);
    if (cp->engine != NULL)
        cp->engine->ops->destroy(cp->engine);
}

static bp_status cp_compare(const bp_cp_config *config, bp_status status)
{
    static const char *const names[] = {"max_gathered_bytes", "trusting", NULL};
    const bp_told mine = {.status = status, .values = {config->max_gathered_bytes, config->trusting != 0}};
    return bp_ranks_compare(call, config->comm, &mine, names);
}

bp_status bp_cp_create(bp_device *device, const bp_cp_config *config, bp_cp **cp)
{
    bp_cp_config own = cp_config_defaults;
    BP_TRY(bp_struct_read(call, config, false, &own, sizeof own));
    config = &own;
    bp_status status = BP_OK;
    bp_cp *made = calloc(1, sizeof *made);
    if (device == NULL || cp == NULL)
        status = bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: needs a device and an output", call);
    else
        status = made != NULL ? cp_make(device, config, made) : bp_fail_memory(sizeof *made);
    status = cp_compare(config, status);
    if (status != BP_OK || cp == NULL) { /* without it BP_OK was never to be had */
        if (made != NULL)
            cp_finish(made);
        free(made);
        return status;
    }
    *cp = made;
    return BP_OK;
}

void bp_cp_destroy(bp_cp **cp)
{
    if (cp == NULL || *cp == NULL)
        return;
    bp_cp *gone = *cp;
    *cp = NULL;
    if (bp_device_is_inherited(gone->device)) /* work of the parent would be waited for */
        return;
    cp_finish(gone);
    free(gone);
}

bp_pool *bp_cp_pool(const bp_cp *cp)
{
    return cp == NULL ? NULL : cp->workspace.pool;
}

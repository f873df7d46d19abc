#include "faults.h"

bp_status fail_at(void *user, const bp_device_call *call)
{
    faults *f = user;
    if (f->spares_waits && call->operation == BP_OP_STREAM_SYNCHRONIZE)
        return BP_OK;
    if (f->until == 0 || --f->until > 0)
        return BP_OK;
    f->met = true;
    f->where = call->operation;
    return bp_error_record(BP_ERR_IO, "injected");
}

bool undoes(bp_device_operation operation)
{
    return operation == BP_OP_UNRESERVE || operation == BP_OP_DECOMMIT || operation == BP_OP_UNMAP ||
           operation == BP_OP_FREE || operation == BP_OP_STREAM_DESTROY || operation == BP_OP_EVENT_DESTROY;
}

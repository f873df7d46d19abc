/* SPDX-License-Identifier: Apache-2.0 */
#include "faulty.h"

#include "support/driver.h"
#include "support/scenarios.h"
#include "support/suite/suite.h"

bp_status fault_of(faults *f, const device_call *call)
{
    f->reservations += call->operation == OP_RESERVE || call->operation == OP_UNRESERVE;
    if (f->only != OP_COUNT && f->only != call->operation)
        return BP_OK;
    bool is_end =
        call->operation == OP_STREAM_DESTROY || call->operation == OP_EVENT_DESTROY || call->operation == OP_UNPIN;
    if (has_driver() && is_end)
        return BP_OK; /* if not freed here, they outlive the driver's context, which reports them */
    if (!(f->met && f->keep) && (f->until == 0 || --f->until > 0))
        return BP_OK;
    if (!f->met)
        f->where = call->operation;
    f->met = true;
    char detail[80];
    snprintf(detail, sizeof detail, "injected into %s", device_operation_name(call->operation));
    return bp_error_record(f->status, detail);
}

static bp_status maybe_fail(void *user, const device_call *call)
{
    return fault_of(user, call);
}

void inject(faults *f, unsigned nth, uint32_t only, bool keep, bp_status status)
{
    *f = (faults){.until = nth, .keep = keep, .only = only, .status = status, .reservations = f->reservations};
}

void no_faults(faults *f)
{
    inject(f, 0, OP_COUNT, false, BP_OK);
}

faults end_faults(faults *f)
{
    const faults met = *f;
    no_faults(f);
    return met;
}

bp_device *new_faulty(bp_device *inner, faults *f)
{
    bp_device *device = NULL;
    *f = (faults){.only = OP_COUNT};
    assert_ok(trace_device_create(inner, maybe_fail, f, &device));
    bp_device_destroy(&inner);
    return device;
}

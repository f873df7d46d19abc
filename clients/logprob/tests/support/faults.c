/* SPDX-License-Identifier: Apache-2.0 */
#include "faults.h"

#include "support/harness.h"

#include <stdlib.h>
#include <string.h>

#include "support/pools.h"

bp_status fail_at(void *user, const device_call *call)
{
    faults *f = user;
    if (f->spares_waits && call->operation == OP_STREAM_SYNCHRONIZE)
        return BP_OK;
    if (f->until == 0 || --f->until > 0)
        return BP_OK;
    f->met = true;
    f->where = call->operation;
    return bp_error_record(BP_ERR_IO, "injected");
}

bool undoes(device_operation operation)
{
    return operation == OP_UNRESERVE || operation == OP_DECOMMIT || operation == OP_UNMAP || operation == OP_FREE ||
           operation == OP_STREAM_DESTROY || operation == OP_EVENT_DESTROY;
}

void assert_quiet(const void *memory, size_t bytes)
{
    uint8_t *then = malloc(bytes);
    assert_non_null(then);
    memcpy(then, memory, bytes);
    pause_us(3000);
    assert_memory_equal(then, memory, bytes);
    free(then);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes bp_step_plan_parse: an accepted plan can be written, and serves two steps. */
#include <bucketpool/formats.h>
#include <bucketpool/step_serve.h>

#include <stdlib.h>
#include <string.h>

#include "target.h"

static void need(int holds)
{
    if (!holds)
        abort();
}

/* Frees every second item, and one of the last again. */
static void serve(const bp_step_plan *plan)
{
    const bp_step_plan_info *info = bp_step_plan_get_info(plan);
    bp_step_server *server = NULL;
    need(bp_step_server_create(plan, NULL, &server) == BP_OK);
    for (size_t k = 0; k < 2 * info->kind_count; k++) {
        const bp_step_plan_kind *kind = &info->kinds[k / 2];
        for (size_t i = 0; i < kind->item_count && i < 1000; i++) {
            uint64_t offset = 0;
            if (bp_step_server_allocate(server, kind->items[i].bytes, 0, &offset) != BP_STEP_SERVED)
                continue;
            need(offset % BP_STEP_ALIGNMENT == 0 && offset < info->bytes);
            if (i % 2 == 0)
                need(bp_step_server_free(server, offset, NULL) == BP_OK);
        }
        bp_step_server_mark(server);
    }
    need(bp_step_server_check(server) == BP_OK);
    bp_step_server_destroy(&server);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bp_step_plan *plan = NULL;
    bp_status status = bp_step_plan_parse((const char *)data, size, "input", &plan);
    need((status == BP_OK) == (plan != NULL));
    if (status != BP_OK) {
        need(*bp_error_detail() != '\0' && strchr(bp_error_detail(), '\n') == NULL);
        return 0;
    }
    need(bp_step_plan_write(plan, "/dev/null") == BP_OK);
    serve(plan);
    bp_step_plan_destroy(&plan);
    return 0;
}

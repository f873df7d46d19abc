/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the contents of plans and their pools: an accepted plan is served without overlapping live requests. The
 * input is a list of numbers, so that formats and fingerprints do not stop the fuzzer. */
#include <bucketpool/bucketpool.h>

#include <stdlib.h>
#include <string.h>

#include "input.h"
#include "planner/plan.h"
#include "serving.h"
#include "target.h"

#define MAX_SLABS 3
#define MAX_CLASSES 2
#define MAX_REQUESTS 23

typedef struct parts {
    bp_plan_slab slabs[MAX_SLABS];
    bp_plan_class classes[MAX_CLASSES];
    bp_plan_request requests[MAX_REQUESTS];
    char units[MAX_REQUESTS][8];
} parts;

static void fill(input *in, parts *p, bp_plan_info *info)
{
    const uint64_t unit_bytes = info->alignment;
    info->slab_count = next_byte(in) % MAX_SLABS + 1;
    for (size_t i = 0; i < info->slab_count; i++)
        p->slabs[i] = (bp_plan_slab){.bytes = next_number(in) * unit_bytes, .group = "g"};
    info->class_count = next_byte(in) % (MAX_CLASSES + 1);
    for (size_t i = 0; i < info->class_count; i++) {
        bp_plan_class *c = &p->classes[i];
        c->dtype = BP_DTYPE_BF16;
        c->slab = next_byte(in) % 3;
        c->copies = (uint32_t)next_number(in);
        c->offset = next_number(in) * unit_bytes;
        c->stride = next_number(in) * unit_bytes;
        c->bytes = next_number(in) * unit_bytes;
    }
    info->request_count = next_byte(in) % (MAX_REQUESTS + 1);
    for (size_t i = 0; i < info->request_count; i++) {
        bp_plan_request *r = &p->requests[i];
        snprintf(p->units[i], sizeof p->units[i], "u%u", next_byte(in) % 16u);
        r->unit = p->units[i];
        r->dtype = BP_DTYPE_BF16;
        r->ordinal = next_byte(in) % 4;
        uint8_t kind = next_byte(in); /* mostly planned requests */
        r->role = kind % BP_ROLE_COUNT;
        r->placement = kind < 224 ? BP_PLACE_PLANNED : (bp_placement)(kind % 4);
        r->slab = next_byte(in) % 3;
        r->offset = next_number(in) * unit_bytes;
        r->bytes = next_number(in) * (next_byte(in) % 2 ? 1 : unit_bytes);
        r->used_bytes = r->bytes;
    }
    info->slabs = p->slabs;
    info->classes = p->classes;
    info->requests = p->requests;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input in = {data, size};
    parts p;
    bp_plan *plan = NULL;
    memset(&p, 0, sizeof p);
    bp_plan_info info = {.feasible = 1, .stable = 1};
    info.policy = (bp_policy)(next_byte(&in) % 6);
    info.alignment = 1ull << next_byte(&in) % 20;
    fill(&in, &p, &info);
    if (fuzz_good(bp_plan_from_info(&info, &plan)))
        fuzz_serve(plan);
    bp_plan_destroy(&plan);
    return 0;
}

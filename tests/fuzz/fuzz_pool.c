/* Fuzzes plans as a builder takes them, and the pools that are made of them: whatever is accepted is served without two live
 * requests on the same bytes. The input is numbers; files and their fingerprints are not in the way here. */
#include <bucketpool/bucketpool.h>

#include <stdlib.h>
#include <string.h>

#include "serving.h"
#include "target.h"

typedef struct input {
    const uint8_t *data;
    size_t left;
} input;

static uint8_t next_byte(input *in)
{
    if (in->left == 0)
        return 0;
    in->left--;
    return *in->data++;
}

/* Mostly small, sometimes anything. */
static uint64_t next_number(input *in)
{
    uint8_t first = next_byte(in);
    if (first < 250)
        return first;
    uint64_t value = 0;
    for (int i = 0; i < 8; i++)
        value = value << 8 | next_byte(in);
    return value >> (first - 250) * 8;
}

static bp_status add_parts(input *in, bp_plan_builder *builder, uint64_t unit_bytes)
{
    bp_status status = BP_OK;
    for (int i = 0, slabs = next_byte(in) % 3 + 1; status == BP_OK && i < slabs; i++)
        status = bp_plan_builder_add_slab(
            builder,
            &(bp_plan_slab){.size = sizeof(bp_plan_slab), .bytes = next_number(in) * unit_bytes, .group = "g"});
    for (int i = 0, classes = next_byte(in) % 3; status == BP_OK && i < classes; i++) {
        bp_plan_class c = {.size = sizeof c, .dtype = BP_DTYPE_BF16};
        c.slab = next_byte(in) % 3;
        c.copies = (uint32_t)next_number(in);
        c.offset = next_number(in) * unit_bytes;
        c.stride = next_number(in) * unit_bytes;
        c.bytes = next_number(in) * unit_bytes;
        status = bp_plan_builder_add_class(builder, &c);
    }
    for (uint32_t i = 0, requests = next_byte(in) % 24; status == BP_OK && i < requests; i++) {
        char unit[8];
        snprintf(unit, sizeof unit, "u%u", next_byte(in) % 16u);
        bp_assignment a = {.size = sizeof a, .unit = unit, .dtype = BP_DTYPE_BF16};
        a.ordinal = next_byte(in) % 4;
        a.role = next_byte(in) % BP_ROLE_COUNT;
        a.slab = next_byte(in) % 3;
        a.offset = next_number(in) * unit_bytes;
        a.bytes = next_number(in) * (next_byte(in) % 2 ? 1 : unit_bytes);
        status = bp_plan_builder_add_assignment(builder, &a);
    }
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input in = {data, size};
    bp_plan_summary summary = {.size = sizeof summary, .feasible = 1, .stable = 1};
    bp_plan_builder *builder = NULL;
    bp_plan *plan = NULL;
    summary.policy = (bp_policy)(next_byte(&in) % 6);
    summary.alignment = 1ull << next_byte(&in) % 20;
    if (!fuzz_good(bp_plan_builder_create(&summary, &builder)))
        return 0;
    if (fuzz_good(add_parts(&in, builder, summary.alignment)) && fuzz_good(bp_plan_builder_finish(&builder, &plan)))
        fuzz_serve(plan);
    bp_plan_builder_destroy(&builder);
    bp_plan_destroy(&plan);
    return 0;
}

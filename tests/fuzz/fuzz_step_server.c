/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes the server of a step plan: a plan and calls from the input, against the reference model of tests/serve. */
#include <bucketpool/step_serve.h>

#include <string.h>

#include "input.h"
#include "pipeline.h"
#include "serve/reference.h"
#include "target.h"

enum { MAX_KINDS = 3, MAX_ITEMS = 24, MAX_CALLS = 600 };

static bp_step_plan *make_plan(input *in)
{
    bp_step_plan_item items[MAX_KINDS][MAX_ITEMS];
    uint32_t marks[MAX_KINDS][2];
    bp_step_plan_kind kinds[MAX_KINDS];
    const uint64_t handles[4] = {next_byte(in), 1, 2, 3};
    memset(kinds, 0, sizeof kinds);
    bp_step_plan_info info = {.kinds = kinds, .streams = handles, .stream_count = 1 + next_byte(in) % 4};
    info.kind_count = 1 + next_byte(in) % MAX_KINDS;
    info.bytes = next_number(in) * BP_STEP_ALIGNMENT;
    for (size_t k = 0; k < info.kind_count; k++) {
        kinds[k].items = items[k];
        kinds[k].marks = marks[k];
        kinds[k].item_count = next_byte(in) % (MAX_ITEMS + 1);
        kinds[k].mark_count = next_byte(in) % 3;
        kinds[k].is_first = next_byte(in) % 4 == 3;
        kinds[k].steps = next_byte(in);
        marks[k][0] = next_byte(in) % 4;
        marks[k][1] = marks[k][0] + next_byte(in);
        for (size_t i = 0; i < kinds[k].item_count; i++) {
            uint64_t offset = next_number(in);
            uint8_t kind = next_byte(in);
            items[k][i] = (bp_step_plan_item){
                .bytes = next_number(in) * (kind & 1 ? 1 : 64),
                .offset = offset == 249 ? BP_STEP_OUTSIDE : offset * BP_STEP_ALIGNMENT,
                .stream = (uint32_t)(kind >> 1) % (uint32_t)info.stream_count,
                .place = BP_STEP_NO_PLACE,
                .precedes_stream = kind >> 7,
            };
        }
    }
    bp_step_plan *plan = NULL;
    return fuzz_good(bp_step_plan_from_info(&info, &plan)) ? plan : NULL;
}

static bool refuses(void *context)
{
    input *in = context;
    return next_byte(in) % 8 == 7;
}

/* An item of the plan, or any size. */
static uint64_t next_bytes(input *in, const bp_step_plan_info *info, uint32_t *stream)
{
    const bp_step_plan_kind *kind = &info->kinds[next_byte(in) % info->kind_count];
    uint8_t choice = next_byte(in);
    *stream = choice % 8 == 7 ? (uint32_t)next_number(in) : next_byte(in) % 4u;
    if (choice >= 240 || kind->item_count == 0)
        return next_number(in) * (choice & 8 ? BP_STEP_ALIGNMENT : 1);
    return kind->items[choice % kind->item_count].bytes;
}

/* Runs through a kind, from an item on: the fuzzer cannot guess long sequences. */
static void run_items(input *in, reference *r, const bp_step_plan_info *info)
{
    const bp_step_plan_kind *kind = &info->kinds[next_byte(in) % info->kind_count];
    const uint8_t keeps = next_byte(in);
    size_t first = next_byte(in);
    for (size_t i = first % (kind->item_count + 1); i < kind->item_count; i++) {
        uint64_t offset = 0;
        if (reference_allocate(r, kind->items[i].bytes, kind->items[i].stream, &offset) == BP_STEP_SERVED &&
            !(keeps >> i % 8 & 1))
            reference_free(r, offset);
    }
}

static void call(input *in, reference *r, const bp_step_plan_info *info)
{
    uint64_t offset = 0;
    uint32_t stream = 0;
    const uint8_t which = next_byte(in) % 16;
    const uint8_t index = next_byte(in);
    const uint64_t of = r->live_count > 0 ? r->live[index % r->live_count].offset : index * (uint64_t)BP_STEP_ALIGNMENT;
    switch (which) {
    case 0:
    case 1:
    case 2:
    case 3: {
        uint64_t bytes = next_bytes(in, info, &stream);
        reference_allocate(r, bytes, stream, &offset);
        break;
    }
    case 4:
    case 5:
    case 6: reference_free(r, of); break;
    case 7: reference_free(r, next_number(in) * (index % 4 == 0 ? 1 : BP_STEP_ALIGNMENT)); break;
    case 8: {
        uint64_t bytes = next_bytes(in, info, &stream);
        reference_allocate_anywhere(r, bytes, stream, &offset);
        break;
    }
    case 9: reference_use_on(r, of + next_number(in), next_byte(in) % 5u); break;
    case 10: reference_mark(r); break;
    case 11: reference_pause(r, index % 4 == 0); break;
    case 12: r->captured = index % 8; break;
    case 13: r->refuses = index % 2 == 0 ? NULL : refuses; break;
    case 14: {
        bp_step_plan *other = index % 4 == 0 ? make_plan(in) : NULL;
        if (other != NULL)
            reference_replace(r, other);
        bp_step_plan_destroy(&other);
        run_items(in, r, info);
        break;
    }
    default: run_items(in, r, info); break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input in = {data, size};
    bp_step_plan *plan = make_plan(&in);
    if (plan == NULL)
        return 0;
    reference *r = reference_create(plan, next_byte(&in) % 8 != 7);
    if (r == NULL)
        fuzz_stop("no server");
    r->context = &in;
    for (int i = 0; i < MAX_CALLS && in.left > 0; i++) {
        call(&in, r, bp_step_plan_get_info(plan));
        if (i % 8 == 0)
            reference_check(r);
        if (reference_wrong(r) != NULL)
            fuzz_stop(reference_wrong(r));
    }
    reference_check(r);
    while (r->live_count > 0 && reference_wrong(r) == NULL)
        reference_free(r, r->live[0].offset);
    reference_check(r);
    if (reference_wrong(r) != NULL)
        fuzz_stop(reference_wrong(r));
    reference_destroy(r);
    bp_step_plan_destroy(&plan);
    return 0;
}

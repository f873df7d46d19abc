/* The files of `step`: the plan, and its picture. */
#include <bucketpool/formats.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pictures/pictures.h"
#include "plan/from_info.h"
#include "step/step.h"

/* ---- the plan ------------------------------------------------------------------------------------------------------ */

/* Requests are allocations in the order of the step: unit "step", or "step.1" for a second kind of step; the bucket's name
 * has the stream. They have the role param, which has no meaning here. */
static bp_plan_request request_of(const bp_step_item *item, const char *unit, const char *stream, size_t order)
{
    return (bp_plan_request){.unit = unit,
                             .bucket = stream,
                             .ordinal = (uint32_t)order,
                             .role = BP_ROLE_PARAM,
                             .dtype = BP_DTYPE_UINT8,
                             .placement = item->is_outside ? BP_PLACE_NONE : BP_PLACE_PLANNED,
                             .offset = item->is_outside ? 0 : item->offset,
                             .bytes = bp_step_round(item->bytes),
                             .used_bytes = item->bytes};
}

static bp_status make_plan(const step_answer *a, bp_plan_request *requests, char (*streams)[32], bp_plan **plan)
{
    static const char *const units[BP_STEP_MOST_KINDS] = {"step",   "step.1", "step.2", "step.3",
                                                          "step.4", "step.5", "step.6", "step.7"};
    size_t count = 0;
    for (size_t i = 0; i < a->trace->stream_count; i++)
        snprintf(streams[i], sizeof *streams, "stream.%llu", (unsigned long long)a->trace->streams[i]);
    for (size_t kind = 0; kind < a->plan.kind_count; kind++) {
        for (size_t order = 0; order < a->plan.kinds[kind].count; order++) {
            const bp_step_item *item = &a->plan.kinds[kind].items[order];
            requests[count++] = request_of(item, units[kind], streams[item->stream], order);
        }
    }
    const bp_plan_slab slab = {.bytes = a->plan.bytes, .group = "step"};
    const bp_plan_option options[] = {
        {"persistent_bytes", cli_text("%llu", (unsigned long long)a->plan.persistent_bytes)},
        {"outside_bytes", cli_text("%llu", (unsigned long long)a->plan.outside_bytes)}};
    const char *slash = strrchr(a->path, '/');
    bp_plan_info info = {.model = slash != NULL ? slash + 1 : a->path,
                         .policy = BP_POLICY_SCHEDULED,
                         .feasible = 1,
                         .stable = 1,
                         .optimal = a->plan.optimal,
                         .alignment = BP_STEP_ALIGNMENT,
                         .bytes = a->plan.bytes,
                         .infeasible_because = "",
                         .request_count = count,
                         .requests = requests,
                         .slab_count = a->plan.bytes > 0,
                         .slabs = &slab,
                         .option_count = 2,
                         .options = options};
    for (size_t kind = 0; kind < a->plan.kind_count; kind++) {
        uint64_t bound = a->plan.kinds[kind].lower_bound_bytes;
        info.lower_bound_bytes = bound > info.lower_bound_bytes ? bound : info.lower_bound_bytes;
    }
    return bp_plan_from_info(&info, plan);
}

int step_write_plan(const step_answer *answer, const output *to)
{
    size_t count = 0;
    for (size_t kind = 0; kind < answer->plan.kind_count; kind++)
        count += answer->plan.kinds[kind].count;
    bp_plan_request *requests = calloc(count + 1, sizeof *requests);
    char(*streams)[32] = calloc(answer->trace->stream_count + 1, sizeof *streams);
    if (requests == NULL || streams == NULL) {
        free(requests);
        free(streams);
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    }
    bp_plan *plan = NULL;
    int code = EXIT_GO_ON;
    bp_status status = make_plan(answer, requests, streams, &plan);
    if (status == BP_OK)
        status = bp_plan_write(plan, to->written);
    if (status == BP_ERR_IO)
        code = output_fail(to, strerror(errno));
    else if (status != BP_OK)
        code = cli_fail_status(status);
    bp_plan_destroy(&plan);
    free(streams);
    free(requests);
    return code;
}

/* ---- the picture --------------------------------------------------------------------------------------------------- */

/* The reference step of the largest kind as rows of a packing instance: time is the order of events. */
static int write_rows(const step_answer *a, const bp_step_plan_kind *kind, const bp_trace_step *step, FILE *rows)
{
    const uint32_t length = step->end - step->begin;
    fputs("id,lower,upper,size,gaps,offset\n", rows);
    for (size_t order = 0; order < kind->count; order++) {
        const bp_step_item *item = &kind->items[order];
        const bp_allocation *allocation = &a->allocations.all[item->allocation];
        uint32_t begin = allocation->begin - step->begin;
        uint32_t end =
            allocation->end == BP_TRACE_NONE || allocation->end > step->end ? length : allocation->end - step->begin;
        if (!item->is_outside && item->bytes > 0 && begin < end)
            fprintf(rows, "%zu,%u,%u,%llu,,%llu\n", order, begin, end, (unsigned long long)bp_step_round(item->bytes),
                    (unsigned long long)item->offset);
    }
    return ferror(rows) ? EXIT_ENVIRONMENT : EXIT_GO_ON;
}

int step_draw(const step_answer *answer, const output *to)
{
    size_t largest = 0;
    for (size_t i = 1; i < answer->plan.kind_count; i++)
        largest = answer->plan.kinds[i].bytes > answer->plan.kinds[largest].bytes ? i : largest;
    const bp_step_plan_kind *kind = &answer->plan.kinds[largest];
    if (kind->bytes == 0)
        return cli_fail(EXIT_BAD_INPUT, "--plot: no allocation of the step has an offset; record more equal steps");
    char *text = NULL, title[256], proof[160];
    size_t bytes = 0;
    FILE *rows = open_memstream(&text, &bytes);
    if (rows == NULL)
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    int code = write_rows(answer, kind, &answer->steps.steps[answer->steps.kinds[largest].reference], rows);
    if (fclose(rows) != 0 || code != EXIT_GO_ON) {
        free(text);
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    }
    bp_packing_file *file = NULL;
    bp_status status = bp_packing_file_parse(text, bytes, "step", &file);
    free(text);
    if (status != BP_OK)
        return cli_fail_status(status);
    const char *slash = strrchr(answer->path, '/');
    snprintf(title, sizeof title, "%.120s: %zu allocations of a step", slash != NULL ? slash + 1 : answer->path,
             kind->count);
    snprintf(proof, sizeof proof, "%s, %s peak live%s", cli_bytes(kind->bytes), cli_bytes(kind->lower_bound_bytes),
             answer->plan.optimal ? ": optimal" : "");
    const packing_picture input = {
        title, proof, file, bp_packing_file_offsets(file), kind->bytes, kind->lower_bound_bytes};
    const char *error = picture_draw_packing(&input, to);
    bp_packing_file_destroy(&file);
    return error == NULL ? EXIT_GO_ON : cli_fail(EXIT_ENVIRONMENT, "--plot %s: %s", to->path, error);
}

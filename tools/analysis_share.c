/* Models that share a pool: their buckets and schedules as one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analysis_parts.h"
#include "cli.h"

/* A path's last part: units of a part are called "<part>/<unit>". */
static const char *short_name(const analysis *part)
{
    const char *slash = strrchr(part->name, '/');
    const char *name = slash != NULL ? slash + 1 : part->name;
    return *name != '\0' ? name : "model";
}

/* The models' names; one that was there before gets a number, so that a model can share with another copy of itself. */
static bool name_parts(const analysis *parts, size_t count, char **names)
{
    for (size_t i = 0; i < count; i++) {
        size_t same = 1;
        char number[32] = "";
        for (size_t k = 0; k < i; k++)
            same += strcmp(short_name(&parts[k]), short_name(&parts[i])) == 0;
        if (same > 1)
            snprintf(number, sizeof number, "#%zu", same);
        if (asprintf(&names[i], "%s%s", short_name(&parts[i]), number) < 0) {
            names[i] = NULL;
            return false;
        }
    }
    return true;
}

static bool join_names(char *const *names, size_t count, char **joined)
{
    size_t room = 1, length = 0;
    for (size_t i = 0; i < count; i++)
        room += strlen(names[i]) + 3;
    *joined = calloc(room, 1);
    for (size_t i = 0; *joined != NULL && i < count; i++)
        length += (size_t)snprintf(*joined + length, room - length, "%s%s", i > 0 ? " + " : "", names[i]);
    return *joined != NULL;
}

static bp_status merge_buckets(const analysis *parts, size_t count, char *const *names, analysis *merged)
{
    const bp_buckets **buckets = calloc(count, sizeof *buckets);
    if (buckets == NULL)
        return bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory for the models' buckets");
    for (size_t i = 0; i < count; i++)
        buckets[i] = parts[i].buckets;
    bp_status status = bp_buckets_create_merged(buckets, (const char *const *)names, count, &merged->buckets);
    free(buckets);
    return status;
}

/* One after the other. */
static bp_status merge_schedules(const analysis *parts, size_t count, analysis *merged)
{
    bp_schedule **schedules = calloc(count, sizeof *schedules);
    if (schedules == NULL)
        return bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory for the models' schedules");
    bp_status status = BP_OK;
    for (size_t i = 0; status == BP_OK && i < count; i++)
        status = bp_schedule_create_embedded(parts[i].schedule, merged->buckets, i, &schedules[i]);
    if (status == BP_OK)
        status = bp_schedule_create_merged((const bp_schedule *const *)schedules, count, &merged->schedule);
    for (size_t i = 0; i < count; i++)
        bp_schedule_destroy(&schedules[i]);
    free(schedules);
    return status;
}

/* Rules that all parts have, else none. */
static void merge_rules(const analysis *parts, size_t count, analysis *merged)
{
    merged->bucketing = parts[0].bucketing;
    merged->padding = parts[0].padding;
    merged->layout = parts[0].layout;
    for (size_t i = 0; i < count; i++) {
        if (parts[i].bucketing != merged->bucketing)
            merged->bucketing = 0;
        if (parts[i].padding != merged->padding)
            merged->padding = 0;
        if (parts[i].layout != merged->layout)
            merged->layout = 0;
        merged->recorded += parts[i].recorded;
        merged->models += parts[i].models;
        merged->parameters += parts[i].parameters;
        merged->prediction_parameters += parts[i].prediction_parameters;
        size_t used = strlen(merged->notes);
        if (parts[i].notes[0] != '\0')
            snprintf(merged->notes + used, sizeof merged->notes - used, "%s%s: %s", used > 0 ? "; " : "", parts[i].name,
                     parts[i].notes);
    }
}

int analysis_merge(const plan_options *options, const analysis *parts, size_t count, analysis *merged)
{
    char **names = calloc(count, sizeof *names);
    int code = EXIT_GO_ON;
    if (names == NULL || !name_parts(parts, count, names) || !join_names(names, count, &merged->name))
        code = cli_fail(EXIT_ENVIRONMENT, "out of memory");
    merge_rules(parts, count, merged);
    if (code == EXIT_GO_ON) {
        bp_status status = merge_buckets(parts, count, names, merged);
        if (status == BP_OK)
            status = merge_schedules(parts, count, merged);
        code = status == BP_OK ? EXIT_GO_ON : analysis_fail("--share", status);
    }
    if (code == EXIT_GO_ON && !analysis_sum_state(options, merged))
        code = cli_fail(EXIT_BAD_INPUT, "--share: the models' state does not fit 64 bits");
    for (size_t i = 0; names != NULL && i < count; i++)
        free(names[i]);
    free(names);
    return code;
}

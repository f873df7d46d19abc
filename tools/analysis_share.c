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

static bp_status unite_buckets(const analysis *parts, size_t count, char *const *names, analysis *united)
{
    const bp_buckets **buckets = calloc(count, sizeof *buckets);
    if (buckets == NULL)
        return bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory for the models' buckets");
    for (size_t i = 0; i < count; i++)
        buckets[i] = parts[i].buckets;
    bp_status status = bp_buckets_create_united(buckets, (const char *const *)names, count, &united->buckets);
    free(buckets);
    return status;
}

/* One after the other. */
static bp_status unite_schedules(const analysis *parts, size_t count, analysis *united)
{
    bp_schedule **schedules = calloc(count, sizeof *schedules);
    if (schedules == NULL)
        return bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory for the models' schedules");
    bp_status status = BP_OK;
    for (size_t i = 0; status == BP_OK && i < count; i++)
        status = bp_schedule_create_embedded(parts[i].schedule, united->buckets, i, &schedules[i]);
    if (status == BP_OK)
        status = bp_schedule_create_merged((const bp_schedule *const *)schedules, count, &united->schedule);
    for (size_t i = 0; i < count; i++)
        bp_schedule_destroy(&schedules[i]);
    free(schedules);
    return status;
}

/* Rules that all parts have, else none. */
static void unite_rules(const analysis *parts, size_t count, analysis *united)
{
    united->bucketing = parts[0].bucketing;
    united->padding = parts[0].padding;
    united->layout = parts[0].layout;
    for (size_t i = 0; i < count; i++) {
        if (parts[i].bucketing != united->bucketing)
            united->bucketing = 0;
        if (parts[i].padding != united->padding)
            united->padding = 0;
        if (parts[i].layout != united->layout)
            united->layout = 0;
        united->recorded += parts[i].recorded;
        united->models += parts[i].models;
        united->parameters += parts[i].parameters;
        united->prediction_parameters += parts[i].prediction_parameters;
        size_t used = strlen(united->notes);
        if (parts[i].notes[0] != '\0')
            snprintf(united->notes + used, sizeof united->notes - used, "%s%s: %s", used > 0 ? "; " : "", parts[i].name,
                     parts[i].notes);
    }
}

int analysis_unite(const plan_options *options, const analysis *parts, size_t count, analysis *united)
{
    char **names = calloc(count, sizeof *names);
    int code = EXIT_GO_ON;
    if (names == NULL || !name_parts(parts, count, names) || !join_names(names, count, &united->name))
        code = cli_fail(EXIT_ENVIRONMENT, "out of memory");
    unite_rules(parts, count, united);
    if (code == EXIT_GO_ON) {
        bp_status status = unite_buckets(parts, count, names, united);
        if (status == BP_OK)
            status = unite_schedules(parts, count, united);
        code = status == BP_OK ? EXIT_GO_ON : analysis_fail("--share", status);
    }
    if (code == EXIT_GO_ON && !analysis_sum_state(options, united))
        code = cli_fail(EXIT_BAD_INPUT, "--share: the models' state does not fit 64 bits");
    for (size_t i = 0; names != NULL && i < count; i++)
        free(names[i]);
    free(names);
    return code;
}

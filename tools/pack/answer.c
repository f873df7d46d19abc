/* Packs a file, or checks the offsets that it has. */
#include "pack/answer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/cli.h"
#include "shared/progress.h"

/* How much of an id is shown in a message. */
#define ID_CHARS 60

/* The library's detail and the file that it is about. */
static int fail_about(const char *path, bp_status status)
{
    char text[1024];
    snprintf(text, sizeof text, "%.400s: %s", path, bp_error_detail());
    return cli_fail_status(bp_error_record(status, text));
}

static size_t item_count(const pack_answer *a)
{
    return bp_packing_get_info(bp_packing_file_packing(a->file))->item_count;
}

static int check_capacity(const pack_answer *a, uint64_t capacity)
{
    const bp_packing *packing = bp_packing_file_packing(a->file);
    for (size_t i = 0; capacity > 0 && i < item_count(a); i++) {
        if (bp_packing_get_info(packing)->sizes[i] > capacity)
            return cli_fail(EXIT_BAD_INPUT, "%.400s: --capacity %llu is less than item \"%.*s\" takes, %llu", a->path,
                            (unsigned long long)capacity, ID_CHARS, bp_packing_file_id(a->file, i),
                            (unsigned long long)bp_packing_get_info(packing)->sizes[i]);
    }
    return EXIT_GO_ON;
}

int pack_answer_init(const char *path, const pack_options *options, pack_answer *answer)
{
    bool is_input = strcmp(path, "-") == 0;
    *answer = (pack_answer){.path = is_input ? "stdin" : path, .result = {.size = sizeof answer->result}};
    bp_status status = bp_packing_file_read(is_input ? "/dev/stdin" : path, &answer->file);
    if (status != BP_OK)
        return cli_fail_status(status);
    if (options->check && bp_packing_file_offsets(answer->file) == NULL)
        return cli_fail(EXIT_BAD_INPUT, "%.400s: no column \"offset\" to check; `bucketpool pack FILE -o CSV` adds one",
                        path);
    return check_capacity(answer, options->capacity);
}

void pack_answer_finish(pack_answer *answer)
{
    bp_packing_file_destroy(&answer->file);
    free(answer->offsets);
    free(answer->witness);
    *answer = (pack_answer){0};
}

static int find_bound(pack_answer *a)
{
    uint64_t bound;
    bp_status status = bp_packing_bound(bp_packing_file_packing(a->file), a->witness, &a->witness_count, &bound);
    if (status != BP_OK)
        return fail_about(a->path, status);
    a->result.bound = bound;
    return EXIT_GO_ON;
}

/* ---- packing ------------------------------------------------------------------------------------------------------------ */

/* What was found is checked before anybody sees it. */
static int verify(const pack_answer *a, uint64_t capacity)
{
    uint64_t most = capacity > 0 && capacity < a->result.bytes ? capacity : a->result.bytes;
    bp_status status = bp_packing_check(bp_packing_file_packing(a->file), a->offsets, most);
    if (status == BP_ERR_MISMATCH)
        return cli_fail(EXIT_NEGATIVE,
                        "%.400s: the placement that was found does not hold, a mistake of bucketpool: %s", a->path,
                        bp_error_detail());
    return status == BP_OK ? EXIT_GO_ON : fail_about(a->path, status);
}

static int pack(pack_answer *a, const pack_options *options)
{
    bp_pack_config config;
    bp_status status = bp_pack_config_init(&config, sizeof config);
    config.capacity = options->capacity;
    config.work = options->work;
    if (status == BP_OK)
        status = bp_pack(bp_packing_file_packing(a->file), &config, a->offsets, &a->result);
    if (status != BP_OK)
        return fail_about(a->path, status);
    return pack_answer_is_placed(a) ? verify(a, options->capacity) : EXIT_GO_ON;
}

/* ---- checking ----------------------------------------------------------------------------------------------------------- */

static void describe_fault(pack_answer *a, const bp_packing_fault *fault, uint64_t most)
{
    const bp_packing *packing = bp_packing_file_packing(a->file);
    const char *one = bp_packing_file_id(a->file, fault->item), *other = bp_packing_file_id(a->file, fault->other);
    unsigned long long size = bp_packing_get_info(packing)->sizes[fault->item], at = a->offsets[fault->item];
    if (fault->item == fault->other)
        snprintf(a->fault, sizeof a->fault, "item \"%.*s\" takes %llu at %llu and ends behind the capacity of %llu",
                 ID_CHARS, one, size, at, (unsigned long long)most);
    else
        snprintf(a->fault, sizeof a->fault,
                 "items \"%.*s\" (%llu at %llu) and \"%.*s\" (%llu at %llu) share bytes and are live at the same time",
                 ID_CHARS, one, size, at, ID_CHARS, other,
                 (unsigned long long)bp_packing_get_info(packing)->sizes[fault->other],
                 (unsigned long long)a->offsets[fault->other]);
}

static int check_offsets(pack_answer *a, uint64_t capacity)
{
    const bp_packing *packing = bp_packing_file_packing(a->file);
    bp_packing_fault fault = {.size = sizeof fault};
    uint64_t total = 0;
    memcpy(a->offsets, bp_packing_file_offsets(a->file), item_count(a) * sizeof *a->offsets);
    for (size_t i = 0; i < item_count(a); i++) {
        uint64_t size = bp_packing_get_info(packing)->sizes[i], end = a->offsets[i] + size; /* fits, or was not read */
        total = size > 0 && end > total ? end : total;
    }
    uint64_t most = capacity > 0 ? capacity : total;
    bp_status status = bp_packing_find_fault(packing, a->offsets, most, &fault);
    if (status != BP_OK)
        return fail_about(a->path, status);
    if (fault.found)
        describe_fault(a, &fault, most);
    a->result.outcome = BP_PACK_PLACED;
    a->result.bytes = total;
    a->result.proven = a->result.bound;
    a->result.optimal = !fault.found && total == a->result.bound;
    return EXIT_GO_ON;
}

/* ---- both --------------------------------------------------------------------------------------------------------------- */

int pack_answer_find(pack_answer *answer, const pack_options *options)
{
    answer->offsets = calloc(item_count(answer), sizeof *answer->offsets);
    answer->witness = calloc(item_count(answer), sizeof *answer->witness);
    if (answer->offsets == NULL || answer->witness == NULL)
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    progress p;
    char what[160];
    snprintf(what, sizeof what, "%s: %s %zu items", answer->path, options->check ? "checks" : "packs",
             item_count(answer));
    progress_watch(&p, what);
    int code = find_bound(answer);
    if (code == EXIT_GO_ON)
        code = options->check ? check_offsets(answer, options->capacity) : pack(answer, options);
    progress_unwatch(&p);
    return code;
}

bool pack_answer_is_placed(const pack_answer *answer)
{
    return answer->result.outcome == BP_PACK_PLACED && *answer->fault == '\0';
}

bool pack_answer_has_total(const pack_answer *answer)
{
    return answer->result.outcome == BP_PACK_PLACED || answer->result.bytes > 0;
}

void pack_answer_reason(const pack_answer *answer, const pack_options *options, char reason[PACK_REASON_CHARS])
{
    const bp_pack_result *r = &answer->result;
    unsigned long long capacity = options->capacity, bound = r->bound, proven = r->proven, bytes = r->bytes;
    *reason = '\0';
    if (*answer->fault != '\0')
        snprintf(reason, PACK_REASON_CHARS, "%s", answer->fault);
    else if (r->outcome == BP_PACK_INFEASIBLE && r->bound > options->capacity)
        snprintf(reason, PACK_REASON_CHARS,
                 "infeasible, proven: %zu items that are live at the same time take %llu, the capacity is %llu",
                 answer->witness_count, bound, capacity);
    else if (r->outcome == BP_PACK_INFEASIBLE)
        snprintf(reason, PACK_REASON_CHARS,
                 "infeasible, proven: no placement takes less than %llu, the capacity is %llu", proven, capacity);
    else if (r->outcome == BP_PACK_NOT_FOUND)
        snprintf(reason, PACK_REASON_CHARS,
                 "not found within the work budget of %llu steps: the best placement takes %llu, the capacity is %llu",
                 (unsigned long long)(options->work > 0 ? options->work : r->work), bytes, capacity);
}

double pack_answer_gap(const pack_answer *answer)
{
    const bp_pack_result *r = &answer->result;
    if (r->bytes <= r->bound)
        return 0;
    return 100 * (double)(r->bytes - r->bound) / (double)(r->bound > 0 ? r->bound : 1);
}

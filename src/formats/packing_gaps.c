/* Gaps of items: "4-6 9-12" are [4, 6) and [9, 12). */
#include <stdlib.h>
#include <string.h>

#include "core/arith.h"
#include "core/fail.h"
#include "formats/packing_rows.h"

typedef struct gap {
    uint64_t begin, end;
    size_t at; /* in the field */
} gap;

bool bp_take_number(const char **text, uint64_t *number)
{
    const char *at = *text;
    uint64_t value = 0;
    for (; *at >= '0' && *at <= '9'; at++) {
        if (!bp_mul_u64(value, 10, &value) || !bp_add_u64(value, (uint64_t)(*at - '0'), &value))
            return false;
    }
    if (at == *text)
        return false;
    *text = at;
    *number = value;
    return true;
}

static int packing_gaps_by_begin(const void *left, const void *right)
{
    const gap *a = left, *b = right;
    if (a->begin != b->begin)
        return a->begin < b->begin ? -1 : 1;
    return (a->at > b->at) - (a->at < b->at);
}

static bp_csv_place place_in(const bp_csv_field *field, size_t at)
{
    return (bp_csv_place){field->place.line, field->place.column + at}; /* one byte characters so far */
}

/* Reads the range at `*text`, behind which a space or the end follows. */
static bp_status read_gap(const bp_csv *csv, const bp_csv_field *field, const char **text, gap *read)
{
    const char *at = *text;
    size_t length = strcspn(at, " ");
    *read = (gap){.at = (size_t)(at - field->text)};
    bool is_range = bp_take_number(&at, &read->begin) && *at++ == '-' && bp_take_number(&at, &read->end);
    if (!is_range || at != *text + length)
        return bp_csv_fail(csv, place_in(field, read->at),
                           "gap \"%.*s\"; expected ranges as in \"4-6 9-12\" of whole numbers of 64 bits",
                           (int)(length < 40 ? length : 40), *text);
    *text = at;
    return BP_OK;
}

static bp_status check_gap(const bp_csv *csv, const bp_csv_field *field, const gap *g, uint64_t begin, uint64_t end)
{
    unsigned long long first = g->begin, last = g->end;
    if (last <= first)
        return bp_csv_fail(csv, place_in(field, g->at), "gap %llu-%llu %s; expected an end behind its beginning", first,
                           last, last < first ? "ends before it begins" : "is empty");
    if (first < begin || last > end)
        return bp_csv_fail(csv, place_in(field, g->at), "gap %llu-%llu is not inside the interval %llu-%llu", first,
                           last, (unsigned long long)begin, (unsigned long long)end);
    return BP_OK;
}

static bp_status check_overlap(const bp_csv *csv, const bp_csv_field *field, const gap *g, const gap *before)
{
    if (g->begin >= before->end)
        return BP_OK;
    const gap *later = g->at > before->at ? g : before, *earlier = g->at > before->at ? before : g;
    return bp_csv_fail(csv, place_in(field, later->at), "gap %llu-%llu overlaps gap %llu-%llu",
                       (unsigned long long)later->begin, (unsigned long long)later->end,
                       (unsigned long long)earlier->begin, (unsigned long long)earlier->end);
}

/* The gaps of the field in order of time, into room for all of them. */
static bp_status read_gaps(const bp_csv *csv, const bp_csv_field *field, uint64_t begin, uint64_t end, gap *gaps,
                           size_t *count)
{
    const char *text = field->text;
    *count = 0;
    while (*(text += strspn(text, " ")) != '\0') {
        BP_TRY(read_gap(csv, field, &text, &gaps[*count]));
        BP_TRY(check_gap(csv, field, &gaps[*count], begin, end));
        ++*count;
    }
    qsort(gaps, *count, sizeof *gaps, packing_gaps_by_begin);
    for (size_t i = 1; i < *count; i++)
        BP_TRY(check_overlap(csv, field, &gaps[i], &gaps[i - 1]));
    return BP_OK;
}

static bp_status add_between(bp_packing *packing, size_t item, uint64_t begin, uint64_t end, const gap *gaps,
                             size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (gaps[i].begin > begin)
            BP_TRY(bp_packing_add_interval(packing, item, begin, gaps[i].begin));
        begin = gaps[i].end;
    }
    return begin < end ? bp_packing_add_interval(packing, item, begin, end) : BP_OK;
}

static uint64_t covered(const gap *gaps, size_t count)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++)
        sum += gaps[i].end - gaps[i].begin;
    return sum;
}

bp_status bp_packing_add_life(bp_packing *packing, size_t item, uint64_t begin, uint64_t end, const bp_csv *csv,
                              const bp_csv_field *field)
{
    if (field == NULL)
        return bp_packing_add_interval(packing, item, begin, end);
    size_t most = strlen(field->text) / 4 + 1, count; /* "1-2 3-4" */
    gap *gaps = calloc(most, sizeof *gaps);
    if (gaps == NULL)
        return bp_fail_memory(most * sizeof *gaps);
    bp_status status = read_gaps(csv, field, begin, end, gaps, &count);
    if (status == BP_OK && covered(gaps, count) == end - begin)
        status = bp_csv_fail(csv, field->place, "the gaps leave nothing of the interval %llu-%llu",
                             (unsigned long long)begin, (unsigned long long)end);
    if (status == BP_OK)
        status = add_between(packing, item, begin, end, gaps, count);
    free(gaps);
    return status;
}

/* The stack machine of pickles. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "formats/detail.h"
#include "formats/pickle_machine.h"

void bp_pickle_record(const bp_pickle_machine *m, const char *format, ...)
{
    char what[BP_DETAIL_BYTES / 2];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    bp_fail_quoting(BP_ERR_FORMAT, "%.240s: byte %zu: %s", m->origin, m->opcode_at, what);
}

/* ---- arguments -------------------------------------------------------------------------------------------------------------- */

bp_status bp_pickle_take(bp_pickle_machine *m, uint64_t bytes, const unsigned char **argument)
{
    size_t left = (size_t)(m->end - m->at);
    if (bytes > left)
        return bp_pickle_fail(m, "%llu bytes belong here, %zu are left", (unsigned long long)bytes, left);
    *argument = m->at;
    m->at += bytes;
    return BP_OK;
}

/* Little-endian, of at most 8 bytes. */
bp_status bp_pickle_take_number(bp_pickle_machine *m, size_t bytes, uint64_t *number)
{
    const unsigned char *argument = NULL;
    BP_TRY(bp_pickle_take(m, bytes, &argument));
    *number = 0;
    for (size_t i = 0; i < bytes; i++)
        *number |= (uint64_t)argument[i] << 8 * i;
    return BP_OK;
}

/* ---- stack ------------------------------------------------------------------------------------------------------------------ */

static bp_status grow(bp_pickle_value ***array, size_t *capacity, size_t count)
{
    size_t larger = *capacity > 0 ? *capacity : 256;
    while (larger <= count)
        larger *= 2;
    if (larger == *capacity)
        return BP_OK;
    void *moved = realloc(*array, larger * sizeof(bp_pickle_value *));
    if (moved == NULL)
        return bp_fail_memory(larger * sizeof(bp_pickle_value *));
    *array = moved;
    memset(*array + *capacity, 0, (larger - *capacity) * sizeof(bp_pickle_value *));
    *capacity = larger;
    return BP_OK;
}

bp_status bp_pickle_push(bp_pickle_machine *m, bp_pickle_value *value)
{
    if (value == NULL)
        return bp_fail_memory(sizeof *value);
    BP_TRY(grow(&m->stack, &m->stack_capacity, m->stack_count));
    m->stack[m->stack_count++] = value;
    return BP_OK;
}

/* Values of the stack above the last mark. */
static size_t count_above_mark(const bp_pickle_machine *m)
{
    return m->stack_count - (m->mark_count > 0 ? m->marks[m->mark_count - 1] : 0);
}

bp_status bp_pickle_need(const bp_pickle_machine *m, size_t count)
{
    if (count_above_mark(m) < count)
        return bp_pickle_fail(m, "opcode 0x%02x takes %zu values, the stack has %zu", m->begin[m->opcode_at], count,
                              count_above_mark(m));
    return BP_OK;
}

static bp_status push_mark(bp_pickle_machine *m)
{
    if (m->mark_count == BP_PICKLE_MOST_MARKS)
        return bp_pickle_fail(m, "more than %d lists and dictionaries inside each other", BP_PICKLE_MOST_MARKS);
    m->marks[m->mark_count++] = m->stack_count;
    return BP_OK;
}

/* Takes the mark away; *items are the values above it, which leave the stack, too, but stay readable until the next push. */
static bp_status pop_mark(bp_pickle_machine *m, bp_pickle_value ***items, size_t *count)
{
    if (m->mark_count == 0)
        return bp_pickle_fail(m, "opcode 0x%02x without a mark", m->begin[m->opcode_at]);
    *count = count_above_mark(m);
    m->stack_count = m->marks[--m->mark_count];
    *items = m->stack + m->stack_count;
    return BP_OK;
}

/* ---- containers -------------------------------------------------------------------------------------------------------------- */

static bp_status push_container(bp_pickle_machine *m, bp_pickle_kind kind, bp_pickle_value *const *items, size_t count)
{
    bp_pickle_value *value = bp_pickle_new(&m->pickle, kind);
    if (value == NULL || !bp_pickle_append(&m->pickle, value, items, count))
        return bp_fail_memory(count * sizeof(bp_pickle_value *));
    return bp_pickle_push(m, value);
}

static bp_status push_short_tuple(bp_pickle_machine *m, size_t count)
{
    BP_TRY(bp_pickle_need(m, count));
    m->stack_count -= count;
    return push_container(m, BP_PICKLE_TUPLE, m->stack + m->stack_count, count);
}

static bp_status push_marked(bp_pickle_machine *m, bp_pickle_kind kind)
{
    bp_pickle_value **items = NULL;
    size_t count = 0;
    BP_TRY(pop_mark(m, &items, &count));
    if (kind == BP_PICKLE_DICTIONARY && count % 2 != 0)
        return bp_pickle_fail(m, "a dictionary's last key has no value");
    return push_container(m, kind, items, count);
}

/* The items go into the container below them. */
static bp_status extend(bp_pickle_machine *m, bp_pickle_kind kind, bp_pickle_value *const *items, size_t count)
{
    if (m->stack_count == 0 || count_above_mark(m) == 0 || m->stack[m->stack_count - 1]->kind != kind)
        return bp_pickle_fail(m, "items without a %s to put them into", kind == BP_PICKLE_LIST ? "list" : "dictionary");
    if (kind == BP_PICKLE_DICTIONARY && count % 2 != 0)
        return bp_pickle_fail(m, "a dictionary's last key has no value");
    if (!bp_pickle_append(&m->pickle, m->stack[m->stack_count - 1], items, count))
        return bp_fail_memory(count * sizeof(bp_pickle_value *));
    return BP_OK;
}

static bp_status extend_short(bp_pickle_machine *m, bp_pickle_kind kind, size_t count)
{
    BP_TRY(bp_pickle_need(m, count + 1));
    m->stack_count -= count;
    return extend(m, kind, m->stack + m->stack_count, count);
}

static bp_status extend_marked(bp_pickle_machine *m, bp_pickle_kind kind)
{
    bp_pickle_value **items = NULL;
    size_t count = 0;
    BP_TRY(pop_mark(m, &items, &count));
    return extend(m, kind, items, count);
}

/* ---- memo ------------------------------------------------------------------------------------------------------------------- */

static bp_status put(bp_pickle_machine *m, uint64_t index)
{
    BP_TRY(bp_pickle_need(m, 1));
    if (index >= (uint64_t)(m->end - m->begin)) /* whoever counts its values from 0 stays below */
        return bp_pickle_fail(m, "number %llu of the memo; a pickle of %zu bytes does not have so many",
                              (unsigned long long)index, (size_t)(m->end - m->begin));
    BP_TRY(grow(&m->memo, &m->memo_capacity, index));
    m->memo_count += m->memo[index] == NULL;
    m->memo[index] = m->stack[m->stack_count - 1];
    return BP_OK;
}

static bp_status put_numbered(bp_pickle_machine *m, size_t bytes)
{
    uint64_t index = 0;
    BP_TRY(bp_pickle_take_number(m, bytes, &index));
    return put(m, index);
}

static bp_status get(bp_pickle_machine *m, uint64_t index)
{
    if (index >= m->memo_capacity || m->memo[index] == NULL)
        return bp_pickle_fail(m, "number %llu of the memo is not there", (unsigned long long)index);
    return bp_pickle_push(m, m->memo[index]);
}

static bp_status get_numbered(bp_pickle_machine *m, size_t bytes)
{
    uint64_t index = 0;
    BP_TRY(bp_pickle_take_number(m, bytes, &index));
    return get(m, index);
}

/* A line of digits, as PUT and GET of old protocols have it. */
static bp_status take_line(bp_pickle_machine *m, uint64_t *number)
{
    size_t digits = 0;
    *number = 0;
    for (; m->at < m->end && *m->at >= '0' && *m->at <= '9' && digits < 12; digits++)
        *number = *number * 10 + (uint64_t)(*m->at++ - '0');
    if (digits == 0 || m->at == m->end || *m->at != '\n')
        return bp_pickle_fail(m, "a number of the memo of up to 12 digits and a line end belong here");
    m->at++;
    return BP_OK;
}

static bp_status put_line(bp_pickle_machine *m)
{
    uint64_t index = 0;
    BP_TRY(take_line(m, &index));
    return put(m, index);
}

static bp_status get_line(bp_pickle_machine *m)
{
    uint64_t index = 0;
    BP_TRY(take_line(m, &index));
    return get(m, index);
}

/* ---- the machine ------------------------------------------------------------------------------------------------------------ */

static bp_status check_frame(bp_pickle_machine *m)
{
    uint64_t bytes = 0;
    BP_TRY(bp_pickle_take_number(m, 8, &bytes));
    if (bytes > (uint64_t)(m->end - m->at))
        return bp_pickle_fail(m, "a frame of %llu bytes, %zu are left", (unsigned long long)bytes,
                              (size_t)(m->end - m->at));
    return BP_OK;
}

static bp_status step(bp_pickle_machine *m, unsigned char opcode)
{
    switch (opcode) {
    case 0x95: return check_frame(m);
    case '(': return push_mark(m);
    case 'N': return bp_pickle_push(m, m->none);
    case 0x88: return bp_pickle_push(m, m->booleans[1]);
    case 0x89: return bp_pickle_push(m, m->booleans[0]);
    case 'K': return bp_pickle_push_unsigned(m, 1);
    case 'M': return bp_pickle_push_unsigned(m, 2);
    case 'J': return bp_pickle_push_signed(m, 4);
    case 0x8a: return bp_pickle_push_long(m, 1);
    case 0x8b: return bp_pickle_push_long(m, 4);
    case 'G': return bp_pickle_push_float(m);
    case 0x8c: return bp_pickle_push_text(m, BP_PICKLE_STRING, 1);
    case 'X': return bp_pickle_push_text(m, BP_PICKLE_STRING, 4);
    case 0x8d: return bp_pickle_push_text(m, BP_PICKLE_STRING, 8);
    case 'U': return bp_pickle_push_text(m, BP_PICKLE_STRING, 1); /* of Python 2 */
    case 'T': return bp_pickle_push_text(m, BP_PICKLE_STRING, 4);
    case 'C': return bp_pickle_push_text(m, BP_PICKLE_BYTES, 1);
    case 'B': return bp_pickle_push_text(m, BP_PICKLE_BYTES, 4);
    case 0x8e: return bp_pickle_push_text(m, BP_PICKLE_BYTES, 8);
    case ']': return push_container(m, BP_PICKLE_LIST, NULL, 0);
    case '}': return push_container(m, BP_PICKLE_DICTIONARY, NULL, 0);
    case ')': return push_container(m, BP_PICKLE_TUPLE, NULL, 0);
    case 0x85: return push_short_tuple(m, 1);
    case 0x86: return push_short_tuple(m, 2);
    case 0x87: return push_short_tuple(m, 3);
    case 't': return push_marked(m, BP_PICKLE_TUPLE);
    case 'l': return push_marked(m, BP_PICKLE_LIST);
    case 'd': return push_marked(m, BP_PICKLE_DICTIONARY);
    case 'a': return extend_short(m, BP_PICKLE_LIST, 1);
    case 'e': return extend_marked(m, BP_PICKLE_LIST);
    case 's': return extend_short(m, BP_PICKLE_DICTIONARY, 2);
    case 'u': return extend_marked(m, BP_PICKLE_DICTIONARY);
    case 'p': return put_line(m);
    case 'q': return put_numbered(m, 1);
    case 'r': return put_numbered(m, 4);
    case 0x94: return put(m, m->memo_count);
    case 'g': return get_line(m);
    case 'h': return get_numbered(m, 1);
    case 'j': return get_numbered(m, 4);
    default: return bp_pickle_refuse(m, opcode);
    }
}

static bp_status begin(bp_pickle_machine *m)
{
    if (m->end - m->begin < 2 || m->begin[0] != 0x80)
        return bp_pickle_fail(m, "no pickle of protocol %d to %d begins here", BP_PICKLE_LEAST_PROTOCOL,
                              BP_PICKLE_MOST_PROTOCOL);
    unsigned protocol = m->begin[1];
    if (protocol < BP_PICKLE_LEAST_PROTOCOL || protocol > BP_PICKLE_MOST_PROTOCOL)
        return bp_pickle_fail(m, "a pickle of protocol %u; %d to %d are read", protocol, BP_PICKLE_LEAST_PROTOCOL,
                              BP_PICKLE_MOST_PROTOCOL);
    m->at += 2;
    BP_TRY(grow(&m->stack, &m->stack_capacity, 0)); /* marks point into it from the first on */
    m->none = bp_pickle_new(&m->pickle, BP_PICKLE_NONE);
    for (int i = 0; i < 2; i++) {
        m->booleans[i] = bp_pickle_new(&m->pickle, BP_PICKLE_BOOL);
        if (m->none == NULL || m->booleans[i] == NULL)
            return bp_fail_memory(sizeof(bp_pickle_value));
        m->booleans[i]->magnitude = (uint64_t)i;
    }
    return BP_OK;
}

static bp_status end(bp_pickle_machine *m)
{
    if (m->stack_count != 1 || m->mark_count != 0)
        return bp_pickle_fail(m, "the pickle ends with %zu values and %zu marks; one value belongs there",
                              m->stack_count, m->mark_count);
    if (m->at != m->end)
        return bp_pickle_fail(m, "%zu bytes behind the end of the pickle", (size_t)(m->end - m->at));
    m->pickle.value = m->stack[0];
    return BP_OK;
}

static bp_status run(bp_pickle_machine *m)
{
    BP_TRY(begin(m));
    while (m->at < m->end) {
        m->opcode_at = (size_t)(m->at - m->begin);
        unsigned char opcode = *m->at++;
        if (opcode == '.')
            return end(m);
        BP_TRY(step(m, opcode));
    }
    m->opcode_at = (size_t)(m->end - m->begin);
    return bp_pickle_fail(m, "the file ends here, the pickle does not");
}

bp_status bp_pickle_parse(const void *data, size_t bytes, const char *origin, bp_pickle *pickle)
{
    if (bytes > BP_PICKLE_MOST_BYTES)
        return bp_fail_quoting(BP_ERR_FORMAT, "%.300s: %zu bytes, more than the %zu that are read", origin, bytes,
                               BP_PICKLE_MOST_BYTES);
    bp_pickle_machine m = {.origin = origin, .begin = data, .at = data};
    m.end = m.begin + bytes;
    bp_status status = run(&m);
    free(m.stack);
    free(m.memo);
    if (status != BP_OK)
        bp_pickle_finish(&m.pickle);
    else
        *pickle = m.pickle;
    return status;
}

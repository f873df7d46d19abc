/* The stack machine of pickles. */
#include "formats/pickle.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "formats/detail.h"
#include "formats/pickle_values.h"

enum { MOST_MARKS = 1000, LEAST_PROTOCOL = 2, MOST_PROTOCOL = 5 };

typedef struct machine {
    const char *origin;
    const unsigned char *begin, *at, *end;
    size_t opcode_at;
    bp_pickle pickle;
    bp_pickle_value **stack,
        **memo; /* the stack grows by a value for each opcode at most: it never needs more than the bytes */
    size_t stack_count, stack_capacity, memo_count, memo_capacity;
    size_t marks[MOST_MARKS]; /* how high the stack was */
    size_t mark_count;
    bp_pickle_value *none, *booleans[2];
} machine;

__attribute__((format(printf, 2, 3))) static bp_status fail(const machine *m, const char *format, ...)
{
    char what[BP_DETAIL_BYTES / 2];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return bp_fail_quoting(BP_ERR_FORMAT, "%.240s: byte %zu: %s", m->origin, m->opcode_at, what);
}

/* ---- arguments -------------------------------------------------------------------------------------------------------------- */

static bp_status take(machine *m, uint64_t bytes, const unsigned char **argument)
{
    size_t left = (size_t)(m->end - m->at);
    if (bytes > left)
        return fail(m, "%llu bytes belong here, %zu are left", (unsigned long long)bytes, left);
    *argument = m->at;
    m->at += bytes;
    return BP_OK;
}

/* Little-endian, of at most 8 bytes. */
static bp_status take_number(machine *m, size_t bytes, uint64_t *number)
{
    const unsigned char *argument = NULL;
    BP_TRY(take(m, bytes, &argument));
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

static bp_status push(machine *m, bp_pickle_value *value)
{
    if (value == NULL)
        return bp_fail_memory(sizeof *value);
    BP_TRY(grow(&m->stack, &m->stack_capacity, m->stack_count));
    m->stack[m->stack_count++] = value;
    return BP_OK;
}

/* Values of the stack above the last mark. */
static size_t count_above_mark(const machine *m)
{
    return m->stack_count - (m->mark_count > 0 ? m->marks[m->mark_count - 1] : 0);
}

static bp_status need(const machine *m, size_t count)
{
    if (count_above_mark(m) < count)
        return fail(m, "opcode 0x%02x takes %zu values, the stack has %zu", m->begin[m->opcode_at], count,
                    count_above_mark(m));
    return BP_OK;
}

static bp_status push_mark(machine *m)
{
    if (m->mark_count == MOST_MARKS)
        return fail(m, "more than %d lists and dictionaries inside each other", MOST_MARKS);
    m->marks[m->mark_count++] = m->stack_count;
    return BP_OK;
}

/* Takes the mark away; *items are the values above it, which leave the stack, too, but stay readable until the next push. */
static bp_status pop_mark(machine *m, bp_pickle_value ***items, size_t *count)
{
    if (m->mark_count == 0)
        return fail(m, "opcode 0x%02x without a mark", m->begin[m->opcode_at]);
    *count = count_above_mark(m);
    m->stack_count = m->marks[--m->mark_count];
    *items = m->stack + m->stack_count;
    return BP_OK;
}

/* ---- values ----------------------------------------------------------------------------------------------------------------- */

static bp_status push_unsigned(machine *m, size_t bytes)
{
    uint64_t number = 0;
    BP_TRY(take_number(m, bytes, &number));
    bp_pickle_value *value = bp_pickle_new(&m->pickle, BP_PICKLE_INTEGER);
    if (value != NULL)
        value->magnitude = number;
    return push(m, value);
}

/* Two's complement, little-endian; what needs more than 64 bits and a sign is no size, address or time. */
static bp_status push_signed(machine *m, uint64_t bytes)
{
    const unsigned char *digits = NULL;
    BP_TRY(take(m, bytes, &digits));
    bool is_negative = bytes > 0 && (digits[bytes - 1] & 0x80) != 0;
    unsigned char filler = is_negative ? 0xff : 0;
    uint64_t number = is_negative ? UINT64_MAX : 0;
    for (size_t i = bytes; i-- > 0;) {
        if (i >= 8 && digits[i] != filler)
            return fail(m, "an integer of %llu bytes; at most 64 bits are read", (unsigned long long)bytes);
        number = number << 8 | digits[i];
    }
    if (is_negative && number == 0)
        return fail(m, "an integer below -2^64; at most 64 bits are read");
    bp_pickle_value *value = bp_pickle_new(&m->pickle, BP_PICKLE_INTEGER);
    if (value != NULL) {
        value->is_negative = is_negative;
        value->magnitude = is_negative ? 0 - number : number;
    }
    return push(m, value);
}

static bp_status push_long(machine *m, size_t length_bytes)
{
    uint64_t bytes = 0;
    BP_TRY(take_number(m, length_bytes, &bytes));
    return push_signed(m, bytes);
}

static bp_status push_float(machine *m)
{
    const unsigned char *digits = NULL;
    BP_TRY(take(m, 8, &digits));
    uint64_t bits = 0;
    for (size_t i = 0; i < 8; i++)
        bits = bits << 8 | digits[i];
    bp_pickle_value *value = bp_pickle_new(&m->pickle, BP_PICKLE_FLOAT);
    if (value != NULL)
        memcpy(&value->real, &bits, sizeof bits);
    return push(m, value);
}

static bp_status push_text(machine *m, bp_pickle_kind kind, size_t length_bytes)
{
    uint64_t bytes = 0;
    const unsigned char *text = NULL;
    BP_TRY(take_number(m, length_bytes, &bytes));
    BP_TRY(take(m, bytes, &text));
    bp_pickle_value *value = bp_pickle_new(&m->pickle, kind);
    if (value != NULL) {
        value->text = (const char *)text;
        value->count = (uint32_t)bytes; /* no longer than the data, which is shorter than 2^32 */
    }
    return push(m, value);
}

/* ---- containers -------------------------------------------------------------------------------------------------------------- */

static bp_status push_container(machine *m, bp_pickle_kind kind, bp_pickle_value *const *items, size_t count)
{
    bp_pickle_value *value = bp_pickle_new(&m->pickle, kind);
    if (value == NULL || !bp_pickle_append(&m->pickle, value, items, count))
        return bp_fail_memory(count * sizeof(bp_pickle_value *));
    return push(m, value);
}

static bp_status push_short_tuple(machine *m, size_t count)
{
    BP_TRY(need(m, count));
    m->stack_count -= count;
    return push_container(m, BP_PICKLE_TUPLE, m->stack + m->stack_count, count);
}

static bp_status push_marked(machine *m, bp_pickle_kind kind)
{
    bp_pickle_value **items = NULL;
    size_t count = 0;
    BP_TRY(pop_mark(m, &items, &count));
    if (kind == BP_PICKLE_DICTIONARY && count % 2 != 0)
        return fail(m, "a dictionary's last key has no value");
    return push_container(m, kind, items, count);
}

/* The items go into the container below them. */
static bp_status extend(machine *m, bp_pickle_kind kind, bp_pickle_value *const *items, size_t count)
{
    if (m->stack_count == 0 || count_above_mark(m) == 0 || m->stack[m->stack_count - 1]->kind != kind)
        return fail(m, "items without a %s to put them into", kind == BP_PICKLE_LIST ? "list" : "dictionary");
    if (kind == BP_PICKLE_DICTIONARY && count % 2 != 0)
        return fail(m, "a dictionary's last key has no value");
    if (!bp_pickle_append(&m->pickle, m->stack[m->stack_count - 1], items, count))
        return bp_fail_memory(count * sizeof(bp_pickle_value *));
    return BP_OK;
}

static bp_status extend_short(machine *m, bp_pickle_kind kind, size_t count)
{
    BP_TRY(need(m, count + 1));
    m->stack_count -= count;
    return extend(m, kind, m->stack + m->stack_count, count);
}

static bp_status extend_marked(machine *m, bp_pickle_kind kind)
{
    bp_pickle_value **items = NULL;
    size_t count = 0;
    BP_TRY(pop_mark(m, &items, &count));
    return extend(m, kind, items, count);
}

/* ---- memo ------------------------------------------------------------------------------------------------------------------- */

static bp_status put(machine *m, uint64_t index)
{
    BP_TRY(need(m, 1));
    if (index >= (uint64_t)(m->end - m->begin)) /* whoever counts its values from 0 stays below */
        return fail(m, "number %llu of the memo; a pickle of %zu bytes does not have so many",
                    (unsigned long long)index, (size_t)(m->end - m->begin));
    BP_TRY(grow(&m->memo, &m->memo_capacity, index));
    m->memo_count += m->memo[index] == NULL;
    m->memo[index] = m->stack[m->stack_count - 1];
    return BP_OK;
}

static bp_status put_numbered(machine *m, size_t bytes)
{
    uint64_t index = 0;
    BP_TRY(take_number(m, bytes, &index));
    return put(m, index);
}

static bp_status get(machine *m, uint64_t index)
{
    if (index >= m->memo_capacity || m->memo[index] == NULL)
        return fail(m, "number %llu of the memo is not there", (unsigned long long)index);
    return push(m, m->memo[index]);
}

static bp_status get_numbered(machine *m, size_t bytes)
{
    uint64_t index = 0;
    BP_TRY(take_number(m, bytes, &index));
    return get(m, index);
}

/* A line of digits, as PUT and GET of old protocols have it. */
static bp_status take_line(machine *m, uint64_t *number)
{
    size_t digits = 0;
    *number = 0;
    for (; m->at < m->end && *m->at >= '0' && *m->at <= '9' && digits < 12; digits++)
        *number = *number * 10 + (uint64_t)(*m->at++ - '0');
    if (digits == 0 || m->at == m->end || *m->at != '\n')
        return fail(m, "a number of the memo of up to 12 digits and a line end belong here");
    m->at++;
    return BP_OK;
}

static bp_status put_line(machine *m)
{
    uint64_t index = 0;
    BP_TRY(take_line(m, &index));
    return put(m, index);
}

static bp_status get_line(machine *m)
{
    uint64_t index = 0;
    BP_TRY(take_line(m, &index));
    return get(m, index);
}

/* ---- what is not data -------------------------------------------------------------------------------------------------------- */

/* The lines behind GLOBAL and INST: module and name, as far as they go. */
static bp_status refuse_named(const machine *m)
{
    const char *module = (const char *)m->at, *name = "";
    size_t left = (size_t)(m->end - m->at), module_bytes = 0, name_bytes = 0;
    while (module_bytes < left && module_bytes < 60 && module[module_bytes] != '\n')
        module_bytes++;
    if (module_bytes < left && module[module_bytes] == '\n') {
        name = module + module_bytes + 1;
        while (module_bytes + 1 + name_bytes < left && name_bytes < 60 && name[name_bytes] != '\n')
            name_bytes++;
    }
    return fail(m, "names the global %.*s.%.*s; a snapshot is plain data, nothing else is read", (int)module_bytes,
                module, (int)name_bytes, name);
}

/* STACK_GLOBAL: the two strings on top. */
static bp_status refuse_stacked(const machine *m)
{
    BP_TRY(need(m, 2));
    const bp_pickle_value *module = m->stack[m->stack_count - 2], *name = m->stack[m->stack_count - 1];
    bool known = module->kind == BP_PICKLE_STRING && name->kind == BP_PICKLE_STRING;
    return fail(m, "names the global %.*s.%.*s; a snapshot is plain data, nothing else is read",
                known ? (int)(module->count < 60 ? module->count : 60) : 1, known ? module->text : "?",
                known ? (int)(name->count < 60 ? name->count : 60) : 1, known ? name->text : "?");
}

static bp_status refuse(const machine *m, unsigned char opcode)
{
    static const struct {
        unsigned char opcode;
        const char *name, *what;
    } refused[] = {{'R', "REDUCE", "calls a function"},
                   {'b', "BUILD", "builds an object"},
                   {'o', "OBJ", "builds an object"},
                   {0x81, "NEWOBJ", "builds an object"},
                   {0x92, "NEWOBJ_EX", "builds an object"},
                   {0x82, "EXT1", "names a registered global"},
                   {0x83, "EXT2", "names a registered global"},
                   {0x84, "EXT4", "names a registered global"},
                   {'P', "PERSID", "names an object elsewhere"},
                   {'Q', "BINPERSID", "names an object elsewhere"},
                   {0x8f, "EMPTY_SET", "makes a set"},
                   {0x90, "ADDITEMS", "fills a set"},
                   {0x91, "FROZENSET", "makes a set"},
                   {0x96, "BYTEARRAY8", "makes an array of bytes"},
                   {0x97, "NEXT_BUFFER", "takes a buffer from elsewhere"},
                   {0x98, "READONLY_BUFFER", "takes a buffer from elsewhere"}};
    if (opcode == 'c' || opcode == 'i')
        return refuse_named(m);
    if (opcode == 0x93)
        return refuse_stacked(m);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (refused[i].opcode == opcode)
            return fail(m, "%s %s; a snapshot is plain data, nothing else is read", refused[i].name, refused[i].what);
    }
    return fail(m, "0x%02x is no opcode of plain data in protocols %d to %d", opcode, LEAST_PROTOCOL, MOST_PROTOCOL);
}

/* ---- the machine ------------------------------------------------------------------------------------------------------------ */

static bp_status check_frame(machine *m)
{
    uint64_t bytes = 0;
    BP_TRY(take_number(m, 8, &bytes));
    if (bytes > (uint64_t)(m->end - m->at))
        return fail(m, "a frame of %llu bytes, %zu are left", (unsigned long long)bytes, (size_t)(m->end - m->at));
    return BP_OK;
}

static bp_status step(machine *m, unsigned char opcode)
{
    switch (opcode) {
    case 0x95: return check_frame(m);
    case '(': return push_mark(m);
    case 'N': return push(m, m->none);
    case 0x88: return push(m, m->booleans[1]);
    case 0x89: return push(m, m->booleans[0]);
    case 'K': return push_unsigned(m, 1);
    case 'M': return push_unsigned(m, 2);
    case 'J': return push_signed(m, 4);
    case 0x8a: return push_long(m, 1);
    case 0x8b: return push_long(m, 4);
    case 'G': return push_float(m);
    case 0x8c: return push_text(m, BP_PICKLE_STRING, 1);
    case 'X': return push_text(m, BP_PICKLE_STRING, 4);
    case 0x8d: return push_text(m, BP_PICKLE_STRING, 8);
    case 'U': return push_text(m, BP_PICKLE_STRING, 1); /* of Python 2 */
    case 'T': return push_text(m, BP_PICKLE_STRING, 4);
    case 'C': return push_text(m, BP_PICKLE_BYTES, 1);
    case 'B': return push_text(m, BP_PICKLE_BYTES, 4);
    case 0x8e: return push_text(m, BP_PICKLE_BYTES, 8);
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
    default: return refuse(m, opcode);
    }
}

static bp_status begin(machine *m)
{
    if (m->end - m->begin < 2 || m->begin[0] != 0x80)
        return fail(m, "no pickle of protocol %d to %d begins here", LEAST_PROTOCOL, MOST_PROTOCOL);
    unsigned protocol = m->begin[1];
    if (protocol < LEAST_PROTOCOL || protocol > MOST_PROTOCOL)
        return fail(m, "a pickle of protocol %u; %d to %d are read", protocol, LEAST_PROTOCOL, MOST_PROTOCOL);
    m->at += 2;
    m->none = bp_pickle_new(&m->pickle, BP_PICKLE_NONE);
    for (int i = 0; i < 2; i++) {
        m->booleans[i] = bp_pickle_new(&m->pickle, BP_PICKLE_BOOL);
        if (m->none == NULL || m->booleans[i] == NULL)
            return bp_fail_memory(sizeof(bp_pickle_value));
        m->booleans[i]->magnitude = (uint64_t)i;
    }
    return BP_OK;
}

static bp_status end(machine *m)
{
    if (m->stack_count != 1 || m->mark_count != 0)
        return fail(m, "the pickle ends with %zu values and %zu marks; one value belongs there", m->stack_count,
                    m->mark_count);
    if (m->at != m->end)
        return fail(m, "%zu bytes behind the end of the pickle", (size_t)(m->end - m->at));
    m->pickle.value = m->stack[0];
    return BP_OK;
}

static bp_status run(machine *m)
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
    return fail(m, "the file ends here, the pickle does not");
}

bp_status bp_pickle_parse(const void *data, size_t bytes, const char *origin, bp_pickle *pickle)
{
    if (bytes > BP_PICKLE_MOST_BYTES)
        return bp_fail_quoting(BP_ERR_FORMAT, "%.300s: %zu bytes, more than the %zu that are read", origin, bytes,
                               BP_PICKLE_MOST_BYTES);
    machine m = {.origin = origin, .begin = data, .at = data};
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

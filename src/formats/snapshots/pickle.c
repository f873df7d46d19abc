/* SPDX-License-Identifier: Apache-2.0 */
/* A parser for Python pickles that hold plain data only. */
#include "formats/snapshots/pickle.h"

#include <bucketpool/core/fail.h>

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/file.h"

#define BP_PICKLE_IS_CONTAINER ((bp_pickle_ref)1 << 63)
#define BP_PICKLE_IS_INTERNED ((bp_pickle_ref)1 << 62)
#define BP_PICKLE_MAX_COUNT 0x3fffffffu /* limit of bp_pickle_container; a pickle has fewer bytes */

enum { BP_PICKLE_MAX_MARKS = 1000, BP_PICKLE_MIN_PROTOCOL = 2, BP_PICKLE_MAX_PROTOCOL = 5 };

/* The reading position, for arguments of opcodes and for errors. */
typedef struct bp_pickle_cursor {
    const char *origin;
    const unsigned char *begin, *at, *end;
    size_t opcode_at;
} bp_pickle_cursor;

typedef struct bp_pickle_array {
    void *memory;
    size_t count, capacity; /* in elements */
} bp_pickle_array;

typedef struct bp_pickle_machine {
    bp_pickle_cursor c;
    bp_pickle_array stack, memo, items; /* arrays of bp_pickle_ref; the memo's count is the next index of MEMOIZE */
    bp_pickle_array containers;
    size_t budget, granted; /* bytes that all arrays may have in total, and have */
    struct {
        size_t height, offset; /* of the stack, in the data */
    } marks[BP_PICKLE_MAX_MARKS];
    size_t mark_count;
    const bp_pickle_reducer *reducer;
} bp_pickle_machine;

__attribute__((format(printf, 2, 3))) static void pickle_record(const bp_pickle_cursor *c, const char *format, ...)
{
    char what[BP_DETAIL_BYTES / 2];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    (void)bp_fail(BP_ERR_FORMAT, "%.240s: byte %zu: %s", c->origin, c->opcode_at, what);
}

/* BP_ERR_FORMAT with the origin and the opcode's offset. A macro, as bp_fail is, so that static analysis sees the
 * constant status. */
#define bp_pickle_fail(c, ...) (pickle_record((c), __VA_ARGS__), BP_ERR_FORMAT)

/* ---- scalars, decoded from the data -------------------------------------------------------------------------------- */

/* The opcode's next bytes. */
static bp_status pickle_take(bp_pickle_cursor *c, uint64_t bytes, const unsigned char **argument)
{
    size_t left = (size_t)(c->end - c->at);
    if (bytes > left)
        return bp_pickle_fail(c, "expected %llu bytes, %zu are left", (unsigned long long)bytes, left);
    *argument = c->at;
    c->at += bytes;
    return BP_OK;
}

/* The next `bytes` (at most 8), as a little-endian number. */
static bp_status pickle_take_number(bp_pickle_cursor *c, size_t bytes, uint64_t *number)
{
    const unsigned char *argument = NULL;
    BP_TRY(pickle_take(c, bytes, &argument));
    *number = 0;
    for (size_t i = 0; i < bytes; i++)
        *number |= (uint64_t)argument[i] << 8 * i;
    return BP_OK;
}

static bp_status decode_unsigned(bp_pickle_cursor *c, size_t bytes, bp_pickle_value *value)
{
    value->kind = BP_PICKLE_INTEGER;
    return pickle_take_number(c, bytes, &value->magnitude);
}

/* Two's complement, little-endian. Integers that need more than 64 bits and a sign are refused: no size, address or
 * time is that large. */
static bp_status decode_signed(bp_pickle_cursor *c, uint64_t bytes, bp_pickle_value *value)
{
    const unsigned char *digits = NULL;
    BP_TRY(pickle_take(c, bytes, &digits));
    if (bytes > 9) /* Python uses the long form for larger integers only, and a value is decoded at each access */
        return bp_pickle_fail(c, "an integer of %llu bytes, expected at most 64 bits", (unsigned long long)bytes);
    bool is_negative = bytes > 0 && (digits[bytes - 1] & 0x80) != 0;
    unsigned char filler = is_negative ? 0xff : 0;
    uint64_t number = is_negative ? UINT64_MAX : 0;
    for (size_t i = bytes; i-- > 0;) {
        if (i == 8 && digits[i] != filler)
            return bp_pickle_fail(c, "an integer of %llu bytes, expected at most 64 bits", (unsigned long long)bytes);
        number = number << 8 | digits[i];
    }
    if (is_negative && number == 0)
        return bp_pickle_fail(c, "an integer below -2^64, expected at most 64 bits");
    value->kind = BP_PICKLE_INTEGER;
    value->is_negative = is_negative;
    value->magnitude = is_negative ? 0 - number : number;
    return BP_OK;
}

static bp_status decode_long(bp_pickle_cursor *c, size_t length_bytes, bp_pickle_value *value)
{
    uint64_t bytes = 0;
    BP_TRY(pickle_take_number(c, length_bytes, &bytes));
    return decode_signed(c, bytes, value);
}

static bp_status decode_text(bp_pickle_cursor *c, bp_pickle_kind kind, size_t length_bytes, bp_pickle_value *value)
{
    uint64_t bytes = 0;
    const unsigned char *text = NULL;
    BP_TRY(pickle_take_number(c, length_bytes, &bytes));
    BP_TRY(pickle_take(c, bytes, &text));
    if (bytes > UINT32_MAX)
        return bp_pickle_fail(c, "a text of %llu bytes, expected less than 2^32", (unsigned long long)bytes);
    value->kind = (uint8_t)kind;
    value->text = (const char *)text;
    value->count = (uint32_t)bytes;
    value->interned = BP_PICKLE_NOT_INTERNED;
    return BP_OK;
}

/* Decodes a scalar whose arguments follow the cursor. *is_scalar is false for any other opcode, which changes
 * nothing else. */
static bp_status pickle_decode(bp_pickle_cursor *c, unsigned char opcode, bool *is_scalar, bp_pickle_value *value)
{
    const unsigned char *digits = NULL;
    uint64_t bits = 0;
    *is_scalar = true;
    *value = (bp_pickle_value){.kind = BP_PICKLE_NONE};
    switch (opcode) {
    case 'N': return BP_OK;
    case 0x88:
    case 0x89: *value = (bp_pickle_value){.kind = BP_PICKLE_BOOL, .magnitude = opcode == 0x88}; return BP_OK;
    case 'K': return decode_unsigned(c, 1, value);
    case 'M': return decode_unsigned(c, 2, value);
    case 'J': return decode_signed(c, 4, value);
    case 0x8a: return decode_long(c, 1, value);
    case 0x8b: return decode_long(c, 4, value);
    case 'G':
        value->kind = BP_PICKLE_FLOAT;
        BP_TRY(pickle_take(c, 8, &digits));
        for (size_t i = 0; i < 8; i++)
            bits = bits << 8 | digits[i];
        memcpy(&value->real, &bits, sizeof bits);
        return BP_OK;
    case 0x8c: return decode_text(c, BP_PICKLE_STRING, 1, value);
    case 'X': return decode_text(c, BP_PICKLE_STRING, 4, value);
    case 0x8d: return decode_text(c, BP_PICKLE_STRING, 8, value);
    case 'U': return decode_text(c, BP_PICKLE_STRING, 1, value); /* from Python 2 */
    case 'T': return decode_text(c, BP_PICKLE_STRING, 4, value);
    case 'C': return decode_text(c, BP_PICKLE_BYTES, 1, value);
    case 'B': return decode_text(c, BP_PICKLE_BYTES, 4, value);
    case 0x8e: return decode_text(c, BP_PICKLE_BYTES, 8, value);
    default: *is_scalar = false; return BP_OK;
    }
}

/* ---- references ---------------------------------------------------------------------------------------------------------------- */

bp_pickle_value bp_pickle_get(const bp_pickle *pickle, bp_pickle_ref ref)
{
    bp_pickle_value value = {.kind = BP_PICKLE_ABSENT};
    if (ref == BP_PICKLE_NO_REF)
        return value;
    if ((ref & BP_PICKLE_IS_CONTAINER) != 0) {
        const bp_pickle_container *container = &pickle->containers[ref & ~BP_PICKLE_IS_CONTAINER];
        value.kind = (uint8_t)(BP_PICKLE_LIST + container->shape);
        if (value.kind == BP_PICKLE_TOKEN) {
            value.magnitude = container->first;
            return value;
        }
        value.count = container->count;
        value.items = pickle->items != NULL ? pickle->items + container->first : NULL;
        return value;
    }
    if ((ref & BP_PICKLE_IS_INTERNED) != 0) {
        value.interned = (uint32_t)ref;
        value.kind = BP_PICKLE_STRING;
        value.text = pickle->reducer->texts[value.interned].text;
        value.count = (uint32_t)pickle->reducer->texts[value.interned].bytes;
        return value;
    }
    bool is_scalar = false;
    bp_pickle_cursor c = {.begin = pickle->data, .at = pickle->data + ref + 1, .end = pickle->data + pickle->bytes};
    (void)pickle_decode(&c, pickle->data[ref], &is_scalar,
                        &value); /* cannot fail: the parser has decoded it once without an error */
    return value;
}

bp_pickle_ref bp_pickle_find(const bp_pickle *pickle, bp_pickle_value dictionary, const char *key)
{
    size_t length = strlen(key);
    if (dictionary.kind != BP_PICKLE_DICTIONARY || dictionary.count > 2 * BP_PICKLE_MAX_MEMBERS)
        return BP_PICKLE_NO_REF;
    for (size_t i = dictionary.count; i > 0; i -= 2) {
        bp_pickle_value name = bp_pickle_get(pickle, dictionary.items[i - 2]);
        if (name.kind == BP_PICKLE_STRING && name.count == length && memcmp(name.text, key, length) == 0)
            return dictionary.items[i - 1];
    }
    return BP_PICKLE_NO_REF;
}

void bp_pickle_finish(bp_pickle *pickle)
{
    free(pickle->containers);
    free(pickle->items);
    *pickle = (bp_pickle){.root = BP_PICKLE_NO_REF};
}

/* ---- the stack machine ------------------------------------------------------------------------------------------- */

static bp_pickle_ref *refs(const bp_pickle_array *array)
{
    return array->memory;
}

static bp_pickle_container *container_of(const bp_pickle_machine *m, bp_pickle_ref ref)
{
    return (bp_pickle_container *)m->containers.memory + (ref & ~BP_PICKLE_IS_CONTAINER);
}

/* Makes room for `count` elements. Exceeding the budget is an error of the file, not of the machine's memory. */
static bp_status grow(bp_pickle_machine *m, bp_pickle_array *array, size_t count, size_t element_bytes)
{
    if (count <= array->capacity)
        return BP_OK;
    size_t larger = array->capacity + array->capacity / 2 + 256;
    larger = larger > count ? larger : count;
    size_t more = (larger - array->capacity) * element_bytes;
    if (more > m->budget - m->granted)
        return bp_pickle_fail(&m->c,
                              "the values need more than %zu bytes of memory, the limit for a pickle of %zu "
                              "bytes; record fewer events",
                              m->budget, (size_t)(m->c.end - m->c.begin));
    void *moved = realloc(array->memory, larger * element_bytes);
    if (moved == NULL)
        return bp_fail_memory(larger * element_bytes);
    array->memory = moved;
    array->capacity = larger;
    m->granted += more;
    return BP_OK;
}

static bp_status push(bp_pickle_machine *m, bp_pickle_ref ref)
{
    BP_TRY(grow(m, &m->stack, m->stack.count + 1, sizeof ref));
    refs(&m->stack)[m->stack.count++] = ref;
    return BP_OK;
}

/* Number of values above the last mark. */
static size_t count_above_mark(const bp_pickle_machine *m)
{
    return m->stack.count - (m->mark_count > 0 ? m->marks[m->mark_count - 1].height : 0);
}

/* Fails unless at least `count` values are above the last mark. */
static bp_status pickle_need(const bp_pickle_machine *m, size_t count)
{
    if (count_above_mark(m) < count)
        return bp_pickle_fail(&m->c, "opcode 0x%02x takes %zu values, the stack has %zu", m->c.begin[m->c.opcode_at],
                              count, count_above_mark(m));
    return BP_OK;
}

/* Removes the mark and pops the values above it, which stay readable past the end of the stack until the next push. */
static bp_status pop_mark(bp_pickle_machine *m, size_t *count)
{
    if (m->mark_count == 0)
        return bp_pickle_fail(&m->c, "opcode 0x%02x without a mark", m->c.begin[m->c.opcode_at]);
    *count = count_above_mark(m);
    m->stack.count = m->marks[--m->mark_count].height;
    return BP_OK;
}

/* ---- containers -------------------------------------------------------------------------------------------------------------- */

/* Capacity of a container, a function of its count: steps of an eighth to a quarter up to 64 items, powers of two
 * above. */
static size_t capacity_for(size_t count)
{
    size_t power = 8;
    if (count <= 8)
        return count;
    while (power < count)
        power *= 2;
    size_t step = power / 8;
    return power > 64 ? power : (count + step - 1) / step * step;
}

/* Appends the values that have just been popped. */
static bp_status pickle_append(bp_pickle_machine *m, bp_pickle_container *container, size_t count)
{
    size_t total = container->count + count, capacity = capacity_for(total);
    if (capacity > capacity_for(container->count)) {
        BP_TRY(grow(m, &m->items, m->items.count + capacity, sizeof(bp_pickle_ref)));
        bp_pickle_ref *items = m->items.memory;
        if (container->count > 0)
            memcpy(items + m->items.count, items + container->first, container->count * sizeof *items);
        container->first = (uint32_t)m->items.count;
        m->items.count += capacity;
    }
    if (count > 0)
        memcpy(refs(&m->items) + container->first + container->count, refs(&m->stack) + m->stack.count,
               count * sizeof(bp_pickle_ref));
    container->count = (uint32_t)total & BP_PICKLE_MAX_COUNT;
    return BP_OK;
}

static bp_status push_container(bp_pickle_machine *m, bp_pickle_kind kind, size_t count)
{
    BP_TRY(grow(m, &m->containers, m->containers.count + 1, sizeof(bp_pickle_container)));
    bp_pickle_ref ref = BP_PICKLE_IS_CONTAINER | (bp_pickle_ref)m->containers.count++;
    *container_of(m, ref) = (bp_pickle_container){.shape = (kind - BP_PICKLE_LIST) & 3u};
    BP_TRY(pickle_append(m, container_of(m, ref), count));
    return push(m, ref);
}

static bp_status push_short_tuple(bp_pickle_machine *m, size_t count)
{
    BP_TRY(pickle_need(m, count));
    m->stack.count -= count;
    return push_container(m, BP_PICKLE_TUPLE, count);
}

static bp_status push_marked(bp_pickle_machine *m, bp_pickle_kind kind)
{
    size_t count = 0;
    BP_TRY(pop_mark(m, &count));
    if (kind == BP_PICKLE_DICTIONARY && count % 2 != 0)
        return bp_pickle_fail(&m->c, "a dictionary's last key has no value");
    return push_container(m, kind, count);
}

static bp_pickle view_of(const bp_pickle_machine *m)
{
    return (bp_pickle){.data = m->c.begin,
                       .bytes = (size_t)(m->c.end - m->c.begin),
                       .containers = m->containers.memory,
                       .items = m->items.memory,
                       .reducer = m->reducer};
}

/* Offers the values that have just been popped to the reducer. A container that has items already keeps them all. */
static bp_status offer(bp_pickle_machine *m, bp_pickle_ref into, bp_pickle_kind kind, size_t count, size_t begin,
                       bool *taken)
{
    const bp_pickle_container before = *container_of(m, into);
    const bool has_token = before.shape == BP_PICKLE_TOKEN - BP_PICKLE_LIST;
    *taken = false;
    if (m->reducer == NULL || (before.count > 0 && !has_token))
        return BP_OK;
    const bp_pickle view = view_of(m);
    uint32_t token = has_token ? before.first : BP_PICKLE_NO_TOKEN;
    BP_TRY(m->reducer->reduce(m->reducer->context, &view, kind, refs(&m->stack) + m->stack.count, count, begin,
                              m->c.opcode_at, &token));
    *taken = token != BP_PICKLE_NO_TOKEN;
    if (*taken)
        *container_of(m, into) = (bp_pickle_container){.first = token, .shape = BP_PICKLE_TOKEN - BP_PICKLE_LIST};
    return BP_OK;
}

/* Adds the values that have just been popped to the container below them; `begin`: where they begin in the data. */
static bp_status extend(bp_pickle_machine *m, bp_pickle_kind kind, size_t count, size_t begin)
{
    bp_pickle_ref into = count_above_mark(m) > 0 ? refs(&m->stack)[m->stack.count - 1] : 0;
    unsigned shape =
        (into & BP_PICKLE_IS_CONTAINER) != 0 ? container_of(m, into)->shape : BP_PICKLE_TUPLE - BP_PICKLE_LIST;
    if (shape != (unsigned)kind - BP_PICKLE_LIST && shape != BP_PICKLE_TOKEN - BP_PICKLE_LIST)
        return bp_pickle_fail(&m->c, "items without a %s to put them into",
                              kind == BP_PICKLE_LIST ? "list" : "dictionary");
    if (kind == BP_PICKLE_DICTIONARY && count % 2 != 0)
        return bp_pickle_fail(&m->c, "a dictionary's last key has no value");
    bool taken = false;
    BP_TRY(offer(m, into, kind, count, begin, &taken));
    return taken ? BP_OK : pickle_append(m, container_of(m, into), count);
}

static bp_status extend_short(bp_pickle_machine *m, bp_pickle_kind kind, size_t count)
{
    BP_TRY(pickle_need(m, count + 1));
    m->stack.count -= count;
    return extend(m, kind, count, m->c.opcode_at);
}

static bp_status extend_marked(bp_pickle_machine *m, bp_pickle_kind kind)
{
    size_t count = 0;
    BP_TRY(pop_mark(m, &count));
    return extend(m, kind, count, m->marks[m->mark_count].offset);
}

/* ---- memo ------------------------------------------------------------------------------------------------------------------- */

static bp_status put(bp_pickle_machine *m, uint64_t index)
{
    size_t bytes = (size_t)(m->c.end - m->c.begin), before = m->memo.capacity;
    BP_TRY(pickle_need(m, 1));
    if (index >= bytes) /* writers count from 0, so an index below the number of bytes is always enough */
        return bp_pickle_fail(&m->c, "memo index %llu is too large for a pickle of %zu bytes",
                              (unsigned long long)index, bytes);
    BP_TRY(grow(m, &m->memo, index + 1, sizeof(bp_pickle_ref)));
    memset(refs(&m->memo) + before, 0xff, (m->memo.capacity - before) * sizeof(bp_pickle_ref)); /* BP_PICKLE_NO_REF */
    m->memo.count += refs(&m->memo)[index] == BP_PICKLE_NO_REF;
    refs(&m->memo)[index] = refs(&m->stack)[m->stack.count - 1];
    return BP_OK;
}

static bp_status pickle_get(bp_pickle_machine *m, uint64_t index)
{
    if (index >= m->memo.capacity || refs(&m->memo)[index] == BP_PICKLE_NO_REF)
        return bp_pickle_fail(&m->c, "memo index %llu is not set", (unsigned long long)index);
    return push(m, refs(&m->memo)[index]);
}

/* A line of digits: the argument of PUT and GET. */
static bp_status take_line(bp_pickle_machine *m, uint64_t *number)
{
    size_t digits = 0;
    *number = 0;
    for (; m->c.at < m->c.end && *m->c.at >= '0' && *m->c.at <= '9' && digits < 12; digits++)
        *number = *number * 10 + (uint64_t)(*m->c.at++ - '0');
    if (digits == 0 || m->c.at == m->c.end || *m->c.at != '\n')
        return bp_pickle_fail(&m->c, "expected a memo index of up to 12 digits and a line end");
    m->c.at++;
    return BP_OK;
}

/* ---- the machine ------------------------------------------------------------------------------------------------------------ */

/* Refuses a global of GLOBAL, INST or STACK_GLOBAL. */
static bp_status refuse_global(const bp_pickle_machine *m, const char *module, size_t module_bytes, const char *name,
                               size_t name_bytes)
{
    return bp_pickle_fail(&m->c, "names the global %.*s.%.*s; a snapshot may contain plain data only",
                          (int)(module_bytes < 60 ? module_bytes : 60), module,
                          (int)(name_bytes < 60 ? name_bytes : 60), name);
}

/* Refuses an opcode that is not plain data, by its effect. */
static bp_status pickle_refuse(const bp_pickle_machine *m, unsigned char opcode)
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
    if (opcode == 'c' || opcode == 'i') { /* followed by two lines, module and name, possibly truncated */
        const char *module = (const char *)m->c.at, *name = "";
        size_t left = (size_t)(m->c.end - m->c.at), module_bytes = 0, name_bytes = 0;
        while (module_bytes < left && module_bytes < 60 && module[module_bytes] != '\n')
            module_bytes++;
        if (module_bytes < left && module[module_bytes] == '\n') {
            name = module + module_bytes + 1;
            while (module_bytes + 1 + name_bytes < left && name_bytes < 60 && name[name_bytes] != '\n')
                name_bytes++;
        }
        return refuse_global(m, module, module_bytes, name, name_bytes);
    }
    if (opcode == 0x93) { /* the top two strings are module and name */
        BP_TRY(pickle_need(m, 2));
        if (m->stack.memory == NULL)
            return bp_fail(BP_ERR_INTERNAL, "a pickle's stack has values but no memory");
        const bp_pickle pickle = view_of(m);
        const bp_pickle_ref *top = (const bp_pickle_ref *)m->stack.memory + m->stack.count;
        bp_pickle_value module = bp_pickle_get(&pickle, top[-2]), name = bp_pickle_get(&pickle, top[-1]);
        if (module.kind != BP_PICKLE_STRING || name.kind != BP_PICKLE_STRING)
            return refuse_global(m, "?", 1, "?", 1);
        return refuse_global(m, module.text, module.count, name.text, name.count);
    }
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        if (refused[i].opcode == opcode)
            return bp_pickle_fail(&m->c, "%s %s; a snapshot may contain plain data only", refused[i].name,
                                  refused[i].what);
    }
    return bp_pickle_fail(&m->c, "unknown opcode 0x%02x in protocols %d to %d", opcode, BP_PICKLE_MIN_PROTOCOL,
                          BP_PICKLE_MAX_PROTOCOL);
}

static bp_status step(bp_pickle_machine *m, unsigned char opcode)
{
    bool is_scalar = false;
    uint64_t number = 0;
    bp_pickle_value decoded; /* decoded here to find errors, and again at each access */
    BP_TRY(pickle_decode(&m->c, opcode, &is_scalar, &decoded));
    if (is_scalar && decoded.kind == BP_PICKLE_STRING && m->reducer != NULL) {
        uint32_t index = 0;
        BP_TRY(m->reducer->intern(m->reducer->context, decoded.text, decoded.count, &index));
        return push(m, BP_PICKLE_IS_INTERNED | index);
    }
    if (is_scalar)
        return push(m, (bp_pickle_ref)m->c.opcode_at);
    switch (opcode) {
    case 0x95:
        BP_TRY(pickle_take_number(&m->c, 8, &number));
        if (number > (uint64_t)(m->c.end - m->c.at))
            return bp_pickle_fail(&m->c, "a frame of %llu bytes, but %zu are left", (unsigned long long)number,
                                  (size_t)(m->c.end - m->c.at));
        return BP_OK;
    case '(':
        if (m->mark_count == BP_PICKLE_MAX_MARKS)
            return bp_pickle_fail(&m->c, "more than %d nested lists and dictionaries", BP_PICKLE_MAX_MARKS);
        m->marks[m->mark_count].height = m->stack.count;
        m->marks[m->mark_count++].offset = m->c.opcode_at;
        return BP_OK;
    case ']': return push_container(m, BP_PICKLE_LIST, 0);
    case '}': return push_container(m, BP_PICKLE_DICTIONARY, 0);
    case ')': return push_container(m, BP_PICKLE_TUPLE, 0);
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
    case 0x94: return put(m, m->memo.count);
    case 'p':
    case 'g': BP_TRY(take_line(m, &number)); return opcode == 'p' ? put(m, number) : pickle_get(m, number);
    case 'q':
    case 'r': BP_TRY(pickle_take_number(&m->c, opcode == 'q' ? 1 : 4, &number)); return put(m, number);
    case 'h':
    case 'j': BP_TRY(pickle_take_number(&m->c, opcode == 'h' ? 1 : 4, &number)); return pickle_get(m, number);
    default: return pickle_refuse(m, opcode);
    }
}

static bp_status pickle_run(bp_pickle_machine *m)
{
    if (m->c.end - m->c.begin < 2 || m->c.begin[0] != 0x80)
        return bp_pickle_fail(&m->c,
                              "expected a pickle of protocol %d to %d; torch.cuda.memory._dump_snapshot() writes one",
                              BP_PICKLE_MIN_PROTOCOL, BP_PICKLE_MAX_PROTOCOL);
    unsigned protocol = m->c.begin[1];
    if (protocol < BP_PICKLE_MIN_PROTOCOL || protocol > BP_PICKLE_MAX_PROTOCOL)
        return bp_pickle_fail(&m->c, "pickle protocol %u, expected %d to %d", protocol, BP_PICKLE_MIN_PROTOCOL,
                              BP_PICKLE_MAX_PROTOCOL);
    m->c.at += 2;
    while (m->c.at < m->c.end) {
        m->c.opcode_at = (size_t)(m->c.at - m->c.begin);
        unsigned char opcode = *m->c.at++;
        if (opcode != '.') {
            BP_TRY(step(m, opcode));
            continue;
        }
        if (m->stack.count != 1 || m->mark_count != 0)
            return bp_pickle_fail(&m->c, "the pickle ends with %zu values and %zu marks, expected one value",
                                  m->stack.count, m->mark_count);
        if (m->c.at != m->c.end)
            return bp_pickle_fail(&m->c, "%zu bytes after the end of the pickle", (size_t)(m->c.end - m->c.at));
        return BP_OK;
    }
    m->c.opcode_at = (size_t)(m->c.end - m->c.begin);
    return bp_pickle_fail(&m->c, "the file ends before the pickle does");
}

bp_status bp_pickle_parse(const void *data, size_t bytes, size_t budget, const char *origin,
                          const bp_pickle_reducer *reducer, bp_pickle *pickle)
{
    if (reducer == NULL && bytes > BP_PICKLE_MAX_BYTES)
        return bp_fail(BP_ERR_FORMAT, "%.300s: %zu bytes, the limit is %zu", origin, bytes, BP_PICKLE_MAX_BYTES);
    bp_pickle_machine m = {.c = {.origin = origin, .begin = data, .at = data}, .budget = budget, .reducer = reducer};
    m.c.end = m.c.begin + bytes;
    bp_status status = pickle_run(&m);
    bp_pickle read = {.data = data,
                      .bytes = bytes,
                      .containers = m.containers.memory,
                      .items = m.items.memory,
                      .granted = m.granted,
                      .reducer = reducer};
    if (status == BP_OK)
        read.root = refs(&m.stack)[0];
    free(m.stack.memory);
    free(m.memo.memory);
    if (status != BP_OK)
        bp_pickle_finish(&read);
    else
        *pickle = read;
    return status;
}

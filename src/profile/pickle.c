/* Writes Python's pickle format, protocol 2. */
#include "profile/pickle.h"

#include <string.h>

#include "core/text.h"

#define MOST_PER_BATCH 1000u

/* Opcodes (PEP 307 and the module pickletools have all). */
enum {
    MARK = '(',
    STOP = '.',
    NONE = 'N',
    EMPTY_DICT = '}',
    SETITEMS = 'u',
    EMPTY_LIST = ']',
    APPENDS = 'e',
    BINUNICODE = 'X',
    BININT = 'J',
    BININT1 = 'K',
    BININT2 = 'M',
    LONG1 = 0x8a,
    NEWTRUE = 0x88,
    NEWFALSE = 0x89,
    PROTO = 0x80
};

/* An opcode, and the lowest bytes of a number, least first. */
static void code(bp_output *o, uint8_t opcode, uint64_t number, size_t bytes)
{
    uint8_t text[9] = {opcode};
    for (size_t i = 0; i < bytes; i++)
        text[1 + i] = (uint8_t)(number >> 8 * i);
    bp_output_add(o, text, 1 + bytes);
}

void bp_pickle_begin(bp_output *output)
{
    code(output, PROTO, 2, 1);
}

void bp_pickle_end(bp_output *output)
{
    code(output, STOP, 0, 0);
}

void bp_pickle_begin_dict(bp_output *output)
{
    code(output, EMPTY_DICT, MARK, 1);
}

void bp_pickle_end_dict(bp_output *output)
{
    code(output, SETITEMS, 0, 0);
}

void bp_pickle_begin_list(bp_output *output, bp_pickle_list *list)
{
    *list = (bp_pickle_list){0};
    code(output, EMPTY_LIST, MARK, 1);
}

void bp_pickle_item(bp_output *output, bp_pickle_list *list)
{
    if (list->batch == MOST_PER_BATCH) {
        code(output, APPENDS, MARK, 1);
        list->batch = 0;
    }
    list->batch++;
}

void bp_pickle_end_list(bp_output *output)
{
    code(output, APPENDS, 0, 0);
}

/* Adds the text to `output` unless that is NULL, with U+FFFD for each byte that is not UTF-8. Returns its bytes. */
static size_t add_text(bp_output *output, const char *const *pieces, size_t count)
{
    static const char replacement[] = "\xef\xbf\xbd";
    size_t sum = 0;
    for (size_t i = 0; i < count; i++) {
        for (const char *at = pieces[i], *next; *at != '\0'; at = next) {
            size_t bytes = bp_character_bytes((const unsigned char *)at), added = bytes > 0 ? bytes : 3;
            next = at + (bytes > 0 ? bytes : 1);
            if (output != NULL)
                bp_output_add(output, bytes > 0 ? at : replacement, added);
            sum += added;
        }
    }
    return sum;
}

void bp_pickle_text(bp_output *output, const char *const *pieces, size_t count)
{
    code(output, BINUNICODE, add_text(NULL, pieces, count), 4);
    add_text(output, pieces, count);
}

static void pickle_string(bp_output *output, const char *text)
{
    bp_pickle_text(output, &text, 1);
}

void bp_pickle_number(bp_output *output, uint64_t number)
{
    if (number < 0x100) {
        code(output, BININT1, number, 1);
    } else if (number < 0x10000) {
        code(output, BININT2, number, 2);
    } else if (number < 0x80000000u) {
        code(output, BININT, number, 4);
    } else if (number >> 63 == 0) {
        code(output, LONG1, 8 | number << 8, 8); /* the length, then all but the highest byte */
        bp_output_byte(output, (uint8_t)(number >> 56));
    } else {
        code(output, LONG1, 9 | number << 8, 8);
        bp_output_byte(output, (uint8_t)(number >> 56));
        bp_output_byte(output, 0); /* it has no sign */
    }
}

void bp_pickle_signed(bp_output *output, int64_t number)
{
    if (number >= 0) {
        bp_pickle_number(output, (uint64_t)number);
        return;
    }
    code(output, LONG1, 8 | (uint64_t)number << 8, 8);
    bp_output_byte(output, (uint8_t)((uint64_t)number >> 56));
}

static void pickle_bool(bp_output *output, bool value)
{
    code(output, value ? NEWTRUE : NEWFALSE, 0, 0);
}

void bp_pickle_none(bp_output *output)
{
    code(output, NONE, 0, 0);
}

void bp_pickle_key(bp_output *output, const char *key)
{
    size_t bytes = strlen(key);
    code(output, BINUNICODE, bytes, 4);
    bp_output_add(output, key, bytes);
}

void bp_pickle_member_string(bp_output *output, const char *key, const char *text)
{
    bp_pickle_key(output, key);
    pickle_string(output, text);
}

void bp_pickle_member_number(bp_output *output, const char *key, uint64_t number)
{
    bp_pickle_key(output, key);
    bp_pickle_number(output, number);
}

void bp_pickle_member_bool(bp_output *output, const char *key, bool value)
{
    bp_pickle_key(output, key);
    pickle_bool(output, value);
}

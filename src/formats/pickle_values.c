/* Values of a pickle: scalars decoded from the data, members found by name. */
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "formats/pickle_machine.h"

/* ---- scalars ----------------------------------------------------------------------------------------------------------------- */

static bp_status decode_unsigned(bp_pickle_cursor *c, size_t bytes, bp_pickle_value *value)
{
    value->kind = BP_PICKLE_INTEGER;
    return bp_pickle_take_number(c, bytes, &value->magnitude);
}

/* Two's complement, little-endian; an integer of more than 64 bits and a sign is no size, address or time. */
static bp_status decode_signed(bp_pickle_cursor *c, uint64_t bytes, bp_pickle_value *value)
{
    const unsigned char *digits = NULL;
    BP_TRY(bp_pickle_take(c, bytes, &digits));
    if (bytes > 9) /* which Python writes of no smaller one; each look at the value decodes it */
        return bp_pickle_fail(c, "an integer of %llu bytes; at most 64 bits are read", (unsigned long long)bytes);
    bool is_negative = bytes > 0 && (digits[bytes - 1] & 0x80) != 0;
    unsigned char filler = is_negative ? 0xff : 0;
    uint64_t number = is_negative ? UINT64_MAX : 0;
    for (size_t i = bytes; i-- > 0;) {
        if (i == 8 && digits[i] != filler)
            return bp_pickle_fail(c, "an integer of %llu bytes; at most 64 bits are read", (unsigned long long)bytes);
        number = number << 8 | digits[i];
    }
    if (is_negative && number == 0)
        return bp_pickle_fail(c, "an integer below -2^64; at most 64 bits are read");
    value->kind = BP_PICKLE_INTEGER;
    value->is_negative = is_negative;
    value->magnitude = is_negative ? 0 - number : number;
    return BP_OK;
}

static bp_status decode_long(bp_pickle_cursor *c, size_t length_bytes, bp_pickle_value *value)
{
    uint64_t bytes = 0;
    BP_TRY(bp_pickle_take_number(c, length_bytes, &bytes));
    return decode_signed(c, bytes, value);
}

static bp_status decode_float(bp_pickle_cursor *c, bp_pickle_value *value)
{
    const unsigned char *digits = NULL;
    BP_TRY(bp_pickle_take(c, 8, &digits));
    uint64_t bits = 0;
    for (size_t i = 0; i < 8; i++)
        bits = bits << 8 | digits[i];
    value->kind = BP_PICKLE_FLOAT;
    memcpy(&value->real, &bits, sizeof bits);
    return BP_OK;
}

static bp_status decode_text(bp_pickle_cursor *c, bp_pickle_kind kind, size_t length_bytes, bp_pickle_value *value)
{
    uint64_t bytes = 0;
    const unsigned char *text = NULL;
    BP_TRY(bp_pickle_take_number(c, length_bytes, &bytes));
    BP_TRY(bp_pickle_take(c, bytes, &text));
    value->kind = (uint8_t)kind;
    value->text = (const char *)text;
    value->count = (uint32_t)bytes; /* no longer than the data, which is shorter than 2^32 */
    return BP_OK;
}

bp_status bp_pickle_decode(bp_pickle_cursor *c, unsigned char opcode, bool *is_scalar, bp_pickle_value *value)
{
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
    case 'G': return decode_float(c, value);
    case 0x8c: return decode_text(c, BP_PICKLE_STRING, 1, value);
    case 'X': return decode_text(c, BP_PICKLE_STRING, 4, value);
    case 0x8d: return decode_text(c, BP_PICKLE_STRING, 8, value);
    case 'U': return decode_text(c, BP_PICKLE_STRING, 1, value); /* of Python 2 */
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
        value.count = container->count;
        value.items = pickle->items != NULL ? pickle->items + container->first : NULL;
        return value;
    }
    bool is_scalar = false;
    bp_pickle_cursor c = {.begin = pickle->data, .at = pickle->data + ref + 1, .end = pickle->data + pickle->bytes};
    (void)bp_pickle_decode(&c, pickle->data[ref], &is_scalar,
                           &value); /* which the parser has done once without an error */
    return value;
}

bp_pickle_ref bp_pickle_find(const bp_pickle *pickle, bp_pickle_value dictionary, const char *key)
{
    size_t length = strlen(key);
    if (dictionary.kind != BP_PICKLE_DICTIONARY || dictionary.count > 2 * BP_PICKLE_MOST_MEMBERS)
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

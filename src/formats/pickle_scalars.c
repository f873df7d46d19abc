#include <string.h>

#include "core/fail.h"
#include "formats/pickle_machine.h"

bp_status bp_pickle_push_unsigned(bp_pickle_machine *m, size_t bytes)
{
    uint64_t number = 0;
    BP_TRY(bp_pickle_take_number(m, bytes, &number));
    bp_pickle_value *value = bp_pickle_new(&m->pickle, BP_PICKLE_INTEGER);
    if (value != NULL)
        value->magnitude = number;
    return bp_pickle_push(m, value);
}

/* Two's complement, little-endian; what needs more than 64 bits and a sign is no size, address or time. */
bp_status bp_pickle_push_signed(bp_pickle_machine *m, uint64_t bytes)
{
    const unsigned char *digits = NULL;
    BP_TRY(bp_pickle_take(m, bytes, &digits));
    bool is_negative = bytes > 0 && (digits[bytes - 1] & 0x80) != 0;
    unsigned char filler = is_negative ? 0xff : 0;
    uint64_t number = is_negative ? UINT64_MAX : 0;
    for (size_t i = bytes; i-- > 0;) {
        if (i >= 8 && digits[i] != filler)
            return bp_pickle_fail(m, "an integer of %llu bytes; at most 64 bits are read", (unsigned long long)bytes);
        number = number << 8 | digits[i];
    }
    if (is_negative && number == 0)
        return bp_pickle_fail(m, "an integer below -2^64; at most 64 bits are read");
    bp_pickle_value *value = bp_pickle_new(&m->pickle, BP_PICKLE_INTEGER);
    if (value != NULL) {
        value->is_negative = is_negative;
        value->magnitude = is_negative ? 0 - number : number;
    }
    return bp_pickle_push(m, value);
}

bp_status bp_pickle_push_long(bp_pickle_machine *m, size_t length_bytes)
{
    uint64_t bytes = 0;
    BP_TRY(bp_pickle_take_number(m, length_bytes, &bytes));
    return bp_pickle_push_signed(m, bytes);
}

bp_status bp_pickle_push_float(bp_pickle_machine *m)
{
    const unsigned char *digits = NULL;
    BP_TRY(bp_pickle_take(m, 8, &digits));
    uint64_t bits = 0;
    for (size_t i = 0; i < 8; i++)
        bits = bits << 8 | digits[i];
    bp_pickle_value *value = bp_pickle_new(&m->pickle, BP_PICKLE_FLOAT);
    if (value != NULL)
        memcpy(&value->real, &bits, sizeof bits);
    return bp_pickle_push(m, value);
}

bp_status bp_pickle_push_text(bp_pickle_machine *m, bp_pickle_kind kind, size_t length_bytes)
{
    uint64_t bytes = 0;
    const unsigned char *text = NULL;
    BP_TRY(bp_pickle_take_number(m, length_bytes, &bytes));
    BP_TRY(bp_pickle_take(m, bytes, &text));
    bp_pickle_value *value = bp_pickle_new(&m->pickle, kind);
    if (value != NULL) {
        value->text = (const char *)text;
        value->count = (uint32_t)bytes; /* no longer than the data, which is shorter than 2^32 */
    }
    return bp_pickle_push(m, value);
}

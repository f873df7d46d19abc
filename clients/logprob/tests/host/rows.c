#include "rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- elements ------------------------------------------------------------------------------------------------------ */

size_t element_bytes(int dtype)
{
    return dtype == BP_ROW_FP32 ? 4 : 2;
}

/* Decodes a number of one sign bit, `exponent_bits` and `fraction_bits`. */
static double number_of(uint32_t bits, int exponent_bits, int fraction_bits)
{
    int bias = (1 << (exponent_bits - 1)) - 1, exponent = (int)(bits >> fraction_bits) & ((1 << exponent_bits) - 1);
    double fraction = bits & ((1u << fraction_bits) - 1);
    double sign = bits >> (exponent_bits + fraction_bits) & 1 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1)
        return fraction != 0 ? NAN : sign * INFINITY;
    if (exponent == 0)
        return sign * ldexp(fraction, 1 - bias - fraction_bits);
    return sign * ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
}

double value_at(int dtype, const void *row, uint64_t column)
{
    switch (dtype) {
    case BP_ROW_BF16: return number_of(((const uint16_t *)row)[column], 8, 7);
    case BP_ROW_FP16: return number_of(((const uint16_t *)row)[column], 5, 10);
    default: return ((const float *)row)[column];
    }
}

static uint16_t bits_of(double value, int exponent_bits, int fraction_bits)
{
    uint32_t sign = signbit(value) ? 1u << (exponent_bits + fraction_bits) : 0;
    uint32_t top = ((1u << exponent_bits) - 1) << fraction_bits;
    int bias = (1 << (exponent_bits - 1)) - 1, exponent;
    if (isnan(value))
        return (uint16_t)(top | 1); /* the smallest NaN payload, which rounding could lose */
    if (isinf(value))
        return (uint16_t)(sign | top);
    if (value == 0)
        return (uint16_t)sign;
    double fraction = frexp(fabs(value), &exponent) * 2 - 1;
    if (exponent - 1 + bias < 1)
        return (uint16_t)(sign | (uint32_t)ldexp(fabs(value), bias - 1 + fraction_bits));
    return (uint16_t)(sign | (uint32_t)(exponent - 1 + bias) << fraction_bits |
                      (uint32_t)(fraction * (1 << fraction_bits)));
}

void set_value(int dtype, void *row, uint64_t column, double value)
{
    switch (dtype) {
    case BP_ROW_BF16: ((uint16_t *)row)[column] = bits_of(value, 8, 7); break;
    case BP_ROW_FP16: ((uint16_t *)row)[column] = bits_of(value, 5, 10); break;
    default: ((float *)row)[column] = (float)value; break;
    }
}

/* ---- rows ---------------------------------------------------------------------------------------------------------- */

uint64_t random_of(uint64_t *state)
{
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state;
}

double random_normal(uint64_t *state)
{
    double sum = 0;
    for (int i = 0; i < 12; i++)
        sum += (double)(random_of(state) >> 11) * 0x1p-53;
    return sum - 6;
}

int row_is_regular(row_kind kind)
{
    return kind < ROW_NOTHING;
}

static double usual_value(row_kind kind, uint64_t *state)
{
    switch (kind) {
    case ROW_WIDE: return 16 * random_normal(state);
    case ROW_LOW: return -200;
    case ROW_OFFSET: return 10000 + 2 * random_normal(state);
    case ROW_SPARSE: return random_of(state) % 3 == 0 ? -INFINITY : 2 * random_normal(state);
    case ROW_ONE:
    case ROW_NOTHING:
    case ROW_NAN_ALONE: return -INFINITY;
    default: return 2 * random_normal(state);
    }
}

void fill_row(row_kind kind, int dtype, void *row, uint64_t columns, uint64_t seed)
{
    uint64_t state = seed * 2654435761u + 88172645463325252u;
    for (uint64_t i = 0; i < columns; i++)
        set_value(dtype, row, i, usual_value(kind, &state));
    uint64_t special = random_of(&state) % columns;
    if (kind == ROW_ONE)
        set_value(dtype, row, special, 3);
    else if (kind == ROW_SPARSE)
        set_value(dtype, row, special, 1);
    else if (kind == ROW_NAN || kind == ROW_NAN_ALONE)
        set_value(dtype, row, special, NAN);
    else if (kind == ROW_INFINITE)
        set_value(dtype, row, special, INFINITY);
}

/* ---- fp64 results -------------------------------------------------------------------------------------------------- */

exact_sums sums_of(int dtype, const void *row, uint64_t columns, double scale)
{
    exact_sums sums = {.max = -INFINITY};
    for (uint64_t i = 0; i < columns; i++)
        sums.max = fmax(sums.max, value_at(dtype, row, i));
    for (uint64_t i = 0; i < columns; i++) {
        double x = value_at(dtype, row, i);
        if (x == -INFINITY)
            continue;
        double d = (x - sums.max) * scale, e = exp(d);
        sums.sum += e;
        sums.weighted += e * d;
        sums.weight += e * fabs(d);
    }
    return sums;
}

double gradient_of_row(const bp_row_gradient *row, double x, bool is_target, double *tolerance)
{
    double d = (x - row->max) * row->scale, p = exp(d - row->log_sum), g = -row->factor, h = row->entropy_grad;
    double own = is_target ? 1 : 0, part = g * (own - p);
    double rest = h != 0 && p != 0 ? h * p * (row->energy - d) : 0;
    double magnitude = fabs(g) * p + fabs(part) + fabs(h != 0 && p != 0 ? h * p * (fabs(row->energy) + fabs(d)) : 0);
    /* differences are rounded to fp32, and subnormal results may be 0 */
    *tolerance = row->scale * (magnitude * (1e-6 + (p != 0 ? 1.5e-7 * fabs(d) : 0)) +
                               2.4e-38 * (fabs(g) + fabs(h) * (fabs(row->energy) + 200)));
    return row->scale * (part + rest);
}

/* ---- memory -------------------------------------------------------------------------------------------------------- */

static size_t whole_pages(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

void *take_guarded(size_t bytes)
{
    size_t pages = whole_pages(bytes), page = (size_t)sysconf(_SC_PAGESIZE);
    char *memory = mmap(NULL, pages + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory + pages, page, PROT_NONE) != 0)
        abort();
    return memory + pages - bytes;
}

void give_guarded(void *memory, size_t bytes)
{
    size_t pages = whole_pages(bytes);
    munmap((char *)memory + bytes - pages, pages + (size_t)sysconf(_SC_PAGESIZE));
}

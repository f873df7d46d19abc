/* Hybrid models of any length, for the planner's benchmarks. */
#include "hybrids.h"

#include <stdio.h>
#include <string.h>

/* Mamba, experts, attention and MLP layers, as in the configurations under examples/models. */
static const char *const sequences[] = {
    "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",     /* Nemotron-3-Nano-30B-A3B */
    "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",     /* Nemotron-H-8B */
    "M-MEM-ME*-MEM-MEM-MEM-ME*-MEM-ME",                         /* Jamba: a mixer and its MLP are a unit each */
    "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-", /* Nemotron-Nano-9B-v2 */
};

#define BUCKETS 4

typedef struct widths {
    uint64_t hidden, inner, heads, experts, of_expert; /* elements, but for `experts` */
} widths;

/* xorshift64*. Source: Marsaglia 2003, Vigna 2016. */
static uint64_t random_between(uint64_t *state, uint64_t low, uint64_t high)
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return low + (*state * UINT64_C(0x2545f4914f6cdd1d) >> 32) % (high - low + 1);
}

static widths draw(uint64_t *state)
{
    widths w = {.hidden = 128 * random_between(state, 16, 64)};
    w.inner = 128 * random_between(state, 32, 160);
    w.heads = 128 * random_between(state, 16, 64);
    w.experts = 8 * random_between(state, 1, 16);
    w.of_expert = 64 * random_between(state, 8, 48);
    return w;
}

/* Elements of a unit's buckets. */
static void measure(char kind, const widths *w, uint64_t numel[BUCKETS])
{
    const uint64_t of_mamba[BUCKETS] = {(4 * w->heads + 2048) * w->hidden, 2 * w->heads * w->hidden,
                                        5 * (2 * w->heads + 2048), w->hidden};
    const uint64_t of_experts[BUCKETS] = {w->experts * w->of_expert * w->hidden, w->experts * w->of_expert * w->hidden,
                                          2 * w->of_expert * w->hidden, w->experts * w->hidden};
    const uint64_t of_attention[BUCKETS] = {w->heads * w->hidden, 2048 * w->hidden, w->heads * w->hidden, w->hidden};
    const uint64_t of_mlp[BUCKETS] = {w->inner * w->hidden, w->inner * w->hidden, w->inner, w->hidden};
    const uint64_t *of_kind = kind == 'M' ? of_mamba : kind == 'E' ? of_experts : kind == '*' ? of_attention : of_mlp;
    memcpy(numel, of_kind, sizeof of_mlp);
}

static bp_status add_unit(bp_model *model, uint32_t number, const uint64_t numel[BUCKETS])
{
    char name[24];
    uint32_t unit;
    snprintf(name, sizeof name, "layers.%u", number);
    bp_status status = bp_model_add_unit(model, name, BP_OUTSIDE, &unit);
    for (int b = 0; status == BP_OK && b < BUCKETS; b++) {
        bp_given_bucket bucket = {
            .size = sizeof bucket, .unit = (int32_t)unit, .dtype = BP_DTYPE_BF16, .numel = numel[b]};
        status = bp_model_add_bucket(model, &bucket);
    }
    return status;
}

static bp_status add_units(bp_model *model, uint32_t units, hybrid_widths which)
{
    uint64_t state = UINT64_C(88172645463325252), numel[BUCKETS];
    uint32_t unit = 0;
    while (unit < units) {
        const char *sequence = sequences[random_between(&state, 0, sizeof sequences / sizeof *sequences - 1)];
        widths w = draw(&state);
        for (; *sequence != '\0' && unit < units; sequence++, unit++) {
            if (which == HYBRID_WIDTHS_OF_UNITS)
                w = draw(&state);
            measure(*sequence, &w, numel);
            bp_status status = add_unit(model, unit, numel);
            if (status != BP_OK)
                return status;
        }
    }
    return BP_OK;
}

bp_status hybrid_model_create(uint32_t units, hybrid_widths which, bp_model **model)
{
    bp_model *made;
    bp_status status = bp_model_create("hybrids", &made);
    if (status != BP_OK)
        return status;
    status = add_units(made, units, which);
    if (status == BP_OK)
        *model = made;
    else
        bp_model_destroy(&made);
    return status;
}

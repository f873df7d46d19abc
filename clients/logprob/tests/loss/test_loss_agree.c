/* SPDX-License-Identifier: Apache-2.0 */
/* Creation of loss clients on ranks: one that differs or fails is named in the error on every rank, and no rank hangs. */
#include "support/harness.h"

#include "loss_ranks.h"

#include <stdio.h>
#include <string.h>

#include "support/pools.h"
#include "support/scenarios.h"

static const corpus_options SMALL = {.seed = 19, .sequences = 14, .longest = 30};

typedef enum creation_fault {
    OTHER_CP,
    ALL_OTHER_CP,
    TAKEN_PLACE,
    OTHER_LIMIT,
    OTHER_EPSILON,
    OTHER_GRADIENTS,
    SWAPPED_COUNTS,
    NO_DEVICE,
    NO_OUTPUT,
    NULL_DEVICE,
    POOR_DEVICE,
    NEGATIVE_EPSILON,
    RANK_OUTSIDE,
    TOO_MANY_SEQUENCES
} creation_fault;

typedef struct creation_case {
    creation_fault fault;
    bp_status status;
    const char *name;
    const char *words[3]; /* in every rank's error, besides the odd rank's number */
} creation_case;

static const creation_case CREATIONS[] = {
    {OTHER_CP, BP_ERR_MISMATCH, "6 ranks on one", {NULL}},
    {ALL_OTHER_CP, BP_ERR_MISMATCH, "6 ranks on all", {"3", "4", NULL}},
    {TAKEN_PLACE, BP_ERR_MISMATCH, "two ranks at one place", {NULL}},
    {OTHER_LIMIT, BP_ERR_MISMATCH, "another limit", {"777", "20", NULL}},
    {OTHER_EPSILON, BP_ERR_MISMATCH, "another epsilon", {"epsilon", NULL}},
    {OTHER_GRADIENTS, BP_ERR_MISMATCH, "other gradients", {"gradients", NULL}},
    {SWAPPED_COUNTS, BP_ERR_MISMATCH, "4 x 1 instead of 2 x 2", {NULL}},
    {NO_DEVICE, BP_ERR_INVALID_ARGUMENT, "no device", {NULL}},
    {NO_OUTPUT, BP_ERR_INVALID_ARGUMENT, "no output", {NULL}},
    {NULL_DEVICE, BP_ERR_UNSUPPORTED, "a device without kernels", {NULL}},
    {POOR_DEVICE, BP_ERR_NO_DEVICE_MEMORY, "a device without memory", {NULL}},
    {NEGATIVE_EPSILON, BP_ERR_INVALID_ARGUMENT, "a negative epsilon", {NULL}},
    {RANK_OUTSIDE, BP_ERR_INVALID_ARGUMENT, "a CP rank outside the grid", {NULL}},
    {TOO_MANY_SEQUENCES, BP_ERR_OVERFLOW, "sequences that overflow", {NULL}},
};

typedef struct creation_scene {
    setting s;
    const creation_case *now;
    uint32_t odd, other; /* ranks of the communicator */
} creation_scene;

static void spoil(bp_loss_config *config, const creation_scene *x, bool is_odd)
{
    const uint32_t other = x->s.t.place[x->other];
    if (x->now->fault == ALL_OTHER_CP)
        config->cp = 3;
    if (x->now->fault == POOR_DEVICE)
        config->max_sequences = 1u << 13;
    if (!is_odd)
        return;
    switch (x->now->fault) {
    case OTHER_CP: config->cp = 3; break;
    case TAKEN_PLACE:
        config->tp_rank = other % 2;
        config->cp_rank = other / 2;
        break;
    case OTHER_LIMIT: config->max_sequences = 777; break;
    case OTHER_EPSILON: config->epsilon = 1e-6; break;
    case OTHER_GRADIENTS: config->gradients = BP_LOSS_SUMMED; break;
    case SWAPPED_COUNTS:
        config->tp_rank += 2 * config->cp_rank;
        config->cp_rank = 0;
        config->tp = 4;
        config->cp = 1;
        break;
    case NEGATIVE_EPSILON: config->epsilon = -1; break;
    case RANK_OUTSIDE: config->cp_rank = 2; break;
    case TOO_MANY_SEQUENCES: config->max_sequences = UINT64_MAX; break;
    default: break;
    }
}

static bool words_are_there(const char *const *words, const char *name)
{
    bool good = true;
    for (; *words != NULL; words++)
        if (strstr(bp_error_detail(), *words) == NULL) {
            fprintf(stderr, "%s: no \"%s\" in \"%s\"\n", name, *words, bp_error_detail());
            good = false;
        }
    return good;
}

static bool run_creation(host_rank *r)
{
    creation_scene *x = r->user;
    const bool is_odd = r->number == x->odd;
    const creation_case *now = x->now;
    host_rank inner = *r;
    inner.user = &x->s;
    bp_loss_config config = loss_config_of(r, &x->s);
    config.max_sequences = 20;
    spoil(&config, x, is_odd);
    bp_device *bad = NULL;
    bp_host_config host;
    (void)bp_host_config_init(&host, sizeof host);
    host.memory_bytes = 65536;
    if (is_odd && now->fault == NULL_DEVICE)
        EXPECT(bp_device_create_null(&bad) == BP_OK);
    if (is_odd && now->fault == POOR_DEVICE)
        EXPECT(bp_device_create_host(&host, &bad) == BP_OK);
    bp_loss *loss = NULL;
    bp_device *where = bad != NULL ? bad : r->device;
    bp_status status = bp_loss_create(is_odd && now->fault == NO_DEVICE ? NULL : where, &config,
                                      is_odd && now->fault == NO_OUTPUT ? NULL : &loss);
    bool good = is_status(status, now->status, NULL, now->name) && loss == NULL;
    good = words_are_there(now->words, now->name) && good;
    good = (is_odd || now->fault == ALL_OTHER_CP || names_rank(x->odd, now->name)) && good;
    good = (now->fault != TAKEN_PLACE || (names_rank(x->odd, now->name) && names_rank(x->other, now->name))) && good;
    bp_device_destroy(&bad);
    seat at;
    good = take_seat(&inner, &at) && step(&at, false) && statistics_are_true(&at) && good;
    leave_seat(&at);
    return good;
}

TEST(creation_fails_on_all_ranks)
{
    corpus c = new_corpus(&SMALL);
    for (uint32_t odd = 0; odd < 4; odd += 3)
        for (size_t i = 0; i < sizeof CREATIONS / sizeof *CREATIONS; i++) {
            const topology t = shuffled_topology(2, 2, 1);
            creation_scene x = {.s = new_setting(&c, &t, 1), .now = &CREATIONS[i], .odd = odd, .other = 3 - odd};
            run_host_ranks(4, false, 0, run_creation, &x);
            free_setting(&x.s);
        }
    free_corpus(&c);
}

TESTS(NULL, NULL)

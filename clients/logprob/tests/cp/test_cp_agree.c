/* SPDX-License-Identifier: Apache-2.0 */
/* Splits with a communicator, on ranks that are threads: equal batches are split; if one rank differs or fails, the error on every rank
 * names it. */
#include "support/harness.h"

#include <string.h>

#include "../support/ranks.h"
#include "../support/reference_splits.h"

#include <stdio.h>
#include <string.h>

#include "support/scenarios.h"

enum { ODD = 1 }; /* the rank that differs */

static const uint64_t LENGTHS[] = {5, 0, 24, 1, 33, 7};

static split_options options_of(const host_rank *r)
{
    return (split_options){.lengths = LENGTHS, .sequences = 6, .ranks = r->ranks, .rank = r->number, .comm = r->comm};
}

/* Every rank has the error with the odd rank's number; the odd rank has its own message. */
static bool every_rank_has_the_error(const host_rank *r, bp_status status, bp_status expected, const char *own,
                                     const char *where)
{
    char name[16];
    snprintf(name, sizeof name, "rank %d", ODD);
    const char *const words[] = {r->number == ODD && own != NULL ? own : name, NULL};
    return is_status(status, expected, words, where);
}

/* ---- equal batches ------------------------------------------------------------------------------------------------- */

static bool split_equally(host_rank *r)
{
    const uint64_t before = r->seat.room->exchanges;
    split_options options = options_of(r);
    bp_cp_split *split = NULL;
    options.total_multiple = 2 * (uint64_t)r->ranks * 20;
    if (!is_status(split_of(&options, &split), BP_OK, NULL, "an equal batch"))
        return false;
    bp_cp_split_info info;
    uint64_t prints[EXCHANGE_RANKS] = {0};
    info = *bp_cp_split_get_info(split);
    bool good = info.rank == r->number && (r->ranks == 1 || r->seat.room->exchanges == before + 1);
    if (!good)
        fprintf(stderr, "rank %u: %llu exchanges instead of 1\n", r->number,
                (unsigned long long)(r->seat.room->exchanges - before));
    good = is_status(bp_comm_exchange(r->comm, &info.fingerprint, sizeof *prints, prints), BP_OK, NULL, "exchange") &&
           good;
    for (uint32_t rank = 0; rank < r->ranks; rank++)
        good = good && prints[rank] == info.fingerprint;
    bp_cp_split_destroy(&split);
    return good;
}

TEST(equal_batches_are_split)
{
    static const uint32_t ranks[] = {1, 2, 3, 4, 8};
    for (size_t i = 0; i < 5; i++)
        run_host_ranks(ranks[i], false, 0, split_equally, NULL);
}

/* ---- different batches --------------------------------------------------------------------------------------------- */

static const uint64_t OTHER[] = {5, 0, 24, 1, 33, 8}, SWAPPED[] = {0, 5, 24, 1, 33, 7};
static const uint64_t PADDED[] = {48, 48, 48, 48, 48, 48}, FURTHER[] = {48, 48, 48, 48, 48, 96};

typedef struct variant {
    const char *name;
    const uint64_t *lengths, *padded, *odd_padded;
    uint64_t sequences, multiple, total_multiple;
    bool last_is_dummy;
} variant;

/* The odd rank's batch. */
static const variant VARIANTS[] = {
    {.name = "a longer sequence", .lengths = OTHER, .sequences = 6},
    {.name = "another order", .lengths = SWAPPED, .sequences = 6},
    {.name = "a sequence less", .lengths = LENGTHS, .sequences = 5},
    {.name = "nothing", .lengths = LENGTHS, .sequences = 0},
    {.name = "another multiple", .lengths = LENGTHS, .sequences = 6, .multiple = 48},
    {.name = "a full batch", .lengths = LENGTHS, .sequences = 6, .total_multiple = 480},
    {.name = "a dummy", .lengths = LENGTHS, .sequences = 6, .last_is_dummy = true},
    {.name = "another padding", .lengths = LENGTHS, .sequences = 6, .padded = PADDED, .odd_padded = FURTHER}};

static bool split_differently(host_rank *r)
{
    const variant *v = r->user;
    split_options options = options_of(r);
    bp_cp_split *split = NULL;
    options.padded = v->padded;
    if (r->number == ODD) {
        options.lengths = v->lengths;
        options.sequences = v->sequences;
        options.multiple = v->multiple;
        options.total_multiple = v->total_multiple;
        options.last_is_dummy = v->last_is_dummy;
        options.padded = v->odd_padded;
    }
    bool good =
        every_rank_has_the_error(r, split_of(&options, &split), BP_ERR_MISMATCH, NULL, v->name) && split == NULL;
    options = options_of(r); /* the communicator still works */
    good = is_status(split_of(&options, &split), BP_OK, NULL, "afterwards") && good;
    bp_cp_split_destroy(&split);
    return good;
}

TEST(different_batches_are_reported_on_all_ranks)
{
    for (size_t i = 0; i < sizeof VARIANTS / sizeof *VARIANTS; i++)
        for (uint32_t ranks = 3; ranks <= 4; ranks++)
            run_host_ranks(ranks, false, 0, split_differently, (void *)&VARIANTS[i]);
}

/* ---- ranks that fail ----------------------------------------------------------------------------------------------- */

typedef enum fault { NO_OUTPUT, NO_LENGTHS, FALLING, WRONG_MULTIPLE, WRONG_DTYPE, TOO_LONG, TOO_MANY, FAULTS } fault;

static bp_status expected_of(fault f)
{
    return f == TOO_LONG || f == TOO_MANY ? BP_ERR_OVERFLOW : BP_ERR_INVALID_ARGUMENT;
}

static bp_status create_with(const host_rank *r, fault f, bp_cp_split **split)
{
    static const int64_t good[] = {0, 8, 12}, falling[] = {0, 8, 3}, long_ones[] = {0, 8, INT64_MAX};
    const bool fails = r->number == ODD;
    bp_cp_split_config config;
    bp_cp_split_config_init(&config, sizeof config);
    config.cu_seqlens = fails && f == FALLING ? falling : fails && f == TOO_LONG ? long_ones : good;
    config.sequences = fails && f == TOO_MANY ? UINT64_MAX : 2;
    config.ranks = r->ranks;
    config.rank = r->number;
    config.comm = r->comm;
    if (fails && f == NO_LENGTHS)
        config.cu_seqlens = NULL;
    if (fails && f == WRONG_MULTIPLE)
        config.multiple = 7;
    if (fails && f == WRONG_DTYPE)
        config.cu_dtype = BP_DTYPE_FP32;
    return bp_cp_split_create(&config, fails && f == NO_OUTPUT ? NULL : split);
}

static bool split_badly(host_rank *r)
{
    bool good = true;
    for (int f = 0; f < FAULTS; f++) {
        bp_cp_split *split = NULL;
        const bp_status status = create_with(r, (fault)f, &split);
        good = every_rank_has_the_error(r, status, expected_of((fault)f), "", "a rank that fails") && good &&
               split == NULL;
    }
    return good;
}

TEST(failure_on_one_rank_fails_on_all)
{
    for (uint32_t ranks = 2; ranks <= 4; ranks++)
        run_host_ranks(ranks, false, 0, split_badly, NULL);
}

/* ---- communicators ------------------------------------------------------------------------------------------------- */

/* One rank's split names another rank or count than its communicator. */
static bool split_elsewhere(host_rank *r)
{
    const bool counts = r->user != NULL;
    split_options options = options_of(r);
    bp_cp_split *split = NULL;
    if (r->number == ODD && counts)
        options.ranks = 7;
    if (r->number == ODD && !counts)
        options.rank = 0;
    return every_rank_has_the_error(r, split_of(&options, &split), BP_ERR_MISMATCH, counts ? "7" : "0",
                                    "another rank or count") &&
           split == NULL;
}

static bool split_for_more(host_rank *r)
{
    static const char *const words[] = {"3", "5", NULL};
    split_options options = options_of(r);
    bp_cp_split *split = NULL;
    options.ranks = 5;
    return is_status(split_of(&options, &split), BP_ERR_MISMATCH, words, "5 of 3 ranks") && split == NULL;
}

TEST(communicators_have_the_ranks_of_the_split)
{
    int anything = 0;
    run_host_ranks(3, false, 0, split_elsewhere, NULL);
    run_host_ranks(3, false, 0, split_elsewhere, &anything);
    run_host_ranks(3, false, 0, split_for_more, NULL);
}

static bp_status broken(void *user, const void *mine, uint64_t bytes, void *all)
{
    (void)user, (void)mine, (void)bytes, (void)all;
    return bp_error_record(BP_ERR_COMM, "the line is broken");
}

TEST(broken_communicators_are_reported)
{
    const bp_comm_callbacks callbacks = {.size = sizeof callbacks, .rank = 1, .ranks = 2, .exchange = broken};
    bp_comm *comm = NULL;
    bp_cp_split *split = NULL;
    assert_ok(bp_comm_create_callback(&callbacks, NULL, "line", &comm));
    const split_options options = {.lengths = LENGTHS, .sequences = 6, .ranks = 2, .rank = 1, .comm = comm};
    assert_fails(split_of(&options, &split), BP_ERR_COMM, "the line is broken");
    assert_null(split);
    bp_comm_destroy(&comm);
}

static bp_status time_out(void *user, const void *mine, uint64_t bytes, void *all)
{
    (void)user, (void)mine, (void)bytes, (void)all;
    return bp_error_record(BP_ERR_TIMEOUT, "rank 0 of 2 has not answered");
}

/* The error names the call and the communicator; a rank that fails by itself keeps its own message. */
TEST(timeouts_are_reported)
{
    const bp_comm_callbacks callbacks = {.size = sizeof callbacks, .rank = 1, .ranks = 2, .exchange = time_out};
    for (int fails = 0; fails < 2; fails++) {
        bp_comm *comm = NULL;
        bp_cp_split *split = NULL;
        assert_ok(bp_comm_create_callback(&callbacks, NULL, "line", &comm));
        split_options options = {.lengths = LENGTHS, .sequences = 6, .ranks = fails ? 5 : 2, .rank = 1, .comm = comm};
        assert_fails(split_of(&options, &split), fails ? BP_ERR_MISMATCH : BP_ERR_TIMEOUT,
                     fails ? "5" : "bp_comm_exchange over communicator line: rank 0 of 2 has not answered");
        assert_int_equal(strncmp(bp_error_detail(), "bp_cp_split_create: ", 20), 0);
        assert_int_equal(strstr(bp_error_detail(), "has not answered") == NULL, fails);
        assert_null(split);
        bp_comm_destroy(&comm);
    }
}

/* The other of two ranks sends an unknown status. */
static bp_status receive_noise(void *user, const void *mine, uint64_t bytes, void *all)
{
    (void)user;
    memcpy(all, mine, bytes);
    memset((char *)all + bytes, 0xff, bytes);
    return BP_OK;
}

TEST(unknown_status_names_the_rank)
{
    bp_comm_callbacks callbacks = {.size = sizeof callbacks, .rank = 0, .ranks = 2, .exchange = receive_noise};
    split_options options = {.lengths = LENGTHS, .sequences = 6, .ranks = 2};
    bp_cp_split *split = NULL;
    assert_ok(bp_comm_create_callback(&callbacks, NULL, "pair", &options.comm));
    assert_int_equal(split_of(&options, &split), BP_ERR_COMM);
    assert_non_null(strstr(bp_error_detail(), "rank 1 of 2 sent the unknown status -1: <FF><FF><FF>"));
    assert_null(split);
    bp_comm_destroy(&options.comm);
}

TESTS(NULL, NULL)

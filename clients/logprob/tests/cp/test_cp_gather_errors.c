/* SPDX-License-Identifier: Apache-2.0 */
/* Gathers in which ranks (threads) disagree or one fails: the error on every rank names it, no rank hangs, and the next gather succeeds. */
#include "support/harness.h"

#include "../support/ranks.h"
#include "../support/rearrangements.h"

#include <stdio.h>
#include <string.h>

enum { ODD = 1 };                            /* the rank that differs */
enum { BYTES = 8, MOST = 64, MAX_ALL = 48 }; /* of a token; of tensors; limit of the client */
#define BAD BP_ERR_INVALID_ARGUMENT
#define OK(call) is_status(call, BP_OK, NULL, #call)

static const uint64_t LENGTHS[] = {5, 3, 9}, OTHERS[] = {5, 3, 10};

/* Arguments of a rank's call. */
typedef struct call {
    bp_cp *cp;
    bp_cp_split *split;
    bp_cp_tensor local, whole;
    bp_cp_order order;
    bp_dtype dtype;
    bp_stream *stream;
    bool backward, no_local, no_whole;
} call;

typedef struct party {
    host_rank *r;
    bp_cp_split *split, *other;
    bp_comm *bare;
    bp_cp *cp;
    float local[MOST * 4], whole[MOST * 4];
} party;

static split_options options_of(const host_rank *r, const uint64_t *lengths)
{
    return (split_options){.lengths = lengths, .sequences = 3, .ranks = r->ranks, .rank = r->number};
}

static bp_status create(bp_device *on, bp_comm *comm, uint64_t max, bp_cp **cp)
{
    bp_cp_config config;
    bp_status status = bp_cp_config_init(&config, sizeof config);
    config.comm = comm;
    config.max_gathered_bytes = max;
    config.threads = 1;
    return status != BP_OK ? status : bp_cp_create(on, &config, cp);
}

static bool begin_party(host_rank *r, party *p)
{
    const split_options options = options_of(r, LENGTHS), others = options_of(r, OTHERS);
    const bp_comm_callbacks callbacks = exchange_callbacks(&r->seat);
    *p = (party){.r = r};
    return OK(split_of(&options, &p->split)) && OK(split_of(&others, &p->other)) &&
           OK(bp_comm_create_callback(&callbacks, &r->seat, "bare", &p->bare)) &&
           OK(create(r->device, r->comm, MAX_ALL * BYTES, &p->cp));
}

static void end_party(party *p)
{
    bp_cp_destroy(&p->cp);
    bp_comm_destroy(&p->bare);
    bp_cp_split_destroy(&p->split);
    bp_cp_split_destroy(&p->other);
}

static call good_call(party *p)
{
    const bp_cp_split_info info = *bp_cp_split_get_info(p->split);
    memset(p->local, 0x77, sizeof p->local);
    memset(p->whole, 0x77, sizeof p->whole);
    return (call){.cp = p->cp,
                  .split = p->split,
                  .local = {.data = p->local, .tokens = info.local_tokens, .token_bytes = BYTES},
                  .whole = {.data = p->whole, .tokens = info.packed_tokens, .token_bytes = BYTES},
                  .order = BP_CP_PACKED,
                  .dtype = BP_DTYPE_FP32};
}

static bp_status make(const call *c)
{
    const bp_cp_tensor *local = c->no_local ? NULL : &c->local, *whole = c->no_whole ? NULL : &c->whole;
    return c->backward ? bp_cp_gather_backward(c->cp, c->split, whole, c->order, c->dtype, local, c->stream)
                       : bp_cp_gather(c->cp, c->split, local, c->order, whole, c->stream);
}

static bool is_untouched(const party *p, bool backward)
{
    const uint8_t *bytes = (const uint8_t *)(backward ? p->local : p->whole);
    for (size_t i = 0; i < sizeof p->local; i++)
        if (bytes[i] != 0x77) {
            fprintf(stderr, "rank %u: byte %zu of what failed was written\n", p->r->number, i);
            return false;
        }
    return true;
}

/* The next gather succeeds. */
static bool next_gather_succeeds(party *p)
{
    call c = good_call(p);
    bool good = OK(make(&c));
    c.backward = true;
    return OK(make(&c)) && good;
}

/* ---- one rank differs --------------------------------------------------------------------------------------------- */

typedef struct oddity {
    const char *name;
    void (*change)(call *c, party *p);
    const char *word; /* in the odd rank's error; NULL: as on the others */
    bp_status expected;
    bool only_backward;
} oddity;

static void other_bytes(call *c, party *p)
{
    (void)p;
    c->local.token_bytes = c->whole.token_bytes = 4;
}
static void other_order(call *c, party *p)
{
    const bp_cp_split_info info = *bp_cp_split_get_info(p->split);
    c->order = BP_CP_PADDED;
    c->whole.tokens = info.padded_tokens;
}
static void other_batch(call *c, party *p)
{
    const bp_cp_split_info info = *bp_cp_split_get_info(p->other);
    c->split = p->other;
    c->local.tokens = info.local_tokens;
    c->whole.tokens = info.packed_tokens;
}
static void other_way(call *c, party *p)
{
    (void)p;
    c->backward = !c->backward;
}
static void other_dtype(call *c, party *p)
{
    (void)p;
    c->dtype = BP_DTYPE_BF16;
}
static void no_split(call *c, party *p)
{
    (void)p;
    c->split = NULL;
}
static void no_local(call *c, party *p)
{
    (void)p;
    c->no_local = true;
}
static void no_whole(call *c, party *p)
{
    (void)p;
    c->no_whole = true;
}
static void no_memory(call *c, party *p)
{
    (void)p;
    c->local.data = NULL;
}
static void fewer_tokens(call *c, party *p)
{
    (void)p;
    c->whole.tokens = 16;
}
static void unequal_bytes(call *c, party *p)
{
    (void)p;
    c->local.token_bytes = 4;
}
static void shared_memory(call *c, party *p)
{
    (void)p;
    c->local.data = (uint8_t *)c->whole.data + 4;
}
static void overlapping_tokens(call *c, party *p)
{
    (void)p;
    (c->backward ? &c->local : &c->whole)->stride = 1;
}
static void local_order(call *c, party *p)
{
    (void)p;
    c->order = BP_CP_LOCAL;
}
static void no_order(call *c, party *p)
{
    (void)p;
    c->order = (bp_cp_order)55;
}
static void too_much(call *c, party *p)
{
    (void)p;
    c->local.token_bytes = c->whole.token_bytes = 4 * BYTES;
}
static void whole_numbers(call *c, party *p)
{
    (void)p;
    c->dtype = BP_DTYPE_INT32;
}
static void half_numbers(call *c, party *p)
{
    (void)p;
    c->local.token_bytes = c->whole.token_bytes = 6;
}

static const oddity ODDITIES[] = {{"other bytes", other_bytes, NULL, BP_ERR_MISMATCH, false},
                                  {"another order", other_order, NULL, BP_ERR_MISMATCH, false},
                                  {"another batch", other_batch, NULL, BP_ERR_MISMATCH, false},
                                  {"the other way", other_way, NULL, BP_ERR_MISMATCH, false},
                                  {"another dtype", other_dtype, NULL, BP_ERR_MISMATCH, true},
                                  {"no split", no_split, "bp_cp_gather", BAD, false},
                                  {"no local", no_local, "bp_cp_gather", BAD, false},
                                  {"no whole", no_whole, "bp_cp_gather", BAD, false},
                                  {"no memory", no_memory, "local", BAD, false},
                                  {"fewer tokens", fewer_tokens, "16", BAD, false},
                                  {"unequal bytes", unequal_bytes, "4", BAD, false},
                                  {"shared memory", shared_memory, "memory", BAD, false},
                                  {"overlapping tokens", overlapping_tokens, "overlap", BAD, false},
                                  {"local order", local_order, "local", BAD, false},
                                  {"no order", no_order, "55", BAD, false},
                                  {"too much", too_much, "384", BAD, false},
                                  {"whole numbers", whole_numbers, "int32", BAD, true},
                                  {"half numbers", half_numbers, "6", BAD, true}};
#define ODDITY_COUNT (sizeof ODDITIES / sizeof *ODDITIES)

static bool is_odd(party *p, const oddity *o, bool backward, bool everywhere)
{
    call c = good_call(p);
    char where[96], name[16];
    c.backward = backward;
    if (p->r->number == ODD || everywhere)
        o->change(&c, p);
    const bool own = everywhere || (p->r->number == ODD && o->word != NULL);
    snprintf(where, sizeof where, "%s%s of rank %u of %u", o->name, backward ? ", backward," : "", p->r->number,
             p->r->ranks);
    snprintf(name, sizeof name, "rank %d", ODD);
    const char *const words[] = {own ? o->word : name, NULL};
    const bool good = is_status(make(&c), o->expected, words, where) && is_untouched(p, c.backward);
    return next_gather_succeeds(p) && good;
}

static bool run_odd(host_rank *r)
{
    party p;
    bool good = begin_party(r, &p);
    for (size_t i = 0; i < ODDITY_COUNT; i++)
        for (int backward = ODDITIES[i].only_backward; backward < 2; backward++)
            good = is_odd(&p, &ODDITIES[i], backward, false) && good;
    end_party(&p);
    return good;
}

TEST(failure_on_one_rank_fails_on_all)
{
    for (uint32_t ranks = 3; ranks <= 4; ranks++)
        run_host_ranks(ranks, ranks == 3, 0, run_odd, NULL);
}

/* An error on all ranks is reported on all ranks. One rank has no tokens, whatever the total. */
static bool run_even(host_rank *r)
{
    party p;
    bool good = begin_party(r, &p);
    for (size_t i = 0; i < ODDITY_COUNT; i++) {
        if (r->ranks == 1 && ODDITIES[i].change == too_much)
            continue;
        for (int backward = ODDITIES[i].only_backward; backward < 2 && ODDITIES[i].word != NULL; backward++)
            good = is_odd(&p, &ODDITIES[i], backward, true) && good;
    }
    end_party(&p);
    return good;
}

TEST(all_ranks_may_be_wrong)
{
    run_host_ranks(1, false, 0, run_even, NULL);
    run_host_ranks(2, false, 0, run_even, NULL);
}

/* ---- clients ------------------------------------------------------------------------------------------------------- */

static bool refused(party *p, bp_cp *cp, bool backward, bp_status expected, const char *word)
{
    call c = good_call(p);
    c.cp = cp;
    c.backward = backward;
    const char *const words[] = {word, NULL};
    return is_status(make(&c), expected, words, "a client that cannot") && is_untouched(p, backward);
}

/* Clients created without a gather limit, without a communicator, and with one that lacks reductions. */
static bool run_poor_clients(host_rank *r)
{
    party p;
    bp_cp *nothing = NULL, *alone = NULL, *bare = NULL;
    bool good = begin_party(r, &p) && OK(create(r->device, r->comm, 0, &nothing)) &&
                OK(create(r->device, NULL, MAX_ALL * BYTES, &alone)) &&
                OK(create(r->device, p.bare, MAX_ALL * BYTES, &bare));
    for (int backward = 0; backward < 2 && good; backward++) {
        good = refused(&p, nothing, backward, BAD, "client's limit of 0 bytes");
        good = refused(&p, alone, backward, BAD, "comm") && good;
    }
    good = good && refused(&p, bare, true, BP_ERR_UNSUPPORTED, "reduce_scatter");
    bp_cp_destroy(&nothing);
    bp_cp_destroy(&alone);
    bp_cp_destroy(&bare);
    good = next_gather_succeeds(&p) && good;
    end_party(&p);
    return good;
}

TEST(gathers_are_limited_by_the_client)
{
    run_host_ranks(2, false, 0, run_poor_clients, NULL);
}

/* A split for other ranks than the communicator's. */
static bool run_foreign_split(host_rank *r)
{
    static const char *const words[] = {"4", "2", NULL};
    party p;
    bool good = begin_party(r, &p);
    split_options options = options_of(r, LENGTHS);
    bp_cp_split *foreign = NULL;
    options.ranks = 4;
    good = good && OK(split_of(&options, &foreign));
    const bp_cp_split_info info = *bp_cp_split_get_info(foreign);
    for (int backward = 0; backward < 2 && good; backward++) {
        call c = good_call(&p);
        c.split = foreign;
        c.backward = backward;
        c.local.tokens = info.local_tokens;
        good = is_status(make(&c), BP_ERR_MISMATCH, words, "the split is for 4 CP ranks");
    }
    bp_cp_split_destroy(&foreign);
    good = next_gather_succeeds(&p) && good;
    end_party(&p);
    return good;
}

TEST(splits_are_those_of_the_communicator)
{
    run_host_ranks(2, false, 0, run_foreign_split, NULL);
}

/* Only a trusting client skips the comparison. */
static bool run_trusting(host_rank *r)
{
    party p;
    bp_cp *trusting = NULL;
    bp_cp_config config;
    bool good = begin_party(r, &p) && OK(bp_cp_config_init(&config, sizeof config));
    config.comm = r->comm;
    config.max_gathered_bytes = MAX_ALL * BYTES;
    config.trusting = 1;
    good = good && OK(bp_cp_create(r->device, &config, &trusting));
    for (int compares = 0; compares < 2 && good; compares++) {
        const uint64_t before = r->seat.room->exchanges;
        call c = good_call(&p);
        c.cp = compares ? p.cp : trusting;
        good = OK(make(&c)) && r->seat.room->exchanges == before + (compares ? 2 : 1);
        if (!good)
            fprintf(stderr, "%llu exchanges of a client that is %strusting\n",
                    (unsigned long long)(r->seat.room->exchanges - before), compares ? "not " : "");
    }
    bp_cp_destroy(&trusting);
    end_party(&p);
    return good;
}

TEST(trusting_clients_do_not_compare)
{
    run_host_ranks(3, false, 0, run_trusting, NULL);
}

TESTS(NULL, NULL)

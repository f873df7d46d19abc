/* SPDX-License-Identifier: Apache-2.0 */
/* Rearrangements that are refused, with and without a stream: the error has the argument and its numbers, and nothing is written. */
#include "support/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../support/hosts.h"
#include "../support/rearrangements.h"
#include "support/pools.h"

#define BAD BP_ERR_INVALID_ARGUMENT

static sample s;
static bp_cp *client;
static bp_stream *stream;
static bp_cp_rearrangement r;

static int begin(void **state)
{
    (void)state;
    s = new_sample(9);
    client = new_cp(device, 1);
    assert_ok(bp_stream_create(device, "s", &stream));
    r = rearrangement_of(&SAMPLE_MOVE, &s.from, &s.to);
    return 0;
}

static int end(void **state)
{
    (void)state;
    bp_cp_destroy(&client);
    bp_stream_destroy(&stream);
    free_sample(&s);
    return 0;
}

/* With and without a stream; restores the rearrangement for the next case. */
#define assert_refused_move(status, ...)                                                                               \
    do {                                                                                                               \
        assert_fails(bp_cp_rearrange(client, s.h.split, &r, NULL), status, __VA_ARGS__);                               \
        assert_fails(bp_cp_rearrange(client, s.h.split, &r, stream), status, __VA_ARGS__);                             \
        assert_ok(bp_device_synchronize(device));                                                                      \
        assert_true(tokens_are_poison(&s.to));                                                                         \
        r = rearrangement_of(&SAMPLE_MOVE, &s.from, &s.to);                                                            \
    } while (0)

TEST(everything_may_be_missing)
{
    assert_fails(bp_cp_rearrange(NULL, s.h.split, &r, NULL), BAD, "bp_cp_rearrange");
    assert_fails(bp_cp_rearrange(client, NULL, &r, NULL), BAD, "bp_cp_rearrange");
    assert_fails(bp_cp_rearrange(client, s.h.split, NULL, NULL), BAD, "bp_cp_rearrange");
    r.size = sizeof(size_t);
    assert_refused_move(BAD, "bp_cp_rearrange");
    r.from.data = NULL;
    assert_refused_move(BAD, "from");
    r.to.data = NULL;
    assert_refused_move(BAD, "to");
    assert_fails(bp_cp_rearrangement_init(NULL, sizeof r), BAD, "bp_cp_rearrangement_init");
    assert_fails(bp_cp_rearrangement_init(&r, sizeof(size_t)), BAD, "bp_cp_rearrangement_init");
}

TEST(tensors_have_the_tokens_of_the_split)
{
    r.from.tokens = 179; /* of 180 */
    assert_refused_move(BAD, "179", "180");
    r.from.tokens = 0;
    assert_refused_move(BAD, "0", "180");
    r.from.tokens = UINT64_MAX;
    assert_refused_move(BAD, "18446744073709551615", "180");
    r.to.tokens = 95; /* of 26 + 4 + 62 + 2 */
    assert_refused_move(BAD, "95", "94");
    r.to_order = BP_CP_GATHERED;
    assert_refused_move(BAD, "94", "188");
    r.from_order = BP_CP_PADDED;
    assert_refused_move(BAD, "180", "188");
    r.to_order = BP_CP_PACKED;
    assert_refused_move(BAD, "94", "180");
}

TEST(tokens_have_equal_bytes)
{
    r.from.token_bytes = 8;
    assert_refused_move(BAD, "8", "12");
    r.to.token_bytes = 16;
    r.to.stride = 0;
    assert_refused_move(BAD, "16", "12");
}

TEST(fills_divide_tokens)
{
    static const uint32_t wrong[] = {3, 5, 6, 12, 17, 32, UINT32_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char text[32];
        snprintf(text, sizeof text, "%u", wrong[i]);
        r.fill_bytes = wrong[i];
        assert_refused_move(BAD, "fill", text);
    }
    r.fill_bytes = 8;
    assert_refused_move(BAD, "fill", "8", "12");
    r.fill_bytes = 16;
    assert_refused_move(BAD, "fill", "16", "12");
}

TEST(orders_and_shifts_are_known)
{
    r.from_order = (bp_cp_order)44;
    assert_refused_move(BAD, "44");
    r.to_order = (bp_cp_order)-1;
    assert_refused_move(BAD, "order");
    r.shift = (bp_cp_shift)33;
    assert_refused_move(BAD, "33");
    r.shift = (bp_cp_shift)-1;
    assert_refused_move(BAD, "shift");
}

TEST(tensors_share_no_memory)
{
    const int64_t stride = r.from.stride, bytes = 179 * stride + 12;
    uint8_t *first = r.from.data;
    r.to = (bp_cp_tensor){.data = first, .tokens = 94, .token_bytes = 12};
    assert_refused_move(BAD, "share memory");
    r.to = (bp_cp_tensor){.data = first + bytes - 1, .tokens = 94, .token_bytes = 12};
    assert_refused_move(BAD, "share memory");
    r.to = (bp_cp_tensor){.data = first - 94 * 12 + 1, .tokens = 94, .token_bytes = 12};
    assert_refused_move(BAD, "share memory");
    r.from.data = first + 179 * stride; /* negative stride */
    r.from.stride = -stride;
    r.to = (bp_cp_tensor){.data = first, .tokens = 94, .token_bytes = 12};
    assert_refused_move(BAD, "share memory");
}

TEST(neighbours_are_no_overlap)
{
    uint8_t *memory = malloc((94 + 180 + 94) * (size_t)12);
    assert_non_null(memory);
    memset(memory, 7, (94 + 180 + 94) * (size_t)12);
    r.from = (bp_cp_tensor){.data = memory + 94 * 12, .tokens = 180, .token_bytes = 12};
    r.to = (bp_cp_tensor){.data = memory, .tokens = 94, .token_bytes = 12};
    assert_ok(bp_cp_rearrange(client, s.h.split, &r, NULL));
    r.to.data = memory + (94 + 180) * 12;
    assert_ok(bp_cp_rearrange(client, s.h.split, &r, NULL));
    assert_memory_equal(memory, memory + (94 + 180) * 12, 94 * 12);
    free(memory);
}

/* Written tokens may be adjacent, but must not overlap. */
TEST(written_tokens_are_apart)
{
    for (int64_t stride = -11; stride < 12; stride += 22) {
        r.to.stride = stride;
        assert_refused_move(BAD, "overlap", "12", stride < 0 ? "-11" : "11");
    }
}

TEST(extents_must_fit)
{
    r.from.token_bytes = r.to.token_bytes = UINT64_MAX / 2 - 3;
    r.from.stride = r.to.stride = 0;
    r.fill_bytes = 1;
    assert_refused_move(BP_ERR_OVERFLOW, "");
    r.to.stride = INT64_MAX;
    assert_refused_move(BP_ERR_OVERFLOW, "");
    r.from.stride = INT64_MAX / 100;
    assert_refused_move(BP_ERR_OVERFLOW, "");
    r.from.stride = INT64_MIN;
    assert_refused_move(BP_ERR_OVERFLOW, "");
}

TEST(streams_are_the_devices_own)
{
    bp_device *other = new_host();
    bp_stream *foreign = NULL;
    assert_ok(bp_stream_create(other, "foreign", &foreign));
    assert_fails(bp_cp_rearrange(client, s.h.split, &r, foreign), BAD, "foreign");
    assert_true(tokens_are_poison(&s.to));
    bp_stream_destroy(&foreign);
    bp_device_destroy(&other);
}

/* Any number of bytes per token is allowed. */
TEST(tokens_may_have_no_bytes)
{
    r.from.token_bytes = r.to.token_bytes = 0;
    r.from.stride = r.to.stride = 0;
    r.fill_bytes = 0;
    assert_ok(bp_cp_rearrange(client, s.h.split, &r, NULL));
    assert_true(tokens_are_poison(&s.to));
}

/* Last to first, like a reversed view. */
TEST(strides_may_be_negative)
{
    for (int of = 0; of < 2; of++) {
        tokens *turned = of == 0 ? &s.from : &s.to;
        turned->data = token_at(turned, turned->count - 1);
        turned->stride = -turned->stride;
        fill_tokens(&s.from, 11);
        poison_tokens(&s.to, 0x33);
        r = rearrangement_of(&SAMPLE_MOVE, &s.from, &s.to);
        assert_ok(bp_cp_rearrange(client, s.h.split, &r, NULL));
        assert_true(sample_is_done(&s));
    }
}

TESTS_EACH(begin, end, open_host, close_host)

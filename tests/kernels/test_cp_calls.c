/* Clients and their calls: in the order of streams, without a stream at once, and refused by name where tensors do not fit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../contract/support.h"
#include "hosts.h"
#include "moves.h"

#define BAD BP_ERR_INVALID_ARGUMENT

static const uint64_t LENGTHS[] = {50, 0, 7, 122, 1};
static const deal_options BATCH = {.lengths = LENGTHS, .sequences = 5, .ranks = 2, .rank = 1};
static const move MOVE = {.from = BP_CP_PACKED,
                          .to = BP_CP_LOCAL,
                          .shift = BP_CP_NEXT,
                          .token_bytes = 12,
                          .source = {.gap = 5},
                          .target = {.shift = 3, .gap = 1, .margin = 64},
                          .fill = {1, 2, 3, 4},
                          .fill_bytes = 4};

typedef struct scene {
    hand h;
    tokens from, to;
} scene;

static scene new_scene(uint64_t seed_of_bytes)
{
    scene s = {.h = new_hand(&BATCH)};
    s.from = new_tokens(s.h.d.count[BP_CP_PACKED], MOVE.token_bytes, MOVE.source, 0xa5);
    s.to = new_tokens(s.h.d.count[BP_CP_LOCAL], MOVE.token_bytes, MOVE.target, 0x5a);
    fill_tokens(&s.from, seed_of_bytes);
    return s;
}

static void free_scene(scene *s)
{
    free_hand(&s->h);
    free_tokens(&s->from);
    free_tokens(&s->to);
}

static bool is_done(const scene *s)
{
    return is_moved(&s->h, &MOVE, &s->from, &s->to);
}

static void enqueue(bp_cp *cp, const scene *s, bp_stream *stream)
{
    bp_cp_rearrangement r = rearrangement_of(&MOVE, &s->from, &s->to);
    assert_ok(bp_cp_rearrange(cp, s->h.split, &r, stream));
    memset(&r, 0xee, sizeof r);
}

/* ---- streams ------------------------------------------------------------------------------------------------------- */

/* The split may go before its turn comes, too. */
static void work_waits_for_its_turn(void **state)
{
    (void)state;
    scene s = new_scene(1);
    bp_cp *cp = new_cp(device, 2);
    bp_stream *stream = NULL;
    gate g = {0};
    assert_ok(bp_stream_create(device, "held", &stream));
    block(stream, &g);
    enqueue(cp, &s, stream);
    bp_cp_split_destroy(&s.h.split);
    pause_us(5000);
    assert_true(tokens_are_poison(&s.to));
    unblock(&g);
    assert_ok(bp_stream_synchronize(stream));
    assert_true(is_done(&s));
    bp_cp_destroy(&cp);
    bp_stream_destroy(&stream);
    free_scene(&s);
}

static void without_a_stream_calls_wait(void **state)
{
    (void)state;
    bp_device *slow = new_slow_host(1000, 5);
    bp_cp *cp = new_cp(slow, 2);
    for (uint64_t round = 0; round < 10; round++) {
        scene s = new_scene(round);
        enqueue(cp, &s, NULL);
        assert_true(is_done(&s));
        free_scene(&s);
    }
    bp_cp_destroy(&cp);
    bp_device_destroy(&slow);
}

/* Bytes come by a copy, and leave by one. */
static void copies_before_and_after_are_in_order(void **state)
{
    (void)state;
    for (uint64_t round = 0; round < 8; round++) {
        bp_device *slow = new_slow_host(400, round);
        bp_cp *cp = new_cp(slow, 1);
        bp_stream *stream = NULL;
        scene s = new_scene(round), source = new_scene(round);
        uint8_t *later = malloc(s.to.bytes);
        assert_non_null(later);
        assert_ok(bp_stream_create(slow, "s", &stream));
        memset(s.from.memory, 0x11, s.from.bytes);
        assert_ok(bp_stream_copy(stream, s.from.memory, source.from.memory, s.from.bytes));
        enqueue(cp, &s, stream);
        assert_ok(bp_stream_copy(stream, later, s.to.memory, s.to.bytes));
        assert_ok(bp_stream_fill(stream, s.to.memory, 0x22, s.to.bytes));
        assert_ok(bp_stream_synchronize(stream));
        assert_int_equal(s.to.memory[0], 0x22);
        memcpy(s.to.memory, later, s.to.bytes);
        assert_true(is_done(&s));
        free(later);
        free_scene(&s);
        free_scene(&source);
        bp_cp_destroy(&cp);
        bp_stream_destroy(&stream);
        bp_device_destroy(&slow);
    }
}

static void *open_later(void *argument)
{
    pause_us(20000);
    unblock(argument);
    return NULL;
}

/* Far more calls than may be on their way, of two splits in turn; destroying waits for the last. */
static void many_calls_wait_for_room(void **state)
{
    (void)state;
    enum { CALLS = 300 };
    scene *all = calloc(CALLS, sizeof *all);
    assert_non_null(all);
    bp_cp *cp = new_cp(device, 1);
    bp_stream *stream = NULL;
    gate g = {0};
    pthread_t opener;
    assert_ok(bp_stream_create(device, "s", &stream));
    block(stream, &g);
    assert_int_equal(pthread_create(&opener, NULL, open_later, &g), 0);
    for (uint64_t i = 0; i < CALLS; i++) {
        all[i] = new_scene(i);
        enqueue(cp, &all[i], stream);
        bp_cp_split_destroy(&all[i].h.split);
    }
    bp_cp_destroy(&cp);
    assert_null(cp);
    for (uint64_t i = 0; i < CALLS; i++) {
        assert_true(is_done(&all[i]));
        free_scene(&all[i]);
    }
    pthread_join(opener, NULL);
    bp_stream_destroy(&stream);
    free(all);
}

static void clients_leave_nothing_behind(void **state)
{
    (void)state;
    bp_device *own = new_host();
    bp_cp *cp = new_cp(own, 2);
    scene s = new_scene(3);
    enqueue(cp, &s, NULL);
    assert_null(bp_cp_pool(cp));
    bp_cp_destroy(&cp);
    bp_cp_destroy(&cp);
    bp_cp_destroy(NULL);
    const bp_device_usage usage = usage_of(own);
    assert_true(usage.streams == 0 && usage.events == 0 && usage.committed_bytes == 0 && usage.allocated_bytes == 0);
    bp_device_destroy(&own);
    free_scene(&s);
}

/* ---- calls that do not fit ----------------------------------------------------------------------------------------- */

static scene s;
static bp_cp *client;
static bp_stream *stream;
static bp_cp_rearrangement r;

static int begin(void **state)
{
    (void)state;
    s = new_scene(9);
    client = new_cp(device, 1);
    assert_ok(bp_stream_create(device, "s", &stream));
    r = rearrangement_of(&MOVE, &s.from, &s.to);
    return 0;
}

static int end(void **state)
{
    (void)state;
    bp_cp_destroy(&client);
    bp_stream_destroy(&stream);
    free_scene(&s);
    return 0;
}

/* With and without a stream; the rearrangement is put right for the next case. */
#define assert_refused_move(status, ...)                                                                               \
    do {                                                                                                               \
        assert_fails(bp_cp_rearrange(client, s.h.split, &r, NULL), status, __VA_ARGS__);                               \
        assert_fails(bp_cp_rearrange(client, s.h.split, &r, stream), status, __VA_ARGS__);                             \
        assert_ok(bp_device_synchronize(device));                                                                      \
        assert_true(tokens_are_poison(&s.to));                                                                         \
        r = rearrangement_of(&MOVE, &s.from, &s.to);                                                                   \
    } while (0)

static void everything_may_be_missing(void **state)
{
    (void)state;
    assert_fails(bp_cp_rearrange(NULL, s.h.split, &r, NULL), BAD, "bp_cp_rearrange");
    assert_fails(bp_cp_rearrange(client, NULL, &r, NULL), BAD, "bp_cp_rearrange");
    assert_fails(bp_cp_rearrange(client, s.h.split, NULL, NULL), BAD, "bp_cp_rearrange");
    r.size = sizeof r - 1;
    assert_refused_move(BAD, "bp_cp_rearrange");
    r.from.data = NULL;
    assert_refused_move(BAD, "from");
    r.to.data = NULL;
    assert_refused_move(BAD, "to");
    assert_fails(bp_cp_rearrangement_init(NULL, sizeof r), BAD, "bp_cp_rearrangement_init");
    assert_fails(bp_cp_rearrangement_init(&r, sizeof r - 1), BAD, "bp_cp_rearrangement_init");
}

static void tensors_have_the_tokens_of_the_split(void **state)
{
    (void)state;
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

static void tokens_have_equal_bytes(void **state)
{
    (void)state;
    r.from.token_bytes = 8;
    assert_refused_move(BAD, "8", "12");
    r.to.token_bytes = 16;
    r.to.stride = 0;
    assert_refused_move(BAD, "16", "12");
}

static void fills_divide_tokens(void **state)
{
    (void)state;
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

static void orders_and_shifts_are_known(void **state)
{
    (void)state;
    r.from_order = (bp_cp_order)44;
    assert_refused_move(BAD, "44");
    r.to_order = (bp_cp_order)-1;
    assert_refused_move(BAD, "order");
    r.shift = (bp_cp_shift)33;
    assert_refused_move(BAD, "33");
    r.shift = (bp_cp_shift)-1;
    assert_refused_move(BAD, "shift");
}

static void tensors_share_no_memory(void **state)
{
    (void)state;
    const int64_t stride = r.from.stride, bytes = 179 * stride + 12;
    uint8_t *first = r.from.data;
    r.to = (bp_cp_tensor){.data = first, .tokens = 94, .token_bytes = 12};
    assert_refused_move(BAD, "share memory");
    r.to = (bp_cp_tensor){.data = first + bytes - 1, .tokens = 94, .token_bytes = 12};
    assert_refused_move(BAD, "share memory");
    r.to = (bp_cp_tensor){.data = first - 94 * 12 + 1, .tokens = 94, .token_bytes = 12};
    assert_refused_move(BAD, "share memory");
}

static void neighbours_are_no_overlap(void **state)
{
    (void)state;
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

/* Tokens that are written side by side. */
static void written_tokens_are_apart(void **state)
{
    (void)state;
    for (int64_t stride = -11; stride < 12; stride += 22) {
        r.to.stride = stride;
        assert_refused_move(BAD, "apart", "12", stride < 0 ? "-11" : "11");
    }
}

static void extents_must_fit(void **state)
{
    (void)state;
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

static void streams_are_the_devices_own(void **state)
{
    (void)state;
    bp_device *other = new_host();
    bp_stream *foreign = NULL;
    assert_ok(bp_stream_create(other, "foreign", &foreign));
    assert_fails(bp_cp_rearrange(client, s.h.split, &r, foreign), BAD, "foreign");
    assert_true(tokens_are_poison(&s.to));
    bp_stream_destroy(&foreign);
    bp_device_destroy(&other);
}

/* Bytes of a token are any number. */
static void tokens_may_have_no_bytes(void **state)
{
    (void)state;
    r.from.token_bytes = r.to.token_bytes = 0;
    r.from.stride = r.to.stride = 0;
    r.fill_bytes = 0;
    assert_ok(bp_cp_rearrange(client, s.h.split, &r, NULL));
    assert_true(tokens_are_poison(&s.to));
}

/* From the last to the first, as views of reversed tensors are. */
static void strides_may_be_negative(void **state)
{
    (void)state;
    for (int of = 0; of < 2; of++) {
        tokens *turned = of == 0 ? &s.from : &s.to;
        turned->data = token_at(turned, turned->count - 1);
        turned->stride = -turned->stride;
        fill_tokens(&s.from, 11);
        poison_tokens(&s.to, 0x33);
        r = rearrangement_of(&MOVE, &s.from, &s.to);
        assert_ok(bp_cp_rearrange(client, s.h.split, &r, NULL));
        assert_true(is_done(&s));
    }
}

/* ---- clients ------------------------------------------------------------------------------------------------------- */

#define assert_no_client(on, config, status, ...)                                                                      \
    do {                                                                                                               \
        bp_cp *no_client = (bp_cp *)&no_client;                                                                        \
        assert_fails(bp_cp_create(on, config, &no_client), status, __VA_ARGS__);                                       \
        assert_ptr_equal(no_client, &no_client);                                                                       \
    } while (0)

static void what_cannot_be_a_client(void **state)
{
    (void)state;
    bp_cp_config config;
    bp_device *null = new_null();
    memset(&config, 0xee, sizeof config);
    assert_ok(bp_cp_config_init(&config, sizeof config));
    assert_true(config.comm == NULL && config.max_gathered_bytes == 0 && config.threads == 0 && config.trusting == 0);
    assert_no_client(NULL, &config, BAD, "bp_cp_create");
    assert_no_client(device, NULL, BAD, "bp_cp_create");
    assert_fails(bp_cp_create(device, &config, NULL), BAD, "bp_cp_create");
    assert_no_client(null, &config, BP_ERR_UNSUPPORTED, "null");
    config.threads = 1025;
    assert_no_client(device, &config, BAD, "1025");
    config.threads = 0;
    config.size--;
    assert_no_client(device, &config, BAD, "bp_cp_create");
    assert_fails(bp_cp_config_init(NULL, sizeof config), BAD, "bp_cp_config_init");
    assert_fails(bp_cp_config_init(&config, sizeof config - 1), BAD, "bp_cp_config_init");
    bp_device_destroy(&null);
}

#define with_scene(test) cmocka_unit_test_setup_teardown(test, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(work_waits_for_its_turn),
                                       cmocka_unit_test(without_a_stream_calls_wait),
                                       cmocka_unit_test(copies_before_and_after_are_in_order),
                                       cmocka_unit_test(many_calls_wait_for_room),
                                       cmocka_unit_test(clients_leave_nothing_behind),
                                       with_scene(everything_may_be_missing),
                                       with_scene(tensors_have_the_tokens_of_the_split),
                                       with_scene(tokens_have_equal_bytes),
                                       with_scene(fills_divide_tokens),
                                       with_scene(orders_and_shifts_are_known),
                                       with_scene(tensors_share_no_memory),
                                       with_scene(neighbours_are_no_overlap),
                                       with_scene(written_tokens_are_apart),
                                       with_scene(extents_must_fit),
                                       with_scene(streams_are_the_devices_own),
                                       with_scene(tokens_may_have_no_bytes),
                                       with_scene(strides_may_be_negative),
                                       cmocka_unit_test(what_cannot_be_a_client)};
    return cmocka_run_group_tests(tests, open_host, close_host);
}

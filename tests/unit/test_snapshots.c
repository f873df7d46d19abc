/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots from pickles, ours and PyTorch's: contents, and errors with their location. */
#include "scratch.h"

#include <jansson.h>

#include "formats/snapshots/snapshot.h"

static unsigned char made[1 << 16];
static size_t made_bytes;

static void put(const void *data, size_t bytes)
{
    assert_true(made_bytes + bytes <= sizeof made);
    memcpy(made + made_bytes, data, bytes);
    made_bytes += bytes;
}

static void put_text(const char *text)
{
    uint32_t bytes = (uint32_t)strlen(text);
    put("X", 1);
    put(&bytes, 4); /* assumes little-endian, the only supported order */
    put(text, bytes);
}

/* JSON as a pickle of protocol 2. */
static void put_value(const json_t *value)
{
    size_t index;
    const char *key;
    json_t *item;
    if (json_is_object(value)) {
        put("}(", 2);
        json_object_foreach((json_t *)value, key, item)
        {
            put_text(key);
            put_value(item);
        }
        put("u", 1);
    } else if (json_is_array(value)) {
        put("](", 2);
        json_array_foreach(value, index, item) put_value(item);
        put("e", 1);
    } else if (json_is_integer(value)) {
        json_int_t number = json_integer_value(value);
        put("\x8a\x08", 2);
        put(&number, 8);
    } else if (json_is_string(value)) {
        put_text(json_string_value(value));
    } else {
        put(json_is_null(value) ? "N" : json_is_true(value) ? "\x88" : "\x89", 1);
    }
}

static bp_status parse(const char *text, bp_snapshot **snapshot)
{
    json_error_t error;
    json_t *value = json_loads(text, JSON_DECODE_ANY, &error);
    if (value == NULL)
        print_error("%s\n", error.text);
    assert_non_null(value);
    made_bytes = 0;
    put("\x80\x02", 2);
    put_value(value);
    put(".", 1);
    json_decref(value);
    *snapshot = NULL;
    bp_status status = bp_snapshot_parse(made, made_bytes, "d/x.pickle", snapshot);
    assert_true((status == BP_OK) == (*snapshot != NULL));
    return status;
}

#define HEADING                                                                                                        \
    "\"format\": \"bucketpool.snapshot/1\", \"version\": \"9\", \"rank\": 3, \"ranks\": 8, \"coordinates\": \"p0\", "  \
    "\"step\": 5, \"label\": \"\", \"first_time_ns\": 100, \"last_time_ns\": 900, \"realtime_offset_ns\": -7, "
#define REQUESTS                                                                                                       \
    "\"requests\": [{\"unit\": \"u.0\", \"bucket\": \"dense\", \"ordinal\": 0, \"role\": \"param\", \"dtype\": "       \
    "\"bf16\", "                                                                                                       \
    "\"bytes\": 64, \"placement\": \"planned\", \"holds\": 1}, {\"unit\": \"\", \"bucket\": \"b\", \"ordinal\": 1, "   \
    "\"role\": 2, \"dtype\": \"fp32\", \"bytes\": 32, \"placement\": \"dynamic\"}], "
#define SLABS                                                                                                          \
    "\"slabs\": [{\"address\": 4096, \"bytes\": 128, \"planned_bytes\": 96, \"group\": \"g\", \"resident\": false}], "
#define POOL(more) "{\"bucketpool\": {" HEADING "\"later\": [1], \"pools\": [{" more "\"name\": \"p\"}]}}"

TEST(test_ours)
{
    bp_snapshot *snapshot;
    assert_ok(
        parse(POOL("\"plan\": {\"bytes\": 96, \"lower_bound_bytes\": 90, \"optimal\": true, \"roles\": [{\"role\": "
                   "\"param\", \"bytes\": 96, \"lower_bound_bytes\": 90}]}, " SLABS REQUESTS
                   "\"statistics\": {\"acquires\": 7, \"strange\": \"x\"}, \"streams\": [{\"number\": 4, \"name\": "
                   "\"gather\"}], \"live\": [{\"id\": 1, \"address\": 9, \"stream\": 4, \"step\": 2}], \"events\": "
                   "[[1, 0, 4, 5, 300, 4096], [5, 1, 4, 5, 200, 9], [5, 0, 4, 5, 950, 4096, 77]], \"slab_events\": "
                   "[[1, 0, 250], [0, 0, 800]], \"lost_events\": 11, "),
              &snapshot));
    bp_snapshot_info about = *bp_snapshot_get_info(snapshot);
    assert_true(about.is_ours && about.has_step && about.step == 5 && about.rank == 3 && about.ranks == 8);
    assert_true(about.first_time_ns == 100 &&
                about.last_time_ns == 950); /* an event is later than the recorded last time */
    assert_true(about.realtime_offset_ns == -7 && about.pool_count == 1);
    assert_string_equal(about.coordinates, "p0");
    bp_snapshot_pool pool = bp_snapshot_get_info(snapshot)->pools[0];
    assert_true(pool.has_plan && pool.optimal && pool.plan_bytes == 96 && pool.lower_bound_bytes == 90);
    assert_true(pool.request_count == 2 && pool.event_count == 3 && pool.statistic_count == 1 &&
                pool.lost_events == 11);
    assert_string_equal(pool.allocator, ""); /* missing */
    bp_snapshot_request request = pool.requests[1];
    assert_string_equal(request.role, "grad"); /* from the role's number */
    assert_int_equal(request.bytes, 32);
    bp_snapshot_event event = pool.events[1];
    assert_true(event.kind == BP_EVENT_RELEASE && event.id == 1 && event.time_ns == 300); /* times are made monotonic */
    bp_snapshot_slab slab = pool.slabs[0];
    assert_true(!slab.resident && !slab.resident_at_start && slab.planned_bytes == 96);
    bp_snapshot_live live = pool.live[0];
    assert_true(live.id == 1 && live.address == 9 && live.stream == 4 && live.step == 2);
    assert_string_equal(pool.statistics[0].name, "acquires");
    assert_int_equal(pool.statistics[0].value, 7);
    assert_null(bp_snapshot_get_info(NULL));
    bp_snapshot_destroy(&snapshot);
    assert_null(snapshot);
    bp_snapshot_destroy(&snapshot);
    bp_snapshot_destroy(NULL);
}

TEST(test_refused)
{
    const struct {
        const char *text, *word, *more;
    } wrong[] = {
        {"[1]", "not a snapshot", "dictionary"},
        {"{\"a\": 1}", "not a snapshot", "bucketpool"},
        {"{\"bucketpool\": {\"format\": \"bucketpool.snapshot/2\"}}", "bucketpool.format", "bucketpool.snapshot/2"},
        {"{\"bucketpool\": {\"format\": \"bucketpool.snapshot/1\"}}", "bucketpool.rank", "missing"},
        {"{\"bucketpool\": {\"format\": \"bucketpool.snapshot/1\", \"rank\": -1}}", "bucketpool.rank", "non-negative"},
        {"{\"bucketpool\": {\"format\": \"bucketpool.snapshot/1\", \"rank\": 4294967296}}", "bucketpool.rank",
         "at most"},
        {"{\"bucketpool\": {" HEADING "\"pools\": 7}}", "bucketpool.pools", "list"},
        {"{\"bucketpool\": {" HEADING "\"pools\": [7]}}", "bucketpool.pools[0]", "dictionary"},
        {POOL("\"slabs\": [{\"address\": -1}], "), "pools[0].slabs[0].address", "non-negative"},
        {POOL("\"requests\": [{}], "), "pools[0].requests[0].ordinal", "missing"},
        {POOL(REQUESTS "\"events\": [[1, 2, 0, 0, 0, 0]], "), "pools[0].events[0][1]", "request 2, there are 2"},
        {POOL(REQUESTS "\"events\": [[7, 0, 0, 0, 0, 0]], "), "pools[0].events[0]", "kind 7"},
        {POOL(REQUESTS "\"events\": [[1, 0, 0]], "), "pools[0].events[0]", "list of kind"},
        {POOL(REQUESTS "\"live\": [{\"id\": 2}], "), "live[0].id", "request 2"},
        {POOL(SLABS "\"slab_events\": [[1, 1, 0]], "), "slab_events[0][1]", "slab 1, there are 1"},
        {POOL("\"plan\": {\"bytes\": 1}, "), "pools[0].plan.lower_bound_bytes", "missing"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        bp_snapshot *snapshot;
        assert_fails(parse(wrong[i].text, &snapshot), BP_ERR_FORMAT, "d/x.pickle: ", wrong[i].word, wrong[i].more);
    }
    bp_snapshot *snapshot = NULL;
    assert_fails(bp_snapshot_parse(NULL, 0, "x", &snapshot), BP_ERR_INVALID_ARGUMENT, "data");
    assert_fails(bp_snapshot_read("/nowhere/x.pickle", &snapshot), BP_ERR_IO, "/nowhere/x.pickle");
    assert_null(snapshot);
}

/* A shared list must not be copied. */
TEST(test_shared_lists)
{
    static const char text[] =
        "\x80\x02}(X\x0a\x00\x00\x00"
        "bucketpool}(X\x06\x00\x00\x00"
        "formatX\x15\x00\x00\x00"
        "bucketpool.snapshot/1X\x04\x00\x00\x00rankK\x00X\x05\x00\x00\x00ranksK\x01X\x0d\x00\x00\x00"
        "first_time_nsK\x00X\x0c\x00\x00\x00last_time_nsK\x00X\x05\x00\x00\x00pools](}(X\x05\x00\x00\x00"
        "slabs](}(X\x07\x00\x00\x00"
        "addressK\x00X\x05\x00\x00\x00"
        "bytesK\x00X\x0d\x00\x00\x00planned_bytesK\x00X\x08\x00\x00\x00resident\x88uq\x01";
    made_bytes = 0;
    put(text, sizeof text - 1);
    for (int i = 0; i < 4000; i++)
        put("h\x01", 2);
    put("euq\x02", 4);
    for (int i = 0; i < 4000; i++)
        put("h\x02", 2);
    put("euu.", 4);
    bp_snapshot *snapshot = NULL;
    assert_fails(bp_snapshot_parse(made, made_bytes, "x", &snapshot), BP_ERR_FORMAT, "x: its lists need more than ",
                 "shared list");
}

TEST(test_names)
{
    bp_snapshot *snapshot;
    assert_ok(parse(POOL("\"allocator\": \"a\\u001bb\\u00e9\", "), &snapshot));
    bp_snapshot_pool pool = bp_snapshot_get_info(snapshot)->pools[0];
    assert_string_equal(pool.allocator, "a?b\xc3\xa9");
    bp_snapshot_destroy(&snapshot);
}

TESTS(NULL, NULL)

/* SPDX-License-Identifier: Apache-2.0 */
/* Unified streams: conflicts against instances that were made without this library. Their rows are the requests of a model, parameters
 * first; each step of forward and backward is two steps there. Arguments: the source directory. */
#include "support/harness.h"

#include <bucketpool/formats.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "support/scenarios.h"

static const char *source_root;

/* A row: live in [lower, upper) but not in the gap. */
typedef struct row {
    unsigned lower, upper, gap_begin, gap_end;
    unsigned long long bytes;
} row;

#define MAX_ROWS 512

static size_t read_rows(const char *name, row *rows)
{
    char path[1024], line[256];
    snprintf(path, sizeof path, "%s/tests/data/packing/%s", source_root, name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof line, file));
    size_t count = 0;
    while (fgets(line, sizeof line, file) != NULL) {
        row r = {0};
        assert_true(count < MAX_ROWS);
        assert_true(sscanf(line, "%*u,%u,%u,%llu,%u-%u", &r.lower, &r.upper, &r.bytes, &r.gap_begin, &r.gap_end) >= 3);
        rows[count++] = r;
    }
    fclose(file);
    return count;
}

static bool row_is_live(const row *r, unsigned step)
{
    return r->lower <= step && step < r->upper && !(r->gap_begin <= step && step < r->gap_end);
}

static bool rows_conflict(const row *a, const row *b)
{
    for (unsigned step = a->lower > b->lower ? a->lower : b->lower; step < a->upper && step < b->upper; step++)
        if (row_is_live(a, step) && row_is_live(b, step))
            return true;
    return false;
}

static bp_buckets *read_buckets(const char *name, uint32_t ep, bp_padding padding)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/examples/models/%s", source_root, name);
    bp_model *published, *whole, *local;
    assert_ok(bp_model_read(path, NULL, &published));
    assert_ok(bp_model_with_layout(published, BP_LAYOUT_MEGATRON, &whole));
    assert_ok(bp_model_shard(whole, 1, ep, &local));
    bp_buckets_config config;
    assert_ok(bp_buckets_config_init(&config, sizeof config));
    config.dp = 64;
    config.ep = ep;
    config.padding = padding;
    bp_buckets *buckets;
    assert_ok(bp_buckets_create(local, &config, &buckets));
    bp_model_destroy(&published);
    bp_model_destroy(&whole);
    bp_model_destroy(&local);
    return buckets;
}

/* The library's requests in the order of the rows. */
static size_t order_requests(const bp_buckets *buckets, size_t *requests)
{
    size_t count = 0;
    for (uint32_t role = BP_ROLE_PARAM; role <= BP_ROLE_GRAD; role++) {
        for (size_t i = 0; i < bp_buckets_get_info(buckets)->request_count; i++) {
            bp_request request = bp_buckets_get_info(buckets)->requests[i];
            assert_true(count < MAX_ROWS);
            if (request.role == role)
                requests[count++] = i;
        }
    }
    return count;
}

static void assert_same_conflicts(const char *file, const char *model, uint32_t ep, bp_padding padding)
{
    static row rows[MAX_ROWS];
    size_t requests[MAX_ROWS], row_count = read_rows(file, rows), conflicts = 0;
    SCOPED(bp_buckets_destroy) bp_buckets *buckets = read_buckets(model, ep, padding);
    bp_schedule_config config;
    assert_ok(bp_schedule_config_init(&config, sizeof config));
    config.streams = BP_STREAMS_UNIFIED;
    SCOPED(bp_schedule_destroy) bp_schedule *schedule = NULL;
    assert_ok(bp_schedule_create_training(buckets, &config, &schedule));
    assert_int_equal(order_requests(buckets, requests), row_count);
    for (size_t a = 0; a < row_count; a++) {
        bp_request request = bp_buckets_get_info(buckets)->requests[requests[a]];
        assert_int_equal(request.bytes, rows[a].bytes);
        for (size_t b = 0; b < a; b++) {
            bool expected = rows_conflict(&rows[a], &rows[b]);
            if (requests_conflict(schedule, requests[a], requests[b]) != expected)
                fail_msg("%s: rows %zu and %zu %s", file, b, a, expected ? "conflict" : "do not conflict");
            conflicts += expected;
        }
    }
    assert_true(conflicts > row_count);
}

TEST(test_conflicts_of_models)
{
    assert_same_conflicts("Llama-3.1-8B_EP1_lcm_serial_joint_bf16.csv", "Llama-3.1-8B", 1, BP_PADDING_MEGATRON_LCM);
    assert_same_conflicts("Nemotron-3-Nano-30B-A3B_EP8_split_serial_joint_bf16.csv", "Nemotron-3-Nano-30B-A3B", 8,
                          BP_PADDING_MEGATRON_SPLIT);
    assert_same_conflicts("DeepSeek-V3_EP8_lcm_serial_joint_bf16.csv", "DeepSeek-V3", 8, BP_PADDING_MEGATRON_LCM);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    source_root = argv[1];
    return run_registered(NULL, NULL, NULL, NULL);
}

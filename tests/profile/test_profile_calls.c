/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of a profile and their errors: steps, labelled recordings, ranks, file names, and other recorders of the
 * same pool. */
#include <bucketpool/profile.h>

#include "folder.h"
#include "support/pools.h"

static char folder[64];

static int make_folder(void **state)
{
    strcpy(folder, "/tmp/bp-profile-XXXXXX");
    return mkdtemp(folder) == NULL;
}

static int drop_folder(void **state)
{
    remove_folder(folder);
    return 0;
}

static const char *inside(const char *name)
{
    static char paths[4][256];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static bp_profile_config settings(void)
{
    bp_profile_config config;
    assert_ok(bp_profile_config_init(&config, sizeof config));
    config.directory = inside("deep/er");
    return config;
}

static kit open_one(void)
{
    return open_kit(&ALLOCATORS[1], device_at(0));
}

static bp_profile *profile_of(const kit *k, const bp_profile_config *config)
{
    bp_profile *profile = NULL;
    assert_ok(bp_profile_create(&k->pool, 1, config, &profile));
    return profile;
}

/* ---- steps ---------------------------------------------------------------------------------------------------------- */

static uint64_t step_of(const kit *k)
{
    bp_live_request live = {.size = sizeof live};
    size_t count;
    take(k, param(k, 0), k->streams[0]);
    assert_ok(bp_pool_live(k->pool, &live, 1, &count));
    drop(k, param(k, 0), k->streams[0]);
    return live.step;
}

TEST_WITHIN(steps, make_folder, drop_folder)
{
    KIT k = open_one();
    bp_profile_config config = settings();
    bp_profile *profile = profile_of(&k, &config);
    static const bool recorded[] = {true, true, false, false, true};
    static const uint64_t steps[] = {0, 1, 2, 100, 1};
    assert_int_equal(count_names(config.directory), -1); /* nothing has been written yet */
    assert_string_equal(bp_profile_get_info(profile)->pickle_path, "");
    for (size_t i = 0; i < 5; i++) {
        assert_ok(bp_profile_step(profile, steps[i]));
        assert_int_equal(bp_profile_get_info(profile)->recording, recorded[i]);
        assert_int_equal(step_of(&k), steps[i]);
    }
    assert_int_equal(count_names(config.directory), 2);
    assert_string_equal(bp_profile_get_info(profile)->pickle_path, inside("deep/er/step_1/snapshot_rank00.pickle"));
    assert_int_equal(remove(bp_profile_get_info(profile)->pickle_path), 0);
    bp_profile_destroy(&profile); /* overwrites step 1 */
    assert_null(profile);
    assert_true(is_file(inside("deep/er/step_0/snapshot_rank00.pickle")));
    assert_true(is_file(inside("deep/er/step_1/snapshot_rank00.pickle")));
    assert_int_equal(count_names(inside("deep/er/step_1")), 1);
    bp_profile_destroy(&profile);
    bp_profile_destroy(NULL);
}

TEST_WITHIN(by_hand, make_folder, drop_folder)
{
    KIT k = open_one();
    bp_profile_config config = settings();
    config.formats = BP_PROFILE_PICKLE | BP_PROFILE_TRACE;
    config.coordinates = "p0d1c0t1";
    config.rank = 123;
    config.ranks = 2000;
    bp_profile *profile = profile_of(&k, &config);
    static const char *const wrong[] = {
        "", "a b", "../up", "a/b", "dots.", "0123456789012345678901234567890123456789012345678901234567890123"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_fails(bp_profile_start(profile, wrong[i]), BP_ERR_INVALID_ARGUMENT, "label");
    assert_fails(bp_profile_stop(profile), BP_ERR_SCHEDULE, "no recording");
    assert_ok(bp_profile_start(profile, "evaluation-1"));
    assert_fails(bp_profile_start(profile, "other"), BP_ERR_SCHEDULE, "evaluation-1");
    assert_ok(bp_profile_step(profile, 0)); /* a step that is not recorded */
    assert_ok(bp_profile_step(profile, 7));
    assert_int_equal(step_of(&k), 7);
    assert_ok(bp_profile_stop(profile));
    assert_int_equal(count_names(config.directory), 1);
    assert_string_equal(bp_profile_get_info(profile)->pickle_path,
                        inside("deep/er/evaluation-1/snapshot_rank0123_p0d1c0t1.pickle"));
    assert_string_equal(bp_profile_get_info(profile)->trace_path,
                        inside("deep/er/evaluation-1/trace_rank0123_p0d1c0t1.json"));
    assert_ok(bp_profile_step(profile, 0));
    assert_fails(bp_profile_start(profile, "other"), BP_ERR_SCHEDULE, "step 0");
    assert_ok(bp_profile_stop(profile)); /* ends the step's recording */
    assert_true(is_file(inside("deep/er/step_0/trace_rank0123_p0d1c0t1.json")));
    bp_profile_destroy(&profile);
}

TEST_WITHIN(ranks_that_do_not_record, make_folder, drop_folder)
{
    KIT k = open_one();
    static const uint32_t others[] = {0, 2}, mine[] = {0, 1};
    bp_profile_config config = settings();
    config.rank = 1;
    config.ranks = 3;
    config.record_ranks = others;
    config.record_rank_count = 2;
    bp_profile *profile = profile_of(&k, &config);
    assert_ok(bp_profile_step(profile, 0));
    assert_int_equal(bp_profile_get_info(profile)->recording, 0);
    assert_int_equal(step_of(&k), 0);
    assert_ok(bp_profile_stop(profile)); /* valid on any rank that records */
    assert_fails(bp_profile_stop(profile), BP_ERR_SCHEDULE, "no recording");
    assert_ok(bp_profile_start(profile, "a"));
    assert_ok(bp_profile_stop(profile));
    bp_profile_destroy(&profile);
    assert_int_equal(count_names(config.directory), -1);
    config.record_ranks = mine;
    profile = profile_of(&k, &config);
    assert_ok(bp_profile_step(profile, 0));
    assert_int_equal(bp_profile_get_info(profile)->recording, 1);
    bp_profile_destroy(&profile);
    config.record_rank_count = 0;
    profile = profile_of(&k, &config);
    assert_ok(bp_profile_step(profile, 0));
    assert_int_equal(bp_profile_get_info(profile)->recording, 0);
    bp_profile_destroy(&profile);
}

TEST_WITHIN(no_steps, make_folder, drop_folder)
{
    KIT k = open_one();
    static const uint64_t none[] = {0};
    bp_profile_config config = settings();
    config.profile_steps = none;
    bp_profile *profile = profile_of(&k, &config);
    assert_ok(bp_profile_step(profile, 0));
    assert_int_equal(bp_profile_get_info(profile)->recording, 0);
    assert_ok(bp_profile_start(profile, "by_hand"));
    assert_int_equal(bp_profile_get_info(profile)->recording, 1);
    bp_profile_destroy(&profile);
    assert_true(is_file(inside("deep/er/by_hand/snapshot_rank00.pickle")));
}

/* ---- creation ------------------------------------------------------------------------------------------------------- */

static void refuse(const kit *k, const bp_profile_config *config, const char *word)
{
    bp_profile *profile = NULL;
    assert_fails(bp_profile_create(&k->pool, 1, config, &profile), BP_ERR_INVALID_ARGUMENT, word);
    assert_null(profile);
}

TEST_WITHIN(creation, make_folder, drop_folder)
{
    KIT k = open_one();
    bp_profile *profile = NULL, *second = NULL;
    bp_profile_config config, good = settings();
    bp_pool *const twice[] = {k.pool, k.pool}, *const none[] = {NULL};
    static const uint32_t beyond[] = {1};
    assert_fails(bp_profile_config_init(NULL, sizeof config), BP_ERR_INVALID_ARGUMENT, "is NULL");
    assert_fails(bp_profile_config_init(&config, 8), BP_ERR_INVALID_ARGUMENT, "size of a struct is 8");
    assert_fails(bp_profile_create(NULL, 1, NULL, &profile), BP_ERR_INVALID_ARGUMENT, "pool");
    assert_fails(bp_profile_create(&k.pool, 0, NULL, &profile), BP_ERR_INVALID_ARGUMENT, "pool");
    assert_fails(bp_profile_create(&k.pool, 1, NULL, NULL), BP_ERR_INVALID_ARGUMENT, "non-NULL");
    assert_fails(bp_profile_create(twice, 2, NULL, &profile), BP_ERR_INVALID_ARGUMENT, "pools[0] and pools[1]");
    assert_fails(bp_profile_create(none, 1, NULL, &profile), BP_ERR_INVALID_ARGUMENT, "pools[0]");
    refuse(&k, (config = good, config.size = 8, &config), "size of a struct is 8");
    refuse(&k, (config = good, config.directory = "", &config), "directory");
    refuse(&k, (config = good, config.max_entries = ((uint64_t)1 << 30) + 1, &config), "max_entries");
    refuse(&k, (config = good, config.formats = 4, &config), "formats");
    refuse(&k, (config = good, config.rank = 1, &config), "rank 1");
    refuse(&k, (config = good, config.record_ranks = beyond, config.record_rank_count = 1, &config), "record_ranks");
    refuse(&k, (config = good, config.coordinates = "a/b", &config), "coordinates");
    refuse(&k, (config = good, config.coordinates = "", &config), "coordinates");
    profile = profile_of(&k, &good);
    assert_fails(bp_profile_create(&k.pool, 1, &good, &second), BP_ERR_SCHEDULE, "has a profile already");
    assert_null(second);
    bp_profile_destroy(&profile);
    profile = profile_of(&k, &good); /* now accepted */
    bp_profile_destroy(&profile);
    assert_ok(bp_pool_seal(k.pool));
    assert_fails(bp_profile_create(&k.pool, 1, &good, &profile), BP_ERR_SCHEDULE, "sealed");
}

TEST_WITHIN(sealed_later, make_folder, drop_folder)
{
    KIT k = open_one();
    bp_profile_config config = settings();
    bp_profile *profile = profile_of(&k, &config);
    assert_ok(bp_pool_seal(k.pool));
    assert_ok(bp_profile_step(profile, 0));
    take(&k, param(&k, 0), k.streams[0]);
    drop(&k, param(&k, 0), k.streams[0]);
    assert_ok(bp_profile_step(profile, 5));
    assert_true(is_file(bp_profile_get_info(profile)->pickle_path));
    bp_profile_destroy(&profile); /* destroying is allowed on a sealed pool */
}

TEST_WITHIN(pool_goes_first, make_folder, drop_folder)
{
    kit k = open_one();
    bp_profile_config config = settings();
    bp_profile *profile = profile_of(&k, &config);
    assert_ok(bp_profile_step(profile, 0));
    take(&k, param(&k, 0), k.streams[0]);
    drop(&k, param(&k, 0), k.streams[0]);
    end_kit(&k);
    assert_ok(bp_profile_step(profile, 1)); /* nothing can be recorded, and nothing is written */
    assert_int_equal(count_names(config.directory), -1);
    assert_ok(bp_profile_write(profile, BP_PROFILE_TRACE, inside("rest.json")));
    bp_profile_destroy(&profile);
}

/* ---- other recorders ------------------------------------------------------------------------------------------------ */

TEST_WITHIN(traces_of_the_caller, make_folder, drop_folder)
{
    KIT k = open_one();
    bp_profile_config config = settings();
    bp_profile *profile = profile_of(&k, &config);
    assert_ok(bp_pool_trace_start(k.pool, 100, 0)); /* between recordings other recorders are allowed */
    take(&k, param(&k, 0), k.streams[0]);
    assert_fails(bp_profile_step(profile, 0), BP_ERR_SCHEDULE, "bp_pool_trace_stop");
    assert_int_equal(bp_profile_get_info(profile)->recording, 0);
    assert_fails(bp_profile_start(profile, "a"), BP_ERR_SCHEDULE, "bp_pool_trace_stop");
    drop(&k, param(&k, 0), k.streams[0]);
    assert_int_equal(bp_pool_trace_count(k.pool), 2);
    bp_pool_trace_stop(k.pool);
    assert_ok(bp_profile_step(profile, 1));
    assert_fails(bp_pool_trace_start(k.pool, 100, 0), BP_ERR_SCHEDULE, "bp_profile_stop");
    take(&k, param(&k, 0), k.streams[0]);
    bp_pool_trace_stop(k.pool); /* no trace is running: the profile keeps recording */
    assert_int_equal(bp_profile_get_info(profile)->recording, 1);
    drop(&k, param(&k, 0), k.streams[0]);
    assert_int_equal(bp_pool_trace_count(k.pool), 2); /* the caller's trace is unchanged */
    assert_ok(bp_profile_stop(profile));
    assert_ok(bp_pool_trace_start(k.pool, 100, 0));
    bp_profile_destroy(&profile);
    take(&k, param(&k, 0), k.streams[0]);
    assert_int_equal(bp_pool_trace_count(k.pool), 1);
    drop(&k, param(&k, 0), k.streams[0]);
}

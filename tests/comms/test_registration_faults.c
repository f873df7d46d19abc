/* SPDX-License-Identifier: Apache-2.0 */
/* A registration fails on one rank at each point in turn: all ranks return the same error, which names the rank,
 * nothing stays registered, and a second try succeeds. Linked with -Wl,--wrap of the allocation functions. */
#include <bucketpool/capture.h>

#include "allocators/pool.h"
#include "offload/rank_fixture.h"
#include "support/shortage.h"

#define RANKS 3u

/* Three slabs: param, grad, persistent. */
static const store_options THREE = {.units = UNITS, .roles = PARAM | GRAD, .persistent_bytes = 4096, .bare = true};

static scene *line(uint32_t ranks)
{
    return new_line(ranks, &THREE);
}

static void create(scene *s)
{
    run_ranks(s->ranks, register_rank, s);
}

static void destroy(scene *s)
{
    run_ranks(s->ranks, deregister_rank, s);
}

/* All ranks returned the same error, and nothing is left registered. */
static void assert_nothing_made(const scene *s, bp_status status, const char *word, const char *more)
{
    assert_common(s, status, word, more);
    for (uint32_t i = 0; i < s->ranks; i++) {
        assert_string_equal(s->detail[i], s->detail[0]);
        assert_null(s->made[i]);
    }
    assert_int_equal(live_in(s), 0);
}

static void assert_refused_registration(const scene *s, bp_status status, const char *words)
{
    assert_int_equal(s->status[0], status);
    assert_null(s->made[0]);
    if (strstr(s->detail[0], words) == NULL)
        fail_msg("\"%s\" should say \"%s\"", s->detail[0], words);
}

static bp_registration_window window_of(const bp_registration *r, size_t index)
{
    assert_true(index < bp_registration_get_info(r)->window_count);
    return bp_registration_get_info(r)->windows[index];
}

/* ---- tests ---------------------------------------------------------------------------------------------------------- */

TEST(order)
{
    scene *s = line(RANKS);
    s->entries[0][0].traffic = s->entries[1][0].traffic = s->entries[2][0].traffic = BP_TRAFFIC_FLOAT_AVG;
    register_all(s);
    for (uint32_t i = 0; i < RANKS; i++) {
        assert_int_equal(bp_registration_get_info(s->made[i])->window_count, 3); /* param, grad, persistent */
        for (size_t w = 0; w < 3; w++) {
            bp_registration_window window = window_of(s->made[i], w);
            assert_int_equal(window.slab, w);
            assert_int_equal(window.entry, w == 2);
            assert_int_equal(window.granted, BP_REGISTER_SYMMETRIC);
            assert_string_equal(window.because, "");
            assert_ptr_equal(window.handle, &s->ends[0][i].log[w]);
            assert_ptr_equal(window.address, s->ends[0][i].log[w].address);
        }
        const bp_registration_info *info = bp_registration_get_info(s->made[i]);
        assert_int_equal(info->warning_count,
                         3); /* entry 0 averages and has ranks in one process, entry 1 has the latter */
        assert_string_equal(info->warnings[0].text, "averages are slow");
        for (size_t w = 0; w < 3; w++)
            assert_int_equal(info->warnings[w].entry, w == 2);
        assert_non_null(strstr(info->warnings[2].text, "one process"));
    }
    deregister_all(s);
    for (uint32_t i = 0; i < RANKS; i++)
        for (int w = 0; w < 3; w++)
            assert_int_equal(s->ends[0][i].ended[w], 2 - w);
    close_scene(s);
}

TEST(report)
{
    scene *s = line(2);
    s->ends[0][1].refused = 1u << BP_REGISTER_SYMMETRIC;
    register_all(s);
    char text[4096], little[200];
    size_t needed, again;
    assert_ok(bp_registration_report(s->made[0], text, sizeof text, &needed));
    assert_int_equal(needed, strlen(text) + 1);
    assert_non_null(strstr(text, "slab 0 (param), "));
    assert_non_null(strstr(text,
                           "with communicator dp (scripted 1, 2 ranks): symmetric window requested, window granted; "
                           "symmetric window: rank 1 of communicator dp: no room for a symmetric window\n"));
    assert_non_null(strstr(text, "warning, entry 1 (communicator dp): ranks 0 and 1 of communicator dp are in one"));
    assert_ok(bp_registration_report(s->made[0], little, sizeof little, &again));
    assert_int_equal(again, needed);
    assert_memory_equal(little, text, strlen(little));
    for (size_t capacity = needed; capacity-- > 1;) { /* whole lines */
        assert_ok(
            bp_registration_report(s->made[0], little, capacity < sizeof little ? capacity : sizeof little, &again));
        const size_t length = strlen(little);
        assert_true(length < capacity && (length == 0 || little[length - 1] == '\n'));
        assert_memory_equal(little, text, length);
    }
    assert_invalid(bp_registration_report(NULL, NULL, 0, &needed));
    assert_invalid(bp_registration_report(s->made[0], NULL, 0, NULL));
    assert_ok(bp_registration_report(s->made[0], NULL, 0, &again));
    assert_int_equal(again, needed);
    destroy(s);
    close_scene(s);
}

TEST(refusals)
{
    static const struct {
        uint32_t refused;
        int32_t exact;
        bp_register_kind granted;
        int kept;
    } cases[] = {{1u << BP_REGISTER_SYMMETRIC, 0, BP_REGISTER_WINDOW, 3},
                 {1u << BP_REGISTER_SYMMETRIC | 1u << BP_REGISTER_WINDOW, 0, BP_REGISTER_BUFFER, 3},
                 {0xff, 0, BP_REGISTER_NONE, 0},
                 {1u << BP_REGISTER_SYMMETRIC, 1, BP_REGISTER_NONE, 0}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int all = 0; all < 2; all++) {
            scene *s = line(RANKS);
            for (uint32_t i = 0; i < RANKS; i++) {
                s->ends[0][i].refused = all || i == 1 ? cases[c].refused : 0;
                s->entries[i][0].exact = s->entries[i][1].exact = cases[c].exact;
            }
            register_all(s);
            for (uint32_t i = 0; i < RANKS; i++) {
                bp_registration_window window = window_of(s->made[i], 0);
                assert_int_equal(window.granted, cases[c].granted);
                assert_true((window.handle != NULL) == (cases[c].granted != BP_REGISTER_NONE));
                assert_string_equal(window.because, window_of(s->made[0], 0).because);
                assert_non_null(strstr(window.because, "no room for a symmetric window"));
                assert_true((strstr(window.because, "rank 1") != NULL) == !all);
                assert_int_equal(live_windows(&s->ends[0][i]), cases[c].kept);
            }
            deregister_all(s);
            close_scene(s);
        }
}

/* Providers without registration are not an error. */
TEST(provider_without_registration)
{
    scene *s = line(2);
    for (uint32_t i = 0; i < 2; i++) {
        bp_comm_destroy(&s->handles[0][i]);
        s->ends[0][i].destroyed = false;
        s->ends[0][i].best = BP_REGISTER_WINDOW;
        s->ends[0][i].lacks = i == 1 ? 1u << BP_REGISTER_WINDOW : 0;
        assert_ok(bp_comm_create(&RANK_OPS, &s->ends[0][i], "dp", &s->handles[0][i]));
        s->entries[i][0].comm = s->entries[i][1].comm = s->handles[0][i];
    }
    register_all(s);
    assert_int_equal(window_of(s->made[0], 0).granted, BP_REGISTER_BUFFER);
    assert_int_equal(window_of(s->made[1], 0).granted, BP_REGISTER_BUFFER);
    assert_non_null(strstr(window_of(s->made[0], 0).because, "cannot register one"));
    destroy(s);
    close_scene(s);
}

TEST(failures)
{
    for (uint32_t where = 0; where < RANKS; where++)
        for (int nth = 1; nth <= 3; nth++) {
            scene *s = line(RANKS);
            char word[32];
            snprintf(word, sizeof word, "rank %u of", where);
            s->ends[0][where].fail_at = nth;
            create(s);
            assert_nothing_made(s, BP_ERR_COMM, word, "out of window slots");
            for (uint32_t i = 0; i < RANKS; i++) /* in reverse order */
                for (int w = 1; w < s->ends[0][i].deregistrations; w++)
                    assert_true(s->ends[0][i].ended[w] < s->ends[0][i].ended[w - 1]);
            register_all(s);
            destroy(s);
            close_scene(s);
        }
}

/* A failure in one row of a grid reaches all rows and columns. */
TEST(grid)
{
    for (uint32_t comm = 0; comm < 2; comm++)
        for (uint32_t where = 0; where < 4; where++)
            for (int nth = 1; nth <= 2 - (int)comm; nth++) {
                scene *s = new_grid("grad", &THREE);
                s->ends[comm][where].fail_at = nth;
                create(s);
                assert_nothing_made(s, BP_ERR_COMM, comm == 0 ? "of communicator dp" : "of communicator outer",
                                    "out of window slots");
                register_all(s);
                assert_int_equal(bp_registration_get_info(s->made[0])->window_count, 3);
                destroy(s);
                close_scene(s);
            }
}

static unsigned failing_allocation; /* of rank 1 */

static void register_short(void *user, uint32_t i)
{
    shortage.fails = i == 1 ? failing_allocation : 0;
    register_rank(user, i);
    shortage.fails = 0;
}

TEST(allocations)
{
    bool good = false;
    for (failing_allocation = 1; !good; failing_allocation++) {
        scene *s = line(RANKS);
        run_ranks(RANKS, register_short, s);
        good = s->status[0] == BP_OK;
        if (good)
            deregister_all(s);
        else
            assert_nothing_made(s, BP_ERR_NO_HOST_MEMORY, "rank 1 of communicator dp", "out of host memory");
        close_scene(s);
    }
    assert_true(failing_allocation > 8);
}

TEST(mismatches)
{
    for (int what = 0; what < 6; what++) {
        scene *s = line(RANKS);
        const char *word = "";
        uint32_t odd = (uint32_t)what % RANKS;
        switch (what) {
        case 0:
            close_store(&s->stores[odd]);
            open_rank(s, odd,
                      &(store_options){
                          .units = "500 500 500", .roles = PARAM | GRAD, .persistent_bytes = 4096, .bare = true});
            word = "has the plan with fingerprint ";
            break;
        case 1:
            s->entries[odd][0].kind = BP_REGISTER_BUFFER;
            word = "has the kind asked for 1, rank 0 has 3";
            break;
        case 2:
            s->entries[odd][1].exact = 1;
            word = "has exact 1, rank 0 has 0";
            break;
        case 3:
            s->count[odd] = 1;
            word = "has entries for it: 1, rank 1 has 2";
            break;
        case 4:
            bp_comm_destroy(&s->handles[0][odd]);
            s->ends[0][odd] = (rank){.at = &s->barriers[0][0], .number = odd, .best = BP_REGISTER_WINDOW, .version = 9};
            assert_ok(bp_comm_create(&RANK_OPS, &s->ends[0][odd], "dp", &s->handles[0][odd]));
            s->entries[odd][0].comm = s->entries[odd][1].comm = s->handles[0][odd];
            word = "version 9, rank 0 has 7";
            break;
        default:
            s->entries[odd][1].group = "grad";
            s->entries[odd][0].group = "param";
            word = "has slabs to register with it: 2, rank 0 has 3";
            break;
        }
        char named[32];
        snprintf(named, sizeof named, "rank %u of communicator dp", odd);
        create(s);
        assert_nothing_made(s, BP_ERR_MISMATCH, named, word);
        for (uint32_t i = 0; i < RANKS; i++)
            assert_int_equal(s->ends[0][i].registrations, 0);
        close_scene(s);
    }
}

/* Local errors are reported to all ranks before anything is registered. */
TEST(local_errors)
{
    static const struct {
        bp_status status;
        const char *words;
    } ways[] = {{BP_ERR_INVALID_ARGUMENT, "no slab of group \"nothing\""},
                {BP_ERR_SCHEDULE, "is registered with communicator dp already, by an earlier entry for pool"},
                {BP_ERR_SCHEDULE, "sealed"},
                {BP_ERR_CAPTURE, "is being captured"}};
    for (int way = 0; way < 4; way++) {
        scene *s = line(RANKS);
        bp_capture *capture = NULL;
        if (way < 2)
            s->entries[2][1].group = way == 0 ? "nothing" : "param";
        else if (way == 2)
            assert_ok(bp_pool_seal(s->stores[2].k.pool));
        else
            assert_ok(bp_capture_begin(s->stores[2].k.pool, NULL, &capture));
        create(s);
        assert_nothing_made(s, ways[way].status, ways[way].words, "rank 2 of communicator dp: ");
        for (uint32_t i = 0; i < RANKS; i++)
            assert_int_equal(s->ends[0][i].registrations, 0);
        bp_capture_destroy(&capture);
        close_scene(s);
    }
}

TEST(repeated_registration)
{
    scene *s = line(2);
    bp_registration *first[2];
    register_all(s);
    for (int i = 0; i < 2; i++) {
        first[i] = s->made[i];
        s->made[i] = NULL;
    }
    create(s);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(s->status[i], BP_ERR_SCHEDULE);
        assert_non_null(strstr(s->detail[i], "is registered with communicator dp already, by pool"));
        assert_int_equal(live_windows(&s->ends[0][i]), 3);
        s->made[i] = first[i];
    }
    destroy(s);
    register_all(s);
    destroy(s);
    close_scene(s);
}

/* When the exchange itself fails, the others cannot be informed; but nothing hangs, crashes or stays registered. */
TEST(broken_exchange)
{
    for (int nth = 1; nth <= 12; nth++) {
        scene *s = line(1);
        s->ends[0][0].exchange_fails_at = nth;
        create(s);
        if (s->status[0] == BP_OK)
            assert_true(s->ends[0][0].exchanges < nth);
        else
            assert_nothing_made(s, BP_ERR_COMM, "the exchange was cut", "");
        deregister_all(s);
        close_scene(s);
    }
}

/* ---- destruction ---------------------------------------------------------------------------------------------------- */

TEST(pool_destroyed_first)
{
    scene *s = line(2);
    register_all(s);
    for (uint32_t i = 0; i < 2; i++) {
        bp_pool_destroy(&s->stores[i].k.pool);
        assert_int_equal(live_windows(&s->ends[0][i]), 0);
        assert_int_equal(window_of(s->made[i], 0).granted, BP_REGISTER_NONE);
        assert_null(window_of(s->made[i], 0).handle);
    }
    bp_registration *old[2] = {s->made[0], s->made[1]};
    for (uint32_t i = 0; i < 2; i++) { /* another pool may get the addresses of the first one */
        bp_pool_config config = pool_config();
        config.persistent_bytes = 4096;
        open_pool(&s->stores[i].k, &config);
        s->made[i] = NULL;
    }
    register_all(s);
    destroy(s);
    s->made[0] = old[0];
    s->made[1] = old[1];
    destroy(s);
    close_scene(s);
}

/* A pool that is being captured cannot detach the registration, which then ends with the pool. */
TEST(destroyed_in_a_capture)
{
    scene *s = line(1);
    bp_capture *capture = NULL;
    register_all(s);
    assert_ok(bp_capture_begin(s->stores[0].k.pool, NULL, &capture));
    destroy(s);
    assert_null(s->made[0]);
    assert_int_equal(live_in(s), 3);
    create(s);
    assert_refused_registration(s, BP_ERR_CAPTURE, "is being captured");
    bp_capture_destroy(&capture);
    create(s);
    assert_refused_registration(s, BP_ERR_SCHEDULE, "is registered with communicator dp already, by pool");
    bp_pool_destroy(&s->stores[0].k.pool);
    assert_int_equal(live_in(s), 0);
    close_scene(s);
}

TEST(aborted_communicator)
{
    for (int forgotten = 0; forgotten < 2; forgotten++) {
        scene *s = line(2);
        register_all(s);
        for (uint32_t i = 0; i < 2; i++) {
            bp_comm *comm = s->handles[0][i];
            uint8_t byte = 0, bytes[2];
            if (forgotten)
                bp_comm_forget(comm);
            else
                assert_ok(bp_comm_abort(comm));
            assert_int_equal(s->ends[0][i].aborted, !forgotten);
            assert_fails(bp_comm_exchange(comm, &byte, 1, bytes), BP_ERR_INVALID_ARGUMENT, "dp", "was aborted");
            assert_fails(bp_comm_abort(comm), BP_ERR_INVALID_ARGUMENT, "was aborted");
            bp_comm_forget(comm);
        }
        destroy(s);
        for (uint32_t i = 0; i < 2; i++)
            assert_int_equal(s->ends[0][i].deregistrations, 0);
        create(s);
        assert_int_equal(s->status[0], BP_ERR_INVALID_ARGUMENT);
        assert_non_null(strstr(s->detail[0], "was aborted"));
        close_scene(s);
    }
}

/* Unmaps and maps each slab, as offload does. */
static void reattach_work(void *user, uint32_t i)
{
    scene *s = user;
    bp_slabs *slabs = &s->stores[i].k.pool->slabs;
    const bp_slab_observer *observer = &slabs->observers[0];
    s->status[i] = BP_OK;
    for (uint32_t slab = (uint32_t)slabs->count; slab-- > 0;)
        observer->callbacks.detach(observer->user, slab, slabs->slabs[slab].address, slabs->slabs[slab].bytes);
    for (uint32_t slab = 0; slab < slabs->count && s->status[i] == BP_OK; slab++)
        s->status[i] =
            observer->callbacks.attach(observer->user, slab, slabs->slabs[slab].address, slabs->slabs[slab].bytes);
    snprintf(s->detail[i], sizeof s->detail[i], "%s", bp_error_detail());
}

TEST(remapped_slabs)
{
    scene *s = line(RANKS);
    register_all(s);
    run_ranks(RANKS, reattach_work, s);
    assert_all_ok(s);
    assert_int_equal(live_in(s), 3 * RANKS);
    s->ends[0][2].fail_at = s->ends[0][2].registrations + 2;
    run_ranks(RANKS, reattach_work, s);
    for (uint32_t i = 0; i < RANKS; i++) {
        assert_int_equal(s->status[i], BP_ERR_COMM);
        assert_non_null(strstr(s->detail[i], "rank 2 of communicator dp: out of window slots"));
        assert_int_equal(live_windows(&s->ends[0][i]),
                         1); /* of the earlier slab, which the pool's owner unmaps again */
    }
    run_ranks(RANKS, reattach_work, s);
    assert_all_ok(s);
    assert_int_equal(live_in(s), 3 * RANKS);
    for (uint32_t i = 0; i < RANKS; i++)
        assert_ok(bp_comm_abort(s->handles[0][i]));
    run_ranks(RANKS, reattach_work, s); /* the pool works without the registration */
    assert_all_ok(s);
    assert_non_null(strstr(window_of(s->made[1], 0).because, "was aborted"));
    destroy(s);
    close_scene(s);
}

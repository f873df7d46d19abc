/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of random training programs: checked against all recorded steps by naive comparisons of intervals, and played by a
 * server. */
#include "support/harness.h"

#include <bucketpool/step_serve.h>

#include "step_programs.h"
#include "support/brief.h"
#include "support/shortage.h"

/* ---- a program and its plan ---------------------------------------------------------------------------------------- */

/* An allocation of a program: events [begin, end). */
typedef struct lived {
    uint64_t bytes, begin, end;
    uint32_t stream;
    const bp_step_plan_kind *kind; /* NULL: of no recorded step that the plan has in full */
    uint32_t item, step;           /* steps are counted from the beginning of the program */
} lived;

typedef struct lives {
    lived *all;
    size_t count;
} lives;

static uint64_t taken(uint64_t bytes)
{
    return (bytes + BP_STEP_ALIGNMENT - 1) / BP_STEP_ALIGNMENT * BP_STEP_ALIGNMENT;
}

static uint64_t offset_of(const lived *a)
{
    return a->kind == NULL ? BP_STEP_OUTSIDE : a->kind->items[a->item].offset;
}

static lives find_lives(const step_program *p)
{
    lives found = {.all = calloc(p->count + 1, sizeof *found.all)};
    assert_non_null(found.all);
    for (size_t i = 0; i < p->count; i++) {
        if (p->events[i].action != BP_STEP_ALLOCATE)
            continue;
        size_t k = i + 1;
        while (k < p->count && (p->events[k].action != BP_STEP_FREE || p->events[k].address != p->events[i].address))
            k++;
        found.all[found.count++] =
            (lived){.bytes = p->events[i].bytes, .begin = i, .end = k, .stream = p->events[i].stream};
    }
    return found;
}

static bool matches(const lives *l, size_t first, const bp_step_plan_kind *kind)
{
    if (kind->item_count == 0 || kind->item_count > l->count - first)
        return false;
    for (size_t i = 0; i < kind->item_count; i++) {
        if (kind->items[i].bytes != l->all[first + i].bytes || kind->items[i].stream != l->all[first + i].stream)
            return false;
    }
    return true;
}

/* Gives allocations their items: the first kind once, then the longest kind that is there. Returns how many have one. */
static size_t find_items(lives *l, const bp_step_plan_info *info)
{
    size_t matched = 0;
    uint32_t step = 0;
    for (size_t first = 0; first < l->count;) {
        const bp_step_plan_kind *best = NULL;
        for (size_t k = 0; k < info->kind_count; k++) {
            const bp_step_plan_kind *kind = &info->kinds[k];
            if ((kind->is_first != 0) == (first == 0) && matches(l, first, kind) &&
                (best == NULL || kind->item_count > best->item_count))
                best = kind;
        }
        for (size_t i = 0; best != NULL && i < best->item_count; i++) {
            l->all[first + i].kind = best;
            l->all[first + i].item = (uint32_t)i;
            l->all[first + i].step = step;
        }
        step++;
        matched += best != NULL ? best->item_count : 0;
        first += best != NULL ? best->item_count : 1;
    }
    return matched;
}

static bool share_bytes(const lived *a, const lived *b)
{
    const uint64_t at = offset_of(a), other = offset_of(b);
    return at != BP_STEP_OUTSIDE && other != BP_STEP_OUTSIDE && at < other + taken(b->bytes) &&
           other < at + taken(a->bytes);
}

/* No two allocations that are live together share a byte, and all are in the slab. */
static void check_addresses(const lives *l, const bp_step_plan_info *info)
{
    for (size_t i = 0; i < l->count; i++) {
        if (offset_of(&l->all[i]) == BP_STEP_OUTSIDE)
            continue;
        assert_int_equal(offset_of(&l->all[i]) % BP_STEP_ALIGNMENT, 0);
        assert_true(offset_of(&l->all[i]) + taken(l->all[i].bytes) <= info->bytes);
        for (size_t k = i + 1; k < l->count && l->all[k].begin < l->all[i].end; k++) {
            if (share_bytes(&l->all[i], &l->all[k]))
                fail_msg("allocations %zu and %zu are live together", i, k);
        }
    }
}

static bp_step_plan *plan_of(const step_program *p, const bp_step_plan_config *config)
{
    bp_step_plan *plan = NULL;
    assert_ok(bp_step_plan_create(p->events, p->count, config, &plan));
    return plan;
}

static bp_step_plan_config config_with(uint32_t lead)
{
    bp_step_plan_config config;
    assert_ok(bp_step_plan_config_init(&config, sizeof config));
    config.work = 1 << 20;
    config.lead = lead;
    return config;
}

static size_t count_first(const bp_step_plan_info *info)
{
    size_t count = 0;
    for (size_t k = 0; k < info->kind_count; k++)
        count += info->kinds[k].is_first;
    return count;
}

/* ---- addresses ----------------------------------------------------------------------------------------------------- */

static step_program random_program(uint64_t seed, unsigned steps, bool has_streams)
{
    step_program p;
    uint64_t random = seed * 2654435761u + 1;
    const unsigned layers = 2 + (unsigned)(random >> 8) % 8;
    const step_shape shapes[] = {
        {.layers = layers, .scale = 2, .has_streams = has_streams, .optimizers = 1, .frees_late = seed % 3 == 0},
        {.layers = layers, .scale = 5, .has_streams = has_streams, .optimizers = 1, .frees_late = seed % 3 == 0},
        {.layers = layers, .scale = 2, .has_streams = has_streams, .optimizers = 1, .evaluates = true},
    };
    program_build(&p, seed, layers);
    for (unsigned i = 0; i < steps; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        program_step(&p, &shapes[i < 2 ? 0 : (random >> 40) % (1 + seed % 3)]);
    }
    return p;
}

/* A kind ends with its highest item that is not outside, and its bound counts no others. */
static void check_kinds(const bp_step_plan_info *info)
{
    uint64_t highest = 0;
    for (size_t k = 0; k < info->kind_count; k++) {
        const bp_step_plan_kind *kind = &info->kinds[k];
        uint64_t end = 0;
        for (size_t i = 0; i < kind->item_count; i++) {
            const bp_step_plan_item *item = &kind->items[i];
            const uint64_t bytes = (item->bytes + BP_STEP_ALIGNMENT - 1) / BP_STEP_ALIGNMENT * BP_STEP_ALIGNMENT;
            if (item->offset != BP_STEP_OUTSIDE && item->offset + bytes > end)
                end = item->offset + bytes;
        }
        assert_int_equal(kind->bytes, end);
        assert_true(kind->lower_bound_bytes <= kind->bytes && kind->lower_bound_bytes <= kind->proven_bytes);
        highest = end > highest ? end : highest;
    }
    assert_int_equal(info->bytes, highest);
}

TEST(addresses_of_random_programs)
{
    for (unsigned seed = 0; seed < (unsigned)share_of(60); seed++) {
        step_program p = random_program(seed, 3 + seed % 9, seed % 2 == 1);
        const bp_step_plan_config config = config_with(seed % 4 == 0 ? 0 : seed % 4 == 1 ? BP_STEP_LEAD_AUTO : 9);
        SCOPED(bp_step_plan_destroy) bp_step_plan *plan = plan_of(&p, &config);
        const bp_step_plan_info *info = bp_step_plan_get_info(plan);
        lives l = find_lives(&p);
        const size_t matched = find_items(&l, info);
        assert_int_equal(count_first(info), 1);
        assert_int_equal(matched, l.count);
        check_addresses(&l, info);
        assert_true(info->bytes_without_windows <= info->bytes);
        if (config.lead == BP_STEP_LEAD_AUTO)
            assert_true(info->bytes - info->bytes_without_windows <=
                        (info->bytes_without_windows + info->persistent_bytes) / 50);
        assert_true(info->lower_bound_bytes <= info->bytes);
        check_kinds(info);
        free(l.all);
        program_finish(&p);
    }
}

/* The first step has the sizes of other steps, and memory that stays. */
TEST(first_step)
{
    for (unsigned late = 0; late < 2; late++) {
        const step_shape shape = {.layers = 6, .scale = 3, .optimizers = 1, .frees_late = late};
        step_program p;
        program_build(&p, 5, 6);
        for (unsigned i = 0; i < 4; i++)
            program_step(&p, &shape);
        bp_step_plan_config config = config_with(0);
        SCOPED(bp_step_plan_destroy) bp_step_plan *plan = plan_of(&p, &config);
        config.is_from_start = 0;
        SCOPED(bp_step_plan_destroy) bp_step_plan *without = plan_of(&p, &config);
        const bp_step_plan_info *info = bp_step_plan_get_info(plan), *steady = bp_step_plan_get_info(without);
        assert_int_equal(info->kind_count, 2);
        assert_int_equal(steady->kind_count, 1);
        assert_int_equal(info->bytes, steady->bytes);
        assert_int_equal(info->persistent_bytes, steady->persistent_bytes);
        const bp_step_plan_kind *kind = &info->kinds[1];
        assert_memory_equal(info->kinds[0].items, steady->kinds[0].items,
                            steady->kinds[0].item_count * sizeof *kind->items);
        assert_true(kind->is_first);
        lives l = find_lives(&p);
        find_items(&l, info);
        size_t planned = 0;
        for (size_t i = 0; i < kind->item_count; i++) {
            if (l.all[i].end == p.count) /* parameters and the optimizer's state */
                assert_int_equal(kind->items[i].offset, BP_STEP_OUTSIDE);
            planned += kind->items[i].offset != BP_STEP_OUTSIDE;
        }
        assert_true(planned >= 6 * 5); /* activations and gradients */
        free(l.all);
        program_finish(&p);
    }
}

/* Two networks take turns: the first step contains the first updates of both, which make the state of their optimizers. */
TEST(first_round)
{
    const step_shape maker = {.layers = 5, .scale = 2, .optimizers = 1},
                     critic = {.layers = 5, .scale = 5, .optimizers = 1};
    step_program p;
    program_build(&p, 4, 5);
    for (unsigned i = 0; i < 5; i++) {
        p.marks = i; /* 0: makes the optimizer's state */
        program_step(&p, &maker);
        p.marks = i;
        program_step(&p, &critic);
    }
    const bp_step_plan_config config = config_with(0);
    SCOPED(bp_step_plan_destroy) bp_step_plan *plan = plan_of(&p, &config);
    const bp_step_plan_info *info = bp_step_plan_get_info(plan);
    lives l = find_lives(&p);
    assert_int_equal(info->kind_count, 2);
    assert_true(info->kinds[1].is_first && info->kinds[1].mark_count >= 1);
    for (size_t i = info->kinds[1].item_count; i < l.count; i++)
        assert_true(l.all[i].end < p.count);
    find_items(&l, info);
    check_addresses(&l, info);
    free(l.all);
    program_finish(&p);
}

/* The first step needs more than the others: the slab is that of the others. */
TEST(large_first_step)
{
    const step_shape large = {.layers = 5, .scale = 20, .optimizers = 1},
                     small = {.layers = 5, .scale = 1, .optimizers = 1};
    step_program p;
    program_build(&p, 8, 5);
    program_step(&p, &large);
    for (unsigned i = 0; i < 4; i++)
        program_step(&p, &small);
    bp_step_plan_config config = config_with(0);
    SCOPED(bp_step_plan_destroy) bp_step_plan *plan = plan_of(&p, &config);
    config.is_from_start = 0;
    SCOPED(bp_step_plan_destroy) bp_step_plan *without = plan_of(&p, &config);
    const bp_step_plan_info *info = bp_step_plan_get_info(plan);
    lives l = find_lives(&p);
    assert_int_equal(info->bytes, bp_step_plan_get_info(without)->bytes);
    assert_int_equal(find_items(&l, info), l.count);
    check_addresses(&l, info);
    assert_true(info->kinds[1].bytes <= info->bytes && info->kinds[1].lower_bound_bytes <= info->bytes);
    size_t planned = 0;
    for (size_t i = 0; i < info->kinds[1].item_count; i++)
        planned += info->kinds[1].items[i].offset != BP_STEP_OUTSIDE;
    assert_true(planned >= 5); /* gradients, for example */
    free(l.all);
    program_finish(&p);
}

/* Lengths in random order: gradients live into steps of other kinds. */
TEST(kinds_in_random_order)
{
    for (unsigned late = 0; late < 2; late++) {
        step_program p;
        const unsigned order[] = {0, 1, 2, 1, 0, 0, 2, 2, 1, 0, 1, 1, 2, 0};
        program_build(&p, 3, 5);
        for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
            const step_shape shape = {.layers = 5, .scale = 1 + 3 * order[i], .optimizers = 1, .frees_late = late};
            program_step(&p, &shape);
        }
        const bp_step_plan_config config = config_with(0);
        SCOPED(bp_step_plan_destroy) bp_step_plan *plan = plan_of(&p, &config);
        const bp_step_plan_info *info = bp_step_plan_get_info(plan);
        lives l = find_lives(&p);
        assert_int_equal(info->kind_count, 4);
        assert_int_equal(find_items(&l, info), l.count);
        check_addresses(&l, info);
        for (size_t k = 0; k < 3; k++) {
            for (size_t i = 0; i < info->kinds[k].item_count; i++)
                assert_int_not_equal(info->kinds[k].items[i].offset, BP_STEP_OUTSIDE);
            assert_int_equal(info->kinds[k].mark_count, 1);
            assert_int_equal(info->kinds[k].marks[0], 0);
        }
        assert_true(info->bytes <= info->lower_bound_bytes + late * info->lower_bound_bytes / 10);
        free(l.all);
        program_finish(&p);
    }
}

/* A step with an evaluation behind it begins as others: its items have the same addresses. */
TEST(common_prefix)
{
    step_program p;
    const bool order[] = {false, true, false, false, true, true, false, true, false, false};
    program_build(&p, 4, 6);
    for (size_t i = 0; i < sizeof order / sizeof *order; i++)
        program_step(&p, &(step_shape){.layers = 6, .scale = 3, .optimizers = 1, .evaluates = order[i]});
    const bp_step_plan_config config = config_with(0);
    SCOPED(bp_step_plan_destroy) bp_step_plan *plan = plan_of(&p, &config);
    const bp_step_plan_info *info = bp_step_plan_get_info(plan);
    assert_int_equal(info->kind_count, 3);
    const bp_step_plan_kind *a = &info->kinds[0], *b = &info->kinds[1];
    size_t same = 0, shared = 0;
    while (same < a->item_count && same < b->item_count && a->items[same].bytes == b->items[same].bytes) {
        shared += a->items[same].offset == b->items[same].offset;
        same++;
    }
    assert_true(same > 6 * 4);
    assert_int_equal(shared, same);
    assert_int_equal(info->bytes, info->lower_bound_bytes);
    program_finish(&p);
}

TEST(deterministic)
{
    step_program p = random_program(13, 8, true);
    SCOPED(bp_step_plan_destroy) bp_step_plan *a = plan_of(&p, NULL);
    SCOPED(bp_step_plan_destroy) bp_step_plan *b = plan_of(&p, NULL);
    const bp_step_plan_info *x = bp_step_plan_get_info(a), *y = bp_step_plan_get_info(b);
    assert_int_equal(x->kind_count, y->kind_count);
    for (size_t k = 0; k < x->kind_count; k++) {
        assert_int_equal(x->kinds[k].item_count, y->kinds[k].item_count);
        assert_memory_equal(x->kinds[k].items, y->kinds[k].items, x->kinds[k].item_count * sizeof *x->kinds[k].items);
    }
    program_finish(&p);
}

/* ---- marks --------------------------------------------------------------------------------------------------------- */

TEST(several_optimizers)
{
    for (unsigned optimizers = 1; optimizers <= 3; optimizers++) {
        step_program p;
        program_build(&p, 6, 6);
        for (unsigned i = 0; i < 5; i++)
            program_step(&p, &(step_shape){.layers = 6, .scale = 2, .optimizers = optimizers});
        const bp_step_plan_config config = config_with(0);
        SCOPED(bp_step_plan_destroy) bp_step_plan *plan = plan_of(&p, &config);
        const bp_step_plan_info *info = bp_step_plan_get_info(plan);
        assert_int_equal(info->kind_count, 2);
        const bp_step_plan_kind *kind = &info->kinds[0];
        assert_int_equal(kind->mark_count, optimizers);
        assert_int_equal(kind->steps, 4);
        assert_int_equal(kind->marks[0], 0);
        for (size_t i = 1; i < optimizers; i++) /* an optimizer makes a temporary for each of its layers */
            assert_int_equal(kind->marks[i], kind->item_count - (optimizers - i) * 6 / optimizers);
        assert_int_equal(info->outside_bytes, 0); /* gradients are planned */
        program_finish(&p);
    }
}

/* Without marks, the part that repeats. */
TEST(no_marks)
{
    step_program p;
    program_build(&p, 6, 6);
    for (unsigned i = 0; i < 7; i++)
        program_step(&p, &(step_shape){.layers = 6, .scale = 2, .optimizers = 1});
    size_t count = 0;
    for (size_t i = 0; i < p.count; i++) {
        if (p.events[i].action != BP_STEP_MARK)
            p.events[count++] = p.events[i];
    }
    p.count = count;
    SCOPED(bp_step_plan_destroy) bp_step_plan *plan = plan_of(&p, NULL);
    const bp_step_plan_info *info = bp_step_plan_get_info(plan);
    for (size_t k = 0; k < info->kind_count; k++)
        assert_int_equal(info->kinds[k].mark_count, 0);
    assert_int_equal(info->kinds[0].item_count, 1 + 6 * 2 + 6 * 2 + 6);
    program_finish(&p);
}

/* ---- windows ------------------------------------------------------------------------------------------------------- */

TEST(windows)
{
    for (unsigned seed = 1; seed < 40; seed += 2) {
        for (uint32_t lead = 1; lead <= 16; lead *= 4) {
            step_program p = random_program(seed * 3, 5, true);
            size_t kept = 0; /* leads count events without marks: give all events numbers without them */
            const bp_step_plan_config config = config_with(lead);
            SCOPED(bp_step_plan_destroy) bp_step_plan *plan = plan_of(&p, &config);
            const bp_step_plan_info *info = bp_step_plan_get_info(plan);
            for (size_t i = 0; i < p.count; i++) {
                if (p.events[i].action != BP_STEP_MARK)
                    p.events[kept++] = p.events[i];
            }
            p.count = kept;
            lives l = find_lives(&p);
            find_items(&l, info);
            size_t checked = 0;
            for (size_t i = 0; i < l.count; i++) {
                const lived *a = &l.all[i];
                if (a->kind == NULL || a->kind->is_first || a->stream == 0)
                    continue;
                for (size_t k = 0; k < i; k++) {
                    const lived *b = &l.all[k];
                    if (b->step == a->step && b->end + lead > a->begin && share_bytes(a, b))
                        fail_msg("seed %u: allocation %zu is in the window of %zu", seed, k, i);
                    checked++;
                }
            }
            assert_true(checked > 0);
            free(l.all);
            program_finish(&p);
        }
    }
}

/* A window costs what is live in it; those of BP_STEP_LEAD_AUTO at most 2 %. */
TEST(cost_of_windows)
{
    bp_step_event events[200];
    size_t count = 0;
    for (uint64_t step = 0; step < 4; step++) {
        const uint64_t base = (step + 1) << 32;
        for (uint64_t layer = 0; layer < 3; layer++) {
            const bp_step_event layer_events[] = {
                {.address = base + 1 + 4 * layer, .bytes = 4096, .stream = 1, .action = BP_STEP_ALLOCATE},
                {.address = base + 2 + 4 * layer, .bytes = 1024, .action = BP_STEP_ALLOCATE},
                {.address = base + 1 + 4 * layer, .action = BP_STEP_FREE},
                {.address = base + 3 + 4 * layer, .bytes = 3072, .action = BP_STEP_ALLOCATE},
                {.address = base + 2 + 4 * layer, .action = BP_STEP_FREE},
                {.address = base + 3 + 4 * layer, .action = BP_STEP_FREE},
            };
            memcpy(&events[count], layer_events, sizeof layer_events);
            count += sizeof layer_events / sizeof *layer_events;
        }
        events[count++] = (bp_step_event){.action = BP_STEP_MARK};
    }
    const uint64_t expected[][2] = {{0, 5120}, {1, 5120}, {2, 7168}, {3, 8192}, {BP_STEP_LEAD_AUTO, 5120}};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        bp_step_plan_config config = config_with((uint32_t)expected[i][0]);
        config.is_from_start = 0;
        SCOPED(bp_step_plan_destroy) bp_step_plan *plan = NULL;
        assert_ok(bp_step_plan_create(events, count, &config, &plan));
        assert_int_equal(bp_step_plan_get_info(plan)->bytes, expected[i][1]);
        assert_int_equal(bp_step_plan_get_info(plan)->bytes_without_windows, 5120);
    }
}

/* ---- held memory --------------------------------------------------------------------------------------------------- */

TEST(held_memory)
{
    for (unsigned seed = 0; seed < (unsigned)share_of(30); seed++) {
        step_program p = random_program(seed, 6, seed % 2 == 1);
        bp_step_plan_config config = config_with(BP_STEP_LEAD_AUTO);
        SCOPED(bp_step_plan_destroy) bp_step_plan *before = plan_of(&p, &config);
        const uint64_t bytes = bp_step_plan_get_info(before)->bytes;
        const bp_step_held held[] = {{bytes / 3 / 512 * 512, 5120}, {0, 512}, {bytes + 1024, 2048}};
        config.held = held;
        config.held_count = 1 + seed % 3;
        SCOPED(bp_step_plan_destroy) bp_step_plan *plan = plan_of(&p, &config);
        const bp_step_plan_info *info = bp_step_plan_get_info(plan);
        lives l = find_lives(&p);
        assert_int_equal(find_items(&l, info), l.count);
        check_addresses(&l, info);
        for (size_t k = 0; k < info->kind_count; k++) {
            for (size_t i = 0; i < info->kinds[k].item_count; i++) {
                const bp_step_plan_item *item = &info->kinds[k].items[i];
                for (size_t h = 0; h < config.held_count && item->offset != BP_STEP_OUTSIDE; h++)
                    assert_true(item->offset + taken(item->bytes) <= held[h].offset ||
                                held[h].offset + held[h].bytes <= item->offset);
            }
        }
        for (size_t h = 0; h < config.held_count; h++)
            assert_true(held[h].offset + held[h].bytes <= info->bytes);
        assert_true(info->bytes <= 2 * bytes + 4096);
        free(l.all);
        program_finish(&p);
    }
}

/* ---- a server ------------------------------------------------------------------------------------------------------ */

static bool agree(void *context, uint32_t stream, uint64_t point)
{
    (void)context, (void)stream, (void)point;
    return true;
}

static bool agree_to_wait(void *context, uint32_t stream, uint32_t before, uint64_t point)
{
    (void)before;
    return agree(context, stream, point);
}

typedef struct played {
    uint64_t served, waits[3][3]; /* of the last step */
} played;

/* Serves a program, and checks that it gets the planned addresses. The last step begins at mark `last`. */
static played serve(const step_program *p, const lives *l, const bp_step_plan *plan, size_t last)
{
    const bp_step_server_config config = {.size = sizeof config, .record = agree, .wait = agree_to_wait};
    bp_step_server *server = NULL;
    played made = {0};
    size_t next = 0, marks = 0;
    uint64_t *offsets = calloc(p->count + 1, sizeof *offsets); /* by event that frees, and 1 more */
    assert_non_null(offsets);
    assert_ok(bp_step_server_create(plan, &config, &server));
    for (size_t i = 0; i < p->count; i++) {
        const bp_step_event *e = &p->events[i];
        if (e->action == BP_STEP_MARK) {
            bp_step_server_mark(server);
            for (uint32_t a = 0; ++marks == last && a < 3; a++, marks--) {
                for (uint32_t b = 0; b < 3; b++)
                    made.waits[a][b] = bp_step_server_waits(server, a, b);
            }
        } else if (e->action == BP_STEP_ALLOCATE) {
            const lived *a = &l->all[next++];
            uint64_t offset = BP_STEP_OUTSIDE;
            made.served += bp_step_server_allocate(server, e->bytes, e->stream, &offset) == BP_STEP_SERVED;
            if (offset != offset_of(a))
                fail_msg("allocation %zu is at %llu; planned is %llu", next - 1, (unsigned long long)offset,
                         (unsigned long long)offset_of(a));
            offsets[a->end] = offset + 1;
        } else if (offsets[i] > 0) {
            assert_ok(bp_step_server_free(server, offsets[i] - 1, NULL));
        }
    }
    for (uint32_t a = 0; a < 3; a++) {
        for (uint32_t b = 0; b < 3; b++)
            made.waits[a][b] = bp_step_server_waits(server, a, b) - made.waits[a][b];
    }
    bp_step_server_destroy(&server);
    free(offsets);
    return made;
}

/* Waits that the plan foresees. */
static uint64_t planned_waits(const bp_step_plan_info *info, uint32_t waiting, uint32_t before)
{
    for (size_t i = 0; i < info->waits_count; i++) {
        if (info->waits[i].waiting == waiting && info->waits[i].before == before)
            return info->waits[i].waits;
    }
    return 0;
}

TEST(served)
{
    for (unsigned seed = 0; seed < 24; seed++) {
        step_program p;
        const step_shape shape = {.layers = 3 + seed % 6,
                                  .scale = 2,
                                  .has_streams = seed % 2 == 0,
                                  .optimizers = 1 + seed % 2,
                                  .frees_late = seed % 3 == 0};
        program_build(&p, seed, shape.layers);
        for (unsigned i = 0; i < 6; i++)
            program_step(&p, &shape);
        const bp_step_plan_config config = config_with(seed % 4 == 0 ? 0 : BP_STEP_LEAD_AUTO);
        SCOPED(bp_step_plan_destroy) bp_step_plan *plan = plan_of(&p, &config);
        lives l = find_lives(&p);
        assert_int_equal(find_items(&l, bp_step_plan_get_info(plan)), l.count);
        const played made = serve(&p, &l, plan, p.marks - shape.optimizers);
        size_t planned = 0;
        for (size_t i = 0; i < l.count; i++)
            planned += offset_of(&l.all[i]) != BP_STEP_OUTSIDE;
        assert_int_equal(made.served, planned);
        for (uint32_t a = 0; a < 3; a++) {
            for (uint32_t b = 0; b < 3; b++)
                assert_int_equal(made.waits[a][b], planned_waits(bp_step_plan_get_info(plan), a, b));
        }
        free(l.all);
        program_finish(&p);
    }
}

/* ---- errors -------------------------------------------------------------------------------------------------------- */

TEST(errors)
{
    const bp_step_event good[] = {{.address = 1, .bytes = 512, .action = BP_STEP_ALLOCATE}};
    const bp_step_event action[] = {{.address = 1, .bytes = 512, .action = 7}};
    const bp_step_event stream[] = {{.address = 1, .bytes = 512, .stream = 32, .action = BP_STEP_ALLOCATE}};
    const bp_step_event mark[] = {{.action = BP_STEP_MARK}};
    bp_step_plan *plan = NULL;
    bp_step_plan_config config = config_with(0);
    const bp_step_held held = {.offset = 0, .bytes = 100};
    assert_ok(bp_step_plan_create(good, 1, NULL, &plan));
    bp_step_plan_destroy(&plan);
    assert_fails(bp_step_plan_create(action, 1, NULL, &plan), BP_ERR_INVALID_ARGUMENT, "unknown action 7");
    assert_fails(bp_step_plan_create(stream, 1, NULL, &plan), BP_ERR_INVALID_ARGUMENT, "stream 32");
    assert_fails(bp_step_plan_create(mark, 1, NULL, &plan), BP_ERR_INVALID_ARGUMENT, "no steps");
    assert_fails(bp_step_plan_create(NULL, 1, NULL, &plan), BP_ERR_INVALID_ARGUMENT, "NULL");
    assert_fails(bp_step_plan_create(good, 1, NULL, NULL), BP_ERR_INVALID_ARGUMENT, "NULL");
    config.held = &held;
    config.held_count = 1;
    assert_fails(bp_step_plan_create(good, 1, &config, &plan), BP_ERR_INVALID_ARGUMENT, "100 bytes at 0");
    config.held = NULL;
    assert_fails(bp_step_plan_create(good, 1, &config, &plan), BP_ERR_INVALID_ARGUMENT, "NULL");
    assert_null(plan);
}

/* Each allocation fails in turn. Without memory for it, steps are compared less exactly, and that succeeds. */
TEST(shortage_of_memory)
{
    step_program p;
    program_build(&p, 9, 2);
    for (unsigned i = 0; i < 6; i++)
        program_step(
            &p,
            &(step_shape){
                .layers = 2, .scale = 2 + 4 * (i % 3 == 1), .has_streams = true, .optimizers = 1, .frees_late = true});
    bp_step_plan_config config = config_with(BP_STEP_LEAD_AUTO);
    const bp_step_held held = {.offset = 1024, .bytes = 512};
    config.work = 1;
    for (size_t with = 0; with < 2; with++) {
        config.held = &held;
        config.held_count = with;
        bool failed = true;
        unsigned failures = 0;
        for (unsigned nth = 1; failed; nth += 2) {
            bp_step_plan *plan = NULL;
            begin_shortage(nth);
            const bp_status status = bp_step_plan_create(p.events, p.count, &config, &plan);
            failed = shortage.failed;
            shortage.failed = false;
            shortage.fails = 0;
            if (status != BP_OK) {
                assert_true(failed);
                assert_int_equal(status, BP_ERR_NO_HOST_MEMORY);
                failures++;
            }
            assert_true((plan != NULL) == (status == BP_OK));
            bp_step_plan_destroy(&plan);
        }
        assert_true(failures > 100);
    }
    program_finish(&p);
}

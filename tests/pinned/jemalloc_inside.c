/* SPDX-License-Identifier: Apache-2.0 */
/* Tests in a process with jemalloc: slabs, and the program's malloc beside them. */
#include "jemalloc_ways.h"
#include "support.h"

#include <dlfcn.h>
#include <unistd.h>

#include "devices/pinned/jemalloc.h"

#define SLAB (8 * MIB)

static bp_pinned *new_jemalloc(bp_device *device, uint64_t slab_bytes)
{
    bp_pinned_config config = small_config(BP_PINNED_JEMALLOC, slab_bytes);
    config.planned_bytes = UINT64_MAX;
    return new_pinned(device, &config);
}

/* Memory of the C library is freed by the same malloc, and vice versa, while pieces are allocated and freed. */
static void test_malloc_is_coherent(void **state)
{
    DEVICE *device = new_device();
    bp_pinned *pinned = new_jemalloc(device, SLAB);
    for (unsigned i = 1; i < 2000; i++) {
        char text[600], *printed = NULL, *line = NULL;
        size_t room = 0;
        void *piece;
        memset(text, 'x', sizeof text - 1);
        text[i % 600] = '\0';
        text[sizeof text - 1] = '\0';
        assert_ok(bp_pinned_allocate(pinned, i * 7, 0, &piece));
        char *copy = strdup(text);
        assert_true(asprintf(&printed, "%s\n", text) >= 0);
        FILE *stream = fmemopen(printed, strlen(printed), "r");
        assert_true(getline(&line, &room, stream) > 0);
        fclose(stream);
        assert_false(is_pinned(copy, 1));
        assert_memory_equal(line, copy, strlen(copy));
        copy = realloc(copy, 5000);
        assert_non_null(copy);
        free(copy);
        free(printed);
        free(line);
        assert_ok(bp_pinned_free(pinned, piece));
    }
    free(strdup("the one that is easy to get wrong"));
    bp_pinned_destroy(&pinned);
}

/* All pieces are inside the slab, also when it is full; afterwards it can be allocated as a whole again. */
static void test_slab_recovers(void **state)
{
    DEVICE *device = new_device();
    const uint64_t odd[] = {SLAB, 64 * MIB, SLAB + 4 * KIB, 9 * MIB + 100 * KIB, 192 * KIB};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        bp_pinned *pinned = new_jemalloc(device, odd[i]);
        const uint64_t whole = odd[i] / 16 * 13; /* the next size class below is nearer than that */
        unsigned refused = 0;
        for (uint64_t seed = 0; seed < 3; seed++) {
            void *piece, *more = NULL;
            walk(pinned, seed, 900, odd[i] / 4, &refused);
            assert_ok(bp_pinned_allocate(pinned, whole, 0, &piece));
            memset(piece, 1, whole);
            assert_true(is_pinned(piece, whole));
            assert_fails(bp_pinned_allocate(pinned, whole / 2, 0, &more), BP_ERR_NO_HOST_MEMORY, "used by 1 pieces");
            assert_ok(bp_pinned_free(pinned, piece));
            assert_int_equal(statistics_of(pinned).slab_used_bytes, 0);
        }
        assert_true(refused > 0 || odd[i] == 64 * MIB);
        assert_int_equal(pinned_bytes(), odd[i]);
        bp_pinned_destroy(&pinned);
    }
}

/* jemalloc's metadata (2 MiB per arena) is not taken from the slab. */
static void test_slab_is_usable(void **state)
{
    DEVICE *device = new_device();
    bp_pinned *pinned = new_jemalloc(device, 4 * MIB);
    void *pieces[4 * MIB / (4 * KIB)];
    size_t count = 0;
    while (bp_pinned_allocate(pinned, 4 * KIB, 0, &pieces[count]) == BP_OK)
        count++;
    assert_in_range(count * 4 * KIB, 4 * MIB / 8 * 7, 4 * MIB);
    const bp_pinned_statistics s = statistics_of(pinned);
    assert_in_range(s.slab_used_bytes, s.small_bytes, s.slab_bytes);
    while (count > 0)
        assert_ok(bp_pinned_free(pinned, pieces[--count]));
    bp_pinned_destroy(&pinned);
}

/* An empty slab serves small requests at once, whatever it held before. */
static void test_empty_slab_serves_small(void **state)
{
    DEVICE *device = new_device();
    bp_pinned *pinned = new_jemalloc(device, 2 * MIB);
    for (uint64_t bytes = 1; bytes < MIB; bytes = bytes * 3 / 2 + 1) {
        void *piece;
        assert_ok(bp_pinned_allocate(pinned, bytes, 0, &piece));
        assert_ok(bp_pinned_free(pinned, piece));
        walk(pinned, bytes, 200, MIB, NULL);
        assert_ok(bp_pinned_allocate(pinned, 1, 0, &piece));
        assert_ok(bp_pinned_free(pinned, piece));
    }
    bp_pinned_destroy(&pinned);
}

/* Freed memory stays mapped: pages that returned to the system would not be the pinned ones. */
static void test_freed_pages_stay(void **state)
{
    DEVICE *device = new_device();
    bp_pinned *pinned = new_jemalloc(device, SLAB);
    void *piece;
    assert_ok(bp_pinned_allocate(pinned, 6 * MIB, 0, &piece));
    memset(piece, 0x5a, 6 * MIB);
    assert_ok(bp_pinned_free(pinned, piece));
    walk(pinned, 3, 300, 64, NULL);
    const volatile uint8_t *bytes = piece;
    size_t zeros = 0;
    for (uint64_t at = MIB; at < 6 * MIB; at += 4096)
        zeros += bytes[at] == 0;
    assert_int_equal(zeros, 0);
    assert_int_equal(pinned_bytes(), SLAB);
    bp_pinned_destroy(&pinned);
}

static size_t mapped_pages(void)
{
    size_t pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%zu", &pages), 1);
    fclose(file);
    return pages;
}

static unsigned arenas(const bp_jemalloc *jemalloc)
{
    unsigned count = 0;
    size_t bytes = sizeof count;
    assert_int_equal(jemalloc->mallctl("arenas.narenas", &count, &bytes, NULL, 0), 0);
    return count;
}

/* The number of arenas is limited, and each has metadata: destroyed ones are reused. */
static void test_arenas_go(void **state)
{
    char because[BP_JEMALLOC_BECAUSE_BYTES];
    bp_jemalloc jemalloc;
    assert_true(bp_jemalloc_find(&jemalloc, because));
    DEVICE *device = new_device();
    unsigned arenas_before = 0;
    size_t pages_before = 0;
    for (unsigned turn = 0; turn < 300; turn++) {
        if (turn == 20) {
            arenas_before = arenas(&jemalloc);
            pages_before = mapped_pages();
        }
        bp_pinned *pinned = new_jemalloc(device, 256 * KIB);
        void *piece;
        if (turn % 3 > 0)
            assert_ok(bp_pinned_allocate(pinned, 100 * turn % 9000 + 1, 0, &piece));
        if (turn % 3 > 1)
            assert_ok(bp_pinned_free(pinned, piece)); /* else it goes with the slab */
        bp_pinned_destroy(&pinned);
    }
    assert_int_equal(arenas(&jemalloc), arenas_before);
    assert_in_range(mapped_pages(), 0, pages_before + 1024);
}

static size_t dirty_pages(const bp_jemalloc *jemalloc, unsigned index)
{
    uint64_t epoch = 1;
    size_t pages = 0, bytes = sizeof pages;
    char name[64];
    snprintf(name, sizeof name, "stats.arenas.%u.pdirty", index);
    assert_int_equal(jemalloc->mallctl("epoch", NULL, NULL, &epoch, sizeof epoch), 0);
    assert_int_equal(jemalloc->mallctl(name, &pages, &bytes, NULL, 0), 0);
    return pages;
}

/* Of the first arena that is not a default one of jemalloc. */
static bp_extent_hooks *hooks_of_slab(const bp_jemalloc *jemalloc, unsigned *index)
{
    bp_extent_hooks *own = NULL, *hooks = NULL;
    size_t bytes = sizeof(bp_extent_hooks *);
    char name[64];
    assert_int_equal(jemalloc->mallctl("arena.0.extent_hooks", (void *)&own, &bytes, NULL, 0), 0);
    const unsigned count = arenas(jemalloc);
    for (*index = 1; *index < count; ++*index) {
        snprintf(name, sizeof name, "arena.%u.extent_hooks", *index);
        if (jemalloc->mallctl(name, (void *)&hooks, &bytes, NULL, 0) == 0 && hooks != own)
            return hooks;
    }
    return NULL;
}

/* Calls that jemalloc may make at any time: memory at a given address, which is refused, and returning pages, which are pinned. */
static void test_hooks(void **state)
{
    char because[BP_JEMALLOC_BECAUSE_BYTES];
    bp_jemalloc jemalloc;
    unsigned index;
    bool zero = false, commit = false;
    assert_true(bp_jemalloc_find(&jemalloc, because));
    DEVICE *device = new_device();
    bp_pinned *pinned = new_jemalloc(device, SLAB);
    uint8_t *piece;
    assert_ok(bp_pinned_allocate(pinned, 2 * MIB, 0, (void **)&piece));
    bp_extent_hooks *h = hooks_of_slab(&jemalloc, &index);
    assert_non_null(h);
    assert_null(h->alloc(h, piece + 2 * MIB, 4096, 4096, &zero, &commit, index));
    assert_null(h->alloc(h, NULL, MIB, 4096, &zero, &commit, index)); /* it has been given the slab */
    assert_true(h->dalloc(h, piece, 4096, true, index));
    assert_true(h->decommit(h, piece, 4096, 0, 4096, index));
    assert_true(h->purge_lazy(h, piece, 4096, 0, 4096, index));
    assert_true(h->purge_forced(h, piece, 4096, 0, 4096, index));
    assert_false(h->commit(h, piece, 4096, 0, 4096, index));
    assert_false(h->split(h, piece, 8192, 4096, 4096, true, index));
    assert_false(h->merge(h, piece, 4096, piece + 4096, 4096, true, index));
    assert_ok(bp_pinned_free(pinned, piece));
    usleep(20000); /* a background thread, if any, does not purge: memory that it is purging would be missing */
    assert_true(dirty_pages(&jemalloc, index) >= 2 * MIB / 4096);
    bp_pinned_destroy(&pinned);
    assert_null(hooks_of_slab(&jemalloc, &index)); /* none is left behind */
}

static void test_two_at_once(void **state)
{
    DEVICE *device = new_device();
    bp_pinned *a = new_jemalloc(device, SLAB), *b = new_jemalloc(device, SLAB);
    void *in_a, *in_b;
    assert_ok(bp_pinned_allocate(a, 4 * MIB, 0, &in_a));
    assert_ok(bp_pinned_allocate(b, 4 * MIB, 0, &in_b));
    assert_fails(bp_pinned_free(a, in_b), BP_ERR_INVALID_ARGUMENT, "not the address");
    memset(in_a, 1, 4 * MIB);
    bp_pinned_destroy(&a);
    memset(in_b, 2, 4 * MIB);
    assert_ok(bp_pinned_free(b, in_b));
    assert_fails(bp_pinned_free(b, in_b), BP_ERR_INVALID_ARGUMENT, "not the address");
    walk(b, 5, 300, MIB, NULL);
    bp_pinned_destroy(&b);
}

/* More pieces than 2 MiB of metadata can describe. */
static void test_very_many(void **state)
{
    DEVICE *device = new_device();
    bp_pinned *pinned = new_jemalloc(device, 512 * MIB);
    const size_t max = 20000;
    void **pieces = calloc(max, sizeof *pieces);
    assert_non_null(pieces);
    for (size_t i = 0; i < max; i++) {
        assert_ok(bp_pinned_allocate(pinned, 17 * KIB, 0, &pieces[i]));
        memset(pieces[i], (int)i, 16);
    }
    for (size_t i = 0; i < max; i++) {
        const uint8_t *bytes = pieces[i];
        assert_true(bytes[0] == (uint8_t)i && bytes[15] == (uint8_t)i);
        assert_ok(bp_pinned_free(pinned, pieces[i]));
    }
    free(pieces);
    assert_ok(bp_pinned_allocate(pinned, 400 * MIB, 0, &(void *){NULL}));
    bp_pinned_destroy(&pinned);
}

static const char *expected_name;

static void test_name(void **state)
{
    DEVICE *device = new_device();
    bp_pinned *pinned = new_pinned(device, NULL);
    const char *name = statistics_of(pinned).allocator;
    print_message("%s\n", name);
    assert_memory_equal(name, "jemalloc ", 9);
    assert_in_range(strtol(name + 9, NULL, 10), 5, 99);
    assert_non_null(strstr(name, expected_name));
    assert_null(strchr(name, '-'));
    assert_string_equal(statistics_of(pinned).because, "");
    bp_pinned_destroy(&pinned);
    bp_pinned_config plain = small_config(BP_PINNED_PLAIN, 0);
    pinned = new_pinned(device, &plain);
    assert_string_equal(statistics_of(pinned).allocator, "plain");
    assert_string_equal(statistics_of(pinned).because, "");
    bp_pinned_destroy(&pinned);
}

int run_inside(const char *name)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_name),
        cmocka_unit_test(test_malloc_is_coherent),
        cmocka_unit_test(test_slab_recovers),
        cmocka_unit_test(test_slab_is_usable),
        cmocka_unit_test(test_empty_slab_serves_small),
        cmocka_unit_test(test_freed_pages_stay),
        cmocka_unit_test(test_arenas_go),
        cmocka_unit_test(test_hooks),
        cmocka_unit_test(test_two_at_once),
        cmocka_unit_test(test_very_many),
    };
    expected_name = name;
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Pages as the system reports them: huge, on a node, touched, and unmapped after they are freed. */
#include "support.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "devices/pinned/pages.h"

static bool has_no_huge_pages(void)
{
    char modes[64] = "";
    FILE *file = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
    if (file == NULL || fgets(modes, sizeof modes, file) == NULL)
        modes[0] = '\0';
    if (file != NULL)
        fclose(file);
    return strstr(modes, "[never]") != NULL;
}

static uint64_t resident_bytes(void)
{
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%*u %llu", &pages), 1);
    fclose(file);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* True if all pages have physical memory. */
static bool is_touched(void *address, uint64_t bytes)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    unsigned char *present = malloc(bytes / page);
    bool all = present != NULL && mincore(address, bytes, present) == 0;
    for (uint64_t i = 0; all && i < bytes / page; i++)
        all = present[i] & 1;
    free(present);
    return all;
}

TEST(huge_pages)
{
    DEVICE *device = new_device();
    for (int ordinary = 0; ordinary < 2; ordinary++) {
        bp_pinned_config config = small_config(BP_PINNED_PLAIN, 4 * MIB);
        config.no_huge_pages = ordinary;
        bp_pinned *pinned = new_pinned(device, &config);
        void *piece, *small;
        assert_ok(bp_pinned_allocate(pinned, 17 * MIB, 0, &piece));
        const uint64_t huge = bp_huge_bytes(piece, 17 * MIB), counted = statistics_of(pinned).huge_bytes;
        assert_true(is_touched(piece, 17 * MIB));
        if (ordinary) {
            assert_int_equal(huge + counted, 0);
        } else {
            assert_int_equal((uintptr_t)piece % (2 * MIB), 0);
            assert_int_equal(huge, counted); /* of this piece alone */
            if (!has_no_huge_pages() && counted == 0)
                print_message("the system had no huge pages left\n");
            assert_in_range(counted, 0, 16 * MIB);
            assert_true(counted % (2 * MIB) == 0 && (!has_no_huge_pages() || counted == 0));
        }
        assert_ok(bp_pinned_allocate(pinned, 10, 0, &small));
        assert_in_range(statistics_of(pinned).huge_bytes, counted, counted + 4 * MIB);
        bp_pinned_destroy(&pinned);
    }
}

TEST(memory_returns_to_system)
{
    DEVICE *device = new_device();
    PINNED *pinned = new_pinned(device, NULL);
    void *piece;
    const uint64_t before = resident_bytes();
    assert_ok(bp_pinned_allocate(pinned, 64 * MIB, 0, &piece));
    const uint64_t during = resident_bytes(); /* a sanitizer adds to it what it keeps of the memory */
    assert_true(during >= before + 60 * MIB);
    assert_ok(bp_pinned_free(pinned, piece));
    assert_true(resident_bytes() + 60 * MIB <= during);
}

/* An overrun at either end does not reach neighbouring memory. */
TEST(ends)
{
    DEVICE *device = new_device();
    PINNED *pinned = new_pinned(device, NULL);
    void *piece;
    assert_ok(bp_pinned_allocate(pinned, 3 * MIB, 0, &piece));
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], (uint8_t *)piece + 3 * MIB - 1, 1), 1);
    assert_int_equal(write(ends[1], (uint8_t *)piece + 3 * MIB, 1), -1);
    assert_int_equal(write(ends[1], (uint8_t *)piece - 1, 1), -1);
    close(ends[0]);
    close(ends[1]);
}

TEST(touch)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    for (uint64_t pages = 1; pages < 6000; pages = pages * 3 + 1)
        for (uint32_t threads = 1; threads <= BP_MAX_TOUCH_THREADS; threads *= 4) {
            const uint64_t bytes = pages * page;
            uint8_t *memory = mmap(NULL, bytes + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            assert_ptr_not_equal(memory, MAP_FAILED);
            madvise(memory, bytes + page, MADV_NOHUGEPAGE);
            bp_touch(memory, bytes, page, threads);
            assert_true(is_touched(memory, bytes));
            assert_false(is_touched(memory + bytes, page));
            munmap(memory, bytes + page);
        }
    assert_in_range(bp_touch_default_threads(), 1, 8);
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

TEST(node_of_a_file)
{
    char path[] = "/tmp/bucketpool-node-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    close(file);
    const struct {
        const char *text;
        int32_t node;
    } cases[] = {{"0\n", 0}, {"3\n", 3}, {"-1\n", -1}, {"", -1}, {"node\n", -1}, {"99999\n", -1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_file(path, cases[i].text);
        assert_int_equal(bp_numa_read_node(path), cases[i].node);
    }
    unlink(path);
    assert_int_equal(bp_numa_read_node(path), -1);
    char of_device[BP_NUMA_PATH_BYTES];
    bp_numa_path(0, 0x1a, 3, of_device);
    assert_string_equal(of_device, "/sys/bus/pci/devices/0000:1a:03.0/numa_node");
    bp_numa_path(0x10001, 0xff, 0x1f, of_device);
    assert_string_equal(of_device, "/sys/bus/pci/devices/10001:ff:1f.0/numa_node");
}

TEST(node)
{
    bp_device *device = new_device();
    assert_int_equal(bp_numa_node_of(device), -1); /* no cuda device */
    assert_false(bp_numa_is_usable(-1));
    assert_false(bp_numa_is_usable(100000));
    if (!bp_numa_is_usable(0)) {
        end_device(&device);
        skip(); /* a system without nodes, or a sandbox that forbids the choice */
    }
    bp_pinned_config config = small_config(BP_PINNED_PLAIN, 0);
    for (int32_t node = -1; node < 1; node++) {
        config.numa_node = node;
        bp_pinned *pinned = new_pinned(device, &config);
        void *piece;
        int mode = -1;
        unsigned long mask[16] = {0};
        assert_int_equal(statistics_of(pinned).numa_node, node);
        assert_ok(bp_pinned_allocate(pinned, 3 * MIB, 0, &piece));
        assert_int_equal(syscall(SYS_get_mempolicy, &mode, mask, 1025ul, (uint8_t *)piece + 2 * MIB, MPOL_F_ADDR), 0);
        assert_int_equal(mode, node < 0 ? MPOL_DEFAULT : MPOL_PREFERRED);
        assert_int_equal(mask[0], node < 0 ? 0 : 1);
        bp_pinned_destroy(&pinned);
    }
    end_device(&device);
}

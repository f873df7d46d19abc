/* SPDX-License-Identifier: Apache-2.0 */
/* Split batches on a GPU: tokens return unchanged, and lie where the index map says. */
#include "support/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device_batches.h"
#include "packed.h"
#include "support/driver.h"
#include "support/pools.h"

static bp_device *gpu;
static bp_stream *stream;

static int open_devices(void **state)
{
    (void)state;
    gpu = new_cuda();
    return bp_stream_create(gpu, "cp", &stream) == BP_OK ? 0 : 1;
}

static int close_devices(void **state)
{
    (void)state;
    bp_stream_destroy(&stream);
    bp_device_destroy(&gpu);
    return 0;
}

/* From packed order to every rank's local order, side by side, and back. */
TEST(test_round_trip)
{
    static const uint32_t ranks[] = {1, 2, 3, 8};
    static const uint64_t sizes[] = {1, 4, 6, 16, 24, 1040};
    static uint64_t cu[MAX_SEQUENCES + 1];
    bp_cp *cp = new_mover(gpu);
    for (unsigned round = 0; round < rounds(24, 8); round++) {
        seed(70 + round);
        const uint32_t sequences = make_lengths(cu), count = ranks[round % 4];
        const uint64_t bytes = sizes[round % rounds(6, 5)], packed = cu[sequences] * bytes;
        bp_cp_split *split = new_split(cu, sequences, count, 0);
        const uint64_t each = info_of(split).local_tokens * bytes;
        uint8_t *before = new_random_bytes(packed), *after = new_random_bytes(packed);
        uint8_t *from = on_gpu(stream, before, packed), *gathered = on_gpu(stream, NULL, each * count),
                *back = on_gpu(stream, after, packed);
        for (uint32_t rank = 0; rank < count; rank++) {
            bp_cp_split *mine = new_split(cu, sequences, count, rank);
            rearrange(cp, mine, rearrangement_of(mine, BP_CP_PACKED, BP_CP_LOCAL, bytes), from, gathered + rank * each,
                      stream);
            bp_cp_split_destroy(&mine);
        }
        rearrange(cp, split, rearrangement_of(split, BP_CP_GATHERED, BP_CP_PACKED, bytes), gathered, back, stream);
        to_host(stream, after, back, packed);
        assert_memory_equal(after, before, packed);
        give_gpu_memory(back);
        give_gpu_memory(gathered);
        give_gpu_memory(from);
        free(after);
        free(before);
        bp_cp_split_destroy(&split);
    }
    bp_cp_destroy(&cp);
}

/* Labels of the next token, filled, in a tensor with gaps: compared with the index map. */
TEST(test_maps_and_tensors)
{
    static uint64_t cu[MAX_SEQUENCES + 1];
    bp_cp *cp = new_mover(gpu);
    for (unsigned round = 0; round < rounds(12, 6); round++) {
        seed(170 + round);
        const uint32_t sequences = make_lengths(cu), ranks = 1 + random_below(8);
        bp_cp_split *split = new_split(cu, sequences, ranks, random_below(ranks));
        bp_cp_rearrangement r = rearrangement_of(split, BP_CP_PACKED, (bp_cp_order)(round % 4), 4);
        r.shift = (bp_cp_shift)(round % 3);
        const int32_t ignored = -100;
        memcpy(r.fill, &ignored, sizeof ignored);
        r.fill_bytes = sizeof ignored;
        r.to.stride = 12;
        const uint64_t from_bytes = r.from.tokens * 4, to_bytes = r.to.tokens * 12;
        int32_t *before = new_random_bytes(from_bytes), *after = new_memory(to_bytes);
        int64_t *map = new_memory(r.to.tokens * sizeof *map);
        void *from = on_gpu(stream, before, from_bytes), *to = on_gpu(stream, after, to_bytes);
        assert_ok(bp_cp_split_map(split, r.from_order, r.to_order, r.shift, r.to.tokens, map));
        rearrange(cp, split, r, from, to, stream);
        to_host(stream, after, to, to_bytes);
        for (uint64_t i = 0; i < r.to.tokens; i++) {
            assert_int_equal(after[3 * i], map[i] < 0 ? ignored : before[map[i]]);
            assert_true(after[3 * i + 1] == 0 && after[3 * i + 2] == 0);
        }
        give_gpu_memory(to);
        give_gpu_memory(from);
        free(map);
        free(after);
        free(before);
        bp_cp_split_destroy(&split);
    }
    bp_cp_destroy(&cp);
}

int main(int argc, char **argv)
{
    if (!has_driver()) {
        printf("BP_TEST_DRIVER is not the path of a driver\n");
        return 77;
    }
    take_arguments(argc, argv);
    return has_cuda_kernels() ? run_registered(NULL, NULL, open_devices, close_devices) : 77;
}

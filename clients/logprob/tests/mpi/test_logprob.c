/* SPDX-License-Identifier: Apache-2.0 */
/* The client and the fused head with a vocabulary sharded over the processes of the job. */
#include <bucketpool/comm_mpi.h>

#include <mpi.h>

#include "../head/head_shards.h"
#include "../support/hosts.h"
#include "support/pools.h"

static bp_comm *everybody;
static bp_stream *stream;
static uint32_t ranks;

static void check_split(const batch_options *options, split where, uint32_t kernels, bool own_stream)
{
    seed(81);
    batch b = new_batch(options);
    assert_true(sharded_is_true(device, own_stream ? NULL : stream, everybody, &b, where, kernels));
    free_batch(&b);
}

TEST(shards_are_like_one_rank)
{
    FOR_KERNELS(kernels)
    {
        for (int variant = 0; variant < 6; variant++) {
            batch_options options = {.batch = 2,
                                     .sequence = 9,
                                     .columns = 4099,
                                     .dtype = (bp_dtype)(BP_DTYPE_FP32 + variant % 3),
                                     .with_entropy = variant != 1,
                                     .without_logprob = variant == 4,
                                     .masked = variant >= 2,
                                     .in_place = variant == 5,
                                     .temperature = 0.7,
                                     .outside_in_16 = 2};
            check_split(&options, even_split(4099, ranks), kernels->bit, variant % 2 == 0);
            if (ranks > 1)
                check_split(&options, uneven_split(4099, ranks), kernels->bit, variant % 2 == 1);
        }
    }
}

TEST(shards_that_do_not_tile_are_refused)
{
    if (ranks > 1)
        assert_true(bad_shards_are_refused(device, everybody));
}

TEST(heads_are_like_the_truth)
{
    if (!has_products(device))
        skip();
    for (int variant = 0; variant < 6; variant++) {
        head_options o = {.batch = 2,
                          .sequence = 13,
                          .hidden = 24,
                          .columns = 307,
                          .dtype = (bp_dtype)(BP_DTYPE_FP32 + variant % 3),
                          .chunk = 1 + variant * 2,
                          .with_entropy = variant != 1,
                          .masked = variant == 3,
                          .accumulate = variant == 2,
                          .partial = variant == 4,
                          .temperature = 1.1,
                          .outside_in_16 = 2};
        for (int uneven = 0; uneven < (ranks > 1 ? 2 : 1); uneven++) {
            seed(91);
            head_batch h = new_head_batch(&o);
            split where = uneven ? uneven_split(307, ranks) : even_split(307, ranks);
            assert_true(sharded_head_is_true(device, variant % 2 == 0 ? NULL : stream, everybody, &h, where));
            free_head_batch(&h);
        }
    }
}

int main(void)
{
    void *none = NULL;
    if (bp_comm_create_mpi(NULL, 0, &everybody) != BP_OK || open_host(&none) != 0 ||
        bp_stream_create(device, "work", &stream) != BP_OK)
        return 1;
    ranks = bp_comm_get_info(everybody)->ranks;
    int failed = run_suite();
    if (failed != 0)
        MPI_Abort(MPI_COMM_WORLD, 1); /* other processes may be waiting */
    bp_stream_destroy(&stream);
    bp_device_destroy(&device);
    bp_comm_destroy(&everybody);
    return failed != 0;
}

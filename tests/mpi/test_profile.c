/* SPDX-License-Identifier: Apache-2.0 */
/* All ranks write snapshots and traces at once into folders that do not exist yet: test_mpi_profile FOLDER.
 * test_profile_files.py checks the files. */
#include <bucketpool/profile.h>

#include <mpi.h>

#include "support/pools.h"

static const char *folder;

TEST(together)
{
    int rank, ranks;
    char directory[600], coordinates[32];
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    KIT k = open_kit(&ALLOCATORS[2], device_at(0));
    bp_profile *profile = NULL;
    bp_profile_config config;
    assert_ok(bp_profile_config_init(&config, sizeof config));
    snprintf(directory, sizeof directory, "%s/not/yet/there", folder);
    snprintf(coordinates, sizeof coordinates, "d%dt%d", rank / 2, rank % 2);
    config.directory = directory;
    config.rank = (uint32_t)rank;
    config.ranks = (uint32_t)ranks;
    config.coordinates = coordinates;
    config.formats = BP_PROFILE_PICKLE | BP_PROFILE_TRACE;
    assert_ok(bp_profile_create(&k.pool, 1, &config, &profile));
    for (uint64_t step = 0; step < 3; step++) {
        MPI_Barrier(MPI_COMM_WORLD);
        assert_ok(bp_profile_step(profile, step));
        walk(&k, 3, NULL, false);
    }
    bp_profile_destroy(&profile);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    if (argc != 2)
        return 2;
    folder = argv[1];
    int failed = run_suite();
    MPI_Finalize();
    return failed;
}

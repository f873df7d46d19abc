/* SPDX-License-Identifier: Apache-2.0 */
/* Full or broken disks, folders that cannot be created, allocation failures: the call reports them, no partial or
 * temporary file is left, the pools keep working, and the next step is written.
 *
 * Linked with -Wl,--wrap= of the functions below, against the static library. */
#include <bucketpool/profile.h>

#include <errno.h>
#include <signal.h>
#include <sys/resource.h>

#include "folder.h"
#include "support/pools.h"
#include "support/shortage.h"

ssize_t __real_write(int file, const void *data, size_t bytes);
int __real_fsync(int file);
int __real_renameat(int from_folder, const char *from, int to_folder, const char *to);
ssize_t __wrap_write(int file, const void *data, size_t bytes);
int __wrap_fsync(int file);
int __wrap_renameat(int from_folder, const char *from, int to_folder, const char *to);

static bool write_is_odd; /* one byte at a time, with interrupts */
static int write_error, fsync_error, rename_error;
static unsigned writes;

ssize_t __wrap_write(int file, const void *data, size_t bytes)
{
    if (write_error != 0) {
        errno = write_error;
        return -1;
    }
    if (!write_is_odd)
        return __real_write(file, data, bytes);
    if (++writes % 2 == 0) {
        errno = EINTR;
        return -1;
    }
    return __real_write(file, data, bytes > 1000 ? bytes / 2 : bytes);
}

int __wrap_fsync(int file)
{
    errno = fsync_error;
    return fsync_error != 0 ? -1 : __real_fsync(file);
}

int __wrap_renameat(int from_folder, const char *from, int to_folder, const char *to)
{
    errno = rename_error;
    return rename_error != 0 ? -1 : __real_renameat(from_folder, from, to_folder, to);
}

static char folder[64];
static kit k;
static bp_profile *profile;

static int begin(void **state)
{
    strcpy(folder, "/tmp/bp-profile-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return 1;
    static const uint64_t steps[] = {0, 1, 2, 3, 4};
    bp_profile_config config;
    k = open_kit(&ALLOCATORS[1], device_at(0));
    assert_ok(bp_profile_config_init(&config, sizeof config));
    config.directory = folder;
    config.profile_steps = steps;
    config.profile_step_count = 5;
    config.formats = BP_PROFILE_PICKLE | BP_PROFILE_TRACE;
    config.plans = (const bp_plan *const *)&k.plan;
    assert_ok(bp_profile_create(&k.pool, 1, &config, &profile));
    return 0;
}

static int end(void **state)
{
    write_is_odd = false;
    write_error = fsync_error = rename_error = 0;
    bp_profile_destroy(&profile);
    end_kit(&k);
    remove_folder(folder);
    return 0;
}

static void train(void)
{
    for (int i = 0; i < 20; i++) {
        take(&k, param(&k, 0), k.streams[0]);
        drop(&k, param(&k, 0), k.streams[1]);
    }
}

static int files_of(unsigned step)
{
    char path[128];
    snprintf(path, sizeof path, "%s/step_%u", folder, step);
    return count_names(path);
}

/* Writing the previous step fails, but the new one is recorded. */
static void fail_step(uint64_t step, const char *why)
{
    train();
    assert_fails(bp_profile_step(profile, step), BP_ERR_IO, folder, why);
    assert_int_equal(bp_profile_get_info(profile)->recording, 1);
    assert_true(files_of((unsigned)step - 1) <= 0);
    train();
}

TEST_WITHIN(disks, begin, end)
{
    assert_ok(bp_profile_step(profile, 0));
    write_error = ENOSPC;
    fail_step(1, strerror(ENOSPC));
    write_error = 0, fsync_error = EIO;
    fail_step(2, strerror(EIO));
    fsync_error = 0, rename_error = EACCES;
    fail_step(3, strerror(EACCES));
    rename_error = 0;
    assert_string_equal(bp_profile_get_info(profile)->pickle_path, "");
    assert_ok(bp_profile_step(profile, 4));
    assert_int_equal(files_of(3), 2);
}

/* A file size limit (RLIMIT_FSIZE) has the same effect. */
TEST_WITHIN(limit_of_size, begin, end)
{
    struct rlimit before, little;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    little = before;
    little.rlim_cur = 1000;
    signal(SIGXFSZ, SIG_IGN);
    assert_ok(bp_profile_step(profile, 0));
    train();
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
    bp_status status = bp_profile_step(profile, 1);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_fails(status, BP_ERR_IO, folder, strerror(EFBIG));
    assert_int_equal(files_of(0), 0);
    assert_ok(bp_profile_step(profile, 2));
    assert_int_equal(files_of(1), 2);
}

TEST_WITHIN(odd_writes, begin, end)
{
    char whole[128], pieces[128];
    snprintf(whole, sizeof whole, "%s/whole", folder);
    snprintf(pieces, sizeof pieces, "%s/pieces", folder);
    assert_ok(bp_profile_step(profile, 0));
    train();
    assert_ok(bp_profile_stop(profile));
    assert_ok(bp_profile_write(profile, BP_PROFILE_PICKLE, whole));
    write_is_odd = true;
    assert_ok(bp_profile_write(profile, BP_PROFILE_PICKLE, pieces));
    struct stat a, b;
    assert_int_equal(stat(whole, &a), 0);
    assert_int_equal(stat(pieces, &b), 0);
    assert_int_equal(a.st_size, b.st_size);
    assert_true(writes > 2);
}

TEST_WITHIN(paths, begin, end)
{
    char path[256];
    snprintf(path, sizeof path, "%s/step_0", folder);
    FILE *file = fopen(path, "w"); /* a file at the folder's path */
    assert_non_null(file);
    fclose(file);
    assert_ok(bp_profile_step(profile, 0));
    train();
    assert_fails(bp_profile_step(profile, 1), BP_ERR_IO, path, strerror(ENOTDIR));
    assert_int_equal(bp_profile_get_info(profile)->recording, 1);
    assert_ok(bp_profile_step(profile, 2));
    snprintf(path, sizeof path, "%s/nowhere/file", folder);
    assert_fails(bp_profile_write(profile, BP_PROFILE_PICKLE, path), BP_ERR_IO, path, strerror(ENOENT));
    assert_fails(bp_profile_write(profile, BP_PROFILE_PICKLE, folder), BP_ERR_IO, folder, strerror(EISDIR));
    assert_fails(bp_profile_write(profile, BP_PROFILE_TRACE, "/dev/full"), BP_ERR_IO, "/dev/full", strerror(ENOSPC));
    assert_ok(bp_profile_write(profile, BP_PROFILE_TRACE, "/dev/null")); /* devices are written to, not replaced */
    struct stat about;
    assert_int_equal(stat("/dev/null", &about), 0);
    assert_true(S_ISCHR(about.st_mode));
    assert_fails(bp_profile_write(profile, 3, path), BP_ERR_INVALID_ARGUMENT, "one format");
    assert_fails(bp_profile_write(profile, BP_PROFILE_PICKLE, ""), BP_ERR_INVALID_ARGUMENT, "path");
    assert_fails(bp_profile_write(NULL, BP_PROFILE_PICKLE, path), BP_ERR_INVALID_ARGUMENT, "profile");
}

/* Runs as another user: root may write anywhere. */
TEST_WITHIN(folder_of_others, begin, end)
{
    char path[128];
    snprintf(path, sizeof path, "%s/step_0", folder);
    assert_ok(bp_profile_step(profile, 0));
    assert_int_equal(mkdir(path, 0500), 0);
    bool is_root = geteuid() == 0;
    if (is_root) {
        assert_int_equal(chmod(folder, 0755), 0);
        assert_int_equal(seteuid(65534), 0);
    }
    bp_status status = bp_profile_step(profile, 1);
    if (is_root)
        assert_int_equal(seteuid(0), 0);
    assert_fails(status, BP_ERR_IO, path, strerror(EACCES));
    assert_int_equal(count_names(path), 0);
    assert_ok(bp_profile_step(profile, 2));
    assert_int_equal(files_of(1), 2);
}

TEST_WITHIN(no_memory, begin, end)
{
    const unsigned long before = shortage.failures;
    char path[128];
    bp_profile_destroy(&profile);
    bp_profile_config config;
    assert_ok(bp_profile_config_init(&config, sizeof config));
    config.directory = folder;
    config.formats = BP_PROFILE_PICKLE | BP_PROFILE_TRACE;
    config.plans = (const bp_plan *const *)&k.plan;
    FAIL_EACH(bp_profile_create(&k.pool, 1, &config, &profile));
    snprintf(path, sizeof path, "%s/now", folder);
    take(&k, param(&k, 1), k.streams[0]);
    assert_ok(bp_profile_step(profile, 0));
    train();
    FAIL_EACH(bp_profile_write(profile, BP_PROFILE_PICKLE, path));
    FAIL_EACH(bp_profile_write(profile, BP_PROFILE_TRACE, path));
    assert_int_equal(count_names(folder), 1); /* no other file is left */
    for (unsigned nth = 1; nth < 30; nth++) { /* a step that cannot be written ends nevertheless */
        begin_shortage(nth);
        MET_SHORTAGE(bp_profile_step(profile, 1));
        assert_int_equal(bp_profile_get_info(profile)->recording, 1);
        train();
    }
    assert_ok(bp_profile_stop(profile));
    drop(&k, param(&k, 1), k.streams[0]);
    assert_true(shortage.failures - before > 20);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Finding the loaded copy of NCCL. Each case runs in a separate process, as this program is not linked with NCCL.
 * Arguments: the folders of the emulation's copies: the newest, 2.19, 2.18. */
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comms/nccl.h"
#include "support/suite/suite.h"

enum { NEWEST, V2_19, V2_18, FOLDERS };
static const char *folders[FOLDERS];

static bool load(int folder, int flags)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/libnccl.so.2", folders[folder]);
    bool loaded = dlopen(path, RTLD_NOW | flags) != NULL;
    if (!loaded)
        fprintf(stderr, "%s\n", dlerror());
    return loaded;
}

static bool is_refused(bp_status expected, const char *word, const char *second)
{
    bp_nccl_functions functions = {.size = sizeof functions};
    bp_status status = bp_nccl_find(&functions);
    bool as_expected = status == expected && strstr(bp_error_detail(), word) != NULL &&
                       strstr(bp_error_detail(), second) != NULL && functions.ncclGetVersion == NULL &&
                       functions.ncclCommRegister == NULL;
    if (!as_expected)
        fprintf(stderr, "%s: %s\n", bp_status_name(status), bp_error_detail());
    return as_expected;
}

static bool is_found(int version, bool buffers, bool windows)
{
    bp_nccl_functions f = {.size = sizeof f};
    bp_status status = bp_nccl_find(&f);
    if (status != BP_OK) {
        fprintf(stderr, "%s: %s\n", bp_status_name(status), bp_error_detail());
        return false;
    }
    int found = 0;
    return f.size == sizeof f && f.ncclGetVersion(&found) == 0 && found == version && f.ncclGetErrorString != NULL &&
           f.ncclGetLastError != NULL && f.ncclCommCount != NULL && f.ncclCommUserRank != NULL &&
           f.ncclCommCuDevice != NULL && f.ncclCommGetAsyncError != NULL && f.ncclCommAbort != NULL &&
           f.ncclAllGather != NULL && f.ncclAllReduce != NULL && f.ncclReduceScatter != NULL &&
           (f.ncclCommRegister != NULL) == buffers && (f.ncclCommDeregister != NULL) == buffers &&
           (f.ncclCommWindowRegister != NULL) == windows && (f.ncclCommWindowDeregister != NULL) == windows;
}

/* ---- cases --------------------------------------------------------------------------------------------------------- */

static bool none_is_loaded(void)
{
    return is_refused(BP_ERR_UNSUPPORTED, "NCCL", "") && dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD) == NULL;
}

static bool too_old(void)
{
    return load(V2_18, RTLD_LOCAL) && is_refused(BP_ERR_UNSUPPORTED, "2.18.5", "2.19");
}

static bool without_windows(void)
{
    return load(V2_19, RTLD_LOCAL) && is_found(21903, true, false);
}

static bool with_windows(void)
{
    return load(NEWEST, RTLD_LOCAL) && is_found(23007, true, true);
}

static bool loaded_for_everybody(void)
{
    return load(NEWEST, RTLD_GLOBAL) && is_found(23007, true, true);
}

static bool loaded_twice_is_one_copy(void)
{
    return load(NEWEST, RTLD_LOCAL) && load(NEWEST, RTLD_GLOBAL) && is_found(23007, true, true);
}

static bool several_copies(void)
{
    return load(V2_19, RTLD_LOCAL) && load(NEWEST, RTLD_GLOBAL) &&
           is_refused(BP_ERR_UNSUPPORTED, folders[V2_19], folders[NEWEST]);
}

/* ---- processes ----------------------------------------------------------------------------------------------------- */

static void assert_in_child(bool (*holds)(void))
{
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(holds() ? 0 : 1);
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

#define IN_CHILD(name)                                                                                                 \
    TEST(name)                                                                                                         \
    {                                                                                                                  \
        assert_in_child(name);                                                                                         \
    }

IN_CHILD(none_is_loaded)
IN_CHILD(too_old)
IN_CHILD(without_windows)
IN_CHILD(with_windows)
IN_CHILD(loaded_for_everybody)
IN_CHILD(loaded_twice_is_one_copy)
IN_CHILD(several_copies)

int main(int count, char **arguments)
{
    if (count != FOLDERS + 1) {
        fprintf(stderr, "usage: %s NEWEST V2_19 V2_18\n", arguments[0]);
        return 2;
    }
    for (int i = 0; i < FOLDERS; i++)
        folders[i] = arguments[i + 1];
    return run_suite();
}

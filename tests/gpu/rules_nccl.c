/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of NCCL's rules, one function for each rule of tests/fakes/nccl/rules.h. Rules of two ranks run as threads on the emulation, and
 * as processes on one GPU. */
#include "nccl_api.h"

#include <stdlib.h>

#include "rules_nccl.h"

#define SYMMETRIC 1
#define UINT8 1
#define FLOAT 7
#define SUM 0
#define AVG 4
#define KIB 1024

static int gather(rule_rank *r, void *from, void *to, size_t bytes)
{
    return nccl.ncclAllGather(from, to, bytes, UINT8, r->comm, r->stream);
}

#define NEEDS_BUFFERS()                                                                                                \
    do {                                                                                                               \
        if (nccl.ncclCommRegister == NULL)                                                                             \
            SKIP("this NCCL is older than 2.19");                                                                      \
    } while (0)

#define NEEDS_WINDOWS()                                                                                                \
    do {                                                                                                               \
        if (nccl.ncclCommWindowRegister == NULL)                                                                       \
            SKIP("this NCCL is older than 2.27");                                                                      \
    } while (0)

/* ---- collectives --------------------------------------------------------------------------------------------------- */

int all_ranks_come(rule_rank *r)
{
    ONLY_EMULATED("ranks wait for a missing rank forever");
    nccl.fake_nccl_set("watchdog_ms=200");
    granules g;
    CHECK(map_granules(1, &g) == HOLDS);
    if (r->rank == 0) {
        CHECK(gather(r, at(&g, 0), at(&g, 4 * KIB), KIB) == SUCCESS);
        CHECK(cuda.cuStreamSynchronize(r->stream) == 0);
        int result = SUCCESS;
        CHECK(nccl.ncclCommGetAsyncError(r->comm, &result) == SUCCESS && result != SUCCESS);
        CHECK(was_noticed(rule_all_ranks_come));
    }
    return unmap_granules(&g);
}

int collectives_agree(rule_rank *r)
{
    ONLY_EMULATED("the bytes are undefined, or the ranks hang");
    granules g;
    CHECK(map_granules(1, &g) == HOLDS);
    CHECK(gather(r, at(&g, 0), at(&g, 4 * KIB), KIB * (size_t)(r->rank + 1)) == SUCCESS);
    CHECK(cuda.cuStreamSynchronize(r->stream) == 0);
    int result = SUCCESS;
    CHECK(nccl.ncclCommGetAsyncError(r->comm, &result) == SUCCESS && result == INVALID_USAGE);
    if (r->rank == 0)
        CHECK(was_noticed(rule_collectives_agree));
    return unmap_granules(&g);
}

/* The communicator is made here: these processes do not claim different hosts. */
int one_rank_per_gpu(rule_rank *r)
{
    if (!is_emulated() && r->version >= 23000 && getenv("NCCL_MULTI_RANK_GPU_ENABLE") != NULL)
        SKIP("NCCL_MULTI_RANK_GPU_ENABLE is set");
    int result = join_ranks(r);
    CHECK(result == INVALID_USAGE);
    r->comm = NULL;
    CHECK(r->rank != 0 || was_noticed(rule_one_rank_per_gpu));
    return HOLDS;
}

int not_after_destroy(rule_rank *r)
{
    ONLY_EMULATED("freed memory would be read");
    void *comm = r->comm;
    CHECK(nccl.ncclCommDestroy(comm) == SUCCESS);
    r->comm = NULL;
    int result;
    CHECK(nccl.ncclCommGetAsyncError(comm, &result) == INVALID_ARGUMENT);
    CHECK(was_noticed(rule_not_after_destroy));
    return HOLDS;
}

/* ---- windows ------------------------------------------------------------------------------------------------------- */

int windows_disjoint(rule_rank *r)
{
    NEEDS_WINDOWS();
    ONLY_EMULATED("NCCL accepts them, and fails later");
    granules g;
    void *first = NULL, *second = NULL;
    CHECK(map_granules(1, &g) == HOLDS);
    CHECK(nccl.ncclCommWindowRegister(r->comm, at(&g, 0), 32 * KIB, &first, SYMMETRIC) == SUCCESS);
    CHECK(nccl.ncclCommWindowRegister(r->comm, at(&g, 32 * KIB), 16 * KIB, &second, SYMMETRIC) == SUCCESS);
    CHECK(nccl.fake_nccl_broken(NULL, 0) == 0);
    CHECK(nccl.ncclCommWindowDeregister(r->comm, second) == SUCCESS);
    CHECK(nccl.ncclCommWindowRegister(r->comm, at(&g, 28 * KIB), 16 * KIB, &second, SYMMETRIC) == SUCCESS);
    CHECK(was_noticed(rule_windows_disjoint));
    CHECK(nccl.ncclCommWindowDeregister(r->comm, second) == SUCCESS);
    CHECK(nccl.ncclCommWindowDeregister(r->comm, first) == SUCCESS);
    return unmap_granules(&g);
}

int window_same_size(rule_rank *r)
{
    NEEDS_WINDOWS();
    ONLY_EMULATED("NCCL does not compare them on all versions");
    granules g;
    void *window = NULL;
    CHECK(map_granules(1, &g) == HOLDS);
    size_t bytes = 16 * KIB * (size_t)(r->rank + 1);
    CHECK(nccl.ncclCommWindowRegister(r->comm, at(&g, 0), bytes, &window, SYMMETRIC) == INVALID_ARGUMENT);
    CHECK(window == NULL);
    CHECK(nccl.ncclCommWindowRegister(r->comm, at(&g, 0), 16 * KIB, &window, r->rank) == INVALID_ARGUMENT);
    CHECK(r->rank != 0 || was_noticed(rule_window_same_size));
    return unmap_granules(&g);
}

int window_same_offset(rule_rank *r)
{
    NEEDS_WINDOWS();
    ONLY_EMULATED("needs symmetric windows of two ranks, on two GPUs");
    granules g;
    void *window = NULL;
    CHECK(map_granules(1, &g) == HOLDS);
    void *here = at(&g, 4 * KIB * (size_t)r->rank);
    CHECK(nccl.ncclCommWindowRegister(r->comm, here, 16 * KIB, &window, 0) == SUCCESS && window != NULL);
    CHECK(nccl.ncclCommWindowDeregister(r->comm, window) == SUCCESS);
    CHECK(nccl.ncclCommWindowRegister(r->comm, here, 16 * KIB, &window, SYMMETRIC) == INVALID_ARGUMENT);
    CHECK(r->rank != 0 || was_noticed(rule_window_same_offset));
    return unmap_granules(&g);
}

int window_virtual_memory(rule_rank *r)
{
    NEEDS_WINDOWS();
    uint64_t address = 0;
    void *window = NULL;
    CHECK(cuda.cuMemAlloc(&address, 4096 * KIB) == 0);
    void *plain = (void *)(uintptr_t)address; /* NOLINT(performance-no-int-to-ptr): it is one of the device */
    int result = nccl.ncclCommWindowRegister(r->comm, plain, 64 * KIB, &window, SYMMETRIC);
    CHECK(result != SUCCESS || window == NULL);
    CHECK(was_noticed(rule_window_virtual_memory));
    CHECK(cuda.cuMemFree(address) == 0);
    return HOLDS;
}

int window_start_aligned(rule_rank *r)
{
    NEEDS_WINDOWS();
    if (r->version < 22800)
        SKIP("2.27 registers the whole allocation");
    granules g;
    void *window = NULL;
    CHECK(map_granules(1, &g) == HOLDS);
    CHECK(nccl.ncclCommWindowRegister(r->comm, at(&g, 512), 16 * KIB, &window, SYMMETRIC) == INVALID_ARGUMENT);
    CHECK(was_noticed(rule_window_start_aligned));
    CHECK(nccl.ncclCommWindowRegister(r->comm, at(&g, 4 * KIB), 16 * KIB, &window, SYMMETRIC) == SUCCESS);
    CHECK(window != NULL && !(is_emulated() && nccl.fake_nccl_broken(NULL, 0) > 0));
    CHECK(nccl.ncclCommWindowDeregister(r->comm, window) == SUCCESS);
    return unmap_granules(&g);
}

int window_one_segment(rule_rank *r)
{
    NEEDS_WINDOWS();
    granules g;
    void *window = NULL;
    CHECK(map_granules(2, &g) == HOLDS);
    int result = nccl.ncclCommWindowRegister(r->comm, at(&g, 0), 2 * g.step, &window, SYMMETRIC);
    if (r->version >= 23000)
        CHECK(result == SUCCESS && window != NULL);
    else if (r->version >= 22900)
        CHECK(result == INVALID_ARGUMENT && was_noticed(rule_window_one_segment));
    else /* accepted, although only the first allocation is registered */
        CHECK(was_noticed(rule_window_one_segment));
    if (result == SUCCESS)
        CHECK(nccl.ncclCommWindowDeregister(r->comm, window) == SUCCESS);
    return unmap_granules(&g);
}

int mapped_while_registered(rule_rank *r)
{
    NEEDS_WINDOWS();
    ONLY_EMULATED("peers would read old pages, or fault");
    granules g;
    void *window = NULL;
    CHECK(map_granules(1, &g) == HOLDS);
    CHECK(nccl.ncclCommWindowRegister(r->comm, at(&g, 0), g.step, &window, SYMMETRIC) == SUCCESS);
    CHECK(unmap_granules(&g) == HOLDS);
    CHECK(nccl.ncclCommWindowDeregister(r->comm, window) == SUCCESS);
    CHECK(was_noticed(rule_mapped_while_registered));
    return HOLDS;
}

/* ---- order of calls ------------------------------------------------------------------------------------------------ */

static void hold(void *argument)
{
    while (!__atomic_load_n((int *)argument, __ATOMIC_ACQUIRE))
        ;
}

int register_at_rest(rule_rank *r)
{
    NEEDS_BUFFERS();
    ONLY_EMULATED("it may deadlock");
    granules g;
    void *handle = NULL;
    int go = 0;
    CHECK(map_granules(1, &g) == HOLDS);
    CHECK(cuda.cuLaunchHostFunc(r->stream, hold, &go) == 0);
    CHECK(gather(r, at(&g, 0), at(&g, 0), KIB) == SUCCESS);
    int early = nccl.ncclCommRegister(r->comm, at(&g, 0), g.step, &handle);
    __atomic_store_n(&go, 1, __ATOMIC_RELEASE);
    CHECK(cuda.cuStreamSynchronize(r->stream) == 0);
    CHECK(early == INVALID_USAGE && was_noticed(rule_register_at_rest));
    CHECK(nccl.ncclCommRegister(r->comm, at(&g, 0), g.step, &handle) == SUCCESS);
    CHECK(nccl.ncclCommDeregister(r->comm, handle) == SUCCESS);
    return unmap_granules(&g);
}

int register_outside_capture(rule_rank *r)
{
    NEEDS_WINDOWS();
    ONLY_EMULATED("the capture becomes invalid, and NCCL's state then depends on the version");
    granules g;
    void *window = NULL, *graph = NULL;
    CHECK(map_granules(1, &g) == HOLDS);
    CHECK(cuda.cuStreamBeginCapture(r->stream, 0) == 0);
    int inside = nccl.ncclCommWindowRegister(r->comm, at(&g, 0), g.step, &window, SYMMETRIC);
    CHECK(cuda.cuStreamEndCapture(r->stream, &graph) == 0);
    CHECK(inside == INVALID_USAGE && window == NULL && was_noticed(rule_register_outside_capture));
    CHECK(cuda.cuGraphDestroy(graph) == 0);
    return unmap_granules(&g);
}

int deregister_by_kind(rule_rank *r)
{
    NEEDS_WINDOWS();
    granules g;
    void *handle = NULL, *window = NULL;
    CHECK(map_granules(2, &g) == HOLDS);
    CHECK(nccl.ncclCommWindowRegister(r->comm, at(&g, 0), g.step, &window, SYMMETRIC) == SUCCESS && window != NULL);
    CHECK(nccl.ncclCommRegister(r->comm, at(&g, g.step), g.step, &handle) == SUCCESS && handle != NULL);
    /* a window is not a buffer handle; vice versa a real NCCL may abort */
    CHECK(nccl.ncclCommDeregister(r->comm, window) == INVALID_USAGE);
    CHECK(!is_emulated() || nccl.ncclCommWindowDeregister(r->comm, handle) == INVALID_USAGE);
    CHECK(was_noticed(rule_deregister_by_kind));
    CHECK(nccl.ncclCommDeregister(r->comm, NULL) == SUCCESS);
    CHECK(nccl.ncclCommWindowDeregister(r->comm, NULL) == SUCCESS);
    CHECK(nccl.ncclCommDeregister(r->comm, handle) == SUCCESS);
    CHECK(nccl.ncclCommWindowDeregister(r->comm, window) == SUCCESS);
    return unmap_granules(&g);
}

/* Observed when no context is current: after a nested deregistration it is the communicator's. */
int deregister_moves_device(rule_rank *r)
{
    NEEDS_BUFFERS();
    granules g;
    void *first = NULL, *second = NULL, *before = NULL, *after = NULL;
    CHECK(map_granules(1, &g) == HOLDS);
    CHECK(nccl.ncclCommRegister(r->comm, at(&g, 0), g.step, &first) == SUCCESS);
    CHECK(nccl.ncclCommRegister(r->comm, at(&g, 0), g.step, &second) == SUCCESS);
    CHECK(cuda.cuCtxPopCurrent(&before) == 0 && before == r->context);
    CHECK(nccl.ncclCommDeregister(r->comm, second) == SUCCESS);
    CHECK(cuda.cuCtxGetCurrent(&after) == 0 && after == r->context);
    CHECK(nccl.ncclCommDeregister(r->comm, first) == SUCCESS);
    return unmap_granules(&g);
}

int deregister_before_destroy(rule_rank *r)
{
    NEEDS_BUFFERS();
    ONLY_EMULATED("NCCL cleans up without an error");
    granules g;
    void *handle = NULL;
    CHECK(map_granules(1, &g) == HOLDS);
    CHECK(nccl.ncclCommRegister(r->comm, at(&g, 0), g.step, &handle) == SUCCESS);
    CHECK(nccl.ncclCommDestroy(r->comm) == SUCCESS);
    r->comm = NULL;
    CHECK(was_noticed(rule_deregister_before_destroy));
    return unmap_granules(&g);
}

/* ---- results of NCCL ----------------------------------------------------------------------------------------------- */

int symmetric_space(rule_rank *r)
{
    NEEDS_WINDOWS();
    ONLY_EMULATED("it needs a reservation as large as the memory of the GPU");
    enum { MOST = 64 };
    granules g;
    void *windows[MOST];
    int taken = 0, result = SUCCESS;
    CHECK(map_granules(1, &g) == HOLDS);
    nccl.fake_nccl_set("space_mib=1");
    while (taken < MOST && result == SUCCESS) {
        result = nccl.ncclCommWindowRegister(r->comm, at(&g, 0), g.step, &windows[taken], SYMMETRIC);
        taken += result == SUCCESS;
    }
    CHECK(was_noticed(rule_windows_disjoint));
    if (r->version >= 23000)
        CHECK(result != SUCCESS && (size_t)taken == KIB * KIB / g.step && was_noticed(rule_symmetric_space));
    else
        CHECK(result == SUCCESS);
    while (taken > 0)
        CHECK(nccl.ncclCommWindowDeregister(r->comm, windows[--taken]) == SUCCESS);
    return unmap_granules(&g);
}

int nested_buffers_count(rule_rank *r)
{
    NEEDS_BUFFERS();
    granules g;
    void *whole = NULL, *part = NULL, *again = NULL;
    CHECK(map_granules(1, &g) == HOLDS);
    CHECK(nccl.ncclCommRegister(r->comm, at(&g, 0), g.step, &whole) == SUCCESS && whole != NULL);
    CHECK(nccl.ncclCommRegister(r->comm, at(&g, 4 * KIB), 16 * KIB, &part) == SUCCESS && part == whole);
    CHECK(nccl.ncclCommDeregister(r->comm, part) == SUCCESS);
    CHECK(nccl.ncclCommRegister(r->comm, at(&g, 8 * KIB), 4 * KIB, &again) == SUCCESS && again == whole);
    CHECK(nccl.ncclCommDeregister(r->comm, again) == SUCCESS);
    CHECK(nccl.ncclCommDeregister(r->comm, whole) == SUCCESS);
    CHECK(nccl.ncclCommDeregister(r->comm, whole) == INVALID_USAGE || !is_emulated());
    CHECK(was_noticed(rule_deregister_by_kind));
    return unmap_granules(&g);
}

int buffers_are_lazy(rule_rank *r)
{
    NEEDS_BUFFERS();
    granules g;
    void *odd = NULL, *page = NULL;
    CHECK(map_granules(1, &g) == HOLDS);
    CHECK(nccl.ncclCommRegister(r->comm, at(&g, 100), 10, &odd) == SUCCESS && odd != NULL);
    CHECK(nccl.ncclCommRegister(r->comm, at(&g, 0), 4 * KIB, &page) == SUCCESS && page == odd);
    CHECK(nccl.ncclCommDeregister(r->comm, page) == SUCCESS);
    CHECK(nccl.ncclCommDeregister(r->comm, odd) == SUCCESS);
    return unmap_granules(&g);
}

/* In an environment with NCCL_LOCAL_REGISTER=0. */
int local_register_off(rule_rank *r)
{
    NEEDS_BUFFERS();
    granules g;
    void *handle = &g;
    CHECK(map_granules(1, &g) == HOLDS);
    CHECK(nccl.ncclCommRegister(r->comm, at(&g, 0), g.step, &handle) == SUCCESS && handle == NULL);
    CHECK(nccl.ncclCommDeregister(r->comm, handle) == SUCCESS);
    return unmap_granules(&g);
}

/* In an environment with NCCL_WIN_ENABLE=0: symmetric memory is unsupported. Collectives work all the same. */
int null_window(rule_rank *r)
{
    NEEDS_WINDOWS();
    int error = SUCCESS;
    granules g;
    void *window = NULL, *buffer = NULL;
    CHECK(map_granules(1, &g) == HOLDS);
    CHECK(nccl.ncclCommWindowRegister(r->comm, at(&g, 0), g.step, &window, SYMMETRIC) == SUCCESS);
    if (r->version >= 22900)
        CHECK(window == NULL);
    else if (r->version >= 22800) {
        CHECK(nccl.ncclCommRegister(r->comm, at(&g, 0), g.step, &buffer) == SUCCESS && buffer == window);
        CHECK(nccl.ncclCommDeregister(r->comm, buffer) == SUCCESS);
    }
    CHECK(gather(r, at(&g, 0), at(&g, 4 * KIB), KIB) == SUCCESS);
    CHECK(cuda.cuStreamSynchronize(r->stream) == 0);
    CHECK(nccl.ncclCommGetAsyncError(r->comm, &error) == SUCCESS && error == SUCCESS);
    CHECK(nccl.ncclCommWindowDeregister(r->comm, window) == SUCCESS);
    return unmap_granules(&g);
}

int float_avg_copies(rule_rank *r)
{
    NEEDS_WINDOWS();
    ONLY_EMULATED("copies cannot be observed");
    granules g;
    void *window = NULL;
    fake_nccl_counts sums, averages;
    CHECK(map_granules(1, &g) == HOLDS);
    CHECK(nccl.ncclCommWindowRegister(r->comm, at(&g, 0), g.step, &window, SYMMETRIC) == SUCCESS);
    CHECK(nccl.ncclAllReduce(at(&g, 0), at(&g, 0), 16, FLOAT, SUM, r->comm, r->stream) == SUCCESS);
    CHECK(cuda.cuStreamSynchronize(r->stream) == 0);
    nccl.fake_nccl_count(&sums);
    CHECK(sums.symmetric == 1 && sums.copied == 0);
    CHECK(nccl.ncclAllReduce(at(&g, 0), at(&g, 0), 16, FLOAT, AVG, r->comm, r->stream) == SUCCESS);
    CHECK(cuda.cuStreamSynchronize(r->stream) == 0);
    nccl.fake_nccl_count(&averages);
    CHECK(averages.symmetric == 1 && averages.copied == 1);
    CHECK(nccl.ncclCommWindowDeregister(r->comm, window) == SUCCESS);
    return unmap_granules(&g);
}

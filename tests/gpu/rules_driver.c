/* Whether a CUDA driver keeps to the rules that the emulated one is built from: a line for each, "ok ID", "failed ID: what" or
 * "skipped ID: why". `--driver PATH`: of this library; otherwise of the machine's driver. Exits 0, 1 when a rule does not hold, 77 where
 * there is no driver or no GPU. */
#include "rules_support.h"

#include "../fakes/cuda/rules.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUFFER_BYTES ((size_t)PARTS * PART_BYTES)

BP_CUDA_RULES(BP_DECLARE_RULE)

static const struct {
    const char *id, *sentence;
    void (*function)(rules *r);
} table[] = {
#define ROW(id, sentence, source) {#id, sentence, id},
    BP_CUDA_RULES(ROW)
#undef ROW
};

static _Alignas(65536) unsigned char host_buffer[65536];

/* ---- the driver's side ------------------------------------------------------------------------------------------- */

static int start(rules *r)
{
    const bp_cu_allocation_prop prop = {.type = 1, .handle_types = 1, .location_type = 1};
    int pools = 0;
    bp_cuda_driver *driver = &r->driver;
    int error = driver->cuDeviceGetCount(&r->devices);
    if (error == 0 && r->devices == 0)
        return 100;
    if (error == 0)
        error = driver->cuDevicePrimaryCtxRetain(&r->context, 0);
    if (error == 0)
        error = driver->cuCtxPushCurrent(r->context);
    if (error == 0)
        error = driver->cuMemGetAllocationGranularity(&r->granularity, &prop, 0);
    if (error == 0)
        error = driver->cuDeviceGetAttribute(&pools, 115, 0);
    if (error == 0)
        error = driver->cuMemAlloc(&r->memory, BUFFER_BYTES);
    if (error == 0)
        error = driver->cuMemHostRegister(host_buffer, sizeof host_buffer, 0);
    r->pools = pools != 0;
    r->host = host_buffer;
    return error;
}

static int finish(rules *r)
{
    bp_cuda_driver *driver = &r->driver;
    void *popped;
    int error = driver->cuMemHostUnregister(host_buffer);
    if (error == 0)
        error = driver->cuMemFree(r->memory);
    if (error == 0)
        error = driver->cuCtxPopCurrent(&popped);
    return error == 0 ? driver->cuDevicePrimaryCtxRelease(0) : error;
}

static int prepare(rules *r)
{
    bp_cuda_driver *driver = &r->driver;
    memset(host_buffer, 0, sizeof host_buffer);
    r->skipped = NULL;
    r->failed[0] = '\0';
    atomic_store(&r->late, 0);
    int error = driver->cuStreamCreate(&r->a, 1);
    if (error == 0)
        error = driver->cuStreamCreate(&r->b, 1);
    if (error == 0)
        error = driver->cuStreamCreate(&r->blocking, 0);
    if (error == 0)
        error = driver->cuEventCreate(&r->e, 2);
    if (error == 0)
        error = driver->cuEventCreate(&r->f, 2);
    if (error == 0)
        error = driver->cuMemsetD8Async(r->memory, 0, BUFFER_BYTES, r->a);
    return error == 0 ? driver->cuStreamSynchronize(r->a) : error;
}

static void end_capture(const bp_cuda_driver *driver, void *stream)
{
    void *graph = NULL;
    if (driver->cuStreamEndCapture(stream, &graph) == 0)
        (void)driver->cuGraphDestroy(graph);
}

static void end_stream(rules *r, void **stream)
{
    if (*stream == NULL)
        return;
    if (capture_status(r, *stream) > 0)
        end_capture(&r->driver, *stream);
    (void)r->driver.cuStreamSynchronize(*stream);
    (void)r->driver.cuStreamDestroy(*stream);
    *stream = NULL;
}

/* Whatever state a rule has left. */
static void clean_up(rules *r)
{
    void *popped;
    open_gate(r);
    while (r->driver.cuCtxPopCurrent(&popped) == 0) {
    }
    (void)r->driver.cuCtxPushCurrent(r->context);
    end_stream(r, &r->a);
    end_stream(r, &r->b);
    end_stream(r, &r->blocking);
    (void)r->driver.cuCtxSynchronize();
    if (r->e != NULL)
        (void)r->driver.cuEventDestroy(r->e);
    if (r->f != NULL)
        (void)r->driver.cuEventDestroy(r->f);
}

/* ---- the rules --------------------------------------------------------------------------------------------------- */

/* False: it does not hold. */
static bool run(rules *r, size_t index)
{
    int error = prepare(r);
    if (rules_check(r, __FILE__, __LINE__, "preparing", error, 0))
        table[index].function(r);
    if (r->failed[0] == '\0' && r->skipped == NULL)
        (void)rules_hold(r, __FILE__, __LINE__, "nothing waited for what it should not wait for",
                         !atomic_load(&r->late));
    clean_up(r);
    if (r->failed[0] != '\0')
        printf("failed %s: %s (%s)\n", table[index].id, r->failed, table[index].sentence);
    else if (r->skipped != NULL)
        printf("skipped %s: %s\n", table[index].id, r->skipped);
    else
        printf("ok %s\n", table[index].id);
    (void)fflush(stdout);
    return r->failed[0] == '\0';
}

/* The emulated driver also knows what was done wrong without an error, and what is left. */
static bool is_clean(const char *library)
{
    void *handle = library != NULL ? dlopen(library, RTLD_NOW | RTLD_NOLOAD) : NULL;
    bool clean = true;
    for (int i = 0; handle != NULL && i < 2; i++) {
        const char *(*tell)(void);
        void *symbol = dlsym(handle, i == 0 ? "fake_cuda_broken" : "fake_cuda_leaks");
        memcpy(&tell, &symbol, sizeof symbol);
        const char *text = symbol != NULL ? tell() : "";
        if (text[0] != '\0')
            printf("failed: %s: %s", i == 0 ? "broken by these tests" : "left by these tests", text);
        clean = clean && text[0] == '\0';
    }
    return clean;
}

int main(int count, char **arguments)
{
    static rules r;
    const char *library = NULL, *only = NULL;
    for (int i = 1; i + 1 < count; i += 2) {
        if (strcmp(arguments[i], "--driver") == 0)
            library = arguments[i + 1];
        if (strcmp(arguments[i], "--rule") == 0)
            only = arguments[i + 1];
    }
    r.driver.size = sizeof r.driver;
    if (bp_cuda_driver_load(library, &r.driver) != BP_OK) {
        printf("no CUDA driver: %s\n", bp_error_detail());
        return 77;
    }
    int error = start(&r);
    if (error != 0) {
        printf("the driver is here, but its first device cannot be used: error %d\n", error);
        return error == 100 ? 77 : 1;
    }
    bool good = true;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (only == NULL || strcmp(only, table[i].id) == 0)
            good = run(&r, i) && good;
    error = finish(&r);
    if (error != 0)
        printf("failed: the device was not given back: error %d\n", error);
    good = is_clean(library) && good && error == 0;
    return good ? EXIT_SUCCESS : EXIT_FAILURE;
}

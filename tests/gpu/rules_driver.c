/* SPDX-License-Identifier: Apache-2.0 */
/* Checks the rules of the emulated CUDA driver on a driver: prints a line per rule, and the counts as the last line.
 *
 *   ok ID
 *   differs ID: the answer (the rule)    an inferred rule (rules.h) does not hold on a real driver; no failure
 *   failed ID: the answer (the rule)
 *   skipped ID: the reason
 *   broken ID: the reason    the state for the rule after ID cannot be prepared; --after ID runs the rest in a new process
 *
 * `--driver PATH`: the driver library, by default the machine's. `--rule ID`: one rule. `--after ID`: the later ones. `--list`: prints the
 * ids, in order. `--real`: treats the emulated driver as a real one. Exit status: 0, 1 if a rule fails, 2 on wrong arguments, 3 after "broken",
 * 77 without a driver or a GPU. */
#include "rules_support.h"

#include "fakes/cuda/rules.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BUFFER_BYTES ((size_t)PARTS * PART_BYTES)

BP_CUDA_RULES(BP_DECLARE_RULE)

static const struct {
    const char *id, *sentence, *source;
    void (*function)(rules *r);
} table[] = {
#define ROW(id, sentence, source) {#id, sentence, source, id},
    BP_CUDA_RULES(ROW)
#undef ROW
};
#define RULE_COUNT (sizeof table / sizeof *table)

typedef enum outcome { RULE_HOLDS, RULE_DIFFERS, RULE_FAILS, RULE_SKIPPED, OUTCOMES } outcome;

static _Alignas(65536) unsigned char host_buffer[65536];

/* ---- objects of a test ------------------------------------------------------------------------------------------- */

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

/* Resets any state that a rule has left. */
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

/* ---- rules ------------------------------------------------------------------------------------------------------- */

/* Makes the objects for the rule; returns the failure, if any. */
static bool is_prepared(rules *r)
{
    return rules_check(r, __FILE__, __LINE__, "preparing", prepare(r), 0);
}

static outcome run(rules *r, size_t index, bool real)
{
    if (r->failed[0] == '\0')
        table[index].function(r);
    if (r->failed[0] == '\0' && r->skipped == NULL)
        (void)rules_hold(r, __FILE__, __LINE__, "no unexpected wait", !atomic_load(&r->late));
    clean_up(r);
    const bool differs = real && strstr(table[index].source, "inferred") != NULL;
    if (r->failed[0] != '\0') {
        printf("%s %s: %s (%s)\n", differs ? "differs" : "failed", table[index].id, r->failed, table[index].sentence);
        return differs ? RULE_DIFFERS : RULE_FAILS;
    }
    if (r->skipped != NULL)
        printf("skipped %s: %s\n", table[index].id, r->skipped);
    else
        printf("ok %s\n", table[index].id);
    return r->skipped != NULL ? RULE_SKIPPED : RULE_HOLDS;
}

/* Runs the rules [first, end). Returns the number of the rule before which it stopped: `end`, unless the previous rule broke the context. */
static size_t run_all(rules *r, size_t first, size_t end, bool real, unsigned counts[OUTCOMES])
{
    for (size_t i = first; i < end; i++) {
        if (!is_prepared(r) && i > first) {
            printf("broken %s: %s: %s\n", table[i - 1].id, table[i].id, r->failed);
            return i;
        }
        counts[run(r, i, real)]++;
    }
    return end;
}

/* ---- the emulated driver ------------------------------------------------------------------------------------------ */

static void *open_library(const char *library)
{
    return dlopen(library != NULL ? library : "libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
}

/* The emulated driver also reports misuse without an error, and leaks. */
static bool is_clean(void *handle)
{
    bool clean = true;
    for (int i = 0; i < 2; i++) {
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

/* ---- arguments ---------------------------------------------------------------------------------------------------- */

typedef struct options {
    const char *library, *only, *after;
    bool list, real;
} options;

static bool parse(options *o, int count, char **arguments)
{
    for (int i = 1; i < count; i++) {
        const char *value = i + 1 < count ? arguments[i + 1] : NULL, **text = NULL;
        if (strcmp(arguments[i], "--list") == 0)
            o->list = true;
        else if (strcmp(arguments[i], "--real") == 0)
            o->real = true;
        else if (strcmp(arguments[i], "--driver") == 0)
            text = &o->library;
        else if (strcmp(arguments[i], "--rule") == 0)
            text = &o->only;
        else if (strcmp(arguments[i], "--after") == 0)
            text = &o->after;
        else
            return fprintf(stderr, "rules_driver: unknown option %s\n", arguments[i]), false;
        if (text != NULL && value == NULL)
            return fprintf(stderr, "rules_driver: %s requires a value\n", arguments[i]), false;
        if (text != NULL)
            *text = arguments[++i];
    }
    return true;
}

/* RULE_COUNT: unknown rule. */
static size_t find(const char *option, const char *id)
{
    size_t i = 0;
    while (i < RULE_COUNT && strcmp(id, table[i].id) != 0)
        i++;
    if (i == RULE_COUNT)
        fprintf(stderr, "rules_driver: %s: unknown rule \"%s\"\n", option, id);
    return i;
}

static int run_rules(const options *o, size_t first, size_t end)
{
    static rules r;
    unsigned counts[OUTCOMES] = {0};
    if (bp_cuda_driver_load(o->library, &r.driver) != BP_OK) {
        printf("no CUDA driver: %s\n", bp_error_detail());
        return 77;
    }
    int error = start(&r);
    if (error != 0) {
        printf("the first device of the driver cannot be used: error %d\n", error);
        return error == 100 ? 77 : 1;
    }
    void *library = open_library(o->library);
    const bool emulated = library != NULL && dlsym(library, "fake_cuda_broken") != NULL, real = o->real || !emulated;
    bool good = true;
    const bool broken = run_all(&r, first, end, real, counts) < end;
    if (!broken) {
        error = finish(&r);
        if (error != 0)
            printf("failed: the device was not released: error %d\n", error);
        good = error == 0 && (real || is_clean(library));
    }
    printf("%u hold, %u differ, %u fail, %u skipped\n", counts[RULE_HOLDS], counts[RULE_DIFFERS],
           counts[RULE_FAILS] + (good ? 0 : 1), counts[RULE_SKIPPED]);
    return broken ? 3 : good && counts[RULE_FAILS] == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(int count, char **arguments)
{
    options o = {.library = NULL};
    size_t first = 0, end = RULE_COUNT;
    (void)setvbuf(stdout, NULL, _IOLBF, 0); /* after a crash the output shows the last rule */
    if (!parse(&o, count, arguments))
        return 2;
    if (o.only != NULL) {
        first = find("--rule", o.only);
        end = first + 1;
    } else if (o.after != NULL) {
        first = find("--after", o.after);
    }
    if (first == RULE_COUNT)
        return 2;
    first += o.only == NULL && o.after != NULL ? 1 : 0;
    for (size_t i = first; o.list && i < end; i++)
        puts(table[i].id);
    return o.list ? EXIT_SUCCESS : run_rules(&o, first, end);
}

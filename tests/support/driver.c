/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA driver for tests: a real or an emulated one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static bp_cuda_driver table;
static void *library, *context;
static bool leaks_expected;

static const char *wanted(void)
{
    const char *name = getenv("BP_TEST_DRIVER");
    return name == NULL || *name == '\0' ? NULL : name;
}

bool has_driver(void)
{
    return wanted() != NULL;
}

bool has_real_driver(void)
{
    return wanted() != NULL && strcmp(wanted(), "real") == 0;
}

static void __attribute__((noreturn)) end(int status, const char *reason)
{
    printf("%s\n", reason);
    fflush(stdout);
    _Exit(status);
}

void expect_leaks(void)
{
    leaks_expected = true;
}

/* Memory registered with the emulated driver for streams to wait on; NULL: none. */
static void *registered_words;

static void unregister_words(void)
{
    void *previous;
    if (registered_words == NULL)
        return;
    table.cuCtxPushCurrent(context);
    table.cuMemHostUnregister(registered_words);
    table.cuCtxPopCurrent(&previous);
}

/* Fails the program if the emulated driver found broken rules or leaks. */
static void look_back(void)
{
    static const char *const questions[] = {"fake_cuda_broken", "fake_cuda_leaks"};
    int device, wrong = 0;
    if (driver_symbol(questions[0]) == NULL)
        return;
    unregister_words();
    if (table.cuDeviceGet(&device, 0) == 0)
        table.cuDevicePrimaryCtxRelease(device);
    for (size_t i = 0; i < (leaks_expected ? 1 : 2); i++) {
        const char *(*ask)(void);
        *(void **)&ask = driver_symbol(questions[i]);
        const char *answer = ask != NULL ? ask() : "";
        if (*answer != '\0') {
            fprintf(stderr, "%s:\n%s\n", questions[i], answer);
            wrong = 1;
        }
    }
    if (wrong)
        _Exit(1);
}

static void load(void)
{
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32",
           0); /* a stream that is held up must not block the others through a shared hardware queue */
    const char *name = has_real_driver() ? NULL : wanted();
    bp_status status = bp_cuda_driver_load(name, &table);
    int devices = 0, device;
    if (status != BP_OK)
        end(status == BP_ERR_NO_DEVICE && name == NULL ? 77 : 1, bp_error_detail());
    if (table.cuDeviceGetCount(&devices) != 0 || devices == 0)
        end(name == NULL ? 77 : 1, "the driver finds no GPU");
    library = dlopen(name != NULL ? name : "libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (table.cuDeviceGet(&device, 0) != 0 || table.cuDevicePrimaryCtxRetain(&context, device) != 0)
        end(1, "the GPU gives no context");
    atexit(look_back);
}

const bp_cuda_driver *driver(void)
{
    pthread_once(&once, load);
    return &table;
}

void *driver_symbol(const char *name)
{
    driver();
    return library != NULL ? dlsym(library, name) : NULL;
}

void *driver_context(void)
{
    driver();
    return context;
}

bp_device *new_cuda(void)
{
    bp_cuda_config config;
    bp_device *device = NULL;
    bp_status status = bp_cuda_config_init(&config, sizeof config);
    if (status == BP_OK)
        status = bp_device_create_cuda_from(&config, driver(), &device);
    if (status != BP_OK)
        fail_msg("%s: %s", bp_status_name(status), bp_error_detail());
    return device;
}

/* ---- pinned memory ------------------------------------------------------------------------------------------------- */

#define PINNED_COUNT 1024u

static pthread_mutex_t pinned_lock = PTHREAD_MUTEX_INITIALIZER;
static uint8_t *pinned; /* PINNED_COUNT pieces, then a page of words */
static uint32_t free_pieces[PINNED_COUNT], free_count;

static void make_pinned(void)
{
    int (*allocate)(void **, size_t, unsigned);
    *(void **)&allocate = driver_symbol("cuMemHostAlloc");
    void *memory = NULL, *previous;
    const size_t bytes = (PINNED_COUNT + 1) * (size_t)PINNED_BYTES;
    if (allocate != NULL) {
        table.cuCtxPushCurrent(context);
        if (allocate(&memory, bytes, 3) != 0) /* for all contexts, mapped */
            memory = NULL;
        table.cuCtxPopCurrent(&previous);
    } else
        memory = aligned_alloc(PINNED_BYTES, bytes);
    if (memory == NULL)
        end(1, "no page-locked memory for tests");
    memset((uint8_t *)memory + PINNED_COUNT * (size_t)PINNED_BYTES, 0, PINNED_BYTES);
    for (uint32_t i = 0; i < PINNED_COUNT; i++)
        free_pieces[free_count++] = i;
    pinned = memory;
}

static void *try_pinned(void)
{
    void *memory = NULL;
    driver();
    pthread_mutex_lock(&pinned_lock);
    if (pinned == NULL)
        make_pinned();
    if (free_count > 0)
        memory = pinned + free_pieces[--free_count] * (size_t)PINNED_BYTES;
    pthread_mutex_unlock(&pinned_lock);
    return memory;
}

void *take_pinned(void)
{
    void *memory = try_pinned();
    for (int i = 0; memory == NULL && i < 20000; i++) { /* a stream returns its piece when its copy is done */
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        memory = try_pinned();
    }
    if (memory == NULL)
        end(1, "streams hold all page-locked memory of the tests");
    return memory;
}

void give_pinned(void *memory)
{
    pthread_mutex_lock(&pinned_lock);
    free_pieces[free_count++] = (uint32_t)((size_t)((uint8_t *)memory - pinned) / PINNED_BYTES);
    pthread_mutex_unlock(&pinned_lock);
}

/* ---- streams that are held up -------------------------------------------------------------------------------------- */

#define WORDS (PINNED_BYTES / sizeof(uint32_t))
#define MAX_SECONDS 15

static size_t words_used;
static time_t deadlines[WORDS];

static uint32_t *word_at(size_t index)
{
    return (uint32_t *)(void *)(pinned + PINNED_COUNT * (size_t)PINNED_BYTES) + index;
}

static time_t seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec;
}

/* Opens the gates that a failed test left closed, after a time. */
static void *watch_words(void *unused)
{
    for (;;) {
        nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
        pthread_mutex_lock(&pinned_lock);
        for (size_t i = 0; i < words_used; i++) {
            if (seconds() >= deadlines[i])
                __atomic_store_n(word_at(i), 1, __ATOMIC_SEQ_CST);
        }
        pthread_mutex_unlock(&pinned_lock);
    }
    return unused;
}

/* Registers memory for the gates: the emulated driver has no other page-locked memory. */
static void register_words(void)
{
    void *previous;
    if (registered_words != NULL || driver_symbol("cuMemHostAlloc") != NULL)
        return;
    table.cuCtxPushCurrent(context);
    if (table.cuMemHostRegister(word_at(0), PINNED_BYTES, 0) == 0)
        registered_words = word_at(0);
    table.cuCtxPopCurrent(&previous);
}

static uint32_t *take_word(void)
{
    give_pinned(take_pinned());
    pthread_mutex_lock(&pinned_lock);
    register_words();
    if (words_used == WORDS)
        end(1, "more gates than a test program may have");
    pthread_t thread;
    if (words_used == 0 && pthread_create(&thread, NULL, watch_words, NULL) == 0)
        pthread_detach(thread);
    deadlines[words_used] = seconds() + MAX_SECONDS;
    uint32_t *word = word_at(words_used++);
    pthread_mutex_unlock(&pinned_lock);
    return word;
}

bool hold_stream(bp_stream *stream, uint32_t **word)
{
    int (*wait_value)(void *, uint64_t, uint32_t, unsigned);
    uint64_t native;
    void *previous;
    *(void **)&wait_value = driver_symbol("cuStreamWaitValue32_v2");
    if (wait_value == NULL || bp_stream_native(stream, &native) != BP_OK)
        return false;
    if (*word == NULL)
        *word = take_word();
    void *handle = (void *)(uintptr_t)native; /* NOLINT(performance-no-int-to-ptr): an integer made of the handle */
    table.cuCtxPushCurrent(context);
    int result = wait_value(handle, (uint64_t)(uintptr_t)*word, 1, 0); /* waits until *word >= 1 */
    table.cuCtxPopCurrent(&previous);
    return result == 0;
}

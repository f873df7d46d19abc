/* Who serves each device of the process, and the two functions that PyTorch calls. */
#include <bucketpool/torch_allocator.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/arith.h"
#include "core/fail.h"
#include "core/process.h"
#include "core/structs.h"
#include "torch/arena.h"

#define VARIABLE "BUCKETPOOL_TORCH_BYTES"

/* A lock for each device: who waits for one must not keep others from the work that it waits for (collectives in one process). */
static pthread_mutex_t locks[BP_TORCH_DEVICES];
static bp_torch_arena *arenas[BP_TORCH_DEVICES];
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bp_process
    process; /* that the locks are of: a forked child, in which they may be held for good, is not served */
static bp_status begun;
static pthread_mutex_t refusal_lock = PTHREAD_MUTEX_INITIALIZER;   /* taken last */
static char refusal[sizeof((bp_torch_statistics *)NULL)->because]; /* of a device that is not served */

static void make_locks(void)
{
    for (size_t i = 0; i < BP_TORCH_DEVICES; i++)
        pthread_mutex_init(&locks[i], NULL); /* cannot fail for a plain mutex */
    begun = bp_process_init(&process);
}

static bp_status lock(const char *function, int ordinal)
{
    pthread_once(&once, make_locks);
    if (begun != BP_OK)
        return bp_fail(begun, "%s: no handler of forks could be registered", function);
    BP_TRY(bp_process_check(&process, function, "the allocator of", "PyTorch"));
    pthread_mutex_lock(&locks[ordinal]);
    return BP_OK;
}

static void unlock(int ordinal)
{
    pthread_mutex_unlock(&locks[ordinal]);
}

/* ---- configuration ------------------------------------------------------------------------------------------------------ */

static const bp_torch_config torch_config_defaults = {.size = sizeof torch_config_defaults};

bp_status bp_torch_config_init(bp_torch_config *config, size_t size)
{
    return bp_struct_init("bp_torch_config_init", config, size, &torch_config_defaults, sizeof torch_config_defaults);
}

static bool is_index(int ordinal)
{
    return ordinal >= 0 && ordinal < BP_TORCH_DEVICES;
}

static bp_status check_index(const char *function, int ordinal)
{
    if (!is_index(ordinal))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: device %d is not one of 0 to %d", function, ordinal,
                       BP_TORCH_DEVICES - 1);
    return BP_OK;
}

static bp_status serving_check(const bp_torch_config *config)
{
    BP_TRY(check_index("bp_torch_serve", config->ordinal));
    if ((config->pool == NULL) == (config->bytes == 0) || (config->pool != NULL && config->device != NULL))
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "bp_torch_serve: device %d needs either a pool or a number of bytes, and with a pool no device",
                       (int)config->ordinal);
    return BP_OK;
}

bp_status bp_torch_serve(const bp_torch_config *config)
{
    bp_torch_config own = torch_config_defaults;
    BP_TRY(bp_struct_read("bp_torch_serve", config, false, &own, sizeof own));
    config = &own;
    BP_TRY(serving_check(config));
    BP_TRY(lock("bp_torch_serve", config->ordinal));
    bp_torch_arena **arena = &arenas[config->ordinal];
    bp_status status = *arena == NULL
                           ? bp_torch_arena_create(config, arena)
                           : bp_fail(BP_ERR_SCHEDULE, "bp_torch_serve: device %d is served already, from %llu bytes",
                                     (int)config->ordinal, (unsigned long long)(*arena)->statistics.bytes);
    unlock(config->ordinal);
    return status;
}

static bp_status not_served(const char *function, int ordinal)
{
    pthread_mutex_lock(&refusal_lock);
    bp_status status = bp_fail(BP_ERR_SCHEDULE, "%s: device %d is not served%s%s", function, ordinal,
                               *refusal != '\0' ? ": " : "", refusal);
    pthread_mutex_unlock(&refusal_lock);
    return status;
}

static bp_status stop(int32_t ordinal)
{
    bp_torch_arena **arena = &arenas[ordinal];
    if (*arena == NULL)
        return not_served("bp_torch_stop", ordinal);
    const bp_torch_statistics *s = &(*arena)->statistics;
    if (s->live_segments > 0)
        return bp_fail(
            BP_ERR_SCHEDULE,
            "bp_torch_stop: device %d: PyTorch has %llu segments of %llu bytes: drop the tensors and the pool first",
            (int)ordinal, (unsigned long long)s->live_segments, (unsigned long long)s->live_bytes);
    BP_TRY(bp_torch_arena_destroy(*arena));
    *arena = NULL;
    return BP_OK;
}

bp_status bp_torch_stop(int32_t ordinal)
{
    BP_TRY(check_index("bp_torch_stop", ordinal));
    BP_TRY(lock("bp_torch_stop", ordinal));
    bp_status status = stop(ordinal);
    unlock(ordinal);
    return status;
}

bp_status bp_torch_statistics_get(int32_t ordinal, bp_torch_statistics *statistics)
{
    BP_TRY(check_index("bp_torch_statistics_get", ordinal));
    BP_TRY(lock("bp_torch_statistics_get", ordinal));
    const bp_torch_arena *arena = arenas[ordinal];
    bp_status status = arena != NULL ? BP_OK : not_served("bp_torch_statistics_get", ordinal);
    if (status == BP_OK)
        status = bp_struct_write("bp_torch_statistics_get", &arena->statistics, sizeof arena->statistics, statistics);
    unlock(ordinal);
    return status;
}

/* ---- environment -------------------------------------------------------------------------------------------------------- */

/* "8g": digits, then nothing, k, m, g or t. */
static bool read_bytes(const char *text, uint64_t *bytes)
{
    static const char units[] = "kmgt";
    const char *c = text;
    uint64_t value = 0;
    for (; *c >= '0' && *c <= '9'; c++) {
        if (!bp_mul_u64(value, 10, &value) || !bp_add_u64(value, (uint64_t)(*c - '0'), &value))
            return false;
    }
    const char *unit = c > text && *c != '\0' ? strchr(units, *c | 0x20) : NULL;
    if (unit != NULL) {
        if (!bp_mul_u64(value, 1ull << (10 * (unit - units + 1)), &value))
            return false;
        c++;
    }
    *bytes = value;
    return *c == '\0' && value > 0;
}

static bp_status serve_by_environment(int ordinal)
{
    bp_torch_config config = torch_config_defaults;
    config.ordinal = ordinal;
    const char *variable = secure_getenv(VARIABLE);
    if (variable == NULL)
        return bp_fail(BP_ERR_SCHEDULE, "neither bp_torch_serve was called for it nor " VARIABLE " is set");
    if (!read_bytes(variable, &config.bytes))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, VARIABLE "=%.40s is no number of bytes, as 8g is", variable);
    return bp_torch_arena_create(&config, &arenas[ordinal]);
}

/* ---- what PyTorch loads -------------------------------------------------------------------------------------------------- */

static void refuse_unserved(void)
{
    pthread_mutex_lock(&refusal_lock);
    snprintf(refusal, sizeof refusal, "%s", bp_error_detail());
    pthread_mutex_unlock(&refusal_lock);
}

static void serving_refuse(bp_torch_arena *arena)
{
    if (arena == NULL) {
        refuse_unserved();
        return;
    }
    snprintf(arena->statistics.because, sizeof arena->statistics.because, "%s", bp_error_detail());
    arena->statistics.refused++;
}

void *bp_torch_malloc(size_t bytes, int device, void *stream)
{
    void *address = NULL;
    if (check_index("bp_torch_malloc", device) != BP_OK) {
        refuse_unserved();
        return NULL;
    }
    if (lock("bp_torch_malloc", device) != BP_OK)
        return NULL;
    bp_status status = arenas[device] != NULL ? BP_OK : serve_by_environment(device);
    if (status == BP_OK)
        status = bp_torch_arena_allocate(arenas[device], bytes, (uintptr_t)stream, &address);
    if (status != BP_OK)
        serving_refuse(arenas[device]);
    unlock(device);
    return address;
}

void bp_torch_free(void *address, size_t bytes, int device, void *stream)
{
    (void)bytes;
    if (!is_index(device) || address == NULL || lock("bp_torch_free", device) != BP_OK)
        return;
    if (arenas[device] != NULL)
        bp_torch_arena_free(arenas[device], address, (uintptr_t)stream);
    unlock(device);
}

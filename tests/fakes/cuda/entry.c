/* SPDX-License-Identifier: Apache-2.0 */
/* Entry and exit of driver functions: the lock, call counts, failures on demand, and checks common to all functions. */
#include "fake.h"

#include <string.h>

typedef struct failure {
    uint64_t use; /* number of the call that fails; 0: every call */
    int error;
    bool lasting;
    fake_function function;
} failure;

static const struct {
    const char *name;
    unsigned flags;
} functions[FAKE_FUNCTION_COUNT] = {
#define FAKE_ROW(name, flags) {#name, flags},
    FAKE_FUNCTIONS(FAKE_ROW)
#undef FAKE_ROW
};
static uint64_t uses[FAKE_FUNCTION_COUNT];
static failure failures[64];
static size_t failure_count;
static int lasting_error; /* of the context; OK: it works */

static int wanted_failure(fake_function function)
{
    if (lasting_error != OK && !(functions[function].flags & (FAKE_EARLY | FAKE_WITHOUT_WORK)))
        return lasting_error;
    for (size_t i = 0; i < failure_count; i++) {
        if (failures[i].function != function || (failures[i].use != 0 && failures[i].use != uses[function]))
            continue;
        int error = failures[i].error;
        if (failures[i].lasting) { /* no work runs afterwards */
            lasting_error = error;
            for (fake_stream *stream = fake.streams; stream != NULL; stream = stream->next)
                fake_await_stream(stream);
        }
        if (failures[i].use != 0)
            failures[i] = failures[--failure_count];
        return error;
    }
    return OK;
}

static int refusal(fake_function function)
{
    fake_thread *thread = fake_this_thread();
    unsigned flags = functions[function].flags;
    if (thread->in_host_function && !(flags & FAKE_EARLY)) {
        fake_break("host_functions_call_no_driver", "%s was called by a host function of a stream",
                   functions[function].name);
        return NOT_PERMITTED;
    }
    int error = wanted_failure(function);
    if (error != OK)
        return error;
    if (!fake.started && !(flags & FAKE_EARLY))
        return NOT_INITIALIZED;
    if ((flags & FAKE_UNSAFE) || ((flags & FAKE_PERHAPS_UNSAFE) && fake.config.vmm_unsafe))
        return fake_capture_check_unsafe(thread);
    return OK;
}

int fake_enter(fake_function function)
{
    pthread_mutex_lock(&fake.lock);
    fake_get_ready();
    uses[function]++;
    int error = refusal(function);
    if (error != OK)
        pthread_mutex_unlock(&fake.lock);
    return error;
}

int fake_leave(int result)
{
    pthread_mutex_unlock(&fake.lock);
    return result;
}

unsigned fake_function_flags(fake_function function)
{
    return functions[function].flags;
}

void fake_forget_counts(void)
{
    memset(uses, 0, sizeof uses);
    failure_count = 0;
    lasting_error = OK;
}

/* ---- control ----------------------------------------------------------------------------------------------------- */

static fake_function find(const char *name)
{
    fake_function function = 0;
    while (function < FAKE_FUNCTION_COUNT && strcmp(functions[function].name, name) != 0)
        function++;
    return function;
}

static bool plan_failure(const char *function, uint64_t nth, int error, bool lasting)
{
    pthread_mutex_lock(&fake.lock);
    fake_function found = find(function);
    bool room = found < FAKE_FUNCTION_COUNT && failure_count < sizeof failures / sizeof *failures;
    if (room)
        failures[failure_count++] = (failure){nth == 0 ? 0 : uses[found] + nth, error, lasting, found};
    pthread_mutex_unlock(&fake.lock);
    return room;
}

FAKE_API bool fake_cuda_fail(const char *function, uint64_t nth, int error)
{
    return plan_failure(function, nth, error, false);
}

FAKE_API bool fake_cuda_fail_for_good(const char *function, uint64_t nth, int error)
{
    return plan_failure(function, nth, error, true);
}

FAKE_API void fake_cuda_fail_none(void)
{
    pthread_mutex_lock(&fake.lock);
    failure_count = 0;
    pthread_mutex_unlock(&fake.lock);
}

FAKE_API uint64_t fake_cuda_calls(const char *function)
{
    pthread_mutex_lock(&fake.lock);
    fake_function found = find(function);
    uint64_t count = found < FAKE_FUNCTION_COUNT ? uses[found] : UINT64_MAX;
    pthread_mutex_unlock(&fake.lock);
    return count;
}

FAKE_API uint64_t fake_cuda_calls_all(void)
{
    uint64_t sum = 0;
    pthread_mutex_lock(&fake.lock);
    for (size_t i = 0; i < FAKE_FUNCTION_COUNT; i++)
        sum += uses[i];
    pthread_mutex_unlock(&fake.lock);
    return sum;
}

FAKE_API const char *fake_cuda_function(size_t index)
{
    return index < FAKE_FUNCTION_COUNT ? functions[index].name : NULL;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Primary contexts, and the current context of each thread. */
#include "driver.h"

static fake_context *find(void *handle)
{
    for (int i = 0; i < fake.config.devices; i++)
        if (handle == &fake.contexts[i])
            return &fake.contexts[i];
    return NULL;
}

int fake_current(fake_context **context)
{
    const fake_thread *thread = fake_this_thread();
    fake_context *current = thread->depth > 0 ? thread->stack[thread->depth - 1] : NULL;
    if (current == NULL)
        return INVALID_CONTEXT;
    if (!current->active) {
        fake_break("contexts_outlive_their_use", "the primary context of device %d is gone and still current",
                   current->device);
        return CONTEXT_IS_DESTROYED;
    }
    *context = current;
    return OK;
}

static int retain(void **context, int device)
{
    if (context == NULL)
        return INVALID_VALUE;
    if (device < 0 || device >= fake.config.devices)
        return INVALID_DEVICE;
    fake_context *primary = &fake.contexts[device];
    if (!primary->active) {
        primary->active = true;
        primary->legacy = fake_stream_new(primary, 0, true);
    }
    primary->references++;
    *context = primary;
    return OK;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    FAKE_ENTER(cuDevicePrimaryCtxRetain);
    return fake_leave(retain(context, device));
}

typedef struct ending {
    fake_context *context;
    int objects;
} ending;

static void end_object(fake_object *object, void *argument)
{
    ending *end = argument;
    fake_stream *stream = object->kind == FAKE_STREAM ? (fake_stream *)object : NULL;
    fake_module *module = object->kind == FAKE_MODULE ? (fake_module *)object : NULL;
    bool event = object->kind == FAKE_EVENT && ((fake_event *)object)->context == end->context;
    if (!object->alive || !(event || (stream != NULL && stream->context == end->context) ||
                            (module != NULL && module->context == end->context)))
        return;
    end->objects += stream == NULL || !stream->legacy;
    if (stream != NULL)
        fake_capture_stream_gone(stream);
    object->alive = false;
    if (module != NULL)
        fake_module_end(module);
    if (stream != NULL)
        pthread_cond_broadcast(&stream->arrived);
}

static void end_context(fake_context *context)
{
    ending end = {context, 0};
    fake_await_context(context);
    if (context->references > 0)
        return; /* retained again meanwhile */
    fake_objects_each(end_object, &end);
    end.objects += fake_memory_end_with(context);
    if (end.objects > 0)
        fake_break("contexts_end_empty", "the primary context of device %d was released with %d objects of it",
                   context->device, end.objects);
    context->active = false;
    context->legacy = NULL;
}

static int release(int device)
{
    if (device < 0 || device >= fake.config.devices)
        return INVALID_DEVICE;
    fake_context *context = &fake.contexts[device];
    if (context->references == 0)
        return INVALID_CONTEXT;
    if (--context->references == 0)
        end_context(context);
    return OK;
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
    FAKE_ENTER(cuDevicePrimaryCtxRelease);
    return fake_leave(release(device));
}

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
    FAKE_ENTER(cuDevicePrimaryCtxGetState);
    if (device < 0 || device >= fake.config.devices)
        return fake_leave(INVALID_DEVICE);
    if (flags == NULL || active == NULL)
        return fake_leave(INVALID_VALUE);
    *flags = 0;
    *active = fake.contexts[device].active;
    return fake_leave(OK);
}

static int push(void *handle)
{
    fake_thread *thread = fake_this_thread();
    fake_context *context = find(handle);
    if (context == NULL || thread->depth == sizeof thread->stack / sizeof *thread->stack)
        return handle == NULL ? INVALID_VALUE : INVALID_CONTEXT;
    if (!context->active)
        return CONTEXT_IS_DESTROYED;
    thread->stack[thread->depth++] = context;
    return OK;
}

int cuCtxPushCurrent_v2(void *context)
{
    FAKE_ENTER(cuCtxPushCurrent);
    return fake_leave(push(context));
}

static int pop(void **context)
{
    fake_thread *thread = fake_this_thread();
    if (thread->depth == 0)
        return INVALID_CONTEXT;
    thread->depth--;
    if (context != NULL)
        *context = thread->stack[thread->depth];
    return OK;
}

int cuCtxPopCurrent_v2(void **context)
{
    FAKE_ENTER(cuCtxPopCurrent);
    return fake_leave(pop(context));
}

int cuCtxGetCurrent(void **context)
{
    FAKE_ENTER(cuCtxGetCurrent);
    const fake_thread *thread = fake_this_thread();
    if (context == NULL)
        return fake_leave(INVALID_VALUE);
    *context = thread->depth > 0 ? thread->stack[thread->depth - 1] : NULL;
    return fake_leave(OK);
}

/* Replaces the top of the stack; NULL pops it. */
static int set(void *handle)
{
    fake_thread *thread = fake_this_thread();
    if (handle != NULL && find(handle) == NULL)
        return INVALID_CONTEXT;
    if (thread->depth > 0)
        thread->depth--;
    return handle != NULL ? push(handle) : OK;
}

int cuCtxSetCurrent(void *context)
{
    FAKE_ENTER(cuCtxSetCurrent);
    return fake_leave(set(context));
}

static int get_device(int *device, fake_context *context)
{
    if (context == NULL)
        FAKE_TRY(fake_current(&context));
    if (device == NULL)
        return INVALID_VALUE;
    *device = context->device;
    return OK;
}

int cuCtxGetDevice(int *device)
{
    FAKE_ENTER(cuCtxGetDevice);
    return fake_leave(get_device(device, NULL));
}

int cuCtxGetDevice_v2(int *device, void *context)
{
    FAKE_ENTER(cuCtxGetDevice);
    if (context != NULL && find(context) == NULL)
        return fake_leave(INVALID_CONTEXT);
    return fake_leave(get_device(device, find(context)));
}

static int synchronize(fake_context *context)
{
    if (context == NULL)
        FAKE_TRY(fake_current(&context));
    FAKE_TRY(fake_capture_check_context(context));
    fake_await_context(context);
    return OK;
}

int cuCtxSynchronize(void)
{
    FAKE_ENTER(cuCtxSynchronize);
    return fake_leave(synchronize(NULL));
}

int cuCtxSynchronize_v2(void *context)
{
    FAKE_ENTER(cuCtxSynchronize);
    if (context != NULL && find(context) == NULL)
        return fake_leave(INVALID_CONTEXT);
    return fake_leave(synchronize(find(context)));
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Modules: loading images, finding kernels, and launches. */
#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "devices/cuda_image.h"

#define KERNELS_PATH_BYTES 4096
#define LAZY                                                                                                           \
    12040 /* from this version on kernels are loaded by cuFuncLoad or the first launch, not when they are looked up */

#define DYNAMIC_SHARED 49152 /* bytes of a launch, unless the kernel's attribute allows more */
#define STATIC_SHARED 1024   /* of every kernel */

static char kernels_path[KERNELS_PATH_BYTES], loaded_path[KERNELS_PATH_BYTES];
static const fake_kernel *kernels;

const char *fake_kernels_keep_path(const char *path)
{
    if (path == NULL)
        return NULL;
    (void)snprintf(kernels_path, sizeof kernels_path, "%s", path);
    return kernels_path;
}

/* Loads the library for the rest of the process, as it stands for the GPU. */
static const fake_kernel *load_kernels(const char *path)
{
    if (path == NULL || (kernels != NULL && strcmp(path, loaded_path) == 0))
        return path != NULL ? kernels : NULL;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    kernels = library != NULL ? dlsym(library, "fake_kernels") : NULL;
    if (kernels == NULL) {
        fprintf(stderr, "FAKE_CUDA: no kernels in %s: %s\n", path, dlerror());
        abort();
    }
    (void)snprintf(loaded_path, sizeof loaded_path, "%s", path);
    return kernels;
}

/* ---- images ------------------------------------------------------------------------------------------------------ */

/* Refuses what a driver of the configured version does not load: cubins of newer ones as invalid images, as users of Triton and ollama met
 * them. */
static int check_image(const void *image, int device)
{
    bp_cuda_code code;
    if (!bp_cuda_is_image(image))
        return INVALID_IMAGE;
    if (!bp_cuda_image_find(image, fake_attribute(75, device), fake_attribute(76, device), &code))
        return NO_BINARY_FOR_GPU;
    if (code.driver > fake.config.version)
        return code.is_ptx ? UNSUPPORTED_PTX_VERSION : INVALID_IMAGE;
    return OK;
}

/* ---- modules ----------------------------------------------------------------------------------------------------- */

static int load(void **module, const void *image)
{
    fake_context *context;
    FAKE_TRY(fake_current(&context));
    if (module == NULL || image == NULL)
        return INVALID_VALUE;
    FAKE_TRY(check_image(image, context->device));
    const fake_kernel *found = load_kernels(fake.config.kernels);
    if (found == NULL)
        return NO_BINARY_FOR_GPU;
    fake_module *made = fake_new(sizeof *made);
    fake_object_add(&made->object, FAKE_MODULE);
    made->context = context;
    made->kernels = found;
    *module = made;
    return OK;
}

int cuModuleLoadData(void **module, const void *image)
{
    FAKE_ENTER(cuModuleLoadData);
    return fake_leave(load(module, image));
}

static void *find(const void *handle, fake_kind kind)
{
    bool gone = false;
    void *found = fake_object_find(handle, kind, &gone);
    if (found == NULL)
        fake_break("handles_end_with_their_objects", "%s %p %s", kind == FAKE_MODULE ? "module" : "kernel", handle,
                   gone ? "is unloaded" : "is unknown");
    return found;
}

void fake_module_end(fake_module *module)
{
    module->object.alive = false;
    for (fake_entry *entry = module->entries; entry != NULL; entry = entry->next)
        entry->object.alive = false;
}

static int unload(void *handle)
{
    fake_context *context;
    FAKE_TRY(fake_current(&context));
    fake_module *module = find(handle, FAKE_MODULE);
    if (module == NULL)
        return INVALID_HANDLE;
    if (module->launches > 0)
        fake_break("modules_outlive_their_launches",
                   "module %p was unloaded with %zu launches of its kernels on their way or in graphs", handle,
                   module->launches);
    fake_module_end(module);
    return OK;
}

int cuModuleUnload(void *module)
{
    FAKE_ENTER(cuModuleUnload);
    return fake_leave(unload(module));
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

static const fake_kernel *kernel_named(const fake_kernel *list, const char *name)
{
    while (list->name != NULL && strcmp(list->name, name) != 0)
        list++;
    return list->name != NULL ? list : NULL;
}

static fake_entry *entry_of(fake_module *module, const fake_kernel *kernel)
{
    fake_entry *entry = module->entries;
    while (entry != NULL && entry->kernel != kernel)
        entry = entry->next;
    if (entry != NULL)
        return entry;
    entry = fake_new(sizeof *entry);
    fake_object_add(&entry->object, FAKE_ENTRY);
    entry->module = module;
    entry->kernel = kernel;
    entry->loaded = fake.config.version < LAZY;
    entry->dynamic_shared = DYNAMIC_SHARED;
    entry->next = module->entries;
    module->entries = entry;
    return entry;
}

static int get_function(void **function, void *handle, const char *name)
{
    fake_context *context;
    FAKE_TRY(fake_current(&context));
    if (function == NULL || name == NULL)
        return INVALID_VALUE;
    fake_module *module = find(handle, FAKE_MODULE);
    if (module == NULL)
        return INVALID_HANDLE;
    const fake_kernel *kernel = kernel_named(module->kernels, name);
    if (kernel == NULL)
        return NO_SUCH_NAME;
    *function = entry_of(module, kernel);
    return OK;
}

int cuModuleGetFunction(void **function, void *module, const char *name)
{
    FAKE_ENTER(cuModuleGetFunction);
    return fake_leave(get_function(function, module, name));
}

static int load_function(void *handle)
{
    fake_context *context;
    FAKE_TRY(fake_current(&context));
    fake_entry *entry = find(handle, FAKE_ENTRY);
    if (entry == NULL)
        return INVALID_HANDLE;
    entry->loaded = true;
    return OK;
}

int cuFuncLoad(void *function)
{
    FAKE_ENTER(cuFuncLoad);
    return fake_leave(load_function(function));
}

/* ---- attributes -------------------------------------------------------------------------------------------------- */

static int get_function_attribute(int *value, int attribute, void *handle)
{
    fake_context *context;
    FAKE_TRY(fake_current(&context));
    const fake_entry *entry = find(handle, FAKE_ENTRY);
    if (entry == NULL || value == NULL)
        return entry == NULL ? INVALID_HANDLE : INVALID_VALUE;
    if (attribute != 1 && attribute != 8)
        return NOT_SUPPORTED;
    *value = attribute == 1 ? STATIC_SHARED : entry->dynamic_shared;
    return OK;
}

int cuFuncGetAttribute(int *value, int attribute, void *function)
{
    FAKE_ENTER(cuFuncGetAttribute);
    return fake_leave(get_function_attribute(value, attribute, function));
}

static int set_function_attribute(void *handle, int attribute, int value)
{
    fake_context *context;
    FAKE_TRY(fake_current(&context));
    fake_entry *entry = find(handle, FAKE_ENTRY);
    if (entry == NULL)
        return INVALID_HANDLE;
    if (attribute == 9)
        return value >= -1 && value <= 100 ? OK : INVALID_VALUE;
    if (attribute != 8)
        return NOT_SUPPORTED;
    if (value < 0 || value > fake_attribute(97, context->device) - STATIC_SHARED)
        return INVALID_VALUE;
    entry->dynamic_shared = value;
    return OK;
}

int cuFuncSetAttribute(void *function, int attribute, int value)
{
    FAKE_ENTER(cuFuncSetAttribute);
    return fake_leave(set_function_attribute(function, attribute, value));
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */

/* True for a grid that every GPU accepts. */
static bool is_grid(const fake_launch *launch)
{
    const unsigned *grid = launch->grid, *block = launch->block;
    for (int i = 0; i < 3; i++)
        if (grid[i] == 0 || block[i] == 0)
            return false;
    return grid[0] <= 0x7fffffffu && grid[1] <= 65535 && grid[2] <= 65535 && block[0] <= 1024 && block[1] <= 1024 &&
           block[2] <= 64 && (uint64_t)block[0] * block[1] * block[2] <= 1024;
}

/* Checks that kernel, stream and current context match. Refusing a current context of another device is stricter
 * than the real driver. */
static int check(void *function, const fake_launch *launch, void *handle, fake_entry **entry, fake_stream **stream)
{
    fake_context *context;
    FAKE_TRY(fake_current(&context));
    FAKE_TRY(fake_stream_for_work(handle, stream));
    *entry = find(function, FAKE_ENTRY);
    if (*entry == NULL || (*entry)->module->context != (*stream)->context || (*stream)->context != context)
        return INVALID_HANDLE;
    return is_grid(launch) && launch->shared_bytes <= (unsigned)(*entry)->dynamic_shared ? OK : INVALID_VALUE;
}

/* Adds the launch with a copy of its argument to the stream. */
static int submit(fake_stream *stream, const fake_launch *wanted, const void *argument)
{
    const size_t bytes = wanted->kernel->argument_bytes;
    fake_launch *launch = fake_new(sizeof *launch + bytes);
    *launch = *wanted;
    launch->references = 1;
    if (bytes > 0)
        memcpy(launch->argument, argument, bytes);
    if (launch->module != NULL)
        launch->module->launches++;
    int result = fake_submit(stream, &(fake_work){.kind = FAKE_KERNEL, .launch = launch});
    if (result != OK)
        fake_launch_release(launch);
    return result;
}

static int launch_kernel(void *function, fake_launch *wanted, void *handle, void **arguments)
{
    fake_entry *entry;
    fake_stream *stream;
    FAKE_TRY(check(function, wanted, handle, &entry, &stream));
    wanted->module = entry->module;
    wanted->kernel = entry->kernel;
    if (entry->kernel->argument_bytes > 0 && (arguments == NULL || arguments[0] == NULL))
        return INVALID_VALUE;
    if (stream->capture != NULL && !entry->loaded)
        fake_break("kernels_are_loaded_before_captures", "kernel %s was first launched in capture %llu",
                   entry->kernel->name, (unsigned long long)stream->capture->id);
    FAKE_TRY(submit(stream, wanted, arguments != NULL ? arguments[0] : NULL));
    entry->loaded = true;
    return OK;
}

FAKE_API int fake_cuda_launch(const fake_kernel *kernel, const void *argument, void *handle)
{
    fake_stream *stream;
    const fake_launch wanted = {.kernel = kernel, .grid = {1, 1, 1}, .block = {1, 1, 1}};
    pthread_mutex_lock(&fake.lock);
    int result = fake_stream_for_work(handle, &stream);
    return fake_leave(result == OK ? submit(stream, &wanted, argument) : result);
}

void fake_launch_release(fake_launch *launch)
{
    if (--launch->references > 0)
        return;
    if (launch->module != NULL)
        launch->module->launches--;
    free(launch);
}

int cuLaunchKernel(void *function, unsigned blocks_x, unsigned blocks_y, unsigned blocks_z, unsigned threads_x,
                   unsigned threads_y, unsigned threads_z, unsigned shared_bytes, void *stream, void **arguments,
                   void **extra)
{
    FAKE_ENTER(cuLaunchKernel);
    fake_launch wanted = {.grid = {blocks_x, blocks_y, blocks_z},
                          .block = {threads_x, threads_y, threads_z},
                          .shared_bytes = shared_bytes};
    if (extra != NULL) /* arguments in one buffer are not emulated */
        return fake_leave(arguments != NULL ? INVALID_VALUE : NOT_SUPPORTED);
    return fake_leave(launch_kernel(function, &wanted, stream, arguments));
}

/* Without the lock. */
void fake_launch_run(const fake_launch *launch)
{
    fake_memory_open();
    launch->kernel->run(launch->grid, launch->block, launch->shared_bytes, launch->argument);
    fake_memory_shut();
}

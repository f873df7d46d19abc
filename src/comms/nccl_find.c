/* The copy of NCCL that this process has loaded. Nothing is ever loaded here: a second copy would not know the communicators of the
 * first. RTLD_DEFAULT alone would not do: it does not see what was loaded with RTLD_LOCAL, as Python loads everything. */
#include "comms/nccl.h"

#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "core/memory.h"

/* The names of all objects that are loaded, "" for the program. */
typedef struct objects {
    char **names;
    size_t count, capacity;
    bp_status status;
} objects;

/* Under the loader's lock: only notes names. */
static int note_object(struct dl_phdr_info *info, size_t size, void *user)
{
    (void)size;
    objects *o = user;
    o->status = bp_grow_array((void **)&o->names, &o->capacity, o->count, sizeof *o->names);
    if (o->status == BP_OK)
        o->status = bp_copy_string(info->dlpi_name != NULL ? info->dlpi_name : "", &o->names[o->count]);
    if (o->status != BP_OK)
        return 1;
    o->count++;
    return 0;
}

static void free_objects(objects *o)
{
    for (size_t i = 0; i < o->count; i++)
        free(o->names[i]);
    free((void *)o->names);
}

/* A handle of an object that defines ncclGetVersion itself, not only one of those it needs; NULL: it does not. */
static void *open_copy(const char *name)
{
    void *handle = dlopen(name[0] != '\0' ? name : NULL, RTLD_LAZY | RTLD_NOLOAD);
    if (handle == NULL)
        return NULL;
    void *symbol = dlsym(handle, "ncclGetVersion");
    struct link_map *object = NULL;
    void *definer = NULL;
    Dl_info info;
    if (symbol != NULL && dlinfo(handle, RTLD_DI_LINKMAP, (void *)&object) == 0 &&
        dladdr1(symbol, &info, &definer, RTLD_DL_LINKMAP) != 0 && definer == (void *)object)
        return handle;
    dlclose(handle);
    return NULL;
}

static const char *file_of(const char *name)
{
    return name[0] != '\0' ? name : "the program itself";
}

static bp_status find_copy(const objects *o, void **copy)
{
    char names[BP_DETAIL_BYTES] = "";
    size_t found = 0, written = 0;
    *copy = NULL;
    for (size_t i = 0; i < o->count; i++) {
        void *handle = open_copy(o->names[i]);
        if (handle == NULL)
            continue;
        if (written < sizeof names)
            written += (size_t)snprintf(names + written, sizeof names - written, "%s%s", found > 0 ? ", " : "",
                                        file_of(o->names[i]));
        if (found++ == 0)
            *copy = handle;
        else
            dlclose(handle);
    }
    if (found == 1)
        return BP_OK;
    if (*copy != NULL)
        dlclose(*copy);
    if (found == 0)
        return bp_fail(BP_ERR_UNSUPPORTED,
                       "NCCL is not loaded: load the copy that makes the communicators first, or give its functions");
    return bp_fail(BP_ERR_UNSUPPORTED,
                   "%zu copies of NCCL are loaded (%s): give the functions of the one that made the communicator",
                   found, names);
}

static void nccl_find_look_up(void *copy, bp_nccl_functions *f)
{
    const struct {
        void *place;
        const char *name;
    } functions[] = {
        {&f->ncclGetVersion, "ncclGetVersion"},
        {&f->ncclGetErrorString, "ncclGetErrorString"},
        {&f->ncclGetLastError, "ncclGetLastError"},
        {&f->ncclCommCount, "ncclCommCount"},
        {&f->ncclCommUserRank, "ncclCommUserRank"},
        {&f->ncclCommCuDevice, "ncclCommCuDevice"},
        {&f->ncclCommGetAsyncError, "ncclCommGetAsyncError"},
        {&f->ncclCommAbort, "ncclCommAbort"},
        {&f->ncclAllGather, "ncclAllGather"},
        {&f->ncclAllReduce, "ncclAllReduce"},
        {&f->ncclReduceScatter, "ncclReduceScatter"},
        {&f->ncclCommRegister, "ncclCommRegister"},
        {&f->ncclCommDeregister, "ncclCommDeregister"},
        {&f->ncclCommWindowRegister, "ncclCommWindowRegister"},
        {&f->ncclCommWindowDeregister, "ncclCommWindowDeregister"},
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *symbol = dlsym(copy, functions[i].name);
        memcpy(functions[i].place, (const void *)&symbol, sizeof symbol);
    }
}

/* Who holds a communicator keeps its copy loaded: no reference is kept here. */
static bp_status nccl_find_fill(void *copy, bp_nccl_functions *functions)
{
    bp_nccl_functions found = {.size = sizeof found};
    int version;
    nccl_find_look_up(copy, &found);
    const char *missing = bp_nccl_missing(&found);
    if (found.ncclGetVersion != NULL)
        BP_TRY(bp_nccl_version(&found, &version));
    if (missing != NULL)
        return bp_fail(BP_ERR_UNSUPPORTED, "the copy of NCCL that is loaded has no function %s", missing);
    *functions = found;
    return BP_OK;
}

bp_status bp_nccl_find(bp_nccl_functions *functions)
{
    objects o = {.status = BP_OK};
    void *copy = NULL;
    (void)dl_iterate_phdr(note_object, &o);
    bp_status status = o.status;
    if (status == BP_OK)
        status = find_copy(&o, &copy);
    free_objects(&o);
    BP_TRY(status);
    status = nccl_find_fill(copy, functions);
    dlclose(copy);
    return status;
}

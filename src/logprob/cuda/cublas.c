#include "logprob/cuda/cublas.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "core/fail.h"

typedef struct release {
    const char *name;
    int driver_version; /* of the oldest driver that it works with */
} release;

static const release releases[] = {{"libcublas.so.13", 13000}, {"libcublas.so.12", 12000}};

#define RELEASES (sizeof releases / sizeof *releases)

/* Stays in memory once it is loaded: it has threads and handlers of its own. */
static bool open_release(const release *wanted, int driver_version, int flags, bp_cublas *cublas)
{
    if (driver_version < wanted->driver_version)
        return false;
    cublas->name = wanted->name;
    cublas->library = dlopen(wanted->name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE | flags);
    return cublas->library != NULL;
}

static bool open_any(int driver_version, int flags, bp_cublas *cublas)
{
    for (size_t i = 0; i < RELEASES; i++)
        if (open_release(&releases[i], driver_version, flags, cublas))
            return true;
    return false;
}

static bp_status cublas_look_up(bp_cublas *cublas)
{
    const struct {
        const char *name;
        size_t offset;
    } functions[] = {
        {"cublasCreate_v2", offsetof(bp_cublas, cublasCreate)},
        {"cublasDestroy_v2", offsetof(bp_cublas, cublasDestroy)},
        {"cublasSetStream_v2", offsetof(bp_cublas, cublasSetStream)},
        {"cublasSetWorkspace_v2", offsetof(bp_cublas, cublasSetWorkspace)},
        {"cublasSetMathMode", offsetof(bp_cublas, cublasSetMathMode)},
        {"cublasGemmEx", offsetof(bp_cublas, cublasGemmEx)},
        {"cublasGetStatusString", offsetof(bp_cublas, cublasGetStatusString)},
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *symbol = dlsym(cublas->library, functions[i].name);
        if (symbol == NULL)
            return bp_fail(BP_ERR_UNSUPPORTED, "cuBLAS (%s) has no function %s", cublas->name, functions[i].name);
        memcpy((char *)cublas + functions[i].offset, &symbol, sizeof symbol);
    }
    return BP_OK;
}

bp_status bp_cublas_open(int driver_version, bp_cublas *cublas)
{
    bp_cublas found = {0};
    if (!open_any(driver_version, RTLD_NOLOAD, &found) && !open_any(driver_version, 0, &found)) {
        const char *reason = dlerror();
        return bp_fail(BP_ERR_UNSUPPORTED,
                       "cuBLAS was not found: %slibcublas.so.12 is neither loaded nor where the loader looks (%s)",
                       driver_version >= releases[0].driver_version ? "libcublas.so.13 or " : "",
                       reason != NULL ? reason : "no reason was given");
    }
    bp_status status = cublas_look_up(&found);
    if (status != BP_OK) {
        bp_cublas_close(&found);
        return status;
    }
    *cublas = found;
    return BP_OK;
}

void bp_cublas_close(bp_cublas *cublas)
{
    if (cublas->library != NULL)
        dlclose(cublas->library);
    cublas->library = NULL;
}

/* The driver's functions, found at run time: versioned lookup, so that one table fits the drivers of CUDA 12 and 13. */
#include "devices/cuda_driver.h"

#include <dlfcn.h>
#include <string.h>

#include "core/fail.h"
#include "devices/cuda.h"

#define OLDEST 12000 /* CUDA 12.0: what the table's signatures are of */

typedef int find_function(const char *name, void **function, int version, uint64_t flags, int *status);

/* A place in the table. `version`: of the signature that is wanted, where newer drivers have others by the same name. */
typedef struct entry {
    const char *name;
    size_t offset;
    int version;
    bool optional;
} entry;

#define AT(name) #name, offsetof(bp_cuda_driver, name)

static const entry entries[] = {
    {AT(cuInit), 2000, false},
    {AT(cuDriverGetVersion), 2020, false},
    {AT(cuGetErrorName), 6000, false},
    {AT(cuGetErrorString), 6000, false},
    {AT(cuDeviceGetCount), 2000, false},
    {AT(cuDeviceGet), 2000, false},
    {AT(cuDeviceGetName), 2000, false},
    {AT(cuDeviceGetAttribute), 2000, false},
    {AT(cuDeviceCanAccessPeer), 4000, false},
    {AT(cuDevicePrimaryCtxRetain), 7000, false},
    {AT(cuDevicePrimaryCtxRelease), 11000, false},
    {AT(cuCtxPushCurrent), 4000, false},
    {AT(cuCtxPopCurrent), 4000, false},
    {AT(cuCtxGetCurrent), 4000, false},
    {AT(cuCtxSynchronize), 2000, false},
    {AT(cuMemGetInfo), 3020, false},
    {AT(cuMemGetAllocationGranularity), 10020, false},
    {AT(cuMulticastGetGranularity), 12010, true},
    {AT(cuMemAddressReserve), 10020, false},
    {AT(cuMemAddressFree), 10020, false},
    {AT(cuMemCreate), 10020, false},
    {AT(cuMemRelease), 10020, false},
    {AT(cuMemMap), 10020, false},
    {AT(cuMemUnmap), 10020, false},
    {AT(cuMemSetAccess), 10020, false},
    {AT(cuMemAlloc), 3020, false},
    {AT(cuMemFree), 3020, false},
    {AT(cuMemAllocAsync), 11020, false},
    {AT(cuMemFreeAsync), 11020, false},
    {AT(cuMemHostRegister), 6050, false},
    {AT(cuMemHostUnregister), 4000, false},
    {AT(cuStreamCreate), 2000, false},
    {AT(cuStreamDestroy), 4000, false},
    {AT(cuStreamSynchronize), 2000, false},
    {AT(cuStreamGetCtx), 9020, false},
    {AT(cuStreamWaitEvent), 3020, false},
    {AT(cuStreamGetCaptureInfo), OLDEST, false},
    {AT(cuLaunchHostFunc), 10000, false},
    {AT(cuMemsetD8Async), 3020, false},
    {AT(cuMemcpyAsync), 4000, false},
    {AT(cuEventCreate), 2000, false},
    {AT(cuEventDestroy), 4000, false},
    {AT(cuEventRecord), 2000, false},
    {AT(cuEventSynchronize), 2000, false},
    {AT(cuStreamBeginCapture), 10010, false},
    {AT(cuStreamEndCapture), 10000, false},
    {"cuGraphInstantiateWithFlags", offsetof(bp_cuda_driver, cuGraphInstantiate), 11040, false},
    {AT(cuGraphLaunch), 10000, false},
    {AT(cuGraphExecDestroy), 10000, false},
    {AT(cuGraphDestroy), 10000, false},
    {AT(cuModuleLoadData), 2000, false},
    {AT(cuModuleUnload), 2000, false},
    {AT(cuModuleGetFunction), 2000, false},
    {AT(cuFuncLoad), 12040, true},
    {AT(cuLaunchKernel), 4000, false},
};

static bp_status fail_stub(const char *library)
{
    return bp_fail(BP_ERR_NO_DEVICE, "%s is the toolkit's stub, not a driver: take its folder out of LD_LIBRARY_PATH",
                   library);
}

static bp_status cuda_driver_fill(find_function *find, const char *library, bp_cuda_driver *driver)
{
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        void *function = NULL;
        int found;
        int error = find(entries[i].name, &function, entries[i].version, 0, &found);
        if (error == BP_CU_STUB_LIBRARY)
            return fail_stub(library);
        if (error != BP_CU_SUCCESS)
            function = NULL;
        if (function == NULL && !entries[i].optional)
            return bp_fail(BP_ERR_NO_DEVICE, "the driver %s has no function %s; drivers of CUDA 12.0 and later do",
                           library, entries[i].name);
        memcpy((char *)driver + entries[i].offset, &function, sizeof function);
    }
    return BP_OK;
}

/* What any driver answers, started or not, however old. */
static bp_status check_version(void *handle, const char *library)
{
    int (*get_version)(int *);
    void *symbol = dlsym(handle, "cuDriverGetVersion");
    memcpy(&get_version, &symbol, sizeof symbol);
    int version = 0;
    if (symbol == NULL)
        return bp_fail(BP_ERR_NO_DEVICE, "%s is no CUDA driver: it has no function cuDriverGetVersion", library);
    int error = get_version(&version);
    if (error == BP_CU_STUB_LIBRARY)
        return fail_stub(library);
    if (error != BP_CU_SUCCESS || version < OLDEST)
        return bp_fail(BP_ERR_NO_DEVICE, "the driver %s is of CUDA %d.%d; 12.0 or later is needed", library,
                       version / 1000, version % 1000 / 10);
    return BP_OK;
}

bp_status bp_cuda_start(const bp_cuda_driver *driver, const char *library)
{
    int error = driver->cuInit(0);
    if (error == BP_CU_STUB_LIBRARY)
        return fail_stub(library);
    if (error == BP_CU_NO_DEVICE)
        return bp_fail(BP_ERR_NO_DEVICE, "the driver %s finds no GPU", library);
    if (error != BP_CU_SUCCESS) {
        const char *name = NULL;
        (void)driver->cuGetErrorName(error, &name);
        return bp_fail(BP_ERR_NO_DEVICE, "the driver %s does not start: %s (%d)", library,
                       name != NULL ? name : "unknown", error);
    }
    return BP_OK;
}

bp_status bp_cuda_driver_load(const char *library, bp_cuda_driver *driver)
{
    if (driver == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_cuda_driver_load: needs a table");
    if (library == NULL)
        library = "libcuda.so.1";
    void *handle = dlopen(library, RTLD_LAZY | RTLD_LOCAL); /* stays open: drivers do not survive being closed */
    if (handle == NULL) {
        const char *reason = dlerror();
        return bp_fail(BP_ERR_NO_DEVICE, "no CUDA driver on this machine: %s", reason != NULL ? reason : library);
    }
    BP_TRY(check_version(handle, library));
    void *symbol = dlsym(handle, "cuGetProcAddress_v2");
    if (symbol == NULL)
        return bp_fail(BP_ERR_NO_DEVICE,
                       "the driver %s has no function cuGetProcAddress_v2; those of CUDA 12.0 and later do", library);
    find_function *find;
    memcpy(&find, &symbol, sizeof symbol);
    bp_cuda_driver found;
    BP_TRY(cuda_driver_fill(find, library, &found));
    BP_TRY(bp_cuda_start(&found, library));
    *driver = found;
    return BP_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The BLAS library of the machine: a copy that the process has, PyTorch's among them, or one that the dynamic loader finds. */
#include "host/blas.h"

#include <bucketpool/core/fail.h>

#include <dlfcn.h>
#include <string.h>

#define FLAGS (RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)

/* libtorch_cpu.so of most PyTorch packages exports the BLAS that it was linked with (MKL) but hides it from the global symbols, since Python
 * loads extensions with RTLD_LOCAL. */
#define TORCH "libtorch_cpu.so"

/* In order of preference. MKL's dispatcher comes late, because it loads a second OpenMP runtime. libblas.so.3 may be the reference
 * implementation, which uses one thread and no blocks. */
static const char *const names[] = {"libopenblas.so.0", "libblis.so.4", "libmkl_rt.so.2", "libblas.so.3"};

static void *find_sgemm(const char *name, int flags)
{
    void *handle = dlopen(name, FLAGS | flags);
    return handle != NULL ? dlsym(handle, "sgemm_") : NULL;
}

/* NULL: not found. */
static void *find_any(void)
{
    void *sgemm = dlsym(RTLD_DEFAULT, "sgemm_");
    if (sgemm == NULL)
        sgemm = find_sgemm(TORCH, RTLD_NOLOAD);
    static const int flags[] = {RTLD_NOLOAD, 0};
    for (size_t i = 0; i < 2; i++)
        for (size_t j = 0; sgemm == NULL && j < sizeof names / sizeof *names; j++)
            sgemm = find_sgemm(names[j], flags[i]);
    return sgemm;
}

/* AMX-BF16 comes with AVX512-BF16. MKL dispatches to either on Intel's processors only; without them a bf16 product is about five times
 * slower than sgemm. */
bool bp_blas_may_multiply_bf16(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    return __builtin_cpu_is("intel") && __builtin_cpu_supports("avx512bf16");
#else
    return false;
#endif
}

/* Copies a data pointer to a function pointer, as POSIX allows. */
static void set_function(void *symbol, void *function)
{
    memcpy(function, &symbol, sizeof symbol);
}

bp_status bp_blas_find(bp_blas *found)
{
    void *sgemm = find_any();
    if (sgemm == NULL)
        return bp_fail(BP_ERR_UNSUPPORTED,
                       "no BLAS library was found, which the fused head needs on the host: the process has no sgemm_ "
                       "and no loaded %s with one, and the dynamic loader finds none of %s, %s, %s, %s; install one "
                       "(Debian, Ubuntu: libopenblas0) or import torch first",
                       TORCH, names[0], names[1], names[2], names[3]);
    bp_blas b = {.name = "BLAS of the program"};
    Dl_info info;
    void *handle = NULL;
    if (dladdr(sgemm, &info) != 0 && info.dli_fname != NULL) {
        handle = dlopen(info.dli_fname, FLAGS | RTLD_NOLOAD); /* NULL: in the program itself */
        const char *slash = strrchr(info.dli_fname, '/');
        if (handle != NULL)
            b.name = slash != NULL ? slash + 1 : info.dli_fname;
    }
    if (handle == NULL)
        handle = RTLD_DEFAULT;
    void *threads = dlsym(handle, "MKL_Set_Num_Threads_Local");
    if (threads == NULL)
        threads = dlsym(handle, "openblas_set_num_threads_local"); /* from 0.3.27 */
    set_function(sgemm, &b.sgemm);
    set_function(threads, &b.set_threads);
    set_function(bp_blas_may_multiply_bf16() ? dlsym(handle, "gemm_bf16bf16f32_") : NULL, &b.bf16_gemm);
    *found = b;
    return BP_OK;
}

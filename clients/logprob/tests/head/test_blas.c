/* SPDX-License-Identifier: Apache-2.0 */
/* The search for a BLAS library: its order, and the error where there is none. The dynamic loader is replaced. */
#include "support/harness.h"

#include <bucketpool/status.h>

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "host/blas.h"

/* ---- a loader with given libraries ------------------------------------------------------------------------------- */

#define MOST 4

typedef struct fake_library {
    const char *name;
    bool loaded, global, without_sgemm, with_mkl;
    char sgemm; /* its address is the symbol's */
} fake_library;

static fake_library fakes[MOST];
static char mkl_threads, mkl_bf16;
static bool library_was_loaded;

void *__wrap_dlopen(const char *name, int flags);
void *__wrap_dlsym(void *handle, const char *symbol);
int __wrap_dladdr(const void *address, Dl_info *info);

void *__wrap_dlopen(const char *name, int flags)
{
    assert_true((flags & RTLD_NODELETE) != 0 && (flags & RTLD_GLOBAL) == 0);
    for (size_t i = 0; i < MOST; i++)
        if (fakes[i].name != NULL && strstr(name, fakes[i].name) != NULL) {
            if (!fakes[i].loaded && (flags & RTLD_NOLOAD) != 0)
                return NULL;
            library_was_loaded = library_was_loaded || !fakes[i].loaded;
            fakes[i].loaded = true;
            return &fakes[i];
        }
    return NULL;
}

void *__wrap_dlsym(void *handle, const char *symbol)
{
    for (size_t i = 0; i < MOST; i++) {
        if (handle != RTLD_DEFAULT ? handle != &fakes[i] : !fakes[i].global)
            continue;
        if (strcmp(symbol, "sgemm_") == 0)
            return fakes[i].without_sgemm ? NULL : &fakes[i].sgemm;
        if (fakes[i].with_mkl && strcmp(symbol, "MKL_Set_Num_Threads_Local") == 0)
            return &mkl_threads;
        if (fakes[i].with_mkl && strcmp(symbol, "gemm_bf16bf16f32_") == 0)
            return &mkl_bf16;
    }
    return NULL;
}

int __wrap_dladdr(const void *address, Dl_info *info)
{
    static char path[64];
    for (size_t i = 0; i < MOST; i++)
        if (address == &fakes[i].sgemm) {
            (void)snprintf(path, sizeof path, "/usr/lib/%s", fakes[i].name);
            *info = (Dl_info){.dli_fname = path};
            return 1;
        }
    return 0;
}

static bool is_symbol(const void *function, const void *symbol)
{
    return memcmp(function, &symbol, sizeof symbol) == 0;
}

/* The libraries until one without a name. */
static bp_blas found_among(fake_library a, fake_library b, fake_library c)
{
    bp_blas found;
    memset(fakes, 0, sizeof fakes);
    fakes[0] = a;
    fakes[1] = b;
    fakes[2] = c;
    library_was_loaded = false;
    assert_int_equal(bp_blas_find(&found), BP_OK);
    return found;
}

/* ---- tests ----------------------------------------------------------------------------------------------------------- */

static const fake_library none = {0};

TEST(test_order)
{
    const fake_library torch = {.name = "libtorch_cpu.so", .loaded = true, .with_mkl = true};
    const fake_library openblas = {.name = "libopenblas.so.0"}, netlib = {.name = "libblas.so.3"};
    const fake_library loaded_netlib = {.name = "libblas.so.3", .loaded = true};
    const fake_library linked = {.name = "libown.so", .loaded = true, .global = true};
    assert_string_equal(found_among(openblas, loaded_netlib, linked).name, "libown.so");
    assert_string_equal(found_among(openblas, loaded_netlib, torch).name, "libtorch_cpu.so");
    assert_false(library_was_loaded);
    assert_string_equal(found_among(openblas, loaded_netlib, none).name, "libblas.so.3");
    assert_false(library_was_loaded);
    assert_string_equal(found_among(netlib, openblas, none).name, "libopenblas.so.0");
    assert_true(library_was_loaded);
    assert_string_equal(found_among(netlib, none, none).name, "libblas.so.3");
}

/* PyTorch is never loaded, and may lack the symbol. */
TEST(test_torch)
{
    const fake_library absent = {.name = "libtorch_cpu.so"};
    const fake_library hidden = {.name = "libtorch_cpu.so", .loaded = true, .without_sgemm = true};
    const fake_library openblas = {.name = "libopenblas.so.0"};
    assert_string_equal(found_among(absent, openblas, none).name, "libopenblas.so.0");
    assert_string_equal(found_among(hidden, openblas, none).name, "libopenblas.so.0");
}

/* Optional functions are those of the library itself. */
TEST(test_functions)
{
    const fake_library mkl = {.name = "libmkl_rt.so.2", .loaded = true, .with_mkl = true};
    const fake_library openblas = {.name = "libopenblas.so.0", .loaded = true};
    bp_blas found = found_among(mkl, none, none);
    assert_true(is_symbol(&found.sgemm, &fakes[0].sgemm));
    assert_true(is_symbol(&found.set_threads, &mkl_threads));
    assert_true(found.bf16_gemm == NULL || is_symbol(&found.bf16_gemm, &mkl_bf16)); /* depends on the processor */
    found = found_among(mkl, openblas, none);
    assert_string_equal(found.name, "libopenblas.so.0");
    assert_true(found.set_threads == NULL && found.bf16_gemm == NULL);
}

TEST(test_none)
{
    bp_blas found = {.name = "unchanged"};
    memset(fakes, 0, sizeof fakes);
    assert_int_equal(bp_blas_find(&found), BP_ERR_UNSUPPORTED);
    static const char *const words[] = {"no BLAS library was found",
                                        "libtorch_cpu.so",
                                        "libopenblas.so.0",
                                        "libblis.so.4",
                                        "libmkl_rt.so.2",
                                        "libblas.so.3"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strstr(bp_error_detail(), words[i]) == NULL)
            fail_msg("\"%s\" does not contain \"%s\"", bp_error_detail(), words[i]);
    assert_string_equal(found.name, "unchanged");
}

TESTS(NULL, NULL)

/* SPDX-License-Identifier: Apache-2.0 */
/* Handles, argument checks and failures on demand. */
#include "internal.h"

#include "../cuda/fake_cuda.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))

typedef struct handle {
    void *context; /* current at creation */
    void *stream;
    void *workspace;
    size_t workspace_bytes;
    bool alive;
    struct handle *next;
} handle;

int cuCtxGetCurrent(void **context);

API int cublasCreate_v2(void **created);
API int cublasDestroy_v2(void *used);
API int cublasSetStream_v2(void *used, void *stream);
API int cublasSetWorkspace_v2(void *used, void *workspace, size_t bytes);
API int cublasSetMathMode(void *used, int mode);
API int cublasGemmEx(void *used, int transpose_a, int transpose_b, int m, int n, int k, const void *alpha,
                     const void *a, int a_type, int lda, const void *b, int b_type, int ldb, const void *beta, void *c,
                     int c_type, int ldc, int compute_type, int algorithm);
API const char *cublasGetStatusString(int status);
API bool fake_cublas_fail(const char *function, uint64_t nth, int status);
API uint64_t fake_cublas_calls(const char *function);
API uint64_t fake_cublas_handles(void);

/* ---- uses and failures ------------------------------------------------------------------------------------------- */

static const char *const names[] = {"cublasCreate",       "cublasDestroy",     "cublasSetStream",
                                    "cublasSetWorkspace", "cublasSetMathMode", "cublasGemmEx"};
enum { CREATE, DESTROY, SET_STREAM, SET_WORKSPACE, SET_MATH_MODE, GEMM, FUNCTIONS };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t uses[FUNCTIONS], handles;
static handle *all; /* destroyed ones too, to detect their use */
static struct {
    int function, status;
    uint64_t use;
} failure;

static int find(const char *function)
{
    int i = 0;
    while (i < FUNCTIONS && strcmp(names[i], function) != 0)
        i++;
    return i;
}

bool fake_cublas_fail(const char *function, uint64_t nth, int status)
{
    pthread_mutex_lock(&lock);
    failure.function = find(function);
    failure.status = status;
    failure.use = failure.function < FUNCTIONS ? uses[failure.function] + nth : 0;
    pthread_mutex_unlock(&lock);
    return failure.function < FUNCTIONS;
}

uint64_t fake_cublas_calls(const char *function)
{
    pthread_mutex_lock(&lock);
    const int found = find(function);
    const uint64_t count = found < FUNCTIONS ? uses[found] : UINT64_MAX;
    pthread_mutex_unlock(&lock);
    return count;
}

uint64_t fake_cublas_handles(void)
{
    pthread_mutex_lock(&lock);
    const uint64_t count = handles;
    pthread_mutex_unlock(&lock);
    return count;
}

static int enter(int function)
{
    pthread_mutex_lock(&lock);
    const bool fails = ++uses[function] == failure.use && failure.function == function;
    pthread_mutex_unlock(&lock);
    return fails ? failure.status : OK;
}

static void *current_context(void)
{
    void *context = NULL;
    return cuCtxGetCurrent(&context) == 0 ? context : NULL;
}

static int use(int function, handle *h)
{
    int status = enter(function);
    if (status != OK)
        return status;
    if (h == NULL)
        return NOT_INITIALIZED;
    if (!h->alive) {
        fake_cuda_record_broken("cublas_handles_end", names[function]);
        return NOT_INITIALIZED;
    }
    if (h->context != current_context())
        fake_cuda_record_broken("cublas_has_its_context", names[function]);
    return OK;
}

/* ---- handles ----------------------------------------------------------------------------------------------------- */

int cublasCreate_v2(void **created)
{
    int status = enter(CREATE);
    if (status != OK)
        return status;
    if (created == NULL)
        return INVALID_VALUE;
    if (current_context() == NULL) { /* the runtime would use device 0, which the caller may not have meant */
        fake_cuda_record_broken("cublas_has_its_context", "cublasCreate without one");
        return NOT_INITIALIZED;
    }
    handle *h = calloc(1, sizeof *h);
    if (h == NULL)
        return ALLOC_FAILED;
    *h = (handle){.context = current_context(), .alive = true};
    pthread_mutex_lock(&lock);
    h->next = all;
    all = h;
    handles++;
    pthread_mutex_unlock(&lock);
    *created = h;
    return OK;
}

int cublasDestroy_v2(void *used)
{
    handle *h = used;
    int status = use(DESTROY, h);
    if (status != OK)
        return status;
    h->alive = false;
    pthread_mutex_lock(&lock);
    handles--;
    pthread_mutex_unlock(&lock);
    return OK;
}

int cublasSetStream_v2(void *used, void *stream)
{
    handle *h = used;
    int status = use(SET_STREAM, h);
    if (status != OK)
        return status;
    h->stream = stream;
    h->workspace = NULL;
    h->workspace_bytes = 0;
    return OK;
}

int cublasSetWorkspace_v2(void *used, void *workspace, size_t bytes)
{
    handle *h = used;
    int status = use(SET_WORKSPACE, h);
    if (status != OK)
        return status;
    if ((uintptr_t)workspace % 256 != 0)
        return INVALID_VALUE;
    h->workspace = workspace;
    h->workspace_bytes = workspace != NULL ? bytes : 0;
    return OK;
}

int cublasSetMathMode(void *used, int mode)
{
    int status = use(SET_MATH_MODE, used);
    const int base = mode & ~16; /* the flag is valid with any mode */
    return status != OK ? status : base < 0 || base > 3 ? INVALID_VALUE : OK;
}

const char *cublasGetStatusString(int status)
{
    switch (status) {
    case OK: return "CUBLAS_STATUS_SUCCESS";
    case NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    case INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    default: return "CUBLAS_STATUS_<unknown>";
    }
}

/* ---- matrix products --------------------------------------------------------------------------------------------- */

static int64_t at_least_1(int64_t value)
{
    return value > 1 ? value : 1;
}

static int check_sizes(const product *p)
{
    if (p->m < 0 || p->n < 0 || p->k < 0 || p->a.leading < at_least_1(p->transpose_a ? p->k : p->m) ||
        p->b.leading < at_least_1(p->transpose_b ? p->n : p->k) || p->c.leading < at_least_1(p->m))
        return INVALID_VALUE;
    return OK;
}

/* The rows of cublasGemmEx's table with sums in fp32. */
static int check_types(const product *p, int compute_type)
{
    const int a = p->a.type, c = p->c.type;
    const bool sums = compute_type == SUMS_FP32 || compute_type == SUMS_FP32_PEDANTIC;
    const bool known = a == FP32 || a == FP16 || a == BF16;
    return sums && known && p->b.type == a && (c == a || c == FP32) ? OK : NOT_SUPPORTED;
}

static int multiply(const handle *h, const product *p, int transpose_a, int transpose_b, int compute_type,
                    int algorithm)
{
    if (transpose_a < 0 || transpose_a > 2 || transpose_b < 0 || transpose_b > 2)
        return INVALID_VALUE;
    int status = check_sizes(p);
    if (status == OK)
        status = check_types(p, compute_type);
    if (status == OK && algorithm != -1 && algorithm != 99)
        status = NOT_SUPPORTED;
    if (status != OK)
        return status;
    if (p->workspace == NULL)
        fake_cuda_record_broken("cublas_has_a_workspace", "a product uses cuBLAS's");
    return p->m == 0 || p->n == 0 ? OK : enqueue_product(p, h->stream);
}

static matrix matrix_of(const void *data, int type, int64_t leading)
{
    matrix m = {.type = type, .leading = leading};
    memcpy(&m.data, (const void *)&data, sizeof m.data); /* c is not const */
    return m;
}

int cublasGemmEx(void *used, int transpose_a, int transpose_b, int m, int n, int k, const void *alpha, const void *a,
                 int a_type, int lda, const void *b, int b_type, int ldb, const void *beta, void *c, int c_type,
                 int ldc, int compute_type, int algorithm)
{
    const handle *h = used;
    int status = use(GEMM, used);
    if (status != OK)
        return status;
    if (alpha == NULL || beta == NULL || c == NULL)
        return INVALID_VALUE;
    const product p = {.transpose_a = transpose_a != 0,
                       .transpose_b = transpose_b != 0,
                       .m = m,
                       .n = n,
                       .k = k,
                       .alpha = *(const float *)alpha,
                       .beta = *(const float *)beta,
                       .a = matrix_of(a, a_type, lda),
                       .b = matrix_of(b, b_type, ldb),
                       .c = matrix_of(c, c_type, ldc),
                       .workspace = h->workspace,
                       .workspace_bytes = h->workspace_bytes};
    return multiply(h, &p, transpose_a, transpose_b, compute_type, algorithm);
}

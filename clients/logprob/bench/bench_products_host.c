/* SPDX-License-Identifier: Apache-2.0 */
/* GFLOP/s of the head's bf16 products on the host, of AVX512-BF16 and of sgemm on widened operands. Without such instructions or a BLAS library
 * the column is nan.
 * Run: bench_products_host [TOKENS COLUMNS HIDDEN THREADS], by default 2048 2048 1024 1. Figures are the best of 20 runs. */
#include <bucketpool/device.h>
#include <bucketpool/kernels.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "host/bf16.h"

#define TURNS 20

typedef bp_status multiply(bp_products *products, const bp_product_work *work, bp_stream *stream);

static void must(bp_status status)
{
    if (status == BP_OK)
        return;
    fprintf(stderr, "bench: %s\n", bp_error_detail());
    exit(1);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Values near 1, in half of the memory for bf16. */
static bp_matrix matrix_of(uint64_t rows, uint64_t columns, bp_dtype dtype)
{
    const uint64_t numel = rows * columns;
    float *data = aligned_alloc(256, (numel * sizeof *data + 255) / 256 * 256);
    if (data == NULL) {
        perror("bench");
        exit(1);
    }
    for (uint64_t i = 0; i < numel; i++) {
        const float value = (float)(i * 2654435761u % 1024) / 512 - 1;
        if (dtype == BP_DTYPE_FP32)
            data[i] = value;
        else
            ((uint16_t *)data)[i] = bp_bf16_of_fp32(value);
    }
    return (bp_matrix){data, dtype, (int64_t)columns};
}

static double rate_of(const bp_blas *library, int which, const uint64_t sizes[3], uint32_t threads, bp_stream *stream)
{
    const uint64_t rows = sizes[0], columns = sizes[1], hidden = sizes[2];
    bp_products *products = NULL;
    must(bp_products_create_with(library, threads, rows, columns, hidden, BP_DTYPE_BF16, &products));
    multiply *const run =
        (multiply *const[]){products->ops->logits, products->ops->hidden_grad, products->ops->weight_grad}[which];
    const bp_matrix states = matrix_of(rows, hidden, BP_DTYPE_BF16), weight = matrix_of(columns, hidden, BP_DTYPE_BF16);
    const bp_matrix gradient = matrix_of(rows, columns, products->gradient);
    const bp_matrix result = matrix_of(which == 2 ? columns : rows, which == 0 ? columns : hidden, BP_DTYPE_FP32);
    const bp_product_work work = {.rows = rows,
                                  .columns = columns,
                                  .hidden = hidden,
                                  .a = which == 0 ? states : gradient,
                                  .b = which == 2 ? states : weight,
                                  .c = result,
                                  .scratch = matrix_of(1, products->scratch_bytes / 4, BP_DTYPE_FP32).data};
    double best = INFINITY;
    for (int turn = 0; turn < TURNS; turn++) {
        const double begin = now();
        must(run(products, &work, stream));
        must(bp_stream_synchronize(stream));
        best = fmin(best, now() - begin);
    }
    products->ops->destroy(products);
    free(work.scratch);
    free(states.data);
    free(weight.data);
    free(gradient.data);
    free(result.data);
    return 2e-9 * (double)rows * (double)columns * (double)hidden / best;
}

int main(int count, char **arguments)
{
    static const char *const names[] = {"logits", "hidden_grad", "weight_grad"};
    uint64_t numbers[4] = {2048, 2048, 1024, 1};
    for (int i = 1; i < count && i <= 4; i++)
        numbers[i - 1] = strtoull(arguments[i], NULL, 10);
    bp_device *device = NULL;
    bp_stream *stream = NULL;
    must(bp_device_create_host(NULL, &device));
    must(bp_stream_create(device, NULL, &stream));
    const bp_blas own = {.name = "avx512_bf16", .bf16_kernels = bp_bf16_choose()};
    bp_blas blas = {0};
    const bool has_blas = bp_blas_find(&blas) == BP_OK;
    blas.bf16_gemm = NULL;
    printf("%-12s %11s %11s\n", "PRODUCT", "AVX512_BF16", "SGEMM");
    for (int which = 0; which < 3; which++)
        printf("%-12s %11.1f %11.1f\n", names[which],
               own.bf16_kernels != NULL ? rate_of(&own, which, numbers, (uint32_t)numbers[3], stream) : (double)NAN,
               has_blas ? rate_of(&blas, which, numbers, (uint32_t)numbers[3], stream) : (double)NAN);
    bp_stream_destroy(&stream);
    bp_device_destroy(&device);
    return 0;
}

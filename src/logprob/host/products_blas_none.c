/* Stub of products_blas.c for builds without BLAS. */
#include "logprob/engine.h"

#include "core/fail.h"

bp_status bp_products_create_blas(uint64_t rows, uint64_t columns, uint64_t hidden, bp_dtype dtype,
                                  bp_products **products)
{
    (void)rows;
    (void)columns;
    (void)hidden;
    (void)dtype;
    (void)products;
    return bp_fail(BP_ERR_UNSUPPORTED,
                   "the library was built without BLAS, which the fused head needs on the host; install "
                   "libopenblas-dev and rebuild with -Dblas=enabled");
}

/* An emulated cuBLAS, as far as products of matrices go: a library named libcublas.so.13 with the real names, on the emulated driver.
 *
 * Products are plain loops in stream order, may be captured, and use their workspace: whoever else writes there meanwhile is found. What the
 * real one refuses is refused with the same status (documentation of cublas<t>gemm and cublasGemmEx); what it would do silently and
 * should not is recorded with the driver's misuses (fake_cuda_broken):
 *
 *   cublas_has_its_context    a handle is used with the context current in which it was made
 *   cublas_has_a_workspace    a product has a workspace of its own: choosing a stream goes back to cuBLAS's, which streams share
 *   cublas_workspace_is_its   nobody else writes to the workspace of a product while it runs
 *   cublas_handles_end        a handle is destroyed once, and not used afterwards */
#ifndef FAKE_CUBLAS_H
#define FAKE_CUBLAS_H

#include <stdbool.h>
#include <stdint.h>

/* The nth use of a function from now on (1: the next) answers `status` and does nothing. False: no such function. One at a time. Names
 * without the suffix "_v2". */
bool fake_cublas_fail(const char *function, uint64_t nth, int status);
uint64_t fake_cublas_calls(const char *function);
/* Handles that are not destroyed. */
uint64_t fake_cublas_handles(void);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* An emulated cuBLAS with matrix products only: a library named libcublas.so.13 with the real names, on the emulated
 * driver.
 *
 * Products are plain loops in stream order. They may be captured, and they use their workspace, so that another
 * writer to it is detected. Calls that the real library refuses are refused with the same status (documentation of
 * cublas<t>gemm and cublasGemmEx). Mistakes that it would accept are recorded with the driver's misuses
 * (fake_cuda_broken): cublas_has_its_context (a handle is used with the context current in which it was made),
 * cublas_has_a_workspace (a product uses a workspace that was set: setting the stream restores cuBLAS's default,
 * which streams share), cublas_workspace_is_its (nobody else writes to the workspace of a running product),
 * cublas_handles_end (a handle is destroyed once, and not used afterwards). */
#ifndef FAKE_CUBLAS_H
#define FAKE_CUBLAS_H

#include <stdbool.h>
#include <stdint.h>

/* The nth use of a function from now on (1: the next) returns `status` and does nothing. False: unknown function.
 * One failure at a time. Names without the suffix "_v2". */
bool fake_cublas_fail(const char *function, uint64_t nth, int status);
uint64_t fake_cublas_calls(const char *function);
/* Number of handles that are not destroyed. */
uint64_t fake_cublas_handles(void);

#endif

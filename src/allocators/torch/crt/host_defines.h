/* SPDX-License-Identifier: Apache-2.0 */
/* The macros that CUDA's runtime headers take from NVIDIA's file of this name, for host compilers. pip's packages of the runtime
 * come without that folder; it is searched last, so that a toolkit's own is taken where there is one. */
#ifndef __HOST_DEFINES_H__
#define __HOST_DEFINES_H__

#define CUDARTAPI
#define CUDARTAPI_CDECL
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
#define __forceinline__ __inline__ __attribute__((always_inline))
#define __specialization_static
#define __annotate__(a)
#define __location__(a)
#define __host__
#define __device__
#define __global__
#define __shared__
#define __constant__
#define __managed__
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA primitives of the kernels; without a CUDA compiler, those of the emulation in tests/simt. Loads and stores bypass the caches, as
 * nothing is read twice, and are volatile, as kernels write where they have read. */
#ifndef BP_LOGPROB_CUDA_DEVICE_CUH
#define BP_LOGPROB_CUDA_DEVICE_CUH

#include <stdint.h>

#define BP_MAX_THREADS 128  /* threads of a block, unless the kernel says otherwise */
#define BP_FUSED_THREADS 512 /* of the fused kernels */
#define BP_LANES 32u
#define BP_ALL_LANES 0xffffffffu

#define BP_KERNEL(blocks) BP_KERNEL_OF(BP_MAX_THREADS, blocks)

#ifndef __CUDACC__
#include "simt.h"
#else

#define BP_DEVICE static __device__ __forceinline__
#define BP_KERNEL_OF(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)
#define BP_ARGUMENT const __grid_constant__
#define BP_UNROLL _Pragma("unroll")
#define BP_NO_UNROLL _Pragma("unroll 1")
#define BP_PRAGMA(text) _Pragma(#text)
#define BP_UNROLL_BY(count) BP_PRAGMA(unroll count)
#define BP_SHARED(type, name, count) __shared__ type name[count]
/* Memory that the launch sizes, aligned to 16. */
#define BP_LAUNCH_SHARED(name) extern __shared__ __align__(16) char name[]

namespace device
{

template <int WORDS> __device__ __forceinline__ void load_words(const char *from, uint32_t (&words)[WORDS]);

template <> __device__ __forceinline__ void load_words<2>(const char *from, uint32_t (&words)[2])
{
    asm volatile("ld.global.cs.v2.u32 {%0, %1}, [%2];" : "=r"(words[0]), "=r"(words[1]) : "l"(from) : "memory");
}

template <> __device__ __forceinline__ void load_words<4>(const char *from, uint32_t (&words)[4])
{
    asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "l"(from)
                 : "memory");
}

template <int WORDS> __device__ __forceinline__ void store_words(char *to, const uint32_t (&words)[WORDS]);

template <> __device__ __forceinline__ void store_words<2>(char *to, const uint32_t (&words)[2])
{
    asm volatile("st.global.cs.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(words[0]), "r"(words[1]) : "memory");
}

template <> __device__ __forceinline__ void store_words<4>(char *to, const uint32_t (&words)[4])
{
    asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(words[0]), "r"(words[1]), "r"(words[2]),
                 "r"(words[3])
                 : "memory");
}

/* ---- shared memory ------------------------------------------------------------------------------------------------- */

/* Bytes of BP_LAUNCH_SHARED. */
BP_DEVICE uint32_t launch_shared_bytes()
{
    uint32_t bytes;
    asm("mov.u32 %0, %%dynamic_smem_size;" : "=r"(bytes));
    return bytes;
}

BP_DEVICE uint32_t shared_address(const char *at)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(at));
}

template <int WORDS> __device__ __forceinline__ void load_shared_words(const char *from, uint32_t (&words)[WORDS]);

template <> __device__ __forceinline__ void load_shared_words<2>(const char *from, uint32_t (&words)[2])
{
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                 : "=r"(words[0]), "=r"(words[1])
                 : "r"(shared_address(from))
                 : "memory");
}

template <> __device__ __forceinline__ void load_shared_words<4>(const char *from, uint32_t (&words)[4])
{
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(shared_address(from))
                 : "memory");
}

BP_DEVICE void store_shared_words(char *to, const uint32_t (&words)[4])
{
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(to)), "r"(words[0]), "r"(words[1]),
                 "r"(words[2]), "r"(words[3])
                 : "memory");
}

/* Copies 16 bytes from global memory, asynchronously, past L1. A thread's copies are done when it has waited for the group in which it put
 * them; other threads see them after a barrier. */
BP_DEVICE void copy_to_shared(char *to, const char *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}

/* Ends a group of the thread's copies. */
BP_DEVICE void end_copies()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits for all groups but the last `LEFT`. */
template <int LEFT> __device__ __forceinline__ void wait_for_copies()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

/* ---- elements ------------------------------------------------------------------------------------------------------ */

BP_DEVICE uint32_t load_1(const char *from)
{
    uint16_t value;
    asm volatile("ld.global.cs.u8 %0, [%1];" : "=h"(value) : "l"(from) : "memory");
    return value;
}

BP_DEVICE uint32_t load_2(const char *from)
{
    uint16_t value;
    asm volatile("ld.global.cs.u16 %0, [%1];" : "=h"(value) : "l"(from) : "memory");
    return value;
}

BP_DEVICE uint32_t load_4(const char *from)
{
    uint32_t value;
    asm volatile("ld.global.cs.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}

BP_DEVICE void store_1(char *to, uint32_t value)
{
    asm volatile("st.global.cs.u8 [%0], %1;" ::"l"(to), "h"((uint16_t)value) : "memory");
}

BP_DEVICE void store_2(char *to, uint32_t value)
{
    asm volatile("st.global.cs.u16 [%0], %1;" ::"l"(to), "h"((uint16_t)value) : "memory");
}

BP_DEVICE void store_4(char *to, uint32_t value)
{
    asm volatile("st.global.cs.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

/* Bits [shift, shift + 32) of a 64-bit value. */
BP_DEVICE uint32_t funnel(uint32_t low, uint32_t high, uint32_t shift)
{
    return __funnelshift_r(low, high, shift);
}

BP_DEVICE float as_float(uint32_t bits)
{
    return __uint_as_float(bits);
}

BP_DEVICE uint32_t as_bits(float x)
{
    return __float_as_uint(x);
}

/* NaN if either is NaN. */
BP_DEVICE float max_nan(float a, float b)
{
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
    return larger;
}

BP_DEVICE uint32_t max_nan_bf16x2(uint32_t a, uint32_t b)
{
    uint32_t larger;
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
    return larger;
}

BP_DEVICE uint32_t max_nan_fp16x2(uint32_t a, uint32_t b)
{
    uint32_t larger;
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
    return larger;
}

BP_DEVICE float min_nan(float a, float b)
{
    float smaller;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(smaller) : "f"(a), "f"(b));
    return smaller;
}

BP_DEVICE uint32_t min_nan_bf16x2(uint32_t a, uint32_t b)
{
    uint32_t smaller;
    asm("min.NaN.bf16x2 %0, %1, %2;" : "=r"(smaller) : "r"(a), "r"(b));
    return smaller;
}

BP_DEVICE uint32_t min_nan_fp16x2(uint32_t a, uint32_t b)
{
    uint32_t smaller;
    asm("min.NaN.f16x2 %0, %1, %2;" : "=r"(smaller) : "r"(a), "r"(b));
    return smaller;
}

/* 2^x; 0 for subnormal results. */
BP_DEVICE float exp2_fast(float x)
{
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}

BP_DEVICE float widen_fp16(uint32_t half)
{
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"((uint16_t)half));
    return x;
}

/* Rounds to nearest, ties to even; `low` in the lower half. */
BP_DEVICE uint32_t narrow_bf16x2(float low, float high)
{
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

BP_DEVICE uint32_t narrow_fp16x2(float low, float high)
{
    uint32_t pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

BP_DEVICE float shuffle_xor(float x, uint32_t distance)
{
    return __shfl_xor_sync(BP_ALL_LANES, x, (int)distance);
}

/* Of the next lane; lane 0's on the last one. */
BP_DEVICE uint32_t shuffle_next(uint32_t x)
{
    return __shfl_sync(BP_ALL_LANES, x, (int)(threadIdx.x + 1) % BP_LANES);
}

BP_DEVICE void wait_for_warp()
{
    __syncwarp();
}

BP_DEVICE void wait_for_block()
{
    __syncthreads();
}

BP_DEVICE void lower(uint64_t *min, uint64_t value)
{
    static_assert(sizeof(unsigned long long) == sizeof(uint64_t), "atomicMin takes 64 bits");
    atomicMin(reinterpret_cast<unsigned long long *>(min), static_cast<unsigned long long>(value));
}

} // namespace device

#endif
#endif

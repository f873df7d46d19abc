/* The dtypes of logits and gradients, as they lie in 32-bit words. */
#ifndef BP_LOGPROB_CUDA_ELEMENTS_CUH
#define BP_LOGPROB_CUDA_ELEMENTS_CUH

#include "logprob/cuda/device.cuh"

namespace device
{

struct fp32 {
    static constexpr uint32_t bytes = 4, in_word = 1;
    static constexpr uint32_t lowest = 0xff800000u, highest = 0x7f800000u; /* words of -inf and of inf */

    BP_DEVICE void widen(uint32_t word, float (&x)[1])
    {
        x[0] = as_float(word);
    }
    BP_DEVICE uint32_t narrow(const float (&x)[1])
    {
        return as_bits(x[0]);
    }
    BP_DEVICE uint32_t larger(uint32_t a, uint32_t b)
    {
        return as_bits(max_nan(as_float(a), as_float(b)));
    }
    BP_DEVICE uint32_t smaller(uint32_t a, uint32_t b)
    {
        return as_bits(min_nan(as_float(a), as_float(b)));
    }
    BP_DEVICE uint32_t load(const char *from)
    {
        return load_4(from);
    }
    BP_DEVICE void store(char *to, uint32_t word)
    {
        store_4(to, word);
    }
};

/* Halves of a word are 16-bit elements, the lower one first. */
struct bf16 {
    static constexpr uint32_t bytes = 2, in_word = 2, lowest = 0xff80ff80u, highest = 0x7f807f80u;

    BP_DEVICE void widen(uint32_t word, float (&x)[2])
    {
        x[0] = as_float(word << 16);
        x[1] = as_float(word & 0xffff0000u);
    }
    BP_DEVICE uint32_t narrow(const float (&x)[2])
    {
        return narrow_bf16x2(x[0], x[1]);
    }
    BP_DEVICE uint32_t larger(uint32_t a, uint32_t b)
    {
        return max_nan_bf16x2(a, b);
    }
    BP_DEVICE uint32_t smaller(uint32_t a, uint32_t b)
    {
        return min_nan_bf16x2(a, b);
    }
    BP_DEVICE uint32_t load(const char *from)
    {
        return load_2(from);
    }
    BP_DEVICE void store(char *to, uint32_t half)
    {
        store_2(to, half);
    }
};

struct fp16 {
    static constexpr uint32_t bytes = 2, in_word = 2, lowest = 0xfc00fc00u, highest = 0x7c007c00u;

    BP_DEVICE void widen(uint32_t word, float (&x)[2])
    {
        x[0] = widen_fp16(word & 0xffffu);
        x[1] = widen_fp16(word >> 16);
    }
    BP_DEVICE uint32_t narrow(const float (&x)[2])
    {
        return narrow_fp16x2(x[0], x[1]);
    }
    BP_DEVICE uint32_t larger(uint32_t a, uint32_t b)
    {
        return max_nan_fp16x2(a, b);
    }
    BP_DEVICE uint32_t smaller(uint32_t a, uint32_t b)
    {
        return min_nan_fp16x2(a, b);
    }
    BP_DEVICE uint32_t load(const char *from)
    {
        return load_2(from);
    }
    BP_DEVICE void store(char *to, uint32_t half)
    {
        store_2(to, half);
    }
};

/* One element, widened. */
template <class X> BP_DEVICE float value_at(const char *from)
{
    float x[X::in_word];
    X::widen(X::load(from), x);
    return x[0];
}

} // namespace device

#endif

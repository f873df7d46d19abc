/* Sums of exponentials relative to a maximum, and how they are merged: always in the same order, whoever does it. Nothing is contracted to
 * fused operations but where it says so (-fmad=false): sums are the same with and without entropy. */
#ifndef BP_LOGPROB_CUDA_SUMS_CUH
#define BP_LOGPROB_CUDA_SUMS_CUH

#include "logprob/cuda/device.cuh"

#include <math.h>

namespace device
{

constexpr float LOG2_E = 1.44269504088896340736f; /* the nearest float, and what it lacks */
constexpr float LOG2_E_REST = 1.92596299112661746887e-8f;
constexpr float LN_2 = 0.69314718055994530942f;

/* As bp_partial, without the target. */
struct sums {
    float max, sum, weighted;
};

BP_DEVICE sums no_sums()
{
    return {-INFINITY, 0, 0};
}

/* What differences are taken to: a maximum of -inf would make them NaN. */
BP_DEVICE float reference(float max)
{
    return max == -INFINITY ? 0 : max;
}

/* For differences whose exponential is a factor, 0 from here down: -inf would make 0 NaN. */
BP_DEVICE float no_lower(float difference)
{
    return max_nan(difference, -256);
}

/* exp(d) for d from -256 to 0, with what rounding took from the exponent. */
BP_DEVICE float exp_exact(float d)
{
    const float exponent = d * LOG2_E;
    const float rest = fmaf(d, LOG2_E_REST, fmaf(d, LOG2_E, -exponent));
    const float e = exp2_fast(exponent);
    return fmaf(e * LN_2, rest, e);
}

/* What `part` is relative to `max`. */
BP_DEVICE sums rebased(const sums &part, float max, float scale)
{
    const float d = no_lower((part.max - reference(max)) * scale), e = exp_exact(d);
    return {max, part.sum * e, e * fmaf(d, part.sum, part.weighted)};
}

BP_DEVICE sums merged(const sums &a, const sums &b, float scale)
{
    const float max = max_nan(a.max, b.max);
    const sums c = rebased(a, max, scale), d = rebased(b, max, scale);
    return {max, c.sum + d.sum, c.weighted + d.weighted};
}

/* ---- over the lanes of a warp; every lane has the result ------------------------------------------------------------- */

BP_DEVICE float largest_of_warp(float x)
{
    BP_UNROLL
    for (uint32_t distance = BP_LANES / 2; distance > 0; distance /= 2)
        x = max_nan(x, shuffle_xor(x, distance));
    return x;
}

BP_DEVICE float sum_of_warp(float x)
{
    BP_UNROLL
    for (uint32_t distance = BP_LANES / 2; distance > 0; distance /= 2)
        x += shuffle_xor(x, distance);
    return x;
}

BP_DEVICE float sum_of_8(const float (&x)[8])
{
    return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
}

/* A list of tiles' sums: relative to the largest of all first, then added up. */
BP_DEVICE sums merged_by_warp(const sums *list, uint32_t count, uint32_t lane, float scale)
{
    sums all = no_sums();
    for (uint32_t i = lane; i < count; i += BP_LANES)
        all.max = max_nan(all.max, list[i].max);
    all.max = largest_of_warp(all.max);
    for (uint32_t i = lane; i < count; i += BP_LANES) {
        const sums part = rebased(list[i], all.max, scale);
        all.sum += part.sum;
        all.weighted += part.weighted;
    }
    return {all.max, sum_of_warp(all.sum), sum_of_warp(all.weighted)};
}

} // namespace device

#endif

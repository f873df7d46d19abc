/* Rows copied, to a narrower dtype or as they are; of rows that the mask takes out, zeros. */
#ifndef BP_LOGPROB_CUDA_ROWS_CUH
#define BP_LOGPROB_CUDA_ROWS_CUH

#include "logprob/cuda/elements.cuh"
#include "logprob/work.h"

namespace device
{

BP_DEVICE bool row_counts(const bp_rows_work &work, uint64_t row)
{
    const uint64_t at = work.mask_first + row;
    const int64_t batch = static_cast<int64_t>(at / work.mask_count),
                  position = static_cast<int64_t>(at % work.mask_count);
    return work.mask[batch * work.mask_batch_stride + position * work.mask_stride] != 0;
}

/* What is not converted keeps its bits. */
template <class X, class Y, bool SAME> struct element {
    BP_DEVICE uint32_t copy(const char *from)
    {
        return X::load(from);
    }
};

template <class X, class Y> struct element<X, Y, false> {
    BP_DEVICE uint32_t copy(const char *from)
    {
        float y[Y::in_word] = {value_at<X>(from)};
        return Y::narrow(y);
    }
};

template <class X, class Y, bool SAME> BP_DEVICE void copy_row(const bp_rows_work &work, uint64_t row, bool counts)
{
    const char *from = static_cast<const char *>(work.from) +
                       static_cast<int64_t>(row) * work.from_stride * static_cast<int64_t>(X::bytes);
    char *to =
        static_cast<char *>(work.to) + static_cast<int64_t>(row) * work.to_stride * static_cast<int64_t>(Y::bytes);
    for (uint64_t column = threadIdx.x; column < work.columns; column += blockDim.x)
        Y::store(to + column * Y::bytes, counts ? element<X, Y, SAME>::copy(from + column * X::bytes) : 0);
}

/* A block a row. */
template <class X, class Y, bool SAME> BP_DEVICE void copy_rows(const bp_rows_work &work)
{
    for (uint64_t row = blockIdx.x; row < work.rows; row += gridDim.x)
        copy_row<X, Y, SAME>(work, row, work.mask == nullptr || row_counts(work, row));
}

} // namespace device

#endif

/* The gradient of logits, element-wise: any thread can compute any column, and a warp takes a piece of a row at a time. Vectors start where
 * the output is aligned; the thread that read an element writes it. */
#ifndef BP_LOGPROB_CUDA_GRADIENT_CUH
#define BP_LOGPROB_CUDA_GRADIENT_CUH

#include "logprob/cuda/rows.cuh"

namespace device
{

/* Constants of a row. */
struct row_state {
    float max, log_sum, energy, scale;
    float g, h;      /* upstream gradients, times scale */
    uint32_t target; /* column; UINT32_MAX: not in this shard */
};

BP_DEVICE float upstream(const float *values, const place &at, int64_t batch_stride, int64_t stride)
{
    return values != nullptr ? values[offset_of(at, batch_stride, stride)] : 0;
}

template <bool ENTROPY> BP_DEVICE row_state state_of(const bp_gradient_work &work, const place &at)
{
    const uint64_t target = behind(target_of(work.tokens, at), work.logits.first);
    const float scale = work.logits.scale;
    const float g = upstream(work.logprob_grad, at, work.logprob_grad_batch_stride, work.logprob_grad_stride);
    const float h =
        ENTROPY ? upstream(work.entropy_grad, at, work.entropy_grad_batch_stride, work.entropy_grad_stride) : 0;
    return {work.saved.max[at.token],
            work.saved.log_sum[at.token],
            ENTROPY ? work.saved.energy[at.token] : 0,
            scale,
            g * scale,
            h * scale,
            target < work.logits.columns ? static_cast<uint32_t>(target) : UINT32_MAX};
}

template <bool ENTROPY> BP_DEVICE float gradient_of(const row_state &row, float x)
{
    const float d = x - row.max, p = exp2_fast(fmaf(d, row.scale, -row.log_sum) * LOG2_E);
    return p * (ENTROPY ? fmaf(row.h, row.energy - no_lower(d * row.scale), -row.g) : -row.g);
}

/* 1 - p without cancellation for p near 1. */
template <bool ENTROPY> BP_DEVICE float gradient_at_target(const row_state &row, float x)
{
    const float d = x - row.max, exponent = fmaf(d, row.scale, -row.log_sum);
    const float of_entropy =
        ENTROPY ? row.h * (row.energy - no_lower(d * row.scale)) * exp2_fast(exponent * LOG2_E) : 0;
    return fmaf(-row.g, expm1f(exponent), of_entropy);
}

/* ---- a piece of a row ---------------------------------------------------------------------------------------------- */

#define BP_PIECE_COLUMNS 1024u

/* Layout of a piece over lanes: vectors of 16 bytes of the wider dtype. */
template <class X, class Y> struct piece {
    static constexpr uint32_t columns = 16 / (X::bytes > Y::bytes ? X::bytes : Y::bytes); /* of a vector */
    static constexpr int in_words = static_cast<int>(columns / X::in_word);
    static constexpr int out_words = static_cast<int>(columns / Y::in_word);
    static constexpr uint32_t apart = BP_LANES * columns; /* between a lane's vectors */
    static constexpr int vectors = static_cast<int>(BP_PIECE_COLUMNS / apart);
    uint32_t words[vectors][in_words];
};

/* A row from its first aligned vector. */
struct rows {
    const char *in;
    char *out;
    uint32_t columns, shift;
};

template <class X, class Y> BP_DEVICE bool is_whole(const rows &row, uint32_t first)
{
    typedef piece<X, Y> shape;
    constexpr uint32_t reach =
        (shape::vectors - 1) * shape::apart + shape::columns; /* from a lane's first column to its end */
    return row.shift == 0 && first < row.columns && row.columns - first >= reach;
}

template <class X, class Y> BP_DEVICE void load_whole(const rows &row, uint32_t first, piece<X, Y> &made)
{
    const char *from = row.in + static_cast<uint64_t>(first) * X::bytes;
    BP_UNROLL
    for (int i = 0; i < made.vectors; i++)
        load_words<made.in_words>(from + static_cast<uint32_t>(i) * made.apart * X::bytes, made.words[i]);
}

template <class X, class Y> BP_DEVICE void load_piece(const rows &row, uint32_t first, piece<X, Y> &made)
{
    if (is_whole<X, Y>(row, first)) {
        load_whole(row, first, made);
        return;
    }
    BP_UNROLL
    for (int i = 0; i < made.vectors; i++) {
        const uint32_t column = first + static_cast<uint32_t>(i) * made.apart;
        if (column < row.columns)
            load_vector<X, made.in_words>(row.in, row.columns, column, row.shift, made.words[i]);
    }
}

template <class X, class Y, bool ENTROPY>
BP_DEVICE void gradients_of(const row_state &state, uint32_t column, const uint32_t (&in)[piece<X, Y>::in_words],
                            uint32_t (&out)[piece<X, Y>::out_words])
{
    constexpr uint32_t columns = piece<X, Y>::columns;
    float x[columns], y[columns];
    BP_UNROLL
    for (uint32_t i = 0; i < columns; i += X::in_word) {
        float of_word[X::in_word];
        X::widen(in[i / X::in_word], of_word);
        x[i] = of_word[0];
        x[i + X::in_word - 1] = of_word[X::in_word - 1];
    }
    BP_UNROLL
    for (uint32_t i = 0; i < columns; i++)
        y[i] = gradient_of<ENTROPY>(state, x[i]);
    if (state.target - column < columns) {
        float at_target = 0;
        BP_UNROLL
        for (uint32_t i = 0; i < columns; i++)
            at_target = column + i == state.target ? x[i] : at_target;
        at_target = gradient_at_target<ENTROPY>(state, at_target);
        BP_UNROLL
        for (uint32_t i = 0; i < columns; i++)
            y[i] = column + i == state.target ? at_target : y[i];
    }
    BP_UNROLL
    for (uint32_t i = 0; i < columns; i += Y::in_word) {
        float of_word[Y::in_word];
        of_word[0] = y[i];
        of_word[Y::in_word - 1] = y[i + Y::in_word - 1];
        out[i / Y::in_word] = Y::narrow(of_word);
    }
}

template <class X, class Y, bool ENTROPY>
BP_DEVICE void store_whole(const rows &row, const row_state &state, uint32_t first, const piece<X, Y> &made)
{
    char *to = row.out + static_cast<uint64_t>(first) * Y::bytes;
    BP_UNROLL
    for (int i = 0; i < made.vectors; i++) {
        const uint32_t further = static_cast<uint32_t>(i) * made.apart;
        uint32_t out[made.out_words];
        gradients_of<X, Y, ENTROPY>(state, first + further, made.words[i], out);
        store_words<made.out_words>(to + further * Y::bytes, out);
    }
}

template <class X, class Y, bool ENTROPY>
BP_DEVICE void store_piece(const rows &row, const row_state &state, uint32_t first, const piece<X, Y> &made)
{
    BP_UNROLL
    for (int i = 0; i < made.vectors; i++) {
        const uint32_t column = first + static_cast<uint32_t>(i) * made.apart;
        if (column >= row.columns)
            break;
        uint32_t out[made.out_words];
        gradients_of<X, Y, ENTROPY>(state, column, made.words[i], out);
        store_vector<Y, made.out_words>(row.out, row.columns, column, out);
    }
}

/* Vector by vector, for the end of a row and for rows whose input is not aligned like their output. */
template <class X, class Y, bool ENTROPY>
BP_DEVICE void make_piece(const rows &row, const row_state &state, uint32_t first)
{
    typedef piece<X, Y> shape;
    BP_NO_UNROLL
    for (int i = 0; i < shape::vectors; i++) {
        const uint32_t column = first + static_cast<uint32_t>(i) * shape::apart;
        uint32_t in[shape::in_words], out[shape::out_words];
        if (column >= row.columns)
            return;
        load_vector<X, shape::in_words>(row.in, row.columns, column, row.shift, in);
        gradients_of<X, Y, ENTROPY>(state, column, in, out);
        store_vector<Y, shape::out_words>(row.out, row.columns, column, out);
    }
}

template <class Y, int WORDS> BP_DEVICE void store_zeros(const rows &row, uint32_t first)
{
    constexpr uint32_t columns = WORDS * Y::in_word;
    const uint32_t zeros[WORDS] = {};
    for (uint32_t i = 0; i < BP_PIECE_COLUMNS / BP_LANES / columns; i++) {
        const uint32_t column = first + i * BP_LANES * columns;
        if (column < row.columns)
            store_vector<Y, WORDS>(row.out, row.columns, column, zeros);
    }
}

/* ---- rows ---------------------------------------------------------------------------------------------------------- */

template <class X, class Y, bool ENTROPY> struct gradient_row {
    bool masked;
    const char *in;
    char *out;
    uint32_t head;   /* columns before the first aligned vector */
    row_state state; /* of the head */
    rows body;
    row_state body_state; /* with the target relative to the end of the head */
};

template <class X, class Y, bool ENTROPY>
BP_DEVICE gradient_row<X, Y, ENTROPY> row_at(const bp_gradient_work &work, uint64_t token)
{
    constexpr uint32_t out_bytes = 4 * piece<X, Y>::out_words, in_bytes = 4 * piece<X, Y>::in_words;
    const uint32_t columns = column_count(work.logits);
    const place at = place_of(work.tokens, token);
    gradient_row<X, Y, ENTROPY> row = {};
    row.masked = is_masked(work.tokens, at);
    row.in = row_of<X>(work.logits, at);
    row.out = static_cast<char *>(work.out) +
              offset_of(at, work.out_batch_stride, work.out_stride) * static_cast<int64_t>(Y::bytes);
    row.head = least((out_bytes - misalignment(row.out, out_bytes)) % out_bytes / Y::bytes, columns);
    const char *in = row.in + row.head * X::bytes;
    row.body = {in, row.out + row.head * Y::bytes, columns - row.head, misalignment(in, in_bytes)};
    if (!row.masked)
        row.state = state_of<ENTROPY>(work, at);
    row.body_state = row.state;
    const uint32_t target = row.state.target;
    row.body_state.target = target < row.head || target == UINT32_MAX ? UINT32_MAX : target - row.head;
    return row;
}

template <class X, class Y, bool ENTROPY>
BP_DEVICE float head_value(const gradient_row<X, Y, ENTROPY> &row, uint32_t column)
{
    return column < row.head && !row.masked ? value_at<X>(row.in + column * X::bytes) : 0;
}

template <class X, class Y, bool ENTROPY>
BP_DEVICE void store_head(const gradient_row<X, Y, ENTROPY> &row, uint32_t column, float x)
{
    if (column >= row.head)
        return;
    float y[Y::in_word] = {};
    if (!row.masked)
        y[0] =
            column == row.state.target ? gradient_at_target<ENTROPY>(row.state, x) : gradient_of<ENTROPY>(row.state, x);
    Y::store(row.out + column * Y::bytes, Y::narrow(y));
}

BP_DEVICE uint32_t piece_count(const rows &body)
{
    return (body.columns + BP_PIECE_COLUMNS - 1) / BP_PIECE_COLUMNS;
}

/* Grid: [rows, parts of a row]. */
template <class X, class Y, bool ENTROPY> BP_DEVICE void make_gradient(const bp_gradient_work &work)
{
    const uint32_t lane = threadIdx.x % BP_LANES, warp = threadIdx.x / BP_LANES, warps = blockDim.x / BP_LANES;
    for (uint64_t token = blockIdx.x; token < token_count(work.tokens); token += gridDim.x) {
        const gradient_row<X, Y, ENTROPY> row = row_at<X, Y, ENTROPY>(work, token);
        if (blockIdx.y == 0)
            store_head(row, threadIdx.x, head_value(row, threadIdx.x));
        const uint64_t pieces = piece_count(row.body);
        const uint32_t begin = static_cast<uint32_t>(pieces * blockIdx.y / gridDim.y);
        const uint32_t end = static_cast<uint32_t>(pieces * (blockIdx.y + 1) / gridDim.y);
        for (uint32_t i = begin + warp; i < end; i += warps) {
            const uint32_t first = i * BP_PIECE_COLUMNS + lane * piece<X, Y>::columns;
            if (row.masked) {
                store_zeros<Y, piece<X, Y>::out_words>(row.body, first);
            } else if (is_whole<X, Y>(row.body, first)) {
                piece<X, Y> made;
                load_whole(row.body, first, made);
                store_whole<X, Y, ENTROPY>(row.body, row.body_state, first, made);
            } else {
                make_piece<X, Y, ENTROPY>(row.body, row.body_state, first);
            }
        }
    }
}

/* Narrower output in place over its fp32 row: a block takes a row, and all warps read their pieces before any warp writes. */
template <class Y, bool ENTROPY> BP_DEVICE void make_narrower_gradient(const bp_gradient_work &work)
{
    const uint32_t lane = threadIdx.x % BP_LANES, warp = threadIdx.x / BP_LANES, warps = blockDim.x / BP_LANES;
    for (uint64_t token = blockIdx.x; token < token_count(work.tokens); token += gridDim.x) {
        const gradient_row<fp32, Y, ENTROPY> row = row_at<fp32, Y, ENTROPY>(work, token);
        const float head = head_value(row, threadIdx.x);
        wait_for_block();
        store_head(row, threadIdx.x, head);
        const uint32_t pieces = piece_count(row.body);
        for (uint32_t begin = 0; begin < pieces; begin += warps) {
            const uint32_t first = (begin + warp) * BP_PIECE_COLUMNS + lane * piece<fp32, Y>::columns;
            piece<fp32, Y> made;
            if (!row.masked)
                load_piece<fp32, Y>(row.body, first, made);
            wait_for_block();
            if (row.masked)
                store_zeros<Y, piece<fp32, Y>::out_words>(row.body, first);
            else
                store_piece<fp32, Y, ENTROPY>(row.body, row.body_state, first, made);
        }
    }
}

} // namespace device

#endif

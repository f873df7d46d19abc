/* SPDX-License-Identifier: Apache-2.0 */
/* The gradient of logits, element-wise: any thread can compute any column, and a warp takes a piece of a row at a time. Vectors start where
 * the output is aligned; the thread that read an element writes it. */
#ifndef BP_LOGPROB_CUDA_GRADIENT_CUH
#define BP_LOGPROB_CUDA_GRADIENT_CUH

#include "cuda/rows.cuh"

namespace device
{

/* Upstream gradients of a token, summed over its targets in double precision, because sums of both signs may be small. */
struct upstreams {
    double logprob;
    float entropy, logsumexp, mean_logprob;
};

template <form FORM> BP_DEVICE upstreams upstreams_of(const bp_gradient_work &work, const place &at)
{
    upstreams sums = {};
    const bool ignores = work.tokens.ignores != 0 && work.tokens.targets > 1; /* a token with one target is masked */
    for (uint32_t k = 0; k < work.tokens.targets; k++) {
        if (!ignores || target_of(work.tokens, at, k) != work.tokens.ignored)
            sums.logprob += upstream_at(work.logprob, at, k);
    }
    if (FORM >= ENTROPY)
        sums.entropy = upstream_at(work.entropy, at, 0);
    if (FORM >= GENERAL) {
        sums.logsumexp = upstream_at(work.logsumexp, at, 0);
        sums.mean_logprob = upstream_at(work.mean_logprob, at, 0);
    }
    return sums;
}

/* Constants of a row: the gradient is (p (a + b d) + c) slope, with d = (x - max) scale, and more in the columns of targets. */
struct row_state {
    float max, log_sum, scale;
    float a, b, c;
};

/* The factor of p at d = 0. */
template <form FORM> BP_DEVICE float factor_of(const upstreams &up, float energy, float scale)
{
    const float of_row = (FORM >= GENERAL ? up.logsumexp - up.mean_logprob : 0) - static_cast<float>(up.logprob);
    return (FORM >= ENTROPY ? fmaf(up.entropy, energy, of_row) : of_row) * scale;
}

/* All forms make the same bits where more is not asked for, down to the signs of zeros: a has +0, c has -0, which changes no sum. */
template <form FORM>
BP_DEVICE row_state state_of(const upstreams &up, float max, float log_sum, float energy, float scale, uint64_t vocab)
{
    return {max,
            log_sum,
            scale,
            factor_of<FORM>(up, energy, scale),
            FORM >= ENTROPY ? -(up.entropy * scale) : 0,
            FORM >= GENERAL && up.mean_logprob != 0 ? up.mean_logprob * scale / static_cast<float>(vocab) : -0.0f};
}

BP_DEVICE float energy_of(const bp_gradient_work &work, const place &at)
{
    return work.saved.energy != nullptr ? work.saved.energy[at.token] : 0;
}

/* p (a + b d) + c */
template <form FORM> BP_DEVICE float combined(const row_state &row, float p, float d)
{
    const float factor = FORM >= ENTROPY ? fmaf(row.b, no_lower(d * row.scale), row.a) : row.a;
    return FORM >= GENERAL ? fmaf(p, factor, row.c) : p * factor;
}

template <form FORM> BP_DEVICE float gradient_of(const row_state &row, const bp_logits_work &logits, float logit)
{
    const changed x = changed_by<FORM>(logits, logit);
    const float d = x.x - row.max, p = exp2_fast(fmaf(d, row.scale, -row.log_sum) * LOG2_E);
    const float y = combined<FORM>(row, p, d);
    return FORM >= GENERAL ? y * x.slope : y;
}

/* ---- targets --------------------------------------------------------------------------------------------------------- */

/* The element of a target's column, which thread k writes for target k after the row: 1 - p without cancellation for p near 1. */
struct target_element {
    uint32_t column; /* UINT32_MAX: none for this thread */
    float logit;
};

/* To be called before anything of the row is written. Columns [begin, end) are this block's. Of equal targets the first thread writes. */
template <class X>
BP_DEVICE target_element target_of_thread(const bp_tokens_work &tokens, const bp_logits_work &logits, const place &at,
                                          const char *row, uint32_t begin, uint32_t end)
{
    if (threadIdx.x >= tokens.targets)
        return {UINT32_MAX, 0};
    const int64_t id = target_of(tokens, at, threadIdx.x);
    const uint64_t column = bp_behind(id, logits.first);
    bool is_mine = column >= begin && column < end && bp_is_ignored(&tokens, id) == 0;
    BP_NO_UNROLL
    for (uint32_t k = 0; k < threadIdx.x && is_mine; k++)
        is_mine = target_of(tokens, at, k) != id;
    if (!is_mine)
        return {UINT32_MAX, 0};
    return {static_cast<uint32_t>(column), value_at<X>(row + column * X::bytes)};
}

/* To be called when all other elements of the row are written. */
template <class Y, form FORM>
BP_DEVICE void store_target(const bp_gradient_work &work, const place &at, const target_element &target, float max,
                            float log_sum, float energy, float scale, char *out)
{
    if (target.column == UINT32_MAX)
        return;
    upstreams up = upstreams_of<FORM>(work, at);
    const int64_t id = target_of(work.tokens, at, threadIdx.x);
    double of_column = 0;
    BP_NO_UNROLL
    for (uint32_t k = 0; k < work.tokens.targets; k++)
        of_column += target_of(work.tokens, at, k) == id ? upstream_at(work.logprob, at, k) : 0;
    up.logprob -= of_column;
    const row_state others = state_of<FORM>(up, max, log_sum, energy, scale, work.tokens.vocab);
    const changed x = changed_by<FORM>(work.logits, target.logit);
    const float g = static_cast<float>(of_column) * scale, d = x.x - max, exponent = fmaf(d, scale, -log_sum);
    const float y[Y::in_word] = {fmaf(-g, expm1f(exponent), combined<FORM>(others, exp2_fast(exponent * LOG2_E), d)) *
                                 x.slope};
    Y::store(out + static_cast<uint64_t>(target.column) * Y::bytes, Y::narrow(y));
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
    typedef piece<X, Y> shape;
    const char *from = row.in + static_cast<uint64_t>(first) * X::bytes;
    BP_UNROLL
    for (int i = 0; i < shape::vectors; i++)
        load_words<shape::in_words>(from + static_cast<uint32_t>(i) * shape::apart * X::bytes, made.words[i]);
}

template <class X, class Y> BP_DEVICE void load_piece(const rows &row, uint32_t first, piece<X, Y> &made)
{
    typedef piece<X, Y> shape;
    if (is_whole<X, Y>(row, first)) {
        load_whole(row, first, made);
        return;
    }
    BP_UNROLL
    for (int i = 0; i < shape::vectors; i++) {
        const uint32_t column = first + static_cast<uint32_t>(i) * shape::apart;
        if (column < row.columns)
            load_vector<X, shape::in_words>(row.in, row.columns, column, row.shift, made.words[i]);
    }
}

template <class X, class Y, form FORM>
BP_DEVICE void gradients_of(const bp_logits_work &logits, const row_state &state,
                            const uint32_t (&in)[piece<X, Y>::in_words], uint32_t (&out)[piece<X, Y>::out_words])
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
        y[i] = gradient_of<FORM>(state, logits, x[i]);
    BP_UNROLL
    for (uint32_t i = 0; i < columns; i += Y::in_word) {
        float of_word[Y::in_word];
        of_word[0] = y[i];
        of_word[Y::in_word - 1] = y[i + Y::in_word - 1];
        out[i / Y::in_word] = Y::narrow(of_word);
    }
}

template <class X, class Y, form FORM>
BP_DEVICE void store_whole(const rows &row, const bp_logits_work &logits, const row_state &state, uint32_t first,
                           const piece<X, Y> &made)
{
    typedef piece<X, Y> shape;
    char *to = row.out + static_cast<uint64_t>(first) * Y::bytes;
    BP_UNROLL
    for (int i = 0; i < shape::vectors; i++) {
        const uint32_t further = static_cast<uint32_t>(i) * shape::apart;
        uint32_t out[shape::out_words];
        gradients_of<X, Y, FORM>(logits, state, made.words[i], out);
        store_words<shape::out_words>(to + further * Y::bytes, out);
    }
}

template <class X, class Y, form FORM>
BP_DEVICE void store_piece(const rows &row, const bp_logits_work &logits, const row_state &state, uint32_t first,
                           const piece<X, Y> &made)
{
    typedef piece<X, Y> shape;
    BP_UNROLL
    for (int i = 0; i < shape::vectors; i++) {
        const uint32_t column = first + static_cast<uint32_t>(i) * shape::apart;
        if (column >= row.columns)
            break;
        uint32_t out[shape::out_words];
        gradients_of<X, Y, FORM>(logits, state, made.words[i], out);
        store_vector<Y, shape::out_words>(row.out, row.columns, column, out);
    }
}

/* Vector by vector, for the end of a row and for rows whose input is not aligned like their output. */
template <class X, class Y, form FORM>
BP_DEVICE void make_piece(const rows &row, const bp_logits_work &logits, const row_state &state, uint32_t first)
{
    typedef piece<X, Y> shape;
    BP_NO_UNROLL
    for (int i = 0; i < shape::vectors; i++) {
        const uint32_t column = first + static_cast<uint32_t>(i) * shape::apart;
        uint32_t in[shape::in_words], out[shape::out_words];
        if (column >= row.columns)
            return;
        load_vector<X, shape::in_words>(row.in, row.columns, column, row.shift, in);
        gradients_of<X, Y, FORM>(logits, state, in, out);
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

struct gradient_row {
    bool masked;
    const char *in;
    char *out;
    uint32_t head; /* columns before the first aligned vector */
    rows body;
};

template <class X, class Y>
BP_DEVICE gradient_row row_at(const bp_tokens_work &tokens, const bp_logits_work &logits, const place &at, char *out)
{
    constexpr uint32_t out_bytes = 4 * piece<X, Y>::out_words, in_bytes = 4 * piece<X, Y>::in_words;
    const uint32_t columns = column_count(logits);
    const char *in = row_of<X>(logits, at);
    const uint32_t head = min((out_bytes - misalignment(out, out_bytes)) % out_bytes / Y::bytes, columns);
    const char *body = in + head * X::bytes;
    return {is_masked(tokens, at),
            in,
            out,
            head,
            {body, out + head * Y::bytes, columns - head, misalignment(body, in_bytes)}};
}

template <class Y> BP_DEVICE char *out_of(void *out, const place &at, int64_t batch_stride, int64_t stride)
{
    return static_cast<char *>(out) + offset_of(at, batch_stride, stride) * static_cast<int64_t>(Y::bytes);
}

template <class X> BP_DEVICE float head_value(const gradient_row &row, uint32_t column)
{
    return column < row.head && !row.masked ? value_at<X>(row.in + column * X::bytes) : 0;
}

template <class Y, form FORM>
BP_DEVICE void store_head(const gradient_row &row, const bp_logits_work &logits, const row_state &state,
                          uint32_t column, float x)
{
    if (column >= row.head)
        return;
    float y[Y::in_word] = {};
    if (!row.masked)
        y[0] = gradient_of<FORM>(state, logits, x);
    Y::store(row.out + column * Y::bytes, Y::narrow(y));
}

BP_DEVICE uint32_t piece_count(const rows &body)
{
    return (body.columns + BP_PIECE_COLUMNS - 1) / BP_PIECE_COLUMNS;
}

/* Statistics are not read for masked rows. */
template <form FORM> BP_DEVICE row_state saved_state(const bp_gradient_work &work, const place &at, bool masked)
{
    if (masked)
        return {};
    return state_of<FORM>(upstreams_of<FORM>(work, at), work.saved.max[at.token], work.saved.log_sum[at.token],
                          FORM >= ENTROPY ? energy_of(work, at) : 0, scale_of(work.tokens, at), work.tokens.vocab);
}

template <class Y, form FORM>
BP_DEVICE void store_saved_target(const bp_gradient_work &work, const place &at, const target_element &target,
                                  const row_state &state, char *out)
{
    store_target<Y, FORM>(work, at, target, state.max, state.log_sum, FORM >= ENTROPY ? energy_of(work, at) : 0,
                          state.scale, out);
}

/* Grid: [rows, parts of a row]. */
template <class X, class Y, form FORM> BP_DEVICE void make_gradient(const bp_gradient_work &work)
{
    const uint32_t lane = threadIdx.x % BP_LANES, warp = threadIdx.x / BP_LANES, warps = blockDim.x / BP_LANES;
    for (uint64_t token = blockIdx.x; token < token_count(work.tokens); token += gridDim.x) {
        const place at = place_of(work.tokens, token);
        const gradient_row row =
            row_at<X, Y>(work.tokens, work.logits, at, out_of<Y>(work.out, at, work.out_batch_stride, work.out_stride));
        const uint64_t pieces = piece_count(row.body);
        const uint32_t begin = static_cast<uint32_t>(pieces * blockIdx.y / gridDim.y);
        const uint32_t end = static_cast<uint32_t>(pieces * (blockIdx.y + 1) / gridDim.y);
        const row_state state = saved_state<FORM>(work, at, row.masked);
        target_element target = {UINT32_MAX, 0};
        if (!row.masked) {
            const uint32_t reached = min(row.head + end * BP_PIECE_COLUMNS, column_count(work.logits));
            target = target_of_thread<X>(work.tokens, work.logits, at, row.in,
                                         blockIdx.y == 0 ? 0 : row.head + begin * BP_PIECE_COLUMNS, reached);
            if (work.out == work.logits.data)
                wait_for_block();
        }
        if (blockIdx.y == 0)
            store_head<Y, FORM>(row, work.logits, state, threadIdx.x, head_value<X>(row, threadIdx.x));
        for (uint32_t i = begin + warp; i < end; i += warps) {
            const uint32_t first = i * BP_PIECE_COLUMNS + lane * piece<X, Y>::columns;
            if (row.masked) {
                store_zeros<Y, piece<X, Y>::out_words>(row.body, first);
            } else if (is_whole<X, Y>(row.body, first)) {
                piece<X, Y> made;
                load_whole(row.body, first, made);
                store_whole<X, Y, FORM>(row.body, work.logits, state, first, made);
            } else {
                make_piece<X, Y, FORM>(row.body, work.logits, state, first);
            }
        }
        if (row.masked)
            continue;
        wait_for_block();
        store_saved_target<Y, FORM>(work, at, target, state, row.out);
    }
}

/* Narrower output in place over its fp32 row: a block takes a row, and all warps read their pieces before any warp writes. */
template <class Y, form FORM> BP_DEVICE void make_narrower_gradient(const bp_gradient_work &work)
{
    const uint32_t lane = threadIdx.x % BP_LANES, warp = threadIdx.x / BP_LANES, warps = blockDim.x / BP_LANES;
    for (uint64_t token = blockIdx.x; token < token_count(work.tokens); token += gridDim.x) {
        const place at = place_of(work.tokens, token);
        const gradient_row row = row_at<fp32, Y>(work.tokens, work.logits, at,
                                                 out_of<Y>(work.out, at, work.out_batch_stride, work.out_stride));
        const row_state state = saved_state<FORM>(work, at, row.masked);
        target_element target = {UINT32_MAX, 0};
        if (!row.masked)
            target = target_of_thread<fp32>(work.tokens, work.logits, at, row.in, 0, column_count(work.logits));
        const float head = head_value<fp32>(row, threadIdx.x);
        wait_for_block();
        store_head<Y, FORM>(row, work.logits, state, threadIdx.x, head);
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
                store_piece<fp32, Y, FORM>(row.body, work.logits, state, first, made);
        }
        wait_for_block();
        if (!row.masked)
            store_saved_target<Y, FORM>(work, at, target, state, row.out);
    }
}

} // namespace device

#endif

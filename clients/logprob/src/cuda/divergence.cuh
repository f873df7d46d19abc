/* SPDX-License-Identifier: Apache-2.0 */
/* Divergences of the logits from a reference: sums over the rows, a block per row and a warp per tile, and their gradient, element-wise. The
 * order in which columns are added depends on the column only. */
#ifndef BP_LOGPROB_CUDA_DIVERGENCE_CUH
#define BP_LOGPROB_CUDA_DIVERGENCE_CUH

#include "cuda/forward.cuh"
#include "cuda/gradient.cuh"

namespace device
{

/* ---- a column -------------------------------------------------------------------------------------------------------- */

/* KL(q || p) for beta 0, KL(p || q) for beta 1, Jensen-Shannon between. */
enum divergence_kind { REVERSE, FORWARD, BETWEEN };

BP_DEVICE divergence_kind kind_of(float beta)
{
    return beta == 0 ? REVERSE : beta == 1 ? FORWARD : BETWEEN;
}

/* Statistics of both rows of a token. */
struct pair_state {
    float max, log_sum, reference_max, reference_log_sum, scale, beta;
};

BP_DEVICE pair_state pair_of(const bp_tokens_work &tokens, const bp_saved_work &logits, const bp_saved_work &reference,
                             const place &at, float beta)
{
    return {logits.max[at.token],        logits.log_sum[at.token], reference.max[at.token],
            reference.log_sum[at.token], scale_of(tokens, at),     beta};
}

/* Logarithms of p and q. */
struct log_pair {
    float p, q, slope;
};

template <form FORM>
BP_DEVICE log_pair logs_of(const pair_state &row, const bp_logits_work &logits, const bp_logits_work &reference,
                           float x, float y)
{
    const changed p = changed_by<FORM>(logits, x), q = changed_by<FORM>(reference, y);
    return {fmaf(p.x - row.max, row.scale, -row.log_sum),
            fmaf(q.x - row.reference_max, row.scale, -row.reference_log_sum), p.slope};
}

BP_DEVICE float exp_of(float log)
{
    return exp_exact(no_lower(log));
}

/* -log(1 - share + share exp(d)), which is 0 for d = 0: log(p / m) with d = log(q / p) and the share of q in m. */
BP_DEVICE float log_of_share(float share, float d)
{
    return -log1pf(share * expm1f(d));
}

/* NaN of logits that are NaN stays: it compares as unequal to 0. */
template <divergence_kind KIND> BP_DEVICE bp_divergence_sums terms_of(const log_pair &logs, float beta)
{
    const float p = exp_of(logs.p), q = exp_of(logs.q);
    bp_divergence_sums terms = {};
    if (KIND == REVERSE)
        terms.reference = q * (logs.q - logs.p);
    if (KIND == FORWARD)
        terms.logits = p * (logs.p - logs.q);
    if (KIND == BETWEEN) {
        terms.reference = q * log_of_share(1 - beta, logs.p - logs.q);
        terms.logits = p * log_of_share(beta, logs.q - logs.p);
    }
    return {q != 0 ? terms.reference : 0, p != 0 ? terms.logits : 0};
}

/* Without the upstream gradient. */
template <divergence_kind KIND> BP_DEVICE float derivative_of(const log_pair &logs, float beta, float kept)
{
    const float p = exp_of(logs.p);
    if (KIND == REVERSE)
        return p - exp_of(logs.q);
    const float log_ratio = KIND == FORWARD ? logs.p - logs.q : log_of_share(beta, logs.q - logs.p);
    return p != 0 ? (KIND == FORWARD ? 1 : 1 - beta) * p * (log_ratio - kept) : 0;
}

/* ---- sums -------------------------------------------------------------------------------------------------------------- */

/* The rows of a token, and where they lie. */
struct pair_rows {
    const char *logits, *reference;
    uint32_t columns, shift, reference_shift;
};

#define BP_PAIRS_AT_ONCE 4 /* vectors of each row whose loads are in flight */

template <class X>
BP_DEVICE void load_pairs(const pair_rows &rows, uint32_t first, uint32_t (&x)[BP_PAIRS_AT_ONCE][4],
                          uint32_t (&y)[BP_PAIRS_AT_ONCE][4])
{
    typedef tile_words<X> shape;
    const char *logits = rows.logits + static_cast<uint64_t>(first) * X::bytes;
    const char *reference = rows.reference + static_cast<uint64_t>(first) * X::bytes;
    constexpr uint32_t reach = (BP_PAIRS_AT_ONCE - 1) * shape::apart + shape::width;
    if ((rows.shift | rows.reference_shift) == 0 && first < rows.columns && rows.columns - first >= reach) {
        BP_UNROLL
        for (uint32_t i = 0; i < BP_PAIRS_AT_ONCE; i++) {
            load_words<4>(logits + i * shape::apart * X::bytes, x[i]);
            load_words<4>(reference + i * shape::apart * X::bytes, y[i]);
        }
        return;
    }
    BP_UNROLL
    for (uint32_t i = 0; i < BP_PAIRS_AT_ONCE; i++) {
        load_vector<X, 4>(rows.logits, rows.columns, first + i * shape::apart, rows.shift, x[i]);
        load_vector<X, 4>(rows.reference, rows.columns, first + i * shape::apart, rows.reference_shift, y[i]);
    }
}

/* Of a tile, in all lanes. Eight running sums per lane. */
template <class X, divergence_kind KIND, form FORM>
BP_DEVICE bp_divergence_sums divergence_of_tile(const bp_divergence_work &work, const pair_rows &rows,
                                                const pair_state &state, uint32_t begin, uint32_t lane)
{
    typedef tile_words<X> shape;
    float reference[8] = {}, logits[8] = {};
    BP_NO_UNROLL
    for (uint32_t at = 0; at < shape::vectors; at += BP_PAIRS_AT_ONCE) {
        const uint32_t first = begin + lane * shape::width + at * shape::apart;
        uint32_t x[BP_PAIRS_AT_ONCE][4], y[BP_PAIRS_AT_ONCE][4];
        if (first >= rows.columns)
            break;
        load_pairs<X>(rows, first, x, y);
        BP_UNROLL
        for (uint32_t i = 0; i < BP_PAIRS_AT_ONCE; i++) {
            BP_UNROLL
            for (uint32_t k = 0; k < 4; k++) {
                float a[X::in_word], b[X::in_word];
                X::widen(x[i][k], a);
                X::widen(y[i][k], b);
                BP_UNROLL
                for (uint32_t j = 0; j < X::in_word; j++) {
                    const uint32_t column = first + i * shape::apart + k * X::in_word + j;
                    const uint32_t to = X::in_word == 2 ? 2 * k + j : 4 * (i & 1) + k;
                    const bp_divergence_sums terms =
                        terms_of<KIND>(logs_of<FORM>(state, work.logits, work.reference, a[j], b[j]), work.beta);
                    const bool counts = column < rows.columns;
                    if (KIND != FORWARD)
                        reference[to] += counts ? terms.reference : 0;
                    if (KIND != REVERSE)
                        logits[to] += counts ? terms.logits : 0;
                }
            }
        }
    }
    return {KIND != FORWARD ? sum_of_warp(sum_of_8(reference)) : 0,
            KIND != REVERSE ? sum_of_warp(sum_of_8(logits)) : 0};
}

BP_DEVICE bool is_changed(const bp_logits_work &logits)
{
    return logits.rounding != BP_DTYPE_FP32 || logits.cap != 0;
}

template <class X, divergence_kind KIND>
BP_DEVICE bp_divergence_sums divergence_of_form(const bp_divergence_work &work, const pair_rows &rows,
                                                const pair_state &state, uint32_t begin, uint32_t lane)
{
    return is_changed(work.logits) || is_changed(work.reference)
               ? divergence_of_tile<X, KIND, GENERAL>(work, rows, state, begin, lane)
               : divergence_of_tile<X, KIND, PLAIN>(work, rows, state, begin, lane);
}

template <class X>
BP_DEVICE bp_divergence_sums divergence_of_kind(const bp_divergence_work &work, const pair_rows &rows,
                                                const pair_state &state, uint32_t begin, uint32_t lane)
{
    switch (kind_of(work.beta)) {
    case REVERSE: return divergence_of_form<X, REVERSE>(work, rows, state, begin, lane);
    case FORWARD: return divergence_of_form<X, FORWARD>(work, rows, state, begin, lane);
    default: return divergence_of_form<X, BETWEEN>(work, rows, state, begin, lane);
    }
}

BP_DEVICE bp_divergence_sums added_by_warp(const bp_divergence_sums *list, uint32_t count, uint32_t lane)
{
    bp_divergence_sums all = {};
    for (uint32_t i = lane; i < count; i += BP_LANES) {
        all.reference += list[i].reference;
        all.logits += list[i].logits;
    }
    return {sum_of_warp(all.reference), sum_of_warp(all.logits)};
}

BP_DEVICE void write_divergence(const bp_divergence_results &work, const place &at, float beta, double reference,
                                double logits)
{
    const divergence_kind kind = kind_of(beta);
    const double of = kind == REVERSE   ? reference
                      : kind == FORWARD ? logits
                                        : beta * reference + (1 - static_cast<double>(beta)) * logits;
    if (work.divergence.data != nullptr)
        output_at(work.divergence, at, 0) = static_cast<float>(of);
    if (work.kept != nullptr)
        work.kept[at.token] = static_cast<float>(logits);
}

/* The statistics of masked rows are not read. */
template <class X> BP_DEVICE void make_divergence(const bp_divergence_work &work)
{
    BP_SHARED(bp_divergence_sums, kept, BP_TILES_KEPT);
    const uint32_t columns = column_count(work.logits), tiles = (columns + BP_TILE_COLUMNS - 1) / BP_TILE_COLUMNS;
    const uint32_t lane = threadIdx.x % BP_LANES, warp = threadIdx.x / BP_LANES, warps = blockDim.x / BP_LANES;
    for (uint64_t token = blockIdx.x; token < token_count(work.tokens); token += gridDim.x) {
        const place at = place_of(work.tokens, token);
        if (is_masked(work.tokens, at)) {
            if (work.sums == nullptr && threadIdx.x == 0)
                write_divergence(work.results, at, work.beta, 0, 0);
            continue;
        }
        const char *logits = row_of<X>(work.logits, at), *reference = row_of<X>(work.reference, at);
        const pair_rows rows = {logits, reference, columns, misalignment(logits, 16), misalignment(reference, 16)};
        const pair_state state = pair_of(work.tokens, work.logits_saved, work.reference_saved, at, work.beta);
        bp_divergence_sums all = {};
        for (uint32_t begin = 0; begin < tiles; begin += BP_TILES_KEPT) {
            const uint32_t count = min(tiles - begin, BP_TILES_KEPT);
            for (uint32_t i = warp; i < count; i += warps) {
                const bp_divergence_sums made =
                    divergence_of_kind<X>(work, rows, state, (begin + i) * BP_TILE_COLUMNS, lane);
                if (lane == 0)
                    kept[i] = made;
            }
            wait_for_block();
            if (warp == 0) {
                const bp_divergence_sums round = added_by_warp(kept, count, lane);
                all = {all.reference + round.reference, all.logits + round.logits};
            }
            wait_for_block();
        }
        if (threadIdx.x != 0)
            continue;
        if (work.sums != nullptr)
            work.sums[token] = all;
        else
            write_divergence(work.results, at, work.beta, all.reference, all.logits);
    }
}

BP_DEVICE void make_divergence_results(const bp_divergence_finish_work &work)
{
    const uint64_t step = static_cast<uint64_t>(gridDim.x) * blockDim.x, tokens = token_count(work.tokens);
    for (uint64_t token = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; token < tokens; token += step) {
        const place at = place_of(work.tokens, token);
        double reference = 0, logits = 0;
        for (uint32_t rank = 0; rank < work.ranks && !is_masked(work.tokens, at); rank++) {
            reference += work.sums[rank * tokens + token].reference;
            logits += work.sums[rank * tokens + token].logits;
        }
        write_divergence(work.results, at, work.beta, reference, logits);
    }
}

/* ---- gradient ---------------------------------------------------------------------------------------------------------- */

struct divergence_row {
    pair_state state;
    float factor, kept; /* factor: upstream gradient, times scale */
};

template <divergence_kind KIND, form FORM>
BP_DEVICE float divergence_gradient_of(const bp_divergence_gradient_work &work, const divergence_row &row, float x,
                                       float y)
{
    const log_pair logs = logs_of<FORM>(row.state, work.logits, work.reference, x, y);
    const float of = row.factor * derivative_of<KIND>(logs, row.state.beta, row.kept);
    return FORM == GENERAL ? of * logs.slope : of;
}

/* A vector of the output, which is aligned there. */
template <class X, class Y, divergence_kind KIND, form FORM>
BP_DEVICE void make_divergence_vector(const bp_divergence_gradient_work &work, const divergence_row &row,
                                      const rows &logits, const rows &reference, uint32_t column)
{
    typedef piece<X, Y> shape;
    uint32_t in[shape::in_words], other[shape::in_words], out[shape::out_words];
    float y[shape::columns];
    load_vector<X, shape::in_words>(logits.in, logits.columns, column, logits.shift, in);
    load_vector<X, shape::in_words>(reference.in, logits.columns, column, reference.shift, other);
    BP_UNROLL
    for (uint32_t i = 0; i < shape::columns; i += X::in_word) {
        float a[X::in_word], b[X::in_word];
        X::widen(in[i / X::in_word], a);
        X::widen(other[i / X::in_word], b);
        BP_UNROLL
        for (uint32_t j = 0; j < X::in_word; j++)
            y[i + j] = divergence_gradient_of<KIND, FORM>(work, row, a[j], b[j]);
    }
    BP_UNROLL
    for (uint32_t i = 0; i < shape::columns; i += Y::in_word) {
        float of_word[Y::in_word];
        of_word[0] = y[i];
        of_word[Y::in_word - 1] = y[i + Y::in_word - 1];
        out[i / Y::in_word] = Y::narrow(of_word);
    }
    store_vector<Y, shape::out_words>(logits.out, logits.columns, column, out);
}

/* Of the block: its part of a row. Part 0 has the head, too. */
template <class X, class Y, divergence_kind KIND, form FORM>
BP_DEVICE void make_divergence_part(const bp_divergence_gradient_work &work, const divergence_row &row,
                                    const gradient_row &logits, const gradient_row &reference)
{
    typedef piece<X, Y> shape;
    const uint64_t vectors = (logits.body.columns + shape::columns - 1) / shape::columns;
    const uint32_t begin = static_cast<uint32_t>(vectors * blockIdx.y / gridDim.y);
    const uint32_t end = static_cast<uint32_t>(vectors * (blockIdx.y + 1) / gridDim.y);
    if (blockIdx.y == 0 && threadIdx.x < logits.head) {
        const float y[Y::in_word] = {
            divergence_gradient_of<KIND, FORM>(work, row, value_at<X>(logits.in + threadIdx.x * X::bytes),
                                               value_at<X>(reference.in + threadIdx.x * X::bytes))};
        Y::store(logits.out + threadIdx.x * Y::bytes, Y::narrow(y));
    }
    BP_UNROLL_BY(2)
    for (uint32_t i = begin + threadIdx.x; i < end; i += blockDim.x)
        make_divergence_vector<X, Y, KIND, FORM>(work, row, logits.body, reference.body, i * shape::columns);
}

template <class X, class Y, divergence_kind KIND>
BP_DEVICE void make_divergence_form(const bp_divergence_gradient_work &work, const divergence_row &row,
                                    const gradient_row &logits, const gradient_row &reference)
{
    if (is_changed(work.logits) || is_changed(work.reference))
        make_divergence_part<X, Y, KIND, GENERAL>(work, row, logits, reference);
    else
        make_divergence_part<X, Y, KIND, PLAIN>(work, row, logits, reference);
}

template <class X, class Y> BP_DEVICE void make_zero_part(const gradient_row &row)
{
    typedef piece<X, Y> shape;
    const uint32_t vectors = (row.body.columns + shape::columns - 1) / shape::columns;
    const uint32_t zeros[shape::out_words] = {};
    if (blockIdx.y == 0 && threadIdx.x < row.head)
        Y::store(row.out + threadIdx.x * Y::bytes, 0);
    for (uint32_t i = blockIdx.y * blockDim.x + threadIdx.x; i < vectors; i += gridDim.y * blockDim.x)
        store_vector<Y, shape::out_words>(row.body.out, row.body.columns, i * shape::columns, zeros);
}

/* Grid: [rows, parts of a row]. */
template <class X, class Y> BP_DEVICE void make_divergence_gradient(const bp_divergence_gradient_work &work)
{
    for (uint64_t token = blockIdx.x; token < token_count(work.tokens); token += gridDim.x) {
        const place at = place_of(work.tokens, token);
        char *out = out_of<Y>(work.out, at, work.out_batch_stride, work.out_stride);
        const gradient_row logits = row_at<X, Y>(work.tokens, work.logits, at, out);
        const gradient_row reference = row_at<X, Y>(work.tokens, work.reference, at, out);
        if (logits.masked) {
            make_zero_part<X, Y>(logits);
            continue;
        }
        divergence_row row = {pair_of(work.tokens, work.logits_saved, work.reference_saved, at, work.beta), 0,
                              work.kept != nullptr ? work.kept[at.token] : 0};
        row.factor = upstream_at(work.upstream, at, 0) * row.state.scale;
        switch (kind_of(work.beta)) {
        case REVERSE: make_divergence_form<X, Y, REVERSE>(work, row, logits, reference); break;
        case FORWARD: make_divergence_form<X, Y, FORWARD>(work, row, logits, reference); break;
        default: make_divergence_form<X, Y, BETWEEN>(work, row, logits, reference); break;
        }
    }
}

} // namespace device

#endif

/* Vectors of a row: as many columns as a thread reads or writes at once, whatever the row's alignment. Nothing outside the row is
 * touched. */
#ifndef BP_LOGPROB_CUDA_VECTORS_CUH
#define BP_LOGPROB_CUDA_VECTORS_CUH

#include "logprob/cuda/elements.cuh"

namespace device
{

BP_DEVICE uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* How far an address is from the multiple of `bytes` (a power of two) below it. */
BP_DEVICE uint32_t misalignment(const char *address, uint32_t bytes)
{
    return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(address)) & (bytes - 1);
}

/* Of two aligned vectors the words that begin `shift` bytes behind the first. */
template <int WORDS>
BP_DEVICE void shifted(const uint32_t (&low)[WORDS], const uint32_t (&high)[WORDS], uint32_t shift,
                       uint32_t (&words)[WORDS])
{
    uint32_t both[2 * WORDS];
    BP_UNROLL
    for (int i = 0; i < WORDS; i++) {
        both[i] = low[i];
        both[WORDS + i] = high[i];
    }
    BP_UNROLL
    for (int step = WORDS / 2; step > 0; step /= 2) {
        BP_UNROLL
        for (int i = 0; i + step < 2 * WORDS; i++)
            both[i] = (shift & (4u * static_cast<uint32_t>(step))) != 0 ? both[i + step] : both[i];
    }
    BP_UNROLL
    for (int i = 0; i < WORDS; i++)
        words[i] = funnel(both[i], both[i + 1], 8 * (shift & 3));
}

template <int WORDS> BP_DEVICE void load_shifted(const char *from, uint32_t shift, uint32_t (&words)[WORDS])
{
    uint32_t low[WORDS], high[WORDS];
    load_words<WORDS>(from - shift, low);
    load_words<WORDS>(from - shift + 4 * WORDS, high);
    shifted<WORDS>(low, high, shift, words);
}

/* Element by element, for the ends of a row; -inf behind it. */
template <class X, int WORDS>
BP_DEVICE void load_elements(const char *row, uint32_t columns, uint32_t column, uint32_t (&words)[WORDS])
{
    BP_UNROLL
    for (int i = 0; i < WORDS; i++) {
        words[i] = X::lowest;
        BP_UNROLL
        for (uint32_t k = 0; k < X::in_word; k++) {
            const uint32_t c = column + static_cast<uint32_t>(i) * X::in_word + k, half = 16 * k;
            if (c < columns) {
                const uint32_t element = X::load(row + static_cast<uint64_t>(c) * X::bytes);
                words[i] = X::in_word == 1 ? element : (words[i] & ~(0xffffu << half)) | element << half;
            }
        }
    }
}

/* `shift`: the misalignment of the row's vectors. */
template <class X, int WORDS>
BP_DEVICE void load_vector(const char *row, uint32_t columns, uint32_t column, uint32_t shift, uint32_t (&words)[WORDS])
{
    constexpr uint32_t bytes = 4 * WORDS;
    const uint64_t begin = static_cast<uint64_t>(column) * X::bytes, end = static_cast<uint64_t>(columns) * X::bytes;
    if (shift == 0 && begin + bytes <= end)
        load_words<WORDS>(row + begin, words);
    else if (begin >= shift && begin - shift + 2 * bytes <= end)
        load_shifted<WORDS>(row + begin, shift, words);
    else
        load_elements<X, WORDS>(row, columns, column, words);
}

/* To an aligned address; at the end of the row only what is in it. */
template <class Y, int WORDS>
BP_DEVICE void store_vector(char *row, uint32_t columns, uint32_t column, const uint32_t (&words)[WORDS])
{
    char *to = row + static_cast<uint64_t>(column) * Y::bytes;
    if (columns - column >= WORDS * Y::in_word) {
        store_words<WORDS>(to, words);
        return;
    }
    BP_UNROLL
    for (uint32_t i = 0; i < WORDS * Y::in_word; i++) {
        if (column + i < columns)
            Y::store(to + i * Y::bytes, words[i / Y::in_word] >> 16 * (i % Y::in_word));
    }
}

} // namespace device

#endif

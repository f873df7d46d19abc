#include "pattern.h"

#include <string.h>

#define WORD sizeof(uint64_t)
#define BLOCK 64 /* words; a fixed count, so that compilers turn its loops into vectors */

/* Neighbouring words differ by an odd number before they are mixed; shifts, additions and exclusive or have vector forms everywhere,
 * 64-bit products do not. */
#define STRIDE 0x9e3779b97f4a7c15u

static inline uint64_t mix(uint64_t x)
{
    x ^= x >> 29;
    x += x << 17;
    return x ^ x >> 32;
}

static inline uint64_t word(uint64_t seed, uint64_t index)
{
    return mix(seed + index * STRIDE);
}

/* Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (splitmix64). */
static uint64_t scramble(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

uint64_t pattern_seed(uint64_t run, uint32_t request, uint64_t iteration, uint32_t interval)
{
    uint64_t seed = scramble(run + STRIDE);
    seed = scramble(seed ^ request);
    seed = scramble((seed + STRIDE) ^ iteration);
    return scramble((seed + 2 * STRIDE) ^ interval);
}

uint64_t pattern_seed_at(uint64_t seed, uint64_t offset)
{
    return seed + offset / WORD * STRIDE;
}

static uint8_t pattern_byte(uint64_t seed, uint64_t offset)
{
    uint64_t value = word(seed, offset / WORD);
    uint8_t bytes[WORD];
    memcpy(bytes, &value, WORD); /* as they lie in memory, whatever the machine's order */
    return bytes[offset % WORD];
}

void pattern_fill(void *memory, uint64_t bytes, uint64_t seed)
{
    unsigned char *at = memory;
    uint64_t index = 0;
    for (; (index + BLOCK) * WORD <= bytes; index += BLOCK) {
        uint64_t first = seed + index * STRIDE, block[BLOCK];
        for (unsigned i = 0; i < BLOCK; i++)
            block[i] = mix(first + i * STRIDE);
        memcpy(at + index * WORD, block, sizeof block);
    }
    for (uint64_t offset = index * WORD; offset < bytes; offset++)
        at[offset] = pattern_byte(seed, offset);
}

/* The first byte of a range that is not as filled. */
static bool find_difference(const unsigned char *memory, uint64_t begin, uint64_t end, uint64_t seed,
                            pattern_difference *difference)
{
    for (uint64_t offset = begin; offset < end; offset++) {
        *difference = (pattern_difference){offset, pattern_byte(seed, offset), memory[offset]};
        if (difference->found != difference->expected)
            return true;
    }
    return false;
}

bool pattern_check(const void *memory, uint64_t bytes, uint64_t seed, pattern_difference *difference)
{
    const unsigned char *at = memory;
    uint64_t index = 0;
    for (; (index + BLOCK) * WORD <= bytes; index += BLOCK) {
        uint64_t first = seed + index * STRIDE, block[BLOCK], differs = 0;
        memcpy(block, at + index * WORD, sizeof block);
        for (unsigned i = 0; i < BLOCK; i++)
            differs |= block[i] ^ mix(first + i * STRIDE);
        if (differs != 0) { /* even when somebody writes and it is right by now */
            find_difference(at, index * WORD, (index + BLOCK) * WORD, seed, difference);
            return false;
        }
    }
    return !find_difference(at, index * WORD, bytes, seed, difference);
}

/* Right bytes must not cancel what the seed adds: the word goes in multiplied. */
static inline uint64_t blend(uint64_t value, uint64_t position)
{
    return mix((value << 7) + value + mix(position + STRIDE / 2));
}

uint64_t pattern_digest(const void *memory, uint64_t bytes, uint64_t seed)
{
    const unsigned char *at = memory;
    uint64_t index = 0, sums[BLOCK] = {0}, digest = 0;
    for (; (index + BLOCK) * WORD <= bytes; index += BLOCK) {
        uint64_t first = seed + index * STRIDE, block[BLOCK];
        memcpy(block, at + index * WORD, sizeof block);
        for (unsigned i = 0; i < BLOCK; i++)
            sums[i] += blend(block[i], first + i * STRIDE);
    }
    for (unsigned i = 0; i < BLOCK; i++)
        digest += sums[i];
    for (; index * WORD < bytes; index++) {
        uint64_t left = bytes - index * WORD, value = 0;
        memcpy(&value, at + index * WORD, left < WORD ? (size_t)left : WORD);
        digest += blend(value, seed + index * STRIDE);
    }
    return digest;
}

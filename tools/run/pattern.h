/* Bytes that say whose they are: computed from a seed and an offset, never stored. Equal bytes at equal offsets of two seeds are
 * as rare as chance, so that a bucket which somebody else wrote to does not verify. */
#ifndef TOOLS_RUN_PATTERN_H
#define TOOLS_RUN_PATTERN_H

#include <stdbool.h>
#include <stdint.h>

/* The seed of what `request` holds in one of its intervals of one iteration; `run` is the seed of the whole run. */
uint64_t pattern_seed(uint64_t run, uint32_t request, uint64_t iteration, uint32_t interval);

/* The seed of what lies `offset` bytes, a multiple of 8, behind the beginning of a pattern: for memory that is written in pieces. */
uint64_t pattern_seed_at(uint64_t seed, uint64_t offset);

/* Memory of any alignment and size. */
void pattern_fill(void *memory, uint64_t bytes, uint64_t seed);

typedef struct pattern_difference {
    uint64_t offset;
    uint8_t expected, found;
} pattern_difference;

/* Whether every byte is as filled; else *difference is the first that is not. */
bool pattern_check(const void *memory, uint64_t bytes, uint64_t seed, pattern_difference *difference);

/* A number that other bytes, or the same at other places, would as good as never give. Numbers of pieces add up to that of the whole, in
 * any order. */
uint64_t pattern_digest(const void *memory, uint64_t bytes, uint64_t seed);

#endif

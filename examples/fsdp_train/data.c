/* SPDX-License-Identifier: Apache-2.0 */
#include "data.h"

#define STRIDES 3

/* splitmix64's finish, by Sebastiano Vigna, over each number in turn. */
uint64_t data_random(uint64_t seed, uint64_t what, uint64_t number)
{
    const uint64_t words[] = {what, number};
    uint64_t z = seed;
    for (int i = 0; i < 2; i++) {
        z = (z ^ words[i]) + 0x9e3779b97f4a7c15u;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        z = z ^ (z >> 31);
    }
    return z;
}

row_range data_rows(const options *o, uint32_t rank, uint32_t ranks)
{
    return (row_range){o->rows * rank / ranks, o->rows * (rank + 1) / ranks};
}

uint64_t data_max_rows(const options *o, uint32_t ranks)
{
    return (o->rows + ranks - 1) / ranks;
}

void data_make(const options *o, uint64_t step, row_range rows, uint32_t *tokens, uint32_t *targets)
{
    for (uint64_t row = rows.first; row < rows.end; row++) {
        uint64_t random = data_random(~o->seed, step, row), token = (random >> 8) % o->vocab;
        for (uint64_t t = 0; t < o->length; t++) {
            *tokens++ = (uint32_t)token;
            token = (token + 1 + random % STRIDES) % o->vocab;
            *targets++ = (uint32_t)token;
        }
    }
}

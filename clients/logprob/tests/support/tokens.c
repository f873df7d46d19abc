/* SPDX-License-Identifier: Apache-2.0 */
/* Token tensors with poisoned gaps and margins, and their comparison. */
#include "tokens.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FRONT = 64 };

tokens new_tokens(uint64_t count, uint64_t token_bytes, placing where, uint8_t poison)
{
    tokens t = {.count = count, .token_bytes = token_bytes, .stride = (int64_t)(token_bytes + where.gap)};
    const uint64_t used = count == 0 ? 0 : (count - 1) * (uint64_t)t.stride + token_bytes;
    t.bytes = FRONT + where.shift + used + where.margin;
    if (posix_memalign((void **)&t.memory, 64, t.bytes) != 0)
        abort();
    t.data = t.memory + FRONT + where.shift;
    poison_tokens(&t, poison);
    return t;
}

void free_tokens(tokens *t)
{
    free(t->memory);
    *t = (tokens){0};
}

void poison_tokens(tokens *t, uint8_t poison)
{
    t->poison = poison;
    memset(t->memory, poison, t->bytes);
}

uint8_t *token_at(const tokens *t, uint64_t token)
{
    return t->data + (int64_t)token * t->stride;
}

void fill_tokens(tokens *t, uint64_t seed)
{
    uint64_t state = seed * 2 + 1;
    for (uint64_t i = 0; i < t->count; i++) {
        uint8_t *token = token_at(t, i);
        for (uint64_t byte = 0; byte < t->token_bytes; byte++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            token[byte] = (uint8_t)(state >> 56);
        }
    }
}

bp_cp_tensor tensor_of(const tokens *t)
{
    const bool tight = t->stride == (int64_t)t->token_bytes;
    return (bp_cp_tensor){
        .data = t->data, .tokens = t->count, .token_bytes = t->token_bytes, .stride = tight ? 0 : t->stride};
}

bool tokens_are(const tokens *is, const tokens *of, const int64_t *map, const uint8_t *fill, uint32_t fill_bytes,
                const char *name)
{
    uint8_t *expected = malloc(is->bytes + 1);
    if (expected == NULL)
        abort();
    memset(expected, is->poison, is->bytes);
    for (uint64_t i = 0; i < is->count; i++) {
        uint8_t *token = expected + (token_at(is, i) - is->memory);
        for (uint64_t byte = 0; map[i] < 0 && byte < is->token_bytes; byte++)
            token[byte] = fill_bytes == 0 ? 0 : fill[byte % fill_bytes];
        if (map[i] >= 0)
            memcpy(token, token_at(of, (uint64_t)map[i]), is->token_bytes);
    }
    size_t at = 0;
    while (at < is->bytes && expected[at] == is->memory[at])
        at++;
    if (at < is->bytes)
        fprintf(stderr,
                "%s: byte %td after the first of %llu tokens of %llu bytes, %lld apart: 0x%02x, expected 0x%02x\n",
                name, is->memory + at - is->data, (unsigned long long)is->count, (unsigned long long)is->token_bytes,
                (long long)is->stride, is->memory[at], expected[at]);
    free(expected);
    return at == is->bytes;
}

bool tokens_are_poison(const tokens *t)
{
    size_t at = 0;
    while (at < t->bytes && t->memory[at] == t->poison)
        at++;
    if (at < t->bytes)
        fprintf(stderr, "byte %td after the first token was written\n", t->memory + at - t->data);
    return at == t->bytes;
}

bool same_tokens(const tokens *a, const tokens *b, const char *name)
{
    bool same = a->count == b->count && a->token_bytes == b->token_bytes;
    for (uint64_t i = 0; i < a->count && same; i++) {
        same = memcmp(token_at(a, i), token_at(b, i), a->token_bytes) == 0;
        if (!same)
            fprintf(stderr, "%s: token %llu has different bits\n", name, (unsigned long long)i);
    }
    return same;
}

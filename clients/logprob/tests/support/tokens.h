/* SPDX-License-Identifier: Apache-2.0 */
/* Token tensors with poisoned gaps between tokens and margins around them. */
#ifndef BP_TESTS_KERNELS_SUPPORT_TOKENS_H
#define BP_TESTS_KERNELS_SUPPORT_TOKENS_H

#include <bucketpool/cp.h>

#include <stdbool.h>

typedef struct tokens {
    uint8_t *memory; /* ends with the last token, so that sanitizers detect overruns */
    size_t bytes;
    uint8_t *data; /* the first token */
    uint64_t count, token_bytes;
    int64_t stride;
    uint8_t poison;
} tokens;

/* Poisoned. Starts `shift` bytes after a 64-byte boundary, with `gap` bytes between tokens and `margin` bytes after the last. */
typedef struct placing {
    uint32_t shift, gap, margin;
} placing;
tokens new_tokens(uint64_t count, uint64_t token_bytes, placing where, uint8_t poison);
void free_tokens(tokens *t);
void poison_tokens(tokens *t, uint8_t poison);
/* Random bytes in the tokens; gaps and margins are unchanged. Deterministic per seed. */
void fill_tokens(tokens *t, uint64_t seed);
uint8_t *token_at(const tokens *t, uint64_t token);
bp_cp_tensor tensor_of(const tokens *t);

/* Token i of `is` equals token map[i] of `of`, or the fill if that is -1, and nothing else was written. Prints errors. */
bool tokens_are(const tokens *is, const tokens *of, const int64_t *map, const uint8_t *fill, uint32_t fill_bytes,
                const char *name);
/* All of the memory is still poison. */
bool tokens_are_poison(const tokens *t);
bool same_tokens(const tokens *a, const tokens *b, const char *name);

#endif

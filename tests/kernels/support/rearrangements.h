/* Tensors of a batch brought from one order to another, and whether each byte is where it belongs. */
#ifndef BP_TEST_KERNELS_SUPPORT_REARRANGEMENTS_H
#define BP_TEST_KERNELS_SUPPORT_REARRANGEMENTS_H

#include "reference_splits.h"
#include "tokens.h"

/* A batch, the library's split of it and what is known of it otherwise. */
typedef struct hand {
    deal d;
    bp_cp_split *split;
} hand;

hand new_hand(const deal_options *options);
void free_hand(hand *h);

bp_cp *new_cp(bp_device *device, uint32_t threads);

typedef struct move {
    bp_cp_order from, to;
    bp_cp_shift shift;
    uint64_t token_bytes;
    placing source, target;
    uint8_t fill[16];
    uint32_t fill_bytes;
} move;

/* Random gaps and shifts, any fill that goes with the bytes of a token. */
move random_move(bp_cp_order from, bp_cp_order to, bp_cp_shift shift, uint64_t token_bytes);

bp_cp_rearrangement rearrangement_of(const move *m, const tokens *from, const tokens *to);
/* Makes memory, moves it (on the stream, which it waits for) and compares: asserted. What cannot be shifted is refused. */
void check_move(bp_cp *cp, const hand *h, const move *m, bp_stream *stream);
/* The target of a move that was made. Prints what is wrong. */
bool is_moved(const hand *h, const move *m, const tokens *from, const tokens *to);

/* One move without gaps; asserted. */
void just_move(bp_cp *cp, const hand *h, bp_cp_order from_order, const tokens *from, bp_cp_order to_order, tokens *to);

/* A small batch, split for rank 1 of 2, and one move of it: 180 tokens in packed order, 94 in local order. */
typedef struct sample {
    hand h;
    tokens from, to;
} sample;
extern const move SAMPLE_MOVE;

sample new_sample(uint64_t seed_of_bytes);
void free_sample(sample *s);
/* The move was made. Prints what is wrong. */
bool sample_is_done(const sample *s);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Treaps of blocks, and the memory of blocks. */
#include "step/allocator/blocks.h"

#include <bucketpool/core/fail.h>

#include <stdlib.h>

#include "core/memory.h"

static bool is_less(bp_block_key a, bp_block_key b)
{
    if (a.stream != b.stream)
        return a.stream < b.stream;
    if (a.bytes != b.bytes)
        return a.bytes < b.bytes;
    return a.address < b.address;
}

void bp_block_set_insert(bp_block_set *set, bp_caching_block *added)
{
    bp_block_key key = bp_block_key_of(added);
    bp_caching_block **link = &set->root;
    while (*link != NULL && (*link)->priority >= added->priority)
        link = is_less(bp_block_key_of(*link), key) ? &(*link)->right : &(*link)->left;
    /* The subtree is split around the key. */
    bp_caching_block *node = *link, **left = &added->left, **right = &added->right;
    while (node != NULL) {
        if (is_less(bp_block_key_of(node), key)) {
            *left = node;
            left = &node->right;
            node = node->right;
        } else {
            *right = node;
            right = &node->left;
            node = node->left;
        }
    }
    *left = *right = NULL;
    *link = added;
}

void bp_block_set_remove(bp_block_set *set, bp_caching_block *removed)
{
    bp_block_key key = bp_block_key_of(removed);
    bp_caching_block **link = &set->root;
    while (*link != removed)
        link = is_less(bp_block_key_of(*link), key) ? &(*link)->right : &(*link)->left;
    bp_caching_block *left = removed->left, *right = removed->right;
    while (left != NULL && right != NULL) {
        if (left->priority >= right->priority) {
            *link = left;
            link = &left->right;
            left = left->right;
        } else {
            *link = right;
            link = &right->left;
            right = right->left;
        }
    }
    *link = left != NULL ? left : right;
    removed->left = removed->right = NULL;
}

bp_caching_block *bp_block_set_from(const bp_block_set *set, bp_block_key key)
{
    bp_caching_block *node = set->root, *found = NULL;
    while (node != NULL) {
        if (is_less(bp_block_key_of(node), key)) {
            node = node->right;
        } else {
            found = node;
            node = node->left;
        }
    }
    return found;
}

bp_caching_block *bp_block_set_after(const bp_block_set *set, bp_block_key key)
{
    bp_caching_block *node = set->root, *found = NULL;
    while (node != NULL) {
        if (is_less(key, bp_block_key_of(node))) {
            found = node;
            node = node->left;
        } else {
            node = node->right;
        }
    }
    return found;
}

bp_caching_block *bp_block_set_before(const bp_block_set *set, bp_block_key key)
{
    bp_caching_block *node = set->root, *found = NULL;
    while (node != NULL) {
        if (is_less(bp_block_key_of(node), key)) {
            found = node;
            node = node->right;
        } else {
            node = node->left;
        }
    }
    return found;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

enum { CHUNK_BLOCKS = 512 };

struct bp_blocks_chunk {
    struct bp_blocks_chunk *next;
    bp_caching_block blocks[CHUNK_BLOCKS];
};

bp_status bp_blocks_new(bp_blocks *blocks, bp_caching_block **added)
{
    if (blocks->unused == NULL) {
        struct bp_blocks_chunk *chunk;
        BP_TRY(bp_new_array(1, sizeof *chunk, (void **)&chunk));
        chunk->next = blocks->chunks;
        blocks->chunks = chunk;
        for (size_t i = 0; i < CHUNK_BLOCKS; i++)
            bp_blocks_return(blocks, &chunk->blocks[i]);
    }
    *added = blocks->unused;
    blocks->unused = blocks->unused->right;
    /* A linear congruential generator (Knuth, MMIX): the priorities are the same in every run. */
    blocks->random = blocks->random * 6364136223846793005u + 1442695040888963407u;
    **added = (bp_caching_block){.priority = (uint32_t)(blocks->random >> 32)};
    return BP_OK;
}

void bp_blocks_return(bp_blocks *blocks, bp_caching_block *returned)
{
    returned->pool = NULL; /* for bp_blocks_each */
    returned->right = blocks->unused;
    blocks->unused = returned;
}

void bp_blocks_each(const bp_blocks *blocks, void (*visit)(void *user, const bp_caching_block *block), void *user)
{
    for (const struct bp_blocks_chunk *chunk = blocks->chunks; chunk != NULL; chunk = chunk->next) {
        for (size_t i = 0; i < CHUNK_BLOCKS; i++) {
            if (chunk->blocks[i].pool != NULL)
                visit(user, &chunk->blocks[i]);
        }
    }
}

void bp_blocks_finish(bp_blocks *blocks)
{
    while (blocks->chunks != NULL) {
        struct bp_blocks_chunk *chunk = blocks->chunks;
        blocks->chunks = chunk->next;
        free(chunk);
    }
    blocks->unused = NULL;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Hashes with a key of the process, for tables that files fill: without the key nobody can choose entries that collide. */
#ifndef BP_CORE_HASH_H
#define BP_CORE_HASH_H

#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/auxv.h>

/* The 16 random bytes that Linux gives each program. They are constant, so threads may read them at once. */
static inline void bp_hash_key(uint64_t key[2])
{
    static _Atomic uint64_t known[2];
    for (int i = 0; i < 2; i++)
        key[i] = atomic_load_explicit(&known[i], memory_order_relaxed);
    if (__builtin_expect((key[0] | key[1]) != 0, 1))
        return;
    unsigned long random = getauxval(AT_RANDOM);
    if (random != 0)
        memcpy(key, (const void *)random, 2 * sizeof *key); /* NOLINT(performance-no-int-to-ptr) */
    for (int i = 0; i < 2; i++)
        atomic_store_explicit(&known[i], key[i], memory_order_relaxed);
}

static inline void bp_hash_round(uint64_t v[4])
{
    v[0] += v[1];
    v[2] += v[3];
    v[1] = (v[1] << 13 | v[1] >> 51) ^ v[0];
    v[3] = (v[3] << 16 | v[3] >> 48) ^ v[2];
    v[0] = v[0] << 32 | v[0] >> 32;
    v[2] += v[1];
    v[0] += v[3];
    v[1] = (v[1] << 17 | v[1] >> 47) ^ v[2];
    v[3] = (v[3] << 21 | v[3] >> 43) ^ v[0];
    v[2] = v[2] << 32 | v[2] >> 32;
}

/* SipHash-1-3 (Aumasson and Bernstein 2012) with the key. The value differs between processes: results must not depend on it. */
static inline uint64_t bp_hash_with(const uint64_t key[2], const void *data, size_t bytes)
{
    uint64_t v[4] = {key[0] ^ 0x736f6d6570736575u, key[1] ^ 0x646f72616e646f6du, key[0] ^ 0x6c7967656e657261u,
                     key[1] ^ 0x7465646279746573u};
    const unsigned char *at = data;
    uint64_t word = 0, last = (uint64_t)bytes << 56;
    for (; bytes >= sizeof word; at += sizeof word, bytes -= sizeof word) {
        memcpy(&word, at, sizeof word);
        v[3] ^= word;
        bp_hash_round(v);
        v[0] ^= word;
    }
    for (size_t i = 0; i < bytes; i++)
        last |= (uint64_t)at[i] << 8 * i;
    v[3] ^= last;
    bp_hash_round(v);
    v[0] ^= last;
    v[2] ^= 0xff;
    for (int i = 0; i < 3; i++)
        bp_hash_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

static inline uint64_t bp_hash(const void *data, size_t bytes)
{
    uint64_t key[2];
    bp_hash_key(key);
    return bp_hash_with(key, data, bytes);
}

static inline uint64_t bp_hash_number(uint64_t number)
{
    return bp_hash(&number, sizeof number);
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 (FIPS 180-4) for plan fingerprints, in portable C without further dependencies. */
#ifndef BP_CORE_SHA256_H
#define BP_CORE_SHA256_H

#include <stddef.h>
#include <stdint.h>

typedef struct bp_sha256 {
    uint32_t state[8];
    uint64_t bytes;
    uint8_t block[64];
} bp_sha256;

void bp_sha256_init(bp_sha256 *sha);
void bp_sha256_update(bp_sha256 *sha, const void *data, size_t bytes);
void bp_sha256_finish(bp_sha256 *sha, uint8_t digest[32]);

#endif

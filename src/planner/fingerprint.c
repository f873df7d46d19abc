/* SHA-256 over a plan's slabs, requests and classes. The bytes that are hashed are described in docs/formats.md. */
#include <string.h>

#include "core/fail.h"
#include "core/sha256.h"
#include "model/buckets.h"
#include "planner/plan.h"

/* All integers are little-endian, so that plans agree between machines. */
static void hash_number(bp_sha256 *sha, uint64_t value)
{
    uint8_t bytes[8];
    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(value >> (8 * i));
    bp_sha256_update(sha, bytes, sizeof bytes);
}

/* Texts with their terminator, so that neighbouring texts cannot be shifted against each other. */
static void hash_text(bp_sha256 *sha, const char *text)
{
    bp_sha256_update(sha, text, strlen(text) + 1);
}

bp_status bp_plan_fingerprint(const bp_plan *plan, char fingerprint[BP_FINGERPRINT_CHARS])
{
    if (plan == NULL || fingerprint == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_plan_fingerprint: needs a plan and a place for 65 characters");
    bp_sha256 sha;
    bp_sha256_init(&sha);
    hash_text(&sha, "bucketpool.plan/1");
    hash_number(&sha, plan->info.alignment);
    hash_number(&sha, plan->slab_count);
    for (size_t i = 0; i < plan->slab_count; i++) {
        hash_text(&sha, plan->slabs[i].group);
        hash_number(&sha, plan->slabs[i].bytes);
    }
    hash_number(&sha, plan->request_count);
    for (size_t i = 0; i < plan->request_count; i++) {
        const bp_plan_request *r = &plan->requests[i];
        char text[24];
        hash_text(&sha, r->unit);
        hash_text(&sha, bp_bucket_label(r->bucket, r->ordinal, text));
        const uint64_t numbers[] = {r->ordinal, r->role,   r->dtype, r->placement,
                                    r->slab,    r->offset, r->bytes, r->used_bytes};
        for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++)
            hash_number(&sha, numbers[k]);
    }
    hash_number(&sha, plan->class_count);
    for (size_t i = 0; i < plan->class_count; i++) {
        const bp_plan_class *c = &plan->classes[i];
        const uint64_t numbers[] = {c->slab, c->dtype, c->copies, c->offset, c->stride, c->bytes};
        for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++)
            hash_number(&sha, numbers[k]);
    }
    uint8_t digest[32];
    bp_sha256_finish(&sha, digest);
    for (int i = 0; i < 32; i++)
        snprintf(fingerprint + 2 * i, 3, "%02x", digest[i]);
    return BP_OK;
}

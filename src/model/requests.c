/* The requests for memory that follow from buckets and roles. */
#include <string.h>

#include "core/arith.h"
#include "core/fail.h"
#include "model/buckets.h"

const char *bp_role_name(bp_role role)
{
    static const char *const names[BP_ROLE_COUNT] = {"param", "param_transpose", "grad",     "grad_comm",
                                                     "state", "main_grad",       "optimizer"};
    return (unsigned)role < BP_ROLE_COUNT ? names[role] : "invalid";
}

bp_status bp_role_parse(const char *name, bp_role *role)
{
    for (unsigned i = 0; name != NULL && role != NULL && i < BP_ROLE_COUNT; i++) {
        if (strcmp(name, bp_role_name((bp_role)i)) == 0) {
            *role = (bp_role)i;
            return BP_OK;
        }
    }
    return bp_fail(
        BP_ERR_INVALID_ARGUMENT,
        "unknown role \"%.40s\"; known: param, param_transpose, grad, grad_comm, state, main_grad, optimizer",
        name != NULL ? name : "");
}

static uint64_t ceil_divide(uint64_t value, uint64_t by)
{
    return value / by + (value % by != 0);
}

bp_status bp_trained_shard(const bp_bucket *b, const bp_buckets_config *config, uint32_t role, bp_request *request)
{
    bool optimizer = role == BP_ROLE_OPTIMIZER;
    bp_dtype dtype = optimizer ? config->optimizer_dtype : config->main_grad_dtype;
    uint64_t tensors = optimizer ? config->optimizer_tensors : 1, each;
    dtype = dtype != BP_DTYPE_NONE ? dtype : BP_DTYPE_FP32;
    request->role = role;
    request->dtype = bp_dtype_storage(dtype);
    request->numel = b->frozen ? 0 : b->grad_numel;
    request->bytes = 0;
    if (request->numel == 0)
        return BP_OK;
    BP_TRY(bp_dtype_bytes(dtype, ceil_divide(b->grad_padded_numel, b->shards), &each));
    if (!bp_mul_u64(each, tensors, &request->bytes))
        return bp_fail(BP_ERR_OVERFLOW, "%llu optimizer tensors of %llu bytes each do not fit 64 bits",
                       (unsigned long long)tensors, (unsigned long long)each);
    return BP_OK;
}

/* The request of a bucket in a role; false when it takes no part. */
static bool request_of(const bp_bucket *b, const bp_buckets_config *config, uint32_t role, bp_request *request)
{
    uint64_t padded;
    if (!(config->roles & b->roles & BP_ROLE_BIT(role)) || b->numel == 0)
        return false;
    switch (role) {
    case BP_ROLE_PARAM:
    case BP_ROLE_STATE:
    case BP_ROLE_PARAM_TRANSPOSE:
        if (role == BP_ROLE_PARAM_TRANSPOSE && !bp_dtype_is_fp8(b->dtype))
            return false;
        request->numel = b->numel;
        request->dtype = bp_dtype_storage(b->dtype);
        padded = role == BP_ROLE_STATE ? ceil_divide(b->padded_numel, b->shards) : b->padded_numel;
        break;
    case BP_ROLE_MAIN_GRAD:
    case BP_ROLE_OPTIMIZER: return bp_trained_shard(b, config, role, request) == BP_OK && request->bytes > 0;
    default: /* gradients, and the reduced shard of them that the outer reduction copies */
        if (b->frozen || b->grad_numel == 0)
            return false;
        request->numel = b->grad_numel;
        request->dtype = b->grad_dtype;
        padded = b->grad_padded_numel;
        if (role == BP_ROLE_GRAD_COMM)
            padded = ceil_divide(padded, b->shards);
    }
    request->role = role;
    return bp_dtype_bytes(request->dtype, padded, &request->bytes) == BP_OK;
}

bp_status bp_buckets_make_requests(bp_buckets *buckets, const bp_buckets_config *config)
{
    size_t most = 0;
    bp_request request = {0};
    for (size_t i = 0; i < buckets->bucket_count && buckets->buckets[i].unit >= 0; i++) {
        for (uint32_t role = 0; role < BP_ROLE_COUNT; role++)
            most += request_of(&buckets->buckets[i], config, role, &request);
    }
    void *memory;
    BP_TRY(bp_new_array(most, sizeof *buckets->requests, &memory));
    buckets->requests = memory;
    BP_TRY(bp_new_array(most < buckets->unit_count * BP_ROLE_COUNT ? most : buckets->unit_count * BP_ROLE_COUNT,
                        sizeof *buckets->groups, &memory));
    buckets->groups = memory;
    size_t begin = 0;
    while (begin < buckets->bucket_count && buckets->buckets[begin].unit >= 0) {
        size_t end = begin;
        while (end < buckets->bucket_count && buckets->buckets[end].unit == buckets->buckets[begin].unit)
            end++;
        for (uint32_t role = 0; role < BP_ROLE_COUNT; role++) {
            bp_request_group g = {(uint32_t)buckets->buckets[begin].unit, role, (uint32_t)buckets->request_count, 0};
            for (size_t i = begin; i < end; i++) {
                request.bucket = (uint32_t)i;
                if (request_of(&buckets->buckets[i], config, role, &request)) {
                    buckets->requests[buckets->request_count++] = request;
                    g.count++;
                }
            }
            if (g.count > 0)
                buckets->groups[buckets->group_count++] = g;
        }
        begin = end;
    }
    return BP_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes bp_packing_file_parse: accepted files can be written, and small instances can be packed. */
#include <stdio.h>
#include <stdlib.h>

#include "formats/packing_file.h"
#include "target.h"

enum { MAX_ITEMS = 12, WORK = 20000 };

static void stop(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, bp_error_detail());
    abort();
}

/* Both checkers of offsets return the same. */
static void check_offsets(const bp_packing *packing, const uint64_t *offsets, uint64_t bytes)
{
    bp_packing_fault fault = {.size = sizeof fault};
    if (bp_packing_find_fault(packing, offsets, bytes, &fault) != BP_OK)
        stop("a placement cannot be checked");
    bp_status status = bp_packing_check(packing, offsets, bytes);
    if (status != (fault.found ? BP_ERR_MISMATCH : BP_OK))
        stop("two checks disagree");
    if (fault.found && (fault.item > fault.other || fault.other >= bp_packing_get_info(packing)->item_count))
        stop("a fault names no items");
}

static bp_pack_result pack(const bp_packing *packing, uint64_t capacity, uint64_t *offsets)
{
    bp_pack_config config;
    bp_pack_result result = {.size = sizeof result};
    if (bp_pack_config_init(&config, sizeof config) != BP_OK)
        stop("no configuration");
    config.capacity = capacity;
    config.work = WORK;
    if (bp_pack(packing, &config, offsets, &result) != BP_OK)
        stop("an instance cannot be packed");
    if (result.outcome == BP_PACK_PLACED && bp_packing_check(packing, offsets, result.bytes) != BP_OK)
        stop("a placement does not hold");
    if (result.proven < result.bound)
        stop("less than the bound is proven");
    return result;
}

static void pack_small(const bp_packing *packing)
{
    uint64_t offsets[MAX_ITEMS] = {0}, bound = 0, largest = 0;
    size_t items = bp_packing_get_info(packing)->item_count, witnesses = 0;
    uint32_t witness[MAX_ITEMS];
    if (bp_packing_bound(packing, witness, &witnesses, &bound) != BP_OK)
        stop("an instance has no bound");
    for (size_t i = 0; i < items; i++) {
        uint64_t size = bp_packing_get_info(packing)->sizes[i];
        largest = size > largest ? size : largest;
    }
    bp_pack_result best = pack(packing, 0, offsets);
    if (best.outcome != BP_PACK_PLACED || best.bytes < best.proven || best.bound != bound)
        stop("a packing without a capacity went wrong");
    if (best.optimal && best.proven != best.bytes)
        stop("a proof is not of the total");
    if (bound > largest && pack(packing, bound - 1, offsets).outcome == BP_PACK_PLACED)
        stop("a placement takes less than the bound");
    if (best.bytes > 0 && pack(packing, best.bytes, offsets).outcome == BP_PACK_INFEASIBLE)
        stop("what was placed is called infeasible");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bp_packing_file *file = NULL;
    bp_status status = bp_packing_file_parse((const char *)data, size, "input", &file);
    if ((status == BP_OK) != (file != NULL) || (status != BP_OK && *bp_error_detail() == '\0'))
        abort();
    if (file == NULL)
        return 0;
    const bp_packing *packing = bp_packing_file_packing(file);
    const uint64_t *offsets = bp_packing_file_offsets(file);
    size_t items = bp_packing_get_info(packing)->item_count;
    if (items == 0 || bp_packing_file_id(file, items - 1) == NULL ||
        bp_packing_get_info(packing)->interval_count < items)
        abort();
    if (offsets != NULL && bp_packing_file_write(file, offsets, "/dev/null") != BP_OK)
        stop("a file cannot be written");
    if (offsets != NULL)
        check_offsets(packing, offsets, offsets[0]);
    if (offsets != NULL)
        check_offsets(packing, offsets, UINT64_MAX);
    if (items <= MAX_ITEMS)
        pack_small(packing);
    bp_packing_file_destroy(&file);
    return 0;
}

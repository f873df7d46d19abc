/* SPDX-License-Identifier: Apache-2.0 */
/* An NVTX injection library that checks its callers: ranges end exactly once; regions are inside an existing heap
 * and do not overlap. FAKE_NVTX_REPORT=FILE writes the counts there when the process ends; FAKE_NVTX_STRICT=1 makes
 * the process exit with 1 after a mistake or with open ranges. Source of the protocol: NVTX's own headers
 * (nvtxDetail/nvtxInit.h, nvtxExtInit.h). */
#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtMem.h>
#define NVTX_EXT_TYPES_GUARD
#include <nvtx3/nvtxDetail/nvtxExtTypes.h>

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake_nvtx.h"

#define EXPORT __attribute__((visibility("default")))

enum { MAX_HEAPS = 256, MAX_REGIONS = 4096, MAX_RANGES = 1 << 20, MAX_TEXTS = 4096 };

typedef struct span {
    const char *begin; /* NULL: free */
    size_t bytes;
} span;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static fake_nvtx_counts counts;
static span heaps[MAX_HEAPS], regions[MAX_REGIONS];
static bool ranges[MAX_RANGES]; /* by id % MAX_RANGES */
static nvtxRangeId_t last_range;
static char *names[MAX_TEXTS], *texts[MAX_TEXTS]; /* registered names, and texts of ranges */
static size_t name_count, text_count;
static _Thread_local size_t depth;

__attribute__((format(printf, 1, 2))) static void wrong(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (counts.wrong++ == 0)
        vsnprintf(counts.first, sizeof counts.first, format, arguments);
    va_end(arguments);
}

/* ---- names and ranges -------------------------------------------------------------------------------------------------- */

static nvtxDomainHandle_t domain_create(const char *name)
{
    snprintf(counts.domain, sizeof counts.domain, "%s", name);
    return (nvtxDomainHandle_t)counts.domain;
}

/* Interns a text permanently. NULL: too many texts. */
static char *keep(char **kept, size_t *count, const char *text)
{
    size_t i = 0;
    while (i < *count && strcmp(kept[i], text) != 0)
        i++;
    if (i == MAX_TEXTS) {
        wrong("more than %d texts", MAX_TEXTS);
        return NULL;
    }
    if (i == *count)
        kept[(*count)++] = strdup(text);
    return kept[i];
}

static nvtxStringHandle_t register_string(nvtxDomainHandle_t domain, const char *text)
{
    (void)domain;
    pthread_mutex_lock(&lock);
    const char *name = keep(names, &name_count, text);
    pthread_mutex_unlock(&lock);
    return (nvtxStringHandle_t)name;
}

static void note_text(const nvtxEventAttributes_t *e)
{
    const char *text =
        e->messageType == NVTX_MESSAGE_TYPE_ASCII ? e->message.ascii : (const char *)e->message.registered;
    snprintf(counts.text, sizeof counts.text, "%s", text);
    (void)keep(texts, &text_count, text);
}

static nvtxRangeId_t range_start(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *e)
{
    pthread_mutex_lock(&lock);
    if (domain == NULL)
        wrong("a range outside the domain");
    note_text(e);
    nvtxRangeId_t id = ++last_range;
    if (ranges[id % MAX_RANGES])
        wrong("range %llu is still open, %d later", (unsigned long long)(id - MAX_RANGES), MAX_RANGES);
    ranges[id % MAX_RANGES] = true;
    counts.ranges++;
    counts.open_ranges++;
    pthread_mutex_unlock(&lock);
    return id;
}

static void range_end(nvtxDomainHandle_t domain, nvtxRangeId_t id)
{
    (void)domain;
    pthread_mutex_lock(&lock);
    if (id == 0 || id > last_range || !ranges[id % MAX_RANGES])
        wrong("range %llu ends, but is not open", (unsigned long long)id);
    else
        counts.open_ranges--;
    ranges[id % MAX_RANGES] = false;
    pthread_mutex_unlock(&lock);
}

static int push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *e)
{
    (void)domain;
    pthread_mutex_lock(&lock);
    note_text(e);
    counts.pushes++;
    counts.depth++;
    pthread_mutex_unlock(&lock);
    return (int)depth++;
}

static int pop(nvtxDomainHandle_t domain)
{
    (void)domain;
    pthread_mutex_lock(&lock);
    if (depth == 0)
        wrong("a range of this thread ends, and none is open");
    else
        counts.depth--;
    pthread_mutex_unlock(&lock);
    return depth > 0 ? (int)--depth : -1;
}

/* ---- memory ------------------------------------------------------------------------------------------------------------ */

static span *find(span *spans, size_t max, const void *begin)
{
    size_t i = 0;
    while (i < max && spans[i].begin != begin)
        i++;
    return i < max ? &spans[i] : NULL;
}

static bool overlap(const span *a, const span *b)
{
    return b->begin != NULL && a->begin < b->begin + b->bytes && b->begin < a->begin + a->bytes;
}

static nvtxMemHeapHandle_t heap_register(nvtxDomainHandle_t domain, const nvtxMemHeapDesc_t *desc)
{
    const nvtxMemVirtualRangeDesc_t *range = desc->typeSpecificDesc;
    (void)domain;
    pthread_mutex_lock(&lock);
    span *heap = find(heaps, MAX_HEAPS, NULL);
    if (desc->usage != NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR || desc->type != NVTX_MEM_TYPE_VIRTUAL_ADDRESS)
        wrong("a heap of usage %u, type %u", desc->usage, desc->type);
    *heap = (span){range->ptr, range->size};
    counts.heaps++;
    counts.open_heaps++;
    pthread_mutex_unlock(&lock);
    return (nvtxMemHeapHandle_t)heap;
}

static void heap_unregister(nvtxDomainHandle_t domain, nvtxMemHeapHandle_t handle)
{
    span *heap = (span *)(void *)handle;
    (void)domain;
    pthread_mutex_lock(&lock);
    if (heap < heaps || heap >= heaps + MAX_HEAPS || heap->begin == NULL) {
        wrong("a heap goes that is not there");
    } else {
        for (size_t i = 0; i < MAX_REGIONS; i++) {
            if (overlap(heap, &regions[i]))
                wrong("a heap goes that has a region of %zu bytes", regions[i].bytes);
        }
        heap->begin = NULL;
        counts.open_heaps--;
    }
    pthread_mutex_unlock(&lock);
}

static void add_region(const span *heap, const nvtxMemVirtualRangeDesc_t *range)
{
    const span region = {range->ptr, range->size};
    span *free_place = find(regions, MAX_REGIONS, NULL);
    if (heap < heaps || heap >= heaps + MAX_HEAPS || heap->begin == NULL || region.begin < heap->begin ||
        region.begin + region.bytes > heap->begin + heap->bytes)
        wrong("a region of %zu bytes is in no heap", region.bytes);
    for (size_t i = 0; i < MAX_REGIONS; i++) {
        if (overlap(&region, &regions[i]))
            wrong("a region of %zu bytes overlaps one of %zu", region.bytes, regions[i].bytes);
    }
    if (free_place == NULL)
        wrong("more than %d regions", MAX_REGIONS);
    else
        *free_place = region;
    counts.regions++;
    counts.open_regions++;
}

static void regions_register(nvtxDomainHandle_t domain, const nvtxMemRegionsRegisterBatch_t *batch)
{
    (void)domain;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < batch->regionCount; i++)
        add_region((const span *)(const void *)batch->heap,
                   (const nvtxMemVirtualRangeDesc_t *)((const char *)batch->regionDescElements +
                                                       i * batch->regionDescElementSize));
    pthread_mutex_unlock(&lock);
}

static void regions_unregister(nvtxDomainHandle_t domain, const nvtxMemRegionsUnregisterBatch_t *batch)
{
    (void)domain;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < batch->refCount; i++) {
        span *region = find(regions, MAX_REGIONS, batch->refElements[i].pointer);
        if (region == NULL || batch->refElements[i].pointer == NULL) {
            wrong("a region goes that is not there");
            continue;
        }
        region->begin = NULL;
        counts.open_regions--;
    }
    pthread_mutex_unlock(&lock);
}

static void regions_name(nvtxDomainHandle_t domain, const nvtxMemRegionsNameBatch_t *batch)
{
    (void)domain;
    pthread_mutex_lock(&lock);
    if (find(regions, MAX_REGIONS, batch->regionElements->region.pointer) == NULL)
        wrong("a region gets a name and is not there");
    snprintf(counts.region, sizeof counts.region, "%s", (const char *)batch->regionElements->name.registered);
    pthread_mutex_unlock(&lock);
}

/* ---- for tests --------------------------------------------------------------------------------------------------------- */

EXPORT void fake_nvtx_counts_get(fake_nvtx_counts *now)
{
    pthread_mutex_lock(&lock);
    *now = counts;
    pthread_mutex_unlock(&lock);
}

EXPORT int fake_nvtx_saw_range(const char *text)
{
    int saw = 0;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < text_count; i++)
        saw |= strcmp(texts[i], text) == 0;
    pthread_mutex_unlock(&lock);
    return saw;
}

EXPORT size_t fake_nvtx_region_bytes(const void *address)
{
    size_t bytes = 0;
    const span byte = {address, 1};
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < MAX_REGIONS; i++) {
        if (overlap(&byte, &regions[i]))
            bytes = regions[i].bytes;
    }
    pthread_mutex_unlock(&lock);
    return bytes;
}

static void report(FILE *file)
{
    fprintf(file,
            "{\"heaps\": %zu, \"regions\": %zu, \"ranges\": %zu, \"pushes\": %zu, \"open_heaps\": %zu, "
            "\"open_regions\": %zu, "
            "\"open_ranges\": %zu, \"depth\": %zu, \"wrong\": %zu, \"first\": \"%s\", \"texts\": [",
            counts.heaps, counts.regions, counts.ranges, counts.pushes, counts.open_heaps, counts.open_regions,
            counts.open_ranges, counts.depth, counts.wrong, counts.first);
    for (size_t i = 0; i < text_count; i++)
        fprintf(file, "%s\"%s\"", i > 0 ? ", " : "", texts[i]);
    fprintf(file, "]}\n");
}

__attribute__((destructor)) static void end(void)
{
    const char *path = getenv("FAKE_NVTX_REPORT"), *strict = getenv("FAKE_NVTX_STRICT");
    FILE *file = path != NULL ? fopen(path, "we") : NULL;
    size_t open = counts.open_heaps + counts.open_regions + counts.open_ranges + counts.depth;
    if (file != NULL) {
        report(file);
        fclose(file);
    }
    if (strict == NULL || strcmp(strict, "1") != 0 || (counts.wrong == 0 && open == 0))
        return;
    fprintf(stderr, "NVTX: %zu calls were wrong (first: %s), %zu heaps, regions or ranges are left open\n",
            counts.wrong, counts.first, open);
    _exit(1);
}

/* ---- for NVTX ---------------------------------------------------------------------------------------------------------- */

EXPORT int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table);
EXPORT int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table)
{
    const NvtxExportTableCallbacks *callbacks = get_table(NVTX_ETID_CALLBACKS);
    NvtxFunctionTable table = NULL;
    unsigned size = 0;
    if (callbacks == NULL || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) ||
        size <= NVTX_CBID_CORE2_DomainCreateA)
        return 0;
    *table[NVTX_CBID_CORE2_DomainCreateA] = (NvtxFunctionPointer)domain_create;
    *table[NVTX_CBID_CORE2_DomainRegisterStringA] = (NvtxFunctionPointer)register_string;
    *table[NVTX_CBID_CORE2_DomainRangeStartEx] = (NvtxFunctionPointer)range_start;
    *table[NVTX_CBID_CORE2_DomainRangeEnd] = (NvtxFunctionPointer)range_end;
    *table[NVTX_CBID_CORE2_DomainRangePushEx] = (NvtxFunctionPointer)push;
    *table[NVTX_CBID_CORE2_DomainRangePop] = (NvtxFunctionPointer)pop;
    return 1;
}

EXPORT int InitializeInjectionNvtxExtension(nvtxExtModuleInfo_t *module);
EXPORT int InitializeInjectionNvtxExtension(nvtxExtModuleInfo_t *module)
{
    if (module->moduleId != NVTX_EXT_MODULEID_MEM || module->segmentsCount == 0)
        return 0;
    intptr_t *slots = module->segments[0].functionSlots;
    slots[NVTX3EXT_CBID_nvtxMemHeapRegister] = (intptr_t)heap_register;
    slots[NVTX3EXT_CBID_nvtxMemHeapUnregister] = (intptr_t)heap_unregister;
    slots[NVTX3EXT_CBID_nvtxMemRegionsRegister] = (intptr_t)regions_register;
    slots[NVTX3EXT_CBID_nvtxMemRegionsUnregister] = (intptr_t)regions_unregister;
    slots[NVTX3EXT_CBID_nvtxMemRegionsName] = (intptr_t)regions_name;
    return 1;
}

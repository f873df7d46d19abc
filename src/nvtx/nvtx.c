#include "nvtx/nvtx.h"

#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtMem.h>

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static nvtxDomainHandle_t domain;

static void make_domain(void)
{
    domain = nvtxDomainCreateA("bucketpool");
}

static nvtxDomainHandle_t our_domain(void)
{
    pthread_once(&once, make_domain);
    return domain;
}

bool bp_nvtx_is_built(void)
{
    return true;
}

/* ---- ranges --------------------------------------------------------------------------------------------------------- */

static nvtxEventAttributes_t text_attributes(const char *text)
{
    return (nvtxEventAttributes_t){.version = NVTX_VERSION,
                                   .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
                                   .messageType = NVTX_MESSAGE_TYPE_ASCII,
                                   .message.ascii = text};
}

void bp_nvtx_push(const char *what, const char *name)
{
    char text[128];
    snprintf(text, sizeof text, "%s %.80s", what, name);
    const nvtxEventAttributes_t attributes = text_attributes(text);
    (void)nvtxDomainRangePushEx(our_domain(), &attributes);
}

void bp_nvtx_pop(void)
{
    (void)nvtxDomainRangePop(our_domain());
}

bp_nvtx_name bp_nvtx_register(const char *text)
{
    return nvtxDomainRegisterStringA(our_domain(), text);
}

uint64_t bp_nvtx_start(bp_nvtx_name name)
{
    const nvtxEventAttributes_t attributes = {.version = NVTX_VERSION,
                                              .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
                                              .messageType = NVTX_MESSAGE_TYPE_REGISTERED,
                                              .message.registered = (nvtxStringHandle_t)name};
    return nvtxDomainRangeStartEx(our_domain(), &attributes);
}

uint64_t bp_nvtx_start_text(const char *text)
{
    const nvtxEventAttributes_t attributes = text_attributes(text);
    return nvtxDomainRangeStartEx(our_domain(), &attributes);
}

void bp_nvtx_end(uint64_t range)
{
    if (range != 0)
        nvtxDomainRangeEnd(our_domain(), range);
}

/* ---- memory --------------------------------------------------------------------------------------------------------- */

void *bp_nvtx_heap_register(const char *name, const void *address, uint64_t bytes)
{
    const nvtxMemVirtualRangeDesc_t range = {.size = bytes, .ptr = address};
    const nvtxMemHeapDesc_t heap = {.extCompatID = NVTX_EXT_COMPATID_MEM,
                                    .structSize = sizeof heap,
                                    .usage = NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR,
                                    .type = NVTX_MEM_TYPE_VIRTUAL_ADDRESS,
                                    .typeSpecificDescSize = sizeof range,
                                    .typeSpecificDesc = &range,
                                    .messageType = NVTX_MESSAGE_TYPE_ASCII,
                                    .message.ascii = name};
    nvtxMemHeapHandle_t handle = nvtxMemHeapRegister(our_domain(), &heap);
    return handle == NVTX_MEM_HEAP_HANDLE_NO_TOOL ? NULL : handle;
}

void bp_nvtx_heap_unregister(void *heap)
{
    if (heap != NULL)
        nvtxMemHeapUnregister(our_domain(), heap);
}

void bp_nvtx_region_register(void *heap, const void *address, uint64_t bytes, bp_nvtx_name name)
{
    if (heap == NULL)
        return;
    const nvtxMemVirtualRangeDesc_t range = {.size = bytes, .ptr = address};
    const nvtxMemRegionsRegisterBatch_t batch = {.extCompatID = NVTX_EXT_COMPATID_MEM,
                                                 .structSize = sizeof batch,
                                                 .regionType = NVTX_MEM_TYPE_VIRTUAL_ADDRESS,
                                                 .heap = heap,
                                                 .regionCount = 1,
                                                 .regionDescElementSize = sizeof range,
                                                 .regionDescElements = &range};
    nvtxMemRegionsRegister(our_domain(), &batch);
    const nvtxMemRegionNameDesc_t called = {.regionRefType = NVTX_MEM_REGION_REF_TYPE_POINTER,
                                            .nameType = NVTX_MESSAGE_TYPE_REGISTERED,
                                            .region.pointer = address,
                                            .name.registered = (nvtxStringHandle_t)name};
    const nvtxMemRegionsNameBatch_t names = {.extCompatID = NVTX_EXT_COMPATID_MEM,
                                             .structSize = sizeof names,
                                             .regionCount = 1,
                                             .regionElementSize = sizeof called,
                                             .regionElements = &called};
    nvtxMemRegionsName(our_domain(), &names);
}

void bp_nvtx_region_unregister(const void *address)
{
    const nvtxMemRegionRef_t region = {.pointer = address};
    const nvtxMemRegionsUnregisterBatch_t batch = {.extCompatID = NVTX_EXT_COMPATID_MEM,
                                                   .structSize = sizeof batch,
                                                   .refType = NVTX_MEM_REGION_REF_TYPE_POINTER,
                                                   .refCount = 1,
                                                   .refElementSize = sizeof region,
                                                   .refElements = &region};
    nvtxMemRegionsUnregister(our_domain(), &batch);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* NVTX through its headers: ranges, memory heaps and regions. */
#include "devices/nvtx/nvtx.h"

#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtMem.h>

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static nvtxDomainHandle_t domain;

/* NVTX loads the tool that the environment names, which must not happen in a privileged process. */
static void make_domain(void)
{
    if (getauxval(AT_SECURE) == 0)
        domain = nvtxDomainCreateA("bucketpool");
}

/* NULL: no tool is attached, and NVTX is not called. */
static nvtxDomainHandle_t our_domain(void)
{
    pthread_once(&once, make_domain);
    return domain;
}

bool bp_nvtx_is_built(void)
{
    return true;
}

bool bp_nvtx_is_asked_for(void)
{
    const char *injection = secure_getenv("NVTX_INJECTION64_PATH"), *variable = secure_getenv("BUCKETPOOL_NVTX");
    return (injection != NULL && *injection != '\0') || (variable != NULL && strcmp(variable, "1") == 0);
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
    if (our_domain() == NULL)
        return;
    char text[128];
    snprintf(text, sizeof text, "%s %.80s", what, name);
    const nvtxEventAttributes_t attributes = text_attributes(text);
    (void)nvtxDomainRangePushEx(domain, &attributes);
}

void bp_nvtx_pop(void)
{
    if (our_domain() != NULL)
        (void)nvtxDomainRangePop(domain);
}

bp_nvtx_name bp_nvtx_register(const char *text)
{
    return our_domain() != NULL ? nvtxDomainRegisterStringA(domain, text) : NULL;
}

uint64_t bp_nvtx_start(bp_nvtx_name name)
{
    if (our_domain() == NULL)
        return 0;
    const nvtxEventAttributes_t attributes = {.version = NVTX_VERSION,
                                              .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
                                              .messageType = NVTX_MESSAGE_TYPE_REGISTERED,
                                              .message.registered = (nvtxStringHandle_t)name};
    return nvtxDomainRangeStartEx(domain, &attributes);
}

uint64_t bp_nvtx_start_text(const char *text)
{
    if (our_domain() == NULL)
        return 0;
    const nvtxEventAttributes_t attributes = text_attributes(text);
    return nvtxDomainRangeStartEx(domain, &attributes);
}

void bp_nvtx_end(uint64_t range)
{
    if (range != 0)
        nvtxDomainRangeEnd(domain, range);
}

/* ---- memory --------------------------------------------------------------------------------------------------------- */

void *bp_nvtx_heap_register(const char *name, const void *address, uint64_t bytes)
{
    if (our_domain() == NULL)
        return NULL;
    const nvtxMemVirtualRangeDesc_t range = {.size = bytes, .ptr = address};
    const nvtxMemHeapDesc_t heap = {.extCompatID = NVTX_EXT_COMPATID_MEM,
                                    .structSize = sizeof heap,
                                    .usage = NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR,
                                    .type = NVTX_MEM_TYPE_VIRTUAL_ADDRESS,
                                    .typeSpecificDescSize = sizeof range,
                                    .typeSpecificDesc = &range,
                                    .messageType = NVTX_MESSAGE_TYPE_ASCII,
                                    .message.ascii = name};
    nvtxMemHeapHandle_t handle = nvtxMemHeapRegister(domain, &heap);
    return handle == NVTX_MEM_HEAP_HANDLE_NO_TOOL ? NULL : handle;
}

void bp_nvtx_heap_unregister(void *heap)
{
    if (heap != NULL)
        nvtxMemHeapUnregister(domain, heap);
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
    nvtxMemRegionsRegister(domain, &batch);
    const nvtxMemRegionNameDesc_t called = {.regionRefType = NVTX_MEM_REGION_REF_TYPE_POINTER,
                                            .nameType = NVTX_MESSAGE_TYPE_REGISTERED,
                                            .region.pointer = address,
                                            .name.registered = (nvtxStringHandle_t)name};
    const nvtxMemRegionsNameBatch_t names = {.extCompatID = NVTX_EXT_COMPATID_MEM,
                                             .structSize = sizeof names,
                                             .regionCount = 1,
                                             .regionElementSize = sizeof called,
                                             .regionElements = &called};
    nvtxMemRegionsName(domain, &names);
}

void bp_nvtx_region_unregister(const void *address)
{
    if (our_domain() == NULL)
        return;
    const nvtxMemRegionRef_t region = {.pointer = address};
    const nvtxMemRegionsUnregisterBatch_t batch = {.extCompatID = NVTX_EXT_COMPATID_MEM,
                                                   .structSize = sizeof batch,
                                                   .refType = NVTX_MEM_REGION_REF_TYPE_POINTER,
                                                   .refCount = 1,
                                                   .refElementSize = sizeof region,
                                                   .refElements = &region};
    nvtxMemRegionsUnregister(domain, &batch);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Loaded before bucketpool: offloads that lose what they were to keep or to give back, to see that it is found. WRONG_OFFLOAD says which. */
#include <bucketpool/offload.h>

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

static int is_wrong(const char *what)
{
    const char *wanted = getenv("WRONG_OFFLOAD");
    return wanted != NULL && strcmp(wanted, what) == 0;
}

static void *next(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

BP_API bp_status bp_offload_begin(bp_offload *offload, const char *group, uint32_t flags)
{
    bp_status (*begin)(bp_offload *, const char *, uint32_t);
    *(void **)&begin = next("bp_offload_begin");
    if (is_wrong("bytes") && strcmp(group, "state.1") == 0)
        flags = BP_OFFLOAD_DISCARD;
    return begin(offload, group, flags);
}

/* As if nothing had been given back. */
BP_API bp_status bp_device_usage_get(const bp_device *device, bp_device_usage *usage)
{
    bp_status (*get)(const bp_device *, bp_device_usage *);
    *(void **)&get = next("bp_device_usage_get");
    bp_status status = get(device, usage);
    if (is_wrong("memory"))
        usage->committed_bytes = usage->peak_committed_bytes;
    return status;
}

/* What makes registered memory useless to NCCL without a word from it. */
#include "comms/nccl.h"

#include <stdlib.h>
#include <strings.h>

#include "core/fail.h"

#define SENTENCE_BYTES 320

/* Who is told. */
typedef struct listener {
    void (*tell)(void *user, const char *sentence);
    void *user;
} listener;

static void say(const listener *to, const char *sentence)
{
    to->tell(to->user, sentence);
}

bool bp_nccl_is_off(const char *variable)
{
    const char *value = secure_getenv(variable);
    if (value == NULL || value[0] == '\0')
        return false;
    char *end;
    long number = strtol(value, &end, 0);
    return end != value && number == 0;
}

/* Whether "LL,LL128", "^Simple" and the like leave the simple protocol out. */
static bool leaves_simple_out(const char *protocols)
{
    bool except = protocols[0] == '^';
    for (const char *at = protocols + except; *at != '\0'; at++)
        if (strncasecmp(at, "simple", 6) == 0)
            return except;
    return !except;
}

static void tell_environment(const listener *to, bp_register_kind kind)
{
    const char *protocols = secure_getenv("NCCL_PROTO");
    char sentence[SENTENCE_BYTES];
    if (bp_nccl_is_off("NCCL_LOCAL_REGISTER"))
        say(to,
            kind == BP_REGISTER_SYMMETRIC
                ? "NCCL_LOCAL_REGISTER=0 is set: only NCCL's symmetric kernels use the windows, other algorithms copy"
                : "NCCL_LOCAL_REGISTER=0 is set: NCCL ignores what is registered");
    if (bp_nccl_is_off("NCCL_CUMEM_ENABLE"))
        say(to, "NCCL_CUMEM_ENABLE=0 is set: NCCL cannot share these slabs between GPUs (some launchers set it)");
    if (kind >= BP_REGISTER_WINDOW && bp_nccl_is_off("NCCL_WIN_ENABLE"))
        say(to, "NCCL_WIN_ENABLE=0 is set: NCCL does not use windows");
    if (protocols != NULL && protocols[0] != '\0' && leaves_simple_out(protocols)) {
        snprintf(sentence, sizeof sentence,
                 "NCCL_PROTO=%.64s leaves out the Simple protocol, the only one that uses registered memory",
                 protocols);
        say(to, sentence);
    }
}

static void tell_traffic(const listener *to, bp_register_kind kind, uint32_t traffic)
{
    if ((traffic & BP_TRAFFIC_FLOAT_AVG) != 0)
        say(to, "ncclAvg of floats is carried out as a pre-multiplied sum, which uses neither NVLink SHARP "
                "registration nor "
                "symmetric kernels: scale first and use ncclSum");
    if ((traffic & BP_TRAFFIC_IN_PLACE_RING) != 0)
        say(to, "all-reduces in place over rings do not use registered memory: reduce out of place");
    if ((traffic & BP_TRAFFIC_REDUCE_SCATTER) != 0 && kind == BP_REGISTER_SYMMETRIC)
        say(to, "a symmetric reduce-scatter needs its send side in a symmetric window: send from these slabs only, "
                "not from "
                "dynamic requests or copies");
}

static void tell_device(const bp_nccl *nccl, const listener *to)
{
    const bp_cuda *cuda = bp_cuda_of(nccl->device);
    char sentence[SENTENCE_BYTES];
    if (cuda->config.memory == BP_CUDA_PLAIN)
        say(to, "the device's slabs are plain allocations (BP_CUDA_PLAIN), which cannot be windows; as buffers NCCL "
                "2.24 and "
                "newer shares them between GPUs with NCCL_LEGACY_CUDA_REGISTER=1 only");
    else if (cuda->info.handle_types == 0) {
        snprintf(sentence, sizeof sentence,
                 "slabs of GPU %d (%s) have no exportable handle type: other processes cannot map them",
                 cuda->info.ordinal, cuda->info.name);
        say(to, sentence);
    }
    if (nccl->unaligned != NULL) {
        snprintf(sentence, sizeof sentence,
                 "the slab at %p does not begin on the recommended granularity of %llu bytes", nccl->unaligned,
                 (unsigned long long)cuda->info.recommended_granularity);
        say(to, sentence);
    }
}

/* NULL: there is nothing to say. */
static const char *limit_of(const bp_nccl *nccl, bp_register_kind kind)
{
    if (kind >= BP_REGISTER_WINDOW)
        return nccl->version < BP_NCCL_BUFFER_WINDOWS && nccl->ranks > 1
                   ? "does not tell windows from plain buffers, which it grants where ranks are on several hosts or "
                     "their GPUs do not reach each other directly; from 2.28 on this can be told"
                   : NULL;
    if (nccl->version < BP_NCCL_BUFFERS_SHARP)
        return "uses registered buffers for NVLink SHARP only; from 2.23 on they serve all GPUs of a node";
    if (nccl->version < BP_NCCL_BUFFERS_GENERAL)
        return "uses registered buffers for NVLink SHARP and InfiniBand SHARP only; from 2.23 on they serve all GPUs "
               "of a node";
    if (nccl->version < BP_NCCL_BUFFERS_NETWORK)
        return "uses registered buffers within a node, and between nodes for InfiniBand SHARP only; from 2.24 on other "
               "collectives use them on the network too";
    return NULL;
}

static void tell_version(const bp_nccl *nccl, const listener *to, bp_register_kind kind)
{
    char sentence[SENTENCE_BYTES];
    const char *limit = limit_of(nccl, kind);
    if (limit == NULL)
        return;
    snprintf(sentence, sizeof sentence, "%s %s", nccl->version_name, limit);
    say(to, sentence);
}

void bp_nccl_warnings(void *self, bp_register_kind kind, uint32_t traffic,
                      void (*tell)(void *user, const char *sentence), void *user)
{
    const bp_nccl *nccl = self;
    const listener to = {tell, user};
    tell_environment(&to, kind);
    tell_traffic(&to, kind, traffic);
    tell_device(nccl, &to);
    tell_version(nccl, &to, kind);
}

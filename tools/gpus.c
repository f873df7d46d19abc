#include "gpus.h"

#include <stddef.h>
#include <strings.h>

/* MiB as the vendors' tools (nvidia-smi, rocm-smi) report the total of an idle device; what a driver and a context take off is
 * not subtracted. */
static const struct {
    const char *name;
    uint64_t mib;
} gpus[] = {{"a100-40", 40960}, {"a100-80", 81920}, {"h100", 81559},   {"h100-nvl", 95830}, {"h200", 143771},
            {"b200", 183359},   {"b300", 275040},   {"gb200", 189471}, {"mi300x", 196592}};

uint64_t gpu_bytes(const char *name)
{
    for (size_t i = 0; i < sizeof gpus / sizeof *gpus; i++) {
        if (strcasecmp(gpus[i].name, name) == 0)
            return gpus[i].mib << 20;
    }
    return 0;
}

/* Figures of pools on a GPU, against the driver's own calls. Exits 77 where there is no GPU. bench/torch/allocator.py takes those of
 * PyTorch's caching allocator in the same sizes and the same order. */
#include "gpu.h"
#include "windows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct options {
    const char *json, *date, *only, *driver, *nccl;
    int turns, divide;
} options;

static int parse(options *o, int argc, char **argv)
{
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (value == NULL)
            return 0;
        if (strcmp(argv[i], "--json") == 0)
            o->json = value;
        else if (strcmp(argv[i], "--date") == 0)
            o->date = value;
        else if (strcmp(argv[i], "--only") == 0)
            o->only = value;
        else if (strcmp(argv[i], "--driver") == 0)
            o->driver = value;
        else if (strcmp(argv[i], "--nccl") == 0)
            o->nccl = value;
        else if (strcmp(argv[i], "--turns") == 0)
            o->turns = atoi(value);
        else if (strcmp(argv[i], "--divide") == 0)
            o->divide = atoi(value);
        else
            return 0;
    }
    return 1;
}

int main(int argc, char **argv)
{
    options o = {.turns = 201, .divide = 1};
    gpu g;
    if (!parse(&o, argc, argv)) {
        fprintf(stderr,
                "usage: bench_gpu [--json FILE] [--date TEXT] [--only GROUP] [--driver LIBRARY] [--nccl LIBRARY] "
                "[--turns N] [--divide N]\n"
                "--divide: the shapes of logits and of the head, all ways, numbers of tokens, and what is offloaded\n");
        return 2;
    }
    if (!gpu_open(&g, o.driver)) {
        printf("%s\n", bp_error_detail());
        return 77;
    }
    printf("%s, driver of CUDA %d.%d, %.1f GiB free\n\n", g.info.name, g.info.driver_version / 1000,
           g.info.driver_version % 1000 / 10, (double)g.free_bytes / (double)(1u << 30));
    bench_settings(o.turns, o.only);
    gpu_pairs(&g);
    gpu_memory(&g);
    gpu_offload(&g, o.divide > 1 ? (uint64_t)o.divide : 1);
    gpu_registration(&g, o.nccl);
    gpu_logprob(&g, o.divide > 1 ? (uint64_t)o.divide : 1);
    gpu_cp(&g, o.divide > 1 ? (uint64_t)o.divide : 1);
    gpu_head(&g, o.divide > 1 ? (uint64_t)o.divide : 1);
    if (o.json == NULL)
        return 0;
    FILE *file = fopen(o.json, "w");
    if (file == NULL) {
        perror(o.json);
        return 1;
    }
    bench_write_json(file, o.date);
    return fclose(file) == 0 ? 0 : 1;
}

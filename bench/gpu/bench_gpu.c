/* Figures of kernels and pools on a GPU, against copies and the driver's own calls. Exits 77 where nothing could be measured, with the reason
 * as the last line. bench/torch/allocator.py takes those of PyTorch's caching allocator in the same sizes and the same order. */
#include "bench/gpu/gpu.h"
#include "bench/measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct options {
    const char *json, *date, *only, *driver, *nccl;
    int turns, divide, list;
} options;

static int usage(void)
{
    fprintf(stderr,
            "usage: bench_gpu [--list] [--only GROUP] [--json FILE] [--date TEXT] [--driver LIBRARY] [--nccl LIBRARY] "
            "[--turns N] [--divide N]\n"
            "--list: the names of the groups, one a line, in order of value\n"
            "--only: this group alone; the name as --list with the same --divide prints it\n"
            "--json: rewritten after each group\n"
            "--divide: the shapes of logits and of the head, all ways, numbers of tokens, and what is offloaded\n");
    return 2;
}

static int parse(options *o, int argc, char **argv)
{
    const struct {
        const char *name;
        const char **text;
        int *number;
    } table[] = {{"--json", &o->json, NULL},     {"--date", &o->date, NULL}, {"--only", &o->only, NULL},
                 {"--driver", &o->driver, NULL}, {"--nccl", &o->nccl, NULL}, {"--turns", NULL, &o->turns},
                 {"--divide", NULL, &o->divide}};
    for (int i = 1; i < argc; i++) {
        size_t k = 0;
        if (strcmp(argv[i], "--list") == 0) {
            o->list = 1;
            continue;
        }
        while (k < sizeof table / sizeof *table && strcmp(table[k].name, argv[i]) != 0)
            k++;
        if (k == sizeof table / sizeof *table) {
            fprintf(stderr, "bench_gpu: unknown option %s\n", argv[i]);
            return 0;
        }
        if (++i == argc) {
            fprintf(stderr, "bench_gpu: %s requires a value\n", argv[i - 1]);
            return 0;
        }
        if (table[k].text != NULL)
            *table[k].text = argv[i];
        else
            *table[k].number = atoi(argv[i]);
    }
    return 1;
}

/* In order of value: a run that ends early has measured what is worth most. */
static void groups(const gpu *g, const options *o)
{
    const uint64_t divisor = o->divide > 1 ? (uint64_t)o->divide : 1;
    gpu_logprob(g, divisor);
    gpu_head(g, divisor);
    gpu_cp(g, divisor);
    gpu_pairs(g);
    gpu_memory(g);
    gpu_offload(g, divisor);
    gpu_registration(g, o->nccl);
}

static void print_name(void *user, const char *group)
{
    (void)user;
    puts(group);
}

typedef struct search {
    const char *name;
    int found;
} search;

static void compare_name(void *user, const char *group)
{
    search *s = user;
    s->found = s->found || strcmp(s->name, group) == 0;
}

/* Without a GPU. */
static void visit(const options *o, bench_visitor *visitor, void *user)
{
    const gpu none = {.library = NULL};
    bench_visit(visitor, user);
    groups(&none, o);
    bench_visit(NULL, NULL);
}

int main(int argc, char **argv)
{
    options o = {.turns = 201, .divide = 1};
    gpu g;
    if (!parse(&o, argc, argv))
        return usage();
    if (o.list) {
        visit(&o, print_name, NULL);
        return 0;
    }
    search wanted = {o.only, o.only == NULL};
    if (o.only != NULL)
        visit(&o, compare_name, &wanted);
    if (!wanted.found) {
        fprintf(stderr, "bench_gpu: --only: unknown group \"%s\"; --list prints the groups\n", o.only);
        return 2;
    }
    if (!gpu_open(&g, o.driver)) {
        printf("%s\n", bp_error_detail());
        return 77;
    }
    printf("%s, driver of CUDA %d.%d, %.1f GiB free\n\n", g.info.name, g.info.driver_version / 1000,
           g.info.driver_version % 1000 / 10, (double)g.free_bytes / (double)(1u << 30));
    bench_settings(o.turns, NULL);
    bench_only(o.only);
    bench_measured_on(g.info.name, g.total_bytes, g.free_bytes);
    bench_json(o.json, o.date);
    groups(&g, &o);
    gpu_close(&g);
    return bench_exit_status();
}

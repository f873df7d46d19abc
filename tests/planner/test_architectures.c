/* SPDX-License-Identifier: Apache-2.0 */
/* The architecture tables against the published modelling code: names and shapes of every parameter, for small
 * configurations that reach every branch and for all bundled models. tests/data/architectures/README.md describes the
 * digests. Arguments: the source directory. */
#include "support/harness.h"

#include <bucketpool/formats.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/sha256.h"

static const char *source_root;

typedef struct lines {
    char **items;
    size_t count, capacity;
} lines;

static void add_line(lines *l, const char *text)
{
    if (l->count == l->capacity) {
        l->capacity = l->capacity > 0 ? 2 * l->capacity : 1024;
        l->items = realloc(l->items, l->capacity * sizeof *l->items);
        assert_non_null(l->items);
    }
    l->items[l->count] = strdup(text);
    assert_non_null(l->items[l->count]);
    l->count++;
}

static int compare_lines(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* "name<TAB>shape" for every copy of a parameter. */
static uint64_t expand(const bp_parameter *p, lines *l)
{
    char shape[160] = "", line[600];
    uint64_t numel = p->copies;
    for (uint32_t i = 0; i < p->dims; i++) {
        snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "%s%llu", i > 0 ? "x" : "",
                 (unsigned long long)p->shape[i]);
        numel *= p->shape[i];
    }
    const char *star = strchr(p->name, '*');
    for (uint32_t copy = 0; copy < p->copies; copy++) {
        if (star != NULL)
            snprintf(line, sizeof line, "%.*s%u%s\t%s\n", (int)(star - p->name), p->name, copy, star + 1, shape);
        else
            snprintf(line, sizeof line, "%s\t%s\n", p->name, shape);
        add_line(l, line);
    }
    return numel;
}

static void digest_lines(lines *l, char text[65])
{
    qsort(l->items, l->count, sizeof *l->items, compare_lines);
    bp_sha256 sha;
    uint8_t digest[32];
    bp_sha256_init(&sha);
    for (size_t i = 0; i < l->count; i++)
        bp_sha256_update(&sha, l->items[i], strlen(l->items[i]));
    bp_sha256_finish(&sha, digest);
    for (int i = 0; i < 32; i++)
        snprintf(text + 2 * i, 3, "%02x", digest[i]);
}

/* Saves the list when a digest differs, for comparison with that of dump.py. */
static void save_lines(const char *path, const lines *l)
{
    char name[256];
    snprintf(name, sizeof name, "%s", path);
    for (char *c = name; *c != '\0'; c++)
        *c = *c == '/' ? '_' : *c;
    strcat(name, ".tsv");
    FILE *file = fopen(name, "w");
    for (size_t i = 0; file != NULL && i < l->count; i++)
        fputs(l->items[i], file);
    if (file != NULL)
        fclose(file);
    print_error("%s: wrote %s\n", path, name);
}

static bool check_model(const char *path, unsigned long long tensors, unsigned long long numel, const char *digest)
{
    char full[1024], computed[65];
    snprintf(full, sizeof full, "%s/%s", source_root, path);
    bp_model *model = NULL;
    if (bp_model_read(full, NULL, &model) != BP_OK) {
        print_error("%s\n", bp_error_detail());
        return false;
    }
    lines l = {0};
    uint64_t sum = 0;
    for (size_t i = 0; i < bp_model_get_info(model)->parameter_count; i++) {
        bp_parameter p = *bp_model_get_info(model)->parameters[i];
        sum += expand(&p, &l);
    }
    digest_lines(&l, computed);
    bool same = l.count == tensors && sum == numel && strcmp(computed, digest) == 0;
    assert_int_equal(sum, bp_model_get_info(model)->numel + bp_model_get_info(model)->prediction_numel);
    if (!same) {
        print_error("%s: %zu parameters with %llu elements, expected %llu with %llu\n", path, l.count,
                    (unsigned long long)sum, tensors, numel);
        save_lines(path, &l);
    }
    for (size_t i = 0; i < l.count; i++)
        free(l.items[i]);
    free(l.items);
    bp_model_destroy(&model);
    return same;
}

TEST(test_digests)
{
    char path[1024], line[1024], model[512], digest[80];
    unsigned long long tensors, numel;
    snprintf(path, sizeof path, "%s/tests/data/architectures/digests.tsv", source_root);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    int checked = 0, wrong = 0;
    while (fgets(line, sizeof line, file) != NULL) {
        if (line[0] == '#')
            continue;
        assert_int_equal(sscanf(line, "%511[^\t]\t%llu\t%llu\t%79s", model, &tensors, &numel, digest), 4);
        checked++;
        wrong += !check_model(model, tensors, numel, digest);
    }
    fclose(file);
    assert_int_equal(wrong, 0);
    assert_true(checked >= 80);
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    source_root = argv[1];
    return run_registered(NULL, NULL, NULL, NULL);
}

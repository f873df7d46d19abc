/* SPDX-License-Identifier: Apache-2.0 */
/* A scratch directory for one test, and assertions that the tests of formats share. */
#ifndef BP_TEST_SCRATCH_H
#define BP_TEST_SCRATCH_H

#include "support/harness.h"

#include <bucketpool/formats.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char scratch[64];

/* Removes a directory and its contents. */
static inline void remove_tree(const char *path)
{
    DIR *entries = opendir(path);
    const struct dirent *entry;
    while (entries != NULL && (entry = readdir(entries)) != NULL) {
        char inner[512];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name);
        if (unlink(inner) != 0)
            remove_tree(inner);
    }
    if (entries != NULL)
        closedir(entries);
    rmdir(path);
}

static inline int scratch_setup(void **state)
{
    (void)state;
    strcpy(scratch, "/tmp/bp-test-XXXXXX");
    return mkdtemp(scratch) == NULL;
}

static inline int scratch_teardown(void **state)
{
    (void)state;
    remove_tree(scratch);
    return 0;
}

#define SCRATCH_TEST(name) TEST_WITHIN(name, scratch_setup, scratch_teardown)

/* The path of `name` in the scratch directory; valid for the next three calls. */
static inline const char *in_scratch(const char *name)
{
    static char paths[4][256];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", scratch, name);
    return path;
}

static inline void make_directory(const char *name)
{
    assert_int_equal(mkdir(in_scratch(name), 0777), 0);
}

static inline void write_bytes(const char *name, const void *data, size_t bytes)
{
    FILE *file = fopen(in_scratch(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static inline void write_text(const char *name, const char *text)
{
    write_bytes(name, text, strlen(text));
}

static inline size_t count_entries(const char *path)
{
    DIR *entries = opendir(path);
    assert_non_null(entries);
    size_t count = 0;
    while (readdir(entries) != NULL)
        count++;
    closedir(entries);
    return count - 2;
}

static inline bp_parameter parameter_at(const bp_model *model, size_t index)
{
    bp_parameter parameter = *bp_model_get_info(model)->parameters[index];
    return parameter;
}

/* Asserts that parameter `index` has this name and unit (NULL: persistent). */
static inline bp_parameter assert_parameter(const bp_model *model, size_t index, const char *name, const char *unit)
{
    bp_parameter parameter = parameter_at(model, index);
    assert_string_equal(parameter.name, name);
    if (unit == NULL)
        assert_int_equal(parameter.unit, BP_OUTSIDE);
    else
        assert_string_equal(bp_model_get_info(model)->units[parameter.unit].name, unit);
    return parameter;
}

static inline bp_reader_options options_with_units(const char *units)
{
    bp_reader_options options;
    assert_ok(bp_reader_options_init(&options, sizeof options));
    options.units = units;
    return options;
}

#endif

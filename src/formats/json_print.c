#include "formats/json.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/fail.h"
#include "formats/file.h"

#define COLUMNS 160

/* Writes `value`; `column` is what stands before it on its line, `indent` that line's indentation. */
static int print_value(FILE *out, json_t *value, size_t column, int indent);

static int print_key(FILE *out, const char *key, size_t *column)
{
    json_t *text = json_string_nocheck(key);
    if (text == NULL)
        return -1;
    *column += json_dumpb(text, NULL, 0, JSON_ENCODE_ANY) + 2;
    int failed = json_dumpf(text, out, JSON_ENCODE_ANY);
    json_decref(text);
    return failed != 0 ? failed : fputs(": ", out) < 0 ? -1 : 0;
}

static int print_members(FILE *out, json_t *value, int indent)
{
    size_t position = 0, size = json_object_size(value);
    const char *key;
    json_t *member;
    json_object_foreach(value, key, member)
    {
        size_t column = (size_t)indent;
        fprintf(out, "%*s", indent, "");
        if (print_key(out, key, &column) != 0 || print_value(out, member, column, indent) != 0)
            return -1;
        fputs(++position < size ? ",\n" : "\n", out);
    }
    return 0;
}

static int print_value(FILE *out, json_t *value, size_t column, int indent)
{
    size_t size = json_is_object(value) ? json_object_size(value) : json_array_size(value);
    /* The size query is a dry run of the dump, so each level costs one more; documents are a handful of levels deep. */
    if (size == 0 || column + json_dumpb(value, NULL, 0, JSON_ENCODE_ANY) < COLUMNS)
        return json_dumpf(value, out, JSON_ENCODE_ANY);
    if (json_is_object(value)) {
        fputs("{\n", out);
        if (print_members(out, value, indent + 2) != 0)
            return -1;
        return fprintf(out, "%*s}", indent, "") < 0 ? -1 : 0;
    }
    fputs("[\n", out);
    for (size_t i = 0; i < size; i++) {
        fprintf(out, "%*s", indent + 2, "");
        if (print_value(out, json_array_get(value, i), (size_t)indent + 2, indent + 2) != 0)
            return -1;
        fputs(i + 1 < size ? ",\n" : "\n", out);
    }
    return fprintf(out, "%*s]", indent, "") < 0 ? -1 : 0;
}

bp_status bp_json_print(json_t *document, char **text, size_t *bytes)
{
    char *buffer = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&buffer, &size);
    if (out == NULL)
        return bp_fail_memory(BUFSIZ);
    int failed = print_value(out, document, 0, 0);
    fputc('\n', out);
    failed |= ferror(out);
    failed |= fclose(out);
    if (failed != 0) {
        free(buffer);
        return bp_fail_memory(size);
    }
    *text = buffer;
    *bytes = size;
    return BP_OK;
}

bp_status bp_json_write(json_t *document, const char *path)
{
    char *text = NULL;
    size_t bytes = 0;
    BP_TRY(bp_json_print(document, &text, &bytes));
    bp_status status = bp_file_write(path, text, bytes);
    free(text);
    return status;
}

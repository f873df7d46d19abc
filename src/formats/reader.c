#include "formats/reader.h"

#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "core/structs.h"
#include "formats/detail.h"
#include "formats/file.h"

size_t bp_reader_budget(size_t bytes)
{
    const size_t most = (size_t)2 << 30, least = (size_t)256 << 20;
    return bytes < (most - least) / 16 ? 16 * bytes + least : most;
}

static const bp_reader_options defaults = {.size = sizeof defaults};

bp_status bp_reader_options_init(bp_reader_options *options, size_t size)
{
    return bp_struct_init("bp_reader_options_init", options, size, &defaults, sizeof defaults);
}

bp_status bp_reader_options_take(const bp_reader_options *options, bp_reader_options *taken)
{
    bp_reader_options read = defaults;
    BP_TRY(bp_struct_read("reader options", options, true, &read, sizeof read));
    if (read.name != NULL && !bp_is_name(read.name))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "reader options: \"%.60s\" cannot be a model's name", read.name);
    if (read.dtype != BP_DTYPE_NONE && bp_dtype_bits(read.dtype) == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "reader options: %d is no dtype", (int)read.dtype);
    *taken = read;
    return BP_OK;
}

bp_status bp_reader_choose_name(const bp_reader_options *options, const char *given, const char *path, char **name)
{
    const char *chosen = options->name != NULL ? options->name : given;
    if (chosen == NULL)
        return bp_file_model_name(path, name);
    char *copy = strdup(chosen);
    if (copy == NULL)
        return bp_fail_memory(strlen(chosen) + 1);
    *name = copy;
    return BP_OK;
}

bp_status bp_reader_hand_over(bp_status status, const char *origin, bp_model *read, bp_model **model)
{
    if (status == BP_OK)
        status = bp_fail_at(origin, bp_model_validate(read));
    if (status == BP_OK)
        *model = read;
    else
        bp_model_destroy(&read);
    return status;
}

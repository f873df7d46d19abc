/* SPDX-License-Identifier: Apache-2.0 */
/* Output files of a command, committed together in two phases. */
#include "shared/outputs.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "shared/cli.h"

bool output_is_standard(const char *path)
{
    return path != NULL && strcmp(path, "-") == 0;
}

int output_init(const char *option, const char *path, output *o)
{
    *o = (output){.option = option, .path = path};
    if (path == NULL)
        return EXIT_GO_ON;
    bp_status status = output_is_standard(path) ? bp_output_open_descriptor(&o->file, STDOUT_FILENO, path)
                                                : bp_output_open(&o->file, path);
    if (status != BP_OK) {
        o->path = NULL;
        return cli_fail(EXIT_ENVIRONMENT, "%s %s", option, bp_error_detail());
    }
    snprintf(o->written, sizeof o->written, "/proc/self/fd/%d", o->file.file);
    return EXIT_GO_ON;
}

FILE *output_stream(const output *o)
{
    int file = fcntl(o->file.file, F_DUPFD_CLOEXEC, 0);
    FILE *stream = file >= 0 ? fdopen(file, "wb") : NULL;
    if (stream == NULL && file >= 0)
        close(file);
    return stream;
}

int output_fail(const output *o, const char *reason)
{
    return cli_fail(EXIT_ENVIRONMENT, "%s %s: cannot be written: %s", o->option, o->path, reason);
}

static int fail(const output *o)
{
    if (output_is_standard(o->path))
        return cli_fail_standard(o->file.error);
    return cli_fail(EXIT_ENVIRONMENT, "%s %s", o->option, bp_error_detail());
}

/* Commits the outputs that are copied to a pipe or device (`is_copied`), or those that are renamed. */
static int commit(output *outputs, size_t count, bool is_copied)
{
    for (size_t i = 0; i < count; i++) {
        output *o = &outputs[i];
        if (o->path != NULL && (o->file.in_place >= 0) == is_copied && bp_output_commit(&o->file) != BP_OK)
            return fail(o);
    }
    return EXIT_GO_ON;
}

int outputs_sync(output *outputs, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (outputs[i].path != NULL && bp_output_sync(&outputs[i].file) != BP_OK)
            return fail(&outputs[i]);
    }
    return commit(outputs, count, true);
}

static void finish(output *outputs, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (outputs[i].path != NULL)
            bp_output_finish(&outputs[i].file);
        outputs[i].path = NULL;
    }
}

int outputs_end(output *outputs, size_t count, int code)
{
    if (code == EXIT_GO_ON)
        code = cli_flush();
    if (code == EXIT_GO_ON)
        code = commit(outputs, count, false);
    finish(outputs, count);
    return code;
}

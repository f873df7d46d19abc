#include "formats/written.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "formats/file.h"

void bp_written_add(bp_written *written, const char *bytes, size_t count)
{
    if (count > written->capacity - written->count) {
        size_t capacity = 2 * written->capacity + count + 4096;
        char *larger = written->has_failed ? NULL : realloc(written->bytes, capacity);
        written->has_failed = larger == NULL;
        if (written->has_failed)
            return;
        written->bytes = larger;
        written->capacity = capacity;
    }
    memcpy(written->bytes + written->count, bytes, count);
    written->count += count;
}

void bp_written_add_string(bp_written *written, const char *string)
{
    bp_written_add(written, string, strlen(string));
}

void bp_written_add_number(bp_written *written, const char *format, ...)
{
    char number[48];
    va_list args;
    va_start(args, format);
    int count = vsnprintf(number, sizeof number, format, args);
    va_end(args);
    bp_written_add(written, number, (size_t)count);
}

bp_status bp_written_finish(bp_written *written, const char *path)
{
    bp_status status = written->has_failed ? bp_fail_memory(2 * written->capacity)
                                           : bp_file_write(path, written->bytes, written->count);
    free(written->bytes);
    *written = (bp_written){0};
    return status;
}

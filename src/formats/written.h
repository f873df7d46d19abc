/* Text that is written into memory, then into a file. It remembers an allocation that failed (streams of open_memstream do not), so that
 * writers add without asking each time. */
#ifndef BP_FORMATS_WRITTEN_H
#define BP_FORMATS_WRITTEN_H

#include <bucketpool/status.h>

#include <stdbool.h>
#include <stddef.h>

typedef struct bp_written {
    char *bytes;
    size_t count, capacity;
    bool has_failed;
} bp_written;

void bp_written_add(bp_written *written, const char *bytes, size_t count);
void bp_written_add_string(bp_written *written, const char *string);
__attribute__((format(printf, 2, 3))) void bp_written_add_number(bp_written *written, const char *format, ...);
/* Writes it into a file, as bp_file_write, and frees it. Errors: BP_ERR_NO_HOST_MEMORY, now or before. */
bp_status bp_written_finish(bp_written *written, const char *path);

#endif

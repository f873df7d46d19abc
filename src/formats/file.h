/* Files: read whole or in part, and their names. */
#ifndef BP_FORMATS_FILE_H
#define BP_FORMATS_FILE_H

#include <bucketpool/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The largest JSON file that is read. A million tensors make an index of about 100 MiB. */
#define BP_LARGEST_JSON_BYTES ((size_t)256 << 20)
/* A million items make a CSV file of about 40 MiB. */
#define BP_LARGEST_CSV_BYTES ((size_t)256 << 20)

/* Reads what bp_input_open opens, at most `largest` bytes. `*text` is terminated by a NUL that `*bytes` does not count;
 * free() it. Errors: BP_ERR_IO with the path and the reason. */
bp_status bp_file_read(const char *path, size_t largest, char **text, size_t *bytes);

/* Reads `bytes` bytes at `offset`, or fewer at the end (`*got`), and the file's size. Regular files only. */
bp_status bp_file_read_at(const char *path, uint64_t offset, size_t bytes, void *data, size_t *got,
                          uint64_t *file_bytes);

/* BP_ERR_IO when nothing is there or it cannot be looked at. */
bp_status bp_file_is_directory(const char *path, bool *is_directory);

/* Also of a directory. false where nothing is there; BP_ERR_IO when the path cannot be looked at. */
bp_status bp_file_exists(const char *path, bool *exists);

/* "<directory>/<name>"; free() it. */
bp_status bp_file_join(const char *directory, const char *name, char **path);

/* The directory part of a path, "." without one; free() it. */
bp_status bp_file_directory(const char *path, char **directory);

/* The name of a model that was read from `path`: that of the directory, or of the file without its extension. Files that
 * are called the same in every model (config.json, model.safetensors, ...) take their directory's. Never empty; free()
 * it. */
bp_status bp_file_model_name(const char *path, char **name);

bool bp_has_suffix(const char *text, const char *suffix);

/* ---- error details ----------------------------------------------------------------------------------------------- */

/* Error details that quote files, whose bytes bp_error_record makes printable, and names in files. */

/* How much of a quoted name goes into a detail: printf("\"%.*s\"", BP_QUOTED, name). */
#define BP_QUOTED 120

/* Makes the last detail read "<where>: <detail>". A model that refuses what a file says has been given bad input, so
 * BP_ERR_INVALID_ARGUMENT and BP_ERR_OVERFLOW become BP_ERR_FORMAT; BP_OK and host memory pass unchanged. */
bp_status bp_fail_at(const char *where, bp_status status);

/* True for text that may be a name: not empty, UTF-8, no control characters. */
bool bp_is_name(const char *text);

#endif

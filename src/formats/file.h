/* SPDX-License-Identifier: Apache-2.0 */
/* Reading files, names of files and models, and error details with a place. */
#ifndef BP_FORMATS_FILE_H
#define BP_FORMATS_FILE_H

#include <bucketpool/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The largest JSON file that is read. An index of a million tensors takes about 100 MiB. */
#define BP_LARGEST_JSON_BYTES ((size_t)256 << 20)
/* A CSV file of a million items takes about 40 MiB. */
#define BP_LARGEST_CSV_BYTES ((size_t)256 << 20)

/* Reads a file that bp_input_open accepts, at most `largest` bytes. `*text` ends with a NUL that `*bytes` does not
 * count; free() it. Errors: BP_ERR_IO with path and reason. */
bp_status bp_file_read(const char *path, size_t largest, char **text, size_t *bytes);

/* Reads `bytes` bytes at `offset` (`*got`: fewer at the end of the file), and the file's size. Regular files only. */
bp_status bp_file_read_at(const char *path, uint64_t offset, size_t bytes, void *data, size_t *got,
                          uint64_t *file_bytes);

/* BP_ERR_IO if the path does not exist or cannot be accessed. */
bp_status bp_file_is_directory(const char *path, bool *is_directory);

/* Also true for a directory; false if the path does not exist. BP_ERR_IO if it cannot be accessed. */
bp_status bp_file_exists(const char *path, bool *exists);

/* "<directory>/<name>"; free() it. */
bp_status bp_file_join(const char *directory, const char *name, char **path);

/* The directory part of a path, "." without one; free() it. */
bp_status bp_file_directory(const char *path, char **directory);

/* The name of a model at `path`: the directory, or the file without its extension. Files with the same name in every
 * model (config.json, model.safetensors, ...) use their directory's. Never empty; free() it. */
bp_status bp_file_model_name(const char *path, char **name);

bool bp_has_suffix(const char *text, const char *suffix);

/* ---- error details ----------------------------------------------------------------------------------------------- */

/* Details may quote names from files: bp_error_record makes every byte printable. */

/* Most bytes of a quoted name in a detail: printf("\"%.*s\"", BP_QUOTED, name). */
#define BP_QUOTED 120

/* Changes the last detail to "<where>: <detail>". BP_ERR_INVALID_ARGUMENT and BP_ERR_OVERFLOW become BP_ERR_FORMAT,
 * because the bad value came from the file; BP_OK and BP_ERR_NO_HOST_MEMORY pass unchanged. */
bp_status bp_fail_at(const char *where, bp_status status);

/* True for text that can be a name: not empty, UTF-8, no control characters. */
bool bp_is_name(const char *text);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Packing instances in files, for the command (version node BUCKETPOOL_PRIVATE); not installed. */
#ifndef BP_FORMATS_PACKING_FILE_H
#define BP_FORMATS_PACKING_FILE_H

#include <bucketpool/pack.h>

/* Packing instances as CSV: a header line with the columns id, lower, upper, size and optionally gaps and offset, in
 * any order; one item per row, live in [lower, upper) except in its gaps ("a-b" ranges [a, b), separated by spaces).
 * docs/reference/formats.md. Errors name file, line and column: intervals that end before they start; gaps that are
 * empty, overlap or leave the interval; negative numbers; sizes whose sum exceeds 64 bits; duplicate ids; missing or
 * unknown columns; rows with too many or too few fields. Source of the format: google/minimalloc. */
typedef struct bp_packing_file bp_packing_file;

/* The caller owns the file. bp_packing_file_destroy accepts NULL and pointers to NULL, and sets *file to NULL. */
BP_API bp_status bp_packing_file_read(const char *path, bp_packing_file **file);
/* `origin`: name of the text in errors. */
BP_API bp_status bp_packing_file_parse(const char *text, size_t bytes, const char *origin, bp_packing_file **file);
BP_API void bp_packing_file_destroy(bp_packing_file **file);
/* The instance; items are in the order of the rows. Lives as long as the file. */
BP_API const bp_packing *bp_packing_file_packing(const bp_packing_file *file);
/* NULL for an unknown item. Lives as long as the file. */
BP_API const char *bp_packing_file_id(const bp_packing_file *file, size_t item);
/* The offset column; NULL if the file has none. Lives as long as the file. */
BP_API const uint64_t *bp_packing_file_offsets(const bp_packing_file *file);
/* Writes the rows with an `offset` column (replaced if there is one), atomically. Errors: BP_ERR_IO. */
BP_API bp_status bp_packing_file_write(const bp_packing_file *file, const uint64_t *offsets, const char *path);

#endif

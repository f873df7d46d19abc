/* SPDX-License-Identifier: Apache-2.0 */
/* Names the kind of a file, for messages of readers that expect another one. */
#ifndef BP_FILES_KINDS_H
#define BP_FILES_KINDS_H

#include <stddef.h>

typedef struct bp_kind {
    const char *name; /* "compressed with gzip" */
    const char *next; /* "gunzip it first"; NULL: there is nothing to do with it */
} bp_kind;

/* By the first bytes. {NULL, NULL}: unknown, or a text. */
bp_kind bp_kind_of_bytes(const char *bytes, size_t count);

/* By the member "format" of a JSON document, such as "bucketpool.plan/1". {NULL, NULL}: unknown. */
bp_kind bp_kind_of_document(const char *format);

#endif

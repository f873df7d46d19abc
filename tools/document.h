/* A JSON document on standard output. It remembers the first failure, so that callers write member after member without asking each time,
 * and prints the whole document at the end or nothing. */
#ifndef TOOLS_DOCUMENT_H
#define TOOLS_DOCUMENT_H

#include <bucketpool/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct document {
    char *text;
    size_t bytes, capacity;
    unsigned depth;       /* of open objects and lists, at most 31 */
    uint32_t lists, rows; /* by depth: a list, one on a single line */
    bool is_first;        /* nothing is in the innermost one yet */
    int code;             /* EXIT_GO_ON, or the exit code of the first failure, whose message is printed */
} document;

document document_new(void);
/* In an object each member has a key, in a list and at the top it is NULL. */
void document_object(document *d, const char *key);
void document_list(document *d, const char *key);
/* A list of numbers or texts on a single line. */
void document_row(document *d, const char *key);
/* Closes the innermost object or list. */
void document_end(document *d);
/* NULL is null. Where the text is not UTF-8, '?' takes the place of each byte that is not ASCII. */
void document_text(document *d, const char *key, const char *text);
void document_number(document *d, const char *key, uint64_t number);
/* Nine digits; null for infinities and NaN. */
void document_real(document *d, const char *key, double number);
void document_flag(document *d, const char *key, bool flag);
void document_null(document *d, const char *key);
/* Whether the status is BP_OK; another one is a failure of the document. */
bool document_check(document *d, bp_status status);
/* Prints and frees it. Returns EXIT_GO_ON, or the exit code after a message. */
int document_finish(document *d);

bool document_is_utf8(const char *text);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* JSON with errors that name the place: "units.json: $.units[3].buckets[0].numel: expected ..., got -4". */
#ifndef BP_FORMATS_JSON_H
#define BP_FORMATS_JSON_H

#include <bucketpool/dtype.h>

#include <jansson.h>
#include <stdbool.h>

/* A value and its path. Lives on the stack of the reader; `outer` must outlive it. */
typedef struct bp_json_at {
    json_t *value; /* NULL: absent */
    const struct bp_json_at *outer;
    const char *key; /* member name; NULL: element `index` of a list */
    size_t index;
    const char *origin; /* the file, for errors */
} bp_json_at;

/* Parses an object or a list of at most 64 levels; json_decref() it. Refuses duplicate keys. NaN, Infinity and
 * -Infinity, which Python's json module writes, are refused if `not_numbers` is NULL; else they become {}, and
 * *not_numbers tells if there are any. Errors: BP_ERR_FORMAT "<origin>:<line>:<column>: ...", also if the values
 * need more memory than bp_reader_budget; BP_ERR_NO_HOST_MEMORY. */
bp_status bp_json_parse(const char *text, size_t bytes, const char *origin, bool *not_numbers, json_t **document);

bp_json_at bp_json_root(json_t *document, const char *origin);
bp_json_at bp_json_member(const bp_json_at *object,
                          const char *key); /* absent if the object lacks it, or `at` is not an object */
bp_json_at bp_json_element(const bp_json_at *list, size_t index);

/* BP_ERR_FORMAT "<origin>: <path>: ...". */
__attribute__((format(printf, 2, 3))) bp_status bp_json_fail(const bp_json_at *at, const char *format, ...);
/* "expected <what>, got <description>", or "is missing; expected <what>". */
bp_status bp_json_fail_kind(const bp_json_at *at, const char *expected);
/* As bp_fail_at, with the origin and the path. */
bp_status bp_json_fail_at(const bp_json_at *at, bp_status status);

/* Describes a value for messages: `-4`, `a fraction (1.5)`, `"text"`, `an object`. */
#define BP_JSON_DESCRIPTION_BYTES 80
void bp_json_describe(const json_t *value, char description[BP_JSON_DESCRIPTION_BYTES]);

/* Fails unless the value is an object; `known` (NULL-terminated, or NULL) lists the only members it may have. */
bp_status bp_json_expect_object(const bp_json_at *at, const char *const *known);
bp_status bp_json_expect_list(const bp_json_at *at);
/* A member that is a list of at most `max` elements, and zeroed room for them behind the pointer `array`, which the caller frees. */
bp_status bp_json_list(const bp_json_at *object, const char *key, size_t max, size_t element_bytes, bp_json_at *list,
                       void *array, size_t *count);
/* A string that is a name (bp_is_name); lives as long as the document. */
bp_status bp_json_name(const bp_json_at *at, const char **name);
/* An integer from `least` to `most`. */
bp_status bp_json_whole(const bp_json_at *at, uint64_t min, uint64_t max, uint64_t *value);
/* Leaves *value unchanged if the member is absent. */
bp_status bp_json_flag(const bp_json_at *at, bool *value);
bp_status bp_json_dtype(const bp_json_at *at, bp_dtype *dtype);

#endif

/* The tensors of a checkpoint, from the headers of its files, and the model made of them. */
#ifndef BP_FORMATS_MODELS_TENSORS_H
#define BP_FORMATS_MODELS_TENSORS_H

#include <bucketpool/formats.h>
#include <bucketpool/status.h>

#include <jansson.h>
#include <stddef.h>

typedef struct bp_tensor {
    const char *name; /* lives as long as the table */
    bp_dtype dtype;
    uint32_t dims;
    uint64_t shape[BP_MAX_DIMS]; /* no dimension is 0 */
} bp_tensor;

typedef struct bp_tensors {
    bp_tensor *tensors; /* in order of appearance; those without elements are left out */
    size_t count, capacity;
    json_t *files; /* name of every tensor -> number of the file it was seen in; owns the names */
} bp_tensors;

bp_status bp_tensors_init(bp_tensors *tensors);
void bp_tensors_finish(bp_tensors *tensors);

/* Adds the tensors of one header. `data_bytes` follow it in the file, `file` is the file's number.
 * Errors: BP_ERR_FORMAT naming the tensor, BP_ERR_UNSUPPORTED for more than BP_MAX_DIMS dimensions. */
bp_status bp_tensors_add_header(bp_tensors *tensors, const char *header, size_t bytes, uint64_t data_bytes,
                                const char *origin, size_t file);

/* Groups tensors into units and experts' tensors into copies (see bp_safetensors_read).
 * Errors: BP_ERR_INVALID_ARGUMENT for options->units that cannot be read. */
bp_status bp_tensors_to_model(const bp_tensors *tensors, const char *origin, const bp_reader_options *options,
                              bp_model **model);

/* ---- names of units ---------------------------------------------------------------------------------------------- */

/* Which unit a parameter belongs to, by its name: patterns such as "layers.N,layers.N.experts.N". */

#define BP_DEFAULT_UNITS "layers.N,h.N,blocks.N"
#define BP_MOST_UNIT_PATTERNS 16 /* also the deepest nesting */

typedef struct bp_unit_pattern {
    const char *text;
    const char *rest; /* what is behind the pattern that this one lies inside; all of it without such */
    int outer;        /* index of the longest pattern that this one starts with, -1: none */
} bp_unit_pattern;

typedef struct bp_unit_patterns {
    char *text;
    size_t count;
    bp_unit_pattern patterns[BP_MOST_UNIT_PATTERNS];
} bp_unit_patterns;

/* Errors: BP_ERR_INVALID_ARGUMENT (an empty pattern or component, too many). */
bp_status bp_unit_patterns_init(bp_unit_patterns *patterns, const char *text);
void bp_unit_patterns_finish(bp_unit_patterns *patterns);

/* One unit that a name lies in. */
typedef struct bp_unit_match {
    size_t begin, end; /* the match is name[begin, end), the unit's name is name[0, end) */
    int pattern;
} bp_unit_match;

/* The units `name` lies in, outermost first; returns their number. */
size_t bp_unit_patterns_match(const bp_unit_patterns *patterns, const char *name,
                              bp_unit_match matches[BP_MOST_UNIT_PATTERNS]);

/* As strcmp, but runs of digits compare as numbers: layers.9 is before layers.10. Equal numbers compare as text. */
int bp_compare_natural(const char *left, const char *right);

#endif

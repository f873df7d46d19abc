/* Which unit a parameter belongs to, by its name: patterns such as "layers.N,layers.N.experts.N". */
#ifndef BP_FORMATS_UNIT_NAMES_H
#define BP_FORMATS_UNIT_NAMES_H

#include <bucketpool/status.h>

#include <stddef.h>

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

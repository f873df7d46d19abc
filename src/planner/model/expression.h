/* SPDX-License-Identifier: Apache-2.0 */
/* The expressions of architecture tables: integer arithmetic, comparisons and list look-ups over configuration fields.
 *
 *   heads*head_dim    first_dense <= layer && n_experts > 0    pattern[layer] == 'M'    layer in dense_layers
 *   has(kinds) ? kinds[layer] == 'attention' : layer % 4 == 3      count(pattern)      ceil(hidden, 16)
 *
 * Operators, loosest first: ?:  ||  &&  == != < <= > >= in  + -  * / %  ! and unary -. Truth is 1 or 0. Arithmetic is checked, and / must
 * leave no remainder: tables round explicitly with ceil(a, b) and floor(a, b). */
#ifndef BP_MODEL_EXPRESSION_H
#define BP_MODEL_EXPRESSION_H

#include <bucketpool/status.h>

#include <stddef.h>
#include <stdint.h>

typedef enum bp_value_kind {
    BP_VALUE_MISSING,
    BP_VALUE_INT,
    BP_VALUE_TEXT,
    BP_VALUE_INTS,
    BP_VALUE_TEXTS
} bp_value_kind;

typedef struct bp_value {
    bp_value_kind kind;
    int64_t number;
    const char *text; /* not terminated: a list element or a character of a pattern */
    size_t length;    /* of the text; elements of a list */
    const int64_t *numbers;
    const char *const *texts;
} bp_value;

/* Named values an expression may use. */
typedef struct bp_scope {
    const char *const *names;
    bp_value *values;
    size_t count;
    const char *const *labels; /* names in error messages; NULL, or a NULL entry: the name itself */
} bp_scope;

typedef struct bp_expression bp_expression;

/* Compiles `source`; names are resolved to indices, so evaluation needs a scope with the same names. `source` is kept by reference.
 * Errors: BP_ERR_INTERNAL with text and column: expressions are part of the library. */
bp_status bp_expression_create(const char *source, const bp_scope *names, bp_expression **expression);
void bp_expression_destroy(bp_expression **expression);

/* Errors: BP_ERR_INVALID_ARGUMENT (missing field, index outside its list, division by zero or with a remainder), BP_ERR_OVERFLOW. */
bp_status bp_expression_value(const bp_expression *expression, const bp_scope *scope, bp_value *value);
/* The same; the result must be a number. */
bp_status bp_expression_number(const bp_expression *expression, const bp_scope *scope, int64_t *number);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Compiles and evaluates the expressions of architecture tables. */
#include "planner/model/expression.h"

#include <bucketpool/core/fail.h>

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"

typedef enum operation {
    OP_NUMBER,
    OP_TEXT,
    OP_FIELD,
    OP_ELEMENT,
    OP_HAS,
    OP_COUNT,
    OP_CEIL,
    OP_FLOOR,
    OP_CHOOSE,
    OP_OR,
    OP_AND,
    OP_NOT,
    OP_NEGATE,
    OP_EQUAL,
    OP_DIFFERENT,
    OP_LESS,
    OP_LESS_EQUAL,
    OP_GREATER,
    OP_GREATER_EQUAL,
    OP_IN,
    OP_ADD,
    OP_SUBTRACT,
    OP_MULTIPLY,
    OP_DIVIDE,
    OP_REMAINDER
} operation;

typedef struct node {
    operation op;
    int operand[3]; /* indices of nodes, or of a field in operand[0] */
    int64_t number;
    const char *text;
    size_t length;
} node;

struct bp_expression {
    const char *source;
    node *nodes;
    size_t count, capacity;
    int root;
};

/* ---- parsing: one function a precedence level, each returning the index of its node or -1 ------------------------- */

typedef struct parser {
    bp_expression *expression;
    const bp_scope *scope;
    const char *at;
    bp_status status;
} parser;

static int parse_choice(parser *p);

static int fail_at(parser *p, const char *expected)
{
    if (p->status == BP_OK)
        p->status = bp_fail(BP_ERR_INTERNAL, "expression \"%s\", column %td: expected %s", p->expression->source,
                            p->at - p->expression->source + 1, expected);
    return -1;
}

static int add_node(parser *p, node added)
{
    bp_expression *e = p->expression;
    bp_status status = bp_grow_array((void **)&e->nodes, &e->capacity, e->count, sizeof *e->nodes);
    if (status != BP_OK) {
        p->status = status;
        return -1;
    }
    e->nodes[e->count] = added;
    return (int)e->count++;
}

static bool accept(parser *p, const char *token)
{
    while (*p->at == ' ')
        p->at++;
    size_t length = strlen(token);
    if (strncmp(p->at, token, length) != 0)
        return false;
    if (isalpha((unsigned char)*token) && (isalnum((unsigned char)p->at[length]) || p->at[length] == '_'))
        return false; /* a prefix of a longer name */
    p->at += length;
    return true;
}

static int parse_field(parser *p)
{
    while (*p->at == ' ')
        p->at++;
    size_t length = 0;
    while (isalnum((unsigned char)p->at[length]) || p->at[length] == '_')
        length++;
    for (size_t i = 0; length > 0 && i < p->scope->count; i++) {
        if (strlen(p->scope->names[i]) == length && strncmp(p->scope->names[i], p->at, length) == 0) {
            p->at += length;
            return add_node(p, (node){.op = OP_FIELD, .operand = {(int)i}});
        }
    }
    return fail_at(p, "a number, a field or '('");
}

static int parse_call(parser *p, operation op, int arguments)
{
    node call = {.op = op};
    if (!accept(p, "("))
        return fail_at(p, "'('");
    for (int i = 0; i < arguments; i++) {
        if (i > 0 && !accept(p, ","))
            return fail_at(p, "','");
        call.operand[i] = parse_choice(p);
        if (call.operand[i] < 0)
            return -1;
    }
    return accept(p, ")") ? add_node(p, call) : fail_at(p, "')'");
}

static int parse_primary(parser *p)
{
    if (accept(p, "(")) {
        int inner = parse_choice(p);
        return inner < 0 || accept(p, ")") ? inner : fail_at(p, "')'");
    }
    if (accept(p, "has"))
        return parse_call(p, OP_HAS, 1);
    if (accept(p, "count"))
        return parse_call(p, OP_COUNT, 1);
    if (accept(p, "ceil"))
        return parse_call(p, OP_CEIL, 2);
    if (accept(p, "floor"))
        return parse_call(p, OP_FLOOR, 2);
    if (accept(p, "'")) {
        const char *end = strchr(p->at, '\'');
        if (end == NULL)
            return fail_at(p, "a closing quote");
        node text = {.op = OP_TEXT, .text = p->at, .length = (size_t)(end - p->at)};
        p->at = end + 1;
        return add_node(p, text);
    }
    if (isdigit((unsigned char)*p->at)) {
        char *end;
        node number = {.op = OP_NUMBER, .number = strtoll(p->at, &end, 10)};
        p->at = end;
        return add_node(p, number);
    }
    int field = parse_field(p);
    if (field < 0 || !accept(p, "["))
        return field;
    int index = parse_choice(p);
    if (index < 0)
        return -1;
    return accept(p, "]") ? add_node(p, (node){.op = OP_ELEMENT, .operand = {field, index}}) : fail_at(p, "']'");
}

static int parse_unary(parser *p)
{
    bool not = accept(p, "!");
    if (!not &&!accept(p, "-"))
        return parse_primary(p);
    int inner = parse_unary(p);
    return inner < 0 ? -1 : add_node(p, (node){.op = not ? OP_NOT : OP_NEGATE, .operand = {inner}});
}

/* Left-associative binary operators by level, tightest first. Longer tokens come before their prefixes. */
#define LEVELS 5
static const struct {
    const char *token;
    operation op;
    int level;
} binary_operators[] = {
    {"*", OP_MULTIPLY, 0},       {"/", OP_DIVIDE, 0}, {"%", OP_REMAINDER, 0},  {"+", OP_ADD, 1},
    {"-", OP_SUBTRACT, 1},       {"==", OP_EQUAL, 2}, {"!=", OP_DIFFERENT, 2}, {"<=", OP_LESS_EQUAL, 2},
    {">=", OP_GREATER_EQUAL, 2}, {"<", OP_LESS, 2},   {">", OP_GREATER, 2},    {"in", OP_IN, 2},
    {"&&", OP_AND, 3},           {"||", OP_OR, 4},
};

static int parse_binary(parser *p, int level)
{
    int left = level == 0 ? parse_unary(p) : parse_binary(p, level - 1);
    while (left >= 0) {
        const size_t count = sizeof binary_operators / sizeof *binary_operators;
        size_t i = 0;
        while (i < count && (binary_operators[i].level != level || !accept(p, binary_operators[i].token)))
            i++;
        if (i == count)
            return left;
        int right = level == 0 ? parse_unary(p) : parse_binary(p, level - 1);
        left = right < 0 ? -1 : add_node(p, (node){.op = binary_operators[i].op, .operand = {left, right}});
    }
    return left;
}

static int parse_choice(parser *p)
{
    int condition = parse_binary(p, LEVELS - 1);
    if (condition < 0 || !accept(p, "?"))
        return condition;
    int yes = parse_choice(p);
    if (yes < 0)
        return -1;
    if (!accept(p, ":"))
        return fail_at(p, "':'");
    int no = parse_choice(p);
    return no < 0 ? -1 : add_node(p, (node){.op = OP_CHOOSE, .operand = {condition, yes, no}});
}

bp_status bp_expression_create(const char *source, const bp_scope *names, bp_expression **expression)
{
    void *memory;
    BP_TRY(bp_new_array(1, sizeof(bp_expression), &memory));
    bp_expression *created = memory;
    created->source = source;
    parser p = {.expression = created, .scope = names, .at = source};
    created->root = parse_choice(&p);
    if (p.status == BP_OK && (accept(&p, " "), *p.at != '\0'))
        fail_at(&p, "the end or an operator");
    if (p.status != BP_OK) {
        bp_expression_destroy(&created);
        return p.status;
    }
    *expression = created;
    return BP_OK;
}

void bp_expression_destroy(bp_expression **expression)
{
    if (expression == NULL || *expression == NULL)
        return;
    free((*expression)->nodes);
    free(*expression);
    *expression = NULL;
}

/* ---- evaluation --------------------------------------------------------------------------------------------------- */

typedef struct evaluation {
    const bp_expression *expression;
    const bp_scope *scope;
} evaluation;

static bp_status evaluate(const evaluation *e, int index, bp_value *value);

static const char *label(const evaluation *e, int field)
{
    const char *given = e->scope->labels != NULL ? e->scope->labels[field] : NULL;
    return given != NULL ? given : e->scope->names[field];
}

static bp_status evaluate_number(const evaluation *e, int index, int64_t *number)
{
    bp_value value;
    BP_TRY(evaluate(e, index, &value));
    const node *n = &e->expression->nodes[index];
    const char *field = n->op == OP_FIELD ? label(e, n->operand[0]) : e->expression->source;
    if (value.kind == BP_VALUE_MISSING)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "field \"%s\" is missing", field);
    if (value.kind != BP_VALUE_INT)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "field \"%s\": expected a number", field);
    *number = value.number;
    return BP_OK;
}

/* list[i], the i-th character of a text, or a number that stands for every entry. */
static bp_status evaluate_element(const evaluation *e, const node *n, bp_value *value)
{
    bp_value list;
    int64_t i;
    BP_TRY(evaluate(e, n->operand[0], &list));
    BP_TRY(evaluate_number(e, n->operand[1], &i));
    const char *field = label(e, e->expression->nodes[n->operand[0]].operand[0]);
    if (list.kind == BP_VALUE_MISSING)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "field \"%s\" is missing", field);
    if (list.kind == BP_VALUE_INT) { /* one number for all layers */
        *value = list;
        return BP_OK;
    }
    if (i < 0 || (uint64_t)i >= list.length)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "field \"%s\" has %zu entries, none for layer %lld", field, list.length,
                       (long long)i);
    if (list.kind == BP_VALUE_INTS)
        *value = (bp_value){.kind = BP_VALUE_INT, .number = list.numbers[i]};
    else if (list.kind == BP_VALUE_TEXTS)
        *value = (bp_value){.kind = BP_VALUE_TEXT, .text = list.texts[i], .length = strlen(list.texts[i])};
    else
        *value = (bp_value){.kind = BP_VALUE_TEXT, .text = list.text + i, .length = 1};
    return BP_OK;
}

static bp_status evaluate_arithmetic(const evaluation *e, const node *n, int64_t *result)
{
    int64_t a, b;
    BP_TRY(evaluate_number(e, n->operand[0], &a));
    BP_TRY(evaluate_number(e, n->operand[1], &b));
    bool overflow = false;
    switch (n->op) {
    case OP_ADD: overflow = __builtin_add_overflow(a, b, result); break;
    case OP_SUBTRACT: overflow = __builtin_sub_overflow(a, b, result); break;
    case OP_MULTIPLY: overflow = __builtin_mul_overflow(a, b, result); break;
    case OP_LESS: *result = a < b; break;
    case OP_LESS_EQUAL: *result = a <= b; break;
    case OP_GREATER: *result = a > b; break;
    case OP_GREATER_EQUAL: *result = a >= b; break;
    default: /* division, exact, rounding down and up, and its remainder: all of values that are not negative */
        if (b <= 0 || a < 0)
            return bp_fail(BP_ERR_INVALID_ARGUMENT, "\"%s\": %lld cannot be divided by %lld", e->expression->source,
                           (long long)a, (long long)b);
        if (n->op == OP_DIVIDE && a % b != 0) {
            const node *left = &e->expression->nodes[n->operand[0]], *right = &e->expression->nodes[n->operand[1]];
            if (left->op == OP_FIELD && right->op == OP_FIELD)
                return bp_fail(BP_ERR_INVALID_ARGUMENT,
                               "field \"%s\" is %lld, expected a multiple of field \"%s\", which is %lld",
                               label(e, left->operand[0]), (long long)a, label(e, right->operand[0]), (long long)b);
            return bp_fail(BP_ERR_INVALID_ARGUMENT, "\"%s\": %lld is not a multiple of %lld", e->expression->source,
                           (long long)a, (long long)b);
        }
        *result = n->op == OP_REMAINDER ? a % b : a / b + (n->op == OP_CEIL && a % b != 0);
    }
    if (overflow)
        return bp_fail(BP_ERR_OVERFLOW, "\"%s\" does not fit 64 bits", e->expression->source);
    return BP_OK;
}

static bp_status evaluate(const evaluation *e, int index, bp_value *value)
{
    const node *n = &e->expression->nodes[index];
    bp_value a, b;
    int64_t number = 0;
    bool truth = false;
    switch (n->op) {
    case OP_NUMBER: number = n->number; break;
    case OP_TEXT: *value = (bp_value){.kind = BP_VALUE_TEXT, .text = n->text, .length = n->length}; return BP_OK;
    case OP_FIELD: *value = e->scope->values[n->operand[0]]; return BP_OK;
    case OP_ELEMENT: return evaluate_element(e, n, value);
    case OP_HAS:
    case OP_COUNT:
        BP_TRY(evaluate(e, n->operand[0], &a));
        number = n->op == OP_HAS ? a.kind != BP_VALUE_MISSING : (int64_t)a.length;
        break;
    case OP_CHOOSE:
        BP_TRY(evaluate_number(e, n->operand[0], &number));
        return evaluate(e, n->operand[number != 0 ? 1 : 2], value);
    case OP_AND:
    case OP_OR:
        BP_TRY(evaluate_number(e, n->operand[0], &number));
        if ((number != 0) == (n->op == OP_AND))
            BP_TRY(evaluate_number(e, n->operand[1], &number));
        number = number != 0;
        break;
    case OP_NOT:
        BP_TRY(evaluate_number(e, n->operand[0], &number));
        number = number == 0;
        break;
    case OP_NEGATE:
        BP_TRY(evaluate_number(e, n->operand[0], &number));
        if (__builtin_sub_overflow(0, number, &number))
            return bp_fail(BP_ERR_OVERFLOW, "\"%s\" does not fit 64 bits", e->expression->source);
        break;
    case OP_EQUAL:
    case OP_DIFFERENT:
    case OP_IN:
        BP_TRY(evaluate(e, n->operand[0], &a));
        BP_TRY(evaluate(e, n->operand[1], &b));
        if (n->op == OP_IN) { /* equality with any entry of a list of numbers */
            for (size_t i = 0; b.kind == BP_VALUE_INTS && a.kind == BP_VALUE_INT && i < b.length; i++)
                truth |= b.numbers[i] == a.number;
        } else if (a.kind == BP_VALUE_TEXT && b.kind == BP_VALUE_TEXT) {
            truth = a.length == b.length && memcmp(a.text, b.text, a.length) == 0;
        } else if (a.kind == BP_VALUE_INT && b.kind == BP_VALUE_INT) {
            truth = a.number == b.number;
        }
        number = truth != (n->op == OP_DIFFERENT);
        break;
    default: BP_TRY(evaluate_arithmetic(e, n, &number)); break;
    }
    *value = (bp_value){.kind = BP_VALUE_INT, .number = number};
    return BP_OK;
}

bp_status bp_expression_value(const bp_expression *expression, const bp_scope *scope, bp_value *value)
{
    evaluation e = {expression, scope};
    return evaluate(&e, expression->root, value);
}

bp_status bp_expression_number(const bp_expression *expression, const bp_scope *scope, int64_t *number)
{
    evaluation e = {expression, scope};
    return evaluate_number(&e, expression->root, number);
}

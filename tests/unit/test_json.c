/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON parser: against jansson, errors, deeply nested text on a small stack. */
#include "scratch.h"

#include <jansson.h>
#include <pthread.h>

#include "formats/json.h"
#include "support/brief.h"

#define DEEPEST 64

static bp_status parse(const char *text, json_t **document)
{
    return bp_json_parse(text, strlen(text), "d/x.json", NULL, document);
}

static const char *const documents[] = {"{}",
                                        " [ ] ",
                                        "\t{\r\n\"a\" : [1, -0, 0, -17, 9223372036854775807, -9223372036854775808] }\n",
                                        "[0.5, -1e3, 1E+2, 2e-2, 0.1e0, 1.0, 123456789012345678901234.0, 1e-400]",
                                        "[true, false, null, \"\", {\"\": {}}, [[]]]",
                                        "[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\", \"\\u0041\\u00e9\\u20AC\\uD83D\\ude00\", "
                                        "\"\303\251\342\202\254\360\237\230\200\\\"\"]",
                                        "{\"key with \\u0061n escape\": 1, \"key with an escap\\u0065d end\": "
                                        "{\"x\\n\": [\"y\"]}, \"z\": \"1234567890123456\"}"};

/* Our parser and jansson accept the same documents, with equal contents. */
static void compare(const char *text, size_t bytes)
{
    json_t *ours = NULL, *theirs = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, NULL);
    bp_status status = bp_json_parse(text, bytes, "x", NULL, &ours);
    if ((status == BP_OK) != (theirs != NULL) || (theirs != NULL && !json_equal(ours, theirs)))
        fail_msg("\"%.*s\": %s%s", (int)bytes, text, bp_status_name(status),
                 theirs != NULL ? ", jansson reads it" : "");
    assert_true(status == BP_OK || status == BP_ERR_FORMAT);
    json_decref(ours);
    json_decref(theirs);
}

static uint32_t next_random(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

TEST(test_like_jansson)
{
    static const char bytes[] = "{}[],:\"\\u0019aeE+-. \n\xc3\xa9\xed\xff\x01tfnl";
    uint32_t seed = 1;
    for (size_t i = 0; i < sizeof documents / sizeof *documents; i++) {
        json_t *document = NULL;
        assert_ok(parse(documents[i], &document));
        json_decref(document);
        compare(documents[i], strlen(documents[i]));
        for (size_t cut = 1; cut < strlen(documents[i]); cut++) {
            char *exact = malloc(cut); /* exact size, so that sanitizers detect reads beyond the end */
            assert_non_null(exact);
            compare(memcpy(exact, documents[i], cut), cut);
            free(exact);
        }
        for (int times = 0; times < share_of(20000); times++) {
            char text[256];
            size_t length = strlen(documents[i]);
            memcpy(text, documents[i], length);
            for (uint32_t changes = 1 + next_random(&seed) % 3; changes > 0; changes--) {
                size_t at = next_random(&seed) % length;
                char byte = bytes[next_random(&seed) % (sizeof bytes - 1)];
                if (next_random(&seed) % 2) {
                    text[at] = byte;
                } else {
                    memmove(text + at + 1, text + at, length - at);
                    text[at] = byte;
                    length++;
                }
            }
            compare(text, length);
        }
    }
}

TEST(test_messages)
{
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"", "d/x.json: empty, expected a JSON document"},
        {" ", "d/x.json:1:2: expected an object or a list, got the end of the text"},
        {"3", "d/x.json:1:1: expected an object or a list, got '3'"},
        {"{\"a\": [1, 2", "d/x.json:1:12: expected ',' or ']', got the end of the text"},
        {"{\"a\" 1}", "d/x.json:1:6: expected ':', got '1'"},
        {"{a: 1}", "d/x.json:1:2: expected the name of a member, got 'a'"},
        {"[1,\n  nul]", "d/x.json:2:3: expected a value, got 'nul'"},
        {"[1,]", "d/x.json:1:4: expected a value, got ']'"},
        {"[1] [2]", "d/x.json:1:5: expected the end of the text, got '['"},
        {"{\"a\": 1, \"a\": 2}", "d/x.json:1:10: duplicate member \"a\""},
        {"[\"\303\251\", 01]", "d/x.json:1:7: a number with a leading 0"},
        {"[1.]", "d/x.json:1:4: expected a digit after the point, got ']'"},
        {"[9223372036854775808]", "d/x.json:1:2: integer '9223372036854775808' exceeds 64 bits"},
        {"[1e999]", "d/x.json:1:2: number '1e999' is too large"},
        {"[\"\\ud800x\"]", "d/x.json:1:3: invalid escape '\\ud800'"},
        {"[\"a\\u0000\"]", "d/x.json:1:4: invalid escape '\\u0000'"},
        {"[\"a\nb\"]", "d/x.json:1:4: control character 0x0a in a string"},
        {"[\"\xff\"]", "d/x.json:1:2: a string that is not UTF-8"},
        {"[\"abc", "d/x.json:1:2: unterminated string"},
        {"[NaN]", "d/x.json:1:2: expected a value, got 'NaN'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *document = NULL;
        assert_int_equal(parse(cases[i].text, &document), BP_ERR_FORMAT);
        assert_string_equal(bp_error_detail(), cases[i].message);
        assert_null(document);
    }
}

TEST(test_python)
{
    const char *text = "{\"a\": [NaN, -Infinity, Infinity, -1], \"b\": \"NaN\"}";
    json_t *document = NULL, *expected = json_loads("{\"a\": [{}, {}, {}, -1], \"b\": \"NaN\"}", 0, NULL);
    bool not_numbers = false;
    assert_ok(bp_json_parse(text, strlen(text), "x", &not_numbers, &document));
    assert_true(not_numbers);
    assert_true(json_equal(document, expected));
    json_decref(document);
    json_decref(expected);
}

/* ---- a stack of 128 KiB ----------------------------------------------------------------------------------------------------------- */

enum { LEVELS = 1000000 };

/* `before`, then `levels` times `open`, then as many `close` unless 0, then `after`. */
static char *nested(const char *before, const char *open, size_t levels, char close, const char *after)
{
    size_t length = strlen(open), used = strlen(before);
    char *text = malloc(used + levels * (length + 1) + strlen(after) + 1);
    assert_non_null(text);
    memcpy(text, before, used);
    for (size_t i = 0; i < levels; i++, used += length)
        memcpy(text + used, open, length);
    for (size_t i = 0; close != '\0' && i < levels; i++)
        text[used++] = close;
    strcpy(text + used, after);
    return text;
}

typedef bp_status reader(const char *text);

static bp_status read_config(const char *text)
{
    bp_model *model = NULL;
    return bp_config_parse(text, strlen(text), "d/x.json", NULL, &model);
}

static bp_status read_units(const char *text)
{
    bp_model *model = NULL;
    return bp_units_parse(text, strlen(text), "d/x.json", NULL, &model);
}

static bp_status read_plan(const char *text)
{
    bp_plan *plan = NULL;
    return bp_plan_parse(text, strlen(text), "d/x.json", &plan);
}

static bp_status read_safetensors(const char *text)
{
    bp_model *model = NULL;
    size_t length = strlen(text);
    char *file = malloc(8 + length);
    if (file == NULL)
        return BP_ERR_NO_HOST_MEMORY;
    for (int i = 0; i < 8; i++)
        file[i] = (char)(length >> 8 * i);
    memcpy(file + 8, text, length);
    bp_status status = bp_safetensors_parse(file, 8 + length, 8 + length, "d/x.json", NULL, &model);
    free(file);
    return status;
}

typedef struct reading {
    reader *read;
    const char *text;
    bp_status status;
    char detail[256];
} reading;

static void *read_on_thread(void *user)
{
    reading *r = user;
    r->status = r->read(r->text);
    snprintf(r->detail, sizeof r->detail, "%s", bp_error_detail());
    return NULL;
}

static void on_small_stack(reading *r)
{
    pthread_attr_t attributes;
    pthread_t thread;
    assert_int_equal(pthread_attr_init(&attributes), 0);
    assert_int_equal(pthread_attr_setstacksize(&attributes, 128 << 10), 0);
    assert_int_equal(pthread_create(&thread, &attributes, read_on_thread, r), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    pthread_attr_destroy(&attributes);
}

TEST(test_nesting)
{
    static reader *const readers[] = {read_config, read_units, read_plan, read_safetensors};
    for (size_t i = 0; i < sizeof readers / sizeof *readers; i++) {
        char *texts[] = {nested("", "[", LEVELS, '\0', ""), nested("", "[", 2000, ']', ""),
                         nested("", "{\"a\":", LEVELS, '\0', ""), nested("{\"format\": ", "{\"a\":[", 40, '\0', "")};
        for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
            reading r = {.read = readers[i], .text = texts[k]};
            on_small_stack(&r);
            assert_int_equal(r.status, BP_ERR_FORMAT);
            assert_non_null(strstr(r.detail, "nested deeper than 64 levels"));
            free(texts[k]);
        }
        /* The deepest supported nesting is parsed, refused for its type, and freed. */
        char *allowed = nested("{\"vocab_size\": ", "[", DEEPEST - 1, ']', "}");
        reading r = {.read = readers[i], .text = allowed};
        on_small_stack(&r);
        assert_true(r.status == BP_ERR_FORMAT || r.status == BP_ERR_UNSUPPORTED);
        assert_null(strstr(r.detail, "nested"));
        free(allowed);
    }
}

TESTS(NULL, NULL)

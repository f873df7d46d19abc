/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON writer: exact documents, random documents against jansson, escapes, misuse, failing allocations and outputs. */
#include "scratch.h"

#include <jansson.h>
#include <math.h>

#include "core/json_writer.h"
#include "support/brief.h"
#include "support/shortage.h"

static void assert_text(const bp_json_writer *w, const char *expected)
{
    char *text = malloc(w->bytes + 1);
    assert_non_null(text);
    memcpy(text, w->text, w->bytes);
    text[w->bytes] = '\0';
    assert_string_equal(text, expected);
    free(text);
}

static void add_samples(bp_json_writer *w)
{
    const char *const pieces[] = {"a", "", "\"b"};
    bp_json_add_object(w, NULL);
    bp_json_add_text(w, "text", "\\ \b\f\n\r\t\x01\x7f <\xe2\x80\xa8>");
    bp_json_add_pieces(w, "pieces", pieces, 3);
    bp_json_add_text(w, "none", NULL);
    bp_json_add_row(w, "numbers");
    bp_json_add_number(w, NULL, UINT64_MAX);
    bp_json_add_signed(w, NULL, INT64_MIN);
    bp_json_add_thousandths(w, NULL, 1002003);
    bp_json_end(w);
    bp_json_add_list(w, "reals");
    const double reals[] = {0, -1, 0.1, 1e300, 123456789.25, NAN, -INFINITY};
    for (size_t i = 0; i < sizeof reals / sizeof *reals; i++)
        bp_json_add_real(w, NULL, reals[i]);
    bp_json_end(w);
    bp_json_add_object(w, "empty");
    bp_json_end(w);
    bp_json_add_line(w);
    bp_json_add_flag(w, "flag", true);
    bp_json_end(w);
}

TEST(test_layouts)
{
    static const char *const expected[] = {
        [BP_JSON_LINES] =
            "{\n  \"text\": \"\\\\ \\b\\f\\n\\r\\t\\u0001\\u007f <\xe2\x80\xa8>\",\n  \"pieces\": \"a\\\"b\",\n  "
            "\"none\": null,\n"
            "  \"numbers\": [18446744073709551615, -9223372036854775808, 1002.003],\n"
            "  \"reals\": [\n    0.0,\n    -1.0,\n    0.1,\n    1e+300,\n    123456789.0,\n    null,\n    null\n  ],\n"
            "  \"empty\": {},\n  \"flag\": true\n}\n",
        [BP_JSON_FITTED] = "{\n  \"text\": \"\\\\ \\b\\f\\n\\r\\t\\u0001\\u007f <\xe2\x80\xa8>\",\n  \"pieces\": "
                           "\"a\\\"b\",\n  \"none\": null,\n"
                           "  \"numbers\": [18446744073709551615, -9223372036854775808, 1002.003],\n"
                           "  \"reals\": [0.0, -1.0, 0.1, 1e+300, 123456789.0, null, null],\n"
                           "  \"empty\": {},\n  \"flag\": true\n}\n",
        [BP_JSON_COMPACT] =
            "{\"text\":\"\\\\ \\b\\f\\n\\r\\t\\u0001\\u007f <\xe2\x80\xa8>\",\"pieces\":\"a\\\"b\",\"none\":null,"
            "\"numbers\":[18446744073709551615,-9223372036854775808,1002.003],"
            "\"reals\":[0.0,-1.0,0.1,1e+300,123456789.0,null,null],\"empty\":{},\n\"flag\":true}\n",
    };
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        bp_json_writer w = {.layout = (bp_json_layout)i};
        add_samples(&w);
        assert_ok(bp_json_close(&w));
        assert_text(&w, expected[i]);
        free(w.text);
    }
}

/* ---- random documents ------------------------------------------------------------------------------------------------------ */

static uint32_t next_random(uint32_t *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

/* Random text that jansson and the writer escape alike. */
static const char *random_text(uint32_t *seed)
{
    static const char *const parts[] = {"a",        "layers.",          "/", "\"", "\\", "\n", "\t",
                                        "\xc3\xa9", "\xf0\x9f\x98\x80", "<&"};
    static char text[256];
    size_t count = next_random(seed) % 9;
    text[0] = '\0';
    for (size_t i = 0; i < count; i++)
        strcat(text, parts[next_random(seed) % (sizeof parts / sizeof *parts)]);
    return text;
}

static json_t *random_value(uint32_t *seed, unsigned depth)
{
    uint32_t kind = next_random(seed) % (depth < 8 ? 12 : 6);
    if (kind >= 6) {
        bool is_list = kind % 2 == 0;
        json_t *value = is_list ? json_array() : json_object();
        for (uint32_t count = next_random(seed) % 7; count > 0; count--) {
            json_t *member = random_value(seed, depth + 1);
            char key[300];
            snprintf(key, sizeof key, "%u%s", count, random_text(seed));
            assert_int_equal(is_list ? json_array_append_new(value, member) : json_object_set_new(value, key, member),
                             0);
        }
        return value;
    }
    int64_t wide = (int64_t)((uint64_t)next_random(seed) << 40 | (uint64_t)next_random(seed) << 20 | next_random(seed));
    switch (kind) {
    case 0: return json_null();
    case 1: return json_boolean(next_random(seed) % 2);
    case 2: return json_integer(wide);
    case 3: return json_integer(next_random(seed) % 2000);
    case 4: return json_real(((double)(next_random(seed) % 200000) - 1e5) / 8) /* nine digits */;
    default: return json_string(random_text(seed));
    }
}

static void write_value(bp_json_writer *w, const char *key, json_t *value)
{
    const char *name;
    json_t *member;
    size_t i;
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        bp_json_add_object(w, key);
        json_object_foreach(value, name, member) write_value(w, name, member);
        bp_json_end(w);
        break;
    case JSON_ARRAY:
        bp_json_add_list(w, key);
        json_array_foreach(value, i, member) write_value(w, NULL, member);
        bp_json_end(w);
        break;
    case JSON_STRING: bp_json_add_text(w, key, json_string_value(value)); break;
    case JSON_INTEGER: bp_json_add_signed(w, key, json_integer_value(value)); break;
    case JSON_REAL: bp_json_add_real(w, key, json_real_value(value)); break;
    case JSON_NULL: bp_json_add_null(w, key); break;
    default: bp_json_add_flag(w, key, json_is_true(value)); break;
    }
}

/* Reference implementation of the fitted layout; `column`: where the value begins. */
static void print_expected(FILE *file, json_t *value, size_t indent, size_t column)
{
    char *flat = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
    assert_non_null(flat);
    bool is_object = json_is_object(value), is_flat = column + strlen(flat) < 160;
    if (is_flat || (json_object_size(value) == 0 && json_array_size(value) == 0)) {
        fputs(flat, file);
        free(flat);
        return;
    }
    free(flat);
    const char *key, *between = "";
    json_t *member;
    size_t i;
    fputc(is_object ? '{' : '[', file);
    json_object_foreach(value, key, member)
    {
        json_t *name = json_string(key);
        char *quoted = json_dumps(name, JSON_ENCODE_ANY);
        fprintf(file, "%s\n%*s%s: ", between, (int)indent + 2, "", quoted);
        print_expected(file, member, indent + 2, indent + 4 + strlen(quoted));
        free(quoted);
        json_decref(name);
        between = ",";
    }
    json_array_foreach(value, i, member)
    {
        fprintf(file, "%s\n%*s", between, (int)indent + 2, "");
        print_expected(file, member, indent + 2, indent + 2);
        between = ",";
    }
    fprintf(file, "\n%*s%c", (int)indent, "", is_object ? '}' : ']');
}

TEST(test_random_documents)
{
    uint32_t seed = 7;
    for (int times = 0; times < share_of(3000); times++) {
        json_t *value = random_value(&seed, 0);
        for (int layout = BP_JSON_LINES; layout <= BP_JSON_COMPACT; layout++) {
            bp_json_writer w = {.layout = (bp_json_layout)layout, .is_in_page = next_random(&seed) % 2};
            w.is_in_page = w.is_in_page && layout != BP_JSON_FITTED;
            write_value(&w, NULL, value);
            assert_ok(bp_json_close(&w));
            json_error_t error;
            json_t *again = json_loadb(w.text, w.bytes, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &error);
            if (again == NULL || !json_equal(value, again))
                fail_msg("%s: %.*s", error.text, (int)w.bytes, w.text);
            json_decref(again);
            if (layout == BP_JSON_FITTED) {
                char *expected = NULL;
                size_t bytes = 0;
                FILE *file = open_memstream(&expected, &bytes);
                assert_non_null(file);
                print_expected(file, value, 0, 0);
                fputc('\n', file);
                fclose(file);
                assert_text(&w, expected);
                free(expected);
            }
            free(w.text);
        }
        json_decref(value);
    }
}

/* ---- escapes --------------------------------------------------------------------------------------------------------------- */

static void assert_read_as(const char *text, bool is_in_page, const char *expected)
{
    bp_json_writer w = {.is_in_page = is_in_page, .replacement = "\\ufffd"};
    bp_json_add_text(&w, NULL, text);
    assert_ok(bp_json_close(&w));
    json_t *value = json_loadb(w.text, w.bytes, JSON_DECODE_ANY, NULL);
    assert_non_null(value);
    assert_string_equal(json_string_value(value), expected);
    assert_int_equal(w.has_replaced, strcmp(text, expected) != 0);
    for (size_t i = 0; i + 1 < w.bytes; i++) {
        assert_true((unsigned char)w.text[i] >= 0x20 && w.text[i] != 0x7f);
        assert_true(!is_in_page || strchr("<>&'", w.text[i]) == NULL);
        assert_true(!is_in_page || i + 3 > w.bytes ||
                    (memcmp(w.text + i, "\xe2\x80\xa8", 3) != 0 && memcmp(w.text + i, "\xe2\x80\xa9", 3) != 0));
    }
    json_decref(value);
    free(w.text);
}

TEST(test_escapes)
{
    char text[16], expected[32];
    uint32_t seed = 3;
    for (int page = 0; page < 2; page++) {
        for (int byte = 1; byte < 256; byte++) {
            snprintf(text, sizeof text, "x%cy", byte);
            snprintf(expected, sizeof expected, "x%sy", byte < 0x80 ? (char[]){(char)byte, 0} : "\xef\xbf\xbd");
            assert_read_as(text, page != 0, expected);
        }
        assert_read_as(
            "\xff\xc0\x80 \xed\xa0\x80 \xe2\x82", page != 0,
            "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd \xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd \xef\xbf\xbd\xef\xbf\xbd");
        assert_read_as("\xf4\x8f\xbf\xbf\xf0\x90\x80\x80\xe0\xa0\x80\xed\x9f\xbf\xc2\x80", page != 0,
                       "\xf4\x8f\xbf\xbf\xf0\x90\x80\x80\xe0\xa0\x80\xed\x9f\xbf\xc2\x80");
        assert_read_as("</script>\xe2\x80\xa8\xe2\x80\xa9\xe2\x80\xaa&'", page != 0,
                       "</script>\xe2\x80\xa8\xe2\x80\xa9\xe2\x80\xaa&'");
    }
    bp_json_writer plain = {0};
    bp_json_add_text(&plain, NULL, "\xff\xc3\xa9\xc3 \xe2\x82");
    assert_ok(bp_json_close(&plain));
    assert_text(&plain, "\"?\xc3\xa9? ??\"\n");
    free(plain.text);
    /* any bytes give a valid document */
    for (int times = 0; times < share_of(20000); times++) {
        static const char bytes[] = "\xc3\xa9\xe2\x80\xa8\xed\xff\xf0\x9f\x98\x80\xf4\x90\"\\\x01 a<";
        size_t count = next_random(&seed) % 15;
        for (size_t i = 0; i < count; i++)
            text[i] = bytes[next_random(&seed) % (sizeof bytes - 1)];
        text[count] = '\0';
        bp_json_writer w = {.is_in_page = times % 2};
        bp_json_add_text(&w, NULL, text);
        assert_ok(bp_json_close(&w));
        json_t *value = json_loadb(w.text, w.bytes, JSON_DECODE_ANY, NULL);
        assert_non_null(value);
        assert_true(w.has_replaced || strcmp(json_string_value(value), text) == 0);
        json_decref(value);
        free(w.text);
    }
}

/* ---- failures -------------------------------------------------------------------------------------------------------------- */

TEST(test_misuse)
{
    for (int kind = 0; kind < 6; kind++) {
        bp_json_writer w = {0};
        if (kind > 1)
            bp_json_add_object(&w, NULL);
        switch (kind) {
        case 0: break; /* no value */
        case 1: bp_json_add_null(&w, "key"); break;
        case 2: bp_json_add_null(&w, NULL); break;
        case 3: break; /* not closed */
        case 4:
            bp_json_end(&w);
            bp_json_add_null(&w, NULL);
            break;
        default:
            bp_json_end(&w);
            bp_json_end(&w);
            break;
        }
        assert_int_equal(bp_json_close(&w), BP_ERR_INTERNAL);
        free(w.text);
    }
    for (unsigned levels = BP_JSON_MAX_LEVELS - 1; levels <= BP_JSON_MAX_LEVELS; levels++) {
        bp_json_writer w = {.layout = BP_JSON_FITTED};
        for (unsigned i = 0; i < levels; i++)
            bp_json_add_list(&w, NULL);
        for (unsigned i = 0; i < levels; i++)
            bp_json_end(&w);
        assert_int_equal(bp_json_close(&w), levels < BP_JSON_MAX_LEVELS ? BP_OK : BP_ERR_INTERNAL);
        free(w.text);
    }
    bp_json_writer w = {0}; /* keeps the first failure */
    assert_true(bp_json_check(&w, BP_OK));
    assert_false(bp_json_check(&w, BP_ERR_MISMATCH));
    assert_false(bp_json_check(&w, BP_ERR_NO_HOST_MEMORY));
    bp_json_end(&w);
    assert_int_equal(bp_json_close(&w), BP_ERR_MISMATCH);
    assert_int_equal(w.bytes, 0);
}

static bp_status save_much(bp_json_layout layout, const char *path)
{
    bp_json_writer w = {.layout = layout};
    bp_json_add_object(&w, NULL);
    bp_json_add_list(&w, "list");
    for (uint64_t i = 0; i < 20000; i++)
        bp_json_add_number(&w, NULL, i);
    bp_json_end(&w);
    bp_json_end(&w);
    return bp_json_save(&w, path);
}

SCRATCH_TEST(test_allocation_failures)
{
    for (int layout = BP_JSON_LINES; layout <= BP_JSON_COMPACT; layout++) {
        unsigned fails = 1;
        for (bp_status status = BP_ERR_NO_HOST_MEMORY; status != BP_OK; fails++) {
            shortage.fails = fails;
            status = save_much((bp_json_layout)layout, in_scratch("x.json"));
            bool has_failed = shortage.fails == 0;
            shortage.fails = 0;
            assert_int_equal(status, has_failed ? BP_ERR_NO_HOST_MEMORY : BP_OK);
            assert_int_equal(count_entries(scratch), has_failed ? 0 : 1);
        }
        assert_in_range(fails, 5, 50);
        json_t *value = json_load_file(in_scratch("x.json"), 0, NULL);
        assert_int_equal(json_array_size(json_object_get(value, "list")), 20000);
        json_decref(value);
        assert_int_equal(unlink(in_scratch("x.json")), 0);
    }
}

SCRATCH_TEST(test_outputs)
{
    bp_output output;
    char twice[2][2048] = {{0}};
    assert_ok(bp_output_open(&output, in_scratch("x.json")));
    bp_json_writer w = {.output = &output}, in_memory = {0};
    add_samples(&w);
    assert_ok(bp_json_close(&w));
    assert_ok(bp_output_commit(&output));
    bp_output_finish(&output);
    add_samples(&in_memory);
    assert_ok(bp_json_save(&in_memory, in_scratch("y.json")));
    for (int i = 0; i < 2; i++) {
        FILE *file = fopen(in_scratch(i == 0 ? "x.json" : "y.json"), "r");
        assert_non_null(file);
        assert_in_range(fread(twice[i], 1, sizeof twice[i] - 1, file), 200, 1000);
        fclose(file);
    }
    assert_string_equal(twice[0], twice[1]);
    assert_int_equal(save_much(BP_JSON_LINES, in_scratch("none/x.json")), BP_ERR_IO);
    assert_int_equal(save_much(BP_JSON_LINES, "/dev/full"), BP_ERR_IO);
}

TESTS(NULL, NULL)

/* Pickles as data: every opcode that is read, every one that is refused, and what is at the limits. */
#include "scratch.h"

#include "formats/pickle.h"

#define P2 "\x80\x02"
#define P4 "\x80\x04"

/* In memory of its exact size, so that a sanitizer sees reads behind the end; the pickle points into it. */
static char *held;

static bp_status parse_bytes(const char *data, size_t bytes, bp_pickle *pickle)
{
    free(held);
    held = malloc(bytes > 0 ? bytes : 1);
    assert_non_null(held);
    memcpy(held, data, bytes);
    *pickle = (bp_pickle){0};
    bp_status status = bp_pickle_parse(held, bytes, "d/x.pickle", pickle);
    assert_true((status == BP_OK) == (pickle->value != NULL));
    return status;
}

#define PARSE(data, pickle) parse_bytes(data, sizeof(data) - 1, pickle)
#define REFUSES(data, ...)                                                                                             \
    do {                                                                                                               \
        bp_pickle refused;                                                                                             \
        assert_fails(PARSE(data, &refused), BP_ERR_FORMAT, "d/x.pickle: byte ", __VA_ARGS__);                          \
    } while (0)

static void assert_integer(const bp_pickle_value *value, uint64_t magnitude, bool is_negative)
{
    assert_int_equal(value->kind, BP_PICKLE_INTEGER);
    assert_true(value->magnitude == magnitude);
    assert_int_equal(value->is_negative, is_negative);
}

static void assert_text(const bp_pickle_value *value, const char *text)
{
    assert_int_equal(value->kind, BP_PICKLE_STRING);
    assert_int_equal(value->count, strlen(text));
    assert_memory_equal(value->text, text, value->count);
}

static void test_integers(void **state)
{
    (void)state;
    bp_pickle p;
    assert_ok(PARSE(
        P2 "](K\xffM\x01\x02J\xff\xff\xff\xffJ\x00\x00\x00\x80\x8a\x00\x8a\x01\x80\x8a\x09\xff\xff\xff\xff\xff\xff\xff"
           "\xff\x00\x8a\x09\x01\x00\x00\x00\x00\x00\x00\x00\xff\x8b\x02\x00\x00\x00\x00\x01\x88\x89Ne.",
        &p));
    const struct {
        uint64_t magnitude;
        bool is_negative;
    } expected[] = {{255, false}, {513, false},        {1, true},          {2147483648u, true}, {0, false},
                    {128, true},  {UINT64_MAX, false}, {UINT64_MAX, true}, {256, false}};
    assert_int_equal(p.value->count, 12);
    for (size_t i = 0; i < 9; i++)
        assert_integer(p.value->items[i], expected[i].magnitude, expected[i].is_negative);
    assert_int_equal(p.value->items[9]->kind, BP_PICKLE_BOOL);
    assert_int_equal(p.value->items[9]->magnitude, 1);
    assert_int_equal(p.value->items[10]->magnitude, 0);
    assert_int_equal(p.value->items[11]->kind, BP_PICKLE_NONE);
    bp_pickle_finish(&p);
    assert_null(p.value);
    REFUSES(P2 "\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01.", "byte 2", "9 bytes", "64 bits");
    REFUSES(P2 "\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\xff.", "byte 2", "64 bits");
    REFUSES(P2 "\x8a\x09\xff", "9 bytes belong here, 1 are left");
}

static void test_texts(void **state)
{
    (void)state;
    bp_pickle p;
    assert_ok(PARSE(P4 "(X\x02\x00\x00\x00h\xc3\x8c\x01"
                       "a\x8d\x01\x00\x00\x00\x00\x00\x00\x00"
                       "bU\x01"
                       "cT\x01\x00\x00\x00"
                       "dC\x01"
                       "eB\x01\x00\x00\x00"
                       "f\x8e\x00\x00\x00\x00\x00\x00\x00\x00G\x3f\xf8\x00\x00\x00\x00\x00\x00t.",
                    &p));
    assert_int_equal(p.value->kind, BP_PICKLE_TUPLE);
    assert_int_equal(p.value->count, 9);
    assert_text(p.value->items[0], "h\xc3");
    assert_text(p.value->items[1], "a");
    assert_text(p.value->items[2], "b");
    assert_text(p.value->items[3], "c");
    assert_text(p.value->items[4], "d");
    assert_int_equal(p.value->items[5]->kind, BP_PICKLE_BYTES);
    assert_int_equal(p.value->items[7]->count, 0);
    assert_int_equal(p.value->items[8]->kind, BP_PICKLE_FLOAT);
    assert_true(p.value->items[8]->real == 1.5);
    bp_pickle_finish(&p);
    REFUSES(P2 "X\xff\xff\xff\xff"
               "ab",
            "byte 2", "4294967295 bytes belong here, 2 are left");
    REFUSES(P4 "\x8d\xff\xff\xff\xff\xff\xff\xff\xff", "18446744073709551615 bytes");
    REFUSES(P4 "\x8c", "1 bytes belong here, 0 are left");
    REFUSES(P2 "G\x00\x00", "8 bytes");
}

static void test_containers(void **state)
{
    (void)state;
    bp_pickle p;
    assert_ok(PARSE(P2 "}(X\x01\x00\x00\x00"
                       "a](K\x01K\x02"
                       "eX\x01\x00\x00\x00"
                       "bK\x07uX\x01\x00\x00\x00"
                       "aK\x09s.",
                    &p));
    assert_int_equal(p.value->count, 6);
    assert_integer(bp_pickle_find(p.value, "a"), 9, false); /* the last one, as in Python */
    assert_integer(bp_pickle_find(p.value, "b"), 7, false);
    assert_null(bp_pickle_find(p.value, "ab"));
    assert_null(bp_pickle_find(p.value, ""));
    assert_null(bp_pickle_find(NULL, "a"));
    assert_true(bp_pickle_is_list(p.value->items[1]));
    assert_int_equal(p.value->items[1]->count, 2);
    bp_pickle_finish(&p);
    assert_ok(PARSE(P2 "(K\x01\x85K\x02K\x03\x86K\x04K\x05K\x06\x87)]K\x07"
                       "a(K\x08l(K\x01K\x02"
                       "dt.",
                    &p));
    static const uint32_t counts[] = {1, 2, 3, 0, 1, 1, 2};
    assert_int_equal(p.value->count, 7);
    for (size_t i = 0; i < 7; i++)
        assert_int_equal(p.value->items[i]->count, counts[i]);
    assert_null(bp_pickle_find(p.value->items[6], "a"));
    bp_pickle_finish(&p);
}

static void test_long_lists(void **state)
{
    (void)state;
    enum { ITEMS = 5000 };
    static char data[3 + ITEMS * 3 + 1] = P2 "]";
    for (size_t i = 0; i < ITEMS; i++) {
        data[3 + 3 * i] = 'K';
        data[4 + 3 * i] = (char)(i % 128);
        data[5 + 3 * i] = 'a';
    }
    data[sizeof data - 1] = '.';
    bp_pickle p;
    assert_ok(parse_bytes(data, sizeof data, &p));
    assert_int_equal(p.value->count, ITEMS);
    for (size_t i = 0; i < ITEMS; i++)
        assert_integer(p.value->items[i], i % 128, false);
    bp_pickle_finish(&p);
}

static void test_memo(void **state)
{
    (void)state;
    bp_pickle p;
    assert_ok(PARSE(
        P4 "\x95\x16\x00\x00\x00\x00\x00\x00\x00]\x94(\x8c\x01x\x94h\x01r\x07\x00\x00\x00j\x07\x00\x00\x00g7\np8\nh\x08"
           "e.",
        &p));
    assert_int_equal(p.value->count, 5);
    for (size_t i = 0; i < 5; i++)
        assert_ptr_equal(p.value->items[i], p.value->items[0]);
    bp_pickle_finish(&p);
    assert_ok(PARSE(P2 "]q\x00h\x00"
                       "a.",
                    &p)); /* a list in itself */
    assert_ptr_equal(p.value->items[0], p.value);
    bp_pickle_finish(&p);
    REFUSES(P2 "]h\x05.", "byte 3", "number 5 of the memo is not there");
    REFUSES(P2 "]j\xff\xff\xff\xff.", "number 4294967295");
    REFUSES(P2 "]r\xff\xff\xff\xff.", "byte 3", "number 4294967295 of the memo", "9 bytes");
    REFUSES(P2 "]p\n.", "digits");
    REFUSES(P2 "]g99999999999999\n.", "digits");
    REFUSES(P2 "q\x00.", "takes 1 values, the stack has 0");
    REFUSES(P4 "\x95\xff\x00\x00\x00\x00\x00\x00\x00N.", "a frame of 255 bytes, 2 are left");
}

static void test_what_is_no_data(void **state)
{
    (void)state;
    REFUSES(P2 "cos\nsystem\nX\x02\x00\x00\x00ls\x85R.", "byte 2", "names the global os.system");
    REFUSES(P2 "cos", "names the global os.;");
    REFUSES(P2 "(ios\nsystem\n.", "names the global os.system");
    REFUSES(P4 "\x8c\x02os\x8c\x06system\x93.", "byte 14", "names the global os.system");
    REFUSES(P4 "NN\x93.", "names the global ?.?");
    REFUSES(P4 "\x93.", "takes 2 values");
    REFUSES(P2 "c\x1b[31m\n\xff\n.", "names the global ?[31m.?");
    const struct {
        char opcode;
        const char *name;
    } refused[] = {{'R', "REDUCE"},
                   {'b', "BUILD"},
                   {'o', "OBJ"},
                   {'\x81', "NEWOBJ"},
                   {'\x92', "NEWOBJ_EX"},
                   {'\x82', "EXT1"},
                   {'\x83', "EXT2"},
                   {'\x84', "EXT4"},
                   {'P', "PERSID"},
                   {'Q', "BINPERSID"},
                   {'\x8f', "EMPTY_SET"},
                   {'\x90', "ADDITEMS"},
                   {'\x91', "FROZENSET"},
                   {'\x96', "BYTEARRAY8"},
                   {'\x97', "NEXT_BUFFER"},
                   {'\x98', "READONLY_BUFFER"},
                   {'\0', "0x00 is no opcode"},
                   {'\xff', "0xff is no opcode"},
                   {'I', "0x49 is no opcode"}};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        const char data[] = {'\x80', 4, 'N', refused[i].opcode, '.'};
        bp_pickle p;
        assert_fails(parse_bytes(data, sizeof data, &p), BP_ERR_FORMAT, "d/x.pickle: byte 3", refused[i].name);
    }
}

static void test_what_does_not_end(void **state)
{
    (void)state;
    REFUSES("", "byte 0", "no pickle of protocol 2 to 5");
    REFUSES("{\"a\": 1}", "no pickle");
    REFUSES("\x80\x01N.", "a pickle of protocol 1; 2 to 5 are read");
    REFUSES("\x80\x06N.", "protocol 6");
    REFUSES(P2, "byte 2", "the file ends here");
    REFUSES(P2 "N", "byte 3", "the file ends here");
    REFUSES(P2 ".", "0 values and 0 marks");
    REFUSES(P2 "NN.", "2 values");
    REFUSES(P2 "N(.", "1 marks");
    REFUSES(P2 "N.N", "1 bytes behind the end");
    REFUSES(P2 "t.", "without a mark");
    REFUSES(P2 "](a.", "takes 2 values, the stack has 0");
    REFUSES(P2 "]K\x01K\x02s.", "without a dictionary");
    REFUSES(P2 "K\x01K\x02"
               "a.",
            "without a list");
    REFUSES(P2 "(K\x01"
               "e.",
            "without a list");
    REFUSES(P2 "}(K\x01u.", "last key has no value");
    REFUSES(P2 "(K\x01"
               "d.",
            "last key has no value");
    static char marks[2 + 2000] = P2;
    memset(marks + 2, '(', 2000);
    bp_pickle p;
    assert_fails(parse_bytes(marks, sizeof marks, &p), BP_ERR_FORMAT, "byte 1002", "more than 1000");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_integers),          cmocka_unit_test(test_texts), cmocka_unit_test(test_containers),
        cmocka_unit_test(test_long_lists),        cmocka_unit_test(test_memo),  cmocka_unit_test(test_what_is_no_data),
        cmocka_unit_test(test_what_does_not_end),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(held);
    return failed;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Pickles as data: every supported opcode, every refused one, limits. */
#include "scratch.h"

#include "formats/snapshots/pickle.h"

#define P2 "\x80\x02"
#define P4 "\x80\x04"

/* The data, in memory of exact size, so that sanitizers detect reads beyond the end; the pickle points into it. */
static char *held;
static bp_pickle p;
static size_t budget = 1 << 20;

static bp_status parse_bytes(const char *data, size_t bytes)
{
    free(held);
    held = malloc(bytes > 0 ? bytes : 1);
    assert_non_null(held);
    memcpy(held, data, bytes);
    p = (bp_pickle){0};
    bp_status status = bp_pickle_parse(held, bytes, budget, "d/x.pickle", NULL, &p);
    assert_true((status == BP_OK) == (p.data != NULL));
    return status;
}

static bp_pickle_value root(void)
{
    return bp_pickle_get(&p, p.root);
}

static bp_pickle_value item(size_t index)
{
    assert_true(index < root().count);
    return bp_pickle_get(&p, root().items[index]);
}

static bp_pickle_value find(const char *key)
{
    return bp_pickle_get(&p, bp_pickle_find(&p, root(), key));
}

#define PARSE(data) parse_bytes(data, sizeof(data) - 1)
#define REFUSES(data, ...) assert_fails(PARSE(data), BP_ERR_FORMAT, "d/x.pickle: byte ", __VA_ARGS__)

static void assert_integer(bp_pickle_value value, uint64_t magnitude, bool is_negative)
{
    assert_int_equal(value.kind, BP_PICKLE_INTEGER);
    assert_true(value.magnitude == magnitude);
    assert_int_equal(value.is_negative, is_negative);
}

static void assert_text(bp_pickle_value value, const char *text)
{
    assert_int_equal(value.kind, BP_PICKLE_STRING);
    assert_int_equal(value.count, strlen(text));
    assert_memory_equal(value.text, text, value.count);
}

TEST(test_integers)
{
    assert_ok(PARSE(
        P2 "](K\xffM\x01\x02J\xff\xff\xff\xffJ\x00\x00\x00\x80\x8a\x00\x8a\x01\x80\x8a\x09\xff\xff\xff\xff\xff\xff\xff"
           "\xff\x00\x8a\x09\x01\x00\x00\x00\x00\x00\x00\x00\xff\x8b\x02\x00\x00\x00\x00\x01\x88\x89Ne."));
    const struct {
        uint64_t magnitude;
        bool is_negative;
    } expected[] = {{255, false}, {513, false},        {1, true},          {2147483648u, true}, {0, false},
                    {128, true},  {UINT64_MAX, false}, {UINT64_MAX, true}, {256, false}};
    assert_int_equal(root().count, 12);
    for (size_t i = 0; i < 9; i++)
        assert_integer(item(i), expected[i].magnitude, expected[i].is_negative);
    assert_int_equal(item(9).kind, BP_PICKLE_BOOL);
    assert_int_equal(item(9).magnitude, 1);
    assert_int_equal(item(10).magnitude, 0);
    assert_int_equal(item(11).kind, BP_PICKLE_NONE);
    bp_pickle_finish(&p);
    assert_null(p.containers);
    REFUSES(P2 "\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01.", "byte 2", "9 bytes", "64 bits");
    REFUSES(P2 "\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\xff.", "byte 2", "64 bits");
    REFUSES(P2 "\x8a\x0a\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00.", "byte 2", "10 bytes", "64 bits");
    REFUSES(P2 "\x8a\x09\xff", "expected 9 bytes, 1 are left");
}

TEST(test_texts)
{
    assert_ok(PARSE(P4 "(X\x02\x00\x00\x00h\xc3\x8c\x01"
                       "a\x8d\x01\x00\x00\x00\x00\x00\x00\x00"
                       "bU\x01"
                       "cT\x01\x00\x00\x00"
                       "dC\x01"
                       "eB\x01\x00\x00\x00"
                       "f\x8e\x00\x00\x00\x00\x00\x00\x00\x00G\x3f\xf8\x00\x00\x00\x00\x00\x00t."));
    assert_int_equal(root().kind, BP_PICKLE_TUPLE);
    assert_int_equal(root().count, 9);
    assert_text(item(0), "h\xc3");
    assert_text(item(1), "a");
    assert_text(item(2), "b");
    assert_text(item(3), "c");
    assert_text(item(4), "d");
    assert_int_equal(item(5).kind, BP_PICKLE_BYTES);
    assert_int_equal(item(7).count, 0);
    assert_int_equal(item(8).kind, BP_PICKLE_FLOAT);
    assert_true(item(8).real == 1.5);
    bp_pickle_finish(&p);
    REFUSES(P2 "X\xff\xff\xff\xff"
               "ab",
            "byte 2", "expected 4294967295 bytes, 2 are left");
    REFUSES(P4 "\x8d\xff\xff\xff\xff\xff\xff\xff\xff", "18446744073709551615 bytes");
    REFUSES(P4 "\x8c", "expected 1 bytes, 0 are left");
    REFUSES(P2 "G\x00\x00", "8 bytes");
}

TEST(test_containers)
{
    assert_ok(PARSE(P2 "}(X\x01\x00\x00\x00"
                       "a](K\x01K\x02"
                       "eX\x01\x00\x00\x00"
                       "bK\x07uX\x01\x00\x00\x00"
                       "aK\x09s."));
    assert_int_equal(root().count, 6);
    assert_integer(find("a"), 9, false); /* the last one, as in Python */
    assert_integer(find("b"), 7, false);
    assert_int_equal(find("ab").kind, BP_PICKLE_ABSENT);
    assert_int_equal(find("").kind, BP_PICKLE_ABSENT);
    assert_int_equal(bp_pickle_find(&p, (bp_pickle_value){.kind = BP_PICKLE_ABSENT}, "a"), BP_PICKLE_NO_REF);
    assert_true(bp_pickle_is_list(item(1)));
    assert_int_equal(item(1).count, 2);
    bp_pickle_finish(&p);
    assert_ok(PARSE(P2 "(K\x01\x85K\x02K\x03\x86K\x04K\x05K\x06\x87)]K\x07"
                       "a(K\x08l(K\x01K\x02"
                       "dt."));
    static const uint32_t counts[] = {1, 2, 3, 0, 1, 1, 2};
    assert_int_equal(root().count, 7);
    for (size_t i = 0; i < 7; i++)
        assert_int_equal(item(i).count, counts[i]);
    assert_int_equal(bp_pickle_find(&p, item(6), "a"), BP_PICKLE_NO_REF);
    bp_pickle_finish(&p);
}

TEST(test_long_lists)
{
    enum { ITEMS = 5000 };
    static char data[3 + ITEMS * 3 + 1] = P2 "]";
    for (size_t i = 0; i < ITEMS; i++) {
        data[3 + 3 * i] = 'K';
        data[4 + 3 * i] = (char)(i % 128);
        data[5 + 3 * i] = 'a';
    }
    data[sizeof data - 1] = '.';
    assert_ok(parse_bytes(data, sizeof data));
    assert_int_equal(root().count, ITEMS);
    for (size_t i = 0; i < ITEMS; i++)
        assert_integer(item(i), i % 128, false);
    bp_pickle_finish(&p);
}

/* Lists that grow alternately, batch by batch: their items move, or stay if there is room. */
TEST(test_lists_that_grow_in_turn)
{
    enum { LISTS = 3, ROUNDS = 60 };
    static char data[1 << 16];
    size_t bytes = 0;
    memcpy(data, P4 "](", 4);
    bytes = 4;
    for (int i = 0; i < LISTS; i++) {
        data[bytes++] = ']';
        data[bytes++] = '\x94';
    }
    data[bytes++] = 'e';
    size_t expected[LISTS] = {0};
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < LISTS; i++) {
            data[bytes++] = '(';
            data[bytes++] = 'h';
            data[bytes++] = (char)i;
            data[bytes++] = '(';
            for (int k = 0; k < (round + i) % 5; k++) {
                data[bytes++] = 'K';
                data[bytes++] = (char)(expected[i]++ % 128);
            }
            data[bytes++] = 'e';
            data[bytes++] = 'e'; /* appends to the outer list again */
        }
    }
    data[bytes++] = '.';
    assert_ok(parse_bytes(data, bytes));
    assert_int_equal(root().count, LISTS + LISTS * ROUNDS);
    for (size_t i = 0; i < root().count; i++) {
        assert_int_equal(item(i).count, expected[i % LISTS]);
        for (size_t k = 0; k < item(i).count; k++)
            assert_integer(bp_pickle_get(&p, item(i).items[k]), k % 128, false);
    }
    bp_pickle_finish(&p);
}

/* Memory per opcode relative to the data: arrays have at most half more than they need. */
TEST(test_budget)
{
    enum { OPCODES = 1 << 18 };
    static char data[2 * OPCODES + 8];
    const struct {
        const char *repeated, *begin, *end;
    } cases[] = {{"]", "(", "t"},     /* empty lists */
                 {"]\x94", "(", "t"}, /* in the memo */
                 {"h\x00", "]\x94(", "e"},
                 {"N", "(", "t"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t unit = i % 3 == 0 ? 1 : 2, begin = strlen(cases[i].begin);
        memcpy(data, P4, 2);
        memcpy(data + 2, cases[i].begin, begin);
        size_t bytes = 2 + begin;
        for (size_t k = 0; k < OPCODES; k++, bytes += unit)
            memcpy(data + bytes, cases[i].repeated, unit);
        data[bytes++] = cases[i].end[0];
        data[bytes++] = '.';
        budget = SIZE_MAX;
        assert_ok(parse_bytes(data, bytes));
        assert_true(p.granted <= 30 * bytes + 16384);
        budget = p.granted;
        bp_pickle_finish(&p);
        assert_ok(parse_bytes(data, bytes));
        bp_pickle_finish(&p);
        budget--;
        assert_fails(parse_bytes(data, bytes), BP_ERR_FORMAT, "d/x.pickle: byte ", "record fewer events");
        budget = 1 << 20;
    }
}

/* 200 levels of pairs that share their members: 2^200 items for a reader that copies. */
TEST(test_shared_pairs)
{
    static char data[4 + 200 * 4 + 1];
    memcpy(data, P4 ")\x94", 4);
    for (int i = 0; i < 200; i++)
        memcpy(data + 4 + 4 * (size_t)i, (const char[]){'h', (char)i, '\x86', '\x94'}, 4);
    data[sizeof data - 1] = '.';
    assert_ok(parse_bytes(data, sizeof data));
    bp_pickle_value value = root();
    for (int depth = 0; depth < 200; depth++) {
        assert_int_equal(value.count, 2);
        assert_int_equal(value.items[0], value.items[1]);
        value = bp_pickle_get(&p, value.items[0]);
    }
    assert_int_equal(value.count, 0);
    assert_true(p.granted < 16384);
    bp_pickle_finish(&p);
}

TEST(test_memo)
{
    assert_ok(PARSE(
        P4 "\x95\x16\x00\x00\x00\x00\x00\x00\x00]\x94(\x8c\x01x\x94h\x01r\x07\x00\x00\x00j\x07\x00\x00\x00g7\np8\nh\x08"
           "e."));
    assert_int_equal(root().count, 5);
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(root().items[i], root().items[0]);
    bp_pickle_finish(&p);
    assert_ok(PARSE(P2 "]q\x00h\x00"
                       "a.")); /* a list in itself */
    assert_int_equal(root().items[0], p.root);
    bp_pickle_finish(&p);
    REFUSES(P2 "]h\x05.", "byte 3", "memo index 5 is not set");
    REFUSES(P2 "]j\xff\xff\xff\xff.", "memo index 4294967295");
    REFUSES(P2 "]r\xff\xff\xff\xff.", "byte 3", "memo index 4294967295", "9 bytes");
    REFUSES(P2 "]p\n.", "digits");
    REFUSES(P2 "]g99999999999999\n.", "digits");
    REFUSES(P2 "q\x00.", "takes 1 values, the stack has 0");
    REFUSES(P4 "\x95\xff\x00\x00\x00\x00\x00\x00\x00N.", "a frame of 255 bytes, but 2 are left");
}

TEST(test_what_is_no_data)
{
    REFUSES(P2 "cos\nsystem\nX\x02\x00\x00\x00ls\x85R.", "byte 2", "names the global os.system");
    REFUSES(P2 "cos", "names the global os.;");
    REFUSES(P2 "(ios\nsystem\n.", "names the global os.system");
    REFUSES(P4 "\x8c\x02os\x8c\x06system\x93.", "byte 14", "names the global os.system");
    REFUSES(P4 "NN\x93.", "names the global ?.?");
    REFUSES(P4 "\x93.", "takes 2 values");
    REFUSES(P2 "c\x1b[31m\n\xff\n.", "names the global <1B>[31m.<FF>");
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
                   {'\0', "unknown opcode 0x00"},
                   {'\xff', "unknown opcode 0xff"},
                   {'I', "unknown opcode 0x49"}};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        const char data[] = {'\x80', 4, 'N', refused[i].opcode, '.'};
        assert_fails(parse_bytes(data, sizeof data), BP_ERR_FORMAT, "d/x.pickle: byte 3", refused[i].name);
    }
}

TEST(test_what_does_not_end)
{
    REFUSES("", "byte 0", "expected a pickle of protocol 2 to 5");
    REFUSES("{\"a\": 1}", "expected a pickle");
    REFUSES("\x80\x01N.", "pickle protocol 1, expected 2 to 5");
    REFUSES("\x80\x06N.", "protocol 6");
    REFUSES(P2, "byte 2", "the file ends before the pickle does");
    REFUSES(P2 "N", "byte 3", "the file ends before the pickle does");
    REFUSES(P2 ".", "0 values and 0 marks");
    REFUSES(P2 "NN.", "2 values");
    REFUSES(P2 "N(.", "1 marks");
    REFUSES(P2 "N.N", "1 bytes after the end");
    REFUSES(P2 "t.", "without a mark");
    REFUSES(P2 "](a.", "takes 2 values, the stack has 0");
    REFUSES(P2 "]K\x01K\x02s.", "without a dictionary");
    REFUSES(P2 "K\x01K\x02"
               "a.",
            "without a list");
    REFUSES(P2 "(K\x01"
               "e.",
            "without a list");
    REFUSES(P2 "(e.", "without a list");
    REFUSES(P2 "}(K\x01u.", "last key has no value");
    REFUSES(P2 "(K\x01"
               "d.",
            "last key has no value");
    static char marks[2 + 2000] = P2;
    memset(marks + 2, '(', 2000);
    assert_fails(parse_bytes(marks, sizeof marks), BP_ERR_FORMAT, "byte 1002", "more than 1000");
}

int main(void)
{
    int failed = run_registered(NULL, NULL, NULL, NULL);
    free(held);
    return failed;
}

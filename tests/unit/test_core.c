/* SPDX-License-Identifier: Apache-2.0 */
/* Dtypes, statuses and error details, checked arithmetic, SHA-256. */
#include "support/harness.h"

#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>
#include <bucketpool/dtype.h>
#include <bucketpool/status.h>

#include <ctype.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "core/index.h"
#include "core/print.h"
#include "core/sha256.h"

/* ---- dtypes -------------------------------------------------------------------------------------------------------- */

/* Pins the values of dtype.h. */
static const struct {
    int value;
    const char *name;
    uint32_t bits;
    int gradient;
} dtypes[] = {
    {1, "fp64", 64, 1},    {2, "fp32", 32, 1},       {3, "fp16", 16, 1},    {4, "bf16", 16, 1},
    {5, "fp8_e4m3", 8, 0}, {6, "fp8_e5m2", 8, 0},    {7, "fp8_e8m0", 8, 0}, {8, "fp6_e2m3", 6, 0},
    {9, "fp6_e3m2", 6, 0}, {10, "fp4_e2m1", 4, 0},   {11, "uint4", 4, 0},   {12, "int4", 4, 0},
    {13, "uint8", 8, 0},   {14, "int8", 8, 0},       {15, "uint16", 16, 0}, {16, "int16", 16, 0},
    {17, "uint32", 32, 0}, {18, "int32", 32, 0},     {19, "uint64", 64, 0}, {20, "int64", 64, 0},
    {21, "bool", 8, 0},    {22, "complex64", 64, 0},
};
#define DTYPES (sizeof dtypes / sizeof *dtypes)

static void assert_parses(const char *name, bp_dtype expected)
{
    bp_dtype dtype = BP_DTYPE_NONE;
    if (bp_dtype_parse(name, &dtype) != BP_OK)
        fail_msg("\"%s\": %s", name, bp_error_detail());
    assert_int_equal(dtype, expected);
}

TEST(test_dtype_table)
{
    assert_int_equal(DTYPES, BP_DTYPE_COUNT - 1);
    for (size_t i = 0; i < DTYPES; i++) {
        bp_dtype dtype = (bp_dtype)dtypes[i].value;
        assert_string_equal(bp_dtype_name(dtype), dtypes[i].name);
        assert_int_equal(bp_dtype_bits(dtype), dtypes[i].bits);
        assert_int_equal(bp_dtype_is_gradient(dtype), dtypes[i].gradient);
        assert_int_equal(bp_dtype_storage(dtype), dtypes[i].value >= 5 && dtypes[i].value <= 7 ? 13 : dtypes[i].value);
        assert_parses(dtypes[i].name, dtype);
        char upper[40] = "TORCH.";
        for (size_t k = 0; dtypes[i].name[k] != '\0'; k++)
            upper[6 + k] = (char)toupper(dtypes[i].name[k]);
        assert_parses(upper, dtype);
        assert_parses(upper + 6, dtype);
    }
    assert_string_equal(bp_dtype_name(BP_DTYPE_NONE), "none");
    assert_int_equal(bp_dtype_storage(BP_DTYPE_NONE), BP_DTYPE_NONE);
    static const int no_dtypes[] = {-1, BP_DTYPE_COUNT, 1000, INT32_MIN, INT32_MAX};
    for (size_t i = 0; i < sizeof no_dtypes / sizeof *no_dtypes; i++) {
        assert_string_equal(bp_dtype_name((bp_dtype)no_dtypes[i]), "invalid");
        assert_int_equal(bp_dtype_bits((bp_dtype)no_dtypes[i]), 0);
        assert_int_equal(bp_dtype_is_gradient((bp_dtype)no_dtypes[i]), 0);
    }
    assert_int_equal(bp_dtype_bits(BP_DTYPE_NONE), 0);
}

TEST(test_dtype_spellings)
{
    assert_parses("bfloat16", BP_DTYPE_BF16);
    assert_parses("torch.bfloat16", BP_DTYPE_BF16);
    assert_parses("float32", BP_DTYPE_FP32);
    assert_parses("F32", BP_DTYPE_FP32);
    assert_parses("BF16", BP_DTYPE_BF16);
    assert_parses("F8_E4M3", BP_DTYPE_FP8_E4M3);
    assert_parses("fp8", BP_DTYPE_FP8_E4M3);
    assert_parses("torch.float8_e4m3fn", BP_DTYPE_FP8_E4M3);
    assert_parses("torch.float16", BP_DTYPE_FP16);
    assert_parses("I64", BP_DTYPE_INT64);
    static const char *const wrong[] = {"",      "none",   "invalid", "bf",  "bf16 ",
                                        " bf16", "torch.", "torch",   "fp7", "bf160"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        bp_dtype dtype = BP_DTYPE_INT8;
        assert_int_equal(bp_dtype_parse(wrong[i], &dtype), BP_ERR_INVALID_ARGUMENT);
        assert_int_equal(dtype, BP_DTYPE_INT8);
        assert_non_null(strstr(bp_error_detail(), wrong[i]));
        for (size_t k = 0; k < DTYPES; k++)
            assert_non_null(strstr(bp_error_detail(), dtypes[k].name));
    }
    bp_dtype dtype;
    assert_int_equal(bp_dtype_parse(NULL, &dtype), BP_ERR_INVALID_ARGUMENT);
    assert_int_equal(bp_dtype_parse("bf16", NULL), BP_ERR_INVALID_ARGUMENT);
    char long_name[2000];
    memset(long_name, 'x', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = '\0';
    assert_int_equal(bp_dtype_parse(long_name, &dtype), BP_ERR_INVALID_ARGUMENT);
}

static void assert_bytes(bp_dtype dtype, uint64_t numel, uint64_t expected)
{
    uint64_t bytes = 0;
    if (bp_dtype_bytes(dtype, numel, &bytes) != BP_OK)
        fail_msg("%llu of %s: %s", (unsigned long long)numel, bp_dtype_name(dtype), bp_error_detail());
    assert_true(bytes == expected);
}

static void assert_no_bytes(bp_dtype dtype, uint64_t numel, bp_status expected)
{
    uint64_t bytes = 77;
    assert_int_equal(bp_dtype_bytes(dtype, numel, &bytes), expected);
    assert_int_equal(bytes, 77);
}

TEST(test_dtype_bytes)
{
    for (size_t i = 0; i < DTYPES; i++) {
        bp_dtype dtype = (bp_dtype)dtypes[i].value;
        for (uint64_t numel = 0; numel < 50; numel++)
            assert_bytes(dtype, numel, (numel * dtypes[i].bits + 7) / 8);
    }
    assert_bytes(BP_DTYPE_FP4_E2M1, 1, 1);
    assert_bytes(BP_DTYPE_FP6_E3M2, 5, 4);
    /* the largest counts whose bytes fit, and one more */
    assert_bytes(BP_DTYPE_UINT8, UINT64_MAX, UINT64_MAX);
    assert_bytes(BP_DTYPE_BF16, UINT64_MAX / 2, UINT64_MAX - 1);
    assert_no_bytes(BP_DTYPE_BF16, UINT64_MAX / 2 + 1, BP_ERR_OVERFLOW);
    assert_bytes(BP_DTYPE_FP64, UINT64_MAX / 8, UINT64_MAX - 7);
    assert_no_bytes(BP_DTYPE_FP64, UINT64_MAX / 8 + 1, BP_ERR_OVERFLOW);
    assert_bytes(BP_DTYPE_INT4, UINT64_MAX, UINT64_C(1) << 63);
    assert_bytes(BP_DTYPE_FP6_E2M3, UINT64_MAX, UINT64_C(0xC000000000000000));
    assert_no_bytes(BP_DTYPE_COMPLEX64, UINT64_MAX, BP_ERR_OVERFLOW);
    assert_no_bytes(BP_DTYPE_NONE, 1, BP_ERR_INVALID_ARGUMENT);
    assert_no_bytes((bp_dtype)BP_DTYPE_COUNT, 1, BP_ERR_INVALID_ARGUMENT);
    assert_no_bytes((bp_dtype)-1, 1, BP_ERR_INVALID_ARGUMENT);
    assert_int_equal(bp_dtype_bytes(BP_DTYPE_BF16, 1, NULL), BP_ERR_INVALID_ARGUMENT);
}

/* ---- statuses ------------------------------------------------------------------------------------------------------ */

TEST(test_status_names)
{
    static const char *const names[] = {"ok", "invalid argument", "no host memory", "no device memory", "no device"};
    for (int i = 0; i < 5; i++)
        assert_string_equal(bp_status_name((bp_status)i), names[i]);
    assert_string_equal(bp_status_name(BP_ERR_UNSUPPORTED), "unsupported");
    assert_string_equal(bp_status_name(BP_ERR_INFEASIBLE), "infeasible");
    assert_string_equal(bp_status_name(BP_ERR_MISMATCH), "mismatch");
    for (int i = 0; i <= BP_ERR_TIMEOUT; i++) {
        assert_string_not_equal(bp_status_name((bp_status)i), "unknown status");
        for (int k = 0; k < i; k++)
            assert_string_not_equal(bp_status_name((bp_status)i), bp_status_name((bp_status)k));
    }
    assert_string_equal(bp_status_name((bp_status)(BP_ERR_TIMEOUT + 1)), "unknown status");
    assert_string_equal(bp_status_name((bp_status)-1), "unknown status");
    unsigned major, minor, patch;
    int length = 0;
    assert_int_equal(sscanf(bp_version(), "%u.%u.%u%n", &major, &minor, &patch, &length), 3);
    char rest = bp_version()[length]; // a pre-release follows after a hyphen
    assert_true(rest == '\0' || rest == '-');
}

TEST(test_error_record)
{
    assert_int_equal(bp_error_record(BP_ERR_CAPTURE, "first"), BP_ERR_CAPTURE);
    assert_string_equal(bp_error_detail(), "first");
    uint64_t bytes;
    assert_int_equal(bp_dtype_bytes(BP_DTYPE_BF16, 1, &bytes), BP_OK);
    assert_string_equal(bp_error_detail(), "first"); /* success does not change the detail */
    char text[1200];
    for (size_t length = 500; length < 530; length++) {
        for (size_t i = 0; i < length; i++)
            text[i] = (char)('a' + i % 26);
        text[length] = '\0';
        assert_int_equal(bp_error_record(BP_ERR_IO, text), BP_ERR_IO);
        size_t kept = length < 511 ? length : 511;
        assert_int_equal(strlen(bp_error_detail()), kept);
        assert_memory_equal(bp_error_detail(), text, kept);
    }
    /* the detail itself, or its tail, may be recorded again */
    assert_int_equal(bp_error_record(BP_ERR_IO, "path: reason"), BP_ERR_IO);
    assert_int_equal(bp_error_record(BP_ERR_IO, bp_error_detail()), BP_ERR_IO);
    assert_string_equal(bp_error_detail(), "path: reason");
    assert_int_equal(bp_error_record(BP_ERR_IO, bp_error_detail() + 6), BP_ERR_IO);
    assert_string_equal(bp_error_detail(), "reason");
    assert_int_equal(bp_error_record(BP_ERR_IO, NULL), BP_ERR_IO);
    assert_string_equal(bp_error_detail(), "");
    memset(text, 'y', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    assert_int_equal(bp_fail(BP_ERR_FORMAT, "%s %d", text, 5), BP_ERR_FORMAT);
    assert_int_equal(strlen(bp_error_detail()), 511);
    assert_int_equal(bp_fail(BP_ERR_FORMAT, "%s %d", "number", 5), BP_ERR_FORMAT);
    assert_string_equal(bp_error_detail(), "number 5");
}

/* Details with foreign text are printable UTF-8. */
TEST(test_hostile_details)
{
    static const struct {
        const char *recorded, *shown;
    } details[] = {{"a\033[2Jb\nc\x7f", "a<1B>[2Jb<0A>c<7F>"},
                   {"gr\xc3\xbc\xc3\x9f \xe2\x82\xac", "gr\xc3\xbc\xc3\x9f \xe2\x82\xac"},
                   {"\xff\xc3", "<FF><C3>"},
                   {"\xc2\x9b"
                    "31m",
                    "<U+009B>31m"},
                   {"\xed\xa0\x80", "<ED><A0><80>"},
                   {"\xe2\x80\xae\xe2\x80\xa8", "<U+202E><U+2028>"},
                   {"\xc0\x80", "<C0><80>"}};
    char text[600];
    (void)state;
    for (size_t i = 0; i < sizeof details / sizeof *details; i++) {
        bp_error_record(BP_ERR_COMM, details[i].recorded);
        assert_string_equal(bp_error_detail(), details[i].shown);
    }
    memset(text, 'y', sizeof text); /* cut in the middle of a character */
    memcpy(text + 510, "\xc3\xbc", 3);
    bp_error_record(BP_ERR_COMM, text);
    assert_int_equal(strlen(bp_error_detail()), 510);
    assert_false(bp_is_status(-1) || bp_is_status(BP_STATUS_COUNT));
    assert_true(bp_is_status(BP_STATUS_COUNT - 1));
    assert_string_not_equal(bp_status_name((bp_status)(BP_STATUS_COUNT - 1)), "unknown status");
    assert_string_equal(bp_status_name((bp_status)BP_STATUS_COUNT), "unknown status");
}

/* Two threads alternate, so that a shared detail would show. */
static pthread_barrier_t turn;

static void *other_thread(void *result)
{
    bool *good = result;
    *good = strcmp(bp_error_detail(), "") == 0;
    bp_error_record(BP_ERR_IO, "theirs");
    pthread_barrier_wait(&turn);
    pthread_barrier_wait(&turn); /* the first thread has recorded its detail */
    *good = *good && strcmp(bp_error_detail(), "theirs") == 0;
    return NULL;
}

TEST(test_error_detail_of_threads)
{
    bool good = false;
    pthread_t thread;
    bp_error_record(BP_ERR_IO, "mine");
    assert_int_equal(pthread_barrier_init(&turn, NULL, 2), 0);
    assert_int_equal(pthread_create(&thread, NULL, other_thread, &good), 0);
    pthread_barrier_wait(&turn);
    bool kept = strcmp(bp_error_detail(), "mine") == 0;
    bp_error_record(BP_ERR_IO, "mine again");
    pthread_barrier_wait(&turn);
    assert_int_equal(pthread_join(thread, NULL), 0);
    pthread_barrier_destroy(&turn);
    assert_true(kept);
    assert_true(good);
    assert_string_equal(bp_error_detail(), "mine again");
}

/* ---- arithmetic ---------------------------------------------------------------------------------------------------- */

TEST(test_arithmetic)
{
    uint64_t result = 0;
    assert_true(bp_add_u64(UINT64_MAX - 1, 1, &result));
    assert_true(result == UINT64_MAX);
    assert_false(bp_add_u64(UINT64_MAX, 1, &result));
    assert_true(bp_add_u64(0, 0, &result) && result == 0);
    assert_true(bp_mul_u64(UINT64_C(1) << 32, (UINT64_C(1) << 32) - 1, &result));
    assert_true(result == UINT64_MAX - (UINT64_C(1) << 32) + 1);
    assert_false(bp_mul_u64(UINT64_C(1) << 32, UINT64_C(1) << 32, &result));
    assert_true(bp_mul_u64(0, UINT64_MAX, &result) && result == 0);
    for (uint64_t value = 0; value < 100; value++)
        for (uint64_t step = 1; step < 20; step++)
            assert_true(bp_round_up_u64(value, step, &result) && result >= value && result % step == 0 &&
                        result - value < step);
    assert_true(bp_round_up_u64(UINT64_MAX, 1, &result) && result == UINT64_MAX);
    assert_true(bp_round_up_u64(UINT64_MAX - 255, 256, &result) && result == UINT64_MAX - 255);
    assert_false(bp_round_up_u64(UINT64_MAX - 254, 256, &result));
    assert_true(bp_round_up_u64(1, UINT64_MAX, &result) && result == UINT64_MAX);
    for (uint64_t a = 1; a < 40; a++) {
        for (uint64_t b = 1; b < 40; b++) {
            uint64_t gcd = a < b ? a : b, lcm = a > b ? a : b;
            while (a % gcd != 0 || b % gcd != 0)
                gcd--;
            while (lcm % a != 0 || lcm % b != 0)
                lcm++;
            assert_int_equal(bp_gcd_u64(a, b), gcd);
            assert_true(bp_lcm_u64(a, b, &result) && result == lcm);
        }
    }
    assert_int_equal(bp_gcd_u64(0, 6), 6);
    assert_int_equal(bp_gcd_u64(6, 0), 6);
    assert_true(bp_lcm_u64(UINT64_MAX, UINT64_MAX, &result) && result == UINT64_MAX);
    assert_false(bp_lcm_u64(UINT64_MAX, UINT64_MAX - 1, &result));
}

/* ---- SHA-256 ------------------------------------------------------------------------------------------------------- */

/* Hashes the text `times` over, in pieces of `piece` bytes. */
static void assert_digest(const char *text, size_t times, size_t piece, const char *expected)
{
    bp_sha256 sha;
    uint8_t digest[32];
    char hex[65];
    bp_sha256_init(&sha);
    for (size_t i = 0; i < times; i++)
        for (size_t at = 0, bytes = strlen(text); at < bytes; at += piece)
            bp_sha256_update(&sha, text + at, bytes - at < piece ? bytes - at : piece);
    bp_sha256_finish(&sha, digest);
    for (int i = 0; i < 32; i++)
        sprintf(hex + 2 * i, "%02x", digest[i]);
    assert_string_equal(hex, expected);
}

/* FIPS 180-4's examples (csrc.nist.gov, "SHA256.pdf"), and lengths around the padding's edges from coreutils' sha256sum. */
TEST(test_sha256)
{
    char as[200];
    memset(as, 'a', sizeof as);
    assert_digest("", 1, 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    for (size_t piece = 1; piece < 130; piece++) {
        assert_digest("abc", 1, piece, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_digest("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1, piece,
                      "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
        assert_digest(
            "abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsm"
            "nopqrstnopqrstu",
            1, piece, "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
        as[55] = '\0';
        assert_digest(as, 1, piece, "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318");
        as[55] = 'a';
        as[56] = '\0';
        assert_digest(as, 1, piece, "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a");
        as[56] = 'a';
        as[64] = '\0';
        assert_digest(as, 1, piece, "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb");
        as[64] = 'a';
    }
    assert_digest("aaaaaaaaaa", 100000, 10, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

/* As snprintf, but for what is not printable, and cuts. */
TEST(test_printing)
{
    char shown[200], expected[200];
    (void)state;
#define SAME(...)                                                                                                      \
    do {                                                                                                               \
        snprintf(expected, sizeof expected, __VA_ARGS__);                                                              \
        assert_int_equal(bp_print(shown, sizeof shown, __VA_ARGS__), strlen(expected));                                \
        assert_string_equal(shown, expected);                                                                          \
    } while (0)
    SAME("%d|%5d|%-5d|%05d|%+d|%i", -7, 42, 42, 42, 42, -1);
    SAME("%u|%lu|%llu|%zu|%x|%#X|%o", 7u, 8ul, UINT64_MAX + 0ull, sizeof shown, 255u, 255u, 8u);
    SAME("%ld|%lld|%hd|%hhu|%td", -8l, -9ll, 3, 4u, (ptrdiff_t)-5);
    SAME("%.3f|%10.2f|%g|%e|%.*f|%*d|%-*d|%Lf", 1.0 / 3, 2.5, 1e20, 12345.678, 2, 3.14159, 6, 42, 6, 42, 1.5L);
    SAME("%s|%10s|%-10s|%.2s|%.*s|%c|%%|\n\t", "abc", "abc", "abc", "abc", 1, "abc", 'x');
    bp_print(shown, sizeof shown, "%.4s|%4s|%.3s", "\xe4\xbd\xa0\xe4\xbd\xa0", "\xc3\xbc", "\xff\xff\xff\xff");
    assert_string_equal(shown, "\xe4\xbd\xa0|   \xc3\xbc|<FF><FF><FF>");
    for (size_t room = 0; room < 12; room++) { /* the end of the buffer cuts between characters and escapes */
        char small[16];
        memset(small, 'x', sizeof small);
        assert_int_equal(bp_print(small, room, "%s", "\xe4\xbd\xa0\033\xe4\xbd\xa0"), 10);
        size_t fits = room > 10 ? 10 : room > 7 ? 7 : room > 3 ? 3 : 0;
        assert_true(room == 0 || strlen(small) == fits);
        assert_int_equal(small[room], 'x');
    }
}

/* SipHash-1-3 with keys of zeros, as CPython computes it for PYTHONHASHSEED=0. */
TEST(test_hashes)
{
    static const struct {
        const char *text;
        uint64_t hash;
    } known[] = {{"a", 0x407448d2b89b1813u},
                 {"abcdefg", 0x6db12aae9070f506u},
                 {"abcdefgh", 0x3f7b849c0b8e35eau},
                 {"The planner is pure: the same input gives the same plan", 0x8968ac87646caf0cu}};
    uint64_t key[2];
    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        assert_true(bp_hash_with((const uint64_t[2]){0, 0}, known[i].text, strlen(known[i].text)) == known[i].hash);
    bp_hash_key(key);
    assert_true(key[0] != 0 && key[1] != 0 && key[0] != key[1]);
}

TEST(test_index)
{
    enum { COUNT = 5000 };
    bp_index index = {0};
    (void)state;
    for (uint32_t i = 0; i < COUNT; i++) /* sixteen entries of each hash */
        assert_int_equal(bp_index_add(&index, i / 16, i), BP_OK);
    assert_true(4 * index.count <= 3 * index.capacity && index.count == COUNT);
    for (uint32_t hash = 0; hash < COUNT / 16; hash++) {
        uint32_t seen = 0;
        bp_index_search search = bp_index_start(hash);
        for (uint32_t entry = 0; bp_index_next(&index, &search, &entry);)
            seen += entry / 16 == hash;
        assert_int_equal(seen, 16);
    }
    bp_index_search search = bp_index_start(COUNT);
    uint32_t entry = 0;
    assert_false(bp_index_next(&index, &search, &entry));
    bp_index_finish(&index);
}

TESTS(NULL, NULL)

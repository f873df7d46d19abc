/* SPDX-License-Identifier: Apache-2.0 */
/* Packing instances as CSV: reading, every error with its location, writing. */
#include "formats/packing_file.h"
#include "scratch.h"

static bp_status parse_bytes(const char *text, size_t bytes, bp_packing_file **file)
{
    char *exact = malloc(bytes > 0 ? bytes : 1); /* exact size, so that sanitizers detect reads beyond the end */
    assert_non_null(exact);
    memcpy(exact, text, bytes);
    bp_packing_file *read = NULL;
    bp_status status = bp_packing_file_parse(exact, bytes, "d/x.csv", &read);
    free(exact);
    assert_true((status == BP_OK) == (read != NULL));
    *file = read;
    return status;
}

static bp_packing_file *parse_good(const char *text)
{
    bp_packing_file *file;
    assert_ok(parse_bytes(text, strlen(text), &file));
    return file;
}

static bp_status parse(const char *text)
{
    bp_packing_file *file;
    bp_status status = parse_bytes(text, strlen(text), &file);
    bp_packing_file_destroy(&file);
    return status;
}

/* "0:[0,1) 0:[4,9) 1:[2,5)": the items and intervals of a file. */
static const char *intervals_of(const bp_packing_file *file)
{
    static char text[512];
    const bp_packing *packing = bp_packing_file_packing(file);
    size_t used = 0;
    for (size_t i = 0; i < bp_packing_get_info(packing)->interval_count; i++) {
        const bp_packing_interval interval = bp_packing_get_info(packing)->intervals[i];
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%u:[%llu,%llu)", i > 0 ? " " : "", interval.item,
                                 (unsigned long long)interval.begin, (unsigned long long)interval.end);
    }
    return text;
}

TEST(test_rows)
{
    bp_packing_file *file = parse_good("id,lower,upper,size,gaps\na,0,9,100,1-4\nb,2,5,7,\n");
    const bp_packing *packing = bp_packing_file_packing(file);
    assert_int_equal(bp_packing_get_info(packing)->item_count, 2);
    assert_int_equal(bp_packing_get_info(packing)->sizes[0], 100);
    assert_int_equal(bp_packing_get_info(packing)->sizes[1], 7);
    assert_string_equal(bp_packing_file_id(file, 0), "a");
    assert_string_equal(bp_packing_file_id(file, 1), "b");
    assert_null(bp_packing_file_id(file, 2));
    assert_null(bp_packing_file_offsets(file));
    assert_string_equal(intervals_of(file), "0:[0,1) 0:[4,9) 1:[2,5)");
    bp_packing_file_destroy(&file);
    assert_null(file);
    bp_packing_file_destroy(&file);
    assert_null(bp_packing_file_packing(NULL));
    assert_null(bp_packing_file_id(NULL, 0));
    assert_null(bp_packing_file_offsets(NULL));
}

TEST(test_columns_in_any_order)
{
    bp_packing_file *file = parse_good("offset,size,gaps,upper,id,lower\n50,8,,7,x,3\n0,9,4-5,6,y,3\n");
    const uint64_t *offsets = bp_packing_file_offsets(file);
    assert_int_equal(bp_packing_get_info(bp_packing_file_packing(file))->sizes[1], 9);
    assert_int_equal(offsets[0], 50);
    assert_int_equal(offsets[1], 0);
    assert_string_equal(bp_packing_file_id(file, 1), "y");
    assert_string_equal(intervals_of(file), "0:[3,7) 1:[3,4) 1:[5,6)");
    bp_packing_file_destroy(&file);
}

static void assert_reads_like_plain(const char *text)
{
    bp_packing_file *file = parse_good(text);
    assert_string_equal(bp_packing_file_id(file, 0), "a");
    assert_string_equal(intervals_of(file), "0:[0,2) 1:[2,5)");
    assert_int_equal(bp_packing_get_info(bp_packing_file_packing(file))->sizes[1], 7);
    bp_packing_file_destroy(&file);
}

TEST(test_line_ends_and_quotes)
{
    assert_reads_like_plain("id,lower,upper,size\na,0,2,1\nb,2,5,7\n");
    assert_reads_like_plain("id,lower,upper,size\na,0,2,1\nb,2,5,7");
    assert_reads_like_plain("id,lower,upper,size\r\na,0,2,1\r\nb,2,5,7\r\n");
    assert_reads_like_plain("id,lower,upper,size\r\na,0,2,1\nb,2,5,7");
    assert_reads_like_plain("\xEF\xBB\xBFid,lower,upper,size\na,0,2,1\nb,2,5,7\n");
    assert_reads_like_plain("\"id\",\"lower\",upper,\"size\"\r\n\"a\",\"0\",2,\"1\"\r\nb,2,5,\"7\"");
    bp_packing_file *file = parse_good("id,lower,upper,size\n\"a,\"\"b\"\"\",0,2,1\n\"\"\"\",0,2,1\nä ö,0,2,1\n");
    assert_string_equal(bp_packing_file_id(file, 0), "a,\"b\"");
    assert_string_equal(bp_packing_file_id(file, 1), "\"");
    assert_string_equal(bp_packing_file_id(file, 2), "ä ö");
    bp_packing_file_destroy(&file);
}

static const char *intervals_with_gaps(const char *gaps)
{
    char text[256];
    snprintf(text, sizeof text, "id,lower,upper,size,gaps\na,10,20,1,%s\n", gaps);
    bp_packing_file *file = parse_good(text);
    const char *lives = intervals_of(file);
    bp_packing_file_destroy(&file);
    return lives;
}

TEST(test_gaps)
{
    assert_string_equal(intervals_with_gaps(""), "0:[10,20)");
    assert_string_equal(intervals_with_gaps("  "), "0:[10,20)");
    assert_string_equal(intervals_with_gaps("12-13"), "0:[10,12) 0:[13,20)");
    assert_string_equal(intervals_with_gaps("\"12-13 15-16\""), "0:[10,12) 0:[13,15) 0:[16,20)");
    assert_string_equal(intervals_with_gaps("15-16 12-13"), "0:[10,12) 0:[13,15) 0:[16,20)");
    assert_string_equal(intervals_with_gaps(" 12-13  13-15 "), "0:[10,12) 0:[15,20)");
    assert_string_equal(intervals_with_gaps("13-15 12-13 15-16"), "0:[10,12) 0:[16,20)");
    assert_string_equal(intervals_with_gaps("10-12 19-20"), "0:[12,19)");
    assert_string_equal(intervals_with_gaps("10-19"), "0:[19,20)");
}

TEST(test_largest_numbers)
{
    bp_packing_file *file = parse_good("id,lower,upper,size,gaps,offset\n"
                                       "a,0,18446744073709551615,18446744073709551615,1-18446744073709551614,0\n"
                                       "b,007,8,0,,18446744073709551615\n");
    assert_true(bp_packing_get_info(bp_packing_file_packing(file))->sizes[0] == UINT64_MAX);
    assert_true(bp_packing_file_offsets(file)[1] == UINT64_MAX);
    assert_string_equal(intervals_of(file), "0:[0,1) 0:[18446744073709551614,18446744073709551615) 1:[7,8)");
    bp_packing_file_destroy(&file);
}

#define HEADER "id,lower,upper,size,gaps\n"

TEST(test_header_errors)
{
    assert_fails(parse(""), BP_ERR_FORMAT, "d/x.csv:1:1: empty", "id, lower, upper, size");
    assert_fails(parse("\xEF\xBB\xBF"), BP_ERR_FORMAT, "d/x.csv:1:1: empty");
    assert_fails(parse("\n"), BP_ERR_FORMAT, "d/x.csv:1:1: unknown column \"\"");
    assert_fails(parse("id,lower,upper,size\n"), BP_ERR_FORMAT, "d/x.csv:2:1: no rows");
    assert_fails(parse("id,lower,upper,size"), BP_ERR_FORMAT, "d/x.csv:1:20: no rows");
    assert_fails(parse("id,lower,upper\na,0,1\n"), BP_ERR_FORMAT, "d/x.csv:1:1: no column \"size\"");
    assert_fails(parse("lower,upper,size\n0,1,1\n"), BP_ERR_FORMAT, "d/x.csv:1:1: no column \"id\"");
    assert_fails(parse("id,lower,upper,size,align\n"), BP_ERR_FORMAT, "d/x.csv:1:21: unknown column \"align\"",
                 "gaps and offset");
    assert_fails(parse("id,lower,upper,size,\n"), BP_ERR_FORMAT, "d/x.csv:1:21: unknown column \"\"");
    assert_fails(parse("id, lower\n"), BP_ERR_FORMAT, "d/x.csv:1:4: unknown column \" lower\"");
    assert_fails(parse("ID,lower,upper,size\n"), BP_ERR_FORMAT, "d/x.csv:1:1: unknown column \"ID\"");
    assert_fails(parse("id;lower;upper;size\n"), BP_ERR_FORMAT, "d/x.csv:1:1: unknown column \"id;lower");
    assert_fails(parse("id,lower,upper,lower\n"), BP_ERR_FORMAT, "d/x.csv:1:16: duplicate column \"lower\"");
    assert_fails(parse("id\tlower\n"), BP_ERR_FORMAT, "d/x.csv:1:3: control byte 0x09", "comma");
}

TEST(test_row_errors)
{
    assert_fails(parse(HEADER "a,0,1,1\n"), BP_ERR_FORMAT, "d/x.csv:2:7: the row ends at field 4 of 5", "size");
    assert_fails(parse(HEADER "a"), BP_ERR_FORMAT, "d/x.csv:2:1: the row ends at field 1 of 5");
    assert_fails(parse(HEADER "a,0,1,1,,9\n"), BP_ERR_FORMAT, "d/x.csv:2:10: more fields than the 5 columns");
    assert_fails(parse(HEADER "a,0,1,1,,\n"), BP_ERR_FORMAT, "d/x.csv:2:10: more fields");
    assert_fails(parse(HEADER "a,0,1,1,\n\nb,0,1,1,\n"), BP_ERR_FORMAT, "d/x.csv:3:1: an empty line", "5 fields");
    assert_fails(parse(HEADER "a,0,1,1,\n\n"), BP_ERR_FORMAT, "d/x.csv:3:1: an empty line");
    assert_fails(parse(HEADER "a,0,1,1,\nb,0,1,1,\nb,0,1,1,\na,0,1,1,\n"), BP_ERR_FORMAT,
                 "d/x.csv:4:1: duplicate id \"b\", used on line 3");
    assert_fails(parse("size,id,lower,upper\n1,a,0,1\n1,\"a\",0,1\n"), BP_ERR_FORMAT, "d/x.csv:3:4: duplicate id \"a\"",
                 "line 2");
    assert_fails(parse(HEADER ",0,1,1,\n"), BP_ERR_FORMAT, "d/x.csv:2:1: an empty id");
    assert_fails(parse(HEADER "\"\",0,1,1,\n"), BP_ERR_FORMAT, "d/x.csv:2:2: an empty id");
    assert_fails(parse(HEADER "a\xff,0,1,1,\n"), BP_ERR_FORMAT, "d/x.csv:2:1: id \"a<FF>\"", "UTF-8");
    assert_fails(parse(HEADER "\xc2\x9b,0,1,1,\n"), BP_ERR_FORMAT, "d/x.csv:2:1: id \"<U+009B>\"", "control");
}

TEST(test_quote_and_control_errors)
{
    bp_packing_file *file;
    static const char nul[] = HEADER "a,0,\0001,1,\n";
    assert_fails(parse_bytes(nul, sizeof nul - 1, &file), BP_ERR_FORMAT, "d/x.csv:2:5: control byte 0x00");
    assert_fails(parse(HEADER "a\x1b[2J,0,1,1,\n"), BP_ERR_FORMAT, "d/x.csv:2:2: control byte 0x1b");
    assert_fails(parse(HEADER "\"a\x7f\",0,1,1,\n"), BP_ERR_FORMAT, "d/x.csv:2:3: control byte 0x7f");
    assert_fails(parse(HEADER "a,0,1,1,\r"), BP_ERR_FORMAT, "d/x.csv:2:9: control byte 0x0d");
    assert_fails(parse(HEADER "a\rb,0,1,1,\n"), BP_ERR_FORMAT, "d/x.csv:2:2: control byte 0x0d");
    assert_fails(parse(HEADER "äöü,0,\x01,1,\n"), BP_ERR_FORMAT, "d/x.csv:2:7: control byte 0x01");
    assert_fails(parse(HEADER "a\"b,0,1,1,\n"), BP_ERR_FORMAT, "d/x.csv:2:2: a quote inside a field without quotes");
    assert_fails(parse(HEADER "a,\"0,1,1,\nb,0,1,1,\"\n"), BP_ERR_FORMAT, "d/x.csv:2:3: a quote is not closed");
    assert_fails(parse(HEADER "a,0,1,1,\""), BP_ERR_FORMAT, "d/x.csv:2:9: a quote is not closed");
    assert_fails(parse(HEADER "a,0,1,1,\"\"\""), BP_ERR_FORMAT, "d/x.csv:2:9: a quote is not closed");
    assert_fails(parse(HEADER "\"a\"b,0,1,1,\n"), BP_ERR_FORMAT, "d/x.csv:2:4: expected a comma");
}

TEST(test_number_errors)
{
    assert_fails(parse(HEADER "a,-1,1,1,\n"), BP_ERR_FORMAT, "d/x.csv:2:3: lower \"-1\"", "18446744073709551615");
    assert_fails(parse(HEADER "a,+1,1,1,\n"), BP_ERR_FORMAT, "d/x.csv:2:3: lower \"+1\"");
    assert_fails(parse(HEADER "a,0,1.5,1,\n"), BP_ERR_FORMAT, "d/x.csv:2:5: upper \"1.5\"");
    assert_fails(parse(HEADER "a,0,1e3,1,\n"), BP_ERR_FORMAT, "d/x.csv:2:5: upper \"1e3\"");
    assert_fails(parse(HEADER "a,0,1,,\n"), BP_ERR_FORMAT, "d/x.csv:2:7: size \"\"");
    assert_fails(parse(HEADER "a,0,1, 1,\n"), BP_ERR_FORMAT, "d/x.csv:2:7: size \" 1\"");
    assert_fails(parse(HEADER "a,0,1,0x10,\n"), BP_ERR_FORMAT, "d/x.csv:2:7: size \"0x10\"");
    assert_fails(parse(HEADER "a,0,1,18446744073709551616,\n"), BP_ERR_FORMAT,
                 "d/x.csv:2:7: size \"18446744073709551616\"");
    assert_fails(parse(HEADER "a,0,1,99999999999999999999999999999999999999999999,\n"), BP_ERR_FORMAT, "d/x.csv:2:7:");
    assert_fails(parse(HEADER "a,0,1,18446744073709551615,\nb,5,6,1,\n"), BP_ERR_FORMAT, "d/x.csv:3:7: size 1",
                 "exceeds 18446744073709551615");
    assert_fails(parse(HEADER "a,2,1,1,\n"), BP_ERR_FORMAT, "d/x.csv:2:5: upper 1 is not above lower 2");
    assert_fails(parse(HEADER "a,2,2,1,\n"), BP_ERR_FORMAT, "d/x.csv:2:5: upper 2 is not above lower 2");
    assert_fails(parse("id,lower,upper,size,offset\na,0,1,1,0\nb,0,1,1,\n"), BP_ERR_FORMAT,
                 "d/x.csv:3:9: item \"b\" has no offset");
    assert_fails(parse("id,lower,upper,size,offset\na,0,1,1,-1\n"), BP_ERR_FORMAT, "d/x.csv:2:9: offset \"-1\"");
    assert_fails(parse("offset,id,lower,upper,size\n18446744073709551615,a,0,1,1\n"), BP_ERR_FORMAT,
                 "d/x.csv:2:1: offset", "size 1 would end");
}

static bp_status parse_gaps(const char *gaps)
{
    char text[256];
    snprintf(text, sizeof text, HEADER "a,10,20,1,%s\n", gaps);
    return parse(text);
}

TEST(test_gap_errors)
{
    assert_fails(parse_gaps("12"), BP_ERR_FORMAT, "d/x.csv:2:11: gap \"12\"", "4-6");
    assert_fails(parse_gaps("12-"), BP_ERR_FORMAT, "d/x.csv:2:11: gap \"12-\"");
    assert_fails(parse_gaps("-12"), BP_ERR_FORMAT, "d/x.csv:2:11: gap \"-12\"");
    assert_fails(parse_gaps("12--13"), BP_ERR_FORMAT, "gap \"12--13\"");
    assert_fails(parse_gaps("12-13-14"), BP_ERR_FORMAT, "gap \"12-13-14\"");
    assert_fails(parse_gaps("11-12 12.5-13"), BP_ERR_FORMAT, "d/x.csv:2:17: gap \"12.5-13\"");
    assert_fails(parse_gaps("11-12;13-14"), BP_ERR_FORMAT, "d/x.csv:2:11: gap \"11-12;13-14\"");
    assert_fails(parse_gaps("12-18446744073709551616"), BP_ERR_FORMAT, "gap \"12-18446744073709551616\"");
    assert_fails(parse_gaps("11-12 14-14"), BP_ERR_FORMAT, "d/x.csv:2:17: gap 14-14 is empty");
    assert_fails(parse_gaps("14-12"), BP_ERR_FORMAT, "gap 14-12 ends before it begins");
    assert_fails(parse_gaps("9-12"), BP_ERR_FORMAT, "gap 9-12 is not inside the interval 10-20");
    assert_fails(parse_gaps("19-21"), BP_ERR_FORMAT, "gap 19-21 is not inside");
    assert_fails(parse_gaps("\"30-31\""), BP_ERR_FORMAT, "d/x.csv:2:12: gap 30-31 is not inside");
    assert_fails(parse_gaps("12-14 16-18 13-15"), BP_ERR_FORMAT, "d/x.csv:2:23: gap 13-15 overlaps gap 12-14");
    assert_fails(parse_gaps("13-15 12-14"), BP_ERR_FORMAT, "d/x.csv:2:17: gap 12-14 overlaps gap 13-15");
    assert_fails(parse_gaps("12-14 12-14"), BP_ERR_FORMAT, "gap 12-14 overlaps gap 12-14");
    assert_fails(parse_gaps("12-18 13-14"), BP_ERR_FORMAT, "gap 13-14 overlaps gap 12-18");
    assert_fails(parse_gaps("10-20"), BP_ERR_FORMAT, "d/x.csv:2:11: the gaps leave nothing of the interval 10-20");
    assert_fails(parse_gaps("15-20 10-15"), BP_ERR_FORMAT, "leave nothing");
}

SCRATCH_TEST(test_read)
{
    bp_packing_file *file = NULL;
    write_text("x.csv", HEADER "a,0,1,1,\n");
    assert_ok(bp_packing_file_read(in_scratch("x.csv"), &file));
    assert_string_equal(bp_packing_file_id(file, 0), "a");
    bp_packing_file_destroy(&file);
    write_text("x.csv", HEADER "a,0,1,\n");
    assert_fails(bp_packing_file_read(in_scratch("x.csv"), &file), BP_ERR_FORMAT, "/x.csv:2:7:");
    assert_fails(bp_packing_file_read(in_scratch("gone.csv"), &file), BP_ERR_IO, "gone.csv", "No such file");
    assert_fails(bp_packing_file_read("/dev/zero", &file), BP_ERR_IO, "/dev/zero: is a character device");
    assert_fails(bp_packing_file_read(NULL, &file), BP_ERR_INVALID_ARGUMENT, "path");
    assert_fails(bp_packing_file_read("x", NULL), BP_ERR_INVALID_ARGUMENT, "path");
    assert_fails(bp_packing_file_parse(NULL, 0, "x", &file), BP_ERR_INVALID_ARGUMENT, "NULL");
    assert_null(file);
}

/* Reads `text` and returns the file that is written with these offsets. */
static const char *written(const char *text, const uint64_t *offsets)
{
    static char read[1024];
    bp_packing_file *file = parse_good(text), *again = NULL;
    assert_ok(bp_packing_file_write(file, offsets, in_scratch("out.csv")));
    assert_ok(bp_packing_file_read(in_scratch("out.csv"), &again));
    size_t count = bp_packing_get_info(bp_packing_file_packing(file))->item_count;
    assert_memory_equal(bp_packing_file_offsets(again), offsets, count * sizeof *offsets);
    for (size_t i = 0; i < count; i++)
        assert_string_equal(bp_packing_file_id(again, i), bp_packing_file_id(file, i));
    bp_packing_file_destroy(&again);
    bp_packing_file_destroy(&file);
    FILE *out = fopen(in_scratch("out.csv"), "rb");
    assert_non_null(out);
    size_t bytes = fread(read, 1, sizeof read - 1, out);
    fclose(out);
    read[bytes] = '\0';
    return read;
}

SCRATCH_TEST(test_write)
{
    const uint64_t offsets[] = {5, UINT64_MAX - 7};
    assert_string_equal(written("id,lower,upper,size\na,0,2,1\nb,2,5,7", offsets),
                        "id,lower,upper,size,offset\na,0,2,1,5\nb,2,5,7,18446744073709551608\n");
    assert_string_equal(written("id,offset,lower,upper,size\na,0,0,2,1\nb,9,2,5,7\n", offsets),
                        "id,offset,lower,upper,size\na,5,0,2,1\nb,18446744073709551608,2,5,7\n");
    assert_string_equal(written("gaps,size,id,upper,lower\r\n\"6-7 4-5\",1,\"a\",9,3\r\n  4-5 ,2,b,9,03\r\n", offsets),
                        "gaps,size,id,upper,lower,offset\n6-7 4-5,1,a,9,3,5\n  4-5 ,2,b,9,03,18446744073709551608\n");
    assert_string_equal(written("id,lower,upper,size\n\"a,\"\"b\",0,2,1\n\"\"\"\",2,5,7\n", offsets),
                        "id,lower,upper,size,offset\n\"a,\"\"b\",0,2,1,5\n\"\"\"\",2,5,7,18446744073709551608\n");
}

SCRATCH_TEST(test_write_errors)
{
    const uint64_t offsets[] = {0};
    bp_packing_file *file = parse_good(HEADER "a,0,1,1,\n");
    assert_fails(bp_packing_file_write(file, offsets, in_scratch("no/such.csv")), BP_ERR_IO, "no/such.csv");
    assert_fails(bp_packing_file_write(file, offsets, scratch), BP_ERR_IO, "directory");
    assert_fails(bp_packing_file_write(file, offsets, "/dev/full"), BP_ERR_IO, "/dev/full");
    assert_fails(bp_packing_file_write(file, NULL, in_scratch("x.csv")), BP_ERR_INVALID_ARGUMENT, "offsets");
    assert_fails(bp_packing_file_write(NULL, offsets, in_scratch("x.csv")), BP_ERR_INVALID_ARGUMENT, "file");
    assert_fails(bp_packing_file_write(file, offsets, NULL), BP_ERR_INVALID_ARGUMENT, "path");
    assert_int_equal(count_entries(scratch), 0);
    bp_packing_file_destroy(&file);
}

/* Many rows with many gaps. */
TEST(test_large)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    fputs("id,lower,upper,size,gaps\n", out);
    for (unsigned i = 0; i < 5000; i++)
        fprintf(out, "item %u,%u,%u,%u,%u-%u\n", i, i, i + 10, i, i + 1, i + 2);
    fputs("long,0,20001,1,", out);
    for (unsigned i = 10000; i-- > 0;)
        fprintf(out, "%u-%u%s", 2 * i + 1, 2 * i + 2, i > 0 ? " " : "\n");
    assert_int_equal(fclose(out), 0);
    bp_packing_file *file;
    assert_ok(parse_bytes(text, bytes, &file));
    assert_int_equal(bp_packing_get_info(bp_packing_file_packing(file))->item_count, 5001);
    assert_int_equal(bp_packing_get_info(bp_packing_file_packing(file))->interval_count, 2 * 5000 + 10001);
    assert_string_equal(bp_packing_file_id(file, 4321), "item 4321");
    const bp_packing_interval interval = bp_packing_get_info(bp_packing_file_packing(file))->intervals[10000 + 7];
    assert_int_equal(interval.item, 5000);
    assert_int_equal(interval.begin, 14);
    assert_int_equal(interval.end, 15);
    bp_packing_file_destroy(&file);
    free(text);
}

TEST(test_faults)
{
    bp_packing_file *file = parse_good("id,lower,upper,size,offset\na,0,4,10,0\nb,4,8,10,0\nc,2,6,5,9\n");
    const bp_packing *packing = bp_packing_file_packing(file);
    const uint64_t good[] = {0, 0, 10};
    bp_packing_fault fault = {.size = sizeof fault};
    assert_ok(bp_packing_find_fault(packing, good, 15, &fault));
    assert_int_equal(fault.found, 0);
    assert_ok(bp_packing_find_fault(packing, bp_packing_file_offsets(file), 15, &fault));
    assert_true(fault.found == 1 && fault.item == 0 && fault.other == 2);
    assert_ok(bp_packing_find_fault(packing, good, 14, &fault));
    assert_true(fault.found == 1 && fault.item == 2 && fault.other == 2);
    assert_fails(bp_packing_find_fault(packing, good, 15, NULL), BP_ERR_INVALID_ARGUMENT, "fault");
    assert_fails(bp_packing_find_fault(NULL, good, 15, &fault), BP_ERR_INVALID_ARGUMENT, "packing");
    bp_packing_file_destroy(&file);
}

TESTS(NULL, NULL)

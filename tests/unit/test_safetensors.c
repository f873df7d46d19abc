/* SPDX-License-Identifier: Apache-2.0 */
/* bp_safetensors_parse and bp_safetensors_read: headers, shards, units, experts. */
#include "scratch.h"

#include <time.h>

/* A safetensors file in memory. */
typedef struct tensor_file {
    char header[4000];
    size_t used;
    uint64_t data_bytes;
    unsigned char bytes[8000];
    size_t size;
} tensor_file;

static void begin(tensor_file *file)
{
    memset(file, 0, sizeof *file);
    file->used = (size_t)sprintf(file->header, "{\"__metadata__\": {\"format\": \"pt\"}");
}

/* `shape` as JSON, `bytes` of data. */
static void add(tensor_file *file, const char *name, const char *dtype, const char *shape, uint64_t bytes)
{
    file->used += (size_t)sprintf(
        file->header + file->used, ", \"%s\": {\"dtype\": \"%s\", \"shape\": %s, \"data_offsets\": [%llu, %llu]}", name,
        dtype, shape, (unsigned long long)file->data_bytes, (unsigned long long)(file->data_bytes + bytes));
    file->data_bytes += bytes;
}

/* Concatenates length, header and data. */
static void compose(tensor_file *file, const char *header, uint64_t data_bytes)
{
    size_t length = strlen(header);
    assert_true(length + 8 + data_bytes <= sizeof file->bytes);
    memset(file->bytes, 0, sizeof file->bytes);
    for (int i = 0; i < 8; i++)
        file->bytes[i] = (unsigned char)(length >> 8 * i);
    memcpy(file->bytes + 8, header, length);
    file->size = 8 + length + data_bytes;
}

static void end(tensor_file *file)
{
    strcat(file->header, "}");
    compose(file, file->header, file->data_bytes);
}

static bp_status parse(const tensor_file *file, const char *units, bp_model **model)
{
    bp_reader_options options = options_with_units(units);
    return bp_safetensors_parse(file->bytes, file->size, file->size, "a/x.safetensors", &options, model);
}

/* Parses a file with this header and `data_bytes` of data. */
static bp_status parse_header(const char *header, uint64_t data_bytes)
{
    static tensor_file file;
    compose(&file, header, data_bytes);
    bp_model *model = NULL;
    bp_status status = parse(&file, NULL, &model);
    assert_true((status == BP_OK) == (model != NULL));
    bp_model_destroy(&model);
    return status;
}

#define ONE(dtype, shape, offsets)                                                                                     \
    "{\"w\": {\"dtype\": " dtype ", \"shape\": " shape ", \"data_offsets\": " offsets "}}"

TEST(test_header_length)
{
    bp_model *model = NULL;
    unsigned char data[16] = {9, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
    assert_fails(bp_safetensors_parse(data, 3, 3, "x", NULL, &model), BP_ERR_FORMAT, "x:", "3 bytes");
    assert_fails(bp_safetensors_parse(data, 10, 10, "x", NULL, &model), BP_ERR_FORMAT, "x:", "9 bytes", "file of 10");
    assert_fails(bp_safetensors_parse(data, 10, 100, "x", NULL, &model), BP_ERR_INVALID_ARGUMENT, "10 bytes", "17");
    assert_fails(bp_safetensors_parse(data, 10, 9, "x", NULL, &model), BP_ERR_INVALID_ARGUMENT, "10 bytes");
    data[7] = 0x80;
    assert_fails(bp_safetensors_parse(data, 10, 10, "x", NULL, &model), BP_ERR_FORMAT, "9223372036854775817");
    memcpy(data, (unsigned char[8]){0x01, 0xe1, 0xf5, 0x05}, 8); /* 100,000,001 */
    assert_fails(bp_safetensors_parse(data, 10, UINT64_MAX, "x", NULL, &model), BP_ERR_FORMAT, "100000001",
                 "at most 100000000");
    assert_fails(bp_safetensors_parse(NULL, 10, 10, "x", NULL, &model), BP_ERR_INVALID_ARGUMENT, "NULL");
    assert_null(model);
}

TEST(test_malformed_headers)
{
    assert_int_equal(parse_header(ONE("\"F32\"", "[3]", "[0, 12]"), 12), BP_OK);
    assert_fails(parse_header("[]", 0), BP_ERR_FORMAT, "a/x.safetensors: $:", "an object", "a list");
    assert_fails(parse_header("{\"w\": 1}", 0), BP_ERR_FORMAT, "$.w:", "an object", "got 1");
    assert_fails(parse_header("{\"w\": ", 0), BP_ERR_FORMAT, "a/x.safetensors:1:7");
    assert_fails(parse_header("", 0), BP_ERR_FORMAT, "empty");
    assert_fails(parse_header("{\"__metadata__\": {\"a\": 1}}", 0), BP_ERR_FORMAT, "$.__metadata__.a", "a string");
    assert_fails(parse_header("{}", 0), BP_ERR_FORMAT, "empty");
    assert_fails(parse_header(ONE("\"F7\"", "[3]", "[0, 12]"), 12), BP_ERR_FORMAT, "$.w.dtype", "\"F7\"", "BF16");
    assert_fails(parse_header(ONE("5", "[3]", "[0, 12]"), 12), BP_ERR_FORMAT, "$.w.dtype", "got 5");
    assert_fails(parse_header(ONE("\"F32\"", "3", "[0, 12]"), 12), BP_ERR_FORMAT, "$.w.shape", "a list, got 3");
    assert_fails(parse_header(ONE("\"F32\"", "[3.0]", "[0, 12]"), 12), BP_ERR_FORMAT, "$.w.shape[0]",
                 "a fraction (3.0)");
    assert_fails(parse_header(ONE("\"F32\"", "[-3]", "[0, 12]"), 12), BP_ERR_FORMAT, "$.w.shape[0]", "got -3");
    assert_fails(parse_header(ONE("\"F32\"", "[9223372036854775808]", "[0, 12]"), 12), BP_ERR_FORMAT,
                 "exceeds 64 bits");
    assert_fails(parse_header(ONE("\"F32\"", "[4294967296, 4294967296]", "[0, 12]"), 12), BP_ERR_FORMAT, "64 bits");
    assert_fails(parse_header(ONE("\"F32\"", "[1,1,1,1,1,1,1,1,3]", "[0, 12]"), 12), BP_ERR_UNSUPPORTED, "$.w.shape",
                 "9");
    assert_fails(parse_header(ONE("\"F4\"", "[3]", "[0, 2]"), 2), BP_ERR_FORMAT, "$.w.shape", "12 bits");
    assert_fails(parse_header("{\"w\": {\"dtype\": \"U8\", \"shape\": []}}", 1), BP_ERR_FORMAT, "data_offsets",
                 "missing");
    assert_fails(parse_header("{\"a\\u001b[2J\": {\"dtype\": \"U8\", \"shape\": [], \"data_offsets\": [0, 1]}}", 1),
                 BP_ERR_FORMAT, "a<1B>[2J", "control characters");
}

TEST(test_offsets)
{
    assert_fails(parse_header(ONE("\"F32\"", "[3]", "[0, 12, 13]"), 12), BP_ERR_FORMAT, "$.w.data_offsets", "two", "3");
    assert_fails(parse_header(ONE("\"F32\"", "[3]", "[12, 0]"), 12), BP_ERR_FORMAT, "$.w.data_offsets", "begins at 12");
    assert_fails(parse_header(ONE("\"F32\"", "[3]", "[0, 8]"), 12), BP_ERR_FORMAT, "8 bytes", "need 12");
    assert_fails(parse_header(ONE("\"F32\"", "[3]", "[0, 12]"), 11), BP_ERR_FORMAT,
                 "ends at byte 12 of the data, which has 11 bytes; the file is truncated");
    assert_fails(parse_header(ONE("\"F32\"", "[3]", "[0, 12]"), 15), BP_ERR_FORMAT, "3 bytes behind");
    assert_fails(parse_header(ONE("\"F32\"", "[3]", "[4, 16]"), 16), BP_ERR_FORMAT, "bytes 0 to 4", "\"w\"");
    assert_fails(parse_header(ONE("\"F32\"", "[3]", "[-4, 8]"), 16), BP_ERR_FORMAT, "$.w.data_offsets[0]", "got -4");
    assert_fails(parse_header("{\"a\": {\"dtype\": \"U8\", \"shape\": [4], \"data_offsets\": [0, 4]},"
                              " \"b\": {\"dtype\": \"U8\", \"shape\": [4], \"data_offsets\": [2, 6]}}",
                              6),
                 BP_ERR_FORMAT, "\"a\" and \"b\" overlap at byte 2");
    assert_fails(parse_header("{\"a\": {\"dtype\": \"U8\", \"shape\": [4], \"data_offsets\": [0, 4]},"
                              " \"a\": {\"dtype\": \"U8\", \"shape\": [4], \"data_offsets\": [4, 8]}}",
                              8),
                 BP_ERR_FORMAT, "duplicate", "\"a\"");
}

TEST(test_shapes_and_dtypes)
{
    static tensor_file file;
    begin(&file);
    add(&file, "scalar", "I64", "[]", 8);
    add(&file, "nothing", "F32", "[0, 9223372036854775807]", 0);
    add(&file, "packed", "F4", "[2, 3]", 3);
    add(&file, "scales", "F8_E8M0", "[3]", 3);
    add(&file, "layers.0.rotary_emb.inv_freq", "F32", "[2]", 8);
    end(&file);
    SCOPED(bp_model_destroy) bp_model *model = NULL;
    assert_ok(parse(&file, NULL, &model));
    assert_string_equal(bp_model_get_info(model)->name, "x");
    assert_int_equal(bp_model_get_info(model)->parameter_count, 3);
    bp_parameter scalar = assert_parameter(model, 0, "scalar", NULL);
    assert_int_equal(scalar.dims, 0);
    assert_int_equal(scalar.dtype, BP_DTYPE_INT64);
    bp_parameter packed = assert_parameter(model, 1, "packed", NULL);
    assert_int_equal(packed.dims, 2);
    assert_int_equal(packed.shape[1], 3);
    assert_int_equal(packed.dtype, BP_DTYPE_FP4_E2M1);
    assert_int_equal(parameter_at(model, 2).dtype, BP_DTYPE_FP8_E8M0);
    assert_int_equal(bp_model_get_info(model)->numel, 1 + 6 + 3);
}

TEST(test_units_by_number)
{
    static tensor_file file;
    begin(&file);
    add(&file, "lm_head.weight", "U8", "[2, 2]", 4);
    add(&file, "encoder.layers.10.mlp.up.weight", "U8", "[2, 2]", 4);
    add(&file, "decoder.layers.1.w", "U8", "[1]", 1);
    add(&file, "encoder.layers.2.layers.7.w", "U8", "[1]", 1);
    add(&file, "decoder.layers.0.w", "U8", "[1]", 1);
    add(&file, "encoder.layers.10.a", "U8", "[1]", 1);
    add(&file, "layers.x.w", "U8", "[1]", 1);
    add(&file, "h.3", "U8", "[1]", 1);
    end(&file);
    SCOPED(bp_model_destroy) bp_model *model = NULL;
    assert_ok(parse(&file, NULL, &model));
    const char *const units[] = {"encoder.layers.2", "encoder.layers.10", "decoder.layers.0", "decoder.layers.1"};
    assert_int_equal(bp_model_get_info(model)->unit_count, 4);
    for (size_t i = 0; i < 4; i++) {
        assert_string_equal(bp_model_get_info(model)->units[i].name, units[i]);
        assert_int_equal(bp_model_get_info(model)->units[i].parent, BP_OUTSIDE);
    }
    assert_parameter(model, 0, "encoder.layers.2.layers.7.w", "encoder.layers.2");
    assert_int_equal(assert_parameter(model, 1, "encoder.layers.10.mlp.up.weight", "encoder.layers.10").flags,
                     BP_PARAMETER_GEMM);
    assert_int_equal(assert_parameter(model, 2, "encoder.layers.10.a", "encoder.layers.10").flags, 0);
    assert_parameter(model, 3, "decoder.layers.0.w", "decoder.layers.0");
    assert_int_equal(assert_parameter(model, 5, "lm_head.weight", NULL).flags, 0);
    assert_parameter(model, 6, "layers.x.w", NULL);
    assert_parameter(model, 7, "h.3", NULL); /* the pattern matches the tensor itself: not a unit */
}

TEST(test_nested_units)
{
    static tensor_file file;
    begin(&file);
    add(&file, "layers.1.mlp.experts.10.w", "U8", "[1]", 1);
    add(&file, "layers.1.mlp.experts.9.w", "U8", "[1]", 1);
    add(&file, "layers.0.w", "U8", "[1]", 1);
    add(&file, "layers.1.w", "U8", "[1]", 1);
    add(&file, "embed.weight", "U8", "[1]", 1);
    end(&file);
    bp_model *model = NULL;
    assert_ok(parse(&file, "layers.N.experts.N, layers.N,embed", &model));
    const char *const units[] = {"layers.0", "layers.1", "layers.1.mlp.experts.9", "layers.1.mlp.experts.10", "embed"};
    const int32_t parents[] = {BP_OUTSIDE, BP_OUTSIDE, 1, 1, BP_OUTSIDE};
    assert_int_equal(bp_model_get_info(model)->unit_count, 5);
    for (size_t i = 0; i < 5; i++) {
        assert_string_equal(bp_model_get_info(model)->units[i].name, units[i]);
        assert_int_equal(bp_model_get_info(model)->units[i].parent, parents[i]);
    }
    assert_parameter(model, 2, "layers.1.mlp.experts.9.w", "layers.1.mlp.experts.9");
    bp_model_destroy(&model);
    assert_fails(parse(&file, "layers..N", &model), BP_ERR_INVALID_ARGUMENT, "layers..N");
    assert_fails(parse(&file, "layers.N,", &model), BP_ERR_INVALID_ARGUMENT, "not a pattern");
    assert_fails(parse(&file, "", &model), BP_ERR_INVALID_ARGUMENT, "not a pattern");
    assert_fails(parse(&file, "a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q", &model), BP_ERR_INVALID_ARGUMENT, "16");
    assert_null(model);
}

TEST(test_experts)
{
    static tensor_file file;
    begin(&file);
    add(&file, "layers.0.experts.2.w1.weight", "U8", "[2, 3]", 6);
    add(&file, "layers.0.experts.0.w1.weight", "U8", "[2, 3]", 6);
    add(&file, "layers.0.norm.weight", "U8", "[3]", 3);
    add(&file, "layers.0.experts.1.w1.weight", "U8", "[2, 3]", 6);
    add(&file, "layers.0.experts.0.w2", "U8", "[2]", 2); /* differs in shape from expert 1 */
    add(&file, "layers.0.experts.1.w2", "U8", "[3]", 3);
    add(&file, "layers.0.experts.1.w3", "U8", "[3]", 3); /* missing in expert 0 */
    add(&file, "layers.0.experts.2.w3", "U8", "[3]", 3);
    add(&file, "layers.1.experts.gate_up_proj", "U8", "[3, 2, 2]", 12);
    add(&file, "layers.1.experts.gate_up_proj_bias", "U8", "[3, 2]", 6);
    add(&file, "layers.1.gate.weight", "U8", "[3, 2]", 6);
    end(&file);
    SCOPED(bp_model_destroy) bp_model *model = NULL;
    assert_ok(parse(&file, NULL, &model));
    assert_int_equal(bp_model_get_info(model)->parameter_count, 9);
    bp_parameter run = assert_parameter(model, 0, "layers.0.experts.*.w1.weight", "layers.0");
    assert_int_equal(run.copies, 3);
    assert_int_equal(run.flags, BP_PARAMETER_EXPERT_COPIES | BP_PARAMETER_GEMM);
    assert_parameter(model, 1, "layers.0.norm.weight", "layers.0");
    for (size_t i = 2; i < 6; i++) {
        assert_int_equal(parameter_at(model, i).copies, 1);
        assert_int_equal(parameter_at(model, i).flags, 0);
        assert_int_equal(parameter_at(model, i).expert_dim, -1);
    }
    bp_parameter stacked = assert_parameter(model, 6, "layers.1.experts.gate_up_proj", "layers.1");
    assert_int_equal(stacked.expert_dim, 0);
    assert_int_equal(stacked.flags, BP_PARAMETER_GEMM);
    assert_int_equal(parameter_at(model, 7).expert_dim, 0);
    assert_int_equal(parameter_at(model, 7).flags, 0);
    assert_int_equal(parameter_at(model, 8).flags, 0);
}

/* A file with one tensor of `bytes` bytes. */
static void write_shard(const char *name, const char *tensor, unsigned bytes)
{
    static tensor_file file;
    char shape[16];
    sprintf(shape, "[%u]", bytes);
    begin(&file);
    add(&file, tensor, "U8", shape, bytes);
    end(&file);
    write_bytes(name, file.bytes, file.size);
}

static void assert_reads(const char *path, const char *name, size_t parameters)
{
    SCOPED(bp_model_destroy) bp_model *model = NULL;
    assert_ok(bp_model_read(path, NULL, &model));
    assert_string_equal(bp_model_get_info(model)->name, name);
    assert_int_equal(bp_model_get_info(model)->parameter_count, parameters);
}

#define INDEX "model.safetensors.index.json"

SCRATCH_TEST(test_layouts)
{
    make_directory("single");
    write_shard("single/model.safetensors", "layers.0.w", 3);
    write_shard("single/adapter.safetensors", "layers.0.w", 5);
    assert_reads(in_scratch("single"), "single", 1);
    assert_reads(in_scratch("single/"), "single", 1);
    assert_reads(in_scratch("single/model.safetensors"), "single", 1);
    assert_reads(in_scratch("single/adapter.safetensors"), "adapter", 1);

    make_directory("set");
    write_shard("set/m-00002-of-00002.safetensors", "layers.1.w", 3);
    write_shard("set/m-00001-of-00002.safetensors", "layers.0.w", 3);
    assert_reads(in_scratch("set"), "set", 2);
    unlink(in_scratch("set/m-00001-of-00002.safetensors"));
    bp_model *model = NULL;
    assert_fails(bp_model_read(in_scratch("set"), NULL, &model), BP_ERR_FORMAT, "1 shards", "m-00002-of-00002", "2");

    make_directory("index");
    write_shard("index/a.safetensors", "layers.1.w", 3);
    write_shard("index/b.safetensors", "layers.0.w", 3);
    write_shard("index/c.safetensors", "not in the index", 3);
    write_text("index/" INDEX,
               "{\"weight_map\": {\"layers.0.w\": \"b.safetensors\", \"layers.1.w\": \"a.safetensors\"}}");
    assert_reads(in_scratch("index"), "index", 2);
    assert_reads(in_scratch("index/" INDEX), "index", 2);
    assert_int_equal(rename(in_scratch("index/" INDEX), in_scratch("index/my.json")), 0);
    assert_reads(in_scratch("index/my.json"), "my", 2);
    write_text("index/x.safetensors.index.json", "{}");
    write_text("index/y.safetensors.index.json", "{}");
    assert_fails(bp_model_read(in_scratch("index"), NULL, &model), BP_ERR_FORMAT, "2 index files");
    make_directory("nothing");
    assert_fails(bp_model_read(in_scratch("nothing"), NULL, &model), BP_ERR_FORMAT, "nothing", "neither");
    assert_null(model);
}

static bp_status read_index(const char *text)
{
    write_text(INDEX, text);
    bp_model *model = NULL;
    bp_status status = bp_safetensors_read(in_scratch(INDEX), NULL, &model);
    bp_model_destroy(&model);
    return status;
}

SCRATCH_TEST(test_index_errors)
{
    write_shard("a.safetensors", "x", 3);
    write_shard("b.safetensors", "y", 3);
    write_shard("twice.safetensors", "x", 3);
    assert_ok(read_index("{\"weight_map\": {\"x\": \"a.safetensors\", \"y\": \"b.safetensors\"}}"));
    assert_fails(read_index("{\"weight_map\": {\"x\": \"a.safetensors\", \"z\": \"a.safetensors\"}}"), BP_ERR_FORMAT,
                 INDEX, "$.weight_map.z", "no shard", "a.safetensors");
    assert_fails(read_index("{\"weight_map\": {\"x\": \"a.safetensors\", \"z\": \"b.safetensors\"}}"), BP_ERR_FORMAT,
                 "$.weight_map.z", "b.safetensors");
    assert_fails(read_index("{\"weight_map\": {\"x\": \"b.safetensors\", \"y\": \"a.safetensors\"}}"), BP_ERR_FORMAT,
                 "$.weight_map.x", "should be in b.safetensors, is in a.safetensors");
    write_shard("c.safetensors", "z", 3);
    assert_fails(read_index("{\"weight_map\": {\"x\": \"a.safetensors\", \"q\": \"c.safetensors\"}}"), BP_ERR_FORMAT,
                 "q");
    assert_fails(read_index("{\"weight_map\": {\"x\": \"twice.safetensors\", \"y\": \"a.safetensors\"}}"),
                 BP_ERR_FORMAT, "twice.safetensors: $.x", "earlier file");
    assert_fails(read_index("{\"weight_map\": {\"x\": \"../a.safetensors\"}}"), BP_ERR_FORMAT, "$.weight_map.x",
                 "in the directory of the index", "../a");
    assert_fails(read_index("{\"weight_map\": {\"x\": \"d/a.safetensors\"}}"), BP_ERR_FORMAT,
                 "in the directory of the index");
    assert_fails(read_index("{\"weight_map\": {\"x\": \"..\"}}"), BP_ERR_FORMAT, "in the directory of the index");
    assert_fails(read_index("{\"weight_map\": {\"x\": 3}}"), BP_ERR_FORMAT, "$.weight_map.x", "got 3");
    assert_fails(read_index("{\"weight_map\": []}"), BP_ERR_FORMAT, "$.weight_map", "an object");
    assert_fails(read_index("{\"weight_map\": {}}"), BP_ERR_FORMAT, "no tensors");
    assert_fails(read_index("{}"), BP_ERR_FORMAT, "$.weight_map", "missing");
    assert_fails(read_index("{\"weight_map\": {\"x\": \"gone.safetensors\"}}"), BP_ERR_IO, "gone.safetensors",
                 "No such file");
}

/* A shard with more tensors than the index lists. */
SCRATCH_TEST(test_index_too_short)
{
    static tensor_file file;
    begin(&file);
    add(&file, "x", "U8", "[1]", 1);
    add(&file, "extra", "U8", "[1]", 1);
    end(&file);
    write_bytes("a.safetensors", file.bytes, file.size);
    assert_fails(read_index("{\"weight_map\": {\"x\": \"a.safetensors\"}}"), BP_ERR_FORMAT, "$.weight_map",
                 "lacks \"extra\"", "a.safetensors");
}

SCRATCH_TEST(test_file_errors)
{
    bp_model *model = NULL;
    make_directory("x.safetensors");
    assert_fails(bp_safetensors_read(in_scratch("x.safetensors"), NULL, &model), BP_ERR_FORMAT, "neither");
    assert_fails(bp_safetensors_read(in_scratch("gone"), NULL, &model), BP_ERR_IO, "gone", "No such file");
    assert_fails(bp_safetensors_read("/dev/null", NULL, &model), BP_ERR_IO, "/dev/null", "regular");
    write_text("cut.safetensors", "\x09");
    assert_fails(bp_safetensors_read(in_scratch("cut.safetensors"), NULL, &model), BP_ERR_FORMAT, "cut.safetensors",
                 "1 bytes");
    assert_null(model);
}

/* Detects quadratic run time; the limit is far above the normal time, also under sanitizers. */
SCRATCH_TEST(test_many_tensors)
{
    enum { SHARDS = 50, LAYERS = 100, EXPERTS = 20 };
    FILE *index = fopen(in_scratch(INDEX), "w");
    assert_non_null(index);
    fprintf(index, "{\"weight_map\": {");
    for (int s = 0; s < SHARDS; s++) {
        char name[64], *header = NULL;
        size_t bytes = 0;
        sprintf(name, "m-%05d-of-%05d.safetensors", s + 1, SHARDS);
        FILE *text = open_memstream(&header, &bytes);
        for (int i = 0; i < LAYERS * EXPERTS; i++) {
            char tensor[80];
            sprintf(tensor, "model.layers.%d.mlp.experts.%d.w%d.weight", i / EXPERTS, i % EXPERTS, s);
            fprintf(text, "%s\"%s\": {\"dtype\": \"U8\", \"shape\": [1], \"data_offsets\": [%d, %d]}",
                    i > 0 ? ", " : "{", tensor, i, i + 1);
            fprintf(index, "%s\"%s\": \"%s\"", s + i > 0 ? ", " : "", tensor, name);
        }
        fputc('}', text);
        fclose(text);
        FILE *file = fopen(in_scratch(name), "wb");
        assert_non_null(file);
        uint64_t length = bytes; /* little-endian, as all hosts of this library */
        fwrite(&length, 1, 8, file);
        fwrite(header, 1, bytes, file);
        assert_int_equal(fclose(file), 0);
        assert_int_equal(truncate(in_scratch(name), (off_t)(8 + bytes + LAYERS * EXPERTS)), 0);
        free(header);
    }
    fprintf(index, "}}");
    fclose(index);
    struct timespec start, stop;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &start);
    bp_model *model = NULL;
    assert_ok(bp_safetensors_read(scratch, NULL, &model));
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &stop);
    assert_int_equal(bp_model_get_info(model)->unit_count, LAYERS);
    assert_int_equal(bp_model_get_info(model)->parameter_count, LAYERS * SHARDS);
    assert_int_equal(bp_model_get_info(model)->numel, LAYERS * SHARDS * EXPERTS);
    bp_model_destroy(&model);
    assert_true(stop.tv_sec - start.tv_sec < 30);
}

TESTS(NULL, NULL)

/* SPDX-License-Identifier: Apache-2.0 */
/* bp_model_read: choice of the reader, unreadable files; bp_config_parse. */
#include "scratch.h"

#define LLAMA_FIELDS                                                                                                   \
    "\"hidden_size\": 64, \"intermediate_size\": 128, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "        \
    "\"num_hidden_layers\": 2, \"vocab_size\": 100, \"tie_word_embeddings\": false"
#define LLAMA "\"model_type\": \"llama\", " LLAMA_FIELDS

static bp_status parse_as(const char *text, bp_dtype asked, bp_dtype *dtype, uint64_t *numel)
{
    bp_reader_options options = options_with_units(NULL);
    options.dtype = asked;
    bp_model *model = NULL;
    bp_status status = bp_config_parse(text, strlen(text), "d/config.json", &options, &model);
    assert_true((status == BP_OK) == (model != NULL));
    if (model != NULL && dtype != NULL)
        *dtype = parameter_at(model, 0).dtype;
    if (model != NULL && numel != NULL)
        *numel = bp_model_get_info(model)->numel;
    bp_model_destroy(&model);
    return status;
}

static bp_status parse(const char *text)
{
    return parse_as(text, BP_DTYPE_NONE, NULL, NULL);
}

static void assert_note(const char *text, const char *note)
{
    SCOPED(bp_model_destroy) bp_model *model = NULL;
    assert_ok(bp_config_parse(text, strlen(text), "d/config.json", NULL, &model));
    const bp_model_info *info = bp_model_get_info(model);
    assert_int_equal(info->note_count, note != NULL ? 1 : 0);
    if (note != NULL)
        assert_non_null(strstr(info->notes[0], note));
}

/* Options of older and newer callers; test_grown_structs.c has all other structs. */
TEST(test_options_grow)
{
    const char *text = "{" LLAMA "}";
    const struct {
        size_t size;
        const char *name;
    } older = {sizeof older, "old"};
    struct {
        bp_reader_options known;
        uint64_t later;
    } newer;
    bp_model *model;
    assert_ok(bp_config_parse(text, strlen(text), "d/config.json", (const void *)&older, &model));
    assert_string_equal(bp_model_get_info(model)->name, "old");
    bp_model_destroy(&model);
    assert_ok(bp_reader_options_init(&newer.known, sizeof newer));
    assert_true(newer.known.size == sizeof newer && newer.later == 0);
    assert_ok(bp_config_parse(text, strlen(text), "d/config.json", &newer.known, &model));
    assert_string_equal(bp_model_get_info(model)->name, "d");
    bp_model_destroy(&model);
    newer.later = 1;
    assert_int_equal(bp_config_parse(text, strlen(text), "d/config.json", &newer.known, &model), BP_ERR_UNSUPPORTED);
    newer.known.size = sizeof(size_t);
    assert_int_equal(bp_config_parse(text, strlen(text), "d/config.json", &newer.known, &model),
                     BP_ERR_INVALID_ARGUMENT);
    assert_int_equal(bp_reader_options_init(&newer.known, sizeof(size_t)), BP_ERR_INVALID_ARGUMENT);
}

/* Notes name the parts of a file that are not counted. */
TEST(test_notes)
{
    assert_note("{" LLAMA "}", NULL);
    assert_note("{" LLAMA ", \"quantization_config\": {}, \"vision_config\": null}", NULL);
    assert_note("{" LLAMA ", \"quantization_config\": {\"a\": 1}}",
                "not read: quantization_config; parameters have the dtype bf16");
    assert_note(
        "{\"model_type\": \"llava\", \"quantization_config\": {\"quant_method\": \"fp8\"}, \"text_config\": {" LLAMA
        "}}",
        "quantization_config (fp8)");
    assert_note("{" LLAMA ", \"vision_config\": {\"a\": 1}}", "not counted: vision_config (python");
    assert_note("{\"text_config\": {" LLAMA "}, \"audio_config\": {\"a\": 1}, \"x_config\": {\"a\": 1}}",
                "audio_config, x_config");
    assert_note("{" LLAMA ", \"num_nextn_predict_layers\": 2}", "2 multi-token prediction layers");
    assert_note("{" LLAMA ", \"num_nextn_predict_layers\": 0}", NULL);
}

/* Fields that no table reads, by their names and values. */
TEST(test_unread_fields)
{
    assert_note("{" LLAMA ", \"adapter_rank\": 999}", "not read, but may decide sizes: adapter_rank 999");
    assert_note("{" LLAMA ", \"num_memory_tokens\": 4096, \"use_output_gate\": true, \"ffn_expansion\": 1.5}",
                "num_memory_tokens 4096, use_output_gate true, ffn_expansion 1.5");
    assert_note("{" LLAMA ", \"layer_types\": [\"full_attention\", \"mamba\"]}", "layer_types (a list of 2)");
    assert_note("{" LLAMA ", \"moe_layers_enum\": \"3,4,5\", \"moe_config\": {\"num_experts\": 8, \"top_k\": 2}}",
                "moe_layers_enum \"3,4,5\", moe_config.num_experts 8");
    assert_note("{" LLAMA ", \"numKeyValueGroups\": 8}", "numKeyValueGroups 8");
    /* switched off, empty, or no size */
    assert_note(
        "{" LLAMA
        ", \"adapter_rank\": 0, \"n_experts\": null, \"use_gate\": false, \"lora_layers\": [], \"x_dim\": \"\"}",
        NULL);
    assert_note(
        "{" LLAMA ", \"max_position_embeddings\": 4096, \"sliding_window\": 4096, \"pad_token_id\": 1, "
        "\"num_experts_per_tok\": 2, \"rope_scaling\": {\"head_dim\": 3}, \"layer_types\": [\"sliding_attention\"]}",
        NULL);
    /* misspelt */
    assert_note("{" LLAMA ", \"head_dmi\": 32}", "head_dmi 32 (meant: head_dim?)");
    assert_note("{" LLAMA ", \"attention_bia\": false}", "attention_bia false (meant: attention_bias?)");
    /* an unknown wrapper, whose own fields count too */
    assert_note("{\"model_type\": \"llava\", \"projector_dim\": 5, \"text_config\": {" LLAMA "}}", NULL);
    const char *unknown = "{\"model_type\": \"new_omni\", \"projector_dim\": 5, \"text_config\": {" LLAMA "}}";
    bp_model *model = NULL;
    assert_ok(bp_config_parse(unknown, strlen(unknown), "d/config.json", NULL, &model));
    const bp_model_info *info = bp_model_get_info(model);
    assert_int_equal(info->note_count, 2);
    assert_non_null(
        strstr(info->notes[0], "model_type new_omni of the whole is not known: planned as its text_config, llama"));
    assert_non_null(strstr(info->notes[1], "projector_dim 5"));
    bp_model_destroy(&model);
    assert_note("{\"model_type\": \"llama\", \"text_config\": {\"model_type\": \"mistral\", " LLAMA_FIELDS "}}",
                "model_type llama of the whole");
    assert_note("{\"model_type\": \"llama\", \"text_config\": {" LLAMA_FIELDS "}}", NULL);
    /* Control characters of a name could drive a terminal. */
    assert_note("{" LLAMA ", \"\\u001b[31m_size\": 7}", "?[31m_size 7");
}

TEST(test_many_unread_fields)
{
    enum { MANY = 100000 };
    char *text = malloc(64 + 64 * MANY);
    assert_non_null(text);
    size_t used = (size_t)sprintf(text, "{%s", LLAMA);
    for (int i = 0; i < MANY; i++)
        used += (size_t)sprintf(text + used, ", \"extra_%06d_size\": %d", i, i + 1);
    sprintf(text + used, "}");
    assert_note(text, "extra_000007_size 8 and 99992 others");
    free(text);
}

TEST(test_strict)
{
    static const char *const texts[][2] = {
        {"{" LLAMA ", \"adapter_rank\": 999}", "d/config.json: not read, but may decide sizes: adapter_rank 999"},
        {"{" LLAMA ", \"architectures\": [\"LlamaForRewardModel\"]}", "LlamaForRewardModel"},
        {"{" LLAMA ", \"num_nextn_predict_layers\": 2}", "2 multi-token prediction layers"},
    };
    bp_reader_options options;
    SCOPED(bp_model_destroy) bp_model *model = NULL;
    assert_ok(bp_reader_options_init(&options, sizeof options));
    options.strict = 1;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        assert_int_equal(bp_config_parse(texts[i][0], strlen(texts[i][0]), "d/config.json", &options, &model),
                         BP_ERR_UNSUPPORTED);
        assert_null(model);
        assert_non_null(strstr(bp_error_detail(), texts[i][1]));
    }
    const char *complete = "{" LLAMA ", \"architectures\": [\"LlamaForCausalLM\"]}";
    assert_ok(bp_config_parse(complete, strlen(complete), "d/config.json", &options, &model));
}

static uint64_t numel_of(const char *text)
{
    bp_model *model = NULL;
    assert_ok(bp_config_parse(text, strlen(text), "d/config.json", NULL, &model));
    uint64_t numel = bp_model_get_info(model)->numel;
    bp_model_destroy(&model);
    return numel;
}

/* "architectures" decides the head; a wrapper's own counts. test_model_heads.py compares all types with transformers. */
TEST(test_heads)
{
    const uint64_t head = UINT64_C(64) * 100, whole = numel_of("{" LLAMA "}");
    assert_int_equal(numel_of("{" LLAMA ", \"architectures\": [\"LlamaForCausalLM\"]}"), whole);
    assert_int_equal(numel_of("{" LLAMA ", \"architectures\": null}"), whole);
    assert_int_equal(numel_of("{" LLAMA ", \"architectures\": [\"LlamaModel\"]}"), whole - head);
    assert_int_equal(
        numel_of("{" LLAMA ", \"architectures\": [\"LlamaForSequenceClassification\"], \"id2label\": {\"0\": \"R\"}}"),
        whole - head + 64);
    assert_int_equal(numel_of("{" LLAMA ", \"architectures\": [\"LlamaForTokenClassification\"], \"num_labels\": 3}"),
                     whole - head + 3 * 64 + 3);
    assert_int_equal(
        numel_of("{\"model_type\": \"llava\", \"architectures\": [\"LlavaModel\"], \"text_config\": {" LLAMA
                 ", \"architectures\": [\"LlamaForCausalLM\"]}}"),
        whole - head);
}

/* Kimi K3: experts of a narrower hidden size with a norm, gates of full rank, and residuals between blocks. Sizes by hand. */
TEST(test_kimi_k3)
{
#define KIMI(linear, more)                                                                                             \
    "{\"model_type\": \"kimi_linear\", \"hidden_size\": 256, \"intermediate_size\": 512, \"num_hidden_layers\": 4, "   \
    "\"num_attention_heads\": 4, \"vocab_size\": 1000, \"kv_lora_rank\": 32, \"qk_nope_head_dim\": 32, "               \
    "\"qk_rope_head_dim\": 16, \"v_head_dim\": 32, \"moe_intermediate_size\": 128, \"num_experts\": 64, "              \
    "\"first_k_dense_replace\": 1, \"linear_attn_config\": {\"full_attn_layers\": [4], \"num_heads\": 4, "             \
    "\"head_dim\": 32" linear "}" more "}"
    const uint64_t plain = numel_of(KIMI("", ""));
    assert_int_equal(plain, 20703500);
    assert_int_equal(numel_of(KIMI("", ", \"routed_expert_hidden_size\": 128, \"latent_moe_use_norm\": true")),
                     plain - 3 * 64 * 3 * 128 * (256 - 128) + 3 * (2 * 256 * 128 + 128));
    assert_int_equal(numel_of(KIMI("", ", \"mla_use_output_gate\": true")), plain + 4 * 32 * 256);
    assert_int_equal(numel_of(KIMI(", \"use_full_rank_gate\": true", "")),
                     plain + 3 * (128 * 256 - 32 * 256 - 128 * 32));
    assert_int_equal(numel_of(KIMI("", ", \"attn_res_block_size\": 2")), plain + 4 * 4 * 256 + 2 * 256);
    assert_int_equal(numel_of(KIMI("", ", \"q_lora_rank\": 16")), plain - 4 * 48 * 256 + 16 * 256 + 16 + 4 * 48 * 16);
    assert_int_equal(numel_of(KIMI("", ", \"moe_layer_freq\": 2")),
                     plain - 2 * (64 * 256 + 65 * 3 * 256 * 128) + 2 * 3 * 512 * 256);
}

/* Nemotron-NAS: layers with other widths, linear layers or nothing. transformers has no such type; sizes by hand. */
TEST(test_nemotron_nas)
{
#define NAS(blocks)                                                                                                    \
    "{\"model_type\": \"nemotron-nas\", \"hidden_size\": 96, \"num_hidden_layers\": 2, \"num_attention_heads\": 8, "   \
    "\"num_key_value_heads\": null, \"intermediate_size\": null, \"vocab_size\": 100, \"block_configs\": [" blocks     \
    "]}"
    const uint64_t outside = 2 * 100 * 96 + 96, norm = 96, square = 96 * 96;
    assert_int_equal(
        numel_of(NAS("{\"attention\": {\"n_heads_in_group\": 4, \"no_op\": false}, \"ffn\": {\"ffn_mult\": 2.625}}, "
                     "{\"attention\": {\"replace_with_linear\": true}, \"ffn\": {\"ffn_mult\": 5}}")),
        outside + 4 * norm + 2 * square + 2 * 2 * 12 * 96 + 3 * 96 * 256 + square + 3 * 96 * 512);
    assert_int_equal(numel_of(NAS("{\"attention\": {\"no_op\": true}, \"ffn\": {\"replace_with_linear\": true}}, "
                                  "{\"attention\": {\"n_heads_in_group\": 8}, \"ffn\": {\"no_op\": true}}")),
                     outside + norm + square + norm + 2 * square + 2 * 12 * 96);
    assert_int_equal(numel_of(NAS("{\"attention\": {\"no_op\": true}, \"ffn\": {\"intermediate_size\": 300}}, "
                                  "{\"attention\": {\"no_op\": true}, \"ffn\": {\"intermediate_size\": 7}}")),
                     outside + 2 * norm + 3 * 96 * 307);
    static const char *const wrong[][2] = {
        {NAS("{\"attention\": {\"n_heads_in_group\": 3}, \"ffn\": {\"ffn_mult\": 1}}"), "8 is not a multiple of 3"},
        {NAS("{\"attention\": {\"no_op\": true}, \"ffn\": {\"no_op\": true}}"), "has 1 entries"}, /* too short */
        {NAS("{\"ffn\": {\"moe\": {\"num_experts\": 2}}}"), "has experts"},
        {NAS("{\"ffn\": {\"ffn_mult\": -1.5}}"), "expected a number in [0, 1e9)"},
        {NAS("{\"ffn\": {\"ffn_mult\": NaN}}"), "expected a number in [0, 1e9)"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        bp_model *model = NULL;
        assert_int_equal(bp_config_parse(wrong[i][0], strlen(wrong[i][0]), "d/config.json", NULL, &model),
                         BP_ERR_FORMAT);
        if (strstr(bp_error_detail(), wrong[i][1]) == NULL)
            print_error("%s\n", bp_error_detail());
        assert_non_null(strstr(bp_error_detail(), wrong[i][1]));
    }
}

/* tie_word_embeddings of the wrapper counts, explicit or by model type. */
TEST(test_wrapper_ties)
{
    const uint64_t head = UINT64_C(64) * 100, untied = numel_of("{" LLAMA "}");
    assert_int_equal(numel_of("{\"model_type\": \"llava\", \"text_config\": {" LLAMA "}}"), untied);
    assert_int_equal(numel_of("{\"model_type\": \"internvl\", \"text_config\": {" LLAMA "}}"), untied - head);
    assert_int_equal(
        numel_of("{\"model_type\": \"llama4\", \"tie_word_embeddings\": true, \"text_config\": {" LLAMA "}}"), untied);
    assert_int_equal(numel_of("{\"tie_word_embeddings\": true, \"text_config\": {" LLAMA "}}"), untied - head);
    assert_int_equal(
        numel_of("{\"model_type\": \"internvl\", \"tie_word_embeddings\": false, \"text_config\": {" LLAMA "}}"),
        untied);
    assert_int_equal(
        numel_of(
            "{\"model_type\": \"llama4\", \"tie_word_embeddings\": true, \"text_config\": {\"model_type\": \"llama\", "
            "\"hidden_size\": 64, \"intermediate_size\": 128, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
            "\"num_hidden_layers\": 2, \"vocab_size\": 100}}"),
        untied);
}

TEST(test_config_errors)
{
    bp_model *model = NULL;
    assert_ok(parse("{" LLAMA "}"));
    assert_fails(bp_config_parse(NULL, 0, "x", NULL, &model), BP_ERR_INVALID_ARGUMENT, "NULL");
    assert_fails(parse(""), BP_ERR_FORMAT, "d/config.json:", "empty");
    assert_fails(parse("{\"model_type\": \"llama\""), BP_ERR_FORMAT, "d/config.json:1:");
    assert_fails(parse("{\"a\": 1, \"a\": 1}"), BP_ERR_FORMAT, "duplicate");
    assert_fails(parse("[1]"), BP_ERR_FORMAT, "d/config.json: $:", "an object, got a list");
    assert_fails(parse("{" LLAMA_FIELDS "}"), BP_ERR_FORMAT, "d/config.json: $.model_type", "missing");
    assert_fails(parse("{\"model_type\": null, " LLAMA_FIELDS "}"), BP_ERR_FORMAT, "$.model_type", "missing");
    assert_fails(parse("{\"model_type\": 3, " LLAMA_FIELDS "}"), BP_ERR_FORMAT, "$.model_type", "got 3");
    assert_fails(parse("{\"model_type\": \"perceptron\"}"), BP_ERR_UNSUPPORTED, "d/config.json", "perceptron",
                 "safetensors");
    assert_fails(parse("{\"model_type\": \"llama\"}"), BP_ERR_FORMAT, "vocab_size", "missing", "llama");
    assert_fails(parse("{\"model_type\": \"llama\", \"vocab_size\": null}"), BP_ERR_FORMAT, "vocab_size", "null");
    assert_fails(parse("{" LLAMA ", \"torch_dtype\": \"bf15\"}"), BP_ERR_FORMAT, "$.torch_dtype", "bf15");
    assert_fails(parse("{" LLAMA ", \"dtype\": 16}"), BP_ERR_FORMAT, "$.dtype", "got 16");
    assert_fails(parse("{" LLAMA ", \"x\": 9223372036854775808}"), BP_ERR_FORMAT,
                 "d/config.json:1:", "exceeds 64 bits");
}

/* Fields that the table needs, with unusable values. */
TEST(test_config_fields)
{
#define FIELD(value)                                                                                                   \
    parse("{\"model_type\": \"llama\", \"hidden_size\": " value                                                        \
          ", \"intermediate_size\": 128, \"num_attention_heads\": 4, "                                                 \
          "\"num_hidden_layers\": 2, \"vocab_size\": 100}")
    assert_ok(FIELD("64"));
    assert_fails(FIELD("66"), BP_ERR_FORMAT, "d/config.json", "\"hidden_size\" is 66", "\"num_attention_heads\"",
                 "is 4");
    assert_ok(FIELD("66, \"head_dim\": 16")); /* head_dim need not be hidden_size / heads */
    assert_fails(FIELD("64.5"), BP_ERR_FORMAT, "d/config.json", "hidden_size", "a fraction (64.5)");
    assert_fails(FIELD("-64"), BP_ERR_FORMAT, "d/config.json", "hidden_size", "-64");
    assert_fails(FIELD("0"), BP_ERR_FORMAT, "d/config.json", "hidden_size");
    assert_fails(FIELD("{\"a\": 1}"), BP_ERR_FORMAT, "d/config.json", "hidden_size", "an object");
    assert_fails(FIELD("Infinity"), BP_ERR_FORMAT, "d/config.json", "hidden_size", "Infinity");
    assert_fails(FIELD("[1, \"x\"]"), BP_ERR_FORMAT, "d/config.json", "hidden_size", "list");
#undef FIELD
}

/* As in the modelling code, incomplete patches at the border do not count. */
TEST(test_config_rounding)
{
#define VIT(image)                                                                                                     \
    numel_of("{\"model_type\": \"vit\", \"hidden_size\": 8, \"intermediate_size\": 8, \"num_attention_heads\": 2, "    \
             "\"num_hidden_layers\": 1, \"patch_size\": 16, \"image_size\": " image "}")
    assert_int_equal(VIT("47"), VIT("32"));
    assert_int_equal(VIT("48"), VIT("32") + (9 - 4) * 8);
#undef VIT
}

TEST(test_config_dtype)
{
    bp_dtype dtype;
    assert_ok(parse_as("{" LLAMA "}", BP_DTYPE_NONE, &dtype, NULL));
    assert_int_equal(dtype, BP_DTYPE_BF16);
    assert_ok(parse_as("{" LLAMA ", \"torch_dtype\": \"float16\"}", BP_DTYPE_NONE, &dtype, NULL));
    assert_int_equal(dtype, BP_DTYPE_FP16);
    assert_ok(parse_as("{" LLAMA ", \"torch_dtype\": null, \"dtype\": \"float32\"}", BP_DTYPE_NONE, &dtype, NULL));
    assert_int_equal(dtype, BP_DTYPE_FP32);
    assert_ok(parse_as("{" LLAMA ", \"torch_dtype\": \"float16\"}", BP_DTYPE_FP32, &dtype, NULL));
    assert_int_equal(dtype, BP_DTYPE_FP32);
}

TEST(test_config_of_python)
{
    assert_ok(parse("{" LLAMA ", \"limit\": [0.0, Infinity], \"a\": -Infinity, \"b\": NaN, \"c\": \"NaN \\\" NaN\"}"));
    assert_ok(parse("{" LLAMA
                    ", \"lists\": [[], [1, 2], [[1]], [null], [true, 3], [\"a\"]], \"rope_scaling\": {\"a\": 1.5}}"));
    assert_ok(parse("{" LLAMA ", \"quantization_config\": {\"bits\": NaN}, \"empty\": [], \"names\": [\"a\", \"b\"]}"));
    assert_fails(parse("{" LLAMA ", \"limit\": Infinity,, \"x\": 1}"), BP_ERR_FORMAT,
                 ":1:", "the name of a member, got ','");
}

TEST(test_config_multimodal)
{
    uint64_t plain, numel;
    bp_dtype dtype;
    assert_ok(parse_as("{" LLAMA "}", BP_DTYPE_NONE, NULL, &plain));
    const char *whole = "{\"model_type\": \"llava\", \"vocab_size\": 5, \"torch_dtype\": \"float16\", "
                        "\"vision_config\": {\"hidden_size\": 7}, \"text_config\": {" LLAMA "}}";
    assert_ok(parse_as(whole, BP_DTYPE_NONE, &dtype, &numel));
    assert_int_equal(numel, plain);
    assert_int_equal(dtype, BP_DTYPE_FP16);
    assert_ok(parse_as("{\"model_type\": \"llama\", \"tie_word_embeddings\": true, \"text_config\": {"
                       "\"hidden_size\": 64, \"intermediate_size\": 128, \"num_attention_heads\": 4, "
                       "\"num_key_value_heads\": 2, \"num_hidden_layers\": 2, \"vocab_size\": 100}}",
                       BP_DTYPE_NONE, NULL, &numel));
    assert_int_equal(numel, plain - 64 * 100); /* the output layer is the embedding */
    assert_ok(parse("{" LLAMA ", \"text_config\": null}"));
    assert_fails(parse("{\"text_config\": {" LLAMA_FIELDS "}}"), BP_ERR_FORMAT, "$.model_type", "missing");
}

static void assert_reads_as(const char *path, const char *name)
{
    SCOPED(bp_model_destroy) bp_model *model = NULL;
    assert_ok(bp_model_read(path, NULL, &model));
    assert_string_equal(bp_model_get_info(model)->name, name);
}

SCRATCH_TEST(test_read_chooses)
{
    static const char units[] = "{\"format\": \"bucketpool.units/1\", \"units\": [], "
                                "\"outside\": {\"buckets\": [{\"dtype\": \"bf16\", \"numel\": 3}]}}";
    make_directory("M-1.5");
    write_text("M-1.5/config.json", "{" LLAMA "}");
    write_text("M-1.5/model.safetensors", "not read");
    assert_reads_as(in_scratch("M-1.5"), "M-1.5");
    assert_reads_as(in_scratch("M-1.5/"), "M-1.5");
    assert_reads_as(in_scratch("M-1.5/."), "M-1.5");
    assert_reads_as(in_scratch("M-1.5/config.json"), "M-1.5");
    write_text("my.json", "{" LLAMA "}");
    assert_reads_as(in_scratch("my.json"), "my");
    write_text("list.txt", units);
    assert_reads_as(in_scratch("list.txt"), "list.txt");
    char here[256];
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(chdir(in_scratch("M-1.5")), 0);
    assert_reads_as(".", "M-1.5");
    assert_reads_as("config.json", "M-1.5");
    assert_int_equal(chdir(here), 0);
}

static bp_status read_text(const char *name, const char *text)
{
    write_text(name, text);
    bp_model *model = NULL;
    bp_status status = bp_model_read(in_scratch(name), NULL, &model);
    assert_true((status == BP_OK) == (model != NULL));
    bp_model_destroy(&model);
    return status;
}

SCRATCH_TEST(test_read_of_other_documents)
{
    assert_fails(read_text("x.json", "{\"a\": 1}"), BP_ERR_FORMAT, "x.json", "bucketpool.units/1", "model_type",
                 "weight_map");
    assert_fails(read_text("x.json", "{\"format\": \"bucketpool.plan/1\"}"), BP_ERR_FORMAT, "x.json",
                 "bucketpool.plan/1");
    assert_fails(read_text("x.json", "{\"format\": \"bucketpool.units/9\"}"), BP_ERR_FORMAT, "$.format", "units/9");
    assert_fails(read_text("x.json", "{\"format\": \"bucketpool.units/1\", \"units\": Infinity}"), BP_ERR_FORMAT,
                 "Infinity");
    assert_fails(read_text("x.json", "[]"), BP_ERR_FORMAT, "x.json", "not a model");
    assert_fails(read_text("x.json", "plain text"), BP_ERR_FORMAT, "x.json:1:");
    assert_fails(read_text("x.json", "\x7f"
                                     "ELF\x01"),
                 BP_ERR_FORMAT, "x.json:1:");
    assert_fails(read_text("x.json", ""), BP_ERR_FORMAT, "x.json", "empty");
    assert_fails(read_text("config.json", "{}"), BP_ERR_FORMAT, "config.json: $.model_type", "missing");
}

/* An unreadable configuration is an error: no other file of the directory replaces it. */
SCRATCH_TEST(test_unreadable_configuration)
{
    bp_model *model = NULL;
    make_directory("u");
    static const char header[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
    const uint64_t header_bytes = sizeof header - 1;
    char file[8 + sizeof header - 1 + 4] = {0};
    memcpy(file, &header_bytes, sizeof header_bytes); /* assumes little-endian */
    memcpy(file + 8, header, sizeof header - 1);
    write_bytes("u/model.safetensors", file, sizeof file);
    assert_ok(bp_model_read(in_scratch("u"), NULL, &model));
    bp_model_destroy(&model);
    make_directory("u/config.json");
    assert_fails(bp_model_read(in_scratch("u"), NULL, &model), BP_ERR_IO, "u/config.json", "directory");
    assert_int_equal(rmdir(in_scratch("u/config.json")), 0);
    assert_int_equal(symlink("config.json", in_scratch("u/config.json")), 0);
    assert_fails(bp_model_read(in_scratch("u"), NULL, &model), BP_ERR_IO, "u/config.json", "symbolic links");
    assert_int_equal(unlink(in_scratch("u/config.json")), 0);
    if (geteuid() != 0) { /* root reads everything */
        write_text("u/config.json", "{" LLAMA "}");
        assert_int_equal(chmod(in_scratch("u/config.json"), 0), 0);
        assert_fails(bp_model_read(in_scratch("u"), NULL, &model), BP_ERR_IO, "u/config.json", "denied");
    }
    assert_null(model);
}

SCRATCH_TEST(test_read_errors)
{
    bp_model *model = NULL;
    assert_fails(bp_model_read(NULL, NULL, &model), BP_ERR_INVALID_ARGUMENT, "NULL");
    assert_fails(bp_model_read("x", NULL, NULL), BP_ERR_INVALID_ARGUMENT, "NULL");
    assert_fails(bp_model_read(in_scratch("gone.json"), NULL, &model), BP_ERR_IO, "gone.json", "No such file");
    assert_fails(bp_model_read("", NULL, &model), BP_ERR_IO, "No such file");
    make_directory("d");
    assert_fails(bp_model_read(in_scratch("d"), NULL, &model), BP_ERR_FORMAT, "/d:", "neither config.json");
    write_text("large.json", "{}");
    assert_int_equal(truncate(in_scratch("large.json"), (off_t)1 << 40), 0);
    assert_fails(bp_model_read(in_scratch("large.json"), NULL, &model), BP_ERR_IO, "large.json", "larger than");
    assert_fails(bp_model_read("/dev/zero", NULL, &model), BP_ERR_IO, "/dev/zero: is a character device");
    if (geteuid() != 0) { /* root reads everything */
        write_text("secret.json", "{}");
        assert_int_equal(chmod(in_scratch("secret.json"), 0), 0);
        assert_fails(bp_model_read(in_scratch("secret.json"), NULL, &model), BP_ERR_IO, "secret.json", "denied");
    }
    assert_fails(bp_model_read("\x1b[2J\xff\xc3", NULL, &model), BP_ERR_IO, "<1B>[2J<FF><C3>");
    assert_null(model);
}

TESTS(NULL, NULL)

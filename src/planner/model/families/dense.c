/* SPDX-License-Identifier: Apache-2.0 */
/* Dense decoders: Llama and the families that differ from it by biases, norms or projections, MiMo, Gemma 3n and Gemma 4. Sources:
 * transformers 4.57.6, models/{llama,mistral,qwen2,qwen3,gemma3}; 5.23.0, models/{gemma,gemma2,olmo,glm,helium,olmo2,olmo3,phi3,glm4,cohere,
 * cohere2,ernie4_5,hunyuan_v1_dense,exaone4,smollm3,seed_oss,starcoder2,gemma3n,gemma4}. */
#include "planner/model/families/families.h"

static const bp_arch_field gemma_fields[] = {
    DECODER_FIELDS("heads", "256", "1"),
    FIELD_ATTENTION_BIAS,
    FIELD_FIXED("mlp_bias", "0"),
    FIELDS_END,
};

static const bp_arch_field olmo2_fields[] = {
    DECODER_FIELDS("heads", "hidden/heads", "0"),
    FIELD_ATTENTION_BIAS,
    FIELD_FIXED("mlp_bias", "0"),
    FIELDS_END,
};

/* Norms have no parameters. */
static const bp_arch_tensor olmo_last[] = {
    {"lm_head", "vocab; hidden", "0", "!tied", NULL, NULL, HEAD},
    TENSORS_END,
};

static const bp_arch_tensor phi3_attention[] = {
    {"self_attn.qkv_proj", "(heads + 2*kv_heads)*head_dim; hidden", "0:kv_heads", NULL, NULL, NULL, GEMM},
    {"self_attn.o_proj", "hidden; heads*head_dim", "1:heads", NULL, NULL, NULL, GEMM},
    TENSORS_END,
};

static const bp_arch_field glm4_fields[] = {
    DECODER_FIELDS("2", "128", "0"),
    FIELD_FLAG("attention_bias", "attention_bias", "1"),
    FIELD_FIXED("out_bias", "0"),
    FIELDS_END,
};

static const bp_arch_tensor glm4_norms[] = {
    {"post_self_attn_layernorm", "hidden", "", NULL, NULL, NULL, LINEAR},
    {"post_mlp_layernorm", "hidden", "", NULL, NULL, NULL, LINEAR},
    TENSORS_END,
};

/* The output is square, whatever the size of heads. */
static const bp_arch_tensor helium_attention[] = {
    {"self_attn.q_proj", "heads*head_dim; hidden", "0:heads", NULL, NULL, "attention_bias", GEMM},
    {"self_attn.k_proj", "kv_heads*head_dim; hidden", "0:kv_heads", NULL, NULL, "attention_bias", GEMM},
    {"self_attn.v_proj", "kv_heads*head_dim; hidden", "0:kv_heads", NULL, NULL, "attention_bias", GEMM},
    {"self_attn.o_proj", "hidden; hidden", "1:heads", NULL, NULL, NULL, GEMM},
    TENSORS_END,
};

static const bp_arch_tensor cohere_qk_norm[] = {
    {"self_attn.q_norm", "heads; head_dim", "0:heads", "qk_norm", NULL, NULL, LINEAR},
    {"self_attn.k_norm", "kv_heads; head_dim", "0:kv_heads", "qk_norm", NULL, NULL, LINEAR},
    TENSORS_END,
};

static const bp_arch_tensor starcoder2_layer[] = {
    {"input_layernorm", "hidden", "", NULL, NULL, "1", LINEAR},
    {"post_attention_layernorm", "hidden", "", NULL, NULL, "1", LINEAR},
    {"mlp.c_fc", "inner; hidden", "0", NULL, NULL, "attention_bias", GEMM},
    {"mlp.c_proj", "hidden; inner", "1", NULL, NULL, "attention_bias", GEMM},
    TENSORS_END,
};

static const bp_arch_tensor starcoder2_last[] = {
    {"model.norm", "hidden", "", NULL, NULL, "1", LINEAR},
    {"lm_head", "vocab; hidden", "0", "!tied", NULL, NULL, HEAD},
    TENSORS_END,
};

static const bp_arch_field gemma3_fields[] = {
    FIELD_SIZE("vocab", "vocab_size", "262208"),
    FIELD_HIDDEN,
    FIELD_INNER,
    FIELD_LAYERS,
    FIELD_SIZE("heads", "num_attention_heads", "8"),
    FIELD_KV_HEADS("4"),
    FIELD_HEAD_DIM("256"),
    FIELD_ATTENTION_BIAS,
    FIELD_FIXED("mlp_bias", "0"),
    FIELD_TIED("1"),
    FIELDS_END,
};

static const bp_arch_tensor per_layer_first[] = {
    {"model.embed_tokens_per_layer", "layer_vocab; layers*layer_hidden", "", "layer_hidden > 0", NULL, NULL, LINEAR},
    {"model.per_layer_model_projection", "layers*layer_hidden; hidden", "", "layer_hidden > 0", NULL, NULL, GEMM},
    {"model.per_layer_projection_norm", "layer_hidden", "", "layer_hidden > 0", NULL, NULL, LINEAR},
    {"model.embed_tokens", "vocab; hidden", "0", NULL, NULL, NULL, LINEAR},
    TENSORS_END,
};

static const bp_arch_tensor per_layer_input[] = {
    {"per_layer_input_gate", "layer_hidden; hidden", "", "layer_hidden > 0", NULL, NULL, GEMM},
    {"per_layer_projection", "hidden; layer_hidden", "", "layer_hidden > 0", NULL, NULL, GEMM},
    {"post_per_layer_input_norm", "hidden", "", "layer_hidden > 0", NULL, NULL, LINEAR},
    TENSORS_END,
};

/* ---- Gemma 3n ----------------------------------------------------------------------------------------------------------- */

static const bp_arch_field gemma3n_fields[] = {
    FIELD_SIZE("vocab", "vocab_size", "262400"),
    FIELD_HIDDEN,
    {"inner", "intermediate_size", BP_FIELD_EACH, REQUIRED, NULL},
    FIELD_LAYERS,
    FIELD_SIZE("heads", "num_attention_heads", "8"),
    FIELD_KV_HEADS("2"),
    FIELD_HEAD_DIM("256"),
    FIELD_ATTENTION_BIAS,
    FIELD_SIZE("layer_vocab", "vocab_size_per_layer_input", "262144"),
    FIELD_SIZE("layer_hidden", "hidden_size_per_layer_input", "256"),
    FIELD_SIZE("streams", "altup_num_inputs", "4"),
    FIELD_COUNT("sharing", "num_kv_shared_layers", "15"),
    FIELD_SIZE("rank", "laurel_rank", "64"),
    FIELD_TIED("1"),
    FIELD_LAYER("shares", "layer >= layers - sharing && layers > sharing"),
    FIELDS_END,
};

static const bp_arch_tensor gemma3n_layer[] = {
    {"self_attn.q_proj", "heads*head_dim; hidden", "0:heads", NULL, NULL, "attention_bias", GEMM},
    {"self_attn.k_proj", "kv_heads*head_dim; hidden", "0:kv_heads", "!shares", NULL, "attention_bias", GEMM},
    {"self_attn.v_proj", "kv_heads*head_dim; hidden", "0:kv_heads", "!shares", NULL, "attention_bias", GEMM},
    {"self_attn.o_proj", "hidden; heads*head_dim", "1:heads", NULL, NULL, "attention_bias", GEMM},
    {"self_attn.q_norm", "head_dim", "", NULL, NULL, NULL, LINEAR},
    {"self_attn.k_norm", "head_dim", "", "!shares", NULL, NULL, LINEAR},
    GATED_MLP("mlp", "inner[layer]", NULL, NULL, NULL),
    {"altup.correct_output_scale", "hidden", "", NULL, NULL, NULL, 0},
    {"altup.correction_coefs", "streams; streams", "", NULL, NULL, NULL, LINEAR},
    {"altup.prediction_coefs", "streams*streams; streams", "", NULL, NULL, NULL, LINEAR},
    {"altup.modality_router", "streams; hidden", "", NULL, NULL, NULL, LINEAR},
    {"altup.router_norm", "hidden", "", NULL, NULL, NULL, LINEAR},
    {"laurel.linear_left", "rank; hidden", "", NULL, NULL, NULL, GEMM},
    {"laurel.linear_right", "hidden; rank", "", NULL, NULL, NULL, GEMM},
    {"laurel.post_laurel_norm", "hidden", "", NULL, NULL, NULL, LINEAR},
    TENSORS_END,
};

static const bp_arch_tensor gemma3n_last[] = {
    {"model.altup_projections.*", "hidden; hidden", "", "streams > 1", "streams - 1", NULL,
     BP_ARCH_LINEAR | BP_ARCH_PLAIN_COPIES},
    {"model.altup_unembed_projections.*", "hidden; hidden", "", "streams > 1", "streams - 1", NULL,
     BP_ARCH_LINEAR | BP_ARCH_PLAIN_COPIES},
    {"model.norm", "hidden", "", NULL, NULL, NULL, LINEAR},
    {"lm_head", "vocab; hidden", "0", "!tied", NULL, NULL, HEAD},
    TENSORS_END,
};

/* ---- Gemma 4: full attention has heads of another size; experts beside the MLP -------------------------------------------- */

static const bp_arch_field gemma4_fields[] = {
    FIELD_SIZE("vocab", "vocab_size", "262144"),
    FIELD_HIDDEN,
    FIELD_INNER,
    FIELD_LAYERS,
    FIELD_SIZE("heads", "num_attention_heads", "8"),
    FIELD_KV_HEADS("4"),
    FIELD_HEAD_DIM("256"),
    FIELD_SIZE("full_head_dim", "global_head_dim", "512"),
    FIELD_FLAG("keys_are_values", "attention_k_eq_v", "0"),
    {"full_kv_heads", "num_global_key_value_heads", BP_FIELD_SIZE, "kv_heads", "kv_heads"},
    FIELD_ATTENTION_BIAS,
    FIELD_LIST("kinds", "layer_types"),
    FIELD_SIZE("layer_vocab", "vocab_size_per_layer_input", "262144"),
    {"layer_hidden", "hidden_size_per_layer_input", BP_FIELD_COUNT, "256", "0"},
    FIELD_COUNT("sharing", "num_kv_shared_layers", "0"),
    FIELD_FLAG("wide", "use_double_wide_mlp", "0"),
    FIELD_FLAG("moe", "enable_moe_block", "0"),
    {"n_experts", "num_experts|num_local_experts", BP_FIELD_SIZE, OPTIONAL, OPTIONAL},
    {"expert_inner", "moe_intermediate_size", BP_FIELD_SIZE, OPTIONAL, OPTIONAL},
    FIELD_TIED("1"),
    FIELD_LAYER("full", "layer == layers - 1 || (has(kinds) ? kinds[layer] == 'full_attention' : (layer+1) % 6 == 0)"),
    FIELD_LAYER("dim", "full ? full_head_dim : head_dim"),
    FIELD_LAYER("groups", "full && keys_are_values ? full_kv_heads : kv_heads"),
    FIELD_LAYER("shares", "sharing > 0 && layer >= layers - sharing"),
    FIELD_LAYER("width", "wide && shares ? 2*inner : inner"),
    FIELDS_END,
};

static const bp_arch_tensor gemma4_layer[] = {
    {"self_attn.q_proj", "heads*dim; hidden", "0:heads", NULL, NULL, "attention_bias", GEMM},
    {"self_attn.k_proj", "groups*dim; hidden", "0:groups", "!shares", NULL, "attention_bias", GEMM},
    {"self_attn.v_proj", "groups*dim; hidden", "0:groups", "!shares && !(full && keys_are_values)", NULL,
     "attention_bias", GEMM},
    {"self_attn.o_proj", "hidden; heads*dim", "1:heads", NULL, NULL, "attention_bias", GEMM},
    {"self_attn.q_norm", "dim", "", NULL, NULL, NULL, LINEAR},
    {"self_attn.k_norm", "dim", "", "!shares", NULL, NULL, LINEAR},
    GATED_MLP("mlp", "width", NULL, NULL, NULL),
    {"router.scale", "hidden", "", "moe", NULL, NULL, 0},
    {"router.per_expert_scale", "n_experts", "", "moe", NULL, NULL, 0},
    {"router.proj", "n_experts; hidden", "", "moe", NULL, NULL, LINEAR},
    {"experts.gate_up_proj", "n_experts; 2*expert_inner; hidden", "1:expert_inner", "moe", NULL, NULL,
     BP_ARCH_GEMM | BP_ARCH_EXPERT_STACK},
    {"experts.down_proj", "n_experts; hidden; expert_inner", "2", "moe", NULL, NULL,
     BP_ARCH_GEMM | BP_ARCH_EXPERT_STACK},
    {"post_feedforward_layernorm_1", "hidden", "", "moe", NULL, NULL, LINEAR},
    {"post_feedforward_layernorm_2", "hidden", "", "moe", NULL, NULL, LINEAR},
    {"pre_feedforward_layernorm_2", "hidden", "", "moe", NULL, NULL, LINEAR},
    TENSORS_END,
};

/* ---- MiMo ------------------------------------------------------------------------------------------------------------------- */

static const bp_arch_tensor mimo_prediction_first[] = {
    {"token_layernorm", "hidden", "", NULL, NULL, NULL, LINEAR},
    {"hidden_layernorm", "hidden", "", NULL, NULL, NULL, LINEAR},
    {"input_proj", "hidden; 2*hidden", "", NULL, NULL, NULL, GEMM},
    TENSORS_END,
};

static const bp_arch_tensor mimo_prediction_last[] = {
    {"final_layernorm", "hidden", "", NULL, NULL, NULL, LINEAR},
    TENSORS_END,
};

/* ---- Nemotron-NAS: layers of other widths, or without attention or MLP --------------------------------------------------- */

static const bp_arch_field nemotron_nas_fields[] = {
    FIELD_VOCAB,
    FIELD_HIDDEN,
    FIELD_LAYERS,
    FIELD_HEADS,
    FIELD_HEAD_DIM("hidden/heads"),
    FIELD_ATTENTION_BIAS,
    FIELD_MLP_BIAS,
    {"groups", "block_configs[].attention.n_heads_in_group", BP_FIELD_LIST, REQUIRED, NULL},
    FIELD_LIST("no_attention", "block_configs[].attention.no_op"),
    FIELD_LIST("linear_attention", "block_configs[].attention.replace_with_linear"),
    FIELD_LIST("no_mlp", "block_configs[].ffn.no_op"),
    FIELD_LIST("linear_mlp", "block_configs[].ffn.replace_with_linear"),
    FIELD_LIST("inners", "block_configs[].ffn.intermediate_size"),
    FIELD_LIST("billionths", "block_configs[].ffn.ffn_mult%"),
    FIELD_LIST("experts", "block_configs[].ffn.moe"),
    FIELD_TIED("0"),
    FIELD_CHECK("!experts[layer]", "has experts (block_configs), which the table of nemotron-nas lacks"),
    FIELD_LAYER("projects", "!no_attention[layer] && linear_attention[layer]"),
    FIELD_LAYER("attends", "!no_attention[layer] && !linear_attention[layer]"),
    FIELD_LAYER("kv_heads", "attends ? heads/groups[layer] : heads"),
    FIELD_LAYER("dense", "!no_mlp[layer] && !linear_mlp[layer]"),
    FIELD_LAYER("inner", "inners[layer] > 0 ? inners[layer] : "
                         "ceil(floor(2*billionths[layer]*hidden, 3*1000000000), 256)*256"),
    FIELDS_END,
};

static const bp_arch_tensor nemotron_nas_layer[] = {
    {"input_layernorm", "hidden", "", "!no_attention[layer]", NULL, NULL, LINEAR},
    ATTENTION("self_attn", "attends", "attention_bias"),
    {"self_attn.linear_attn", "hidden; hidden", "", "projects", NULL, NULL, GEMM},
    {"post_attention_layernorm", "hidden", "", "!no_mlp[layer]", NULL, NULL, LINEAR},
    GATED_MLP("mlp", "inner", "dense", NULL, "mlp_bias"),
    {"mlp.linear_mlp", "hidden; hidden", "", "!no_mlp[layer] && linear_mlp[layer]", NULL, NULL, GEMM},
    TENSORS_END,
};

const bp_arch_family bp_arch_dense[] = {
    {
        .model_types = {"gemma"},
        .source = "transformers 5.23.0 models/gemma",
        .fields = gemma_fields,
        USUAL_DECODER,
        .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_post_norm, bp_arch_gated_mlp},
    },
    {
        .model_types = {"gemma2"},
        .source = "transformers 5.23.0 models/gemma2",
        .fields = gemma_fields,
        USUAL_DECODER,
        .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_post_norm, bp_arch_feedforward_norms,
                  bp_arch_gated_mlp},
    },
    {
        .model_types = {"olmo2", "olmo3"},
        .source = "transformers 5.23.0 models/{olmo2,olmo3}",
        .fields = olmo2_fields,
        USUAL_DECODER,
        .layer = {bp_arch_attention, bp_arch_whole_qk_norm, bp_arch_post_norms, bp_arch_gated_mlp},
    },
    {
        .model_types = {"olmo"},
        .source = "transformers 5.23.0 models/olmo",
        .fields = olmo2_fields,
        .first = bp_arch_embedding,
        .last = olmo_last,
        .layer_name = "model.layers.",
        .layer = {bp_arch_attention, bp_arch_gated_mlp},
    },
    {
        .model_types = {"exaone4"},
        .source = "transformers 5.23.0 models/exaone4",
        .fields = FIELDS(DECODER_FIELDS("heads", "hidden/heads", "0"), NO_BIASES),
        USUAL_DECODER,
        .layer = {bp_arch_attention, bp_arch_qk_norm, bp_arch_post_norms, bp_arch_gated_mlp},
    },
    {
        .model_types = {"hunyuan_v1_dense"},
        .source = "transformers 5.23.0 models/hunyuan_v1_dense",
        .fields =
            FIELDS(DECODER_FIELDS("heads", "hidden/heads", "0"), FIELD_ATTENTION_BIAS, FIELD_FIXED("mlp_bias", "0")),
        USUAL_DECODER,
        .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_hunyuan_qk_norm, bp_arch_post_norm, bp_arch_gated_mlp},
    },
    {
        .model_types = {"phi3"},
        .source = "transformers 5.23.0 models/phi3",
        .fields = FIELDS(DECODER_FIELDS("heads", "hidden/heads", "0")),
        USUAL_DECODER,
        .layer = {bp_arch_input_norm, phi3_attention, bp_arch_post_norm, bp_arch_fused_mlp},
    },
    {
        .model_types = {"glm"},
        .source = "transformers 5.23.0 models/glm",
        .fields = glm4_fields,
        USUAL_DECODER,
        .layer = {bp_arch_input_norm, bp_arch_attention_biases, bp_arch_post_norm, bp_arch_fused_mlp},
    },
    {
        .model_types = {"glm4"},
        .source = "transformers 5.23.0 models/glm4",
        .fields = glm4_fields,
        USUAL_DECODER,
        .layer = {bp_arch_input_norm, bp_arch_attention_biases, bp_arch_post_norm, glm4_norms, bp_arch_fused_mlp},
    },
    {
        .model_types = {"helium"},
        .source = "transformers 5.23.0 models/helium",
        .fields = FIELDS(DECODER_FIELDS("heads", "128", "0"), FIELD_ATTENTION_BIAS, FIELD_MLP_BIAS),
        USUAL_DECODER,
        .layer = {bp_arch_input_norm, helium_attention, bp_arch_post_norm, bp_arch_gated_mlp},
    },
    {
        .model_types = {"seed_oss"},
        .source = "transformers 5.23.0 models/seed_oss",
        .fields = FIELDS(DECODER_FIELDS("8", "128", "0"), FIELD_FLAG("attention_bias", "attention_bias", "1"),
                         FIELD_FLAG("out_bias", "attention_out_bias", "0"), FIELD_MLP_BIAS),
        USUAL_DECODER,
        .layer = {bp_arch_input_norm, bp_arch_attention_biases, bp_arch_post_norm, bp_arch_gated_mlp},
    },
    {
        .model_types = {"smollm3"},
        .source = "transformers 5.23.0 models/smollm3",
        .fields = FIELDS(BASIC_FIELDS, FIELD_KV_HEADS("4"), FIELD_FIXED("head_dim", "hidden/heads"),
                         FIELD_ATTENTION_BIAS, FIELD_MLP_BIAS, FIELD_TIED("1")),
        USUAL_DECODER,
        .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_post_norm, bp_arch_gated_mlp},
    },
    {
        .model_types = {"ernie4_5"},
        .source = "transformers 5.23.0 models/ernie4_5",
        .fields = FIELDS(DECODER_FIELDS("2", "128", "1"), FIELD_FLAG("attention_bias", "use_bias", "0"),
                         FIELD_FIXED("mlp_bias", "attention_bias")),
        USUAL_DECODER,
        .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_post_norm, bp_arch_gated_mlp},
    },
    /* Attention and MLP run side by side, after one norm. */
    {
        .model_types = {"cohere", "cohere2"},
        .source = "transformers 5.23.0 models/{cohere,cohere2}",
        .fields = FIELDS(DECODER_FIELDS("heads", "hidden/heads", "1"), FIELD_ATTENTION_BIAS,
                         FIELD_FIXED("mlp_bias", "0"), FIELD_FLAG("qk_norm", "use_qk_norm", "0")),
        USUAL_DECODER,
        .layer = {bp_arch_input_norm, bp_arch_attention, cohere_qk_norm, bp_arch_gated_mlp},
    },
    {
        .model_types = {"starcoder2"},
        .source = "transformers 5.23.0 models/starcoder2",
        .fields = FIELDS(DECODER_FIELDS("2", "hidden/heads", "1"), FIELD_FLAG("attention_bias", "use_bias", "1")),
        .first = bp_arch_embedding,
        .last = starcoder2_last,
        .layer_name = "model.layers.",
        .layer = {bp_arch_attention, starcoder2_layer},
    },
    {
        .model_types = {"llama", "granite", "cwm", "iquestcoder", "internlm3"},
        .source = "transformers 4.57.6 models/llama; 5.23.0 models/{granite,cwm,iquestcoder,internlm3}",
        .fields = FIELDS(DECODER_FIELDS("heads", "hidden/heads", "0"), FIELD_ATTENTION_BIAS, FIELD_MLP_BIAS),
        USUAL_DECODER,
        .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_post_norm, bp_arch_gated_mlp},
    },
    {
        .model_types = {"mistral", "ministral"},
        .source = "transformers 4.57.6 models/mistral; 5.23.0 models/ministral",
        .fields = FIELDS(DECODER_FIELDS("8", "hidden/heads", "0"), NO_BIASES),
        USUAL_DECODER,
        .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_post_norm, bp_arch_gated_mlp},
    },
    {
        .model_types = {"ministral3"},
        .source = "transformers 5.23.0 models/ministral3",
        .fields = FIELDS(DECODER_FIELDS("8", "128", "0"), NO_BIASES),
        USUAL_DECODER,
        .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_post_norm, bp_arch_gated_mlp},
    },
    {
        /* biases on query, key and value always, on the output never */
        .model_types = {"qwen2", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"},
        .source = "transformers 4.57.6 models/qwen2",
        .ignored = "attention_bias",
        .fields = FIELDS(DECODER_FIELDS("32", "hidden/heads", "0"), FIELD_FIXED("attention_bias", "1"),
                         FIELD_FIXED("out_bias", "0"), FIELD_FIXED("mlp_bias", "0")),
        USUAL_DECODER,
        .layer = {bp_arch_input_norm, bp_arch_attention_biases, bp_arch_post_norm, bp_arch_gated_mlp},
    },
    {
        .model_types = {"mimo"},
        .source = "modeling_mimo.py of MiMo-7B: Qwen2, and prediction layers",
        .ignored = "attention_bias",
        .fields = FIELDS(DECODER_FIELDS("32", "hidden/heads", "0"), FIELD_FIXED("attention_bias", "1"),
                         FIELD_FIXED("out_bias", "0"), FIELD_FIXED("mlp_bias", "0"),
                         FIELD_COUNT("predictions", "num_nextn_predict_layers", "0")),
        USUAL_DECODER,
        .layer = {bp_arch_input_norm, bp_arch_attention_biases, bp_arch_post_norm, bp_arch_gated_mlp},
        .predictions = "predictions",
        .prediction_name = "model.mtp_layers.",
        .prediction_first = mimo_prediction_first,
        .prediction_last = mimo_prediction_last,
    },
    {
        .model_types = {"nemotron-nas"},
        .source = "modeling_decilm.py of Llama-3.3-Nemotron-Super-49B",
        .fields = nemotron_nas_fields,
        .ignored = "intermediate_size|num_key_value_heads",
        USUAL_DECODER,
        .layer = {nemotron_nas_layer},
    },
    {
        .model_types = {"qwen3", "qwen3_vl", "qwen3_vl_text"},
        .source = "transformers 4.57.6 models/qwen3",
        .fields = FIELDS(DECODER_FIELDS("32", "128", "0"), FIELD_ATTENTION_BIAS, FIELD_FIXED("mlp_bias", "0")),
        USUAL_DECODER,
        .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_qk_norm, bp_arch_post_norm, bp_arch_gated_mlp},
    },
    {
        .model_types = {"gemma3_text", "gemma3"},
        .source = "transformers 4.57.6 models/gemma3",
        .fields = gemma3_fields,
        USUAL_DECODER,
        .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_qk_norm, bp_arch_post_norm, bp_arch_feedforward_norms,
                  bp_arch_gated_mlp},
    },
    {
        .model_types = {"gemma3n", "gemma3n_text"},
        .source = "transformers 5.23.0 models/gemma3n, text part",
        .fields = gemma3n_fields,
        .first = per_layer_first,
        .last = gemma3n_last,
        .layer_name = "model.layers.",
        .layer = {bp_arch_input_norm, gemma3n_layer, bp_arch_post_norm, bp_arch_feedforward_norms, per_layer_input},
    },
    {
        .model_types = {"gemma4", "gemma4_text"},
        .source = "transformers 5.23.0 models/gemma4, text part",
        .fields = gemma4_fields,
        .first = per_layer_first,
        .last = bp_arch_norm_and_head,
        .layer_name = "model.layers.",
        .layer = {bp_arch_input_norm, gemma4_layer, bp_arch_post_norm, bp_arch_feedforward_norms, per_layer_input},
    },
    {.source = NULL},
};

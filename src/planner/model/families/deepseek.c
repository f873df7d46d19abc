/* SPDX-License-Identifier: Apache-2.0 */
/* DeepSeek-V2 to V4, Kimi K2, Kimi Linear, GLM-4.5 and later, Mistral 4: a few dense layers, then experts beside shared experts, and prediction
 * layers, numbered after the others. V2, V3.2, glm_moe_dsa, glm4_moe_lite and mistral4: transformers 5.23.0.
 * Sources: transformers 4.57.6 models/{deepseek_v3,glm4_moe}; DeepSeek-V3's own modeling_deepseek.py for the prediction layer
 * and the router's correction bias, which is a parameter there and a buffer in GLM's code. */
#include "planner/model/families/families.h"

/* Heads of latent attention have the dimensions of LATENT_DIMENSIONS. */
#define IGNORED "head_dim|num_key_value_heads|qk_head_dim"

#define FIELD_PREDICTIONS FIELD_COUNT("predictions", "num_nextn_predict_layers", "0")
#define FIELD_MOE_AFTER_DENSE FIELD_LAYER("moe", "layer >= first_dense")
/* In DeepSeek's own code; GLM-4.5's has no such field. */
#define FIELD_MOE_OF_PERIOD                                                                                            \
    FIELD_SIZE("moe_freq", "moe_layer_freq", "1"), FIELD_LAYER("moe", "layer >= first_dense && layer % moe_freq == 0")

/* Without the copies of the model's embedding and output layer that checkpoints store for a prediction layer. */
static const bp_arch_tensor prediction_first[] = {
    {"enorm", "hidden", "", NULL, NULL, NULL, LINEAR},
    {"hnorm", "hidden", "", NULL, NULL, NULL, LINEAR},
    {"eh_proj", "hidden; 2*hidden", "", NULL, NULL, NULL, GEMM},
    TENSORS_END,
};

static const bp_arch_tensor prediction_last[] = {
    {"shared_head.norm", "hidden", "", NULL, NULL, NULL, LINEAR},
    TENSORS_END,
};

/* Latent attention, experts beside shared experts, prediction layers; `n_experts`: the keys that hold the number of experts. */
#define LATENT_FIELDS(n_experts)                                                                                       \
    BASIC_FIELDS, FIELD_SIZE("expert_inner", "moe_intermediate_size", REQUIRED),                                       \
        FIELD_COUNT("shared", "n_shared_experts", "1"), FIELD_SIZE("n_experts", n_experts, REQUIRED),                  \
        ROW("q_rank", "q_lora_rank", BP_FIELD_SIZE, REQUIRED, OPTIONAL), LATENT_DIMENSIONS, FIELD_ATTENTION_BIAS,      \
        FIELD_TIED("0"), FIELD_PREDICTIONS

#define PREDICTIONS                                                                                                    \
    .predictions = "predictions", .prediction_first = prediction_first, .prediction_last = prediction_last

static const bp_arch_field deepseek_v3_fields[] = {
    LATENT_FIELDS("n_routed_experts|num_local_experts"),
    FIELD_COUNT("first_dense", "first_k_dense_replace", "3"),
    FIELD_MOE_OF_PERIOD,
    FIELDS_END,
};

static const bp_arch_tensor deepseek_v3_correction[] = {
    {"mlp.gate.e_score_correction_bias", "n_experts", "", "moe", NULL, NULL, 0},
    TENSORS_END,
};

static const bp_arch_field glm4_moe_fields[] = {
    DECODER_FIELDS("8", "hidden/heads", "0"),
    FIELD_ATTENTION_BIAS,
    FIELD_FIXED("out_bias", "0"),
    FIELD_SIZE("expert_inner", "moe_intermediate_size", REQUIRED),
    FIELD_COUNT("shared", "n_shared_experts", "1"),
    FIELD_SIZE("n_experts", "n_routed_experts|num_local_experts", REQUIRED),
    FIELD_COUNT("first_dense", "first_k_dense_replace", "1"),
    FIELD_FLAG("qk_norm", "use_qk_norm", "0"),
    FIELD_PREDICTIONS,
    FIELD_MOE_AFTER_DENSE,
    FIELDS_END,
};

static const bp_arch_tensor glm4_moe_qk_norm[] = {
    {"self_attn.q_norm", "head_dim", "", "qk_norm", NULL, NULL, LINEAR},
    {"self_attn.k_norm", "head_dim", "", "qk_norm", NULL, NULL, LINEAR},
    TENSORS_END,
};

/* ---- latent attention of other publishers, with an indexer too -------------------------------------------------------- */

#define EXPERT_KEYS "n_routed_experts|num_experts|num_local_experts"

static const bp_arch_tensor deepseek_v2_mlp[] = {
    GATED_MLP("mlp", "inner", "!moe", NULL, "mlp_bias"),
    GATED_MLP("mlp.shared_experts", "shared*expert_inner", "moe && shared > 0", NULL, "mlp_bias"),
    TENSORS_END,
};

/* Layers of kind "shared" reuse the selection of the layer before and have no indexer. */
static const bp_arch_field indexed_fields[] = {
    LATENT_FIELDS(EXPERT_KEYS),
    FIELD_COUNT("first_dense", "first_k_dense_replace", "3"),
    FIELD_LIST("kinds", "mlp_layer_types"),
    FIELD_SIZE("index_heads", "index_n_heads", REQUIRED),
    FIELD_SIZE("index_dim", "index_head_dim", REQUIRED),
    FIELD_LIST("indexers", "indexer_types|index_topk_pattern"),
    FIELD_SIZE("index_period", "index_topk_freq", "1"),
    FIELD_COUNT("index_offset", "index_skip_topk_offset", "2"),
    FIELD_SIZE("moe_freq", "moe_layer_freq", "1"),
    FIELD_LAYER(
        "moe",
        "layer >= layers ? 1 : has(kinds) ? kinds[layer] != 'dense' : layer >= first_dense && layer % moe_freq == 0"),
    FIELD_LAYER("indexed",
                "layer >= layers ? 1 : has(indexers) ? indexers[layer] == 'full' || indexers[layer] == 'F' : "
                "layer < index_offset ? 1 : (layer - index_offset + 1) % index_period == 0"),
    FIELDS_END,
};

static const bp_arch_tensor indexer[] = {
    {"self_attn.indexer.wq_b", "index_heads*index_dim; q_rank", "0:index_heads", "indexed", NULL, NULL, GEMM},
    {"self_attn.indexer.wk", "index_dim; hidden", "", "indexed", NULL, NULL, GEMM},
    {"self_attn.indexer.k_norm", "index_dim", "", "indexed", NULL, "1", LINEAR},
    {"self_attn.indexer.weights_proj", "index_heads; hidden", "", "indexed", NULL, NULL, GEMM},
    TENSORS_END,
};

static const bp_arch_field glm4_moe_lite_fields[] = {
    LATENT_FIELDS(EXPERT_KEYS),
    FIELD_LIST("kinds", "mlp_layer_types"),
    FIELD_LAYER("moe", "layer >= layers ? 1 : has(kinds) ? kinds[layer] == 'sparse' : layer >= 1"),
    FIELDS_END,
};

/* ---- DeepSeek-V4 ------------------------------------------------------------------------------------------------- */

/* DeepSeek-V4: compressed attention, hyper-connections, experts in every layer. Source: transformers 5.23.0, models/deepseek_v4, with
 * the tensor names of published checkpoints. */

/* `sparse` layers compress keys and values fourfold and have an indexer, `heavy` ones compress them more; the rest is sliding. */
static const bp_arch_field deepseek_v4_fields[] = {
    FIELD_VOCAB,
    FIELD_HIDDEN,
    FIELD_LAYERS,
    FIELD_HEADS,
    FIELD_SIZE("head_dim", "head_dim", REQUIRED),
    FIELD_SIZE("q_rank", "q_lora_rank", REQUIRED),
    FIELD_SIZE("out_groups", "o_groups", REQUIRED),
    FIELD_SIZE("out_rank", "o_lora_rank", REQUIRED),
    FIELD_SIZE("expert_inner", "moe_intermediate_size", REQUIRED),
    FIELD_SIZE("n_experts", "n_routed_experts|num_local_experts", REQUIRED),
    FIELD_SIZE("index_heads", "index_n_heads", REQUIRED),
    FIELD_SIZE("index_dim", "index_head_dim", REQUIRED),
    FIELD_SIZE("streams", "hc_mult", "4"),
    FIELD_FIXED("mixes", "(2 + streams)*streams"),
    FIELD_SIZE("sparse_rate", "compress_rates.compressed_sparse_attention|compress_rate_csa", "4"),
    FIELD_SIZE("heavy_rate", "compress_rates.heavily_compressed_attention|compress_rate_hca", "128"),
    FIELD_LIST("kinds", "layer_types"),
    FIELD_LIST("ratios", "compress_ratios"),
    FIELD_LAYER("sparse",
                "has(kinds) ? kinds[layer] == 'compressed_sparse_attention' : has(ratios) ? ratios[layer] == 4 "
                ": layer >= 2 && layer % 2 == 1"),
    FIELD_LAYER("heavy", "has(kinds) ? kinds[layer] == 'heavily_compressed_attention' : has(ratios) ? ratios[layer] == "
                         "128 : !sparse"),
    FIELD_LAYER("kept", "sparse ? 2*head_dim : head_dim"),
    FIELD_LAYER("rate", "sparse ? sparse_rate : heavy_rate"),
    FIELD_TIED("0"),
    FIELDS_END,
};

static const bp_arch_tensor deepseek_v4_attention[] = {
    {"attn_norm", "hidden", "", NULL, NULL, NULL, LINEAR},
    {"attn.wq_a", "q_rank; hidden", "", NULL, NULL, NULL, GEMM},
    {"attn.q_norm", "q_rank", "", NULL, NULL, NULL, LINEAR},
    {"attn.wq_b", "heads*head_dim; q_rank", "0:heads", NULL, NULL, NULL, GEMM},
    {"attn.wkv", "head_dim; hidden", "", NULL, NULL, NULL, GEMM},
    {"attn.norm", "head_dim", "", NULL, NULL, NULL, LINEAR},
    {"attn.wo_a", "out_groups*out_rank; heads*head_dim/out_groups", "0:out_groups", NULL, NULL, NULL, GEMM},
    {"attn.wo_b", "hidden; out_groups*out_rank", "1:out_groups", NULL, NULL, NULL, GEMM},
    {"attn.attn_sink", "heads", "0:heads", NULL, NULL, NULL, 0},
    {"attn.compressor.wgate", "kept; hidden", "", "sparse || heavy", NULL, NULL, GEMM},
    {"attn.compressor.wkv", "kept; hidden", "", "sparse || heavy", NULL, NULL, GEMM},
    {"attn.compressor.ape", "rate; kept", "", "sparse || heavy", NULL, NULL, 0},
    {"attn.compressor.norm", "head_dim", "", "sparse || heavy", NULL, NULL, LINEAR},
    {"attn.indexer.compressor.wgate", "2*index_dim; hidden", "", "sparse", NULL, NULL, GEMM},
    {"attn.indexer.compressor.wkv", "2*index_dim; hidden", "", "sparse", NULL, NULL, GEMM},
    {"attn.indexer.compressor.ape", "sparse_rate; 2*index_dim", "", "sparse", NULL, NULL, 0},
    {"attn.indexer.compressor.norm", "index_dim", "", "sparse", NULL, NULL, LINEAR},
    {"attn.indexer.wq_b", "index_heads*index_dim; q_rank", "0:index_heads", "sparse", NULL, NULL, GEMM},
    {"attn.indexer.weights_proj", "index_heads; hidden", "", "sparse", NULL, NULL, GEMM},
    TENSORS_END,
};

static const bp_arch_tensor deepseek_v4_experts[] = {
    {"ffn_norm", "hidden", "", NULL, NULL, NULL, LINEAR},
    {"ffn.gate", "n_experts; hidden", "", NULL, NULL, NULL, LINEAR},
    {"ffn.experts.*.w1", "expert_inner; hidden", "0", NULL, "n_experts", NULL, GEMM},
    {"ffn.experts.*.w2", "hidden; expert_inner", "1", NULL, "n_experts", NULL, GEMM},
    {"ffn.experts.*.w3", "expert_inner; hidden", "0", NULL, "n_experts", NULL, GEMM},
    {"ffn.shared_experts.w1", "expert_inner; hidden", "0", NULL, NULL, NULL, GEMM},
    {"ffn.shared_experts.w2", "hidden; expert_inner", "1", NULL, NULL, NULL, GEMM},
    {"ffn.shared_experts.w3", "expert_inner; hidden", "0", NULL, NULL, NULL, GEMM},
    TENSORS_END,
};

static const bp_arch_tensor deepseek_v4_connections[] = {
    {"hc_attn_base", "mixes", "", NULL, NULL, NULL, 0},
    {"hc_attn_fn", "mixes; streams*hidden", "", NULL, NULL, NULL, 0},
    {"hc_attn_scale", "3", "", NULL, NULL, NULL, 0},
    {"hc_ffn_base", "mixes", "", NULL, NULL, NULL, 0},
    {"hc_ffn_fn", "mixes; streams*hidden", "", NULL, NULL, NULL, 0},
    {"hc_ffn_scale", "3", "", NULL, NULL, NULL, 0},
    TENSORS_END,
};

static const bp_arch_tensor deepseek_v4_last[] = {
    {"model.hc_head.hc_base", "streams", "", NULL, NULL, NULL, 0},
    {"model.hc_head.hc_fn", "streams; streams*hidden", "", NULL, NULL, NULL, 0},
    {"model.hc_head.hc_scale", "1", "", NULL, NULL, NULL, 0},
    {"model.norm", "hidden", "", NULL, NULL, NULL, LINEAR},
    {"head", "vocab; hidden", "0", "!tied", NULL, NULL, HEAD},
    TENSORS_END,
};

/* ---- Kimi Linear and Kimi K3: delta attention and latent attention ------------------------------------------------------------ */

static const bp_arch_field kimi_linear_fields[] = {
    BASIC_FIELDS,
    FIELD_SIZE("expert_inner", "moe_intermediate_size", REQUIRED),
    FIELD_COUNT("shared", "num_shared_experts", "1"),
    FIELD_SIZE("n_experts", "num_experts|num_local_experts", REQUIRED),
    {"q_rank", "q_lora_rank", BP_FIELD_SIZE, OPTIONAL, OPTIONAL},
    LATENT_DIMENSIONS,
    FIELD_SIZE("delta_heads", "linear_attn_config.num_heads|linear_num_heads", REQUIRED),
    FIELD_SIZE("delta_dim", "linear_attn_config.head_dim|linear_head_dim", REQUIRED),
    FIELD_SIZE("kernel", "linear_attn_config.short_conv_kernel_size|linear_conv_kernel_dim", "4"),
    FIELD_LIST("kinds", "layer_types"),
    FIELD_LIST("attention_layers", "linear_attn_config.full_attn_layers"),
    FIELD_LIST("mlp_kinds", "mlp_layer_types"),
    FIELD_COUNT("first_dense", "first_k_dense_replace", "1"),
    FIELD_SIZE("moe_freq", "moe_layer_freq", "1"),
    FIELD_ATTENTION_BIAS,
    FIELD_FLAG("output_gate", "mla_use_output_gate", "0"),
    FIELD_FLAG("full_gate", "linear_attn_config.use_full_rank_gate", "0"),
    {"latent", "routed_expert_hidden_size", BP_FIELD_SIZE, OPTIONAL, OPTIONAL},
    FIELD_FLAG("latent_norm", "latent_moe_use_norm", "0"),
    FIELD_FIXED("expert_hidden", "has(latent) ? latent : hidden"),
    {"residuals", "attn_res_block_size", BP_FIELD_SIZE, OPTIONAL, OPTIONAL},
    FIELD_TIED("0"),
    FIELD_LAYER("attention", "has(kinds) ? kinds[layer] == 'full_attention' : has(attention_layers) ? "
                             "layer+1 in attention_layers : layer > 0 && layer % 4 == 0"),
    FIELD_LAYER("moe", "has(mlp_kinds) ? mlp_kinds[layer] != 'dense' : layer >= first_dense && layer % moe_freq == 0"),
    FIELD_FIXED("wide", "delta_heads*delta_dim"),
    FIELDS_END,
};

static const bp_arch_tensor kimi_linear_layer[] = {
    {"self_attn.q_proj", "wide; hidden", "0:delta_heads", "!attention", NULL, NULL, GEMM},
    {"self_attn.k_proj", "wide; hidden", "0:delta_heads", "!attention", NULL, NULL, GEMM},
    {"self_attn.v_proj", "wide; hidden", "0:delta_heads", "!attention", NULL, NULL, GEMM},
    {"self_attn.q_conv1d", "wide; 1; kernel", "0:delta_heads", "!attention", NULL, NULL, LINEAR},
    {"self_attn.k_conv1d", "wide; 1; kernel", "0:delta_heads", "!attention", NULL, NULL, LINEAR},
    {"self_attn.v_conv1d", "wide; 1; kernel", "0:delta_heads", "!attention", NULL, NULL, LINEAR},
    {"self_attn.A_log", "1; 1; delta_heads; 1", "2:delta_heads", "!attention", NULL, NULL, 0},
    {"self_attn.dt_bias", "wide", "0:delta_heads", "!attention", NULL, NULL, 0},
    {"self_attn.b_proj", "delta_heads; hidden", "0:delta_heads", "!attention", NULL, NULL, GEMM},
    {"self_attn.f_a_proj", "delta_dim; hidden", "", "!attention", NULL, NULL, GEMM},
    {"self_attn.f_b_proj", "wide; delta_dim", "0:delta_heads", "!attention", NULL, NULL, GEMM},
    {"self_attn.g_a_proj", "delta_dim; hidden", "", "!attention && !full_gate", NULL, NULL, GEMM},
    {"self_attn.g_b_proj", "wide; delta_dim", "0:delta_heads", "!attention && !full_gate", NULL, NULL, GEMM},
    {"self_attn.g_proj", "wide; hidden", "0:delta_heads", "!attention && full_gate", NULL, NULL, GEMM},
    {"self_attn.o_norm", "delta_dim", "", "!attention", NULL, NULL, LINEAR},
    {"self_attn.o_proj", "hidden; wide", "1:delta_heads", "!attention", NULL, NULL, GEMM},
    {"self_attn.q_proj", "heads*(nope_dim+rope_dim); hidden", "0:heads", "attention && !has(q_rank)", NULL, NULL, GEMM},
    {"self_attn.q_a_proj", "q_rank; hidden", "", "attention && has(q_rank)", NULL, "attention_bias", GEMM},
    {"self_attn.q_a_layernorm", "q_rank", "", "attention && has(q_rank)", NULL, NULL, LINEAR},
    {"self_attn.q_b_proj", "heads*(nope_dim+rope_dim); q_rank", "0:heads", "attention && has(q_rank)", NULL, NULL,
     GEMM},
    {"self_attn.kv_a_proj_with_mqa", "kv_rank+rope_dim; hidden", "", "attention", NULL, "attention_bias", GEMM},
    {"self_attn.kv_a_layernorm", "kv_rank", "", "attention", NULL, NULL, LINEAR},
    {"self_attn.kv_b_proj", "heads*(nope_dim+value_dim); kv_rank", "0:heads", "attention", NULL, NULL, GEMM},
    {"self_attn.g_proj", "heads*value_dim; hidden", "0:heads", "attention && output_gate", NULL, NULL, GEMM},
    {"self_attn.o_proj", "hidden; heads*value_dim", "1:heads", "attention", NULL, "attention_bias", GEMM},
    {"self_attention_res_norm", "hidden", "", "has(residuals)", NULL, NULL, LINEAR},
    {"self_attention_res_proj", "1; hidden", "", "has(residuals)", NULL, NULL, LINEAR},
    {"mlp_res_norm", "hidden", "", "has(residuals)", NULL, NULL, LINEAR},
    {"mlp_res_proj", "1; hidden", "", "has(residuals)", NULL, NULL, LINEAR},
    TENSORS_END,
};

/* Published checkpoints use the experts' module name for dense layers, too. */
static const bp_arch_tensor kimi_linear_mlp[] = {
    GATED_MLP("block_sparse_moe", "inner", "!moe", NULL, NULL),
    {"block_sparse_moe.gate", "n_experts; hidden", "", "moe", NULL, NULL, LINEAR},
    {"block_sparse_moe.experts.*.w1", "expert_inner; expert_hidden", "0", "moe", "n_experts", NULL, GEMM},
    {"block_sparse_moe.experts.*.w3", "expert_inner; expert_hidden", "0", "moe", "n_experts", NULL, GEMM},
    {"block_sparse_moe.experts.*.w2", "expert_hidden; expert_inner", "1", "moe", "n_experts", NULL, GEMM},
    {"block_sparse_moe.routed_expert_down_proj", "latent; hidden", "", "moe && has(latent)", NULL, NULL, GEMM},
    {"block_sparse_moe.routed_expert_norm", "latent", "", "moe && has(latent) && latent_norm", NULL, NULL, LINEAR},
    {"block_sparse_moe.routed_expert_up_proj", "hidden; latent", "", "moe && has(latent)", NULL, NULL, GEMM},
    GATED_MLP("block_sparse_moe.shared_experts", "shared*expert_inner", "moe && shared > 0", NULL, NULL),
    TENSORS_END,
};

/* The output layer is never tied. */
static const bp_arch_tensor kimi_linear_last[] = {
    {"model.norm", "hidden", "", NULL, NULL, NULL, LINEAR},
    {"model.output_attn_res_norm", "hidden", "", "has(residuals)", NULL, NULL, LINEAR},
    {"model.output_attn_res_proj", "1; hidden", "", "has(residuals)", NULL, NULL, LINEAR},
    {"lm_head", "vocab; hidden", "0", NULL, NULL, NULL, HEAD},
    TENSORS_END,
};

const bp_arch_family bp_arch_deepseek[] = {
    {
        .model_types = {"deepseek_v3", "kimi_k2"},
        .source = "transformers 4.57.6 models/deepseek_v3; modeling_deepseek.py of DeepSeek-V3",
        .ignored = IGNORED,
        .fields = deepseek_v3_fields,
        USUAL_DECODER,
        .layer = {bp_arch_input_norm, bp_arch_mla, bp_arch_post_norm, bp_arch_dense_mlp, bp_arch_experts,
                  deepseek_v3_correction, bp_arch_shared_experts},
        PREDICTIONS,
    },
    {
        .model_types = {"glm4_moe"},
        .source = "transformers 4.57.6 models/glm4_moe; vllm glm4_moe_mtp.py for the prediction layer",
        .fields = glm4_moe_fields,
        USUAL_DECODER,
        .layer = {bp_arch_input_norm, bp_arch_attention_biases, glm4_moe_qk_norm, bp_arch_post_norm, bp_arch_dense_mlp,
                  bp_arch_experts, bp_arch_shared_experts},
        PREDICTIONS,
    },
    {
        .model_types = {"deepseek_v2"},
        .source = "transformers 5.23.0 models/deepseek_v2",
        .ignored = IGNORED,
        .fields = FIELDS(LATENT_FIELDS(EXPERT_KEYS), FIELD_COUNT("first_dense", "first_k_dense_replace", REQUIRED),
                         FIELD_MLP_BIAS, FIELD_MOE_OF_PERIOD),
        USUAL_DECODER,
        .layer = {bp_arch_input_norm, bp_arch_mla, bp_arch_post_norm, deepseek_v2_mlp, bp_arch_experts},
    },
    {
        .model_types = {"deepseek_v32", "glm_moe_dsa"},
        .source =
            "transformers 5.23.0 models/{deepseek_v32,glm_moe_dsa}; vllm deepseek_mtp.py for the prediction layer",
        .ignored = IGNORED "|mlp_bias|indexer_rope_interleave|index_share_for_mtp_iteration|layer_types",
        .fields = indexed_fields,
        USUAL_DECODER,
        .layer = {bp_arch_input_norm, bp_arch_mla, indexer, bp_arch_post_norm, bp_arch_dense_mlp, bp_arch_experts,
                  bp_arch_shared_experts},
        PREDICTIONS,
    },
    {
        .model_types = {"glm4_moe_lite"},
        .source = "transformers 5.23.0 models/glm4_moe_lite; vllm deepseek_mtp.py for the prediction layer",
        .ignored = IGNORED,
        .fields = glm4_moe_lite_fields,
        USUAL_DECODER,
        .layer = {bp_arch_input_norm, bp_arch_mla, bp_arch_post_norm, bp_arch_dense_mlp, bp_arch_experts,
                  bp_arch_shared_experts},
        PREDICTIONS,
    },
    {
        .model_types = {"mistral4"},
        .source = "transformers 5.23.0 models/mistral4",
        .ignored = IGNORED,
        .fields = FIELDS(LATENT_FIELDS(EXPERT_KEYS), FIELD_COUNT("first_dense", "first_k_dense_replace", "0"),
                         FIELD_MOE_AFTER_DENSE),
        USUAL_DECODER,
        .layer = {bp_arch_input_norm, bp_arch_mla, bp_arch_post_norm, bp_arch_dense_mlp, bp_arch_expert_stacks,
                  bp_arch_shared_experts},
    },
    {
        .model_types = {"deepseek_v4"},
        .source = "transformers 5.23.0 models/deepseek_v4",
        .ignored =
            "attention_bias|mlp_layer_types|n_shared_experts|num_key_value_heads|qk_rope_head_dim|num_hash_layers",
        .fields = deepseek_v4_fields,
        .first = bp_arch_embedding,
        .last = deepseek_v4_last,
        .layer_name = "model.layers.",
        .layer = {deepseek_v4_attention, deepseek_v4_experts, deepseek_v4_connections},
    },
    {
        .model_types = {"kimi_linear"},
        .source = "transformers 5.23.0 models/kimi_linear; vllm models/kimi_k3 for gates, latent experts and residuals",
        .ignored = IGNORED "|linear_attn_config.kda_layers",
        .fields = kimi_linear_fields,
        .first = bp_arch_embedding,
        .last = kimi_linear_last,
        .layer_name = "model.layers.",
        .layer = {bp_arch_input_norm, kimi_linear_layer, bp_arch_post_norm, kimi_linear_mlp},
    },
    {.source = NULL},
};

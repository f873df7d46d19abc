/* DeepSeek-V4: compressed attention, hyper-connections, experts in every layer. Source: transformers 5.23.0, models/deepseek_v4, with
 * the tensor names of published checkpoints. */
#include "model/families/common.h"

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
    {"head", "vocab; hidden", "0", "!tied", NULL, NULL, LINEAR},
    TENSORS_END,
};

const bp_arch_family bp_arch_deepseek_v4 = {
    .model_types = {"deepseek_v4"},
    .source = "transformers 5.23.0 models/deepseek_v4",
    .fields = deepseek_v4_fields,
    .first = bp_arch_embedding,
    .last = deepseek_v4_last,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {deepseek_v4_attention, deepseek_v4_experts, deepseek_v4_connections},
};

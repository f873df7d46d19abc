/* Stacks of state-space layers, short convolutions and linear attention: Mamba-2, Falcon-H1, Bamba, LFM2, Kimi Linear, Qwen3.5.
 * Sources: transformers 5.23.0, models/{mamba2,falcon_h1,bamba,lfm2,lfm2_moe,kimi_linear,qwen3_5,qwen3_5_moe}, with the tensor names
 * of published checkpoints. */
#include "model/families/common.h"

/* ---- Mamba-2 alone, beside attention, and in turn with it --------------------------------------------------------------- */

static const bp_arch_field mamba2_fields[] = {
    FIELD_VOCAB,
    FIELD_HIDDEN,
    FIELD_LAYERS,
    FIELD_SIZE("mamba_heads", "num_heads", REQUIRED),
    FIELD_SIZE("state", "state_size", REQUIRED),
    FIELD_SIZE("groups", "n_groups", REQUIRED),
    FIELD_SIZE("kernel", "conv_kernel", "4"),
    FIELD_SIZE("expand", "expand", "2"),
    FIELD_FLAG("use_bias", "use_bias", "0"),
    FIELD_FLAG("conv_bias", "use_conv_bias", "1"),
    FIELD_FIXED("mixed", "expand*hidden"),
    FIELD_FIXED("channels", "mixed + 2*groups*state"),
    FIELD_TIED("0"),
    FIELDS_END,
};

static const bp_arch_tensor mamba2_first[] = {
    {"backbone.embeddings", "vocab; hidden", "0", NULL, NULL, NULL, LINEAR},
    TENSORS_END,
};

static const bp_arch_tensor mamba2_last[] = {
    {"backbone.norm_f", "hidden", "", NULL, NULL, NULL, LINEAR},
    {"lm_head", "vocab; hidden", "0", "!tied", NULL, NULL, LINEAR},
    TENSORS_END,
};

static const bp_arch_tensor mamba2_layer[] = {
    {"norm", "hidden", "", NULL, NULL, NULL, LINEAR},
    {"mixer.dt_bias", "mamba_heads", "0:mamba_heads", NULL, NULL, NULL, 0},
    {"mixer.A_log", "mamba_heads", "0:mamba_heads", NULL, NULL, NULL, 0},
    {"mixer.D", "mamba_heads", "0:mamba_heads", NULL, NULL, NULL, 0},
    {"mixer.conv1d", "channels; 1; kernel", "0:groups", NULL, NULL, "conv_bias", LINEAR},
    {"mixer.in_proj", "mixed + channels + mamba_heads; hidden", "0:groups", NULL, NULL, "use_bias", GEMM},
    {"mixer.norm", "mixed", "0:groups", NULL, NULL, NULL, LINEAR},
    {"mixer.out_proj", "hidden; mixed", "1:groups", NULL, NULL, "use_bias", GEMM},
    TENSORS_END,
};

const bp_arch_family bp_arch_mamba2 = {
    .model_types = {"mamba2"},
    .source = "transformers 5.23.0 models/mamba2",
    .fields = mamba2_fields,
    .first = mamba2_first,
    .last = mamba2_last,
    .layers = "layers",
    .layer_name = "backbone.layers.",
    .layer = {mamba2_layer},
};

static const bp_arch_tensor final_layernorm_and_head[] = {
    {"model.final_layernorm", "hidden", "", NULL, NULL, NULL, LINEAR},
    {"lm_head", "vocab; hidden", "0", "!tied", NULL, NULL, LINEAR},
    TENSORS_END,
};

#define MAMBA_AND_ATTENTION_FIELDS                                                                                     \
    FIELD_VOCAB, FIELD_HIDDEN, FIELD_INNER, FIELD_LAYERS, FIELD_HEADS, FIELD_KV_HEADS("8"),                            \
        FIELD_HEAD_DIM("hidden/heads"), FIELD_FLAG("attention_bias", "attention_bias", "0"),                           \
        FIELD_FLAG("mlp_bias", "mlp_bias", "0"), FIELD_SIZE("mamba_heads", "mamba_n_heads", REQUIRED),                 \
        FIELD_SIZE("groups", "mamba_n_groups", REQUIRED), FIELD_SIZE("state", "mamba_d_state", REQUIRED),              \
        FIELD_SIZE("kernel", "mamba_d_conv", "4"), FIELD_SIZE("expand", "mamba_expand", "2"),                          \
        FIELD_FLAG("conv_bias", "mamba_conv_bias", "1"), FIELD_FLAG("proj_bias", "mamba_proj_bias", "0"),              \
        FIELD_TIED("0")

/* Where `attention` or `mamba` holds, or both; `mamba_norm` adds the gated norm. */
static const bp_arch_tensor mamba_and_attention[] = {
    {"self_attn.q_proj", "heads*head_dim; hidden", "0:heads", "attention", NULL, "attention_bias", GEMM},
    {"self_attn.k_proj", "kv_heads*head_dim; hidden", "0:kv_heads", "attention", NULL, "attention_bias", GEMM},
    {"self_attn.v_proj", "kv_heads*head_dim; hidden", "0:kv_heads", "attention", NULL, "attention_bias", GEMM},
    {"self_attn.o_proj", "hidden; heads*head_dim", "1:heads", "attention", NULL, "attention_bias", GEMM},
    {"mamba.dt_bias", "mamba_heads", "0:mamba_heads", "mamba", NULL, NULL, 0},
    {"mamba.A_log", "mamba_heads", "0:mamba_heads", "mamba", NULL, NULL, 0},
    {"mamba.D", "mamba_heads", "0:mamba_heads", "mamba", NULL, NULL, 0},
    {"mamba.conv1d", "channels; 1; kernel", "0:groups", "mamba", NULL, "conv_bias", LINEAR},
    {"mamba.in_proj", "mixed + channels + mamba_heads; hidden", "0:groups", "mamba", NULL, "proj_bias", GEMM},
    {"mamba.norm", "mixed", "0:groups", "mamba && mamba_norm", NULL, NULL, LINEAR},
    {"mamba.out_proj", "hidden; mixed", "1:groups", "mamba", NULL, "out_bias", GEMM},
    {"pre_ff_layernorm", "hidden", "", NULL, NULL, NULL, LINEAR},
    {"feed_forward.gate_proj", "inner; hidden", "0", NULL, NULL, "mlp_bias", GEMM},
    {"feed_forward.up_proj", "inner; hidden", "0", NULL, NULL, "mlp_bias", GEMM},
    {"feed_forward.down_proj", "hidden; inner", "1", NULL, NULL, "mlp_bias", GEMM},
    TENSORS_END,
};

static const bp_arch_field falcon_h1_fields[] = {
    MAMBA_AND_ATTENTION_FIELDS,
    {"mixed", "mamba_d_ssm", BP_FIELD_SIZE, "1024", "expand*hidden"},
    FIELD_FIXED("channels", "mixed + 2*groups*state"),
    FIELD_FLAG("mamba_norm", "mamba_rms_norm", "0"),
    FIELD_FLAG("out_bias", "projectors_bias", "0"),
    FIELD_FIXED("attention", "1"),
    FIELD_FIXED("mamba", "1"),
    FIELDS_END,
};

const bp_arch_family bp_arch_falcon_h1 = {
    .model_types = {"falcon_h1"},
    .source = "transformers 5.23.0 models/falcon_h1",
    .fields = falcon_h1_fields,
    .first = bp_arch_embedding,
    .last = final_layernorm_and_head,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {bp_arch_input_norm, mamba_and_attention},
};

static const bp_arch_field bamba_fields[] = {
    MAMBA_AND_ATTENTION_FIELDS,
    FIELD_FIXED("mixed", "expand*hidden"),
    FIELD_FIXED("channels", "mixed + 2*groups*state"),
    FIELD_FIXED("mamba_norm", "1"),
    FIELD_FIXED("out_bias", "proj_bias"),
    {"attention_layers", "attn_layer_indices", BP_FIELD_LIST, OPTIONAL, NULL},
    FIELD_LAYER("attention", "layer in attention_layers"),
    FIELD_LAYER("mamba", "!attention"),
    FIELDS_END,
};

const bp_arch_family bp_arch_bamba = {
    .model_types = {"bamba"},
    .source = "transformers 5.23.0 models/bamba",
    .fields = bamba_fields,
    .first = bp_arch_embedding,
    .last = final_layernorm_and_head,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {bp_arch_input_norm, mamba_and_attention},
};

/* ---- LFM2: short convolutions -------------------------------------------------------------------------------------------- */

static const bp_arch_field lfm2_fields[] = {
    FIELD_VOCAB,
    FIELD_HIDDEN,
    FIELD_SIZE("given_inner", "block_ff_dim|intermediate_size", REQUIRED),
    FIELD_LAYERS,
    FIELD_HEADS,
    FIELD_KV_HEADS("8"),
    FIELD_FIXED("head_dim", "hidden/heads"),
    FIELD_FLAG("conv_bias", "conv_bias", "0"),
    FIELD_SIZE("kernel", "conv_L_cache", "3"),
    FIELD_FLAG("adjusts", "block_auto_adjust_ff_dim", "1"),
    FIELD_SIZE("multiple", "block_multiple_of", "256"),
    FIELD_SIZE("factor", "block_ffn_dim_multiplier", "1"),
    FIELD_FIXED("inner", "adjusts ? ceil(factor*floor(2*given_inner, 3), multiple)*multiple : given_inner"),
    FIELD_LIST("kinds", "layer_types"),
    FIELD_LIST("attention_layers", "full_attn_idxs"),
    {"tied", "tie_embedding|tie_word_embeddings", BP_FIELD_FLAG, "1", NULL},
    FIELD_LAYER("moe", "0"),
    FIELD_LAYER("attention", "has(kinds) ? kinds[layer] == 'full_attention' : "
                             "has(attention_layers) ? layer in attention_layers : 1"),
    FIELDS_END,
};

static const bp_arch_tensor lfm2_mixer[] = {
    {"operator_norm", "hidden", "", NULL, NULL, NULL, LINEAR},
    {"conv.conv", "hidden; 1; kernel", "0", "!attention", NULL, "conv_bias", LINEAR},
    {"conv.in_proj", "3*hidden; hidden", "0:hidden", "!attention", NULL, "conv_bias", GEMM},
    {"conv.out_proj", "hidden; hidden", "1", "!attention", NULL, "conv_bias", GEMM},
    {"self_attn.q_proj", "heads*head_dim; hidden", "0:heads", "attention", NULL, NULL, GEMM},
    {"self_attn.k_proj", "kv_heads*head_dim; hidden", "0:kv_heads", "attention", NULL, NULL, GEMM},
    {"self_attn.v_proj", "kv_heads*head_dim; hidden", "0:kv_heads", "attention", NULL, NULL, GEMM},
    {"self_attn.out_proj", "hidden; heads*head_dim", "1:heads", "attention", NULL, NULL, GEMM},
    {"self_attn.q_layernorm", "head_dim", "", "attention", NULL, NULL, LINEAR},
    {"self_attn.k_layernorm", "head_dim", "", "attention", NULL, NULL, LINEAR},
    {"ffn_norm", "hidden", "", NULL, NULL, NULL, LINEAR},
    TENSORS_END,
};

static const bp_arch_tensor lfm2_mlp[] = {
    {"feed_forward.w1", "inner; hidden", "0", "!moe", NULL, NULL, GEMM},
    {"feed_forward.w3", "inner; hidden", "0", "!moe", NULL, NULL, GEMM},
    {"feed_forward.w2", "hidden; inner", "1", "!moe", NULL, NULL, GEMM},
    TENSORS_END,
};

static const bp_arch_tensor lfm2_last[] = {
    {"model.embedding_norm", "hidden", "", NULL, NULL, NULL, LINEAR},
    {"lm_head", "vocab; hidden", "0", "!tied", NULL, NULL, LINEAR},
    TENSORS_END,
};

const bp_arch_family bp_arch_lfm2 = {
    .model_types = {"lfm2"},
    .source = "transformers 5.23.0 models/lfm2",
    .fields = lfm2_fields,
    .first = bp_arch_embedding,
    .last = lfm2_last,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {lfm2_mixer, lfm2_mlp},
};

static const bp_arch_field lfm2_moe_fields[] = {
    FIELD_VOCAB,
    FIELD_HIDDEN,
    FIELD_INNER,
    FIELD_LAYERS,
    FIELD_HEADS,
    FIELD_KV_HEADS("8"),
    FIELD_FIXED("head_dim", "hidden/heads"),
    FIELD_FLAG("conv_bias", "conv_bias", "0"),
    FIELD_SIZE("kernel", "conv_L_cache", "3"),
    {"kinds", "layer_types", BP_FIELD_LIST, REQUIRED, NULL},
    FIELD_SIZE("expert_inner", "moe_intermediate_size", REQUIRED),
    FIELD_SIZE("n_experts", "num_experts|num_local_experts", REQUIRED),
    FIELD_COUNT("first_dense", "num_dense_layers", "2"),
    {"tied", "tie_embedding|tie_word_embeddings", BP_FIELD_FLAG, "1", NULL},
    FIELD_LAYER("moe", "layer >= first_dense"),
    FIELD_LAYER("attention", "kinds[layer] == 'full_attention'"),
    FIELDS_END,
};

static const bp_arch_tensor lfm2_experts[] = {
    {"feed_forward.gate", "n_experts; hidden", "", "moe", NULL, NULL, LINEAR},
    {"feed_forward.experts.*.w1", "expert_inner; hidden", "0", "moe", "n_experts", NULL, GEMM},
    {"feed_forward.experts.*.w3", "expert_inner; hidden", "0", "moe", "n_experts", NULL, GEMM},
    {"feed_forward.experts.*.w2", "hidden; expert_inner", "1", "moe", "n_experts", NULL, GEMM},
    TENSORS_END,
};

const bp_arch_family bp_arch_lfm2_moe = {
    .model_types = {"lfm2_moe"},
    .source = "transformers 5.23.0 models/lfm2_moe",
    .fields = lfm2_moe_fields,
    .first = bp_arch_embedding,
    .last = lfm2_last,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {lfm2_mixer, lfm2_mlp, lfm2_experts},
};

/* ---- Kimi Linear: delta attention and latent attention -------------------------------------------------------------------- */

static const bp_arch_field kimi_linear_fields[] = {
    FIELD_VOCAB,
    FIELD_HIDDEN,
    FIELD_INNER,
    FIELD_LAYERS,
    FIELD_HEADS,
    FIELD_SIZE("expert_inner", "moe_intermediate_size", REQUIRED),
    FIELD_COUNT("shared", "num_shared_experts", "1"),
    FIELD_SIZE("n_experts", "num_experts|num_local_experts", REQUIRED),
    {"q_rank", "q_lora_rank", BP_FIELD_SIZE, OPTIONAL, OPTIONAL},
    FIELD_SIZE("kv_rank", "kv_lora_rank", REQUIRED),
    FIELD_SIZE("rope_dim", "qk_rope_head_dim", REQUIRED),
    FIELD_SIZE("nope_dim", "qk_nope_head_dim", REQUIRED),
    FIELD_SIZE("value_dim", "v_head_dim", REQUIRED),
    FIELD_SIZE("delta_heads", "linear_attn_config.num_heads|linear_num_heads", REQUIRED),
    FIELD_SIZE("delta_dim", "linear_attn_config.head_dim|linear_head_dim", REQUIRED),
    FIELD_SIZE("kernel", "linear_attn_config.short_conv_kernel_size|linear_conv_kernel_dim", "4"),
    FIELD_LIST("kinds", "layer_types"),
    FIELD_LIST("attention_layers", "linear_attn_config.full_attn_layers"),
    FIELD_LIST("mlp_kinds", "mlp_layer_types"),
    FIELD_COUNT("first_dense", "first_k_dense_replace", "1"),
    FIELD_FIXED("attention_bias", "0"),
    FIELD_TIED("0"),
    FIELD_LAYER("attention", "has(kinds) ? kinds[layer] == 'full_attention' : has(attention_layers) ? "
                             "layer+1 in attention_layers : layer > 0 && layer % 4 == 0"),
    FIELD_LAYER("moe", "has(mlp_kinds) ? mlp_kinds[layer] != 'dense' : layer >= first_dense"),
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
    {"self_attn.g_a_proj", "delta_dim; hidden", "", "!attention", NULL, NULL, GEMM},
    {"self_attn.g_b_proj", "wide; delta_dim", "0:delta_heads", "!attention", NULL, NULL, GEMM},
    {"self_attn.o_norm", "delta_dim", "", "!attention", NULL, NULL, LINEAR},
    {"self_attn.o_proj", "hidden; wide", "1:delta_heads", "!attention", NULL, NULL, GEMM},
    {"self_attn.q_proj", "heads*(nope_dim+rope_dim); hidden", "0:heads", "attention && !has(q_rank)", NULL, NULL, GEMM},
    {"self_attn.kv_a_proj_with_mqa", "kv_rank+rope_dim; hidden", "", "attention", NULL, NULL, GEMM},
    {"self_attn.kv_a_layernorm", "kv_rank", "", "attention", NULL, NULL, LINEAR},
    {"self_attn.kv_b_proj", "heads*(nope_dim+value_dim); kv_rank", "0:heads", "attention", NULL, NULL, GEMM},
    {"self_attn.o_proj", "hidden; heads*value_dim", "1:heads", "attention", NULL, NULL, GEMM},
    TENSORS_END,
};

/* In published checkpoints dense layers have the experts' module name, too. */
static const bp_arch_tensor kimi_linear_mlp[] = {
    {"block_sparse_moe.gate_proj", "inner; hidden", "0", "!moe", NULL, NULL, GEMM},
    {"block_sparse_moe.up_proj", "inner; hidden", "0", "!moe", NULL, NULL, GEMM},
    {"block_sparse_moe.down_proj", "hidden; inner", "1", "!moe", NULL, NULL, GEMM},
    {"block_sparse_moe.gate", "n_experts; hidden", "", "moe", NULL, NULL, LINEAR},
    {"block_sparse_moe.experts.*.w1", "expert_inner; hidden", "0", "moe", "n_experts", NULL, GEMM},
    {"block_sparse_moe.experts.*.w3", "expert_inner; hidden", "0", "moe", "n_experts", NULL, GEMM},
    {"block_sparse_moe.experts.*.w2", "hidden; expert_inner", "1", "moe", "n_experts", NULL, GEMM},
    {"block_sparse_moe.shared_experts.gate_proj", "shared*expert_inner; hidden", "0", "moe && shared > 0", NULL, NULL,
     GEMM},
    {"block_sparse_moe.shared_experts.up_proj", "shared*expert_inner; hidden", "0", "moe && shared > 0", NULL, NULL,
     GEMM},
    {"block_sparse_moe.shared_experts.down_proj", "hidden; shared*expert_inner", "1", "moe && shared > 0", NULL, NULL,
     GEMM},
    TENSORS_END,
};

/* The output layer is never tied. */
static const bp_arch_tensor kimi_linear_last[] = {
    {"model.norm", "hidden", "", NULL, NULL, NULL, LINEAR},
    {"lm_head", "vocab; hidden", "0", NULL, NULL, NULL, LINEAR},
    TENSORS_END,
};

const bp_arch_family bp_arch_kimi_linear = {
    .model_types = {"kimi_linear"},
    .source = "transformers 5.23.0 models/kimi_linear",
    .fields = kimi_linear_fields,
    .first = bp_arch_embedding,
    .last = kimi_linear_last,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {bp_arch_input_norm, kimi_linear_layer, bp_arch_post_norm, kimi_linear_mlp},
};

/* ---- Qwen3.5: gated delta net with separate projections -------------------------------------------------------------------- */

#define QWEN3_5_FIELDS                                                                                                 \
    FIELD_VOCAB, FIELD_HIDDEN, FIELD_LAYERS, FIELD_HEADS, FIELD_KV_HEADS("heads"), FIELD_HEAD_DIM("256"),              \
        FIELD_FLAG("attention_bias", "attention_bias", "0"), FIELD_SIZE("kernel", "linear_conv_kernel_dim", "4"),      \
        FIELD_SIZE("key_dim", "linear_key_head_dim", REQUIRED),                                                        \
        FIELD_SIZE("value_dim", "linear_value_head_dim", REQUIRED),                                                    \
        FIELD_SIZE("key_heads", "linear_num_key_heads", REQUIRED),                                                     \
        FIELD_SIZE("value_heads", "linear_num_value_heads", REQUIRED), FIELD_FIXED("keys", "key_heads*key_dim"),       \
        FIELD_FIXED("values", "value_heads*value_dim"), FIELD_LIST("kinds", "layer_types"),                            \
        FIELD_SIZE("attention_interval", "full_attention_interval", "4"), FIELD_TIED("0"),                             \
        FIELD_LAYER("attention",                                                                                       \
                    "has(kinds) ? kinds[layer] == 'full_attention' : (layer+1) % attention_interval == 0")

static const bp_arch_field qwen3_5_fields[] = {
    QWEN3_5_FIELDS,
    FIELD_INNER,
    FIELD_FIXED("mlp_bias", "0"),
    FIELDS_END,
};

static const bp_arch_tensor qwen3_5_mixer[] = {
    {"self_attn.q_proj", "2*heads*head_dim; hidden", "0:heads", "attention", NULL, "attention_bias", GEMM},
    {"self_attn.k_proj", "kv_heads*head_dim; hidden", "0:kv_heads", "attention", NULL, "attention_bias", GEMM},
    {"self_attn.v_proj", "kv_heads*head_dim; hidden", "0:kv_heads", "attention", NULL, "attention_bias", GEMM},
    {"self_attn.o_proj", "hidden; heads*head_dim", "1:heads", "attention", NULL, "attention_bias", GEMM},
    {"self_attn.q_norm", "head_dim", "", "attention", NULL, NULL, LINEAR},
    {"self_attn.k_norm", "head_dim", "", "attention", NULL, NULL, LINEAR},
    {"linear_attn.dt_bias", "value_heads", "0:key_heads", "!attention", NULL, NULL, 0},
    {"linear_attn.A_log", "value_heads", "0:key_heads", "!attention", NULL, NULL, 0},
    {"linear_attn.conv1d", "2*keys + values; 1; kernel", "0:key_heads", "!attention", NULL, NULL, LINEAR},
    {"linear_attn.in_proj_qkv", "2*keys + values; hidden", "0:key_heads", "!attention", NULL, NULL, GEMM},
    {"linear_attn.in_proj_z", "values; hidden", "0:key_heads", "!attention", NULL, NULL, GEMM},
    {"linear_attn.in_proj_b", "value_heads; hidden", "0:key_heads", "!attention", NULL, NULL, GEMM},
    {"linear_attn.in_proj_a", "value_heads; hidden", "0:key_heads", "!attention", NULL, NULL, GEMM},
    {"linear_attn.norm", "value_dim", "", "!attention", NULL, NULL, LINEAR},
    {"linear_attn.out_proj", "hidden; values", "1:key_heads", "!attention", NULL, NULL, GEMM},
    TENSORS_END,
};

const bp_arch_family bp_arch_qwen3_5 = {
    .model_types = {"qwen3_5", "qwen3_5_text"},
    .source = "transformers 5.23.0 models/qwen3_5, text part",
    .fields = qwen3_5_fields,
    .first = bp_arch_embedding,
    .last = bp_arch_norm_and_head,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {bp_arch_input_norm, qwen3_5_mixer, bp_arch_post_norm, bp_arch_gated_mlp},
};

static const bp_arch_field qwen3_5_moe_fields[] = {
    QWEN3_5_FIELDS,
    FIELD_SIZE("expert_inner", "moe_intermediate_size", REQUIRED),
    FIELD_SIZE("shared_inner", "shared_expert_intermediate_size", REQUIRED),
    FIELD_SIZE("n_experts", "num_experts|num_local_experts", REQUIRED),
    FIELD_FIXED("moe", "1"),
    FIELDS_END,
};

const bp_arch_family bp_arch_qwen3_5_moe = {
    .model_types = {"qwen3_5_moe", "qwen3_5_moe_text"},
    .source = "transformers 5.23.0 models/qwen3_5_moe, text part",
    .fields = qwen3_5_moe_fields,
    .first = bp_arch_embedding,
    .last = bp_arch_norm_and_head,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {bp_arch_input_norm, qwen3_5_mixer, bp_arch_post_norm, bp_arch_experts, bp_arch_shared_expert},
};

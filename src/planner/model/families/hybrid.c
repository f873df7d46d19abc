/* SPDX-License-Identifier: Apache-2.0 */
/* Stacks of state-space layers, short convolutions, linear attention and attention: Nemotron-H, Mamba-2, Falcon-H1, Bamba, Granite 4.0-H,
 * Jamba, LFM2, Qwen3-Next, Qwen3.5. Sources: transformers 4.57.6, models/{qwen3_next,granitemoehybrid,jamba}; 5.23.0,
 * models/{mamba2,falcon_h1,bamba,lfm2,lfm2_moe,nemotron_h,qwen3_5,qwen3_5_moe}, with the tensor names of published
 * checkpoints; vllm nemotron_h_mtp.py for Nemotron-H's prediction layers. */
#include "planner/model/families/families.h"

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
    FIELD_FIXED("mamba", "1"),
    FIELD_TIED("0"),
    FIELDS_END,
};

static const bp_arch_tensor backbone_first[] = {
    {"backbone.embeddings", "vocab; hidden", "0", NULL, NULL, NULL, LINEAR},
    TENSORS_END,
};

static const bp_arch_tensor backbone_last[] = {
    {"backbone.norm_f", "hidden", "", NULL, NULL, NULL, LINEAR},
    {"lm_head", "vocab; hidden", "0", "!tied", NULL, NULL, HEAD},
    TENSORS_END,
};

static const bp_arch_tensor mamba2_layer[] = {
    {"norm", "hidden", "", NULL, NULL, NULL, LINEAR},
    {"mixer.dt_bias", "mamba_heads", "0:mamba_heads", "mamba", NULL, NULL, 0},
    {"mixer.A_log", "mamba_heads", "0:mamba_heads", "mamba", NULL, NULL, 0},
    {"mixer.D", "mamba_heads", "0:mamba_heads", "mamba", NULL, NULL, 0},
    {"mixer.conv1d", "channels; 1; kernel", "0:groups", "mamba", NULL, "conv_bias", LINEAR},
    {"mixer.in_proj", "mixed + channels + mamba_heads; hidden", "0:groups", "mamba", NULL, "use_bias", GEMM},
    {"mixer.norm", "mixed", "0:groups", "mamba", NULL, NULL, LINEAR},
    {"mixer.out_proj", "hidden; mixed", "1:groups", "mamba", NULL, "use_bias", GEMM},
    TENSORS_END,
};

static const bp_arch_tensor final_layernorm_and_head[] = {
    {"model.final_layernorm", "hidden", "", NULL, NULL, NULL, LINEAR},
    {"lm_head", "vocab; hidden", "0", "!tied", NULL, NULL, HEAD},
    TENSORS_END,
};

#define MAMBA2_FIELDS                                                                                                  \
    FIELD_SIZE("mamba_heads", "mamba_n_heads", REQUIRED), FIELD_SIZE("groups", "mamba_n_groups", REQUIRED),            \
        FIELD_SIZE("state", "mamba_d_state", REQUIRED), FIELD_SIZE("kernel", "mamba_d_conv", "4"),                     \
        FIELD_SIZE("expand", "mamba_expand", "2"), FIELD_FLAG("conv_bias", "mamba_conv_bias", "1"),                    \
        FIELD_FLAG("proj_bias", "mamba_proj_bias", "0")

/* The usual widths, and a gated norm. */
#define EXPANDED_MAMBA2_FIELDS                                                                                         \
    MAMBA2_FIELDS, FIELD_FIXED("mixed", "expand*hidden"), FIELD_FIXED("channels", "mixed + 2*groups*state"),           \
        FIELD_FIXED("mamba_norm", "1"), FIELD_FIXED("out_bias", "proj_bias")

/* Attention, Mamba or both, by the fields `attention` and `mamba`; `mamba_norm` adds the gated norm. */
static const bp_arch_tensor mamba_and_attention[] = {
    ATTENTION("self_attn", "attention", "attention_bias"),
    {"mamba.dt_bias", "mamba_heads", "0:mamba_heads", "mamba", NULL, NULL, 0},
    {"mamba.A_log", "mamba_heads", "0:mamba_heads", "mamba", NULL, NULL, 0},
    {"mamba.D", "mamba_heads", "0:mamba_heads", "mamba", NULL, NULL, 0},
    {"mamba.conv1d", "channels; 1; kernel", "0:groups", "mamba", NULL, "conv_bias", LINEAR},
    {"mamba.in_proj", "mixed + channels + mamba_heads; hidden", "0:groups", "mamba", NULL, "proj_bias", GEMM},
    {"mamba.norm", "mixed", "0:groups", "mamba && mamba_norm", NULL, NULL, LINEAR},
    {"mamba.out_proj", "hidden; mixed", "1:groups", "mamba", NULL, "out_bias", GEMM},
    TENSORS_END,
};

static const bp_arch_tensor norm_and_feed_forward[] = {
    {"pre_ff_layernorm", "hidden", "", NULL, NULL, NULL, LINEAR},
    GATED_MLP("feed_forward", "inner", NULL, NULL, "mlp_bias"),
    TENSORS_END,
};

static const bp_arch_field falcon_h1_fields[] = {
    DECODER_FIELDS("8", "hidden/heads", "0"),
    FIELD_ATTENTION_BIAS,
    FIELD_MLP_BIAS,
    MAMBA2_FIELDS,
    {"mixed", "mamba_d_ssm", BP_FIELD_SIZE, "1024", "expand*hidden"},
    FIELD_FIXED("channels", "mixed + 2*groups*state"),
    FIELD_FLAG("mamba_norm", "mamba_rms_norm", "0"),
    FIELD_FLAG("out_bias", "projectors_bias", "0"),
    FIELD_FIXED("attention", "1"),
    FIELD_FIXED("mamba", "1"),
    FIELDS_END,
};

static const bp_arch_field bamba_fields[] = {
    DECODER_FIELDS("8", "hidden/heads", "0"),
    FIELD_ATTENTION_BIAS,
    FIELD_MLP_BIAS,
    EXPANDED_MAMBA2_FIELDS,
    FIELD_LIST("attention_layers", "attn_layer_indices"),
    FIELD_LAYER("attention", "layer in attention_layers"),
    FIELD_LAYER("mamba", "!attention"),
    FIELDS_END,
};

/* ---- Granite 4.0-H: Mamba-2 or attention, stacked experts and a shared MLP ------------------------------------------ */

static const bp_arch_field granite_fields[] = {
    BASIC_FIELDS,
    FIELD_KV_HEADS("heads"),
    FIELD_FIXED("head_dim", "hidden/heads"),
    FIELD_ATTENTION_BIAS,
    FIELD_COUNT("n_experts", "num_local_experts|num_experts", REQUIRED),
    FIELD_SIZE("shared_inner", "shared_intermediate_size", REQUIRED),
    EXPANDED_MAMBA2_FIELDS,
    FIELD_LIST("kinds", "layer_types"),
    FIELD_TIED("0"),
    FIELD_LAYER("attention", "count(kinds) > 0 && kinds[layer] == 'attention'"),
    FIELD_LAYER("mamba", "!attention"),
    FIELDS_END,
};

static const bp_arch_tensor granite_experts[] = {
    {"block_sparse_moe.input_linear.weight", "n_experts; 2*inner; hidden", "1:inner", "n_experts > 0", NULL, NULL,
     BP_ARCH_GEMM | BP_ARCH_EXPERT_STACK},
    {"block_sparse_moe.output_linear.weight", "n_experts; hidden; inner", "2", "n_experts > 0", NULL, NULL,
     BP_ARCH_GEMM | BP_ARCH_EXPERT_STACK},
    {"block_sparse_moe.router.layer", "n_experts; hidden", "", "n_experts > 0", NULL, NULL, LINEAR},
    {"shared_mlp.input_linear", "2*shared_inner; hidden", "0:shared_inner", NULL, NULL, NULL, GEMM},
    {"shared_mlp.output_linear", "hidden; shared_inner", "1", NULL, NULL, NULL, GEMM},
    TENSORS_END,
};

/* ---- Nemotron-H: one mixer a layer ---------------------------------------------------------------------------------- */

/* Kinds of layers: a pattern (M Mamba-2, * attention, - MLP, E experts) or a list of names. Prediction layers have a separate pattern or
 * list. */
static const bp_arch_field nemotron_h_fields[] = {
    FIELD_VOCAB,
    FIELD_HIDDEN,
    FIELD_INNER,
    {"kinds", "layers_block_type|hybrid_override_pattern", BP_FIELD_LIST, REQUIRED, NULL},
    {"prediction_kinds", "mtp_layers_block_type|mtp_hybrid_override_pattern", BP_FIELD_LIST, "'*E'", NULL},
    FIELD_COUNT("prediction_blocks", "num_nextn_predict_layers", "0"),
    FIELD_FIXED("prediction_length", "count(prediction_kinds)"),
    FIELD_FIXED("layers", "count(kinds)"),
    FIELD_HEADS,
    FIELD_KV_HEADS("8"),
    {"head_dim", "head_dim|attention_head_dim", BP_FIELD_SIZE, "128", "hidden/heads"},
    FIELD_ATTENTION_BIAS,
    FIELD_MLP_BIAS,
    FIELD_FLAG("use_bias", "use_bias", "0"),
    FIELD_FLAG("conv_bias", "use_conv_bias|mamba_conv_bias", "1"),
    FIELD_SIZE("state", "ssm_state_size", REQUIRED),
    FIELD_SIZE("mamba_heads", "mamba_num_heads", REQUIRED),
    FIELD_SIZE("mamba_dim", "mamba_head_dim", REQUIRED),
    FIELD_SIZE("groups", "n_groups|mamba_n_groups", REQUIRED),
    FIELD_SIZE("kernel", "conv_kernel|mamba_d_conv", "4"),
    FIELD_FIXED("mixed", "mamba_heads*mamba_dim"),
    FIELD_FIXED("channels", "mixed + 2*groups*state"),
    FIELD_SIZE("n_experts", "n_routed_experts|num_local_experts", OPTIONAL),
    FIELD_SIZE("expert_inner", "moe_intermediate_size", OPTIONAL),
    FIELD_SIZE("shared_inner", "moe_shared_expert_intermediate_size", OPTIONAL),
    {"latent", "moe_latent_size", BP_FIELD_SIZE, "-", "-"},
    FIELD_FIXED("expert_hidden", "has(latent) ? latent : hidden"),
    FIELD_TIED("0"),
    FIELD_LAYER("at", "layer < layers ? layer : (layer-layers) % prediction_length"),
    FIELD_LAYER("kind", "layer < layers ? kinds[at] : prediction_kinds[at]"),
    FIELD_LAYER("mamba", "kind == 'M' || kind == 'mamba' || kind == 'linear_attention'"),
    FIELD_LAYER("attention", "kind == '*' || kind == 'attention' || kind == 'full_attention'"),
    FIELD_LAYER("dense", "kind == '-' || kind == 'mlp'"),
    FIELD_LAYER("moe", "kind == 'E' || kind == 'moe'"),
    FIELD_CHECK("mamba || attention || dense || moe", "has an unknown kind; known: M * - E, mamba attention mlp moe"),
    FIELDS_END,
};

static const bp_arch_tensor nemotron_h_layer[] = {
    ATTENTION("mixer", "attention", "attention_bias"),
    {"mixer.up_proj", "inner; hidden", "0", "dense", NULL, "mlp_bias", GEMM},
    {"mixer.down_proj", "hidden; inner", "1", "dense", NULL, "mlp_bias", GEMM},
    {"mixer.gate", "n_experts; hidden", "", "moe", NULL, NULL, LINEAR},
    {"mixer.experts.*.up_proj", "expert_inner; expert_hidden", "0", "moe", "n_experts", NULL, GEMM},
    {"mixer.experts.*.down_proj", "expert_hidden; expert_inner", "1", "moe", "n_experts", NULL, GEMM},
    {"mixer.shared_experts.up_proj", "shared_inner; hidden", "0", "moe", NULL, "mlp_bias", GEMM},
    {"mixer.shared_experts.down_proj", "hidden; shared_inner", "1", "moe", NULL, "mlp_bias", GEMM},
    {"mixer.fc1_latent_proj", "latent; hidden", "", "moe && has(latent)", NULL, "mlp_bias", GEMM},
    {"mixer.fc2_latent_proj", "hidden; latent", "", "moe && has(latent)", NULL, "mlp_bias", GEMM},
    TENSORS_END,
};

static const bp_arch_tensor nemotron_h_prediction_first[] = {
    {"enorm", "hidden", "", "at == 0", NULL, NULL, LINEAR},
    {"hnorm", "hidden", "", "at == 0", NULL, NULL, LINEAR},
    {"eh_proj", "hidden; 2*hidden", "", "at == 0", NULL, NULL, GEMM},
    TENSORS_END,
};

static const bp_arch_tensor nemotron_h_prediction_last[] = {
    {"final_layernorm", "hidden", "", "at == prediction_length - 1", NULL, NULL, LINEAR},
    TENSORS_END,
};

/* ---- Qwen3-Next and Qwen3.5: gated delta net and gated attention ----------------------------------------------------- */

#define GATED_DELTA_FIELDS                                                                                             \
    FIELD_ATTENTION_BIAS, FIELD_SIZE("kernel", "linear_conv_kernel_dim", "4"),                                         \
        FIELD_SIZE("key_dim", "linear_key_head_dim", REQUIRED),                                                        \
        FIELD_SIZE("value_dim", "linear_value_head_dim", REQUIRED),                                                    \
        FIELD_SIZE("key_heads", "linear_num_key_heads", REQUIRED),                                                     \
        FIELD_SIZE("value_heads", "linear_num_value_heads", REQUIRED), FIELD_FIXED("keys", "key_heads*key_dim"),       \
        FIELD_FIXED("values", "value_heads*value_dim"), FIELD_LIST("kinds", "layer_types"),                            \
        FIELD_SIZE("attention_interval", "full_attention_interval", "4")

/* The query projection also makes the output gate. `fused`: one projection (Qwen3-Next) instead of separate ones (Qwen3.5). */
static const bp_arch_tensor gated_delta_net[] = {
    {"self_attn.q_proj", "2*heads*head_dim; hidden", "0:heads", "attention", NULL, "attention_bias", GEMM},
    {"self_attn.k_proj", "kv_heads*head_dim; hidden", "0:kv_heads", "attention", NULL, "attention_bias", GEMM},
    {"self_attn.v_proj", "kv_heads*head_dim; hidden", "0:kv_heads", "attention", NULL, "attention_bias", GEMM},
    {"self_attn.o_proj", "hidden; heads*head_dim", "1:heads", "attention", NULL, "attention_bias", GEMM},
    {"self_attn.q_norm", "head_dim", "", "attention", NULL, NULL, LINEAR},
    {"self_attn.k_norm", "head_dim", "", "attention", NULL, NULL, LINEAR},
    {"linear_attn.dt_bias", "value_heads", "0:key_heads", "!attention", NULL, NULL, 0},
    {"linear_attn.A_log", "value_heads", "0:key_heads", "!attention", NULL, NULL, 0},
    {"linear_attn.conv1d", "2*keys + values; 1; kernel", "0:key_heads", "!attention", NULL, NULL, LINEAR},
    {"linear_attn.in_proj_qkvz", "2*keys + 2*values; hidden", "0:key_heads", "!attention && fused", NULL, NULL, GEMM},
    {"linear_attn.in_proj_ba", "2*value_heads; hidden", "0:key_heads", "!attention && fused", NULL, NULL, GEMM},
    {"linear_attn.in_proj_qkv", "2*keys + values; hidden", "0:key_heads", "!attention && !fused", NULL, NULL, GEMM},
    {"linear_attn.in_proj_z", "values; hidden", "0:key_heads", "!attention && !fused", NULL, NULL, GEMM},
    {"linear_attn.in_proj_b", "value_heads; hidden", "0:key_heads", "!attention && !fused", NULL, NULL, GEMM},
    {"linear_attn.in_proj_a", "value_heads; hidden", "0:key_heads", "!attention && !fused", NULL, NULL, GEMM},
    {"linear_attn.norm", "value_dim", "", "!attention", NULL, NULL, LINEAR},
    {"linear_attn.out_proj", "hidden; values", "1:key_heads", "!attention", NULL, NULL, GEMM},
    TENSORS_END,
};

static const bp_arch_field qwen3_next_fields[] = {
    DECODER_FIELDS("2", "256", "0"),
    GATED_DELTA_FIELDS,
    FIELD_FIXED("fused", "1"),
    FIELD_SIZE("sparse_step", "decoder_sparse_step", "1"),
    FIELD_SIZE("expert_inner", "moe_intermediate_size", REQUIRED),
    FIELD_SIZE("shared_inner", "shared_expert_intermediate_size", REQUIRED),
    FIELD_COUNT("n_experts", "num_experts|num_local_experts", REQUIRED),
    FIELD_LIST("dense_layers", "mlp_only_layers"),
    FIELD_COUNT("predictions", "num_nextn_predict_layers", "0"),
    FIELD_LAYER("attention", "layer >= layers ? 1 : has(kinds) ? kinds[layer] == 'full_attention' : "
                             "(layer+1) % attention_interval == 0"),
    FIELD_LAYER("moe",
                "n_experts > 0 && (layer >= layers || (!(layer in dense_layers) && (layer+1) % sparse_step == 0))"),
    FIELDS_END,
};

static const bp_arch_tensor qwen3_next_prediction_first[] = {
    {"^mtp.fc", "hidden; 2*hidden", "", "prediction == 0", NULL, NULL, GEMM},
    {"^mtp.pre_fc_norm_embedding", "hidden", "", "prediction == 0", NULL, NULL, LINEAR},
    {"^mtp.pre_fc_norm_hidden", "hidden", "", "prediction == 0", NULL, NULL, LINEAR},
    TENSORS_END,
};

static const bp_arch_tensor qwen3_next_prediction_last[] = {
    {"^mtp.norm", "hidden", "", "prediction == predictions - 1", NULL, NULL, LINEAR},
    TENSORS_END,
};

#define QWEN3_5_FIELDS                                                                                                 \
    FIELD_VOCAB, FIELD_HIDDEN, FIELD_LAYERS, FIELD_HEADS, FIELD_KV_HEADS("heads"), FIELD_HEAD_DIM("256"),              \
        GATED_DELTA_FIELDS, FIELD_FIXED("fused", "0"), FIELD_TIED("0"),                                                \
        FIELD_LAYER("attention",                                                                                       \
                    "has(kinds) ? kinds[layer] == 'full_attention' : (layer+1) % attention_interval == 0")

static const bp_arch_field qwen3_5_moe_fields[] = {
    QWEN3_5_FIELDS,
    FIELD_SIZE("expert_inner", "moe_intermediate_size", REQUIRED),
    FIELD_SIZE("shared_inner", "shared_expert_intermediate_size", REQUIRED),
    FIELD_SIZE("n_experts", "num_experts|num_local_experts", REQUIRED),
    FIELD_FIXED("moe", "1"),
    FIELDS_END,
};

/* ---- Jamba: Mamba-1 or attention, dense or experts ------------------------------------------------------------------ */

static const bp_arch_field jamba_fields[] = {
    BASIC_FIELDS,
    FIELD_KV_HEADS("8"),
    FIELD_FIXED("head_dim", "hidden/heads"),
    FIELD_SIZE("n_experts", "num_experts|num_local_experts", REQUIRED),
    FIELD_SIZE("expert_period", "expert_layer_period", REQUIRED),
    FIELD_COUNT("expert_offset", "expert_layer_offset", "1"),
    FIELD_SIZE("attention_period", "attn_layer_period", REQUIRED),
    FIELD_COUNT("attention_offset", "attn_layer_offset", "4"),
    FIELD_SIZE("state", "mamba_d_state", REQUIRED),
    FIELD_SIZE("kernel", "mamba_d_conv", "4"),
    FIELD_SIZE("expand", "mamba_expand", "2"),
    FIELD_SIZE("rank", "mamba_dt_rank", "ceil(hidden, 16)"),
    FIELD_FLAG("conv_bias", "mamba_conv_bias", "1"),
    FIELD_FLAG("proj_bias", "mamba_proj_bias", "0"),
    FIELD_FIXED("mixed", "expand*hidden"),
    FIELD_TIED("0"),
    FIELD_FIXED("attention_bias", "0"),
    FIELD_LAYER("attention", "layer % attention_period == attention_offset"),
    FIELD_LAYER("moe", "n_experts > 1 && layer % expert_period == expert_offset"),
    FIELDS_END,
};

static const bp_arch_tensor jamba_mixer[] = {
    ATTENTION("self_attn", "attention", "attention_bias"),
    {"mamba.A_log", "mixed; state", "0", "!attention", NULL, NULL, 0},
    {"mamba.D", "mixed", "0", "!attention", NULL, NULL, 0},
    {"mamba.conv1d", "mixed; 1; kernel", "0", "!attention", NULL, "conv_bias", LINEAR},
    {"mamba.in_proj", "2*mixed; hidden", "0:mixed", "!attention", NULL, "proj_bias", GEMM},
    {"mamba.x_proj", "rank + 2*state; mixed", "1", "!attention", NULL, NULL, GEMM},
    {"mamba.dt_proj", "mixed; rank", "0", "!attention", NULL, "1", GEMM},
    {"mamba.out_proj", "hidden; mixed", "1", "!attention", NULL, "proj_bias", GEMM},
    {"mamba.dt_layernorm", "rank", "", "!attention", NULL, NULL, LINEAR},
    {"mamba.b_layernorm", "state", "", "!attention", NULL, NULL, LINEAR},
    {"mamba.c_layernorm", "state", "", "!attention", NULL, NULL, LINEAR},
    TENSORS_END,
};

static const bp_arch_tensor jamba_feed_forward[] = {
    {"pre_ff_layernorm", "hidden", "", NULL, NULL, NULL, LINEAR},
    GATED_MLP("feed_forward", "inner", "!moe", NULL, NULL),
    {"feed_forward.router", "n_experts; hidden", "", "moe", NULL, NULL, LINEAR},
    GATED_MLP("feed_forward.experts.*", "inner", "moe", "n_experts", NULL),
    TENSORS_END,
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
    {"lm_head", "vocab; hidden", "0", "!tied", NULL, NULL, HEAD},
    TENSORS_END,
};

static const bp_arch_field lfm2_moe_fields[] = {
    BASIC_FIELDS,
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

const bp_arch_family bp_arch_hybrid[] = {
    {
        .model_types = {"nemotron_h"},
        .source = "transformers 5.23.0 models/nemotron_h, names as published; vllm nemotron_h_mtp.py",
        .ignored = "expand|mamba_proj_bias|n_shared_experts|num_hidden_layers|time_step_rank|moe_shared_expert_overlap",
        .fields = nemotron_h_fields,
        .first = backbone_first,
        .last = backbone_last,
        .layer_name = "backbone.layers.",
        .layer = {mamba2_layer, nemotron_h_layer},
        .predictions = "prediction_blocks*prediction_length",
        .prediction_name = "mtp.layers.",
        .prediction_first = nemotron_h_prediction_first,
        .prediction_last = nemotron_h_prediction_last,
    },
    {
        .model_types = {"qwen3_next"},
        .source = "transformers 4.57.6 models/qwen3_next; vllm qwen3_next_mtp.py for the prediction layer",
        .fields = qwen3_next_fields,
        USUAL_DECODER,
        .layer = {bp_arch_input_norm, gated_delta_net, bp_arch_post_norm, bp_arch_dense_mlp, bp_arch_experts,
                  bp_arch_shared_expert},
        .predictions = "predictions",
        .prediction_name = "mtp.layers.",
        .prediction_first = qwen3_next_prediction_first,
        .prediction_last = qwen3_next_prediction_last,
    },
    {
        .model_types = {"granitemoehybrid"},
        .source = "transformers 4.57.6 models/granitemoehybrid",
        .ignored = "head_dim|mamba_d_head",
        .fields = granite_fields,
        USUAL_DECODER,
        .layer = {bp_arch_input_norm, mamba_and_attention, granite_experts, bp_arch_post_norm},
    },
    {
        .model_types = {"jamba"},
        .source = "transformers 4.57.6 models/jamba",
        .ignored = "head_dim",
        .fields = jamba_fields,
        .first = bp_arch_embedding,
        .last = final_layernorm_and_head,
        .layer_name = "model.layers.",
        .layer = {bp_arch_input_norm, jamba_mixer, jamba_feed_forward},
    },
    {
        .model_types = {"mamba2"},
        .source = "transformers 5.23.0 models/mamba2",
        .ignored = "head_dim|time_step_rank",
        .fields = mamba2_fields,
        .first = backbone_first,
        .last = backbone_last,
        .layer_name = "backbone.layers.",
        .layer = {mamba2_layer},
    },
    {
        .model_types = {"falcon_h1"},
        .source = "transformers 5.23.0 models/falcon_h1",
        .ignored = "mamba_d_head",
        .fields = falcon_h1_fields,
        .first = bp_arch_embedding,
        .last = final_layernorm_and_head,
        .layer_name = "model.layers.",
        .layer = {bp_arch_input_norm, mamba_and_attention, norm_and_feed_forward},
    },
    {
        .model_types = {"bamba"},
        .source = "transformers 5.23.0 models/bamba",
        .ignored = "mamba_d_head",
        .fields = bamba_fields,
        .first = bp_arch_embedding,
        .last = final_layernorm_and_head,
        .layer_name = "model.layers.",
        .layer = {bp_arch_input_norm, mamba_and_attention, norm_and_feed_forward},
    },
    {
        .model_types = {"lfm2"},
        .source = "transformers 5.23.0 models/lfm2",
        .fields = lfm2_fields,
        .first = bp_arch_embedding,
        .last = lfm2_last,
        .layer_name = "model.layers.",
        .layer = {lfm2_mixer, lfm2_mlp},
    },
    {
        .model_types = {"lfm2_moe"},
        .source = "transformers 5.23.0 models/lfm2_moe",
        .fields = lfm2_moe_fields,
        .first = bp_arch_embedding,
        .last = lfm2_last,
        .layer_name = "model.layers.",
        .layer = {lfm2_mixer, lfm2_mlp, lfm2_experts},
    },
    {
        .model_types = {"qwen3_5", "qwen3_5_text"},
        .source = "transformers 5.23.0 models/qwen3_5, text part",
        .ignored = "attn_output_gate",
        .fields = FIELDS(QWEN3_5_FIELDS, FIELD_INNER, FIELD_FIXED("mlp_bias", "0")),
        USUAL_DECODER,
        .layer = {bp_arch_input_norm, gated_delta_net, bp_arch_post_norm, bp_arch_gated_mlp},
    },
    {
        .model_types = {"qwen3_5_moe", "qwen3_5_moe_text"},
        .source = "transformers 5.23.0 models/qwen3_5_moe, text part",
        .ignored = "attn_output_gate",
        .fields = qwen3_5_moe_fields,
        USUAL_DECODER,
        .layer = {bp_arch_input_norm, gated_delta_net, bp_arch_post_norm, bp_arch_experts, bp_arch_shared_expert},
    },
    {.source = NULL},
};

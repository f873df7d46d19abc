/* Transformers with mixtures of experts. Sources: transformers 4.57.6,
 * models/{mixtral,qwen3_moe,gpt_oss,llama4,glm4_moe}/modeling_*.py and configuration_*.py. */
#include "model/families/common.h"

static const bp_arch_field mixtral_fields[] = {
    FIELD_VOCAB,
    FIELD_HIDDEN,
    FIELD_INNER,
    FIELD_LAYERS,
    FIELD_HEADS,
    FIELD_KV_HEADS("8"),
    FIELD_HEAD_DIM("hidden/heads"),
    FIELD_FIXED("attention_bias", "0"),
    FIELD_SIZE("n_experts", "num_local_experts|num_experts", REQUIRED),
    FIELD_TIED("0"),
    FIELDS_END,
};

const bp_arch_family bp_arch_mixtral = {
    .model_types = {"mixtral"},
    .source = "transformers 4.57.6 models/mixtral",
    .fields = mixtral_fields,
    .first = bp_arch_embedding,
    .last = bp_arch_norm_and_head,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_post_norm, bp_arch_numbered_experts},
};

static const bp_arch_field qwen3_moe_fields[] = {
    FIELD_VOCAB,
    FIELD_HIDDEN,
    FIELD_INNER,
    FIELD_LAYERS,
    FIELD_HEADS,
    FIELD_KV_HEADS("4"),
    FIELD_HEAD_DIM("hidden/heads"),
    FIELD_FLAG("attention_bias", "attention_bias", "0"),
    FIELD_SIZE("expert_inner", "moe_intermediate_size", REQUIRED),
    FIELD_COUNT("n_experts", "num_experts|num_local_experts", REQUIRED),
    FIELD_SIZE("sparse_step", "decoder_sparse_step", "1"),
    FIELD_LIST("dense_layers", "mlp_only_layers"),
    FIELD_LAYER("moe", "!(layer in dense_layers) && n_experts > 0 && (layer+1) % sparse_step == 0"),
    FIELD_TIED("0"),
    FIELDS_END,
};

const bp_arch_family bp_arch_qwen3_moe = {
    .model_types = {"qwen3_moe"},
    .source = "transformers 4.57.6 models/qwen3_moe",
    .fields = qwen3_moe_fields,
    .first = bp_arch_embedding,
    .last = bp_arch_norm_and_head,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_qk_norm, bp_arch_post_norm, bp_arch_dense_mlp,
              bp_arch_experts},
};

static const bp_arch_field gpt_oss_fields[] = {
    FIELD_VOCAB,
    FIELD_HIDDEN,
    FIELD_INNER,
    FIELD_LAYERS,
    FIELD_HEADS,
    FIELD_KV_HEADS("8"),
    FIELD_HEAD_DIM("64"),
    FIELD_FIXED("attention_bias", "1"),
    FIELD_SIZE("n_experts", "num_local_experts|num_experts", REQUIRED),
    FIELD_TIED("0"),
    FIELDS_END,
};

/* Experts are stacked [expert, in, out], without ".weight". */
static const bp_arch_tensor gpt_oss_experts[] = {
    {"self_attn.sinks", "heads", "0:heads", NULL, NULL, NULL, 0},
    {"mlp.router", "n_experts; hidden", "", NULL, NULL, "1", LINEAR},
    {"mlp.experts.gate_up_proj", "n_experts; hidden; 2*inner", "2:inner", NULL, NULL, NULL,
     BP_ARCH_GEMM | BP_ARCH_EXPERT_STACK},
    {"mlp.experts.gate_up_proj_bias", "n_experts; 2*inner", "1:inner", NULL, NULL, NULL, BP_ARCH_EXPERT_STACK},
    {"mlp.experts.down_proj", "n_experts; inner; hidden", "1", NULL, NULL, NULL, BP_ARCH_GEMM | BP_ARCH_EXPERT_STACK},
    {"mlp.experts.down_proj_bias", "n_experts; hidden", "", NULL, NULL, NULL, BP_ARCH_EXPERT_STACK},
    TENSORS_END,
};

const bp_arch_family bp_arch_gpt_oss = {
    .model_types = {"gpt_oss"},
    .source = "transformers 4.57.6 models/gpt_oss",
    .fields = gpt_oss_fields,
    .first = bp_arch_embedding,
    .last = bp_arch_norm_and_head,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_post_norm, gpt_oss_experts},
};

static const bp_arch_field llama4_fields[] = {
    FIELD_VOCAB,
    FIELD_HIDDEN,
    FIELD_INNER,
    FIELD_SIZE("dense_inner", "intermediate_size_mlp", REQUIRED),
    FIELD_LAYERS,
    FIELD_HEADS,
    FIELD_KV_HEADS("8"),
    FIELD_HEAD_DIM("128"),
    FIELD_FIXED("attention_bias", "0"),
    FIELD_SIZE("n_experts", "num_local_experts|num_experts", REQUIRED),
    FIELD_SIZE("sparse_step", "interleave_moe_layer_step", "1"),
    FIELD_LIST("moe_layers", "moe_layers"),
    FIELD_LAYER("moe", "has(moe_layers) ? layer in moe_layers : (layer+1) % sparse_step == 0"),
    FIELD_TIED("0"),
    FIELDS_END,
};

/* Experts are stacked [expert, in, out], without ".weight". */
static const bp_arch_tensor llama4_feed_forward[] = {
    {"feed_forward.gate_proj", "dense_inner; hidden", "0", "!moe", NULL, NULL, GEMM},
    {"feed_forward.up_proj", "dense_inner; hidden", "0", "!moe", NULL, NULL, GEMM},
    {"feed_forward.down_proj", "hidden; dense_inner", "1", "!moe", NULL, NULL, GEMM},
    {"feed_forward.router", "n_experts; hidden", "", "moe", NULL, NULL, LINEAR},
    {"feed_forward.experts.gate_up_proj", "n_experts; hidden; 2*inner", "2:inner", "moe", NULL, NULL,
     BP_ARCH_GEMM | BP_ARCH_EXPERT_STACK},
    {"feed_forward.experts.down_proj", "n_experts; inner; hidden", "1", "moe", NULL, NULL,
     BP_ARCH_GEMM | BP_ARCH_EXPERT_STACK},
    {"feed_forward.shared_expert.gate_proj", "inner; hidden", "0", "moe", NULL, NULL, GEMM},
    {"feed_forward.shared_expert.up_proj", "inner; hidden", "0", "moe", NULL, NULL, GEMM},
    {"feed_forward.shared_expert.down_proj", "hidden; inner", "1", "moe", NULL, NULL, GEMM},
    TENSORS_END,
};

const bp_arch_family bp_arch_llama4 = {
    .model_types = {"llama4_text", "llama4"},
    .source = "transformers 4.57.6 models/llama4, text part",
    .fields = llama4_fields,
    .first = bp_arch_embedding,
    .last = bp_arch_norm_and_head,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_post_norm, llama4_feed_forward},
};

/* DeepSeek-V3 and GLM-4.5: a few dense layers, then experts beside shared experts, and prediction layers that go on counting.
 * Sources: transformers 4.57.6 models/{deepseek_v3,glm4_moe}; DeepSeek-V3's own modeling_deepseek.py for the prediction layer
 * and the router's correction bias, which is a parameter there and a buffer in GLM's code. */
#include "model/families/common.h"

#define FIELD_PREDICTIONS FIELD_COUNT("predictions", "num_nextn_predict_layers", "0")
#define FIELD_MOE_AFTER_DENSE FIELD_LAYER("moe", "layer >= first_dense")

/* The embedding and the output layer that checkpoints store again for a prediction layer are the model's own. */
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

static const bp_arch_field deepseek_v3_fields[] = {
    FIELD_VOCAB,
    FIELD_HIDDEN,
    FIELD_INNER,
    FIELD_LAYERS,
    FIELD_HEADS,
    FIELD_SIZE("expert_inner", "moe_intermediate_size", REQUIRED),
    FIELD_COUNT("shared", "n_shared_experts", "1"),
    FIELD_SIZE("n_experts", "n_routed_experts", REQUIRED),
    {"q_rank", "q_lora_rank", BP_FIELD_SIZE, REQUIRED, OPTIONAL},
    FIELD_SIZE("kv_rank", "kv_lora_rank", REQUIRED),
    FIELD_SIZE("rope_dim", "qk_rope_head_dim", REQUIRED),
    FIELD_SIZE("nope_dim", "qk_nope_head_dim", REQUIRED),
    FIELD_SIZE("value_dim", "v_head_dim", REQUIRED),
    FIELD_COUNT("first_dense", "first_k_dense_replace", "3"),
    FIELD_FLAG("attention_bias", "attention_bias", "0"),
    FIELD_PREDICTIONS,
    FIELD_MOE_AFTER_DENSE,
    FIELD_TIED("0"),
    FIELDS_END,
};

static const bp_arch_tensor deepseek_v3_attention[] = {
    {"self_attn.q_proj", "heads*(nope_dim+rope_dim); hidden", "0:heads", "!has(q_rank)", NULL, NULL, GEMM},
    {"self_attn.q_a_proj", "q_rank; hidden", "", "has(q_rank)", NULL, "attention_bias", GEMM},
    {"self_attn.q_a_layernorm", "q_rank", "", "has(q_rank)", NULL, NULL, LINEAR},
    {"self_attn.q_b_proj", "heads*(nope_dim+rope_dim); q_rank", "0:heads", "has(q_rank)", NULL, NULL, GEMM},
    {"self_attn.kv_a_proj_with_mqa", "kv_rank+rope_dim; hidden", "", NULL, NULL, "attention_bias", GEMM},
    {"self_attn.kv_a_layernorm", "kv_rank", "", NULL, NULL, NULL, LINEAR},
    {"self_attn.kv_b_proj", "heads*(nope_dim+value_dim); kv_rank", "0:heads", NULL, NULL, NULL, GEMM},
    {"self_attn.o_proj", "hidden; heads*value_dim", "1:heads", NULL, NULL, "attention_bias", GEMM},
    TENSORS_END,
};

static const bp_arch_tensor deepseek_v3_correction[] = {
    {"mlp.gate.e_score_correction_bias", "n_experts", "", "moe", NULL, NULL, 0},
    TENSORS_END,
};

const bp_arch_family bp_arch_deepseek_v3 = {
    .model_types = {"deepseek_v3"},
    .source = "transformers 4.57.6 models/deepseek_v3; modeling_deepseek.py of DeepSeek-V3",
    .fields = deepseek_v3_fields,
    .first = bp_arch_embedding,
    .last = bp_arch_norm_and_head,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {bp_arch_input_norm, deepseek_v3_attention, bp_arch_post_norm, bp_arch_dense_mlp, bp_arch_experts,
              deepseek_v3_correction, bp_arch_shared_experts},
    .predictions = "predictions",
    .prediction_first = prediction_first,
    .prediction_last = prediction_last,
};

static const bp_arch_field glm4_moe_fields[] = {
    FIELD_VOCAB,
    FIELD_HIDDEN,
    FIELD_INNER,
    FIELD_LAYERS,
    FIELD_HEADS,
    FIELD_KV_HEADS("8"),
    FIELD_HEAD_DIM("hidden/heads"),
    FIELD_FLAG("attention_bias", "attention_bias", "0"),
    FIELD_FIXED("out_bias", "0"),
    FIELD_SIZE("expert_inner", "moe_intermediate_size", REQUIRED),
    FIELD_COUNT("shared", "n_shared_experts", "1"),
    FIELD_SIZE("n_experts", "n_routed_experts", REQUIRED),
    FIELD_COUNT("first_dense", "first_k_dense_replace", "1"),
    FIELD_FLAG("qk_norm", "use_qk_norm", "0"),
    FIELD_PREDICTIONS,
    FIELD_MOE_AFTER_DENSE,
    FIELD_TIED("0"),
    FIELDS_END,
};

static const bp_arch_tensor glm4_moe_qk_norm[] = {
    {"self_attn.q_norm", "head_dim", "", "qk_norm", NULL, NULL, LINEAR},
    {"self_attn.k_norm", "head_dim", "", "qk_norm", NULL, NULL, LINEAR},
    TENSORS_END,
};

const bp_arch_family bp_arch_glm4_moe = {
    .model_types = {"glm4_moe"},
    .source = "transformers 4.57.6 models/glm4_moe; vllm glm4_moe_mtp.py for the prediction layer",
    .fields = glm4_moe_fields,
    .first = bp_arch_embedding,
    .last = bp_arch_norm_and_head,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {bp_arch_input_norm, bp_arch_attention_biases, glm4_moe_qk_norm, bp_arch_post_norm, bp_arch_dense_mlp,
              bp_arch_experts, bp_arch_shared_experts},
    .predictions = "predictions",
    .prediction_first = prediction_first,
    .prediction_last = prediction_last,
};

#include "model/families/common.h"

const bp_arch_tensor bp_arch_embedding[] = {
    {"model.embed_tokens", "vocab; hidden", "0", NULL, NULL, NULL, LINEAR},
    TENSORS_END,
};

const bp_arch_tensor bp_arch_norm_and_head[] = {
    {"model.norm", "hidden", "", NULL, NULL, NULL, LINEAR},
    {"lm_head", "vocab; hidden", "0", "!tied", NULL, NULL, LINEAR},
    TENSORS_END,
};

const bp_arch_tensor bp_arch_input_norm[] = {
    {"input_layernorm", "hidden", "", NULL, NULL, NULL, LINEAR},
    TENSORS_END,
};

const bp_arch_tensor bp_arch_post_norm[] = {
    {"post_attention_layernorm", "hidden", "", NULL, NULL, NULL, LINEAR},
    TENSORS_END,
};

const bp_arch_tensor bp_arch_attention[] = {
    {"self_attn.q_proj", "heads*head_dim; hidden", "0:heads", NULL, NULL, "attention_bias", GEMM},
    {"self_attn.k_proj", "kv_heads*head_dim; hidden", "0:kv_heads", NULL, NULL, "attention_bias", GEMM},
    {"self_attn.v_proj", "kv_heads*head_dim; hidden", "0:kv_heads", NULL, NULL, "attention_bias", GEMM},
    {"self_attn.o_proj", "hidden; heads*head_dim", "1:heads", NULL, NULL, "attention_bias", GEMM},
    TENSORS_END,
};

const bp_arch_tensor bp_arch_qk_norm[] = {
    {"self_attn.q_norm", "head_dim", "", NULL, NULL, NULL, LINEAR},
    {"self_attn.k_norm", "head_dim", "", NULL, NULL, NULL, LINEAR},
    TENSORS_END,
};

const bp_arch_tensor bp_arch_gated_mlp[] = {
    {"mlp.gate_proj", "inner; hidden", "0", NULL, NULL, "mlp_bias", GEMM},
    {"mlp.up_proj", "inner; hidden", "0", NULL, NULL, "mlp_bias", GEMM},
    {"mlp.down_proj", "hidden; inner", "1", NULL, NULL, "mlp_bias", GEMM},
    TENSORS_END,
};

const bp_arch_tensor bp_arch_dense_mlp[] = {
    {"mlp.gate_proj", "inner; hidden", "0", "!moe", NULL, NULL, GEMM},
    {"mlp.up_proj", "inner; hidden", "0", "!moe", NULL, NULL, GEMM},
    {"mlp.down_proj", "hidden; inner", "1", "!moe", NULL, NULL, GEMM},
    TENSORS_END,
};

const bp_arch_tensor bp_arch_experts[] = {
    {"mlp.gate", "n_experts; hidden", "", "moe", NULL, NULL, LINEAR},
    {"mlp.experts.*.gate_proj", "expert_inner; hidden", "0", "moe", "n_experts", NULL, GEMM},
    {"mlp.experts.*.up_proj", "expert_inner; hidden", "0", "moe", "n_experts", NULL, GEMM},
    {"mlp.experts.*.down_proj", "hidden; expert_inner", "1", "moe", "n_experts", NULL, GEMM},
    TENSORS_END,
};

/* SPDX-License-Identifier: Apache-2.0 */
/* The list of architecture tables, and tensors that several families share. */
#include "planner/model/families/families.h"

const bp_arch_tensor bp_arch_embedding[] = {
    {"model.embed_tokens", "vocab; hidden", "0", NULL, NULL, NULL, LINEAR},
    TENSORS_END,
};

const bp_arch_tensor bp_arch_norm_and_head[] = {
    {"model.norm", "hidden", "", NULL, NULL, NULL, LINEAR},
    {"lm_head", "vocab; hidden", "0", "!tied", NULL, NULL, HEAD},
    TENSORS_END,
};

const bp_arch_tensor bp_arch_classifiers[] = {
    {"score", "labels; hidden", "", "head == 'sequence' || head == 'token'", NULL, "head == 'token'", LINEAR},
    {"qa_outputs", "2; hidden", "", "head == 'question'", NULL, "1", LINEAR},
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
    ATTENTION("self_attn", NULL, "attention_bias"),
    TENSORS_END,
};

const bp_arch_tensor bp_arch_attention_biases[] = {
    ATTENTION("self_attn", NULL, "out_bias"),
    TENSORS_END,
};

const bp_arch_tensor bp_arch_qk_norm[] = {
    {"self_attn.q_norm", "head_dim", "", NULL, NULL, NULL, LINEAR},
    {"self_attn.k_norm", "head_dim", "", NULL, NULL, NULL, LINEAR},
    TENSORS_END,
};

const bp_arch_tensor bp_arch_whole_qk_norm[] = {
    {"self_attn.q_norm", "heads*head_dim", "0:heads", NULL, NULL, NULL, LINEAR},
    {"self_attn.k_norm", "kv_heads*head_dim", "0:kv_heads", NULL, NULL, NULL, LINEAR},
    TENSORS_END,
};

const bp_arch_tensor bp_arch_hunyuan_qk_norm[] = {
    {"self_attn.query_layernorm", "head_dim", "", NULL, NULL, NULL, LINEAR},
    {"self_attn.key_layernorm", "head_dim", "", NULL, NULL, NULL, LINEAR},
    TENSORS_END,
};

const bp_arch_tensor bp_arch_mla[] = {
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

const bp_arch_tensor bp_arch_gated_mlp[] = {
    GATED_MLP("mlp", "inner", NULL, NULL, "mlp_bias"),
    TENSORS_END,
};

const bp_arch_tensor bp_arch_dense_mlp[] = {
    GATED_MLP("mlp", "inner", "!moe", NULL, NULL),
    TENSORS_END,
};

const bp_arch_tensor bp_arch_experts[] = {
    {"mlp.gate", "n_experts; hidden", "", "moe", NULL, NULL, LINEAR},
    GATED_MLP("mlp.experts.*", "expert_inner", "moe", "n_experts", NULL),
    TENSORS_END,
};

const bp_arch_tensor bp_arch_shared_experts[] = {
    GATED_MLP("mlp.shared_experts", "shared*expert_inner", "moe && shared > 0", NULL, NULL),
    TENSORS_END,
};

const bp_arch_tensor bp_arch_numbered_experts[] = {
    {"block_sparse_moe.gate", "n_experts; hidden", "", NULL, NULL, NULL, LINEAR},
    {"block_sparse_moe.experts.*.w1", "inner; hidden", "0", NULL, "n_experts", NULL, GEMM},
    {"block_sparse_moe.experts.*.w2", "hidden; inner", "1", NULL, "n_experts", NULL, GEMM},
    {"block_sparse_moe.experts.*.w3", "inner; hidden", "0", NULL, "n_experts", NULL, GEMM},
    TENSORS_END,
};

const bp_arch_tensor bp_arch_feedforward_norms[] = {
    {"pre_feedforward_layernorm", "hidden", "", NULL, NULL, NULL, LINEAR},
    {"post_feedforward_layernorm", "hidden", "", NULL, NULL, NULL, LINEAR},
    TENSORS_END,
};

const bp_arch_tensor bp_arch_post_norms[] = {
    {"post_attention_layernorm", "hidden", "", NULL, NULL, NULL, LINEAR},
    {"post_feedforward_layernorm", "hidden", "", NULL, NULL, NULL, LINEAR},
    TENSORS_END,
};

const bp_arch_tensor bp_arch_fused_mlp[] = {
    {"mlp.gate_up_proj", "2*inner; hidden", "0:inner", NULL, NULL, NULL, GEMM},
    {"mlp.down_proj", "hidden; inner", "1", NULL, NULL, NULL, GEMM},
    TENSORS_END,
};

/* The shared expert and its gate. */
const bp_arch_tensor bp_arch_shared_expert[] = {
    GATED_MLP("mlp.shared_expert", "shared_inner", "moe", NULL, NULL),
    {"mlp.shared_expert_gate", "1; hidden", "", "moe", NULL, NULL, LINEAR},
    TENSORS_END,
};

/* [expert, out, in] */
const bp_arch_tensor bp_arch_expert_stacks[] = {
    {"mlp.gate", "n_experts; hidden", "", "moe", NULL, NULL, LINEAR},
    {"mlp.experts.gate_up_proj", "n_experts; 2*expert_inner; hidden", "1:expert_inner", "moe", NULL, NULL,
     BP_ARCH_GEMM | BP_ARCH_EXPERT_STACK},
    {"mlp.experts.down_proj", "n_experts; hidden; expert_inner", "2", "moe", NULL, NULL,
     BP_ARCH_GEMM | BP_ARCH_EXPERT_STACK},
    TENSORS_END,
};

const bp_arch_family *const bp_arch_families[] = {
    bp_arch_dense, bp_arch_sparse, bp_arch_deepseek, bp_arch_hybrid, bp_arch_encoder, NULL,
};

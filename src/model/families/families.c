/* The list of families, and the tables that several of them share. */
#include "model/families/common.h"

#include "model/architecture.h"

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

const bp_arch_tensor bp_arch_attention_biases[] = {
    {"self_attn.q_proj", "heads*head_dim; hidden", "0:heads", NULL, NULL, "attention_bias", GEMM},
    {"self_attn.k_proj", "kv_heads*head_dim; hidden", "0:kv_heads", NULL, NULL, "attention_bias", GEMM},
    {"self_attn.v_proj", "kv_heads*head_dim; hidden", "0:kv_heads", NULL, NULL, "attention_bias", GEMM},
    {"self_attn.o_proj", "hidden; heads*head_dim", "1:heads", NULL, NULL, "out_bias", GEMM},
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

const bp_arch_tensor bp_arch_shared_experts[] = {
    {"mlp.shared_experts.gate_proj", "shared*expert_inner; hidden", "0", "moe && shared > 0", NULL, NULL, GEMM},
    {"mlp.shared_experts.up_proj", "shared*expert_inner; hidden", "0", "moe && shared > 0", NULL, NULL, GEMM},
    {"mlp.shared_experts.down_proj", "hidden; shared*expert_inner", "1", "moe && shared > 0", NULL, NULL, GEMM},
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

/* The expert that every token passes, behind a gate. */
const bp_arch_tensor bp_arch_shared_expert[] = {
    {"mlp.shared_expert.gate_proj", "shared_inner; hidden", "0", "moe", NULL, NULL, GEMM},
    {"mlp.shared_expert.up_proj", "shared_inner; hidden", "0", "moe", NULL, NULL, GEMM},
    {"mlp.shared_expert.down_proj", "hidden; shared_inner", "1", "moe", NULL, NULL, GEMM},
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

/* ---- the families ------------------------------------------------------------------------------------------------ */

/* The list of families, in alphabetical order of their first model_type. */

extern const bp_arch_family bp_arch_bamba, bp_arch_bert, bp_arch_cohere, bp_arch_dbrx, bp_arch_deepseek_v2,
    bp_arch_deepseek_v3, bp_arch_deepseek_v32, bp_arch_deepseek_v4, bp_arch_dots1, bp_arch_ernie4_5,
    bp_arch_ernie4_5_moe, bp_arch_exaone4, bp_arch_falcon_h1, bp_arch_gemma, bp_arch_gemma2, bp_arch_gemma3,
    bp_arch_gemma3n, bp_arch_gemma4, bp_arch_glm, bp_arch_glm4, bp_arch_glm4_moe, bp_arch_glm4_moe_lite,
    bp_arch_gpt_oss, bp_arch_granitemoe, bp_arch_granite, bp_arch_helium, bp_arch_hunyuan_v1_dense,
    bp_arch_hunyuan_v1_moe, bp_arch_jamba, bp_arch_kimi_linear, bp_arch_lfm2, bp_arch_lfm2_moe, bp_arch_llama,
    bp_arch_llama4, bp_arch_mamba2, bp_arch_minimax_m2, bp_arch_ministral3, bp_arch_mistral, bp_arch_mistral4,
    bp_arch_mixtral, bp_arch_nemotron_h, bp_arch_olmo, bp_arch_olmo2, bp_arch_olmoe, bp_arch_phi3, bp_arch_phimoe,
    bp_arch_qwen2, bp_arch_qwen2_moe, bp_arch_qwen3, bp_arch_qwen3_5, bp_arch_qwen3_5_moe, bp_arch_qwen3_moe,
    bp_arch_qwen3_next, bp_arch_qwen3_vl_moe, bp_arch_seed_oss, bp_arch_smollm3, bp_arch_starcoder2, bp_arch_t5,
    bp_arch_vit, bp_arch_whisper;

const bp_arch_family *const bp_arch_families[] = {
    &bp_arch_bamba,
    &bp_arch_bert,
    &bp_arch_cohere,
    &bp_arch_dbrx,
    &bp_arch_deepseek_v2,
    &bp_arch_deepseek_v3,
    &bp_arch_deepseek_v32,
    &bp_arch_deepseek_v4,
    &bp_arch_dots1,
    &bp_arch_ernie4_5,
    &bp_arch_ernie4_5_moe,
    &bp_arch_exaone4,
    &bp_arch_falcon_h1,
    &bp_arch_gemma,
    &bp_arch_gemma2,
    &bp_arch_gemma3,
    &bp_arch_gemma3n,
    &bp_arch_gemma4,
    &bp_arch_glm,
    &bp_arch_glm4,
    &bp_arch_glm4_moe,
    &bp_arch_glm4_moe_lite,
    &bp_arch_gpt_oss,
    &bp_arch_granitemoe,
    &bp_arch_granite,
    &bp_arch_helium,
    &bp_arch_hunyuan_v1_dense,
    &bp_arch_hunyuan_v1_moe,
    &bp_arch_jamba,
    &bp_arch_kimi_linear,
    &bp_arch_lfm2,
    &bp_arch_lfm2_moe,
    &bp_arch_llama,
    &bp_arch_llama4,
    &bp_arch_mamba2,
    &bp_arch_minimax_m2,
    &bp_arch_ministral3,
    &bp_arch_mistral,
    &bp_arch_mistral4,
    &bp_arch_mixtral,
    &bp_arch_nemotron_h,
    &bp_arch_olmo,
    &bp_arch_olmo2,
    &bp_arch_olmoe,
    &bp_arch_phi3,
    &bp_arch_phimoe,
    &bp_arch_qwen2,
    &bp_arch_qwen2_moe,
    &bp_arch_qwen3,
    &bp_arch_qwen3_5,
    &bp_arch_qwen3_5_moe,
    &bp_arch_qwen3_moe,
    &bp_arch_qwen3_next,
    &bp_arch_qwen3_vl_moe,
    &bp_arch_seed_oss,
    &bp_arch_smollm3,
    &bp_arch_starcoder2,
    &bp_arch_t5,
    &bp_arch_vit,
    &bp_arch_whisper,
    0,
};

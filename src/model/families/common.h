/* Tables that many families share. Field names they use: vocab, hidden, inner, heads, kv_heads, head_dim, attention_bias,
 * mlp_bias, out_bias, tied, and for experts n_experts, expert_inner, shared, moe. */
#ifndef BP_MODEL_FAMILIES_COMMON_H
#define BP_MODEL_FAMILIES_COMMON_H

#include "model/architecture.h"

extern const bp_arch_family bp_arch_dense[], bp_arch_sparse[], bp_arch_deepseek[], bp_arch_hybrid[], bp_arch_encoder[];

#define GEMM (BP_ARCH_LINEAR | BP_ARCH_GEMM)
#define LINEAR BP_ARCH_LINEAR

extern const bp_arch_tensor bp_arch_embedding[];        /* model.embed_tokens */
extern const bp_arch_tensor bp_arch_norm_and_head[];    /* model.norm, lm_head unless tied */
extern const bp_arch_tensor bp_arch_input_norm[];       /* input_layernorm */
extern const bp_arch_tensor bp_arch_post_norm[];        /* post_attention_layernorm */
extern const bp_arch_tensor bp_arch_attention[];        /* self_attn.{q,k,v,o}_proj, biases by attention_bias */
extern const bp_arch_tensor bp_arch_attention_biases[]; /* the same; the output's bias by out_bias */
extern const bp_arch_tensor bp_arch_gated_mlp[];        /* mlp.{gate,up,down}_proj, biases by mlp_bias */
extern const bp_arch_tensor bp_arch_qk_norm[];          /* self_attn.{q,k}_norm of one head */
extern const bp_arch_tensor bp_arch_whole_qk_norm[];    /* self_attn.{q,k}_norm of all heads together */
extern const bp_arch_tensor bp_arch_hunyuan_qk_norm[];  /* self_attn.{query,key}_layernorm of one head */
extern const bp_arch_tensor
    bp_arch_mla[]; /* multi-head latent attention: q_rank, kv_rank, nope_dim, rope_dim, value_dim */
extern const bp_arch_tensor bp_arch_dense_mlp[];     /* mlp.{gate,up,down}_proj where moe does not hold */
extern const bp_arch_tensor bp_arch_experts[];       /* mlp.gate and mlp.experts.* where moe holds */
extern const bp_arch_tensor bp_arch_expert_stacks[]; /* mlp.gate and mlp.experts.{gate_up,down}_proj where moe holds */
extern const bp_arch_tensor
    bp_arch_shared_expert[]; /* mlp.shared_expert of shared_inner, with its gate, where moe holds */
extern const bp_arch_tensor bp_arch_shared_experts[];    /* mlp.shared_experts where moe holds */
extern const bp_arch_tensor bp_arch_numbered_experts[];  /* block_sparse_moe.gate and .experts.*.{w1,w2,w3} of inner */
extern const bp_arch_tensor bp_arch_feedforward_norms[]; /* {pre,post}_feedforward_layernorm */
extern const bp_arch_tensor bp_arch_post_norms[];        /* post_{attention,feedforward}_layernorm alone */
extern const bp_arch_tensor bp_arch_fused_mlp[];         /* mlp.gate_up_proj, mlp.down_proj */

/* Fields that hardly vary. A field is required when its size decides the model's and publishers state it; a default stands for
 * what publishers leave out. OPTIONAL is of no value: an error where a tensor needs it. */
#define REQUIRED NULL
#define OPTIONAL "-"

#define ROW(...)                                                                                                       \
    {                                                                                                                  \
        __VA_ARGS__                                                                                                    \
    }
#define FIELD_FLAG(name, key, missing_value) ROW(name, key, BP_FIELD_FLAG, missing_value, NULL)
#define FIELD_SIZE(name, key, missing_value) ROW(name, key, BP_FIELD_SIZE, missing_value, NULL)
#define FIELD_COUNT(name, key, missing_value) ROW(name, key, BP_FIELD_COUNT, missing_value, NULL)
#define FIELD_FIXED(name, value) ROW(name, NULL, BP_FIELD_COUNT, value, NULL)
#define FIELD_LIST(name, key) ROW(name, key, BP_FIELD_LIST, OPTIONAL, NULL)
#define FIELD_LAYER(name, expression) ROW(name, NULL, BP_FIELD_LAYER, expression, NULL)
#define FIELD_CHECK(expression, complaint) ROW("check", complaint, BP_FIELD_CHECK, expression, NULL)
#define FIELDS_END ROW(NULL, NULL, BP_FIELD_COUNT, NULL, NULL)

#define FIELD_VOCAB FIELD_SIZE("vocab", "vocab_size", REQUIRED)
#define FIELD_HIDDEN FIELD_SIZE("hidden", "hidden_size", REQUIRED)
#define FIELD_INNER FIELD_SIZE("inner", "intermediate_size", REQUIRED)
#define FIELD_LAYERS FIELD_SIZE("layers", "num_hidden_layers", REQUIRED)
#define FIELD_HEADS FIELD_SIZE("heads", "num_attention_heads", REQUIRED)
#define FIELD_KV_HEADS(missing_value) ROW("kv_heads", "num_key_value_heads", BP_FIELD_SIZE, missing_value, "heads")
#define FIELD_HEAD_DIM(missing_value) ROW("head_dim", "head_dim", BP_FIELD_SIZE, missing_value, "hidden/heads")
#define FIELD_TIED(missing_value) FIELD_FLAG("tied", "tie_word_embeddings", missing_value)
#define FIELD_ATTENTION_BIAS FIELD_FLAG("attention_bias", "attention_bias", "0")
#define FIELD_MLP_BIAS FIELD_FLAG("mlp_bias", "mlp_bias", "0")

/* A list of fields in the table of a family that has few of its own. */
#define FIELDS(...)                                                                                                    \
    (const bp_arch_field[])                                                                                            \
    {                                                                                                                  \
        __VA_ARGS__, FIELDS_END                                                                                        \
    }

#define BASIC_FIELDS FIELD_VOCAB, FIELD_HIDDEN, FIELD_INNER, FIELD_LAYERS, FIELD_HEADS
/* With the values of the last three where publishers leave them out. */
#define DECODER_FIELDS(kv_heads, head_dim, tied)                                                                       \
    BASIC_FIELDS, FIELD_KV_HEADS(kv_heads), FIELD_HEAD_DIM(head_dim), FIELD_TIED(tied)
#define NO_BIASES FIELD_FIXED("attention_bias", "0"), FIELD_FIXED("mlp_bias", "0")
/* Every sparse_step-th layer has experts, unless the configuration names it. */
#define SPARSE_STEP_FIELDS                                                                                             \
    FIELD_COUNT("n_experts", "num_experts|num_local_experts", REQUIRED),                                               \
        FIELD_SIZE("sparse_step", "decoder_sparse_step", "1"), FIELD_LIST("dense_layers", "mlp_only_layers"),          \
        FIELD_LAYER("moe", "!(layer in dense_layers) && n_experts > 0 && (layer+1) % sparse_step == 0")

/* Of multi-head latent attention. */
#define LATENT_DIMENSIONS                                                                                              \
    FIELD_SIZE("kv_rank", "kv_lora_rank", REQUIRED), FIELD_SIZE("rope_dim", "qk_rope_head_dim", REQUIRED),             \
        FIELD_SIZE("nope_dim", "qk_nope_head_dim", REQUIRED), FIELD_SIZE("value_dim", "v_head_dim", REQUIRED)

/* q, k, v and o of grouped-query attention. */
#define ATTENTION(module, when, out_bias)                                                                              \
    ROW(module ".q_proj", "heads*head_dim; hidden", "0:heads", when, NULL, "attention_bias", GEMM),                    \
        ROW(module ".k_proj", "kv_heads*head_dim; hidden", "0:kv_heads", when, NULL, "attention_bias", GEMM),          \
        ROW(module ".v_proj", "kv_heads*head_dim; hidden", "0:kv_heads", when, NULL, "attention_bias", GEMM),          \
        ROW(module ".o_proj", "hidden; heads*head_dim", "1:heads", when, NULL, out_bias, GEMM)
#define GATED_MLP(module, inner, when, copies, bias)                                                                   \
    ROW(module ".gate_proj", inner "; hidden", "0", when, copies, bias, GEMM),                                         \
        ROW(module ".up_proj", inner "; hidden", "0", when, copies, bias, GEMM),                                       \
        ROW(module ".down_proj", "hidden; " inner, "1", when, copies, bias, GEMM)
#define TENSORS_END ROW(NULL, NULL, NULL, NULL, NULL, NULL, 0)

/* The members of a family that has the usual names around and before its layers. */
#define USUAL_DECODER .first = bp_arch_embedding, .last = bp_arch_norm_and_head, .layer_name = "model.layers."

#endif

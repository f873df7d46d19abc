/* Tables that many families share. Field names they use: vocab, hidden, inner, heads, kv_heads, head_dim, attention_bias,
 * mlp_bias, out_bias, tied, and for experts n_experts, expert_inner, shared, moe. */
#ifndef BP_MODEL_FAMILIES_COMMON_H
#define BP_MODEL_FAMILIES_COMMON_H

#include "model/architecture.h"

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

#define FIELD_VOCAB                                                                                                    \
    {                                                                                                                  \
        "vocab", "vocab_size", BP_FIELD_SIZE, REQUIRED, NULL                                                           \
    }
#define FIELD_HIDDEN                                                                                                   \
    {                                                                                                                  \
        "hidden", "hidden_size", BP_FIELD_SIZE, REQUIRED, NULL                                                         \
    }
#define FIELD_INNER                                                                                                    \
    {                                                                                                                  \
        "inner", "intermediate_size", BP_FIELD_SIZE, REQUIRED, NULL                                                    \
    }
#define FIELD_LAYERS                                                                                                   \
    {                                                                                                                  \
        "layers", "num_hidden_layers", BP_FIELD_SIZE, REQUIRED, NULL                                                   \
    }
#define FIELD_HEADS                                                                                                    \
    {                                                                                                                  \
        "heads", "num_attention_heads", BP_FIELD_SIZE, REQUIRED, NULL                                                  \
    }
#define FIELD_KV_HEADS(missing_value)                                                                                  \
    {                                                                                                                  \
        "kv_heads", "num_key_value_heads", BP_FIELD_SIZE, missing_value, "heads"                                       \
    }
#define FIELD_HEAD_DIM(missing_value)                                                                                  \
    {                                                                                                                  \
        "head_dim", "head_dim", BP_FIELD_SIZE, missing_value, "hidden/heads"                                           \
    }
#define FIELD_TIED(missing_value)                                                                                      \
    {                                                                                                                  \
        "tied", "tie_word_embeddings", BP_FIELD_FLAG, missing_value, NULL                                              \
    }
#define FIELD_FLAG(name, key, missing_value)                                                                           \
    {                                                                                                                  \
        name, key, BP_FIELD_FLAG, missing_value, NULL                                                                  \
    }
#define FIELD_SIZE(name, key, missing_value)                                                                           \
    {                                                                                                                  \
        name, key, BP_FIELD_SIZE, missing_value, NULL                                                                  \
    }
#define FIELD_COUNT(name, key, missing_value)                                                                          \
    {                                                                                                                  \
        name, key, BP_FIELD_COUNT, missing_value, NULL                                                                 \
    }
#define FIELD_FIXED(name, value)                                                                                       \
    {                                                                                                                  \
        name, NULL, BP_FIELD_COUNT, value, NULL                                                                        \
    }
#define FIELD_LIST(name, key)                                                                                          \
    {                                                                                                                  \
        name, key, BP_FIELD_LIST, "-", NULL                                                                            \
    }
#define FIELD_LAYER(name, expression)                                                                                  \
    {                                                                                                                  \
        name, NULL, BP_FIELD_LAYER, expression, NULL                                                                   \
    }
#define FIELD_CHECK(expression, complaint)                                                                             \
    {                                                                                                                  \
        "check", complaint, BP_FIELD_CHECK, expression, NULL                                                           \
    }
#define FIELDS_END                                                                                                     \
    {                                                                                                                  \
        NULL, NULL, BP_FIELD_COUNT, NULL, NULL                                                                         \
    }

#define TENSORS_END                                                                                                    \
    {                                                                                                                  \
        NULL, NULL, NULL, NULL, NULL, NULL, 0                                                                          \
    }

#endif

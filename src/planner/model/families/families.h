/* SPDX-License-Identifier: Apache-2.0 */
/* Architecture tables: their structs, and the rows, fields and tables that many families share. A family of models is one
 * bp_arch_family: fields read from the published configuration, and the tensors of the layers, the prediction layers and outside units.
 * A new family is a new entry. */
#ifndef BP_MODEL_FAMILIES_FAMILIES_H
#define BP_MODEL_FAMILIES_FAMILIES_H

#include <bucketpool/model.h>

typedef enum bp_arch_field_kind {
    BP_FIELD_SIZE,    /* an integer of at least 1 */
    BP_FIELD_COUNT,   /* an integer of at least 0 */
    BP_FIELD_FLAG,    /* a boolean, or 0 or 1 */
    BP_FIELD_LIST,    /* a list, or a text whose characters are the entries */
    BP_FIELD_EACH,    /* a list with an integer for each layer, or one integer for all: name[layer] */
    BP_FIELD_INTEGER, /* any integer */
    BP_FIELD_LAYER,   /* not read: computed anew for every layer, from `missing` */
    BP_FIELD_CHECK    /* `missing` must hold for every layer; `keys` is the error message */
} bp_arch_field_kind;

typedef struct bp_arch_field {
    const char *name; /* in the expressions of the table */
    const char *
        keys; /* in the configuration: alternatives separated by '|': the first that is present counts. "a.b" is member b of
                       * object a, "a.#" the number of its members */
    bp_arch_field_kind kind;
    const char *missing; /* default: an expression over earlier fields, "-" for no value, NULL: required */
    const char *null;    /* value of an explicit null, NULL: as when missing */
} bp_arch_field;

enum {
    BP_ARCH_LINEAR = 1u << 0,       /* name.weight, and name.bias of the first dimension when `bias` holds */
    BP_ARCH_GEMM = 1u << 1,         /* stored in fp8 if configured */
    BP_ARCH_EXPERT_STACK = 1u << 2, /* dimension 0 is experts */
    BP_ARCH_PLAIN_COPIES = 1u << 3, /* `copies` are not experts */
    BP_ARCH_HEAD = 1u << 4          /* of the head that publishers train: no other class of the family has it */
};

typedef struct bp_arch_tensor {
    const char *name; /* follows the layer's name; with a leading '^' it is the whole name. '*' stands for the expert */
    const char *shape;  /* expressions separated by ';' */
    const char *split;  /* tensor parallelism: "0:heads" splits dimension 0, in multiples of one head; "" replicated */
    const char *when;   /* NULL: always */
    const char *copies; /* NULL: one */
    const char *bias;   /* BP_ARCH_LINEAR only; NULL: never */
    uint32_t flags;
} bp_arch_tensor;

#define BP_ARCH_BLOCKS 8
#define BP_ARCH_TYPES 8

typedef struct bp_arch_family {
    const char *model_types[BP_ARCH_TYPES]; /* ended by NULL */
    const char *source;                     /* of names, shapes and defaults */
    const bp_arch_field *fields;
    const char *ignored; /* fields that decide no size in this family although their names say so, separated by '|' */
    const bp_arch_tensor *first; /* outside units, before the layers: the embedding */
    const bp_arch_tensor *last;  /* outside units, after the layers: the final norm and the output layer */
    const char
        *layer_name; /* of the first stack, as many as the field `layers` says; without the number that ends it */
    const char *decoder_layers; /* layers of a second stack, NULL: none; `layer` continues from `layers` */
    const char *decoder_name;   /* of the second stack, numbered from 0 */
    const bp_arch_tensor *layer[BP_ARCH_BLOCKS]; /* tables of one layer, in order */
    /* Multi-token prediction: `predictions` units. Each has the tensors of prediction_first, of a layer, and of
     * prediction_last; `layer` continues from `layers`, `prediction` counts from 0. */
    const char *predictions;
    const char *prediction_name; /* NULL: numbered after the layers */
    const bp_arch_tensor *prediction_first;
    const bp_arch_tensor *prediction_last;
    /* Classes of "architectures", by the ends of their names. Texts separated by '|'. */
    const char *classes; /* that have the tensors of BP_ARCH_HEAD; NULL: those of decoders */
    const char *heads;   /* values of `head` that `other_heads` and the tables know; NULL: those of decoders */
    const bp_arch_tensor *other_heads; /* outside units, by `head` and `labels`; NULL: those of decoders */
} bp_arch_family;

/* Tables of families, each ended by one without a source, ended by NULL. */
extern const bp_arch_family *const bp_arch_families[];

/* ---- shared by families ----------------------------------------------------------------------------------------- */

/* Names that every table may use: `layer`, `prediction`, `head` ('lm', the head that publishers train; 'none', 'sequence', 'token',
 * 'question', 'encoder') and `labels`, the classes of a classifier. */
/* Field names that the tables use: vocab, hidden, inner, heads, kv_heads, head_dim, attention_bias, mlp_bias, out_bias, tied, and for
 * experts n_experts, expert_inner, shared, moe. */

extern const bp_arch_family bp_arch_dense[], bp_arch_sparse[], bp_arch_deepseek[], bp_arch_hybrid[], bp_arch_encoder[];

#define GEMM (BP_ARCH_LINEAR | BP_ARCH_GEMM)
#define LINEAR BP_ARCH_LINEAR
#define HEAD (BP_ARCH_LINEAR | BP_ARCH_HEAD)

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
extern const bp_arch_tensor
    bp_arch_classifiers[]; /* score, qa_outputs: heads of decoders that are no language models */

/* Common fields. A field is REQUIRED if it decides the model's size and publishers always state it; fields that publishers omit have a
 * default. An OPTIONAL field may have no value: an error if a tensor needs it. */
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

/* The field list of a family with few specific fields. */
#define FIELDS(...)                                                                                                    \
    (const bp_arch_field[])                                                                                            \
    {                                                                                                                  \
        __VA_ARGS__, FIELDS_END                                                                                        \
    }

#define BASIC_FIELDS FIELD_VOCAB, FIELD_HIDDEN, FIELD_INNER, FIELD_LAYERS, FIELD_HEADS
/* Arguments: the defaults of these three fields. */
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

/* For families with the usual embedding, final norm, output layer and layer prefix. */
#define USUAL_DECODER .first = bp_arch_embedding, .last = bp_arch_norm_and_head, .layer_name = "model.layers."

#endif

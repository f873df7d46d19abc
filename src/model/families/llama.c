/* Llama and the families that differ from it by a bias, a norm or a default. Sources: transformers 4.57.6,
 * models/{llama,mistral,qwen2,qwen3,gemma3}/modeling_*.py and configuration_*.py. */
#include "model/families/common.h"

static const bp_arch_field llama_fields[] = {
    FIELD_VOCAB,
    FIELD_HIDDEN,
    FIELD_INNER,
    FIELD_LAYERS,
    FIELD_HEADS,
    FIELD_KV_HEADS("heads"),
    FIELD_HEAD_DIM("hidden/heads"),
    FIELD_FLAG("attention_bias", "attention_bias", "0"),
    FIELD_FLAG("mlp_bias", "mlp_bias", "0"),
    FIELD_TIED("0"),
    FIELDS_END,
};

const bp_arch_family bp_arch_llama = {
    .model_types = {"llama", "granite", "cwm", "iquestcoder", "internlm3"},
    .source = "transformers 4.57.6 models/llama; 5.23.0 models/{granite,cwm,iquestcoder,internlm3}",
    .fields = llama_fields,
    .first = bp_arch_embedding,
    .last = bp_arch_norm_and_head,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_post_norm, bp_arch_gated_mlp},
};

static const bp_arch_field mistral_fields[] = {
    FIELD_VOCAB,
    FIELD_HIDDEN,
    FIELD_INNER,
    FIELD_LAYERS,
    FIELD_HEADS,
    FIELD_KV_HEADS("8"),
    FIELD_HEAD_DIM("hidden/heads"),
    FIELD_FIXED("attention_bias", "0"),
    FIELD_FIXED("mlp_bias", "0"),
    FIELD_TIED("0"),
    FIELDS_END,
};

const bp_arch_family bp_arch_mistral = {
    .model_types = {"mistral", "ministral"},
    .source = "transformers 4.57.6 models/mistral; 5.23.0 models/ministral",
    .fields = mistral_fields,
    .first = bp_arch_embedding,
    .last = bp_arch_norm_and_head,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_post_norm, bp_arch_gated_mlp},
};

static const bp_arch_field ministral3_fields[] = {
    FIELD_VOCAB,
    FIELD_HIDDEN,
    FIELD_INNER,
    FIELD_LAYERS,
    FIELD_HEADS,
    FIELD_KV_HEADS("8"),
    FIELD_HEAD_DIM("128"),
    FIELD_FIXED("attention_bias", "0"),
    FIELD_FIXED("mlp_bias", "0"),
    FIELD_TIED("0"),
    FIELDS_END,
};

const bp_arch_family bp_arch_ministral3 = {
    .model_types = {"ministral3"},
    .source = "transformers 5.23.0 models/ministral3",
    .fields = ministral3_fields,
    .first = bp_arch_embedding,
    .last = bp_arch_norm_and_head,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_post_norm, bp_arch_gated_mlp},
};

/* Biases on query, key and value always, on the output never. */
static const bp_arch_field qwen2_fields[] = {
    FIELD_VOCAB,
    FIELD_HIDDEN,
    FIELD_INNER,
    FIELD_LAYERS,
    FIELD_HEADS,
    FIELD_KV_HEADS("32"),
    FIELD_HEAD_DIM("hidden/heads"),
    FIELD_FIXED("attention_bias", "1"),
    FIELD_FIXED("out_bias", "0"),
    FIELD_FIXED("mlp_bias", "0"),
    FIELD_TIED("0"),
    FIELDS_END,
};

const bp_arch_family bp_arch_qwen2 = {
    .model_types = {"qwen2", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"},
    .source = "transformers 4.57.6 models/qwen2",
    .fields = qwen2_fields,
    .first = bp_arch_embedding,
    .last = bp_arch_norm_and_head,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {bp_arch_input_norm, bp_arch_attention_biases, bp_arch_post_norm, bp_arch_gated_mlp},
};

static const bp_arch_field qwen3_fields[] = {
    FIELD_VOCAB,
    FIELD_HIDDEN,
    FIELD_INNER,
    FIELD_LAYERS,
    FIELD_HEADS,
    FIELD_KV_HEADS("32"),
    FIELD_HEAD_DIM("128"),
    FIELD_FLAG("attention_bias", "attention_bias", "0"),
    FIELD_FIXED("mlp_bias", "0"),
    FIELD_TIED("0"),
    FIELDS_END,
};

const bp_arch_family bp_arch_qwen3 = {
    .model_types = {"qwen3", "qwen3_vl", "qwen3_vl_text"},
    .source = "transformers 4.57.6 models/qwen3",
    .fields = qwen3_fields,
    .first = bp_arch_embedding,
    .last = bp_arch_norm_and_head,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_qk_norm, bp_arch_post_norm, bp_arch_gated_mlp},
};

static const bp_arch_field gemma3_fields[] = {
    FIELD_SIZE("vocab", "vocab_size", "262208"),
    FIELD_HIDDEN,
    FIELD_INNER,
    FIELD_LAYERS,
    FIELD_SIZE("heads", "num_attention_heads", "8"),
    FIELD_KV_HEADS("4"),
    FIELD_HEAD_DIM("256"),
    FIELD_FLAG("attention_bias", "attention_bias", "0"),
    FIELD_FIXED("mlp_bias", "0"),
    FIELD_TIED("1"),
    FIELDS_END,
};

const bp_arch_family bp_arch_gemma3 = {
    .model_types = {"gemma3_text", "gemma3"},
    .source = "transformers 4.57.6 models/gemma3",
    .fields = gemma3_fields,
    .first = bp_arch_embedding,
    .last = bp_arch_norm_and_head,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_qk_norm, bp_arch_post_norm, bp_arch_feedforward_norms,
              bp_arch_gated_mlp},
};

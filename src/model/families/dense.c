/* Dense decoders with norms, biases or projections of their own: Gemma, OLMo, Phi-3, GLM-4, Cohere, ERNIE, Hunyuan, EXAONE,
 * StarCoder2. Sources: transformers 5.23.0, models/{gemma,gemma2,olmo,glm,helium,olmo2,olmo3,phi3,glm4,cohere,cohere2,ernie4_5,hunyuan_v1_dense,
 * exaone4,smollm3,seed_oss,starcoder2}. */
#include "model/families/common.h"

static const bp_arch_field gemma_fields[] = {
    FIELD_VOCAB,
    FIELD_HIDDEN,
    FIELD_INNER,
    FIELD_LAYERS,
    FIELD_HEADS,
    FIELD_KV_HEADS("heads"),
    FIELD_HEAD_DIM("256"),
    FIELD_FLAG("attention_bias", "attention_bias", "0"),
    FIELD_FIXED("mlp_bias", "0"),
    FIELD_TIED("1"),
    FIELDS_END,
};

const bp_arch_family bp_arch_gemma = {
    .model_types = {"gemma"},
    .source = "transformers 5.23.0 models/gemma",
    .fields = gemma_fields,
    .first = bp_arch_embedding,
    .last = bp_arch_norm_and_head,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_post_norm, bp_arch_gated_mlp},
};

const bp_arch_family bp_arch_gemma2 = {
    .model_types = {"gemma2"},
    .source = "transformers 5.23.0 models/gemma2",
    .fields = gemma_fields,
    .first = bp_arch_embedding,
    .last = bp_arch_norm_and_head,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_post_norm, bp_arch_feedforward_norms, bp_arch_gated_mlp},
};

/* ---- norms after attention and MLP, and over whole queries and keys or over heads ---------------------------------- */

static const bp_arch_field olmo2_fields[] = {
    FIELD_VOCAB,
    FIELD_HIDDEN,
    FIELD_INNER,
    FIELD_LAYERS,
    FIELD_HEADS,
    FIELD_KV_HEADS("heads"),
    FIELD_HEAD_DIM("hidden/heads"),
    FIELD_FLAG("attention_bias", "attention_bias", "0"),
    FIELD_FIXED("mlp_bias", "0"),
    FIELD_TIED("0"),
    FIELDS_END,
};

const bp_arch_family bp_arch_olmo2 = {
    .model_types = {"olmo2", "olmo3"},
    .source = "transformers 5.23.0 models/{olmo2,olmo3}",
    .fields = olmo2_fields,
    .first = bp_arch_embedding,
    .last = bp_arch_norm_and_head,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {bp_arch_attention, bp_arch_whole_qk_norm, bp_arch_post_norms, bp_arch_gated_mlp},
};

/* Norms have no parameters. */
static const bp_arch_tensor olmo_last[] = {
    {"lm_head", "vocab; hidden", "0", "!tied", NULL, NULL, LINEAR},
    TENSORS_END,
};

const bp_arch_family bp_arch_olmo = {
    .model_types = {"olmo"},
    .source = "transformers 5.23.0 models/olmo",
    .fields = olmo2_fields,
    .first = bp_arch_embedding,
    .last = olmo_last,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {bp_arch_attention, bp_arch_gated_mlp},
};

static const bp_arch_field exaone4_fields[] = {
    FIELD_VOCAB,
    FIELD_HIDDEN,
    FIELD_INNER,
    FIELD_LAYERS,
    FIELD_HEADS,
    FIELD_KV_HEADS("heads"),
    FIELD_HEAD_DIM("hidden/heads"),
    FIELD_FIXED("attention_bias", "0"),
    FIELD_FIXED("mlp_bias", "0"),
    FIELD_TIED("0"),
    FIELDS_END,
};

const bp_arch_family bp_arch_exaone4 = {
    .model_types = {"exaone4"},
    .source = "transformers 5.23.0 models/exaone4",
    .fields = exaone4_fields,
    .first = bp_arch_embedding,
    .last = bp_arch_norm_and_head,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {bp_arch_attention, bp_arch_qk_norm, bp_arch_post_norms, bp_arch_gated_mlp},
};

static const bp_arch_field hunyuan_fields[] = {
    FIELD_VOCAB,
    FIELD_HIDDEN,
    FIELD_INNER,
    FIELD_LAYERS,
    FIELD_HEADS,
    FIELD_KV_HEADS("heads"),
    FIELD_HEAD_DIM("hidden/heads"),
    FIELD_FLAG("attention_bias", "attention_bias", "0"),
    FIELD_FIXED("mlp_bias", "0"),
    FIELD_TIED("0"),
    FIELDS_END,
};

const bp_arch_family bp_arch_hunyuan_v1_dense = {
    .model_types = {"hunyuan_v1_dense"},
    .source = "transformers 5.23.0 models/hunyuan_v1_dense",
    .fields = hunyuan_fields,
    .first = bp_arch_embedding,
    .last = bp_arch_norm_and_head,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_hunyuan_qk_norm, bp_arch_post_norm, bp_arch_gated_mlp},
};

/* ---- fused projections ----------------------------------------------------------------------------------------------- */

static const bp_arch_field phi3_fields[] = {
    FIELD_VOCAB,
    FIELD_HIDDEN,
    FIELD_INNER,
    FIELD_LAYERS,
    FIELD_HEADS,
    FIELD_KV_HEADS("heads"),
    FIELD_HEAD_DIM("hidden/heads"),
    FIELD_TIED("0"),
    FIELDS_END,
};

static const bp_arch_tensor phi3_attention[] = {
    {"self_attn.qkv_proj", "(heads + 2*kv_heads)*head_dim; hidden", "0:kv_heads", NULL, NULL, NULL, GEMM},
    {"self_attn.o_proj", "hidden; heads*head_dim", "1:heads", NULL, NULL, NULL, GEMM},
    TENSORS_END,
};

const bp_arch_family bp_arch_phi3 = {
    .model_types = {"phi3"},
    .source = "transformers 5.23.0 models/phi3",
    .fields = phi3_fields,
    .first = bp_arch_embedding,
    .last = bp_arch_norm_and_head,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {bp_arch_input_norm, phi3_attention, bp_arch_post_norm, bp_arch_fused_mlp},
};

static const bp_arch_field glm4_fields[] = {
    FIELD_VOCAB,
    FIELD_HIDDEN,
    FIELD_INNER,
    FIELD_LAYERS,
    FIELD_HEADS,
    FIELD_KV_HEADS("2"),
    FIELD_HEAD_DIM("128"),
    FIELD_FLAG("attention_bias", "attention_bias", "1"),
    FIELD_FIXED("out_bias", "0"),
    FIELD_TIED("0"),
    FIELDS_END,
};

const bp_arch_family bp_arch_glm = {
    .model_types = {"glm"},
    .source = "transformers 5.23.0 models/glm",
    .fields = glm4_fields,
    .first = bp_arch_embedding,
    .last = bp_arch_norm_and_head,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {bp_arch_input_norm, bp_arch_attention_biases, bp_arch_post_norm, bp_arch_fused_mlp},
};

static const bp_arch_tensor glm4_norms[] = {
    {"post_self_attn_layernorm", "hidden", "", NULL, NULL, NULL, LINEAR},
    {"post_mlp_layernorm", "hidden", "", NULL, NULL, NULL, LINEAR},
    TENSORS_END,
};

const bp_arch_family bp_arch_glm4 = {
    .model_types = {"glm4"},
    .source = "transformers 5.23.0 models/glm4",
    .fields = glm4_fields,
    .first = bp_arch_embedding,
    .last = bp_arch_norm_and_head,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {bp_arch_input_norm, bp_arch_attention_biases, bp_arch_post_norm, glm4_norms, bp_arch_fused_mlp},
};

/* ---- biases of their own ------------------------------------------------------------------------------------------ */

static const bp_arch_field helium_fields[] = {
    FIELD_VOCAB,
    FIELD_HIDDEN,
    FIELD_INNER,
    FIELD_LAYERS,
    FIELD_HEADS,
    FIELD_KV_HEADS("heads"),
    FIELD_HEAD_DIM("128"),
    FIELD_FLAG("attention_bias", "attention_bias", "0"),
    FIELD_FIXED("out_bias", "0"),
    FIELD_FLAG("mlp_bias", "mlp_bias", "0"),
    FIELD_TIED("0"),
    FIELDS_END,
};

const bp_arch_family bp_arch_helium = {
    .model_types = {"helium"},
    .source = "transformers 5.23.0 models/helium",
    .fields = helium_fields,
    .first = bp_arch_embedding,
    .last = bp_arch_norm_and_head,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {bp_arch_input_norm, bp_arch_attention_biases, bp_arch_post_norm, bp_arch_gated_mlp},
};

static const bp_arch_field seed_oss_fields[] = {
    FIELD_VOCAB,
    FIELD_HIDDEN,
    FIELD_INNER,
    FIELD_LAYERS,
    FIELD_HEADS,
    FIELD_KV_HEADS("8"),
    FIELD_HEAD_DIM("128"),
    FIELD_FLAG("attention_bias", "attention_bias", "1"),
    FIELD_FLAG("out_bias", "attention_out_bias", "0"),
    FIELD_FLAG("mlp_bias", "mlp_bias", "0"),
    FIELD_TIED("0"),
    FIELDS_END,
};

const bp_arch_family bp_arch_seed_oss = {
    .model_types = {"seed_oss"},
    .source = "transformers 5.23.0 models/seed_oss",
    .fields = seed_oss_fields,
    .first = bp_arch_embedding,
    .last = bp_arch_norm_and_head,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {bp_arch_input_norm, bp_arch_attention_biases, bp_arch_post_norm, bp_arch_gated_mlp},
};

static const bp_arch_field smollm3_fields[] = {
    FIELD_VOCAB,
    FIELD_HIDDEN,
    FIELD_INNER,
    FIELD_LAYERS,
    FIELD_HEADS,
    FIELD_KV_HEADS("4"),
    FIELD_FIXED("head_dim", "hidden/heads"),
    FIELD_FLAG("attention_bias", "attention_bias", "0"),
    FIELD_FLAG("mlp_bias", "mlp_bias", "0"),
    FIELD_TIED("1"),
    FIELDS_END,
};

const bp_arch_family bp_arch_smollm3 = {
    .model_types = {"smollm3"},
    .source = "transformers 5.23.0 models/smollm3",
    .fields = smollm3_fields,
    .first = bp_arch_embedding,
    .last = bp_arch_norm_and_head,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_post_norm, bp_arch_gated_mlp},
};

static const bp_arch_field ernie_fields[] = {
    FIELD_VOCAB,
    FIELD_HIDDEN,
    FIELD_INNER,
    FIELD_LAYERS,
    FIELD_HEADS,
    FIELD_KV_HEADS("2"),
    FIELD_HEAD_DIM("128"),
    FIELD_FLAG("attention_bias", "use_bias", "0"),
    FIELD_FIXED("mlp_bias", "attention_bias"),
    FIELD_TIED("1"),
    FIELDS_END,
};

const bp_arch_family bp_arch_ernie4_5 = {
    .model_types = {"ernie4_5"},
    .source = "transformers 5.23.0 models/ernie4_5",
    .fields = ernie_fields,
    .first = bp_arch_embedding,
    .last = bp_arch_norm_and_head,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_post_norm, bp_arch_gated_mlp},
};

static const bp_arch_field cohere_fields[] = {
    FIELD_VOCAB,
    FIELD_HIDDEN,
    FIELD_INNER,
    FIELD_LAYERS,
    FIELD_HEADS,
    FIELD_KV_HEADS("heads"),
    FIELD_HEAD_DIM("hidden/heads"),
    FIELD_FLAG("attention_bias", "attention_bias", "0"),
    FIELD_FIXED("mlp_bias", "0"),
    FIELD_FLAG("qk_norm", "use_qk_norm", "0"),
    FIELD_TIED("1"),
    FIELDS_END,
};

static const bp_arch_tensor cohere_qk_norm[] = {
    {"self_attn.q_norm", "heads; head_dim", "0:heads", "qk_norm", NULL, NULL, LINEAR},
    {"self_attn.k_norm", "kv_heads; head_dim", "0:kv_heads", "qk_norm", NULL, NULL, LINEAR},
    TENSORS_END,
};

/* Attention and MLP run side by side, after one norm. */
const bp_arch_family bp_arch_cohere = {
    .model_types = {"cohere", "cohere2"},
    .source = "transformers 5.23.0 models/{cohere,cohere2}",
    .fields = cohere_fields,
    .first = bp_arch_embedding,
    .last = bp_arch_norm_and_head,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {bp_arch_input_norm, bp_arch_attention, cohere_qk_norm, bp_arch_gated_mlp},
};

static const bp_arch_field starcoder2_fields[] = {
    FIELD_VOCAB,
    FIELD_HIDDEN,
    FIELD_INNER,
    FIELD_LAYERS,
    FIELD_HEADS,
    FIELD_KV_HEADS("2"),
    FIELD_HEAD_DIM("hidden/heads"),
    FIELD_FLAG("attention_bias", "use_bias", "1"),
    FIELD_TIED("1"),
    FIELDS_END,
};

static const bp_arch_tensor starcoder2_layer[] = {
    {"input_layernorm", "hidden", "", NULL, NULL, "1", LINEAR},
    {"post_attention_layernorm", "hidden", "", NULL, NULL, "1", LINEAR},
    {"mlp.c_fc", "inner; hidden", "0", NULL, NULL, "attention_bias", GEMM},
    {"mlp.c_proj", "hidden; inner", "1", NULL, NULL, "attention_bias", GEMM},
    TENSORS_END,
};

static const bp_arch_tensor starcoder2_last[] = {
    {"model.norm", "hidden", "", NULL, NULL, "1", LINEAR},
    {"lm_head", "vocab; hidden", "0", "!tied", NULL, NULL, LINEAR},
    TENSORS_END,
};

const bp_arch_family bp_arch_starcoder2 = {
    .model_types = {"starcoder2"},
    .source = "transformers 5.23.0 models/starcoder2",
    .fields = starcoder2_fields,
    .first = bp_arch_embedding,
    .last = starcoder2_last,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {bp_arch_attention, starcoder2_layer},
};

/* ---- Llama and its kin ------------------------------------------------------------------------------------------- */

/* Llama and the families that differ from it by a bias, a norm or a default. Sources: transformers 4.57.6,
 * models/{llama,mistral,qwen2,qwen3,gemma3}/modeling_*.py and configuration_*.py. */

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

/* Gemma 3n and Gemma 4, text parts: embeddings for each layer, key and value projections that later layers reuse. Sources:
 * transformers 5.23.0, models/{gemma3n,gemma4}. */
#include "model/families/common.h"

static const bp_arch_tensor per_layer_first[] = {
    {"model.embed_tokens_per_layer", "layer_vocab; layers*layer_hidden", "", "layer_hidden > 0", NULL, NULL, LINEAR},
    {"model.per_layer_model_projection", "layers*layer_hidden; hidden", "", "layer_hidden > 0", NULL, NULL, GEMM},
    {"model.per_layer_projection_norm", "layer_hidden", "", "layer_hidden > 0", NULL, NULL, LINEAR},
    {"model.embed_tokens", "vocab; hidden", "0", NULL, NULL, NULL, LINEAR},
    TENSORS_END,
};

static const bp_arch_tensor per_layer_input[] = {
    {"per_layer_input_gate", "layer_hidden; hidden", "", "layer_hidden > 0", NULL, NULL, GEMM},
    {"per_layer_projection", "hidden; layer_hidden", "", "layer_hidden > 0", NULL, NULL, GEMM},
    {"post_per_layer_input_norm", "hidden", "", "layer_hidden > 0", NULL, NULL, LINEAR},
    TENSORS_END,
};

/* ---- Gemma 3n ----------------------------------------------------------------------------------------------------------- */

static const bp_arch_field gemma3n_fields[] = {
    FIELD_SIZE("vocab", "vocab_size", "262400"),
    FIELD_HIDDEN,
    {"inner", "intermediate_size", BP_FIELD_EACH, REQUIRED, NULL},
    FIELD_LAYERS,
    FIELD_SIZE("heads", "num_attention_heads", "8"),
    FIELD_KV_HEADS("2"),
    FIELD_HEAD_DIM("256"),
    FIELD_FLAG("attention_bias", "attention_bias", "0"),
    FIELD_SIZE("layer_vocab", "vocab_size_per_layer_input", "262144"),
    FIELD_SIZE("layer_hidden", "hidden_size_per_layer_input", "256"),
    FIELD_SIZE("streams", "altup_num_inputs", "4"),
    FIELD_COUNT("sharing", "num_kv_shared_layers", "15"),
    FIELD_SIZE("rank", "laurel_rank", "64"),
    FIELD_TIED("1"),
    FIELD_LAYER("shares", "layer >= layers - sharing && layers > sharing"),
    FIELDS_END,
};

static const bp_arch_tensor gemma3n_layer[] = {
    {"self_attn.q_proj", "heads*head_dim; hidden", "0:heads", NULL, NULL, "attention_bias", GEMM},
    {"self_attn.k_proj", "kv_heads*head_dim; hidden", "0:kv_heads", "!shares", NULL, "attention_bias", GEMM},
    {"self_attn.v_proj", "kv_heads*head_dim; hidden", "0:kv_heads", "!shares", NULL, "attention_bias", GEMM},
    {"self_attn.o_proj", "hidden; heads*head_dim", "1:heads", NULL, NULL, "attention_bias", GEMM},
    {"self_attn.q_norm", "head_dim", "", NULL, NULL, NULL, LINEAR},
    {"self_attn.k_norm", "head_dim", "", "!shares", NULL, NULL, LINEAR},
    {"mlp.gate_proj", "inner[layer]; hidden", "0", NULL, NULL, NULL, GEMM},
    {"mlp.up_proj", "inner[layer]; hidden", "0", NULL, NULL, NULL, GEMM},
    {"mlp.down_proj", "hidden; inner[layer]", "1", NULL, NULL, NULL, GEMM},
    {"altup.correct_output_scale", "hidden", "", NULL, NULL, NULL, 0},
    {"altup.correction_coefs", "streams; streams", "", NULL, NULL, NULL, LINEAR},
    {"altup.prediction_coefs", "streams*streams; streams", "", NULL, NULL, NULL, LINEAR},
    {"altup.modality_router", "streams; hidden", "", NULL, NULL, NULL, LINEAR},
    {"altup.router_norm", "hidden", "", NULL, NULL, NULL, LINEAR},
    {"laurel.linear_left", "rank; hidden", "", NULL, NULL, NULL, GEMM},
    {"laurel.linear_right", "hidden; rank", "", NULL, NULL, NULL, GEMM},
    {"laurel.post_laurel_norm", "hidden", "", NULL, NULL, NULL, LINEAR},
    TENSORS_END,
};

static const bp_arch_tensor gemma3n_last[] = {
    {"model.altup_projections.*", "hidden; hidden", "", "streams > 1", "streams - 1", NULL,
     BP_ARCH_LINEAR | BP_ARCH_PLAIN_COPIES},
    {"model.altup_unembed_projections.*", "hidden; hidden", "", "streams > 1", "streams - 1", NULL,
     BP_ARCH_LINEAR | BP_ARCH_PLAIN_COPIES},
    {"model.norm", "hidden", "", NULL, NULL, NULL, LINEAR},
    {"lm_head", "vocab; hidden", "0", "!tied", NULL, NULL, LINEAR},
    TENSORS_END,
};

const bp_arch_family bp_arch_gemma3n = {
    .model_types = {"gemma3n", "gemma3n_text"},
    .source = "transformers 5.23.0 models/gemma3n, text part",
    .fields = gemma3n_fields,
    .first = per_layer_first,
    .last = gemma3n_last,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {bp_arch_input_norm, gemma3n_layer, bp_arch_post_norm, bp_arch_feedforward_norms, per_layer_input},
};

/* ---- Gemma 4: full attention has heads of another size; experts beside the MLP -------------------------------------------- */

static const bp_arch_field gemma4_fields[] = {
    FIELD_SIZE("vocab", "vocab_size", "262144"),
    FIELD_HIDDEN,
    FIELD_INNER,
    FIELD_LAYERS,
    FIELD_SIZE("heads", "num_attention_heads", "8"),
    FIELD_KV_HEADS("4"),
    FIELD_HEAD_DIM("256"),
    FIELD_SIZE("full_head_dim", "global_head_dim", "512"),
    FIELD_FLAG("keys_are_values", "attention_k_eq_v", "0"),
    {"full_kv_heads", "num_global_key_value_heads", BP_FIELD_SIZE, "kv_heads", "kv_heads"},
    FIELD_FLAG("attention_bias", "attention_bias", "0"),
    FIELD_LIST("kinds", "layer_types"),
    FIELD_SIZE("layer_vocab", "vocab_size_per_layer_input", "262144"),
    {"layer_hidden", "hidden_size_per_layer_input", BP_FIELD_COUNT, "256", "0"},
    FIELD_COUNT("sharing", "num_kv_shared_layers", "0"),
    FIELD_FLAG("wide", "use_double_wide_mlp", "0"),
    FIELD_FLAG("moe", "enable_moe_block", "0"),
    {"n_experts", "num_experts|num_local_experts", BP_FIELD_SIZE, OPTIONAL, OPTIONAL},
    {"expert_inner", "moe_intermediate_size", BP_FIELD_SIZE, OPTIONAL, OPTIONAL},
    FIELD_TIED("1"),
    FIELD_LAYER("full", "layer == layers - 1 || (has(kinds) ? kinds[layer] == 'full_attention' : (layer+1) % 6 == 0)"),
    FIELD_LAYER("dim", "full ? full_head_dim : head_dim"),
    FIELD_LAYER("groups", "full && keys_are_values ? full_kv_heads : kv_heads"),
    FIELD_LAYER("shares", "sharing > 0 && layer >= layers - sharing"),
    FIELD_LAYER("width", "wide && shares ? 2*inner : inner"),
    FIELDS_END,
};

static const bp_arch_tensor gemma4_layer[] = {
    {"self_attn.q_proj", "heads*dim; hidden", "0:heads", NULL, NULL, "attention_bias", GEMM},
    {"self_attn.k_proj", "groups*dim; hidden", "0:groups", "!shares", NULL, "attention_bias", GEMM},
    {"self_attn.v_proj", "groups*dim; hidden", "0:groups", "!shares && !(full && keys_are_values)", NULL,
     "attention_bias", GEMM},
    {"self_attn.o_proj", "hidden; heads*dim", "1:heads", NULL, NULL, "attention_bias", GEMM},
    {"self_attn.q_norm", "dim", "", NULL, NULL, NULL, LINEAR},
    {"self_attn.k_norm", "dim", "", "!shares", NULL, NULL, LINEAR},
    {"mlp.gate_proj", "width; hidden", "0", NULL, NULL, NULL, GEMM},
    {"mlp.up_proj", "width; hidden", "0", NULL, NULL, NULL, GEMM},
    {"mlp.down_proj", "hidden; width", "1", NULL, NULL, NULL, GEMM},
    {"router.scale", "hidden", "", "moe", NULL, NULL, 0},
    {"router.per_expert_scale", "n_experts", "", "moe", NULL, NULL, 0},
    {"router.proj", "n_experts; hidden", "", "moe", NULL, NULL, LINEAR},
    {"experts.gate_up_proj", "n_experts; 2*expert_inner; hidden", "1:expert_inner", "moe", NULL, NULL,
     BP_ARCH_GEMM | BP_ARCH_EXPERT_STACK},
    {"experts.down_proj", "n_experts; hidden; expert_inner", "2", "moe", NULL, NULL,
     BP_ARCH_GEMM | BP_ARCH_EXPERT_STACK},
    {"post_feedforward_layernorm_1", "hidden", "", "moe", NULL, NULL, LINEAR},
    {"post_feedforward_layernorm_2", "hidden", "", "moe", NULL, NULL, LINEAR},
    {"pre_feedforward_layernorm_2", "hidden", "", "moe", NULL, NULL, LINEAR},
    TENSORS_END,
};

const bp_arch_family bp_arch_gemma4 = {
    .model_types = {"gemma4", "gemma4_text"},
    .source = "transformers 5.23.0 models/gemma4, text part",
    .fields = gemma4_fields,
    .first = per_layer_first,
    .last = bp_arch_norm_and_head,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {bp_arch_input_norm, gemma4_layer, bp_arch_post_norm, bp_arch_feedforward_norms, per_layer_input},
};

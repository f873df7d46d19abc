/* More transformers with mixtures of experts: Qwen2-MoE and its vision siblings' text parts, OLMoE, Phi-MoE, MiniMax-M2, Granite-MoE,
 * ERNIE-MoE, Hunyuan-MoE, dots.1, DBRX. Sources: transformers 5.23.0, models/{qwen2_moe,qwen3_vl_moe,olmoe,phimoe,minimax_m2,
 * granitemoe,granitemoeshared,ernie4_5_moe,hunyuan_v1_moe,dots1,dbrx}, with the tensor names of published checkpoints. */
#include "model/families/common.h"

static const bp_arch_field qwen2_moe_fields[] = {
    FIELD_VOCAB,
    FIELD_HIDDEN,
    FIELD_INNER,
    FIELD_LAYERS,
    FIELD_HEADS,
    FIELD_KV_HEADS("16"),
    FIELD_HEAD_DIM("hidden/heads"),
    FIELD_FLAG("attention_bias", "qkv_bias", "1"),
    FIELD_FIXED("out_bias", "0"),
    FIELD_SIZE("expert_inner", "moe_intermediate_size", REQUIRED),
    FIELD_SIZE("shared_inner", "shared_expert_intermediate_size", REQUIRED),
    FIELD_COUNT("n_experts", "num_experts|num_local_experts", REQUIRED),
    FIELD_SIZE("sparse_step", "decoder_sparse_step", "1"),
    FIELD_LIST("dense_layers", "mlp_only_layers"),
    FIELD_LAYER("moe", "!(layer in dense_layers) && n_experts > 0 && (layer+1) % sparse_step == 0"),
    FIELD_TIED("0"),
    FIELDS_END,
};

const bp_arch_family bp_arch_qwen2_moe = {
    .model_types = {"qwen2_moe"},
    .source = "transformers 5.23.0 models/qwen2_moe",
    .fields = qwen2_moe_fields,
    .first = bp_arch_embedding,
    .last = bp_arch_norm_and_head,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {bp_arch_input_norm, bp_arch_attention_biases, bp_arch_post_norm, bp_arch_dense_mlp, bp_arch_experts,
              bp_arch_shared_expert},
};

static const bp_arch_field qwen3_vl_moe_fields[] = {
    FIELD_VOCAB,
    FIELD_HIDDEN,
    FIELD_INNER,
    FIELD_LAYERS,
    FIELD_HEADS,
    FIELD_KV_HEADS("16"),
    FIELD_HEAD_DIM("128"),
    FIELD_FLAG("attention_bias", "attention_bias", "0"),
    FIELD_SIZE("expert_inner", "moe_intermediate_size", REQUIRED),
    FIELD_COUNT("n_experts", "num_experts|num_local_experts", REQUIRED),
    FIELD_SIZE("sparse_step", "decoder_sparse_step", "1"),
    FIELD_LIST("dense_layers", "mlp_only_layers"),
    FIELD_LAYER("moe", "!(layer in dense_layers) && n_experts > 0 && (layer+1) % sparse_step == 0"),
    FIELD_TIED("0"),
    FIELDS_END,
};

const bp_arch_family bp_arch_qwen3_vl_moe = {
    .model_types = {"qwen3_vl_moe", "qwen3_vl_moe_text"},
    .source = "transformers 5.23.0 models/qwen3_vl_moe, text part",
    .fields = qwen3_vl_moe_fields,
    .first = bp_arch_embedding,
    .last = bp_arch_norm_and_head,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_qk_norm, bp_arch_post_norm, bp_arch_dense_mlp,
              bp_arch_expert_stacks},
};

static const bp_arch_field olmoe_fields[] = {
    FIELD_VOCAB,
    FIELD_HIDDEN,
    FIELD_SIZE("expert_inner", "intermediate_size", REQUIRED),
    FIELD_LAYERS,
    FIELD_HEADS,
    FIELD_KV_HEADS("heads"),
    FIELD_HEAD_DIM("hidden/heads"),
    FIELD_FLAG("attention_bias", "attention_bias", "0"),
    FIELD_SIZE("n_experts", "num_experts|num_local_experts", REQUIRED),
    FIELD_FIXED("moe", "1"),
    FIELD_TIED("0"),
    FIELDS_END,
};

const bp_arch_family bp_arch_olmoe = {
    .model_types = {"olmoe"},
    .source = "transformers 5.23.0 models/olmoe",
    .fields = olmoe_fields,
    .first = bp_arch_embedding,
    .last = bp_arch_norm_and_head,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_whole_qk_norm, bp_arch_post_norm, bp_arch_experts},
};

static const bp_arch_field phimoe_fields[] = {
    FIELD_VOCAB,
    FIELD_HIDDEN,
    FIELD_INNER,
    FIELD_LAYERS,
    FIELD_HEADS,
    FIELD_KV_HEADS("8"),
    FIELD_HEAD_DIM("hidden/heads"),
    FIELD_FLAG("attention_bias", "attention_bias", "0"),
    FIELD_FLAG("head_bias", "lm_head_bias", "0"),
    FIELD_SIZE("n_experts", "num_local_experts|num_experts", REQUIRED),
    FIELD_TIED("0"),
    FIELDS_END,
};

static const bp_arch_tensor phimoe_norms[] = {
    {"input_layernorm", "hidden", "", NULL, NULL, "1", LINEAR},
    {"post_attention_layernorm", "hidden", "", NULL, NULL, "1", LINEAR},
    TENSORS_END,
};

static const bp_arch_tensor phimoe_last[] = {
    {"model.norm", "hidden", "", NULL, NULL, "1", LINEAR},
    {"lm_head", "vocab; hidden", "0", "!tied", NULL, "head_bias", LINEAR},
    {"lm_head.bias", "vocab", "0", "tied && head_bias", NULL, NULL, 0},
    TENSORS_END,
};

const bp_arch_family bp_arch_phimoe = {
    .model_types = {"phimoe"},
    .source = "transformers 5.23.0 models/phimoe",
    .fields = phimoe_fields,
    .first = bp_arch_embedding,
    .last = phimoe_last,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {phimoe_norms, bp_arch_attention, bp_arch_numbered_experts},
};

static const bp_arch_field minimax_m2_fields[] = {
    FIELD_VOCAB,
    FIELD_HIDDEN,
    FIELD_INNER,
    FIELD_LAYERS,
    FIELD_HEADS,
    FIELD_KV_HEADS("8"),
    FIELD_HEAD_DIM("128"),
    FIELD_FIXED("attention_bias", "0"),
    FIELD_SIZE("n_experts", "num_local_experts|num_experts", REQUIRED),
    FIELD_TIED("0"),
    FIELDS_END,
};

const bp_arch_family bp_arch_minimax_m2 = {
    .model_types = {"minimax_m2"},
    .source = "transformers 5.23.0 models/minimax_m2",
    .fields = minimax_m2_fields,
    .first = bp_arch_embedding,
    .last = bp_arch_norm_and_head,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_whole_qk_norm, bp_arch_post_norm,
              bp_arch_numbered_experts},
};

/* ---- stacks of experts ------------------------------------------------------------------------------------------------ */

static const bp_arch_field granitemoe_fields[] = {
    FIELD_VOCAB,
    FIELD_HIDDEN,
    FIELD_INNER,
    FIELD_LAYERS,
    FIELD_HEADS,
    FIELD_KV_HEADS("heads"),
    FIELD_FIXED("head_dim", "hidden/heads"),
    FIELD_FLAG("attention_bias", "attention_bias", "0"),
    FIELD_SIZE("n_experts", "num_local_experts|num_experts", REQUIRED),
    FIELD_COUNT("shared_inner", "shared_intermediate_size", "0"),
    FIELD_TIED("0"),
    FIELDS_END,
};

static const bp_arch_tensor granitemoe_experts[] = {
    {"block_sparse_moe.input_linear.weight", "n_experts; 2*inner; hidden", "1:inner", NULL, NULL, NULL,
     BP_ARCH_GEMM | BP_ARCH_EXPERT_STACK},
    {"block_sparse_moe.output_linear.weight", "n_experts; hidden; inner", "2", NULL, NULL, NULL,
     BP_ARCH_GEMM | BP_ARCH_EXPERT_STACK},
    {"block_sparse_moe.router.layer", "n_experts; hidden", "", NULL, NULL, NULL, LINEAR},
    {"shared_mlp.input_linear", "2*shared_inner; hidden", "0:shared_inner", "shared_inner > 0", NULL, NULL, GEMM},
    {"shared_mlp.output_linear", "hidden; shared_inner", "1", "shared_inner > 0", NULL, NULL, GEMM},
    TENSORS_END,
};

const bp_arch_family bp_arch_granitemoe = {
    .model_types = {"granitemoe", "granitemoeshared"},
    .source = "transformers 5.23.0 models/{granitemoe,granitemoeshared}",
    .fields = granitemoe_fields,
    .first = bp_arch_embedding,
    .last = bp_arch_norm_and_head,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_post_norm, granitemoe_experts},
};

static const bp_arch_field dbrx_fields[] = {
    FIELD_VOCAB,
    FIELD_SIZE("hidden", "d_model", REQUIRED),
    FIELD_SIZE("inner", "ffn_config.ffn_hidden_size", REQUIRED),
    FIELD_SIZE("layers", "n_layers", REQUIRED),
    FIELD_SIZE("heads", "n_heads", REQUIRED),
    FIELD_SIZE("kv_heads", "attn_config.kv_n_heads", REQUIRED),
    FIELD_SIZE("n_experts", "ffn_config.moe_num_experts", REQUIRED),
    FIELD_FIXED("head_dim", "hidden/heads"),
    FIELD_TIED("0"),
    FIELDS_END,
};

static const bp_arch_tensor dbrx_first[] = {
    {"transformer.wte", "vocab; hidden", "0", NULL, NULL, NULL, LINEAR},
    TENSORS_END,
};

/* Experts lie one below the other in matrices. The output layer is never tied. */
static const bp_arch_tensor dbrx_layer[] = {
    {"norm_attn_norm.norm_1", "hidden", "", NULL, NULL, NULL, LINEAR},
    {"norm_attn_norm.attn.Wqkv", "(heads + 2*kv_heads)*head_dim; hidden", "0:kv_heads", NULL, NULL, NULL, GEMM},
    {"norm_attn_norm.attn.out_proj", "hidden; heads*head_dim", "1:heads", NULL, NULL, NULL, GEMM},
    {"norm_attn_norm.norm_2", "hidden", "", NULL, NULL, NULL, LINEAR},
    {"ffn.router.layer", "n_experts; hidden", "", NULL, NULL, NULL, LINEAR},
    {"ffn.experts.mlp.w1", "n_experts*inner; hidden", "", NULL, NULL, NULL, BP_ARCH_GEMM | BP_ARCH_EXPERT_STACK},
    {"ffn.experts.mlp.v1", "n_experts*inner; hidden", "", NULL, NULL, NULL, BP_ARCH_GEMM | BP_ARCH_EXPERT_STACK},
    {"ffn.experts.mlp.w2", "n_experts*inner; hidden", "", NULL, NULL, NULL, BP_ARCH_GEMM | BP_ARCH_EXPERT_STACK},
    TENSORS_END,
};

static const bp_arch_tensor dbrx_last[] = {
    {"transformer.norm_f", "hidden", "", NULL, NULL, NULL, LINEAR},
    {"lm_head", "vocab; hidden", "0", NULL, NULL, NULL, LINEAR},
    TENSORS_END,
};

const bp_arch_family bp_arch_dbrx = {
    .model_types = {"dbrx"},
    .source = "transformers 5.23.0 models/dbrx",
    .fields = dbrx_fields,
    .first = dbrx_first,
    .last = dbrx_last,
    .layers = "layers",
    .layer_name = "transformer.blocks.",
    .layer = {dbrx_layer},
};

/* ---- shared experts ----------------------------------------------------------------------------------------------------- */

static const bp_arch_field ernie4_5_moe_fields[] = {
    FIELD_VOCAB,
    FIELD_HIDDEN,
    FIELD_INNER,
    FIELD_LAYERS,
    FIELD_HEADS,
    FIELD_KV_HEADS("4"),
    FIELD_HEAD_DIM("hidden/heads"),
    FIELD_FLAG("attention_bias", "use_bias", "0"),
    FIELD_SIZE("expert_inner", "moe_intermediate_size", REQUIRED),
    FIELD_SIZE("n_experts", "moe_num_experts", REQUIRED),
    FIELD_COUNT("shared", "moe_num_shared_experts", "2"),
    FIELD_COUNT("first_sparse", "moe_layer_start_index", "1"),
    {"last_sparse", "moe_layer_end_index", BP_FIELD_INTEGER, "layers - 1", NULL},
    FIELD_SIZE("interval", "moe_layer_interval", "1"),
    FIELD_LAYER("moe",
                "(layer+1) % interval == 0 && layer >= first_sparse && (last_sparse < 0 || layer <= last_sparse)"),
    FIELD_TIED("1"),
    FIELDS_END,
};

static const bp_arch_tensor ernie4_5_moe_mlp[] = {
    {"mlp.gate_proj", "inner; hidden", "0", "!moe", NULL, "attention_bias", GEMM},
    {"mlp.up_proj", "inner; hidden", "0", "!moe", NULL, "attention_bias", GEMM},
    {"mlp.down_proj", "hidden; inner", "1", "!moe", NULL, "attention_bias", GEMM},
    {"mlp.moe_statics.e_score_correction_bias", "1; n_experts", "", "moe", NULL, NULL, 0},
    TENSORS_END,
};

static const bp_arch_tensor ernie4_5_moe_last[] = {
    {"model.norm", "hidden", "", NULL, NULL, NULL, LINEAR},
    {"lm_head", "vocab; hidden", "0", "!tied", NULL, "attention_bias", LINEAR},
    {"lm_head.bias", "vocab", "0", "tied && attention_bias", NULL, NULL, 0},
    TENSORS_END,
};

const bp_arch_family bp_arch_ernie4_5_moe = {
    .model_types = {"ernie4_5_moe"},
    .source = "transformers 5.23.0 models/ernie4_5_moe",
    .fields = ernie4_5_moe_fields,
    .first = bp_arch_embedding,
    .last = ernie4_5_moe_last,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_post_norm, ernie4_5_moe_mlp, bp_arch_experts,
              bp_arch_shared_experts},
};

static const bp_arch_field hunyuan_v1_moe_fields[] = {
    FIELD_VOCAB,
    FIELD_HIDDEN,
    FIELD_SIZE("expert_inner", "intermediate_size", REQUIRED),
    FIELD_LAYERS,
    FIELD_HEADS,
    FIELD_KV_HEADS("heads"),
    FIELD_HEAD_DIM("hidden/heads"),
    FIELD_FLAG("attention_bias", "attention_bias", "0"),
    FIELD_SIZE("n_experts", "num_experts|num_local_experts", REQUIRED),
    FIELD_TIED("0"),
    FIELDS_END,
};

static const bp_arch_tensor hunyuan_v1_moe_mlp[] = {
    {"mlp.gate.wg", "n_experts; hidden", "", NULL, NULL, NULL, LINEAR},
    {"mlp.experts.*.gate_proj", "expert_inner; hidden", "0", NULL, "n_experts", NULL, GEMM},
    {"mlp.experts.*.up_proj", "expert_inner; hidden", "0", NULL, "n_experts", NULL, GEMM},
    {"mlp.experts.*.down_proj", "hidden; expert_inner", "1", NULL, "n_experts", NULL, GEMM},
    {"mlp.shared_mlp.gate_proj", "expert_inner; hidden", "0", NULL, NULL, NULL, GEMM},
    {"mlp.shared_mlp.up_proj", "expert_inner; hidden", "0", NULL, NULL, NULL, GEMM},
    {"mlp.shared_mlp.down_proj", "hidden; expert_inner", "1", NULL, NULL, NULL, GEMM},
    TENSORS_END,
};

const bp_arch_family bp_arch_hunyuan_v1_moe = {
    .model_types = {"hunyuan_v1_moe"},
    .source = "transformers 5.23.0 models/hunyuan_v1_moe",
    .fields = hunyuan_v1_moe_fields,
    .first = bp_arch_embedding,
    .last = bp_arch_norm_and_head,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_hunyuan_qk_norm, bp_arch_post_norm, hunyuan_v1_moe_mlp},
};

static const bp_arch_field dots1_fields[] = {
    FIELD_VOCAB,
    FIELD_HIDDEN,
    FIELD_INNER,
    FIELD_LAYERS,
    FIELD_HEADS,
    FIELD_KV_HEADS("heads"),
    FIELD_HEAD_DIM("hidden/heads"),
    FIELD_FLAG("attention_bias", "attention_bias", "0"),
    FIELD_SIZE("expert_inner", "moe_intermediate_size", REQUIRED),
    {"shared", "n_shared_experts", BP_FIELD_COUNT, REQUIRED, "0"},
    FIELD_SIZE("n_experts", "n_routed_experts|num_local_experts", REQUIRED),
    FIELD_COUNT("first_dense", "first_k_dense_replace", "0"),
    FIELD_LAYER("moe", "layer >= first_dense"),
    FIELD_TIED("0"),
    FIELDS_END,
};

const bp_arch_family bp_arch_dots1 = {
    .model_types = {"dots1"},
    .source = "transformers 5.23.0 models/dots1",
    .fields = dots1_fields,
    .first = bp_arch_embedding,
    .last = bp_arch_norm_and_head,
    .layers = "layers",
    .layer_name = "model.layers.",
    .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_qk_norm, bp_arch_post_norm, bp_arch_dense_mlp,
              bp_arch_experts, bp_arch_shared_experts},
};

/* Decoders with mixtures of experts: Mixtral, Qwen-MoE and its vision siblings' text parts, gpt-oss, Llama 4, OLMoE, Phi-MoE, MiniMax-M2,
 * Granite-MoE, ERNIE-MoE, Hunyuan-MoE, dots.1, DBRX. Sources: transformers 4.57.6, models/{mixtral,qwen3_moe,gpt_oss,llama4}; 5.23.0,
 * models/{qwen2_moe,qwen3_vl_moe,olmoe,phimoe,minimax_m2,granitemoe,granitemoeshared,ernie4_5_moe,hunyuan_v1_moe,dots1,dbrx}, with the
 * tensor names of published checkpoints. */
#include "model/families/families.h"

/* Experts are stacked [expert, in, out], without ".weight". */
static const bp_arch_tensor gpt_oss_experts[] = {
    {"self_attn.sinks", "heads", "0:heads", NULL, NULL, NULL, 0},
    {"mlp.router", "n_experts; hidden", "", NULL, NULL, "1", LINEAR},
    {"mlp.experts.gate_up_proj", "n_experts; hidden; 2*inner", "2:inner", NULL, NULL, NULL,
     BP_ARCH_GEMM | BP_ARCH_EXPERT_STACK},
    {"mlp.experts.gate_up_proj_bias", "n_experts; 2*inner", "1:inner", NULL, NULL, NULL, BP_ARCH_EXPERT_STACK},
    {"mlp.experts.down_proj", "n_experts; inner; hidden", "1", NULL, NULL, NULL, BP_ARCH_GEMM | BP_ARCH_EXPERT_STACK},
    {"mlp.experts.down_proj_bias", "n_experts; hidden", "", NULL, NULL, NULL, BP_ARCH_EXPERT_STACK},
    TENSORS_END,
};

static const bp_arch_field llama4_fields[] = {
    DECODER_FIELDS("8", "128", "0"),
    FIELD_SIZE("dense_inner", "intermediate_size_mlp", REQUIRED),
    FIELD_FIXED("attention_bias", "0"),
    FIELD_SIZE("n_experts", "num_local_experts|num_experts", REQUIRED),
    FIELD_SIZE("sparse_step", "interleave_moe_layer_step", "1"),
    FIELD_LIST("moe_layers", "moe_layers"),
    FIELD_LAYER("moe", "has(moe_layers) ? layer in moe_layers : (layer+1) % sparse_step == 0"),
    FIELDS_END,
};

/* Experts are stacked [expert, in, out], without ".weight". */
static const bp_arch_tensor llama4_feed_forward[] = {
    GATED_MLP("feed_forward", "dense_inner", "!moe", NULL, NULL),
    {"feed_forward.router", "n_experts; hidden", "", "moe", NULL, NULL, LINEAR},
    {"feed_forward.experts.gate_up_proj", "n_experts; hidden; 2*inner", "2:inner", "moe", NULL, NULL,
     BP_ARCH_GEMM | BP_ARCH_EXPERT_STACK},
    {"feed_forward.experts.down_proj", "n_experts; inner; hidden", "1", "moe", NULL, NULL,
     BP_ARCH_GEMM | BP_ARCH_EXPERT_STACK},
    GATED_MLP("feed_forward.shared_expert", "inner", "moe", NULL, NULL),
    TENSORS_END,
};

static const bp_arch_field qwen2_moe_fields[] = {
    DECODER_FIELDS("16", "hidden/heads", "0"),
    FIELD_FLAG("attention_bias", "qkv_bias", "1"),
    FIELD_FIXED("out_bias", "0"),
    FIELD_SIZE("expert_inner", "moe_intermediate_size", REQUIRED),
    FIELD_SIZE("shared_inner", "shared_expert_intermediate_size", REQUIRED),
    SPARSE_STEP_FIELDS,
    FIELDS_END,
};

static const bp_arch_field olmoe_fields[] = {
    DECODER_FIELDS("heads", "hidden/heads", "0"),
    FIELD_FIXED("expert_inner", "inner"),
    FIELD_ATTENTION_BIAS,
    FIELD_SIZE("n_experts", "num_experts|num_local_experts", REQUIRED),
    FIELD_FIXED("moe", "1"),
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

static const bp_arch_field granitemoe_fields[] = {
    BASIC_FIELDS,
    FIELD_KV_HEADS("heads"),
    FIELD_FIXED("head_dim", "hidden/heads"),
    FIELD_ATTENTION_BIAS,
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

/* Experts are stacked along the rows of one matrix. The output layer is never tied. */
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

static const bp_arch_field ernie4_5_moe_fields[] = {
    DECODER_FIELDS("4", "hidden/heads", "1"),
    FIELD_FLAG("attention_bias", "use_bias", "0"),
    FIELD_SIZE("expert_inner", "moe_intermediate_size", REQUIRED),
    FIELD_SIZE("n_experts", "moe_num_experts", REQUIRED),
    FIELD_COUNT("shared", "moe_num_shared_experts", "2"),
    FIELD_COUNT("first_sparse", "moe_layer_start_index", "1"),
    {"last_sparse", "moe_layer_end_index", BP_FIELD_INTEGER, "layers - 1", NULL},
    FIELD_SIZE("interval", "moe_layer_interval", "1"),
    FIELD_LAYER("moe",
                "(layer+1) % interval == 0 && layer >= first_sparse && (last_sparse < 0 || layer <= last_sparse)"),
    FIELDS_END,
};

static const bp_arch_tensor ernie4_5_moe_mlp[] = {
    GATED_MLP("mlp", "inner", "!moe", NULL, "attention_bias"),
    {"mlp.moe_statics.e_score_correction_bias", "1; n_experts", "", "moe", NULL, NULL, 0},
    TENSORS_END,
};

static const bp_arch_tensor ernie4_5_moe_last[] = {
    {"model.norm", "hidden", "", NULL, NULL, NULL, LINEAR},
    {"lm_head", "vocab; hidden", "0", "!tied", NULL, "attention_bias", LINEAR},
    {"lm_head.bias", "vocab", "0", "tied && attention_bias", NULL, NULL, 0},
    TENSORS_END,
};

static const bp_arch_field hunyuan_v1_moe_fields[] = {
    DECODER_FIELDS("heads", "hidden/heads", "0"),
    FIELD_FIXED("expert_inner", "inner"),
    FIELD_ATTENTION_BIAS,
    FIELD_SIZE("n_experts", "num_experts|num_local_experts", REQUIRED),
    FIELDS_END,
};

static const bp_arch_tensor hunyuan_v1_moe_mlp[] = {
    {"mlp.gate.wg", "n_experts; hidden", "", NULL, NULL, NULL, LINEAR},
    GATED_MLP("mlp.experts.*", "expert_inner", NULL, "n_experts", NULL),
    GATED_MLP("mlp.shared_mlp", "expert_inner", NULL, NULL, NULL),
    TENSORS_END,
};

static const bp_arch_field dots1_fields[] = {
    DECODER_FIELDS("heads", "hidden/heads", "0"),
    FIELD_ATTENTION_BIAS,
    FIELD_SIZE("expert_inner", "moe_intermediate_size", REQUIRED),
    {"shared", "n_shared_experts", BP_FIELD_COUNT, REQUIRED, "0"},
    FIELD_SIZE("n_experts", "n_routed_experts|num_local_experts", REQUIRED),
    FIELD_COUNT("first_dense", "first_k_dense_replace", "0"),
    FIELD_LAYER("moe", "layer >= first_dense"),
    FIELDS_END,
};

const bp_arch_family bp_arch_sparse[] = {
    {
        .model_types = {"mixtral"},
        .source = "transformers 4.57.6 models/mixtral",
        .fields = FIELDS(DECODER_FIELDS("8", "hidden/heads", "0"), FIELD_FIXED("attention_bias", "0"),
                         FIELD_SIZE("n_experts", "num_local_experts|num_experts", REQUIRED)),
        USUAL_DECODER,
        .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_post_norm, bp_arch_numbered_experts},
    },
    {
        .model_types = {"qwen3_moe"},
        .source = "transformers 4.57.6 models/qwen3_moe",
        .fields = FIELDS(DECODER_FIELDS("4", "hidden/heads", "0"), FIELD_ATTENTION_BIAS,
                         FIELD_SIZE("expert_inner", "moe_intermediate_size", REQUIRED), SPARSE_STEP_FIELDS),
        USUAL_DECODER,
        .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_qk_norm, bp_arch_post_norm, bp_arch_dense_mlp,
                  bp_arch_experts},
    },
    {
        .model_types = {"gpt_oss"},
        .source = "transformers 4.57.6 models/gpt_oss",
        .fields = FIELDS(DECODER_FIELDS("8", "64", "0"), FIELD_FIXED("attention_bias", "1"),
                         FIELD_SIZE("n_experts", "num_local_experts|num_experts", REQUIRED)),
        USUAL_DECODER,
        .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_post_norm, gpt_oss_experts},
    },
    {
        .model_types = {"llama4_text", "llama4"},
        .source = "transformers 4.57.6 models/llama4, text part",
        .fields = llama4_fields,
        USUAL_DECODER,
        .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_post_norm, llama4_feed_forward},
    },
    {
        .model_types = {"qwen2_moe"},
        .source = "transformers 5.23.0 models/qwen2_moe",
        .fields = qwen2_moe_fields,
        USUAL_DECODER,
        .layer = {bp_arch_input_norm, bp_arch_attention_biases, bp_arch_post_norm, bp_arch_dense_mlp, bp_arch_experts,
                  bp_arch_shared_expert},
    },
    {
        .model_types = {"qwen3_vl_moe", "qwen3_vl_moe_text"},
        .source = "transformers 5.23.0 models/qwen3_vl_moe, text part",
        .fields = FIELDS(DECODER_FIELDS("16", "128", "0"), FIELD_ATTENTION_BIAS,
                         FIELD_SIZE("expert_inner", "moe_intermediate_size", REQUIRED), SPARSE_STEP_FIELDS),
        USUAL_DECODER,
        .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_qk_norm, bp_arch_post_norm, bp_arch_dense_mlp,
                  bp_arch_expert_stacks},
    },
    {
        .model_types = {"olmoe"},
        .source = "transformers 5.23.0 models/olmoe",
        .fields = olmoe_fields,
        USUAL_DECODER,
        .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_whole_qk_norm, bp_arch_post_norm, bp_arch_experts},
    },
    {
        .model_types = {"phimoe"},
        .source = "transformers 5.23.0 models/phimoe",
        .fields = FIELDS(DECODER_FIELDS("8", "hidden/heads", "0"), FIELD_ATTENTION_BIAS,
                         FIELD_FLAG("head_bias", "lm_head_bias", "0"),
                         FIELD_SIZE("n_experts", "num_local_experts|num_experts", REQUIRED)),
        .first = bp_arch_embedding,
        .last = phimoe_last,
        .layer_name = "model.layers.",
        .layer = {phimoe_norms, bp_arch_attention, bp_arch_numbered_experts},
    },
    {
        .model_types = {"minimax_m2"},
        .source = "transformers 5.23.0 models/minimax_m2",
        .fields = FIELDS(DECODER_FIELDS("8", "128", "0"), FIELD_FIXED("attention_bias", "0"),
                         FIELD_SIZE("n_experts", "num_local_experts|num_experts", REQUIRED)),
        USUAL_DECODER,
        .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_whole_qk_norm, bp_arch_post_norm,
                  bp_arch_numbered_experts},
    },
    {
        .model_types = {"granitemoe", "granitemoeshared"},
        .source = "transformers 5.23.0 models/{granitemoe,granitemoeshared}",
        .fields = granitemoe_fields,
        USUAL_DECODER,
        .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_post_norm, granitemoe_experts},
    },
    {
        .model_types = {"dbrx"},
        .source = "transformers 5.23.0 models/dbrx",
        .fields = dbrx_fields,
        .first = dbrx_first,
        .last = dbrx_last,
        .layer_name = "transformer.blocks.",
        .layer = {dbrx_layer},
    },
    {
        .model_types = {"ernie4_5_moe"},
        .source = "transformers 5.23.0 models/ernie4_5_moe",
        .fields = ernie4_5_moe_fields,
        .first = bp_arch_embedding,
        .last = ernie4_5_moe_last,
        .layer_name = "model.layers.",
        .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_post_norm, ernie4_5_moe_mlp, bp_arch_experts,
                  bp_arch_shared_experts},
    },
    {
        .model_types = {"hunyuan_v1_moe"},
        .source = "transformers 5.23.0 models/hunyuan_v1_moe",
        .fields = hunyuan_v1_moe_fields,
        USUAL_DECODER,
        .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_hunyuan_qk_norm, bp_arch_post_norm,
                  hunyuan_v1_moe_mlp},
    },
    {
        .model_types = {"dots1"},
        .source = "transformers 5.23.0 models/dots1",
        .fields = dots1_fields,
        USUAL_DECODER,
        .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_qk_norm, bp_arch_post_norm, bp_arch_dense_mlp,
                  bp_arch_experts, bp_arch_shared_experts},
    },
    {.source = NULL},
};

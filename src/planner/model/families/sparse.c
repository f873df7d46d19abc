/* SPDX-License-Identifier: Apache-2.0 */
/* Decoders with mixtures of experts: Mixtral, Qwen-MoE and its vision siblings' text parts, gpt-oss, Llama 4, OLMoE, Phi-MoE, MiniMax-M2,
 * Granite-MoE, ERNIE-MoE, Hunyuan-MoE, dots.1, DBRX, MiniMax-M3, Step-3.7, MiMo-V2. Sources: transformers 4.57.6, models/{mixtral,qwen3_moe,gpt_oss,llama4}; 5.23.0,
 * models/{qwen2_moe,qwen3_vl_moe,olmoe,phimoe,minimax_m2,granitemoe,granitemoeshared,ernie4_5_moe,hunyuan_v1_moe,dots1,dbrx,minimax_m3_vl,step3p7,mimo_v2_flash}, with the
 * tensor names of published checkpoints. */
#include "planner/model/families/families.h"

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
    {"lm_head", "vocab; hidden", "0", "!tied", NULL, "head_bias", HEAD},
    {"lm_head.bias", "vocab", "0", "tied && head_bias", NULL, NULL, BP_ARCH_HEAD},
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
    {"lm_head", "vocab; hidden", "0", NULL, NULL, NULL, HEAD},
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

static const bp_arch_tensor ernie4_5_moe_shared[] = {
    GATED_MLP("mlp.shared_experts", "shared*expert_inner", "moe && shared > 0", NULL, "attention_bias"),
    TENSORS_END,
};

static const bp_arch_tensor ernie4_5_moe_last[] = {
    {"model.norm", "hidden", "", NULL, NULL, NULL, LINEAR},
    {"lm_head", "vocab; hidden", "0", "!tied", NULL, "attention_bias", HEAD},
    {"lm_head.bias", "vocab", "0", "tied && attention_bias", NULL, NULL, BP_ARCH_HEAD},
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

/* ---- MiniMax-M3, Step-3.7 and MiMo-V2: layers of several kinds ------------------------------------------------------------ */

static const bp_arch_field minimax_m3_fields[] = {
    FIELD_VOCAB,
    FIELD_HIDDEN,
    FIELD_SIZE("inner", "intermediate_size|moe_intermediate_size", REQUIRED),
    FIELD_LAYERS,
    FIELD_HEADS,
    FIELD_KV_HEADS("4"),
    FIELD_HEAD_DIM("128"),
    FIELD_TIED("0"),
    FIELD_FIXED("attention_bias", "0"),
    FIELD_SIZE("dense_inner", "dense_intermediate_size", "12288"),
    FIELD_SIZE("shared_inner", "shared_intermediate_size", "3072"),
    FIELD_SIZE("n_experts", "num_local_experts|num_experts", REQUIRED),
    FIELD_SIZE("index_heads", "sparse_attention_config.sparse_num_index_heads|index_n_heads", "4"),
    FIELD_SIZE("index_dim", "sparse_attention_config.sparse_index_dim|index_head_dim", "128"),
    FIELD_LIST("kinds", "layer_types"),
    FIELD_LIST("sparse_layers", "sparse_attention_config.sparse_attention_freq"),
    FIELD_LIST("mlp_kinds", "mlp_layer_types"),
    FIELD_LIST("moe_layers", "moe_layer_freq"),
    FIELD_LAYER("indexed",
                "has(kinds) ? kinds[layer] == 'minimax_m3_sparse' : has(sparse_layers) ? sparse_layers[layer] : 0"),
    FIELD_LAYER("moe", "has(mlp_kinds) ? mlp_kinds[layer] == 'sparse' : has(moe_layers) ? moe_layers[layer] : 1"),
    FIELDS_END,
};

static const bp_arch_tensor minimax_m3_indexer[] = {
    {"self_attn.index_q_proj", "index_heads*index_dim; hidden", "0:index_heads", "indexed", NULL, NULL, GEMM},
    {"self_attn.index_k_proj", "index_dim; hidden", "", "indexed", NULL, NULL, GEMM},
    {"self_attn.index_q_norm", "index_dim", "", "indexed", NULL, NULL, LINEAR},
    {"self_attn.index_k_norm", "index_dim", "", "indexed", NULL, NULL, LINEAR},
    TENSORS_END,
};

static const bp_arch_tensor minimax_m3_mlp[] = {
    GATED_MLP("mlp", "dense_inner", "!moe", NULL, NULL),
    {"block_sparse_moe.gate", "n_experts; hidden", "", "moe", NULL, NULL, LINEAR},
    {"block_sparse_moe.experts.*.w1", "inner; hidden", "0", "moe", "n_experts", NULL, GEMM},
    {"block_sparse_moe.experts.*.w2", "hidden; inner", "1", "moe", "n_experts", NULL, GEMM},
    {"block_sparse_moe.experts.*.w3", "inner; hidden", "0", "moe", "n_experts", NULL, GEMM},
    GATED_MLP("block_sparse_moe.shared_experts", "shared_inner", "moe", NULL, NULL),
    TENSORS_END,
};

/* Sliding layers have another number of heads. */
static const bp_arch_field step3p5_fields[] = {
    BASIC_FIELDS,
    FIELD_SIZE("kv_heads", "num_key_value_heads|num_attention_groups", "8"),
    FIELD_HEAD_DIM("128"),
    FIELD_ATTENTION_BIAS,
    FIELD_MLP_BIAS,
    FIELD_FLAG("gate_of_heads", "gating", "1"),
    FIELD_SIZE("expert_inner", "moe_intermediate_size", "1280"),
    FIELD_SIZE("shared_inner", "share_expert_dim|share_expert_dims", "1280"),
    FIELD_SIZE("n_experts", "n_routed_experts|moe_num_experts|num_local_experts|num_experts", "288"),
    {"sliding_heads", "num_sliding_attention_heads|attention_other_setting.num_attention_heads", BP_FIELD_SIZE, "heads",
     "heads"},
    FIELD_LIST("kinds", "layer_types"),
    FIELD_LIST("mlp_kinds", "mlp_layer_types"),
    FIELD_LIST("moe_layers", "moe_layers_enum"),
    FIELD_TIED("0"),
    FIELD_LAYER("own_heads", "has(kinds) && kinds[layer] == 'sliding_attention' ? sliding_heads : heads"),
    FIELD_LAYER("moe",
                "has(mlp_kinds) ? mlp_kinds[layer] == 'sparse' : has(moe_layers) ? layer in moe_layers : layer >= 3"),
    FIELDS_END,
};

static const bp_arch_tensor step3p5_layer[] = {
    {"self_attn.q_proj", "own_heads*head_dim; hidden", "0:own_heads", NULL, NULL, "attention_bias", GEMM},
    {"self_attn.k_proj", "kv_heads*head_dim; hidden", "0:kv_heads", NULL, NULL, "attention_bias", GEMM},
    {"self_attn.v_proj", "kv_heads*head_dim; hidden", "0:kv_heads", NULL, NULL, "attention_bias", GEMM},
    {"self_attn.g_proj", "gate_of_heads ? own_heads : own_heads*head_dim; hidden", "0:own_heads", NULL, NULL, NULL,
     GEMM},
    {"self_attn.o_proj", "hidden; own_heads*head_dim", "1:own_heads", NULL, NULL, "attention_bias", GEMM},
    GATED_MLP("mlp", "inner", "!moe", NULL, "mlp_bias"),
    {"moe.gate", "n_experts; hidden", "", "moe", NULL, NULL, LINEAR},
    {"moe.gate_proj.weight", "n_experts; expert_inner; hidden", "1", "moe", NULL, NULL,
     BP_ARCH_GEMM | BP_ARCH_EXPERT_STACK},
    {"moe.up_proj.weight", "n_experts; expert_inner; hidden", "1", "moe", NULL, NULL,
     BP_ARCH_GEMM | BP_ARCH_EXPERT_STACK},
    {"moe.down_proj.weight", "n_experts; hidden; expert_inner", "2", "moe", NULL, NULL,
     BP_ARCH_GEMM | BP_ARCH_EXPERT_STACK},
    GATED_MLP("share_expert", "shared_inner", "moe", NULL, "mlp_bias"),
    TENSORS_END,
};

/* Sliding layers have other heads, and sinks. */
static const bp_arch_field mimo_v2_fields[] = {
    BASIC_FIELDS,
    FIELD_KV_HEADS("4"),
    FIELD_HEAD_DIM("192"),
    FIELD_SIZE("value_dim", "v_head_dim", "128"),
    FIELD_SIZE("sliding_heads", "swa_num_attention_heads", "heads"),
    FIELD_SIZE("sliding_kv_heads", "swa_num_key_value_heads", "2*kv_heads"),
    FIELD_SIZE("sliding_head_dim", "swa_head_dim", "head_dim"),
    FIELD_SIZE("sliding_value_dim", "swa_v_head_dim", "value_dim"),
    FIELD_FLAG("sliding_sinks", "add_swa_attention_sink_bias", "1"),
    FIELD_FLAG("full_sinks", "add_full_attention_sink_bias", "0"),
    FIELD_ATTENTION_BIAS,
    FIELD_SIZE("expert_inner", "moe_intermediate_size", REQUIRED),
    FIELD_SIZE("n_experts", "n_routed_experts|num_local_experts", REQUIRED),
    FIELD_LIST("kinds", "layer_types"),
    FIELD_LIST("sliding_layers", "hybrid_layer_pattern"),
    FIELD_LIST("mlp_kinds", "mlp_layer_types"),
    FIELD_LIST("moe_layers", "moe_layer_freq"),
    FIELD_TIED("0"),
    FIELD_LAYER("slides",
                "has(kinds) ? kinds[layer] == 'sliding_attention' : has(sliding_layers) ? sliding_layers[layer] : "
                "layer > 0 && (layer+1) % 6 != 0"),
    FIELD_LAYER("moe",
                "has(mlp_kinds) ? mlp_kinds[layer] == 'sparse' : has(moe_layers) ? moe_layers[layer] : layer > 0"),
    FIELD_LAYER("queries", "slides ? sliding_heads : heads"),
    FIELD_LAYER("groups", "slides ? sliding_kv_heads : kv_heads"),
    FIELD_LAYER("dim", "slides ? sliding_head_dim : head_dim"),
    FIELD_LAYER("wide", "slides ? sliding_value_dim : value_dim"),
    FIELDS_END,
};

static const bp_arch_tensor mimo_v2_attention[] = {
    {"self_attn.q_proj", "queries*dim; hidden", "0:queries", NULL, NULL, "attention_bias", GEMM},
    {"self_attn.k_proj", "groups*dim; hidden", "0:groups", NULL, NULL, "attention_bias", GEMM},
    {"self_attn.v_proj", "groups*wide; hidden", "0:groups", NULL, NULL, "attention_bias", GEMM},
    {"self_attn.o_proj", "hidden; queries*wide", "1:queries", NULL, NULL, NULL, GEMM},
    {"self_attn.attention_sink_bias", "queries", "0:queries", "slides ? sliding_sinks : full_sinks", NULL, NULL, 0},
    TENSORS_END,
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
        .ignored = "use_qk_norm",
        .fields = FIELDS(DECODER_FIELDS("4", "hidden/heads", "0"), FIELD_ATTENTION_BIAS,
                         FIELD_SIZE("expert_inner", "moe_intermediate_size", REQUIRED), SPARSE_STEP_FIELDS),
        USUAL_DECODER,
        .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_qk_norm, bp_arch_post_norm, bp_arch_dense_mlp,
                  bp_arch_experts},
    },
    {
        .model_types = {"gpt_oss"},
        .source = "transformers 4.57.6 models/gpt_oss",
        .fields = FIELDS(DECODER_FIELDS("8", "64", "0"), FIELD_FLAG("attention_bias", "attention_bias", "1"),
                         FIELD_SIZE("n_experts", "num_local_experts|num_experts", REQUIRED)),
        USUAL_DECODER,
        .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_post_norm, gpt_oss_experts},
    },
    {
        .model_types = {"llama4_text", "llama4"},
        .source = "transformers 4.57.6 models/llama4, text part",
        .ignored = "use_qk_norm",
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
        .ignored = "attn_type_list|mtp_transformer_layers|use_mtp|use_qk_norm|use_routing_bias",
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
        .ignored = "num_key_value_heads",
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
                  ernie4_5_moe_shared},
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
    {
        .model_types = {"minimax_m3_vl_text", "minimax_m3_vl", "minimax_m3"},
        .source = "transformers 5.23.0 models/minimax_m3_vl, text part",
        .ignored = "n_shared_experts|use_gemma_norm|use_qk_norm|use_routing_bias|"
                   "sparse_attention_config.sparse_block_size|sparse_attention_config.sparse_local_block|"
                   "sparse_attention_config.use_sparse_attention",
        .fields = minimax_m3_fields,
        USUAL_DECODER,
        .layer = {bp_arch_input_norm, bp_arch_attention, bp_arch_qk_norm, minimax_m3_indexer, bp_arch_post_norm,
                  minimax_m3_mlp},
    },
    {
        .model_types = {"step3p5", "step3p7"},
        .source = "transformers 5.23.0 models/step3p7, text part",
        .ignored = "attention_other_setting.head_dim|attention_other_setting.num_attention_groups|n_shared_experts|use_"
                   "moe_router_bias",
        .fields = step3p5_fields,
        USUAL_DECODER,
        .layer = {bp_arch_input_norm, bp_arch_qk_norm, bp_arch_post_norm, step3p5_layer},
    },
    {
        .model_types = {"mimo_v2_flash"},
        .source = "transformers 5.23.0 models/mimo_v2_flash; the publisher's fields of sliding layers",
        .fields = mimo_v2_fields,
        USUAL_DECODER,
        .layer = {bp_arch_input_norm, mimo_v2_attention, bp_arch_post_norm, bp_arch_dense_mlp, bp_arch_experts},
    },
    {.source = NULL},
};

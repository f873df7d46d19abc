/* SPDX-License-Identifier: Apache-2.0 */
/* Encoders, and encoders with decoders: BERT, ViT, T5, Whisper. Sources: transformers 5.23.0, models/{bert,vit,t5,whisper}, with the
 * heads for masked language models, image classification and generation. */
#include "planner/model/families/families.h"

/* ---- BERT ------------------------------------------------------------------------------------------------------------------- */

static const bp_arch_field bert_fields[] = {
    BASIC_FIELDS,
    FIELD_SIZE("positions", "max_position_embeddings", "512"),
    FIELD_SIZE("types", "type_vocab_size", "2"),
    FIELD_TIED("1"),
    FIELDS_END,
};

static const bp_arch_tensor bert_first[] = {
    {"bert.embeddings.word_embeddings", "vocab; hidden", "0", NULL, NULL, NULL, LINEAR},
    {"bert.embeddings.position_embeddings", "positions; hidden", "", NULL, NULL, NULL, LINEAR},
    {"bert.embeddings.token_type_embeddings", "types; hidden", "", NULL, NULL, NULL, LINEAR},
    {"bert.embeddings.LayerNorm", "hidden", "", NULL, NULL, "1", LINEAR},
    TENSORS_END,
};

static const bp_arch_tensor bert_layer[] = {
    {"attention.self.query", "hidden; hidden", "0:heads", NULL, NULL, "1", GEMM},
    {"attention.self.key", "hidden; hidden", "0:heads", NULL, NULL, "1", GEMM},
    {"attention.self.value", "hidden; hidden", "0:heads", NULL, NULL, "1", GEMM},
    {"attention.output.dense", "hidden; hidden", "1:heads", NULL, NULL, "1", GEMM},
    {"attention.output.LayerNorm", "hidden", "", NULL, NULL, "1", LINEAR},
    {"intermediate.dense", "inner; hidden", "0", NULL, NULL, "1", GEMM},
    {"output.dense", "hidden; inner", "1", NULL, NULL, "1", GEMM},
    {"output.LayerNorm", "hidden", "", NULL, NULL, "1", LINEAR},
    TENSORS_END,
};

static const bp_arch_tensor bert_last[] = {
    {"cls.predictions.bias", "vocab", "0", NULL, NULL, NULL, BP_ARCH_HEAD},
    {"cls.predictions.transform.dense", "hidden; hidden", "", NULL, NULL, "1", HEAD | BP_ARCH_GEMM},
    {"cls.predictions.transform.LayerNorm", "hidden", "", NULL, NULL, "1", HEAD},
    {"cls.predictions.decoder", "vocab; hidden", "0", "!tied", NULL, "1", HEAD},
    TENSORS_END,
};

/* Classifiers of tokens and answers read the last layer, without the pooler. */
static const bp_arch_tensor bert_heads[] = {
    {"bert.pooler.dense", "hidden; hidden", "", "head == 'none' || head == 'sequence'", NULL, "1", GEMM},
    {"classifier", "labels; hidden", "", "head == 'sequence' || head == 'token'", NULL, "1", LINEAR},
    {"qa_outputs", "labels; hidden", "", "head == 'question'", NULL, "1", LINEAR},
    TENSORS_END,
};

/* ---- ViT ------------------------------------------------------------------------------------------------------------------- */

static const bp_arch_field vit_fields[] = {
    FIELD_HIDDEN,
    FIELD_INNER,
    FIELD_LAYERS,
    FIELD_HEADS,
    FIELD_SIZE("image", "image_size", "224"),
    FIELD_SIZE("patch", "patch_size", "16"),
    FIELD_SIZE("colors", "num_channels", "3"),
    FIELD_COUNT("classes", "num_labels|id2label.#", "2"),
    FIELD_FLAG("attention_bias", "qkv_bias", "1"),
    {"pooler_dim", "pooler_output_size", BP_FIELD_SIZE, "hidden", "hidden"},
    FIELDS_END,
};

static const bp_arch_tensor vit_first[] = {
    {"vit.embeddings.cls_token", "1; 1; hidden", "", NULL, NULL, NULL, 0},
    {"vit.embeddings.position_embeddings", "1; floor(image, patch)*floor(image, patch) + 1; hidden", "", NULL, NULL,
     NULL, 0},
    {"vit.embeddings.patch_embeddings.projection", "hidden; colors; patch; patch", "", NULL, NULL, "1", LINEAR},
    TENSORS_END,
};

static const bp_arch_tensor vit_layer[] = {
    {"attention.attention.query", "hidden; hidden", "0:heads", NULL, NULL, "attention_bias", GEMM},
    {"attention.attention.key", "hidden; hidden", "0:heads", NULL, NULL, "attention_bias", GEMM},
    {"attention.attention.value", "hidden; hidden", "0:heads", NULL, NULL, "attention_bias", GEMM},
    {"attention.output.dense", "hidden; hidden", "1:heads", NULL, NULL, "1", GEMM},
    {"layernorm_before", "hidden", "", NULL, NULL, "1", LINEAR},
    {"layernorm_after", "hidden", "", NULL, NULL, "1", LINEAR},
    {"intermediate.dense", "inner; hidden", "0", NULL, NULL, "1", GEMM},
    {"output.dense", "hidden; inner", "1", NULL, NULL, "1", GEMM},
    TENSORS_END,
};

static const bp_arch_tensor vit_last[] = {
    {"vit.layernorm", "hidden", "", NULL, NULL, "1", LINEAR},
    {"classifier", "classes; hidden", "", "classes > 0", NULL, "1", HEAD},
    TENSORS_END,
};

static const bp_arch_tensor vit_heads[] = {
    {"vit.pooler.dense", "pooler_dim; hidden", "", "head == 'none'", NULL, "1", LINEAR},
    TENSORS_END,
};

/* ---- T5: the position bias lies in the first layer of each stack ------------------------------------------------------------ */

static const bp_arch_field t5_fields[] = {
    FIELD_VOCAB,
    FIELD_SIZE("hidden", "d_model", REQUIRED),
    FIELD_SIZE("head_dim", "d_kv", REQUIRED),
    FIELD_SIZE("inner", "d_ff", REQUIRED),
    FIELD_SIZE("layers", "num_layers", REQUIRED),
    FIELD_SIZE("given_decoder_layers", "num_decoder_layers", "layers"),
    FIELD_FIXED("decoder_layers", "head == 'encoder' ? 0 : given_decoder_layers"),
    FIELD_SIZE("heads", "num_heads", REQUIRED),
    FIELD_SIZE("distances", "relative_attention_num_buckets", "32"),
    {"activation", "feed_forward_proj", BP_FIELD_LIST, "'relu'", NULL},
    FIELD_FIXED("gated", "activation == 'gated-gelu' || activation == 'gated-silu' || activation == 'gated-relu'"),
    FIELD_FIXED("wide", "heads*head_dim"),
    FIELD_LAYER("decodes", "layer >= layers"),
    FIELDS_END,
};

static const bp_arch_tensor t5_first[] = {
    {"shared", "vocab; hidden", "0", NULL, NULL, NULL, LINEAR},
    TENSORS_END,
};

static const bp_arch_tensor t5_layer[] = {
    {"layer.0.SelfAttention.q", "wide; hidden", "0:heads", NULL, NULL, NULL, GEMM},
    {"layer.0.SelfAttention.k", "wide; hidden", "0:heads", NULL, NULL, NULL, GEMM},
    {"layer.0.SelfAttention.v", "wide; hidden", "0:heads", NULL, NULL, NULL, GEMM},
    {"layer.0.SelfAttention.o", "hidden; wide", "1:heads", NULL, NULL, NULL, GEMM},
    {"layer.0.SelfAttention.relative_attention_bias", "distances; heads", "1", "layer == 0 || layer == layers", NULL,
     NULL, LINEAR},
    {"layer.0.layer_norm", "hidden", "", NULL, NULL, NULL, LINEAR},
    {"layer.1.EncDecAttention.q", "wide; hidden", "0:heads", "decodes", NULL, NULL, GEMM},
    {"layer.1.EncDecAttention.k", "wide; hidden", "0:heads", "decodes", NULL, NULL, GEMM},
    {"layer.1.EncDecAttention.v", "wide; hidden", "0:heads", "decodes", NULL, NULL, GEMM},
    {"layer.1.EncDecAttention.o", "hidden; wide", "1:heads", "decodes", NULL, NULL, GEMM},
    {"layer.1.layer_norm", "hidden", "", NULL, NULL, NULL, LINEAR},
    {"layer.1.DenseReluDense.wi", "inner; hidden", "0", "!decodes && !gated", NULL, NULL, GEMM},
    {"layer.1.DenseReluDense.wi_0", "inner; hidden", "0", "!decodes && gated", NULL, NULL, GEMM},
    {"layer.1.DenseReluDense.wi_1", "inner; hidden", "0", "!decodes && gated", NULL, NULL, GEMM},
    {"layer.1.DenseReluDense.wo", "hidden; inner", "1", "!decodes", NULL, NULL, GEMM},
    {"layer.2.DenseReluDense.wi", "inner; hidden", "0", "decodes && !gated", NULL, NULL, GEMM},
    {"layer.2.DenseReluDense.wi_0", "inner; hidden", "0", "decodes && gated", NULL, NULL, GEMM},
    {"layer.2.DenseReluDense.wi_1", "inner; hidden", "0", "decodes && gated", NULL, NULL, GEMM},
    {"layer.2.DenseReluDense.wo", "hidden; inner", "1", "decodes", NULL, NULL, GEMM},
    {"layer.2.layer_norm", "hidden", "", "decodes", NULL, NULL, LINEAR},
    TENSORS_END,
};

/* The output layer is always the embedding. */
static const bp_arch_tensor t5_last[] = {
    {"encoder.final_layer_norm", "hidden", "", NULL, NULL, NULL, LINEAR},
    {"decoder.final_layer_norm", "hidden", "", "decoder_layers > 0", NULL, NULL, LINEAR},
    TENSORS_END,
};

static const bp_arch_tensor no_heads[] = {
    TENSORS_END,
};

/* ---- Whisper ---------------------------------------------------------------------------------------------------------------- */

static const bp_arch_field whisper_fields[] = {
    FIELD_VOCAB,
    FIELD_SIZE("hidden", "d_model", REQUIRED),
    FIELD_SIZE("mel_bins", "num_mel_bins", "80"),
    FIELD_SIZE("layers", "encoder_layers", REQUIRED),
    FIELD_SIZE("decoder_layers", "decoder_layers", REQUIRED),
    FIELD_SIZE("encoder_heads", "encoder_attention_heads", REQUIRED),
    FIELD_SIZE("decoder_heads", "decoder_attention_heads", REQUIRED),
    FIELD_SIZE("encoder_inner", "encoder_ffn_dim", REQUIRED),
    FIELD_SIZE("decoder_inner", "decoder_ffn_dim", REQUIRED),
    FIELD_SIZE("sources", "max_source_positions", "1500"),
    FIELD_SIZE("targets", "max_target_positions", "448"),
    FIELD_TIED("1"),
    FIELD_LAYER("decodes", "layer >= layers"),
    FIELD_LAYER("heads", "decodes ? decoder_heads : encoder_heads"),
    FIELD_LAYER("inner", "decodes ? decoder_inner : encoder_inner"),
    FIELDS_END,
};

static const bp_arch_tensor whisper_first[] = {
    {"model.encoder.conv1", "hidden; mel_bins; 3", "", NULL, NULL, "1", LINEAR},
    {"model.encoder.conv2", "hidden; hidden; 3", "", NULL, NULL, "1", LINEAR},
    {"model.encoder.embed_positions", "sources; hidden", "", NULL, NULL, NULL, LINEAR},
    {"model.decoder.embed_tokens", "vocab; hidden", "0", NULL, NULL, NULL, LINEAR},
    {"model.decoder.embed_positions", "targets; hidden", "", NULL, NULL, NULL, LINEAR},
    TENSORS_END,
};

static const bp_arch_tensor whisper_layer[] = {
    {"self_attn.k_proj", "hidden; hidden", "0:heads", NULL, NULL, NULL, GEMM},
    {"self_attn.v_proj", "hidden; hidden", "0:heads", NULL, NULL, "1", GEMM},
    {"self_attn.q_proj", "hidden; hidden", "0:heads", NULL, NULL, "1", GEMM},
    {"self_attn.out_proj", "hidden; hidden", "1:heads", NULL, NULL, "1", GEMM},
    {"self_attn_layer_norm", "hidden", "", NULL, NULL, "1", LINEAR},
    {"encoder_attn.k_proj", "hidden; hidden", "0:heads", "decodes", NULL, NULL, GEMM},
    {"encoder_attn.v_proj", "hidden; hidden", "0:heads", "decodes", NULL, "1", GEMM},
    {"encoder_attn.q_proj", "hidden; hidden", "0:heads", "decodes", NULL, "1", GEMM},
    {"encoder_attn.out_proj", "hidden; hidden", "1:heads", "decodes", NULL, "1", GEMM},
    {"encoder_attn_layer_norm", "hidden", "", "decodes", NULL, "1", LINEAR},
    {"fc1", "inner; hidden", "0", NULL, NULL, "1", GEMM},
    {"fc2", "hidden; inner", "1", NULL, NULL, "1", GEMM},
    {"final_layer_norm", "hidden", "", NULL, NULL, "1", LINEAR},
    TENSORS_END,
};

static const bp_arch_tensor whisper_last[] = {
    {"model.encoder.layer_norm", "hidden", "", NULL, NULL, "1", LINEAR},
    {"model.decoder.layer_norm", "hidden", "", NULL, NULL, "1", LINEAR},
    {"proj_out", "vocab; hidden", "0", "!tied", NULL, NULL, HEAD},
    TENSORS_END,
};

const bp_arch_family bp_arch_encoder[] = {
    {
        .model_types = {"bert"},
        .source = "transformers 5.23.0 models/bert, BertForMaskedLM",
        .fields = bert_fields,
        .first = bert_first,
        .last = bert_last,
        .layer_name = "bert.encoder.layer.",
        .layer = {bert_layer},
        .classes = "ForMaskedLM|LMHeadModel",
        .heads = "none|sequence|token|question",
        .other_heads = bert_heads,
    },
    {
        .model_types = {"vit"},
        .source = "transformers 5.23.0 models/vit, ViTForImageClassification",
        .fields = vit_fields,
        .first = vit_first,
        .last = vit_last,
        .layer_name = "vit.encoder.layer.",
        .layer = {vit_layer},
        .classes = "ForImageClassification",
        .heads = "none",
        .other_heads = vit_heads,
    },
    {
        .model_types = {"t5"},
        .source = "transformers 5.23.0 models/t5, T5ForConditionalGeneration",
        .fields = t5_fields,
        .first = t5_first,
        .last = t5_last,
        .layer_name = "encoder.block.",
        .decoder_layers = "decoder_layers",
        .decoder_name = "decoder.block.",
        .layer = {t5_layer},
        .classes = "ForConditionalGeneration",
        .heads = "none|encoder",
        .other_heads = no_heads,
    },
    {
        .model_types = {"whisper"},
        .source = "transformers 5.23.0 models/whisper, WhisperForConditionalGeneration",
        .ignored = "classifier_proj_size|mask_feature_length|mask_time_length|mask_feature_min_masks|median_filter_"
                   "width|scale_"
                   "embedding|use_weighted_layer_sum",
        .fields = whisper_fields,
        .first = whisper_first,
        .last = whisper_last,
        .layer_name = "model.encoder.layers.",
        .decoder_layers = "decoder_layers",
        .decoder_name = "model.decoder.layers.",
        .layer = {whisper_layer},
        .classes = "ForConditionalGeneration",
        .heads = "none",
        .other_heads = no_heads,
    },
    {.source = NULL},
};

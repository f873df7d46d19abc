/* The list of families, in alphabetical order of their first model_type. */
#include "model/architecture.h"

extern const bp_arch_family bp_arch_deepseek_v3, bp_arch_gemma3, bp_arch_glm4_moe, bp_arch_gpt_oss, bp_arch_granite,
    bp_arch_jamba, bp_arch_llama, bp_arch_llama4, bp_arch_mistral, bp_arch_mixtral, bp_arch_nemotron_h, bp_arch_qwen2,
    bp_arch_qwen3, bp_arch_qwen3_moe, bp_arch_qwen3_next;

const bp_arch_family *const bp_arch_families[] = {
    &bp_arch_deepseek_v3, &bp_arch_gemma3,    &bp_arch_glm4_moe,   &bp_arch_gpt_oss,
    &bp_arch_granite,     &bp_arch_jamba,     &bp_arch_llama,      &bp_arch_llama4,
    &bp_arch_mistral,     &bp_arch_mixtral,   &bp_arch_nemotron_h, &bp_arch_qwen2,
    &bp_arch_qwen3,       &bp_arch_qwen3_moe, &bp_arch_qwen3_next, 0,
};

/* SPDX-License-Identifier: Apache-2.0 */
/* A test kernel that adds a number to each word. PTX for real drivers; tests/fakes/cuda/kernels.c implements it for the emulated one. */
#ifndef BP_TESTS_ADD_WORDS_H
#define BP_TESTS_ADD_WORDS_H

#include <stdint.h>

#define ADD_WORDS "add_words"

/* The kernel's only parameter. A thread adds to one word. */
typedef struct add_words_work {
    uint64_t words;
    uint32_t count, number;
} add_words_work;

static const char add_words_ptx[] = ".version 7.0\n"
                                    ".target sm_80\n"
                                    ".address_size 64\n"
                                    ".visible .entry add_words(.param .align 8 .b8 work[16])\n"
                                    "{\n"
                                    "  .reg .pred %beyond;\n"
                                    "  .reg .b32 %block, %threads, %thread, %index, %count, %number, %word;\n"
                                    "  .reg .b64 %words, %offset;\n"
                                    "  ld.param.u64 %words, [work];\n"
                                    "  ld.param.u32 %count, [work+8];\n"
                                    "  ld.param.u32 %number, [work+12];\n"
                                    "  mov.u32 %block, %ctaid.x;\n"
                                    "  mov.u32 %threads, %ntid.x;\n"
                                    "  mov.u32 %thread, %tid.x;\n"
                                    "  mad.lo.u32 %index, %block, %threads, %thread;\n"
                                    "  setp.ge.u32 %beyond, %index, %count;\n"
                                    "  @%beyond bra DONE;\n"
                                    "  cvta.to.global.u64 %words, %words;\n"
                                    "  mul.wide.u32 %offset, %index, 4;\n"
                                    "  add.u64 %words, %words, %offset;\n"
                                    "  ld.global.u32 %word, [%words];\n"
                                    "  add.u32 %word, %word, %number;\n"
                                    "  st.global.u32 [%words], %word;\n"
                                    "DONE:\n"
                                    "  ret;\n"
                                    "}\n";

#endif

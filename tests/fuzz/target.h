/* SPDX-License-Identifier: Apache-2.0 */
/* The entry point that libFuzzer and replay.c call. */
#ifndef BP_FUZZ_TARGET_H
#define BP_FUZZ_TARGET_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif

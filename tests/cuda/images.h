/* SPDX-License-Identifier: Apache-2.0 */
/* Images without code for tests of loading: the headers of fatbins and cubins, as fatbinary and ptxas write them. */
#ifndef BP_TESTS_IMAGES_H
#define BP_TESTS_IMAGES_H

#include <stdint.h>
#include <string.h>

#define IMAGE_BYTES 1024
#define ELF_OF_CUDA_12 7 /* ABI versions */
#define ELF_OF_CUDA_13 8
#define ZSTD 0x8000

typedef struct image_code {
    unsigned architecture; /* 80 is 8.0; 0 ends a list */
    unsigned abi_version;  /* of a cubin; 0: PTX */
    unsigned ptx_major, ptx_minor;
    uint64_t flags;
} image_code;

static inline char *put_bytes(char *at, uint64_t value, unsigned bytes)
{
    memcpy(at, &value, bytes); /* little-endian, like CUDA's hosts */
    return at + bytes;
}

static inline void make_cubin(char *image, unsigned architecture, unsigned abi_version)
{
    memset(image, 0, 64);
    memcpy(image,
           "\x7f"
           "ELF\2\1\1",
           7);
    image[7] = abi_version == ELF_OF_CUDA_12 ? 0x33 : 0x41;
    image[8] = (char)abi_version;
    image[abi_version == ELF_OF_CUDA_12 ? 48 : 49] = (char)architecture;
}

static inline void make_fatbin(char *image, const image_code *codes)
{
    char *at = image + 16;
    for (const image_code *code = codes; code->architecture != 0; code++) {
        const bool is_ptx = code->abi_version == 0;
        at = put_bytes(at, is_ptx ? 1 : 2, 2);
        at = put_bytes(at, 0x101, 2);
        at = put_bytes(at, 64, 4);
        at = put_bytes(at, 64, 8);
        at = put_bytes(at, 0, 8);
        at = put_bytes(at, is_ptx ? code->ptx_minor : code->abi_version, 2);
        at = put_bytes(at, is_ptx ? code->ptx_major : 1, 2);
        at = put_bytes(at, code->architecture, 4);
        at = put_bytes(at, 0, 8);
        at = put_bytes(at, code->flags, 8);
        memset(at, 0, 16 + 64);
        at += 16 + 64;
    }
    char *begin = put_bytes(image, 0xba55ed50, 4);
    begin = put_bytes(begin, 1, 2);
    begin = put_bytes(begin, 16, 2);
    put_bytes(begin, (uint64_t)(at - begin) - 8, 8);
}

#endif

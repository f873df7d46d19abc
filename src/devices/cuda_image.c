/* SPDX-License-Identifier: Apache-2.0 */
/* Formats of kernel images. NVIDIA does not document them: these are what ptxas 12.9 and 13.0 and fatbinary 13.0 write.
 * clients/logprob/src/cuda/fatbin.py reads more of them, and compares the headers with the code. */
#include "devices/cuda_image.h"

#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PTX 1 /* kinds of entries */
#define CUBIN 2
#define ZSTD 0x8000 /* compression, a flag of entries */

#define OLDEST 12000 /* the device needs this driver anyway */
#define ZSTD_READER 12040
#define ELF_12 7 /* ABI version of cubins before CUDA 13; later ones have greater numbers */

typedef struct fatbin_header {
    uint32_t magic;
    uint16_t version, header_bytes;
    uint64_t bytes; /* of the entries, which follow */
} fatbin_header;

typedef struct fatbin_entry {
    uint16_t kind, version;
    uint32_t header_bytes;
    uint64_t bytes; /* of the code, which follows the header */
    uint32_t compressed_bytes, options;
    uint16_t minor, major; /* version of the PTX; of a cubin: ABI version of the ELF, 1 */
    uint32_t architecture; /* 80 is 8.0, 103 is 10.3 */
    uint32_t name, name_bytes;
    uint64_t flags;
} fatbin_entry;

/* CUDA release notes: the first driver of each GPU that came after CUDA 12.0. Later cubins of other GPUs are of CUDA 13. */
static int driver_of_cubin(unsigned architecture, unsigned abi_version)
{
    switch (architecture) {
    case 100:
    case 101:
    case 120: return 12080;
    case 103:
    case 121: return 12090;
    default: return abi_version <= ELF_12 ? OLDEST : 13000;
    }
}

/* PTX ISA, release history: versions of PTX and the CUDA release that added each. */
static int driver_of_ptx(unsigned major, unsigned minor)
{
    if (major < 8)
        return OLDEST;
    if (major > 8)
        return 13000 + (int)(major > 9 ? 1000 : minor * 10);
    return 12000 + (int)(minor <= 5 ? minor : minor + 1) * 10;
}

/* True for code that the GPU runs, and that it prefers to `code`, whose `major` is 0 if there is none. */
static bool is_better(const bp_cuda_code *found, int major, int minor, const bp_cuda_code *code)
{
    const int place = found->major * 10 + found->minor;
    if (found->is_ptx ? place > major * 10 + minor : found->major != major || found->minor > minor)
        return false;
    return code->major == 0 || (code->is_ptx && !found->is_ptx) ||
           (code->is_ptx == found->is_ptx && place > code->major * 10 + code->minor);
}

/* The code for drivers up to a version, and its entry in the fatbin; `code` is unchanged where there is none. */
static const char *find_in_fatbin(const char *image, int major, int minor, int driver, bp_cuda_code *code)
{
    fatbin_header header;
    memcpy(&header, image, sizeof header);
    fatbin_entry entry;
    const char *best = NULL;
    const char *place = image + header.header_bytes;
    for (uint64_t left = header.bytes; left >= sizeof entry; left -= entry.header_bytes + entry.bytes) {
        memcpy(&entry, place, sizeof entry);
        if (entry.header_bytes < sizeof entry || entry.header_bytes > left || entry.bytes > left - entry.header_bytes)
            return best; /* a damaged image */
        bp_cuda_code found = {entry.kind == PTX, (int)entry.architecture / 10, (int)entry.architecture % 10, 0};
        found.driver =
            found.is_ptx ? driver_of_ptx(entry.major, entry.minor) : driver_of_cubin(entry.architecture, entry.minor);
        if ((entry.flags & ZSTD) != 0 && found.driver < ZSTD_READER)
            found.driver = ZSTD_READER;
        if ((found.is_ptx || entry.kind == CUBIN) && found.driver <= driver && is_better(&found, major, minor, code)) {
            *code = found;
            best = place;
        }
        place += entry.header_bytes + entry.bytes;
    }
    return best;
}

static void find_in_cubin(const unsigned char *image, int major, int minor, bp_cuda_code *code)
{
    const unsigned abi_version = image[8], architecture = image[abi_version <= ELF_12 ? 48 : 49]; /* in the flags */
    const bp_cuda_code found = {false, (int)architecture / 10, (int)architecture % 10,
                                driver_of_cubin(architecture, abi_version)};
    if (is_better(&found, major, minor, code))
        *code = found;
}

static void find_in_ptx(const char *text, int major, int minor, bp_cuda_code *code)
{
    unsigned version[2], architecture;
    const char *target = strstr(text, ".target sm_");
    if (target == NULL || sscanf(text, ".version %u.%u", &version[0], &version[1]) != 2 ||
        sscanf(target, ".target sm_%u", &architecture) != 1)
        return;
    const bp_cuda_code found = {true, (int)architecture / 10, (int)architecture % 10,
                                driver_of_ptx(version[0], version[1])};
    if (is_better(&found, major, minor, code))
        *code = found;
}

/* ---- formats ------------------------------------------------------------------------------------------------------- */

static const unsigned char fatbin_begin[] = {0x50, 0xed, 0x55, 0xba}, elf_begin[] = {0x7f, 'E', 'L', 'F'};

/* Reads no further than the first difference: a text may be shorter. */
static bool begins_with(const unsigned char *image, const unsigned char *begin)
{
    size_t length = 0;
    while (length < 4 && image[length] == begin[length])
        length++;
    return length == 4;
}

/* From ".version" on, behind blanks and comments; NULL for other text. */
static const char *ptx_of(const char *text)
{
    text += strspn(text, " \t\r\n");
    while (text[0] == '/' && (text[1] == '/' || text[1] == '*')) {
        const char *end = text[1] == '/' ? text + strcspn(text, "\n") : strstr(text + 2, "*/");
        if (end == NULL)
            return NULL;
        text = text[1] == '/' ? end : end + 2;
        text += strspn(text, " \t\r\n");
    }
    return strncmp(text, ".version", strlen(".version")) == 0 ? text : NULL;
}

bool bp_cuda_is_image(const void *image)
{
    return begins_with(image, fatbin_begin) || begins_with(image, elf_begin) || ptx_of(image) != NULL;
}

bool bp_cuda_image_find(const void *image, int major, int minor, bp_cuda_code *code)
{
    bp_cuda_code found = {0};
    if (begins_with(image, fatbin_begin))
        (void)find_in_fatbin(image, major, minor, INT_MAX, &found);
    else if (begins_with(image, elf_begin))
        find_in_cubin(image, major, minor, &found);
    else if (ptx_of(image) != NULL)
        find_in_ptx(ptx_of(image), major, minor, &found);
    if (found.major == 0)
        return false;
    *code = found;
    return true;
}

void *bp_cuda_image_part(const void *image, int major, int minor, int driver)
{
    bp_cuda_code code = {0};
    const char *place = begins_with(image, fatbin_begin) ? find_in_fatbin(image, major, minor, driver, &code) : NULL;
    if (place == NULL)
        return NULL;
    fatbin_header header = {0};
    fatbin_entry entry;
    memcpy(&header, image, sizeof header);
    memcpy(&entry, place, sizeof entry);
    header.header_bytes = sizeof header;
    header.bytes = entry.header_bytes + entry.bytes;
    char *part = malloc(sizeof header + header.bytes);
    if (part != NULL) {
        memcpy(part, &header, sizeof header);
        memcpy(part + sizeof header, place, header.bytes);
    }
    return part;
}

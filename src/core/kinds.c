/* SPDX-License-Identifier: Apache-2.0 */
/* Kinds of files by their first bytes, and of documents by their format. */
#include "core/kinds.h"

#include <string.h>

static const struct {
    const char *bytes;
    size_t count, at;
    bp_kind kind;
} magics[] = {
    {"\x1f\x8b", 2, 0, {"compressed with gzip", "gunzip it first"}},
    {"\x28\xb5\x2f\xfd", 4, 0, {"compressed with zstd", "unzstd it first"}},
    {"\xfd"
     "7zXZ",
     5,
     0,
     {"compressed with xz", "unxz it first"}},
    {"BZh", 3, 0, {"compressed with bzip2", "bunzip2 it first"}},
    {"PK\x03\x04", 4, 0, {"a zip archive, such as a checkpoint of torch.save", NULL}},
    {"ustar", 5, 257, {"a tar archive", "extract its files first"}},
    {"SQLite format 3", 15, 0, {"an SQLite database, such as an export of Nsight Systems", NULL}},
    {"\x93NUMPY", 6, 0, {"an array of NumPy", NULL}},
};

bp_kind bp_kind_of_bytes(const char *bytes, size_t count)
{
    for (size_t i = 0; i < sizeof magics / sizeof *magics; i++) {
        if (count >= magics[i].at + magics[i].count &&
            memcmp(bytes + magics[i].at, magics[i].bytes, magics[i].count) == 0)
            return magics[i].kind;
    }
    if (count > 1 && bytes[0] == (char)0x80 && bytes[1] >= 2 && bytes[1] <= 5)
        return (bp_kind){"a pickle", "`bucketpool step` and `bucketpool view` read those of memory snapshots"};
    if (count > 8 && bytes[6] == 0 && bytes[7] == 0 && bytes[8] == '{') /* the length of a header of JSON, then it */
        return (bp_kind){"a safetensors file", "give it a name that ends in .safetensors"};
    return (bp_kind){NULL, NULL};
}

static const struct {
    const char *format;
    bp_kind kind;
} documents[] = {
    {"bucketpool.plan/", {"a plan", "`bucketpool run MODEL --plan FILE` executes it"}},
    {"bucketpool.step_plan/",
     {"the plan of a training step", "`python -m bucketpool.torch.steps --plan FILE` serves it"}},
    {"bucketpool.units/", {"a model", "`bucketpool plan FILE` plans it"}},
    {"bucketpool.fit/", {"an answer of `bucketpool fit --json`", "`bucketpool fit FILE` prints it"}},
    {"bucketpool.report/", {"an answer of `bucketpool plan --json`", NULL}},
    {"bucketpool.schedule/", {"an answer of `bucketpool schedule --json`", NULL}},
    {"bucketpool.whatif/", {"an answer of `bucketpool explain --json`", NULL}},
    {"bucketpool.run/", {"an answer of `bucketpool run --json`", NULL}},
    {"bucketpool.step/", {"an answer of `bucketpool step --json`", NULL}},
    {"bucketpool.view/", {"an answer of `bucketpool view --json`", NULL}},
    {"bucketpool.pack/", {"an answer of `bucketpool pack --json`", NULL}},
    {"bucketpool.bench/", {"an answer of `bucketpool bench --json`", NULL}},
};

bp_kind bp_kind_of_document(const char *format)
{
    for (size_t i = 0; format != NULL && i < sizeof documents / sizeof *documents; i++) {
        if (strncmp(format, documents[i].format, strlen(documents[i].format)) == 0)
            return documents[i].kind;
    }
    return (bp_kind){NULL, NULL};
}

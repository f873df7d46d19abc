/* Readers and writers of files (library bucketpool-formats).
 *
 * Every reader answers bad input with BP_ERR_IO (missing, unreadable, larger than is sensible) or BP_ERR_FORMAT
 * (malformed; also overflowing sizes) and one line of detail: the file, the line or JSON path, what was wrong, what
 * would be right. BP_ERR_UNSUPPORTED is for well-formed input that the library has no model of: an unknown model_type,
 * a tensor of more than BP_MAX_DIMS dimensions. BP_ERR_INVALID_ARGUMENT is for what the caller passed: NULL, options.
 * JSON and snapshots whose values need more memory than 16 times the input and 256 MiB, or more than 2 GiB, are
 * BP_ERR_FORMAT. The detail is UTF-8 without control characters whatever the file contains. Nothing is half-read: on error no model
 * exists. Host-side only; separate calls may run in separate threads. */
#ifndef BUCKETPOOL_FORMATS_H
#define BUCKETPOOL_FORMATS_H

#include <bucketpool/model.h>
#include <bucketpool/pack.h>
#include <bucketpool/plan.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bp_reader_options {
    size_t size;
    const char *name; /* model name; NULL: the directory's or file's */
    const char
        *units;     /* safetensors: comma-separated unit names with N for the number, NULL: "layers.N,h.N,blocks.N" */
    bp_dtype dtype; /* config.json: parameter dtype; BP_DTYPE_NONE: the configuration's, bf16 if it has none */
} bp_reader_options;

BP_API bp_status bp_reader_options_init(bp_reader_options *options, size_t size);

/* Reads a model by what `path` is: a directory with config.json, else with safetensors files; a file named
 * *.safetensors or *.safetensors.index.json; or JSON that is a `bucketpool.units/1` document, a published
 * configuration or an index. `options` may be NULL. The caller owns the model. */
BP_API bp_status bp_model_read(const char *path, const bp_reader_options *options, bp_model **model);

/* A Hugging Face config.json. Multimodal configurations: the text part ("text_config"), with the whole's members where
 * it has none of that name; quantization_config is ignored. NaN and Infinity are accepted, as Python writes them.
 * `origin` names the text in errors and, without a name in the options, the model: "a/Qwen3-8B/config.json" is
 * Qwen3-8B. */
BP_API bp_status bp_config_parse(const char *text, size_t bytes, const char *origin, const bp_reader_options *options,
                                 bp_model **model);

/* Safetensors: names, shapes and dtypes from the headers of files; tensor data is never read. `path` is a file, an
 * index file (its shards are beside it), or a directory: with an index file, else with model.safetensors, else all
 * *.safetensors in it. Files must be consistent: no holes or overlaps in the data, no tensor twice, the index neither
 * too long nor too short.
 *
 * Units: a tensor belongs to the shortest prefix of its name that ends with a match of one of options->units, N
 * standing for a number ("model.layers.12" for "layers.N"). A pattern that begins with another one and further
 * components, as in "layers.N,layers.N.experts.N", makes units nested in the other's: its rest is searched for behind
 * the outer match, with anything in between ("model.layers.12.mlp.experts.3"). Units with the same words before the
 * number form a stack; stacks run in order of appearance, units of a stack by number. Within a unit parameters keep the
 * order of the files (sorted by name) and their headers. What lies in no unit is outside and comes last.
 *
 * Parameters: `prefix.experts.0.suffix` to `prefix.experts.(E-1).suffix` of one dtype and shape become one parameter
 * `prefix.experts.*.suffix` of E copies (BP_PARAMETER_EXPERT_COPIES); a tensor of two or more dimensions under
 * `experts.` without a number is taken as stacked experts (expert_dim 0). In units, matrices named *weight or *_proj
 * count as BP_PARAMETER_GEMM unless the name has norm, router, gate.weight, conv or embed in it. Nothing is known about
 * splits of tensor parallelism. Left out: tensors without elements, and rotary_emb.inv_freq, which is computed.
 *
 * Source of the format: github.com/huggingface/safetensors, README, "Format". */
BP_API bp_status bp_safetensors_read(const char *path, const bp_reader_options *options, bp_model **model);

/* One safetensors file held in memory: `bytes` of its beginning (at least the header) of a file of `file_bytes`. */
BP_API bp_status bp_safetensors_parse(const void *data, size_t bytes, uint64_t file_bytes, const char *origin,
                                      const bp_reader_options *options, bp_model **model);

/* Our own format, bucketpool.units/1: docs/formats.md. The model is called as options->name says, else as the document
 * does. */
BP_API bp_status bp_units_parse(const char *text, size_t bytes, const char *origin, const bp_reader_options *options,
                                bp_model **model);
/* Writes a model as bucketpool.units/1, atomically: a file is there whole or not at all. Reading it gives the same
 * model. Errors: BP_ERR_INVALID_ARGUMENT (the model is not valid, a unit has parameters and given buckets, a name is
 * not UTF-8 or has control characters), BP_ERR_IO. */
BP_API bp_status bp_units_write(const bp_model *model, const char *path);

/* bucketpool.plan/1: docs/formats.md. Writing is atomic. Reading validates the plan and compares its fingerprint. */
BP_API bp_status bp_plan_write(const bp_plan *plan, const char *path);
BP_API bp_status bp_plan_read(const char *path, bp_plan **plan);
BP_API bp_status bp_plan_parse(const char *text, size_t bytes, const char *origin, bp_plan **plan);

/* Packing instances as CSV: a header line with the columns id, lower, upper, size and optionally gaps and offset, in any order; a
 * row an item, live in [lower, upper) except in its gaps ("a-b" ranges [a, b), separated by spaces). docs/formats.md.
 * Errors name file, line and column: intervals that end before they start, gaps that are empty, overlap or leave the interval,
 * negative numbers, sizes whose sum does not fit 64 bits, an id twice, a missing or unknown column, a row too long or too short.
 * Source of the format: google/minimalloc. */
typedef struct bp_packing_file bp_packing_file;

BP_API bp_status bp_packing_file_read(const char *path, bp_packing_file **file);
BP_API bp_status bp_packing_file_parse(const char *text, size_t bytes, const char *origin, bp_packing_file **file);
BP_API void bp_packing_file_destroy(bp_packing_file **file);
/* The instance, items in the order of the rows. Lives as long as the file. */
BP_API const bp_packing *bp_packing_file_packing(const bp_packing_file *file);
/* NULL when `item` is none. Lives as long as the file. */
BP_API const char *bp_packing_file_id(const bp_packing_file *file, size_t item);
/* The offset column; NULL when the file has none. Lives as long as the file. */
BP_API const uint64_t *bp_packing_file_offsets(const bp_packing_file *file);
/* Writes the same rows with an `offset` column (replaced when there was one), atomically. Errors: BP_ERR_IO. */
BP_API bp_status bp_packing_file_write(const bp_packing_file *file, const uint64_t *offsets, const char *path);

#ifdef __cplusplus
}
#endif
#endif

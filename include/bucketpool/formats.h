/** @file
 * Readers and writers of files (library bucketpool-formats).
 *
 * Errors of every reader: BP_ERR_IO (the file is missing, cannot be read, or is larger than is sensible), BP_ERR_FORMAT (malformed input,
 * overflowing sizes), BP_ERR_UNSUPPORTED (well-formed input that the library cannot model: an unknown model_type, a tensor of more than
 * BP_MAX_DIMS dimensions), BP_ERR_INVALID_ARGUMENT (NULL, options), BP_ERR_NO_HOST_MEMORY. JSON whose values need more memory than 16
 * times the input and 256 MiB, or more than 2 GiB, is BP_ERR_FORMAT. The detail is one line of UTF-8 without control characters, whatever
 * the file contains: the file, the line or JSON path, the fault, and the expected value.
 *
 * The caller owns each object that a reader makes; on error there is none. Paths and texts are only read during the call. Host-side only: no
 * stream is used, calls during stream capture are allowed. Separate calls may run in separate threads. */
#ifndef BUCKETPOOL_FORMATS_H
#define BUCKETPOOL_FORMATS_H

#include <bucketpool/model.h>
#include <bucketpool/plan.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bp_reader_options {
    size_t size;
    const char *name; /**< model name; NULL: the directory's or file's */
    const char
        *units;     /**< safetensors: comma-separated unit names with N for the number, NULL: "layers.N,h.N,blocks.N" */
    bp_dtype dtype; /**< config.json: parameter dtype; BP_DTYPE_NONE: the configuration's, bf16 if it has none */
} bp_reader_options;

/** No name, the common units, the file's dtype. `size` is sizeof *options. Errors: BP_ERR_INVALID_ARGUMENT (NULL, no size). */
BP_API bp_status bp_reader_options_init(bp_reader_options *options, size_t size);

/** Reads a model by the kind of `path`: a directory with config.json, else with safetensors files; a file named
 * *.safetensors or *.safetensors.index.json; or JSON that is a `bucketpool.units/1` document, a published
 * configuration or an index. `options` may be NULL. A config.json that is there but cannot be read is BP_ERR_IO. */
BP_API bp_status bp_model_read(const char *path, const bp_reader_options *options, bp_model **model);

/** Parses a Hugging Face config.json. Multimodal configurations: the text part ("text_config"), with the whole's members where
 * it has none of that name; quantization_config is ignored. NaN and Infinity are accepted, as Python writes them.
 * `origin` names the text in errors and, without a name in the options, the model: "a/Qwen3-8B/config.json" is
 * Qwen3-8B. */
BP_API bp_status bp_config_parse(const char *text, size_t bytes, const char *origin, const bp_reader_options *options,
                                 bp_model **model);

/** Reads safetensors: names, shapes and dtypes from the headers of files; tensor data is never read. `path` is a file, an
 * index file (its shards are beside it), or a directory: with an index file, else with model.safetensors, else all
 * *.safetensors in it. Files must be consistent: no holes or overlaps in the data, no tensor twice, the index neither
 * too long nor too short.
 *
 * Units: a tensor belongs to the shortest prefix of its name that ends with a match of one of options->units, N
 * standing for a number ("model.layers.12" for "layers.N"). A pattern that begins with another one and further
 * components, as in "layers.N,layers.N.experts.N", makes units nested in the other's: its rest is searched for behind
 * the outer match, with anything in between ("model.layers.12.mlp.experts.3"). Units with the same words before the
 * number form a stack; stacks run in order of appearance, units of a stack by number. Within a unit parameters keep the
 * order of the files (sorted by name) and their headers. Tensors of no unit are persistent parameters and come last.
 *
 * Parameters: `prefix.experts.0.suffix` to `prefix.experts.(E-1).suffix` of one dtype and shape become one parameter
 * `prefix.experts.*.suffix` of E copies (BP_PARAMETER_EXPERT_COPIES); a tensor of two or more dimensions under
 * `experts.` without a number is taken as stacked experts (expert_dim 0). In units, matrices named *weight or *_proj
 * count as BP_PARAMETER_GEMM unless the name has norm, router, gate.weight, conv or embed in it. How tensor parallelism splits them is
 * unknown. Left out: tensors without elements, and rotary_emb.inv_freq, which is computed.
 *
 * Source of the format: github.com/huggingface/safetensors, README, "Format". */
BP_API bp_status bp_safetensors_read(const char *path, const bp_reader_options *options, bp_model **model);

/** Parses the beginning of one safetensors file: `bytes` bytes (at least the header) of a file of `file_bytes`. `origin` names it in errors and,
 * without a name in the options, the model. */
BP_API bp_status bp_safetensors_parse(const void *data, size_t bytes, uint64_t file_bytes, const char *origin,
                                      const bp_reader_options *options, bp_model **model);

/** Parses our own format, bucketpool.units/1: docs/reference/formats.md. The model's name is options->name, else that of the document. `origin` names
 * the text in errors. */
BP_API bp_status bp_units_parse(const char *text, size_t bytes, const char *origin, const bp_reader_options *options,
                                bp_model **model);
/** Writes a model as bucketpool.units/1, atomically: a file is there whole or not at all. Reading it gives the same
 * model. Errors: BP_ERR_INVALID_ARGUMENT (the model is not valid, a unit has parameters and given buckets, a name is
 * not UTF-8 or has control characters), BP_ERR_IO. */
BP_API bp_status bp_units_write(const bp_model *model, const char *path);

/** Writes a plan as bucketpool.plan/1 (docs/formats.md), atomically. Errors: BP_ERR_INVALID_ARGUMENT, BP_ERR_IO. */
BP_API bp_status bp_plan_write(const bp_plan *plan, const char *path);
/** Reads such a plan, which the caller owns: bp_plan_destroy. The plan is validated and its fingerprint compared. */
BP_API bp_status bp_plan_read(const char *path, bp_plan **plan);
/** The same from `bytes` bytes of text. `origin` names the text in errors. */
BP_API bp_status bp_plan_parse(const char *text, size_t bytes, const char *origin, bp_plan **plan);

#ifdef __cplusplus
}
#endif
#endif

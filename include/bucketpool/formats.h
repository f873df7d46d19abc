/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * Readers and writers of files. In the library bucketpool-formats.
 * @code
 * bp_model *model;
 * if (bp_model_read("examples/models/Qwen3-8B", NULL, &model) != BP_OK)
 *     fprintf(stderr, "%s\n", bp_error_detail());
 * @endcode
 *
 * Errors of all readers:
 * - BP_ERR_IO: the file is missing, unreadable or unreasonably large.
 * - BP_ERR_FORMAT: malformed input, sizes that overflow, or JSON whose values need more than 2 GiB or more than 256
 *   MiB and 16 times the input.
 * - BP_ERR_UNSUPPORTED: valid input that the library cannot model: an unknown model_type, a tensor with more than
 *   BP_MAX_DIMS dimensions.
 * - BP_ERR_INVALID_ARGUMENT (NULL, options), BP_ERR_NO_HOST_MEMORY.
 *
 * The message is one line of UTF-8 without control characters, whatever the file contains: the file, the line or JSON
 * path, the fault and the expected value.
 *
 * The caller owns every object that a reader returns. Paths and texts are only read during the call. Thread safety:
 * different calls may run at the same time. Capture: allowed, no function here uses a device. */
#ifndef BUCKETPOOL_FORMATS_H
#define BUCKETPOOL_FORMATS_H

#include <bucketpool/model.h>
#include <bucketpool/plan.h>
#include <bucketpool/step_plan.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bp_reader_options {
    size_t size;
    const char *name; /**< name of the model; NULL: that of the directory or file */
    /** safetensors: comma-separated patterns of unit names, N for the number. NULL: "layers.N,h.N,blocks.N" */
    const char *units;
    /** config.json: dtype of parameters. BP_DTYPE_NONE: that of the configuration, else bf16 */
    bp_dtype dtype;
    /** 1: a file with parts that the model would leave out, or with fields that are not read and that may decide sizes, is
     * BP_ERR_UNSUPPORTED with the sentence that would be a note. 0: it is read, with notes (bp_model_info) */
    uint32_t strict;
} bp_reader_options;

/** Sets the defaults: no name, the common units, the dtype of the file. Errors: BP_ERR_INVALID_ARGUMENT (NULL, an
 * unknown size). */
BP_API bp_status bp_reader_options_init(bp_reader_options *options, size_t size);

/** Reads a model. The format follows from `path`:
 * - a directory: config.json, else safetensors files
 * - a file *.safetensors or *.safetensors.index.json
 * - other JSON: a `bucketpool.units/1` document, a Hugging Face configuration or a safetensors index
 *
 * `options` NULL: the defaults. A config.json that exists but cannot be read is BP_ERR_IO. The caller owns the model:
 * bp_model_destroy. */
BP_API bp_status bp_model_read(const char *path, const bp_reader_options *options, bp_model **model);

/** Finds the path of a model, for bp_model_read:
 * - `name` itself, if such a file or folder exists, or if it cannot be a name (reading it reports the error)
 * - "owner/name" in the local cache of the Hugging Face hub (HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME, ~/.cache/huggingface/hub): the
 *   snapshot of the branch main. Nothing is downloaded
 * - a bundled model, by its folder ("Llama-3.1-8B") or its publisher's repository ("meta-llama/Llama-3.1-8B"), in one of `folders`,
 *   separated by colons; NULL: none
 *
 * Writes at most `capacity` bytes with the terminator to `path`. Errors: BP_ERR_IO with the places that were searched,
 * BP_ERR_INVALID_ARGUMENT (NULL, a path that does not fit). */
BP_API bp_status bp_model_find(const char *name, const char *folders, char *path, size_t capacity);

/** Parses a Hugging Face config.json. Of a multimodal configuration it takes the text part ("text_config"), with
 * members of the whole where the part lacks them. "architectures" decides the head: that of language models, of a classifier, or
 * none. Notes name the parts that are left out, unknown classes and types, quantization_config, and fields that are not read although
 * they may decide sizes. Accepts NaN and Infinity, which Python
 * writes. `origin` names the text in errors; without options->name it also names the model: "a/Qwen3-8B/config.json"
 * is Qwen3-8B. */
BP_API bp_status bp_config_parse(const char *text, size_t bytes, const char *origin, const bp_reader_options *options,
                                 bp_model **model);

/** Reads the headers of safetensors files: names, shapes and dtypes. Tensor data is never read. `path` is a file, an
 * index file with its shards beside it, or a directory: its index file, else model.safetensors, else all
 * *.safetensors. Files must be consistent: no gaps or overlaps in the data, no duplicate tensors, an index that
 * matches the shards.
 *
 * Units: a tensor belongs to the shortest prefix of its name that ends with a match of one of options->units; N
 * matches a number ("model.layers.12" for "layers.N"). A pattern that extends another one, as in
 * "layers.N,layers.N.experts.N", makes nested units; its rest may match anywhere after the outer match
 * ("model.layers.12.mlp.experts.3"). Units with the same words before the number are a stack. Stacks run in order of
 * appearance, units of a stack by number. Parameters of a unit keep the order of the files (by name) and of their
 * headers. Tensors without a unit are persistent parameters and come last.
 *
 * Parameters: `prefix.experts.0.suffix` to `prefix.experts.(E-1).suffix` of one dtype and shape become one parameter
 * `prefix.experts.*.suffix` with E copies (BP_PARAMETER_EXPERT_COPIES). A tensor with two or more dimensions under
 * `experts.` without a number counts as stacked experts (expert_dim 0). Matrices in units named *weight or *_proj are
 * BP_PARAMETER_GEMM, unless the name contains norm, router, gate.weight, conv or embed. Their split by tensor
 * parallelism is unknown. Empty tensors and rotary_emb.inv_freq, which is computed, are left out.
 *
 * Source of the format: github.com/huggingface/safetensors, README, "Format". */
BP_API bp_status bp_safetensors_read(const char *path, const bp_reader_options *options, bp_model **model);

/** Parses the beginning of one safetensors file: `data` has `bytes` bytes, at least the header, of a file of
 * `file_bytes`. `origin` as in bp_config_parse. */
BP_API bp_status bp_safetensors_parse(const void *data, size_t bytes, uint64_t file_bytes, const char *origin,
                                      const bp_reader_options *options, bp_model **model);

/** Parses a document bucketpool.units/1, the format of this library: docs/reference/formats.md. The name of the model
 * is options->name, else that of the document. `origin` names the text in errors. */
BP_API bp_status bp_units_parse(const char *text, size_t bytes, const char *origin, const bp_reader_options *options,
                                bp_model **model);
/** Writes a model as bucketpool.units/1, atomically: the file is complete or unchanged. Reading it gives the same
 * model.
 *
 * Errors: BP_ERR_INVALID_ARGUMENT (an invalid model, a unit with parameters and given buckets, a name that is not
 * UTF-8 or has control characters), BP_ERR_IO. */
BP_API bp_status bp_units_write(const bp_model *model, const char *path);

/** Writes a plan as bucketpool.plan/1 (docs/reference/formats.md), atomically. Errors: BP_ERR_INVALID_ARGUMENT,
 * BP_ERR_IO. */
BP_API bp_status bp_plan_write(const bp_plan *plan, const char *path);
/** Reads a file bucketpool.plan/1, validates the plan and compares its fingerprint. The caller owns the plan:
 * bp_plan_destroy. */
BP_API bp_status bp_plan_read(const char *path, bp_plan **plan);
/** As bp_plan_read, from `bytes` bytes of text. `origin` names the text in errors. */
BP_API bp_status bp_plan_parse(const char *text, size_t bytes, const char *origin, bp_plan **plan);

/** Writes the plan of a training step as bucketpool.step_plan/1 (docs/reference/formats.md), atomically. Reading it gives
 * the same plan. Errors: BP_ERR_INVALID_ARGUMENT (also for texts that are not UTF-8 or have control characters, and
 * numbers of 2^63 and more), BP_ERR_IO. */
BP_API bp_status bp_step_plan_write(const bp_step_plan *plan, const char *path);
/** Reads a file bucketpool.step_plan/1, validated as by bp_step_plan_from_info. The caller owns the plan:
 * bp_step_plan_destroy. */
BP_API bp_status bp_step_plan_read(const char *path, bp_step_plan **plan);
/** As bp_step_plan_read, from `bytes` bytes of text. `origin` names the text in errors. */
BP_API bp_status bp_step_plan_parse(const char *text, size_t bytes, const char *origin, bp_step_plan **plan);
/** Plans the steps of a pickle of torch.cuda.memory._dump_snapshot or of bucketpool.torch.trace, of one device. The file is
 * parsed as data; no code in it runs. `config` NULL: the defaults. A recording in which something was live before its
 * oldest event is not from the start. Errors: also those of bp_step_plan_create; BP_ERR_FORMAT if the file has no events
 * of the device. */
BP_API bp_status bp_step_plan_read_snapshot(const char *path, uint32_t device, const bp_step_plan_config *config,
                                            bp_step_plan **plan);

#ifdef __cplusplus
}
#endif
#endif

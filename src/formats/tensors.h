/* The tensors of a checkpoint, from the headers of its files, and the model made of them. */
#ifndef BP_FORMATS_TENSORS_H
#define BP_FORMATS_TENSORS_H

#include <bucketpool/formats.h>

#include <jansson.h>

typedef struct bp_tensor {
    const char *name; /* lives as long as the table */
    bp_dtype dtype;
    uint32_t dims;
    uint64_t shape[BP_MAX_DIMS]; /* no dimension is 0 */
} bp_tensor;

typedef struct bp_tensors {
    bp_tensor *tensors; /* in order of appearance; those without elements are left out */
    size_t count, capacity;
    json_t *files; /* name of every tensor -> number of the file it was seen in; owns the names */
} bp_tensors;

bp_status bp_tensors_init(bp_tensors *tensors);
void bp_tensors_finish(bp_tensors *tensors);

/* Adds the tensors of one header. `data_bytes` follow it in the file, `file` is the file's number.
 * Errors: BP_ERR_FORMAT naming the tensor, BP_ERR_UNSUPPORTED for more than BP_MAX_DIMS dimensions. */
bp_status bp_tensors_add_header(bp_tensors *tensors, const char *header, size_t bytes, uint64_t data_bytes,
                                const char *origin, size_t file);

/* Groups tensors into units and experts' tensors into copies (see bp_safetensors_read).
 * Errors: BP_ERR_INVALID_ARGUMENT for options->units that cannot be read. */
bp_status bp_tensors_to_model(const bp_tensors *tensors, const char *origin, const bp_reader_options *options,
                              bp_model **model);

#endif

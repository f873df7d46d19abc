/* SPDX-License-Identifier: Apache-2.0 */
/* Answers of `bucketpool fit` in files, and the lines that Python writes before one, for the command (version node BUCKETPOOL_PRIVATE); not
 * installed. docs/reference/formats.md describes every member of bucketpool.fit/1. */
#ifndef BP_FORMATS_FIT_FILE_H
#define BP_FORMATS_FIT_FILE_H

#include <bucketpool/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes that PyTorch reserves with each allocator, and the peak live bytes: no allocator takes less. */
typedef enum bp_fit_total { BP_FIT_DEFAULT, BP_FIT_EXPANDABLE, BP_FIT_SERVED, BP_FIT_PEAK, BP_FIT_TOTALS } bp_fit_total;
enum { BP_FIT_ALLOCATORS = BP_FIT_PEAK };

/* PyTorch finds no memory, even after it has released what it caches. */
#define BP_FIT_FAILS UINT64_MAX
enum { BP_FIT_RETRYING = BP_FIT_SERVED }; /* the allocators before this one can try again */

typedef struct bp_fit_figures {
    uint64_t bytes[BP_FIT_TOTALS]; /* without a limit */
    uint64_t
        retries[BP_FIT_RETRYING]; /* allocations of two steps that needed the release of the cache; or BP_FIT_FAILS */
} bp_fit_figures;

/* A micro-batch. */
typedef struct bp_fit_row {
    uint64_t batch;
    bool is_traced;  /* else scaled from two that are */
    bool has_skewed; /* the sizes depend on routing */
    bp_fit_figures uniform, skewed;
    bp_fit_figures worst; /* the larger of each: these decide */
} bp_fit_row;

/* A training with these figures runs with so much memory. */
static inline bool bp_fit_runs(const bp_fit_figures *figures, bp_fit_total allocator, uint64_t limit_bytes)
{
    return (int)allocator < (int)BP_FIT_RETRYING ? figures->retries[allocator] != BP_FIT_FAILS
                                                 : figures->bytes[allocator] <= limit_bytes;
}

typedef struct bp_fit_table {
    const char *checkpointing; /* "none", "full"; "": not known */
    bool is_scaled;            /* rows that were not traced are there, */
    double deviation;          /* and a scaled one was off by this share at most */
    const bp_fit_row *rows;    /* by ascending micro-batch; at least one */
    size_t row_count;
    uint64_t largest[BP_FIT_ALLOCATORS];               /* micro-batch that runs; 0: none */
    uint64_t largest_without_retries[BP_FIT_RETRYING]; /* the same */
} bp_fit_table;

typedef struct bp_fit_kind {
    const char *kind;
    uint64_t bytes;
} bp_fit_kind;

/* With the default allocator, unless that is the change. */
typedef struct bp_fit_change {
    const char *change, *option;        /* option "": none */
    uint64_t before_bytes, after_bytes; /* of the shown micro-batch */
} bp_fit_change;

/* An option of the training, as text: "param-dtype", "bf16". */
typedef struct bp_fit_option {
    char name[40], value[40];
} bp_fit_option;

typedef struct bp_fit_info {
    const char *model;
    uint64_t parameters;
    uint64_t sequence;            /* 0: unknown */
    uint64_t batch;               /* the one that was asked for; 0: the largest was */
    const bp_fit_option *options; /* texts, numbers and flags, in the order of the document's names */
    size_t option_count;
    const char *gpu, *gpu_source;
    uint64_t gpu_bytes, reserve_bytes, limit_bytes; /* the limit is what the reserve leaves */
    const bp_fit_table *tables;                     /* the first is the one that is shown */
    size_t table_count;
    uint64_t shown_batch;
    const bp_fit_row *shown;  /* of the first table */
    const bp_fit_kind *kinds; /* what holds the peak of the shown row */
    size_t kind_count;
    const char *recording; /* a snapshot of the shown row; NULL: none */
    const bp_fit_change *changes;
    size_t change_count;
    const char *const *notes;
    size_t note_count;
    double seconds;
    bool is_cached;
} bp_fit_info;

/* A document, or a line before it. One of the three members is set. */
typedef struct bp_fit_message {
    const char *progress; /* of `done` of `total` parts */
    uint64_t done, total;
    const char *error; /* with the exit status of the command */
    int status;
    const bp_fit_info *fit;
} bp_fit_message;

typedef struct bp_fit_file bp_fit_file;

/* The caller owns the file. bp_fit_file_destroy accepts NULL and pointers to NULL, and sets *file to NULL. Errors: BP_ERR_IO, BP_ERR_FORMAT
 * with the place in the document, also for one that contradicts itself; BP_ERR_NO_HOST_MEMORY. `origin`: name of the text in errors. */
BP_API bp_status bp_fit_file_parse(const char *text, size_t bytes, const char *origin, bp_fit_file **file);
/* A document only. */
BP_API bp_status bp_fit_file_read(const char *path, bp_fit_file **file);
BP_API void bp_fit_file_destroy(bp_fit_file **file);
/* The contents, and the text of the document as it came. Live as long as the file. */
BP_API const bp_fit_message *bp_fit_file_get_message(const bp_fit_file *file);
BP_API const char *bp_fit_file_text(const bp_fit_file *file);

/* True if the beginning of a regular file has the format's name. */
BP_API bool bp_fit_file_is_document(const char *path);

#endif

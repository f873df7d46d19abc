/* What packing a file gave, or checking the offsets that it has. */
#ifndef TOOLS_PACK_ANSWER_H
#define TOOLS_PACK_ANSWER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "formats/packing_file.h"

/* ---- options ----------------------------------------------------------------------------------------------------- */

typedef struct pack_options {
    char **files;
    size_t file_count;
    uint64_t capacity; /* 0: as small as possible */
    uint64_t work;     /* 0: the default */
    bool check, json;
    const char *plot, *output, *color;
} pack_options;

/* ---- answers ----------------------------------------------------------------------------------------------------- */

typedef struct pack_answer {
    const char *path;
    bp_packing_file *file;
    bp_pack_result result;
    uint64_t *offsets; /* of the placement, when there is one */
    uint32_t *witness; /* items that set the bound */
    size_t witness_count;
    char fault[400]; /* why the offsets of the file do not hold; "": they do, or packing was asked for */
} pack_answer;

/* Reads a file. Returns EXIT_GO_ON or an exit code. Finish it in any case. */
int pack_answer_init(const char *path, const pack_options *options, pack_answer *answer);
void pack_answer_finish(pack_answer *answer);

/* Packs or checks. EXIT_GO_ON, also when nothing fits or the offsets do not hold; or an exit code. */
int pack_answer_find(pack_answer *answer, const pack_options *options);

/* The placement is there, and holds. */
bool pack_answer_is_placed(const pack_answer *answer);
/* There is a total, if only of a placement that does not fit the capacity: proofs that nothing fits need not find any. */
bool pack_answer_has_total(const pack_answer *answer);
/* Why it is not, in a sentence. */
#define PACK_REASON_CHARS 640
void pack_answer_reason(const pack_answer *answer, const pack_options *options, char reason[PACK_REASON_CHARS]);

/* How far the total is above the bound, in percent. */
double pack_answer_gap(const pack_answer *answer);

#endif

/* Answers of `pack` on standard output. Each returns EXIT_GO_ON or an exit code. */
#ifndef TOOLS_PACK_REPORT_H
#define TOOLS_PACK_REPORT_H

#include "pack/answer.h"

/* One file, a line for each figure. */
int pack_report_lines(const pack_answer *answer, const pack_options *options);
/* Several files, a line each. */
int pack_report_table(const pack_answer *answers, size_t count, const pack_options *options);
/* bucketpool.pack/1 */
int pack_report_json(const pack_answer *answers, size_t count, const pack_options *options);

/* "proven optimal: the bound is reached": what is known about the total. */
#define PACK_PROOF_CHARS 80
void pack_proof_text(const pack_answer *answer, char text[PACK_PROOF_CHARS]);

#endif

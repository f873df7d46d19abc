/* The what-if document, bucketpool.whatif/1: docs/formats.md describes every member. */
#ifndef TOOLS_WHATIF_REPORT_H
#define TOOLS_WHATIF_REPORT_H

#include "whatif.h"

/* Prints the answers about all models to standard output. Returns EXIT_GO_ON or the exit code after a message. */
int whatif_report_print(const whatif *answers, size_t count, const plan_options *options);

#endif

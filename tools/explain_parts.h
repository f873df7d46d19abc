/* The parts of what `explain` says about a model. */
#ifndef TOOLS_EXPLAIN_PARTS_H
#define TOOLS_EXPLAIN_PARTS_H

#include "whatif.h"

void explain_policies(const analysis *a, const plan_options *options);

/* The what-if answers: a table and sentences each. EXIT_GO_ON, or the exit code after a message. */
int explain_alternatives(const whatif *w, bool color);
void explain_peaks(const whatif *w);

#endif

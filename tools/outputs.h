/* Output files that appear together, after everything else has worked, or not at all. */
#ifndef TOOLS_OUTPUTS_H
#define TOOLS_OUTPUTS_H

#include <stdbool.h>
#include <sys/types.h>

/* One output: written to `written`, moved to `target` in the end. Where the target is no regular file (a device, a pipe) there is
 * nothing to move: it is written at once. */
typedef struct output {
    char *target, *written;
    mode_t mode; /* of the file that is replaced, 0: there is none */
} output;

/* "-": the commit copies what was written to standard output. */
bool output_is_standard(const char *path);
/* Both keep the ending of `path`, which says what kind of picture to draw; links are followed. NULL path: no output. false when
 * it cannot be written; errno says why. */
bool output_init(const char *path, output *o);
/* Moves what was written to its target. false when that fails; errno says why. */
bool output_commit(output *o);
/* Removes what was written and not committed. */
void output_finish(output *o);

#endif

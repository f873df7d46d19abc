/* Paths of models as they are given at the prompt: a file, a directory, "-", or the name of a bundled model. */
#ifndef TOOLS_MODELS_H
#define TOOLS_MODELS_H

#include <stdbool.h>

/* What to read for `given`: itself where there is such a file or where it has a slash, "/dev/stdin" for "-", else the bundled model of
 * this name. The caller frees *path. EXIT_GO_ON, or the exit code after a message that has the nearest name and the folders. */
int models_find(const char *given, char **path);

/* Whether the reader looks for units by the names of tensors there, so that --units has an effect. */
bool models_has_tensors(const char *path);

#endif

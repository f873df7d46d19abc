/* Paths of models as they are given at the prompt: a file, a directory, "-", or the name of a bundled model. */
#ifndef TOOLS_PLAN_MODELS_H
#define TOOLS_PLAN_MODELS_H

#include <stdbool.h>

/* Finds the path of `given`: `given` itself if such a file exists or if it has a slash, "/dev/stdin" for "-", else the bundled model of
 * this name. The caller frees *path. Returns EXIT_GO_ON, or the exit code after a message with the nearest name and the folders. */
int models_find(const char *given, char **path);

/* Tells whether the reader finds units by names of tensors in this file or directory, so that --units has an effect. */
bool models_has_tensors(const char *path);

#endif

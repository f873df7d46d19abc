/* The options of `pack`. */
#ifndef TOOLS_PACK_OPTIONS_H
#define TOOLS_PACK_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct pack_options {
    char **files;
    size_t file_count;
    uint64_t capacity; /* 0: as small as possible */
    uint64_t work;     /* 0: the default */
    bool check, json;
    const char *plot, *output, *color;
} pack_options;

/* Reads the arguments after the command's name. Returns EXIT_GO_ON, or the exit code after a message. */
int pack_options_parse(int argc, char **argv, pack_options *options);

#endif

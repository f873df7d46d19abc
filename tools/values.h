/* Values of options: each function prints one line and returns EXIT_BAD_INPUT when the text is wrong, else EXIT_GO_ON. */
#ifndef TOOLS_VALUES_H
#define TOOLS_VALUES_H

#include <bucketpool/bucketpool.h>

/* A value that one of a few words stands for; lists of them end with a NULL name. */
typedef struct choice {
    const char *name;
    int value;
} choice;

/* "" when no word stands for the value. */
const char *choice_name(const choice *choices, int value);

int value_choice(const char *option, const char *text, const choice *choices, int *value);
int value_number(const char *option, const char *text, uint64_t least, uint64_t most, uint64_t *value);
int value_u32(const char *option, const char *text, uint32_t least, uint32_t *value);
/* "host", "cuda", "cuda:1": of the choices, with the number behind cuda. */
int value_device(const char *text, const choice *choices, int *value, int32_t *ordinal);
/* auto, always or never. */
int value_color(const char *text, const char **color);
int value_dtype(const char *option, const char *text, bp_dtype *dtype);
/* Calls `add` for each of the comma-separated words. */
int value_list(const char *option, const char *text, int (*add)(const char *word, void *user), void *user);
/* The name of a file that is to be written. */
int value_file(const char *option, const char *text);
int value_picture(const char *option, const char *text);

#endif

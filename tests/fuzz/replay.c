/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a fuzz target over every file of the given directories, for builds without libFuzzer: `fuzz_units
 * corpus/units`. Exits with 1 if there are no files. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "target.h"

/* Copies the file to memory of its exact size, so that sanitizers detect reads past the end. */
static int replay_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    struct stat about;
    if (file == NULL || fstat(fileno(file), &about) != 0 || !S_ISREG(about.st_mode)) {
        if (file != NULL)
            fclose(file);
        return 0;
    }
    size_t size = (size_t)about.st_size;
    uint8_t *data = malloc(size > 0 ? size : 1);
    int is_read = data != NULL && fread(data, 1, size, file) == size;
    fclose(file);
    if (is_read)
        LLVMFuzzerTestOneInput(data, size);
    free(data);
    if (!is_read)
        fprintf(stderr, "%s: cannot be read\n", path);
    return is_read ? 1 : -1;
}

static int replay_directory(const char *directory)
{
    DIR *entries = opendir(directory);
    if (entries == NULL) {
        perror(directory);
        return -1;
    }
    int count = 0;
    const struct dirent *entry;
    while (count >= 0 && (entry = readdir(entries)) != NULL) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
        int ran = replay_file(path);
        count = ran < 0 ? -1 : count + ran;
    }
    closedir(entries);
    return count;
}

int main(int argc, char **argv)
{
    int total = 0;
    for (int i = 1; i < argc; i++) {
        int count = replay_directory(argv[i]);
        if (count < 0)
            return 1;
        total += count;
    }
    printf("%d inputs replayed\n", total);
    return total > 0 ? 0 : 1;
}

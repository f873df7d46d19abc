/* SPDX-License-Identifier: Apache-2.0 */
/* A temporary folder of a test, removed with its contents. */
#ifndef BP_TEST_PROFILE_FOLDER_H
#define BP_TEST_PROFILE_FOLDER_H

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static inline void remove_folder(const char *path)
{
    DIR *entries = opendir(path);
    const struct dirent *entry;
    while (entries != NULL && (entry = readdir(entries)) != NULL) {
        char inner[1024];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name);
        if (unlink(inner) != 0)
            remove_folder(inner);
    }
    if (entries != NULL)
        closedir(entries);
    rmdir(path);
}

/* Number of entries in the folder; -1: it does not exist. */
static inline int count_names(const char *path)
{
    DIR *entries = opendir(path);
    const struct dirent *entry;
    int count = 0;
    if (entries == NULL)
        return -1;
    while ((entry = readdir(entries)) != NULL)
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(entries);
    return count;
}

static inline bool is_file(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0 && S_ISREG(about.st_mode) && about.st_size > 0;
}

#endif

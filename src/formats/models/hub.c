/* SPDX-License-Identifier: Apache-2.0 */
/* Finds models by name: the local cache of the Hugging Face hub, and the bundled models. */
#include "formats/models/hub.h"

#include <bucketpool/core/fail.h>

#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "formats/file.h"

#define LONGEST_ID 192 /* the hub allows 96 for each part */
#define LONGEST_PATH 4096
#define LONGEST_COMMIT 64

static const bp_bundled_model bundled[] = {
    {"DeepSeek-V3", "deepseek-ai/DeepSeek-V3"},
    {"GLM-4.5-Air", "zai-org/GLM-4.5-Air"},
    {"Gemma-3-1B-it", "google/gemma-3-1b-it"},
    {"Gemma-3-27B", "google/gemma-3-27b-it"},
    {"Granite-4.0-H-Small", "ibm-granite/granite-4.0-h-small"},
    {"Granite-4.0-H-Tiny", "ibm-granite/granite-4.0-h-tiny"},
    {"Jamba-1.5-Mini", "ai21labs/AI21-Jamba-1.5-Mini"},
    {"Llama-3.1-70B", "meta-llama/Llama-3.1-70B"},
    {"Llama-3.1-8B", "meta-llama/Llama-3.1-8B"},
    {"Llama-4-Maverick-17B-128E-Instruct", "meta-llama/Llama-4-Maverick-17B-128E-Instruct"},
    {"Llama-4-Scout-17B-16E", "meta-llama/Llama-4-Scout-17B-16E"},
    {"Mistral-7B-v0.1", "mistralai/Mistral-7B-v0.1"},
    {"Mixtral-8x7B", "mistralai/Mixtral-8x7B-v0.1"},
    {"Nemotron-3-Nano-30B-A3B", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"},
    {"Nemotron-3-Super-120B-A12B", "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16"},
    {"Nemotron-3-Ultra-550B-A55B", "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16"},
    {"Nemotron-H-47B", "nvidia/Nemotron-H-47B-Base-8K"},
    {"Nemotron-H-56B", "nvidia/Nemotron-H-56B-Base-8K"},
    {"Nemotron-H-8B", "nvidia/Nemotron-H-8B-Base-8K"},
    {"Nemotron-Nano-9B-v2", "nvidia/NVIDIA-Nemotron-Nano-9B-v2"},
    {"Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B"},
    {"Qwen2.5-7B", "Qwen/Qwen2.5-7B"},
    {"Qwen3-0.6B", "Qwen/Qwen3-0.6B"},
    {"Qwen3-235B-A22B", "Qwen/Qwen3-235B-A22B"},
    {"Qwen3-30B-A3B", "Qwen/Qwen3-30B-A3B"},
    {"Qwen3-8B", "Qwen/Qwen3-8B"},
    {"Qwen3-Next-80B-A3B", "Qwen/Qwen3-Next-80B-A3B-Instruct"},
    {"gpt-oss-120b", "openai/gpt-oss-120b"},
};

const bp_bundled_model *bp_bundled(size_t index)
{
    return index < sizeof bundled / sizeof *bundled ? &bundled[index] : NULL;
}

/* True for "name" or "owner/name" as the hub allows them: letters, digits, '-', '_' and '.', without ".." and "--". */
static bool is_hub_id(const char *text)
{
    size_t length = strlen(text), slashes = 0;
    if (length == 0 || length > LONGEST_ID || strstr(text, "..") != NULL || strstr(text, "--") != NULL)
        return false;
    for (size_t i = 0; i < length; i++) {
        bool is_letter = (text[i] >= 'a' && text[i] <= 'z') || (text[i] >= 'A' && text[i] <= 'Z') ||
                         (text[i] >= '0' && text[i] <= '9') || text[i] == '_';
        bool is_inside = i > 0 && i + 1 < length && text[i - 1] != '/' && text[i + 1] != '/';
        slashes += text[i] == '/';
        if (!is_letter && !(is_inside && strchr("-./", text[i]) != NULL))
            return false;
    }
    return slashes <= 1;
}

/* ---- paths -------------------------------------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 3))) static bool join_path(char path[LONGEST_PATH], const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int length = vsnprintf(path, LONGEST_PATH, format, args);
    va_end(args);
    return length >= 0 && length < LONGEST_PATH;
}

static bool exists_at(const char *path)
{
    struct stat about;
    return stat(path, &about) == 0;
}

/* The folder of huggingface_hub's cache: as its constants are computed. */
static bool cache_folder(char path[LONGEST_PATH])
{
    const struct {
        const char *variable, *below;
    } places[] = {{"HF_HUB_CACHE", ""},
                  {"HUGGINGFACE_HUB_CACHE", ""},
                  {"HF_HOME", "/hub"},
                  {"XDG_CACHE_HOME", "/huggingface/hub"},
                  {"HOME", "/.cache/huggingface/hub"}};
    const char *home = secure_getenv("HOME");
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const char *value = secure_getenv(places[i].variable);
        if (value == NULL || *value == '\0')
            continue;
        bool is_short = strncmp(value, "~/", 2) == 0 && home != NULL;
        return join_path(path, "%s%s%s", is_short ? home : "", value + is_short, places[i].below);
    }
    return false;
}

/* ---- the cache of the hub ----------------------------------------------------------------------------------------- */

static bool is_commit(const char *text)
{
    return *text != '\0' && strlen(text) <= LONGEST_COMMIT &&
           strspn(text, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-") == strlen(text);
}

/* The commit of the branch main, or that of the only snapshot where this branch is missing; "" without one. */
static bp_status find_commit(const char *repository, char commit[LONGEST_COMMIT + 1])
{
    char path[LONGEST_PATH], *text = NULL;
    size_t bytes = 0, count = 0;
    struct stat about;
    *commit = '\0';
    if (!join_path(path, "%s/refs/main", repository))
        return BP_OK;
    if (lstat(path, &about) == 0) {
        bp_status status = bp_file_read(path, LONGEST_PATH, &text, &bytes);
        if (status != BP_OK)
            return status == BP_ERR_NO_HOST_MEMORY ? status : BP_OK;
        text[strcspn(text, "\r\n")] = '\0';
        if (is_commit(text))
            snprintf(commit, LONGEST_COMMIT + 1, "%s", text);
        free(text);
        return BP_OK;
    }
    DIR *folder = join_path(path, "%s/snapshots", repository) ? opendir(path) : NULL;
    if (folder == NULL)
        return errno == ENOMEM ? bp_fail_memory(sizeof(DIR *)) : BP_OK;
    for (struct dirent *entry; count < 2 && (entry = readdir(folder)) != NULL;) {
        if (!is_commit(entry->d_name))
            continue;
        snprintf(commit, LONGEST_COMMIT + 1, "%.*s", LONGEST_COMMIT, entry->d_name);
        count++;
    }
    closedir(folder);
    if (count != 1)
        *commit = '\0';
    return BP_OK;
}

/* "models--owner--name" in the cache. */
static bool repository_folder(const char *id, char path[LONGEST_PATH])
{
    char cache[LONGEST_PATH];
    size_t owner = strcspn(id, "/");
    return cache_folder(cache) && join_path(path, "%s/models--%.*s%s%s", cache, (int)owner, id,
                                            id[owner] != '\0' ? "--" : "", id[owner] != '\0' ? id + owner + 1 : "");
}

/* The folder of a snapshot that has a file that bp_model_read takes. */
static bp_status find_snapshot(const char *id, char path[LONGEST_PATH], bool *found)
{
    static const char *const readable[] = {"config.json", "model.safetensors.index.json", "model.safetensors"};
    char repository[LONGEST_PATH], file[LONGEST_PATH], commit[LONGEST_COMMIT + 1];
    *found = false;
    if (!repository_folder(id, repository))
        return BP_OK;
    BP_TRY(find_commit(repository, commit));
    if (*commit == '\0' || !join_path(path, "%s/snapshots/%s", repository, commit))
        return BP_OK;
    for (size_t i = 0; !*found && i < sizeof readable / sizeof *readable; i++)
        *found = join_path(file, "%s/%s", path, readable[i]) && exists_at(file);
    return BP_OK;
}

/* ---- bundled models ----------------------------------------------------------------------------------------------- */

/* The folder of this name, or of this repository, in one of the folders "a:b". */
static bool find_bundled(const char *name, const char *folders, char path[LONGEST_PATH])
{
    const char *folder = strchr(name, '/') == NULL ? name : NULL;
    for (size_t i = 0; i < sizeof bundled / sizeof *bundled; i++) {
        if (strcmp(bundled[i].repository, name) == 0)
            folder = bundled[i].folder;
    }
    for (const char *at = folders; folder != NULL && at != NULL && *at != '\0'; at += strspn(at, ":")) {
        size_t length = strcspn(at, ":");
        if (length > 0 && join_path(path, "%.*s/%s", (int)length, at, folder) && exists_at(path))
            return true;
        at += length;
    }
    return false;
}

bp_status bp_model_find(const char *name, const char *folders, char *path, size_t capacity)
{
    if (name == NULL || path == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_model_find: name and path must not be NULL");
    char found[LONGEST_PATH] = "", cache[LONGEST_PATH];
    struct stat about;
    bool is_id = is_hub_id(name);
    if (*name == '\0' || stat(name, &about) == 0 || errno != ENOENT || (!is_id && strchr(name, '/') != NULL)) {
        if (strlen(name) >= capacity)
            return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_model_find: a path of %zu bytes does not fit %zu",
                           strlen(name) + 1, capacity);
        memcpy(path, name, strlen(name) + 1); /* reading it reports the error */
        return BP_OK;
    }
    bool is_plain = strchr(name, '/') == NULL, has = is_plain && find_bundled(name, folders, found);
    if (!has && is_id)
        BP_TRY(find_snapshot(name, found, &has));
    has = has || find_bundled(name, folders, found);
    if (!has && is_id && repository_folder(name, cache))
        return bp_fail(
            BP_ERR_IO,
            "%.200s: No such file or directory, and not a bundled model (searched in %.150s), nor with a config.json "
            "in the hub's cache (%.200s)%s%.200s%s",
            name, folders != NULL ? folders : "no folder", cache, is_plain ? "" : "; fetch it with `hf download ",
            is_plain ? "" : name, is_plain ? "" : " config.json`");
    if (!has)
        return bp_fail(BP_ERR_IO, "%.200s: No such file or directory, and not a bundled model (searched in %.250s)",
                       name, folders != NULL ? folders : "no folder");
    if (strlen(found) >= capacity)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_model_find: a path of %zu bytes does not fit %zu",
                       strlen(found) + 1, capacity);
    memcpy(path, found, strlen(found) + 1);
    return BP_OK;
}

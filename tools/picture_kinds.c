#include "picture_kinds.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

static void name_kind(const bp_bucket *bucket, char name[PICTURE_KIND_CHARS])
{
    if (bucket->name == NULL) {
        snprintf(name, PICTURE_KIND_CHARS, "bucket.%u", bucket->ordinal);
        return;
    }
    snprintf(name, PICTURE_KIND_CHARS, "%s", bucket->name);
    size_t end = strlen(name);
    while (end > 0 && isdigit((unsigned char)name[end - 1]))
        end--;
    if (end > 1 && name[end - 1] == '.' && name[end] != '\0')
        name[end - 1] = '\0';
}

/* A name has the same colour in every picture, as far as colours last: FNV-1a, then the next free one. */
static uint8_t find_kind(picture_kinds kinds, const char *name)
{
    enum { HASHED = PICTURE_OTHER - PICTURE_FIRST_HASHED };
    uint32_t hash = 2166136261u;
    for (const char *c = name; *c != '\0'; c++)
        hash = (hash ^ (uint8_t)*c) * 16777619u;
    size_t kind = PICTURE_OTHER;
    if (strcmp(name, "dense") == 0)
        kind = PICTURE_DENSE;
    else if (strcmp(name, "experts") == 0)
        kind = PICTURE_EXPERTS;
    for (size_t i = 0; kind == PICTURE_OTHER && i < HASHED; i++) {
        size_t candidate = PICTURE_FIRST_HASHED + (hash % HASHED + i) % HASHED;
        if (*kinds[candidate] == '\0' || strcmp(kinds[candidate], name) == 0)
            kind = candidate;
    }
    snprintf(kinds[kind], PICTURE_KIND_CHARS, "%s", kind == PICTURE_OTHER ? "other buckets" : name);
    return (uint8_t)kind;
}

uint8_t picture_kind_of(const bp_bucket *bucket, const char *role, picture_kinds kinds)
{
    char name[PICTURE_KIND_CHARS];
    name_kind(bucket, name);
    size_t length = strlen(name);
    if (*role != '\0')
        snprintf(name + length, sizeof name - length, ", %s", role);
    return find_kind(kinds, name);
}

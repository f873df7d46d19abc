/* Short names of units and steps. */
#include "shared/names.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

size_t names_common_chars(const bp_buckets *buckets)
{
    size_t units = bp_buckets_get_info(buckets)->unit_count;
    const char *first = units > 0 ? bp_buckets_get_info(buckets)->units[0].name : "";
    size_t common = strlen(first);
    for (size_t u = 0; u < units; u++) {
        const char *name = bp_buckets_get_info(buckets)->units[u].name;
        size_t same = 0;
        while (same < common && name[same] == first[same])
            same++;
        common = same;
    }
    bool number = false;
    while (common > 0 && first[common - 1] != '.')
        common--;
    for (size_t u = 0; u < units; u++)
        number = number || !isalpha((unsigned char)bp_buckets_get_info(buckets)->units[u].name[common]);
    if (number && common > 0)
        common--;
    while (common > 0 && first[common - 1] != '.')
        common--;
    return common;
}

bp_phase names_direction(const bp_step *step)
{
    if (step->phase != BP_PHASE_BACKWARD_GATHER)
        return step->phase;
    return step->forward_unit >= 0 ? BP_PHASE_COMBINED : BP_PHASE_BACKWARD;
}

const char *names_roles(uint32_t roles, char text[ROLES_TEXT_CHARS])
{
    size_t length = 0;
    *text = '\0';
    for (uint32_t role = 0; role < BP_ROLE_COUNT; role++) {
        if (roles & BP_ROLE_BIT(role))
            length += (size_t)snprintf(text + length, ROLES_TEXT_CHARS - length, "%s%s", length > 0 ? "+" : "",
                                       bp_role_name((bp_role)role));
    }
    return text;
}

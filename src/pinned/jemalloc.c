/* The program's own copy comes first: a second one would take its share of address space and of threads' exits for nothing. */
#include "pinned/jemalloc.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIBRARY "libjemalloc.so.2"
#define WAYS                                                                                                           \
    "start the program with LD_PRELOAD=" LIBRARY ", link it with -ljemalloc, or start it with "                        \
    "GLIBC_TUNABLES=glibc.rtld.optional_static_tls=4096"

/* False: it lacks one. Prefixed names are another library's own business. */
static bool jemalloc_look_up(void *library, bp_jemalloc *jemalloc)
{
    const struct {
        void *place;
        const char *name;
    } functions[] = {
        {&jemalloc->mallctl, "mallctl"},
        {&jemalloc->mallocx, "mallocx"},
        {&jemalloc->dallocx, "dallocx"},
        {&jemalloc->sallocx, "sallocx"},
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *symbol = dlsym(library, functions[i].name);
        if (symbol == NULL)
            return false;
        memcpy(functions[i].place, (const void *)&symbol, sizeof symbol);
    }
    return true;
}

/* Arenas with hooks are made as we make them since version 5. Who builds it without git gets version 0. */
static bool is_usable(bp_jemalloc *jemalloc, const char *where, char *because)
{
    const char *version = NULL;
    size_t bytes = sizeof(const char *);
    if (jemalloc->mallctl("version", (void *)&version, &bytes, NULL, 0) != 0)
        version = "0";
    int length = (int)strcspn(version, "-");
    const long major = strtol(version, NULL, 10);
    if (major >= 5 || major == 0) {
        snprintf(jemalloc->name, sizeof jemalloc->name, "jemalloc %.*s (%s)", length, version, where);
        return true;
    }
    snprintf(because, BP_JEMALLOC_BECAUSE_BYTES, "jemalloc %.*s (%s) is too old: version 5 is needed", length, version,
             where);
    return false;
}

static void explain_failed_load(char *because)
{
    const char *reason = dlerror();
    if (reason == NULL)
        reason = LIBRARY " could not be loaded";
    if (strstr(reason, "static TLS") != NULL)
        snprintf(because, BP_JEMALLOC_BECAUSE_BYTES,
                 "jemalloc cannot be loaded into a process that was not started with it (%.150s): " WAYS, reason);
    else
        snprintf(because, BP_JEMALLOC_BECAUSE_BYTES,
                 "there is no jemalloc (%.150s): install it (on Debian and Ubuntu libjemalloc2), then " WAYS, reason);
}

bool bp_jemalloc_find(bp_jemalloc *jemalloc, char *because)
{
    bp_jemalloc found;
    const char *where = "the program's";
    if (!jemalloc_look_up(RTLD_DEFAULT, &found)) {
        where = LIBRARY;
        void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        if (library == NULL) {
            explain_failed_load(because);
            return false;
        }
        if (!jemalloc_look_up(library, &found)) {
            snprintf(because, BP_JEMALLOC_BECAUSE_BYTES, LIBRARY " has no mallctl, mallocx, dallocx or sallocx");
            return false;
        }
    }
    if (!is_usable(&found, where, because))
        return false;
    *jemalloc = found;
    return true;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Ways to get jemalloc, each in a separate process, because they depend on its start. Arguments: the program linked with jemalloc, or
 * none. */
#include "jemalloc_ways.h"
#include "support.h"

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#endif

#define PRELOAD "LD_PRELOAD=libjemalloc.so.2"
#define TUNABLES "GLIBC_TUNABLES=glibc.rtld.optional_static_tls=4096"

static const char *self, *linked; /* programs */

/* Runs this program again with additional environment variables; NULL ends the list. */
static int start(const char *program, const char *name, const char *const *settings)
{
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        for (; *settings != NULL; settings++)
            putenv(strdup(*settings));
        execl(program, program, "inside", name, (char *)NULL);
        _exit(126);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

#define START(program, name, ...) start((program), (name), (const char *const[]){__VA_ARGS__, NULL})

/* This process, without jemalloc at first. Debian's build cannot be loaded here; one built for dlopen can. */
TEST(plain_process)
{
    DEVICE *device = new_device();
    bp_pinned_config config = small_config(BP_PINNED_JEMALLOC, 0);
    bp_pinned *pinned = new_pinned(device, NULL), *asked = NULL;
    const char *name = statistics_of(pinned).allocator, *because = statistics_of(pinned).because;
    if (strcmp(name, "plain") != 0) {
        assert_non_null(strstr(name, "(libjemalloc.so.2)"));
        assert_string_equal(because, "");
    } else {
        print_message("%s\n", because);
        assert_non_null(strstr(because, "static TLS"));
        assert_non_null(strstr(because, PRELOAD));
        assert_non_null(strstr(because, "-ljemalloc"));
        assert_non_null(strstr(because, TUNABLES));
        assert_fails(bp_pinned_create(device, &config, &asked), BP_ERR_UNSUPPORTED, "static TLS");
        assert_non_null(strstr(bp_error_detail(), TUNABLES));
        assert_null(asked);
    }
    walk(pinned, 1, 500, MIB, NULL);
    free(strdup("with what is the program's malloc"));
    bp_pinned_destroy(&pinned);
}

TEST(preloaded)
{
    assert_int_equal(START(self, "(the program's)", PRELOAD), 0);
}

TEST(linked)
{
    if (linked == NULL)
        skip();
    assert_int_equal(START(linked, "(the program's)", "X=1"), 0);
}

TEST(room_for_tls)
{
    assert_int_equal(START(self, "(libjemalloc.so.2)", TUNABLES), 0);
}

/* Settings for the program's arenas do not affect ours. */
TEST(settings)
{
    assert_int_equal(START(self, "(the program's)", PRELOAD, "MALLOC_CONF=dirty_decay_ms:-1,muzzy_decay_ms:-1"), 0);
    assert_int_equal(START(self, "(the program's)", PRELOAD, "MALLOC_CONF=retain:false,background_thread:true"), 0);
    assert_int_equal(START(self, "(the program's)", PRELOAD, "MALLOC_CONF=narenas:1,tcache:false,thp:always"), 0);
}

/* The loader's message for a missing file. */
static bool is_installed(void)
{
    void *library = dlopen("libjemalloc.so.2", RTLD_LAZY);
    const char *reason = library == NULL ? dlerror() : NULL;
    return library != NULL || (reason != NULL && strstr(reason, "static TLS") != NULL);
}

int main(int count, char **arguments)
{
    if (count == 3 && strcmp(arguments[1], "inside") == 0)
        return run_inside(arguments[2]);
#ifdef SANITIZED
    puts("a sanitizer has the program's malloc: jemalloc does not go with it");
    return 77;
#endif
    self = arguments[0];
    linked = count > 1 && arguments[1][0] != '\0' ? arguments[1] : NULL;
    if (fork() == 0) /* the library must not be loaded here */
        _exit(is_installed() ? 0 : 1);
    int status;
    if (wait(&status) < 0 || status != 0) {
        puts("libjemalloc.so.2 is not installed");
        return 77;
    }
    return run_suite();
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded into the command: fails one allocation of a run. The process stops before main and becomes a server that forks a run for
 * each number it is given, so that programs are loaded and linked once. */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

#define EXPORT __attribute__((visibility("default")))

static atomic_ulong *allocations; /* of the run with its own children; NULL before the first run */
static unsigned long fails;       /* 0: none */
static int counts = -1;           /* the file that the number of allocations goes to */

/* Counts from 1, in all threads. errno is set as malloc does. */
static bool is_refused(void)
{
    bool refused = allocations != NULL && atomic_fetch_add(allocations, 1) + 1 == fails;
    if (refused)
        errno = ENOMEM;
    return refused;
}

EXPORT void *malloc(size_t bytes)
{
    return is_refused() ? NULL : __libc_malloc(bytes);
}

EXPORT void *calloc(size_t count, size_t bytes)
{
    return is_refused() ? NULL : __libc_calloc(count, bytes);
}

EXPORT void *realloc(void *memory, size_t bytes)
{
    return is_refused() ? NULL : __libc_realloc(memory, bytes);
}

EXPORT void *reallocarray(void *memory, size_t count, size_t bytes)
{
    size_t product;
    if (is_refused() || __builtin_mul_overflow(count, bytes, &product)) {
        errno = ENOMEM;
        return NULL;
    }
    return __libc_realloc(memory, product);
}

EXPORT void *aligned_alloc(size_t alignment, size_t bytes)
{
    return is_refused() ? NULL : __libc_memalign(alignment, bytes);
}

EXPORT void *memalign(size_t alignment, size_t bytes)
{
    return is_refused() ? NULL : __libc_memalign(alignment, bytes);
}

EXPORT int posix_memalign(void **memory, size_t alignment, size_t bytes)
{
    void *made = is_refused() ? NULL : __libc_memalign(alignment, bytes);
    if (made == NULL)
        return ENOMEM;
    *memory = made;
    return 0;
}

static void redirect(const char *path, int number)
{
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (file < 0 || dup2(file, number) < 0)
        _exit(99);
    close(file);
}

/* "<number>\n" from the file FAULT_IN: forks a run in which that allocation fails (0: none), with its output in the files "stdout" and
 * "stderr" of FAULT_FOLDER. Answers "<status of wait> <allocations>\n" to FAULT_OUT; ends with the input. */
__attribute__((constructor)) static void serve(void)
{
    const char *in = getenv("FAULT_IN"), *out = getenv("FAULT_OUT"), *folder = getenv("FAULT_FOLDER");
    if (in == NULL || out == NULL || folder == NULL || chdir(folder) != 0)
        return;
    int orders = atoi(in), answers = atoi(out);
    atomic_ulong *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        _exit(96);
    unsetenv("LD_PRELOAD");
    for (;;) {
        char line[32];
        size_t length = 0;
        while (length < sizeof line - 1 && read(orders, line + length, 1) == 1 && line[length] != '\n')
            length++;
        if (length == 0)
            _exit(0);
        line[length] = '\0';
        pid_t child = fork();
        if (child == 0) {
            redirect("stdout", STDOUT_FILENO);
            redirect("stderr", STDERR_FILENO);
            counts = open("count", O_WRONLY | O_CREAT | O_TRUNC, 0600);
            close(orders);
            close(answers);
            fails = strtoul(line, NULL, 10);
            atomic_store(shared, 0);
            allocations = shared;
            return;
        }
        int status = -1;
        while (waitpid(child, &status, 0) < 0 && errno == EINTR)
            ;
        length = (size_t)snprintf(line, sizeof line, "%d\n", status);
        if (write(answers, line, length) != (ssize_t)length)
            _exit(98);
    }
}

__attribute__((destructor)) static void report(void)
{
    char line[32];
    if (counts < 0)
        return;
    int length = snprintf(line, sizeof line, "%lu\n", atomic_load(allocations));
    if (write(counts, line, (size_t)length) != length)
        _exit(97);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Runs bucketpool.torch.fitting in a process of Python, and reads the lines that it writes: progress, an error, the answer. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/print.h"
#include "fit/fit.h"
#include "shared/cli.h"
#include "shared/machine.h"
#include "shared/progress.h"

enum {
    MAX_LINE_BYTES = 64 << 20, /* answers have some 10 KiB */
    READ_BYTES = 1 << 16,
    LOOK_MS = 100,  /* between looks at interrupts, the process and the progress line */
    END_SECONDS = 2 /* for a process that was asked to end */
};

/* As `python3 -m bucketpool.torch.fitting`, but a Python without the packages is answered in one line. */
static const char program[] =
    "import importlib.util, json, sys\n"
    "lacks = [name for name in ('torch', 'transformers', 'bucketpool') if importlib.util.find_spec(name) is None]\n"
    "if lacks:\n"
    "    names = ' and '.join(filter(None, (', '.join(lacks[:-1]), lacks[-1])))\n"
    "    print(json.dumps({'error': f'fit: {sys.executable} has no {names}; install {names} there, or name another '\n"
    "                               'Python in BUCKETPOOL_PYTHON', 'exit': 3}))\n"
    "    sys.exit(3)\n"
    "import runpy\n"
    "runpy.run_module('bucketpool.torch.fitting', run_name='__main__', alter_sys=True)\n";

typedef struct python {
    const char *name; /* as it is started */
    pid_t process;    /* the leader of a group; 0: has ended */
    int pipe;         /* its standard output */
    int status;       /* of waitpid */
    char *text;       /* read, and not yet taken */
    size_t bytes, capacity, lines;
    bp_fit_file *answer, *failure; /* lines that were read */
    progress progress;
    char what[PROGRESS_DETAIL_CHARS];
    uint64_t done;
} python;

/* ---- the process --------------------------------------------------------------------------------------------------- */

static const int deaths[] = {SIGTERM, SIGHUP};
static volatile sig_atomic_t group; /* the process group to end with this process; 0: none */

static void end_group(int number)
{
    if (group > 0)
        kill(-(pid_t)group, SIGTERM);
    signal(number, SIG_DFL);
    raise(number);
}

static void watch_deaths(void)
{
    for (size_t i = 0; i < sizeof deaths / sizeof *deaths; i++) {
        struct sigaction action = {.sa_handler = end_group}, before;
        sigemptyset(&action.sa_mask);
        if (sigaction(deaths[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN) /* nohup */
            sigaction(deaths[i], &action, NULL);
    }
}

/* fork() with the child in `group` before a signal can end this process. */
static pid_t fork_watched(void)
{
    sigset_t ours, before;
    sigemptyset(&ours);
    for (size_t i = 0; i < sizeof deaths / sizeof *deaths; i++)
        sigaddset(&ours, deaths[i]);
    watch_deaths();
    sigprocmask(SIG_BLOCK, &ours, &before);
    const pid_t process = fork();
    if (process > 0) {
        setpgid(process, process); /* the child does so, too: whoever is first */
        group = process;
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    return process;
}

/* In the child: returns only if Python cannot be started. */
static void start(const python *p, int to, const char *request, pid_t parent)
{
    char option[] = "-c";
    char *const arguments[] = {(char *)p->name, option, (char *)program, (char *)request, NULL};
    const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
    setpgid(0, 0);                    /* for one signal to all that it starts */
    prctl(PR_SET_PDEATHSIG, SIGTERM); /* of a command that is killed */
    if (getppid() != parent || nothing < 0 || dup2(nothing, STDIN_FILENO) < 0 || dup2(to, STDOUT_FILENO) < 0)
        return;
    signal(SIGPIPE, SIG_DFL); /* main ignores these */
    signal(SIGXFSZ, SIG_DFL);
    execvp(p->name, arguments);
}

static int fail_to_start(const python *p, int error)
{
    return cli_fail(EXIT_ENVIRONMENT,
                    "fit: Python with torch, transformers and bucketpool is needed, and \"%.200s\" cannot be started: "
                    "%s; install it, or name another Python in BUCKETPOOL_PYTHON",
                    p->name, strerror(error));
}

static int start_python(const char *request, python *p)
{
    char command[PATH_MAX];
    const char *named = secure_getenv("BUCKETPOOL_PYTHON");
    *p = (python){.name = named != NULL && *named != '\0' ? named : "python3", .pipe = -1};
    const ssize_t length = readlink("/proc/self/exe", command, sizeof command - 1);
    command[length > 0 ? length : 0] = '\0';
    /* models that iterate over sets allocate in the same order in each run */
    if ((length > 0 && setenv("BUCKETPOOL_COMMAND", command, 1) != 0) || setenv("PYTHONHASHSEED", "0", 0) != 0)
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    int lines[2], failed[2], error = 0;
    if (pipe2(lines, O_CLOEXEC) != 0)
        return fail_to_start(p, errno);
    if (pipe2(failed, O_CLOEXEC) != 0) {
        error = errno;
        close(lines[0]);
        close(lines[1]);
        return fail_to_start(p, error);
    }
    const pid_t parent = getpid();
    p->process = fork_watched();
    if (p->process == 0) {
        start(p, lines[1], request, parent);
        error = errno;
        const ssize_t written = write(failed[1], &error, sizeof error);
        _exit(written == (ssize_t)sizeof error ? 127 : 126);
    }
    if (p->process < 0)
        error = errno;
    close(lines[1]);
    close(failed[1]);
    p->pipe = lines[0];
    ssize_t got = 0;
    do
        got = p->process > 0 ? read(failed[0], &error, sizeof error) : 0; /* ends when Python runs */
    while (got < 0 && errno == EINTR);
    close(failed[0]);
    if (error == 0)
        return EXIT_GO_ON;
    if (p->process > 0)
        waitpid(p->process, &p->status, 0);
    p->process = group = 0;
    return fail_to_start(p, error);
}

/* Takes the exit status if it has ended. */
static bool has_ended(python *p)
{
    if (p->process > 0 && waitpid(p->process, &p->status, WNOHANG) == p->process)
        p->process = 0;
    return p->process == 0;
}

static void end_python(python *p)
{
    const double until = machine_seconds() + END_SECONDS;
    if (p->process > 0)
        kill(-p->process, SIGTERM); /* on SIGINT it would print a traceback */
    while (!has_ended(p)) {
        if (machine_seconds() > until)
            kill(-p->process, SIGKILL);
        poll(NULL, 0, 10);
    }
}

static int fail_without_answer(const python *p)
{
    if (WIFSIGNALED(p->status))
        return cli_fail(EXIT_ENVIRONMENT, "fit: %.200s was ended by signal %d (%s) before its answer%s", p->name,
                        WTERMSIG(p->status), strsignal(WTERMSIG(p->status)),
                        WTERMSIG(p->status) == SIGKILL
                            ? "; the kernel sends it where host memory runs out: free some, or try --layers"
                            : "");
    return cli_fail(EXIT_ENVIRONMENT, "fit: %.200s ended with exit status %d and without an answer%s", p->name,
                    WEXITSTATUS(p->status),
                    WEXITSTATUS(p->status) != 0 ? "; the reason is above" : "; BUCKETPOOL_PYTHON must name a Python");
}

/* ---- lines --------------------------------------------------------------------------------------------------------- */

static void show_progress(python *p, const bp_fit_message *message)
{
    if (p->progress.what == NULL)
        progress_init(&p->progress, p->what, message->total);
    p->progress.total = message->total;
    p->done = message->done;
    bp_print(p->what, sizeof p->what, "%.80s:", message->progress);
    progress_show(&p->progress, p->done);
}

/* A line without its end. Code of others may print to standard output. */
static int take_line(python *p, const char *line, size_t bytes)
{
    char origin[300];
    bp_fit_file *read = NULL;
    p->lines++;
    if (bytes == 0 || *line != '{') {
        char shown[512];
        bp_print(shown, sizeof shown, "%.*s", (int)(bytes < 400 ? bytes : 400), line);
        progress_erase(&p->progress);
        fprintf(stderr, "%s\n", shown);
        return EXIT_GO_ON;
    }
    bp_print(origin, sizeof origin, "fit: line %zu of %.200s", p->lines, p->name);
    bp_status status = bp_fit_file_parse(line, bytes, origin, &read);
    if (status != BP_OK)
        return cli_fail(EXIT_ENVIRONMENT, "%s", bp_error_detail());
    const bp_fit_message *message = bp_fit_file_get_message(read);
    bp_fit_file **kept = message->fit != NULL ? &p->answer : message->error != NULL ? &p->failure : NULL;
    if (kept != NULL) {
        bp_fit_file_destroy(kept);
        *kept = read;
        return EXIT_GO_ON;
    }
    show_progress(p, message);
    bp_fit_file_destroy(&read);
    return EXIT_GO_ON;
}

/* Takes the whole lines of what was read. The search begins at the new bytes. */
static int take_lines(python *p, size_t old)
{
    size_t begin = 0;
    for (const char *end; (end = memchr(p->text + old, '\n', p->bytes - old)) != NULL;) {
        const size_t length = (size_t)(end - p->text) - begin;
        CLI_TRY(take_line(p, p->text + begin, length));
        old = begin = begin + length + 1;
    }
    p->bytes -= begin;
    memmove(p->text, p->text + begin, p->bytes);
    if (p->bytes > MAX_LINE_BYTES)
        return cli_fail(EXIT_ENVIRONMENT,
                        "fit: line %zu of %.200s has more than %d MiB; BUCKETPOOL_PYTHON must name a "
                        "Python",
                        p->lines + 1, p->name, MAX_LINE_BYTES >> 20);
    return EXIT_GO_ON;
}

/* Reads once. *is_end: nothing comes any more. */
static int read_more(python *p, bool *is_end)
{
    if (p->capacity - p->bytes < READ_BYTES) {
        const size_t capacity = 2 * p->capacity + READ_BYTES;
        char *moved = realloc(p->text, capacity);
        if (moved == NULL)
            return cli_fail(EXIT_ENVIRONMENT, "out of memory");
        p->text = moved;
        p->capacity = capacity;
    }
    const ssize_t got = read(p->pipe, p->text + p->bytes, READ_BYTES);
    if (got < 0 && errno == EINTR)
        return EXIT_GO_ON;
    *is_end = got <= 0;
    const size_t old = p->bytes;
    p->bytes += got > 0 ? (size_t)got : 0;
    return got > 0 ? take_lines(p, old) : EXIT_GO_ON;
}

/* Until Python has closed its output, or has ended: others may hold the output longer. */
static int read_lines(python *p)
{
    struct pollfd source = {.fd = p->pipe, .events = POLLIN};
    for (bool is_end = false; !is_end;) {
        const bool ended = has_ended(p); /* before the look: what it wrote is there */
        const int ready = poll(&source, 1, ended ? 0 : LOOK_MS);
        if (interrupt_came())
            return EXIT_GO_ON;
        if (ready > 0)
            CLI_TRY(read_more(p, &is_end));
        else if (ended)
            is_end = true;
        if (p->progress.what != NULL)
            progress_show(&p->progress, p->done);
    }
    return EXIT_GO_ON;
}

int fit_ask(const char *request, bp_fit_file **answer)
{
    python p;
    interrupt_watch(NULL);
    int code = start_python(request, &p);
    if (code == EXIT_GO_ON)
        code = read_lines(&p);
    while (code == EXIT_GO_ON && !interrupt_came() && !has_ended(&p))
        poll(NULL, 0, 10);
    progress_erase(&p.progress);
    end_python(&p);
    group = 0;
    interrupt_pass_on();
    if (code == EXIT_GO_ON && p.bytes > 0 && WIFEXITED(p.status)) /* the last line has no end */
        code = take_line(&p, p.text, p.bytes);
    if (code == EXIT_GO_ON && p.failure != NULL) {
        const bp_fit_message *message = bp_fit_file_get_message(p.failure);
        code = cli_fail(message->status, "%s", message->error);
    }
    if (code == EXIT_GO_ON && p.answer == NULL)
        code = fail_without_answer(&p);
    if (code == EXIT_GO_ON) {
        *answer = p.answer;
        p.answer = NULL;
    }
    bp_fit_file_destroy(&p.answer);
    bp_fit_file_destroy(&p.failure);
    free(p.text);
    if (p.pipe >= 0)
        close(p.pipe);
    return code;
}

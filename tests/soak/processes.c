/* SPDX-License-Identifier: Apache-2.0 */
/* Forked children that SIGKILL ends at a random moment, while the parent works on with what both have. */
#include "soak.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* The child ends with its parent, however that ends. */
static pid_t begin_child(void)
{
    pid_t parent = getpid(), child = fork();
    must(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
        alarm(60);
    }
    return child;
}

static void end_child(soak *s, pid_t child, uint32_t max_us)
{
    int status;
    nanosleep(&(struct timespec){.tv_nsec = 1000 * (long)below(&s->dice, max_us)}, NULL);
    must(kill(child, SIGKILL) == 0);
    must(waitpid(child, &status, 0) == child);
    must(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    s->kills++;
}

/* Objects of the parent are refused. The child uses a new pool, and writes files and to the descriptor, until it dies. */
static void live_in_child(soak *s, bench *parents, int shared)
{
    char path[64] = "/dev/fd/";
    uint32_t id = 0;
    s->process = "child";
    must(bp_pool_acquire(parents->pool, &id, 1, parents->streams[0], NULL) == BP_ERR_INVALID_ARGUMENT);
    bp_pool_destroy(&parents->pool);
    path[8] = (char)('0' + shared / 100);
    path[9] = (char)('0' + shared / 10 % 10);
    path[10] = (char)('0' + shared % 10);
    for (;;) {
        pool_round(s, HOST);
        format_round(s);
        scenario c = random_scenario(&s->dice);
        bp_plan *plan = stable_plan(&s->dice, &c);
        must_ok(bp_plan_write(plan, path));
        bp_plan_destroy(&plan);
        free_scenario(&c);
    }
}

/* The parent has work in flight when it forks, copies to pinned memory, and reads the files that the child writes. */
void fork_round(soak *s)
{
    bench b = open_bench(s, HOST, false);
    int made = memfd_create("soak", 0), shared = fcntl(made, F_DUPFD, 100); /* three digits */
    uint8_t *piece = NULL;
    must(shared >= 100 && shared < 1000 && close(made) == 0);
    must_ok(bp_pinned_allocate(b.pinned, 4096, 0, (void **)&piece));
    memset(piece, 0x5a, 4096);
    iterate(&b);
    pid_t child = begin_child();
    if (child == 0)
        live_in_child(s, &b, shared);
    s->dice.state += 2; /* other numbers than the child's */
    iterate(&b);
    check_bench(&b);
    format_round(s);
    end_child(s, child, 30000);
    iterate(&b);
    for (size_t i = 0; i < 4096; i++)
        must(piece[i] == 0x5a);
    must_ok(bp_pinned_free(b.pinned, piece));
    must(close(shared) == 0);
    close_bench(&b);
    format_round(s); /* removes what the child had begun to write */
}

/* ---- a lost rank ------------------------------------------------------------------------------------------------------ */

static bool send_all(int socket, const void *data, uint64_t bytes)
{
    for (const char *at = data; bytes > 0;) {
        ssize_t sent = send(socket, at, bytes, MSG_NOSIGNAL);
        if (sent <= 0)
            return false;
        at += sent;
        bytes -= (uint64_t)sent;
    }
    return true;
}

static bool receive_all(int socket, void *data, uint64_t bytes)
{
    for (char *at = data; bytes > 0;) {
        ssize_t got = recv(socket, at, bytes, 0);
        if (got <= 0)
            return false;
        at += got;
        bytes -= (uint64_t)got;
    }
    return true;
}

typedef struct peer {
    int socket;
    uint32_t rank;
} peer;

static bp_status exchange_with_peer(void *user, const void *mine, uint64_t bytes, void *all)
{
    const peer *p = user;
    memcpy((char *)all + p->rank * bytes, mine, bytes);
    if (send_all(p->socket, mine, bytes) && receive_all(p->socket, (char *)all + (1 - p->rank) * bytes, bytes))
        return BP_OK;
    return bp_error_record(BP_ERR_COMM, "the other process has ended");
}

/* Registers pools with the other process until an exchange fails. */
static void run_as_rank(soak *s, const peer *p)
{
    bp_comm_callbacks callbacks = {
        .size = sizeof callbacks, .rank = p->rank, .ranks = 2, .exchange = exchange_with_peer};
    bp_comm *comm = NULL;
    bp_status status = BP_OK;
    bench b = open_bench(s, HOST, false);
    must_ok(bp_comm_create_callback(&callbacks, (void *)(uintptr_t)p, "processes", &comm));
    while (status == BP_OK) {
        bp_registration_entry entry;
        bp_registration *registration = NULL;
        must_ok(bp_registration_entry_init(&entry, sizeof entry));
        entry.comm = comm;
        status = bp_registration_create(b.pool, &entry, 1, &registration);
        iterate(&b);
        check_bench(&b);
        bp_registration_destroy(&registration);
    }
    must(status == BP_ERR_COMM);
    close_bench(&b);
    bp_comm_destroy(&comm);
}

void lost_rank_round(soak *s)
{
    int sockets[2];
    must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) == 0);
    pid_t child = begin_child(); /* both continue with the same random numbers, so that they have the same plan */
    peer p = {.socket = sockets[child == 0], .rank = child == 0};
    must(close(sockets[child != 0]) == 0);
    if (child == 0) {
        run_as_rank(s, &p);
        _exit(0);
    }
    /* killed by a process in between, because this one waits for its peer */
    pid_t killer = begin_child();
    if (killer == 0) {
        nanosleep(&(struct timespec){.tv_nsec = 1000 * (long)(1000 + below(&s->dice, 15000))}, NULL);
        kill(child, SIGKILL);
        _exit(0);
    }
    int status;
    run_as_rank(s, &p);
    must(waitpid(killer, &status, 0) == killer && status == 0);
    must(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    s->kills++;
    s->refusals++;
    must(close(p.socket) == 0);
}

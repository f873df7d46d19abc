/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the rules of NCCL, on the emulation and on a real NCCL with a GPU, which confirms or refutes inferred rules.
 * Each rule runs in a separate process, as NCCL reads its environment once. An inferred rule that does not hold on a real NCCL is reported
 * as "differs", not as a failure. The last line has the counts.
 *
 *   rules_nccl          all rules, a line each
 *   rules_nccl NAME     one
 *
 * BP_TEST_DRIVER and BP_TEST_NCCL name the libraries; "real": the machine's.
 * Exit status: 1 if a rule does not hold, 77 with the reason if nothing can be tested, else 0. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "rules_nccl.h"

typedef struct rule {
    const char *name, *sentence, *source;
    int (*function)(rule_rank *r);
    fake_nccl_rule id;
} rule;

static const rule RULES[] = {
#define RULE(id, sentence, source) {#id, sentence, source, id, rule_##id},
    FAKE_NCCL_RULES(RULE)
#undef RULE
};
#define RULE_COUNT (sizeof RULES / sizeof *RULES)

/* Special needs of a rule; the default is one rank in the unchanged environment. */
typedef struct setting {
    fake_nccl_rule id;
    int ranks;
    const char *variable, *value;
    bool joins;  /* the rule makes the communicator itself */
    bool shares; /* ranks may be on one GPU */
} setting;

static const setting SETTINGS[] = {{rule_all_ranks_come, 2, NULL, NULL, false, true},
                                   {rule_collectives_agree, 2, NULL, NULL, false, true},
                                   {rule_one_rank_per_gpu, 2, NULL, NULL, true, false},
                                   {rule_window_same_size, 2, NULL, NULL, false, true},
                                   {rule_window_same_offset, 2, NULL, NULL, false, true},
                                   {rule_local_register_off, 1, "NCCL_LOCAL_REGISTER", "0", false, false},
                                   {rule_null_window, 2, "NCCL_WIN_ENABLE", "0", false, true}};

static setting setting_of(fake_nccl_rule id)
{
    for (size_t i = 0; i < sizeof SETTINGS / sizeof *SETTINGS; i++)
        if (SETTINGS[i].id == id)
            return SETTINGS[i];
    return (setting){.id = id, .ranks = 1};
}

/* ---- one rank ------------------------------------------------------------------------------------------------------ */

typedef struct rank_job {
    const rule *rule;
    rule_rank rank;
    bool joins;
    int answer;
} rank_job;

static void *run_rank(void *argument)
{
    rank_job *job = argument;
    rule_rank *r = &job->rank;
    job->answer = open_rank(r);
    if (job->answer == HOLDS && !job->joins && join_ranks(r) != SUCCESS) {
        printf("    rank %d: no communicator was created\n", r->rank);
        job->answer = FAILS;
    }
    if (job->answer == HOLDS)
        job->answer = job->rule->function(r);
    close_rank(r);
    return NULL;
}

static int worse(int a, int b)
{
    return a == FAILS || b == FAILS ? FAILS : a == SKIPPED || b == SKIPPED ? SKIPPED : HOLDS;
}

/* Runs all ranks as threads of this process; other broken rules are failures. */
static int run_here(const rule *what, setting how)
{
    rank_job jobs[2] = {{.rule = what, .joins = how.joins, .answer = FAILS},
                        {.rule = what, .joins = how.joins, .answer = FAILS}};
    pthread_t threads[2] = {0};
    unique_id id = {{0}};
    if (how.shares && nccl.fake_nccl_set != NULL)
        nccl.fake_nccl_set("share_gpu=1");
    CHECK(nccl.ncclGetUniqueId(&id) == SUCCESS);
    for (int i = 0; i < how.ranks && i < 2; i++) {
        jobs[i].rank = (rule_rank){.rank = i, .ranks = how.ranks, .id = id};
        CHECK(pthread_create(&threads[i], NULL, run_rank, &jobs[i]) == 0);
    }
    int answer = HOLDS;
    for (int i = 0; i < how.ranks && i < 2; i++) {
        pthread_join(threads[i], NULL);
        answer = worse(answer, jobs[i].answer);
    }
    char text[2048];
    if (is_emulated())
        (void)nccl.fake_nccl_take_broken(what->id); /* the other rank's */
    if (answer == HOLDS && is_emulated() && nccl.fake_nccl_broken(text, sizeof text) > 0) {
        printf("    other rules were broken: %s", text);
        answer = FAILS;
    }
    return answer;
}

/* ---- ranks as processes -------------------------------------------------------------------------------------------- */

enum { RULE_S = 25, PATIENCE_S = 20 };

/* Rank 0 publishes the id by renaming a complete file; the others wait for it. */
static int share_id(const char *path, int number, unique_id *id)
{
    char unfinished[512];
    snprintf(unfinished, sizeof unfinished, "%s.new", path);
    if (number == 0) {
        CHECK(nccl.ncclGetUniqueId(id) == SUCCESS);
        FILE *file = fopen(unfinished, "wb");
        CHECK(file != NULL);
        bool written = fwrite(id, sizeof *id, 1, file) == 1;
        CHECK(fclose(file) == 0 && written && rename(unfinished, path) == 0);
        return HOLDS;
    }
    for (int tries = 0; tries < PATIENCE_S * 20; tries++) {
        FILE *file = fopen(path, "rb");
        if (file != NULL) {
            bool read = fread(id, sizeof *id, 1, file) == 1;
            fclose(file);
            CHECK(read);
            return HOLDS;
        }
        nanosleep(&(struct timespec){0, 50000000}, NULL);
    }
    printf("    rank 0 published no id\n");
    return FAILS;
}

static int run_as_rank(const rule *what, setting how, int number, const char *path)
{
    rank_job job = {.rule = what, .joins = how.joins, .rank = {.rank = number, .ranks = how.ranks}};
    if (share_id(path, number, &job.rank.id) != HOLDS)
        return FAILS;
    run_rank(&job);
    return job.answer;
}

/* Settings that let two processes be ranks on one GPU: hosts of different names, connected by sockets only. */
static void pretend_hosts(int number, setting how)
{
    char host[16];
    snprintf(host, sizeof host, "rank%d", number);
    if (how.shares)
        setenv("NCCL_HOSTID", host, 1);
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    setenv("NCCL_IB_DISABLE", "1", 1);
    setenv("NCCL_MNNVL_ENABLE", "0", 1);
}

static pid_t start(const char *program, const rule *what, setting how, int number, const char *path)
{
    fflush(stdout);
    pid_t child = fork();
    if (child != 0)
        return child;
    char text[16];
    snprintf(text, sizeof text, "%d", number);
    if (how.variable != NULL)
        setenv(how.variable, how.value, 1);
    if (path != NULL)
        pretend_hosts(number, how);
    alarm(RULE_S); /* a rank whose peer has exited would wait forever */
    execl(program, program, what->name, text, path, (char *)NULL);
    _exit(127);
}

static int answer_of(pid_t child)
{
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child)
        return FAILS;
    if (WIFSIGNALED(status)) {
        printf("    a rank was ended by signal %d%s\n", WTERMSIG(status),
               WTERMSIG(status) == SIGALRM ? ": it hung" : "");
        return FAILS;
    }
    return WEXITSTATUS(status) == HOLDS || WEXITSTATUS(status) == SKIPPED ? WEXITSTATUS(status) : FAILS;
}

static int run_apart(const char *program, const rule *what)
{
    setting how = setting_of(what->id);
    if (is_emulated() || how.ranks == 1)
        return answer_of(start(program, what, how, 0, NULL));
    char folder[] = "/tmp/rules_nccl.XXXXXX", path[64];
    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/id", folder);
    pid_t children[2];
    for (int i = 0; i < 2; i++)
        children[i] = start(program, what, how, i, path);
    int answer = worse(answer_of(children[0]), answer_of(children[1]));
    unlink(path);
    rmdir(folder);
    return answer;
}

/* ---- all rules ----------------------------------------------------------------------------------------------------- */

static const rule *rule_called(const char *name)
{
    for (size_t i = 0; i < RULE_COUNT; i++)
        if (strcmp(RULES[i].name, name) == 0)
            return &RULES[i];
    fprintf(stderr, "rules_nccl: unknown rule \"%s\"\n", name);
    return NULL;
}

enum { OUTCOME_HOLDS, OUTCOME_DIFFERS, OUTCOME_FAILS, OUTCOME_SKIPPED, OUTCOMES };

static int outcome_of(const rule *what, int answer)
{
    if (answer == FAILS)
        return !is_emulated() && strstr(what->source, "inferred") != NULL ? OUTCOME_DIFFERS : OUTCOME_FAILS;
    return answer == SKIPPED ? OUTCOME_SKIPPED : OUTCOME_HOLDS;
}

static int run_all(const char *program)
{
    static const char *const words[OUTCOMES] = {"holds", "differs", "FAILS", "skipped"};
    unsigned counts[OUTCOMES] = {0};
    for (size_t i = 0; i < RULE_COUNT; i++) {
        int outcome = outcome_of(&RULES[i], run_apart(program, &RULES[i]));
        counts[outcome]++;
        printf("%-8s %s: %s (%s)\n", words[outcome], RULES[i].name, RULES[i].sentence, RULES[i].source);
        fflush(stdout);
    }
    printf("%u hold, %u differ, %u fail, %u skipped\n", counts[OUTCOME_HOLDS], counts[OUTCOME_DIFFERS],
           counts[OUTCOME_FAILS], counts[OUTCOME_SKIPPED]);
    return counts[OUTCOME_FAILS] > 0 ? FAILS : counts[OUTCOME_SKIPPED] < RULE_COUNT ? HOLDS : SKIPPED;
}

int main(int count, char **arguments)
{
    const char *reason = find_libraries();
    if (reason[0] != '\0') {
        printf("skipped: %s\n", reason);
        return SKIPPED;
    }
    if (count < 2)
        return run_all("/proc/self/exe");
    const rule *what = rule_called(arguments[1]);
    if (what == NULL)
        return 2;
    if (count < 3)
        return run_apart("/proc/self/exe", what);
    setting how = setting_of(what->id);
    return count > 3 ? run_as_rank(what, how, atoi(arguments[2]), arguments[3]) : run_here(what, how);
}

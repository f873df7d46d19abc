/* Clients of the emulated driver while each of its functions fails: in creation, calls, captures and destruction, once or for good. The error
 * names the function, nothing leaks, and a second try has the same bits. Arguments: the library of kernels. */
#include "support/harness.h"

#include <bucketpool/capture.h>
#include <bucketpool/core/fail.h>
#include <bucketpool/lm_head.h>
#include <bucketpool/loss.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base.h"
#include "devices/cuda.h"
#include "fake_cuda.h"
#include "support/pools.h"

enum { SEQUENCES = 2, TOKENS = 8, LOCAL = TOKENS / 2, VOCAB = 24, HIDDEN = 4, PLACES = 64 };
enum { UNKNOWN = 999, OUT_OF_MEMORY = 2, ILLEGAL_ADDRESS = 700 };

/* Inputs, then outputs, on the device and on the host. */
typedef struct tensors {
    float logits[TOKENS * VOCAB], reference[TOKENS * VOCAB], hidden[TOKENS * HIDDEN], weight[VOCAB * HIDDEN];
    float upstream[TOKENS];
    int64_t target[TOKENS];
    uint8_t mask[TOKENS];
    float logprob[TOKENS], entropy[TOKENS], divergence[TOKENS], least[TOKENS], seed[TOKENS];
    float saved[3 * TOKENS], divergence_saved[5 * TOKENS];
    float grad[TOKENS * VOCAB], hidden_grad[TOKENS * HIDDEN], weight_grad[VOCAB * HIDDEN];
    float whole[TOKENS], local[LOCAL], back[LOCAL];
    bp_loss_statistics statistics; /* the host's */
} tensors;

typedef struct bench {
    bp_device *device;
    bp_stream *stream;
    tensors *there, here;
    bp_comm *comm; /* NULL: one rank */
    bp_logprob *logprob;
    bp_lm_head *head;
    bp_cp *cp;
    bp_loss *loss;
    bp_cp_split *split;
    bp_capture *capture;
    bp_graph *graph;
    bool is_capturing;
} bench;

static bp_cuda_driver table;
static fake_cuda_config settings;

/* ---- a second rank with the first rank's data, and the next shard of the vocabulary ------------------------------------ */

static bp_status exchange(void *user, const void *mine, uint64_t bytes, void *all)
{
    (void)user;
    memcpy(all, mine, bytes);
    memcpy((char *)all + bytes, mine, bytes);
    if (bytes == sizeof(bp_rank_words)) {
        uint64_t *other = ((bp_rank_words *)all)[1].values;
        if (other[BP_SHARD_SAME + 1] == VOCAB)
            other[BP_SHARD_SAME] += VOCAB;
    }
    return BP_OK;
}

static bp_status all_gather(void *user, const void *mine, void *all, uint64_t bytes, bp_stream *stream)
{
    (void)user;
    BP_TRY(bp_stream_copy(stream, all, mine, bytes));
    return bp_stream_copy(stream, (char *)all + bytes, mine, bytes);
}

static bp_status reduce(void *user, const void *from, void *to, uint64_t count, bp_dtype dtype, bp_reduction reduction,
                        bp_stream *stream)
{
    (void)user;
    (void)reduction;
    return from == to ? BP_OK : bp_stream_copy(stream, to, from, count * bp_dtype_bits(dtype) / 8);
}

/* ---- clients ----------------------------------------------------------------------------------------------------------- */

static bp_token_values values_at(void *data)
{
    return (bp_token_values){.data = data, .batch_stride = TOKENS, .stride = 1};
}

static bp_token_rows rows_at(void *data, uint64_t columns)
{
    return (bp_token_rows){.data = data, .dtype = BP_DTYPE_FP32, .batch = 1, .sequence = TOKENS, .columns = columns};
}

static bp_logprob_tokens tokens_of(const bench *b)
{
    bp_logprob_batch batch;
    assert_ok(bp_logprob_batch_init(&batch, sizeof batch));
    batch.tokens.target = values_at(b->there->target);
    batch.tokens.mask = values_at(b->there->mask);
    return batch.tokens;
}

static bp_logprob_outputs outputs_of(const bench *b)
{
    bp_logprob_outputs outputs;
    assert_ok(bp_logprob_outputs_init(&outputs, sizeof outputs));
    outputs.logprob = values_at(b->there->logprob);
    outputs.entropy = values_at(b->there->entropy);
    outputs.saved = b->there->saved;
    outputs.saved_bytes = sizeof b->there->saved;
    return outputs;
}

static bp_status create_logprob_with(bench *b, bp_targets targets)
{
    bp_logprob_config config;
    assert_ok(bp_logprob_config_init(&config, sizeof config));
    config.max_tokens = TOKENS;
    config.vocab = VOCAB;
    config.comm = b->comm;
    config.targets = targets;
    return bp_logprob_create(b->device, &config, &b->logprob);
}

static bp_status create_logprob(bench *b)
{
    return create_logprob_with(b, BP_TARGETS_MASK);
}

static bp_status create_checked(bench *b)
{
    return create_logprob_with(b, BP_TARGETS_ERROR);
}

static bp_status call_logprob(bench *b, bp_stream *stream, bool captured)
{
    bp_logprob_batch batch;
    bp_logprob_gradients gradients;
    bp_logprob_divergence_args divergence;
    const bp_logprob_outputs outputs = outputs_of(b);
    const bp_token_values least = values_at(b->there->least), none = {0};
    assert_ok(bp_logprob_batch_init(&batch, sizeof batch));
    batch.logits = rows_at(b->there->logits, VOCAB);
    batch.tokens = tokens_of(b);
    assert_ok(bp_logprob_gradients_init(&gradients, sizeof gradients));
    gradients.logprob_grad = gradients.entropy_grad = values_at(b->there->upstream);
    gradients.saved = outputs.saved;
    gradients.saved_bytes = outputs.saved_bytes;
    gradients.logits_grad = rows_at(b->there->grad, VOCAB);
    assert_ok(bp_logprob_divergence_args_init(&divergence, sizeof divergence));
    divergence.reference = rows_at(b->there->reference, VOCAB);
    divergence.saved = b->there->divergence_saved;
    divergence.saved_bytes = sizeof b->there->divergence_saved;
    divergence.divergence = values_at(b->there->divergence);
    divergence.divergence_grad = values_at(b->there->upstream);
    divergence.logits_grad = gradients.logits_grad;
    BP_TRY(bp_logprob_forward(b->logprob, &batch, &outputs, stream));
    BP_TRY(bp_logprob_backward(b->logprob, &batch, &gradients, stream));
    BP_TRY(bp_logprob_divergence(b->logprob, &batch, &divergence, stream));
    BP_TRY(bp_logprob_divergence_backward(b->logprob, &batch, &divergence, stream));
    BP_TRY(bp_logprob_forward_backward(b->logprob, &batch, &outputs, &gradients, stream));
    BP_TRY(bp_logprob_range(b->logprob, &batch, &least, &none, stream));
    return captured ? BP_OK : bp_logprob_check(b->logprob);
}

static bp_pool *pool_of_logprob(const bench *b)
{
    return bp_logprob_get_info(b->logprob)->pool;
}

static bp_status create_head(bench *b)
{
    bp_lm_head_config config;
    assert_ok(bp_lm_head_config_init(&config, sizeof config));
    config.max_tokens = TOKENS;
    config.hidden = HIDDEN;
    config.vocab = VOCAB;
    config.dtype = BP_DTYPE_FP32;
    config.chunk = 3;
    config.comm = b->comm;
    config.targets = BP_TARGETS_ERROR;
    return bp_lm_head_create(b->device, &config, &b->head);
}

static bp_status call_head(bench *b, bp_stream *stream, bool captured)
{
    bp_lm_head_batch batch;
    bp_lm_head_gradients gradients;
    const bp_logprob_outputs outputs = outputs_of(b);
    assert_ok(bp_lm_head_batch_init(&batch, sizeof batch));
    batch.hidden = rows_at(b->there->hidden, HIDDEN);
    batch.weight = b->there->weight;
    batch.tokens = tokens_of(b);
    assert_ok(bp_lm_head_gradients_init(&gradients, sizeof gradients));
    gradients.logprob_grad = values_at(b->there->upstream);
    gradients.saved = outputs.saved;
    gradients.saved_bytes = outputs.saved_bytes;
    gradients.hidden_grad = rows_at(b->there->hidden_grad, HIDDEN);
    gradients.weight_grad = b->there->weight_grad;
    BP_TRY(bp_lm_head_forward(b->head, &batch, &outputs, stream));
    BP_TRY(bp_lm_head_backward(b->head, &batch, &gradients, stream));
    return captured ? BP_OK : bp_lm_head_check(b->head);
}

static bp_pool *pool_of_head(const bench *b)
{
    return bp_lm_head_get_info(b->head)->pool;
}

static bp_status create_cp(bench *b)
{
    bp_cp_config config;
    assert_ok(bp_cp_config_init(&config, sizeof config));
    config.comm = b->comm;
    config.max_gathered_bytes = b->comm == NULL ? 0 : sizeof b->there->whole;
    return bp_cp_create(b->device, &config, &b->cp);
}

static bp_status call_cp(bench *b, bp_stream *stream, bool captured)
{
    const bp_cp_tensor whole = {.data = b->there->whole, .tokens = TOKENS, .token_bytes = 4};
    const bp_cp_tensor back = {.data = b->there->back, .tokens = LOCAL, .token_bytes = 4};
    bp_cp_rearrangement r;
    assert_ok(bp_cp_rearrangement_init(&r, sizeof r));
    r.from = (bp_cp_tensor){.data = b->there->upstream, .tokens = TOKENS, .token_bytes = 4};
    r.to = (bp_cp_tensor){
        .data = b->there->local, .tokens = bp_cp_split_get_info(b->split)->local_tokens, .token_bytes = 4};
    if (b->comm == NULL)
        r.to.data = b->there->whole;
    BP_TRY(bp_cp_rearrange(b->cp, b->split, &r, stream));
    if (b->comm == NULL || captured)
        return BP_OK;
    BP_TRY(bp_cp_gather(b->cp, b->split, &r.to, BP_CP_PACKED, &whole, stream));
    return bp_cp_gather_backward(b->cp, b->split, &whole, BP_CP_PACKED, BP_DTYPE_FP32, &back, stream);
}

static bp_pool *pool_of_cp(const bench *b)
{
    return bp_cp_pool(b->cp);
}

static bp_status create_loss(bench *b)
{
    bp_loss_config config;
    assert_ok(bp_loss_config_init(&config, sizeof config));
    config.max_sequences = SEQUENCES;
    return bp_loss_create(b->device, &config, &b->loss);
}

static bp_status call_loss(bench *b, bp_stream *stream, bool captured)
{
    const bp_token_values mask = values_at(b->there->mask), seed = values_at(b->there->seed);
    bp_loss_values values;
    assert_ok(bp_loss_values_init(&values, sizeof values));
    values.tokens = TOKENS;
    values.mask = mask;
    values.logprob = values_at(b->there->upstream);
    if (captured)
        assert_ok(bp_loss_count_set(b->loss, TOKENS));
    if (!captured) {
        BP_TRY(bp_loss_begin(b->loss));
        BP_TRY(bp_loss_add(b->loss, b->split, &values, stream));
        BP_TRY(bp_loss_reduce(b->loss, BP_OK, stream));
        assert_ok(bp_loss_statistics_init(&b->here.statistics, sizeof b->here.statistics));
        BP_TRY(bp_loss_statistics_get(b->loss, &b->here.statistics));
    }
    return bp_loss_seed(b->loss, b->split, TOKENS, &mask, -1, &seed, stream);
}

static bp_pool *pool_of_loss(const bench *b)
{
    (void)b;
    return NULL;
}

/* A capture of a client without a pool is not declared. */
static bp_status call_captured(bench *b, bp_status (*call)(bench *, bp_stream *, bool), bp_pool *pool)
{
    if (pool != NULL)
        BP_TRY(bp_capture_begin(pool, NULL, &b->capture));
    BP_TRY(bp_graph_begin(b->stream));
    b->is_capturing = true;
    BP_TRY(call(b, b->stream, true));
    BP_TRY(bp_graph_end(b->stream, &b->graph));
    b->is_capturing = false;
    if (pool != NULL) {
        BP_TRY(bp_capture_end(b->capture));
        BP_TRY(bp_capture_before_launch(b->capture, b->stream));
    }
    BP_TRY(bp_graph_launch(b->graph, b->stream));
    if (pool != NULL)
        BP_TRY(bp_capture_launched(b->capture, b->stream));
    return bp_stream_synchronize(b->stream);
}

static void end_capture(bench *b)
{
    if (b->is_capturing)
        (void)bp_graph_end(b->stream, &b->graph);
    b->is_capturing = false;
    (void)bp_stream_synchronize(b->stream);
    bp_graph_destroy(&b->graph);
    bp_capture_destroy(&b->capture);
}

typedef struct client_kind {
    const char *name;
    bool two_ranks;
    bp_status (*create)(bench *b);
    bp_status (*call)(bench *b, bp_stream *stream, bool captured);
    bp_pool *(*pool)(const bench *b);
} client_kind;

static const client_kind kinds[] = {
    {"logprob", false, create_logprob, call_logprob, pool_of_logprob},
    {"logprob, checked", false, create_checked, call_logprob, pool_of_logprob},
    {"logprob, two ranks", true, create_checked, call_logprob, pool_of_logprob},
    {"head", false, create_head, call_head, pool_of_head},
    {"head, two ranks", true, create_head, call_head, pool_of_head},
    {"cp", false, create_cp, call_cp, pool_of_cp},
    {"cp, two ranks", true, create_cp, call_cp, pool_of_cp},
    {"loss", false, create_loss, call_loss, pool_of_loss},
};

/* ---- the bench --------------------------------------------------------------------------------------------------------- */

static void reset_tensors(bench *b)
{
    memset(&b->here, 0xee, sizeof b->here);
    for (int i = 0; i < TOKENS * VOCAB; i++) {
        b->here.logits[i] = (float)(i * 7 % 19) / 4 - 2;
        b->here.reference[i] = (float)(i * 5 % 17) / 4 - 2;
    }
    for (int i = 0; i < TOKENS * HIDDEN; i++)
        b->here.hidden[i] = (float)(i * 3 % 11) / 4 - 1;
    for (int i = 0; i < VOCAB * HIDDEN; i++)
        b->here.weight[i] = (float)(i * 5 % 13) / 8 - 1;
    for (int i = 0; i < TOKENS; i++) {
        b->here.upstream[i] = (float)(i + 1) / 8;
        b->here.target[i] = i * 3 % VOCAB;
        b->here.mask[i] = i != 2;
    }
    assert_ok(bp_stream_copy(b->stream, b->there, &b->here, sizeof b->here));
    assert_ok(bp_stream_synchronize(b->stream));
}

static void read_tensors(bench *b)
{
    const bp_loss_statistics statistics = b->here.statistics;
    assert_ok(bp_stream_copy(b->stream, &b->here, b->there, sizeof b->here));
    assert_ok(bp_stream_synchronize(b->stream));
    b->here.statistics = statistics;
}

static void begin_bench(bench *b, const client_kind *kind)
{
    bp_cuda_config config;
    void *memory;
    *b = (bench){0};
    fake_cuda_reset();
    fake_cuda_configure(&settings);
    fake_cuda_table(&table);
    assert_int_equal(table.cuInit(0), 0);
    assert_ok(bp_cuda_config_init(&config, sizeof config));
    assert_ok(bp_device_create_cuda_from(&config, &table, &b->device));
    assert_ok(bp_stream_create(b->device, "caller", &b->stream));
    assert_ok(bp_device_allocate(b->device, sizeof *b->there, b->stream, &memory));
    b->there = memory;
    reset_tensors(b);
    if (kind->two_ranks) {
        const bp_comm_callbacks callbacks = {.size = sizeof callbacks,
                                             .ranks = 2,
                                             .exchange = exchange,
                                             .all_gather = all_gather,
                                             .all_reduce = reduce,
                                             .reduce_scatter = reduce};
        assert_ok(bp_comm_create_callback(&callbacks, b, "echo", &b->comm));
    }
    bp_cp_split_config split;
    static const int64_t cu[SEQUENCES + 1] = {0, TOKENS / 2, TOKENS};
    assert_ok(bp_cp_split_config_init(&split, sizeof split));
    split.cu_seqlens = cu;
    split.sequences = SEQUENCES;
    split.ranks = kind->two_ranks ? 2 : 1;
    assert_ok(bp_cp_split_create(&split, &b->split));
}

static void destroy_client(bench *b)
{
    bp_logprob_destroy(&b->logprob);
    bp_lm_head_destroy(&b->head);
    bp_cp_destroy(&b->cp);
    bp_loss_destroy(&b->loss);
}

static bool has_client(const bench *b)
{
    return b->logprob != NULL || b->head != NULL || b->cp != NULL || b->loss != NULL;
}

/* `broken`: releasing fails as well. */
static void end_bench(bench *b, bool broken)
{
    destroy_client(b);
    const bp_status freed = bp_device_free(b->device, b->there, sizeof *b->there, b->stream);
    bp_cp_split_destroy(&b->split);
    bp_comm_destroy(&b->comm);
    bp_stream_destroy(&b->stream);
    bp_device_destroy(&b->device);
    if (broken)
        return;
    assert_ok(freed);
    assert_string_equal(fake_cuda_broken(), "");
    assert_string_equal(fake_cuda_leaks(), "");
}

/* ---- faults ------------------------------------------------------------------------------------------------------------ */

/* A way to use a client, and the part in which the driver fails. */
typedef enum use { CREATION, CALLS_ON_OWN_STREAM, CALLS, CAPTURED_CALLS, DESTRUCTION, USES } use;
static const char *const use_names[USES] = {"creation", "calls without a stream", "calls", "captured calls",
                                            "destruction"};

/* Their failure is ignored, as nothing can be done; what they release stays. */
static bool undoes(const char *function)
{
    static const char *const words[] = {"Destroy", "Free", "Unmap", "Release", "Unload", "Unregister"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strstr(function, words[i]) != NULL)
            return true;
    return false;
}

/* Functions of this test and of the emulated cuBLAS, of texts, and cuCtxPopCurrent, after whose failure every later call has another context. */
static bool is_spared(const char *function)
{
    return strncmp(function, "cuGet", 5) == 0 || strncmp(function, "cuCtxPop", 8) == 0 ||
           strcmp(function, "cuCtxGetCurrent") == 0 || strcmp(function, "cuInit") == 0;
}

static bp_status perform(bench *b, const client_kind *kind, use part)
{
    switch (part) {
    case CREATION: return kind->create(b);
    case CALLS_ON_OWN_STREAM: return kind->call(b, NULL, false);
    case CALLS: return kind->call(b, b->stream, false);
    case CAPTURED_CALLS: return call_captured(b, kind->call, kind->pool(b));
    default: destroy_client(b); return BP_OK;
    }
}

static bp_status expected_status(int error)
{
    return error == OUT_OF_MEMORY ? BP_ERR_NO_DEVICE_MEMORY : BP_ERR_DEVICE;
}

static tensors good; /* of calls without a fault */

static void assert_serves(bench *b, const client_kind *kind, const char *words)
{
    if (!has_client(b))
        assert_ok(kind->create(b));
    reset_tensors(b);
    if (kind->call(b, b->stream, false) != BP_OK)
        fail_msg("%s: then the second try failed: %s", words, bp_error_detail());
    assert_ok(bp_stream_synchronize(b->stream));
    read_tensors(b);
    if (memcmp(&b->here, &good, sizeof good) != 0)
        fail_msg("%s: then the second try has other results", words);
}

/* False: the function has fewer than n uses. */
static bool fail_use(const client_kind *kind, use part, const char *function, uint64_t nth, int error, bool for_good)
{
    bench b;
    char words[200];
    begin_bench(&b, kind);
    if (part != CREATION)
        assert_ok(kind->create(&b));
    const uint64_t before = fake_cuda_calls(function);
    assert_true((for_good ? fake_cuda_fail_for_good : fake_cuda_fail)(function, nth, error));
    bp_error_record(BP_OK, "an earlier error");
    const bp_status status = perform(&b, kind, part);
    const bool met = fake_cuda_calls(function) - before >= nth;
    snprintf(words, sizeof words, "%s, %s: use %llu of %s fails %s with %d", kind->name, use_names[part],
             (unsigned long long)nth, function, for_good ? "for good" : "once", error);
    if (met && status == BP_OK && part != DESTRUCTION && !undoes(function))
        fail_msg("%s: no error", words);
    const bool named = undoes(function) || strstr(bp_error_detail(), function) != NULL ||
                       strstr(bp_error_detail(), ": cublas") != NULL; /* it calls the driver, too */
    if (status != BP_OK && (!met || status != expected_status(error) || !named))
        fail_msg("%s: %s: %s", words, bp_status_name(status), bp_error_detail());
    if (status == BP_OK && strcmp(bp_error_detail(), "an earlier error") != 0)
        fail_msg("%s: no error, but \"%s\"", words, bp_error_detail());
    assert_int_equal(has_client(&b), part != DESTRUCTION && (part != CREATION || status == BP_OK));
    if (!for_good) {
        void *popped;
        fake_cuda_fail_none();
        end_capture(&b);
        assert_int_equal(table.cuCtxPushCurrent(bp_cuda_of(b.device)->context), 0);
        assert_int_equal(table.cuCtxSynchronize(), 0);
        assert_int_equal(table.cuCtxPopCurrent(&popped), 0);
        assert_serves(&b, kind, words);
    }
    end_capture(&b);
    end_bench(&b, for_good || part == DESTRUCTION || undoes(function));
    return met;
}

static unsigned fail_each(const client_kind *kind, use part, int error, bool for_good)
{
    unsigned failures = 0;
    for (size_t f = 0; fake_cuda_function(f) != NULL; f++) {
        const char *function = fake_cuda_function(f);
        for (uint64_t nth = 1; !is_spared(function); nth += 1 + nth / (error == UNKNOWN && !is_brief() ? 4 : 1)) {
            if (!fail_use(kind, part, function, nth, error, for_good))
                break;
            failures++;
        }
    }
    return failures;
}

static void fail_kinds(int error, bool for_good)
{
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        bench b;
        begin_bench(&b, &kinds[k]);
        assert_ok(kinds[k].create(&b));
        assert_ok(kinds[k].call(&b, b.stream, false));
        assert_ok(bp_stream_synchronize(b.stream));
        read_tensors(&b);
        good = b.here;
        end_bench(&b, false);
        for (use part = 0; part < USES; part++) {
            if (part == CAPTURED_CALLS && kinds[k].two_ranks)
                continue; /* exchanges are not captured */
            assert_true(fail_each(&kinds[k], part, error, for_good) >= 1);
        }
    }
}

TEST(test_once)
{
    fail_kinds(UNKNOWN, false);
}

TEST(test_out_of_memory)
{
    fail_kinds(OUT_OF_MEMORY, false);
}

/* As after an illegal address in a kernel: nothing can be waited for or released any more, but nothing hangs or crashes. */
TEST(test_for_good)
{
    fail_kinds(ILLEGAL_ADDRESS, true);
}

int main(int argc, char **argv)
{
    fake_cuda_config_init(&settings);
    settings.poison = 1 << 16; /* a workspace of cuBLAS has 32 MiB */
    settings.kernels = argc > 1 ? argv[1] : NULL;
    return run_registered(NULL, NULL, NULL, NULL);
}

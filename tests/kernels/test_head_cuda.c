/* The fused head on a GPU, which is the emulated driver's, with the emulated cuBLAS and CUDA's kernels in an emulation: against fp64, in
 * streams that dawdle, captured. Tensors are the host's, which an emulated GPU reaches. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <bucketpool/capture.h>

#include <string.h>

#include "../contract/support.h"
#include "../support/driver.h"
#include "head_cases.h"

static bp_device *gpu;

static int begin_gpu(void **state)
{
    (void)state;
    gpu = new_cuda();
    return 0;
}

static int end_gpu(void **state)
{
    (void)state;
    bp_device_destroy(&gpu);
    return 0;
}

static bp_lm_head *make_head(const head_case *c)
{
    const bp_lm_head_config config = head_config_of(c);
    bp_lm_head_info info = {.size = sizeof info};
    bp_lm_head *head = NULL;
    assert_ok(bp_lm_head_create(gpu, &config, &head));
    assert_ok(bp_lm_head_info_get(head, &info));
    assert_string_equal(info.kernels, "cuda");
    assert_string_equal(info.products, "cublas");
    assert_int_equal(info.workspace_bytes, info.planned_bytes);
    return head;
}

/* Here gradients of logits are rounded to the weight's dtype: each term of a product by half of what its last bit is worth, which the sizes
 * of sums make up to four times as much. */
static double allowed_of(bp_dtype dtype)
{
    return dtype == BP_DTYPE_FP32 ? 1 : 1 + 4 * (dtype == BP_DTYPE_BF16 ? 0x1p-8 : 0x1p-11) / 4e-6;
}

static void judge(const head_tensors *t)
{
    const head_case *c = &t->v->c;
    const double outputs = wrong_outputs(t), gradients = wrong_gradients(t);
    if (!(outputs <= 1 && gradients <= allowed_of(c->dtype)))
        fail_msg("[%llu, %llu, %llu] x %llu, dtypes %s and %s, chunk %lld, gap %llu: wrong by %g and %g",
                 (unsigned long long)c->batch, (unsigned long long)c->sequence, (unsigned long long)c->hidden,
                 (unsigned long long)c->vocab, bp_dtype_name(c->dtype), bp_dtype_name(c->grad_dtype),
                 (long long)c->chunk, (unsigned long long)c->gap, outputs, gradients);
}

static void run_head(bp_lm_head *head, head_tensors *t, bp_stream *stream)
{
    assert_ok(bp_lm_head_forward(head, &t->batch, &t->outputs, stream));
    assert_ok(bp_lm_head_backward(head, &t->batch, &t->gradients, stream));
}

static void try_case(const head_case *c, bp_stream *stream)
{
    head_values v = values_of(c);
    head_tensors t = tensors_of(&v, 0, c->vocab);
    bp_lm_head *head = make_head(c);
    uint64_t bits = 0;
    for (int again = 0; again < 2; again++) {
        poison(&t);
        run_head(head, &t, stream);
        if (stream != NULL)
            assert_ok(bp_stream_synchronize(stream));
        judge(&t);
        assert_true(again == 0 || bits_of(&t) == bits);
        bits = bits_of(&t);
    }
    bp_lm_head_destroy(&head);
    free_tensors(&t);
    free_values(&v);
}

static void test_random(void **state)
{
    (void)state;
    bp_stream *stream = NULL;
    assert_ok(bp_stream_create(gpu, "caller", &stream));
    for (uint64_t seed = 0; seed < 24; seed++) {
        const head_case c = random_case(seed);
        try_case(&c, seed % 2 == 0 ? stream : NULL);
    }
    bp_stream_destroy(&stream);
}

/* More masked rows than are copied in one block. */
static void test_blocks(void **state)
{
    (void)state;
    const head_case c = {.batch = 1,
                         .sequence = 1100,
                         .hidden = 8,
                         .vocab = 40,
                         .dtype = BP_DTYPE_FP32,
                         .grad_dtype = BP_DTYPE_FP32,
                         .temperature = 1,
                         .has_mask = true,
                         .seed = 3};
    try_case(&c, NULL);
}

/* The whole of a step as a graph: the same bits as without. */
static void test_captured(void **state)
{
    (void)state;
    const head_case c = {.batch = 2,
                         .sequence = 9,
                         .hidden = 12,
                         .vocab = 33,
                         .dtype = BP_DTYPE_BF16,
                         .grad_dtype = BP_DTYPE_BF16,
                         .chunk = 4,
                         .temperature = 0.5F,
                         .has_mask = true,
                         .has_entropy = true,
                         .seed = 11};
    head_values v = values_of(&c);
    head_tensors t = tensors_of(&v, 0, c.vocab);
    bp_lm_head *head = make_head(&c);
    bp_stream *stream = NULL;
    bp_capture *capture = NULL;
    bp_graph *graph = NULL;
    assert_ok(bp_stream_create(gpu, "caller", &stream));
    poison(&t);
    run_head(head, &t, stream);
    assert_ok(bp_stream_synchronize(stream));
    const uint64_t bits = bits_of(&t);
    assert_ok(bp_capture_begin(bp_lm_head_pool(head), NULL, &capture));
    assert_ok(bp_graph_begin(stream));
    run_head(head, &t, stream);
    assert_ok(bp_graph_end(stream, &graph));
    assert_ok(bp_capture_end(capture));
    for (int launch = 0; launch < 3; launch++) {
        poison(&t);
        assert_ok(bp_capture_before_launch(capture, stream));
        assert_ok(bp_graph_launch(graph, stream));
        assert_ok(bp_capture_launched(capture, stream));
        assert_ok(bp_stream_synchronize(stream));
        judge(&t);
        assert_true(bits_of(&t) == bits);
    }
    bp_graph_destroy(&graph);
    bp_capture_destroy(&capture);
    bp_lm_head_destroy(&head);
    bp_stream_destroy(&stream);
    free_tensors(&t);
    free_values(&v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_captured),
    };
    return cmocka_run_group_tests(tests, begin_gpu, end_gpu);
}

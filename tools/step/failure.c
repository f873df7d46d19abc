/* SPDX-License-Identifier: Apache-2.0 */
/* The report of a request that found no memory. */
#include "step/step.h"

#include <stdio.h>
#include <string.h>

#include "shared/sheet.h"

enum { MAX_FRAMES = 8 };

/* Functions of C++, from the one that names the allocation: those before it are the allocator's. */
static void print_native_frames(const step_answer *a, uint32_t stack)
{
    const bp_trace *trace = a->trace;
    size_t shown = 0;
    for (size_t i = 0; stack != BP_TRACE_NONE && i < trace->stacks[stack].count && shown < MAX_FRAMES; i++) {
        const bp_trace_frame *frame = &trace->frames[trace->stacks[stack].frames[i]];
        const size_t chars = bp_trace_function_chars(frame->function);
        if (shown > 0 || frame == a->places.all[stack].frame) {
            cli_print("  at %.*s\n", (int)(chars < 200 ? chars : 200), frame->function);
            shown++;
        }
    }
}

/* Frames of the program and its framework; those of PyTorch where there are no others. */
static void print_frames(const step_answer *a, uint32_t stack)
{
    const bp_trace *trace = a->trace;
    size_t count = stack == BP_TRACE_NONE ? 0 : trace->stacks[stack].count, shown = 0;
    bool has_own = false;
    for (size_t i = 0; i < count; i++) {
        const uint32_t at = trace->stacks[stack].frames[i];
        has_own = has_own || (bp_trace_frame_is_python(&trace->frames[at]) && !a->places.is_foreign[at]);
    }
    for (size_t i = 0; i < count && shown < MAX_FRAMES; i++) {
        const bp_trace_frame *frame = &trace->frames[trace->stacks[stack].frames[i]];
        if (!bp_trace_frame_is_python(frame) || a->places.is_foreign[trace->stacks[stack].frames[i]] == has_own)
            continue;
        cli_print("  at %.200s:%llu", bp_trace_file_name(frame->file), (unsigned long long)frame->line);
        if (strcmp(frame->function, "<module>") != 0)
            cli_print(" %.200s", frame->function);
        putchar('\n');
        shown++;
    }
    if (shown == 0)
        print_native_frames(a, stack);
    if (count == 0)
        puts("  (no frames were recorded)");
}

static const char *remark_on(const step_answer *a, const bp_free_memory *m)
{
    if (m->pool != 0)
        return "of a private pool";
    if (m->stream != a->trace->streams[a->trace->events[a->failed.event].stream])
        return "of another stream";
    if (!bp_free_memory_is_own(m, a->trace, &a->failed))
        return m->is_small ? "for requests of up to 1 MiB" : "for requests of more than 1 MiB";
    return m->largest_bytes < a->failed.rounded_bytes ? "too small" : "large enough";
}

static int print_free(const step_answer *a, const step_options *options)
{
    const uint64_t device = a->trace->events[a->failed.event].address, needed = a->failed.needed_bytes;
    sheet s = sheet_new(cli_wants_color((cli_color)options->color));
    sheet_add_columns(&s, "FREE MEMORY|>RANGES|>BYTES|>LARGEST|");
    sheet_add_row(&s, "of the device", "", cli_bytes(device), "",
                  device < needed ? cli_text("too small: PyTorch asks for %s", cli_bytes(needed)) : "large enough",
                  NULL);
    for (size_t i = 0; i < a->failed.free_count; i++) {
        const bp_free_memory *m = &a->failed.free[i];
        sheet_add_row(&s, cli_text("stream %llu", (unsigned long long)m->stream), cli_text("%zu", m->ranges),
                      cli_bytes(m->bytes), cli_bytes(m->largest_bytes), remark_on(a, m), NULL);
    }
    if (a->failed.pending_bytes > 0)
        sheet_add_row(&s, "pending", "", cli_bytes(a->failed.pending_bytes), "",
                      "freed, but other streams may still use it", NULL);
    return sheet_finish(&s);
}

static void print_remedy(const step_answer *a)
{
    uint64_t missing = 0;
    switch (bp_failed_request_reason(a->trace, &a->failed, &missing)) {
    case BP_FAILURE_LIMIT:
        puts("The device had room for the request: a limit of the process refused it "
             "(set_per_process_memory_fraction), or "
             "another process had the memory at that moment.");
        break;
    case BP_FAILURE_RANGE:
        puts(
            "A free range is large enough: max_split_size_mb keeps it for larger requests, or it was of a private pool "
            "that is gone.");
        break;
    case BP_FAILURE_PIECES:
        puts("The memory is there, in pieces: whole free pages of the stream and of the device are enough together. "
             "PYTORCH_ALLOC_CONF=expandable_segments:True, or a plan, would serve the request.");
        break;
    case BP_FAILURE_OTHERS:
        puts(
            "A free range of another stream, pool or size is large enough: PyTorch does not give it to this request; a "
            "plan would.");
        break;
    case BP_FAILURE_SPLIT:
        puts("Enough is free in all, but in ranges that no setting joins: a plan would serve the request.");
        break;
    case BP_FAILURE_PENDING:
        puts(
            "Enough is free with the pending memory: fewer record_stream calls, or a wait for the other streams, would "
            "serve the request.");
        break;
    case BP_FAILURE_FULL:
        cli_print("%s more are needed, whatever the allocator: less must be live at this moment.\n",
                  cli_bytes(missing));
        break;
    }
}

static void print_list(const step_answer *a)
{
    const size_t shown = a->failures < STEP_LISTED_FAILURES ? (size_t)a->failures : STEP_LISTED_FAILURES;
    printf("%llu requests found no memory; the one with most live bytes is told here:\n",
           (unsigned long long)a->failures);
    for (size_t i = 0; i < shown; i++)
        cli_print("  event %u: a request of %s, %s live\n", a->listed[i].event,
                  cli_bytes(a->trace->events[a->listed[i].event].bytes), cli_bytes(a->listed[i].live_bytes));
    if (a->failures > shown)
        printf("  and %llu more\n", (unsigned long long)a->failures - shown);
}

int step_report_failure(const step_answer *a, const step_options *options)
{
    const bp_trace *t = a->trace;
    const bp_trace_event *request = &t->events[a->failed.event];
    const step_holders *live = &a->at_failure[options->by];
    cli_print("OUT OF MEMORY at event %u, %.3f s after the first: a request of %s on stream %llu\n", a->failed.event,
              (double)(request->time_us - t->events[0].time_us) / 1e6, cli_bytes(request->bytes),
              (unsigned long long)t->streams[request->stream]);
    print_frames(a, request->stack);
    if (a->failures > 1)
        print_list(a);
    if (a->failed.reserved_bytes > 0)
        cli_print("%s were live, PyTorch had %s from the driver, and the device had %s free\n\n",
                  cli_bytes(live->bytes), cli_bytes(a->failed.reserved_bytes), cli_bytes(request->address));
    else
        cli_print("%s were live, and the device had %s free\n\n", cli_bytes(live->bytes), cli_bytes(request->address));
    if (a->failed.reserved_bytes > 0) {
        CLI_TRY(print_free(a, options));
        print_remedy(a);
    }
    cli_print("\nLive when the request failed: %s\n", cli_bytes(live->bytes));
    CLI_TRY(step_report_holders(live, options));
    putchar('\n');
    return EXIT_GO_ON;
}

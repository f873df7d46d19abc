/* The report of a request that found no memory. */
#include "step/step.h"

#include <stdio.h>
#include <string.h>

#include "shared/sheet.h"

enum { MOST_FRAMES = 8 };

static void print_frames(const bp_trace *trace, uint32_t stack)
{
    size_t count = stack == BP_TRACE_NONE ? 0 : trace->stacks[stack].count, shown = 0;
    for (size_t i = 0; i < count && shown < MOST_FRAMES; i++) {
        const bp_trace_frame *frame = &trace->frames[trace->stacks[stack].frames[i]];
        if (!bp_trace_frame_is_python(frame))
            continue;
        printf("  at %.200s:%llu", step_file(frame->file), (unsigned long long)frame->line);
        if (strcmp(frame->function, "<module>") != 0)
            printf(" %.*s", (int)bp_trace_function_chars(frame->function), frame->function);
        putchar('\n');
        shown++;
    }
    if (shown == 0)
        puts("  (no frames of Python were recorded)");
}

static int print_free(const step_answer *a, const step_options *options)
{
    const bp_trace_event *request = &a->trace->events[a->failed.event];
    sheet s = sheet_new(cli_wants_color((cli_color)options->color));
    sheet_add_columns(&s, "FREE MEMORY|>RANGES|>BYTES|>LARGEST|");
    sheet_add_row(&s, "of the device", "", cli_bytes(request->address), "",
                  request->address < request->bytes ? "too small" : "", NULL);
    for (size_t i = 0; i < a->failed.free_count; i++) {
        const bp_free_memory *m = &a->failed.free[i];
        const char *what = m->pool != 0                                      ? "of a private pool"
                           : m->stream != a->trace->streams[request->stream] ? "of another stream"
                           : !bp_free_memory_serves(m, a->trace, a->failed.event)
                               ? (m->is_small ? "for requests of up to 1 MiB" : "for requests of more than 1 MiB")
                           : m->largest_bytes < request->bytes ? "too small"
                                                               : "";
        sheet_add_row(&s, cli_text("stream %llu", (unsigned long long)m->stream), cli_text("%zu", m->ranges),
                      cli_bytes(m->bytes), cli_bytes(m->largest_bytes), what, NULL);
    }
    if (a->failed.pending_bytes > 0)
        sheet_add_row(&s, "pending", "", cli_bytes(a->failed.pending_bytes), "",
                      "freed, but other streams may still use it", NULL);
    return sheet_finish(&s);
}

/* Free memory together is compared with the request: is it missing, or at the wrong places? */
static void print_remedy(const step_answer *a)
{
    const bp_trace_event *request = &a->trace->events[a->failed.event];
    uint64_t own = 0, all = 0;
    for (size_t i = 0; i < a->failed.free_count; i++) {
        all += a->failed.free[i].bytes;
        own += bp_free_memory_serves(&a->failed.free[i], a->trace, a->failed.event) ? a->failed.free[i].bytes : 0;
    }
    if (request->address >= request->bytes || own >= request->bytes - request->address)
        printf("The device and the stream together have %s free: the memory is there, in pieces. "
               "PYTORCH_ALLOC_CONF=expandable_segments:True, or a plan, serves this request.\n",
               cli_bytes(own + request->address));
    else if (all >= request->bytes - request->address)
        printf("In all, %s are free, but not for this stream: memory that other streams and pools hold would serve "
               "this request.\n",
               cli_bytes(all + request->address));
    else
        printf("In all, %s are free: %s more are needed, whatever the allocator. Less must be live at this moment.\n",
               cli_bytes(all + request->address), cli_bytes(request->bytes - request->address - all));
}

int step_report_failure(const step_answer *a, const step_options *options)
{
    const bp_trace *t = a->trace;
    const bp_trace_event *request = &t->events[a->failed.event];
    const step_holders *live = &a->at_failure[options->by];
    printf("OUT OF MEMORY at event %u, %.3f s after the first: a request of %s on stream %llu%s\n", a->failed.event,
           (double)(request->time_us - t->events[0].time_us) / 1e6, cli_bytes(request->bytes),
           (unsigned long long)t->streams[request->stream],
           a->failures > 1 ? cli_text(" (the last of %llu)", (unsigned long long)a->failures) : "");
    print_frames(t, request->stack);
    if (a->failed.reserved_bytes > 0)
        printf("%s were live, PyTorch had %s from the driver, and the device had %s free\n\n", cli_bytes(live->bytes),
               cli_bytes(a->failed.reserved_bytes), cli_bytes(request->address));
    else
        printf("%s were live, and the device had %s free\n\n", cli_bytes(live->bytes), cli_bytes(request->address));
    if (a->failed.reserved_bytes > 0) {
        CLI_TRY(print_free(a, options));
        print_remedy(a);
    }
    printf("\nLive when the request failed: %s\n", cli_bytes(live->bytes));
    CLI_TRY(step_report_holders(live, options));
    putchar('\n');
    return EXIT_GO_ON;
}

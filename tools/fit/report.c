/* SPDX-License-Identifier: Apache-2.0 */
/* The report of `fit`: verdict, micro-batches, what holds the peak, changes, notes. */
#include <stdio.h>
#include <string.h>

#include "core/print.h"
#include "fit/fit.h"
#include "shared/cli.h"
#include "shared/sheet.h"

enum { TEXT_CHARS = FIT_VERDICT_CHARS, PAGE_CHARS = 100 };

/* In the order of verdicts: what can be had without another program first. */
static const struct {
    bp_fit_total total;
    const char *with, *how;
} allocators[BP_FIT_ALLOCATORS] = {{BP_FIT_EXPANDABLE, "with expandable segments", ""},
                                   {BP_FIT_SERVED, "served", " (bucketpool.torch.steps)"},
                                   {BP_FIT_DEFAULT, "with the default", ""}};

/* "8,192" */
static const char *grouped(uint64_t number)
{
    char digits[24], text[32];
    const int count = snprintf(digits, sizeof digits, "%llu", (unsigned long long)number);
    size_t used = 0;
    for (int i = 0; i < count; i++) {
        if (i > 0 && (count - i) % 3 == 0)
            text[used++] = ',';
        text[used++] = digits[i];
    }
    text[used] = '\0';
    return cli_text("%s", text);
}

static uint64_t retries_of(const bp_fit_figures *figures, bp_fit_total allocator)
{
    return (int)allocator < (int)BP_FIT_RETRYING ? figures->retries[allocator] : BP_FIT_FAILS;
}

/* A cell below LEFT: "6.21 GiB", "3 retries" or "-1.02 GiB". */
static const char *left_text(const bp_fit_info *info, const bp_fit_figures *figures, bp_fit_total allocator)
{
    const uint64_t bytes = figures->bytes[allocator], limit = info->limit_bytes,
                   retries = retries_of(figures, allocator);
    if (bytes <= limit)
        return cli_bytes(limit - bytes);
    if (retries != BP_FIT_FAILS)
        return cli_text("%llu retr%s", (unsigned long long)retries, retries == 1 ? "y" : "ies");
    return cli_text("-%s", cli_bytes(bytes - limit));
}

/* ---- verdict ------------------------------------------------------------------------------------------------------- */

bool fit_fits(const bp_fit_info *info)
{
    for (unsigned t = 0; t < BP_FIT_ALLOCATORS; t++) {
        if (info->batch != 0 ? bp_fit_runs(&info->shown->worst, (bp_fit_total)t, info->limit_bytes)
                             : info->tables[0].largest[t] > 0)
            return true;
    }
    return false;
}

/* "micro-batch 4 of 8,192 tokens" */
static void add_batch(char text[TEXT_CHARS], const bp_fit_info *info, uint64_t batch)
{
    cli_append(text, TEXT_CHARS, "micro-batch %llu", (unsigned long long)batch);
    if (info->sequence > 0)
        cli_append(text, TEXT_CHARS, " of %s tokens", grouped(info->sequence));
}

/* "with expandable segments (3 without retries)" */
static void add_allocator(char text[TEXT_CHARS], const bp_fit_table *table, unsigned i)
{
    const bp_fit_total total = allocators[i].total;
    cli_append(text, TEXT_CHARS, " %s%s", allocators[i].with, allocators[i].how);
    if ((int)total >= (int)BP_FIT_RETRYING || table->largest_without_retries[total] == table->largest[total])
        return;
    if (table->largest_without_retries[total] == 0)
        cli_append(text, TEXT_CHARS, " (none without retries)");
    else
        cli_append(text, TEXT_CHARS, " (%llu without retries)",
                   (unsigned long long)table->largest_without_retries[total]);
}

/* Each allocator has the same largest micro-batch, without retries. */
static bool are_same(const bp_fit_table *table)
{
    for (unsigned t = 0; t < BP_FIT_ALLOCATORS; t++) {
        if (table->largest[t] != table->largest[0] ||
            (t < BP_FIT_RETRYING && table->largest_without_retries[t] != table->largest[t]))
            return false;
    }
    return true;
}

/* The largest micro-batches, allocators with the same one together; those without one last. */
static void add_largest(char text[TEXT_CHARS], const bp_fit_info *info)
{
    const bp_fit_table *table = &info->tables[0];
    unsigned told = 0;
    for (unsigned i = 0; i < BP_FIT_ALLOCATORS; i++) {
        const uint64_t batch = table->largest[allocators[i].total];
        if ((told >> i & 1) != 0 || batch == 0)
            continue;
        if (told == 0)
            add_batch(text, info, batch);
        else
            cli_append(text, TEXT_CHARS, ", %llu", (unsigned long long)batch);
        if (are_same(table)) {
            cli_append(text, TEXT_CHARS, " with each allocator");
            return;
        }
        unsigned left = 0;
        for (unsigned k = i; k < BP_FIT_ALLOCATORS; k++)
            left += table->largest[allocators[k].total] == batch;
        for (unsigned k = i; k < BP_FIT_ALLOCATORS; k++) {
            if (table->largest[allocators[k].total] != batch)
                continue;
            cli_append(text, TEXT_CHARS, "%s", k == i ? "" : left == 1 ? " and" : ",");
            add_allocator(text, table, k);
            told |= 1u << k;
            left--;
        }
    }
    for (unsigned i = 0; i < BP_FIT_ALLOCATORS; i++) {
        if ((told >> i & 1) == 0)
            cli_append(text, TEXT_CHARS, ", none %s%s", allocators[i].with, allocators[i].how);
    }
}

/* "1.20 GiB left", "3 retries", "3.40 GiB short" */
static const char *margin_text(const bp_fit_info *info, const bp_fit_figures *figures, bp_fit_total allocator)
{
    const uint64_t bytes = figures->bytes[allocator], limit = info->limit_bytes;
    if (bytes > limit && retries_of(figures, allocator) == BP_FIT_FAILS)
        return cli_text("%s short", cli_bytes(bytes - limit));
    return cli_text("%s%s", left_text(info, figures, allocator), bytes <= limit ? " left" : "");
}

/* One micro-batch: what is left with the allocators that take it, what the others lack. */
static void add_margins(char text[TEXT_CHARS], const bp_fit_info *info)
{
    const bp_fit_figures *figures = &info->shown->worst;
    const char *separator = "", *none = fit_fits(info) ? " not" : "";
    add_batch(text, info, info->shown_batch);
    for (unsigned runs = 2; runs-- > 0;) {
        for (unsigned i = 0; i < BP_FIT_ALLOCATORS; i++) {
            if (bp_fit_runs(figures, allocators[i].total, info->limit_bytes) != (runs == 1))
                continue;
            cli_append(text, TEXT_CHARS, "%s%s %s (%s)", separator, runs == 1 ? "" : none, allocators[i].with,
                       margin_text(info, figures, allocators[i].total));
            separator = ",";
        }
    }
}

/* The allocator that takes least, of those that run if there are any. */
static bp_fit_total best_allocator(const bp_fit_info *info, const bp_fit_figures *figures)
{
    unsigned best = 0;
    for (unsigned t = 1; t < BP_FIT_ALLOCATORS; t++) {
        const bool runs = bp_fit_runs(figures, (bp_fit_total)t, info->limit_bytes),
                   best_runs = bp_fit_runs(figures, (bp_fit_total)best, info->limit_bytes);
        if (runs != best_runs ? runs : figures->bytes[t] < figures->bytes[best])
            best = t;
    }
    return (bp_fit_total)best;
}

/* The bytes of the smallest micro-batch. */
static void add_needs(char text[TEXT_CHARS], const bp_fit_info *info, const bp_fit_row *row)
{
    add_batch(text, info, row->batch);
    cli_append(text, TEXT_CHARS, " takes");
    for (unsigned i = BP_FIT_ALLOCATORS; i-- > 0;)
        cli_append(text, TEXT_CHARS, " %s %s%s", cli_bytes(row->worst.bytes[allocators[i].total]), allocators[i].with,
                   i > 0 ? "," : "");
    cli_append(text, TEXT_CHARS, "; %s are there", cli_bytes(info->limit_bytes));
}

static const char *checkpointing_text(const bp_fit_table *table)
{
    return strcmp(table->checkpointing, "none") == 0 ? "without checkpointing"
                                                     : cli_text("with %s checkpointing", table->checkpointing);
}

/* The largest micro-batches of the other tables: "; with full checkpointing 6 to 8". */
static void add_others(char text[TEXT_CHARS], const bp_fit_info *info)
{
    for (size_t i = 1; i < info->table_count; i++) {
        const bp_fit_table *table = &info->tables[i];
        uint64_t min = UINT64_MAX, max = 0;
        for (unsigned t = 0; t < BP_FIT_ALLOCATORS; t++) {
            min = table->largest[t] < min ? table->largest[t] : min;
            max = table->largest[t] > max ? table->largest[t] : max;
        }
        cli_append(text, TEXT_CHARS, "; %s ", checkpointing_text(table));
        const bp_fit_figures *figures = &table->rows[0].worst;
        const bp_fit_total best = best_allocator(info, figures);
        if (info->batch != 0)
            cli_append(text, TEXT_CHARS, "%s", margin_text(info, figures, best));
        else if (max == 0)
            cli_append(text, TEXT_CHARS, "%s at least", cli_bytes(figures->bytes[best]));
        else if (min == max)
            cli_append(text, TEXT_CHARS, "%llu", (unsigned long long)max);
        else
            cli_append(text, TEXT_CHARS, "%llu to %llu", (unsigned long long)min, (unsigned long long)max);
    }
}

void fit_verdict(const bp_fit_info *info, char text[FIT_VERDICT_CHARS])
{
    const bool fits = fit_fits(info);
    bp_print(text, TEXT_CHARS, "%s on %.60s", fits ? "fits" : "does not fit", info->gpu);
    if (strcmp(info->tables[0].checkpointing, "none") != 0 && *info->tables[0].checkpointing != '\0')
        cli_append(text, TEXT_CHARS, " %s", checkpointing_text(&info->tables[0]));
    cli_append(text, TEXT_CHARS, ": ");
    if (info->batch != 0)
        add_margins(text, info);
    else if (fits)
        add_largest(text, info);
    else
        add_needs(text, info, &info->tables[0].rows[0]);
    add_others(text, info);
}

/* ---- text ---------------------------------------------------------------------------------------------------------- */

/* Lines of a page's width, broken at spaces; `first` and `rest` begin them. */
static void print_paragraph(const char *first, const char *rest, const char *text)
{
    size_t column = 0;
    while (*text != '\0') {
        const size_t word = strcspn(text, " ");
        if (column == 0 || column + 1 + word > PAGE_CHARS) {
            printf("%s%s", column == 0 ? "" : "\n", column == 0 ? first : rest);
            column = strlen(rest);
        } else {
            putchar(' ');
            column++;
        }
        cli_print("%.*s", (int)word, text);
        column += word;
        text += word;
        text += strspn(text, " ");
    }
    putchar('\n');
}

/* No ranks beside those of --dp, and what FSDP2 does anyway. */
static bool is_usual(const bp_fit_option *o)
{
    const bool is_ranks = strcmp(o->name, "dp") == 0 || strcmp(o->name, "ep") == 0 || strcmp(o->name, "tp") == 0;
    return (is_ranks && strcmp(o->value, "1") == 0) ||
           (strcmp(o->name, "reshard") == 0 && strcmp(o->value, "true") == 0);
}

/* Options of the training, those of everybody first; the rest of the report says others. */
static void add_options(char text[TEXT_CHARS], const bp_fit_info *info)
{
    static const char *const first[] = {"runtime", "dp",      "ep",          "tp",           "optimizer",
                                        "loss",    "weights", "param-dtype", "reduce-dtype", "reshard"};
    static const char *const elsewhere[] = {"model", "name",  "gpu",      "memory",       "reserve",
                                            "batch", "fresh", "sequence", "checkpointing"};
    enum { FIRST = sizeof first / sizeof *first, ELSEWHERE = sizeof elsewhere / sizeof *elsewhere };
    for (size_t place = 0; place <= FIRST; place++) {
        for (size_t i = 0; i < info->option_count; i++) {
            const bp_fit_option *o = &info->options[i];
            size_t at = 0, other = 0;
            while (at < FIRST && strcmp(o->name, first[at]) != 0)
                at++;
            while (other < ELSEWHERE && strcmp(o->name, elsewhere[other]) != 0)
                other++;
            if (at == place && other == ELSEWHERE && !is_usual(o))
                cli_append(text, TEXT_CHARS, ", %s %s", o->name, o->value);
        }
    }
    if (*info->tables[0].checkpointing != '\0')
        cli_append(text, TEXT_CHARS, ", checkpointing %s", info->tables[0].checkpointing);
}

/* ---- the table ----------------------------------------------------------------------------------------------------- */

static void print_heading(const bp_fit_info *info)
{
    char text[TEXT_CHARS];
    bp_print(text, sizeof text, "%.200s", info->model);
    if (info->parameters > 0) /* functions of the user need not say it */
        cli_append(text, sizeof text, ", %s parameters", cli_count(info->parameters));
    add_options(text, info);
    print_paragraph("", "", text);
    bp_print(text, sizeof text, "%.200s: %s for PyTorch, of %s less %s", info->gpu, cli_bytes(info->limit_bytes),
             cli_bytes(info->gpu_bytes), cli_bytes(info->reserve_bytes));
    if (*info->gpu_source != '\0')
        cli_append(text, sizeof text, " (%s)", info->gpu_source);
    print_paragraph("", "", text);
    putchar('\n');
}

static void add_cells(sheet *s, const bp_fit_info *info, const bp_fit_figures *figures)
{
    bool fits_all = true, runs_any = false;
    for (unsigned t = 0; t < BP_FIT_ALLOCATORS; t++) {
        fits_all = fits_all && figures->bytes[t] <= info->limit_bytes;
        runs_any = runs_any || bp_fit_runs(figures, (bp_fit_total)t, info->limit_bytes);
        sheet_add_cell(s, cli_bytes(figures->bytes[t]));
        sheet_add_cell(s, left_text(info, figures, (bp_fit_total)t));
    }
    sheet_add_cell(s, cli_bytes(figures->bytes[BP_FIT_PEAK]));
    if (!fits_all)
        sheet_color_line(s, runs_any ? "yellow" : "red");
}

static int print_rows(const bp_fit_info *info, const fit_options *options)
{
    const bp_fit_table *table = &info->tables[0];
    bool has_skewed = false;
    for (size_t i = 0; i < table->row_count; i++)
        has_skewed = has_skewed || table->rows[i].has_skewed;
    sheet s = sheet_new(cli_wants_color((cli_color)options->color));
    sheet_add_columns(&s, "MICRO-BATCH");
    if (has_skewed)
        sheet_add_columns(&s, "ROUTING");
    sheet_add_columns(&s, ">DEFAULT|>LEFT|>EXPANDABLE|>LEFT|>SERVED|>LEFT|>PEAK LIVE");
    for (size_t i = 0; i < table->row_count; i++) {
        const bp_fit_row *row = &table->rows[i];
        sheet_add_row(&s, cli_text("%llu", (unsigned long long)row->batch), NULL);
        if (has_skewed)
            sheet_add_cell(&s, row->has_skewed ? "uniform" : "");
        add_cells(&s, info, &row->uniform);
        if (!row->has_skewed)
            continue;
        sheet_add_row(&s, "", "skewed", NULL);
        add_cells(&s, info, &row->skewed);
    }
    return sheet_finish(&s);
}

/* A row shows retries. */
static bool has_retries(const bp_fit_info *info)
{
    for (size_t i = 0; i < info->tables[0].row_count; i++) {
        for (unsigned t = 0; t < BP_FIT_RETRYING; t++) {
            const bp_fit_figures *worst = &info->tables[0].rows[i].worst;
            if (worst->bytes[t] > info->limit_bytes && worst->retries[t] != BP_FIT_FAILS)
                return true;
        }
    }
    return false;
}

/* Traced and scaled rows. */
static void print_source(const bp_fit_info *info)
{
    const bp_fit_table *table = &info->tables[0];
    char text[TEXT_CHARS] = "";
    size_t traced = 0, told = 0;
    for (size_t i = 0; i < table->row_count; i++)
        traced += table->rows[i].is_traced;
    if (traced == table->row_count)
        cli_append(text, sizeof text, "Each row is traced");
    else if (traced > 0)
        cli_append(text, sizeof text, "Traced: micro-batch%s ", traced == 1 ? "" : "es");
    for (size_t i = 0; i < table->row_count && traced < table->row_count; i++) {
        if (table->rows[i].is_traced)
            cli_append(text, sizeof text, "%s%llu",
                       ++told == 1      ? ""
                       : told == traced ? " and "
                                        : ", ",
                       (unsigned long long)table->rows[i].batch);
    }
    if (traced < table->row_count)
        cli_append(text, sizeof text, "%s from two traces%s", traced == 0 ? "Scaled" : "; the others are scaled",
                   !table->is_scaled ? ""
                   : table->deviation < 5e-5
                       ? ", as further traces confirm"
                       : cli_text(", from which further traces differ by %.2f %%", 100 * table->deviation));
    cli_append(text, sizeof text, ". %.1f s%s.", info->seconds, info->is_cached ? ", now from the cache" : "");
    print_paragraph("", "", text);
    if (has_retries(info))
        print_paragraph("", "",
                        "Retries, in two steps: PyTorch finds no memory, waits for the GPU, releases what it caches "
                        "and asks the driver again. The training runs, but slower.");
}

/* ---- below the table ----------------------------------------------------------------------------------------------- */

static int print_kinds(const bp_fit_info *info, const fit_options *options)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < info->kind_count; i++)
        sum += info->kinds[i].bytes;
    if (sum == 0)
        return EXIT_GO_ON;
    printf("\nThe peak of micro-batch %llu%s: %s live\n", (unsigned long long)info->shown_batch,
           info->shown->has_skewed ? " with skewed routing" : "", cli_bytes(sum));
    sheet s = sheet_new(cli_wants_color((cli_color)options->color));
    sheet_add_columns(&s, "KIND|>BYTES|>SHARE");
    for (size_t i = 0; i < info->kind_count; i++)
        sheet_add_row(&s, info->kinds[i].kind, cli_bytes(info->kinds[i].bytes),
                      cli_text("%.1f %%", 100 * (double)info->kinds[i].bytes / (double)sum), NULL);
    return sheet_finish(&s);
}

static int print_changes(const bp_fit_info *info, const fit_options *options)
{
    if (info->change_count == 0)
        return EXIT_GO_ON;
    printf("\nChanges for micro-batch %llu, each from a trace, with the default allocator unless it is the change\n",
           (unsigned long long)info->shown_batch);
    sheet s = sheet_new(cli_wants_color((cli_color)options->color));
    sheet_add_columns(&s, "CHANGE|>BEFORE|>AFTER|>SAVED|OPTION");
    for (size_t i = 0; i < info->change_count; i++) {
        const bp_fit_change *c = &info->changes[i];
        const bool saves = c->after_bytes <= c->before_bytes;
        const char *amount = cli_bytes(saves ? c->before_bytes - c->after_bytes : c->after_bytes - c->before_bytes);
        sheet_add_row(&s, c->change, cli_bytes(c->before_bytes), cli_bytes(c->after_bytes),
                      cli_text("%s%s", saves ? "" : "-", amount), c->option, NULL);
    }
    return sheet_finish(&s);
}

int fit_report_one(const bp_fit_info *info, const fit_options *options)
{
    char text[TEXT_CHARS];
    fit_verdict(info, text);
    cli_print_title(text, cli_wants_color((cli_color)options->color));
    puts("\n");
    print_heading(info);
    CLI_TRY(print_rows(info, options));
    print_source(info);
    CLI_TRY(print_kinds(info, options));
    CLI_TRY(print_changes(info, options));
    if (info->note_count > 0)
        puts("\nAssumed, or not modelled:");
    for (size_t i = 0; i < info->note_count; i++)
        print_paragraph("- ", "  ", info->notes[i]);
    return EXIT_GO_ON;
}

/* ---- several models ------------------------------------------------------------------------------------------------ */

static const char *largest_text(uint64_t batch)
{
    return batch > 0 ? cli_text("%llu", (unsigned long long)batch) : "none";
}

/* With full checkpointing and the best allocator. */
static const char *full_text(const bp_fit_info *info)
{
    uint64_t max = 0;
    size_t i = 0;
    while (i < info->table_count && strcmp(info->tables[i].checkpointing, "full") != 0)
        i++;
    for (unsigned t = 0; i < info->table_count && t < BP_FIT_ALLOCATORS; t++)
        max = info->tables[i].largest[t] > max ? info->tables[i].largest[t] : max;
    return i < info->table_count ? largest_text(max) : "";
}

/* Largest micro-batches, or whether the one that was asked for fits. */
int fit_report_all(bp_fit_file *const *answers, size_t count, const fit_options *options)
{
    sheet s = sheet_new(cli_wants_color((cli_color)options->color));
    sheet_add_columns(&s, "MODEL|>PARAMETERS|GPU|>SEQUENCE|>DEFAULT|>EXPANDABLE|>SERVED|>FULL CHECKPOINTING|VERDICT");
    for (size_t i = 0; i < count; i++) {
        const bp_fit_info *info = bp_fit_file_get_message(answers[i])->fit;
        sheet_add_row(&s, info->model, info->parameters > 0 ? cli_count(info->parameters) : "", info->gpu,
                      info->sequence > 0 ? grouped(info->sequence) : "", NULL);
        for (unsigned t = 0; t < BP_FIT_ALLOCATORS; t++)
            sheet_add_cell(&s, largest_text(info->tables[0].largest[t]));
        sheet_add_cell(&s, full_text(info));
        sheet_add_cell(&s, fit_fits(info) ? "fits" : "does not fit");
        if (!fit_fits(info))
            sheet_color_line(&s, "red");
    }
    return sheet_finish(&s);
}

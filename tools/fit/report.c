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
    const char *with, *column;
} allocators[BP_FIT_ALLOCATORS] = {{BP_FIT_EXPANDABLE, "with expandable segments", ">EXPANDABLE"},
                                   {BP_FIT_SERVED, "served (bucketpool.torch.steps)", ">SERVED"},
                                   {BP_FIT_DEFAULT, "with the default", ">DEFAULT"}};

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

/* "6.21 GiB", "-1.02 GiB": what a micro-batch leaves. */
static const char *left_text(const bp_fit_info *info, uint64_t bytes)
{
    return bytes <= info->limit_bytes ? cli_bytes(info->limit_bytes - bytes)
                                      : cli_text("-%s", cli_bytes(bytes - info->limit_bytes));
}

/* ---- verdict ------------------------------------------------------------------------------------------------------- */

bool fit_fits(const bp_fit_info *info)
{
    for (unsigned t = 0; t < BP_FIT_ALLOCATORS; t++) {
        if (info->batch != 0 ? bp_fit_row_bytes(info->shown, (bp_fit_total)t) <= info->limit_bytes
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

/* The largest micro-batches, allocators with the same one together; those without one last. */
static void add_largest(char text[TEXT_CHARS], const bp_fit_info *info)
{
    const uint64_t *largest = info->tables[0].largest;
    unsigned told = 0;
    for (unsigned i = 0; i < BP_FIT_ALLOCATORS; i++) {
        const uint64_t batch = largest[allocators[i].total];
        if ((told >> i & 1) != 0 || batch == 0)
            continue;
        if (told == 0)
            add_batch(text, info, batch);
        else
            cli_append(text, TEXT_CHARS, ", %llu", (unsigned long long)batch);
        for (unsigned k = i, first = 1; k < BP_FIT_ALLOCATORS; k++) {
            if (largest[allocators[k].total] != batch)
                continue;
            cli_append(text, TEXT_CHARS, "%s %s", first ? "" : " and", allocators[k].with);
            told |= 1u << k;
            first = 0;
        }
    }
    for (unsigned i = 0; i < BP_FIT_ALLOCATORS; i++) {
        if ((told >> i & 1) == 0)
            cli_append(text, TEXT_CHARS, ", none %s", allocators[i].with);
    }
}

/* One micro-batch: what is left with the allocators that take it, what the others lack. */
static void add_margins(char text[TEXT_CHARS], const bp_fit_info *info)
{
    bool is_first = true;
    add_batch(text, info, info->shown_batch);
    for (unsigned fits = 2; fits-- > 0;) {
        for (unsigned i = 0; i < BP_FIT_ALLOCATORS; i++) {
            const uint64_t bytes = bp_fit_row_bytes(info->shown, allocators[i].total), limit = info->limit_bytes;
            if ((bytes <= limit) != (fits == 1))
                continue;
            cli_append(text, TEXT_CHARS, "%s %s%s (%s %s)", is_first ? "" : ",", fits ? "" : "not ", allocators[i].with,
                       cli_bytes(fits ? limit - bytes : bytes - limit), fits ? "left" : "short");
            is_first = false;
        }
    }
}

/* What the smallest micro-batch needs. */
static void add_needs(char text[TEXT_CHARS], const bp_fit_info *info, const bp_fit_row *row)
{
    add_batch(text, info, row->batch);
    cli_append(text, TEXT_CHARS, " needs");
    for (unsigned i = 0; i < BP_FIT_ALLOCATORS; i++)
        cli_append(text, TEXT_CHARS, "%s %s %s", i > 0 ? "," : "",
                   cli_bytes(bp_fit_row_bytes(row, allocators[i].total)), allocators[i].with);
    cli_append(text, TEXT_CHARS, "; %s are there", cli_bytes(info->limit_bytes));
}

/* What full checkpointing brings, from its table: "; with full checkpointing 6 to 8". */
static void add_checkpointing(char text[TEXT_CHARS], const bp_fit_info *info)
{
    for (size_t i = 1; i < info->table_count; i++) {
        const bp_fit_table *table = &info->tables[i];
        uint64_t min = UINT64_MAX, max = 0, bytes = UINT64_MAX;
        for (unsigned t = 0; t < BP_FIT_ALLOCATORS; t++) {
            min = table->largest[t] < min ? table->largest[t] : min;
            max = table->largest[t] > max ? table->largest[t] : max;
            const uint64_t needed = bp_fit_row_bytes(&table->rows[0], (bp_fit_total)t);
            bytes = needed < bytes ? needed : bytes;
        }
        cli_append(text, TEXT_CHARS, "; with %s checkpointing ", table->checkpointing);
        if (max == 0)
            cli_append(text, TEXT_CHARS, "%s at least", cli_bytes(bytes));
        else if (min == max)
            cli_append(text, TEXT_CHARS, "%llu", (unsigned long long)max);
        else
            cli_append(text, TEXT_CHARS, "%llu to %llu", (unsigned long long)min, (unsigned long long)max);
    }
}

void fit_verdict(const bp_fit_info *info, char text[FIT_VERDICT_CHARS])
{
    const bool fits = fit_fits(info);
    bp_print(text, TEXT_CHARS, fits ? "fits: " : "does not fit: ");
    if (info->batch != 0)
        add_margins(text, info);
    else if (fits)
        add_largest(text, info);
    else
        add_needs(text, info, &info->tables[0].rows[0]);
    add_checkpointing(text, info);
}

/* ---- the table ----------------------------------------------------------------------------------------------------- */

static const char *option_of(const bp_fit_info *info, const char *name)
{
    for (size_t i = 0; i < info->option_count; i++) {
        if (strcmp(info->options[i].name, name) == 0)
            return info->options[i].value;
    }
    return NULL;
}

/* Options of the training that are not in other lines. */
static void print_options(const bp_fit_info *info)
{
    static const char *const elsewhere[] = {"model", "name",  "gpu",      "memory",        "reserve",
                                            "batch", "fresh", "sequence", "checkpointing", NULL};
    const char *separator = ": ";
    for (size_t i = 0; i < info->option_count; i++) {
        size_t k = 0;
        while (elsewhere[k] != NULL && strcmp(info->options[i].name, elsewhere[k]) != 0)
            k++;
        if (elsewhere[k] != NULL)
            continue;
        cli_print("%s%s %s", separator, info->options[i].name, info->options[i].value);
        separator = ", ";
    }
    if (*info->tables[0].checkpointing != '\0')
        cli_print("%scheckpointing %s", separator, info->tables[0].checkpointing);
    putchar('\n');
}

static void print_heading(const bp_fit_info *info)
{
    cli_print("%s, %s parameters", info->model, cli_count(info->parameters));
    print_options(info);
    cli_print("%s: %s for PyTorch, of %s less %s", info->gpu, cli_bytes(info->limit_bytes), cli_bytes(info->gpu_bytes),
              cli_bytes(info->reserve_bytes));
    if (*info->gpu_source != '\0')
        cli_print(" (%s)", info->gpu_source);
    puts("\n");
}

static void add_cells(sheet *s, const bp_fit_info *info, const uint64_t bytes[BP_FIT_TOTALS])
{
    bool fits_all = true, fits_any = false;
    for (unsigned t = 0; t < BP_FIT_ALLOCATORS; t++) {
        const bool fits = bytes[t] <= info->limit_bytes;
        fits_all = fits_all && fits;
        fits_any = fits_any || fits;
        sheet_add_cell(s, cli_bytes(bytes[t]));
        sheet_add_cell(s, left_text(info, bytes[t]));
    }
    sheet_add_cell(s, cli_bytes(bytes[BP_FIT_PEAK]));
    if (!fits_all)
        sheet_color_line(s, fits_any ? "yellow" : "red");
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
        add_cells(&s, info, row->bytes);
        if (!row->has_skewed)
            continue;
        sheet_add_row(&s, "", "skewed", NULL);
        add_cells(&s, info, row->skewed);
    }
    return sheet_finish(&s);
}

/* How the rows came about. */
static void print_source(const bp_fit_info *info)
{
    const bp_fit_table *table = &info->tables[0];
    size_t traced = 0;
    for (size_t i = 0; i < table->row_count; i++)
        traced += table->rows[i].is_traced;
    if (traced == table->row_count) {
        printf("Each row is from a trace");
    } else {
        printf("Traced: micro-batch%s ", traced == 1 ? "" : "es");
        for (size_t i = 0, told = 0; i < table->row_count; i++) {
            if (!table->rows[i].is_traced)
                continue;
            told++;
            printf("%s%llu",
                   told == 1        ? ""
                   : told == traced ? " and "
                                    : ", ",
                   (unsigned long long)table->rows[i].batch);
        }
        printf("%s; the others are scaled from two of them", traced == 0 ? "none in the table" : "");
    }
    printf("; %.1f seconds%s\n", info->seconds, info->is_cached ? ", now from the cache" : "");
}

/* ---- below the table ----------------------------------------------------------------------------------------------- */

static int print_kinds(const bp_fit_info *info, const fit_options *options)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < info->kind_count; i++)
        sum += info->kinds[i].bytes;
    if (sum == 0)
        return EXIT_GO_ON;
    printf("\nThe peak of micro-batch %llu: %s live\n", (unsigned long long)info->shown_batch, cli_bytes(sum));
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
    puts("\nChanges, the largest saving first; the default allocator where the change is not another one");
    sheet s = sheet_new(cli_wants_color((cli_color)options->color));
    sheet_add_columns(&s, "CHANGE|OPTION|>MICRO-BATCH|>BEFORE|>AFTER|>SAVED");
    for (size_t i = 0; i < info->change_count; i++) {
        const bp_fit_change *c = &info->changes[i];
        sheet_add_row(&s, c->change, c->option, cli_text("%llu", (unsigned long long)c->batch),
                      cli_bytes(c->before_bytes), cli_bytes(c->after_bytes),
                      c->after_bytes <= c->before_bytes ? cli_bytes(c->before_bytes - c->after_bytes)
                                                        : cli_text("-%s", cli_bytes(c->after_bytes - c->before_bytes)),
                      NULL);
    }
    return sheet_finish(&s);
}

/* A line of the list, broken at spaces. */
static void print_note(const char *note)
{
    size_t column = 0;
    while (*note != '\0') {
        const size_t word = strcspn(note, " ");
        if (column == 0 || column + 1 + word > PAGE_CHARS) {
            printf("%s", column == 0 ? "- " : "\n  ");
            column = 2;
        } else {
            putchar(' ');
            column++;
        }
        cli_print("%.*s", (int)word, note);
        column += word;
        note += word;
        note += strspn(note, " ");
    }
    putchar('\n');
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
        print_note(info->notes[i]);
    return EXIT_GO_ON;
}

/* ---- several models ------------------------------------------------------------------------------------------------ */

static const char *largest_text(uint64_t batch)
{
    return batch > 0 ? cli_text("%llu", (unsigned long long)batch) : "none";
}

/* Largest micro-batches, or whether the one that was asked for fits. */
int fit_report_all(bp_fit_file *const *answers, size_t count, const fit_options *options)
{
    sheet s = sheet_new(cli_wants_color((cli_color)options->color));
    sheet_add_columns(&s, "MODEL|>PARAMETERS|GPU|>SEQUENCE|>DEFAULT|>EXPANDABLE|>SERVED|>FULL CHECKPOINTING|VERDICT");
    for (size_t i = 0; i < count; i++) {
        const bp_fit_info *info = bp_fit_file_get_message(answers[i])->fit;
        sheet_add_row(&s, info->model, cli_count(info->parameters), info->gpu,
                      info->sequence > 0 ? grouped(info->sequence) : "", NULL);
        for (unsigned t = 0; t < BP_FIT_ALLOCATORS; t++)
            sheet_add_cell(&s, largest_text(info->tables[0].largest[t]));
        uint64_t full = 0;
        for (unsigned t = 0; info->table_count > 1 && t < BP_FIT_ALLOCATORS; t++)
            full = info->tables[1].largest[t] > full ? info->tables[1].largest[t] : full;
        sheet_add_cell(&s, info->table_count > 1 ? largest_text(full) : "");
        sheet_add_cell(&s, fit_fits(info) ? "fits" : "does not fit");
        if (!fit_fits(info))
            sheet_color_line(&s, "red");
    }
    return sheet_finish(&s);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes bp_fit_file_parse: an accepted document agrees with itself. */
#include <stdlib.h>
#include <string.h>

#include "formats/fit_file.h"
#include "target.h"

static void need(int holds)
{
    if (!holds)
        abort();
}

static void check_table(const bp_fit_table *table, uint64_t limit)
{
    need(table->row_count > 0);
    for (size_t i = 0; i < table->row_count; i++) {
        need(table->rows[i].batch > (i > 0 ? table->rows[i - 1].batch : 0));
        for (unsigned t = 0; t < BP_FIT_ALLOCATORS; t++)
            need(table->rows[i].batch <= table->largest[t] ||
                 !bp_fit_runs(&table->rows[i].worst, (bp_fit_total)t, limit));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bp_fit_file *file = NULL;
    bp_status status = bp_fit_file_parse((const char *)data, size, "input", &file);
    need((status == BP_OK) == (file != NULL));
    if (file == NULL) {
        need(*bp_error_detail() != '\0' && strchr(bp_error_detail(), '\n') == NULL);
        return 0;
    }
    const bp_fit_message *message = bp_fit_file_get_message(file);
    need((message->progress != NULL) + (message->error != NULL) + (message->fit != NULL) == 1);
    need(strlen(bp_fit_file_text(file)) <= size);
    for (size_t i = 0; message->fit != NULL && i < message->fit->table_count; i++)
        check_table(&message->fit->tables[i], message->fit->limit_bytes);
    need(message->fit == NULL || message->fit->shown->batch == message->fit->shown_batch);
    bp_fit_file_destroy(&file);
    return 0;
}

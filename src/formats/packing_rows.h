/* A packing file: the instance and its rows. */
#ifndef BP_FORMATS_PACKING_ROWS_H
#define BP_FORMATS_PACKING_ROWS_H

#include "formats/csv.h"
#include "formats/packing_file.h"

typedef enum bp_packing_column {
    BP_COLUMN_ID,
    BP_COLUMN_LOWER,
    BP_COLUMN_UPPER,
    BP_COLUMN_SIZE,
    BP_COLUMN_GAPS,
    BP_COLUMN_OFFSET,
    BP_COLUMN_COUNT
} bp_packing_column;

extern const char *const bp_packing_column_names[BP_COLUMN_COUNT];

typedef struct bp_packing_row {
    const char *cells[BP_COLUMN_COUNT]; /* as given; NULL: no such column */
    size_t id_at;                       /* where in its line the id stands */
} bp_packing_row;

struct bp_packing_file {
    bp_packing *packing;
    bp_packing_column columns[BP_COLUMN_COUNT]; /* in the order of the file */
    size_t column_count;
    bool has_column[BP_COLUMN_COUNT];
    bp_packing_row *rows; /* row i is line i + 2 */
    uint64_t *offsets;    /* of the rows */
    size_t row_count, row_capacity;
    char *text; /* of the cells */
};

/* Adds the intervals that item `item` is live in: [begin, end) without the gaps of `field`, NULL for none. */
bp_status bp_packing_add_life(bp_packing *packing, size_t item, uint64_t begin, uint64_t end, const bp_csv *csv,
                              const bp_csv_field *field);

/* Takes the digits at `*text` and moves behind them. false: there are none, or the number does not fit 64 bits. */
bool bp_take_number(const char **text, uint64_t *number);

#endif

#include "schedule_rows.h"

#include "names.h"

enum { ALL_UP_TO = 40, MOST_ROWS = 60, BEFORE = 2, AFTER = 2 };

static void show(const schedule_view *v, uint32_t step, bool *shown)
{
    uint32_t first = step > BEFORE ? step - BEFORE : 0;
    for (uint32_t i = first; i < v->steps && i <= step + AFTER; i++)
        shown[i] = true;
}

static bp_phase direction_of(const schedule_view *v, uint32_t index)
{
    return names_direction(&bp_schedule_get_info(v->analysed->schedule)->steps[index]);
}

static uint32_t count_rows(const schedule_view *v, const bool *shown)
{
    uint32_t rows = 0;
    for (uint32_t i = 0; i < v->steps; i++)
        rows += shown[i];
    return rows;
}

void schedule_rows_choose(const schedule_view *v, bool *shown)
{
    for (uint32_t i = 0; i < v->steps; i++)
        shown[i] = v->steps <= ALL_UP_TO;
    if (v->steps <= ALL_UP_TO)
        return;
    show(v, 0, shown);
    show(v, v->steps - 1, shown);
    for (size_t i = 0; i < v->role_count; i++)
        show(v, v->roles[i].peak_step, shown);
    uint32_t rows = count_rows(v, shown);
    for (uint32_t i = 1; i < v->steps && rows < MOST_ROWS; i++) {
        if (direction_of(v, i) == direction_of(v, i - 1))
            continue;
        show(v, i, shown);
        rows = count_rows(v, shown);
    }
    for (uint32_t i = 1; i + 1 < v->steps; i++) /* a line that says that one is left out is no shorter */
        shown[i] = shown[i] || (shown[i - 1] && shown[i + 1]);
}

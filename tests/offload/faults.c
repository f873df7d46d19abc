/* SPDX-License-Identifier: Apache-2.0 */
/* A device whose nth call fails. */
#include "faults.h"
#include "support/driver.h"

static bp_status make_call(const store *s, const trip *t, stage which)
{
    switch (which) {
    case BEGIN_OFFLOAD: return bp_offload_begin(s->offload, t->group, t->kept ? BP_OFFLOAD_KEEP : BP_OFFLOAD_DISCARD);
    case FINISH_OFFLOAD: return bp_offload_finish(s->offload, t->group);
    case BEGIN_RESTORE: return bp_restore_begin(s->offload, t->group, t->fill);
    default: return bp_restore_finish(s->offload, t->group);
    }
}

bp_status make_stage(store *s, const trip *t, stage which)
{
    bp_status status = make_call(s, t, which);
    if (status == BP_OK && which == BEGIN_OFFLOAD)
        note_begun(s, t->group, t->kept);
    if (status == BP_OK && which == FINISH_RESTORE)
        note_restored(s, t->group, t->fill);
    return status;
}

bp_residency residency_before(stage which)
{
    static const bp_residency before[STAGES] = {BP_RESIDENT, BP_OFFLOADING, BP_OFFLOADED, BP_RESTORING};
    return before[which];
}

static void advance(store *s, const trip *t)
{
    switch (group_of(s->offload, t->group).residency) {
    case BP_RESIDENT:
        if (t->kept)
            begin_keep(s, t->group);
        else
            begin_discard(s, t->group);
        break;
    case BP_OFFLOADING: finish_offload(s, t->group); break;
    case BP_OFFLOADED: begin_restore(s, t->group, t->fill); break;
    default: finish_restore(s, t->group, t->fill); break;
    }
}

void advance_to(store *s, const trip *t, stage which)
{
    while (group_of(s->offload, t->group).residency != residency_before(which))
        advance(s, t);
}

void recover(store *s, const trip *t)
{
    advance_to(s, t, BEGIN_OFFLOAD);
    assert_int_equal(group_of(s->offload, t->group).unreturned_bytes, 0);
    assert_group_bytes(s, t->group);
    if (!t->kept) /* for the next run */
        for (size_t i = 0; i < s->slab_count; i++)
            if (is_in_group(s, i, t->group))
                write_slab(s, i, s->k.streams[0]);
}

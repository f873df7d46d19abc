/* SPDX-License-Identifier: Apache-2.0 */
/* Release groups of stores, with their offload and restore. */
#include "stores.h"

bp_offload_group group_of(const bp_offload *offload, const char *name)
{
    bp_offload_group groups[MAX_GROUPS] = {{.size = sizeof groups[0]}};
    size_t count = 0;
    assert_ok(bp_offload_groups(offload, groups, MAX_GROUPS, &count));
    for (size_t i = 0; i < count; i++) {
        if (strcmp(groups[i].name, name) == 0)
            return groups[i];
    }
    fail_msg("unknown group %s", name);
    return groups[0];
}

size_t group_count(const bp_offload *offload)
{
    size_t count = 0;
    assert_ok(bp_offload_groups(offload, NULL, 0, &count));
    return count;
}

bp_offload_group group_at(const bp_offload *offload, size_t index)
{
    bp_offload_group groups[MAX_GROUPS] = {{.size = sizeof groups[0]}};
    size_t count = 0;
    assert_ok(bp_offload_groups(offload, groups, MAX_GROUPS, &count));
    assert_true(index < count);
    return groups[index];
}

bool is_in_group(const store *s, size_t slab, const char *group)
{
    return strcmp(s->slabs[slab].group, group) == 0;
}

uint64_t bytes_of_group(const store *s, const char *group)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < s->slab_count; i++)
        bytes += is_in_group(s, i, group) ? s->slabs[i].bytes : 0;
    assert_true(bytes > 0);
    return bytes;
}

size_t slab_of_group(const store *s, const char *group)
{
    for (size_t i = 0; i < s->slab_count; i++)
        if (is_in_group(s, i, group))
            return i;
    fail_msg("no slab of group %s", group);
    return 0;
}

void note_begun(store *s, const char *group, bool kept)
{
    for (size_t i = 0; i < s->slab_count; i++)
        if (is_in_group(s, i, group))
            s->discarded[i] = !kept;
}

void note_restored(store *s, const char *group, bp_restore fill)
{
    for (size_t i = 0; i < s->slab_count; i++) {
        if (!is_in_group(s, i, group) || !s->discarded[i])
            continue;
        memset(s->bytes[i], 0, s->slabs[i].bytes);
        memset(s->known[i], fill == BP_RESTORE_ZERO, s->slabs[i].bytes);
    }
}

void begin_keep(store *s, const char *group)
{
    assert_ok(bp_offload_begin(s->offload, group, BP_OFFLOAD_KEEP));
    note_begun(s, group, true);
}

void begin_discard(store *s, const char *group)
{
    assert_ok(bp_offload_begin(s->offload, group, BP_OFFLOAD_DISCARD));
    note_begun(s, group, false);
}

void finish_offload(store *s, const char *group)
{
    assert_ok(bp_offload_finish(s->offload, group));
}

void keep(store *s, const char *group)
{
    begin_keep(s, group);
    finish_offload(s, group);
}

void discard(store *s, const char *group)
{
    begin_discard(s, group);
    finish_offload(s, group);
}

void begin_restore(store *s, const char *group, bp_restore fill)
{
    assert_ok(bp_restore_begin(s->offload, group, fill));
}

void finish_restore(store *s, const char *group, bp_restore fill)
{
    assert_ok(bp_restore_finish(s->offload, group));
    note_restored(s, group, fill);
}

void bring_back(store *s, const char *group, bp_restore fill)
{
    begin_restore(s, group, fill);
    finish_restore(s, group, fill);
}

store_state state_of(const store *s)
{
    store_state state = {.pool = snapshot_of(s->k.pool), .count = group_count(s->offload)};
    assert_true(state.count <= MAX_GROUPS);
    for (size_t i = 0; i < state.count; i++)
        state.groups[i] = group_at(s->offload, i);
    state.committed_bytes = usage_of(s->k.device).committed_bytes;
    return state;
}

void assert_same_state(const store *s, const store_state *before)
{
    assert_unchanged(s->k.pool, &before->pool);
    assert_int_equal(group_count(s->offload), before->count);
    assert_int_equal(usage_of(s->k.device).committed_bytes, before->committed_bytes);
    for (size_t i = 0; i < before->count; i++) {
        const bp_offload_group now = group_at(s->offload, i), *was = &before->groups[i];
        assert_string_equal(now.name, was->name);
        assert_int_equal(now.residency, was->residency);
        assert_int_equal(now.bytes, was->bytes);
        assert_int_equal(now.resident_bytes, was->resident_bytes);
        assert_int_equal(now.kept_bytes, was->kept_bytes);
        assert_int_equal(now.unreturned_bytes, was->unreturned_bytes);
        assert_int_equal(now.offloads, was->offloads);
        assert_int_equal(now.restores, was->restores);
        assert_int_equal(now.leases, was->leases);
    }
}

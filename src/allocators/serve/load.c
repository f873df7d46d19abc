/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a server: the tables of a plan. */
#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>
#include <bucketpool/core/structs.h>

#include <stdlib.h>
#include <string.h>

#include "allocators/serve/server.h"

static bp_status room(size_t count, size_t bytes, int fill, void *array)
{
    void *made = malloc((count + 1) * bytes);
    if (made == NULL)
        return bp_fail_memory(count * bytes);
    memset(made, fill, (count + 1) * bytes);
    memcpy(array, &made, sizeof made);
    return BP_OK;
}

/* A power of two, twice as large as the count at least. */
static uint32_t slots_for(size_t count)
{
    uint32_t slots = 16;
    while (slots < 2 * count)
        slots *= 2;
    return slots;
}

/* ---- atoms --------------------------------------------------------------------------------------------------------- */

static int by_offset(const void *left, const void *right)
{
    const uint64_t *a = left, *b = right;
    return (*a > *b) - (*a < *b);
}

/* The first atom from `atom` on at which a live block begins, or NONE. */
static uint32_t next_block(const bp_step_server *s, uint32_t atom)
{
    while (atom < s->atom_count && !(s->starts[atom / 64] >> atom % 64 & 1))
        atom++;
    return atom < s->atom_count ? atom : NONE;
}

static bp_status make_atoms(bp_step_server *s, const bp_step_plan_info *plan, const bp_step_server *before)
{
    const size_t live = before != NULL ? before->statistics.live : 0;
    size_t count = 0;
    BP_TRY(room(2 * ((size_t)s->item_count + live) + 2, sizeof *s->atoms, 0, &s->atoms));
    s->atoms[count++] = 0;
    s->atoms[count++] = before != NULL ? before->atoms[before->atom_count] : plan->bytes;
    for (uint32_t atom = live > 0 ? next_block(before, 0) : NONE; atom != NONE; atom = next_block(before, atom + 1)) {
        s->atoms[count++] = before->atoms[atom];
        s->atoms[count++] = before->atoms[before->blocks[atom].end];
    }
    for (size_t k = 0; k < plan->kind_count; k++) {
        for (size_t i = 0; i < plan->kinds[k].item_count; i++) {
            const bp_step_plan_item *item = &plan->kinds[k].items[i];
            if (item->offset == BP_STEP_OUTSIDE)
                continue;
            s->atoms[count++] = item->offset;
            s->atoms[count++] = item->offset + bp_step_round(item->bytes);
        }
    }
    qsort(s->atoms, count, sizeof *s->atoms, by_offset);
    size_t kept = 1;
    for (size_t i = 1; i < count; i++) {
        if (s->atoms[i] != s->atoms[kept - 1])
            s->atoms[kept++] = s->atoms[i];
    }
    s->atom_count = (uint32_t)kept - 1; /* the last offset is the end of the slab */
    s->words = s->atom_count / 64 + 1;
    s->begin_slots = slots_for(kept);
    BP_TRY(room(s->begin_slots, sizeof *s->begins, 0xff, &s->begins));
    for (uint32_t i = 0; i < kept; i++)
        s->begins[serve_begin_slot(s, s->atoms[i])] = i;
    BP_TRY(room(s->words, sizeof *s->busy, 0, &s->busy));
    BP_TRY(room(s->words, sizeof *s->starts, 0, &s->starts));
    BP_TRY(room(s->atom_count, sizeof *s->blocks, 0, &s->blocks));
    BP_TRY(room(s->atom_count, sizeof *s->requests, 0, &s->requests));
    BP_TRY(room(s->words, sizeof *s->order, 0, &s->order));
    return room(s->atom_count, sizeof *s->times, 0, &s->times);
}

/* ---- items --------------------------------------------------------------------------------------------------------- */

static uint32_t add_class(bp_step_server *s, uint64_t bytes, uint32_t stream)
{
    uint32_t slot = (uint32_t)bp_hash_number(bytes ^ (uint64_t)(stream + 1) << 56) & (s->class_slots - 1);
    for (; s->classes[slot].number != NONE; slot = (slot + 1) & (s->class_slots - 1)) {
        if (s->classes[slot].bytes == bytes && s->classes[slot].stream == stream)
            return s->classes[slot].number;
    }
    s->classes[slot] = (serve_class){bytes, stream, s->class_count};
    s->class_bytes[s->class_count] = bytes;
    return s->class_count++;
}

static bp_status make_items(bp_step_server *s, const bp_step_plan_info *plan)
{
    s->class_slots = slots_for(s->item_count);
    BP_TRY(room(s->item_count, sizeof *s->items, 0, &s->items));
    BP_TRY(room(s->class_slots, sizeof *s->classes, 0xff, &s->classes));
    BP_TRY(room(s->item_count, sizeof *s->class_bytes, 0, &s->class_bytes));
    for (uint32_t k = 0; k < plan->kind_count; k++) {
        for (uint32_t i = 0; i < plan->kinds[k].item_count; i++) {
            const bp_step_plan_item *item = &plan->kinds[k].items[i];
            serve_item *made = &s->items[s->kinds[k].first + i];
            made->class = add_class(s, item->bytes, item->stream) & 0x7fffffffu;
            made->precedes_stream = item->precedes_stream != 0;
            if (item->offset == BP_STEP_OUTSIDE)
                continue;
            made->first = serve_atom_at(s, item->offset);
            made->end = serve_atom_at(s, item->offset + bp_step_round(item->bytes));
        }
    }
    return BP_OK;
}

/* ---- kinds --------------------------------------------------------------------------------------------------------- */

static bp_status make_kind(bp_step_server *s, const bp_step_plan_kind *kind, serve_kind *made)
{
    made->lap = 1;
    made->is_first = kind->is_first != 0;
    made->steps = kind->steps;
    made->mark_count = (uint32_t)kind->mark_count;
    BP_TRY(room(kind->mark_count, sizeof *made->marks, 0, &made->marks));
    if (kind->mark_count > 0)
        memcpy(made->marks, kind->marks, kind->mark_count * sizeof *made->marks);
    BP_TRY(room(kind->item_count, sizeof *made->members, 0, &made->members));
    BP_TRY(room(s->class_count + 1u, sizeof *made->members_begin, 0, &made->members_begin));
    BP_TRY(room(s->class_count, sizeof *made->cursors, 0, &made->cursors));
    const serve_item *items = &s->items[made->first];
    for (uint32_t i = 0; i < made->count; i++) /* sorted by counting */
        made->members_begin[items[i].class + 1]++;
    for (uint32_t c = 0; c < s->class_count; c++) {
        made->members_begin[c + 1] += made->members_begin[c];
        made->cursors[c].at = made->members_begin[c];
    }
    for (uint32_t i = 0; i < made->count; i++)
        made->members[made->cursors[items[i].class].at++] = i;
    return BP_OK; /* cursors are of lap 0, and so begin anew */
}

static uint32_t common_prefix(const bp_step_server *s, const serve_kind *a, const serve_kind *b)
{
    uint32_t i = 0;
    while (i < a->count && i < b->count && s->items[a->first + i].class == s->items[b->first + i].class)
        i++;
    return i;
}

/* Chains of equal grams, in the order of items. */
static bp_status make_grams(bp_step_server *s)
{
    s->gram_slots = slots_for(s->item_count);
    BP_TRY(room(s->item_count, sizeof *s->grams, 0, &s->grams));
    BP_TRY(room(s->item_count, sizeof *s->next_equal, 0xff, &s->next_equal));
    BP_TRY(room(s->gram_slots, sizeof *s->gram_table, 0xff, &s->gram_table));
    for (uint32_t k = s->kind_count; k-- > 0;) {
        for (uint32_t i = s->kinds[k].count; i-- > GRAM - 1;) {
            const uint32_t item = s->kinds[k].first + i;
            uint32_t classes[GRAM];
            for (uint32_t g = 0; g < GRAM; g++)
                classes[g] = s->items[item - (GRAM - 1) + g].class;
            const uint64_t gram = s->grams[item] = serve_gram(classes, 0);
            uint32_t slot = (uint32_t)gram & (s->gram_slots - 1);
            while (s->gram_table[slot] != NONE && s->grams[s->gram_table[slot]] != gram)
                slot = (slot + 1) & (s->gram_slots - 1);
            s->next_equal[item] = s->gram_table[slot];
            s->gram_table[slot] = item;
        }
    }
    return BP_OK;
}

static bp_status make_streams(bp_step_server *s, const bp_step_plan_info *plan)
{
    s->plan_stream_count = (uint32_t)plan->stream_count;
    serve_event *events = NULL;
    BP_TRY(room((size_t)BP_STEP_STREAMS * s->words, sizeof *s->stream_memory, 0, &s->stream_memory));
    BP_TRY(room((size_t)BP_STEP_STREAMS * KEPT_EVENTS, sizeof *events, 0, &events));
    for (uint32_t i = 0; i < BP_STEP_STREAMS; i++) {
        s->streams[i].bound = NONE;
        s->streams[i].used = s->stream_memory + (size_t)i * s->words;
        s->streams[i].events = events + (size_t)i * KEPT_EVENTS;
    }
    memset(s->holders, 0xff, sizeof s->holders);
    for (uint32_t i = 0; i < plan->stream_count; i++) { /* the default stream is known in any process */
        if (plan->streams[i] == 0 && s->streams[0].bound == NONE) {
            s->streams[0].bound = i;
            s->holders[i] = 0;
        }
    }
    return BP_OK;
}

/* `before`: a server of the same slab, whose live blocks begin and end at atoms, too; or NULL. */
static bp_status make(bp_step_server *s, const bp_step_plan_info *plan, const bp_step_server *before)
{
    for (size_t k = 0; k < plan->kind_count; k++) {
        s->kinds[k].first = s->item_count;
        s->kinds[k].count = (uint32_t)plan->kinds[k].item_count;
        s->item_count += s->kinds[k].count;
    }
    s->kind_count = (uint32_t)plan->kind_count;
    BP_TRY(make_atoms(s, plan, before));
    BP_TRY(make_items(s, plan));
    for (uint32_t k = 0; k < s->kind_count; k++)
        BP_TRY(make_kind(s, &plan->kinds[k], &s->kinds[k]));
    for (uint32_t a = 0; a < s->kind_count; a++) {
        for (uint32_t b = 0; b < s->kind_count; b++)
            s->prefixes[a][b] = common_prefix(s, &s->kinds[a], &s->kinds[b]);
        s->active =
            s->kinds[a].is_first || (!s->kinds[s->active].is_first && s->kinds[a].steps > s->kinds[s->active].steps)
                ? a
                : s->active;
    }
    BP_TRY(make_grams(s));
    memset(s->deviation_slots, 0xff, sizeof s->deviation_slots);
    return make_streams(s, plan);
}

static void free_tables(bp_step_server *s)
{
    for (uint32_t k = 0; k < BP_STEP_PLAN_KINDS; k++) {
        free(s->kinds[k].marks);
        free(s->kinds[k].members);
        free(s->kinds[k].members_begin);
        free(s->kinds[k].cursors);
    }
    free(s->items);
    free(s->classes);
    free(s->class_bytes);
    free(s->grams);
    free(s->next_equal);
    free(s->gram_table);
    free(s->atoms);
    free(s->begins);
    free(s->busy);
    free(s->starts);
    free(s->blocks);
    free(s->requests);
    free(s->times);
    free(s->order);
    free(s->stream_memory);
    free(s->streams[0].events);
}

/* ---- the interface ------------------------------------------------------------------------------------------------- */

bp_status bp_step_server_config_init(bp_step_server_config *config, size_t size)
{
    const bp_step_server_config defaults = {.size = sizeof defaults};
    return bp_struct_init("bp_step_server_config_init", config, size, &defaults, sizeof defaults);
}

bp_status bp_step_server_create(const bp_step_plan *plan, const bp_step_server_config *config, bp_step_server **server)
{
    const bp_step_plan_info *info = bp_step_plan_get_info(plan);
    if (info == NULL || server == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_step_server_create: the plan or the server is NULL");
    bp_step_server *made = calloc(1, sizeof *made);
    if (made == NULL)
        return bp_fail_memory(sizeof *made);
    bp_status status = bp_struct_read("bp_step_server_create", config, true, &made->config, sizeof made->config);
    if (status == BP_OK && (made->config.record == NULL) != (made->config.wait == NULL))
        status = bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_step_server_create: one callback without the other");
    if (status == BP_OK && pthread_mutex_init(&made->lock, NULL) != 0)
        status = bp_fail_memory(sizeof made->lock);
    if (status == BP_OK)
        status = make(made, info, NULL);
    if (status == BP_OK)
        *server = made;
    else
        bp_step_server_destroy(&made);
    return status;
}

void bp_step_server_destroy(bp_step_server **server)
{
    if (server == NULL || *server == NULL)
        return;
    free_tables(*server);
    pthread_mutex_destroy(&(*server)->lock);
    free(*server);
    *server = NULL;
}

/* Moves the live blocks of a server to the tables of another plan. All memory that is free counts as used by all streams until now, so that
 * earlier events are of no use. */
static void carry_over(const bp_step_server *before, bp_step_server *s)
{
    for (uint32_t atom = next_block(before, 0); atom != NONE; atom = next_block(before, atom + 1)) {
        const serve_block *block = &before->blocks[atom];
        const uint32_t first = serve_atom_at(s, before->atoms[atom]), end = serve_atom_at(s, before->atoms[block->end]);
        serve_set(s->busy, first, end, true);
        s->starts[first / 64] |= (uint64_t)1 << first % 64;
        s->blocks[first] = (serve_block){.end = end, .item = NONE, .users = block->users, .owner = block->owner};
        s->requests[first] =
            block->item == NONE ? before->requests[atom] : before->class_bytes[before->items[block->item].class];
    }
    for (uint32_t i = 0; i < BP_STEP_STREAMS; i++) {
        s->streams[i].points = before->streams[i].points;
        memcpy(s->streams[i].waits, before->streams[i].waits, sizeof s->streams[i].waits);
    }
    s->clock = before->clock;
    s->seen = before->seen;
    s->is_paused = before->is_paused;
    serve_skip_first(s);
    s->statistics = before->statistics;
    serve_forget_order(s);
}

bp_status bp_step_server_replace(bp_step_server *server, const bp_step_plan *plan)
{
    const bp_step_plan_info *info = bp_step_plan_get_info(plan);
    if (info == NULL || server == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_step_server_replace: the plan or the server is NULL");
    const size_t kept = offsetof(bp_step_server, items); /* the lock and the callbacks stay */
    bp_step_server *made = calloc(1, sizeof *made);
    void *swapped = malloc(sizeof *made - kept);
    bp_status status = made == NULL || swapped == NULL ? bp_fail_memory(2 * sizeof *made) : BP_OK;
    pthread_mutex_lock(&server->lock);
    if (status == BP_OK && info->bytes > server->atoms[server->atom_count])
        status = bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_step_server_replace: the plan has %llu bytes, and the slab %llu",
                         (unsigned long long)info->bytes, (unsigned long long)server->atoms[server->atom_count]);
    if (status == BP_OK)
        status = make(made, info, server);
    if (status == BP_OK) {
        carry_over(server, made);
        memcpy(swapped, (char *)server + kept, sizeof *made - kept);
        memcpy((char *)server + kept, (char *)made + kept, sizeof *made - kept);
        memcpy((char *)made + kept, swapped, sizeof *made - kept);
    }
    pthread_mutex_unlock(&server->lock);
    if (made != NULL)
        free_tables(made);
    free(swapped);
    free(made);
    return status;
}

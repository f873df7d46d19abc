/* SPDX-License-Identifier: Apache-2.0 */
/* Takes events, frames and call stacks out of a snapshot's pickle while it is parsed. */
#include "formats/snapshots/trace_tables.h"

#include <bucketpool/core/fail.h>

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/text.h"

/* ---- memory -------------------------------------------------------------------------------------------------------- */

enum { TEXT_BLOCK_BYTES = 1 << 16, MAX_STREAMS = 4096, MAX_FRAMES = 4096 };

typedef struct bp_text_block {
    struct bp_text_block *next;
    size_t used, capacity;
    char memory[];
} bp_text_block;

static bp_status take_budget(bp_trace_tables *t, size_t bytes)
{
    if (bytes > t->budget - t->used)
        return bp_fail(BP_ERR_FORMAT, "%.300s: its events need more than %zu bytes of memory; record fewer events",
                       t->origin, t->budget);
    t->used += bytes;
    return BP_OK;
}

static bp_status table_reserve(bp_trace_tables *t, bp_table *table, size_t more)
{
    if (more <= table->capacity - table->count)
        return BP_OK;
    size_t capacity = table->capacity + table->capacity / 2 + more + 64;
    BP_TRY(take_budget(t, (capacity - table->capacity) * table->element_bytes));
    void *moved = realloc(table->memory, capacity * table->element_bytes);
    if (moved == NULL)
        return bp_fail_memory(capacity * table->element_bytes);
    table->memory = moved;
    table->capacity = capacity;
    return BP_OK;
}

static bp_status table_add(bp_trace_tables *t, bp_table *table, const void *element)
{
    BP_TRY(table_reserve(t, table, 1));
    memcpy((char *)table->memory + table->count++ * table->element_bytes, element, table->element_bytes);
    return BP_OK;
}

static bp_status copy_text(bp_trace_tables *t, const char *text, size_t bytes, const char **copy)
{
    if (t->blocks == NULL || t->blocks->capacity - t->blocks->used <= bytes) {
        size_t capacity = bytes + 1 > TEXT_BLOCK_BYTES ? bytes + 1 : TEXT_BLOCK_BYTES;
        BP_TRY(take_budget(t, capacity));
        bp_text_block *block = malloc(sizeof *block + capacity);
        if (block == NULL)
            return bp_fail_memory(capacity);
        *block = (bp_text_block){.next = t->blocks, .capacity = capacity};
        t->blocks = block;
    }
    char *into = t->blocks->memory + t->blocks->used;
    memmove(into, text, bytes); /* trace_intern gives a text back and asks again */
    into[bytes] = '\0';
    t->blocks->used += bytes + 1;
    bp_make_printable(into);
    *copy = into;
    return BP_OK;
}

/* ---- hash tables --------------------------------------------------------------------------------------------------- */

/* Adds an entry to a hash table, whose growth counts in the budget. */
static bp_status add_to_index(bp_trace_tables *t, bp_index *index, uint32_t hash, size_t entry)
{
    BP_TRY(take_budget(t, (bp_index_next_capacity(index) - index->capacity) * sizeof *index->slots));
    return bp_index_add(index, hash, (uint32_t)entry);
}

/* ---- texts --------------------------------------------------------------------------------------------------------- */

/* Words of the format. Keys, then kinds at WORD_KIND + bp_memory_kind, and actions at WORD_ACTION + bp_trace_action. */
enum {
    WORD_OTHER,
    WORD_ACTION_KEY,
    WORD_ADDR,
    WORD_DEVICE_FREE,
    WORD_SIZE,
    WORD_STREAM,
    WORD_TIME,
    WORD_FRAMES,
    WORD_FILENAME,
    WORD_LINE,
    WORD_NAME,
    WORD_METADATA,
    WORD_KIND = 16,
    WORD_ACTION = 32
};

static uint8_t trace_word(const char *text)
{
    static const struct {
        const char *text;
        uint8_t word;
    } words[] = {{"action", WORD_ACTION_KEY},
                 {"addr", WORD_ADDR},
                 {"device_free", WORD_DEVICE_FREE},
                 {"size", WORD_SIZE},
                 {"stream", WORD_STREAM},
                 {"time_us", WORD_TIME},
                 {"frames", WORD_FRAMES},
                 {"filename", WORD_FILENAME},
                 {"line", WORD_LINE},
                 {"name", WORD_NAME},
                 {"user_metadata", WORD_METADATA},
                 {"kind=parameters", WORD_KIND + BP_MEMORY_PARAMETERS},
                 {"kind=gradients", WORD_KIND + BP_MEMORY_GRADIENTS},
                 {"kind=optimizer state", WORD_KIND + BP_MEMORY_OPTIMIZER_STATE},
                 {"kind=activations", WORD_KIND + BP_MEMORY_ACTIVATIONS},
                 {"kind=logits", WORD_KIND + BP_MEMORY_LOGITS},
                 {"kind=communication", WORD_KIND + BP_MEMORY_COMMUNICATION},
                 {"kind=workspace", WORD_KIND + BP_MEMORY_WORKSPACE},
                 {"alloc", WORD_ACTION + BP_TRACE_ALLOC},
                 {"free_requested", WORD_ACTION + BP_TRACE_FREE_REQUESTED},
                 {"free_completed", WORD_ACTION + BP_TRACE_FREE_COMPLETED},
                 {"segment_alloc", WORD_ACTION + BP_TRACE_SEGMENT_ALLOC},
                 {"segment_free", WORD_ACTION + BP_TRACE_SEGMENT_FREE},
                 {"segment_map", WORD_ACTION + BP_TRACE_SEGMENT_MAP},
                 {"segment_unmap", WORD_ACTION + BP_TRACE_SEGMENT_UNMAP},
                 {"snapshot", WORD_ACTION + BP_TRACE_SNAPSHOT},
                 {"oom", WORD_ACTION + BP_TRACE_OOM},
                 {"empty_cache", WORD_ACTION + BP_TRACE_EMPTY_CACHE}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcmp(words[i].text, text) == 0)
            return words[i].word;
    }
    return WORD_OTHER;
}

static const bp_pickle_text *text_at(const bp_trace_tables *t, uint32_t index)
{
    return (const bp_pickle_text *)t->texts.memory + index;
}

static bp_status trace_intern(void *context, const char *text, size_t bytes, uint32_t *index)
{
    bp_trace_tables *t = context;
    bp_index_search search = bp_index_start(bp_hash(text, bytes));
    for (uint32_t entry = 0; bp_index_next(&t->text_index, &search, &entry);) {
        const bp_pickle_text *known = text_at(t, entry);
        if (known->bytes == bytes && memcmp(known->text, text, bytes) == 0) {
            *index = entry;
            return BP_OK;
        }
    }
    bp_pickle_text added = {.bytes = bytes};
    BP_TRY(copy_text(t, text, bytes, &added.text));
    if (memcmp(added.text, text, bytes) != 0) { /* made printable: find or add that instead */
        t->blocks->used -= bytes + 1;
        return trace_intern(context, added.text, bytes, index);
    }
    uint8_t word = trace_word(added.text);
    BP_TRY(table_add(t, &t->texts, &added));
    BP_TRY(table_add(t, &t->words, &word));
    t->reducer.texts = t->texts.memory;
    *index = (uint32_t)t->texts.count - 1;
    return add_to_index(t, &t->text_index, search.hash, *index);
}

/* ---- tokens -------------------------------------------------------------------------------------------------------- */

enum { TOKEN_FRAME, TOKEN_STACK, TOKEN_EVENT, TOKEN_LIST, TOKEN_BITS = 29, MAX_TOKENS = 1 << TOKEN_BITS };

static uint32_t token_make(unsigned kind, size_t index)
{
    return (uint32_t)kind << TOKEN_BITS | (uint32_t)index;
}

static bool token_is(bp_pickle_value value, unsigned kind)
{
    return value.kind == BP_PICKLE_TOKEN && value.magnitude >> TOKEN_BITS == kind;
}

static uint32_t token_index(uint64_t token)
{
    return (uint32_t)token & (MAX_TOKENS - 1);
}

__attribute__((noinline)) static bp_status trace_fail(const bp_trace_tables *t, size_t offset, const char *what)
{
    return bp_fail(BP_ERR_FORMAT, "%.300s: byte %zu: %s", t->origin, offset, what);
}

static bp_status trace_number(const bp_trace_tables *t, size_t offset, bp_pickle_value value, const char *key,
                              uint64_t *number)
{
    if (value.kind != BP_PICKLE_INTEGER || value.is_negative)
        return bp_fail(BP_ERR_FORMAT, "%.300s: byte %zu: \"%s\" is not a non-negative integer", t->origin, offset, key);
    *number = value.magnitude;
    return BP_OK;
}

/* ---- frames and stacks --------------------------------------------------------------------------------------------- */

static bp_status add_frame(bp_trace_tables *t, const bp_trace_frame *frame, uint32_t *token)
{
    bp_index_search search = bp_index_start(bp_hash(frame, sizeof *frame));
    for (uint32_t entry = 0; bp_index_next(&t->frame_index, &search, &entry);) {
        const bp_trace_frame *known = (const bp_trace_frame *)t->frames.memory + entry;
        if (memcmp(known, frame, sizeof *frame) == 0) {
            *token = token_make(TOKEN_FRAME, entry);
            return BP_OK;
        }
    }
    if (t->frames.count == MAX_TOKENS)
        return bp_fail(BP_ERR_FORMAT, "%.300s: more than %d frames", t->origin, MAX_TOKENS);
    BP_TRY(table_add(t, &t->frames, frame));
    *token = token_make(TOKEN_FRAME, t->frames.count - 1);
    return add_to_index(t, &t->frame_index, search.hash, t->frames.count - 1);
}

/* Adds the frames, after those of the stack `token`. Frames are appended first, and removed if the stack is known. */
static bp_status add_stack(bp_trace_tables *t, const bp_pickle *pickle, const bp_pickle_ref *items, size_t count,
                           size_t end, uint32_t *token)
{
    bp_event_list stack = {.first = t->stack_frames.count}, before = {0};
    if (*token != BP_PICKLE_NO_TOKEN)
        before = ((const bp_event_list *)t->stacks.memory)[token_index(*token)];
    BP_TRY(table_reserve(t, &t->stack_frames, before.count + count));
    uint32_t *frames = t->stack_frames.memory, *added = frames + stack.first;
    if (before.count > 0)
        memcpy(added, frames + before.first, before.count * sizeof *added);
    for (size_t i = 0; i < count; i++) {
        bp_pickle_value item = bp_pickle_get(pickle, items[i]);
        if (!token_is(item, TOKEN_FRAME))
            return trace_fail(t, end, "a list of frames has another item");
        added[before.count + i] = token_index(item.magnitude);
    }
    stack.count = before.count + count;
    if (stack.count > MAX_FRAMES)
        return bp_fail(BP_ERR_FORMAT, "%.300s: byte %zu: a call stack of more than %d frames", t->origin, end,
                       MAX_FRAMES);
    bp_index_search search = bp_index_start(bp_hash(added, stack.count * sizeof *added));
    for (uint32_t entry = 0; bp_index_next(&t->stack_index, &search, &entry);) {
        const bp_event_list *known = (const bp_event_list *)t->stacks.memory + entry;
        if (known->count == stack.count && memcmp(frames + known->first, added, stack.count * sizeof *added) == 0) {
            *token = token_make(TOKEN_STACK, entry);
            return BP_OK;
        }
    }
    if (t->stacks.count == MAX_TOKENS)
        return bp_fail(BP_ERR_FORMAT, "%.300s: more than %d call stacks", t->origin, MAX_TOKENS);
    t->stack_frames.count += stack.count;
    BP_TRY(table_add(t, &t->stacks, &stack));
    *token = token_make(TOKEN_STACK, t->stacks.count - 1);
    return add_to_index(t, &t->stack_index, search.hash, t->stacks.count - 1);
}

uint32_t bp_trace_stack_of(const bp_pickle *pickle, bp_pickle_ref ref)
{
    bp_pickle_value value = bp_pickle_get(pickle, ref);
    return token_is(value, TOKEN_STACK) ? token_index(value.magnitude) : BP_TRACE_NONE;
}

/* ---- events -------------------------------------------------------------------------------------------------------- */

bp_status bp_trace_stream(bp_trace_tables *t, uint64_t stream, uint16_t *index)
{
    const uint64_t *known = t->streams.memory;
    size_t i = t->stream < t->streams.count && known[t->stream] == stream ? t->stream : 0;
    while (i < t->streams.count && known[i] != stream)
        i++;
    if (i == MAX_STREAMS)
        return bp_fail(BP_ERR_FORMAT, "%.300s: more than %d streams", t->origin, MAX_STREAMS);
    if (i == t->streams.count)
        BP_TRY(table_add(t, &t->streams, &stream));
    *index = t->stream = (uint16_t)i;
    return BP_OK;
}

static uint8_t word_at(const bp_trace_tables *t, bp_pickle_value value)
{
    bool is_known = value.kind == BP_PICKLE_STRING && value.interned != BP_PICKLE_NOT_INTERNED;
    return is_known ? ((const uint8_t *)t->words.memory)[value.interned] : WORD_OTHER;
}

static bp_status trace_add_event(bp_trace_tables *t, const bp_pickle *pickle, const bp_pickle_ref *items, size_t count,
                                 size_t offset, uint32_t *token)
{
    bp_trace_event event = {.stack = BP_TRACE_NONE};
    bool has_address = false, has_size = false;
    for (size_t i = 0; i < count; i += 2) {
        bp_pickle_value value = bp_pickle_get(pickle, items[i + 1]);
        uint64_t stream = 0;
        switch (word_at(t, bp_pickle_get(pickle, items[i]))) {
        case WORD_ACTION_KEY: {
            uint8_t word = word_at(t, value);
            event.action = word > WORD_ACTION ? word - WORD_ACTION : BP_TRACE_UNKNOWN;
            if (event.action == BP_TRACE_UNKNOWN && t->unknown_events++ == 0)
                t->unknown_name = value.kind == BP_PICKLE_STRING ? value.text : "?";
            break;
        }
        case WORD_ADDR:
        case WORD_DEVICE_FREE:
            if (value.kind == BP_PICKLE_NONE)
                break;
            BP_TRY(trace_number(t, offset, value, "addr", &event.address));
            has_address = true;
            break;
        case WORD_SIZE:
            if (value.kind == BP_PICKLE_NONE)
                break;
            BP_TRY(trace_number(t, offset, value, "size", &event.bytes));
            has_size = true;
            break;
        case WORD_STREAM:
            if (value.kind != BP_PICKLE_NONE)
                BP_TRY(trace_number(t, offset, value, "stream", &stream));
            BP_TRY(bp_trace_stream(t, stream, &event.stream));
            break;
        case WORD_TIME:
            if (value.kind != BP_PICKLE_NONE)
                BP_TRY(trace_number(t, offset, value, "time_us", &event.time_us));
            break;
        case WORD_FRAMES:
            if (token_is(value, TOKEN_STACK))
                event.stack = token_index(value.magnitude);
            break;
        case WORD_METADATA: {
            uint8_t word = word_at(t, value);
            event.kind = word > WORD_KIND && word < WORD_ACTION ? word - WORD_KIND : BP_MEMORY_UNKNOWN;
            break;
        }
        default: break;
        }
    }
    if (event.action != BP_TRACE_UNKNOWN && event.action != BP_TRACE_SNAPSHOT && event.action != BP_TRACE_EMPTY_CACHE &&
        (!has_address || !has_size))
        return trace_fail(t, offset, has_address ? "an event without \"size\"" : "an event without \"addr\"");
    if (event.action != BP_TRACE_OOM && (event.address == UINT64_MAX || event.bytes > UINT64_MAX - event.address))
        return trace_fail(t, offset, "an event whose addresses exceed 64 bits");
    if (t->streams.count == 0) /* old versions of PyTorch write no streams */
        BP_TRY(bp_trace_stream(t, 0, &event.stream));
    if (t->events.count == MAX_TOKENS)
        return bp_fail(BP_ERR_FORMAT, "%.300s: more than %d events", t->origin, MAX_TOKENS);
    BP_TRY(table_add(t, &t->events, &event));
    *token = token_make(TOKEN_EVENT, t->events.count - 1);
    return BP_OK;
}

/* Adds events to a list. The events of a list are consecutive, because they are made in the order of the file. */
static bp_status add_to_list(bp_trace_tables *t, const bp_pickle *pickle, const bp_pickle_ref *items, size_t count,
                             size_t end, uint32_t *token)
{
    bp_event_list list = {.first = token_index(bp_pickle_get(pickle, items[0]).magnitude)};
    if (*token != BP_PICKLE_NO_TOKEN)
        list = ((const bp_event_list *)t->lists.memory)[token_index(*token)];
    for (size_t i = 0; i < count; i++) {
        bp_pickle_value item = bp_pickle_get(pickle, items[i]);
        if (!token_is(item, TOKEN_EVENT))
            return trace_fail(t, end, "a list of events has another item");
        if (token_index(item.magnitude) != list.first + list.count)
            return trace_fail(t, end, "an event is in two places of a list");
        list.count++;
    }
    if (*token != BP_PICKLE_NO_TOKEN) {
        ((bp_event_list *)t->lists.memory)[token_index(*token)] = list;
        return BP_OK;
    }
    if (t->lists.count == MAX_TOKENS)
        return bp_fail(BP_ERR_FORMAT, "%.300s: more than %d lists of events", t->origin, MAX_TOKENS);
    BP_TRY(table_add(t, &t->lists, &list));
    *token = token_make(TOKEN_LIST, t->lists.count - 1);
    return BP_OK;
}

bool bp_trace_list_of(const bp_trace_tables *tables, bp_pickle_value value, bp_event_list *list)
{
    *list = (bp_event_list){0};
    if (token_is(value, TOKEN_LIST))
        *list = ((const bp_event_list *)tables->lists.memory)[token_index(value.magnitude)];
    return token_is(value, TOKEN_LIST) || (bp_pickle_is_list(value) && value.count == 0);
}

/* ---- the reducer --------------------------------------------------------------------------------------------------- */

/* Gives the pages of the file between these offsets back to the machine. Nothing refers to them: texts were copied, and
 * numbers are in events. */
static void release_pages(const bp_trace_tables *t, size_t begin, size_t end)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), base = (uintptr_t)t->data;
    uintptr_t first = (base + begin + page - 1) / page * page, last = (base + end) / page * page;
    if (t->data != NULL && first < last)
        (void)madvise((void *)first, last - first, MADV_DONTNEED); /* NOLINT(performance-no-int-to-ptr) */
}

static bp_status take_dictionary(bp_trace_tables *t, const bp_pickle *pickle, const bp_pickle_ref *items, size_t count,
                                 size_t end, uint32_t *token)
{
    bp_trace_frame frame = {.file = "", .function = ""};
    bool has_file = false, has_line = false;
    for (size_t i = 0; i < count; i += 2) {
        uint8_t word = word_at(t, bp_pickle_get(pickle, items[i]));
        if (word == WORD_ACTION_KEY)
            return trace_add_event(t, pickle, items, count, end, token);
        if (word != WORD_FILENAME && word != WORD_NAME && word != WORD_LINE)
            continue;
        bp_pickle_value value = bp_pickle_get(pickle, items[i + 1]);
        has_file = has_file || word == WORD_FILENAME;
        has_line = has_line || word == WORD_LINE;
        if (word == WORD_LINE && value.kind == BP_PICKLE_INTEGER && !value.is_negative)
            frame.line = value.magnitude;
        else if (word != WORD_LINE && value.kind == BP_PICKLE_STRING)
            *(word == WORD_NAME ? &frame.function : &frame.file) = value.text;
    }
    return has_file && has_line ? add_frame(t, &frame, token) : BP_OK;
}

static bp_status trace_reduce(void *context, const bp_pickle *pickle, bp_pickle_kind kind, const bp_pickle_ref *items,
                              size_t count, size_t begin, size_t end, uint32_t *token)
{
    bp_trace_tables *t = context;
    bool is_part = *token != BP_PICKLE_NO_TOKEN;
    if (kind == BP_PICKLE_DICTIONARY) {
        if (is_part)
            return trace_fail(t, end, "an event or a frame has items in two places");
        return count <= 2 * BP_PICKLE_MAX_MEMBERS ? take_dictionary(t, pickle, items, count, end, token) : BP_OK;
    }
    bp_pickle_value first = count > 0 ? bp_pickle_get(pickle, items[0]) : (bp_pickle_value){0};
    unsigned of = is_part ? *token >> TOKEN_BITS : token_is(first, TOKEN_FRAME) ? TOKEN_STACK : TOKEN_LIST;
    if (count == 0)
        return BP_OK;
    if (is_part && of != TOKEN_STACK && of != TOKEN_LIST)
        return trace_fail(t, end, "items for a list are given to an event or a frame");
    if (of == TOKEN_STACK)
        return add_stack(t, pickle, items, count, end, token);
    if (!is_part && !token_is(first, TOKEN_EVENT))
        return BP_OK;
    BP_TRY(add_to_list(t, pickle, items, count, end, token));
    release_pages(t, begin, end);
    return BP_OK;
}

void bp_trace_tables_init(bp_trace_tables *tables, const char *origin, unsigned char *data)
{
    *tables = (bp_trace_tables){.origin = origin,
                                .data = data,
                                .budget = BP_TRACE_MAX_MEMORY,
                                .texts.element_bytes = sizeof(bp_pickle_text),
                                .words.element_bytes = sizeof(uint8_t),
                                .frames.element_bytes = sizeof(bp_trace_frame),
                                .stacks.element_bytes = sizeof(bp_event_list),
                                .stack_frames.element_bytes = sizeof(uint32_t),
                                .streams.element_bytes = sizeof(uint64_t),
                                .events.element_bytes = sizeof(bp_trace_event),
                                .lists.element_bytes = sizeof(bp_event_list),
                                .unknown_name = "",
                                .reducer = {.intern = trace_intern, .reduce = trace_reduce}};
    tables->reducer.context = tables;
}

void bp_trace_tables_finish(bp_trace_tables *tables)
{
    for (bp_text_block *block = tables->blocks, *next; block != NULL; block = next) {
        next = block->next;
        free(block);
    }
    bp_table *all[] = {&tables->texts,        &tables->words,   &tables->frames, &tables->stacks,
                       &tables->stack_frames, &tables->streams, &tables->events, &tables->lists};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]->memory);
    bp_index_finish(&tables->text_index);
    bp_index_finish(&tables->frame_index);
    bp_index_finish(&tables->stack_index);
}

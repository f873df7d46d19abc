/* SPDX-License-Identifier: Apache-2.0 */
/* Reads published configurations: config.json of Hugging Face. */
#include <bucketpool/core/fail.h>
#include <bucketpool/formats.h>

#include <stdlib.h>
#include <string.h>

#include "formats/file.h"
#include "formats/json.h"
#include "formats/models/reader.h"
#include "formats/models/unread.h"
#include "planner/model/arch_config.h"

/* The largest nested object that is read member by member (attn_config). Larger ones are lists of labels, of which
 * only the number is used. */
#define MAX_INNER 100

/* Tables read integers and booleans alike, and a factor that is written 1.0 as 1. */
static bool is_whole(const json_t *value)
{
    return json_is_integer(value) || json_is_boolean(value) || (json_is_real(value) && json_real_value(value) == 1.0);
}

static int64_t whole_value(const json_t *value)
{
    return json_is_integer(value) ? json_integer_value(value) : json_is_true(value) || json_is_real(value);
}

/* A list in the form that tables read; freed when the model is made. */
typedef struct kept_list {
    struct kept_list *next;
    union {
        int64_t number;
        const char *text;
    } values[];
} kept_list;

/* The context of a bp_arch_config. */
typedef struct published {
    const json_t *text, *whole;
    const char *model_type;
    int tie; /* tie_word_embeddings of a wrapper; -1: as the file says */
    kept_list *lists;
    bp_looked_up looked;
} published;

static bp_status config_read_list(published *from, const json_t *list, bp_arch_entry *entry)
{
    size_t count = json_array_size(list), wholes = 0, strings = 0;
    for (size_t i = 0; i < count; i++) {
        wholes += is_whole(json_array_get(list, i));
        strings += json_is_string(json_array_get(list, i));
    }
    if (wholes < count && strings < count) {
        snprintf(entry->unusable, sizeof entry->unusable, "a list of other than integers or strings");
        return BP_OK;
    }
    size_t bytes = sizeof(kept_list) +
                   (count + 1) * sizeof(int64_t); /* so the product with a pointer's size cannot overflow either */
    kept_list *kept = calloc(1, bytes);
    if (kept == NULL)
        return bp_fail_memory(bytes);
    kept->next = from->lists;
    from->lists = kept;
    int64_t *numbers = (int64_t *)(void *)kept->values;
    const char **texts = (const char **)(void *)kept->values;
    for (size_t i = 0; i < count; i++) {
        if (wholes == count)
            numbers[i] = whole_value(json_array_get(list, i));
        else
            texts[i] = json_string_value(json_array_get(list, i));
    }
    entry->value = wholes == count ? (bp_value){.kind = BP_VALUE_INTS, .numbers = numbers, .length = count}
                                   : (bp_value){.kind = BP_VALUE_TEXTS, .texts = texts, .length = count};
    return BP_OK;
}

static bp_value text_value(const char *text)
{
    return (bp_value){.kind = BP_VALUE_TEXT, .text = text, .length = strlen(text)};
}

static bp_value int_value(int64_t number)
{
    return (bp_value){.kind = BP_VALUE_INT, .number = number};
}

/* "3,4,5", as some publishers write a list of layers. */
static bool is_number_list(const char *text)
{
    return strchr(text, ',') != NULL && strspn(text, "0123456789, ") == strlen(text);
}

static bp_status config_read_numbers(published *from, const char *text, bp_arch_entry *entry)
{
    json_t *list = json_array();
    bp_status status = list != NULL ? BP_OK : bp_fail_memory(sizeof(json_t *));
    for (const char *at = text + strcspn(text, "0123456789"); status == BP_OK && *at != '\0';) {
        char *end;
        if (json_array_append_new(list, json_integer(strtoll(at, &end, 10))) != 0)
            status = bp_fail_memory(sizeof(json_t *));
        at = end + strcspn(end, "0123456789");
    }
    if (status == BP_OK)
        status = config_read_list(from, list, entry);
    json_decref(list);
    return status;
}

/* The member at "a.b" of an element; NULL without one. */
static const json_t *member_at(const json_t *element, const char *path, size_t length)
{
    while (element != NULL && length > 0) {
        const char *dot = memchr(path, '.', length);
        size_t part = dot != NULL ? (size_t)(dot - path) : length;
        element = json_object_getn(element, path, part);
        part += dot != NULL;
        path += part;
        length -= part;
    }
    return element;
}

/* A member of each element of a list, with a % at the end of its path in billionths. 0: missing or null; 1: an object. */
static bp_status config_read_members(published *from, const json_t *list, const char *path, size_t length,
                                     bp_arch_entry *entry)
{
    bool scales = length > 0 && path[length - 1] == '%';
    json_t *numbers = json_array();
    bp_status status = numbers != NULL ? BP_OK : bp_fail_memory(sizeof(json_t *));
    for (size_t i = 0; status == BP_OK && i < json_array_size(list); i++) {
        const json_t *member = member_at(json_array_get(list, i), path, length - scales);
        double scaled = json_number_value(member) * 1e9;
        bool is_number = member == NULL || json_is_null(member) || json_is_number(member);
        if (scales && !(is_number && scaled >= 0 && scaled < 1e18))
            status = bp_fail(BP_ERR_INVALID_ARGUMENT, "field \"%.*s\" of element %zu: expected a number in [0, 1e9)",
                             (int)(length - scales), path, i);
        else if (json_array_append_new(numbers, json_integer(scales             ? (json_int_t)(scaled + 0.5)
                                                             : is_whole(member) ? whole_value(member)
                                                                                : json_is_object(member))) != 0)
            status = bp_fail_memory(sizeof(json_t *));
    }
    if (status == BP_OK)
        status = config_read_list(from, numbers, entry);
    json_decref(numbers);
    return status;
}

/* Keys of nested members are "object.member", of their number "object.#", and of the elements of a list "list[].member". */
static bp_status find_in(published *from, const json_t *object, const char *key, size_t length, bp_arch_entry *entry,
                         bool *found)
{
    const json_t *value = json_object_getn(object, key, length);
    const char *dot = memchr(key, '.', length);
    if (value == NULL && dot != NULL && dot - key > 2 && strncmp(dot - 2, "[]", 2) == 0) {
        const json_t *list = json_object_getn(object, key, (size_t)(dot - 2 - key));
        *found = json_is_array(list);
        return *found ? config_read_members(from, list, dot + 1, length - (size_t)(dot + 1 - key), entry) : BP_OK;
    }
    if (value == NULL && dot != NULL) {
        const json_t *inner = json_object_getn(object, key, (size_t)(dot - key));
        size_t rest = length - (size_t)(dot + 1 - key);
        if (json_is_object(inner) && rest == 1 && dot[1] == '#') {
            entry->value = int_value((int64_t)json_object_size(inner));
            *found = true;
            return BP_OK;
        }
        if (json_object_size(inner) <= MAX_INNER)
            value = json_object_getn(inner, dot + 1, rest);
        if (json_is_object(value))
            value = NULL;
    }
    *found = value != NULL;
    if (value == NULL)
        return BP_OK;
    if (json_is_null(value))
        entry->is_null = true;
    else if (is_whole(value))
        entry->value = int_value(whole_value(value));
    else if (json_is_string(value) && is_number_list(json_string_value(value)))
        return config_read_numbers(from, json_string_value(value), entry);
    else if (json_is_string(value))
        entry->value = text_value(json_string_value(value));
    else if (json_is_array(value))
        return config_read_list(from, value, entry);
    else if (json_is_object(value) && json_object_size(value) == 0)
        snprintf(entry->unusable, sizeof entry->unusable, "an empty object, NaN or Infinity");
    else
        bp_json_describe(value, entry->unusable);
    return BP_OK;
}

static bool is_key(const char *key, size_t length, const char *name)
{
    return strlen(name) == length && memcmp(key, name, length) == 0;
}

/* The member of the text part, also if it is null; without it, that of the whole. */
static bp_status find_value(void *context, const char *key, size_t length, bp_arch_entry *entry, bool *found)
{
    published *from = context;
    const json_t *first = from->text, *second = from->whole;
    *found = true;
    if (is_key(key, length, "architectures")) { /* a wrapper's class decides which head there is */
        first = from->whole;
        second = from->text;
    }
    if (is_key(key, length, "model_type"))
        entry->value = text_value(from->model_type);
    else if (is_key(key, length, "tie_word_embeddings") && from->tie >= 0)
        entry->value = int_value(from->tie);
    else
        BP_TRY(find_in(from, first, key, length, entry, found));
    if (!*found && first != second)
        BP_TRY(find_in(from, second, key, length, entry, found));
    if (from->looked.count == sizeof from->looked.keys / sizeof *from->looked.keys)
        return bp_fail(BP_ERR_INTERNAL, "more than %zu fields are looked up", from->looked.count);
    from->looked.keys[from->looked.count++] = (bp_looked_up_key){key, length, *found};
    return BP_OK;
}

/* The member of the text part, else of the whole; null counts as absent. */
static bp_json_at find_member(const bp_json_at *text, const bp_json_at *whole, const char *key)
{
    bp_json_at found = bp_json_member(text, key);
    if (found.value == NULL || json_is_null(found.value))
        found = bp_json_member(whole, key);
    if (json_is_null(found.value))
        found.value = NULL;
    return found;
}

/* ---- multimodal configurations ---------------------------------------------------------------------------------- */

/* The known types of wrappers, and their treatment of tie_word_embeddings: some use only their own value (listed with its default), some
 * only the text part's, others both. Source: transformers 5.23.0, models of these types on the meta device; kimi_k3: its publisher's. */
typedef enum tie { UNTIED, TIED, AS_TEXT, BOTH } tie;

static const struct {
    const char *model_type;
    tie unstated;
} wrappers[] = {
    {"aria", UNTIED},
    {"audioflamingo3", BOTH},
    {"aya_vision", TIED},
    {"cohere2_vision", TIED},
    {"cosmos3_omni", UNTIED},
    {"deepseek_vl", TIED},
    {"deepseek_vl_hybrid", TIED},
    {"ernie4_5_vl_moe", BOTH},
    {"exaone4_5", UNTIED},
    {"fast_vlm", BOTH},
    {"fun_asr_nano", BOTH},
    {"gemma3", TIED},
    {"gemma3n", TIED},
    {"gemma4", TIED},
    {"glm46v", BOTH},
    {"glm4v", BOTH},
    {"glm4v_moe", BOTH},
    {"glmasr", TIED},
    {"got_ocr2", TIED},
    {"granite_speech", TIED},
    {"granite_speech_plus", TIED},
    {"idefics2", UNTIED},
    {"idefics3", UNTIED},
    {"internvl", TIED},
    {"janus", TIED},
    {"jev", BOTH},
    {"kimi_k25", TIED},
    {"kimi_k3", BOTH},
    {"lfm2_vl", TIED},
    {"lighton_ocr", TIED},
    {"llama4", AS_TEXT},
    {"llava", BOTH},
    {"llava_next", UNTIED},
    {"llava_next_video", BOTH},
    {"llava_onevision", BOTH},
    {"minicpm_ocr", TIED},
    {"minicpmv4_6", UNTIED},
    {"minicpmv4_7", UNTIED},
    {"minimax_m3_vl", BOTH},
    {"mistral3", TIED},
    {"moss_transcribe_diarize", TIED},
    {"musicflamingo", BOTH},
    {"nemo_speechlm", BOTH},
    {"nemotron_h_omni", BOTH},
    {"ovis2", TIED},
    {"paligemma", TIED},
    {"perception_lm", BOTH},
    {"pp_chart2table", TIED},
    {"qianfan_ocr", UNTIED},
    {"qwen2_5_vl", BOTH},
    {"qwen2_audio", BOTH},
    {"qwen2_vl", BOTH},
    {"qwen3_5", UNTIED},
    {"qwen3_5_moe", UNTIED},
    {"qwen3_asr", TIED},
    {"qwen3_vl", UNTIED},
    {"qwen3_vl_moe", UNTIED},
    {"shieldgemma2", BOTH},
    {"smolvlm", UNTIED},
    {"step3p7", BOTH},
    {"vibevoice", AS_TEXT},
    {"vibevoice_asr", BOTH},
    {"video_llama_3", BOTH},
    {"video_llava", UNTIED},
    {"vipllava", UNTIED},
    {"voxtral", BOTH},
};

/* 1, 0, or -1: as the members say. */
static int wrapper_tie(const json_t *whole, const json_t *text, bool *is_known)
{
    const json_t *own = json_object_get(whole, "tie_word_embeddings");
    const char *type = json_string_value(json_object_get(whole, "model_type"));
    const char *inner = json_string_value(json_object_get(text, "model_type"));
    *is_known = type == NULL || inner == NULL || strcmp(inner, type) == 0;
    for (size_t i = 0; type != NULL && i < sizeof wrappers / sizeof *wrappers; i++) {
        if (strcmp(wrappers[i].model_type, type) != 0)
            continue;
        *is_known = true;
        if (wrappers[i].unstated == BOTH)
            break;
        if (wrappers[i].unstated == AS_TEXT)
            own = json_object_get(text, "tie_word_embeddings");
        return json_is_boolean(own) ? json_is_true(own) : wrappers[i].unstated == TIED;
    }
    return json_is_true(own) ? 1 : -1;
}

/* True for "vision_config", "audio_config" and the like: every part of a wrapper except the text, and the towers in
 * a text model's own file. */
static bool is_other_part(const char *key, const json_t *value, bool wrapped)
{
    static const char *const towers[] = {"vision_config", "audio_config", "speech_config", "image_config",
                                         "img_processor"};
    static const char *const no_parts[] = {"text_config", "quantization_config", "compression_config",
                                           "generation_config"};
    size_t length = strlen(key), suffix = strlen("_config");
    if (!json_is_object(value) || json_object_size(value) == 0)
        return false;
    for (size_t i = 0; i < sizeof towers / sizeof *towers; i++) {
        if (strcmp(key, towers[i]) == 0)
            return true;
    }
    for (size_t i = 0; i < sizeof no_parts / sizeof *no_parts; i++) {
        if (strcmp(key, no_parts[i]) == 0)
            return false;
    }
    return wrapped && length > suffix && strcmp(key + length - suffix, "_config") == 0;
}

static bp_status note_other_parts(const json_t *whole, bool wrapped, bp_model *model)
{
    char note[400] = "text part only; not counted: ";
    size_t begin = strlen(note), used = begin;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)whole, key, value)
    {
        if (is_other_part(key, value, wrapped) && used < 200)
            used += (size_t)snprintf(note + used, sizeof note - used, "%s%.60s", used > begin ? ", " : "", key);
    }
    if (used == begin)
        return BP_OK;
    snprintf(note + used, sizeof note - used, " (python3 -m bucketpool describe counts the whole model)");
    return bp_model_add_note(model, note);
}

static bool is_quantization(const char *key)
{
    return strcmp(key, "quantization_config") == 0 || strcmp(key, "compression_config") == 0;
}

/* Other members of a known wrapper belong to the parts that are not counted. */
static bool is_of_wrapper(const char *key, const json_t *value)
{
    return !json_is_object(value) || !is_quantization(key);
}

static bool is_part(const char *key, const json_t *value)
{
    return is_other_part(key, value, true) || strcmp(key, "text_config") == 0;
}

static bool is_tower(const char *key, const json_t *value)
{
    return is_other_part(key, value, false);
}

/* Notes about parts of the file that the model leaves out. */
static bp_status note_rest(const published *from, bool is_known, bp_dtype dtype, bp_model *model)
{
    const json_t *text = from->text, *whole = from->whole;
    bool wrapped = text != whole;
    BP_TRY(note_other_parts(whole, wrapped, model));
    if (!is_known) {
        char note[200];
        snprintf(note, sizeof note, "model_type %.60s of the whole is not known: planned as its text_config, %.60s",
                 json_string_value(json_object_get(whole, "model_type")), from->model_type);
        BP_TRY(bp_model_add_note(model, note));
    }
    const bp_unread_part parts[] = {{text, wrapped ? is_part : is_tower}, {whole, is_known ? is_of_wrapper : is_part}};
    return bp_note_unread(parts, wrapped ? 2 : 1, &from->looked, dtype, model);
}

static bp_status refuse_notes(const char *origin, const bp_model *model)
{
    const bp_model_info *info = bp_model_get_info(model);
    char text[480] = "";
    for (size_t i = 0, used = 0; i < info->note_count && used < sizeof text; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", i > 0 ? "; " : "", info->notes[i]);
    return info->note_count == 0 ? BP_OK : bp_fail(BP_ERR_UNSUPPORTED, "%.200s: %s", origin, text);
}

bp_status bp_config_from_json(json_t *document, const char *origin, const bp_reader_options *options, bp_model **model)
{
    bp_json_at root = bp_json_root(document, origin), part = bp_json_member(&root, "text_config");
    const bp_json_at *whole = &root, *text = json_is_object(part.value) ? &part : &root;
    BP_TRY(bp_json_expect_object(whole, NULL));
    bp_json_at type = find_member(text, whole, "model_type");
    published from = {.text = text->value, .whole = whole->value, .tie = -1};
    if (type.value == NULL)
        return bp_json_fail(&type, "is missing; a published configuration names its model family there");
    BP_TRY(bp_json_name(&type, &from.model_type));
    bool is_known = true;
    if (from.text != from.whole)
        from.tie = wrapper_tie(from.whole, from.text, &is_known);
    bp_dtype dtype = options->dtype != BP_DTYPE_NONE ? options->dtype : BP_DTYPE_BF16;
    bp_json_at named = find_member(text, whole, "torch_dtype");
    if (named.value == NULL)
        named = find_member(text, whole, "dtype");
    if (options->dtype == BP_DTYPE_NONE && named.value != NULL)
        BP_TRY(bp_json_dtype(&named, &dtype));
    char *name = NULL;
    BP_TRY(bp_reader_choose_name(options, NULL, whole->origin, &name));
    bp_model *made = NULL;
    const bp_arch_config config = {find_value, &from};
    bp_status status = bp_fail_at(whole->origin, bp_model_from_architecture(name, &config, dtype, &made));
    if (status == BP_OK)
        status = note_rest(&from, is_known, dtype, made);
    if (status == BP_OK && options->strict)
        status = refuse_notes(whole->origin, made);
    if (status == BP_OK)
        *model = made;
    else
        bp_model_destroy(&made);
    for (kept_list *list = from.lists, *next; list != NULL; list = next) {
        next = list->next;
        free(list);
    }
    free(name);
    return status;
}

bp_status bp_config_parse(const char *text, size_t bytes, const char *origin, const bp_reader_options *options,
                          bp_model **model)
{
    if (text == NULL || origin == NULL || model == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_config_parse: text, origin and model must not be NULL");
    bp_reader_options taken;
    BP_TRY(bp_reader_options_take(options, &taken));
    json_t *document = NULL;
    bool not_numbers; /* accepted, as in "time_step_limit": [0.0, Infinity]: no table reads these members */
    BP_TRY(bp_json_parse(text, bytes, origin, &not_numbers, &document));
    bp_status status = bp_config_from_json(document, origin, &taken, model);
    json_decref(document);
    return status;
}

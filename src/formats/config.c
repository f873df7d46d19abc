#include <bucketpool/formats.h>

#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "formats/detail.h"
#include "formats/json.h"
#include "formats/reader.h"

/* Published configurations have about a hundred members. */
#define MOST_MEMBERS 10000
/* Of a nested object that tables read (attn_config); larger ones are lists of labels, of which only the number is taken. */
#define MOST_INNER 100

/* Integers and booleans are the same to the tables, and so is a factor that is written 1.0. */
static bool is_whole(const json_t *value)
{
    return json_is_integer(value) || json_is_boolean(value) || (json_is_real(value) && json_real_value(value) == 1.0);
}

static int64_t whole_value(const json_t *value)
{
    return json_is_integer(value) ? json_integer_value(value) : json_is_true(value) || json_is_real(value);
}

static bp_status set_list(bp_arch_config *config, const char *key, json_t *list)
{
    size_t count = json_array_size(list), wholes = 0, strings = 0;
    for (size_t i = 0; i < count; i++) {
        wholes += is_whole(json_array_get(list, i));
        strings += json_is_string(json_array_get(list, i));
    }
    if (wholes < count && strings < count)
        return bp_arch_config_set_unusable(config, key, "a list of other than integers or strings");
    void *values = calloc(count + 1, sizeof(int64_t)); /* pointers are not larger */
    if (values == NULL)
        return bp_fail_memory((count + 1) * sizeof(int64_t));
    bp_status status;
    if (wholes == count) {
        int64_t *numbers = values;
        for (size_t i = 0; i < count; i++)
            numbers[i] = whole_value(json_array_get(list, i));
        status = bp_arch_config_set_ints(config, key, numbers, count);
    } else {
        const char **texts = values;
        for (size_t i = 0; i < count; i++)
            texts[i] = json_string_value(json_array_get(list, i));
        status = bp_arch_config_set_strings(config, key, texts, count);
    }
    free(values);
    return status;
}

#define MOST_KEY 200

static bp_status set_value(bp_arch_config *config, const char *key, json_t *value)
{
    if (json_is_null(value))
        return bp_arch_config_set_null(config, key);
    if (is_whole(value))
        return bp_arch_config_set_int(config, key, whole_value(value));
    if (json_is_string(value))
        return bp_arch_config_set_string(config, key, json_string_value(value));
    if (json_is_array(value))
        return set_list(config, key, value);
    char what[BP_JSON_DESCRIPTION_BYTES] = "an empty object, NaN or Infinity";
    if (!json_is_object(value) || json_object_size(value) > 0)
        bp_json_describe(value, what);
    return bp_arch_config_set_unusable(config, key, what);
}

/* Members of an object go by "object.member", and their number by "object.#". */
static bp_status set_inner_members(bp_arch_config *config, const char *outer, json_t *object)
{
    char name[MOST_KEY];
    const char *key;
    json_t *value;
    snprintf(name, sizeof name, "%.90s.#", outer);
    BP_TRY(bp_arch_config_set_int(config, name, (int64_t)json_object_size(object)));
    if (json_object_size(object) > MOST_INNER)
        return BP_OK;
    json_object_foreach(object, key, value)
    {
        if (json_is_object(value))
            continue;
        snprintf(name, sizeof name, "%.90s.%.90s", outer, key);
        BP_TRY(set_value(config, name, value));
    }
    return BP_OK;
}

static bp_status set_members(bp_arch_config *config, json_t *object)
{
    const char *key;
    json_t *value;
    json_object_foreach(object, key, value)
    {
        if (strcmp(key, "text_config") == 0 || strcmp(key, "quantization_config") == 0)
            continue;
        BP_TRY(set_value(config, key, value));
        if (json_is_object(value))
            BP_TRY(set_inner_members(config, key, value));
    }
    return BP_OK;
}

/* The member of the text part, else of the whole; null is absent. */
static bp_json_at find_member(const bp_json_at *text, const bp_json_at *whole, const char *key)
{
    bp_json_at found = bp_json_member(text, key);
    if (found.value == NULL || json_is_null(found.value))
        found = bp_json_member(whole, key);
    if (json_is_null(found.value))
        found.value = NULL;
    return found;
}

static bp_status choose_dtype(const bp_json_at *text, const bp_json_at *whole, bp_dtype asked, bp_dtype *dtype)
{
    *dtype = asked != BP_DTYPE_NONE ? asked : BP_DTYPE_BF16;
    if (asked != BP_DTYPE_NONE)
        return BP_OK;
    bp_json_at named = find_member(text, whole, "torch_dtype");
    if (named.value == NULL)
        named = find_member(text, whole, "dtype");
    return named.value == NULL ? BP_OK : bp_json_dtype(&named, dtype);
}

/* ---- multimodal configurations ---------------------------------------------------------------------------------- */

/* Types of wrappers whose own tie_word_embeddings counts and not the text part's, with the value where they do not state it, and types
 * that heed the text part's alone. All others heed both. Source: transformers 5.23.0, models of these types on the meta device. */
typedef enum tie { UNTIED, TIED, AS_TEXT } tie;

static const struct {
    const char *model_type;
    tie unstated;
} wrappers[] = {
    {"aria", UNTIED},         {"aya_vision", TIED},
    {"cohere2_vision", TIED}, {"cosmos3_omni", UNTIED},
    {"deepseek_vl", TIED},    {"deepseek_vl_hybrid", TIED},
    {"exaone4_5", UNTIED},    {"gemma3", TIED},
    {"gemma3n", TIED},        {"gemma4", TIED},
    {"glmasr", TIED},         {"got_ocr2", TIED},
    {"granite_speech", TIED}, {"granite_speech_plus", TIED},
    {"idefics2", UNTIED},     {"idefics3", UNTIED},
    {"internvl", TIED},       {"janus", TIED},
    {"kimi_k25", TIED},       {"lfm2_vl", TIED},
    {"lighton_ocr", TIED},    {"llama4", AS_TEXT},
    {"llava_next", UNTIED},   {"minicpm_ocr", TIED},
    {"minicpmv4_6", UNTIED},  {"minicpmv4_7", UNTIED},
    {"mistral3", TIED},       {"moss_transcribe_diarize", TIED},
    {"ovis2", TIED},          {"paligemma", TIED},
    {"pp_chart2table", TIED}, {"qianfan_ocr", UNTIED},
    {"qwen3_5", UNTIED},      {"qwen3_5_moe", UNTIED},
    {"qwen3_asr", TIED},      {"qwen3_vl", UNTIED},
    {"qwen3_vl_moe", UNTIED}, {"smolvlm", UNTIED},
    {"vibevoice", AS_TEXT},   {"video_llava", UNTIED},
    {"vipllava", UNTIED},
};

static bp_status set_wrapper_tie(bp_arch_config *config, const json_t *whole, const json_t *text)
{
    const json_t *own = json_object_get(whole, "tie_word_embeddings");
    const char *type = json_string_value(json_object_get(whole, "model_type"));
    for (size_t i = 0; type != NULL && i < sizeof wrappers / sizeof *wrappers; i++) {
        if (strcmp(wrappers[i].model_type, type) != 0)
            continue;
        if (wrappers[i].unstated == AS_TEXT)
            own = json_object_get(text, "tie_word_embeddings");
        return bp_arch_config_set_int(config, "tie_word_embeddings",
                                      json_is_boolean(own) ? json_is_true(own) : wrappers[i].unstated == TIED);
    }
    return json_is_true(own) ? bp_arch_config_set_int(config, "tie_word_embeddings", 1) : BP_OK;
}

/* "vision_config", "audio_config": of a wrapper every other part, of a text model's own file the towers. */
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
    snprintf(note + used, sizeof note - used, " (python -m bucketpool describe counts the whole model)");
    return bp_model_add_note(model, note);
}

static bp_status convert(const bp_json_at *text, const bp_json_at *whole, const bp_reader_options *options,
                         bp_model **model)
{
    bp_json_at type = find_member(text, whole, "model_type");
    const char *model_type = NULL;
    if (type.value == NULL)
        return bp_json_fail(&type, "is missing; a published configuration names its model family there");
    BP_TRY(bp_json_name(&type, &model_type));
    bp_dtype dtype = BP_DTYPE_NONE;
    BP_TRY(choose_dtype(text, whole, options->dtype, &dtype));
    char *name = NULL;
    BP_TRY(bp_reader_choose_name(options, NULL, whole->origin, &name));
    bp_arch_config *config = NULL;
    bp_model *made = NULL;
    bp_status status = bp_arch_config_create(&config);
    if (status == BP_OK)
        status = set_members(config, whole->value);
    if (status == BP_OK && text->value != whole->value)
        status = set_members(config, text->value);
    if (status == BP_OK && text->value != whole->value)
        status = set_wrapper_tie(config, whole->value, text->value);
    if (status == BP_OK) /* a null of the text part has hidden the whole's */
        status = bp_arch_config_set_string(config, "model_type", model_type);
    if (status == BP_OK)
        status = bp_fail_at(whole->origin, bp_model_from_architecture(name, config, dtype, &made));
    if (status == BP_OK)
        status = note_other_parts(whole->value, text->value != whole->value, made);
    if (status == BP_OK)
        *model = made;
    else
        bp_model_destroy(&made);
    bp_arch_config_destroy(&config);
    free(name);
    return status;
}

bp_status bp_config_from_json(json_t *document, const char *origin, const bp_reader_options *options, bp_model **model)
{
    bp_json_at whole = bp_json_root(document, origin);
    BP_TRY(bp_json_expect_object(&whole, NULL));
    bp_json_at text = bp_json_member(&whole, "text_config");
    if (!json_is_object(text.value))
        text = whole;
    if (json_object_size(whole.value) > MOST_MEMBERS || json_object_size(text.value) > MOST_MEMBERS)
        return bp_json_fail(&whole, "more than %d members; this is no configuration", MOST_MEMBERS);
    return convert(&text, &whole, options, model);
}

bp_status bp_config_parse(const char *text, size_t bytes, const char *origin, const bp_reader_options *options,
                          bp_model **model)
{
    if (text == NULL || origin == NULL || model == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_config_parse: text, origin and model must not be NULL");
    bp_reader_options taken;
    BP_TRY(bp_reader_options_take(options, &taken));
    json_t *document = NULL;
    bool not_numbers; /* as in "time_step_limit": [0.0, Infinity], which no table reads */
    BP_TRY(bp_json_parse(text, bytes, origin, &not_numbers, &document));
    bp_status status = bp_config_from_json(document, origin, &taken, model);
    json_decref(document);
    return status;
}

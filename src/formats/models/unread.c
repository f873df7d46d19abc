/* SPDX-License-Identifier: Apache-2.0 */
/* Fields of a configuration that no table read and that may decide sizes: by their names, their values, and the names of fields that
 * are missing. */
#include "formats/models/unread.h"

#include <bucketpool/core/fail.h>

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/text.h"
#include "formats/file.h"
#include "formats/json.h"

#define MAX_WORDS 16
#define MAX_WORD 24
#define MAX_NAMED 8 /* fields that a note names; it counts the others */
#define MAX_KEY 64  /* longer keys are no field's name */
#define MAX_EDITS 2 /* between a misspelt name and the field's */

/* ---- names -------------------------------------------------------------------------------------------------------- */

static bool is_in(const char *text, const char *const *list)
{
    while (*list != NULL && strcmp(*list, text) != 0)
        list++;
    return *list != NULL;
}

/* The words of "num_attention_heads", "numHeads" or "num-heads", in lower case. */
static size_t split_words(const char *key, char words[MAX_WORDS][MAX_WORD])
{
    size_t count = 0, length = 0;
    for (const char *at = key; *at != '\0' && count < MAX_WORDS; at++) {
        bool breaks = !isalnum((unsigned char)*at);
        bool begins = breaks || (isupper((unsigned char)*at) && at > key && islower((unsigned char)at[-1]));
        if (begins && length > 0) {
            words[count++][length] = '\0';
            length = 0;
        }
        if (!breaks && length + 1 < MAX_WORD && count < MAX_WORDS)
            words[count][length++] = (char)tolower((unsigned char)*at);
    }
    if (length > 0 && count < MAX_WORDS)
        words[count++][length] = '\0';
    return count;
}

/* Fields that decide no parameter's size, although their names have one of the words below. test_unread_fields.py changes the fields of
 * every known type in transformers, and finds those that belong here. */
static const char *const harmless[] = {"_attn_implementation_autoset",
                                       "auto_map",
                                       "embedding_multiplier",
                                       "ep_size",
                                       "experts_per_token",
                                       "generation_config",
                                       "id2label",
                                       "initial_context_length",
                                       "label2id",
                                       "n_group",
                                       "no_rope_layer_interval",
                                       "no_rope_layers",
                                       "nope_layer_interval",
                                       "num_expert_group",
                                       "num_experts_per_token",
                                       "num_logits_to_keep",
                                       "num_return_sequences",
                                       "output_attentions",
                                       "output_hidden_states",
                                       "output_router_logits",
                                       "query_pre_attn_scalar",
                                       "rescale_prenorm_residual",
                                       "residual_in_fp32",
                                       "rope_parameters",
                                       "rope_scaling",
                                       "task_specific_params",
                                       "top_k_experts",
                                       "use_bidirectional_attention",
                                       NULL};

/* A name with one of these words is that of a token, of routing, a loss, a window or an initial value. */
static const char *const quiet_words[] = {
    "beam",        "beams",   "cap",  "chunk", "coef",    "coeff",       "drop",        "dropout",
    "eps",         "epsilon", "id",   "ids",   "init",    "initializer", "jitter",      "loss",
    "max",         "penalty", "prob", "range", "rotary",  "softcap",     "softcapping", "std",
    "temperature", "theta",   "tok",  "topk",  "version", "window",      "windows",     NULL};

/* A name with one of these words may be that of a size, or of a module with parameters. */
static const char *const size_words[] = {
    "adapter",  "adapters",   "attention",  "attn",      "bias",    "biases",   "block",
    "blocks",   "bottleneck", "branches",   "buckets",   "channel", "channels", "classes",
    "codebook", "codebooks",  "compress",   "configs",   "conv",    "copies",   "cross",
    "d",        "depth",      "dim",        "dimension", "dims",    "emb",      "embd",
    "embed",    "embedding",  "embeddings", "expand",    "expert",  "experts",  "feature",
    "features", "ffn",        "gate",       "gated",     "gates",   "gating",   "groups",
    "head",     "heads",      "hidden",     "indexer",   "inner",   "input",    "intermediate",
    "kernel",   "kv",         "latent",     "layer",     "layers",  "length",   "levels",
    "linear",   "lora",       "memory",     "mlp",       "module",  "modules",  "mtp",
    "mult",     "n",          "nb",         "nextn",     "norm",    "norms",    "num",
    "output",   "patch",      "pattern",    "periods",   "pooler",  "position", "positions",
    "proj",     "projection", "queries",    "query",     "rank",    "ranks",    "registers",
    "residual", "residuals",  "router",     "share",     "shared",  "sink",     "sinks",
    "size",     "sizes",      "slots",      "stage",     "stages",  "state",    "streams",
    "taps",     "tie",        "tied",       "tokens",    "types",   "units",    "untie",
    "vocab",    "vocabulary", "width",      "widths",    NULL};

/* A fraction with one of these words multiplies a size. */
static const char *const ratio_words[] = {"expand", "expansion", "ffn", "mlp", "ratio", "width", NULL};

static bool has_word(char words[MAX_WORDS][MAX_WORD], size_t count, const char *const *list)
{
    for (size_t i = 0; i < count; i++) {
        if (is_in(words[i], list))
            return true;
    }
    return false;
}

/* ---- values ------------------------------------------------------------------------------------------------------- */

/* Layers of these kinds have the same parameters. */
static bool is_usual_kind(const json_t *kind)
{
    static const char *const usual[] = {
        "full_attention", "sliding_attention", "chunked_attention", "attention", "dense", NULL};
    const char *text = json_string_value(kind);
    return text != NULL && is_in(text, usual);
}

static bool is_positive(const json_t *value)
{
    return json_is_true(value) || (json_is_integer(value) && json_integer_value(value) > 0) ||
           (json_is_real(value) && json_real_value(value) > 0);
}

/* A number that counts something, a switch that is on, or a list with layers of other kinds. */
static bool can_size(const json_t *value)
{
    const char *text = json_string_value(value);
    if (text != NULL) /* "3,4,5" */
        return strchr(text, ',') != NULL && strspn(text, "0123456789, ") == strlen(text);
    if (!json_is_array(value))
        return is_positive(value);
    bool sizes = false;
    for (size_t i = 0; i < json_array_size(value) && !sizes; i++) {
        const json_t *element = json_array_get(value, i);
        sizes = json_is_object(element) || is_positive(element) || (json_is_string(element) && !is_usual_kind(element));
    }
    return sizes;
}

static void describe(const json_t *value, char text[BP_JSON_DESCRIPTION_BYTES])
{
    if (json_is_array(value))
        snprintf(text, BP_JSON_DESCRIPTION_BYTES, "(a list of %zu)", json_array_size(value));
    else if (json_is_real(value))
        snprintf(text, BP_JSON_DESCRIPTION_BYTES, "%.6g", json_real_value(value));
    else
        bp_json_describe(value, text);
}

/* ---- misspelt names ----------------------------------------------------------------------------------------------- */

/* Levenshtein distance, at most MAX_EDITS + 1. */
static size_t edits_between(const char *word, size_t rows, const char *name, size_t columns)
{
    size_t row[MAX_KEY + 1], apart = rows > columns ? rows - columns : columns - rows;
    if (rows > MAX_KEY || columns > MAX_KEY || apart > MAX_EDITS)
        return MAX_EDITS + 1;
    for (size_t j = 0; j <= columns; j++)
        row[j] = j;
    for (size_t i = 1; i <= rows; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= columns; j++) {
            size_t above = row[j], best = diagonal + (tolower((unsigned char)word[i - 1]) != name[j - 1]);
            best = above + 1 < best ? above + 1 : best;
            row[j] = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
            diagonal = above;
        }
    }
    return row[columns];
}

/* The field that was looked up, is missing, and whose name differs from `key` by a letter or two; else NULL. */
static const bp_looked_up_key *find_meant(const bp_looked_up *looked, const char *key)
{
    size_t length = strlen(key);
    for (size_t i = 0; i < looked->count; i++) {
        const bp_looked_up_key *k = &looked->keys[i];
        size_t max = k->length < 8 ? 1 : MAX_EDITS;
        if (!k->found && edits_between(key, length, k->name, k->length) <= max)
            return k;
    }
    return NULL;
}

/* ---- the walk ----------------------------------------------------------------------------------------------------- */

typedef struct unread {
    const bp_looked_up *looked;
    char text[480];
    size_t used, named, count;
    const json_t *quantization; /* how the checkpoint is stored; models are trained in another dtype */
} unread;

static bool was_looked_up(const bp_looked_up *looked, const char *prefix, const char *key)
{
    size_t before = strlen(prefix), length = before + strlen(key);
    for (size_t i = 0; i < looked->count; i++) {
        const bp_looked_up_key *k = &looked->keys[i];
        bool is_list = k->length > length + 2 && strncmp(k->name + length, "[].", 3) == 0; /* members of its elements */
        if ((k->length == length || is_list) && strncmp(k->name, prefix, before) == 0 &&
            strncmp(k->name + before, key, length - before) == 0)
            return true;
    }
    return false;
}

static void add_unread(unread *u, const char *prefix, const char *key, const json_t *value,
                       const bp_looked_up_key *meant)
{
    char what[BP_JSON_DESCRIPTION_BYTES], hint[MAX_KEY + 16] = "";
    u->count++;
    if (u->named == MAX_NAMED || u->used + 150 > sizeof u->text)
        return;
    describe(value, what);
    if (meant != NULL)
        snprintf(hint, sizeof hint, " (meant: %.*s?)", (int)meant->length, meant->name);
    u->used += (size_t)snprintf(u->text + u->used, sizeof u->text - u->used, "%s%s%.40s %.40s%s",
                                u->named > 0 ? ", " : "", prefix, key, what, hint);
    u->named++;
}

static bool looks_like_size(const char *key, const json_t *value)
{
    char words[MAX_WORDS][MAX_WORD];
    size_t count = split_words(key, words);
    return can_size(value) && !is_in(key, harmless) && !has_word(words, count, quiet_words) &&
           has_word(words, count, json_is_real(value) ? ratio_words : size_words);
}

static void walk(unread *u, const bp_unread_part *part, const json_t *object, const char *prefix)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        if (was_looked_up(u->looked, prefix, key) || part->is_other(key, value))
            continue;
        if (json_is_object(value)) {
            char inner[MAX_KEY];
            bool is_deep = *prefix != '\0' || is_in(key, harmless) || json_object_size(value) == 0;
            snprintf(inner, sizeof inner, "%.60s.", key);
            if (strcmp(key, "quantization_config") == 0 || strcmp(key, "compression_config") == 0)
                u->quantization = json_object_size(value) > 0 ? value : u->quantization;
            else if (!is_deep)
                walk(u, part, value, inner);
            continue;
        }
        const bp_looked_up_key *meant = NULL;
        if (u->named < MAX_NAMED && !json_is_null(value) && *prefix == '\0' && !is_in(key, harmless))
            meant = find_meant(u->looked, key);
        if (meant != NULL || looks_like_size(key, value))
            add_unread(u, prefix, key, value, meant);
    }
}

bp_status bp_note_unread(const bp_unread_part *parts, size_t count, const bp_looked_up *looked, bp_dtype dtype,
                         bp_model *model)
{
    unread u = {.looked = looked};
    for (size_t i = 0; i < count; i++)
        walk(&u, &parts[i], parts[i].object, "");
    char note[640], others[64] = "";
    if (u.quantization != NULL) {
        const char *method = json_string_value(json_object_get(u.quantization, "quant_method"));
        snprintf(note, sizeof note, "not read: quantization_config%s%.40s%s; parameters have the dtype %s",
                 method != NULL ? " (" : "", method != NULL ? method : "", method != NULL ? ")" : "",
                 bp_dtype_name(dtype));
        BP_TRY(bp_model_add_note(model, note));
    }
    if (u.count == 0)
        return BP_OK;
    if (u.count > u.named)
        snprintf(others, sizeof others, " and %zu other%s", u.count - u.named, u.count - u.named == 1 ? "" : "s");
    snprintf(note, sizeof note, "not read, but may decide sizes: %s%s", u.text, others);
    return bp_model_add_note(model, note);
}

/* Architecture tables. A family of models is one constant bp_arch_family: fields read from the published
 * configuration, and the tensors of the layers, the prediction layers and outside units. A new family is a new table. */
#ifndef BP_MODEL_ARCHITECTURE_H
#define BP_MODEL_ARCHITECTURE_H

#include <bucketpool/model.h>

typedef enum bp_arch_field_kind {
    BP_FIELD_SIZE,    /* an integer of at least 1 */
    BP_FIELD_COUNT,   /* an integer of at least 0 */
    BP_FIELD_FLAG,    /* a boolean, or 0 or 1 */
    BP_FIELD_LIST,    /* a list, or a text whose characters are the entries */
    BP_FIELD_EACH,    /* a list with an integer for each layer, or one integer for all: name[layer] */
    BP_FIELD_INTEGER, /* any integer */
    BP_FIELD_LAYER,   /* not read: computed anew for every layer, from `missing` */
    BP_FIELD_CHECK /* `missing` must hold for every layer; `keys` says what is wrong with a layer where it does not */
} bp_arch_field_kind;

typedef struct bp_arch_field {
    const char *name; /* in the expressions of the table */
    const char *
        keys; /* in the configuration: alternatives separated by '|', the first that is there counts. "a.b" is member b of
                       * object a, "a.#" the number of its members */
    bp_arch_field_kind kind;
    const char
        *missing;     /* value when no key is there: an expression over earlier fields, "-" for none, NULL: required */
    const char *null; /* value of an explicit null, NULL: as when missing */
} bp_arch_field;

enum {
    BP_ARCH_LINEAR = 1u << 0,       /* name.weight, and name.bias of the first dimension when `bias` holds */
    BP_ARCH_GEMM = 1u << 1,         /* kept in fp8 when that is asked for */
    BP_ARCH_EXPERT_STACK = 1u << 2, /* dimension 0 is experts */
    BP_ARCH_PLAIN_COPIES = 1u << 3  /* `copies` are no experts */
};

typedef struct bp_arch_tensor {
    const char *name; /* after the layer's; with '^' as its first character the whole name. '*' stands for the expert */
    const char *shape;  /* expressions separated by ';' */
    const char *split;  /* tensor parallelism: "0:heads" splits dimension 0, in multiples of one head; "" replicated */
    const char *when;   /* NULL: always */
    const char *copies; /* NULL: one */
    const char *bias;   /* BP_ARCH_LINEAR only; NULL: never */
    uint32_t flags;
} bp_arch_tensor;

#define BP_ARCH_BLOCKS 8
#define BP_ARCH_TYPES 8

typedef struct bp_arch_family {
    const char *model_types[BP_ARCH_TYPES]; /* ended by NULL */
    const char *source;                     /* of names, shapes and defaults */
    const bp_arch_field *fields;
    const bp_arch_tensor *first; /* outside units, before the layers: the embedding */
    const bp_arch_tensor *last;  /* outside units, after the layers: the final norm and the output layer */
    const char
        *layer_name; /* of the first stack, as many as the field `layers` says; without the number that ends it */
    const char *decoder_layers; /* how many follow in a second stack, NULL: none; `layer` counts on from `layers` */
    const char *decoder_name;   /* of the second stack, whose numbers begin again at 0 */
    const bp_arch_tensor *layer[BP_ARCH_BLOCKS]; /* tables of one layer, in order */
    /* Multi-token prediction: `predictions` units. Each has the tensors of prediction_first, of a layer, and of
     * prediction_last; `layer` counts on from `layers`, `prediction` counts from 0. */
    const char *predictions;
    const char *prediction_name; /* NULL: the layers' names go on */
    const bp_arch_tensor *prediction_first;
    const bp_arch_tensor *prediction_last;
} bp_arch_family;

/* Tables of families, each ended by one without a source, ended by NULL. */
extern const bp_arch_family *const bp_arch_families[];

#endif

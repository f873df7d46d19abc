/* What the tests of packing are made of: instances in plain arrays, the packings made of them, random numbers. */
#ifndef BP_TEST_PACKING_INSTANCES_H
#define BP_TEST_PACKING_INSTANCES_H

#include <bucketpool/pack.h>

#include <stdbool.h>

typedef struct life {
    uint32_t item;
    uint64_t begin, end;
} life;

typedef struct pair {
    uint32_t item, other;
} pair;

typedef struct instance {
    uint64_t *sizes;
    life *lives;
    pair *pairs;
    uint32_t count, life_count, pair_count;
    uint32_t room, life_room, pair_room;
} instance;

/* Starts as {0}. */
uint32_t add_item(instance *in, uint64_t size);
void add_life(instance *in, uint32_t item, uint64_t begin, uint64_t end);
void add_pair(instance *in, uint32_t item, uint32_t other);
/* Takes the last item away again, with its lives and conflicts, which are the last too. */
void drop_item(instance *in);
instance copy_instance(const instance *in);
void end_instance(instance *in);

/* Each item is live in the steps that are set in its mask, a life for each run of them. */
uint32_t add_masked_item(instance *in, uint64_t size, uint32_t steps);

bp_packing *make_packing(const instance *in);
void print_instance(const instance *in);

/* ---- assertions that show the instance ----------------------------------------------------------------------------- */

#define assert_ok(status) check_ok(status, #status, __FILE__, __LINE__)
#define assert_fails(status, expected, ...)                                                                            \
    check_failure(status, expected, (const char *const[]){__VA_ARGS__, NULL}, __FILE__, __LINE__)
#define assert_for(in, condition) check_for(in, condition, #condition, __FILE__, __LINE__)

void check_ok(bp_status status, const char *call, const char *file, int line);
/* The status, and what the detail must mention. */
void check_failure(bp_status status, bp_status expected, const char *const *words, const char *file, int line);
void check_for(const instance *in, bool holds, const char *condition, const char *file, int line);

/* ---- random numbers ------------------------------------------------------------------------------------------------ */

/* The same on every machine. */
void seed(uint64_t value);
uint64_t random_below(uint64_t limit);
/* Both ends can come. */
uint64_t random_between(uint64_t least, uint64_t most);
bool one_in(uint64_t chances);

typedef struct random_options {
    uint32_t items, steps, lives; /* as most of lives of an item */
    uint32_t longest;             /* life, in steps; 0: all of them */
    uint64_t least_size, most_size;
    uint32_t pairs;      /* as most; none where an item is never live */
    bool empty, unlived; /* some items of size 0, some never live */
} random_options;

/* `items` of them: their order, sizes and lives at random. */
instance random_instance(random_options options);
void shuffle(uint32_t *numbers, uint32_t count);

#endif

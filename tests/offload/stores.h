/* Pools with several release groups, and what must be in their memory: a copy on the host of all that was written. */
#ifndef BP_TEST_OFFLOAD_STORES_H
#define BP_TEST_OFFLOAD_STORES_H

#include <bucketpool/offload.h>

#include "../contract/support.h"

#define MOST_SLABS 8
#define MOST_GROUPS MOST_SLABS
/* Slabs of several pages each, the optimizer's of more than twenty. */
#define STORE_UNITS "3000,500 3000,500 1200"
#define MAIN_GRAD BP_ROLE_BIT(BP_ROLE_MAIN_GRAD)
#define OPTIMIZER BP_ROLE_BIT(BP_ROLE_OPTIMIZER)

typedef struct store_options {
    const char *units; /* NULL: STORE_UNITS */
    bp_policy policy;  /* 0: max */
    bool joint;
    uint32_t roles; /* 0: param, grad, state, main_grad, optimizer */
    uint64_t persistent_bytes, overflow_bytes;
    const char *groups[MOST_SLABS]; /* of the plan's slabs, in order; NULL: as planned */
    bool bare;                      /* no offload, nothing live, nothing written */
} store_options;

typedef struct store {
    kit k;
    bp_offload *offload;
    size_t slab_count;
    bp_pool_slab slabs[MOST_SLABS];
    uint8_t *bytes[MOST_SLABS];    /* what must be there */
    uint8_t *known[MOST_SLABS];    /* 1: it must */
    uint32_t persistent;           /* request; UINT32_MAX: none */
    uint32_t writes;               /* so far */
    uint8_t discarded[MOST_SLABS]; /* 1: it was given up when it went */
} store;

/* Takes the device over. State and persistent requests are live on s0, every slab has bytes of its own. `config` NULL: the defaults. */
store open_store(bp_device *device, const store_options *options, const bp_offload_config *config);
/* Everything is given back: asserted. */
void close_store(store *s);
/* Pool and offload, without asserting what the device has left. */
void drop_store(store *s);

uint64_t granularity_of(const bp_device *device);
bp_offload_config offload_config(uint64_t chunk_bytes, bp_backing backing);

/* ---- bytes --------------------------------------------------------------------------------------------------------- */

/* In stream order, bytes that are nowhere else. The whole slab. */
void write_slab(store *s, size_t slab, bp_stream *stream);
/* Memory of a live request. */
void write_request(store *s, uint32_t id, bp_stream *stream);
/* Acquired on one stream, written, released on another. */
void work_on(store *s, uint32_t id, bp_stream *first, bp_stream *last);

/* What is known of slabs that have their memory is there. Waits. */
void assert_bytes(store *s);
void assert_group_bytes(store *s, const char *group);
/* Every byte of the group; for those discarded and brought back as zeros. */
bool group_is_zero(store *s, const char *group);

/* ---- groups -------------------------------------------------------------------------------------------------------- */

bp_offload_group group_of(const bp_offload *offload, const char *name);
size_t group_count(const bp_offload *offload);
bp_offload_group group_at(const bp_offload *offload, size_t index);
bool is_in_group(const store *s, size_t slab, const char *group);
uint64_t bytes_of_group(const store *s, const char *group);
size_t slab_of_group(const store *s, const char *group); /* the first */
#define assert_residency(s, group, expected) assert_int_equal(group_of((s)->offload, group).residency, expected)

/* What is known of the bytes follows; the calls are asserted. */
void begin_keep(store *s, const char *group);
void begin_discard(store *s, const char *group);
void finish_offload(store *s, const char *group);
void keep(store *s, const char *group);    /* both */
void discard(store *s, const char *group); /* both */
void begin_restore(store *s, const char *group, bp_restore fill);
/* `fill` as it began. */
void finish_restore(store *s, const char *group, bp_restore fill);
void bring_back(store *s, const char *group, bp_restore fill); /* both */

/* For calls that are not asserted, after they succeeded. */
void note_begun(store *s, const char *group, bool kept);
void note_restored(store *s, const char *group, bp_restore fill);

/* All that a call which fails must leave as it was: the pool's, and every group's. */
typedef struct store_state {
    snapshot pool;
    bp_offload_group groups[MOST_GROUPS];
    size_t count;
    uint64_t committed_bytes;
} store_state;

store_state state_of(const store *s);
void assert_same_state(const store *s, const store_state *before);

/* ---- requests ------------------------------------------------------------------------------------------------------ */

const bp_plan_request *request_at(const store *s, uint32_t id);
bool is_state(const bp_plan_request *request);
/* The first request of the role; of the unit. */
uint32_t of_role(const store *s, bp_role role);
/* Where the requests of a role are. */
const char *group_of_request(const store *s, uint32_t id);

#endif

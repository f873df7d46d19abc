/* SPDX-License-Identifier: Apache-2.0 */
/* Pools with several release groups, and a model of their memory: a copy on the host of all that was written. */
#ifndef BP_TEST_OFFLOAD_STORES_H
#define BP_TEST_OFFLOAD_STORES_H

#include <bucketpool/offload.h>

#include "support/pools.h"

#define MAX_SLABS 8
#define MAX_GROUPS MAX_SLABS
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
    const char *groups[MAX_SLABS]; /* of the plan's slabs, in order; NULL: as planned */
    bool bare;                     /* no offload, nothing live, nothing written */
} store_options;

typedef struct store {
    kit k;
    bp_offload *offload;
    size_t slab_count;
    bp_pool_slab slabs[MAX_SLABS];
    uint8_t *bytes[MAX_SLABS];    /* expected bytes */
    uint8_t *known[MAX_SLABS];    /* 1: the byte is known */
    uint32_t persistent;          /* request; UINT32_MAX: none */
    uint32_t writes;              /* so far */
    uint8_t discarded[MAX_SLABS]; /* 1: discarded by the last offload */
} store;

/* Takes the device over. State and persistent requests are live on s0, every slab has different bytes. `config` NULL: the defaults. */
store open_store(bp_device *device, const store_options *options, const bp_offload_config *config);
/* Asserts that everything was freed. */
void close_store(store *s);
/* A store that closes with its block. */
#define STORE __attribute__((cleanup(close_store))) store
/* Destroys pool and offload, without assertions about the device. */
void drop_store(store *s);

uint64_t granularity_of(const bp_device *device);
bp_offload_config offload_config(uint64_t chunk_bytes, bp_backing backing);

/* ---- bytes --------------------------------------------------------------------------------------------------------- */

/* Fills the whole slab in stream order with bytes that occur nowhere else. */
void write_slab(store *s, size_t slab, bp_stream *stream);
/* Fills the memory of a live request. */
void write_request(store *s, uint32_t id, bp_stream *stream);
/* Acquires on one stream, writes, and releases on another. */
void work_on(store *s, uint32_t id, bp_stream *first, bp_stream *last);

/* Asserts the known bytes of resident slabs. Waits for streams. */
void assert_bytes(store *s);
void assert_group_bytes(store *s, const char *group);
/* Asserts every byte of the group; for groups discarded and restored as zeros. */
bool group_is_zero(store *s, const char *group);

/* ---- groups -------------------------------------------------------------------------------------------------------- */

bp_offload_group group_of(const bp_offload *offload, const char *name);
size_t group_count(const bp_offload *offload);
bp_offload_group group_at(const bp_offload *offload, size_t index);
bool is_in_group(const store *s, size_t slab, const char *group);
uint64_t bytes_of_group(const store *s, const char *group);
size_t slab_of_group(const store *s, const char *group); /* the first */
#define assert_residency(s, group, expected) assert_int_equal(group_of((s)->offload, group).residency, expected)

/* Calls that are asserted; the model of the bytes is updated. */
void begin_keep(store *s, const char *group);
void begin_discard(store *s, const char *group);
void finish_offload(store *s, const char *group);
void keep(store *s, const char *group);    /* both */
void discard(store *s, const char *group); /* both */
void begin_restore(store *s, const char *group, bp_restore fill);
/* `fill` as passed to begin. */
void finish_restore(store *s, const char *group, bp_restore fill);
void bring_back(store *s, const char *group, bp_restore fill); /* both */

/* Update the model after calls that are not asserted. */
void note_begun(store *s, const char *group, bool kept);
void note_restored(store *s, const char *group, bp_restore fill);

/* Everything that a failed call must leave unchanged, of the pool and of every group. */
typedef struct store_state {
    snapshot pool;
    bp_offload_group groups[MAX_GROUPS];
    size_t count;
    uint64_t committed_bytes;
} store_state;

store_state state_of(const store *s);
void assert_same_state(const store *s, const store_state *before);
/* Asserts that the call fails with these words and changes nothing. */
#define assert_refuses(s, call, expected, ...)                                                                         \
    do {                                                                                                               \
        store_state before_ = state_of(s);                                                                             \
        assert_fails(call, expected, __VA_ARGS__);                                                                     \
        assert_same_state(s, &before_);                                                                                \
    } while (0)

/* ---- requests ------------------------------------------------------------------------------------------------------ */

const bp_plan_request *request_at(const store *s, uint32_t id);
bool is_state(const bp_plan_request *request);
/* The first request of the role; of the unit. */
uint32_t of_role(const store *s, bp_role role);
/* The slab of a role's requests. */
const char *group_of_request(const store *s, uint32_t id);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the parts of the emulated driver. One lock protects all state; work runs without it. */
#ifndef FAKE_CUDA_INTERNAL_H
#define FAKE_CUDA_INTERNAL_H

#include "fake_cuda.h"
#include "fake_kernels.h"
#include "functions.h"

#include <pthread.h>
#include <string.h>

#define FAKE_API __attribute__((visibility("default")))

#define FAKE_DEVICES 16

/* CUresult. */
enum {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    NO_BINARY_FOR_GPU = 209,
    UNSUPPORTED_PTX_VERSION = 222,
    INVALID_HANDLE = 400,
    ILLEGAL_STATE = 401,
    NO_SUCH_NAME = 500,
    NOT_READY = 600,
    CONTEXT_IS_DESTROYED = 709,
    ALREADY_REGISTERED = 712,
    NOT_REGISTERED = 713,
    NOT_PERMITTED = 800,
    NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_MERGE = 902,
    CAPTURE_UNMATCHED = 903,
    CAPTURE_UNJOINED = 904,
    CAPTURE_ISOLATION = 905,
    CAPTURE_IMPLICIT = 906,
    CAPTURED_EVENT = 907,
    CAPTURE_WRONG_THREAD = 908
};

typedef enum fake_function {
#define FAKE_ID(name, flags) FAKE_##name,
    FAKE_FUNCTIONS(FAKE_ID)
#undef FAKE_ID
        FAKE_FUNCTION_COUNT
} fake_function;

typedef enum fake_kind { FAKE_STREAM, FAKE_EVENT, FAKE_GRAPH, FAKE_EXEC, FAKE_MODULE, FAKE_ENTRY } fake_kind;

/* Handles are addresses of objects. Objects stay allocated until the reset, so that the use of a destroyed one is
 * detected. */
typedef struct fake_object {
    fake_kind kind;
    bool alive;
    struct fake_object *next; /* in the same bucket of the hash table */
} fake_object;

typedef struct fake_context {
    int device, references;
    bool active;
    struct fake_stream *legacy;
} fake_context;

typedef struct fake_module {
    fake_object object;
    fake_context *context;
    const fake_kernel *kernels;
    size_t launches; /* launches of its kernels, in flight or in graphs */
    struct fake_entry *entries;
} fake_module;

/* A kernel of a module that the program has looked up. */
typedef struct fake_entry {
    fake_object object;
    fake_module *module;
    const fake_kernel *kernel;
    bool loaded;
    int dynamic_shared; /* most bytes of a launch */
    struct fake_entry *next;
} fake_entry;

/* A launch with a copy of its argument. */
typedef struct fake_launch {
    fake_module *module; /* NULL: the kernel is not from an image */
    const fake_kernel *kernel;
    size_t references; /* number of works that refer to it */
    unsigned grid[3], block[3], shared_bytes;
    _Alignas(16) unsigned char argument[];
} fake_launch;

/* A position in a stream, reached when `count` pieces of its work are done. stream NULL: always reached. */
typedef struct fake_mark {
    struct fake_stream *stream;
    uint64_t count;
} fake_mark;

typedef enum fake_work_kind {
    FAKE_NOTHING,
    FAKE_FILL,
    FAKE_COPY,
    FAKE_CALL,
    FAKE_WAIT,   /* waits until a word of memory is >= `least` */
    FAKE_OPEN,   /* stream-ordered memory becomes accessible */
    FAKE_CLOSE,  /* and is freed */
    FAKE_LAUNCH, /* of a graph */
    FAKE_KERNEL
} fake_work_kind;

typedef struct fake_work {
    fake_work_kind kind;
    unsigned char value;
    uint32_t min;
    uint64_t to, from;
    size_t bytes;
    void (*function)(void *);
    void *argument;
    struct fake_exec *exec;
    fake_launch *launch;
} fake_work;

typedef struct fake_node {
    fake_work work;
    size_t index; /* index in its graph */
    size_t dependency_count;
    struct fake_node **dependencies;
} fake_node;

typedef struct fake_nodes {
    fake_node **nodes;
    size_t count, capacity;
} fake_nodes;

typedef struct fake_graph {
    fake_object object;
    fake_nodes nodes;
} fake_graph;

typedef struct fake_exec {
    fake_object object;
    int references; /* held by the program, by launches and by graphs that contain it */
    fake_nodes nodes;
    fake_mark last;
} fake_exec;

typedef struct fake_capture {
    uint64_t id;
    int mode;
    uint64_t thread;
    bool invalidated;
    struct fake_stream *origin;
    fake_graph *graph;
    struct fake_capture *next;
} fake_capture;

typedef struct fake_op {
    fake_work work;
    struct fake_op *next;
    size_t mark_count;
    fake_mark marks[];
} fake_op;

typedef struct fake_stream {
    fake_object object;
    fake_context *context;
    unsigned flags;
    bool legacy, served;
    uint64_t enqueued, completed;
    uint64_t random;
    fake_op *head, *tail;
    pthread_cond_t arrived;
    fake_capture *capture;
    fake_nodes dependencies; /* of the next captured node */
    struct fake_stream *next;
} fake_stream;

typedef struct fake_event {
    fake_object object;
    fake_context *context;
    fake_mark mark;
    uint64_t capture; /* the capture of the last record; 0: none */
    fake_nodes nodes;
} fake_event;

typedef struct fake_physical {
    uint64_t handle, bytes;
    int device, handle_types, file;
    int handles, mappings; /* references by the program and by mappings */
    bool rdma;
    struct fake_physical *next;
} fake_physical;

typedef struct fake_mapping {
    uint64_t address, bytes;
    fake_physical *physical;
    int access[FAKE_DEVICES]; /* flags: 1 read, 3 read and write */
    void *view; /* the address for work: the same, or another one if the host must not access the memory */
    struct fake_mapping *next;
} fake_mapping;

typedef struct fake_range {
    uint64_t address, bytes;
    fake_context *context; /* for allocations and registered host memory */
    bool freed;
    void *view;  /* for allocations, as for mappings */
    bool open;   /* accessible to work */
    bool pooled; /* allocated in the order of a stream */
    struct fake_range *next;
} fake_range;

/* The default memory pool of a device. */
typedef struct fake_pool {
    uint64_t threshold, kept; /* bytes that it may keep, and that it keeps */
} fake_pool;

typedef struct fake_driver {
    pthread_mutex_t lock;
    pthread_cond_t changed; /* signalled when work is done or a stream's thread has ended */
    fake_cuda_config config;
    int attributes[256];
    bool ready; /* configured */
    bool started;
    uint64_t epoch; /* number of resets; state that threads keep from an earlier epoch is invalid */
    uint64_t threads, served_streams;
    fake_context contexts[FAKE_DEVICES];
    uint64_t used[FAKE_DEVICES];
    fake_pool pools[FAKE_DEVICES];
    fake_stream *streams;
    fake_capture *captures;
    uint64_t captures_begun, physicals_made;
    fake_physical *physicals;
    fake_mapping *mappings;
    fake_range *reservations, *allocations, *pinned, *registered;
    size_t kernels_running;
    uint64_t random;
} fake_driver;

extern fake_driver fake;

/* State of a thread. */
typedef struct fake_thread {
    uint64_t epoch, number;
    size_t depth;
    fake_context *stack[64];
    int mode; /* capture mode */
    bool in_host_function;
} fake_thread;

fake_thread *fake_this_thread(void);

/* Device addresses are addresses of the process. */
static inline void *fake_at(uint64_t address)
{
    void *memory;
    memcpy(&memory, &address, sizeof memory);
    return memory;
}

/* ---- entry.c: every function begins with FAKE_ENTER, which takes the lock, and ends with fake_leave -------------- */
int fake_enter(fake_function function);
int fake_leave(int result);
#define FAKE_ENTER(name)                                                                                               \
    do {                                                                                                               \
        int refused = fake_enter(FAKE_##name);                                                                         \
        if (refused != OK)                                                                                             \
            return refused == FAKE_CUDA_FORGETS ? OK : refused;                                                        \
    } while (0)
/* Returns the result of an expression unless it is OK; with the lock kept. */
#define FAKE_TRY(expression)                                                                                           \
    do {                                                                                                               \
        int failed = (expression);                                                                                     \
        if (failed != OK)                                                                                              \
            return failed;                                                                                             \
    } while (0)
unsigned fake_function_flags(fake_function function);
void fake_forget_counts(void);

/* ---- control.c, environment.c ---- */
void fake_get_ready(void);
void fake_read_environment(fake_cuda_config *config);
void *fake_new(size_t bytes); /* zeroed; ends the program if out of memory */
uint64_t fake_random(uint64_t *state);

/* ---- broken.c: with the lock ---- */
__attribute__((format(printf, 2, 3))) void fake_break(const char *rule, const char *format, ...);

/* ---- objects.c ---- */
void fake_object_add(fake_object *object, fake_kind kind);
/* NULL: unknown or destroyed; `*gone` is true if it was destroyed. */
void *fake_object_find(const void *handle, fake_kind kind, bool *gone);
void fake_objects_each(void (*visit)(fake_object *object, void *argument), void *argument);
void fake_objects_forget(void);

/* ---- contexts.c ---- */
int fake_current(fake_context **context);

/* ---- queue.c ---- */
bool fake_is_reached(const fake_mark *mark);
void fake_await(fake_mark mark);
/* Appends work to the stream's queue without checking for captures. `waits` may be NULL. */
int fake_enqueue(fake_stream *stream, const fake_work *work, const fake_mark *waits, size_t wait_count);
void fake_run(const fake_work *work);

/* ---- host_functions.c: without the lock ---- */
void fake_call_host(void (*function)(void *), void *argument);

/* ---- streams.c ---- */
fake_stream *fake_stream_new(fake_context *context, unsigned flags, bool legacy);
/* Finds a stream; NULL and 1 are the legacy stream of the current context. */
int fake_stream_find(void *handle, fake_stream **stream);
/* fake_stream_find for work that needs a current context. */
int fake_stream_for_work(void *handle, fake_stream **stream);
void fake_await_stream(fake_stream *stream);
void fake_await_context(const fake_context *context);

/* ---- capture.c ---- */
void fake_capture_invalidate(fake_capture *capture);
fake_capture *fake_capture_find(uint64_t id);
/* 906 for the legacy stream while a blocking stream of its context is captured; invalidates such captures. */
int fake_capture_check_legacy(const fake_stream *stream, bool invalidate);
/* 900 if captures forbid potentially unsafe calls on this thread; invalidates these captures. */
int fake_capture_check_unsafe(fake_thread *thread);
/* Adds work to the stream's capture or its queue. */
int fake_submit(fake_stream *stream, const fake_work *work);
int fake_capture_node(fake_stream *stream, const fake_work *work);
/* Makes the stream's next node depend on the event's; a stream outside the capture joins it. */
int fake_capture_wait(fake_stream *stream, const fake_event *event);
/* 900 if the stream, or a stream of the context, is captured; invalidates the capture. */
int fake_capture_check_wait(fake_stream *stream);
int fake_capture_check_context(const fake_context *context);
/* Removes a destroyed stream from its captures. */
void fake_capture_stream_gone(fake_stream *stream);
void fake_captures_forget(void);

/* ---- nodes.c ---- */
void fake_nodes_add(fake_nodes *nodes, fake_node *node); /* unless it is in the set */
void fake_nodes_set(fake_nodes *nodes, const fake_nodes *from);
void fake_nodes_clear(fake_nodes *nodes);
fake_node *fake_graph_add(fake_graph *graph, const fake_work *work, const fake_nodes *dependencies);

/* ---- graphs.c ---- */
fake_graph *fake_graph_new(void);
void fake_graph_free(fake_graph *graph);
void fake_exec_release(fake_exec *exec);
void fake_exec_run(fake_exec *exec, uint64_t *random);

/* Counts another reference to the work's objects; released after it has run. */
void fake_work_retain(const fake_work *work);
void fake_work_release(const fake_work *work);

/* ---- modules.c ---- */
/* A permanent copy. */
const char *fake_kernels_keep_path(const char *path);
void fake_module_end(fake_module *module);
void fake_launch_run(const fake_launch *launch);
void fake_launch_release(fake_launch *launch);

/* ---- devices.c ---- */
int fake_attribute(int attribute, int device);

/* ---- ranges.c ---- */
fake_range *fake_range_add(fake_range **list, uint64_t address, uint64_t bytes);
/* The range that starts at the address; that overlaps it; that contains all of it. */
fake_range *fake_range_at(fake_range *list, uint64_t address);
fake_range *fake_range_touching(fake_range *list, uint64_t address, uint64_t bytes);
fake_range *fake_range_holding(fake_range *list, uint64_t address, uint64_t bytes);
void fake_range_remove(fake_range **list, fake_range *range);
void fake_ranges_forget(fake_range **list);

/* ---- memory.c ---- */
int fake_memory_take(int device, uint64_t bytes);
void fake_memory_give(int device, uint64_t bytes);
/* OK if work of the device may access the range, else INVALID_VALUE. `host`: accepts unregistered host memory. */
int fake_memory_check(int device, uint64_t address, uint64_t bytes, bool write, bool host);
/* The address at which work accesses `address`, and how many of *bytes are contiguous there. Without the lock. */
void *fake_memory_view(uint64_t address, size_t *bytes);
/* Between open and close, memory that work may use is accessible at its own address, also with `host_faults`.
 * Without the lock. */
void fake_memory_open(void);
void fake_memory_shut(void);
/* Frees the memory of a context; returns the number of ranges. */
int fake_memory_end_with(const fake_context *context);
void fake_memory_forget(void);

/* ---- pools.c: memory of the default pools ------------------------ */
int fake_pool_take(int device, uint64_t bytes);
void fake_pool_give(int device, uint64_t bytes);
void fake_pool_trim(int device, uint64_t keep);

/* ---- mappings.c, physical.c ---- */
int fake_mapping_protection(const fake_mapping *mapping);
fake_mapping *fake_mapping_holding(uint64_t address);
void fake_mappings_forget(void);
/* An unlinked file of `bytes` bytes, not cleared. */
int fake_physical_open(uint64_t bytes, int *file);
fake_physical *fake_physical_find(unsigned long long handle);
void fake_physical_release(fake_physical *physical);
extern const unsigned char fake_poison; /* contents of new memory */

/* ---- allocations.c: called by streams, without the lock ---- */
void fake_allocation_open(uint64_t address);
void fake_allocation_close(uint64_t address);
/* With the lock. */
void fake_allocation_release(fake_range *range);
/* Maps a file at an address, inaccessible, and again as a view; NULL: out of address space. */
void *fake_view_map(uint64_t address, uint64_t bytes, int file);
void fake_view_unmap(uint64_t address, uint64_t bytes, void *view);

#endif

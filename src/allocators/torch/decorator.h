/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of the decorators of PyTorch's allocators, which Python calls. decorator_cuda.cpp and decorator_cpu.cpp become
 * a library each, with the same functions; they are compiled on the user's machine, against the headers of the installed
 * PyTorch, and use the library bucketpool. Device 0 is the CPU's only one.
 *
 * A decorator passes everything to the allocator that PyTorch had, until a device records or serves. It stays in place until the
 * process ends. Thread safety: any thread, except that recording, serving and stopping one device must not overlap each other. */
#ifndef BP_ALLOCATORS_TORCH_DECORATOR_H
#define BP_ALLOCATORS_TORCH_DECORATOR_H

#include <bucketpool/step_serve.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BP_DECORATOR_API __attribute__((visibility("default")))

/* Why the last call of this thread that returned -1 failed. */
BP_DECORATOR_API const char *bp_decorator_error(void);

/* Puts the decorator in front of PyTorch's allocator. Tensors made before stay with that; so do their storages when they
 * are resized. May be repeated. 0; -1: the allocator is not PyTorch's native one, or its cache is off. */
BP_DECORATOR_API int bp_decorator_install(void);

/* Begins to record the allocations of a device, before CUDA is initialised, too. 0, or -1. */
BP_DECORATOR_API int bp_decorator_record(int device);
/* The events so far, a copy that is valid until the next call. Returns how many. */
BP_DECORATOR_API size_t bp_decorator_events(int device, const bp_step_event **events);
/* Ends the recording and drops the events. */
BP_DECORATOR_API void bp_decorator_forget(int device);

/* Serves a plan, which is copied. The slab is allocated from PyTorch's allocator: now with `wait_bytes` 0, else at the first
 * allocation before which at most so many bytes are live on the device, or at the second mark from then on. Until then the
 * server follows the program. A plan without the first step of a process, given with wait_bytes, waits for a mark first: what
 * a program allocates before its steps has sizes of the steps, too, and would stay in the slab. 0, or -1: the device serves
 * already, or memory for the slab is missing. */
BP_DECORATOR_API int bp_decorator_serve(int device, const bp_step_plan *plan, uint64_t wait_bytes);
/* Serves another plan in the slab that there is, where what lives stays: at a mark. 0, or -1: nothing is served, or the plan has more
 * bytes than the slab. */
BP_DECORATOR_API int bp_decorator_replace(int device, const bp_step_plan *plan);
/* Stops serving. The slab goes back when nothing lives in it, and then another plan can be served. */
BP_DECORATOR_API void bp_decorator_stop(int device);
/* An optimizer has ended its step. */
BP_DECORATOR_API void bp_decorator_mark(int device);

typedef enum bp_decorator_state {
    BP_DECORATOR_OFF,     /* passes everything on */
    BP_DECORATOR_WAITING, /* for the moment to allocate the slab */
    BP_DECORATOR_SERVING,
    BP_DECORATOR_STOPPING, /* something still lives in the slab */
    BP_DECORATOR_FAILED    /* there was no memory for the slab: bp_decorator_status.because */
} bp_decorator_state;

typedef struct bp_decorator_status {
    uint32_t state; /* a bp_decorator_state */
    uint32_t is_recording;
    uint64_t slab, slab_bytes; /* address; 0: none */
    uint64_t live_bytes;      /* allocated on the device, rounded: PyTorch's and the slab's live blocks, not the slab */
    uint64_t peak_live_bytes; /* since bp_decorator_reset_peak */
    uint64_t reserved_bytes,
        peak_reserved_bytes; /* by PyTorch, with the slab; CPU: the slab, and live blocks outside of it */
    char because[256];
} bp_decorator_status;

BP_DECORATOR_API void bp_decorator_get_status(int device, bp_decorator_status *status);
BP_DECORATOR_API void bp_decorator_reset_peak(int device);
/* The server of a device that waits, serves or stops: for bp_step_server_get_statistics and others. NULL: none. Valid until the
 * device serves another plan. */
BP_DECORATOR_API bp_step_server *bp_decorator_server(int device);

/* CPU only. 1: fills memory of the slab with 0xee when it is freed, so that uses after that show. */
BP_DECORATOR_API void bp_decorator_poison(int is_on);

#ifdef __cplusplus
}
#endif
#endif

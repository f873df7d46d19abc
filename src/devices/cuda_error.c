/* What the driver's results mean for the caller. */
#include "core/fail.h"
#include "devices/cuda.h"

/* Of errors around captures, what to do; the driver only says that something was not permitted. */
static const char *capture_advice(int error)
{
    switch (error) {
    case BP_CU_CAPTURE_FIRST:
        return "not possible while a graph is being captured: synchronise, allocate and free outside";
    case BP_CU_CAPTURE_INVALIDATED: return "the capture was made invalid by an earlier error: end it and begin again";
    case BP_CU_CAPTURE_MERGE:
        return "would merge two captures: streams of different captures may not wait for one another";
    case BP_CU_CAPTURE_UNMATCHED: return "the stream is not the one on which this capture began";
    case BP_CU_CAPTURE_UNJOINED:
        return "a stream that joined the capture was not joined back: let the first stream wait for it before the end";
    case BP_CU_CAPTURE_ISOLATION:
        return "would wait across the border of a capture: declare it (bp_capture_begin) before it begins, and let "
               "every stream "
               "that takes part wait for its first stream";
    case BP_CU_CAPTURE_IMPLICIT:
        return "uses the legacy default stream, which waits for the captured one: capture with streams of your own";
    case BP_CU_CAPTURED_EVENT:
        return "waits for an event that was recorded inside a capture: declare captures (bp_capture_begin, "
               "bp_capture_end)";
    default: return "the capture began on another thread, and not in relaxed mode";
    }
}

static bp_status cuda_error_status_of(int error)
{
    switch (error) {
    case BP_CU_OUT_OF_MEMORY: return BP_ERR_NO_DEVICE_MEMORY;
    case BP_CU_NOT_INITIALIZED:
    case BP_CU_DEINITIALIZED:
    case BP_CU_STUB_LIBRARY:
    case BP_CU_NO_DEVICE:
    case BP_CU_INVALID_DEVICE: return BP_ERR_NO_DEVICE;
    case BP_CU_NOT_PERMITTED:
    case BP_CU_NOT_SUPPORTED: return BP_ERR_UNSUPPORTED;
    default: return BP_ERR_DEVICE;
    }
}

bp_status bp_cuda_fail(const bp_cuda_driver *driver, int error, const char *what)
{
    const char *name = NULL, *text = NULL;
    (void)driver->cuGetErrorName(error, &name);
    (void)driver->cuGetErrorString(error, &text);
    if (error >= BP_CU_CAPTURE_FIRST && error <= BP_CU_CAPTURE_WRONG_THREAD)
        return bp_fail(BP_ERR_CAPTURE, "cuda: %s: %s (%s, %d)", what, capture_advice(error),
                       name != NULL ? name : "unknown", error);
    return bp_fail(cuda_error_status_of(error), "cuda: %s: %s (%s, %d)", what,
                   text != NULL ? text : "the driver has no text for it", name != NULL ? name : "unknown", error);
}

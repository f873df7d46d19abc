/** @file
 * Status codes, error details and the library version.
 *
 * Every fallible function returns a bp_status. Where an error is first decided, a sentence with names and numbers is
 * stored for the calling thread; bp_error_detail() returns it. Outputs are written only on success.
 *
 * Preconditions: functions that can fail check their arguments. Getters that cannot fail (counts, names) take a valid object; so do
 * getters of one entry, which check the index and the size of the struct.
 *
 * Thread safety: everything here may be called from any thread. Capture safety: nothing here touches a device. */
#ifndef BUCKETPOOL_STATUS_H
#define BUCKETPOOL_STATUS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define BP_API __attribute__((visibility("default")))
#else
#define BP_API
#endif

/** Values are part of the ABI: never renumbered, never reused. */
typedef enum bp_status {
    BP_OK = 0,
    BP_ERR_INVALID_ARGUMENT = 1, /**< a value the caller passed can never be right */
    BP_ERR_NO_HOST_MEMORY = 2,
    BP_ERR_NO_DEVICE_MEMORY = 3,
    BP_ERR_NO_DEVICE = 4,
    BP_ERR_SCHEDULE = 5, /**< an acquire or release out of the order the schedule allows */
    BP_ERR_CAPTURE = 6,  /**< not allowed while a graph is being captured */
    BP_ERR_UNSUPPORTED = 7,
    BP_ERR_OVERFLOW = 8,   /**< a size does not fit 64 bits */
    BP_ERR_INFEASIBLE = 9, /**< well-formed, but no plan satisfies it */
    BP_ERR_IO = 10,        /**< a file is missing, unreadable or cannot be written */
    BP_ERR_FORMAT = 11,    /**< a file was read and is malformed */
    BP_ERR_MISMATCH = 12,  /**< two things that must agree do not: a plan and its model, a size and its plan */
    BP_ERR_INTERNAL = 13,  /**< the library broke its own invariant; please report */
    BP_ERR_DEVICE = 14,    /**< the device or its driver failed; the detail has its own words */
    BP_ERR_COMM = 15,      /**< a communicator failed, here or on the rank that the detail names */
    BP_ERR_TIMEOUT = 16,   /**< ranks did not answer in time; the detail names them where the transport tells */
} bp_status;

/** The status in two or three words, e.g. "invalid argument". Never NULL; "unknown status" for others.
 * The string is static. */
BP_API const char *bp_status_name(bp_status status);

/** The sentence recorded by the last failing call of this thread, "" when there was none. The pointer stays valid until
 * this thread's next failing call. Succeeding calls leave it alone. */
BP_API const char *bp_error_detail(void);

/** Records `detail` (copied, cut at 511 bytes; control characters and bytes that are not UTF-8 become '?') for the calling thread and returns
 * `status`. For libraries built on this one and for providers of devices and communicators; plain callers have no use for it. */
BP_API bp_status bp_error_record(bp_status status, const char *detail);

/** "major.minor.patch" of the library that is loaded (not of the header). Static. */
BP_API const char *bp_version(void);

#ifdef __cplusplus
}
#endif
#endif

/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * Status codes, error messages and the library version.
 *
 * A function that can fail returns a bp_status. The function that detects the error stores a message with names and
 * numbers for the calling thread; bp_error_detail returns it. Outputs are only written on success.
 *
 * Functions that can fail check their arguments. Getters without a status (counts, names) need a valid object.
 *
 * Thread safety: any function, any thread. Capture: allowed, no function here uses a device. */
#ifndef BUCKETPOOL_STATUS_H
#define BUCKETPOOL_STATUS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define BP_API __attribute__((visibility("default")))
#define BP_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define BP_API
#define BP_PRINTF(text, first)
#endif

/** Values are part of the ABI: never renumbered, never reused. */
typedef enum bp_status {
    BP_OK = 0,
    BP_ERR_INVALID_ARGUMENT = 1, /**< an argument is wrong in itself, whatever the state of the object */
    BP_ERR_NO_HOST_MEMORY = 2,
    BP_ERR_NO_DEVICE_MEMORY = 3,
    BP_ERR_NO_DEVICE = 4,
    /** a call in the wrong order, for example an acquire of memory that another request holds */
    BP_ERR_SCHEDULE = 5,
    BP_ERR_CAPTURE = 6, /**< not allowed while a graph is being captured */
    BP_ERR_UNSUPPORTED = 7,
    BP_ERR_OVERFLOW = 8,   /**< a size does not fit 64 bits */
    BP_ERR_INFEASIBLE = 9, /**< the input is valid, but no plan satisfies it */
    BP_ERR_IO = 10,        /**< a file is missing, unreadable or cannot be written */
    BP_ERR_FORMAT = 11,    /**< the contents of a file are malformed */
    BP_ERR_MISMATCH = 12,  /**< two inputs that must agree differ: a plan and its model, a size and its plan */
    BP_ERR_INTERNAL = 13,  /**< an invariant of the library is broken; please report it */
    BP_ERR_DEVICE = 14,    /**< the device or its driver failed; the message quotes the driver */
    BP_ERR_COMM = 15,      /**< a communicator failed on this rank or on the rank that the message names */
    /** ranks did not answer in time; the message names them where the transport reports them */
    BP_ERR_TIMEOUT = 16,
} bp_status;

/** The name of a status in two or three words, e.g. "invalid argument"; "unknown status" for other values. Never NULL,
 * static. */
BP_API const char *bp_status_name(bp_status status);

/** The message of the last failing call of this thread; "" if no call has failed. Successful calls do not change it.
 * The pointer is valid until the next failing call of this thread. */
BP_API const char *bp_error_detail(void);

/** Stores `detail` as the message of the calling thread and returns `status`. For providers of devices and
 * communicators, and for libraries built on this one. The text is copied and cut at 511 bytes; control characters and
 * invalid UTF-8 become '?'. */
BP_API bp_status bp_error_record(bp_status status, const char *detail);

/** The same with a message that is formatted as by printf. An argument of \%s may hold any bytes: those that are not
 * printable UTF-8 appear as codes in angle brackets. Conversions are those of C17 except n, without positions. Returns
 * nothing, so that bp_fail of core/fail.h, which calls it, can be a macro that static analysis follows. */
BP_API BP_PRINTF(2, 3) void bp_error_recordf(bp_status status, const char *format, ...);

/** The version of the loaded library (not of the header), as "major.minor.patch". Static. */
BP_API const char *bp_version(void);

#ifdef __cplusplus
}
#endif
#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by buffers and windows. All under the lock. */
#ifndef FAKE_NCCL_REGISTRATION_H
#define FAKE_NCCL_REGISTRATION_H

#include "state.h"

#define MAX_SEGMENTS 16

/* 0 if registering or deregistering is allowed now. */
int check_moment(communicator *comm, const char *function);
/* True if the communicator supports symmetric memory. */
bool is_symmetric(const communicator *comm);

buffer *buffer_with(const communicator *comm, uint64_t begin, uint64_t end);
buffer *buffer_called(const communicator *comm, const void *handle);
/* Registers whole pages; pages that are registered already are counted. NULL: out of memory. */
buffer *add_buffer(communicator *comm, uint64_t address, uint64_t bytes);
void drop_buffer(communicator *comm, buffer *b);

#endif

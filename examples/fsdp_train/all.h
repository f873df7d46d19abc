/* SPDX-License-Identifier: Apache-2.0 */
/* The operations themselves, for the host's loops and the kernels. */
#ifndef FSDP_TRAIN_ALL_H
#define FSDP_TRAIN_ALL_H

#include "attention.h"
#include "dense.h"
#include "experts.h"
#include "loss.h"
#include "operations.h"
#include "shards.h"

#endif

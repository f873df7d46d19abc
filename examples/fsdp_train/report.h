/* SPDX-License-Identifier: Apache-2.0 */
/* The printed report, without losses. */
#ifndef FSDP_TRAIN_REPORT_H
#define FSDP_TRAIN_REPORT_H

#include "trainer.h"

void report_begin(const trainer *t);
bp_status report_registration(const trainer *t);
bp_status report_end(const trainer *t, double seconds_a_step);

#endif

/* The streams that copies go on, and their order with the device's other streams. */
#ifndef BP_OFFLOAD_MOVERS_H
#define BP_OFFLOAD_MOVERS_H

#include "devices/device.h"

/* One direction. `copies` carries what moves bytes and nothing else; functions of the host run on `helper`, so that no copy waits for one
 * that it does not need. */
typedef struct bp_mover {
    bp_stream *copies, *helper;
} bp_mover;

typedef struct bp_movers {
    bp_mover away, back;
} bp_movers;

/* All or nothing. */
bp_status bp_movers_create(bp_device *device, bp_movers *movers);
void bp_movers_destroy(bp_movers *movers);

/* What `then` gets from now on starts after what `first` has. */
bp_status bp_movers_order(bp_stream *first, bp_stream *then);

/* `then` starts after everything that the device's streams have, but for captured ones and the movers' own. Does not wait. */
bp_status bp_movers_after_device(const bp_movers *movers, bp_stream *then);
/* After everything that the movers' other streams have. */
bp_status bp_movers_after_all(const bp_movers *movers, bp_stream *then);

/* The host waits until nothing is on its way. false: the device refuses to wait. */
bool bp_movers_quiesce(const bp_movers *movers);

#endif

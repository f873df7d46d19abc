/* Reserved address space of the process, for devices whose addresses are the process's own. What is mapped with
 * MAP_FIXED is checked against it, so that a wrong address is an error and does not overwrite the program. Any
 * thread. */
#ifndef BP_DEVICES_ADDRESS_SPACE_H
#define BP_DEVICES_ADDRESS_SPACE_H

#include <bucketpool/status.h>

#include <pthread.h>

typedef struct bp_address_range {
    void *address;
    uint64_t bytes;
} bp_address_range;

typedef struct bp_address_space {
    const char *device; /* its name, for messages */
    uint64_t granularity;
    pthread_mutex_t lock;
    bp_address_range *ranges;
    size_t count, capacity;
} bp_address_space;

void bp_address_space_init(bp_address_space *space, const char *device, uint64_t granularity);
/* Gives back what is still reserved. */
void bp_address_space_finish(bp_address_space *space);

bp_status bp_address_space_reserve(bp_address_space *space, uint64_t bytes, uint64_t alignment, void **address);
bp_status bp_address_space_unreserve(bp_address_space *space, void *address, uint64_t bytes);

/* Sizes that reserve, commit and map take: not 0, multiples of the granularity. */
bp_status bp_address_space_check_bytes(const bp_address_space *space, uint64_t bytes, const char *operation);
/* BP_OK where [address, address + bytes) is reserved and both are multiples of `step`. */
bp_status bp_address_space_check(bp_address_space *space, const void *address, uint64_t bytes, uint64_t step,
                                 const char *operation);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Rules for callers of NCCL, and behaviour that they must expect: RULE(id, sentence, source). tests/gpu/rules_nccl.c
 * has a test of the same name for each. "nccl": its sources, file and function; "#n": its issue tracker. */
#ifndef FAKE_NCCL_RULES_H
#define FAKE_NCCL_RULES_H

#define FAKE_NCCL_RULES(RULE)                                                                                          \
    RULE(all_ranks_come, "every rank makes each collective call", "nccl: user guide, communicators")                   \
    RULE(collectives_agree, "all ranks give a collective the same operation, count, type and reduction",               \
         "nccl: user guide, collective operations")                                                                    \
    RULE(one_rank_per_gpu, "two ranks of a communicator are on different GPUs, unless 2.30 allows it",                 \
         "nccl: init.cc, initTransportsRank, Duplicate GPU and MULTI_RANK_GPU_ENABLE")                                 \
    RULE(not_after_destroy, "a communicator is not used after it was destroyed or aborted",                            \
         "nccl: argcheck.cc, CommCheck")                                                                               \
    RULE(windows_disjoint, "windows of a communicator do not overlap",                                                 \
         "nccl: user guide, window registration; dev_runtime.cc, ncclDevrFindWindow")                                  \
    RULE(window_same_size, "all ranks register windows in the same order, with the same size and kind",                \
         "nccl: user guide, window registration")                                                                      \
    RULE(window_same_offset, "a symmetric window has the same offset in its allocation on all ranks",                  \
         "nccl: user guide, NCCL_WIN_COLL_SYMMETRIC")                                                                  \
    RULE(window_virtual_memory, "a window is of memory made by cuMemCreate",                                           \
         "nccl: dev_runtime.cc, ncclDevrWindowRegisterInGroup, cuMemRetainAllocationHandle")                           \
    RULE(window_start_aligned, "a window begins at a multiple of 4096 bytes in its allocation",                        \
         "nccl: dev_runtime.cc, NCCL_WIN_REQUIRED_ALIGNMENT")                                                          \
    RULE(window_one_segment, "before 2.30 a window lies in one physical allocation",                                   \
         "nccl 2.28.9: dev_runtime.cc takes the first segment only; 2.29.7 refuses")                                   \
    RULE(mapped_while_registered, "memory stays mapped while it is registered", "torch_memory_saver#88, sglang#40648") \
    RULE(register_at_rest, "nothing is registered or deregistered while a collective of the communicator runs",        \
         "#2184")                                                                                                      \
    RULE(register_outside_capture, "nothing is registered or deregistered while a stream is captured",                 \
         "nccl: user guide, buffer registration and CUDA graphs")                                                      \
    RULE(deregister_by_kind, "buffers end with ncclCommDeregister, windows with ncclCommWindowDeregister",             \
         "pytorch#181610; nccl: register.cc, commDeregister")                                                          \
    RULE(deregister_moves_device, "deregistration may leave the communicator's device current",                        \
         "nccl: register.cc, commDeregister returns before cudaSetDevice(saveDev)")                                    \
    RULE(deregister_before_destroy, "a communicator has no registrations left when it is destroyed",                   \
         "nccl: user guide, ncclCommDeregister")                                                                       \
    RULE(symmetric_space, "from 2.30 each registration of a window takes new symmetric address space", "#2331")        \
    RULE(nested_buffers_count, "a range inside a registered buffer gives the same handle, which counts",               \
         "nccl: register.cc, ncclRegister")                                                                            \
    RULE(buffers_are_lazy, "ncclCommRegister takes any size and start, in whole pages, without checks",                \
         "nccl: register.cc, ncclRegister")                                                                            \
    RULE(local_register_off, "with NCCL_LOCAL_REGISTER=0 a buffer is a NULL handle and success",                       \
         "nccl: register.cc, ncclCommRegister")                                                                        \
    RULE(null_window, "without cuMem or symmetric support a window may be NULL, or a buffer's handle, with success",   \
         "nccl: dev_runtime.cc, ncclCommWindowRegister; #1963")                                                        \
    RULE(float_avg_copies, "an average of floats is not served from registered memory",                                \
         "nccl: enqueue.cc, ncclDevPreMulSum")

typedef enum fake_nccl_rule {
#define RULE(id, sentence, source) rule_##id,
    FAKE_NCCL_RULES(RULE)
#undef RULE
        FAKE_NCCL_RULE_COUNT
} fake_nccl_rule;

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Rules of the CUDA driver, one on each line: id, statement, source. The emulated driver implements each;
 * tests/gpu/rules_driver.c tests each, under the same name, on the emulated driver and on a real one, so that
 * inferred rules ("inferred") are verified. */
#ifndef BP_TESTS_CUDA_RULES_H
#define BP_TESTS_CUDA_RULES_H

/* clang-format off */
#define BP_CUDA_RULES(X) \
    /* ---- contexts ---- */ \
    X(primary_contexts_are_counted, \
      "A primary context is one per device, active while it is retained more often than released", \
      "driver API, primary context management") \
    X(contexts_are_a_stack_per_thread, \
      "Contexts are pushed and popped per thread; another thread has none", \
      "driver API, cuCtxPushCurrent") \
    X(objects_need_a_context, \
      "Streams, events and memory are made in the current context: 201 without one", \
      "driver API, cuStreamCreate, cuEventCreate, cuMemAlloc") \
    X(work_needs_a_context, \
      "Work, records and waits on the legacy stream need a current context: 201; a driver may want one for other streams, too", \
      "driver API, cuEventRecord; for other streams inferred, and not so on an H100 with driver 580.159") \
    X(another_device_may_be_current, \
      "Work, records and waits with an explicit stream work with another device's context current", \
      "programming guide, multi-device: stream and event behaviour") \
    X(streams_know_their_context, \
      "cuStreamGetCtx returns the context in which the stream was made", \
      "driver API, cuStreamGetCtx") \
    /* ---- streams and events ---- */ \
    X(streams_run_in_order, \
      "Work of a stream runs in the order in which it was given", \
      "programming guide, streams") \
    X(streams_run_beside_each_other, \
      "Work of a non-blocking stream does not wait for another stream's", \
      "programming guide, streams") \
    X(records_mark_what_was_given, \
      "An event covers the work enqueued before its record, not later work", \
      "driver API, cuEventRecord") \
    X(waits_keep_their_mark, \
      "An enqueued wait is for the latest record at that time; recording the event again does not change it", \
      "driver API, cuEventRecord") \
    X(unrecorded_events_are_complete, \
      "An event that was never recorded is complete", \
      "driver API, cuEventRecord") \
    X(events_stay_in_their_context, \
      "An event is recorded on streams of the same context only: 400", \
      "driver API, cuEventRecord") \
    X(waits_may_cross_devices, \
      "A stream may wait for an event of another device", \
      "driver API, cuStreamWaitEvent") \
    X(pending_events_may_be_destroyed, \
      "An event may be destroyed while a stream waits for it; the wait holds", \
      "driver API, cuEventDestroy") \
    X(busy_streams_may_be_destroyed, \
      "A stream may be destroyed with pending work, which still completes", \
      "driver API, cuStreamDestroy") \
    X(legacy_waits_for_blocking_streams, \
      "The legacy stream waits for blocking streams, and they for it", \
      "programming guide, default stream") \
    X(waiting_for_legacy_waits_for_blocking_streams, \
      "Synchronizing with the legacy stream includes the blocking streams", \
      "programming guide, default stream; inferred") \
    X(legacy_ignores_non_blocking_streams, \
      "The legacy stream and non-blocking streams do not wait for each other", \
      "programming guide, default stream; flag CU_STREAM_NON_BLOCKING") \
    X(host_functions_are_in_order, \
      "A host function is called after earlier work, and later work waits for it", \
      "driver API, cuLaunchHostFunc") \
    /* ---- virtual memory ---- */ \
    X(granularity_is_a_power_of_two, \
      "The recommended granularity is a multiple of the minimum, both are powers of two", \
      "driver API, cuMemGetAllocationGranularity; inferred") \
    X(reservations_are_aligned, \
      "A reservation has the alignment that was asked for", \
      "driver API, cuMemAddressReserve") \
    X(alignment_is_a_power_of_two, \
      "Any other alignment than a power of two or 0 is refused: 1", \
      "driver API, cuMemAddressReserve") \
    X(reservations_are_freed_whole, \
      "A reservation is freed with the address and size it was made with, else 1", \
      "driver API, cuMemAddressFree") \
    X(physical_sizes_are_multiples, \
      "Physical memory has a size that is a multiple of the granularity, else 1", \
      "driver API, cuMemCreate") \
    X(physical_memory_runs_out, \
      "More physical memory than there is: 2", \
      "driver API, cuMemCreate") \
    X(maps_start_at_offset_0, \
      "Another offset than 0 is refused", \
      "driver API, cuMemMap") \
    X(maps_need_a_reservation, \
      "Memory is mapped into reservations only, else 1", \
      "driver API, cuMemMap") \
    X(maps_do_not_overlap, \
      "Mapping over an existing mapping is refused", \
      "driver API, cuMemMap; number inferred") \
    X(access_needs_a_whole_mapping, \
      "Access is granted to ranges that are mapped from end to end, else 1", \
      "driver API, cuMemSetAccess") \
    X(unmap_takes_whole_mappings, \
      "Unmapping a part of a mapping is refused: 1", \
      "driver API, cuMemUnmap") \
    X(released_memory_lives_while_mapped, \
      "A handle may be released while it is mapped; the memory goes with the mapping", \
      "driver API, cuMemRelease") \
    X(handles_keep_their_bytes, \
      "A handle that is unmapped and mapped again has its bytes", \
      "driver API, cuMemUnmap") \
    X(remapped_addresses_have_new_memory, \
      "Another handle at the same address has separate bytes", \
      "driver API, cuMemMap") \
    X(reservations_hold_mappings, \
      "Freeing a reservation that contains mappings is refused", \
      "driver API, cuMemAddressFree; inferred") \
    /* ---- allocations ---- */ \
    X(allocations_are_aligned, \
      "Memory of cuMemAlloc and cuMemAllocAsync is aligned to 256 bytes", \
      "programming guide, device memory accesses") \
    X(empty_allocations_are_refused, \
      "0 bytes: 1", \
      "driver API, cuMemAlloc") \
    X(free_waits_for_work, \
      "cuMemFree returns after earlier work has completed", \
      "runtime API, cudaFree; inferred for memory that is part of a larger allocation") \
    X(async_memory_follows_its_stream, \
      "Memory may be allocated, used and freed in the order of a stream", \
      "programming guide, stream ordered memory allocator") \
    X(host_memory_is_registered_once, \
      "Registering registered memory: 712; unregistering other memory: 713", \
      "driver API, cuMemHostRegister") \
    /* ---- captures ---- */ \
    X(captured_work_does_not_run, \
      "Captured work runs at each launch of the graph, not before", \
      "driver API, cuStreamBeginCapture") \
    X(captures_have_ids, \
      "A capture has a unique id, the same on all its streams", \
      "driver API, cuStreamGetCaptureInfo") \
    X(waits_join_captures, \
      "A stream that waits for an event of a capture joins it", \
      "programming guide, stream capture") \
    X(edges_order_nodes, \
      "Nodes of two streams of a capture are ordered by events, as the streams were", \
      "programming guide, stream capture") \
    X(forks_are_joined, \
      "A capture with a stream that has not been joined ends with 904", \
      "programming guide, stream capture") \
    X(captures_end_where_they_began, \
      "A capture ends on the stream where it began, else 903", \
      "driver API, cuStreamEndCapture") \
    X(captures_end_in_their_thread, \
      "A capture that is not relaxed ends in the thread where it began, else 908", \
      "driver API, cuStreamEndCapture") \
    X(relaxed_captures_end_anywhere, \
      "A relaxed capture may end in another thread", \
      "driver API, cuStreamBeginCapture") \
    X(eager_events_stay_outside, \
      "A captured stream cannot wait for an event from outside: 905, and the capture is invalidated", \
      "programming guide, prohibited and unhandled operations") \
    X(captured_events_stay_inside, \
      "Waiting outside for an event of a finished capture is refused: 1", \
      "programming guide, prohibited and unhandled operations; number inferred, and seen on an H100 with driver 580.159") \
    X(captured_events_have_no_time, \
      "The host cannot wait for an event that was recorded in a capture: 907", \
      "programming guide, prohibited and unhandled operations") \
    X(captured_events_may_be_recorded_again, \
      "An event of a capture is an ordinary one after its next record outside", \
      "driver API, cuEventRecord") \
    X(captured_streams_are_not_waited_for, \
      "The host cannot wait for a stream that is captured: 900", \
      "programming guide, prohibited and unhandled operations") \
    X(captured_contexts_are_not_waited_for, \
      "The host cannot wait for a context with a stream that is captured: 900", \
      "programming guide, prohibited and unhandled operations") \
    X(errors_invalidate_captures, \
      "After an error a capture is invalid: work 901, its end 901 and no graph", \
      "programming guide, invalidation") \
    X(legacy_is_unusable_in_captures, \
      "While a blocking stream is captured, calls with the legacy stream return 906", \
      "programming guide, prohibited and unhandled operations") \
    X(legacy_is_usable_beside_non_blocking_captures, \
      "While a non-blocking stream is captured, the legacy stream works", \
      "programming guide, prohibited and unhandled operations") \
    X(asking_does_not_invalidate, \
      "Asking the legacy stream for its capture returns 906 and invalidates nothing", \
      "driver API, cuStreamIsCapturing") \
    X(the_legacy_stream_is_not_captured, \
      "Beginning a capture on the legacy stream is refused", \
      "driver API, cuStreamBeginCapture") \
    X(captures_do_not_nest, \
      "Beginning a capture on a captured stream is refused", \
      "driver API, cuStreamBeginCapture") \
    X(captures_do_not_merge, \
      "A captured stream cannot wait for an event of another capture: 902", \
      "programming guide, prohibited and unhandled operations") \
    X(global_captures_forbid_unsafe_calls, \
      "cuMemAlloc during a capture of this thread that is not relaxed: 900", \
      "driver API, cuThreadExchangeStreamCaptureMode") \
    X(global_captures_forbid_them_to_all, \
      "cuMemAlloc in another thread during a global capture: 900", \
      "driver API, cuThreadExchangeStreamCaptureMode") \
    X(local_captures_forbid_them_here_only, \
      "cuMemAlloc in another thread during a thread-local capture works", \
      "driver API, cuThreadExchangeStreamCaptureMode") \
    X(relaxed_captures_forbid_nothing, \
      "cuMemAlloc during a relaxed capture works", \
      "driver API, cuThreadExchangeStreamCaptureMode") \
    X(events_are_made_in_captures, \
      "Events and streams may be made during a capture", \
      "inferred") \
    /* ---- graphs ---- */ \
    X(launches_are_in_order, \
      "Launches of one executable graph run one after another, on any streams", \
      "driver API, cuGraphLaunch") \
    X(launches_follow_their_stream, \
      "A launch waits for earlier work of its stream, and later work for it", \
      "driver API, cuGraphLaunch") \
    X(executable_graphs_outlive_graphs, \
      "A graph may be destroyed when it has been instantiated", \
      "driver API, cuGraphInstantiate") \
    X(running_graphs_may_be_destroyed, \
      "An executable graph may be destroyed while it runs, and runs to its end", \
      "driver API, cuGraphExecDestroy") \
    /* ---- kernels ---- */ \
    X(images_are_recognised, \
      "Loading anything but a fatbin, cubin or PTX is refused", \
      "driver API, cuModuleLoadData; number inferred") \
    X(newer_ptx_is_refused, \
      "PTX of a version that came with a later release of CUDA is refused: 222", \
      "driver API, CUDA_ERROR_UNSUPPORTED_PTX_VERSION; cubins of later releases are invalid images, 200: seen by users of Triton and ollama") \
    X(modules_need_a_context, \
      "An image is loaded into the current context: 201 without one", \
      "driver API, cuModuleLoadData") \
    X(kernels_are_found_by_name, \
      "A kernel is found by the name it has in the image; any other name: 500", \
      "driver API, cuModuleGetFunction") \
    X(kernels_run_in_order, \
      "A kernel runs after earlier work of its stream, and later work waits for it", \
      "programming guide, streams") \
    X(kernels_run_on_the_legacy_stream, \
      "A kernel may be launched on the legacy stream", \
      "driver API, cuLaunchKernel") \
    X(arguments_are_copied_at_the_launch, \
      "A kernel runs with the argument values of its launch, even if they change while it waits", \
      "driver API, cuLaunchKernel") \
    X(arguments_are_captured, \
      "A kernel of a graph runs with the argument values of its capture, at each launch", \
      "programming guide, stream capture") \
    X(empty_grids_are_refused, \
      "No blocks, or no threads: 1", \
      "driver API, cuLaunchKernel") \
    X(blocks_have_a_limit, \
      "More threads in a block than 1024: 1", \
      "programming guide, compute capabilities") \
    X(shared_memory_is_allowed_by_kernel, \
      "A launch with more than 48 KiB of dynamic shared memory: 1, unless the kernel's attribute allows them", \
      "driver API, cuFuncSetAttribute; programming guide, compute capabilities") \
    X(launches_need_a_context, \
      "A launch on the legacy stream needs a current context: 201; a driver may want one for other streams, too", \
      "driver API, cuLaunchKernel; for other streams inferred, and not so on an H100 with driver 580.159") \
    X(kernels_stay_on_their_device, \
      "Launching a kernel on a stream of another device is refused", \
      "programming guide, multi-device: stream and event behaviour") \
    X(launches_beside_another_context, \
      "With another device's context current a launch on a stream of the kernel's device runs, or is refused: 400", \
      "inferred") \
    X(found_kernels_are_captured, \
      "A kernel that cuFuncLoad has loaded may be captured at its first launch", \
      "programming guide, lazy loading")
/* clang-format on */

/* Mistakes that no driver reports: the emulated driver records them (fake_cuda_broken). They may crash a real
 * driver; tests/cuda/test_fake_misuses.c tests that each is detected. */
/* clang-format off */
#define BP_CUDA_MISUSES(X) \
    X(host_functions_call_no_driver, \
      "host functions of streams must not call the driver", \
      "driver API, cuLaunchHostFunc") \
    X(handles_end_with_their_objects, \
      "a handle must not be used after it, or its context, was destroyed", \
      "driver API, any destroy") \
    X(contexts_outlive_their_use, \
      "a context must not be current, and used, after its last release", \
      "driver API, cuDevicePrimaryCtxRelease") \
    X(contexts_end_empty, \
      "objects of a context must be destroyed before its last release", \
      "driver API, cuDevicePrimaryCtxRelease") \
    X(captured_streams_stay, \
      "a stream must not be destroyed while it is captured", \
      "programming guide, stream capture; inferred") \
    X(physical_handles_are_released_once, \
      "only handles that cuMemCreate made are released, once", \
      "driver API, cuMemRelease") \
    X(memory_is_freed_once, \
      "only memory that is allocated is freed", \
      "driver API, cuMemFree") \
    X(freed_memory_is_not_used, \
      "memory must not be used by work that is enqueued after cuMemFreeAsync", \
      "driver API, cuMemFreeAsync") \
    X(work_has_access, \
      "work must name memory that is mapped, with access for its device", \
      "driver API, cuMemMap, cuMemSetAccess") \
    X(modules_outlive_their_launches, \
      "a module must not be unloaded while launches of its kernels are pending or in graphs", \
      "driver API, cuModuleUnload; inferred") \
    X(kernels_are_loaded_before_captures, \
      "the first launch of a kernel may load it, which must not happen in a capture: cuFuncLoad before", \
      "programming guide, lazy loading") \
    X(registered_memory_stays_mapped, \
      "memory must be deregistered everywhere before it is unmapped", \
      "NCCL user guide, user buffer registration")
/* clang-format on */

#endif

# SPDX-License-Identifier: Apache-2.0
"""Plans a model and serves its buckets, the way a runtime does: docs/start/runtime.md shows this program."""
import sys

import bucketpool as bp

model = bp.Model.read(sys.argv[1] if len(sys.argv) > 1 else "config.json")  # or Model("mine") and add_bucket
buckets = bp.Buckets(model, dp=8, roles=["param"])
schedule = bp.Schedule.training(buckets, prefetch=1)
plan = bp.Plan(buckets, schedule)

device = bp.Device.host()  # GPUs: Device.cuda(); your own streams: device.import_stream(torch.cuda.Stream())
gather, compute = device.stream("gather"), device.stream("compute")
with bp.Pool(device, plan) as pool:
    for event in schedule.events:
        requests = range(event.first, event.first + event.requests)  # ids are indices in the plan: plan.find by name
        if event.acquire:
            for view in pool.acquire(requests, gather):  # gather waits for whoever had the memory
                gather.fill(view, 1)  # your all-gather, into view.address, view.numpy() or view.torch()
            compute.wait(gather)  # then your layer, on compute
        else:
            pool.release(requests, compute)
    device.synchronize()
    print(f"{pool.statistics.acquires} buckets from {pool.statistics.slab_bytes} bytes")

/* A release group's bytes on their way to the host and back, and its memory without them, against plain copies of as much to and from
 * pinned memory: as `bucketpool bench offload` measures it, where the command cannot be built. */
#include "bench/gpu/gpu.h"
#include "bench/measure.h"
#include "bench/pools.h"

#include "bench/command/offload.h"

#define GIB ((uint64_t)1 << 30)
#define CHUNK ((uint64_t)32 << 20)

/* What a window times of a way out and back. */
typedef struct trip {
    bench_groups *groups;
    uint32_t flags;
    int back, copies;
} trip;

static double run_trip(void *user, size_t pairs)
{
    const trip *t = user;
    double took = 0;
    for (size_t i = 0; i < pairs; i++) {
        double seconds[2], copies[2];
        must(bench_groups_away(t->groups, t->flags, &seconds[0], &copies[0]));
        must(bench_groups_back(t->groups, &seconds[1], &copies[1]));
        took += 1e9 * (t->copies ? copies[t->back] : seconds[t->back]);
    }
    return took;
}

static double run_plain(void *user, size_t pairs)
{
    const trip *t = user;
    double took = 0;
    for (size_t i = 0; i < pairs; i++) {
        double seconds;
        must(bench_groups_copy(t->groups, !t->back, &seconds));
        took += 1e9 * seconds;
    }
    return took;
}

static void check(bench_groups *groups)
{
    double seconds, copies;
    bench_groups_write(groups, 1);
    must(bench_groups_copy(groups, false, &seconds));
    must(bench_groups_away(groups, BP_OFFLOAD_KEEP, &seconds, &copies));
    must(bench_groups_back(groups, &seconds, &copies));
    bench_groups_write(groups, 2);
    must(bench_groups_copy(groups, true, &seconds));
    if (bench_groups_compare(groups, 1) != groups->bytes)
        must(bp_error_record(BP_ERR_INTERNAL, "bytes did not come back as they went"));
}

static void add_entries(bench_groups *groups, int back)
{
    trip plain = {groups, 0, back, 0};
    trip kept = {groups, BP_OFFLOAD_KEEP, back, 0};
    trip copies = {groups, BP_OFFLOAD_KEEP, back, 1};
    trip discarded = {groups, BP_OFFLOAD_DISCARD, back, 0};
    bench_turns(15);
    bench_bytes(groups->bytes);
    bench_add_run("a plain copy", run_plain, &plain, 1);
    bench_add_run("kept bytes: the copies alone", run_trip, &copies, 1);
    bench_add_run("kept bytes", run_trip, &kept, 1);
    bench_add_run("discarded bytes", run_trip, &discarded, 1);
    bench_end();
}

/* Groups that the machine's memory does not hold are skipped. */
static int make_groups(const bench_device *device, const bench_offload_options *options, bench_groups *groups)
{
    bp_status status = bench_groups_init(device, options, groups);
    if (status == BP_ERR_NO_HOST_MEMORY || status == BP_ERR_NO_DEVICE_MEMORY) {
        bench_skip("%s", bp_error_detail());
        return 0;
    }
    must(status);
    return 1;
}

static void way(const gpu *g, uint64_t bytes, int back, const char *group)
{
    const bench_offload_options options = {
        .cuda = true, .bytes = bytes, .chunk_bytes = CHUNK, .groups = 1, .backing = BP_BACKING_PINNED};
    bench_groups groups;
    if (!bench_begin(group) || !gpu_has_room(g, 4 * bytes))
        return;
    bench_device device = {.device = gpu_device(g), .cuda = true};
    must(bp_stream_create(device.device, "bench", &device.stream));
    if (make_groups(&device, &options, &groups)) {
        check(&groups);
        add_entries(&groups, back);
    }
    bench_groups_finish(&groups);
    bp_stream_destroy(&device.stream);
    bp_device_destroy(&device.device);
}

void gpu_offload(const gpu *g, uint64_t divisor)
{
    way(g, GIB / divisor, 0, "gpu: offload of a group");
    way(g, GIB / divisor, 1, "gpu: restore of a group");
}

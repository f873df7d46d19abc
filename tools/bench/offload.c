/* `bucketpool bench offload`: release groups go and come back in turns; a table or a document. */
#include <stdlib.h>

#include "bench/offload_report.h"
#include "cli.h"
#include "interrupt.h"

static int answer(const bench_offload *b)
{
    int code = b->options->json ? bench_offload_json(b) : bench_offload_table(b);
    if (code == EXIT_GO_ON)
        code = cli_flush();
    if (code != EXIT_GO_ON)
        return code;
    if (b->done < b->options->turns)
        cli_fail(EXIT_GO_ON, "interrupted after %llu of %llu turns; the medians are of those",
                 (unsigned long long)b->done, (unsigned long long)b->options->turns);
    return *b->wrong != '\0' ? cli_fail(EXIT_NEGATIVE, "%s", b->wrong) : EXIT_ANSWERED;
}

static int fail_setup(bp_status status)
{
    if (status == BP_ERR_NO_HOST_MEMORY)
        return cli_fail(EXIT_ENVIRONMENT, "%s; --bytes takes less", bp_error_detail());
    return cli_fail_status(status);
}

int cli_bench_offload(int argc, char **argv)
{
    bench_offload_options options;
    int code = bench_offload_parse(argc, argv, &options);
    if (code != EXIT_GO_ON)
        return code;
    bench_offload b = {.options = &options};
    bp_status status = bench_device_init(options.cuda, options.ordinal, &b.device);
    if (status == BP_OK)
        status = bench_groups_init(&b.device, &options, &b.groups);
    code = status == BP_OK ? bench_offload_run(&b) : fail_setup(status);
    if (code == EXIT_GO_ON)
        code = answer(&b);
    bench_groups_finish(&b.groups);
    bench_device_finish(&b.device);
    free(b.turns);
    interrupt_pass_on();
    return code;
}

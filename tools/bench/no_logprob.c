/* SPDX-License-Identifier: Apache-2.0 */
/* `bucketpool bench logprob` of a build without the log-probability client. */
#include "shared/cli.h"

int cli_bench_logprob(int argc, char **argv)
{
    (void)argc, (void)argv;
    return cli_fail(EXIT_ENVIRONMENT, "bench logprob: this command was built without the log-probability client; "
                                      "build it with -Dlogprob=enabled");
}

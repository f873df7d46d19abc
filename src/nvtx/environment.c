/* Asks the environment whether a tool listens to NVTX. */
#include "nvtx/nvtx.h"

#include <stdlib.h>
#include <string.h>

bool bp_nvtx_is_asked_for(void)
{
    const char *injection = secure_getenv("NVTX_INJECTION64_PATH"), *variable = secure_getenv("BUCKETPOOL_NVTX");
    return (injection != NULL && *injection != '\0') || (variable != NULL && strcmp(variable, "1") == 0);
}

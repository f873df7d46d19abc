/* Memory of GPUs by name. */
#ifndef TOOLS_GPUS_H
#define TOOLS_GPUS_H

#include <stdint.h>

#define GPU_NAMES "a100-40, a100-80, h100, h100-nvl, h200, b200, b300, gb200, mi300x"

#endif

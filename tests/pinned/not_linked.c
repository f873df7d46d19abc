#include "jemalloc_ways.h"

bool is_linked(void)
{
    return false;
}

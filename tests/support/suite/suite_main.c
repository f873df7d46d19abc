#include "suite.h"

int main(void)
{
    return run_suite();
}

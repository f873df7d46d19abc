/* A program with all static libraries as a whole (meson.build). Two functions of one name in two of them would not link. */
#include <bucketpool/bucketpool.h>

#include <string.h>

int main(void)
{
    return strcmp(bp_status_name(BP_OK), "ok") == 0 ? 0 : 1;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Links all static libraries with --whole-archive (meson.build): duplicate symbols fail the link. */
#include <bucketpool/bucketpool.h>

#include <string.h>

int main(void)
{
    return strcmp(bp_status_name(BP_OK), "ok") == 0 ? 0 : 1;
}

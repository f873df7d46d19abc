#include "formats/detail.h"

#include "core/fail.h"
#include "core/text.h"

bool bp_is_name(const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    if (*at == '\0')
        return false;
    while (*at != '\0') {
        size_t bytes = bp_printable_bytes(at);
        if (bytes == 0)
            return false;
        at += bytes;
    }
    return true;
}

bp_status bp_fail_at(const char *where, bp_status status)
{
    if (status == BP_OK || status == BP_ERR_NO_HOST_MEMORY)
        return status;
    bool is_input = status == BP_ERR_INVALID_ARGUMENT || status == BP_ERR_OVERFLOW;
    return bp_fail(is_input ? BP_ERR_FORMAT : status, "%.320s: %s", where, bp_error_detail());
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of address ranges. */
#include "fake.h"

#include <stdlib.h>

fake_range *fake_range_add(fake_range **list, uint64_t address, uint64_t bytes)
{
    fake_range *range = fake_new(sizeof *range);
    *range = (fake_range){.address = address, .bytes = bytes, .next = *list};
    *list = range;
    return range;
}

fake_range *fake_range_at(fake_range *list, uint64_t address)
{
    while (list != NULL && list->address != address)
        list = list->next;
    return list;
}

fake_range *fake_range_touching(fake_range *list, uint64_t address, uint64_t bytes)
{
    while (list != NULL && (list->address + list->bytes <= address || address + bytes <= list->address))
        list = list->next;
    return list;
}

fake_range *fake_range_holding(fake_range *list, uint64_t address, uint64_t bytes)
{
    while (list != NULL && (address < list->address || address - list->address > list->bytes ||
                            bytes > list->bytes - (address - list->address)))
        list = list->next;
    return list;
}

void fake_range_remove(fake_range **list, fake_range *range)
{
    while (*list != NULL && *list != range)
        list = &(*list)->next;
    if (*list != NULL)
        *list = range->next;
    free(range);
}

void fake_ranges_forget(fake_range **list)
{
    while (*list != NULL)
        fake_range_remove(list, *list);
}

/* The page of `view --html`. */
#ifndef TOOLS_VIEW_PAGE_H
#define TOOLS_VIEW_PAGE_H

#include "files/files.h"
#include "view/files.h"

/* page.html with the snapshots in it. false: out of memory. The output reports its own failures, see files/files.h. */
bool view_page_write(const view_file *files, size_t count, bp_output *page);

/* page.html: made when this is built (embed.py). Ends with a NUL that view_page_bytes does not count. */
extern const char view_page_text[];
extern const unsigned long view_page_bytes;

#endif

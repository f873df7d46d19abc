/* Ctrl-C in commands that run for long: the first ends them in order, with what they have so far. */
#ifndef TOOLS_INTERRUPT_H
#define TOOLS_INTERRUPT_H

#include <stdbool.h>

/* From here on SIGINT is counted. Some parents send it twice: the third ends the process at once. */
void interrupt_watch(void);
bool interrupt_came(void);
/* Ends the process by SIGINT if one came; shells report that as status 130. */
void interrupt_pass_on(void);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What stdout is: a terminal with a width and colours, or a file. */
#include "dtrain/terminal.h"

#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/str.h"

int terminal_width(void)
{
	struct winsize size;

	return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

bool terminal_colors(void)
{
	const char *no = getenv("NO_COLOR");

	return isatty(STDOUT_FILENO) && !(no && *no) && !str_eq(getenv("TERM"), "dumb");
}

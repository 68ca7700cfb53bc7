/* SPDX-License-Identifier: Apache-2.0 */
/* What stdout is: a terminal with a width and colours, or a file. */
#pragma once

#include <stdbool.h>

/* In columns; 80 where stdout is no terminal, or does not tell. */
int terminal_width(void);
/* May it be coloured? On a terminal that is not "dumb", unless NO_COLOR is set to anything. */
bool terminal_colors(void);

/* SPDX-License-Identifier: Apache-2.0 */
/* Timers that are set for a time from now, of whole seconds, are due sooner. A program is linked with
 * $(quick_timer_ldflags). */
#pragma once

#include <stdint.h>

extern struct quick_timer {
	uint64_t (*scale)(uint64_t usec); /* what the event loop is to wait instead */
	uint64_t first, last;             /* the first time that was asked for, and the last one */
	int again;                        /* how often a timer was set anew */
} quick_timer;

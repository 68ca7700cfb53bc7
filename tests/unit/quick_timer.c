/* SPDX-License-Identifier: Apache-2.0 */
/* Timers that are due sooner: quick_timer.h. */
#include "quick_timer.h"

#include <systemd/sd-event.h>

struct quick_timer quick_timer;

static uint64_t soon(uint64_t usec)
{
	if (!quick_timer.first)
		quick_timer.first = usec;
	quick_timer.last = usec;
	return quick_timer.scale(usec);
}

int __real_sd_event_add_time_relative(sd_event *e, sd_event_source **s, clockid_t clock, uint64_t usec,
                                      uint64_t accuracy, sd_event_time_handler_t callback, void *userdata);
int __wrap_sd_event_add_time_relative(sd_event *e, sd_event_source **s, clockid_t clock, uint64_t usec,
                                      uint64_t accuracy, sd_event_time_handler_t callback, void *userdata);
int __wrap_sd_event_add_time_relative(sd_event *e, sd_event_source **s, clockid_t clock, uint64_t usec,
                                      uint64_t accuracy, sd_event_time_handler_t callback, void *userdata)
{
	return __real_sd_event_add_time_relative(e, s, clock, soon(usec), 1, callback, userdata);
}

int __real_sd_event_source_set_time_relative(sd_event_source *s, uint64_t usec);
int __wrap_sd_event_source_set_time_relative(sd_event_source *s, uint64_t usec);
int __wrap_sd_event_source_set_time_relative(sd_event_source *s, uint64_t usec)
{
	quick_timer.again++;
	return __real_sd_event_source_set_time_relative(s, soon(usec));
}

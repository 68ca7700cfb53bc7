/* SPDX-License-Identifier: Apache-2.0 */
/* The first cause of a failure among the ends of all ranks and nodes of an attempt. */
#include "cluster/cause.h"

#include <math.h>
#include <signal.h>

/* The end of a killed process is seen only when its memory and its devices are released: its peers, whose
 * sockets were closed before that, may have ended seconds earlier. */
static const double WINDOW = 5.0;

enum cause_class cause_of_rank(int exit_status, int signal, bool stopped, bool lost_peer)
{
	if (stopped)
		return CAUSE_STOPPED;
	if (signal == 0 && exit_status > 128 && exit_status < 128 + NSIG)
		signal = exit_status - 128;
	switch (signal) {
	case 0:
	case SIGABRT: /* an uncaught exception, an assertion, a library that gives up */
		return lost_peer ? CAUSE_PEER : CAUSE_EXIT;
	case SIGPIPE:
		return CAUSE_PEER;
	default:
		return CAUSE_SIGNAL;
	}
}

/* Of what ended within the window after the first end, the one that explains most. */
static int choose_within(const struct cause *list, size_t count, int first, double window)
{
	int best = -1;

	for (size_t i = 0; i < count; i++) {
		if (list[i].time - list[first].time > window + list[i].error + list[first].error)
			continue;
		if (best < 0 || list[i].class < list[best].class ||
		    (list[i].class == list[best].class && list[i].time < list[best].time))
			best = (int)i;
	}
	return best;
}

int cause_choose(const struct cause *list, size_t count)
{
	int first = -1, best;

	for (size_t i = 0; i < count; i++)
		if (first < 0 || list[i].time < list[first].time)
			first = (int)i;
	if (first < 0)
		return -1;
	best = choose_within(list, count, first, WINDOW);
	/* A node that was the controller is missed only when the next one has waited for it. */
	return list[best].class < CAUSE_PEER ? best : choose_within(list, count, first, HUGE_VAL);
}

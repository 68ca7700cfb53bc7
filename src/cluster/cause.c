/* SPDX-License-Identifier: Apache-2.0 */
/* The first cause of a failure among the ends of all ranks and nodes of an attempt. */
#include "cluster/cause.h"

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

int cause_choose(const struct cause *list, size_t count)
{
	int first = -1, best = -1;

	for (size_t i = 0; i < count; i++)
		if (first < 0 || list[i].time < list[first].time)
			first = (int)i;
	for (size_t i = 0; i < count; i++) {
		if (list[i].time - list[first].time > WINDOW + list[i].error + list[first].error)
			continue;
		if (best < 0 || list[i].class < list[best].class ||
		    (list[i].class == list[best].class && list[i].time < list[best].time))
			best = (int)i;
	}
	return best;
}

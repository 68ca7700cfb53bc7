/* SPDX-License-Identifier: Apache-2.0 */
/* The lease of the node as dtrain-launch watches it. */
#include "node/launch/lease_watch.h"

#include <errno.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/lease_file.h"
#include "base/str.h"

/* Between two looks at the file: there may be none yet, and a new lease may be a shorter one. */
static const double LOOK_SECONDS = 5.0;

/* The service begins to end the ranks `ending` seconds before the end of the lease, and so has a tenth of
 * that time to do so. */
static const double OWN_PART = 0.9;

static void set_timer(const struct lease_watch *w, double at)
{
	struct itimerspec spec = {0};

	at = MAX(at, 1e-6);
	spec.it_value.tv_sec = (time_t)at;
	spec.it_value.tv_nsec = (long)((at - (double)spec.it_value.tv_sec) * 1e9);
	timerfd_settime(w->timer_fd, TFD_TIMER_ABSTIME, &spec, NULL);
}

int lease_watch_open(struct lease_watch *w, const char *path, struct error *err)
{
	*w = (struct lease_watch){path, timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK)};
	if (w->timer_fd < 0)
		return error_errno(err, -errno, "cannot make a timer");
	set_timer(w, 0);
	return 0;
}

bool lease_watch_check(struct lease_watch *w, double *seconds)
{
	const double now = clock_seconds(CLOCK_BOOTTIME);
	struct lease_end end;
	double at = now + LOOK_SECONDS;

	if (lease_file_read(w->path, &end) == 0) {
		at = MIN(at, end.until - OWN_PART * end.ending);
		*seconds = MAX(end.until - now, 0.0);
	}
	if (now >= at)
		return true;
	set_timer(w, at);
	return false;
}

void lease_watch_close(struct lease_watch *w)
{
	if (w->timer_fd >= 0)
		close(w->timer_fd);
	w->timer_fd = -1;
}

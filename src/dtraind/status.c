/* SPDX-License-Identifier: Apache-2.0 */
/* The status line of the service, for systemd. */
#include "dtraind/status.h"

#include <systemd/sd-daemon.h>

#include "controller/controller.h"

void status_notify(struct daemon *d)
{
	char line[256];
	size_t up = 0, n, queued = 0;

	if (!d->controller) {
		snprintf(line, sizeof(line), "STATUS=Node %s: %d of %d slots free; controller %s",
		         d->settings->name, node_free_slots(d->node), node_slots(d->node),
		         d->settings->controller);
		sd_notify(0, line);
		return;
	}
	n = members_count(d->controller->members);
	for (size_t i = 0; i < n; i++)
		up += members_get(d->controller->members, i)->up;
	for (size_t i = 0; i < d->controller->queue.count; i++)
		queued += d->controller->queue.list[i]->state == RUN_QUEUED;
	snprintf(line, sizeof(line),
	         "STATUS=Controller %s: %zu of %zu nodes up; %zu runs queued, %zu under way",
	         d->settings->name, up, n, queued, d->controller->queue.count - queued);
	sd_notify(0, line);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The status line of the service, for systemd. */
#include "dtraind/status.h"

#include <systemd/sd-daemon.h>

#include "controller/controller.h"
#include "dtraind/leader.h"

void status_notify(struct daemon *d)
{
	struct controller_status status;
	char line[256];

	if (!d->controller) {
		snprintf(line, sizeof(line), "STATUS=Node %s: %d of %d slots free; controller %s",
		         d->settings->name, node_free_slots(d->node), node_slots(d->node),
		         leader_known(d) ? leader_known(d) : "not known");
		sd_notify(0, line);
		return;
	}
	controller_get_status(d->controller, &status);
	snprintf(line, sizeof(line),
	         "STATUS=Controller %s: %zu of %zu nodes up; %zu runs queued, %zu under way",
	         d->settings->name, status.nodes_up, status.nodes, status.queued, status.under_way);
	sd_notify(0, line);
}

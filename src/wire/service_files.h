/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the service keeps in files of state_dir and reads again after a restart, also of a later version: what
 * once was written stays readable. The clusters that it knows are a part of its heartbeats, too
 * (heartbeat.h).
 */
#pragma once

#include "wire/message.h"

/* state_dir/cluster: there as long as this node is in a cluster of several. */
struct membership {
	char *controller; /* its name */
	int64_t hosts;    /* how many */
};

MESSAGE_DECLARE(membership)

struct drain_record {
	char *device; /* UUID, or "cpu-N" */
	char *reason; /* optional: none, it is not drained any more */
	double time;  /* Unix seconds; optional: 0 */
	bool by_hand; /* all optional */
	bool until_boot;
	bool pending_accepted, failed_accepted;
};

/* state_dir/drained.json. */
struct drain_list {
	char *boot; /* boot_id of the kernel that it was written under; optional: not known */
	struct drain_record *devices;
	size_t count;
};

MESSAGE_DECLARE(drain_list)

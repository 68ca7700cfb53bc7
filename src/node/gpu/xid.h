/* SPDX-License-Identifier: Apache-2.0 */
/* What the driver's Xid numbers mean for a device. */
#pragma once

#include <stdbool.h>

enum xid_class {
	XID_APPLICATION, /* the program's fault, or an engine that only its next use will show to be broken */
	XID_NOTICE,      /* follows from another one, or only informs */
	XID_DEVICE,      /* the device takes no run until an admin has given it back */
};

struct xid {
	int first, last;
	enum xid_class class;
	bool memory; /* of its memory: a reset, so a reboot, puts it right where it can be put right */
	const char *text;
};

/* Never NULL: one that is not known, such as those of newer drivers, is a notice. */
const struct xid *xid_find(unsigned long long code);

/* SPDX-License-Identifier: Apache-2.0 */
/* What a unit reports to its owner, each once. */
#include "node/launch/unit_internal.h"

void unit_report_exit(struct unit *unit, const char *why, bool started)
{
	unit->silence = sd_event_source_disable_unref(unit->silence);
	if (unit->exited)
		return;
	unit->exited = true;
	unit->launcher = 0;
	unit->owner.exited(unit->owner.context, why, started);
}

void unit_report_empty(struct unit *unit)
{
	unit->again = sd_event_source_disable_unref(unit->again);
	if (unit->empty)
		return;
	unit->method->remove(unit);
	unit->empty = true;
	unit->owner.empty(unit->owner.context);
}

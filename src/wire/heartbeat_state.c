/* SPDX-License-Identifier: Apache-2.0 */
/* What a node remembers of its last whole heartbeat: heartbeat_state.h. */
#include "wire/heartbeat_state.h"

/* What sensors read is not older than that on the controller, and a difference of any kind does not last
 * longer. */
static const double WHOLE_SECONDS = 15.0;

bool heartbeat_can_be_short(struct heartbeat_state *s, const struct heartbeat *next, double now)
{
	uint64_t digest = message_digest(&heartbeat_message, next);

	if (s->kept && s->digest == digest && now < s->at + WHOLE_SECONDS)
		return true;
	*s = (struct heartbeat_state){.sequence = next->sequence, .digest = digest, .at = now};
	return false;
}

struct short_heartbeat heartbeat_shorten(const struct heartbeat_state *s, const struct heartbeat *next)
{
	return (struct short_heartbeat){.node = next->node,
	                                .instance = next->instance,
	                                .sequence = next->sequence,
	                                .whole = s->sequence,
	                                .ports = next->ports,
	                                .port_count = next->port_count,
	                                .sent = next->sent,
	                                .highest_run = next->known ? next->known->highest_run : 0};
}

void heartbeat_state_answered(struct heartbeat_state *s, const struct heartbeat_answer *answer)
{
	s->kept = answer && answer->whole > 0 && answer->whole == s->sequence;
}

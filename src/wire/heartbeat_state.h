/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which of a node's heartbeats are short: what it remembers of the last whole one. The next is short where it
 * would say the same, where the controller has answered the whole one, and each since, that it keeps it, and
 * where what sensors have read is not too old there. In all other cases it is whole: after a lost answer, a
 * refusal, another controller, or one that was restarted or is of an older version.
 *
 *     whole n --> answer "whole: n" --> short n+1 (whole: n) --> answer "whole: n" --> short n+2 ...
 *        ^                                   |
 *        +--- any other answer, or none <----+
 */
#pragma once

#include "wire/heartbeat.h"

/* All of it 0: the next one is whole. */
struct heartbeat_state {
	int64_t sequence; /* of the last whole one, */
	uint64_t digest;  /* what it said, */
	double at;        /* and when it was sent */
	bool kept;        /* the controller has it */
};

/* Can `next`, which is sent now, be short? Otherwise it is remembered as the whole one that is sent. now:
 * seconds, of a clock that does not go back. */
bool heartbeat_can_be_short(struct heartbeat_state *state, const struct heartbeat *next, double now);
/* The short form, which borrows all that it points to. */
struct short_heartbeat heartbeat_shorten(const struct heartbeat_state *state, const struct heartbeat *next);
/* The answer to the last one, short or whole. NULL: there was none, or it was refused. */
void heartbeat_state_answered(struct heartbeat_state *state, const struct heartbeat_answer *answer);

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pauses between tries to reach a service that many try to reach: each is twice as long as the one before, up
 * to a bound, less a random part, so that those that failed together do not come together again.
 */
#pragma once

#include "base/random.h"

/* {0}: the last try has succeeded. */
struct backoff {
	double longest; /* seconds that the last pause could have had */
};

/* Seconds until the next try: half of `first` at least, and `most` at most. */
static inline double backoff_next(struct backoff *b, double first, double most)
{
	double longest = b->longest > 0 ? 2 * b->longest : first;

	b->longest = longest < most ? longest : most;
	return b->longest * (1 + random_fraction()) / 2;
}

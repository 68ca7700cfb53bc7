/* SPDX-License-Identifier: Apache-2.0 */
/* The learning rate of a step: warm-up, then one of the schedules of transformers. */
#include "engine/optim/schedule.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"

static const char *const names[] = {[SCHEDULE_LINEAR] = "linear",
                                    [SCHEDULE_COSINE] = "cosine",
                                    [SCHEDULE_CONSTANT] = "constant",
                                    [SCHEDULE_WSD] = "wsd"};

int schedule_kind_parse(const char *name, enum schedule_kind *out)
{
	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		if (str_eq(name, names[i])) {
			*out = (enum schedule_kind)i;
			return 0;
		}
	return -EINVAL;
}

static double half_cosine(double progress)
{
	return MAX(0.0, 0.5 * (1.0 + cos(M_PI * progress)));
}

double schedule_rate(const struct schedule *s, int64_t step)
{
	double low = s->peak > 0 ? s->floor / s->peak : 0, factor = 1, after;

	if (step < s->warmup) {
		factor = (double)step / (double)MAX(1, s->warmup);
		/* get_wsd_schedule warms up from the floor, the others from 0. */
		return s->peak * (s->kind == SCHEDULE_WSD ? factor * (1 - low) + low : factor);
	}
	after = (double)(step - s->warmup) / (double)MAX(1, s->steps - s->warmup);
	switch (s->kind) {
	case SCHEDULE_CONSTANT:
		return s->peak;
	case SCHEDULE_LINEAR:
		factor = MAX(0.0, (double)(s->steps - step) / (double)MAX(1, s->steps - s->warmup));
		break;
	case SCHEDULE_COSINE:
		factor = step >= s->steps ? 0 : half_cosine(after);
		break;
	case SCHEDULE_WSD:
		if (step < s->steps - s->decay)
			return s->peak;
		factor = step >= s->steps
		             ? 0
		             : half_cosine((double)(step - (s->steps - s->decay)) / (double)MAX(1, s->decay));
		break;
	}
	return s->peak * (factor * (1 - low) + low);
}

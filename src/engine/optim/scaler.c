/* SPDX-License-Identifier: Apache-2.0 */
/* The factor of the loss under fp16: its rules and its state in a checkpoint. */
#include "engine/optim/scaler.h"

#include <errno.h>
#include <math.h>

#include "base/json.h"

#define FACTOR 2.0

void loss_scaler_start(struct loss_scaler *s, const struct loss_scaler_options *o)
{
	*s = (struct loss_scaler){.o = *o,
	                          .scale = o->fixed > 0 ? o->fixed : ldexp(1, (int)o->power),
	                          .last_overflow = -1,
	                          .hysteresis = o->hysteresis};
}

static int overflowed(struct loss_scaler *s, struct error *err)
{
	if (s->o.hysteresis > 1 && s->hysteresis > 1)
		s->hysteresis--;
	else if (s->scale == s->o.least)
		return error_set(err, -ERANGE,
		                 "the gradients overflow fp16 at the least loss scale, %g; train.precision = "
		                 "\"bf16\", a lower learning_rate or a longer warm-up would help",
		                 s->scale);
	else
		s->scale = fmax(s->scale / FACTOR, s->o.least);
	s->last_overflow = s->steps;
	return 0;
}

static void succeeded(struct loss_scaler *s)
{
	int64_t stable = s->steps - s->last_overflow - 1;
	bool doubles = stable > 0 && stable % s->o.window == 0;

	if (s->o.consecutive || doubles)
		s->hysteresis = s->o.hysteresis;
	if (doubles)
		s->scale *= FACTOR;
}

int loss_scaler_update(struct loss_scaler *s, bool overflow, struct error *err)
{
	int r = 0;

	s->skipped += overflow;
	if (s->o.fixed <= 0 && overflow)
		r = overflowed(s, err);
	else if (s->o.fixed <= 0)
		succeeded(s);
	s->steps++;
	return r;
}

void loss_scaler_resume(struct loss_scaler *s, const struct loss_scaler *state)
{
	struct loss_scaler own = *s;

	*s = *state;
	s->o = own.o;
	if (s->o.fixed > 0)
		s->scale = own.scale;
}

json_t *loss_scaler_to_json(const struct loss_scaler *s)
{
	return json_pack("{s:f, s:I, s:I, s:I, s:I}", "scale", s->scale, "steps", (json_int_t)s->steps,
	                 "last_overflow", (json_int_t)s->last_overflow, "hysteresis",
	                 (json_int_t)s->hysteresis, "skipped", (json_int_t)s->skipped);
}

int loss_scaler_from_json(struct loss_scaler *s, const json_t *object, const char *where, struct error *err)
{
	int r;

	*s = (struct loss_scaler){.scale = json_get_number(object, "scale", 0)};
	if ((r = json_need_int(object, "steps", where, 0, INT64_MAX, &s->steps, err)) < 0 ||
	    (r = json_need_int(object, "last_overflow", where, -1, INT64_MAX, &s->last_overflow, err)) < 0 ||
	    (r = json_need_int(object, "hysteresis", where, 1, INT64_MAX, &s->hysteresis, err)) < 0 ||
	    (r = json_need_int(object, "skipped", where, 0, INT64_MAX, &s->skipped, err)) < 0)
		return r;
	return s->scale > 0 ? 0 : error_set(err, -EINVAL, "%s: scale has to be above 0", where);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What memory each optimizer takes. Nothing in this file needs a device; the plan uses it alone. */
#include <errno.h>
#include <stdlib.h>

#include "base/str.h"
#include "engine/optim/internal.h"

static const char *const names[OPTIMIZERS] = {"adamw",     "sgd",  "lion",       "lamb",     "lars",
                                              "adafactor", "muon", "adamw_8bit", "lion_8bit"};

const char *optimizer_name(enum optimizer_kind kind)
{
	return names[kind];
}

int optimizer_parse(const char *name, enum optimizer_kind *out)
{
	for (int i = 0; i < OPTIMIZERS; i++)
		if (str_eq(names[i], name)) {
			*out = (enum optimizer_kind)i;
			return 0;
		}
	return -EINVAL;
}

bool optimizer_steps_on_host(enum optimizer_kind kind)
{
	return kind == OPTIMIZER_ADAMW || kind == OPTIMIZER_SGD || kind == OPTIMIZER_LION;
}

bool optimizer_reads(enum optimizer_kind kind, enum dtype gradients)
{
	return gradients == DTYPE_F32 || kind == OPTIMIZER_ADAMW || kind == OPTIMIZER_ADAMW_8BIT;
}

bool optimizer_keeps(const struct optimizer *o, int moment, const struct model_parameter *p)
{
	switch (o->kind) {
	case OPTIMIZER_ADAMW:
	case OPTIMIZER_ADAMW_8BIT:
	case OPTIMIZER_LAMB:
		return true;
	case OPTIMIZER_SGD:
		return moment == 1 && o->with_momentum;
	case OPTIMIZER_LION:
	case OPTIMIZER_LION_8BIT:
	case OPTIMIZER_LARS:
		return moment == 1;
	case OPTIMIZER_MUON:
		return moment == 1 || !muon_takes(o, p);
	case OPTIMIZER_ADAFACTOR:
	case OPTIMIZERS:
		break;
	}
	return false;
}

bool optimizer_has_factors(const struct optimizer *o)
{
	return o->kind == OPTIMIZER_ADAFACTOR;
}

bool optimizer_has_8bit(const struct optimizer *o)
{
	return o->kind == OPTIMIZER_ADAMW_8BIT || o->kind == OPTIMIZER_LION_8BIT;
}

/* The first of this rank's elements of a unit of which it keeps the moment: the parameters that have one lie
 * behind those that have none. */
static int64_t moment_from(const struct optimizer *o, int unit, int moment)
{
	const struct shard_unit *u = &o->s->unit[unit];
	int64_t behind = 0;
	bool any = false;

	for (int i = 0; i < o->layout->parameters; i++) {
		const struct model_parameter *p = &o->layout->parameter[i];

		if (p->unit != unit || p->frozen)
			continue;
		if (optimizer_keeps(o, moment, p))
			any = true;
		else
			behind = MAX(behind, p->offset + p->count);
	}
	return any && !optimizer_has_8bit(o) ? MIN(MAX(behind - u->first, 0), u->own) : u->own;
}

static void measure_factors(struct optimizer *o)
{
	for (int i = 0; i < o->layout->parameters; i++) {
		const struct model_parameter *p = &o->layout->parameter[i];

		o->factor_at[i] = o->factor_count;
		o->factor_count += p->frozen ? 0 : factor_means(p);
	}
}

static void place_factors(struct optimizer *o, struct arena *a)
{
	size_t bytes = (size_t)o->factor_count * sizeof(float);

	o->factors = arena_take(a, BUFFER_OPTIMIZER, bytes, "means of rows and columns");
	o->factor_sums = arena_take(a, BUFFER_SCRATCH, bytes, "sums of rows and columns");
}

bool muon_takes(const struct optimizer *o, const struct model_parameter *p)
{
	return p->matrix && muon_steps(o, p->unit);
}

bool muon_steps(const struct optimizer *o, int unit)
{
	const struct model_unit *u = &o->layout->unit[unit];

	return u->base > 0 && u->base < o->layout->base_units - 1 && !u->frozen;
}

static void measure_matrices(struct optimizer *o)
{
	for (int i = 0; i < o->layout->parameters; i++) {
		const struct model_parameter *p = &o->layout->parameter[i];
		int64_t side = MIN(p->shape[0], p->shape[1]);

		if (!muon_takes(o, p))
			continue;
		o->largest_matrix = MAX(o->largest_matrix, p->count);
		o->largest_square = MAX(o->largest_square, side * side);
	}
}

static void place_matrices(struct optimizer *o, struct arena *a)
{
	size_t size = dtype_size(o->matrix_type);
	int64_t padded = 0;

	for (int i = 0; i < o->s->units && o->s->degree > 1; i++)
		padded = muon_steps(o, i) ? MAX(padded, o->s->unit[i].padded) : padded;
	o->momentum = arena_take(a, BUFFER_SCRATCH, (size_t)padded * sizeof(float), "momentum of a block");

	for (int i = 0; i < 2; i++) {
		o->matrix[i] = arena_take(a, BUFFER_SCRATCH, (size_t)o->largest_matrix * size,
		                          "orthogonal matrix %d", i);
		o->square[i] =
		    arena_take(a, BUFFER_SCRATCH, (size_t)o->largest_square * size, "square matrix %d", i);
	}
}

static void place_moments8(struct optimizer *o, struct arena *a)
{
	int moments = o->kind == OPTIMIZER_LION_8BIT ? 1 : 2;

	for (int i = 0; i < moments * o->s->units; i++) {
		int unit = i / moments, moment = i % moments;
		int64_t own = o->s->unit[unit].own,
		        blocks = (own + DEVICE_MOMENT_BLOCK - 1) / DEVICE_MOMENT_BLOCK;
		struct moment8 *m = &o->moment8[moment][unit];

		if (o->s->unit[unit].frozen)
			continue;
		m->codes =
		    arena_take(a, BUFFER_OPTIMIZER, (size_t)own, "unit %d moment %d", unit, moment + 1);
		m->scales = arena_take(a, BUFFER_OPTIMIZER, (size_t)blocks * sizeof(float),
		                       "unit %d scales of moment %d", unit, moment + 1);
	}
	for (int i = 0; i < moments; i++)
		o->chunk[i] =
		    arena_take(a, BUFFER_SCRATCH, MOMENT8_CHUNK * sizeof(float), "moment %d in fp32", i + 1);
}

int optimizer_create(enum optimizer_kind kind, bool with_momentum, enum dtype product_type,
                     const struct model_layout *layout, struct shard *s, struct optimizer **out,
                     struct error *err)
{
	_cleanup_(optimizer_freep) struct optimizer *o = calloc(1, sizeof(*o));

	if (!o)
		return error_oom(err);
	o->kind = kind;
	o->with_momentum = with_momentum;
	o->matrix_type = product_type;
	o->layout = layout;
	o->s = s;
	o->host_sums = calloc(2 * (size_t)layout->parameters, sizeof(*o->host_sums));
	o->factor_at = calloc((size_t)layout->parameters, sizeof(*o->factor_at));
	o->row_means = calloc((size_t)layout->parameters, sizeof(*o->row_means));
	o->weights_rms = calloc((size_t)layout->parameters, sizeof(*o->weights_rms));
	o->moment8[0] = calloc((size_t)s->units, sizeof(*o->moment8[0]));
	o->moment8[1] = calloc((size_t)s->units, sizeof(*o->moment8[1]));
	if (!o->host_sums || !o->factor_at || !o->row_means || !o->weights_rms || !o->moment8[0] ||
	    !o->moment8[1])
		return error_oom(err);
	if (kind == OPTIMIZER_ADAFACTOR)
		measure_factors(o);
	if (kind == OPTIMIZER_MUON)
		measure_matrices(o);
	for (int i = 0; i < s->units; i++) {
		s->unit[i].m_from = moment_from(o, i, 1);
		s->unit[i].v_from = moment_from(o, i, 2);
	}
	*out = steal_pointer(o);
	return 0;
}

void optimizer_free(struct optimizer *o)
{
	if (!o)
		return;
	for (int i = 0; i < 2 * o->s->units; i++)
		if (o->moment8[i % 2])
			free(o->moment8[i % 2][i / 2].staged);
	free(o->moment8[0]);
	free(o->moment8[1]);
	free(o->host_sums);
	free(o->factor_at);
	free(o->row_means);
	free(o->weights_rms);
	free(o);
}

void optimizer_place_buffers(struct optimizer *o, struct arena *a)
{
	static const bool needs_sums[OPTIMIZERS] = {[OPTIMIZER_LAMB] = true,
	                                            [OPTIMIZER_LARS] = true,
	                                            [OPTIMIZER_ADAFACTOR] = true,
	                                            [OPTIMIZER_MUON] = true};

	if (needs_sums[o->kind])
		o->sums = arena_take(a, BUFFER_SCRATCH, 2 * (size_t)o->layout->parameters * sizeof(*o->sums),
		                     "sums of tensors");
	if (o->kind == OPTIMIZER_ADAFACTOR)
		place_factors(o, a);
	if (o->kind == OPTIMIZER_MUON)
		place_matrices(o, a);
	if (optimizer_has_8bit(o))
		place_moments8(o, a);
}

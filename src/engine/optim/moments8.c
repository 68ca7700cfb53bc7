/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AdamW and Lion with moments in 8 bits. A chunk of a unit's moments at a time is widened to fp32, stepped as
 * always, and quantized again. Blocks are counted from the start of this rank's part of the unit.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/optim/internal.h"

static int moments_of(const struct optimizer *o)
{
	return o->kind == OPTIMIZER_LION_8BIT ? 1 : 2;
}

/* The second moment is never negative. */
static bool has_sign(int moment)
{
	return moment == 0;
}

static void step_part(struct optimizer *o, int unit, int64_t first, int64_t n, int64_t chunk_first,
                      double rate, double decay, const struct optimizer_options *options,
                      const float *grad_scale)
{
	struct own_range range = optimizer_range(o->s, unit, first, n);

	if (range.n == 0)
		return;
	range.m = o->chunk[0] + (first - chunk_first);
	range.v = o->chunk[1] ? o->chunk[1] + (first - chunk_first) : NULL;
	if (o->kind == OPTIMIZER_LION_8BIT)
		optimizer_lion(o->s, &range, options, grad_scale, rate, decay);
	else
		optimizer_adamw(o->s, &range, options, grad_scale, rate, decay, 0, 0);
}

int optimizer_step_8bit(struct optimizer *o, const struct optimizer_options *options, const float *grad_scale,
                        struct error *err)
{
	for (int i = 0; i < o->s->units; i++) {
		const struct shard_unit *u = &o->s->unit[i];
		struct optimizer_span spans[OPTIMIZER_SPANS];
		int n_spans = optimizer_spans(o, i, options, spans);

		for (int64_t at = 0; at < u->own && n_spans > 0; at += MOMENT8_CHUNK) {
			int64_t n = MIN(u->own - at, MOMENT8_CHUNK), first = u->first + at;

			for (int k = 0; k < moments_of(o); k++)
				optimizer_widen(o, k + 1, i, at, n, o->chunk[k]);
			for (int k = 0; k < n_spans; k++) {
				const struct optimizer_span *span = &spans[k];
				int64_t from = MAX(span->first, first);
				int64_t to = MIN(span->first + span->n, first + n);

				if (from < to)
					step_part(o, i, from, to - from, first, span->rate, span->decay,
					          options, grad_scale);
			}
			for (int k = 0; k < moments_of(o); k++)
				device_moment_quantize(o->s->dev, o->moment8[k][i].codes,
				                       o->moment8[k][i].scales, at, o->chunk[k], n,
				                       has_sign(k));
		}
	}
	return 0;
}

/* ---- checkpoints ---- */

void optimizer_widen(struct optimizer *o, int moment, int unit, int64_t at, int64_t n, float *out)
{
	struct moment8 *m = &o->moment8[moment - 1][unit];

	device_moment_dequantize(o->s->dev, out, m->codes, m->scales, at, n, has_sign(moment - 1));
}

int optimizer_read_8bit(struct optimizer *o, int moment, int unit, int64_t at, int64_t n, float *out,
                        struct error *err)
{
	int r = 0;

	for (int64_t done = 0; done < n && r == 0; done += MOMENT8_CHUNK) {
		int64_t part = MIN(n - done, MOMENT8_CHUNK);

		optimizer_widen(o, moment, unit, at + done, part, o->chunk[0]);
		r = device_read(o->s->dev, out + done, o->chunk[0], (size_t)part * sizeof(*out), err);
	}
	return r;
}

int optimizer_write_8bit(struct optimizer *o, int moment, int unit, int64_t at, int64_t n, const float *in,
                         struct error *err)
{
	struct moment8 *m = &o->moment8[moment - 1][unit];

	if (!m->staged)
		m->staged = calloc((size_t)o->s->unit[unit].own, sizeof(*m->staged));
	if (!m->staged)
		return error_oom(err);
	memcpy(m->staged + at, in, (size_t)n * sizeof(*in));
	return 0;
}

/* Quantizes what has been written of a moment. */
static int quantize_staged(struct optimizer *o, int k, int unit, struct error *err)
{
	struct moment8 *m = &o->moment8[k][unit];
	int64_t own = o->s->unit[unit].own;
	int r = 0;

	for (int64_t at = 0; at < own && m->staged && r == 0; at += MOMENT8_CHUNK) {
		int64_t n = MIN(own - at, MOMENT8_CHUNK);

		r = device_write(o->s->dev, o->chunk[0], m->staged + at, (size_t)n * sizeof(float), err);
		if (r == 0)
			device_moment_quantize(o->s->dev, m->codes, m->scales, at, o->chunk[0], n,
			                       has_sign(k));
	}
	free(m->staged);
	m->staged = NULL;
	return r;
}

int moments8_loaded(struct optimizer *o, struct error *err)
{
	int r = 0;

	for (int i = 0; i < moments_of(o) * o->s->units && r == 0; i++)
		r = quantize_staged(o, i % moments_of(o), i / moments_of(o), err);
	return r;
}

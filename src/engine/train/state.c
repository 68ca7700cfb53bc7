/* SPDX-License-Identifier: Apache-2.0 */
/* The state of parameters: loaded, read and written by the host, and gathered from the ranks that hold it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/train/internal.h"

static bool has_no_master(const struct trainer *t, int unit)
{
	return t->o.without_master || t->plan->shard->unit[unit].frozen;
}

static bool is_on_host(const struct trainer *t, enum parameter_state which, int unit)
{
	const struct shard_unit *u = &t->plan->shard->unit[unit];

	return t->o.offload && (!(which == STATE_WEIGHTS && u->frozen) || u->host_copy);
}

/* The place of element `at` of this rank's part of the unit's state. *type is fp32, or the compute type for
 * weights that have no master copy. */
static void *state(const struct trainer *t, enum parameter_state which, int unit, int64_t at,
                   enum dtype *type)
{
	const struct shard_unit *u = &t->plan->shard->unit[unit];

	if (which == STATE_WEIGHTS && has_no_master(t, unit)) {
		*type = t->o.precision;
		return (char *)(is_on_host(t, which, unit) ? u->host_copy : u->own_weights) +
		       (size_t)at * dtype_size(t->o.precision);
	}
	*type = DTYPE_F32;
	return which == STATE_WEIGHTS   ? u->master + at
	       : which == STATE_MOMENT1 ? u->m + (at - u->m_from)
	                                : u->v + (at - u->v_from);
}

/* Copies between host memory and where state() points, without a change of type. */
static int copy_out(struct trainer *t, bool on_host, void *out, const void *state, size_t bytes,
                    struct error *err)
{
	if (!on_host)
		return device_read(t->dev, out, state, bytes, err);
	memcpy(out, state, bytes);
	return 0;
}

static int copy_in(struct trainer *t, bool on_host, void *state, const void *in, size_t bytes,
                   struct error *err)
{
	if (!on_host)
		return device_write(t->dev, state, in, bytes, err);
	memcpy(state, in, bytes);
	return 0;
}

static enum shard_state state_of(enum parameter_state which)
{
	return which == STATE_WEIGHTS ? SHARD_MASTER : which == STATE_MOMENT1 ? SHARD_MOMENT1 : SHARD_MOMENT2;
}

static bool is_on_disk(const struct trainer *t, enum parameter_state which, int unit)
{
	return shard_state_is_on_disk(t->plan->shard, state_of(which)) &&
	       !(which == STATE_WEIGHTS && has_no_master(t, unit));
}

static int moment_of(enum parameter_state which)
{
	return which == STATE_MOMENT1 ? 1 : 2;
}

static bool is_8bit(const struct trainer *t, enum parameter_state which)
{
	return which != STATE_WEIGHTS && optimizer_has_8bit(t->plan->optimizer);
}

/* False where the optimizer keeps no such moment of a parameter: it is zero, and checkpoints do not have
 * it. */
static bool has_state(const struct trainer *t, enum parameter_state which, const struct model_parameter *p)
{
	return which == STATE_WEIGHTS ||
	       (!p->frozen && optimizer_keeps(t->plan->optimizer, moment_of(which), p));
}

/* Adafactor's means, of which every rank has all, are read and written as the second moment. */
static bool is_factors(const struct trainer *t, enum parameter_state which, const struct model_parameter *p)
{
	return which == STATE_MOMENT2 && !p->frozen && optimizer_has_factors(t->plan->optimizer);
}

static bool is_packed(const struct trainer *t, enum parameter_state which, const struct model_parameter *p)
{
	return which == STATE_WEIGHTS && t->plan->shard->unit[p->unit].packed;
}

int trainer_read(struct trainer *t, enum parameter_state which, const struct model_parameter *p,
                 int64_t first, int64_t n, float *out, struct error *err)
{
	int64_t at, own = shard_own(&t->plan->shard->unit[p->unit], p->offset + first, n, &at);
	enum dtype type;
	void *from;
	int r;

	if (own != n || is_packed(t, which, p))
		return error_set(err, -ENOTSUP, "%s: this rank holds only a shard of it", p->name);
	shard_await_steps(t->plan->shard);
	if (is_factors(t, which, p))
		return optimizer_read_factors(t->plan->optimizer, p, first, n, out, err);
	if (!has_state(t, which, p)) {
		memset(out, 0, (size_t)n * sizeof(*out));
		return 0;
	}
	if (is_8bit(t, which))
		return optimizer_read_8bit(t->plan->optimizer, moment_of(which), p->unit, at, n, out, err);
	if (is_on_disk(t, which, p->unit))
		return shard_read_state(t->plan->shard, state_of(which), p->unit, at, n, out, err);
	from = state(t, which, p->unit, at, &type);
	r = copy_out(t, is_on_host(t, which, p->unit), out, from, (size_t)n * dtype_size(type), err);
	/* `out` is widened in place, from the last element on, so that no value is overwritten before it is
	 * read. */
	for (int64_t i = n - 1; i >= 0 && r == 0 && type != DTYPE_F32; i--) {
		uint16_t narrow;

		memcpy(&narrow, (const char *)out + (size_t)i * sizeof(narrow), sizeof(narrow));
		out[i] = type == DTYPE_BF16 ? bf16_to_float(narrow) : f16_to_float(narrow);
	}
	return r;
}

/* `in` has matrices that lie turned as they lie. Every rank quantizes the whole matrix, since the scales of a
 * part depend on all of it. */
static int write_packed(struct trainer *t, const struct model_parameter *p, int64_t first, int64_t n,
                        const float *in, struct error *err)
{
	struct shard *s = t->plan->shard;
	void *to = shard_packed_place(s, p, first);
	_cleanup_free_ uint16_t *narrow = malloc((size_t)n * sizeof(*narrow));
	enum dtype type = t->o.precision;
	int r;

	if (!narrow)
		return error_oom(err);
	for (int64_t i = 0; i < n && type != DTYPE_F32; i++)
		narrow[i] = type == DTYPE_BF16 ? bf16_from_float(in[i]) : f16_from_float(in[i]);
	r = device_write(t->dev, to, type == DTYPE_F32 ? (const void *)in : narrow,
	                 (size_t)n * dtype_size(type), err);
	if (r == 0 && first + n == p->count)
		shard_packed_loaded(s, p);
	return r;
}

int trainer_write(struct trainer *t, enum parameter_state which, const struct model_parameter *p,
                  int64_t first, int64_t n, const float *in, struct error *err)
{
	int64_t at, own = shard_own(&t->plan->shard->unit[p->unit], p->offset + first, n, &at);
	int64_t skip = at + t->plan->shard->unit[p->unit].first - (p->offset + first);

	_cleanup_free_ uint16_t *narrow = NULL;
	enum dtype type;
	void *to;
	bool on_host = is_on_host(t, which, p->unit);
	int r = shard_settle(t->plan->shard, err);

	if (r == 0 && is_packed(t, which, p))
		return write_packed(t, p, first, n, in, err);
	if (r < 0 || own == 0)
		return r;
	if (is_factors(t, which, p))
		return optimizer_write_factors(t->plan->optimizer, p, first + skip, own, in + skip, err);
	if (!has_state(t, which, p))
		return 0;
	if (is_8bit(t, which))
		return optimizer_write_8bit(t->plan->optimizer, moment_of(which), p->unit, at, own, in + skip,
		                            err);
	if (is_on_disk(t, which, p->unit))
		return shard_write_state(t->plan->shard, state_of(which), p->unit, at, own, in + skip, err);
	to = state(t, which, p->unit, at, &type);
	if (type == DTYPE_F32)
		return copy_in(t, on_host, to, in + skip, (size_t)own * sizeof(float), err);
	narrow = malloc((size_t)own * sizeof(*narrow));
	if (!narrow)
		return error_oom(err);
	for (int64_t i = 0; i < own; i++)
		narrow[i] = type == DTYPE_BF16 ? bf16_from_float(in[skip + i]) : f16_from_float(in[skip + i]);
	return copy_in(t, on_host, to, narrow, (size_t)own * sizeof(*narrow), err);
}

int trainer_publish(struct trainer *t, struct error *err)
{
	struct shard *s = t->plan->shard;
	int r;

	for (int u = 0; u < s->units; u++)
		shard_publish(s, u, false);
	model_weights_changed(t->plan->model);
	if ((r = shard_published(s, err)) < 0 || (r = shard_settle(s, err)) < 0 ||
	    (r = device_synchronize(t->dev, err)) < 0)
		return r;
	return trainer_check_comm(t, err);
}

/* A matrix that lies turned is put there in whole. */
static int load_turned(struct trainer *t, const struct model_parameter *p, model_fill_fn fill, void *context,
                       struct error *err)
{
	_cleanup_free_ float *all = malloc((size_t)p->count * sizeof(*all));
	_cleanup_free_ float *turned = malloc((size_t)p->count * sizeof(*turned));
	int r;

	if (!all || !turned)
		return error_oom(err);
	if ((r = fill(context, p, 0, p->count, all, err)) < 0)
		return r;
	model_layout_turn(p, false, turned, all);
	return trainer_write(t, STATE_WEIGHTS, p, 0, p->count, turned, err);
}

int trainer_load(struct trainer *t, model_fill_fn fill, void *context, struct error *err)
{
	enum { PIECE = 1 << 20 };
	_cleanup_free_ float *piece = malloc(PIECE * sizeof(float));
	int r;

	if (!piece)
		return error_oom(err);
	for (int i = 0; i < t->plan->layout->parameters; i++) {
		const struct model_parameter *p = &t->plan->layout->parameter[i];

		if (p->transposed && is_packed(t, STATE_WEIGHTS, p)) {
			if ((r = load_turned(t, p, fill, context, err)) < 0)
				return r;
			continue;
		}
		for (int64_t first = 0; first < p->count; first += PIECE) {
			int64_t n = MIN(p->count - first, PIECE);

			if ((r = fill(context, p, first, n, piece, err)) < 0 ||
			    (r = trainer_write(t, STATE_WEIGHTS, p, first, n, piece, err)) < 0)
				return r;
		}
	}
	return trainer_publish(t, err);
}

/* ---- the state of parameters of which a rank holds a part ---- */

int64_t trainer_held(const struct trainer *t, const struct model_parameter *p, int64_t *first)
{
	const struct shard_unit *u = &t->plan->shard->unit[p->unit];
	int64_t at, n = shard_own(u, p->offset, p->count, &at);

	*first = n > 0 ? u->first + at - p->offset : 0;
	return n;
}

/* From the host's memory to the device, as fp32. */
static int bring(struct trainer *t, float *to, const void *own, enum dtype type, int64_t n, struct error *err)
{
	enum { PIECE = 4096 };
	const uint16_t *narrow = own;
	float piece[PIECE];
	int r = 0;

	if (type == DTYPE_F32)
		return device_write(t->dev, to, own, (size_t)n * sizeof(float), err);
	for (int64_t at = 0; at < n && r == 0; at += PIECE) {
		int64_t part = MIN(n - at, PIECE);

		for (int64_t i = 0; i < part; i++)
			piece[i] =
			    type == DTYPE_BF16 ? bf16_to_float(narrow[at + i]) : f16_to_float(narrow[at + i]);
		r = device_write(t->dev, to + at, piece, (size_t)part * sizeof(float), err);
	}
	return r;
}

static int bring_from_disk(struct trainer *t, float *to, enum parameter_state which, int unit, int64_t at,
                           int64_t n, struct error *err)
{
	enum { PIECE = 1 << 18 };
	_cleanup_free_ float *piece = malloc(PIECE * sizeof(float));
	int r;

	if (!piece)
		return error_oom(err);
	for (int64_t done = 0; done < n; done += PIECE) {
		int64_t part = MIN(n - done, PIECE);

		if ((r = shard_read_state(t->plan->shard, state_of(which), unit, at + done, part, piece,
		                          err)) < 0 ||
		    (r = device_write(t->dev, to + done, piece, (size_t)part * sizeof(float), err)) < 0)
			return r;
	}
	return 0;
}

/* The same by the rank of each part, in turn: what its owner reads from the host goes to the others. */
static int gather_piece(struct trainer *t, enum parameter_state which, const struct model_parameter *p,
                        int64_t first, int64_t n, float *out, struct error *err)
{
	const struct shard *s = t->plan->shard;
	struct shard_unit part = s->unit[p->unit];
	void *staging;
	int r;

	model_scratch(t->plan->model, &staging);
	for (int owner = 0; owner < s->degree; owner++) {
		int64_t at, held, from;

		part.first = owner * part.own;
		held = shard_own(&part, p->offset + first, n, &at);
		if (held == 0)
			continue;
		from = part.first + at - p->offset - first;
		if (part.first == s->unit[p->unit].first && is_8bit(t, which)) {
			optimizer_widen(t->plan->optimizer, moment_of(which), p->unit, at, held,
			                (float *)staging + from);
		} else if (part.first == s->unit[p->unit].first && is_on_disk(t, which, p->unit)) {
			if ((r = bring_from_disk(t, (float *)staging + from, which, p->unit, at, held, err)) <
			    0)
				return r;
		} else if (part.first == s->unit[p->unit].first) {
			enum dtype type;
			const void *own = state(t, which, p->unit, at, &type);

			if (!is_on_host(t, which, p->unit))
				device_cast(t->dev, (float *)staging + from, DTYPE_F32, own, type, held);
			else if ((r = bring(t, (float *)staging + from, own, type, held, err)) < 0)
				return r;
		}
		comm_broadcast(s->gather, (float *)staging + from, (size_t)held * sizeof(float), owner);
	}
	if ((r = comm_flush(s->gather, err)) < 0 ||
	    (out && (r = device_read(t->dev, out, staging, (size_t)n * sizeof(float), err)) < 0))
		return r;
	return trainer_check_comm(t, err);
}

int trainer_gather_parameter(struct trainer *t, enum parameter_state which, const struct model_parameter *p,
                             int64_t first, int64_t n, float *out, struct error *err)
{
	void *memory;
	int64_t most = (int64_t)(model_scratch(t->plan->model, &memory) / sizeof(float));
	int r = 0;

	if (!out && (is_factors(t, which, p) || !has_state(t, which, p)))
		return 0;
	if (is_factors(t, which, p))
		return optimizer_read_factors(t->plan->optimizer, p, first, n, out, err);
	if (!has_state(t, which, p)) {
		memset(out, 0, (size_t)n * sizeof(*out));
		return 0;
	}
	shard_await_steps(t->plan->shard);
	if (t->plan->shard->degree == 1)
		return out ? trainer_read(t, which, p, first, n, out, err) : 0;
	for (int64_t at = 0; at < n && r == 0; at += most)
		r = gather_piece(t, which, p, first + at, MIN(n - at, most), out ? out + at : NULL, err);
	return r;
}

/* ---- for checkpoints ---- */

static int access_read(void *t, enum parameter_state which, const struct model_parameter *p, int64_t first,
                       int64_t n, float *out, struct error *err)
{
	return trainer_read(t, which, p, first, n, out, err);
}

static int access_write(void *t, enum parameter_state which, const struct model_parameter *p, int64_t first,
                        int64_t n, const float *in, struct error *err)
{
	return trainer_write(t, which, p, first, n, in, err);
}

static int access_load(void *t, model_fill_fn fill, void *fill_context, struct error *err)
{
	return trainer_load(t, fill, fill_context, err);
}

static bool access_keeps(void *t, enum parameter_state which, const struct model_parameter *p)
{
	return is_factors(t, which, p) || has_state(t, which, p);
}

static int64_t access_held(void *t, const struct model_parameter *p, int64_t *first)
{
	return trainer_held(t, p, first);
}

static int access_gather(void *t, enum parameter_state which, const struct model_parameter *p, int64_t first,
                         int64_t n, float *out, struct error *err)
{
	return trainer_gather_parameter(t, which, p, first, n, out, err);
}

struct parameter_access trainer_access(struct trainer *t)
{
	const struct shard *s = t->plan->shard;

	return (struct parameter_access){.layout = t->plan->layout,
	                                 .context = t,
	                                 .replicas = s->replicas,
	                                 .replica = t->rank / s->degree,
	                                 .read = access_read,
	                                 .write = access_write,
	                                 .load = access_load,
	                                 .held = access_held,
	                                 .keeps = access_keeps,
	                                 .gather = access_gather};
}

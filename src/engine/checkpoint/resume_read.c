/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads an open checkpoint: a file that all ranks find is mapped by all, and each takes what it holds. Any
 * other is read by the first rank that finds it, which sends all of it, piece by piece.
 *
 * Checkpoints of earlier versions have no index: rank 0 reads them for all (weights_resume).
 */
#include "engine/checkpoint/resume_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/str.h"
#include "engine/checkpoint/agreement.h"
#include "engine/checkpoint/hf.h"
#include "engine/checkpoint/save_plan.h"

enum { PIECE = 256 << 10 }; /* elements that travel at once */

/* The parameter that only runs of the task ppo have. */
#define VALUE_HEAD "v_head.summary.weight"

/* Elements [first, first + n) of one kind of state of a parameter. */
struct range {
	int32_t which, parameter; /* parameter -1: there is none any more */
	int64_t first, n;
};

struct reading {
	const struct resume *r;
	const struct weights_place *place;
	const struct model_parameter **sorted; /* by name */
	float *piece;
	void *staging;
	bool has[3]; /* the kinds of state that were read; without master weights, the model's are */
	bool frozen; /* of the model's files these parameters alone are read */
	struct range *taken;
	size_t n_taken, cap;
	/* Of each kind and parameter, where every rank takes all. */
	struct agreement_item *items;
	char (*names)[TENSOR_NAME_SIZE];
};

static const struct model_layout *layout_of(const struct reading *g)
{
	return g->place->access.layout;
}

/* Notes that the state has it. Weights that no file of a model has do not stand for those of the model. */
static void note_kind(struct reading *g, const struct range *range)
{
	if (range->which != STATE_WEIGHTS || !layout_of(g)->parameter[range->parameter].in_state)
		g->has[range->which] = true;
}

static int by_name(const void *a, const void *b)
{
	return strcmp((*(const struct model_parameter *const *)a)->name,
	              (*(const struct model_parameter *const *)b)->name);
}

/* Reading "m.NAME@FIRST" with n elements. */
static int parse_name(const struct reading *g, const struct tensor *t, const char *file, struct range *out,
                      struct error *err)
{
	struct model_parameter key = {.dims = 0};
	const struct model_parameter *k = &key, **hit = NULL;
	const char *dot = strchr(t->name, '.'), *at = strrchr(t->name, '@');

	out->which = -1;
	for (int i = 0; i < 3 && dot; i++)
		if (strlen(save_plan_kind((enum parameter_state)i)) == (size_t)(dot - t->name) &&
		    str_starts(t->name, save_plan_kind((enum parameter_state)i)))
			out->which = i;
	if (out->which >= 0 && at > dot && (size_t)(at - dot) <= sizeof(key.name)) {
		memcpy(key.name, dot + 1, (size_t)(at - dot) - 1);
		hit = bsearch(&k, g->sorted, (size_t)layout_of(g)->parameters, sizeof(k), by_name);
	}
	out->n = tensor_elements(t);
	if (out->which >= 0 && !hit && strstr(t->name, "." VALUE_HEAD "@"))
		return error_set(
		    err, -EINVAL,
		    "%s has the state of a value head, which only a run with task = \"ppo\" uses; "
		    "expected that task, or a new run with this directory as %s",
		    g->r->directory, layout_of(g)->adapts ? "lora.from" : "model.path");
	if (!hit || str_to_int64(at + 1, 0, INT64_MAX, &out->first) < 0 || out->first > (*hit)->count ||
	    out->n > (*hit)->count - out->first)
		return error_set(err, -EINVAL, "%s: tensor %s is no part of this model", file, t->name);
	out->parameter = (int32_t)(*hit - layout_of(g)->parameter);
	return 0;
}

static int note_taken(struct reading *g, struct range range, struct error *err)
{
	if (g->n_taken == g->cap) {
		size_t cap = MAX(2 * g->cap, 256);
		struct range *more = realloc(g->taken, cap * sizeof(*more));

		if (!more)
			return error_oom(err);
		g->taken = more;
		g->cap = cap;
	}
	g->taken[g->n_taken++] = range;
	return 0;
}

/* Puts values of a parameter where this rank holds them. */
static int take(struct reading *g, const struct range *at, const char *tensor, const char *file,
                const float *values, int64_t *infinite, struct error *err)
{
	const struct parameter_access *access = &g->place->access;
	struct agreement_item *item = &g->items[at->which * layout_of(g)->parameters + at->parameter];
	int r = at->which == STATE_WEIGHTS
	            ? parameters_check_finite(tensor, file, at->first, values, at->n, err)
	            : parameters_check_moments(tensor, file, at->first, values, at->n, infinite, err);

	item->digest = hash_bytes(values, (size_t)at->n * sizeof(*values), item->digest);
	return r < 0 ? r
	             : access->write(access->context, (enum parameter_state)at->which,
	                             &layout_of(g)->parameter[at->parameter], at->first, at->n, values, err);
}

static void held(const struct reading *g, int32_t parameter, int64_t *first, int64_t *n)
{
	const struct parameter_access *access = &g->place->access;
	const struct model_parameter *p = &access->layout->parameter[parameter];

	*first = 0;
	*n = access->held ? access->held(access->context, p, first) : p->count;
}

/* What this rank holds of a range; n 0: none of it. */
static struct range own_part(const struct reading *g, const struct range *range)
{
	int64_t first, n, from, to;

	held(g, range->parameter, &first, &n);
	from = MAX(first, range->first);
	to = MIN(first + n, range->first + range->n);
	return (struct range){range->which, range->parameter, from, MAX(to - from, 0)};
}

/* What messages call a tensor: elements are counted from the start of the parameter. */
static const char *tensor_name(const struct reading *g, const struct tensor *t, const struct range *range,
                               char *buf, size_t size)
{
	if (!strchr(t->name, '@'))
		return t->name;
	snprintf(buf, size, "%s.%s", save_plan_kind((enum parameter_state)range->which),
	         layout_of(g)->parameter[range->parameter].name);
	return buf;
}

/* From a file that this rank has mapped; `send`: to all others, too. */
static int take_tensor(struct reading *g, const struct safetensors *st, const struct tensor *t,
                       const struct range *range, bool send, struct error *err)
{
	const char *file = safetensors_file(st, t);
	struct range part = send ? *range : own_part(g, range);
	char buf[TENSOR_NAME_SIZE];
	const char *name = tensor_name(g, t, range, buf, sizeof(buf));
	int64_t infinite = -1;
	int r = send || part.n == 0 ? 0 : note_taken(g, part, err);

	for (int64_t at = 0; at < part.n && r == 0; at += PIECE) {
		struct range piece = {part.which, part.parameter, part.first + at, MIN(part.n - at, PIECE)};

		r = tensor_to_f32(t, piece.first - range->first, piece.n, g->piece, err);
		if (r == 0)
			safetensors_release(st, t, piece.first - range->first, piece.n);
		if (r == 0)
			r = take(g, &piece, name, file, g->piece, &infinite, err);
		if (r == 0 && send)
			r = ranks_broadcast(&g->r->ranks, g->staging, g->piece,
			                    (size_t)piece.n * sizeof(*g->piece), ranks_rank(&g->r->ranks),
			                    err);
	}
	if (r == 0 && send && (part = own_part(g, range)).n > 0)
		r = note_taken(g, part, err);
	/* The run that saved it trained with that: going on changes nothing. */
	if (r == 0 && infinite >= 0)
		weights_warn_infinite(g->place, file, name, infinite);
	return r;
}

/* What `root` sends with take_tensor, until it sends that there is no more. */
static int receive(struct reading *g, int root, struct error *err)
{
	struct range range = {.which = 0};
	int64_t infinite = -1;
	int r;

	for (;;) {
		struct range part;

		if ((r = ranks_broadcast(&g->r->ranks, g->staging, &range, sizeof(range), root, err)) < 0 ||
		    range.parameter < 0)
			return r;
		note_kind(g, &range);
		for (int64_t at = 0; at < range.n && r == 0; at += PIECE) {
			struct range piece = {range.which, range.parameter, range.first + at,
			                      MIN(range.n - at, PIECE)};

			r = ranks_broadcast(&g->r->ranks, g->staging, g->piece,
			                    (size_t)piece.n * sizeof(*g->piece), root, err);
			if (r == 0)
				r = take(g, &piece, layout_of(g)->parameter[range.parameter].name,
				         "the checkpoint that another rank sent", g->piece, &infinite, err);
		}
		if (r == 0 && (part = own_part(g, &range)).n > 0)
			r = note_taken(g, part, err);
		if (r < 0)
			return r;
	}
}

/* The ranges of a set of files, in order: the model's parameters, or the pieces of one earlier rank. */
static int range_at(const struct reading *g, const struct safetensors *st, bool model, size_t i,
                    const struct tensor **t, struct range *range, struct error *err)
{
	if (!model) {
		*t = safetensors_at(st, i);
		return parse_name(g, *t, safetensors_file(st, *t), range, err);
	}
	*t = hf_find(st, layout_of(g)->parameter[i].saved);
	*range = (struct range){STATE_WEIGHTS, (int32_t)i, 0, layout_of(g)->parameter[i].count};
	return *t ? 0 : error_set(err, -EINVAL, "%s is missing", layout_of(g)->parameter[i].name);
}

/* Whether a parameter is read from the files of the model. */
static bool is_read(const struct reading *g, const struct model_parameter *p)
{
	return !p->in_state && (layout_of(g)->adapts ? !p->frozen : p->frozen || !g->frozen);
}

/* path NULL: the earlier rank has written no file of its state. */
static int read_set(struct reading *g, const char *path, bool model, bool send, struct error *err)
{
	_cleanup_(safetensors_closep) struct safetensors *st = NULL;
	const struct ranks *ranks = &g->r->ranks;
	size_t n;
	int r = path ? safetensors_open(path, &st, err) : 0;

	if (r == 0 && model)
		r = layout_of(g)->adapts ? parameters_check_adapter(layout_of(g), st, path, err)
		                         : parameters_check(layout_of(g), st, path, err);
	if (r < 0)
		return r;
	n = model ? (size_t)layout_of(g)->parameters : path ? safetensors_count(st) : 0;
	for (size_t i = 0; i < n && r == 0; i++) {
		const struct tensor *t;
		struct range range;

		if (model && !is_read(g, &layout_of(g)->parameter[i]))
			continue;
		r = range_at(g, st, model, i, &t, &range, err);
		if (r == 0 && send)
			r = ranks_broadcast(ranks, g->staging, &range, sizeof(range), ranks_rank(ranks), err);
		if (r == 0)
			r = take_tensor(g, st, t, &range, send, err);
		if (r == 0)
			note_kind(g, &range);
	}
	if (r == 0 && send)
		r = ranks_broadcast(ranks, g->staging, &(struct range){.parameter = -1}, sizeof(struct range),
		                    ranks_rank(ranks), err);
	return r;
}

/* The files that an earlier rank wrote; or the model's, which lie where rank 0 wrote. */
static int read_files(struct reading *g, int rank, bool model, struct error *err)
{
	const struct resume *r = g->r;
	_cleanup_free_ char *path = NULL;
	int root = resume_finder(r, rank, 0), s = 0;
	bool all = resume_all_find(r, rank);

	if (root < 0) /* it wrote nothing */
		return 0;
	if (!all && root != ranks_rank(&r->ranks))
		return receive(g, root, err);
	if (!model)
		s = resume_find_state(r, rank, &path, err);
	else if (!(path = str_printf("%s%s", r->directory,
	                             layout_of(g)->adapts ? "/adapter_model.safetensors" : "")))
		s = error_oom(err);
	return s < 0 ? s : read_set(g, path, model, !all, err);
}

static int by_place(const void *a, const void *b)
{
	const struct range *x = a, *y = b;

	return x->which != y->which           ? x->which - y->which
	       : x->parameter != y->parameter ? x->parameter - y->parameter
	       : x->first != y->first         ? (x->first < y->first ? -1 : 1)
	                                      : 0;
}

/* Whether the checkpoint has to have such a state of a parameter. Moments that it has of none were not kept
 * by the run that saved it, as those of sgd without momentum, and are zero. */
static bool is_needed(const struct reading *g, enum parameter_state which, int32_t parameter)
{
	const struct parameter_access *access = &g->place->access;
	const struct model_parameter *p = &layout_of(g)->parameter[parameter];

	if (which == STATE_WEIGHTS)
		return !p->frozen || !layout_of(g)->adapts;
	return g->has[which] && !p->frozen && (!access->keeps || access->keeps(access->context, which, p));
}

/* All that this rank holds was there, once. */
static int check_complete(struct reading *g, struct error *err)
{
	size_t i = 0;

	if (g->n_taken)
		qsort(g->taken, g->n_taken, sizeof(*g->taken), by_place);
	for (int which = 0; which < 3; which++)
		for (int32_t p = 0; p < layout_of(g)->parameters; p++) {
			int64_t at, n, end;

			held(g, p, &at, &n);
			if (!is_needed(g, (enum parameter_state)which, p))
				n = 0;
			end = at + n;
			for (; i < g->n_taken && g->taken[i].which == which && g->taken[i].parameter == p &&
			       g->taken[i].first == at;
			     i++)
				at += g->taken[i].n;
			if (n > 0 && at != end && layout_of(g)->parameter[p].in_state)
				return error_set(
				    err, -EINVAL,
				    "%s has no value head: it is not of a run with task = "
				    "\"ppo\"; expected its own task, or a new run with this directory as %s",
				    g->r->directory, layout_of(g)->adapts ? "lora.from" : "model.path");
			if (n > 0 && at != end)
				return error_set(
				    err, -EINVAL, "%s: no file has %s of %s from element %" PRId64 " on",
				    g->r->directory, which == STATE_WEIGHTS ? "the weights" : "the moments",
				    layout_of(g)->parameter[p].name, at);
		}
	return i == g->n_taken ? 0
	                       : error_set(err, -EINVAL, "%s: several files have %s of %s", g->r->directory,
	                                   save_plan_kind(g->taken[i].which),
	                                   layout_of(g)->parameter[g->taken[i].parameter].name);
}

static void reading_free(struct reading *g)
{
	free(g->sorted);
	free(g->piece);
	free(g->taken);
	free(g->items);
	free(g->names);
}

static int prepare(struct reading *g, struct error *err)
{
	static const char *const kinds[] = {[STATE_WEIGHTS] = "weights of",
	                                    [STATE_MOMENT1] = "first moment of",
	                                    [STATE_MOMENT2] = "second moment of"};
	size_t n = (size_t)layout_of(g)->parameters;

	g->sorted = calloc(n + 1, sizeof(*g->sorted));
	g->piece = malloc(PIECE * sizeof(*g->piece));
	g->items = calloc(3 * n + 1, sizeof(*g->items));
	g->names = calloc(3 * n + 1, sizeof(*g->names));
	if (!g->sorted || !g->piece || !g->items || !g->names)
		return error_oom(err);
	for (size_t i = 0; i < 3 * n; i++) {
		const struct model_parameter *p = &layout_of(g)->parameter[i % n];

		g->sorted[i % n] = p;
		snprintf(g->names[i], sizeof(*g->names), "%s %s", kinds[i / n], p->name);
		g->items[i] = (struct agreement_item){g->names[i], g->r->directory, 0};
	}
	qsort(g->sorted, n, sizeof(*g->sorted), by_name);
	return g->r->ranks.comm ? device_alloc(g->r->ranks.dev, PIECE * sizeof(*g->piece), &g->staging, err)
	                        : 0;
}

static bool has_frozen(const struct reading *g)
{
	for (int i = 0; i < layout_of(g)->parameters; i++)
		if (layout_of(g)->parameter[i].frozen)
			return true;
	return false;
}

int resume_read(struct resume *r, const struct weights_place *place, struct error *err)
{
	_cleanup_(reading_free) struct reading g = {.r = r, .place = place};
	const struct ranks *ranks = &r->ranks;
	int s;

	if (r->plain)
		return weights_resume(place, ranks_rank(ranks) == 0 ? r->directory : NULL, err);
	s = prepare(&g, err);
	for (int i = 0; i < r->index.world_size && s == 0; i++)
		s = read_files(&g, i, false, err);
	g.frozen = g.has[STATE_WEIGHTS];
	if (s == 0 && (!g.has[STATE_WEIGHTS] || (has_frozen(&g) && !layout_of(&g)->adapts)))
		s = read_files(&g, 0, true, err);
	if (s == 0)
		s = check_complete(&g, err);
	if (g.staging)
		device_free(ranks->dev, g.staging);
	/* Where each rank holds all, all have to have the same. */
	if (s == 0 && save_plan_degree(&place->access, ranks_size(ranks)) == 1)
		s = agreement_check(g.items, 3 * (size_t)layout_of(&g)->parameters, ranks->dev, ranks->comm,
		                    ranks->node, "the network or the memory of one of them is faulty", err);
	return s;
}

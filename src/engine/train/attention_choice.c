/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chooses the kernel of a pass of attention:
 *
 *     measure  where a run begins, the first rank of each kind of device that has Hopper's kernel checks it,
 *              and measures it beside the portable one
 *     share    all ranks learn what was chosen
 *     check    where it is Hopper's, each rank that has not checked it on its device does so
 *     use      all ranks of a kind, the portable kernel where one of these checks has failed
 *
 * A run that resumes and has no choice for its kind began with the portable kernel, and keeps it. Where a
 * rank could not check the kernel, since its device cannot be opened once more, the ranks of the kind have
 * the portable kernel until the run ends, and a choice that is older stays for the next start.
 */
#include "engine/train/attention_choice.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"

/* The portable kernel, unless Hopper's takes less time than this part of its time. */
#define WORTH 0.97

/* What each rank tells the others. */
struct state {
	char kind[ALGORITHMS_NAME_MAX];
	struct algorithms_attention chosen; /* .chosen: this rank has measured */
	int32_t able, failed;
	int32_t unchecked; /* the check could not be made */
	char reason[256];  /* of that, or of a check that failed */
};

struct choice {
	const struct ranks *ranks;
	const struct products_file *file;
	const struct device_attention_shape *shape;
	struct algorithms *table;
	struct state *all; /* [ranks] */
	bool checked;      /* by this rank, on its device */
};

static const char *const pass_names[DEVICE_ATTENTION_PASSES] = {"forward", "backward"};

static void choice_free(struct choice *c)
{
	free(c->all);
}

static struct state *own(const struct choice *c)
{
	return &c->all[ranks_rank(c->ranks)];
}

/* Borrowed from the table; NULL: it has none of that kind. */
static struct algorithms_attention *known_of(const struct choice *c, const char *kind)
{
	struct algorithms_of_kind *known = algorithms_find(c->table, kind);

	return known ? &known->attention[c->shape->pass] : NULL;
}

static int share(struct choice *c, struct error *err)
{
	return ranks_gather(c->ranks, NULL, c->all, sizeof(*c->all), err);
}

static bool leads(const struct choice *c, int rank)
{
	for (int i = 0; i < rank; i++)
		if (str_eq(c->all[i].kind, c->all[rank].kind))
			return false;
	return true;
}

static bool any_is_able(const struct choice *c)
{
	for (int i = 0; i < ranks_size(c->ranks); i++)
		if (c->all[i].able)
			return true;
	return false;
}

/* False: the kernel is not to be used, and own()->reason says why. */
static bool check(struct choice *c, double seconds[2])
{
	struct error why = ERROR_INIT;
	int r = c->file->check_attention ? c->file->check_attention(c->file->context, c->shape, seconds, &why)
	                                 : device_attention_check(c->ranks->dev, c->shape, seconds, &why);

	c->checked = true;
	if (r == 0)
		return true;
	own(c)->failed = r != -ENODEV;
	own(c)->unchecked = r == -ENODEV;
	snprintf(own(c)->reason, sizeof(own(c)->reason), "%.255s", why.message);
	return false;
}

static void measure(struct choice *c)
{
	const struct algorithms_attention *known = known_of(c, own(c)->kind);
	struct algorithms_attention a = {.shape = *c->shape, .chosen = 1};
	double seconds[2] = {0};

	if (!own(c)->able || !leads(c, ranks_rank(c->ranks)) || c->file->resumes || (known && known->chosen))
		return;
	if (check(c, seconds)) {
		a.portable_ns = (int64_t)(seconds[0] * 1e9);
		a.hopper_ns = (int64_t)(seconds[1] * 1e9);
		a.hopper = seconds[1] < seconds[0] * WORTH;
	}
	own(c)->chosen = a;
}

static int take_measured(struct choice *c, bool *changed, struct error *err)
{
	int r = 0;

	for (int i = 0; i < ranks_size(c->ranks) && r == 0; i++)
		if (c->all[i].chosen.chosen) {
			r = algorithms_set_attention(c->table, c->all[i].kind, &c->all[i].chosen, err);
			*changed = true;
		}
	return r;
}

static void check_chosen(struct choice *c)
{
	const struct algorithms_attention *mine = known_of(c, own(c)->kind);
	double seconds[2];

	if (mine && mine->hopper && !c->checked)
		check(c, seconds);
}

/* In this start. */
static bool is_measured(const struct choice *c, const char *kind)
{
	for (int i = 0; i < ranks_size(c->ranks); i++)
		if (c->all[i].chosen.chosen && str_eq(c->all[i].kind, kind))
			return true;
	return false;
}

static void drop_failed(struct choice *c, bool *changed)
{
	for (int i = 0; i < ranks_size(c->ranks); i++) {
		const struct state *s = &c->all[i];
		struct algorithms_attention *known = known_of(c, s->kind);

		if (known && known->hopper && (s->failed || (s->unchecked && is_measured(c, s->kind)))) {
			known->hopper = 0;
			*changed = true;
		}
	}
}

/* By a rank of the kind. */
static bool is_unchecked(const struct choice *c, const char *kind)
{
	for (int i = 0; i < ranks_size(c->ranks); i++)
		if (c->all[i].unchecked && str_eq(c->all[i].kind, kind))
			return true;
	return false;
}

/* One line for each kind that was measured, and one for the first check of each kind that has failed. */
static void report(const struct choice *c)
{
	for (int i = 0; i < ranks_size(c->ranks); i++) {
		const struct state *s = &c->all[i];
		const struct algorithms_attention *a = &s->chosen;
		char line[640];
		bool first = true;

		for (int j = 0; j < i; j++)
			first = first && !((c->all[j].failed || c->all[j].unchecked) &&
			                   str_eq(c->all[j].kind, s->kind));
		if ((s->failed || s->unchecked) && first)
			snprintf(
			    line, sizeof(line),
			    "warning: the %s pass of attention has the portable kernel on %s: Hopper's %s: "
			    "%s%s",
			    pass_names[c->shape->pass], s->kind,
			    s->unchecked ? "could not be checked" : "has not passed its check", s->reason,
			    c->file->resumes
			        ? "; results may differ in the last bits from those before the checkpoint"
			        : "");
		else if (a->chosen && !s->failed && !s->unchecked)
			snprintf(line, sizeof(line),
			         "the %s pass of attention has the %s kernel on %s: %.3f ms with the "
			         "portable one, %.3f ms with Hopper's",
			         pass_names[c->shape->pass], a->hopper ? "Hopper" : "portable", s->kind,
			         (double)a->portable_ns * 1e-6, (double)a->hopper_ns * 1e-6);
		else
			continue;
		c->file->notify(c->file->context, line);
	}
}

int attention_choose(const struct ranks *ranks, const struct products_file *file, const char *kind,
                     const struct device_attention_shape *shape, struct algorithms *table, bool *changed,
                     struct error *err)
{
	_cleanup_(choice_free) struct choice c = {
	    .ranks = ranks, .file = file, .shape = shape, .table = table};
	const struct algorithms_attention *mine;
	bool broken;
	int r;

	device_attention_use_hopper(ranks->dev, shape->pass, false);
	c.all = calloc((size_t)ranks_size(ranks), sizeof(*c.all));
	if (!c.all)
		return error_oom(err);
	snprintf(own(&c)->kind, ALGORITHMS_NAME_MAX, "%s", kind);
	own(&c)->able = device_attention_has_hopper(ranks->dev, shape);
	if ((r = share(&c, err)) < 0 || !any_is_able(&c))
		return r;
	measure(&c);
	if ((r = share(&c, err)) < 0)
		return r;
	r = take_measured(&c, changed, err);
	if ((r = ranks_agree(ranks, r, &broken, err)) < 0)
		return r;
	check_chosen(&c);
	if ((r = share(&c, err)) < 0)
		return r;
	drop_failed(&c, changed);
	mine = known_of(&c, kind);
	device_attention_use_hopper(ranks->dev, shape->pass, mine && mine->hopper && !is_unchecked(&c, kind));
	if (ranks_rank(ranks) == 0)
		report(&c);
	return 0;
}

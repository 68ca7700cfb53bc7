/* SPDX-License-Identifier: Apache-2.0 */
/* Plans a run for each number of devices, and computes the times of its steps. */
#include "engine/train/scale.h"

#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"

/* -EINVAL of a number of ranks that cannot be divided is no failure of the others. */
static int plan_point(const struct estimate_input *in, int strategy, int recompute, struct scale_point *p,
                      struct error *err)
{
	_cleanup_free_ struct estimate_list *list = malloc(sizeof(*list));
	struct hardware_set where = *in->where;
	struct train_options o = *in->options;
	struct estimate_input here = *in;
	const struct estimate *best;
	int r;

	if (!list)
		return error_oom(err);
	where.nodes = p->nodes;
	where.per_node = p->per_node;
	if (o.shard_degree > where.nodes * where.per_node)
		o.shard_degree = where.nodes * where.per_node;
	here.where = &where;
	here.options = &o;
	r = estimate_list(&here, list, err);
	if (r < 0 && r != -EINVAL)
		return r;
	best = r == 0 ? estimate_best(list, strategy, recompute) : NULL;
	p->possible = best != NULL;
	if (best)
		p->e = *best;
	return 0;
}

int scale_run(const struct estimate_input *in, int strategy, int recompute,
              struct scale_point points[SCALE_POINTS], struct error *err)
{
	struct error failure = ERROR_INIT;
	double first = 0;
	int r;

	for (int i = 0; i < SCALE_POINTS; i++) {
		struct scale_point *p = &points[i];
		int devices = 1 << i;
		double each;

		*p = (struct scale_point){.per_node = MIN(devices, in->where->per_node)};
		p->nodes = (devices + p->per_node - 1) / p->per_node;
		if ((r = plan_point(in, strategy, recompute, p, &failure)) < 0) {
			if (err)
				*err = failure;
			return r;
		}
		if (!p->possible)
			continue;
		each = p->e.cost.tokens_per_second / ((double)p->nodes * p->per_node);
		first = first > 0 ? first : each;
		p->efficiency = first > 0 ? each / first : 0;
	}
	for (int i = 0; i < SCALE_POINTS; i++)
		if (points[i].possible)
			return 0;
	if (err)
		*err = failure;
	return -EINVAL;
}

int scale_to_json(const struct estimate_input *in, const struct scale_point points[SCALE_POINTS],
                  json_t **out, struct error *err)
{
	_cleanup_free_ struct estimate_list *list = calloc(1, sizeof(*list));
	json_t *all, *scale = json_array();
	int r;

	if (!list || !scale) {
		json_decref(scale);
		return error_oom(err);
	}
	for (int i = 0; i < SCALE_POINTS; i++) {
		const struct scale_point *p = &points[i];
		json_t *point;

		if (!p->possible)
			continue;
		point = estimate_plan_json(&p->e);
		json_object_set_new(point, "nodes", json_integer(p->nodes));
		json_object_set_new(point, "per_node", json_integer(p->per_node));
		json_object_set_new(point, "tokens", json_integer((json_int_t)p->e.cost.tokens));
		json_object_set_new(point, "efficiency", json_real(p->efficiency));
		json_array_append_new(scale, point);
		if (list->count == 0)
			list->all[list->count++] = p->e;
	}
	r = estimate_to_json(in, list, &all, err);
	if (r < 0) {
		json_decref(scale);
		return r;
	}
	/* What is planned for one number of devices alone. */
	json_object_del(all, "plans");
	json_object_del(all, "run");
	json_object_del(all, "choice");
	json_object_del(json_object_get(all, "devices"), "nodes");
	json_object_del(json_object_get(all, "step"), "tokens");
	json_object_set_new(all, "scale", scale);
	*out = all;
	return 0;
}

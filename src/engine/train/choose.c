/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the strategy of a run for the devices that it has. */
#include "engine/train/choose.h"

#include <stdlib.h>

#include "base/cleanup.h"

/* Of a device's memory, what a plan that is tried leaves free: one communicator more than the run has takes
 * up to 768 MiB on a GPU. */
#define RESERVE_PART 20

void choose_hardware(const struct device *dev, int nodes, int per_node, struct hardware_set *out)
{
	const struct hardware *known;
	struct device_sizing sizing;
	int64_t memory;

	device_get_sizing(dev, &sizing, &memory);
	*out = (struct hardware_set){.nodes = nodes, .per_node = per_node};
	if (sizing.engine == DEVICE_ENGINE_CPU) {
		hardware_find("cpu", &out->device);
		hardware_fill_cpu(&out->device, per_node, sizing.threads, 0);
		return;
	}
	known = hardware_by_board(device_describe(dev), memory);
	out->device = *(known ? known : hardware_at(0));
	out->device.sizing = sizing;
	out->device.memory = memory;
}

int choose_plan(const struct estimate_input *in, bool strategy, bool recompute, struct train_options *out,
                struct error *err)
{
	_cleanup_free_ struct estimate_list *list = malloc(sizeof(*list));
	const struct estimate *best;
	int r;

	if (!list)
		return error_oom(err);
	if ((r = estimate_list(in, list, err)) < 0)
		return r;
	best = estimate_best(list, strategy ? -1 : (int)in->options->strategy,
	                     recompute ? -1 : (int)in->options->recompute);
	choose_take(best, out);
	return 0;
}

void choose_take(const struct estimate *e, struct train_options *out)
{
	out->strategy = e->strategy;
	out->recompute = e->recompute;
	out->kept_blocks = e->kept;
	out->kept_outputs = e->outputs;
}

static int compare(const void *a, const void *b)
{
	const struct estimate *x = a, *y = b;

	return (x->cost.step > y->cost.step) - (x->cost.step < y->cost.step);
}

/* Whether the plan can be tried without a risk for the run that has `best`: of a prediction that is too
 * small, or of what a trial takes beside the plan. */
static bool is_safe(const struct estimate *e, const struct estimate *best)
{
	return e->total <= e->available - e->available / RESERVE_PART && e->host <= best->host &&
	       e->disk <= best->disk;
}

int choose_rivals(const struct estimate_input *in, bool recompute, double within, struct estimate *out,
                  struct error *err)
{
	_cleanup_free_ struct estimate_list *list = malloc(sizeof(*list));
	int way = recompute ? -1 : (int)in->options->recompute, n = 1, r;

	if (!list)
		return error_oom(err);
	if ((r = estimate_list(in, list, err)) < 0)
		return r;
	out[0] = *estimate_best(list, -1, way);
	for (int strategy = SHARD_DDP; strategy <= SHARD_HYBRID && is_safe(&out[0], &out[0]); strategy++) {
		const struct estimate *e = estimate_best(list, strategy, way);

		if (e && strategy != (int)out[0].strategy && is_safe(e, &out[0]) &&
		    e->cost.step <= within * out[0].cost.step)
			out[n++] = *e;
	}
	qsort(out + 1, (size_t)n - 1, sizeof(*out), compare);
	return n;
}

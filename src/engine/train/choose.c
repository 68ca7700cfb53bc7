/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the strategy of a run for the devices that it has. */
#include "engine/train/choose.h"

#include <stdlib.h>

#include "base/cleanup.h"

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
	out->strategy = best->strategy;
	out->recompute = best->recompute;
	out->kept_blocks = best->kept;
	out->kept_outputs = best->outputs;
	return 0;
}

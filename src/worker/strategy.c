/* SPDX-License-Identifier: Apache-2.0 */
/* Lets rank 0 choose the strategy of a run, and refuses a run that does not fit before it allocates. */
#include "worker/strategy.h"

#include <stdio.h>

#include "base/cleanup.h"
#include "engine/checkpoint/weights.h"
#include "engine/train/choose.h"
#include "options/options.h"

/* Bytes of rank 0, to all ranks. */
static int share(struct device *dev, struct comm *comm, void *host, size_t bytes, struct error *err)
{
	void *staging;
	int r = device_alloc(dev, bytes, &staging, err);

	if (r < 0)
		return r;
	r = weights_broadcast(dev, comm, staging, host, bytes, err);
	device_free(dev, staging);
	return r;
}

int strategy_choose(const struct run_config *c, const struct environment *env, struct device *dev,
                    struct comm *comm, const struct model_config *model, int64_t max_row,
                    struct train_options *options, struct error *err)
{
	int per_node = MAX(env->local_world_size, 1), nodes = MAX(env->world_size / per_node, 1), r = 0;
	int64_t choice = options->strategy;
	struct hardware_set where;
	struct estimate_input in = {model, options, max_row, &where};

	choose_hardware(dev, nodes, per_node, &where);
	if (options_strategy_is_auto(c) && comm) {
		if (env->rank == 0 && (r = choose_strategy(&in, &options->strategy, err)) < 0)
			return r;
		choice = options->strategy;
		if ((r = share(dev, comm, &choice, sizeof(choice), err)) < 0)
			return r;
		options->strategy = (enum shard_strategy)choice;
		if (env->rank == 0)
			printf("strategy: %s (auto: the fastest that fits, as dtrain estimate has it)\n",
			       shard_strategy_name(options->strategy));
	}
	return estimate_check(&in, err);
}

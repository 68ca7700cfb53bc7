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

/* The strategy of the checkpoint that the run goes on from is kept where it fits. */
static int choose(const struct estimate_input *in, bool strategy, bool recompute, const char *began,
                  bool *kept, struct train_options *out, struct error *err)
{
	struct train_options given = *in->options;
	struct estimate_input same = *in;
	struct error unfit = ERROR_INIT;
	struct estimate e;

	same.options = &given;
	*kept = strategy && began && shard_strategy_parse(began, &given.strategy) == 0 &&
	        choose_plan(&same, false, recompute, &given, &unfit) == 0 &&
	        estimate_run(&same, &e, &unfit) == 0 && e.fits;
	if (!*kept)
		return choose_plan(in, strategy, recompute, out, err);
	*out = given;
	return 0;
}

static void print_choice(const struct train_options *o, bool strategy, bool recompute, bool kept)
{
	const struct estimate e = {
	    .recompute = o->recompute, .kept = o->kept_blocks, .outputs = o->kept_outputs};
	char text[48];

	if (strategy)
		printf("strategy: %s (auto: %s)\n", shard_strategy_name(o->strategy),
		       kept ? "as the checkpoint" : "the fastest that fits, as dtrain estimate has it");
	if (recompute)
		printf("recompute: %s (auto)\n", estimate_recompute_text(text, sizeof(text), &e));
}

int strategy_choose(const struct run_config *c, const struct environment *env, struct device *dev,
                    struct comm *comm, const struct model_config *model, int64_t max_row, const char *began,
                    struct train_options *options, struct error *err)
{
	int per_node = MAX(env->local_world_size, 1), nodes = MAX(env->world_size / per_node, 1), r = 0;
	bool strategy = options_strategy_is_auto(c) && comm, recompute = options_recompute_is_auto(c),
	     kept = false;
	struct train_options given = *options;
	_cleanup_free_ struct rates *rates = NULL;
	struct error unread = ERROR_INIT;
	struct hardware_set where;
	char note[160];
	struct estimate_input in = {model, &given, max_row, &where};
	int64_t choice[4];

	choose_hardware(dev, nodes, per_node, &where);
	if ((strategy || recompute) && env->rank == 0) {
		if (hardware_read_rates(&where.device, &rates, &unread) < 0)
			printf("warning: %s; the table's rates count instead\n", unread.message);
		else if (rates && *rates_version_note(rates, note, sizeof(note)))
			printf("warning: %s\n", note);
		where.device.rates = rates;
	}
	if (strategy || recompute) {
		if (env->rank == 0 && (r = choose(&in, strategy, recompute, began, &kept, options, err)) < 0)
			return r;
		choice[0] = options->strategy;
		choice[1] = options->recompute;
		choice[2] = options->kept_blocks;
		choice[3] = options->kept_outputs;
		if (comm && (r = share(dev, comm, choice, sizeof(choice), err)) < 0)
			return r;
		options->strategy = (enum shard_strategy)choice[0];
		options->recompute = (enum model_recompute)choice[1];
		options->kept_blocks = (int)choice[2];
		options->kept_outputs = (int)choice[3];
		if (env->rank == 0)
			print_choice(options, strategy, recompute, kept);
	}
	in.options = options;
	return estimate_check(&in, err);
}

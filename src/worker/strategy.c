/* SPDX-License-Identifier: Apache-2.0 */
/* Lets rank 0 choose the strategy of a run, tries those that are about as fast, and refuses a run that does
 * not fit before it allocates. */
#include "worker/strategy.h"

#include <math.h>
#include <stdio.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "engine/checkpoint/ranks.h"
#include "engine/train/trainer.h"
#include "engine/train/trial.h"
#include "options/options.h"

/* The ratio of two strategies' times is rarely further from the predicted one than this. */
#define WITHIN 1.2
/* Trials take at most this part of the run's predicted time. */
#define TRIALS_PART 0.01
/* Of plans that differ by less, the one that is predicted to be faster. */
#define EQUAL 1.01
/* Plans within this of the fastest are tried once more; of both times the lower one counts. */
#define CLOSE 1.15

/* As it travels from rank 0 to the others. */
struct choice {
	int64_t strategy, recompute, kept_blocks, kept_outputs;
};
struct choices {
	int64_t trials;
	struct choice chosen, trial[CHOICES_MAX];
};

static struct choice choice_of(const struct train_options *o)
{
	return (struct choice){(int64_t)o->strategy, (int64_t)o->recompute, o->kept_blocks, o->kept_outputs};
}

static void take_choice(struct train_options *o, const struct choice *c)
{
	o->strategy = (enum shard_strategy)c->strategy;
	o->recompute = (enum model_recompute)c->recompute;
	o->kept_blocks = (int)c->kept_blocks;
	o->kept_outputs = (int)c->kept_outputs;
}

/* ---- choose ---- */

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

/* As many steps as the run still has, but for what an epoch that is gone on with at another batch changes. */
static double steps_left(const struct strategy_run *run, const struct train_options *o)
{
	int groups = run->env->world_size / train_sequence_degree(o);
	double batch = (double)(o->micro_batch * o->accumulation * groups), steps, done;

	if (o->max_steps > 0)
		return MAX((double)(o->max_steps - run->done), 0);
	steps = o->epochs * ceil((double)dataset_rows(run->train) / batch);
	done = run->examples >= 0 ? (double)run->examples / batch : (double)run->done;
	return MAX(steps - done, 0);
}

/* Whether what is tried may win more time than it takes. */
static bool is_worth(const struct strategy_run *run, const struct train_options *o,
                     const struct estimate *rivals, int n)
{
	double seconds = 0, left = steps_left(run, o) * rivals[0].cost.step;
	double parameters = (double)model_config_parameters(run->model);
	int64_t limit = run->config->resources.time_limit;

	if (o->distillation.teacher)
		parameters += (double)model_config_parameters(o->distillation.teacher);
	for (int i = 0; i < n; i++)
		seconds += 2 * trial_seconds(rivals[i].cost.step, parameters, run->env->world_size);
	if (limit > 0)
		left = MIN(left, (double)limit);
	return str_eq(run->config->parallel.trial, "always") || seconds <= TRIALS_PART * left;
}

/* On rank 0. */
static int find_trials(const struct strategy_run *run, const struct estimate_input *in, bool recompute,
                       struct choices *all, struct error *err)
{
	_cleanup_free_ struct estimate *rivals = calloc(CHOICES_MAX, sizeof(*rivals));
	struct train_options o = *in->options;
	int n;

	if (!rivals)
		return error_oom(err);
	if ((n = choose_rivals(in, recompute, WITHIN, rivals, err)) < 0)
		return n;
	if (n < 2 || !is_worth(run, &o, rivals, n))
		return 0;
	for (int i = 0; i < n; i++) {
		choose_take(&rivals[i], &o);
		all->trial[i] = choice_of(&o);
	}
	all->trials = n;
	return 0;
}

static void print_strategy(const struct train_options *o, const struct strategy_trials *trials, bool kept)
{
	if (trials->n == 0) {
		printf("strategy: %s (auto: %s)\n", shard_strategy_name(o->strategy),
		       kept ? "as the checkpoint" : "the fastest that fits, as dtrain estimate has it");
		return;
	}
	printf("strategy: steps are tried with");
	for (int i = 0; i < trials->n; i++)
		printf("%s %s", i > 0 ? "," : "", shard_strategy_name(trials->options[i].strategy));
	puts("");
}

static void print_recompute(const struct train_options *o)
{
	const struct estimate e = {
	    .recompute = o->recompute, .kept = o->kept_blocks, .outputs = o->kept_outputs};
	char text[48];

	printf("recompute: %s (auto)\n", estimate_recompute_text(text, sizeof(text), &e));
}

static void read_rates(struct hardware_set *where, struct rates **rates)
{
	struct error unread = ERROR_INIT;
	char note[160];

	if (hardware_read_rates(&where->device, rates, &unread) < 0)
		printf("warning: %s; the table's rates count instead\n", unread.message);
	else if (*rates && *rates_version_note(*rates, note, sizeof(note)))
		printf("warning: %s\n", note);
	where->device.rates = *rates;
}

/* On rank 0: what there is to be chosen, and tried. */
static int decide(const struct strategy_run *run, const struct estimate_input *in, bool strategy,
                  bool recompute, bool *kept, struct choices *all, struct error *err)
{
	struct train_options o = *in->options;
	int r = choose(in, strategy, recompute, run->began, kept, &o, err);

	if (r < 0)
		return r;
	all->chosen = choice_of(&o);
	/* Steps of a policy cannot be tried without its rewards. */
	if (!strategy || *kept || in->options->policy.generations ||
	    str_eq(run->config->parallel.trial, "never"))
		return 0;
	return find_trials(run, in, recompute, all, err);
}

static void take_choices(const struct choices *all, struct train_options *options,
                         struct strategy_trials *trials)
{
	take_choice(options, &all->chosen);
	trials->n = (int)all->trials;
	for (int i = 0; i < trials->n; i++) {
		trials->options[i] = *options;
		take_choice(&trials->options[i], &all->trial[i]);
	}
}

int strategy_choose(const struct strategy_run *run, struct train_options *options,
                    struct strategy_trials *trials, struct error *err)
{
	const struct environment *env = run->env;
	int per_node = MAX(env->local_world_size, 1), nodes = MAX(env->world_size / per_node, 1), r;
	bool strategy = options_strategy_is_auto(run->config) && run->comm,
	     recompute = options_recompute_is_auto(run->config), kept = false;
	const struct ranks ranks = {run->dev, run->comm, env->node};
	struct train_options given = *options;
	_cleanup_free_ struct rates *rates = NULL;
	struct hardware_set where;
	struct estimate_input in = {run->model, &given,
	                            train_longest_row(options, run->model, run->train, run->eval), &where};
	struct choices all = {.chosen = choice_of(options)};

	choose_hardware(run->dev, nodes, per_node, &where);
	if ((strategy || recompute) && env->rank == 0) {
		read_rates(&where, &rates);
		if ((r = decide(run, &in, strategy, recompute, &kept, &all, err)) < 0)
			return r;
	}
	if ((strategy || recompute) && (r = ranks_broadcast(&ranks, NULL, &all, sizeof(all), 0, err)) < 0)
		return r;
	take_choices(&all, options, trials);
	if (env->rank == 0 && strategy)
		print_strategy(options, trials, kept);
	if (env->rank == 0 && recompute && trials->n == 0)
		print_recompute(options);
	in.options = options;
	return estimate_check(&in, err);
}

/* ---- try ---- */

static int best_of(const double *seconds, int n)
{
	int best = 0;

	for (int i = 1; i < n; i++)
		if (seconds[i] * EQUAL < seconds[best])
			best = i;
	return best;
}

static int try_one(const struct strategy_run *run, const struct train_options *o, double *seconds,
                   struct error *err)
{
	int r = trial_run(run->dev, run->comm, run->model, o, run->train, run->eval, seconds, err);

	return r < 0 ? error_prefix(err, "trying %s (parallel.trial = \"never\" leaves this out)",
	                            shard_strategy_name(o->strategy))
	             : 0;
}

static void print_trials(const struct strategy_trials *trials, const double *seconds, int best)
{
	printf("strategy: %s (auto: the fastest of", shard_strategy_name(trials->options[best].strategy));
	for (int i = 0; i < trials->n; i++)
		printf("%s %s %.4g ms", i > 0 ? "," : "", shard_strategy_name(trials->options[i].strategy),
		       seconds[i] * 1e3);
	puts(" a step)");
}

int strategy_try(const struct strategy_run *run, const struct strategy_trials *trials,
                 struct train_options *options, struct error *err)
{
	double seconds[CHOICES_MAX], again, limit;
	int best, r;

	for (int i = 0; i < trials->n; i++)
		if ((r = try_one(run, &trials->options[i], &seconds[i], err)) < 0)
			return r;
	/* In the other order, since what else happens on the machines takes its time, too. */
	limit = CLOSE * seconds[best_of(seconds, trials->n)];
	for (int i = trials->n - 1; i >= 0; i--) {
		if (seconds[i] > limit)
			continue;
		if ((r = try_one(run, &trials->options[i], &again, err)) < 0)
			return r;
		seconds[i] = MIN(seconds[i], again);
	}
	best = best_of(seconds, trials->n);
	*options = trials->options[best];
	if (run->env->rank == 0)
		print_trials(trials, seconds, best);
	if (run->env->rank == 0 && options_recompute_is_auto(run->config))
		print_recompute(options);
	return 0;
}

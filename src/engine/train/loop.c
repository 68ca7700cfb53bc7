/* SPDX-License-Identifier: Apache-2.0 */
/* The training loop: optimizer steps, and between them the log, evaluations and checkpoints. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/train/internal.h"

/* Sums since the last report. Only the steps are timed: saving and evaluating are not training. */
struct interval {
	int64_t steps, tokens;
	int64_t losses; /* steps that have one */
	double seconds, loss, data, waited;
};

/* Fills in the times of a mean step since the last report, and the rank that computed longest. */
static void report_times(const struct interval *last, double *ranks, int n, struct train_log *log)
{
	double steps = (double)last->steps;
	int slowest = 0;

	log->step_seconds = last->seconds / steps;
	log->data_seconds = last->data / steps;
	log->communication_seconds = last->waited / steps;
	for (int i = 1; i < n; i++)
		if (ranks[i] > ranks[slowest])
			slowest = i;
	log->slowest_rank = n > 1 && ranks[slowest] > 0 ? slowest : -1;
	log->slowest_seconds = ranks[slowest] / steps;
	memset(ranks, 0, (size_t)n * sizeof(*ranks));
}

/* Whether something comes between a step and the next for which no other may be in work. */
static bool is_pause(const struct trainer *t, int64_t step)
{
	return step == t->total_steps || trainer_due(step, t->o.save_steps) ||
	       (t->eval && trainer_due(step, t->o.eval_steps));
}

static int begin_step(struct trainer *t, const struct train_callbacks *cb, struct error *err)
{
	t->asks = cb->should_stop && cb->should_stop(cb->context);
	return trainer_begin_step(t, err);
}

/* Behind a step that is the last one because the next has not begun: what was done since the last checkpoint
 * is saved. `from`: the step at which the process began. */
static int stop_between(struct trainer *t, const struct train_callbacks *cb, int64_t from, struct error *err)
{
	int r = t->step == from || !cb->on_save ? 0 : cb->on_save(cb->context, t->step, true, err);

	if (r == 0)
		r = shard_settle(t->plan->shard, err);
	return r < 0 ? r : 1;
}

/* Begins the step that is ended next, and where that need not end before it, the one behind it: the device
 * then has work while the host reads, and reports, what the first has given. */
static int begin_steps(struct trainer *t, const struct train_callbacks *cb, struct error *err)
{
	int r = t->begun == t->step ? begin_step(t, cb, err) : 0;

	if (r == 0 && trainer_runs_ahead(t) && !t->stop && !is_pause(t, t->step + 1))
		r = begin_step(t, cb, err);
	return r;
}

/* The mean time of a step. The first step of the process, which fills the caches, is left out. */
static double seconds_per_step(const struct interval *all, double first)
{
	return all->steps > 1 ? (all->seconds - first) / (double)(all->steps - 1) : first;
}

static int run(struct trainer *t, const struct train_callbacks *cb, struct error *err)
{
	double began = clock_monotonic(), first = 0;
	int64_t from = t->step;
	_cleanup_free_ double *ranks = calloc((size_t)t->world_size, sizeof(*ranks));
	struct interval all = {0}, last = {0};
	int r;

	if (!ranks)
		return error_oom(err);

	t->stop = false;
	while (t->step < t->total_steps) {
		bool end, save, eval, stop;
		struct train_log log;

		r = begin_steps(t, cb, err);
		if (r == 1)
			return stop_between(t, cb, from, err);
		if (r < 0 || (r = trainer_end_step(t, &log, err)) < 0)
			return r;
		/* Completions are not saved: a run goes on where the next ones are made. */
		stop = t->stop && t->begun == t->step && t->step % trainer_iterations(t) == 0;
		first = all.steps == 0 ? log.step_seconds : first;
		for (int i = 0; i < 2; i++) {
			struct interval *in = i ? &all : &last;

			in->steps++;
			in->tokens += log.step_tokens;
			in->seconds += log.step_seconds;
			in->losses += !isnan(log.loss);
			in->loss += isnan(log.loss) ? 0 : log.loss;
			in->data += log.data_seconds;
			in->waited += log.communication_seconds;
		}
		for (int i = 0; i < t->world_size; i++)
			ranks[i] += trainer_rank_seconds(t)[i];
		end = t->step == t->total_steps;
		save = !end && (trainer_due(t->step, t->o.save_steps) || stop);
		eval = trainer_has_evaluation(t, t->step);
		if (eval) {
			if ((r = trainer_evaluate(t, &log.eval_loss, log.eval_metrics, err)) < 0)
				return r;
			log.has_eval = r == 0;
		}
		if (cb->on_log && trainer_has_log(t, t->step)) {
			log.loss_mean = last.loss / (double)last.losses;
			log.tokens_per_second = last.seconds > 0 ? (double)last.tokens / last.seconds : 0;
			log.eta_seconds = (double)(t->total_steps - t->step) * seconds_per_step(&all, first);
			log.seconds = clock_monotonic() - began;
			report_times(&last, ranks, t->world_size, &log);
			last = (struct interval){0};
			if ((r = cb->on_log(cb->context, &log, err)) < 0)
				return r;
		}
		if (cb->on_step && (r = cb->on_step(cb->context, err)) < 0)
			return r;
		if (save && cb->on_save && (r = cb->on_save(cb->context, t->step, stop, err)) < 0)
			return r;
		if (stop && !end) {
			r = shard_settle(t->plan->shard, err);
			return r < 0 ? r : 1;
		}
	}
	return shard_settle(t->plan->shard, err);
}

int trainer_run(struct trainer *t, const struct train_callbacks *cb, struct error *err)
{
	int r;

	t->callbacks = cb;
	r = run(t, cb, err);
	t->callbacks = NULL;
	return r;
}

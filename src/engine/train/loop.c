/* SPDX-License-Identifier: Apache-2.0 */
/* The loop: steps, and what happens between them. */
#include "base/clock.h"
#include "engine/train/internal.h"

/* Since the last report. Only the steps themselves are timed: saving and evaluating are not training. */
struct interval {
	int64_t steps, tokens;
	double seconds, loss;
};

static bool due(int64_t step, int64_t every)
{
	return every > 0 && step % every == 0;
}

/* Steps differ (warm caches, short rows): the mean of all but the first of this process. */
static double seconds_per_step(const struct interval *all, double first)
{
	return all->steps > 1 ? (all->seconds - first) / (double)(all->steps - 1) : first;
}

int trainer_run(struct trainer *t, const struct train_callbacks *cb, struct error *err)
{
	double began = clock_monotonic(), first = 0;
	struct interval all = {0}, last = {0};
	int r;

	while (t->step < t->total_steps) {
		double start = clock_monotonic(), seconds;
		bool end, save, eval;
		struct train_log log;

		t->stop = cb->should_stop && cb->should_stop(cb->context);
		if ((r = trainer_run_step(t, &log, err)) < 0)
			return r;
		seconds = clock_monotonic() - start;
		first = all.steps == 0 ? seconds : first;
		for (int i = 0; i < 2; i++) {
			struct interval *in = i ? &all : &last;

			in->steps++;
			in->tokens += log.step_tokens;
			in->seconds += seconds;
			in->loss += log.loss;
		}
		end = t->step == t->total_steps;
		save = !end && (due(t->step, t->o.save_steps) || t->stop);
		eval =
		    t->eval && (end || (t->o.eval_steps ? due(t->step, t->o.eval_steps) : save && !t->stop));
		if (eval) {
			if ((r = trainer_evaluate(t, &log.eval_loss, err)) < 0)
				return r;
			log.has_eval = true;
		}
		if (cb->on_log && (eval || end || t->step == 1 || due(t->step, t->o.log_steps))) {
			log.loss_mean = last.loss / (double)last.steps;
			log.tokens_per_second = last.seconds > 0 ? (double)last.tokens / last.seconds : 0;
			log.eta_seconds = (double)(t->total_steps - t->step) * seconds_per_step(&all, first);
			log.seconds = clock_monotonic() - began;
			last = (struct interval){0};
			if ((r = cb->on_log(cb->context, &log, err)) < 0)
				return r;
		}
		if (save && cb->on_save && (r = cb->on_save(cb->context, t->step, t->stop, err)) < 0)
			return r;
		if (t->stop && !end)
			return 1;
	}
	return 0;
}

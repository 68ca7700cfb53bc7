/* SPDX-License-Identifier: Apache-2.0 */
/* One optimizer step, and one evaluation. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "engine/optim/optimizer.h"
#include "engine/train/internal.h"

/* A wait of the host that is longer than this was one for the device. */
#define HIDDEN_SECONDS 100e-6

/* Counts the targets and tokens of the global batch. Every rank knows them without communication: they follow
 * from the sampler and the lengths of the rows. */
static void count_batch(struct trainer *t, struct train_work *w)
{
	int64_t n = (int64_t)t->groups * t->o.accumulation * t->o.micro_batch;

	w->targets = w->tokens = 0;
	sampler_step_all(&t->sampler, t->begun, t->all_rows);
	for (int64_t i = 0; i < n; i++) {
		struct dataset_row row;

		if (t->all_rows[i] < 0)
			continue;
		dataset_row(t->train, t->all_rows[i], &row);
		w->targets += row.counted;
		w->tokens += row.length;
	}
}

static size_t sums_bytes(const struct trainer *t)
{
	return plan_sums(t->plan) * sizeof(*t->sums);
}

/* ---- the model's hooks: a unit's buffers come and go ---- */

static int need_unit(void *context, int unit, enum model_phase phase, struct error *err)
{
	struct trainer *t = context;
	struct shard *s = t->plan->shard;
	int r;

	if ((r = shard_need(s, unit, phase, err)) < 0 ||
	    (phase == MODEL_BACKWARD && (r = shard_need_gradients(s, unit, err)) < 0))
		return r;
	model_set_unit(t->plan->model, unit, s->unit[unit].weights, s->unit[unit].gradients);
	return 0;
}

static void done_with_unit(void *context, int unit, enum model_phase phase)
{
	struct trainer *t = context;

	shard_done(t->plan->shard, unit, phase);
}

static void reduce_unit(void *context, int unit)
{
	struct trainer *t = context;

	shard_gradients(t->plan->shard, unit);
}

static void reduce_head(void *context, int unit)
{
	struct trainer *t = context;

	shard_head_gradients(t->plan->shard, unit);
}

static bool gather_rows(void *context, const void *d_out)
{
	struct trainer *t = context;

	return shard_embedding_rows(t->plan->shard, d_out);
}

/* An all_to_all of the ranks of this group. */
static int exchange(void *context, void *out, const void *in, int64_t count, enum dtype type,
                    struct error *err)
{
	struct trainer *t = context;

	return comm_wait(t->sequence, comm_all_to_all(t->sequence, out, in, count, type), err);
}

void trainer_set_hooks(struct trainer *t)
{
	struct model_hooks hooks = {t,           need_unit,   done_with_unit, reduce_unit,
	                            reduce_head, gather_rows, exchange};

	model_set_hooks(t->plan->model, &hooks);
	if (t->plan->frozen.model)
		model_set_hooks(t->plan->frozen.model,
		                &(struct model_hooks){.context = t, .exchange = exchange});
}

/* ---- the step ---- */

static bool has_rows(const int64_t *rows, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		if (rows[i] >= 0)
			return true;
	return false;
}

/* The last micro-step that has rows: of this rank; of any rank where all have to run the same passes. */
static int64_t last_micro_step(struct trainer *t)
{
	bool all = shard_in_step(t->plan->shard) || trainer_prefers_together(t);
	int64_t n = t->o.micro_batch * (all ? t->groups : 1), last = 0;

	if (trainer_has_policy(t))
		return policy_last(t, false, all);
	for (int64_t a = 0; a < t->o.accumulation; a++)
		if (has_rows((all ? t->all_rows : t->rows) + a * n, n))
			last = a;
	return last;
}

/* The tokens of a rank in the micro-step in which its rows are gathered: in its last one that has any or,
 * where all ranks run the same passes, in the last of these, in which this one may have none. */
static int64_t gather_last(const struct trainer *t, int rank, int64_t last, int32_t *ids)
{
	int64_t batch = t->o.micro_batch, tokens = 0, a = last;
	const int64_t *rows = t->all_rows + (a * t->world_size + rank) * batch;

	if (!trainer_prefers_together(t))
		for (a = t->o.accumulation - 1; a >= 0; a--) {
			rows = t->all_rows + (a * t->world_size + rank) * batch;
			if (has_rows(rows, batch))
				break;
		}
	for (int64_t i = 0; i < batch; i++) {
		struct dataset_row row;

		if (rows[i] < 0)
			continue;
		dataset_row(t->train, rows[i], &row);
		memcpy(ids + tokens, row.ids, (size_t)row.length * sizeof(*ids));
		tokens += row.length;
	}
	return tokens;
}

/* What the other ranks' embeddings read last, where the rows of their gradients travel by themselves. */
static void gather_ids(struct trainer *t, int64_t last)
{
	int64_t each = t->o.micro_batch * t->max_row;

	if (!shard_gathers_rows(t->plan->shard))
		return;
	for (int r = 0; r < t->world_size; r++)
		t->rank_tokens[r] = gather_last(t, r, last, t->rank_ids + r * each);
	shard_set_rows(t->plan->shard, t->rank_tokens, t->rank_ids);
}

static int gather_batch(struct trainer *t, int64_t micro_step, struct model_batch *b, struct error *err)
{
	int64_t batch = t->o.micro_batch;
	const int64_t *rows = t->rows + micro_step * batch;

	if (trainer_has_policy(t))
		return policy_micro_batch(t, micro_step, b, err);
	trainer_gather(t, t->train, rows, batch, b);
	if (trainer_prefers(t))
		preference_set_batch(t, t->train, rows, batch, b);
	return 0;
}

/* Runs all micro-steps of this rank. The sums of the gradients over the ranks begin during the backward pass
 * of the last micro-step that has rows, or, with sharded gradients, during that of each. */
static int accumulate(struct trainer *t, struct train_work *w, float scale, struct error *err)
{
	bool in_step = shard_in_step(t->plan->shard) || trainer_prefers_together(t);
	bool each = shard_reduces_each(t->plan->shard);
	struct model_batch b;
	int64_t last;
	bool first = true;
	double begun;
	int r;

	if (!trainer_has_policy(t))
		sampler_step(&t->sampler, t->begun, t->rows);
	last = last_micro_step(t);
	begun = clock_monotonic();
	gather_ids(t, last);
	w->data_seconds += clock_monotonic() - begun;
	for (int64_t a = 0; a <= last; a++) {
		begun = clock_monotonic();
		if ((r = gather_batch(t, a, &b, err)) < 0)
			return error_prefix(err, "step %lld", (long long)w->step);
		b.number = (t->begun * t->o.accumulation + a) * t->groups + t->group;
		/* Else all rows that were ever read would count as memory of the rank, which no plan has. */
		dataset_release(t->train);
		w->data_seconds += clock_monotonic() - begun;
		/* A rank whose only micro-batch is empty has to take part in the reductions, too. */
		if (b.tokens == 0 && a < last && !in_step)
			continue;
		shard_micro_step(t->plan->shard, first, a == last);
		r = model_forward_backward(t->plan->model, &b, scale, first || each,
		                           &t->plan->sums[PLAN_SUM_LOSS], err);
		if (r < 0)
			return error_prefix(err, "step %lld", (long long)w->step);
		first = false;
	}
	return 0;
}

/* Starts the sum of loss, stop flag and times over the ranks, which follows those of the gradients, together
 * with the last of these. */
static comm_ticket share_sums(struct trainer *t)
{
	int64_t n = PLAN_SUM_RANKS - PLAN_SUM_LOSS + t->world_size;
	comm_ticket ticket;

	if (t->world_size == 1)
		return 0;
	ticket =
	    comm_all_reduce_f64(t->comm, &t->plan->sums[PLAN_SUM_LOSS], n + trainer_more_sums(t), COMM_SUM);
	comm_group_end(t->comm);
	return ticket;
}

/* Puts in what this rank adds to the sums: its stop flag, and the time of its last step in its own place. The
 * places of the other ranks are 0. */
static void prepare_sums(struct trainer *t, struct train_work *w)
{
	memset(w->sums, 0, sums_bytes(t));
	w->sums[PLAN_SUM_STOP] = t->asks ? 1 : 0;
	w->sums[PLAN_SUM_RANKS + t->rank] = t->busy;
}

double trainer_waited(const struct trainer *t)
{
	double seconds = shard_waited_seconds(t->plan->shard);

	return t->sequence ? seconds + comm_waited_seconds(t->sequence) : seconds;
}

/* Measures a step that has ended, from when it began or the one before it had ended: its time, and how long
 * it waited for data and for other ranks. */
static void measure(struct trainer *t, const struct train_work *w, struct train_log *log)
{
	double waited = trainer_waited(t), now = clock_monotonic();

	log->step_seconds = now - MAX(w->begun, t->ended_at);
	log->data_seconds = w->data_seconds;
	log->communication_seconds = waited - t->waited;
	log->slowest_rank = -1;
	t->waited = waited;
	t->ended_at = now;
	t->busy = log->step_seconds - log->communication_seconds;
}

static struct optimizer_options optimizer_options_at(const struct trainer *t)
{
	const struct train_options *o = &t->o;
	int64_t done = t->begun - t->scaler.skipped;

	return (struct optimizer_options){
	    .learning_rate = schedule_rate(&t->schedule, done + t->schedule_lead),
	    .embedding_rate = o->embedding_rate > 0 ? o->embedding_rate / o->learning_rate : 1,
	    .value_rate = o->value_rate > 0 ? o->value_rate / o->learning_rate : 1,
	    .plus_ratio = o->plus_ratio > 0 ? o->plus_ratio : 1,
	    .beta1 = o->beta1,
	    .beta2 = o->beta2,
	    .epsilon = o->epsilon,
	    .weight_decay = o->weight_decay,
	    .momentum = o->momentum,
	    .nesterov = o->nesterov,
	    .decay_all = o->decay_all,
	    .clip = o->clip,
	    .loss_scale = o->precision == DTYPE_F16 ? (float)t->scaler.scale : 1,
	    .step = done + 1,
	    .seed = o->seed};
}

/* The optimizer has skipped the step where the norm is not finite; the ranks have the same norm. */
static int count_overflow(struct trainer *t, struct train_log *log, struct error *err)
{
	bool overflow = !isfinite(log->grad_norm);
	int r;

	log->loss_scale = t->scaler.scale;
	if (overflow) {
		log->grad_norm = NAN;
		log->loss = isfinite(log->loss) ? log->loss : NAN;
	}
	r = loss_scaler_update(&t->scaler, overflow, err);
	log->skipped = t->scaler.skipped;
	if (r == 0 && !overflow && !isfinite(log->loss))
		r = error_set(err, -EDOM, "the loss, %g, is not finite", log->loss);
	return r < 0 ? error_prefix(err, "step %lld", (long long)t->step) : 0;
}

/* What the gradients of the tokens' losses are multiplied with, beside their factors where they have some. */
static float gradient_scale(const struct trainer *t, int64_t targets, float loss_scale)
{
	if (trainer_weighs(t))
		return loss_scale;
	return targets ? (float)((double)loss_scale / (double)targets) : 0;
}

bool trainer_runs_ahead(const struct trainer *t)
{
	return device_runs_behind(t->dev) && !trainer_has_policy(t) && t->o.precision != DTYPE_F16 &&
	       t->o.offload == SHARD_OFFLOAD_NONE;
}

/* Queues the micro-steps, the optimizer and the sums. */
static int queue_step(struct trainer *t, struct train_work *w, const struct optimizer_options *options,
                      struct error *err)
{
	struct optimizer_work work = {.sum_squares = &t->plan->sums[PLAN_SUM_SQUARES],
	                              .scale = &t->plan->clip[0],
	                              .norm = &t->plan->clip[1]};
	comm_ticket ticket;
	int r;

	if ((r = device_write(t->dev, t->plan->sums, w->sums, sums_bytes(t), err)) < 0 ||
	    (r = accumulate(t, w, gradient_scale(t, w->targets, options->loss_scale), err)) < 0 ||
	    (trainer_weighs(t) && (r = device_write(t->dev, trainer_device_sums(t), trainer_host_sums(t),
	                                            (size_t)trainer_more_sums(t) * sizeof(double), err)) < 0))
		return r;
	ticket = share_sums(t);
	if ((r = optimizer_step(t->plan->optimizer, options, &work, err)) < 0)
		return r;
	model_weights_changed(t->plan->model);
	if (ticket && (r = comm_wait(t->comm, ticket, err)) < 0)
		return r;
	device_transfer(t->dev, DEVICE_TO_HOST, w->sums, t->plan->sums, sums_bytes(t), w->read);
	return 0;
}

int trainer_begin_step(struct trainer *t, struct error *err)
{
	struct optimizer_options options = optimizer_options_at(t);
	struct train_work *w = &t->work[t->begun % 2];
	int r;

	plan_choose_sums(t->plan, (int)(t->begun % 2));
	w->begun = clock_monotonic();
	w->step = t->begun + 1;
	w->rate = options.learning_rate;
	if (t->begun == t->step)
		t->waited = trainer_waited(t);
	if (trainer_has_policy(t)) {
		if ((r = policy_begin(t, w, err)) != 0)
			return r < 0 ? error_prefix(err, "step %lld", (long long)w->step) : r;
	} else {
		count_batch(t, w);
	}
	dataset_release(t->train);
	w->data_seconds = trainer_has_policy(t) ? 0 : clock_monotonic() - w->begun;
	prepare_sums(t, w);
	if (trainer_prefers(t))
		preference_begin(t);
	if ((r = queue_step(t, w, &options, err)) == 0)
		t->begun++;
	return r;
}

static int check_finite(const struct train_log *log, struct error *err)
{
	if (isfinite(log->loss) && isfinite(log->grad_norm))
		return 0;
	return error_set(
	    err, -EDOM,
	    "step %lld: loss %g and gradient norm %g are not finite; a lower learning_rate, clip or "
	    "a longer warm-up would help",
	    (long long)log->step, log->loss, log->grad_norm);
}

int trainer_end_step(struct trainer *t, struct train_log *log, struct error *err)
{
	struct train_work *w = &t->work[t->step % 2];
	const float *clip = (const float *)(w->sums + plan_sums(t->plan) - 1);
	double waits = clock_monotonic();
	int r;

	if ((r = device_event_finish(t->dev, w->read, err)) < 0 || (r = trainer_check_comm(t, err)) < 0)
		return r;
	/* Where the host has waited here, the step behind this one was queued in time: its data cost nothing.
	 */
	if (t->begun > w->step && clock_monotonic() - waits > HIDDEN_SECONDS)
		t->work[w->step % 2].data_seconds = 0;
	t->sums = w->sums;
	t->step = w->step;
	t->tokens += w->tokens;
	t->stop = t->stop || w->sums[PLAN_SUM_STOP] > 0;
	*log = (struct train_log){.step = w->step,
	                          .steps = t->total_steps,
	                          .epoch = sampler_epochs(&t->sampler, w->step / trainer_iterations(t)),
	                          .loss = w->targets ? w->sums[PLAN_SUM_LOSS] / (double)w->targets : 0,
	                          .learning_rate = w->rate,
	                          .grad_norm = (double)clip[1],
	                          .tokens = t->tokens,
	                          .step_tokens = w->tokens};
	if (trainer_prefers(t)) {
		const double *sums = w->sums + PLAN_SUM_RANKS + t->world_size;

		log->loss = preference_mean_loss(&t->o.preference, sums);
		log->metric_count = preference_metrics(&t->o.preference, sums, log->metrics);
	} else if (trainer_has_policy(t)) {
		const double *sums = w->sums + PLAN_SUM_RANKS + t->world_size;

		log->loss = sums[POLICY_SUM_LOSS];
		log->metric_count = trainer_policy_metrics(t, sums, t->policy.seconds, log->metrics);
	}
	measure(t, w, log);
	return t->o.precision == DTYPE_F16 ? count_overflow(t, log, err) : check_finite(log, err);
}

int trainer_run_step_ahead(struct trainer *t, bool more, struct train_log *log, struct error *err)
{
	int r = t->begun == t->step ? trainer_begin_step(t, err) : 0;

	if (r == 0 && more && trainer_runs_ahead(t))
		r = trainer_begin_step(t, err);
	return r != 0 ? r : trainer_end_step(t, log, err);
}

int trainer_run_step(struct trainer *t, struct train_log *log, struct error *err)
{
	return trainer_run_step_ahead(t, false, log, err);
}

int trainer_evaluate(struct trainer *t, double *loss, struct preference_metric *metrics, struct error *err)
{
	int64_t rows = t->eval ? dataset_rows(t->eval) : 0, targets = 0, at = t->group;
	int64_t all = t->groups * t->o.micro_batch;
	double *sum = &t->plan->sums[PLAN_SUM_LOSS], total = 0;
	struct model_batch b;
	int r;

	if (rows == 0)
		return error_set(err, -EINVAL, "there is no held-out evaluation split");
	if (trainer_prefers(t))
		return preference_evaluate(t, loss, metrics, err);
	if (trainer_has_policy(t)) {
		*loss = NAN;
		return policy_evaluate(t, metrics, err);
	}
	for (int64_t i = 0; i < rows; i++)
		targets += dataset_row_counted(t->eval, i);
	if ((r = device_write(t->dev, sum, &total, sizeof(total), err)) < 0)
		return r;
	/* As many passes on each rank: the last may have no row on some. */
	for (int64_t done = 0; done < rows; done += all) {
		int64_t n = 0;

		for (; n < t->o.micro_batch && at < rows; at += t->groups)
			t->rows[n++] = at;
		trainer_gather(t, t->eval, t->rows, n, &b);
		if ((r = model_evaluate(t->plan->model, &b, sum, NULL, err)) < 0)
			return error_prefix(err, "evaluation");
	}
	if (t->world_size > 1 &&
	    (r = comm_wait(t->comm, comm_all_reduce_f64(t->comm, sum, 1, COMM_SUM), err)) < 0)
		return r;
	if ((r = device_read(t->dev, &total, sum, sizeof(total), err)) < 0 ||
	    (r = trainer_check_comm(t, err)) < 0)
		return r;
	*loss = targets ? total / (double)targets : 0;
	return 0;
}

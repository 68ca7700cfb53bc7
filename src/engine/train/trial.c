/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of a plan, for the time that they take. */
#include "engine/train/trial.h"

#include <math.h>
#include <stdlib.h>

#include "engine/checkpoint/ranks.h"
#include "engine/train/internal.h"
#include "engine/train/measure.h"

/* Steps before those that are timed, and the fewest that are; more of short ones, for so many seconds. */
enum { WARM = 2, STEPS_LEAST = 5, STEPS_MOST = 100 };
#define STEPS_SECONDS 0.25

/* Seconds of a trial beside its steps; for each rank to which communicators are made; for each parameter that
 * a rank writes. */
#define SET_UP  0.5
#define CONNECT 4e-3
#define FILL    4e-9

enum { PIECE = 1 << 20 };
#define RATE 1e-9

double trial_seconds(double step, double parameters, int ranks)
{
	return WARM * step + MAX(STEPS_LEAST * step, STEPS_SECONDS) + SET_UP + CONNECT * ranks +
	       FILL * parameters;
}

/* Matrices in 4 bits stay zero: they are quantized whole, which takes longer than the steps. */
static bool is_filled(const struct trainer *t, const struct model_parameter *p)
{
	return !t->plan->shard->unit[p->unit].packed;
}

/* Of a standard deviation of 0.02, as the weights of most models begin. They have to differ, because a GPU
 * multiplies zeros faster than other values; each piece has the same ones. */
static void fill_piece(float *piece, int64_t n, uint32_t x)
{
	for (int64_t i = 0; i < n; i++) {
		x = x * 1664525 + 1013904223;
		piece[i] = ((float)(x >> 8) / (1 << 24) - 0.5F) * 0.07F;
	}
}

/* Rows of a router that are the same would send all tokens to few experts. */
static void fill_router(float *piece, int64_t n, int64_t first)
{
	fill_piece(piece, n, (uint32_t)first * 2654435761u + 1);
}

_Static_assert((int)WHOLE_MODEL_PIECE <= (int)PIECE, "values has what the teacher's fill is asked for");

static int fill_teacher(void *values, const struct model_parameter *p, int64_t first, int64_t n, float *out,
                        struct error *err)
{
	if (p->role == PARAMETER_ROUTER)
		fill_router(out, n, first);
	else if (p->matrix)
		memcpy(out, values, (size_t)n * sizeof(*out));
	for (int64_t i = 0; i < n && !p->matrix; i++)
		out[i] = p->start;
	return 0;
}

static int fill(struct trainer *t, float *values, float *starts, struct error *err)
{
	const struct model_layout *layout = trainer_layout(t);
	int r = 0;

	fill_piece(values, PIECE, 1);
	if (trainer_frozen_model(t))
		r = whole_model_load(trainer_frozen_model(t), fill_teacher, values, err);
	for (int i = 0; i < layout->parameters && r == 0; i++) {
		const struct model_parameter *p = &layout->parameter[i];
		int64_t first, held = is_filled(t, p) ? trainer_held(t, p, &first) : 0, n;
		float start = p->part == PART_MAGNITUDE ? 1 : p->start;

		for (int64_t at = 0; at < MIN(held, PIECE) && !p->matrix; at++)
			starts[at] = start;
		for (int64_t at = 0; at < held && r == 0; at += n) {
			n = MIN(held - at, PIECE);
			if (p->role == PARAMETER_ROUTER)
				fill_router(values, n, first + at);
			r = trainer_write(t, STATE_WEIGHTS, p, first + at, n, p->matrix ? values : starts,
			                  err);
		}
	}
	return r < 0 ? r : trainer_set_step(t, 0, err);
}

/* The median of n steps, behind those that fill caches. */
static int run_steps(struct trainer *t, const struct ranks *ranks, double *seconds, struct error *err)
{
	double each[STEPS_MOST];
	struct train_log log;
	int64_t n = 0;
	int r;

	for (int i = 0; i < WARM; i++)
		if ((r = trainer_run_step(t, &log, err)) < 0)
			return r;
	n = (int64_t)MIN(ceil(STEPS_SECONDS / MAX(log.step_seconds, 1e-9)), STEPS_MOST);
	n = MAX(n, STEPS_LEAST);
	if ((r = ranks_broadcast(ranks, NULL, &n, sizeof(n), 0, err)) < 0)
		return r;
	for (int64_t i = 0; i < n; i++) {
		if ((r = trainer_run_step_ahead(t, i + 1 < n, &log, err)) < 0)
			return r;
		each[i] = log.step_seconds;
	}
	*seconds = measure_median(each, (size_t)n);
	return ranks_broadcast(ranks, NULL, seconds, sizeof(*seconds), 0, err);
}

static int await_others(struct comm *comm, struct error *err)
{
	int r = comm_wait(comm, comm_barrier(comm), err);

	return r < 0 ? r : comm_flush(comm, err);
}

/* comm: the trainer's own, whose memory is freed with it. */
static int run_trainer(struct device *dev, struct comm *comm, const struct model_config *c,
                       const struct train_options *o, const struct dataset *train, const struct dataset *eval,
                       double *seconds, struct error *err)
{
	_cleanup_(trainer_freep) struct trainer *t = NULL;
	_cleanup_free_ float *values = malloc(PIECE * sizeof(*values)),
	                     *starts = malloc(PIECE * sizeof(*starts));
	int r;

	if (!values || !starts)
		return error_oom(err);
	if ((r = trainer_create(dev, comm, c, o, train, eval, &t, err)) < 0 ||
	    (r = fill(t, values, starts, err)) < 0 ||
	    (r = run_steps(t, &(struct ranks){dev, comm, NULL}, seconds, err)) < 0 ||
	    (r = shard_settle(t->plan->shard, err)) < 0)
		return r;
	/* Others may still read this rank's memory. */
	return await_others(comm, err);
}

int trial_run(struct device *dev, struct comm *comm, const struct model_config *c,
              const struct train_options *options, const struct dataset *train, const struct dataset *eval,
              double *seconds, struct error *err)
{
	struct train_options o = *options;
	struct comm *own = NULL;
	int r;

	o.max_steps = WARM + STEPS_MOST;
	o.save_steps = o.eval_steps = 0;
	/* A step that overflows would be skipped, and take less time; weights that grow could end the run. */
	o.scaler.fixed = 1;
	o.learning_rate = RATE;
	o.min_learning_rate = 0;
	o.embedding_rate = MIN(o.embedding_rate, RATE);
	if ((r = comm_split(comm, 0, comm_rank(comm), &own, err)) < 0)
		return r;
	r = run_trainer(dev, own, c, &o, train, eval, seconds, err);
	comm_destroy(own);
	/* Memory that other ranks have had access to is free once they, too, have ended that. */
	return r < 0 ? r : await_others(comm, err);
}

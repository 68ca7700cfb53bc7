/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adafactor: the second moment of a matrix is the product of the means of its rows and of its columns, so
 * that it takes rows + cols values instead of rows · cols. A norm or bias of n elements has n rows of one
 * element, whose row means are the second moments themselves, and no columns; so has a matrix of one row or
 * column, where the product of both means over the mean of row means is the square of the element.
 *
 * Every rank keeps all means. A step:
 *
 *     sums of squares of this rank's elements, by row and column -> summed over the ranks
 *     means += (sums / count - means) · step^-0.8
 *     direction = gradient / sqrt(row mean · column mean / mean of row means)
 *     norms of the weights and of the direction                  -> summed over the ranks
 *     weights -= rate · max(0.001, rms(weights)) / max(1, rms(direction)) · direction
 *
 * Constants and the form of the step are torch.optim.Adafactor's.
 */
#include <float.h>
#include <math.h>
#include <string.h>

#include "engine/optim/internal.h"

#define DECAY_POWER (-0.8)
#define LEAST_RMS   1e-3
#define LEAST_MEAN  ((double)FLT_EPSILON)

/* Adds up what each rank has of its own part. */
static int add_over_ranks(struct optimizer *o, float *factors, struct error *err)
{
	struct shard *s = o->s;

	return s->degree > 1
	           ? comm_wait(s->reduce,
	                       comm_all_reduce(s->reduce, factors, o->factor_count, DTYPE_F32, COMM_SUM), err)
	           : 0;
}

static int sum_squares(struct optimizer *o, const float *grad_scale, struct error *err)
{
	struct shard *s = o->s;

	device_zero(s->dev, o->factor_sums, (size_t)o->factor_count * sizeof(float));
	for (int i = 0; i < o->layout->parameters; i++) {
		const struct model_parameter *p = &o->layout->parameter[i];
		struct own_range range = optimizer_parameter(s, p);
		struct device_factored f = {range.first, range.n, factor_row_length(p)};
		float *sums = o->factor_sums + o->factor_at[i];

		if (p->frozen)
			continue;
		if (range.n > 0)
			device_factor_sums(s->dev, &f, range.gradient, grad_scale, sums,
			                   factor_columns(p, sums));
	}
	return add_over_ranks(o, o->factor_sums, err);
}

/* The means of a parameter's rows and columns take up the sums of this step. */
static void update_means(struct optimizer *o, int i, double weight)
{
	const struct model_parameter *p = &o->layout->parameter[i];
	float *means = o->factors + o->factor_at[i], *sums = o->factor_sums + o->factor_at[i];
	int64_t rows = factor_rows(p), cols = factor_row_length(p);
	struct device_update h = {
	    .rule = DEVICE_MEAN, .beta1 = 1 - weight, .ratio = 1.0 / (double)cols, .step = 1};

	device_update(o->s->dev, NULL, NULL, DTYPE_F32, sums, means, NULL, rows, NULL, &h);
	h.ratio = 1.0 / (double)rows;
	if (factor_divides(p))
		device_update(o->s->dev, NULL, NULL, DTYPE_F32, factor_columns(p, sums),
		              factor_columns(p, means), NULL, cols, NULL, &h);
}

/* Means, then the norms of the weights and the means of the row means. */
static int measure_weights(struct optimizer *o, double weight, struct error *err)
{
	/* All ranks have the same means: one of them contributes to the sum over the ranks. */
	bool contributes = o->s->degree == 1 || o->s->o.rank % o->s->degree == 0;
	int r;

	optimizer_sums_start(o);
	for (int i = 0; i < o->layout->parameters; i++) {
		const struct model_parameter *p = &o->layout->parameter[i];
		struct own_range range = optimizer_parameter(o->s, p);

		if (p->frozen)
			continue;
		update_means(o, i, weight);
		if (contributes)
			device_sum(o->s->dev, o->factors + o->factor_at[i], factor_rows(p), &o->sums[2 * i]);
		optimizer_sum_weights(o, &range, &o->sums[2 * i + 1]);
	}
	if ((r = optimizer_sums_finish(o, err)) < 0)
		return r;
	for (int i = 0; i < o->layout->parameters; i++) {
		const struct model_parameter *p = &o->layout->parameter[i];

		if (p->frozen)
			continue;
		o->row_means[i] = o->host_sums[2 * i] / (double)factor_rows(p);
		o->weights_rms[i] = sqrt(o->host_sums[2 * i + 1] / (double)p->count);
	}
	return 0;
}

/* What the product of both means of an element is multiplied by. The least mean is PyTorch's: below it, the
 * mean of the only row, or column, of a matrix is not divided out. */
static double mean_factor(const struct optimizer *o, int i)
{
	const struct model_parameter *p = &o->layout->parameter[i];
	double mean = o->row_means[i];

	return p->matrix ? (factor_divides(p) ? 1 : mean) / MAX(mean, LEAST_MEAN) : 1;
}

/* Writes the direction over the gradients, and sums its squares. */
static int make_directions(struct optimizer *o, const float *grad_scale, struct error *err)
{
	optimizer_sums_start(o);
	for (int i = 0; i < o->layout->parameters; i++) {
		const struct model_parameter *p = &o->layout->parameter[i];
		struct own_range range = optimizer_parameter(o->s, p);
		struct device_factored f = {range.first, range.n, factor_row_length(p)};
		float *means = o->factors + o->factor_at[i];

		if (p->frozen)
			continue;
		if (range.n == 0)
			continue;
		device_factor_direction(o->s->dev, &f, range.gradient, grad_scale, means,
		                        factor_columns(p, means), (float)mean_factor(o, i),
		                        (float)(LEAST_MEAN * LEAST_MEAN));
		device_sum_squares(o->s->dev, range.gradient, DTYPE_F32, range.n, &o->sums[2 * i]);
	}
	return optimizer_sums_finish(o, err);
}

int optimizer_adafactor(struct optimizer *o, const struct optimizer_options *options, const float *grad_scale,
                        struct error *err)
{
	int r;

	if ((r = sum_squares(o, grad_scale, err)) < 0 ||
	    (r = measure_weights(o, pow((double)options->step, DECAY_POWER), err)) < 0 ||
	    (r = make_directions(o, grad_scale, err)) < 0)
		return r;
	for (int i = 0; i < o->layout->parameters; i++) {
		const struct model_parameter *p = &o->layout->parameter[i];
		struct own_range range = optimizer_parameter(o->s, p);
		double rate = optimizer_rate(options, p);
		double direction_rms = sqrt(o->host_sums[2 * i] / (double)p->count);
		double step = MIN(rate, 1 / sqrt((double)options->step)) * MAX(LEAST_RMS, o->weights_rms[i]) /
		              MAX(1, direction_rms);

		if (p->frozen)
			continue;
		optimizer_update(o->s, &range, options, NULL,
		                 (struct device_update){.rule = DEVICE_APPLY,
		                                        .learning_rate = rate,
		                                        .weight_decay = optimizer_decay(options, p),
		                                        .ratio = rate > 0 ? step / rate : 0});
	}
	return 0;
}

/* ---- checkpoints ---- */

static int64_t means_here(const struct model_parameter *p, int64_t first, int64_t n)
{
	return MAX(MIN(factor_means(p) - first, n), 0);
}

int optimizer_read_factors(struct optimizer *o, const struct model_parameter *p, int64_t first, int64_t n,
                           float *out, struct error *err)
{
	int64_t here = means_here(p, first, n);

	memset(out, 0, (size_t)n * sizeof(*out));
	return here > 0
	           ? device_read(o->s->dev, out, o->factors + o->factor_at[p - o->layout->parameter] + first,
	                         (size_t)here * sizeof(*out), err)
	           : 0;
}

int optimizer_write_factors(struct optimizer *o, const struct model_parameter *p, int64_t first, int64_t n,
                            const float *in, struct error *err)
{
	int64_t here = means_here(p, first, n);

	return here > 0 ? device_write(o->s->dev, o->factors + o->factor_at[p - o->layout->parameter] + first,
	                               in, (size_t)here * sizeof(*in), err)
	                : 0;
}

int factors_loaded(struct optimizer *o, struct error *err)
{
	return add_over_ranks(o, o->factors, err);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the loss and its gradient, the greedy choice, and AdamW, in the way of test_device.c. */
#include "test_device_each.h"

START_TEST(cross_entropy)
{
	static const int64_t shapes[][2] = {{1, 1},    {3, 17},    {5, 65},    {20, 3001},
	                                    {3, 4096}, {2, 40000}, {2, 40003}, {1, 17000}};

	FOR_ALL for (size_t s = 0; s < COUNT(shapes) * 3; s++)
	{
		int64_t rows = shapes[s / 3][0], vocab = shapes[s / 3][1];
		bool backward = s % 3 > 0, weighted = s % 3 == 2; /* with a factor of each row */
		double *factors = test_values(rows, 3);
		float *bfactors = test_buffer(dev, factors, rows, DTYPE_F32);
		double *x = test_values(rows * vocab, 1), *loss = test_values(rows, 2), scale = 0.125;
		int32_t *targets = malloc((size_t)rows * sizeof(*targets)),
		        *best = malloc((size_t)rows * sizeof(*best)), *btargets, *bbest;
		void *bx;
		float *bl = test_buffer(dev, loss, rows, DTYPE_F32);

		for (int64_t i = 0; i < rows * vocab; i++)
			x[i] *= 4;
		bx = test_buffer(dev, x, rows * vocab, type);
		for (int64_t r = 0; r < rows; r++)
			targets[r] = r % 5 == 4 ? -100 : (int32_t)(r * 13 % vocab);
		btargets = test_put(dev, targets, (size_t)rows * sizeof(*targets));
		bbest = test_put(dev, targets, (size_t)rows * sizeof(*best));
		device_argmax(dev, bbest, bx, type, rows, vocab);
		test_fetch(dev, best, bbest, (size_t)rows * sizeof(*best));
		device_cross_entropy(dev, bx, type, btargets, rows, vocab, (float)scale,
		                     weighted ? bfactors : NULL, bl, backward);
		for (int64_t r = 0; r < rows; r++) {
			double *row = x + r * vocab, sum = 0, max = -INFINITY;
			int64_t first = 0;

			for (int64_t i = 0; i < vocab; i++) {
				if (row[i] > max) {
					max = row[i];
					first = i;
				}
			}
			ck_assert_int_eq(best[r], first);
			for (int64_t i = 0; i < vocab; i++)
				sum += exp(row[i] - max);
			loss[r] = targets[r] < 0 ? 0 : log(sum) + max - row[targets[r]];
			for (int64_t i = 0; backward && i < vocab; i++)
				row[i] = targets[r] < 0 ? 0
				                        : (exp(row[i] - max) / sum - (i == targets[r])) *
				                              scale * (weighted ? factors[r] : 1);
		}
		test_close(dev, "loss", bl, loss, rows, DTYPE_F32, 1e-6, 1);
		test_close(dev, "d_logits", bx, x, rows * vocab, type, test_tolerance(type),
		           backward ? 1e-6 : 0);
		device_free(dev, bx);
		device_free(dev, bl);
		device_free(dev, btargets);
		device_free(dev, bbest);
		device_free(dev, bfactors);
		free(factors);
		free(x);
		free(loss);
		free(targets);
		free(best);
	}
}
END_TEST

/* A cap, smoothing, the target's probability as a factor, and more than one of them. Nothing is plain
 * cross-entropy. */
START_TEST(variants_of_cross_entropy)
{
	static const struct device_loss variants[] = {
	    {.cap = 3},        {.cap = 0},   {.smoothing = 0.1f}, {.by_probability = true},
	    {3, 0.25f, false}, {3, 0, true}, {3, 0.1f, true}};
	static const int64_t shapes[][2] = {{1, 1}, {3, 17}, {5, 65}, {10, 3001}};

	FOR_ALL for (size_t s = 0; s < COUNT(shapes) * COUNT(variants) * 2; s++)
	{
		struct device_loss d = variants[s / 2 % COUNT(variants)];
		int64_t rows = shapes[s / 2 / COUNT(variants)][0], vocab = shapes[s / 2 / COUNT(variants)][1];
		bool backward = s & 1, weighted = rows != 5; /* with a factor of each row */
		double *x = test_values(rows * vocab, 1), *loss = test_values(rows, 2), scale = 0.125;
		double *factors = test_values(rows, 3);
		int32_t *targets = malloc((size_t)rows * sizeof(*targets)), *btargets;
		float *bl = test_buffer(dev, loss, rows, DTYPE_F32),
		      *bf = test_buffer(dev, factors, rows, DTYPE_F32);
		void *bx;

		for (int64_t i = 0; i < rows * vocab; i++)
			x[i] *= 4;
		bx = test_buffer(dev, x, rows * vocab, type);
		for (int64_t r = 0; r < rows; r++)
			targets[r] = r % 5 == 4 ? -100 : (int32_t)(r * 13 % vocab);
		btargets = test_put(dev, targets, (size_t)rows * sizeof(*targets));
		device_variant_cross_entropy(dev, &d, bx, type, btargets, rows, vocab, (float)scale,
		                             weighted ? bf : NULL, bl, backward);
		for (int64_t r = 0; r < rows; r++) {
			double *row = x + r * vocab, sum = 0, weight = targets[r] >= 0,
			       of_row = weight * scale;

			for (int64_t i = 0; i < vocab; i++)
				sum += exp(d.cap > 0 ? d.cap * tanh(row[i] / d.cap) : row[i]);
			if (d.by_probability && targets[r] >= 0)
				weight =
				    exp(d.cap > 0 ? d.cap * tanh(row[targets[r]] / d.cap) : row[targets[r]]) /
				    sum;
			of_row *= weight * (weighted ? factors[r] : 1);
			loss[r] = 0;
			for (int64_t i = 0; i < vocab; i++) {
				double h = d.cap > 0 ? tanh(row[i] / d.cap) : 0;
				double y = (d.cap > 0 ? d.cap * h : row[i]) - log(sum);
				double share = (double)d.smoothing / (double)vocab +
				               (i == targets[r]) * (1 - (double)d.smoothing);

				loss[r] -= weight * share * y;
				if (backward)
					row[i] = of_row * (exp(y) - share) * (1 - h * h);
			}
		}
		test_close(dev, "variant loss", bl, loss, rows, DTYPE_F32, 2e-6, 1);
		/* The cap multiplies the rounding errors of h; 1 - h² has those of 1, however small it is. */
		test_close(dev, "variant d_logits", bx, x, rows * vocab, type,
		           backward ? fmax(test_tolerance(type), 1e-5) : 0,
		           !backward   ? 0
		           : d.cap > 0 ? 2e-3
		                       : 1e-5);
		device_free(dev, bx);
		device_free(dev, bl);
		device_free(dev, bf);
		device_free(dev, btargets);
		free(x);
		free(loss);
		free(factors);
		free(targets);
	}
}
END_TEST

static double soft_cap(double x, double cap)
{
	return cap > 0 ? cap * tanh(x / cap) : x;
}

static double log_sum_exp(const double *x, int64_t n, double cap, double temperature)
{
	double max = -INFINITY, sum = 0;

	for (int64_t i = 0; i < n; i++)
		max = fmax(max, soft_cap(x[i], cap) / temperature);
	for (int64_t i = 0; i < n; i++)
		sum += exp(soft_cap(x[i], cap) / temperature - max);
	return max + log(sum);
}

/* The loss of a row of logits in float64, and where g is not NULL, its gradient. */
static double distillation_loss(const struct device_distillation *d, const double *x, const double *t,
                                int32_t target, int64_t vocab, double *g)
{
	int64_t both = vocab < d->teacher_vocab ? vocab : d->teacher_vocab;
	double temperature = d->temperature, weight = d->weight, divergence = 0;
	double all = log_sum_exp(x, vocab, d->cap, 1), student = log_sum_exp(x, both, d->cap, temperature),
	       teacher = log_sum_exp(t, both, d->teacher_cap, temperature);
	bool counts = target >= 0 && target < vocab;

	for (int64_t i = 0; i < vocab; i++) {
		double y = soft_cap(x[i], d->cap), h = d->cap > 0 ? tanh(x[i] / d->cap) : 0;
		double slope = (1 - weight) * (exp(y - all) - (i == target));

		if (i < both) {
			double q = y / temperature - student;
			double p = soft_cap(t[i], d->teacher_cap) / temperature - teacher;

			divergence += exp(p) > 0 ? exp(p) * (p - q) : 0;
			slope += weight * temperature * (exp(q) - exp(p));
		}
		if (g)
			g[i] = counts ? slope * (1 - h * h) : 0;
	}
	return counts ? (1 - weight) * (all - soft_cap(x[target], d->cap)) +
	                    weight * temperature * temperature * divergence
	              : 0;
}

/* Checks device_distillation with the logits x and the teacher's t, of `type`. */
static void check_distillation(struct device_distillation d, double *x, double *t, const int32_t *targets,
                               int64_t rows, int64_t vocab)
{
	double *loss = calloc((size_t)rows, sizeof(*loss)), scale = 0.125;
	double *g = malloc((size_t)(rows * vocab) * sizeof(*g)), tolerance = fmax(test_tolerance(type), 1e-5),
	       *after;
	void *bx = test_buffer(dev, x, rows * vocab, type),
	     *bt = test_buffer(dev, t, rows * d.teacher_vocab, type);
	float *bl = test_buffer(dev, loss, rows, DTYPE_F32);
	int32_t *btargets = test_put(dev, targets, (size_t)rows * sizeof(*targets));

	d.teacher = bt;
	device_distillation(dev, &d, bx, type, btargets, rows, vocab, (float)scale, bl);
	for (int64_t r = 0; r < rows; r++) {
		loss[r] = distillation_loss(&d, x + r * vocab, t + r * d.teacher_vocab, targets[r], vocab,
		                            g + r * vocab);
		for (int64_t i = 0; i < vocab; i++)
			g[r * vocab + i] *= scale;
	}
	/* The square of the temperature multiplies the errors of the divergence. */
	test_close(dev, "distillation loss", bl, loss, rows, DTYPE_F32, 2e-6,
	           1 + (double)(d.weight * d.temperature * d.temperature) / 4);
	/* The rounding errors are those of the probabilities, and with a cap those of 1 - h², however small
	 * the difference of the former or the latter is. */
	test_close(dev, "distillation d_logits", bx, g, rows * vocab, type, tolerance, 2e-8 / tolerance);
	after = test_fetch_values(dev, bt, rows * d.teacher_vocab, type);
	ck_assert_mem_eq(after, t, (size_t)(rows * d.teacher_vocab) * sizeof(*t));
	test_guard(dev, "the teacher's logits", bt, (size_t)(rows * d.teacher_vocab) * dtype_size(type));
	device_free(dev, bx);
	device_free(dev, bt);
	device_free(dev, bl);
	device_free(dev, btargets);
	free(loss);
	free(g);
	free(after);
}

static int32_t *distillation_targets(int64_t rows, int64_t vocab)
{
	int32_t *targets = malloc((size_t)rows * sizeof(*targets));

	for (int64_t r = 0; r < rows; r++)
		targets[r] = (int32_t)(r % 5 == 3   ? -100
		                       : r % 5 == 4 ? vocab
		                       : r % 5 == 2 ? vocab - 1
		                                    : r * 13 % vocab);
	return targets;
}

START_TEST(distillation)
{
	static const int64_t shapes[][3] = {{1, 1, 1},     {5, 17, 17},      {5, 65, 50},    {5, 37, 64},
	                                    {5, 530, 515}, {10, 3001, 2990}, {3, 2500, 3001}};
	static const float caps[][2] = {{0, 0}, {3, 0}, {0, 5}, {3, 5}}, weights[] = {0, 0.5f, 1},
	                   temperatures[] = {1, 0.7f, 2, 4};

	FOR_ALL for (size_t s = 0; s < COUNT(shapes); s++)
	{
		int64_t rows = shapes[s][0], vocab = shapes[s][1], teacher_vocab = shapes[s][2];
		int32_t *targets = distillation_targets(rows, vocab);

		/* Of the long rows, some of the combinations. */
		for (size_t c = 0; c < 48; c += vocab < 100 ? 1 : vocab < 1000 ? 5 : 7) {
			double *x = test_values(rows * vocab, 1), *t = test_values(rows * teacher_vocab, 2);
			struct device_distillation d = {.teacher_vocab = teacher_vocab,
			                                .weight = weights[c % 3],
			                                .temperature = temperatures[c / 3 % 4],
			                                .cap = caps[c / 12][0],
			                                .teacher_cap = caps[c / 12][1]};

			for (int64_t i = 0; i < rows * vocab; i++)
				x[i] *= 4;
			for (int64_t i = 0; i < rows * teacher_vocab; i++)
				t[i] *= 4;
			check_distillation(d, x, t, targets, rows, vocab);
			free(x);
			free(t);
		}
		free(targets);
	}
}
END_TEST

/* Logits whose exponentials are beyond fp32, and ids that are excluded by a logit of -infinity. */
START_TEST(distillation_of_large_logits)
{
	enum { ROWS = 5, VOCAB = 70, TEACHER_VOCAB = 66 };
	static const struct device_distillation cases[] = {
	    {.temperature = 0.7f, .weight = 0.5f},
	    {.temperature = 4, .weight = 1},
	    {.temperature = 1, .weight = 0},
	    {.temperature = 2, .weight = 0.5f, .cap = 30},
	    {.temperature = 2, .weight = 0.5f, .cap = 30, .teacher_cap = 50}};

	FOR_ALL for (size_t c = 0; c < COUNT(cases) * 3; c++)
	{
		struct device_distillation d = cases[c / 3];
		double *x = test_values(ROWS * VOCAB, 1), *t = test_values(ROWS * TEACHER_VOCAB, 2);
		int32_t *targets = distillation_targets(ROWS, VOCAB);

		d.teacher_vocab = TEACHER_VOCAB;
		for (int i = 0; i < ROWS * VOCAB; i++)
			x[i] = c % 3 == 2 ? x[i] - 1e4 : copysign(1e4, x[i]) + x[i];
		for (int i = 0; i < ROWS * TEACHER_VOCAB; i++)
			t[i] = c % 3 == 2 ? t[i] + 1e4 : copysign(1e4, t[i]) + t[i];
		/* All of the logits that both models have are far below those that only one of them has. */
		for (int r = 0; r < ROWS && c % 3 == 2; r++)
			for (int i = TEACHER_VOCAB; i < VOCAB; i++)
				x[r * VOCAB + i] += 2e4;
		for (int r = 0; r < ROWS && c % 3 == 1; r++)
			for (int i = 21; i < 55; i++)
				x[r * VOCAB + i] = t[r * TEACHER_VOCAB + i] = (double)-INFINITY;
		check_distillation(d, x, t, targets, ROWS, VOCAB);
		free(x);
		free(t);
		free(targets);
	}
}
END_TEST

/* The gradient is the slope of the loss. */
START_TEST(distillation_differences)
{
	enum { VOCAB = 23, TEACHER_VOCAB = 19 };
	static const int32_t targets[] = {7, 21}; /* one of them without a logit of the teacher's */

	threads = 1;
	setup();
	for (size_t k = 0; k < 8; k++) {
		double *x = test_values(VOCAB, 3), *t = test_values(TEACHER_VOCAB, 4), *g;
		struct device_distillation d = {.teacher_vocab = TEACHER_VOCAB,
		                                .weight = 0.25f,
		                                .temperature = k & 2 ? 2.5f : 0.5f,
		                                .cap = k & 4 ? 2 : 0,
		                                .teacher_cap = k & 4 ? 1.5f : 0};
		void *bx = test_buffer(dev, x, VOCAB, DTYPE_F32),
		     *bt = test_buffer(dev, t, TEACHER_VOCAB, DTYPE_F32);
		int32_t *btarget = test_put(dev, &targets[k & 1], sizeof(targets[0]));
		float *bl = test_put(dev, &(float){0}, sizeof(*bl));

		d.teacher = bt;
		device_distillation(dev, &d, bx, DTYPE_F32, btarget, 1, VOCAB, 1, bl);
		g = test_fetch_values(dev, bx, VOCAB, DTYPE_F32);
		for (int i = 0; i < VOCAB; i++) {
			double step = 1e-5, old = x[i], above, below;

			x[i] = old + step;
			above = distillation_loss(&d, x, t, targets[k & 1], VOCAB, NULL);
			x[i] = old - step;
			below = distillation_loss(&d, x, t, targets[k & 1], VOCAB, NULL);
			x[i] = old;
			ck_assert_double_eq_tol(g[i], (above - below) / (2 * step), 1e-6);
		}
		device_free(dev, bx);
		device_free(dev, bt);
		device_free(dev, btarget);
		device_free(dev, bl);
		free(x);
		free(t);
		free(g);
	}
	teardown();
}
END_TEST

/* With weight 0 the loss is cross-entropy. */
START_TEST(distillation_without_teacher)
{
	enum { ROWS = 5, VOCAB = 301, TEACHER_VOCAB = 299 };

	FOR_ALL
	{
		double *x = test_values(ROWS * VOCAB, 1), *t = test_values(ROWS * TEACHER_VOCAB, 2), *loss,
		       *g;
		int32_t *targets = distillation_targets(ROWS, VOCAB);
		int32_t *btargets = test_put(dev, targets, ROWS * sizeof(*targets));
		void *bx = test_buffer(dev, x, ROWS * VOCAB, type),
		     *bx2 = test_buffer(dev, x, ROWS * VOCAB, type),
		     *bt = test_buffer(dev, t, ROWS * TEACHER_VOCAB, type);
		float *bl = test_put(dev, (float[ROWS]){0}, ROWS * sizeof(*bl)),
		      *bl2 = test_put(dev, (float[ROWS]){0}, ROWS * sizeof(*bl));
		struct device_distillation d = {
		    .teacher = bt, .teacher_vocab = TEACHER_VOCAB, .temperature = 2};

		device_distillation(dev, &d, bx, type, btargets, ROWS, VOCAB, 0.5f, bl);
		device_cross_entropy(dev, bx2, type, btargets, ROWS, VOCAB, 0.5f, NULL, bl2, true);
		loss = test_fetch_values(dev, bl2, ROWS, DTYPE_F32);
		g = test_fetch_values(dev, bx2, ROWS * VOCAB, type);
		ck_assert_double_gt(loss[0], 0);
		test_close(dev, "loss of weight 0", bl, loss, ROWS, DTYPE_F32, 2e-6, 1);
		test_close(dev, "d_logits of weight 0", bx, g, ROWS * VOCAB, type,
		           fmax(test_tolerance(type), 1e-5), 1e-5);
		device_free(dev, bx);
		device_free(dev, bx2);
		device_free(dev, bt);
		device_free(dev, bl);
		device_free(dev, bl2);
		device_free(dev, btargets);
		free(x);
		free(t);
		free(g);
		free(loss);
		free(targets);
	}
}
END_TEST

START_TEST(not_a_number_survives)
{
	double x[40] = {0}, g[40] = {0};
	int32_t target = 3, *btarget;
	float loss = 0, host[40], *bx, *y, *bloss;

	threads = 1;
	setup();
	x[21] = NAN;
	bx = test_buffer(dev, x, 40, DTYPE_F32);
	y = test_buffer(dev, g, 20, DTYPE_F32);
	btarget = test_put(dev, &target, sizeof(target));
	bloss = test_put(dev, &loss, sizeof(loss));
	device_swiglu_forward(dev, y, bx, 1, 20, DTYPE_F32, NULL);
	test_fetch(dev, host, y, 20 * sizeof(float));
	ck_assert(isnan(host[1]) && !isnan(host[0]));
	device_cross_entropy(dev, bx, DTYPE_F32, btarget, 1, 40, 1, NULL, bloss, true);
	test_fetch(dev, host, bx, sizeof(host));
	test_fetch(dev, &loss, bloss, sizeof(loss));
	ck_assert(isnan(loss) && isnan(host[0]));
	device_free(dev, btarget);
	device_free(dev, bloss);
	device_free(dev, bx);
	device_free(dev, y);
	teardown();
}
END_TEST

START_TEST(adamw)
{
	static const int64_t sizes[] = {1, 17, 65, 20001};

	FOR_ALL for (size_t s = 0; s < COUNT(sizes) * 2; s++)
	{
		int64_t n = sizes[s / 2];
		enum dtype grad_type = s & 1 ? type : DTYPE_F32;
		double *p = test_values(n, 1), *g = test_values(n, 2), *m = test_values(n, 3),
		       *v = test_values(n, 4);
		double *copy = test_values(n, 5), norm_squares = 0, *bsquares, *master;
		float *bp = test_buffer(dev, p, n, DTYPE_F32), *bm, *bv, clip[2] = {0}, *bclip;
		double scale, norm;
		void *bg = test_buffer(dev, g, n, grad_type), *bc = test_buffer(dev, copy, n, type);
		struct device_adamw h = {.learning_rate = 1e-2,
		                         .beta1 = 0.9,
		                         .beta2 = 0.95,
		                         .epsilon = 1e-8,
		                         .weight_decay = 0.1,
		                         .step = 3,
		                         .width = s & 2 ? 7 : 0,
		                         .decayed = 3,
		                         .column = 5};

		for (int64_t i = 0; i < n; i++)
			v[i] *= v[i];
		bm = test_buffer(dev, m, n, DTYPE_F32);
		bv = test_buffer(dev, v, n, DTYPE_F32);
		bsquares = test_put(dev, &norm_squares, sizeof(norm_squares));
		bclip = test_put(dev, clip, sizeof(clip));
		device_sum_squares(dev, bg, grad_type, n, bsquares);
		device_clip_scale(dev, bsquares, 0.5f, 1, &bclip[0], &bclip[1]);
		test_fetch(dev, &norm_squares, bsquares, sizeof(norm_squares));
		test_fetch(dev, clip, bclip, sizeof(clip));
		scale = clip[0];
		norm = clip[1];
		ck_assert_double_eq_tol(scale, fmin(1, 0.5 / (sqrt(norm_squares) + 1e-6)), 1e-6);
		ck_assert_double_eq_tol(norm, sqrt(norm_squares), 1e-5 * norm);
		device_adamw(dev, bp, bc, type, bg, grad_type, bm, bv, n, &bclip[0], &h);
		for (int64_t i = 0; i < n; i++) { /* torch.optim.AdamW */
			double gi = g[i] * scale;

			if (h.width == 0 || (5 + i) % 7 < 3)
				p[i] *= 1 - (double)h.learning_rate * h.weight_decay;
			m[i] = h.beta1 * m[i] + (1 - (double)h.beta1) * gi;
			v[i] = h.beta2 * v[i] + (1 - (double)h.beta2) * gi * gi;
			p[i] -= h.learning_rate / (1 - pow(h.beta1, 3)) * m[i] /
			        (sqrt(v[i]) / sqrt(1 - pow(h.beta2, 3)) + h.epsilon);
		}
		test_close(dev, "adamw", bp, p, n, DTYPE_F32, 3e-6, 1);
		test_close(dev, "adamw m", bm, m, n, DTYPE_F32, 2e-6, 1);
		test_close(dev, "adamw v", bv, v, n, DTYPE_F32, 2e-6, 1e-3);
		master = test_fetch_values(dev, bp, n, DTYPE_F32);
		for (int64_t i = 0; i < n; i++)
			copy[i] = test_rounded(master[i], type);
		test_close(dev, "adamw copy", bc, copy, n, type, 0, 0);
		device_free(dev, bp);
		device_free(dev, bm);
		device_free(dev, bv);
		device_free(dev, bg);
		device_free(dev, bc);
		device_free(dev, bsquares);
		device_free(dev, bclip);
		free(master);
		free(p);
		free(g);
		free(m);
		free(v);
		free(copy);
	}
}
END_TEST

/* The norm of gradients whose loss was scaled is that without the scale, and clipping takes the scale away.
 * An overflow leaves weights, moments and gradients as they are, bit by bit. */
START_TEST(loss_scale)
{
	enum { N = 1003 };
	static const double overflows[] = {(double)INFINITY, -(double)INFINITY, (double)NAN};
	struct device_adamw h = {.learning_rate = 1e-2,
	                         .beta1 = 0.9,
	                         .beta2 = 0.95,
	                         .epsilon = 1e-8,
	                         .weight_decay = 0.1,
	                         .step = 3};

	FOR_ALL
	{
		double *g = test_values(N, 1), zero = 0, squares = 0, norm, *before[4], *after[4];
		float clip[2] = {0};
		double *bsquares = test_put(dev, &zero, sizeof(zero));
		float *bclip = test_put(dev, clip, sizeof(clip));
		void *b[4], *bg;

		for (int i = 0; i < N; i++) {
			squares += g[i] * g[i];
			g[i] *= 1024;
		}
		norm = sqrt(squares);
		for (int k = 0; k < 4; k++) {
			double *x = test_values(N, (uint64_t)k + 2);

			for (int i = 0; i < N; i++)
				x[i] = fabs(x[i]);
			b[k] = test_buffer(dev, x, N, k < 3 ? DTYPE_F32 : type);
			free(x);
			before[k] = test_fetch_values(dev, b[k], N, k < 3 ? DTYPE_F32 : type);
		}
		for (int clipped = 0; clipped < 2; clipped++) {
			bg = test_buffer(dev, g, N, DTYPE_F32);
			device_zero(dev, bsquares, sizeof(zero));
			device_sum_squares(dev, bg, DTYPE_F32, N, bsquares);
			device_clip_scale(dev, bsquares, clipped ? 0.5f : 0, 1024, &bclip[0], &bclip[1]);
			test_fetch(dev, clip, bclip, sizeof(clip));
			ck_assert_double_eq_tol(clip[1], norm, 1e-5 * norm);
			ck_assert_double_eq_tol((double)clip[0] * 1024, clipped ? 0.5 / (norm + 1e-6) : 1,
			                        1e-6);
			device_free(dev, bg);
		}
		for (size_t o = 0; o < COUNT(overflows); o++) {
			double old = g[N - 1];

			g[N - 1] = overflows[o];
			bg = test_buffer(dev, g, N, DTYPE_F32);
			device_zero(dev, bsquares, sizeof(zero));
			device_sum_squares(dev, bg, DTYPE_F32, N, bsquares);
			device_clip_scale(dev, bsquares, o ? 1 : 0, 1024, &bclip[0], &bclip[1]);
			test_fetch(dev, clip, bclip, sizeof(clip));
			ck_assert(isnan(clip[0]) && !isfinite(clip[1]));
			device_adamw(dev, b[0], b[3], type, bg, DTYPE_F32, b[1], b[2], N, bclip, &h);
			for (int rule = 0; rule < DEVICE_RULES; rule++) {
				struct device_update u = {.rule = (enum device_rule)rule,
				                          .learning_rate = 1,
				                          .beta1 = 0.5,
				                          .beta2 = 0.5,
				                          .ratio = 1,
				                          .step = 1};

				device_update(dev, b[0], b[3], type, bg, b[1],
				              rule == DEVICE_LAMB ? b[2] : NULL, N, bclip, &u);
			}
			for (int k = 0; k < 4; k++) {
				after[k] = test_fetch_values(dev, b[k], N, k < 3 ? DTYPE_F32 : type);
				ck_assert_mem_eq(before[k], after[k], N * sizeof(double));
				free(after[k]);
			}
			after[0] = test_fetch_values(dev, bg, N, DTYPE_F32);
			ck_assert_mem_eq(after[0], g, (N - 1) * sizeof(double));
			free(after[0]);
			device_free(dev, bg);
			g[N - 1] = old;
		}
		for (int k = 0; k < 4; k++) {
			device_free(dev, b[k]);
			free(before[k]);
		}
		device_free(dev, bsquares);
		device_free(dev, bclip);
		free(g);
	}
}
END_TEST

TCase *test_device_loss(void)
{
	TCase *tc = tcase_create("loss and optimizer");

	tcase_set_timeout(tc, 120);
	tcase_set_tags(tc, "small"); /* compute-sanitizer runs these */
	tcase_add_test(tc, cross_entropy);
	tcase_add_test(tc, variants_of_cross_entropy);
	tcase_add_test(tc, distillation);
	tcase_add_test(tc, distillation_of_large_logits);
	tcase_add_test(tc, distillation_differences);
	tcase_add_test(tc, distillation_without_teacher);
	tcase_add_test(tc, not_a_number_survives);
	tcase_add_test(tc, adamw);
	tcase_add_test(tc, loss_scale);
	return tc;
}

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
	tcase_add_test(tc, not_a_number_survives);
	tcase_add_test(tc, adamw);
	tcase_add_test(tc, loss_scale);
	return tc;
}

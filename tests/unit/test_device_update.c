/* SPDX-License-Identifier: Apache-2.0 */
/* Compares the optimizers' steps, bit by bit, with a direct implementation of what device.h says of each, and
 * Adafactor's sums with float64. */
#pragma GCC optimize("fp-contract=off")
#include "test_device_each.h"

#include "engine/device/rounding.h"

struct values {
	float *p, *g, *m, *v;
};

static struct values values_make(int64_t n)
{
	double *x = test_values(n, 21);
	struct values s = {malloc((size_t)n * 4), malloc((size_t)n * 4), malloc((size_t)n * 4),
	                   malloc((size_t)n * 4)};

	for (int64_t i = 0; i < n; i++) {
		/* Weights that bf16 holds exactly, so that both kinds of copy begin with the same. */
		s.p[i] = bf16_to_float(bf16_from_float((float)x[i]));
		s.g[i] = i % 97 == 0 ? 0 : (float)(x[(i * 7 + 3) % n] * 0.01);
		s.m[i] = i % 97 == 0 ? 0 : (float)(x[(i * 5 + 1) % n] * 0.01);
		s.v[i] = (float)(x[(i * 3 + 2) % n] * x[(i * 3 + 2) % n] * 1e-4);
	}
	free(x);
	return s;
}

static void values_free(struct values *s)
{
	free(s->p);
	free(s->g);
	free(s->m);
	free(s->v);
}

static void expect_one(const struct device_update *h, float scale, float *g, float *p, float *m, float *v)
{
	float decay = (float)(1 - h->learning_rate * h->weight_decay), d = *g * scale, c;
	float rate = (float)h->learning_rate, b1 = (float)h->beta1, b2 = (float)h->beta2;
	float c1 = (float)(1 - h->beta1), c2 = (float)(1 - h->beta2), ratio = (float)h->ratio;
	float first = (float)(1 / (1 - pow(h->beta1, (double)h->step)));
	float root = (float)(1 / sqrt(1 - pow(h->beta2, (double)h->step)));

	switch (h->rule) {
	case DEVICE_SGD:
		d = (d + *p * (float)h->weight_decay) * ratio;
		*m = *m * b1 + d;
		*p -= (h->nesterov ? d + *m * b1 : *m) * rate;
		break;
	case DEVICE_LION:
		c = *m * b1 + d * c1;
		*m = *m * b2 + d * c2;
		*p = *p * decay - (c > 0 ? 1 : c < 0 ? -1 : 0) * rate;
		break;
	case DEVICE_LAMB:
		*m += (d - *m) * c1;
		*v = *v * b2 + d * d * c2;
		*g = *m * first / (sqrtf(*v) * root + (float)h->epsilon) + *p * (float)h->weight_decay;
		break;
	case DEVICE_MEAN:
		d *= ratio;
		*m += (d - *m) * c1;
		*g = h->nesterov ? d + (*m - d) * b1 : *m;
		break;
	case DEVICE_APPLY:
		*p = *p * decay - d * (float)(h->learning_rate * h->ratio);
		break;
	case DEVICE_RULES:
		break;
	}
}

static uint16_t by_lot(const struct device_update *h, float p, int64_t i)
{
	struct rounding_key key = rounding_key(h->seed, h->step);
	uint64_t index = (uint64_t)(h->first + i);
	uint32_t u, bits = (uint32_t)index;

	ROUNDING_BITS(bits, (uint32_t)(index >> 32), key);
	memcpy(&u, &p, sizeof(u));
	return (uint16_t)((u + bits) >> 16);
}

static void check_bits(const char *what, enum device_rule rule, const void *buffer, const float *want,
                       int64_t n)
{
	float *got = malloc((size_t)n * sizeof(*got));

	test_fetch(dev, got, buffer, (size_t)n * sizeof(*got));
	for (int64_t i = 0; i < n; i++)
		ck_assert_msg(got[i] == want[i], "rule %d: %s[%lld] is %.9g, not %.9g", rule, what,
		              (long long)i, (double)got[i], (double)want[i]);
	free(got);
	test_guard(dev, what, buffer, (size_t)n * sizeof(float));
}

static void try_rule(const struct device_update *h, int64_t n, bool master, bool moment)
{
	bool keeps = h->rule == DEVICE_MEAN || h->rule == DEVICE_LAMB; /* the weights as they are */
	struct values s = values_make(n);
	uint16_t *copy = malloc((size_t)n * sizeof(*copy)), *got = malloc((size_t)n * sizeof(*got));
	float scale = 0.75f, *p, *g, *m, *v, *bscale;
	void *bcopy;

	for (int64_t i = 0; i < n; i++)
		copy[i] = bf16_from_float(s.p[i]);
	p = test_put(dev, s.p, (size_t)n * 4);
	g = test_put(dev, s.g, (size_t)n * 4);
	m = test_put(dev, s.m, (size_t)n * 4);
	v = test_put(dev, s.v, (size_t)n * 4);
	bcopy = test_put(dev, copy, (size_t)n * 2);
	bscale = test_put(dev, &scale, sizeof(scale));
	device_update(dev, master ? p : NULL, bcopy, DTYPE_BF16, g, moment ? m : NULL,
	              h->rule == DEVICE_LAMB ? v : NULL, n, bscale, h);
	for (int64_t i = 0; i < n; i++) {
		float none = 0, *mi = moment ? &s.m[i] : &none;

		expect_one(h, scale, &s.g[i], &s.p[i], mi, &s.v[i]);
		if (!keeps)
			copy[i] = master ? bf16_from_float(s.p[i]) : by_lot(h, s.p[i], i);
	}
	if (master)
		check_bits("weight", h->rule, p, s.p, n);
	check_bits("gradient", h->rule, g, s.g, n);
	check_bits("moment", h->rule, m, s.m, n);
	test_fetch(dev, got, bcopy, (size_t)n * 2);
	for (int64_t i = 0; i < n; i++)
		ck_assert_msg(got[i] == copy[i], "rule %d: copy[%lld] is %04x, not %04x", h->rule,
		              (long long)i, got[i], copy[i]);
	test_guard(dev, "copy", bcopy, (size_t)n * 2);
	device_free(dev, p);
	device_free(dev, g);
	device_free(dev, m);
	device_free(dev, v);
	device_free(dev, bcopy);
	device_free(dev, bscale);
	values_free(&s);
	free(copy);
	free(got);
}

START_TEST(each_rule_has_the_bits_of_its_definition)
{
	static const int64_t sizes[] = {1, 31, 4099};

	for (size_t t = 0; t < COUNT(test_threads); t++) {
		threads = test_threads[t];
		setup();
		for (int rule = 0; rule < DEVICE_RULES; rule++)
			for (size_t i = 0; i < COUNT(sizes) * 4; i++) {
				struct device_update h = {.rule = rule,
				                          .learning_rate = 1e-2,
				                          .beta1 = 0.9,
				                          .beta2 = 0.98,
				                          .epsilon = 1e-8,
				                          .weight_decay = 0.1,
				                          .ratio = 0.37,
				                          .nesterov = i & 2,
				                          .step = 3,
				                          .seed = 7,
				                          .first = 12345};

				try_rule(&h, sizes[i / 4], i & 1, true);
			}
		teardown();
	}
}
END_TEST

START_TEST(sgd_without_momentum_needs_no_moment)
{
	struct device_update h = {
	    .rule = DEVICE_SGD, .learning_rate = 0.1, .ratio = 1, .weight_decay = 0.01, .step = 1};

	threads = 1;
	setup();
	try_rule(&h, 100, true, false);
	teardown();
}
END_TEST

START_TEST(weights_without_a_master_copy_are_bfloat16)
{
	struct device_update h = {.rule = DEVICE_SGD, .step = 1};
	struct error err = ERROR_INIT;
	float x[4] = {0}, *p;

	threads = 1;
	setup();
	p = test_put(dev, x, sizeof(x));
	device_update(dev, NULL, p, DTYPE_F32, p, NULL, NULL, 4, NULL, &h);
	ck_fails(device_synchronize(dev, &err), &err, "bfloat16");
	device_free(dev, p);
	teardown();
}
END_TEST

/* A part of a matrix, from the middle of a row to the middle of another. */
static void factors_of(int64_t rows, int64_t cols, int64_t first, int64_t n)
{
	double *g = test_values(n, 5), *row = calloc((size_t)rows, 8), *col = calloc((size_t)cols, 8);
	float *bg = test_buffer(dev, g, n, DTYPE_F32), *brow = test_buffer(dev, row, rows, DTYPE_F32),
	      *bcol = test_buffer(dev, col, cols, DTYPE_F32), scale = 0.5f, *bscale;
	struct device_factored f = {first, n, cols};

	bscale = test_put(dev, &scale, sizeof(scale));
	device_factor_sums(dev, &f, bg, bscale, brow, bcol);
	for (int64_t i = 0; i < n; i++) {
		row[(first + i) / cols] += g[i] * scale * g[i] * scale;
		col[(first + i) % cols] += g[i] * scale * g[i] * scale;
	}
	test_close(dev, "row", brow, row, rows, DTYPE_F32, 1e-5, 1e-3);
	test_close(dev, "col", bcol, col, cols, DTYPE_F32, 1e-5, 1e-3);
	device_factor_direction(dev, &f, bg, bscale, brow, bcol, 0.01f, 1e-4f);
	for (int64_t i = 0; i < n; i++)
		g[i] =
		    g[i] * scale / sqrt(fmax(row[(first + i) / cols] * 0.01 * col[(first + i) % cols], 1e-4));
	test_close(dev, "direction", bg, g, n, DTYPE_F32, 1e-4, 1);
	device_free(dev, bg);
	device_free(dev, brow);
	device_free(dev, bcol);
	device_free(dev, bscale);
	free(g);
	free(row);
	free(col);
}

/* Rows of one element, without columns: the second moments of a norm or bias. */
static void rows_of(int64_t rows, int64_t first, int64_t n)
{
	double *g = test_values(n, 6), *row = calloc((size_t)rows, 8);
	float *bg = test_buffer(dev, g, n, DTYPE_F32), *brow = test_buffer(dev, row, rows, DTYPE_F32);
	struct device_factored f = {first, n, 1};

	device_factor_sums(dev, &f, bg, NULL, brow, NULL);
	for (int64_t i = 0; i < n; i++)
		row[first + i] += g[i] * g[i];
	test_close(dev, "row", brow, row, rows, DTYPE_F32, 1e-6, 1e-3);
	device_factor_direction(dev, &f, bg, NULL, brow, NULL, 1, 1e-14f);
	for (int64_t i = 0; i < n; i++)
		g[i] /= sqrt(fmax(row[first + i], 1e-14));
	test_close(dev, "direction", bg, g, n, DTYPE_F32, 1e-5, 1);
	device_free(dev, bg);
	device_free(dev, brow);
	free(g);
	free(row);
}

START_TEST(factors)
{
	for (size_t t = 0; t < COUNT(test_threads); t++) {
		threads = test_threads[t];
		setup();
		factors_of(7, 33, 0, 7 * 33);
		factors_of(7, 33, 40, 100);
		factors_of(7, 33, 40, 20);
		factors_of(300, 1, 3, 200);
		rows_of(300, 3, 200);
		factors_of(90, 400, 777, 30000);
		teardown();
	}
}
END_TEST

TCase *test_device_update(void)
{
	TCase *tc = tcase_create("update");

	tcase_set_timeout(tc, 120);
	tcase_set_tags(tc, "small");
	tcase_add_test(tc, each_rule_has_the_bits_of_its_definition);
	tcase_add_test(tc, sgd_without_momentum_needs_no_moment);
	tcase_add_test(tc, weights_without_a_master_copy_are_bfloat16);
	tcase_add_test(tc, factors);
	return tc;
}

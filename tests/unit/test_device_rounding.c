/* SPDX-License-Identifier: Apache-2.0 */
/* AdamW without a master copy: the bits of its stochastic rounding, their statistical quality, and their
 * effect. */
#pragma GCC optimize("fp-contract=off")
#include "test_device_each.h"

#include "engine/device/rounding.h"

static uint32_t random_bits(struct rounding_key key, uint64_t index)
{
	uint32_t x = (uint32_t)index;

	ROUNDING_BITS(x, (uint32_t)(index >> 32), key);
	return x;
}

/* Values are uniformly distributed; neighbours in index, in its high half, in step and in seed are
 * independent. */
START_TEST(bits_are_random)
{
	enum { N = 1 << 20, BUCKETS = 256 };
	const struct {
		uint64_t index;
		int64_t step;
		uint64_t seed;
	} other[] = {{1, 0, 0}, {2, 0, 0}, {256, 0, 0}, {1ull << 32, 0, 0}, {0, 1, 0}, {0, 0, 1}, {1, 1, 0}};

	for (int64_t step = 1; step < 100; step = step * 3 + 1) {
		struct rounding_key key = rounding_key(42, step);
		double counts[BUCKETS] = {0}, chi = 0, bits[16] = {0};

		for (uint64_t i = 0; i < N; i++) {
			uint32_t r = random_bits(key, i);

			ck_assert_uint_lt(r, 65536);
			counts[r >> 8]++;
			for (int b = 0; b < 16; b++)
				bits[b] += r >> b & 1;
		}
		for (int i = 0; i < BUCKETS; i++)
			chi += pow(counts[i] - N / BUCKETS, 2) / (N / BUCKETS);
		/* 255 degrees of freedom: 255 ± 22.6; a bijection's first N are a little more even. */
		ck_assert_msg(chi > 130 && chi < 390, "step %lld: chi² %.1f", (long long)step, chi);
		for (int b = 0; b < 16; b++)
			ck_assert_msg(fabs(bits[b] - N / 2) < 5 * sqrt(N / 4.0), "bit %d: %.0f of %d", b,
			              bits[b], N);
	}
	for (size_t o = 0; o < COUNT(other); o++) {
		struct rounding_key a = rounding_key(7, 5);
		struct rounding_key b = rounding_key(7 + other[o].seed, 5 + other[o].step);
		double product = 0;

		for (uint64_t i = 0; i < N; i++)
			product += (random_bits(a, i) / 32768.0 - 1) *
			           (random_bits(b, i + other[o].index) / 32768.0 - 1);
		/* Two uniform on [-1, 1]: variance 1/9 a product. */
		ck_assert_msg(fabs(product) < 5 * sqrt(N / 9.0), "pair %zu: correlation %.3g", o,
		              product * 3 / N);
	}
}
END_TEST

static float bits_float(uint32_t u)
{
	float f;

	memcpy(&f, &u, sizeof(f));
	return f;
}

/* A direct implementation of the description in device.h. */
static uint16_t expected(float p, float g, float *m, float *v, const struct device_adamw *h, int64_t i)
{
	float decay = (float)(1 - h->learning_rate * h->weight_decay), b2 = (float)h->beta2;
	float c1 = (float)(1 - h->beta1), c2 = (float)(1 - h->beta2);
	float size = (float)(h->learning_rate / (1 - pow(h->beta1, (double)h->step)));
	float root = (float)(1 / sqrt(1 - pow(h->beta2, (double)h->step)));
	uint32_t u;

	*m += (g - *m) * c1;
	*v = *v * b2 + g * g * c2;
	p = p * decay - size * *m / (sqrtf(*v) * root + (float)h->epsilon);
	memcpy(&u, &p, sizeof(u));
	if (!isfinite(p))
		return bf16_from_float(p);
	return (uint16_t)((u + random_bits(rounding_key(h->seed, h->step), (uint64_t)(h->first + i))) >> 16);
}

struct state {
	uint16_t *p;
	float *g, *m, *v;
};

static struct state state_make(int64_t n)
{
	double *x = test_values(n, 11);
	struct state s = {malloc((size_t)n * 2), malloc((size_t)n * 4), malloc((size_t)n * 4),
	                  malloc((size_t)n * 4)};

	for (int64_t i = 0; i < n; i++) {
		s.p[i] = bf16_from_float((float)x[i]);
		s.g[i] = (float)(x[(i * 7 + 3) % n] * 0.01);
		s.m[i] = (float)(x[(i * 5 + 1) % n] * 0.01);
		s.v[i] = (float)(x[(i * 3 + 2) % n] * x[(i * 3 + 2) % n] * 1e-4);
	}
	free(x);
	return s;
}

static void state_free(struct state *s)
{
	free(s->p);
	free(s->g);
	free(s->m);
	free(s->v);
}

/* Steps [at, at + n) of s on the device, from a buffer that begins `shift` elements earlier. */
static void step_on_device(struct state *s, int64_t at, int64_t n, struct device_adamw h, int64_t shift)
{
	uint16_t *p = test_put(dev, s->p + at - shift, (size_t)(n + shift) * 2);
	float *g = test_put(dev, s->g + at - shift, (size_t)(n + shift) * 4);
	float *m = test_put(dev, s->m + at - shift, (size_t)(n + shift) * 4);
	float *v = test_put(dev, s->v + at - shift, (size_t)(n + shift) * 4);

	h.first += at;
	device_adamw(dev, NULL, p + shift, DTYPE_BF16, g + shift, DTYPE_F32, m + shift, v + shift, n, NULL,
	             &h);
	test_fetch(dev, s->p + at - shift, p, (size_t)(n + shift) * 2);
	test_fetch(dev, s->m + at - shift, m, (size_t)(n + shift) * 4);
	test_fetch(dev, s->v + at - shift, v, (size_t)(n + shift) * 4);
	test_guard(dev, "param", p, (size_t)(n + shift) * 2);
	device_free(dev, p);
	device_free(dev, g);
	device_free(dev, m);
	device_free(dev, v);
}

/* The same bits on every device, whole or in pieces of any alignment, where the index passes 2^32 too. */
START_TEST(bits_are_the_same_everywhere)
{
	static const int64_t firsts[] = {0, 12345, ((int64_t)1 << 32) - 1000, ((int64_t)5 << 32) + 3};
	static const int64_t cuts[] = {0, 1, 20, 37, 1024, 1500, 2999};

	for (size_t ti = 0; ti < COUNT(test_threads) * COUNT(firsts); ti++) {
		int64_t n = 3001;
		struct device_adamw h = {.learning_rate = 1e-3,
		                         .beta1 = 0.9,
		                         .beta2 = 0.999,
		                         .epsilon = 1e-8,
		                         .weight_decay = 0.1,
		                         .step = 17,
		                         .seed = 99,
		                         .first = firsts[ti / COUNT(test_threads)]};
		struct state want = state_make(n), whole = state_make(n), pieces = state_make(n);

		threads = test_threads[ti % COUNT(test_threads)];
		setup();
		want.p[5] = whole.p[5] = pieces.p[5] = 0x7f80; /* inf */
		want.g[6] = whole.g[6] = pieces.g[6] = bits_float(0x7fc00000);
		for (int64_t i = 0; i < n; i++)
			want.p[i] =
			    expected(bf16_to_float(want.p[i]), want.g[i], &want.m[i], &want.v[i], &h, i);
		step_on_device(&whole, 0, n, h, 0);
		for (size_t c = 0; c < COUNT(cuts); c++)
			step_on_device(&pieces, cuts[c], (c + 1 < COUNT(cuts) ? cuts[c + 1] : n) - cuts[c], h,
			               cuts[c] > 0);
		for (int64_t i = 0; i < n; i++) {
			bool nan = (want.p[i] & 0x7fff) > 0x7f80;

			ck_assert_msg(nan ? (whole.p[i] & 0x7fff) > 0x7f80 : whole.p[i] == want.p[i],
			              "[%lld] is %04x, not %04x", (long long)i, whole.p[i], want.p[i]);
			ck_assert(nan || (whole.m[i] == want.m[i] && whole.v[i] == want.v[i]));
		}
		ck_assert(!memcmp(whole.p, pieces.p, (size_t)n * 2));
		teardown();
		state_free(&want);
		state_free(&whole);
		state_free(&pieces);
	}
}
END_TEST

/* Weights about 1 pulled to targets by steps of 1e-4, which are a fortieth of the distance of two bf16
 * numbers there. */
START_TEST(small_steps_add_up)
{
	enum { N = 4096, STEPS = 300 };
	struct device_adamw h = {
	    .learning_rate = 1e-4, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .seed = 1};
	double *start = test_values(N, 21), error[3] = {0};
	uint16_t *p[3], host[N];
	float *m[3], *v[3], *master[3], *g, grad[N], target[N];

	threads = 1;
	setup();
	for (int i = 0; i < N; i++) {
		start[i] = 1 + 0.1 * fabs(start[i]);
		target[i] = bf16_to_float(bf16_from_float((float)start[i])) - 0.02f;
	}
	g = test_put(dev, grad, sizeof(grad));
	for (int k = 0; k < 3; k++) { /* a master copy; none, stochastically; none, to the nearest */
		double *zeros = calloc(N, sizeof(*zeros));

		p[k] = test_buffer(dev, start, N, DTYPE_BF16);
		master[k] = test_buffer(dev, start, N, DTYPE_F32);
		m[k] = test_buffer(dev, zeros, N, DTYPE_F32);
		v[k] = test_buffer(dev, zeros, N, DTYPE_F32);
		free(zeros);
	}
	for (h.step = 1; h.step <= STEPS; h.step++) {
		for (int k = 0; k < 3; k++) {
			test_fetch(dev, host, p[k], sizeof(host));
			error[k] = 0;
			for (int i = 0; i < N; i++) {
				grad[i] = bf16_to_float(host[i]) - target[i];
				error[k] += grad[i] * grad[i] / N;
			}
			ck_assert_int_eq(device_write(dev, g, grad, sizeof(grad), &(struct error)ERROR_INIT),
			                 0);
			if (k == 2)
				device_cast(dev, master[k], DTYPE_F32, p[k], DTYPE_BF16, N);
			device_adamw(dev, k == 1 ? NULL : master[k], p[k], DTYPE_BF16, g, DTYPE_F32, m[k],
			             v[k], N, NULL, &h);
		}
	}
	printf("root of mean square error, from 0.02: %.2g with a master copy, %.2g without, stochastically, "
	       "%.2g to "
	       "the "
	       "nearest\n",
	       sqrt(error[0]), sqrt(error[1]), sqrt(error[2]));
	ck_assert(sqrt(error[0]) < 0.006 && sqrt(error[1]) < 0.009 && sqrt(error[2]) > 0.019);
	for (int k = 0; k < 3; k++) {
		device_free(dev, p[k]);
		device_free(dev, master[k]);
		device_free(dev, m[k]);
		device_free(dev, v[k]);
	}
	device_free(dev, g);
	free(start);
	teardown();
}
END_TEST

START_TEST(only_bf16_does_without)
{
	struct error err = ERROR_INIT;
	struct device_adamw h = {
	    .learning_rate = 1, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .step = 1};
	double x[4] = {1, 2, 3, 4};
	float *p;

	threads = 1;
	setup();
	p = test_buffer(dev, x, 4, DTYPE_F32);
	device_adamw(dev, NULL, p, DTYPE_F32, p, DTYPE_F32, p, p, 4, NULL, &h);
	ck_fails(device_synchronize(dev, &err), &err, "bfloat16");
	device_free(dev, p);
	teardown();
}
END_TEST

TCase *test_device_rounding(void)
{
	TCase *tc = tcase_create("stochastic rounding");

	tcase_set_timeout(tc, 120);
	tcase_set_tags(tc, "small"); /* compute-sanitizer runs these */
	tcase_add_test(tc, bits_are_random);
	tcase_add_test(tc, bits_are_the_same_everywhere);
	tcase_add_test(tc, small_steps_add_up);
	tcase_add_test(tc, only_bf16_does_without);
	return tc;
}

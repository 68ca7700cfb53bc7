/* SPDX-License-Identifier: Apache-2.0 */
/* Tests what a model needs to go on with several sequences at once: their cache, attention to it, and the
 * choice of the next ids, in the way of test_device.c. */
#include "../engine/naive_choice.h"
#include "test_device_each.h"

/* With each number of threads, in fp32 alone. */
#define FOR_THREADS FOR_ALL if (type == DTYPE_F32)

/* ---- cache and attention ---- */

enum { SEQUENCES = 5 };

static const struct {
	int tokens, heads, kv_heads, head_dim, window;
	float cap;
	int rows;
	int32_t sequences[SEQUENCES], positions[SEQUENCES];
} caches[] = {
    {700, 2, 1, 16, 0, 0, 4, {3, 0, 4, 1}, {0, 5, 255, 256}},
    {700, 4, 2, 64, 0, 0, 3, {1, 2, 0}, {699, 257, 511}},
    {700, 2, 2, 32, 40, 20, 5, {4, 3, 2, 1, 0}, {300, 39, 40, 41, 512}},
    {100, 1, 1, 128, 0, 0, 1, {2}, {63}},
    /* So many keys that stretches of a GPU are longer than CACHED_CHUNK. */
    {17000, 1, 1, 16, 0, 0, 2, {1, 0}, {16999, 300}},
};

/* Those of one token after the other. */
static void attend_apart(struct device_attention a, const struct device_cache *c, size_t at, char *o,
                         const char *q, const char *cache, const int32_t *sequences, const int32_t *positions)
{
	size_t size = dtype_size(type), row = 2 * (size_t)a.kv_heads * (size_t)a.head_dim * size;

	a.tokens = 1;
	a.ld_k = a.ld_v = 2 * (int64_t)a.kv_heads * a.head_dim;
	for (int64_t r = 0; r < c->rows; r++) {
		const char *k = cache + (size_t)(sequences[r] * c->tokens) * row;

		device_attention_cached(dev, &a, positions[r], o + (size_t)(r * a.ld_o) * size,
		                        q + at + (size_t)(r * a.ld_q) * size, k, k + row / 2);
	}
}

START_TEST(rows_attend_to_their_sequences)
{
	int heads = caches[_i].heads, kv = caches[_i].kv_heads, hd = caches[_i].head_dim;
	int64_t q_cols = heads * hd, width = kv * hd, ld = q_cols + 2 * width + 8, rows = caches[_i].rows;
	int64_t tokens = caches[_i].tokens, n = (tokens > 1000 ? 2 : SEQUENCES) * tokens * 2 * width;

	FOR_ALL
	{
		size_t size = dtype_size(type), bytes = (size_t)n * size;
		double *values = test_values(n, 1), *in = test_values(rows * ld, 2);
		double *zeros = calloc((size_t)(rows * (q_cols + 8)), sizeof(*zeros));
		char *cache = test_buffer(dev, values, n, type), *qkv = test_buffer(dev, in, rows * ld, type);
		char *o = test_buffer(dev, zeros, rows * (q_cols + 8), type);
		char *apart = test_buffer(dev, zeros, rows * (q_cols + 8), type);
		char *want = malloc(bytes), *got = malloc(bytes), *new = malloc((size_t)(rows * ld) * size);
		int32_t *sequences = test_put(dev, caches[_i].sequences, (size_t)rows * sizeof(*sequences));
		int32_t *positions = test_put(dev, caches[_i].positions, (size_t)rows * sizeof(*positions));
		struct device_attention a = {.heads = heads,
		                             .kv_heads = kv,
		                             .head_dim = hd,
		                             .scale = 0.2f,
		                             .window = caches[_i].window,
		                             .cap = caches[_i].cap,
		                             .ld_q = ld,
		                             .ld_o = q_cols + 8,
		                             .type = type};
		struct device_cache c = {rows, tokens, 0, sequences, positions}, full = c;

		int32_t last[SEQUENCES];

		for (int r = 0; r < rows; r++)
			c.longest = MAX(c.longest, caches[_i].positions[r]);
		/* Each row is in its place, and all else as it was. */
		test_fetch(dev, want, cache, bytes);
		test_fetch(dev, new, qkv, (size_t)(rows * ld) * size);
		for (int64_t r = 0; r < rows; r++)
			memcpy(want + (size_t)((caches[_i].sequences[r] * tokens + caches[_i].positions[r]) *
			                       2 * width) *
			                  size,
			       new + (size_t)(r * ld + q_cols) * size, (size_t)(2 * width) * size);
		device_cache_append(dev, &c, cache, qkv + (size_t)q_cols * size,
		                    qkv + (size_t)(q_cols + width) * size, width, ld, type);
		test_fetch(dev, got, cache, bytes);
		ck_assert(!memcmp(want, got, bytes));
		/* Attention alone is tested by test_device_attention.c. What longer sequences have left in
		 * the scratch does not count. */
		for (int r = 0; r < rows; r++)
			last[r] = (int32_t)tokens - 1;
		full.longest = tokens - 1;
		full.positions = test_put(dev, last, (size_t)rows * sizeof(*last));
		device_attention_rows(dev, &a, &full, o, qkv, cache);
		device_attention_rows(dev, &a, &c, o, qkv, cache);
		attend_apart(a, &c, 0, apart, qkv, cache, caches[_i].sequences, caches[_i].positions);
		test_fetch(dev, got, o, (size_t)(rows * a.ld_o) * size);
		test_fetch(dev, want, apart, (size_t)(rows * a.ld_o) * size);
		ck_assert(!memcmp(want, got, (size_t)(rows * a.ld_o) * size));
		test_guard(dev, "cache", cache, bytes);
		test_guard(dev, "o", o, (size_t)(rows * a.ld_o) * size);
		device_free(dev, cache);
		device_free(dev, qkv);
		device_free(dev, o);
		device_free(dev, apart);
		device_free(dev, (void *)full.positions);
		device_free(dev, sequences);
		device_free(dev, positions);
		free(values);
		free(in);
		free(zeros);
		free(want);
		free(got);
		free(new);
	}
}
END_TEST

#ifdef TEST_ENGINE_CUDA
/* More rows of heads than a GPU's grid has in its second dimension; the emulated one takes ten seconds for
 * them. Each has one key, so that it gets the value. */
START_TEST(many_rows_of_many_heads)
{
	enum { ROWS = 1025, HEADS = 64, DIM = 2, WIDTH = HEADS * DIM };

	FOR_THREADS
	{
		double *values = test_values(ROWS * 2 * WIDTH, 3);
		float *cache = test_buffer(dev, values, ROWS * 2 * WIDTH, type);
		float *o = test_buffer(dev, values, ROWS * WIDTH, type);
		int32_t numbers[ROWS], zeros[ROWS] = {0}, *sequences, *positions;
		struct device_attention a = {.heads = HEADS,
		                             .kv_heads = HEADS,
		                             .head_dim = DIM,
		                             .scale = 1,
		                             .ld_q = 2 * WIDTH,
		                             .ld_o = WIDTH,
		                             .type = type};
		struct device_cache c = {.rows = ROWS, .tokens = 1};

		for (int i = 0; i < ROWS; i++)
			numbers[i] = i;
		c.sequences = sequences = test_put(dev, numbers, sizeof(numbers));
		c.positions = positions = test_put(dev, zeros, sizeof(zeros));
		/* The keys are the queries. */
		device_attention_rows(dev, &a, &c, o, cache, cache);
		for (int64_t i = 0; i < ROWS * WIDTH; i++)
			values[i] = values[i / WIDTH * 2 * WIDTH + WIDTH + i % WIDTH];
		test_close(dev, "o", o, values, ROWS * WIDTH, type, 1e-6, 1);
		device_free(dev, cache);
		device_free(dev, o);
		device_free(dev, sequences);
		device_free(dev, positions);
		free(values);
	}
}
END_TEST

#endif

/* ---- choice ---- */

static const struct device_choice choices[] = {
    {.ids = 17, .ld = 17, .inverse = 1, .top_p = 1},
    {.ids = 12, .ld = 17, .inverse = 2, .top_p = 1},
    {.ids = 1, .ld = 1, .inverse = 1, .top_p = 0.5},
    {.ids = 40000, .ld = 40003, .inverse = 1, .top_p = 1, .cap = 5},
    {.ids = 3001, .ld = 3001, .inverse = 0.7f, .top_k = 40, .top_p = 1},
    {.ids = 3000, .ld = 3001, .inverse = 1, .top_k = 1, .top_p = 0.5},
    {.ids = 3001, .ld = 3001, .inverse = 1, .top_p = 0.9},
    {.ids = 3001, .ld = 3001, .inverse = 1.3f, .top_p = 0.999, .cap = 8},
    {.ids = 3001, .ld = 3001, .inverse = 1, .top_p = 1, .min_p = 0.02f},
    {.ids = 3001, .ld = 3001, .inverse = 1, .top_k = 500, .top_p = 0.8, .min_p = 0.01f},
    {.ids = 3001, .ld = 0, .inverse = 1, .top_k = 2, .top_p = 1},
    {.ids = 20000, .ld = 20000, .inverse = 1, .top_k = 5000, .top_p = 0.95},
};

START_TEST(ids_have_their_probabilities)
{
	enum { ROWS = 12 };
	const struct device_choice *d = &choices[_i];
	int64_t n = d->ld ? ROWS * d->ld : d->ids;
	double uniform[ROWS] = {0, 0x1.fffffffffffffp-1, 0.5};
	int close = 0;

	for (int r = 3; r < ROWS; r++)
		uniform[r] = (r - 2.7) / (ROWS - 3);
	FOR_THREADS
	{
		double *values = test_values(n, 7);
		float *logits = malloc((size_t)n * sizeof(*logits)), *on;
		int32_t ids[ROWS], *chosen;
		double *random = test_put(dev, uniform, sizeof(uniform));

		/* Some tie: rounded to eighths. */
		for (int64_t i = 0; i < n; i++)
			logits[i] = (float)(i % 3 ? values[i] * 3 : nearbyint(values[i] * 24) / 8);
		on = test_put(dev, logits, (size_t)n * sizeof(*logits));
		memset(ids, -1, sizeof(ids));
		chosen = test_put(dev, ids, sizeof(ids));
		device_choose(dev, d, chosen, on, ROWS, random);
		test_fetch(dev, ids, chosen, sizeof(ids));
		for (int r = 0; r < ROWS; r++) {
			double margin;
			int32_t want = naive_choice(d, logits + r * d->ld, uniform[r], &margin);

			/* In fp32, an exponential is off by some 1e-7 of it. */
			close += margin < 1e-6;
			if (margin >= 1e-6)
				ck_assert_msg(ids[r] == want, "row %d: %d, not %d", r, ids[r], want);
			ck_assert(ids[r] >= 0 && ids[r] < d->ids);
		}
		test_guard(dev, "ids", chosen, sizeof(ids));
		device_free(dev, on);
		device_free(dev, chosen);
		device_free(dev, random);
		free(values);
		free(logits);
	}
	/* The first two random numbers are at an edge, and seldom another. */
	ck_assert_int_le(close, 4 * (int)COUNT(test_threads));
}
END_TEST

/* The first and the last id that can be chosen, and not one beside them. */
START_TEST(edges_are_met)
{
	static const float logits[8] = {-INFINITY, 1, -INFINITY, 2, NAN, 1, -40, -INFINITY};
	static const double uniform[4] = {0, 0x1.fffffffffffffp-1, 0.3, 0.6};
	struct device_choice d = {.ids = 8, .inverse = 1, .top_p = 1};

	FOR_THREADS
	{
		float *on = test_put(dev, logits, sizeof(logits));
		double *random = test_put(dev, uniform, sizeof(uniform));
		int32_t ids[4] = {-1, -1, -1, -1}, *chosen = test_put(dev, ids, sizeof(ids));

		device_choose(dev, &d, chosen, on, 4, random);
		test_fetch(dev, ids, chosen, sizeof(ids));
		/* Shares of 0.212, 0.576 and 0.212; that of the seventh id is below 2^-53. */
		ck_assert_int_eq(ids[0], 1);
		ck_assert_int_eq(ids[1], 5);
		ck_assert_int_eq(ids[2], 3);
		ck_assert_int_eq(ids[3], 3);
		device_free(dev, on);
		device_free(dev, random);
		device_free(dev, chosen);
	}
}
END_TEST

/* There is one zero. */
START_TEST(zeros_tie)
{
	static const float logits[3] = {0, -0.0f, 1};
	struct device_choice d = {.ids = 3, .ld = 3, .inverse = 1, .top_k = 2, .top_p = 1};
	double uniform = 0.3;

	FOR_THREADS
	{
		float *on = test_put(dev, logits, sizeof(logits));
		double *random = test_put(dev, &uniform, sizeof(uniform));
		int32_t id = -1, *chosen = test_put(dev, &id, sizeof(id));

		device_choose(dev, &d, chosen, on, 1, random);
		test_fetch(dev, &id, chosen, sizeof(id));
		ck_assert_int_eq(id, 1);
		device_free(dev, on);
		device_free(dev, random);
		device_free(dev, chosen);
	}
}
END_TEST

/* Numbers that are not finite: an id there is, the likeliest if there is one. */
START_TEST(rows_without_probabilities)
{
	static const struct {
		float logits[4];
		int32_t id;
	} rows[] = {{{-INFINITY, -INFINITY, -INFINITY, -INFINITY}, 0},
	            {{0, INFINITY, 3, INFINITY}, 1},
	            {{NAN, -1, NAN, -INFINITY}, 1},
	            {{NAN, -INFINITY, NAN, 3e38f}, 3}};
	static const struct device_choice kinds[] = {{.top_p = 1},
	                                             {.top_k = 1, .top_p = 1},
	                                             {.top_k = 3, .top_p = 1},
	                                             {.top_p = 0.5},
	                                             {.top_p = 1, .min_p = 1}};

	FOR_THREADS for (size_t i = 0; i < COUNT(rows) * COUNT(kinds); i++)
	{
		struct device_choice d = kinds[i % COUNT(kinds)];
		const float *logits = rows[i / COUNT(kinds)].logits;
		double half = 0.5, *random = test_put(dev, &half, sizeof(half));
		float *on = test_put(dev, logits, sizeof(rows[0].logits));
		int32_t id = -1, *chosen = test_put(dev, &id, sizeof(id));

		d.ids = d.ld = 4;
		d.inverse = 1;
		device_choose(dev, &d, chosen, on, 1, random);
		test_fetch(dev, &id, chosen, sizeof(id));
		ck_assert_msg(id == rows[i / COUNT(kinds)].id, "%zu: %d", i, id);
		device_free(dev, on);
		device_free(dev, random);
		device_free(dev, chosen);
	}
}
END_TEST

TCase *test_device_generate(void)
{
	TCase *tc = tcase_create("generation");

	tcase_set_timeout(tc, 300);
	tcase_set_tags(tc, "small");
	tcase_add_loop_test(tc, rows_attend_to_their_sequences, 0, COUNT(caches));
#ifdef TEST_ENGINE_CUDA
	tcase_add_test(tc, many_rows_of_many_heads);
#endif
	tcase_add_loop_test(tc, ids_have_their_probabilities, 0, COUNT(choices));
	tcase_add_test(tc, edges_are_met);
	tcase_add_test(tc, zeros_tie);
	tcase_add_test(tc, rows_without_probabilities);
	return tc;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the operations of a mixture of experts against float64, in the way of test_device.c. */
#include "base/cleanup.h"
#include "test_device_each.h"

/* There are routers for each number of values that a lane of the CUDA kernels has, with rows that can be read
 * in packs and rows that cannot. The CPU computes the last but one by several threads. */
static const struct device_router routers[] = {
    {1, 1, 1, 1, false, 0},    {5, 4, 1, 1, false, 0},    {7, 8, 2, 1, false, 0},
    {3, 33, 5, 1, false, 0},   {9, 60, 4, 1, false, 0},   {17, 128, 8, 1, false, 0},
    {2, 32, 32, 1, false, 0},  {4, 200, 8, 1, false, 0},  {3, 253, 8, 1, false, 0},
    {3, 384, 7, 1, false, 0},  {2, 511, 10, 1, false, 0}, {2, 1024, 32, 1, false, 0},
    {300, 64, 6, 1, false, 0}, {2, 1021, 9, 1, false, 0}};

static int64_t choices(const struct device_router *r)
{
	return r->tokens * r->chosen;
}

static int64_t all_logits(const struct device_router *r)
{
	return r->tokens * r->experts;
}

static void *of_bytes(int64_t n, size_t size)
{
	_cleanup_free_ void *zeros = calloc((size_t)n + 1, size);

	return test_put(dev, zeros, (size_t)n * size);
}

static void *fetched(const void *p, int64_t n, size_t size)
{
	void *host = malloc((size_t)n * size + 1);

	test_fetch(dev, host, p, (size_t)n * size);
	test_guard(dev, "choices", p, (size_t)n * size);
	return host;
}

/* Random logits. Every second row has many that are equal, and both zeros; others are so large that their
 * exponentials overflow in fp32. */
static double *logits_of(const struct device_router *r)
{
	double *x = test_values(all_logits(r), 1);

	for (int64_t i = 0; i < all_logits(r); i++) {
		int64_t t = i / r->experts;

		x[i] = t % 2 ? copysign(floor(fabs(x[i] * 1.5)), x[i]) : x[i] * (t % 4 ? 60 : 3);
	}
	return x;
}

/* ---- the router ---- */
/* How many experts come before: those of larger logits, and of equal ones those of lower numbers. */
static int rank_of(const double *x, int n, int expert)
{
	int rank = 0;

	for (int e = 0; e < n; e++)
		rank += x[e] > x[expert] || (x[e] == x[expert] && e < expert);
	return rank;
}

static double exponentials(const double *x, int n)
{
	double sum = 0;

	for (int e = 0; e < n; e++)
		sum += exp(x[e]);
	return sum;
}

static void check_route(const struct device_router *r)
{
	_cleanup_free_ double *x = logits_of(r), *want = calloc((size_t)choices(r), sizeof(*want));
	void *bx = test_buffer(dev, x, all_logits(r), r->type);
	int32_t *bexpert = of_bytes(choices(r), sizeof(*bexpert));
	float *bweight = of_bytes(choices(r), sizeof(*bweight));
	_cleanup_free_ int32_t *expert = NULL, *again = NULL;
	_cleanup_free_ float *weight = NULL, *weight_again = NULL;

	device_route(dev, r, bexpert, bweight, bx);
	expert = fetched(bexpert, choices(r), sizeof(*expert));
	weight = fetched(bweight, choices(r), sizeof(*weight));
	for (int64_t t = 0; t < r->tokens; t++) {
		const double *row = x + t * r->experts;
		double all = exponentials(row, r->experts), sum = 0;

		for (int i = 0; i < r->chosen; i++) {
			int32_t e = expert[t * r->chosen + i];

			ck_assert_msg(e >= 0 && e < r->experts && rank_of(row, r->experts, e) == i,
			              "%d of %d experts: token %lld has %d as its choice %d", r->chosen,
			              r->experts, (long long)t, e, i);
			want[t * r->chosen + i] = exp(row[e]) / all;
			sum += want[t * r->chosen + i];
		}
		for (int i = 0; i < r->chosen && r->normalized; i++)
			want[t * r->chosen + i] /= sum;
	}
	test_close(dev, "weight", bweight, want, choices(r), DTYPE_F32, 4e-6, 1e-4);
	test_close(dev, "logits", bx, x, all_logits(r), r->type, 0, 0);
	device_route(dev, r, bexpert, bweight, bx);
	again = fetched(bexpert, choices(r), sizeof(*again));
	weight_again = fetched(bweight, choices(r), sizeof(*weight_again));
	ck_assert_mem_eq(expert, again, (size_t)choices(r) * sizeof(*expert));
	ck_assert_mem_eq(weight, weight_again, (size_t)choices(r) * sizeof(*weight));
	device_free(dev, bx);
	device_free(dev, bexpert);
	device_free(dev, bweight);
}

START_TEST(route)
{
	FOR_ALL for (size_t s = 0; s < COUNT(routers) * 2; s++)
	{
		struct device_router r = routers[s / 2];

		r.normalized = s & 1;
		r.type = type;
		check_route(&r);
	}
}
END_TEST

/* Rows with logits that are not finite: of the first expert, of those whose number `every` divides, and of
 * the others. */
static const struct {
	double first, some, others;
	int every;
} odd_rows[] = {{NAN, NAN, NAN, 1},
                {INFINITY, INFINITY, INFINITY, 1},
                {NAN, 1, 2, 2},
                {1, NAN, 2, 3},
                {-INFINITY, INFINITY, 0, 5},
                {-INFINITY, -INFINITY, -INFINITY, 1},
                {NAN, INFINITY, 0, 4},
                {-INFINITY, NAN, -INFINITY, 2},
                {-INFINITY, 1, -INFINITY, 9},
                {3, -INFINITY, -INFINITY, 1}};

/* Whatever the logits are, the experts of a token are distinct, and no NaN is lost. Infinities are in the
 * order of the numbers; the weight of -INFINITY beside finite ones is 0. */
static void check_odd_row(const struct device_router *r, const double *x, const int32_t *expert,
                          const float *weight)
{
	bool taken[DEVICE_EXPERTS_MAX] = {false}, has_nan = false, overflows = false, vanishes = true;

	for (int e = 0; e < r->experts; e++) {
		has_nan = has_nan || isnan(x[e]);
		overflows = overflows || x[e] == INFINITY;
		vanishes = vanishes && x[e] == -INFINITY;
	}
	for (int i = 0; i < r->chosen; i++) {
		int32_t e = expert[i];

		ck_assert_msg(e >= 0 && e < r->experts && !taken[e], "expert %d is not in range, or twice",
		              e);
		taken[e] = true;
		if (has_nan || overflows || vanishes)
			ck_assert_msg(isnan(weight[i]), "weight %g where a logit is not finite",
			              (double)weight[i]);
		else
			ck_assert(x[e] == -INFINITY ? weight[i] == 0 : weight[i] > 0);
		if (!has_nan)
			ck_assert_int_eq(rank_of(x, r->experts, e), i);
	}
}

START_TEST(route_of_what_is_not_finite)
{
	static const int sizes[][2] = {{4, 2}, {9, 9}, {64, 8}, {130, 32}, {1024, 32}};

	FOR_ALL for (size_t s = 0; s < COUNT(sizes) * 2; s++)
	{
		struct device_router r = {
		    (int64_t)COUNT(odd_rows), sizes[s / 2][0], sizes[s / 2][1], 1, s & 1, type};
		_cleanup_free_ double *x = test_values(all_logits(&r), 1);
		int32_t *bexpert = of_bytes(choices(&r), sizeof(*bexpert));
		float *bweight = of_bytes(choices(&r), sizeof(*bweight));
		_cleanup_free_ int32_t *expert = NULL;
		_cleanup_free_ float *weight = NULL;
		void *bx;

		for (int64_t i = 0; i < all_logits(&r); i++) {
			size_t t = (size_t)(i / r.experts);
			int64_t e = i % r.experts;

			x[i] = e == 0                       ? odd_rows[t].first
			       : e % odd_rows[t].every == 0 ? odd_rows[t].some
			                                    : odd_rows[t].others;
		}
		bx = test_buffer(dev, x, all_logits(&r), type);
		device_route(dev, &r, bexpert, bweight, bx);
		expert = fetched(bexpert, choices(&r), sizeof(*expert));
		weight = fetched(bweight, choices(&r), sizeof(*weight));
		for (int64_t t = 0; t < r.tokens; t++)
			check_odd_row(&r, x + t * r.experts, expert + t * r.chosen, weight + t * r.chosen);
		device_free(dev, bx);
		device_free(dev, bexpert);
		device_free(dev, bweight);
	}
}
END_TEST

/* ---- its gradient ---- */
/* The loss of a token's logits, of which one is `by` larger: Σ weight · d_weight + scale · Σ balance ·
 * softmax. */
struct token_loss {
	const struct device_router *r;
	const double *x, *d_weight, *balance; /* NULL: none */
	const int32_t *expert;
	double scale, all, balanced; /* the sums of exp(x), and of balance · exp(x) */
};

static double loss_at(const struct token_loss *l, int which, double by)
{
	double more = exp(l->x[which]) * expm1(by), all = l->all + more, chosen = 0, weighted = 0, balanced;

	for (int i = 0; i < l->r->chosen; i++) {
		int32_t e = l->expert[i];
		double p = exp(l->x[e]) + (e == which ? more : 0);

		chosen += p;
		weighted += p * l->d_weight[i];
	}
	balanced = l->balance ? l->balanced + l->balance[which] * more : 0;
	return weighted / (l->r->normalized ? chosen : all) + l->scale * balanced / all;
}

static void token_gradient(struct token_loss *l, double *d_logits, double *loss)
{
	const double step = 1e-4;

	l->all = exponentials(l->x, l->r->experts);
	l->balanced = 0;
	for (int e = 0; e < l->r->experts && l->balance; e++)
		l->balanced += l->balance[e] * exp(l->x[e]);
	for (int e = 0; e < l->r->experts; e++)
		d_logits[e] = (loss_at(l, e, step) - loss_at(l, e, -step)) / (2 * step);
	*loss = l->balanced / l->all;
}

static void check_gradient(const struct device_router *r, bool balanced, bool in_place)
{
	_cleanup_free_ double *x = logits_of(r), *d = test_values(choices(r), 2),
	                      *balance = test_values(r->experts, 3), *want = test_values(all_logits(r), 4),
	                      *loss = test_values(r->tokens, 5);
	void *bx = test_buffer(dev, x, all_logits(r), r->type),
	     *out = in_place ? bx : test_buffer(dev, want, all_logits(r), r->type);
	int32_t *bexpert = of_bytes(choices(r), sizeof(*bexpert));
	float *bweight = of_bytes(choices(r), sizeof(*bweight)),
	      *bd = test_buffer(dev, d, choices(r), DTYPE_F32),
	      *bbalance = test_buffer(dev, balance, r->experts, DTYPE_F32),
	      *bloss = test_buffer(dev, loss, r->tokens, DTYPE_F32);
	_cleanup_free_ int32_t *expert = NULL;

	device_route(dev, r, bexpert, bweight, bx);
	expert = fetched(bexpert, choices(r), sizeof(*expert));
	device_route_backward(dev, r, out, bx, bexpert, bweight, bd, balanced ? bbalance : NULL, 0.75f,
	                      balanced ? bloss : NULL);
	for (int64_t t = 0; t < r->tokens; t++) {
		struct token_loss l = {.r = r,
		                       .x = x + t * r->experts,
		                       .d_weight = d + t * r->chosen,
		                       .balance = balanced ? balance : NULL,
		                       .expert = expert + t * r->chosen,
		                       .scale = 0.75};
		double of_token;

		token_gradient(&l, want + t * r->experts, &of_token);
		if (balanced)
			loss[t] = of_token;
	}
	test_close(dev, "d_logits", out, want, all_logits(r), r->type, test_tolerance(r->type),
	           r->type == DTYPE_F32 ? 0.5 : 1e-3);
	test_close(dev, "loss", bloss, loss, r->tokens, DTYPE_F32, balanced ? 2e-6 : 0, 1);
	test_close(dev, "balance", bbalance, balance, r->experts, DTYPE_F32, 0, 0);
	test_close(dev, "d_weight", bd, d, choices(r), DTYPE_F32, 0, 0);
	if (!in_place) {
		test_close(dev, "logits", bx, x, all_logits(r), r->type, 0, 0);
		device_free(dev, out);
	}
	device_free(dev, bx);
	device_free(dev, bexpert);
	device_free(dev, bweight);
	device_free(dev, bd);
	device_free(dev, bbalance);
	device_free(dev, bloss);
}

START_TEST(route_backward)
{
	FOR_ALL for (size_t s = 0; s < COUNT(routers) * 8; s++)
	{
		struct device_router r = routers[s / 8];

		r.normalized = s & 1;
		r.type = type;
		check_gradient(&r, s & 2, s & 4);
	}
}
END_TEST

/* ---- places ---- */
enum choice_kind { RANDOM, EVEN_ALONE, FIRST_ALONE, LAST_ALONE, IN_TURN, KINDS };

static int32_t choice_of(enum choice_kind kind, int64_t i, int experts, uint64_t *state)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	switch (kind) {
	case EVEN_ALONE: /* the others have no tokens */
		return (int32_t)((*state >> 33) % (uint64_t)((experts + 1) / 2)) * 2;
	case FIRST_ALONE:
		return 0;
	case LAST_ALONE:
		return experts - 1;
	case IN_TURN:
		return (int32_t)(i % experts);
	default:
		return (int32_t)((*state >> 33) % (uint64_t)experts);
	}
}

static void expect_places(const struct device_router *r, const int32_t *expert, int32_t *starts, int32_t *row,
                          int32_t *place)
{
	_cleanup_free_ int32_t *next = calloc((size_t)r->experts, sizeof(*next));
	int32_t *counts = starts + r->experts + 1;

	memset(starts, 0, (2 * (size_t)r->experts + 1) * sizeof(*starts));
	for (int64_t i = 0; i < choices(r); i++)
		counts[expert[i]]++;
	for (int e = 0; e < r->experts; e++) {
		next[e] = starts[e];
		starts[e + 1] = starts[e] + counts[e];
		while (starts[e + 1] % r->multiple)
			starts[e + 1]++;
	}
	for (int64_t p = 0; p < device_places_most(r); p++)
		row[p] = -1;
	for (int64_t i = 0; i < choices(r); i++) {
		place[i] = next[expert[i]]++;
		row[place[i]] = (int32_t)(i / r->chosen);
	}
}

/* Checks that p has the numbers of want, and that nothing behind its end has changed. */
static void same(const char *what, const int32_t *p, const int32_t *want, int64_t n)
{
	_cleanup_free_ int32_t *got = fetched(p, n, sizeof(*got));

	for (int64_t i = 0; i < n; i++)
		ck_assert_msg(got[i] == want[i], "%s[%lld of %lld] is %d, not %d", what, (long long)i,
		              (long long)n, got[i], want[i]);
}

static void check_places(const struct device_router *r, enum choice_kind kind)
{
	int64_t n = choices(r), most = device_places_most(r), of_starts = 2 * (int64_t)r->experts + 1;
	size_t size = sizeof(int32_t), all = (size_t)(most + of_starts) * size;
	_cleanup_free_ int32_t *expert = malloc(all), *starts = malloc(all), *row = malloc(all),
	                       *place = malloc(all);
	int32_t *bexpert, *bstarts, *brow, *bplace;
	uint64_t state = 7;

	for (int64_t i = 0; i < n; i++)
		expert[i] = choice_of(kind, i, r->experts, &state);
	memset(starts, 0x77, all);
	bexpert = test_put(dev, expert, (size_t)n * size);
	bstarts = test_put(dev, starts, (size_t)of_starts * size);
	brow = test_put(dev, starts, (size_t)most * size);
	bplace = test_put(dev, starts, (size_t)n * size);
	device_expert_places(dev, r, bstarts, brow, bplace, bexpert);
	expect_places(r, expert, starts, row, place);
	ck_assert(starts[r->experts] <= most);
	same("starts", bstarts, starts, of_starts);
	same("row", brow, row, most);
	same("place", bplace, place, n);
	same("expert", bexpert, expert, n);
	device_free(dev, bexpert);
	device_free(dev, bstarts);
	device_free(dev, brow);
	device_free(dev, bplace);
}

/* The CUDA kernels have one chunk for up to 2047 choices, then more; the last size has the largest number of
 * chunks, of which some are longer. */
START_TEST(places)
{
	static const struct device_router sizes[] = {
	    {0, 8, 2, 1, false, 0},    {1, 1, 1, 1, false, 0},      {1, 64, 8, 1, false, 0},
	    {1, 4, 4, 1, false, 0},    {31, 7, 1, 1, false, 0},     {50, 33, 3, 1, false, 0},
	    {2047, 5, 1, 1, false, 0}, {256, 128, 8, 1, false, 0},  {2049, 3, 1, 1, false, 0},
	    {0, 1024, 3, 1, false, 0}, {700, 1024, 3, 1, false, 0}, {601, 60, 6, 1, false, 0},
	    {3000, 1, 1, 1, false, 0}, {5, 1024, 32, 1, false, 0},  {131072 + 77, 60, 8, 1, false, 0}};
	static const int multiples[] = {1, 2, 16, 64};

	for (threads = 1; threads <= 3; threads += 2) {
		setup();
		for (size_t s = 0; s < COUNT(sizes) * COUNT(multiples); s++) {
			struct device_router r = sizes[s / COUNT(multiples)];

			r.multiple = multiples[s % COUNT(multiples)];
			for (int kind = 0; kind < (choices(&r) > 100000 ? 1 : KINDS); kind++)
				check_places(&r, (enum choice_kind)kind);
		}
		teardown();
	}
}
END_TEST

/* ---- rows ---- */
static const struct {
	int64_t tokens;
	int chosen, cols;
} row_sizes[] = {{1, 1, 1},   {5, 2, 3},    {3, 8, 8},    {4, 4, 33},   {7, 9, 64},
                 {2, 5, 100}, {2, 32, 257}, {3, 3, 1000}, {40, 2, 520}, {1, 2, 2051}};

/* There are more places than choices. */
static int64_t some_places(int64_t choices)
{
	return choices + choices / 3 + 1;
}

/* Each of n numbers once, in an order that is neither theirs nor its opposite. */
static int32_t *permutation(int64_t n)
{
	int32_t *place = malloc((size_t)n * sizeof(*place));
	uint64_t state = 3;

	for (int64_t i = 0; i < n; i++) {
		int64_t j;

		state = state * 6364136223846793005ull + 1442695040888963407ull;
		j = (int64_t)((state >> 33) % (uint64_t)(i + 1));
		place[i] = place[j];
		place[j] = (int32_t)i;
	}
	return place;
}

/* A sum is rounded once: that of fp32 numbers is then off by less than 1e-5. */
static void close_to_sum(const char *what, const void *p, const double *want, int64_t n)
{
	test_close(dev, what, p, want, n, type,
	           type == DTYPE_F32    ? 2e-6
	           : type == DTYPE_BF16 ? 0x1p-8
	                                : 0x1p-11,
	           type == DTYPE_F32    ? 3
	           : type == DTYPE_BF16 ? 2e-3
	                                : 0.02);
}

/* Rows of x, in any order and some of them more than once, and rows of zeros. */
START_TEST(gathering)
{
	FOR_ALL for (size_t s = 0; s < COUNT(row_sizes); s++)
	{
		struct device_router r = {row_sizes[s].tokens, 64, row_sizes[s].chosen, 1, false, type};
		int64_t n = some_places(choices(&r)), cols = row_sizes[s].cols;
		_cleanup_free_ double *x = test_values(r.tokens * cols, 1), *y = test_values(n * cols, 2);
		_cleanup_free_ int32_t *row = permutation(n);
		void *bx = test_buffer(dev, x, r.tokens * cols, type),
		     *by = test_buffer(dev, y, n * cols, type);
		int32_t *brow;

		for (int64_t p = 0; p < n; p++) {
			row[p] = row[p] % 4 == 3 ? -1 : row[p] % (int32_t)r.tokens;
			for (int64_t j = 0; j < cols; j++)
				y[p * cols + j] = row[p] < 0 ? 0 : x[row[p] * cols + j];
		}
		brow = test_put(dev, row, (size_t)n * sizeof(*row));
		device_expert_rows(dev, &r, by, bx, brow, n, (int)cols);
		test_close(dev, "y", by, y, n * cols, type, 0, 0);
		test_close(dev, "x", bx, x, r.tokens * cols, type, 0, 0);
		same("row", brow, row, n);
		device_free(dev, bx);
		device_free(dev, by);
		device_free(dev, brow);
	}
}
END_TEST

START_TEST(sums_of_rows)
{
	FOR_ALL for (size_t s = 0; s < COUNT(row_sizes) * 2; s++)
	{
		struct device_router r = {
		    row_sizes[s / 2].tokens, 64, row_sizes[s / 2].chosen, 1, false, type};
		int64_t n = choices(&r), cols = row_sizes[s / 2].cols, all = some_places(n) * cols;
		_cleanup_free_ double *x = test_values(all, 1), *weight = test_values(n, 2),
		                      *y = test_values(r.tokens * cols, 3);
		_cleanup_free_ int32_t *place = permutation(some_places(n));
		void *bx = test_buffer(dev, x, all, type), *by = test_buffer(dev, y, r.tokens * cols, type);
		float *bweight = test_buffer(dev, weight, n, DTYPE_F32);
		int32_t *bplace = test_put(dev, place, (size_t)n * sizeof(*place));

		device_expert_sum(dev, &r, by, bx, bplace, s & 1 ? bweight : NULL, (int)cols);
		for (int64_t i = 0; i < r.tokens * cols; i++) {
			int64_t t = i / cols;

			y[i] = 0;
			for (int64_t k = t * r.chosen; k < (t + 1) * r.chosen; k++)
				y[i] += (s & 1 ? weight[k] : 1) * x[place[k] * cols + i % cols];
		}
		close_to_sum("sum", by, y, r.tokens * cols);
		test_close(dev, "x", bx, x, all, type, 0, 0);
		device_free(dev, bx);
		device_free(dev, by);
		device_free(dev, bweight);
		device_free(dev, bplace);
	}
}
END_TEST

START_TEST(weighing)
{
	FOR_ALL for (size_t s = 0; s < COUNT(row_sizes); s++)
	{
		struct device_router r = {row_sizes[s].tokens, 64, row_sizes[s].chosen, 1, false, type};
		int64_t n = choices(&r), cols = row_sizes[s].cols, all = some_places(n) * cols;
		_cleanup_free_ double *x = test_values(all, 1), *d = test_values(all, 2),
		                      *weight = test_values(n, 3), *d_weight = test_values(n, 4);
		_cleanup_free_ int32_t *place = permutation(some_places(n));
		void *bx = test_buffer(dev, x, all, type), *bd = test_buffer(dev, d, all, type);
		float *bweight = test_buffer(dev, weight, n, DTYPE_F32),
		      *bd_weight = test_buffer(dev, d_weight, n, DTYPE_F32);
		int32_t *bplace = test_put(dev, place, (size_t)n * sizeof(*place));

		device_expert_weigh(dev, &r, bd_weight, bd, bx, bplace, bweight, (int)cols);
		for (int64_t k = 0; k < n; k++) {
			d_weight[k] = 0;
			for (int64_t i = place[k] * cols; i < (place[k] + 1) * cols; i++) {
				d_weight[k] += d[i] * x[i];
				/* In fp32, then as it is stored: exactly. */
				d[i] = test_rounded((float)(d[i] * weight[k]), type);
				x[i] = test_rounded((float)(x[i] * weight[k]), type);
			}
		}
		test_close(dev, "d_weight", bd_weight, d_weight, n, DTYPE_F32, 4e-6, sqrt((double)cols));
		test_close(dev, "d", bd, d, all, type, 0, 0);
		test_close(dev, "x", bx, x, all, type, 0, 0);
		test_close(dev, "weight", bweight, weight, n, DTYPE_F32, 0, 0);
		device_free(dev, bx);
		device_free(dev, bd);
		device_free(dev, bweight);
		device_free(dev, bd_weight);
		device_free(dev, bplace);
	}
}
END_TEST

/* ---- no tokens, and too many experts ---- */
START_TEST(no_tokens)
{
	FOR_ALL
	{
		struct device_router r = {0, 16, 2, 1, true, type};
		char *b[9];

		for (int i = 0; i < 9; i++)
			b[i] = test_put(dev, "", 0);
		device_route(dev, &r, (int32_t *)b[0], (float *)b[1], b[2]);
		device_expert_rows(dev, &r, b[2], b[3], (int32_t *)b[0], 0, 24);
		device_expert_sum(dev, &r, b[2], b[3], (int32_t *)b[0], (float *)b[1], 24);
		device_expert_weigh(dev, &r, (float *)b[4], b[2], b[3], (int32_t *)b[0], (float *)b[1], 24);
		device_route_backward(dev, &r, b[5], b[2], (int32_t *)b[0], (float *)b[1], (float *)b[4],
		                      (float *)b[6], 1, (float *)b[7]);
		for (int i = 0; i < 9; i++) {
			test_guard(dev, "nothing", b[i], 0);
			device_free(dev, b[i]);
		}
	}
}
END_TEST

/* More experts, or more choices, than the engines have room for are a fault, and nothing is written. */
START_TEST(too_many_are_refused)
{
	static const struct device_router wrong[] = {{3, DEVICE_EXPERTS_MAX + 1, 2, 1, false, DTYPE_F32},
	                                             {3, 64, DEVICE_CHOSEN_MAX + 1, 1, false, DTYPE_F32},
	                                             {3, 4, 5, 1, false, DTYPE_F32}};
	struct error err = ERROR_INIT;

	threads = 1;
	setup();
	for (size_t i = 0; i < COUNT(wrong); i++) {
		char *nothing = test_put(dev, "", 0);

		device_route(dev, &wrong[i], (int32_t *)nothing, (float *)nothing, nothing);
		ck_fails(device_synchronize(dev, &err), &err, "can be chosen");
		device_route_backward(dev, &wrong[i], nothing, nothing, (int32_t *)nothing, (float *)nothing,
		                      (float *)nothing, NULL, 1, NULL);
		ck_fails(device_synchronize(dev, &err), &err, "can be chosen");
		device_expert_places(dev, &wrong[i], (int32_t *)nothing, (int32_t *)nothing,
		                     (int32_t *)nothing, (int32_t *)nothing);
		ck_fails(device_synchronize(dev, &err), &err, "can be chosen");
		test_guard(dev, "nothing", nothing, 0);
		device_free(dev, nothing);
	}
	teardown();
}
END_TEST

TCase *test_device_experts(void)
{
	TCase *tc = tcase_create("experts");

	tcase_set_timeout(tc, 120);
	tcase_set_tags(tc, "small"); /* compute-sanitizer runs these */
	tcase_add_test(tc, route);
	tcase_add_test(tc, route_of_what_is_not_finite);
	tcase_add_test(tc, route_backward);
	tcase_add_test(tc, places);
	tcase_add_test(tc, gathering);
	tcase_add_test(tc, sums_of_rows);
	tcase_add_test(tc, weighing);
	tcase_add_test(tc, no_tokens);
	tcase_add_test(tc, too_many_are_refused);
	return tc;
}

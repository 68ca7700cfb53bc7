/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the rates of a device: each operation at each size, several times. One thread is timed by the
 * processor's time, of which the median counts; all else by the clock, of which the fastest does, since what
 * else runs on the machine only makes one slower. */
#include "engine/train/measure.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

enum {
	LONGEST = 2048,
	HEADS = 8,
	KV_HEADS = 4,
	SMALL = 1 << 20,
	LEAST_REPEATS = 3,
	MOST_REPEATS = 60,
	LEAST_LINKS = 9,
	LINK_TRIES = 5,
	MOST_AT_ONCE = 8 /* collectives one behind the other */
};
#define ENOUGH_SECONDS 0.02
#define VALUES         ((size_t)96 << 20)
#define PASSED         ((size_t)8 << 20) /* more than a processor's own caches hold */

struct bench {
	struct device *dev;
	clockid_t clock;
	char *passed; /* [PASSED]; NULL: a GPU */
	enum dtype type;
	char *a, *b;  /* [VALUES] and [VALUES / 2] bytes */
	float *c;     /* [VALUES] bytes */
	float *small; /* [SMALL] lse, statistics, tables */
	int32_t *ids; /* [LONGEST] starts, positions, targets */
	int64_t m, n, k;
	enum rate_product product;
	enum rate_operation operation;
	bool backward;
	int64_t row, width, cols;
};

static void run_product(struct bench *b)
{
	bool forward = b->product == RATE_PRODUCT_FORWARD, weight = b->product == RATE_PRODUCT_WEIGHT;
	struct device_gemm g = {.transpose_a = weight,
	                        .transpose_b = forward,
	                        .m = b->m,
	                        .n = b->n,
	                        .k = b->k,
	                        .alpha = 1,
	                        .a = b->a,
	                        .b = b->b,
	                        .c = b->c,
	                        .lda = weight ? b->m : b->k,
	                        .ldb = forward ? b->k : b->n,
	                        .ldc = b->n,
	                        .ab_type = b->type,
	                        .c_type = weight ? DTYPE_F32 : b->type};

	device_gemm(b->dev, &g);
}

static void run_attention(struct bench *b)
{
	int64_t q = HEADS * b->width, kv = KV_HEADS * b->width, ld = q + 2 * kv;
	size_t size = dtype_size(b->type), at_k = (size_t)q * size, at_v = (size_t)(q + kv) * size;
	int32_t starts[2] = {0, (int32_t)b->row};
	struct device_attention a = {.tokens = b->row,
	                             .heads = HEADS,
	                             .kv_heads = KV_HEADS,
	                             .head_dim = (int)b->width,
	                             .scale = 1 / sqrtf((float)b->width),
	                             .documents = 1,
	                             .starts = b->ids,
	                             .host_starts = starts,
	                             .ld_q = ld,
	                             .ld_k = ld,
	                             .ld_v = ld,
	                             .ld_o = q,
	                             .type = b->type};
	char *d = (char *)b->c;

	if (b->backward)
		device_attention_backward(b->dev, &a, d, d + at_k, d + at_v, b->b, b->b, b->small, b->a,
		                          b->a + at_k, b->a + at_v);
	else
		device_attention_forward(b->dev, &a, d, b->small, b->a, b->a + at_k, b->a + at_v);
}

/* Bytes of an operation for each element of its width: as cost.c counts them. */
static double operation_bytes(enum rate_operation op, enum dtype type)
{
	static const double elements[RATE_OPERATIONS] = {
	    [RATE_NORM] = 4,   [RATE_NORM_BACKWARD] = 4,   [RATE_ROTATION] = 2,
	    [RATE_SWIGLU] = 3, [RATE_SWIGLU_BACKWARD] = 6, [RATE_LOSS] = 3,
	    [RATE_COPY] = 2};

	if (op == RATE_OPTIMIZER)
		return type == DTYPE_F32 ? 28 : 30;
	return elements[op] * (double)dtype_size(type);
}

static void run_operation(struct bench *b)
{
	const struct device_norm norm = {.rows = b->m,
	                                 .groups = 1,
	                                 .cols = (int)b->cols,
	                                 .ld_x = b->cols,
	                                 .ld_y = b->cols,
	                                 .eps = 1e-5f,
	                                 .type = b->type};
	const struct device_adamw adamw = {
	    .learning_rate = 1e-4, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8, .step = 10};
	const struct device_rope rope = {.tokens = b->m,
	                                 .ld = b->cols,
	                                 .heads = (int)(b->cols / 128),
	                                 .head_dim = 128,
	                                 .rotary_dim = 128,
	                                 .positions = b->ids,
	                                 .cos = b->small,
	                                 .sin = b->small,
	                                 .type = b->type};
	int64_t n = b->m * b->cols;
	char *c = (char *)b->c;
	float *state = b->c;

	switch (b->operation) {
	case RATE_NORM:
		device_add_rmsnorm_forward(b->dev, &norm, c, b->small, b->b, b->a, b->small);
		break;
	case RATE_NORM_BACKWARD:
		device_rmsnorm_backward(b->dev, &norm, c, true, b->small + LONGEST, DTYPE_F32, b->b, b->a,
		                        b->small, b->small);
		break;
	case RATE_ROTATION:
		device_rope(b->dev, &rope, c);
		break;
	case RATE_SWIGLU:
		device_swiglu_forward(b->dev, c, b->a, b->m, (int)b->cols, b->type, NULL);
		break;
	case RATE_SWIGLU_BACKWARD:
		device_swiglu_backward(b->dev, b->a, c, b->b, b->a, b->m, (int)b->cols, b->type, NULL);
		break;
	case RATE_LOSS:
		device_cross_entropy(b->dev, c, b->type, b->ids, b->m, b->cols, 1, NULL, b->small, true);
		break;
	case RATE_OPTIMIZER:
		device_adamw(b->dev, state, b->type == DTYPE_F32 ? NULL : b->a, b->type, state + n, DTYPE_F32,
		             state + 2 * n, state + 3 * n, n, NULL, &adamw);
		break;
	default:
		device_copy(b->dev, c, b->a, (size_t)n * dtype_size(b->type));
	}
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

double measure_median(double *seconds, size_t n)
{
	qsort(seconds, n, sizeof(*seconds), by_value);
	return seconds[n / 2];
}

/* Seconds of a call. */
static int measure(struct bench *b, void (*run)(struct bench *), double *seconds, struct error *err)
{
	double each[MOST_REPEATS], all = 0, begun;
	int n = 0, r;

	run(b);
	if ((r = device_synchronize(b->dev, err)) < 0)
		return r;
	for (; n < MOST_REPEATS && (n < LEAST_REPEATS || all < ENOUGH_SECONDS); n++) {
		/* Between two steps of the optimizer the whole model goes through the caches; between two
		 * uses of the same weights or activations, others do. */
		if (run == run_operation && b->operation == RATE_OPTIMIZER)
			device_zero(b->dev, b->b, VALUES / 2);
		else if (b->passed)
			device_zero(b->dev, b->passed, PASSED);
		if ((r = device_synchronize(b->dev, err)) < 0)
			return r;
		begun = clock_seconds(b->clock);
		run(b);
		if ((r = device_synchronize(b->dev, err)) < 0)
			return r;
		each[n] = clock_seconds(b->clock) - begun;
		all += each[n];
	}
	qsort(each, (size_t)n, sizeof(*each), by_value);
	*seconds = MAX(each[b->clock == CLOCK_PROCESS_CPUTIME_ID ? n / 2 : 0], 1e-9);
	return 0;
}

static int measure_products(struct bench *b, double rates[][RATE_LENGTHS * RATE_LENGTHS * RATE_LENGTHS],
                            struct error *err)
{
	double seconds;
	int r;

	for (int kind = 0; kind < RATE_PRODUCTS; kind++)
		for (int i = 0; i < RATE_LENGTHS * RATE_LENGTHS * RATE_LENGTHS; i++) {
			b->product = (enum rate_product)kind;
			b->m = rate_lengths[i / RATE_LENGTHS / RATE_LENGTHS];
			b->n = rate_lengths[i / RATE_LENGTHS % RATE_LENGTHS];
			b->k = rate_lengths[i % RATE_LENGTHS];
			if ((r = measure(b, run_product, &seconds, err)) < 0)
				return r;
			rates[kind][i] = 2.0 * (double)(b->m * b->n * b->k) / seconds;
		}
	return 0;
}

static int measure_attention(struct bench *b, double rates[][RATE_WIDTHS * RATE_LENGTHS], struct error *err)
{
	double seconds;
	int r;

	for (int backward = 0; backward < 2; backward++)
		for (int i = 0; i < RATE_WIDTHS * RATE_LENGTHS; i++) {
			int32_t starts[2];

			b->backward = backward;
			b->width = rate_widths[i / RATE_LENGTHS];
			b->row = rate_lengths[i % RATE_LENGTHS];
			starts[0] = 0;
			starts[1] = (int32_t)b->row;
			if ((r = device_write(b->dev, b->ids, starts, sizeof(starts), err)) < 0 ||
			    (r = measure(b, run_attention, &seconds, err)) < 0)
				return r;
			rates[backward][i] = 2.0 * (double)(b->row * b->row * HEADS * b->width) *
			                     (backward ? 2.5 : 1) / seconds;
		}
	return 0;
}

static int measure_operations(struct bench *b, double rates[][RATE_LENGTHS], struct error *err)
{
	double seconds;
	int r;

	device_zero(b->dev, b->ids, LONGEST * sizeof(int32_t));
	for (int op = 0; op < RATE_OPERATIONS; op++)
		for (int i = 0; i < RATE_LENGTHS; i++) {
			double bytes = operation_bytes((enum rate_operation)op, b->type), elements;

			b->operation = (enum rate_operation)op;
			elements = (double)rate_bytes[i] / bytes;
			/* Rows of 128 to LONGEST elements, LONGEST of them at most. */
			b->cols = (int64_t)(elements / LONGEST) / 128 * 128;
			b->cols = MIN(MAX(b->cols, 128), LONGEST);
			b->m = MAX((int64_t)(elements / (double)b->cols), 1);
			b->m = op == RATE_OPTIMIZER ? b->m : MIN(b->m, LONGEST);
			if ((r = measure(b, run_operation, &seconds, err)) < 0)
				return r;
			rates[op][i] = bytes * (double)(b->m * b->cols) / seconds;
		}
	return 0;
}

static int fill(struct bench *b, struct error *err)
{
	static const uint16_t pattern[] = {0x3c00, 0xbc01, 0x3c85, 0xbcc7}; /* small numbers in either type */
	_cleanup_free_ uint16_t *values = malloc(VALUES);
	int r;

	if (!values)
		return error_oom(err);
	for (size_t i = 0; i < VALUES / sizeof(*values); i++)
		values[i] = pattern[i % ARRAY_SIZE(pattern)];
	if ((r = device_write(b->dev, b->a, values, VALUES, err)) < 0 ||
	    (r = device_write(b->dev, b->b, values, VALUES / 2, err)) < 0)
		return r;
	return device_write(b->dev, b->small, values, SMALL * sizeof(float), err);
}

static int reserve(struct device *dev, enum dtype type, struct error *err)
{
	size_t most = 0;

	/* The longest row, and the widest product. */
	for (int wide = 0; wide < 2; wide++) {
		const struct device_shapes s = {.tokens = LONGEST,
		                                .max_sequence = LONGEST,
		                                .hidden = LONGEST,
		                                .intermediate = LONGEST,
		                                .heads = HEADS,
		                                .kv_heads = KV_HEADS,
		                                .head_dim = (int)rate_widths[wide],
		                                .vocab = LONGEST,
		                                .logits_rows = LONGEST,
		                                .type = type};
		size_t bytes = device_scratch_bytes(dev, &s);

		most = MAX(most, bytes);
	}
	return device_reserve_scratch(dev, most, err);
}

int rates_measure(struct device *dev, struct rate_set *out, struct error *err)
{
	const size_t sizes[] = {VALUES, VALUES / 2, VALUES, SMALL * sizeof(float), LONGEST * sizeof(int32_t),
	                        PASSED};
	struct bench b = {.dev = dev,
	                  .clock = out->threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC};
	void *memory[ARRAY_SIZE(sizes)] = {NULL};
	int r = 0;

	for (size_t i = 0; i < ARRAY_SIZE(sizes) && r == 0; i++)
		r = device_alloc(dev, sizes[i], &memory[i], err);
	b.a = memory[0];
	b.b = memory[1];
	b.c = memory[2];
	b.small = memory[3];
	b.ids = memory[4];
	b.passed = out->threads > 0 ? memory[5] : NULL;
	for (int t = 0; t < RATE_TYPES && r == 0; t++) {
		b.type = (enum dtype)t;
		/* A CPU computes in every type, in some with detours, which are measured too. */
		out->has[t] = out->threads > 0 || device_supports(dev, b.type);
		if (!out->has[t])
			continue;
		if ((r = fill(&b, err)) < 0 || (r = reserve(dev, b.type, err)) < 0 ||
		    (r = measure_products(&b, out->product[t], err)) < 0 || (r = fill(&b, err)) < 0 ||
		    (r = measure_attention(&b, out->attention[t], err)) < 0 || (r = fill(&b, err)) < 0)
			break;
		r = measure_operations(&b, out->operation[t], err);
	}
	for (size_t i = 0; i < ARRAY_SIZE(sizes); i++)
		if (memory[i])
			device_free(dev, memory[i]);
	return r;
}

/* ---- collectives ---- */

/* Of the computation that a collective is measured beside. */
enum { SIDE = 256, COMPUTES_MOST = 400 };
#define LEAST_COMPUTED 1e-3

struct link_bench {
	struct device *dev;
	struct comm *comm;
	bool reduce;
	int at_once; /* collectives that are queued behind each other, as those of a pass are */
	void *buffer;
	float *side; /* [3][SIDE][SIDE] */
	int64_t shard;
};

static void compute(struct link_bench *b, int times)
{
	const struct device_gemm g = {.m = SIDE,
	                              .n = SIDE,
	                              .k = SIDE,
	                              .alpha = 1,
	                              .a = b->side,
	                              .b = b->side + SIDE * SIDE,
	                              .c = b->side + 2 * SIDE * SIDE,
	                              .lda = SIDE,
	                              .ldb = SIDE,
	                              .ldc = SIDE,
	                              .ab_type = DTYPE_F32,
	                              .c_type = DTYPE_F32};

	for (int i = 0; i < times; i++)
		device_gemm(b->dev, &g);
}

/* Seconds of so much computation, which all ranks begin at the same time, with the collectives beside it or
 * without: the median. */
static int measure_beside(struct link_bench *b, int times, bool collectives, int rounds, double *seconds,
                          struct error *err)
{
	double each[MOST_REPEATS];
	int r = 0;

	for (int k = 0; k < rounds && r == 0; k++) {
		comm_ticket ticket = 0;
		double begun;

		if ((r = comm_wait(b->comm, comm_barrier(b->comm), err)) < 0)
			break;
		begun = clock_monotonic();
		for (int i = 0; i < b->at_once && collectives; i++)
			ticket = b->reduce
			             ? comm_reduce_scatter(b->comm, b->buffer, b->shard, DTYPE_F32, COMM_SUM)
			             : comm_all_gather(b->comm, b->buffer, b->shard, DTYPE_F32);
		compute(b, times);
		r = ticket ? comm_wait(b->comm, ticket, err) : device_synchronize(b->dev, err);
		each[k] = clock_monotonic() - begun;
	}
	*seconds = measure_median(each, (size_t)rounds);
	return r;
}

/* Bytes a second of a collective: by how much it lengthens a computation on all ranks, but no faster than
 * when nothing is computed. Of small ones several are measured together: what the start and the end of one
 * alone take is as long as they are. */
static int measure_link(struct link_bench *b, int rounds, double *rate, struct error *err)
{
	double alone, once, with, without, numbers[2];
	int times, r;

	if ((r = measure_beside(b, 0, true, rounds, &alone, err)) < 0 ||
	    (r = measure_beside(b, 1, false, rounds, &once, err)) < 0)
		return r;
	/* As much on each rank. */
	numbers[0] = alone;
	numbers[1] = once;
	if ((r = device_write(b->dev, b->buffer, numbers, sizeof(numbers), err)) < 0 ||
	    (r = comm_wait(b->comm, comm_broadcast(b->comm, b->buffer, sizeof(numbers), 0), err)) < 0 ||
	    (r = device_read(b->dev, numbers, b->buffer, sizeof(numbers), err)) < 0)
		return r;
	times = (int)MIN(MAX(2 * numbers[0], LEAST_COMPUTED) / MAX(numbers[1], 1e-6) + 1, COMPUTES_MOST);
	if ((r = measure_beside(b, times, false, rounds, &without, err)) < 0 ||
	    (r = measure_beside(b, times, true, rounds, &with, err)) < 0)
		return r;
	*rate = (double)b->shard * sizeof(float) * (comm_size(b->comm) - 1) * b->at_once /
	        MAX(MAX(with - without, alone), 1e-9);
	return 0;
}

int rates_measure_links(struct device *dev, struct comm *comm, double gather[RATE_LENGTHS],
                        double reduce[RATE_LENGTHS], struct error *err)
{
	struct link_bench b = {.dev = dev, .comm = comm};
	double tries[LINK_TRIES] = {0}; /* a difference of two times, which scatters by a factor of two */
	void *side = NULL;
	int r;

	if ((r = device_alloc(dev, (size_t)rate_bytes[RATE_LENGTHS - 1], &b.buffer, err)) == 0 &&
	    (r = device_alloc(dev, 3 * SIDE * SIDE * sizeof(float), &side, err)) == 0) {
		b.side = side;
		device_zero(dev, side, 3 * SIDE * SIDE * sizeof(float));
		device_zero(dev, b.buffer, (size_t)rate_bytes[RATE_LENGTHS - 1]);
	}
	for (int i = 0; i < 2 * RATE_LENGTHS && r == 0; i++) {
		b.reduce = i >= RATE_LENGTHS;
		b.shard = rate_bytes[i % RATE_LENGTHS] / (int64_t)sizeof(float) / comm_size(comm);
		b.at_once = MOST_AT_ONCE >> i % RATE_LENGTHS;
		for (int k = 0; k < LINK_TRIES && r == 0; k++)
			/* Fewer of the large ones. */
			r = measure_link(&b, MAX(MOST_REPEATS >> i % RATE_LENGTHS, LEAST_LINKS), &tries[k],
			                 err);
		(b.reduce ? reduce : gather)[i % RATE_LENGTHS] = measure_median(tries, LINK_TRIES);
	}
	if (r == 0)
		r = comm_flush(comm, err);
	if (b.buffer)
		device_free(dev, b.buffer);
	if (side)
		device_free(dev, side);
	return r;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Muon: the momentum of a matrix of a block, made nearly orthogonal by five steps of Newton and Schulz, is
 * the direction. Embedding, head, norms and biases are AdamW's.
 *
 * The iteration needs a whole matrix. Where gradients are sharded, each rank's part of the momentum is
 * gathered into the unit's gradients, and each rank then works on those matrices of which it steps a part:
 * together hardly more than one rank alone would compute, since a rank's part of a unit is contiguous.
 */
#include <math.h>

#include "engine/optim/internal.h"

/* Of Jordan's quintic, which brings singular values close to 1 quickly rather than exactly. */
#define QUINTIC_A  3.4445
#define QUINTIC_B  (-4.775)
#define QUINTIC_C  2.0315
#define ITERATIONS 5
#define LEAST_NORM 1e-7
/* Liu et al. 2025: the size of AdamW's usual update. */
#define UPDATE_RMS 0.2

/* The three products of a step of the iteration. */
enum product { GRAM, SQUARE, NEXT, PRODUCTS };

/* Of x[rows, cols], with matrices that are stored without gaps: a = x·xᵀ on the shorter side, b = B·b +
 * C·a·a, next = A·next + b·x. */
static struct device_gemm describe(const struct optimizer *o, enum product which, int64_t rows, int64_t cols,
                                   const void *x, void *next)
{
	bool wide = rows <= cols;
	int64_t side = MIN(rows, cols);
	void *a = o->square[0], *b = o->square[1];
	struct device_gemm g = {.ab_type = o->matrix_type, .c_type = o->matrix_type};

	switch (which) {
	case GRAM:
		g.transpose_a = !wide;
		g.transpose_b = wide;
		g.m = g.n = g.ldc = side;
		g.k = MAX(rows, cols);
		g.alpha = 1;
		g.a = g.b = x;
		g.c = a;
		g.lda = g.ldb = cols;
		break;
	case SQUARE:
		g.m = g.n = g.k = g.lda = g.ldb = g.ldc = side;
		g.alpha = (float)QUINTIC_C;
		g.beta = (float)QUINTIC_B;
		g.a = g.b = a;
		g.c = b;
		break;
	default:
		g.m = rows;
		g.n = g.ldc = cols;
		g.k = side;
		g.alpha = 1;
		g.beta = (float)QUINTIC_A;
		g.a = wide ? b : x;
		g.b = wide ? x : b;
		g.c = next;
		g.lda = side;
		g.ldb = cols;
	}
	return g;
}

static void multiply(struct optimizer *o, enum product which, int64_t rows, int64_t cols, const void *x,
                     void *next)
{
	struct device_gemm g = describe(o, which, rows, cols, x, next);

	device_gemm(o->s->dev, &g);
}

void optimizer_products(const struct optimizer *o, model_product_fn each, void *context)
{
	for (int i = 0; i < o->layout->parameters && o->kind == OPTIMIZER_MUON; i++) {
		const struct model_parameter *p = &o->layout->parameter[i];

		for (int which = 0; !p->frozen && muon_takes(o, p) && which < PRODUCTS; which++) {
			struct device_gemm g = describe(o, (enum product)which, p->shape[0], p->shape[1],
			                                o->matrix[0], o->matrix[1]);

			each(context, &g);
		}
	}
}

/* Replaces a momentum of the given norm by the nearest orthogonal matrix, about. */
static void orthogonalize(struct optimizer *o, float *momentum, int64_t rows, int64_t cols, double norm)
{
	struct device *dev = o->s->dev;
	enum dtype type = o->matrix_type;
	size_t size = dtype_size(type);
	int64_t count = rows * cols, side = MIN(rows, cols);
	char *x = o->matrix[0], *next = o->matrix[1], *a = o->square[0], *b = o->square[1];

	/* Scaled before it is rounded, so that small values do not become subnormal. */
	device_scale(dev, momentum, DTYPE_F32, (float)(1 / (norm + LEAST_NORM)), count);
	device_cast(dev, x, type, momentum, DTYPE_F32, count);
	for (int i = 0; i < ITERATIONS; i++) {
		char *last = x;

		multiply(o, GRAM, rows, cols, x, next);
		device_copy(dev, b, a, (size_t)(side * side) * size);
		multiply(o, SQUARE, rows, cols, x, next);
		device_copy(dev, next, x, (size_t)count * size);
		multiply(o, NEXT, rows, cols, x, next);
		x = next;
		next = last;
	}
	device_cast(dev, momentum, DTYPE_F32, x, type, count);
}

/* The momentum of this rank's part of the matrices takes the place of their gradients; all else is
 * stepped. */
static void step_others(struct optimizer *o, const struct optimizer_options *options, const float *grad_scale)
{
	for (int i = 0; i < o->layout->parameters; i++) {
		const struct model_parameter *p = &o->layout->parameter[i];
		struct own_range range = optimizer_parameter(o->s, p);

		if (p->frozen)
			continue;
		if (!muon_takes(o, p))
			optimizer_adamw(o->s, &range, options, grad_scale, optimizer_rate(options, p),
			                optimizer_decay(options, p), 0, 0);
		else
			optimizer_update(o->s, &range, options, grad_scale,
			                 (struct device_update){.rule = DEVICE_MEAN,
			                                        .beta1 = options->momentum,
			                                        .ratio = 1,
			                                        .nesterov = options->nesterov});
		if (muon_takes(o, p) && range.n > 0)
			device_sum_squares(o->s->dev, range.gradient, DTYPE_F32, range.n, &o->sums[2 * i]);
	}
}

/* Orthogonalizes the matrices of a block of which this rank steps a part, and steps that part. whole: the
 * momentum of all of the block. */
static void step_block(struct optimizer *o, int unit, float *whole, const struct optimizer_options *options)
{
	for (int i = 0; i < o->layout->parameters; i++) {
		const struct model_parameter *p = &o->layout->parameter[i];
		struct own_range range = optimizer_parameter(o->s, p);

		if (p->frozen)
			continue;
		if (p->unit != unit || !muon_takes(o, p) || range.n == 0)
			continue;
		orthogonalize(o, whole + p->offset, p->shape[0], p->shape[1], sqrt(o->host_sums[2 * i]));
		range.gradient = whole + p->offset + range.first;
		optimizer_update(o->s, &range, options, NULL,
		                 (struct device_update){
		                     .rule = DEVICE_APPLY,
		                     .learning_rate = optimizer_rate(options, p),
		                     .weight_decay = optimizer_decay(options, p),
		                     .ratio = UPDATE_RMS * sqrt((double)MAX(p->shape[0], p->shape[1]))});
	}
}

int optimizer_muon(struct optimizer *o, const struct optimizer_options *options, const float *grad_scale,
                   struct error *err)
{
	struct shard *s = o->s;
	int r;

	optimizer_sums_start(o);
	step_others(o, options, grad_scale);
	if ((r = optimizer_sums_finish(o, err)) < 0)
		return r;
	for (int i = 0; i < s->units; i++) {
		struct shard_unit *u = &s->unit[i];

		if (!muon_steps(o, i))
			continue;

		if (s->degree > 1 && (r = comm_wait(s->gather,
		                                    comm_all_gather_into(s->gather, o->momentum,
		                                                         u->own_gradients, u->own, DTYPE_F32),
		                                    err)) < 0)
			return r;
		step_block(o, i, s->degree > 1 ? o->momentum : u->own_gradients, options);
	}
	return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operands of the blocks' products in fp8: inputs and weights in E4M3, gradients of outputs in E5M2, each
 * tensor with the scale that its largest magnitude gives it (device/fp8.h). GPUs multiply rows of both
 * operands alone, so a product sums over the columns of both:
 *
 *     y[tokens, out] = x · wᵀ        codes of x, codes of w
 *     dx[tokens, in] = dy · w        codes of dy, turned codes of w
 *     dw[out, in] = dyᵀ · x          turned codes of dy and of x
 *
 * Codes of weights are made at their first use after a change. Where ranks hold shards of the weights, whole
 * ones are there for a time only, and their codes for as long as those of one block: they are made of what
 * was gathered. Codes of inputs are not kept for the backward pass, which computes the inputs again or reads
 * those that are kept: the same inputs give the same codes. Those of a gradient serve both products that it
 * is a factor of.
 *
 * A scale needs the largest magnitude of the whole tensor before the first code is made. RMSNorm, SwiGLU and
 * attention find that of what they write, and so do the backward passes of the first two, so that making
 * codes reads their outputs once. Other operands are read twice.
 */
#include "engine/model/internal.h"

/* ---- codes ---- */

/* Products that are listed are not computed. */
static void quantize(struct model *m, const struct device_fp8 *q, const void *src)
{
	if (!m->listing)
		device_fp8_quantize(m->dev, q, src);
}

static struct model_fp8_matrix weight_of(struct model *m, const struct model_fp8_product *p)
{
	int block = m->o.fp8_shared ? 0 : p->unit - 1;
	struct model_fp8_matrix *first =
	    &m->fp8.weight[block * FP8_WEIGHTS + model_fp8_group(p->leader) * FP8_PRODUCTS];
	struct model_fp8_matrix *w = &first[p->index], all = *first;
	int64_t at = p->column * p->in;
	struct device_fp8 q = {.format = FP8_E4M3,
	                       .type = m->o.type,
	                       .rows = p->transposed ? p->in : p->out,
	                       .cols = p->transposed ? p->out : p->in,
	                       .ld = p->transposed ? p->out : p->in,
	                       .codes = all.codes + at,
	                       .turned = all.turned + at,
	                       .scale = w->scale};

	if (w->unit != p->unit && !m->listing) {
		/* Another unit may divide the group in other ways: all of its codes in this memory are old.
		 */
		for (int i = 0; i < FP8_PRODUCTS; i++)
			if (first[i].unit != p->unit)
				first[i].unit = -1;
		quantize(m, &q, p->weight);
		w->unit = p->unit;
	}
	return (struct model_fp8_matrix){q.codes, q.turned, q.scale, p->unit};
}

/* ---- largest magnitudes ---- */

float *model_fp8_amax(struct model *m, int operand, bool found)
{
	if (!m->o.fp8)
		return NULL;
	m->fp8.amax[operand].known = found;
	return found ? m->fp8.amax[operand].at : NULL;
}

static const float *known_amax(const struct model *m, int operand)
{
	return m->fp8.amax[operand].known ? m->fp8.amax[operand].at : NULL;
}

/* NULL: not known. */
static const float *input_amax(const struct model *m, int unit, const void *x)
{
	const struct model_activations *a = &m->layer[unit - 1];
	const struct {
		const void *at;
		int operand;
	} places[] = {{m->h, OPERAND_NORM},
	              {m->y, OPERAND_ACTIVATION},
	              {a->attention, model_layer_operand(unit - 1, OPERAND_ATTENTION)},
	              {a->norm[NORM_INPUT].y, model_layer_operand(unit - 1, OPERAND_KEPT_INPUT)},
	              {a->norm[NORM_POST].y, model_layer_operand(unit - 1, OPERAND_KEPT_POST)},
	              {a->active, model_layer_operand(unit - 1, OPERAND_KEPT_ACTIVATION)}};

	for (size_t i = 0; i < ARRAY_SIZE(places); i++)
		if (x == places[i].at)
			return known_amax(m, places[i].operand);
	return NULL;
}

/* The same of a gradient of all columns that a product writes. */
static const float *gradient_amax(const struct model *m, const struct model_fp8_product *p, const void *dy)
{
	if (p->leader == PARAMETER_GATE)
		return dy == m->layer[p->unit - 1].gate_up && p->out == p->ld
		           ? known_amax(m, OPERAND_GATE_GRADIENT)
		           : NULL;
	return p->leader != PARAMETER_Q && dy == m->dx ? known_amax(m, OPERAND_STREAM_GRADIENT) : NULL;
}

/* ---- codes of activations ---- */

void model_fp8_input(struct model *m, int unit, enum parameter_role leader, const void *x, int64_t tokens,
                     int64_t in, bool turned)
{
	struct device_fp8 q = {.format = FP8_E4M3,
	                       .type = m->o.type,
	                       .rows = tokens,
	                       .cols = in,
	                       .ld = in,
	                       .codes = turned ? NULL : m->fp8.input.codes,
	                       .turned = turned ? m->fp8.input.turned : NULL,
	                       .scale = m->fp8.input.scale,
	                       .amax = input_amax(m, unit, x)};

	quantize(m, &q, x);
}

static struct model_fp8_matrix gradient_of(struct model *m, const struct model_fp8_product *p, const void *dy,
                                           int64_t tokens)
{
	struct model_fp8_matrix *kept = &m->fp8.gradient[p->index];
	int key = p->unit * FP8_GROUPS + model_fp8_group(p->leader);
	struct device_fp8 q = {.format = FP8_E5M2,
	                       .type = m->o.type,
	                       .rows = tokens,
	                       .cols = p->out,
	                       .ld = p->ld,
	                       .codes = m->fp8.gradient[0].codes + p->column * tokens,
	                       .turned = m->fp8.gradient[0].turned + p->column * fp8_padded(tokens),
	                       .scale = kept->scale,
	                       .amax = gradient_amax(m, p, dy)};

	if (!m->listing && (kept->unit != key || m->fp8.gradient_of[p->index] != dy)) {
		quantize(m, &q, dy);
		kept->unit = key;
		m->fp8.gradient_of[p->index] = dy;
	}
	return (struct model_fp8_matrix){q.codes, q.turned, q.scale, p->unit};
}

/* ---- products ---- */

static void set_operands(struct device_gemm *g, const uint8_t *a, int64_t lda, enum fp8_format format_a,
                         const float *scale_a, const uint8_t *b, int64_t ldb, enum fp8_format format_b,
                         const float *scale_b)
{
	g->transpose_a = false;
	g->transpose_b = true;
	g->a = a;
	g->b = b;
	g->lda = lda;
	g->ldb = ldb;
	g->fp8_a = format_a;
	g->fp8_b = format_b;
	g->scale_a = scale_a;
	g->scale_b = scale_b;
}

void model_fp8_forward(struct model *m, const struct model_fp8_product *p, struct device_gemm *g)
{
	struct model_fp8_matrix w = weight_of(m, p);

	set_operands(g, m->fp8.input.codes, p->in, FP8_E4M3, m->fp8.input.scale,
	             p->transposed ? w.turned : w.codes, p->in, FP8_E4M3, w.scale);
}

void model_fp8_input_gradient(struct model *m, const struct model_fp8_product *p, const void *dy,
                              struct device_gemm *g)
{
	struct model_fp8_matrix w = weight_of(m, p), d = gradient_of(m, p, dy, g->m);

	set_operands(g, d.codes, p->out, FP8_E5M2, d.scale, p->transposed ? w.codes : w.turned, p->out,
	             FP8_E4M3, w.scale);
}

void model_fp8_weight_gradient(struct model *m, const struct model_fp8_product *p, const void *dy,
                               struct device_gemm *g)
{
	int64_t rows = fp8_padded(g->k);
	struct model_fp8_matrix d = gradient_of(m, p, dy, g->k);

	g->k = rows;
	g->d_bias = NULL;
	if (p->transposed)
		set_operands(g, m->fp8.input.turned, rows, FP8_E4M3, m->fp8.input.scale, d.turned, rows,
		             FP8_E5M2, d.scale);
	else
		set_operands(g, d.turned, rows, FP8_E5M2, d.scale, m->fp8.input.turned, rows, FP8_E4M3,
		             m->fp8.input.scale);
}

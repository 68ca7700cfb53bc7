/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of device.h: most call the chosen table of kernels, small ones are computed here. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "engine/device/choice.h"
#include "engine/device/cpu/kernels.h"
#include "engine/device/cpu/moments.h"
#include "engine/device/qk_norm.h"
#include "engine/device/rotation.h"

void device_cast(struct device *dev, void *dst, enum dtype dst_type, const void *src, enum dtype src_type,
                 int64_t n)
{
	if (dst_type == src_type)
		device_copy(dev, dst, src, (size_t)n * dtype_size(dst_type));
	else
		dev->kernels->cast(dev, dst, dst_type, src, src_type, n);
}

void device_scale(struct device *dev, void *x, enum dtype type, float factor, int64_t n)
{
	dev->kernels->scale(dev, x, type, factor, n);
}

void device_add(struct device *dev, void *dst, const void *src, enum dtype type, int64_t n)
{
	dev->kernels->add(dev, dst, src, type, n);
}

void device_sum_squares(struct device *dev, const void *x, enum dtype type, int64_t n, double *sum)
{
	dev->kernels->sum_squares(dev, x, type, n, sum);
}

void device_sum(struct device *dev, const float *x, int64_t n, double *sum)
{
	dev->kernels->sum(dev, x, n, sum);
}

void device_bias_forward(struct device *dev, void *x, const void *bias, int64_t rows, int64_t cols,
                         int64_t ld, enum dtype type)
{
	dev->kernels->bias_forward(dev, x, bias, rows, cols, ld, type);
}

void device_bias_backward(struct device *dev, void *d_bias, enum dtype grad_type, const void *d_y,
                          int64_t rows, int64_t cols, int64_t ld, enum dtype type)
{
	dev->kernels->bias_backward(dev, d_bias, grad_type, d_y, rows, cols, ld, type);
}

void device_embedding_forward(struct device *dev, void *out, const int32_t *ids, const void *table,
                              int64_t tokens, int hidden, enum dtype type)
{
	dev->kernels->embedding_forward(dev, out, ids, table, tokens, hidden, type);
}

void device_embedding_backward(struct device *dev, void *d_table, enum dtype grad_type, const void *d_out,
                               const int32_t *ids, const int32_t *host_ids, int64_t tokens, int64_t vocab,
                               int hidden, enum dtype type)
{
	dev->kernels->embedding_backward(dev, d_table, grad_type, d_out, ids, tokens, hidden, type);
}

void device_rmsnorm_forward(struct device *dev, const struct device_norm *n, void *y, float *rstd,
                            const void *x, const void *w)
{
	dev->kernels->rmsnorm_forward(dev, n, y, rstd, NULL, x, w);
	fp8_find_largest(dev, n->amax, y, n->type, n->rows, n->cols, n->ld_y);
}

void device_add_rmsnorm_forward(struct device *dev, const struct device_norm *n, void *y, float *rstd,
                                void *residual, const void *x, const void *w)
{
	dev->kernels->rmsnorm_forward(dev, n, y, rstd, residual, x, w);
	fp8_find_largest(dev, n->amax, y, n->type, n->rows, n->cols, n->ld_y);
}

void device_rmsnorm_backward(struct device *dev, const struct device_norm *n, void *d_x, bool accumulate,
                             void *d_w, enum dtype grad_type, const void *d_y, const void *x,
                             const float *rstd, const void *w)
{
	dev->kernels->rmsnorm_backward(dev, n, d_x, accumulate, d_w, grad_type, d_y, x, rstd, w);
	fp8_find_largest(dev, n->amax, d_x, n->type, n->rows, n->cols, n->ld_x);
}

void device_layernorm_forward(struct device *dev, const struct device_norm *n, void *y, float *statistics,
                              const void *x, const void *w, const void *b)
{
	dev->kernels->layernorm_forward(dev, n, y, statistics, x, w, b);
}

void device_layernorm_backward(struct device *dev, const struct device_norm *n, void *d_x, bool accumulate,
                               float *d_w, float *d_b, const void *d_y, const void *x,
                               const float *statistics, const void *w)
{
	/* First, since d_x may be d_y. */
	device_bias_backward(dev, d_b, DTYPE_F32, d_y, n->rows, n->cols, n->ld_y, n->type);
	dev->kernels->layernorm_backward(dev, n, d_x, accumulate, d_w, d_y, x, statistics, w);
}

void device_rope(struct device *dev, const struct device_rope *r, void *x)
{
	dev->kernels->rope(dev, r, x, false);
}

void device_rope_inverse(struct device *dev, const struct device_rope *r, void *x)
{
	dev->kernels->rope(dev, r, x, true);
}

void device_qk_norm_rope(struct device *dev, const struct device_qk_norm *n, void *y, float *rstd,
                         const void *x, const void *w_q, const void *w_k)
{
	qk_norm_rope_apart(dev, n, y, rstd, x, w_q, w_k);
}

void device_qk_norm_rope_backward(struct device *dev, const struct device_qk_norm *n, void *d, void *d_w_q,
                                  void *d_w_k, enum dtype grad_type, const void *x, const float *rstd,
                                  const void *w_q, const void *w_k)
{
	qk_norm_rope_backward_apart(dev, n, d, d_w_q, d_w_k, grad_type, x, rstd, w_q, w_k);
}

void device_attention_forward(struct device *dev, const struct device_attention *a, void *o, float *lse,
                              const void *q, const void *k, const void *v)
{
	dev->kernels->attention_forward(dev, a, o, lse, q, k, v);
	fp8_find_largest(dev, a->amax, o, a->type, a->tokens, (int64_t)a->heads * a->head_dim, a->ld_o);
}

void device_attention_backward(struct device *dev, const struct device_attention *a, void *d_q, void *d_k,
                               void *d_v, const void *d_o, const void *o, const float *lse, const void *q,
                               const void *k, const void *v)
{
	dev->kernels->attention_backward(dev, a, d_q, d_k, d_v, d_o, o, lse, q, k, v);
	rotation_undo(dev, a, d_q, d_k);
}

void device_attention_cached(struct device *dev, const struct device_attention *a, int64_t past, void *o,
                             const void *q, const void *k_cache, const void *v_cache)
{
	dev->kernels->attention_cached(dev, a, past, o, q, k_cache, v_cache);
}

void device_attention_rows(struct device *dev, const struct device_attention *a, const struct device_cache *c,
                           void *o, const void *q, const void *cache)
{
	dev->kernels->attention_rows(dev, a, c, o, q, cache);
}

void device_cache_append(struct device *dev, const struct device_cache *c, void *cache, const void *k,
                         const void *v, int64_t width, int64_t ld, enum dtype type)
{
	size_t size = dtype_size(type), bytes = (size_t)width * size;

	for (int64_t r = 0; r < c->rows; r++) {
		char *to =
		    (char *)cache + (size_t)(c->sequences[r] * c->tokens + c->positions[r]) * 2 * bytes;

		memcpy(to, (const char *)k + (size_t)(r * ld) * size, bytes);
		memcpy(to + bytes, (const char *)v + (size_t)(r * ld) * size, bytes);
	}
}

void device_choose(struct device *dev, const struct device_choice *d, int32_t *id, const float *logits,
                   int64_t rows, const double *uniform)
{
#pragma omp parallel for schedule(dynamic, 1) num_threads(dev->threads)
	for (int64_t r = 0; r < rows; r++)
		id[r] = choice_draw(d, logits + r * d->ld, uniform[r]);
}

void device_swiglu_forward(struct device *dev, void *y, const void *gate_up, int64_t tokens, int cols,
                           enum dtype type, float *amax)
{
	dev->kernels->swiglu_forward(dev, y, gate_up, tokens, cols, type);
	fp8_find_largest(dev, amax, y, type, tokens, cols, cols);
}

void device_swiglu_backward(struct device *dev, void *d_gate_up, void *y, const void *d_y,
                            const void *gate_up, int64_t tokens, int cols, enum dtype type, float *amax)
{
	dev->kernels->swiglu_backward(dev, d_gate_up, y, d_y, gate_up, tokens, cols, type);
	if (!amax)
		return;
	fp8_find_largest(dev, &amax[0], y, type, y ? tokens : 0, cols, cols);
	fp8_find_largest(dev, &amax[1], d_gate_up, type, tokens, 2 * (int64_t)cols, 2 * (int64_t)cols);
}

void device_route(struct device *dev, const struct device_router *r, int32_t *expert, float *weight,
                  const void *logits)
{
	if (device_router_fits(dev, r, "route"))
		dev->kernels->route(dev, r, expert, weight, logits);
}

void device_expert_places(struct device *dev, const struct device_router *r, int32_t *starts, int32_t *row,
                          int32_t *place, const int32_t *expert)
{
	int64_t choices = r->tokens * r->chosen;
	int32_t *counts = starts + r->experts + 1;

	if (!device_router_fits(dev, r, "expert_places"))
		return;
	memset(counts, 0, (size_t)r->experts * sizeof(*counts));
	memset(row, 0xff, (size_t)device_places_most(r) * sizeof(*row));
	for (int64_t i = 0; i < choices; i++)
		counts[expert[i]]++;
	starts[0] = 0;
	for (int e = 0; e < r->experts; e++)
		starts[e + 1] = starts[e] + (counts[e] + r->multiple - 1) / r->multiple * r->multiple;
	memset(counts, 0, (size_t)r->experts * sizeof(*counts));
	for (int64_t i = 0; i < choices; i++) {
		place[i] = starts[expert[i]] + counts[expert[i]]++;
		row[place[i]] = (int32_t)(i / r->chosen);
	}
}

static void move_columns(struct device *dev, const struct device_groups *g, char *parts, char *whole,
                         bool join)
{
	size_t size = dtype_size(g->type), bytes = (size_t)(g->cols / g->groups) * size;

#pragma omp parallel for schedule(static) num_threads(dev->threads)
	for (int64_t row = 0; row < g->rows; row++)
		for (int i = 0; i < g->groups; i++) {
			char *part = parts + (size_t)((i * g->rows + row) * g->ld_part) * size;
			char *of_whole = whole + (size_t)(row * g->ld_whole) * size + (size_t)i * bytes;

			memcpy(join ? of_whole : part, join ? part : of_whole, bytes);
		}
}

void device_part_columns(struct device *dev, const struct device_groups *g, void *parts, const void *whole)
{
	move_columns(dev, g, parts, (char *)(uintptr_t)whole, false);
}

void device_join_columns(struct device *dev, const struct device_groups *g, void *whole, const void *parts)
{
	move_columns(dev, g, (char *)(uintptr_t)parts, whole, true);
}

void device_expert_rows(struct device *dev, const struct device_router *r, void *y, const void *x,
                        const int32_t *row, int64_t places, int cols)
{
	dev->kernels->expert_rows(dev, r, y, x, row, places, cols);
}

void device_expert_sum(struct device *dev, const struct device_router *r, void *y, const void *x,
                       const int32_t *place, const float *weight, int cols)
{
	dev->kernels->expert_sum(dev, r, y, x, place, weight, cols);
}

void device_expert_weigh(struct device *dev, const struct device_router *r, float *d_weight, void *d, void *x,
                         const int32_t *place, const float *weight, int cols)
{
	dev->kernels->expert_weigh(dev, r, d_weight, d, x, place, weight, cols);
}

void device_route_backward(struct device *dev, const struct device_router *r, void *d_logits,
                           const void *logits, const int32_t *expert, const float *weight,
                           const float *d_weight, const float *balance, float scale, float *loss)
{
	if (device_router_fits(dev, r, "route_backward"))
		dev->kernels->route_backward(dev, r, d_logits, logits, expert, weight, d_weight, balance,
		                             scale, loss);
}

void device_dropout(struct device *dev, const struct device_dropout *d, void *y, bool accumulate,
                    const void *x, enum dtype type, int64_t n)
{
	dev->kernels->dropout(dev, d, y, accumulate, x, type, n);
}

void device_add_noise(struct device *dev, const struct device_noise *d, void *y, enum dtype type, int64_t n)
{
	dev->kernels->add_noise(dev, d, y, type, n);
}

void device_row_norms(struct device *dev, const struct device_row_norms *n, float *norm, const void *w,
                      const void *b, const void *a)
{
	dev->kernels->row_norms(dev, n, norm, w, b, a);
}

void device_scale_columns(struct device *dev, const struct device_columns *c, void *y, const void *x)
{
	dev->kernels->scale_columns(dev, c, y, x);
}

void device_gelu_forward(struct device *dev, void *y, const void *x, int64_t tokens, int cols, bool gated,
                         enum dtype type)
{
	dev->kernels->gelu_forward(dev, y, x, tokens, cols, gated, type);
}

void device_gelu_backward(struct device *dev, void *d_x, void *y, const void *d_y, const void *x,
                          int64_t tokens, int cols, bool gated, enum dtype type)
{
	dev->kernels->gelu_backward(dev, d_x, y, d_y, x, tokens, cols, gated, type);
}

void device_variant_cross_entropy(struct device *dev, const struct device_loss *d, void *logits,
                                  enum dtype type, const int32_t *targets, int64_t rows, int64_t vocab,
                                  float scale, const float *row_scale, float *loss, bool backward)
{
	dev->kernels->variant_cross_entropy(dev, d, logits, type, targets, rows, vocab, scale, row_scale,
	                                    loss, backward);
}

void device_distillation(struct device *dev, const struct device_distillation *d, void *logits,
                         enum dtype type, const int32_t *targets, int64_t rows, int64_t vocab, float scale,
                         float *loss)
{
	dev->kernels->distillation(dev, d, logits, type, targets, rows, vocab, scale, loss);
}

void device_cross_entropy(struct device *dev, void *logits, enum dtype type, const int32_t *targets,
                          int64_t rows, int64_t vocab, float scale, const float *row_scale, float *loss,
                          bool backward)
{
	dev->kernels->cross_entropy(dev, logits, type, targets, rows, vocab, scale, row_scale, loss,
	                            backward);
}

void device_argmax(struct device *dev, int32_t *id, const void *logits, enum dtype type, int64_t rows,
                   int64_t vocab)
{
	dev->kernels->argmax(dev, id, logits, type, rows, vocab);
}

void device_adamw(struct device *dev, float *master, void *param, enum dtype param_type, const void *grad,
                  enum dtype grad_type, float *m, float *v, int64_t n, const float *grad_scale,
                  const struct device_adamw *h)
{
	if (!master && (!param || param_type != DTYPE_BF16))
		device_fault(dev, -EINVAL, "adamw without a master copy is for bfloat16 parameters");
	else
		dev->kernels->adamw(dev, master, param, param_type, grad, grad_type, m, v, n, grad_scale, h);
}

void device_update(struct device *dev, float *master, void *param, enum dtype param_type, float *grad,
                   float *m, float *v, int64_t n, const float *grad_scale, const struct device_update *h)
{
	if (!device_update_fits(dev, master, param, param_type, h))
		return;
	dev->kernels->update(dev, master, param, param_type, grad, m, v, n, grad_scale, h);
}

void device_factor_sums(struct device *dev, const struct device_factored *f, const float *grad,
                        const float *grad_scale, float *row, float *col)
{
	dev->kernels->factor_sums(dev, f, grad, grad_scale, row, col);
}

void device_factor_direction(struct device *dev, const struct device_factored *f, float *grad,
                             const float *grad_scale, const float *row, const float *col, float factor,
                             float floor)
{
	dev->kernels->factor_direction(dev, f, grad, grad_scale, row, col, factor, floor);
}

void device_moment_quantize(struct device *dev, uint8_t *codes, float *scale, int64_t first, const float *src,
                            int64_t n, bool has_sign)
{
	dev->kernels->moment_quantize(dev, &dev->moments[has_sign], codes + first,
	                              scale + first / DEVICE_MOMENT_BLOCK, src, n);
}

void device_moment_dequantize(struct device *dev, float *dst, const uint8_t *codes, const float *scale,
                              int64_t first, int64_t n, bool has_sign)
{
	if (n > 0)
		dev->kernels->moment_dequantize(dev, dev->moments[has_sign].map, dst, codes, scale, first, n);
}

void device_clip_scale(struct device *dev, const double *sum_squares, float max_norm, float loss_scale,
                       float *scale, float *norm)
{
	double length = sqrt(*sum_squares) / loss_scale;
	double factor = max_norm > 0 ? max_norm / (length + 1e-6) : 1;

	*norm = (float)length;
	*scale = isfinite(length) ? (float)((factor < 1 ? factor : 1) / loss_scale) : (float)NAN;
}

/* ---- linear attention ---- */
void device_delta_forward(struct device *dev, const struct device_delta *d, void *o, const void *q,
                          const void *k, const void *v, const void *b, const void *a)
{
	dev->kernels->delta_forward(dev, d, NULL, NULL, o, q, k, v, b, a);
}

void device_delta_carried(struct device *dev, const struct device_delta *d, float *states,
                          const int32_t *sequences, void *o, const void *q, const void *k, const void *v,
                          const void *b, const void *a)
{
	dev->kernels->delta_forward(dev, d, states, sequences, o, q, k, v, b, a);
}

void device_delta_backward(struct device *dev, const struct device_delta *d, void *d_q, void *d_k, void *d_v,
                           void *d_b, void *d_a, float *d_a_log, float *d_dt_bias, const void *d_o,
                           const void *q, const void *k, const void *v, const void *b, const void *a)
{
	dev->kernels->delta_backward(dev, d, d_q, d_k, d_v, d_b, d_a, d_a_log, d_dt_bias, d_o, q, k, v, b, a);
}

void device_conv_forward(struct device *dev, const struct device_conv *c, void *y, const void *x,
                         const void *w)
{
	dev->kernels->conv_forward(dev, c, NULL, NULL, y, x, w);
}

void device_conv_carried(struct device *dev, const struct device_conv *c, void *last,
                         const int32_t *sequences, void *y, const void *x, const void *w)
{
	dev->kernels->conv_forward(dev, c, last, sequences, y, x, w);
}

void device_conv_backward(struct device *dev, const struct device_conv *c, void *d_x, float *d_w, void *d_y,
                          const void *x, const void *w)
{
	dev->kernels->conv_backward(dev, c, d_x, d_w, d_y, x, w);
}

void device_gate_forward(struct device *dev, const struct device_gating *g, void *y, const void *x,
                         const void *gate)
{
	dev->kernels->gate_forward(dev, g, y, x, gate);
}

void device_gate_backward(struct device *dev, const struct device_gating *g, void *d_x, void *d_gate,
                          const void *d_y, const void *x, const void *gate)
{
	dev->kernels->gate_backward(dev, g, d_x, d_gate, d_y, x, gate);
}

void device_copy_groups(struct device *dev, const struct device_group_copy *c, void *y, const void *x)
{
	dev->kernels->copy_groups(dev, c, y, x);
}

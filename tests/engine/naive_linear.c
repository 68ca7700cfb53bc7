/* SPDX-License-Identifier: Apache-2.0 */
/* delta.h in plain loops, in fp32 only: a part of the device in naive_device.c. */
#include "engine/device/delta.h"
#include "naive_delta.h"

static const float *row_of(const void *x, int64_t row, int64_t ld, int column)
{
	return (const float *)x + row * ld + column;
}

static double *dense(const void *x, int64_t first, int n, int64_t ld, int column, int cols)
{
	double *out = malloc((size_t)(n * cols + 1) * sizeof(*out));

	for (int t = 0; t < n; t++)
		for (int i = 0; i < cols; i++)
			out[t * cols + i] = row_of(x, first + t, ld, column)[i];
	return out;
}

/* The values of a head of a document, and the place of each in its row. */
struct head {
	struct naive_delta d;
	int64_t first;
	int key, value, gate; /* columns */
	double *x[5];
};

static struct head head_of(const struct device_delta *d, int document, int h, double *state, const void *q,
                           const void *k, const void *v, const void *b, const void *a)
{
	struct head e = {.first = d->host_starts[document],
	                 .key = h / (d->value_heads / d->key_heads) * d->key_dim,
	                 .value = h * d->value_dim,
	                 .gate = h};
	int n = d->host_starts[document + 1] - d->host_starts[document];

	e.x[0] = dense(q, e.first, n, d->ld, e.key, d->key_dim);
	e.x[1] = dense(k, e.first, n, d->ld, e.key, d->key_dim);
	e.x[2] = dense(v, e.first, n, d->ld, e.value, d->value_dim);
	e.x[3] = dense(b, e.first, n, d->ld_gates, h, 1);
	e.x[4] = dense(a, e.first, n, d->ld_gates, h, 1);
	e.d = (struct naive_delta){.n = n,
	                           .dk = d->key_dim,
	                           .dv = d->value_dim,
	                           .a_log = ((const float *)d->a_log)[h],
	                           .dt_bias = ((const float *)d->dt_bias)[h],
	                           .q = e.x[0],
	                           .k = e.x[1],
	                           .v = e.x[2],
	                           .b = e.x[3],
	                           .a = e.x[4],
	                           .state = state};
	return e;
}

static void free_head(struct head *e)
{
	for (int i = 0; i < 5; i++)
		free(e->x[i]);
}

void device_delta_carried(struct device *dev, const struct device_delta *d, float *states,
                          const int32_t *sequences, void *o, const void *q, const void *k, const void *v,
                          const void *b, const void *a)
{
	int size = d->key_dim * d->value_dim;
	double *state = malloc((size_t)size * sizeof(*state));

	for (int i = 0; i < d->documents; i++)
		for (int h = 0; h < d->value_heads; h++) {
			struct head e = head_of(d, i, h, state, q, k, v, b, a);
			float *kept = states
			                  ? states + ((int64_t)sequences[e.first] * d->value_heads + h) * size
			                  : NULL;
			double *out = malloc((size_t)(e.d.n * d->value_dim) * sizeof(*out));

			for (int j = 0; j < size; j++)
				state[j] = kept ? kept[j] : 0;
			naive_delta_run(&e.d, out, NULL, NULL);
			for (int t = 0; t < e.d.n; t++)
				for (int j = 0; j < d->value_dim; j++)
					((float *)o)[(e.first + t) * d->ld_o + e.value + j] =
					    (float)out[t * d->value_dim + j];
			for (int j = 0; j < size && kept; j++)
				kept[j] = (float)state[j];
			free(out);
			free_head(&e);
		}
	free(state);
}

void device_delta_forward(struct device *dev, const struct device_delta *d, void *o, const void *q,
                          const void *k, const void *v, const void *b, const void *a)
{
	device_delta_carried(dev, d, NULL, NULL, o, q, k, v, b, a);
}

static void write_rows(void *x, int64_t first, int n, int64_t ld, int column, int cols, const double *values,
                       bool add)
{
	for (int t = 0; t < n; t++)
		for (int i = 0; i < cols; i++) {
			float *to = (float *)x + (first + t) * ld + column + i;

			*to = (add ? *to : 0) + (float)values[t * cols + i];
		}
}

void device_delta_backward(struct device *dev, const struct device_delta *d, void *d_q, void *d_k, void *d_v,
                           void *d_b, void *d_a, float *d_a_log, float *d_dt_bias, const void *d_o,
                           const void *q, const void *k, const void *v, const void *b, const void *a)
{
	double *state = malloc((size_t)(d->key_dim * d->value_dim) * sizeof(*state));
	int group = d->value_heads / d->key_heads;

	for (int i = 0; i < d->documents; i++)
		for (int h = 0; h < d->value_heads; h++) {
			struct head e = head_of(d, i, h, state, q, k, v, b, a);
			int n = e.d.n, dk = d->key_dim, dv = d->value_dim;
			double *all = calloc((size_t)(n * (2 * dk + dv + 2)), sizeof(*all)),
			       *of_o = dense(d_o, e.first, n, d->ld_o, e.value, dv);
			struct naive_delta_gradients g = {all,
			                                  all + n * dk,
			                                  all + 2 * n * dk,
			                                  all + n * (2 * dk + dv),
			                                  all + n * (2 * dk + dv + 1),
			                                  0,
			                                  0};

			naive_delta_back(&e.d, of_o, &g);
			write_rows(d_q, e.first, n, d->ld, e.key, dk, g.q, h % group > 0);
			write_rows(d_k, e.first, n, d->ld, e.key, dk, g.k, h % group > 0);
			write_rows(d_v, e.first, n, d->ld, e.value, dv, g.v, false);
			write_rows(d_b, e.first, n, d->ld_gates, h, 1, g.b, false);
			write_rows(d_a, e.first, n, d->ld_gates, h, 1, g.a, false);
			d_a_log[h] += (float)g.a_log;
			d_dt_bias[h] += (float)g.dt_bias;
			free(all);
			free(of_o);
			free_head(&e);
		}
	free(state);
}

/* In front of silu, with `last` in front of the document, NULL: zeros. */
static double convolved(const struct device_conv *c, const void *x, const void *w, const float *last,
                        int64_t first, int64_t t, int channel)
{
	double sum = 0;

	for (int j = 0; j < c->width; j++) {
		int64_t row = t - c->width + 1 + j;

		if (row >= first)
			sum +=
			    (double)row_of(w, channel, c->width, j)[0] * row_of(x, row, c->ld_x, channel)[0];
		else if (last)
			sum += (double)row_of(w, channel, c->width, j)[0] *
			       last[(c->width - 1 + row - first) * c->channels + channel];
	}
	return sum;
}

void device_conv_carried(struct device *dev, const struct device_conv *c, void *last,
                         const int32_t *sequences, void *y, const void *x, const void *w)
{
	for (int i = 0; i < c->documents; i++) {
		int64_t first = c->host_starts[i], end = c->host_starts[i + 1];
		float *kept =
		    last ? (float *)last + (int64_t)sequences[first] * (c->width - 1) * c->channels : NULL;

		for (int64_t t = first; t < end; t++)
			for (int k = 0; k < c->channels; k++) {
				double z = convolved(c, x, w, kept, first, t, k);

				((float *)y)[t * c->ld_y + k] = (float)(z * naive_sigmoid(z));
			}
		for (int j = 0; j < c->width - 1 && kept; j++)
			for (int k = 0; k < c->channels; k++) {
				int64_t row = end - (c->width - 1) + j;

				kept[j * c->channels + k] =
				    row >= first ? row_of(x, row, c->ld_x, k)[0]
				                 : kept[(row - first + c->width - 1) * c->channels + k];
			}
	}
}

void device_conv_forward(struct device *dev, const struct device_conv *c, void *y, const void *x,
                         const void *w)
{
	device_conv_carried(dev, c, NULL, NULL, y, x, w);
}

void device_conv_backward(struct device *dev, const struct device_conv *c, void *d_x, float *d_w, void *d_y,
                          const void *x, const void *w)
{
	for (int i = 0; i < c->documents; i++) {
		int64_t first = c->host_starts[i], end = c->host_starts[i + 1];

		for (int64_t t = first; t < end; t++)
			for (int k = 0; k < c->channels; k++) {
				double z = convolved(c, x, w, NULL, first, t, k), s = naive_sigmoid(z);

				((float *)d_y)[t * c->ld_y + k] *= (float)(s + z * s * (1 - s));
				((float *)d_x)[t * c->ld_x + k] = 0;
			}
		for (int64_t t = first; t < end; t++)
			for (int k = 0; k < c->channels; k++)
				for (int j = 0; j < c->width; j++) {
					int64_t row = t - c->width + 1 + j;
					float dz = row_of(d_y, t, c->ld_y, k)[0];

					if (row < first)
						continue;
					((float *)d_x)[row * c->ld_x + k] +=
					    dz * row_of(w, k, c->width, j)[0];
					d_w[k * c->width + j] += dz * row_of(x, row, c->ld_x, k)[0];
				}
	}
}

void device_gate_forward(struct device *dev, const struct device_gating *g, void *y, const void *x,
                         const void *gate)
{
	for (int64_t r = 0; r < g->rows; r++)
		for (int k = 0; k < g->cols; k++) {
			double z = row_of(gate, r, g->ld_gate, k)[0],
			       f = naive_sigmoid(z) * (g->silu ? z : 1);

			((float *)y)[r * g->ld_y + k] = (float)(f * row_of(x, r, g->ld_x, k)[0]);
		}
}

void device_gate_backward(struct device *dev, const struct device_gating *g, void *d_x, void *d_gate,
                          const void *d_y, const void *x, const void *gate)
{
	for (int64_t r = 0; r < g->rows; r++)
		for (int k = 0; k < g->cols; k++) {
			double z = row_of(gate, r, g->ld_gate, k)[0], s = naive_sigmoid(z),
			       dy = row_of(d_y, r, g->ld_y, k)[0];
			double slope = g->silu ? s + z * s * (1 - s) : s * (1 - s);

			((float *)d_gate)[r * g->ld_gate + k] =
			    (float)(dy * slope * row_of(x, r, g->ld_x, k)[0]);
			((float *)d_x)[r * g->ld_y + k] = (float)(dy * s * (g->silu ? z : 1));
		}
}

void device_copy_groups(struct device *dev, const struct device_group_copy *c, void *y, const void *x)
{
	for (int64_t r = 0; r < c->rows; r++)
		for (int g = 0; g < c->groups; g++)
			memcpy((float *)y + r * c->ld_y + g * c->step_y,
			       (const float *)x + r * c->ld_x + g * c->step_x,
			       (size_t)c->cols * sizeof(float));
}

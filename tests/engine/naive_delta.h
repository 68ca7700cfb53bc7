/* SPDX-License-Identifier: Apache-2.0 */
/* The gated delta rule and the convolution in front of it (delta.h) token by token, in double, of values that
 * lie densely: what devices are compared with. */
#pragma once

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One document of one head. q, k [n, dk], v, o [n, dv], b, a [n]. */
struct naive_delta {
	int n, dk, dv;
	double a_log, dt_bias;
	const double *q, *k, *v, *b, *a;
	double *state; /* [dk, dv]: in front of the document, then behind it */
};

struct naive_delta_gradients {
	double *q, *k, *v, *b, *a; /* as the values; added to */
	double a_log, dt_bias;     /* added to */
};

static inline double naive_sigmoid(double x)
{
	return 1 / (1 + exp(-x));
}

static inline double naive_softplus(double x)
{
	return x > 30 ? x : log1p(exp(x));
}

/* out = x / |x| · scale; returns 1 / |x|. */
static inline double naive_normalize(int n, double scale, const double *x, double *out)
{
	double sum = 1e-6, inverse;

	for (int i = 0; i < n; i++)
		sum += x[i] * x[i];
	inverse = 1 / sqrt(sum);
	for (int i = 0; i < n; i++)
		out[i] = x[i] * inverse * scale;
	return inverse;
}

/* d_x += the gradient of x, from d, that of out. */
static inline void naive_normalize_gradient(int n, double scale, const double *x, const double *d,
                                            double *d_x)
{
	double sum = 1e-6, dot = 0, inverse;

	for (int i = 0; i < n; i++) {
		sum += x[i] * x[i];
		dot += x[i] * d[i];
	}
	inverse = 1 / sqrt(sum);
	for (int i = 0; i < n; i++)
		d_x[i] += scale * inverse * (d[i] - x[i] * dot * inverse * inverse);
}

/* o NULL: not wanted. before, u [n, dk·dv], [n, dv]: the decayed state of each token, and its update; NULL:
 * not wanted. */
static inline void naive_delta_run(const struct naive_delta *d, double *o, double *before, double *u)
{
	int dk = d->dk, dv = d->dv;
	double *q = malloc((size_t)(2 * dk + dv) * sizeof(*q)), *k = q + dk, *update = k + dk;

	for (int t = 0; t < d->n; t++) {
		double g = -exp(d->a_log) * naive_softplus(d->a[t] + d->dt_bias),
		       beta = naive_sigmoid(d->b[t]);

		naive_normalize(dk, 1 / sqrt(dk), d->q + t * dk, q);
		naive_normalize(dk, 1, d->k + t * dk, k);
		for (int i = 0; i < dk * dv; i++)
			d->state[i] *= exp(g);
		if (before)
			memcpy(before + (size_t)t * dk * dv, d->state, (size_t)(dk * dv) * sizeof(double));
		for (int j = 0; j < dv; j++) {
			double read = 0;

			for (int i = 0; i < dk; i++)
				read += d->state[i * dv + j] * k[i];
			update[j] = beta * (d->v[t * dv + j] - read);
		}
		if (u)
			memcpy(u + t * dv, update, (size_t)dv * sizeof(double));
		for (int i = 0; i < dk; i++)
			for (int j = 0; j < dv; j++)
				d->state[i * dv + j] += k[i] * update[j];
		for (int j = 0; j < dv && o; j++) {
			o[t * dv + j] = 0;
			for (int i = 0; i < dk; i++)
				o[t * dv + j] += d->state[i * dv + j] * q[i];
		}
	}
	free(q);
}

/* d_o [n, dv]. The state in front of the document is zero. */
static inline void naive_delta_back(const struct naive_delta *d, const double *d_o,
                                    struct naive_delta_gradients *to)
{
	int dk = d->dk, dv = d->dv, n = d->n;
	double *before = malloc((size_t)n * dk * dv * sizeof(double)),
	       *u = malloc((size_t)n * dv * sizeof(double)), *ds = calloc((size_t)(dk * dv), sizeof(double)),
	       *dq = malloc((size_t)dk * sizeof(double)), *dn = malloc((size_t)dk * sizeof(double)),
	       *q = malloc((size_t)dk * sizeof(double)), *k = malloc((size_t)dk * sizeof(double)),
	       *du = malloc((size_t)dv * sizeof(double));

	memset(d->state, 0, (size_t)(dk * dv) * sizeof(double));
	naive_delta_run(d, NULL, before, u);
	for (int t = n - 1; t >= 0; t--) {
		double rate = exp(d->a_log), x = d->a[t] + d->dt_bias, g = -rate * naive_softplus(x),
		       beta = naive_sigmoid(d->b[t]), d_beta = 0, dg = 0;
		const double *s = before + (size_t)t * dk * dv, *ut = u + t * dv, *dot = d_o + t * dv;

		naive_normalize(dk, 1 / sqrt(dk), d->q + t * dk, q);
		naive_normalize(dk, 1, d->k + t * dk, k);
		for (int i = 0; i < dk; i++) {
			dq[i] = dn[i] = 0;
			for (int j = 0; j < dv; j++) {
				dq[i] += (s[i * dv + j] + k[i] * ut[j]) * dot[j];
				ds[i * dv + j] += q[i] * dot[j];
			}
		}
		for (int j = 0; j < dv; j++) {
			du[j] = 0;
			for (int i = 0; i < dk; i++)
				du[j] += ds[i * dv + j] * k[i];
			to->v[t * dv + j] += beta * du[j];
			d_beta += du[j] * ut[j] / beta;
		}
		for (int i = 0; i < dk; i++)
			for (int j = 0; j < dv; j++) {
				dn[i] += ds[i * dv + j] * ut[j] - s[i * dv + j] * beta * du[j];
				ds[i * dv + j] -= k[i] * beta * du[j];
				dg += ds[i * dv + j] * s[i * dv + j];
				ds[i * dv + j] *= exp(g);
			}
		to->b[t] += d_beta * beta * (1 - beta);
		to->a[t] += dg * -rate * naive_sigmoid(x);
		to->dt_bias += dg * -rate * naive_sigmoid(x);
		to->a_log += dg * g;
		naive_normalize_gradient(dk, 1 / sqrt(dk), d->q + t * dk, dq, to->q + t * dk);
		naive_normalize_gradient(dk, 1, d->k + t * dk, dn, to->k + t * dk);
	}
	free(before);
	free(u);
	free(ds);
	free(dq);
	free(dn);
	free(q);
	free(k);
	free(du);
}

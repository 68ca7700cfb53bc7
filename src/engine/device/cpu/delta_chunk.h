/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A chunk of the gated delta rule (delta.h): what its tokens do to each other, as products of small matrices
 * in fp32. Of a chunk of n tokens and one head, with G_i the sum of g up to token i and D_ij = exp(G_i -
 * G_j):
 *
 *     A_ij = beta_i · (k_i · k_j) · D_ij for i > j
 *     (1 + A) U = beta_i v_i,  (1 + A) W = beta_i exp(G_i) k_i,  N = U - W S
 *     o = exp(G_i) q S + P N, with P_ij = (q_i · k_j) · D_ij for i >= j
 *     S' = exp(G_n) S + (exp(G_n - G_i) k)ᵀ N
 *
 * Rows of N are the u_t of the rule. No exponent is above zero.
 */
#pragma once

#include "engine/device/cpu/kernels.h"
#include "engine/device/cpu/vec.h"
#include "engine/device/delta.h"

#define CHUNK DEVICE_DELTA_CHUNK

/* The matrices of one thread: rows of [.., key_dim] are lk apart, of [.., value_dim] lv, of [.., CHUNK]
 * CHUNK; columns behind these are zero. */
struct delta_scratch {
	int lk, lv;
	float *q, *k, *v;      /* [CHUNK, ..] of the chunk: normalized, q divided, too */
	float *kt;             /* [key_dim, CHUNK] kᵀ */
	float *kd;             /* [CHUNK, key_dim] exp(G_n - G_i) k_i */
	float *kk, *d, *a, *p; /* [CHUNK, CHUNK] k · kᵀ, D, A, P */
	float *u, *n;          /* [CHUNK, value_dim] */
	float *w;              /* [CHUNK, key_dim] */
	float *o;              /* [CHUNK, value_dim], and its gradient */
	/* [CHUNK] each */
	float *beta, *g, *decay, *rest, *q_length, *k_length; /* g, exp(G), exp(G_n - G); 1 / |x| */
	double *sum;                                          /* [CHUNK] G, of which differences are taken */
	/* Of the backward pass. */
	float *t, *turned;        /* [max(key_dim, value_dim), the larger] a transpose; [CHUNK, key_dim] */
	float *dn, *dq, *dk, *dw; /* as n, q, k, w */
	float *dp, *da;           /* as p, a */
	float *dsum, *dbeta, *dg; /* as sum */
};

struct delta_task {
	const struct device_delta *d;
	const void *q, *k, *v, *b, *a;
};

/* c[m, n] = alpha · a · b (added to c with `add`), where a(i, p) = a[i · row + p · column] is [m, k] and b
 * [k, n]. n is a multiple of 16. */
VINLINE void multiply_rows(float *c, int ldc, const float *a, int row, int column, const float *b, int ldb,
                           int rows, int vectors, int k, float alpha, bool add)
{
	vf sum[4][2];

#pragma GCC unroll 4
	for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
		for (int x = 0; x < vectors; x++)
			sum[r][x] = v_set(0);
	for (int p = 0; p < k; p++) {
		vf right[2];

#pragma GCC unroll 2
		for (int x = 0; x < vectors; x++)
			right[x] = v_load(b, (int64_t)p * ldb + x * VW, DTYPE_F32);
#pragma GCC unroll 4
		for (int r = 0; r < rows; r++) {
			vf left = v_set(a[(int64_t)r * row + (int64_t)p * column]);

#pragma GCC unroll 2
			for (int x = 0; x < vectors; x++)
				sum[r][x] += left * right[x];
		}
	}
#pragma GCC unroll 4
	for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
		for (int x = 0; x < vectors; x++) {
			float *to = c + (int64_t)r * ldc + x * VW;
			vf y = alpha * sum[r][x];

			v_store(to, 0, DTYPE_F32, add ? v_load(to, 0, DTYPE_F32) + y : y);
		}
}

VINLINE void multiply_columns(float *c, int ldc, const float *a, int row, int column, const float *b, int ldb,
                              int m, int vectors, int k, float alpha, bool add)
{
	int i = 0;

	for (; i + 4 <= m; i += 4)
		multiply_rows(c + (int64_t)i * ldc, ldc, a + (int64_t)i * row, row, column, b, ldb, 4,
		              vectors, k, alpha, add);
	for (; i < m; i++)
		multiply_rows(c + (int64_t)i * ldc, ldc, a + (int64_t)i * row, row, column, b, ldb, 1,
		              vectors, k, alpha, add);
}

static void multiply(float *c, int ldc, const float *a, int row, int column, const float *b, int ldb, int m,
                     int n, int k, float alpha, bool add)
{
	int j = 0;

	for (; j + 2 * VW <= n; j += 2 * VW)
		multiply_columns(c + j, ldc, a, row, column, b + j, ldb, m, 2, k, alpha, add);
	for (; j < n; j += VW)
		multiply_columns(c + j, ldc, a, row, column, b + j, ldb, m, 1, k, alpha, add);
}

/* y += factor · x */
VINLINE void add_row(float *y, const float *x, float factor, int n)
{
	for (int i = 0; i < n; i += VW)
		v_store(y, i, DTYPE_F32, v_load(y, i, DTYPE_F32) + factor * v_load(x, i, DTYPE_F32));
}

VINLINE void scale_row(float *y, const float *x, float factor, int n)
{
	for (int i = 0; i < n; i += VW)
		v_store(y, i, DTYPE_F32, factor * v_load(x, i, DTYPE_F32));
}

VINLINE float dot_rows(const float *x, const float *y, int n)
{
	vf sum = v_set(0);

	for (int i = 0; i < n; i += VW)
		sum += v_load(x, i, DTYPE_F32) * v_load(y, i, DTYPE_F32);
	return v_hsum(sum);
}

/* to[columns, rows up to ld] = fromᵀ, with zeros behind. */
static void turn(float *to, int ld, const float *from, int ld_from, int rows, int columns)
{
	for (int j = 0; j < columns; j++) {
		for (int i = 0; i < rows; i++)
			to[j * ld + i] = from[i * ld_from + j];
		for (int i = rows; i < ld; i++)
			to[j * ld + i] = 0;
	}
}

VINLINE float sigmoid(float x)
{
	return x >= 0 ? 1 / (1 + expf(-x)) : expf(x) / (1 + expf(x));
}

VINLINE float softplus(float x)
{
	return x > 20 ? x : log1pf(expf(x));
}

/* Row `t` of a matrix, columns [from, from + n), to fp32, with zeros behind. */
VINLINE void widen_row(float *to, int padded, const void *x, int64_t at, int n, enum dtype type)
{
	int i = 0;

	for (; i + VW <= n; i += VW)
		v_store(to, i, DTYPE_F32, v_load(x, at + i, type));
	for (; i < n; i++)
		to[i] = s_load(x, at + i, type);
	for (; i < padded; i++)
		to[i] = 0;
}

/* Tokens [first, first + n) of value head `head`: everything but what needs a state. */
static void prepare_chunk(const struct delta_task *t, struct delta_scratch *s, int head, int64_t first, int n)
{
	const struct device_delta *d = t->d;
	int dk = d->key_dim, dv = d->value_dim, key_head = head / (d->value_heads / d->key_heads);
	float rate = expf(s_load(d->a_log, head, d->type)), bias = s_load(d->dt_bias, head, d->type);
	float scale = 1 / sqrtf((float)dk);
	double sum = 0;

	for (int i = 0; i < n; i++) {
		int64_t row = first + i;
		float *q = s->q + i * s->lk, *k = s->k + i * s->lk;

		widen_row(q, s->lk, t->q, row * d->ld + key_head * dk, dk, d->type);
		widen_row(k, s->lk, t->k, row * d->ld + key_head * dk, dk, d->type);
		widen_row(s->v + i * s->lv, s->lv, t->v, row * d->ld + head * dv, dv, d->type);
		s->q_length[i] = 1 / sqrtf(dot_rows(q, q, s->lk) + 1e-6f);
		s->k_length[i] = 1 / sqrtf(dot_rows(k, k, s->lk) + 1e-6f);
		scale_row(q, q, s->q_length[i] * scale, s->lk);
		scale_row(k, k, s->k_length[i], s->lk);
		s->beta[i] = sigmoid(s_load(t->b, row * d->ld_gates + head, d->type));
		s->g[i] = -rate * softplus(s_load(t->a, row * d->ld_gates + head, d->type) + bias);
		sum += s->g[i];
		s->sum[i] = sum;
		s->decay[i] = expf((float)sum);
	}
	for (int i = 0; i < n; i++) {
		s->rest[i] = expf((float)(sum - s->sum[i]));
		scale_row(s->kd + i * s->lk, s->k + i * s->lk, s->rest[i], s->lk);
	}
	turn(s->kt, CHUNK, s->k, s->lk, n, dk);
	multiply(s->kk, CHUNK, s->k, s->lk, 1, s->kt, CHUNK, n, CHUNK, dk, 1, false);
	multiply(s->p, CHUNK, s->q, s->lk, 1, s->kt, CHUNK, n, CHUNK, dk, 1, false);
	for (int i = 0; i < n; i++)
		for (int j = 0; j < CHUNK; j++) {
			int at = i * CHUNK + j;

			s->d[at] = j <= i ? expf((float)(s->sum[i] - s->sum[j])) : 0;
			s->a[at] = j < i ? s->beta[i] * s->kk[at] * s->d[at] : 0;
			s->p[at] = j <= i ? s->p[at] * s->d[at] : 0;
		}
	for (int i = 0; i < n; i++) {
		float *u = s->u + i * s->lv, *w = s->w + i * s->lk;

		scale_row(u, s->v + i * s->lv, s->beta[i], s->lv);
		scale_row(w, s->k + i * s->lk, s->beta[i] * s->decay[i], s->lk);
		for (int j = 0; j < i; j++) {
			add_row(u, s->u + j * s->lv, -s->a[i * CHUNK + j], s->lv);
			add_row(w, s->w + j * s->lk, -s->a[i * CHUNK + j], s->lk);
		}
	}
}

/* N of the chunk whose state before it is `state` [key_dim, value_dim], rows lv apart. */
static void update_values(struct delta_scratch *s, const struct device_delta *d, const float *state, int n)
{
	memcpy(s->n, s->u, (size_t)(n * s->lv) * sizeof(float));
	multiply(s->n, s->lv, s->w, s->lk, 1, state, s->lv, n, s->lv, d->key_dim, -1, true);
}

/* The state becomes that behind the chunk. */
static void update_state(struct delta_scratch *s, const struct device_delta *d, float *state, int n)
{
	for (int i = 0; i < d->key_dim; i++)
		scale_row(state + i * s->lv, state + i * s->lv, s->decay[n - 1], s->lv);
	multiply(state, s->lv, s->kd, 1, s->lk, s->n, s->lv, d->key_dim, s->lv, n, 1, true);
}

/* The tokens of the chunk that begins at `first`, of a document that ends at `end`. */
static inline int chunk_tokens(int64_t first, int64_t end)
{
	int64_t line = (first / CHUNK + 1) * CHUNK;

	return (int)((line < end ? line : end) - first);
}

/* The scratch of a thread at `base`, of delta_thread_floats; a backward pass has more of it. */
static inline struct delta_scratch delta_scratch(float *base, const struct device_delta *d, bool backward)
{
	struct delta_scratch s = {.lk = delta_width(d->key_dim), .lv = delta_width(d->value_dim)};
	int most = s.lk > s.lv ? s.lk : s.lv;
	const struct {
		float **at;
		int floats;
		bool backward;
	} parts[] = {{&s.q, CHUNK * s.lk, false},  {&s.k, CHUNK * s.lk, false},
	             {&s.v, CHUNK * s.lv, false},  {&s.kt, s.lk * CHUNK, false},
	             {&s.kd, CHUNK * s.lk, false}, {&s.kk, CHUNK * CHUNK, false},
	             {&s.d, CHUNK * CHUNK, false}, {&s.a, CHUNK * CHUNK, false},
	             {&s.p, CHUNK * CHUNK, false}, {&s.u, CHUNK * s.lv, false},
	             {&s.n, CHUNK * s.lv, false},  {&s.w, CHUNK * s.lk, false},
	             {&s.o, CHUNK * s.lv, false},  {&s.beta, CHUNK, false},
	             {&s.g, CHUNK, false},         {&s.decay, CHUNK, false},
	             {&s.rest, CHUNK, false},      {&s.q_length, CHUNK, false},
	             {&s.k_length, CHUNK, false},  {&s.turned, most * (most > CHUNK ? most : CHUNK), true},
	             {&s.t, CHUNK * s.lk, true},   {&s.dn, CHUNK * s.lv, true},
	             {&s.dq, CHUNK * s.lk, true},  {&s.dk, CHUNK * s.lk, true},
	             {&s.dw, CHUNK * s.lk, true},  {&s.dp, CHUNK * CHUNK, true},
	             {&s.da, CHUNK * CHUNK, true}, {&s.dsum, CHUNK, true},
	             {&s.dbeta, CHUNK, true},      {&s.dg, CHUNK, true}};

	s.sum = (double *)base;
	base += 2 * CHUNK;
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		if (parts[i].backward && !backward)
			continue;
		*parts[i].at = base;
		base += parts[i].floats;
	}
	return s;
}

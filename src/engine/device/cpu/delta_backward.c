/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gated delta rule, backward. A thread computes a document's value heads that share a head of q and k:
 * first it goes through the chunks forward and keeps the state before each, then back, with dS the gradient
 * of the state behind the chunk. In the terms of delta_chunk.h, and dG that of G:
 *
 *     dN = Pᵀ do + exp(G_n - G) k dS
 *     dP = do Nᵀ,  dq = exp(G) do Sᵀ + (dP · D) k,  dk = (dP · D)ᵀ q + exp(G_n - G) N dSᵀ
 *     (1 + A)ᵀ dV' = dN,  dK' = -dV' Sᵀ,  dA = -dV' Nᵀ
 *     dv = beta dV',  dk += beta exp(G) dK' + what A has of it
 *     dS = exp(G_n) dS + (exp(G) q)ᵀ do - Wᵀ dN
 */
#include "engine/device/cpu/delta_chunk.h"

#include "engine/device/cpu/parallel.h"

struct backward_task {
	struct delta_task t;
	const void *d_o;
	void *d_q, *d_k, *d_v, *d_b, *d_a;
};

/* From dG to the gradients of b and a of the chunk's tokens; sums[0] and [1]: those of a_log and dt_bias. */
static void gate_gradients(const struct backward_task *task, struct delta_scratch *s, int head, int64_t first,
                           int n, double sums[2])
{
	const struct device_delta *d = task->t.d;
	float rate = expf(s_load(d->a_log, head, d->type)), bias = s_load(d->dt_bias, head, d->type), dg = 0;

	for (int i = n - 1; i >= 0; i--) {
		int64_t at = (first + i) * d->ld_gates + head;
		float d_a;

		dg += s->dsum[i];
		d_a = dg * -rate * sigmoid(s_load(task->t.a, at, d->type) + bias);
		s_store(task->d_a, at, d->type, d_a);
		s_store(task->d_b, at, d->type, s->dbeta[i] * s->beta[i] * (1 - s->beta[i]));
		sums[0] += (double)dg * s->g[i];
		sums[1] += d_a;
	}
}

/* What P and o have of q, k and G: rows of s->dq and s->dk are added to. ds: of the state behind the chunk.
 */
static void output_gradients(const struct device_delta *d, struct delta_scratch *s, const float *state,
                             const float *ds, int n)
{
	/* do · Sᵀ */
	turn(s->turned, s->lk, state, s->lv, d->key_dim, d->value_dim);
	multiply(s->t, s->lk, s->o, s->lv, 1, s->turned, s->lk, n, s->lk, d->value_dim, 1, false);
	for (int i = 0; i < n; i++) {
		s->dsum[i] += s->decay[i] * dot_rows(s->q + i * s->lk, s->t + i * s->lk, s->lk);
		add_row(s->dq + i * s->lk, s->t + i * s->lk, s->decay[i], s->lk);
	}
	/* do · Nᵀ */
	turn(s->turned, CHUNK, s->n, s->lv, n, d->value_dim);
	multiply(s->dp, CHUNK, s->o, s->lv, 1, s->turned, CHUNK, n, CHUNK, d->value_dim, 1, false);
	for (int i = 0; i < n; i++)
		for (int j = 0; j < CHUNK; j++) {
			int at = i * CHUNK + j;
			float both = j <= i ? s->dp[at] * s->p[at] : 0;

			s->dsum[i] += both;
			if (j <= i)
				s->dsum[j] -= both;
			s->dp[at] = j <= i ? s->dp[at] * s->d[at] : 0;
		}
	multiply(s->dq, s->lk, s->dp, CHUNK, 1, s->k, s->lk, n, s->lk, n, 1, true);
	multiply(s->dk, s->lk, s->dp, 1, CHUNK, s->q, s->lk, n, s->lk, n, 1, true);
	/* N · dSᵀ */
	turn(s->turned, s->lk, ds, s->lv, d->key_dim, d->value_dim);
	multiply(s->t, s->lk, s->n, s->lv, 1, s->turned, s->lk, n, s->lk, d->value_dim, 1, false);
	for (int i = 0; i < n; i++) {
		float x = dot_rows(s->kd + i * s->lk, s->t + i * s->lk, s->lk);

		add_row(s->dk + i * s->lk, s->t + i * s->lk, s->rest[i], s->lk);
		s->dsum[i] -= x;
		s->dsum[n - 1] += x;
	}
	for (int i = 0; i < d->key_dim; i++)
		s->dsum[n - 1] += s->decay[n - 1] * dot_rows(ds + i * s->lv, state + i * s->lv, s->lv);
}

/* Through the equations: s->dn becomes dV', and s->dw dK'. */
static void solve_back(const struct device_delta *d, struct delta_scratch *s, const float *state, int n)
{
	for (int i = n - 1; i >= 0; i--)
		for (int j = 0; j < i; j++)
			add_row(s->dn + j * s->lv, s->dn + i * s->lv, -s->a[i * CHUNK + j], s->lv);
	turn(s->turned, s->lk, state, s->lv, d->key_dim, d->value_dim);
	multiply(s->dw, s->lk, s->dn, s->lv, 1, s->turned, s->lk, n, s->lk, d->value_dim, -1, false);
}

/* What A has of k, beta and G, and the right sides of its equations of v, k, beta and G. */
static void system_gradients(const struct device_delta *d, struct delta_scratch *s, int n)
{
	turn(s->turned, CHUNK, s->n, s->lv, n, d->value_dim);
	multiply(s->da, CHUNK, s->dn, s->lv, 1, s->turned, CHUNK, n, CHUNK, d->value_dim, -1, false);
	for (int i = 0; i < n; i++) {
		const float *k = s->k + i * s->lk, *dk = s->dw + i * s->lk;
		float along = dot_rows(k, dk, s->lk) * s->decay[i];

		s->dbeta[i] = along + dot_rows(s->dn + i * s->lv, s->v + i * s->lv, s->lv);
		s->dsum[i] += s->beta[i] * along;
		for (int j = 0; j < CHUNK; j++) {
			int at = i * CHUNK + j;
			float both = j < i ? s->da[at] * s->a[at] : 0, m = j < i ? s->da[at] * s->d[at] : 0;

			s->dsum[i] += both;
			if (j < i)
				s->dsum[j] -= both;
			s->dbeta[i] += m * (j < i ? s->kk[at] : 0);
			s->da[at] = s->beta[i] * m;
		}
		add_row(s->dk + i * s->lk, dk, s->beta[i] * s->decay[i], s->lk);
	}
	multiply(s->dk, s->lk, s->da, CHUNK, 1, s->k, s->lk, n, s->lk, n, 1, true);
	multiply(s->dk, s->lk, s->da, 1, CHUNK, s->k, s->lk, n, s->lk, n, 1, true);
}

/* One chunk of one head: adds to s->dq and s->dk, writes the gradients of v, b and a; ds becomes that of the
 * state before the chunk. */
static void chunk_gradients(const struct backward_task *task, struct delta_scratch *s, const float *state,
                            float *ds, int head, int64_t first, int n, double sums[2])
{
	const struct device_delta *d = task->t.d;

	prepare_chunk(&task->t, s, head, first, n);
	update_values(s, d, state, n);
	for (int i = 0; i < n; i++) {
		widen_row(s->o + i * s->lv, s->lv, task->d_o, (first + i) * d->ld_o + head * d->value_dim,
		          d->value_dim, d->type);
		s->dsum[i] = 0;
	}
	multiply(s->dn, s->lv, s->p, 1, CHUNK, s->o, s->lv, n, s->lv, n, 1, false);
	multiply(s->dn, s->lv, s->kd, s->lk, 1, ds, s->lv, n, s->lv, d->key_dim, 1, true);
	output_gradients(d, s, state, ds, n);
	/* The state before the chunk: of dN before the equations are solved. */
	for (int i = 0; i < d->key_dim; i++)
		scale_row(ds + i * s->lv, ds + i * s->lv, s->decay[n - 1], s->lv);
	for (int i = 0; i < n; i++)
		scale_row(s->t + i * s->lk, s->q + i * s->lk, s->decay[i], s->lk);
	multiply(ds, s->lv, s->t, 1, s->lk, s->o, s->lv, d->key_dim, s->lv, n, 1, true);
	multiply(ds, s->lv, s->w, 1, s->lk, s->dn, s->lv, d->key_dim, s->lv, n, -1, true);
	solve_back(d, s, state, n);
	system_gradients(d, s, n);
	for (int i = 0; i < n; i++)
		for (int j = 0; j < d->value_dim; j++)
			s_store(task->d_v, (first + i) * d->ld + head * d->value_dim + j, d->type,
			        s->beta[i] * s->dn[i * s->lv + j]);
	gate_gradients(task, s, head, first, n, sums);
}

/* From the gradient of a vector of length 1 times `scale`, y, to that of the vector. inverse: 1 / its length.
 */
static void length_gradient(float *dy, const float *y, float inverse, float scale, int n)
{
	float along = dot_rows(dy, y, n) / (scale * scale);

	add_row(dy, y, -along, n);
	scale_row(dy, dy, inverse * scale, n);
}

static void store_keys(const struct backward_task *task, struct delta_scratch *s, int key_head, int64_t first,
                       int n)
{
	const struct device_delta *d = task->t.d;
	float scale = 1 / sqrtf((float)d->key_dim);

	for (int i = 0; i < n; i++) {
		int64_t at = (first + i) * d->ld + key_head * d->key_dim;

		length_gradient(s->dq + i * s->lk, s->q + i * s->lk, s->q_length[i], scale, s->lk);
		length_gradient(s->dk + i * s->lk, s->k + i * s->lk, s->k_length[i], 1, s->lk);
		for (int j = 0; j < d->key_dim; j++) {
			s_store(task->d_q, at + j, d->type, s->dq[i * s->lk + j]);
			s_store(task->d_k, at + j, d->type, s->dk[i * s->lk + j]);
		}
	}
}

/* states: of each chunk and head of the group, [key_dim, value_dim], rows lv apart; then dS of each head. */
static void backward_group(const struct backward_task *task, struct delta_scratch *s, float *states,
                           int document, int key_head, double *sums)
{
	const struct device_delta *d = task->t.d;
	int64_t begin = d->host_starts[document], end = d->host_starts[document + 1];
	int group = d->value_heads / d->key_heads, chunks = (int)((end - 1) / CHUNK - begin / CHUNK + 1);
	size_t size = (size_t)d->key_dim * (size_t)s->lv;
	float *gradients = states + (size_t)chunks * (size_t)group * size;

	memset(states, 0, (size_t)group * size * sizeof(float));
	memset(gradients, 0, (size_t)group * size * sizeof(float));
	for (int h = 0; h < group; h++)
		for (int c = 0; c + 1 < chunks; c++) {
			int64_t first = c ? (begin / CHUNK + c) * CHUNK : begin;
			float *state = states + ((size_t)c * (size_t)group + (size_t)h) * size,
			      *next = state + (size_t)group * size;
			int n = chunk_tokens(first, end);

			prepare_chunk(&task->t, s, key_head * group + h, first, n);
			update_values(s, d, state, n);
			memcpy(next, state, size * sizeof(float));
			update_state(s, d, next, n);
		}
	for (int c = chunks - 1; c >= 0; c--) {
		int64_t first = c ? (begin / CHUNK + c) * CHUNK : begin;
		int n = chunk_tokens(first, end);

		memset(s->dq, 0, (size_t)(n * s->lk) * sizeof(float));
		memset(s->dk, 0, (size_t)(n * s->lk) * sizeof(float));
		for (int h = 0; h < group; h++)
			chunk_gradients(task, s, states + ((size_t)c * (size_t)group + (size_t)h) * size,
			                gradients + (size_t)h * size, key_head * group + h, first, n,
			                sums + 2 * h);
		store_keys(task, s, key_head, first, n);
	}
}

void KERNEL(delta_backward)(struct device *dev, const struct device_delta *d, void *d_q, void *d_k, void *d_v,
                            void *d_b, void *d_a, float *d_a_log, float *d_dt_bias, const void *d_o,
                            const void *q, const void *k, const void *v, const void *b, const void *a)
{
	const struct backward_task task = {{d, q, k, v, b, a}, d_o, d_q, d_k, d_v, d_b, d_a};
	size_t room =
	           delta_backward_bytes(d->tokens, d->value_heads / d->key_heads, d->key_dim, d->value_dim),
	       sums = (size_t)d->documents * (size_t)d->value_heads * 2;
	char *scratch =
	    device_scratch(dev, room * (size_t)dev->threads + sums * sizeof(double), "delta_backward");
	double *sum = (double *)(scratch + room * (size_t)dev->threads);
	int64_t tasks = (int64_t)d->documents * d->key_heads;

	if (!scratch)
		return;
	memset(sum, 0, sums * sizeof(double));
#pragma omp parallel for schedule(dynamic, 1) num_threads(dev->threads) if (tasks > 1)
	for (int64_t i = 0; i < tasks; i++) {
		int document = (int)(i / d->key_heads), key_head = (int)(i % d->key_heads);
		float *base = (float *)(scratch + room * (size_t)omp_get_thread_num());
		struct delta_scratch s = delta_scratch(base, d, true);

		backward_group(&task, &s, base + delta_thread_floats(d->key_dim, d->value_dim, true),
		               document, key_head,
		               sum + 2 * ((size_t)document * (size_t)d->value_heads +
		                          (size_t)(key_head * (d->value_heads / d->key_heads))));
	}
	for (int h = 0; h < d->value_heads; h++) {
		double of_log = 0, of_bias = 0;

		for (int i = 0; i < d->documents; i++) {
			of_log += sum[2 * (i * d->value_heads + h)];
			of_bias += sum[2 * (i * d->value_heads + h) + 1];
		}
		d_a_log[h] += (float)of_log;
		d_dt_bias[h] += (float)of_bias;
	}
}

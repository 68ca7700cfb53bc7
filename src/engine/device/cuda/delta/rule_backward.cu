// SPDX-License-Identifier: Apache-2.0
/*
 * The backward pass of the gated delta rule. What rule.cu finds in front of the output is computed again
 * (gates, T, N and the states); then follow kernels over
 *
 *     tiles x heads                     Pᵀ dO, which is dN as far as it needs no state;
 *     documents x heads x columns of v  the gradients of the states, tile by tile from the last, and dN;
 *     tiles x heads                     all gradients of a tile; of q and k those of their unit vectors;
 *     tokens x heads of k               the sums over the heads of values that share a head of q and k, and
 *                                       the way through the lengths.
 *
 * With dS' the gradient of the state behind a tile, and rows of other documents masked:
 *
 *     dN = Pᵀ dO + diag(exp(G_last - G)) K dS'
 *     dS = exp(G_last) dS' + (diag(exp(G)) Q)ᵀ dO - Wᵀ dN
 *     B = Tᵀ dN: the gradient of diag(beta) V; that of diag(beta exp(G)) K is -B Sᵀ, since dW = -dN Sᵀ
 *     E_ij = -(B Nᵀ)_ij D_ij for i > j: since N = U - W S, this is dA ⊙ D with the gradients of both
 *     F = (dO Nᵀ) ⊙ D
 *     dQ = diag(exp(G)) dO Sᵀ + F K
 *     dK = Fᵀ Q + diag(exp(G_last - G)) N dS'ᵀ + diag(beta) E K + (diag(beta) E)ᵀ K - diag(beta exp(G)) B Sᵀ
 *     dV = diag(beta) B
 *     d_beta_i = B_i · v_i - exp(G_i) (B Sᵀ)_i · k_i + sum of E_ij (k_i · k_j)
 *
 * The gradient of g_t is the sum of the gradients of all exponents that g_t is in: of D_ij for i >= t > j, of
 * exp(G_i) for i >= t, of exp(G_last - G_j) for j < t, and of exp(G_last). They are added up as such, not as
 * gradients of G whose sums would cancel: where a token forgets nearly all, each of the terms is nearly 0.
 *
 * The arithmetic bounds these kernels but for the second, as it does in the forward pass. With heads of 128
 * the whole takes about 210,000 multiplications for each token and head, half of them in the third. These
 * kernels have not run on a GPU yet: tests/simt alone has run them.
 */
#include "engine/device/cuda/columns.cuh"
#include "engine/device/cuda/delta/rule.cuh"

#define INNER_SHARED    (sizeof(tile_gates) + 2 * SQUARE * sizeof(float))
#define GRADIENT_SHARED (sizeof(tile_gates) + sizeof(tile_sums) + 4 * SQUARE * sizeof(float))

template <typename T>
static __global__ void __launch_bounds__(RULE_THREADS)
    inner_kernel(delta_call d, const T *d_o, const T *q, const T *k)
{
	DYNAMIC_SHARED(memory);
	tile_gates &gates = *(tile_gates *)memory;
	float *x = (float *)(&gates + 1), *p = x + SQUARE, c[4][4] = {};
	int64_t first = (int64_t)blockIdx.x * TILE;
	int head = (int)blockIdx.y, of_all = d.first_head + head, tokens = tile_tokens(d, first),
	    dv = d.value_dim;
	float *d_n = d.d_n + (head * d.rows + first) * dv;

	q += first * d.ld + (int64_t)(of_all / d.group) * d.key_dim;
	k += first * d.ld + (int64_t)(of_all / d.group) * d.key_dim;
	d_o += first * d.ld_o + (int64_t)of_all * dv;
	fetch_gates(&gates, d, first, head);
	__syncthreads();
	scores_of(c, x, p, d, q, gates.q, k, gates.k, tokens);
	each(c, [&](int i, int j, float s) { p[i * PITCH + j] = s * masked_decay(gates, i, j); });
	for (int from = 0; from < dv; from += TILE) {
		int width = remaining(dv, from);
		float out[4][4] = {};

		fetch(x, d_o + from, d.ld_o, tokens, width);
		__syncthreads();
		multiply<true, false>(out, p, x, row_of(), TILE);
		__syncthreads();
		each(out, [&](int i, int j, float s) {
			if (j < width)
				d_n[i * dv + from + j] = s;
		});
	}
}

/* As states_kernel: a block has the tiles of a document that begins in its own tile, from the last on. */
template <typename T>
static __global__ void __launch_bounds__(RULE_THREADS, 2)
    d_states_kernel(delta_call d, const T *d_o, const T *q, const T *k)
{
	DYNAMIC_SHARED(memory);
	tile_gates &gates = *(tile_gates *)memory;
	float *x = (float *)(&gates + 1), *d_n = x + SQUARE, *d_out = d_n + TILE * NARROW,
	      *d_state = d_out + TILE * NARROW;
	int64_t begin = (int64_t)blockIdx.x * TILE, last;
	int head = (int)blockIdx.y, of_all = d.first_head + head, from = (int)blockIdx.z * SLICE,
	    dk = d.key_dim, dv = d.value_dim;
	int width = dv - from < SLICE ? dv - from : SLICE, steps = (dk + TILE - 1) / TILE;
	float ahead[QUADS<TILE>][4];
	/* The steps of a tile: those of k, then of W and q in turns. */
	auto ask = [&](int64_t first, int step) {
		int after = step - steps, at = (after < 0 ? step : after / 2) * TILE,
		    cols = remaining(dk, at);

		if (after >= 0 && after % 2 == 0)
			request<TILE>(ahead, d.w + (head * d.rows + first) * dk + at, dk, TILE, cols);
		else
			request<TILE>(ahead, (after < 0 ? k : q) + first * d.ld + at, d.ld,
			              tile_tokens(d, first), cols);
	};

	if (!tile_continues(d, begin) || d.from[begin + TILE - 1] < begin)
		return;
	last = (d.starts[document_of(d.starts, d.documents, begin + TILE - 1) + 1] - 1) / TILE * TILE;
	q += (int64_t)(of_all / d.group) * dk;
	k += (int64_t)(of_all / d.group) * dk;
	d_o += (int64_t)of_all * dv + from;
	ask(last, steps);
	for (int64_t first = last;; first -= TILE) {
		bool is_first = first == begin, is_last = first == last;
		float *d_n_at = d.d_n + (head * d.rows + first) * dv + from,
		      *front = d.d_states + (head * (d.rows / TILE) + first / TILE) * dk * dv + from;
		float c[4][2] = {}, inner[4][2], kept;

		fetch_gates(&gates, d, first, head);
		each(inner, [&](int i, int j, float &y) { y = j < width ? d_n_at[i * dv + j] : 0.0f; });
		fetch_scaled<SLICE, NARROW>(d_out, d_o + first * d.ld_o, d.ld_o, tile_tokens(d, first), width,
		                            [](int) { return 1.0f; });
		__syncthreads();
		for (int step = is_last ? steps : 0; step < steps; step++) {
			receive<TILE, PITCH>(x, ahead,
			                     [&](int i) { return gates.k[i] * decay_behind(gates, i); });
			__syncthreads();
			ask(first, step + 1);
			multiply<false, false, 2, NARROW>(c, x, d_state + step * TILE * NARROW, 0,
			                                  depth_of(remaining(dk, step * TILE)));
			__syncthreads();
		}
		own_rows(d_n, is_last ? NULL : d_n_at, dv, width, gates, is_first, inner, c, 1.0f);
		if (is_first)
			return;
		kept = is_last ? 0.0f : expf(gates.sum[TILE - 1]);
		for (int step = 0; step < steps; step++) {
			int at = step * TILE, cols = remaining(dk, at);
			float sum[4][2] = {};

			/* W and q are zero in the rows of other documents. */
			receive<TILE, PITCH>(x, ahead, [](int) { return 1.0f; });
			__syncthreads();
			ask(first, steps + 2 * step + 1);
			multiply<true, false, 2, NARROW>(sum, x, d_n, 0, TILE);
			__syncthreads();
			each(sum, [&](int, int, float &s) { s = -s; });
			receive<TILE, PITCH>(x, ahead,
			                     [&](int i) { return gates.q[i] * decay_before(gates, i); });
			__syncthreads();
			if (step + 1 < steps)
				ask(first, steps + 2 * step + 2);
			else
				ask(first - TILE, 0);
			multiply<true, false, 2, NARROW>(sum, x, d_out, 0, TILE);
			add_to_state(d_state + at * NARROW, front + (int64_t)at * dv, dv, cols, width, sum,
			             is_last, kept);
			__syncthreads();
		}
	}
}

/* Of each token of a tile; before and behind: of the exponents of exp(G_i) and of exp(G_last - G_i). */
struct tile_sums {
	float d_beta[TILE], before[TILE], behind[TILE], between[TILE];
	float decay_before[TILE], decay_behind[TILE];
};

/* What a block of gradient_kernel works on; the pointers are those of its tile and head. */
struct tile_work {
	int tokens, key_dim, value_dim;
	bool carried, continues; /* whether there is a state in front of the tile and one behind it */
	float *m[4];             /* in shared memory */
	tile_gates *gates;
	tile_sums *sums;
	const float *n, *state, *d_state; /* d_state: behind the tile */
	float *d_n, *d_q, *d_k;
};

/* Writes B over dN, and dV; d_a and d_p become -dA and dP. */
template <typename T>
static __device__ __forceinline__ void value_gradients(float (&d_a)[4][4], float (&d_p)[4][4],
                                                       const tile_work &w, const delta_call &d, T *d_v,
                                                       const T *d_o, const T *v)
{
	int dv = w.value_dim;
	float *inverse = w.m[0], *x = w.m[1], *n = w.m[2], *d_out = w.m[3];

	for (int from = 0; from < dv; from += TILE) {
		int width = remaining(dv, from);
		float b[4][4] = {};

		fetch(x, w.d_n + from, dv, TILE, width);
		fetch(n, w.n + from, dv, TILE, width);
		fetch(d_out, d_o + from, d.ld_o, w.tokens, width);
		__syncthreads();
		multiply<true, false>(b, inverse, x, row_of(), TILE);
		__syncthreads();
		each(b, [&](int i, int j, float y) {
			x[i * PITCH + j] = y;
			if (j < width)
				w.d_n[i * dv + from + j] = y;
			if (j < width && i < w.tokens)
				d_v[i * d.ld + from + j] = from_float<T>(y * w.gates->beta[i]);
		});
		add_rows(w.sums->d_beta, b, [&](int i, int j, float y) {
			return j < width && i < w.tokens ? y * to_float(v[i * d.ld + from + j]) : 0.0f;
		});
		__syncthreads();
		multiply<false, true>(d_a, x, n, 0, depth_of(width));
		multiply<false, true>(d_p, d_out, n, 0, depth_of(width));
		__syncthreads();
	}
}

/* From -dA and dP: F to m[0], diag(beta) E to m[3], and what they add to the gradients of beta and of g. */
template <typename T>
static __device__ __forceinline__ void pair_gradients(float (&d_a)[4][4], float (&d_p)[4][4],
                                                      const tile_work &w, const delta_call &d, const T *q,
                                                      const T *k)
{
	const tile_gates &gates = *w.gates;
	float qk[4][4] = {}, kk[4][4] = {}, *exponents = w.m[1];
	int row = row_of(), col = column_of(), t = (int)threadIdx.x;

	for (int at = 0; at < w.key_dim; at += TILE) {
		int cols = remaining(w.key_dim, at);

		fetch_scaled<TILE, PITCH>(w.m[1], q + at, d.ld, w.tokens, cols,
		                          [&](int i) { return gates.q[i]; });
		fetch_scaled<TILE, PITCH>(w.m[2], k + at, d.ld, w.tokens, cols,
		                          [&](int i) { return gates.k[i]; });
		__syncthreads();
		multiply<false, true>(qk, w.m[1], w.m[2], 0, depth_of(cols));
		multiply<false, true>(kk, w.m[2], w.m[2], 0, depth_of(cols));
		__syncthreads();
	}
#pragma unroll
	for (int r = 0; r < 4; r++)
#pragma unroll
		for (int c = 0; c < 4; c++) {
			int i = row + r, j = col + 16 * c;
			float decayed = masked_decay(gates, i, j), f = d_p[r][c] * decayed,
			      e = i > j ? -d_a[r][c] * decayed : 0.0f, scaled = gates.beta[i] * e;

			w.m[0][i * PITCH + j] = f;
			w.m[3][i * PITCH + j] = scaled;
			exponents[i * PITCH + j] = f * qk[r][c] + scaled * kk[r][c];
			kk[r][c] *= e;
		}
	add_rows(w.sums->d_beta, kk, [](int, int, float x) { return x; });
	__syncthreads();
	/* The sums over j < t of each row, then those over i >= t of each of them. */
	if (t < TILE) {
		float sum = 0;

		for (int j = 0; j < t; j++) {
			sum += exponents[t * PITCH + j];
			exponents[t * PITCH + j] = sum;
		}
	}
	__syncthreads();
	if (t < TILE) {
		float sum = 0;

		for (int i = t; i < TILE && t > 0; i++)
			sum += exponents[i * PITCH + t - 1];
		w.sums->between[t] = sum;
	}
	__syncthreads();
}

/* From F and E in m[0] and m[3]: the gradients of the unit vectors of q and k, and what the states add to
 * those of beta and of g. Returns a thread's part of <dS', S>. */
template <typename T>
static __device__ __forceinline__ float key_gradients(const tile_work &w, const delta_call &d, const T *d_o,
                                                      const T *q, const T *k)
{
	const tile_gates &gates = *w.gates;
	int dk = w.key_dim, dv = w.value_dim;
	float *x = w.m[1], *y = w.m[2], product = 0;

	for (int at = 0; at < dk; at += TILE) {
		int cols = remaining(dk, at);
		/* of q; of k from what later tokens and the state behind read; of k as beta's and A's rows */
		float d_q[4][4] = {}, column[4][4] = {}, own[4][4] = {};

		for (int from = 0; from < dv && (w.carried || w.continues); from += TILE) {
			int width = remaining(dv, from), depth = depth_of(width);

			if (w.carried) {
				fetch(x, w.state + (int64_t)at * dv + from, dv, cols, width);
				fetch(y, d_o + from, d.ld_o, w.tokens, width);
				__syncthreads();
				multiply<false, true>(d_q, y, x, 0, depth);
				__syncthreads();
				fetch(y, w.d_n + from, dv, TILE, width);
				__syncthreads();
				multiply<false, true>(own, y, x, 0, depth);
				__syncthreads();
			}
			if (w.continues) {
				for (int e = (int)threadIdx.x; e < TILE * TILE; e += RULE_THREADS) {
					int i = e / TILE, j = e % TILE;
					float s = i < cols && j < width
					              ? w.d_state[(int64_t)(at + i) * dv + from + j]
					              : 0.0f;

					if (w.carried)
						product += s * x[i * PITCH + j];
					x[i * PITCH + j] = s;
				}
				fetch(y, w.n + from, dv, TILE, width);
				__syncthreads();
				multiply<false, true>(column, y, x, 0, depth);
				__syncthreads();
			}
		}
		fetch_scaled<TILE, PITCH>(x, q + at, d.ld, w.tokens, cols, [&](int i) { return gates.q[i]; });
		fetch_scaled<TILE, PITCH>(y, k + at, d.ld, w.tokens, cols, [&](int i) { return gates.k[i]; });
		__syncthreads();
		if (w.carried) {
			each(d_q, [&](int i, int, float &s) { s *= w.sums->decay_before[i]; });
			each(own, [&](int i, int, float &s) { s *= -w.sums->decay_before[i]; });
			add_rows(w.sums->d_beta, own,
			         [&](int i, int j, float s) { return s * y[i * PITCH + j]; });
			each(own, [&](int i, int, float &s) { s *= gates.beta[i]; });
			add_rows(w.sums->before, own,
			         [&](int i, int j, float s) { return s * y[i * PITCH + j]; });
			add_rows(w.sums->before, d_q,
			         [&](int i, int j, float s) { return s * x[i * PITCH + j]; });
		}
		if (w.continues) {
			each(column, [&](int i, int, float &s) { s *= w.sums->decay_behind[i]; });
			add_rows(w.sums->behind, column,
			         [&](int i, int j, float s) { return s * y[i * PITCH + j]; });
		}
		multiply<false, false>(d_q, w.m[0], y, 0, row_of() + 4);
		multiply<false, false>(own, w.m[3], y, 0, row_of() + 4);
		multiply<true, false>(own, w.m[0], x, row_of(), TILE);
		multiply<true, false>(own, w.m[3], y, row_of(), TILE);
		__syncthreads();
#pragma unroll
		for (int r = 0; r < 4; r++)
#pragma unroll
			for (int c = 0; c < 4; c++) {
				int64_t i = row_of() + r, j = column_of() + 16 * c;

				if (j < cols) {
					w.d_q[i * dk + at + j] = d_q[r][c];
					w.d_k[i * dk + at + j] = own[r][c] + column[r][c];
				}
			}
	}
	return product;
}

template <typename T>
static __global__ void __launch_bounds__(RULE_THREADS, 2)
    gradient_kernel(delta_call d, T *d_v, T *d_b, T *d_a, const T *d_o, const T *q, const T *k, const T *v,
                    const T *a)
{
	DYNAMIC_SHARED(memory);
	tile_gates &gates = *(tile_gates *)memory;
	tile_sums &sums = *(tile_sums *)(&gates + 1);
	int64_t first = (int64_t)blockIdx.x * TILE, tiles = d.rows / TILE;
	int head = (int)blockIdx.y, of_all = d.first_head + head, dk = d.key_dim, dv = d.value_dim,
	    t = (int)threadIdx.x;
	int64_t row = head * d.rows + first, tile = head * tiles + blockIdx.x, key_at = of_all / d.group * dk;
	float d_scores[4][4] = {}, d_p[4][4] = {}, through, dg = 0, dx = 0, of_a_log;
	tile_work w = {};

	w.tokens = tile_tokens(d, first);
	w.key_dim = dk;
	w.value_dim = dv;
	w.m[0] = (float *)(&sums + 1);
	for (int i = 1; i < 4; i++)
		w.m[i] = w.m[i - 1] + SQUARE;
	w.gates = &gates;
	w.sums = &sums;
	w.n = d.n + row * dv;
	w.state = d.states + tile * dk * dv;
	w.d_state = d.d_states + (tile + 1) * dk * dv;
	w.d_n = d.d_n + row * dv;
	w.d_q = d.d_q + row * dk;
	w.d_k = d.w + row * dk;
	w.continues = tile_continues(d, first);
	w.carried = d.from[first] < first;
	q += first * d.ld + key_at;
	k += first * d.ld + key_at;
	v += first * d.ld + (int64_t)of_all * dv;
	d_v += first * d.ld + (int64_t)of_all * dv;
	d_o += first * d.ld_o + (int64_t)of_all * dv;
	fetch_gates(&gates, d, first, head);
	fetch(w.m[0], d.inverse + row * TILE, TILE, TILE, TILE);
	__syncthreads();
	if (t < TILE) {
		sums.d_beta[t] = sums.before[t] = sums.behind[t] = 0;
		sums.decay_before[t] = decay_before(gates, t);
		sums.decay_behind[t] = w.continues ? decay_behind(gates, t) : 0.0f;
	}
	value_gradients(d_scores, d_p, w, d, d_v, d_o, v);
	pair_gradients(d_scores, d_p, w, d, q, k);
	through = block_sum(key_gradients(w, d, d_o, q, k));
	/* The state behind the tile is of the same document as that in front of it. */
	through =
	    w.carried && w.continues && gates.begin[TILE - 1] < 0 ? through * expf(gates.sum[TILE - 1]) : 0;
	if (t < w.tokens) {
		int64_t at = (first + t) * d.ld_gates + of_all;
		float rate = expf(to_float(((const T *)d.a_log)[of_all])), beta = gates.beta[t];

		for (int i = w.tokens - 1; i >= t; i--)
			dg += sums.before[i];
		for (int j = 0; j < t; j++)
			dg += sums.behind[j];
		dg += sums.between[t] + through;
		dx = dg * -rate * delta_sigmoid(to_float(a[at]) + to_float(((const T *)d.dt_bias)[of_all]));
		dg *= d.gates[(head * DELTA_GATES + GATE_LOG) * d.rows + first + t];
		d_a[at] = from_float<T>(dx);
		d_b[at] = from_float<T>(sums.d_beta[t] * beta * (1.0f - beta));
	}
	of_a_log = block_sum(dg);
	dx = block_sum(dx);
	if (t == 0) {
		d.sums[blockIdx.x * d.heads + head] = of_a_log;
		d.sums[(tiles + blockIdx.x) * d.heads + head] = dx;
	}
}

/* The gradient of a row from that of its unit vector times `scale`, to which `heads` rows, `step` apart, are
 * added up; factor: scale / |x|. By a warp. */
template <typename T>
static __device__ __forceinline__ void length_gradient(T *d_x, const T *x, const float *d_unit, int64_t step,
                                                       int heads, int dim, float factor, float scale)
{
	constexpr int MOST = DELTA_DIM / 32;
	int lane = (int)threadIdx.x % 32;
	float unit[MOST], sum[MOST], dot = 0;

#pragma unroll
	for (int e = 0; e < MOST; e++) {
		int i = lane + 32 * e;

		unit[e] = sum[e] = 0;
		if (i >= dim)
			continue;
		unit[e] = to_float(x[i]) * (factor / scale);
		for (int h = 0; h < heads; h++)
			sum[e] += d_unit[h * step + i];
		dot += unit[e] * sum[e];
	}
	dot = warp_sum(dot);
#pragma unroll
	for (int e = 0; e < MOST; e++)
		if (lane + 32 * e < dim)
			d_x[lane + 32 * e] = from_float<T>(factor * (sum[e] - unit[e] * dot));
}

template <typename T>
static __global__ void __launch_bounds__(RULE_THREADS)
    lengths_kernel(delta_call d, T *d_q, T *d_k, const T *q, const T *k)
{
	int64_t row = (int64_t)blockIdx.x * (RULE_THREADS / 32) + threadIdx.x / 32, step = d.rows * d.key_dim;
	int key_head = (int)blockIdx.y, head = key_head * d.group, dk = d.key_dim;
	int64_t at = row * d.ld + (int64_t)(d.first_head / d.group + key_head) * dk,
	        from = head * step + row * dk;
	const float *gates = d.gates + head * DELTA_GATES * d.rows + row;

	if (row >= d.tokens)
		return;
	length_gradient(d_q + at, q + at, d.d_q + from, step, d.group, dk, gates[GATE_Q * d.rows],
	                1.0f / sqrtf((float)dk));
	length_gradient(d_k + at, k + at, d.w + from, step, d.group, dk, gates[GATE_K * d.rows], 1.0f);
}

extern "C" void device_delta_backward(struct device *dev, const struct device_delta *d, void *d_q, void *d_k,
                                      void *d_v, void *d_b, void *d_a, float *d_a_log, float *d_dt_bias,
                                      const void *d_o, const void *q, const void *k, const void *v,
                                      const void *b, const void *a)
{
	delta_call call;
	int at_once;

	if (d->tokens <= 0 || !delta_prepare(dev, d, true, &call, &at_once, "delta_backward"))
		return;
	for (int head = 0; head < d->value_heads; head += at_once) {
		int64_t tiles = call.rows / TILE;

		call.first_head = head;
		call.heads = d->value_heads - head < at_once ? d->value_heads - head : at_once;
		delta_find_states(dev, call, d->type, q, k, v, b, a);
		with_type(d->type, [&](auto t) {
			typedef decltype(t) T;
			dim3 grid((unsigned)tiles, (unsigned)call.heads);

			LAUNCH(dev, inner_kernel<T>, grid, RULE_THREADS, INNER_SHARED, call, (const T *)d_o,
			       (const T *)q, (const T *)k);
			LAUNCH(dev, d_states_kernel<T>,
			       dim3(grid.x, grid.y, (unsigned)ceil_div(d->value_dim, SLICE)), RULE_THREADS,
			       scan_shared(d->key_dim, 2), call, (const T *)d_o, (const T *)q, (const T *)k);
			LAUNCH(dev, gradient_kernel<T>, grid, RULE_THREADS, GRADIENT_SHARED, call, (T *)d_v,
			       (T *)d_b, (T *)d_a, (const T *)d_o, (const T *)q, (const T *)k, (const T *)v,
			       (const T *)a);
			LAUNCH(dev, lengths_kernel<T>,
			       dim3((unsigned)ceil_div(d->tokens, RULE_THREADS / 32),
			            (unsigned)(call.heads / call.group)),
			       RULE_THREADS, 0, call, (T *)d_q, (T *)d_k, (const T *)q, (const T *)k);
		});
		column_finish(dev, d_a_log + head, DTYPE_F32, call.sums, tiles, call.heads);
		column_finish(dev, d_dt_bias + head, DTYPE_F32, call.sums + tiles * call.heads, tiles,
		              call.heads);
	}
}

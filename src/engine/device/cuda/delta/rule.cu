// SPDX-License-Identifier: Apache-2.0
/*
 * The forward pass of the gated delta rule (rule.cuh has the formulas), in kernels over
 *
 *     tokens                            the first token of each token's document;
 *     tiles x heads                     g and its sums, beta, the lengths of q and k;
 *     tiles x heads                     T, U and W, which need no state;
 *     documents x heads x columns of v  the states, tile by tile, and N;
 *     tiles x heads                     o.
 *
 * Products are fp32 arithmetic, which bounds all of them but the fourth: with heads of 128 each token and
 * head takes about 80,000 multiplications. The fourth waits, tile by tile, for W and k to arrive from memory;
 * how many of its blocks run at once is documents that are longer than a tile x heads x value_dim / 32.
 * Tensor cores are not used. These kernels have not run on a GPU yet: tests/simt alone has run them.
 */
#include "engine/device/cuda/delta/rule.cuh"

static __global__ void __launch_bounds__(RULE_THREADS) from_kernel(delta_call d)
{
	int64_t t = (int64_t)blockIdx.x * RULE_THREADS + threadIdx.x;

	if (t < d.rows)
		d.from[t] = t < d.tokens ? d.starts[document_of(d.starts, d.documents, t)] : (int32_t)t;
}

/* 1 / |x| of a row, by a warp. */
template <typename T> static __device__ __forceinline__ float inverse_length(const T *x, int dim)
{
	float squares = 0;

	for (int i = (int)threadIdx.x % 32; i < dim; i += 32)
		squares += to_float(x[i]) * to_float(x[i]);
	return 1.0f / sqrtf(warp_sum(squares) + 1e-6f);
}

template <typename T>
static __global__ void __launch_bounds__(RULE_THREADS)
    gates_kernel(delta_call d, const T *q, const T *k, const T *b, const T *a)
{
	__shared__ float log_decay[TILE];
	int64_t first = (int64_t)blockIdx.x * TILE;
	int head = (int)blockIdx.y, of_all = d.first_head + head, i = (int)threadIdx.x,
	    tokens = tile_tokens(d, first);
	float *gates = d.gates + head * DELTA_GATES * d.rows + first, scale = 1.0f / sqrtf((float)d.key_dim);

	q += first * d.ld + (int64_t)(of_all / d.group) * d.key_dim;
	k += first * d.ld + (int64_t)(of_all / d.group) * d.key_dim;
	for (int row = i / 32; row < TILE; row += RULE_THREADS / 32) {
		bool is_token = row < tokens;
		float of_q = is_token ? inverse_length(q + row * d.ld, d.key_dim) * scale : 0;
		float of_k = is_token ? inverse_length(k + row * d.ld, d.key_dim) : 0;

		if (i % 32 == 0) {
			gates[GATE_Q * d.rows + row] = of_q;
			gates[GATE_K * d.rows + row] = of_k;
		}
	}
	if (i < TILE) {
		float g = 0, beta = 0;

		if (i < tokens) {
			int64_t at = (first + i) * d.ld_gates + of_all;
			float x = to_float(a[at]) + to_float(((const T *)d.dt_bias)[of_all]);

			g = -expf(to_float(((const T *)d.a_log)[of_all])) * (x > 20.0f ? x : log1pf(expf(x)));
			beta = delta_sigmoid(to_float(b[at]));
		}
		log_decay[i] = g;
		gates[GATE_LOG * d.rows + i] = g;
		gates[GATE_BETA * d.rows + i] = beta;
	}
	__syncthreads();
	if (i == 0) {
		double sum = 0;

		for (int t = 0; t < TILE; t++) {
			float high;

			sum = (d.from[first + t] == first + t ? 0 : sum) + (double)log_decay[t];
			high = (float)sum;
			gates[GATE_SUM * d.rows + t] = high;
			gates[GATE_LOW * d.rows + t] = (float)(sum - (double)high);
		}
	}
}

/* t = (I + A)^-1 of the strictly lower triangular A in a, whose upper triangle is used for what lies between.
 * Squares of 16 on the diagonal are inverted first, by a thread for each column; the others follow, diagonal
 * by diagonal: T_ij = -T_ii (sum of A_im T_mj over j <= m < i). */
static __device__ __forceinline__ void invert(float *t, float *a)
{
	int i = (int)threadIdx.x;

	for (int e = i; e < TILE * TILE; e += RULE_THREADS)
		if (e / TILE / 16 < e % TILE / 16)
			t[e / TILE * PITCH + e % TILE] = 0;
	if (i < TILE) {
		int base = i / 16 * 16;
		float x[16];

#pragma unroll
		for (int r = 0; r < 16; r++) {
			x[r] = r == i % 16 ? 1.0f : 0.0f;
#pragma unroll
			for (int j = 0; j < r; j++)
				x[r] -= a[(base + r) * PITCH + base + j] * x[j];
			t[(base + r) * PITCH + i] = x[r];
		}
	}
	__syncthreads();
	for (int away = 1; away < TILE / 16; away++) {
		int r = i / 16, c = i % 16;

		for (int j = 0; j + away < TILE / 16; j++) {
			int row = 16 * (j + away), col = 16 * j;
			float sum = 0;

			for (int m = col; m < row; m++)
				sum += a[(row + r) * PITCH + m] * t[m * PITCH + col + c];
			a[(col + r) * PITCH + row + c] = sum;
		}
		__syncthreads();
		for (int j = 0; j + away < TILE / 16; j++) {
			int row = 16 * (j + away), col = 16 * j;
			float sum = 0;

#pragma unroll
			for (int m = 0; m < 16; m++)
				sum += t[(row + r) * PITCH + row + m] * a[(col + m) * PITCH + row + c];
			t[(row + r) * PITCH + col + c] = -sum;
		}
		__syncthreads();
	}
}

#define SOLVE_SHARED (sizeof(tile_gates) + 2 * SQUARE * sizeof(float))

template <typename T>
static __global__ void __launch_bounds__(RULE_THREADS) solve_kernel(delta_call d, const T *k, const T *v)
{
	DYNAMIC_SHARED(memory);
	tile_gates &gates = *(tile_gates *)memory;
	float *t = (float *)(&gates + 1), *a = t + SQUARE, c[4][4] = {};
	int64_t first = (int64_t)blockIdx.x * TILE;
	int head = (int)blockIdx.y, of_all = d.first_head + head, tokens = tile_tokens(d, first);
	int64_t row = head * d.rows + first;

	k += first * d.ld + (int64_t)(of_all / d.group) * d.key_dim;
	v += first * d.ld + (int64_t)of_all * d.value_dim;
	fetch_gates(&gates, d, first, head);
	__syncthreads();
	scores_of(c, t, t, d, k, gates.k, k, gates.k, tokens);
	each(c, [&](int i, int j, float x) {
		a[i * PITCH + j] = j < i ? gates.beta[i] * x * masked_decay(gates, i, j) : 0.0f;
	});
	__syncthreads();
	invert(t, a);
	for (int at = 0; at < d.value_dim; at += TILE) {
		int cols = remaining(d.value_dim, at);
		float u[4][4] = {};

		fetch_scaled<TILE, PITCH>(a, v + at, d.ld, tokens, cols,
		                          [&](int i) { return gates.beta[i]; });
		__syncthreads();
		multiply<false, false>(u, t, a, 0, row_of() + 4);
		__syncthreads();
		each(u, [&](int i, int j, float x) {
			if (j < cols)
				d.n[(row + i) * d.value_dim + at + j] = x;
		});
	}
	for (int at = 0; at < d.key_dim; at += TILE) {
		int cols = remaining(d.key_dim, at);
		float w[4][4] = {};

		fetch_scaled<TILE, PITCH>(a, k + at, d.ld, tokens, cols, [&](int i) {
			return gates.k[i] * gates.beta[i] * decay_before(gates, i);
		});
		__syncthreads();
		multiply<false, false>(w, t, a, 0, row_of() + 4);
		__syncthreads();
		each(w, [&](int i, int j, float x) {
			if (j < cols)
				d.w[(row + i) * d.key_dim + at + j] = x;
		});
	}
	if (d.inverse)
		for (int e = (int)threadIdx.x; e < TILE * TILE; e += RULE_THREADS)
			d.inverse[row * TILE + e] = t[e / TILE * PITCH + e % TILE];
}

/* A block begins at a tile which a document that starts in it continues beyond, and goes through all tiles
 * of the document. The next columns of W or k are on their way while the present ones are used. */
template <typename T>
static __global__ void __launch_bounds__(RULE_THREADS) states_kernel(delta_call d, const T *k)
{
	DYNAMIC_SHARED(memory);
	tile_gates &gates = *(tile_gates *)memory;
	float *x = (float *)(&gates + 1), *narrow = x + SQUARE, *state = narrow + TILE * NARROW;
	int64_t begin = (int64_t)blockIdx.x * TILE;
	int head = (int)blockIdx.y, from = (int)blockIdx.z * SLICE, dk = d.key_dim, dv = d.value_dim;
	int width = dv - from < SLICE ? dv - from : SLICE, steps = (dk + TILE - 1) / TILE;
	float ahead[QUADS<TILE>][4];
	/* The steps of a tile: those of W, then those of k. */
	auto ask = [&](int64_t first, int step) {
		int at = step % steps * TILE;

		if (step < steps)
			request<TILE>(ahead, d.w + (head * d.rows + first) * dk + at, dk, TILE,
			              remaining(dk, at));
		else
			request<TILE>(ahead, k + first * d.ld + at, d.ld, tile_tokens(d, first),
			              remaining(dk, at));
	};

	if (!tile_continues(d, begin) || d.from[begin + TILE - 1] < begin)
		return;
	k += (int64_t)((d.first_head + head) / d.group) * dk;
	ask(begin, steps);
	for (int64_t first = begin;; first += TILE) {
		bool is_first = first == begin;
		float *n = d.n + (head * d.rows + first) * dv + from,
		      *behind = d.states + (head * (d.rows / TILE) + first / TILE + 1) * dk * dv + from;
		float c[4][2] = {}, u[4][2], kept;

		fetch_gates(&gates, d, first, head);
		each(u, [&](int i, int j, float &y) { y = j < width ? n[i * dv + j] : 0.0f; });
		__syncthreads();
		/* W is zero in the rows of other documents. */
		for (int step = is_first ? steps : 0; step < steps; step++) {
			receive<TILE, PITCH>(x, ahead, [](int) { return 1.0f; });
			__syncthreads();
			ask(first, step + 1);
			multiply<false, false, 2, NARROW>(c, x, state + step * TILE * NARROW, 0,
			                                  depth_of(remaining(dk, step * TILE)));
			__syncthreads();
		}
		own_rows(narrow, is_first ? NULL : n, dv, width, gates, is_first, u, c, -1.0f);
		/* The document ends in this tile, and if one continues beyond it, it is another. */
		if (!is_first && (gates.begin[TILE - 1] >= 0 || !tile_continues(d, first)))
			return;
		kept = is_first ? 0.0f : expf(gates.sum[TILE - 1]);
		for (int step = 0; step < steps; step++) {
			int at = step * TILE, cols = remaining(dk, at);
			float sum[4][2] = {};

			receive<TILE, PITCH>(x, ahead,
			                     [&](int i) { return gates.k[i] * decay_behind(gates, i); });
			__syncthreads();
			if (step + 1 < steps)
				ask(first, steps + step + 1);
			else
				ask(first + TILE, 0);
			multiply<true, false, 2, NARROW>(sum, x, narrow, 0, TILE);
			add_to_state(state + at * NARROW, behind + (int64_t)at * dv, dv, cols, width, sum,
			             is_first, kept);
			__syncthreads();
		}
	}
}

#define OUTPUT_SHARED (sizeof(tile_gates) + 3 * SQUARE * sizeof(float))

template <typename T>
static __global__ void __launch_bounds__(RULE_THREADS)
    output_kernel(delta_call d, T *o, const T *q, const T *k)
{
	DYNAMIC_SHARED(memory);
	tile_gates &gates = *(tile_gates *)memory;
	float *p = (float *)(&gates + 1), *x = p + SQUARE, *y = x + SQUARE, c[4][4] = {};
	int64_t first = (int64_t)blockIdx.x * TILE;
	int head = (int)blockIdx.y, of_all = d.first_head + head, tokens = tile_tokens(d, first),
	    dk = d.key_dim, dv = d.value_dim;
	const float *n = d.n + (head * d.rows + first) * dv,
	            *state = d.states + (head * (d.rows / TILE) + first / TILE) * dk * dv;

	q += first * d.ld + (int64_t)(of_all / d.group) * dk;
	k += first * d.ld + (int64_t)(of_all / d.group) * dk;
	o += first * d.ld_o + (int64_t)of_all * dv;
	fetch_gates(&gates, d, first, head);
	__syncthreads();
	scores_of(c, x, y, d, q, gates.q, k, gates.k, tokens);
	each(c, [&](int i, int j, float s) { p[i * PITCH + j] = s * masked_decay(gates, i, j); });
	for (int from = 0; from < dv; from += TILE) {
		int width = remaining(dv, from);
		float out[4][4] = {};

		if (gates.begin[0] < 0) {
			for (int at = 0; at < dk; at += TILE) {
				int cols = remaining(dk, at);

				fetch_scaled<TILE, PITCH>(x, q + at, d.ld, tokens, cols,
				                          [&](int i) { return gates.q[i]; });
				fetch(y, state + (int64_t)at * dv + from, dv, cols, width);
				__syncthreads();
				multiply<false, false>(out, x, y, 0, depth_of(cols));
				__syncthreads();
			}
			each(out, [&](int i, int, float &s) { s *= decay_before(gates, i); });
		}
		fetch(y, n + from, dv, TILE, width);
		__syncthreads();
		multiply<false, false>(out, p, y, 0, row_of() + 4);
		__syncthreads();
		each(out, [&](int i, int j, float s) {
			if (i < tokens && j < width)
				o[i * d.ld_o + from + j] = from_float<T>(s);
		});
	}
}

/* The next part of the scratch. */
static float *take(char **scratch, size_t elements)
{
	float *p = (float *)*scratch;

	*scratch += delta_matrix(elements);
	return p;
}

bool delta_prepare(struct device *dev, const struct device_delta *d, bool backward, delta_call *call,
                   int *at_once, const char *operation)
{
	int group = d->value_heads / d->key_heads, dk = d->key_dim, dv = d->value_dim;
	size_t tiles = (size_t)ceil_div(d->tokens, TILE), rows = TILE * tiles, heads;
	size_t head = delta_head_scratch(d->tokens, dk, dv, backward);
	int64_t fit = (int64_t)(DELTA_SCRATCH / head) / group * group;
	char *scratch;

	if (!delta_fits(dev, d, operation))
		return false;
	*at_once = (int)(fit < group ? group : fit < d->value_heads ? fit : d->value_heads);
	heads = (size_t)*at_once;
	scratch = (char *)device_scratch(dev, delta_shared_scratch(d->tokens) + heads * head, operation);
	if (!scratch)
		return false;
	*call = delta_call{};
	call->tokens = d->tokens;
	call->rows = (int64_t)rows;
	call->documents = d->documents;
	call->group = group;
	call->key_dim = dk;
	call->value_dim = dv;
	call->ld = d->ld;
	call->ld_gates = d->ld_gates;
	call->ld_o = d->ld_o;
	call->starts = d->starts;
	call->a_log = d->a_log;
	call->dt_bias = d->dt_bias;
	call->from = (int32_t *)take(&scratch, rows);
	call->gates = take(&scratch, heads * DELTA_GATES * rows);
	call->n = take(&scratch, heads * rows * (size_t)dv);
	call->w = take(&scratch, heads * rows * (size_t)dk);
	call->states = take(&scratch, heads * tiles * (size_t)dk * (size_t)dv);
	if (backward) {
		call->inverse = take(&scratch, heads * rows * TILE);
		call->d_n = take(&scratch, heads * rows * (size_t)dv);
		call->d_states = take(&scratch, heads * tiles * (size_t)dk * (size_t)dv);
		call->d_q = take(&scratch, heads * rows * (size_t)dk);
		call->sums = take(&scratch, 2 * tiles * heads);
	}
	LAUNCH(dev, from_kernel, (unsigned)ceil_div((int64_t)rows, RULE_THREADS), RULE_THREADS, 0, *call);
	return true;
}

void delta_find_states(struct device *dev, const delta_call &d, enum dtype type, const void *q, const void *k,
                       const void *v, const void *b, const void *a)
{
	dim3 tiles((unsigned)(d.rows / TILE), (unsigned)d.heads);
	dim3 slices(tiles.x, tiles.y, (unsigned)ceil_div(d.value_dim, SLICE));

	with_type(type, [&](auto t) {
		typedef decltype(t) T;

		LAUNCH(dev, gates_kernel<T>, tiles, RULE_THREADS, 0, d, (const T *)q, (const T *)k,
		       (const T *)b, (const T *)a);
		LAUNCH(dev, solve_kernel<T>, tiles, RULE_THREADS, SOLVE_SHARED, d, (const T *)k,
		       (const T *)v);
		LAUNCH(dev, states_kernel<T>, slices, RULE_THREADS, scan_shared(d.key_dim, 1), d,
		       (const T *)k);
	});
}

extern "C" void device_delta_forward(struct device *dev, const struct device_delta *d, void *o, const void *q,
                                     const void *k, const void *v, const void *b, const void *a)
{
	delta_call call;
	int at_once;

	if (d->tokens <= 0 || !delta_prepare(dev, d, false, &call, &at_once, "delta_forward"))
		return;
	for (int head = 0; head < d->value_heads; head += at_once) {
		call.first_head = head;
		call.heads = d->value_heads - head < at_once ? d->value_heads - head : at_once;
		delta_find_states(dev, call, d->type, q, k, v, b, a);
		with_type(d->type, [&](auto t) {
			typedef decltype(t) T;

			LAUNCH(dev, output_kernel<T>,
			       dim3((unsigned)(call.rows / TILE), (unsigned)call.heads), RULE_THREADS,
			       OUTPUT_SHARED, call, (T *)o, (const T *)q, (const T *)k);
		});
	}
}

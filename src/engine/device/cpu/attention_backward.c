/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The backward pass of attention. The probabilities P are computed again from the log-sum-exp, for one block
 * of keys at a time and the blocks of queries that see it. Sums over the query heads of a group are taken in
 * the order of the heads, whichever thread computed them.
 */
#include "engine/device/cpu/attention.h"
#include "engine/device/cpu/parallel.h"

/* ---- the backward pass of one query head over one document ---- */
/* The scratch memory of one thread, for a document of T tokens. */
struct backward_scratch {
	/* [T][width]; in fp32 rows and pairs are the same memory. */
	word *q_rows, *q_pairs, *do_rows, *do_pairs;
	float *dq;          /* [T][width] */
	float *dk, *dv;     /* [T][width]; sums over the heads of a task */
	float *lse, *delta; /* [T]; lse to the base 2, delta times scale */
	word *block;        /* [BLOCK][width words]; temporary memory of a transposition */
	/* One block of keys and values. */
	word *k_columns, *v_columns, *k_pairs;
	float *dk_block, *dv_block; /* [BLOCK][width] */
	float *scores, *dp;         /* [BLOCK][BLOCK]; in fp32, P and dS overwrite them */
	word *p_pairs, *ds_rows, *ds_pairs;
};

static struct backward_scratch backward_scratch(float *base, int64_t max_sequence, int head_dim, bool dot)
{
	size_t width = attention_width(head_dim), t = round_up((size_t)max_sequence, BLOCK);
	struct backward_scratch s;

	s.q_rows = base;
	s.q_pairs = dot ? s.q_rows + t * width / 2 : s.q_rows;
	s.do_rows = s.q_rows + t * width;
	s.do_pairs = dot ? s.do_rows + t * width / 2 : s.do_rows;
	s.dq = s.do_rows + t * width;
	s.dk = s.dq + t * width;
	s.dv = s.dk + t * width;
	s.block = s.dv + t * width;
	s.k_columns = s.block + BLOCK * width;
	s.v_columns = s.k_columns + BLOCK * width;
	s.k_pairs = s.v_columns + BLOCK * width;
	s.dk_block = s.k_pairs + BLOCK * width;
	s.dv_block = s.dk_block + BLOCK * width;
	s.scores = s.dv_block + BLOCK * width;
	s.dp = s.scores + BLOCK * BLOCK;
	s.p_pairs = dot ? s.dp + BLOCK * BLOCK : s.scores;
	s.ds_rows = dot ? s.p_pairs + BLOCK * BLOCK : s.dp;
	s.ds_pairs = dot ? s.ds_rows + BLOCK * BLOCK : s.dp;
	s.lse = s.dp + 4 * BLOCK * BLOCK;
	s.delta = s.lse + t;
	return s;
}

struct backward_task {
	int64_t keys; /* there are as many queries */
	int window, head_dim;
	int64_t width;
	float scale, scale2; /* scale2 is scale · log2 e */
	float cap;           /* scale / the cap of scores, 0: none */
};

/* Computes P = exp(S - lse) and dS = P·(dP·scale - delta), two rows at a time. */
VINLINE void backward_softmax_rows(const struct backward_task *t, const struct backward_scratch *s, int64_t i,
                                   int64_t j, int64_t r, bool whole, int64_t vectors, bool dot)
{
	float *score = s->scores + r * BLOCK, *dp = s->dp + r * BLOCK;
	const int64_t count = whole ? BLOCK / VW : vectors;
	int64_t begin[2], end[2];

	for (int x = 0; x < 2; x++) {
		begin[x] = key_begin(i + r + x, j, t->window);
		end[x] = i + r + x < t->keys ? key_end(i + r + x, j, t->keys) : 0;
	}
#pragma GCC unroll 4
	for (int64_t v = 0; v < count; v++) {
		vf p[2], ds[2];

#pragma GCC unroll 2
		for (int x = 0; x < 2; x++) {
			vf_u *s_x = (vf_u *)(score + x * BLOCK + v * VW),
			     *dp_x = (vf_u *)(dp + x * BLOCK + v * VW);

			p[x] = v_exp2(*s_x * t->scale2 - s->lse[i + r + x], dot);
			ds[x] = p[x] * (*dp_x * t->scale - s->delta[i + r + x]);
			if (t->cap > 0) {
				vf capped = *s_x * t->cap;

				ds[x] *= 1.0f - capped * capped;
			}
			if (!whole && (begin[x] > v * VW || end[x] < (v + 1) * VW)) {
				vi mask = lane_mask(begin[x], end[x], v * VW);

				p[x] = v_select(mask, p[x], v_set(0.0f));
				ds[x] = v_select(mask, ds[x], v_set(0.0f));
			}
			if (!dot) {
				*s_x = p[x];
				*dp_x = ds[x];
			}
		}
		if (dot) {
			vh d0 = v_narrow(ds[0], DTYPE_BF16), d1 = v_narrow(ds[1], DTYPE_BF16);

			*(vh_u *)((uint16_t *)(s->ds_rows + r * (BLOCK / 2)) + v * VW) = d0;
			*(vh_u *)((uint16_t *)(s->ds_rows + (r + 1) * (BLOCK / 2)) + v * VW) = d1;
			*(vf_u *)(s->p_pairs + r / 2 * BLOCK + v * VW) =
			    v_pair(v_narrow(p[0], DTYPE_BF16), v_narrow(p[1], DTYPE_BF16));
			*(vf_u *)(s->ds_pairs + r / 2 * BLOCK + v * VW) = v_pair(d0, d1);
		}
	}
}

/* Adds to dq, dk_block and dv_block what the queries [i, i + BLOCK) and the keys [j, j
 * + BLOCK) contribute. */
VINLINE void backward_pair(const struct backward_task *task, const struct backward_scratch *scratch,
                           int64_t i, int64_t j, bool whole, bool dot)
{
	/* These are copies for the reason that forward_pair gives. */
	const struct backward_task t = *task;
	const struct backward_scratch s = *scratch;
	int64_t width = t.width, words = dot ? width / 2 : width, half = dot ? 2 : 1;
	int64_t rows = t.keys - i < BLOCK ? t.keys - i : BLOCK,
	        keys = t.keys - j < BLOCK ? t.keys - j : BLOCK;
	int64_t width_vectors = width / VW;

	for (int64_t r = 0; r < rows; r += 4) {
		int64_t end = key_end(i + r + 3, j, t.keys), begin = key_begin(i + r, j, t.window);
		int64_t vectors = whole ? BLOCK / VW : (end + VW - 1) / VW;

		strip(vectors, words, s.q_rows + (i + r) * words, words, 1, s.k_columns, BLOCK,
		      s.scores + r * BLOCK, BLOCK, false, dot);
		for (int64_t x = 0; x < 4 && t.cap > 0; x++)
			cap_scores(s.scores + (r + x) * BLOCK, vectors * VW, t.cap);
		strip(vectors, words, s.do_rows + (i + r) * words, words, 1, s.v_columns, BLOCK,
		      s.dp + r * BLOCK, BLOCK, false, dot);
		backward_softmax_rows(&t, &s, i, j, r, whole, vectors, dot);
		backward_softmax_rows(&t, &s, i, j, r + 2, whole, vectors, dot);
		begin = (begin & ~(int64_t)1) / half;
		end = ((end + 1) & ~(int64_t)1) / half;
		if (begin < end)
			strip(width_vectors, end - begin, s.ds_rows + r * (BLOCK / half) + begin,
			      BLOCK / half, 1, s.k_pairs + begin * width, width, s.dq + (i + r) * width,
			      width, true, dot);
	}
	for (int64_t k = 0; k < keys; k += 4) {
		/* The rows [begin, end) of the block see at least one of these four keys. */
		int64_t begin = j + k - i < 0 ? 0 : j + k - i, end = rows;

		if (t.window > 0 && j + k + 3 + t.window - i < end)
			end = j + k + 3 + t.window - i;
		begin = (begin & ~(int64_t)1) / half;
		end = ((end + 1) & ~(int64_t)1) / half;
		if (begin >= end)
			continue;
		strip(width_vectors, end - begin, s.p_pairs + begin * BLOCK + k, 1, BLOCK,
		      s.do_pairs + (i / half + begin) * width, width, s.dv_block + k * width, width, true,
		      dot);
		strip(width_vectors, end - begin, s.ds_pairs + begin * BLOCK + k, 1, BLOCK,
		      s.q_pairs + (i / half + begin) * width, width, s.dk_block + k * width, width, true,
		      dot);
	}
}

/* The backward pass of one head: writes d_q, and adds to dk and dv of the scratch, which the
 * first head sets. */
VINLINE void backward_head(const struct backward_task *t, const struct backward_scratch *s,
                           const struct device_attention *a, bool first, void *d_q, const void *d_o,
                           const void *o, const float *lse, const void *q, const void *k, const void *v,
                           enum dtype type, bool dot)
{
	int64_t n = t->keys, padded = (int64_t)round_up((size_t)n, BLOCK), width = t->width;
	int64_t words = dot ? width / 2 : width;

	pack_rows(s->q_rows, q, a->ld_q, n, padded, t->head_dim, width, type, dot);
	pack_rows(s->do_rows, d_o, a->ld_o, n, padded, t->head_dim, width, type, dot);
	if (dot) {
		pack_pairs(s->q_pairs, q, a->ld_q, n, padded, t->head_dim, width, type, true);
		pack_pairs(s->do_pairs, d_o, a->ld_o, n, padded, t->head_dim, width, type, true);
	}
	memset(s->dq, 0, (size_t)(padded * width) * sizeof(float));
	for (int64_t r = 0; r < n; r++) {
		const void *row_do = at_const(d_o, r * a->ld_o, type),
		           *row_o = at_const(o, r * a->ld_o, type);
		vf sum = {};

		for (int64_t c = 0; c < t->head_dim; c += VW)
			sum += load_padded(row_do, c, t->head_dim, type) *
			       load_padded(row_o, c, t->head_dim, type);
		s->delta[r] = v_hsum(sum) * t->scale;
		s->lse[r] = lse[r] * LOG2_E;
	}
	for (int64_t r = n; r < padded; r++)
		s->delta[r] = s->lse[r] = 0;

	for (int64_t j = 0; j < n; j += BLOCK) {
		int64_t rows = n - j < BLOCK ? n - j : BLOCK, end = n;

		pack_rows(s->block, at_const(k, j * a->ld_k, type), a->ld_k, rows, BLOCK, t->head_dim, width,
		          type, dot);
		transpose_words(s->k_columns, s->block, words);
		pack_rows(s->block, at_const(v, j * a->ld_v, type), a->ld_v, rows, BLOCK, t->head_dim, width,
		          type, dot);
		transpose_words(s->v_columns, s->block, words);
		pack_pairs(s->k_pairs, at_const(k, j * a->ld_k, type), a->ld_k, rows, BLOCK, t->head_dim,
		           width, type, dot);
		/* dv_block follows dk_block in memory. */
		memset(s->dk_block, 0, (size_t)(2 * BLOCK * width) * sizeof(float));
		if (t->window > 0 && j + BLOCK + t->window - 1 < end)
			end = j + BLOCK + t->window - 1;
		for (int64_t i = j; i < end; i += BLOCK)
			if (n - i >= BLOCK && sees_whole(i, BLOCK, j, t->window))
				backward_pair(t, s, i, j, true, dot);
			else
				backward_pair(t, s, i, j, false, dot);
		for (int64_t c = 0; c < BLOCK * width; c += VW) {
			vf_u *dk = (vf_u *)(s->dk + j * width + c), *dv = (vf_u *)(s->dv + j * width + c);

			*dk = *(vf_u *)(s->dk_block + c) + (first ? v_set(0.0f) : (vf)*dk);
			*dv = *(vf_u *)(s->dv_block + c) + (first ? v_set(0.0f) : (vf)*dv);
		}
	}
	store_rows(d_q, a->ld_q, s->dq, n, t->head_dim, width, type);
}

/* Adds up the partial sums of the heads of each group, in the order of the heads. */
static void sum_groups(const struct device_attention *a, const float *partial, void *out, int64_t ld,
                       int64_t t)
{
	int64_t group = a->heads / a->kv_heads;

	for (int kv = 0; kv < a->kv_heads; kv++) {
		void *row = at(out, t * ld + (int64_t)kv * a->head_dim, a->type);

		for (int64_t c = 0; c < a->head_dim; c += VW) {
			int64_t n = a->head_dim - c < VW ? a->head_dim - c : VW;
			vf sum = {};

			for (int64_t h = kv * group; h < (kv + 1) * group; h++)
				sum += v_load_n(partial, (h * a->tokens + t) * a->head_dim + c, DTYPE_F32, n);
			WITH_TYPE(a->type, v_store_n(row, c, TYPE, sum, n));
		}
	}
}

void KERNEL(attention_backward)(struct device *dev, const struct device_attention *a, void *d_q, void *d_k,
                                void *d_v, const void *d_o, const void *o, const float *lse, const void *q,
                                const void *k, const void *v)
{
	int64_t longest = longest_document(a), group = a->heads / a->kv_heads, hd = a->head_dim;
	bool whole_groups = group == 1 || a->documents * a->kv_heads >= 2 * dev->threads;
	int64_t sets = whole_groups ? a->kv_heads : a->heads, heads = whole_groups ? group : 1;
	size_t room = attention_thread_bytes(longest, a->head_dim);
	size_t partial = whole_groups ? 0 : (size_t)(a->heads * a->tokens * hd);
	char *scratch = device_scratch(dev, room * (size_t)dev->threads + 2 * partial * sizeof(float),
	                               "attention_backward");
	float *dk_part = (float *)(scratch + room * (size_t)dev->threads), *dv_part = dk_part + partial;

	if (!scratch)
		return;
#pragma omp parallel for collapse(2) schedule(dynamic, 1) num_threads(dev->threads)
	for (int d = 0; d < a->documents; d++) {
		for (int64_t set = 0; set < sets; set++) {
			int64_t start = a->host_starts[d], n = a->host_starts[d + 1] - start;
			int64_t head = set * heads, kv = head / group;
			bool dot = DOT && a->type == DTYPE_BF16;
			struct backward_scratch s =
			    backward_scratch((float *)(scratch + room * (size_t)omp_get_thread_num()),
			                     longest, a->head_dim, dot);
			struct backward_task t = {.keys = n,
			                          .window = a->window,
			                          .head_dim = a->head_dim,
			                          .width = (int64_t)attention_width(a->head_dim),
			                          .scale = a->scale,
			                          .scale2 = a->scale * LOG2_E,
			                          .cap = a->cap > 0 ? a->scale / a->cap : 0};
			const void *kk = at_const(k, start * a->ld_k + kv * hd, a->type);
			const void *vv = at_const(v, start * a->ld_v + kv * hd, a->type);

			for (int64_t h = head; h < head + heads; h++) {
				int64_t at_q = start * a->ld_q + h * hd, at_o = start * a->ld_o + h * hd;

				WITH_TYPE(a->type,
				          backward_head(&t, &s, a, h == head, at(d_q, at_q, TYPE),
				                        at_const(d_o, at_o, TYPE), at_const(o, at_o, TYPE),
				                        lse + h * a->tokens + start, at_const(q, at_q, TYPE),
				                        kk, vv, TYPE, DOT && TYPE == DTYPE_BF16));
			}
			if (!whole_groups) {
				int64_t row = (head * a->tokens + start) * hd;

				store_rows(dk_part + row, hd, s.dk, n, hd, t.width, DTYPE_F32);
				store_rows(dv_part + row, hd, s.dv, n, hd, t.width, DTYPE_F32);
			} else {
				WITH_TYPE(a->type, store_rows(at(d_k, start * a->ld_k + kv * hd, TYPE),
				                              a->ld_k, s.dk, n, hd, t.width, TYPE);
				          store_rows(at(d_v, start * a->ld_v + kv * hd, TYPE), a->ld_v, s.dv,
				                     n, hd, t.width, TYPE));
			}
		}
	}
	if (whole_groups)
		return;
#pragma omp parallel for schedule(static) num_threads(dev->threads)
	for (int64_t t = 0; t < a->tokens; t++) {
		sum_groups(a, dk_part, d_k, a->ld_k, t);
		sum_groups(a, dv_part, d_v, a->ld_v, t);
	}
}

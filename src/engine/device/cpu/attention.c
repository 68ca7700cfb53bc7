/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention by blocks of 64 queries and 64 keys with an online softmax (FlashAttention-2, Dao 2023). A task
 * is a document (or a stretch of its queries) with one or all of the query heads that share a kv head; how
 * the work is cut into tasks follows the number of threads, but no sum depends on it.
 */
#include "engine/device/cpu/attention.h"
#include "engine/device/cpu/kernels.h"
#include "engine/device/cpu/parallel.h"

#define NEVER (-1e30f) /* below every score; finite, so that differences stay numbers */

/* The keys that query row i (its position among the keys) may see, relative to the block of keys at j. */
VINLINE int64_t key_end(int64_t position, int64_t j, int64_t keys)
{
	int64_t end = position - j + 1;

	if (end > keys - j)
		end = keys - j;
	return end < 0 ? 0 : end > BLOCK ? BLOCK : end;
}

VINLINE int64_t key_begin(int64_t position, int64_t j, int window)
{
	int64_t begin = window > 0 ? position - window + 1 - j : 0;

	return begin < 0 ? 0 : begin;
}

/* Whether the queries at these positions all see all keys of the block at j. */
VINLINE bool sees_whole(int64_t position, int64_t rows, int64_t j, int window)
{
	return position >= j + BLOCK - 1 && (window <= 0 || position + rows - 1 - j < window);
}

VINLINE vi lane_mask(int64_t begin, int64_t end, int64_t base)
{
	vi lane = v_lanes() + (int32_t)base;

	return (lane >= (int32_t)begin) & (lane < (int32_t)end);
}

/* One stretch of queries against the keys of its document. */
struct forward_task {
	int64_t queries, offset; /* how many; position of the first among the keys */
	int64_t keys;
	int window, head_dim;
	int64_t width; /* head_dim, padded */
	float scale2;  /* scale · log2 e */
	int64_t ld_q, ld_o;
};

struct forward_scratch {
	word *keys;         /* columns, per block [width words][BLOCK] */
	word *values;       /* pairs, per block [BLOCK words][width] */
	word *queries;      /* rows [BLOCK][width words] */
	float *scores;      /* [BLOCK][BLOCK], P in its place */
	float *out;         /* [BLOCK][width] */
	float *max, *alpha; /* [BLOCK] */
	float *sum;         /* [BLOCK][16], lanes apart until the end */
};

static struct forward_scratch forward_scratch(float *base, int64_t max_sequence, int head_dim)
{
	size_t width = attention_width(head_dim), t = round_up((size_t)max_sequence, BLOCK);
	struct forward_scratch s;

	s.keys = base;
	s.values = s.keys + t * width;
	s.queries = s.values + t * width;
	s.out = s.queries + BLOCK * width;
	s.scores = s.out + BLOCK * width;
	s.max = s.scores + 2 * BLOCK * BLOCK;
	s.alpha = s.max + BLOCK;
	s.sum = s.alpha + BLOCK;
	return s;
}

/* Packs the keys [first, end) of a document, by whole blocks. */
VINLINE void forward_pack(const struct forward_scratch *s, const void *k, const void *v, int64_t ld_k,
                          int64_t ld_v, int64_t first, int64_t end, int64_t head_dim, int64_t width,
                          enum dtype type, bool dot)
{
	int64_t words = dot ? width / 2 : width;

	for (int64_t j = first; j < end; j += BLOCK) {
		int64_t rows = end - j < BLOCK ? end - j : BLOCK;

		/* `queries` is free until the first block of queries. */
		pack_rows(s->queries, at_const(k, j * ld_k, type), ld_k, rows, BLOCK, head_dim, width, type,
		          dot);
		transpose_words(s->keys + j * words, s->queries, words);
		pack_pairs(s->values + (dot ? j / 2 : j) * width, at_const(v, j * ld_v, type), ld_v, rows,
		           BLOCK, head_dim, width, type, dot);
	}
}

/*
 * Scores of a row become probabilities relative to the new maximum; everything is in powers of two. `whole`:
 * all keys of the block are seen, as in most blocks, so that the loops are unrolled and need no masks.
 */
VINLINE void forward_softmax_row(const float *row, float scale2, word *probs, bool whole, int64_t vectors,
                                 int64_t begin, int64_t end, float max, float alpha, float *sum, bool dot)
{
	const int64_t count = whole ? BLOCK / VW : vectors;
	vf total = *(vf_u *)sum * alpha;

#pragma GCC unroll 4
	for (int64_t v = 0; v < count; v++) {
		vf p = v_exp2(*(const vf_u *)(row + v * VW) * scale2 - max, dot);

		if (!whole && (begin > v * VW || end < (v + 1) * VW))
			p = v_select(lane_mask(begin, end, v * VW), p, v_set(0.0f));
		v_store(probs, v * VW, dot ? DTYPE_BF16 : DTYPE_F32, p);
		total += p;
	}
	*(vf_u *)sum = total;
}

VINLINE float forward_max_row(const float *row, bool whole, int64_t vectors, int64_t begin, int64_t end)
{
	const int64_t count = whole ? BLOCK / VW : vectors;
	vf m = v_set(NEVER);

#pragma GCC unroll 4
	for (int64_t v = 0; v < count; v++) {
		vf s = *(const vf_u *)(row + v * VW);

		if (!whole && (begin > v * VW || end < (v + 1) * VW))
			s = v_select(lane_mask(begin, end, v * VW), s, v_set(NEVER));
		m = v_max(m, s);
	}
	return v_hmax(m);
}

/* Queries [i, i + BLOCK) of a task against the keys [j, j + BLOCK). */
VINLINE void forward_pair(const struct forward_task *task, const struct forward_scratch *scratch, int64_t i,
                          int64_t j, bool whole, bool dot)
{
	/* Copies, since a store of a vector might otherwise change them for all that the compiler knows. */
	const struct forward_task t = *task;
	const struct forward_scratch s = *scratch;
	int64_t words = dot ? t.width / 2 : t.width, p_words = dot ? BLOCK / 2 : BLOCK;
	int64_t rows = t.queries - i < BLOCK ? t.queries - i : BLOCK;
	const word *keys = s.keys + j * words, *values = s.values + (dot ? j / 2 : j) * t.width;
	word *probs = dot ? s.scores + BLOCK * BLOCK : s.scores;
	float row_max[BLOCK] = {0};

	for (int64_t r = 0; r < rows; r += 4) {
		int64_t position = t.offset + i + r;
		int64_t vectors = (key_end(position + 3, j, t.keys) + VW - 1) / VW;

		strip(whole ? BLOCK / VW : vectors, words, s.queries + r * words, words, 1, keys, BLOCK,
		      s.scores + r * BLOCK, BLOCK, false, dot);
		for (int64_t x = 0; x < 4; x++)
			row_max[r + x] = forward_max_row(s.scores + (r + x) * BLOCK, whole, vectors,
			                                 key_begin(position + x, j, t.window),
			                                 key_end(position + x, j, t.keys)) *
			                 t.scale2;
	}
	for (int64_t r = 0; r < rows; r += VW) { /* the arrays hold BLOCK, whatever rows is */
		vf old = *(vf_u *)(s.max + r), now = v_max(*(vf_u *)(row_max + r), old);

		*(vf_u *)(s.alpha + r) = v_exp2(old - now, false);
		*(vf_u *)(s.max + r) = now;
	}
	for (int64_t r = 0; r < rows; r += 4) {
		int64_t position = t.offset + i + r;
		int64_t end = key_end(position + 3, j, t.keys), begin = key_begin(position, j, t.window);
		int64_t vectors = (end + VW - 1) / VW;

		for (int64_t x = 0; x < 4; x++) {
			float *out = s.out + (r + x) * t.width, alpha = s.alpha[r + x];

			forward_softmax_row(s.scores + (r + x) * BLOCK, t.scale2, probs + (r + x) * p_words,
			                    whole, vectors, key_begin(position + x, j, t.window),
			                    key_end(position + x, j, t.keys), s.max[r + x], alpha,
			                    s.sum + (r + x) * VW, dot);
			for (int64_t c = 0; alpha != 1.0f && c < t.width; c += VW)
				*(vf_u *)(out + c) *= alpha;
		}
		begin = whole ? 0 : (begin & ~(int64_t)1) / (dot ? 2 : 1);
		end = whole ? p_words : ((end + 1) & ~(int64_t)1) / (dot ? 2 : 1);
		if (begin < end)
			strip(t.width / VW, end - begin, probs + r * p_words + begin, p_words, 1,
			      values + begin * t.width, t.width, s.out + r * t.width, t.width, true, dot);
	}
}

VINLINE void forward_blocks(const struct forward_task *t, const struct forward_scratch *s, void *o,
                            float *lse, const void *q, enum dtype type, bool dot)
{
	for (int64_t i = 0; i < t->queries; i += BLOCK) {
		int64_t rows = t->queries - i < BLOCK ? t->queries - i : BLOCK;
		int64_t first = t->offset + i, last = first + rows; /* positions */
		int64_t j = t->window > 0 && first - t->window + 1 > 0 ? first - t->window + 1 : 0;

		pack_rows(s->queries, at_const(q, i * t->ld_q, type), t->ld_q, rows, BLOCK, t->head_dim,
		          t->width, type, dot);
		memset(s->out, 0, (size_t)(BLOCK * t->width) * sizeof(float));
		memset(s->sum, 0, BLOCK * VW * sizeof(float));
		for (int64_t r = 0; r < BLOCK; r++)
			s->max[r] = NEVER;
		for (j = j / BLOCK * BLOCK; j < last; j += BLOCK)
			if (sees_whole(first, rows, j, t->window) && rows == BLOCK)
				forward_pair(t, s, i, j, true, dot);
			else
				forward_pair(t, s, i, j, false, dot);
		for (int64_t r = 0; r < rows; r++) {
			const float *out = s->out + r * t->width;
			void *row = at(o, (i + r) * t->ld_o, type);
			float sum = v_hsum(*(vf_u *)(s->sum + r * VW)), inverse = 1.0f / sum;
			int64_t c = 0;

			for (; c + VW <= t->head_dim; c += VW)
				v_store(row, c, type, *(const vf_u *)(out + c) * inverse);
			if (c < t->head_dim)
				v_store_n(row, c, type, *(const vf_u *)(out + c) * inverse, t->head_dim - c);
			if (lse)
				lse[i + r] = s->max[r] * LN_2 + logf(sum);
		}
	}
}

/* ---- the backward of one query head over one document ---- */
struct backward_scratch {
	word *q_rows, *q_pairs, *do_rows, *do_pairs; /* [T][width]; in fp32 pairs are rows */
	float *dq;                                   /* [T][width] */
	float *dk, *dv;                              /* [T][width], summed over the heads of a task */
	float *lse, *delta;                          /* [T]; lse to the base 2, delta times scale */
	word *block;                                 /* [BLOCK][width words], on the way to columns */
	word *k_columns, *v_columns, *k_pairs;       /* one block of keys */
	float *dk_block, *dv_block;                  /* [BLOCK][width] */
	float *scores, *dp;                          /* [BLOCK][BLOCK]; P and dS in their place in fp32 */
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
	int64_t keys; /* = queries */
	int window, head_dim;
	int64_t width;
	float scale, scale2; /* and times log2 e */
};

/* P = exp(S - lse) and dS = P·(dP·scale - delta), two rows at a time. */
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
			vh d0 = v_narrow(ds[0]), d1 = v_narrow(ds[1]);

			*(vh_u *)((uint16_t *)(s->ds_rows + r * (BLOCK / 2)) + v * VW) = d0;
			*(vh_u *)((uint16_t *)(s->ds_rows + (r + 1) * (BLOCK / 2)) + v * VW) = d1;
			*(vf_u *)(s->p_pairs + r / 2 * BLOCK + v * VW) =
			    v_pair(v_narrow(p[0]), v_narrow(p[1]));
			*(vf_u *)(s->ds_pairs + r / 2 * BLOCK + v * VW) = v_pair(d0, d1);
		}
	}
}

/* Queries [i, i + BLOCK) and keys [j, j + BLOCK): adds to dq, dk_block, dv_block. */
VINLINE void backward_pair(const struct backward_task *task, const struct backward_scratch *scratch,
                           int64_t i, int64_t j, bool whole, bool dot)
{
	const struct backward_task t = *task; /* copies, as above */
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
		/* Rows of the block that see one of these four keys. */
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

VINLINE void store_rows(void *dst, int64_t ld, const float *src, int64_t rows, int64_t head_dim,
                        int64_t width, enum dtype type)
{
	for (int64_t r = 0; r < rows; r++) {
		void *row = at(dst, r * ld, type);
		int64_t c = 0;

		for (; c + VW <= head_dim; c += VW)
			v_store(row, c, type, *(const vf_u *)(src + r * width + c));
		if (c < head_dim)
			v_store_n(row, c, type, *(const vf_u *)(src + r * width + c), head_dim - c);
	}
}

/* One head: dq is finished and stored; dk and dv of the scratch are added to (set, for the first head). */
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
		memset(s->dk_block, 0, (size_t)(2 * BLOCK * width) * sizeof(float)); /* and dv_block */
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

/* ---- tasks ---- */
#if defined(__AVX512BF16__) && VW == 16
#define DOT true
#else
#define DOT false
#endif

static int64_t longest_document(const struct device_attention *a)
{
	int64_t longest = 0;

	for (int d = 0; d < a->documents; d++) {
		int64_t n = a->host_starts[d + 1] - a->host_starts[d];

		longest = n > longest ? n : longest;
	}
	return longest;
}

static void run_forward(const struct forward_task *t, const struct forward_scratch *s,
                        const struct device_attention *a, void *o, float *lse, const void *q, const void *k,
                        const void *v, int64_t key_first, int64_t key_end_, int heads, int64_t lse_stride)
{
	enum dtype type = a->type;

	if (type == DTYPE_F32)
		forward_pack(s, k, v, a->ld_k, a->ld_v, key_first, key_end_, t->head_dim, t->width, DTYPE_F32,
		             false);
	else
		forward_pack(s, k, v, a->ld_k, a->ld_v, key_first, key_end_, t->head_dim, t->width,
		             DTYPE_BF16, DOT);
	for (int h = 0; h < heads; h++) {
		const void *qh = at_const(q, (int64_t)h * t->head_dim, type);
		void *oh = at(o, (int64_t)h * t->head_dim, type);
		float *lh = lse ? lse + h * lse_stride : NULL;

		if (type == DTYPE_F32)
			forward_blocks(t, s, oh, lh, qh, DTYPE_F32, false);
		else
			forward_blocks(t, s, oh, lh, qh, DTYPE_BF16, DOT);
	}
}

void KERNEL(attention_forward)(struct device *dev, const struct device_attention *a, void *o, float *lse,
                               const void *q, const void *k, const void *v)
{
	int64_t longest = longest_document(a), group = a->heads / a->kv_heads;
	size_t room = attention_thread_bytes(longest, a->head_dim);
	char *scratch = device_scratch(dev, room * (size_t)dev->threads, "attention_forward");
	int64_t want = 2 * dev->threads, sets = a->kv_heads, cuts = 1;

	if (!scratch)
		return;
	if (a->documents * sets < want) {
		sets = a->heads;
		if (a->documents * sets < want)
			cuts = (want + a->documents * sets - 1) / (a->documents * sets);
	}
#pragma omp parallel for collapse(3) schedule(dynamic, 1) num_threads(dev->threads)
	for (int d = 0; d < a->documents; d++) {
		for (int64_t set = 0; set < sets; set++) {
			for (int64_t cut = 0; cut < cuts; cut++) {
				int64_t start = a->host_starts[d], n = a->host_starts[d + 1] - start;
				int64_t blocks = (n + BLOCK - 1) / BLOCK;
				int64_t lo = blocks * cut / cuts * BLOCK,
				        hi = blocks * (cut + 1) / cuts * BLOCK;
				int64_t head = sets == a->heads ? set : set * group, kv = head / group,
				        first = 0;
				struct forward_scratch s =
				    forward_scratch((float *)(scratch + room * (size_t)omp_get_thread_num()),
				                    longest, a->head_dim);
				struct forward_task t = {.offset = lo,
				                         .window = a->window,
				                         .head_dim = a->head_dim,
				                         .width = (int64_t)attention_width(a->head_dim),
				                         .scale2 = a->scale * LOG2_E,
				                         .ld_q = a->ld_q,
				                         .ld_o = a->ld_o};

				hi = hi > n ? n : hi;
				if (lo >= hi)
					continue;
				t.queries = hi - lo;
				t.keys = hi;
				if (a->window > 0 && lo - a->window + 1 > 0)
					first = (lo - a->window + 1) / BLOCK * BLOCK;
				run_forward(&t, &s, a,
				            at(o, (start + lo) * a->ld_o + head * a->head_dim, a->type),
				            lse + head * a->tokens + start + lo,
				            at_const(q, (start + lo) * a->ld_q + head * a->head_dim, a->type),
				            at_const(k, start * a->ld_k + kv * a->head_dim, a->type),
				            at_const(v, start * a->ld_v + kv * a->head_dim, a->type), first,
				            hi, sets == a->heads ? 1 : (int)group, a->tokens);
			}
		}
	}
}

/* Adds the heads of each group in order. */
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
			if (a->type == DTYPE_F32)
				v_store_n(row, c, DTYPE_F32, sum, n);
			else
				v_store_n(row, c, DTYPE_BF16, sum, n);
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
			                          .scale2 = a->scale * LOG2_E};
			const void *kk = at_const(k, start * a->ld_k + kv * hd, a->type);
			const void *vv = at_const(v, start * a->ld_v + kv * hd, a->type);

			for (int64_t h = head; h < head + heads; h++) {
				int64_t at_q = start * a->ld_q + h * hd, at_o = start * a->ld_o + h * hd;

				if (a->type == DTYPE_F32)
					backward_head(&t, &s, a, h == head, (float *)d_q + at_q,
					              (const float *)d_o + at_o, (const float *)o + at_o,
					              lse + h * a->tokens + start, (const float *)q + at_q,
					              kk, vv, DTYPE_F32, false);
				else
					backward_head(&t, &s, a, h == head, (uint16_t *)d_q + at_q,
					              (const uint16_t *)d_o + at_o,
					              (const uint16_t *)o + at_o, lse + h * a->tokens + start,
					              (const uint16_t *)q + at_q, kk, vv, DTYPE_BF16, DOT);
			}
			if (!whole_groups) {
				int64_t row = (head * a->tokens + start) * hd;

				store_rows(dk_part + row, hd, s.dk, n, hd, t.width, DTYPE_F32);
				store_rows(dv_part + row, hd, s.dv, n, hd, t.width, DTYPE_F32);
			} else if (a->type == DTYPE_F32) {
				store_rows((float *)d_k + start * a->ld_k + kv * hd, a->ld_k, s.dk, n, hd,
				           t.width, DTYPE_F32);
				store_rows((float *)d_v + start * a->ld_v + kv * hd, a->ld_v, s.dv, n, hd,
				           t.width, DTYPE_F32);
			} else {
				store_rows((uint16_t *)d_k + start * a->ld_k + kv * hd, a->ld_k, s.dk, n, hd,
				           t.width, DTYPE_BF16);
				store_rows((uint16_t *)d_v + start * a->ld_v + kv * hd, a->ld_v, s.dv, n, hd,
				           t.width, DTYPE_BF16);
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

void KERNEL(attention_cached)(struct device *dev, const struct device_attention *a, int64_t past, void *o,
                              const void *q, const void *k_cache, const void *v_cache)
{
	int64_t n = a->tokens, group = a->heads / a->kv_heads;
	size_t room = attention_thread_bytes(past + n, a->head_dim);
	char *scratch = device_scratch(dev, room * (size_t)dev->threads, "attention_cached");

	if (!scratch)
		return;
#pragma omp parallel for schedule(dynamic, 1) num_threads(dev->threads)
	for (int kv = 0; kv < a->kv_heads; kv++) {
		struct forward_scratch s = forward_scratch(
		    (float *)(scratch + room * (size_t)omp_get_thread_num()), past + n, a->head_dim);
		struct forward_task t = {.queries = n,
		                         .offset = past,
		                         .keys = past + n,
		                         .window = a->window,
		                         .head_dim = a->head_dim,
		                         .width = (int64_t)attention_width(a->head_dim),
		                         .scale2 = a->scale * LOG2_E,
		                         .ld_q = a->ld_q,
		                         .ld_o = a->ld_o};
		int64_t first =
		    a->window > 0 && past - a->window + 1 > 0 ? (past - a->window + 1) / BLOCK * BLOCK : 0;

		run_forward(&t, &s, a, at(o, kv * group * a->head_dim, a->type), NULL,
		            at_const(q, kv * group * a->head_dim, a->type),
		            at_const(k_cache, (int64_t)kv * a->head_dim, a->type),
		            at_const(v_cache, (int64_t)kv * a->head_dim, a->type), first, past + n,
		            (int)group, 0);
	}
}

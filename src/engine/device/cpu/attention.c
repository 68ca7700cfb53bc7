/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The forward pass of attention, computed by blocks of 64 queries and 64 keys with an online softmax
 * (FlashAttention-2, Dao 2023). A task is a document, or a range of its queries, with one or all of the query
 * heads that share a kv head. How the work is divided into tasks depends on the number of threads, but no sum
 * depends on it.
 */
#include "engine/device/cpu/attention.h"
#include "engine/device/cpu/kernels.h"
#include "engine/device/cpu/parallel.h"

/* The score of a masked key: below every real score, but finite, so that no difference of scores is a NaN. */
#define MASKED_SCORE (-1e30f)

/* A range of queries of one head, and the keys of their document. */
struct forward_task {
	int64_t queries; /* number of queries */
	int64_t offset;  /* position of the first query among the keys */
	int64_t keys;
	int window, head_dim;
	int64_t width; /* head_dim, padded (attention_width) */
	float scale2;  /* scale · log2 e */
	float cap;     /* scale / the cap of scores, 0: none */
	int64_t ld_q, ld_o;
};

/* The scratch memory of one thread. attention.h explains the packed forms rows, pairs and columns. */
struct forward_scratch {
	word *keys;    /* columns; [width words][BLOCK] for each block of keys */
	word *values;  /* pairs; [BLOCK words][width] for each block of keys */
	word *queries; /* rows; [BLOCK][width words] */
	float *scores; /* [BLOCK][BLOCK]; the probabilities P overwrite the scores */
	float *out;    /* [BLOCK][width] */
	float *max;    /* [BLOCK]; the largest score of each query so far */
	float *alpha;  /* [BLOCK]; the factor for sums that were taken with an older maximum */
	float *sum;    /* [BLOCK][16]; the lanes are added up at the end only */
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

/* Packs the keys and values [first, end) of a document. The last block is padded with zeros. */
VINLINE void forward_pack(const struct forward_scratch *s, const void *k, const void *v, int64_t ld_k,
                          int64_t ld_v, int64_t first, int64_t end, int64_t head_dim, int64_t width,
                          enum dtype type, bool dot)
{
	int64_t words = dot ? width / 2 : width;

	for (int64_t j = first; j < end; j += BLOCK) {
		int64_t rows = end - j < BLOCK ? end - j : BLOCK;

		/* s->queries serves as temporary memory: the queries are packed only after the keys. */
		pack_rows(s->queries, at_const(k, j * ld_k, type), ld_k, rows, BLOCK, head_dim, width, type,
		          dot);
		transpose_words(s->keys + j * words, s->queries, words);
		pack_pairs(s->values + (dot ? j / 2 : j) * width, at_const(v, j * ld_v, type), ld_v, rows,
		           BLOCK, head_dim, width, type, dot);
	}
}

/*
 * Turns the scores of a row into probabilities relative to the new maximum. Exponentials are to the base 2.
 * `whole`: the query sees all keys of the block. That holds for most blocks, and then the loops are unrolled
 * and need no masks.
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
	vf m = v_set(MASKED_SCORE);

#pragma GCC unroll 4
	for (int64_t v = 0; v < count; v++) {
		vf s = *(const vf_u *)(row + v * VW);

		if (!whole && (begin > v * VW || end < (v + 1) * VW))
			s = v_select(lane_mask(begin, end, v * VW), s, v_set(MASKED_SCORE));
		m = v_max(m, s);
	}
	return v_hmax(m);
}

/* Adds to the output of the queries [i, i + BLOCK) of a task what the keys [j, j + BLOCK) contribute. */
VINLINE void forward_pair(const struct forward_task *task, const struct forward_scratch *scratch, int64_t i,
                          int64_t j, bool whole, bool dot)
{
	/* These are copies: the compiler has to assume that a store of a vector changes
	 * *task and *scratch. */
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
		for (int64_t x = 0; x < 4 && t.cap > 0; x++)
			cap_scores(s.scores + (r + x) * BLOCK, whole ? BLOCK : vectors * VW, t.cap);
		for (int64_t x = 0; x < 4; x++)
			row_max[r + x] = forward_max_row(s.scores + (r + x) * BLOCK, whole, vectors,
			                                 key_begin(position + x, j, t.window),
			                                 key_end(position + x, j, t.keys)) *
			                 t.scale2;
	}
	/* The arrays have BLOCK elements, so whole vectors may be read beyond `rows`. */
	for (int64_t r = 0; r < rows; r += VW) {
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
		/* The positions of these queries among the keys: [first, last). */
		int64_t first = t->offset + i, last = first + rows;
		int64_t j = t->window > 0 && first - t->window + 1 > 0 ? first - t->window + 1 : 0;

		pack_rows(s->queries, at_const(q, i * t->ld_q, type), t->ld_q, rows, BLOCK, t->head_dim,
		          t->width, type, dot);
		memset(s->out, 0, (size_t)(BLOCK * t->width) * sizeof(float));
		memset(s->sum, 0, BLOCK * VW * sizeof(float));
		for (int64_t r = 0; r < BLOCK; r++)
			s->max[r] = MASKED_SCORE;
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

/* ---- tasks ---- */
static void run_forward(const struct forward_task *t, const struct forward_scratch *s,
                        const struct device_attention *a, void *o, float *lse, const void *q, const void *k,
                        const void *v, int64_t key_first, int64_t key_end_, int heads, int64_t lse_stride)
{
	enum dtype type = a->type;

	WITH_TYPE(type, forward_pack(s, k, v, a->ld_k, a->ld_v, key_first, key_end_, t->head_dim, t->width,
	                             TYPE, DOT && TYPE == DTYPE_BF16));
	for (int h = 0; h < heads; h++) {
		const void *qh = at_const(q, (int64_t)h * t->head_dim, type);
		void *oh = at(o, (int64_t)h * t->head_dim, type);
		float *lh = lse ? lse + h * lse_stride : NULL;

		WITH_TYPE(type, forward_blocks(t, s, oh, lh, qh, TYPE, DOT && TYPE == DTYPE_BF16));
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
				                         .cap = a->cap > 0 ? a->scale / a->cap : 0,
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

/* The heads of a group, of the n tokens behind `past` others of a sequence. */
static void cached_group(const struct device_attention *a, int kv, int64_t past, int64_t n, void *scratch,
                         void *o, const void *q, const void *k, const void *v)
{
	int64_t group = a->heads / a->kv_heads, before = a->window > 0 ? past - a->window + 1 : 0;
	struct forward_scratch s = forward_scratch(scratch, past + n, a->head_dim);
	struct forward_task t = {.queries = n,
	                         .offset = past,
	                         .keys = past + n,
	                         .window = a->window,
	                         .head_dim = a->head_dim,
	                         .width = (int64_t)attention_width(a->head_dim),
	                         .scale2 = a->scale * LOG2_E,
	                         .cap = a->cap > 0 ? a->scale / a->cap : 0,
	                         .ld_q = a->ld_q,
	                         .ld_o = a->ld_o};

	run_forward(&t, &s, a, at(o, kv * group * a->head_dim, a->type), NULL,
	            at_const(q, kv * group * a->head_dim, a->type),
	            at_const(k, (int64_t)kv * a->head_dim, a->type),
	            at_const(v, (int64_t)kv * a->head_dim, a->type), before > 0 ? before / BLOCK * BLOCK : 0,
	            past + n, (int)group, 0);
}

void KERNEL(attention_cached)(struct device *dev, const struct device_attention *a, int64_t past, void *o,
                              const void *q, const void *k_cache, const void *v_cache)
{
	size_t room = attention_cached_bytes(past + a->tokens, a->head_dim);
	char *scratch = device_scratch(dev, room * (size_t)dev->threads, "attention_cached");

	if (!scratch)
		return;
#pragma omp parallel for schedule(dynamic, 1) num_threads(dev->threads)
	for (int kv = 0; kv < a->kv_heads; kv++)
		cached_group(a, kv, past, a->tokens, scratch + room * (size_t)omp_get_thread_num(), o, q,
		             k_cache, v_cache);
}

void KERNEL(attention_rows)(struct device *dev, const struct device_attention *a,
                            const struct device_cache *c, void *o, const void *q, const void *cache)
{
	size_t room = attention_cached_bytes(c->longest + 1, a->head_dim);
	char *scratch = device_scratch(dev, room * (size_t)dev->threads, "attention_rows");
	int64_t width = (int64_t)a->kv_heads * a->head_dim;
	struct device_attention of = *a;

	if (!scratch)
		return;
	of.ld_k = of.ld_v = 2 * width;
#pragma omp parallel for collapse(2) schedule(dynamic, 1) num_threads(dev->threads)
	for (int64_t r = 0; r < c->rows; r++) {
		for (int kv = 0; kv < a->kv_heads; kv++) {
			const char *k = at_const(cache, c->sequences[r] * c->tokens * 2 * width, a->type);

			cached_group(&of, kv, c->positions[r], 1,
			             scratch + room * (size_t)omp_get_thread_num(),
			             at(o, r * a->ld_o, a->type), at_const(q, r * a->ld_q, a->type), k,
			             at_const(k, width, a->type));
		}
	}
}

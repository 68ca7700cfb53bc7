/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trains a byte-level BPE. Words are counted once; then the most frequent pair of neighbours is merged in all
 * words, again and again. Each merge updates the counts of the pairs that it changes, and a heap finds the
 * next pair. Among equally frequent pairs the one with the lower ids is merged, as in Hugging Face's trainer,
 * so that the same text gives the same file.
 */
#include <errno.h>
#include <string.h>

#include "base/str.h"
#include "engine/tokenizer/internal.h"
#include "engine/tokenizer/match.h"
#include "engine/tokenizer/train.h"
#include "engine/tokenizer/unicode.h"
#include "engine/tokenizer/vocab.h"

#define BYTES 256

/* ---- distinct words and how often each occurs ---- */

struct word {
	uint32_t hash, len;
	size_t off; /* in the pool; later of its symbols */
	int64_t count;
};

struct words {
	struct strbuf pool;
	struct word *v;
	size_t n, cap;
	uint32_t *slots; /* index + 1; 0: empty */
	size_t mask;
};

static int words_rehash(struct words *w)
{
	size_t size = w->slots ? (w->mask + 1) * 2 : 1 << 16;
	uint32_t *slots = calloc(size, sizeof(*slots));

	if (!slots)
		return -ENOMEM;
	for (size_t i = 0; i < w->n; i++) {
		size_t at = w->v[i].hash & (size - 1);

		while (slots[at])
			at = (at + 1) & (size - 1);
		slots[at] = (uint32_t)i + 1;
	}
	free(w->slots);
	w->slots = slots;
	w->mask = size - 1;
	return 0;
}

static int words_count(struct words *w, const char *text, size_t len)
{
	uint32_t h = (uint32_t)tokenizer_hash_bytes(text, len, 0);
	size_t at;

	if ((!w->slots || w->n * 2 > w->mask) && words_rehash(w) < 0)
		return -ENOMEM;
	for (at = h & w->mask; w->slots[at]; at = (at + 1) & w->mask) {
		struct word *x = &w->v[w->slots[at] - 1];

		if (x->hash == h && x->len == len && !memcmp(w->pool.data + x->off, text, len)) {
			x->count++;
			return 0;
		}
	}
	/* A longer "word" is not natural language, and every merge in it would be slow. */
	if (len > UINT16_MAX || w->n >= INT32_MAX)
		return 0;
	if (tokenizer_grow(&w->v, &w->cap, w->n + 1, sizeof(*w->v)) < 0)
		return -ENOMEM;
	w->v[w->n] = (struct word){h, (uint32_t)len, w->pool.len, 1};
	strbuf_add(&w->pool, text, len);
	w->slots[at] = (uint32_t)++w->n;
	return w->pool.failed ? -ENOMEM : 0;
}

static int count_text(struct words *w, const struct unicode *u, const char *text, size_t len)
{
	for (size_t i = 0; i < len;) {
		size_t end = scan_gpt2(u, text, i, len);

		if (words_count(w, text + i, end - i) < 0)
			return -ENOMEM;
		i = end;
	}
	return 0;
}

static int count_all(struct words *w, const struct unicode *u, tokenizer_text_fn next, void *context,
                     struct error *err)
{
	_cleanup_strbuf_ struct strbuf clean = {0};
	const char *text;
	size_t len;
	int r;

	while ((r = next(context, &text, &len, err)) > 0) {
		if (utf8_valid_prefix(text, len) < len) {
			strbuf_reset(&clean);
			utf8_sanitize(&clean, text, len);
			if (clean.failed)
				return error_oom(err);
			text = clean.data;
			len = clean.len;
		}
		if (count_text(w, u, text, len) < 0)
			return error_oom(err);
	}
	if (r < 0)
		return r;
	return w->n ? 0 : error_set(err, -ENODATA, "there is no text to train a tokenizer on");
}

/* ---- pairs ---- */

struct pair {
	int32_t left, right;
	int64_t count;
	uint32_t *where; /* words that contain the pair, or did before a merge */
	size_t n, cap;
	bool touched; /* its count grew by the present merge */
};

struct entry {
	int64_t count;
	int32_t left, right; /* decide the order of equally frequent pairs */
	uint32_t pair;
};

struct training {
	struct words words;
	int32_t *symbols; /* of all words; those of a word are word.len symbols from word.off on */
	struct pair *pairs;
	size_t n, cap;
	uint32_t *slots; /* of pairs, index + 1 */
	size_t mask;
	struct entry *heap;
	size_t heap_n, heap_cap;
	uint32_t *touched;
	size_t touched_n, touched_cap;
	struct trained *out;
	struct strmap known; /* raw bytes -> id - first byte id */
};

static uint64_t pair_hash(int32_t left, int32_t right)
{
	uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15u;

	return h ^ h >> 29;
}

static int pairs_rehash(struct training *t)
{
	size_t size = t->slots ? (t->mask + 1) * 2 : 1 << 16;
	uint32_t *slots = calloc(size, sizeof(*slots));

	if (!slots)
		return -ENOMEM;
	for (size_t i = 0; i < t->n; i++) {
		size_t at = pair_hash(t->pairs[i].left, t->pairs[i].right) & (size - 1);

		while (slots[at])
			at = (at + 1) & (size - 1);
		slots[at] = (uint32_t)i + 1;
	}
	free(t->slots);
	t->slots = slots;
	t->mask = size - 1;
	return 0;
}

static int64_t pair_index(struct training *t, int32_t left, int32_t right)
{
	size_t at;

	if ((!t->slots || t->n * 2 > t->mask) && pairs_rehash(t) < 0)
		return -ENOMEM;
	for (at = pair_hash(left, right) & t->mask; t->slots[at]; at = (at + 1) & t->mask) {
		const struct pair *p = &t->pairs[t->slots[at] - 1];

		if (p->left == left && p->right == right)
			return t->slots[at] - 1;
	}
	if (t->n >= UINT32_MAX - 1 || tokenizer_grow(&t->pairs, &t->cap, t->n + 1, sizeof(*t->pairs)) < 0)
		return -ENOMEM;
	t->pairs[t->n] = (struct pair){.left = left, .right = right};
	t->slots[at] = (uint32_t)++t->n;
	return (int64_t)t->n - 1;
}

static int pair_change(struct training *t, int32_t left, int32_t right, uint32_t word, int64_t change)
{
	int64_t i = pair_index(t, left, right);
	struct pair *p;

	if (i < 0)
		return -ENOMEM;
	p = &t->pairs[i];
	p->count += change;
	if (change < 0)
		return 0;
	if (!p->n || p->where[p->n - 1] != word) {
		if (tokenizer_grow(&p->where, &p->cap, p->n + 1, sizeof(*p->where)) < 0)
			return -ENOMEM;
		p->where[p->n++] = word;
	}
	if (!p->touched) {
		p->touched = true;
		if (tokenizer_grow(&t->touched, &t->touched_cap, t->touched_n + 1, sizeof(*t->touched)) < 0)
			return -ENOMEM;
		t->touched[t->touched_n++] = (uint32_t)i;
	}
	return 0;
}

/* ---- the heap: most frequent first ---- */

static bool before(const struct entry *a, const struct entry *b)
{
	if (a->count != b->count)
		return a->count > b->count;
	return a->left != b->left ? a->left < b->left : a->right < b->right;
}

static int heap_push(struct training *t, uint32_t pair)
{
	const struct pair *p = &t->pairs[pair];
	struct entry e = {p->count, p->left, p->right, pair};
	size_t i = t->heap_n;

	if (p->count <= 0)
		return 0;
	if (tokenizer_grow(&t->heap, &t->heap_cap, t->heap_n + 1, sizeof(*t->heap)) < 0)
		return -ENOMEM;
	t->heap_n++;
	while (i > 0 && before(&e, &t->heap[(i - 1) / 2])) {
		t->heap[i] = t->heap[(i - 1) / 2];
		i = (i - 1) / 2;
	}
	t->heap[i] = e;
	return 0;
}

static struct entry heap_pop(struct training *t)
{
	struct entry top = t->heap[0], last = t->heap[--t->heap_n];
	size_t i = 0, child;

	while ((child = 2 * i + 1) < t->heap_n) {
		if (child + 1 < t->heap_n && before(&t->heap[child + 1], &t->heap[child]))
			child++;
		if (!before(&t->heap[child], &last))
			break;
		t->heap[i] = t->heap[child];
		i = child;
	}
	t->heap[i] = last;
	return top;
}

static int push_touched(struct training *t)
{
	for (size_t i = 0; i < t->touched_n; i++) {
		t->pairs[t->touched[i]].touched = false;
		if (heap_push(t, t->touched[i]) < 0)
			return -ENOMEM;
	}
	t->touched_n = 0;
	return 0;
}

/* ---- merging ---- */

/* Turns the bytes of the words into symbols, which are numbered in the order of
 * their printable characters. */
static int start_words(struct training *t)
{
	struct words *w = &t->words;
	int32_t symbol[BYTES];

	for (int i = 0; i < BYTES; i++)
		symbol[(uint8_t)t->out->alphabet[i]] = t->out->first + i;
	t->symbols = malloc((w->pool.len + 1) * sizeof(*t->symbols));
	if (!t->symbols)
		return -ENOMEM;
	for (size_t i = 0; i < w->pool.len; i++)
		t->symbols[i] = symbol[(uint8_t)w->pool.data[i]];
	for (size_t i = 0; i < w->n; i++)
		for (size_t k = 0; k + 1 < w->v[i].len; k++) {
			const int32_t *s = t->symbols + w->v[i].off + k;

			if (pair_change(t, s[0], s[1], (uint32_t)i, w->v[i].count) < 0)
				return -ENOMEM;
		}
	return push_touched(t);
}

static int merge_word(struct training *t, uint32_t word, int32_t left, int32_t right, int32_t id)
{
	struct word *w = &t->words.v[word];
	int32_t *s = t->symbols + w->off;
	size_t out = 0, n = w->len;

	for (size_t i = 0; i < n; i++) {
		if (s[i] != left || i + 1 >= n || s[i + 1] != right) {
			s[out++] = s[i];
			continue;
		}
		if (out && (pair_change(t, s[out - 1], left, word, -w->count) < 0 ||
		            pair_change(t, s[out - 1], id, word, w->count) < 0))
			return -ENOMEM;
		if (i + 2 < n && (pair_change(t, right, s[i + 2], word, -w->count) < 0 ||
		                  pair_change(t, id, s[i + 2], word, w->count) < 0))
			return -ENOMEM;
		s[out++] = id;
		i++;
	}
	w->len = (uint32_t)out;
	return 0;
}

static const struct trained_token *token_of(const struct training *t, int32_t id)
{
	return &t->out->tokens[id - t->out->first];
}

/* The token that a merge makes, which exists already if another pair has made the same text. Negative: an
 * error. */
static int32_t make_token(struct training *t, int32_t left, int32_t right)
{
	struct trained *o = t->out;
	size_t len = token_of(t, left)->len + token_of(t, right)->len, start = o->pool.len;
	uint32_t h, at;

	strbuf_add(&o->pool, o->pool.data + token_of(t, left)->off, token_of(t, left)->len);
	strbuf_add(&o->pool, o->pool.data + token_of(t, right)->off, token_of(t, right)->len);
	if (o->pool.failed)
		return -ENOMEM;
	h = (uint32_t)tokenizer_hash_bytes(o->pool.data + start, len, 0);
	for (at = h & t->known.mask; t->known.slots[at].id != TOKEN_NONE; at = (at + 1) & t->known.mask) {
		const struct trained_token *k = &o->tokens[t->known.slots[at].id];

		if (t->known.slots[at].hash == h && k->len == len &&
		    !memcmp(o->pool.data + k->off, o->pool.data + start, len)) {
			o->pool.len = start;
			return k->special ? k->id : o->first + t->known.slots[at].id;
		}
	}
	o->tokens[o->n] = (struct trained_token){.off = start, .len = len};
	t->known.slots[at] = (struct strmap_slot){h, (int32_t)o->n};
	return o->first + (int32_t)o->n++;
}

static int merge_pair(struct training *t, uint32_t index, int32_t id)
{
	struct pair p = t->pairs[index];

	t->pairs[index].where = NULL;
	t->pairs[index].n = t->pairs[index].cap = 0;
	for (size_t i = 0; i < p.n; i++)
		if (merge_word(t, p.where[i], p.left, p.right, id) < 0) {
			free(p.where);
			return -ENOMEM;
		}
	free(p.where);
	t->pairs[index].count = 0;
	return push_touched(t);
}

static int merge_all(struct training *t, const struct tokenizer_train_options *o)
{
	struct trained *out = t->out;

	while (t->heap_n && out->first + (int64_t)out->n < o->vocab_size) {
		struct entry e = heap_pop(t);
		int32_t id;

		if (e.count != t->pairs[e.pair].count) {
			if (e.count > t->pairs[e.pair].count && heap_push(t, e.pair) < 0)
				return -ENOMEM;
			continue;
		}
		if (e.count < MAX(o->min_frequency, 1))
			break;
		id = make_token(t, e.left, e.right);
		if (id == -ENOMEM)
			return -ENOMEM;
		/* A pair that spells a special token is not merged: only the special token may have that
		 * text. */
		if (id < out->first) {
			t->pairs[e.pair].count = 0;
			continue;
		}
		if (tokenizer_grow(&out->merges, &out->merges_cap, out->merges_n + 1, sizeof(*out->merges)) <
		    0)
			return -ENOMEM;
		out->merges[out->merges_n++] = (struct trained_merge){e.left, e.right};
		if (merge_pair(t, e.pair, id) < 0)
			return -ENOMEM;
		if (o->progress && out->n % 64 == 0)
			o->progress(o->progress_context, out->first + (int64_t)out->n, o->vocab_size);
	}
	if (o->progress)
		o->progress(o->progress_context, out->first + (int64_t)out->n, o->vocab_size);
	return 0;
}

/* Makes the tokens of the bytes, in the order of their printable characters, and reserves memory for those of
 * the merges. Special tokens are looked up, too, so that no merge spells one. */
static int start_tokens(struct training *t, const struct tokenizer_train_options *o)
{
	struct trained *out = t->out;
	size_t n = 0;

	out->tokens = calloc((size_t)o->vocab_size + 1, sizeof(*out->tokens));
	if (!out->tokens || strmap_init(&t->known, (size_t)o->vocab_size + 1) < 0)
		return -ENOMEM;
	for (uint32_t c = 0; c < 324; c++) {
		int b = bytelevel_byte(c);

		if (b < 0)
			continue;
		out->alphabet[n++] = (char)b;
		out->tokens[out->n++] = (struct trained_token){.off = out->pool.len, .len = 1};
		strbuf_addc(&out->pool, (char)b);
	}
	/* The special tokens are at the end of the array, after the memory for the other tokens. */
	for (int32_t i = 0; i < out->first; i++) {
		const char *s = o->special_tokens[i];
		uint32_t h = (uint32_t)tokenizer_hash_bytes(s, strlen(s), 0), at = h & t->known.mask;
		int32_t slot = o->vocab_size - 1 - i;

		out->tokens[slot] =
		    (struct trained_token){.off = out->pool.len, .len = strlen(s), .special = true, .id = i};
		strbuf_adds(&out->pool, s);
		while (t->known.slots[at].id != TOKEN_NONE)
			at = (at + 1) & t->known.mask;
		t->known.slots[at] = (struct strmap_slot){h, slot};
	}
	return out->pool.failed ? -ENOMEM : 0;
}

static int check_options(const struct tokenizer_train_options *o, struct trained *out, struct error *err)
{
	const char *const roles[] = {o->bos, o->eos, o->pad};
	const char *const *s = o->special_tokens;

	for (; s && s[out->first]; out->first++) {
		if (!s[out->first][0] || !s[out->first][1])
			return error_set(err, -EINVAL,
			                 "the special token \"%s\" is too short; two bytes at least",
			                 s[out->first]);
		if (utf8_valid_prefix(s[out->first], strlen(s[out->first])) < strlen(s[out->first]))
			return error_set(err, -EINVAL, "special token %d is not valid UTF-8", out->first + 1);
		for (int32_t i = 0; i < out->first; i++)
			if (str_eq(s[i], s[out->first]))
				return error_set(err, -EINVAL, "the special token \"%s\" is given twice",
				                 s[i]);
	}
	if (o->vocab_size < out->first + BYTES || o->vocab_size > 1 << 24)
		return error_set(
		    err, -EINVAL,
		    "a vocabulary of %d tokens is out of range; from %d (%d special ones and the 256 "
		    "bytes) to %d is right",
		    o->vocab_size, out->first + BYTES, out->first, 1 << 24);
	for (size_t i = 0; i < ARRAY_SIZE(roles); i++) {
		bool found = !roles[i];

		for (int32_t k = 0; k < out->first; k++)
			found = found || str_eq(roles[i], s[k]);
		if (!found)
			return error_set(err, -EINVAL, "\"%s\" is not among the special tokens", roles[i]);
	}
	return 0;
}

static void training_release(struct training *t)
{
	for (size_t i = 0; i < t->n; i++)
		free(t->pairs[i].where);
	free(t->pairs);
	free(t->slots);
	free(t->heap);
	free(t->touched);
	free(t->symbols);
	free(t->known.slots);
	strbuf_free(&t->words.pool);
	free(t->words.v);
	free(t->words.slots);
}

int tokenizer_train(const struct tokenizer_train_options *options, tokenizer_text_fn next, void *context,
                    const char *directory, struct error *err)
{
	_cleanup_free_ struct unicode *u = calloc(1, sizeof(*u));
	struct trained out = {0};
	struct training t = {.out = &out};
	int r = u ? check_options(options, &out, err) : error_oom(err);

	if (r == 0) {
		unicode_init(u);
		r = count_all(&t.words, u, next, context, err);
	}
	if (r == 0 && (start_tokens(&t, options) < 0 || start_words(&t) < 0 || merge_all(&t, options) < 0))
		r = error_oom(err);
	if (r == 0)
		r = tokenizer_write_trained(&out, options, directory, err);
	training_release(&t);
	strbuf_free(&out.pool);
	free(out.tokens);
	free(out.merges);
	return r;
}

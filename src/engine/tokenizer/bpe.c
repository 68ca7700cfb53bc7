/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Byte pair encoding: merges the pair of lowest rank, the leftmost first, until no pair is left. A short
 * piece has the ranks of its neighbouring pairs in an array, which is scanned; a long piece uses a heap over
 * a linked list.
 */
#include <errno.h>
#include <string.h>

#include "base/json.h"
#include "engine/tokenizer/bpe.h"
#include "engine/tokenizer/internal.h"
#include "engine/tokenizer/unicode.h"

#define RANK_NONE UINT32_MAX
#define SCAN_MAX  48
#define MARK      "\xe2\x96\x81"

static uint32_t pair_hash(int32_t left, int32_t right)
{
	uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15u;

	return (uint32_t)(h >> 32) ^ (uint32_t)(h >> 15);
}

static const struct bpe_pair *pair_find(const struct bpe *b, int32_t left, int32_t right)
{
	for (uint32_t i = pair_hash(left, right) & b->mask;; i = (i + 1) & b->mask) {
		const struct bpe_pair *p = &b->pairs[i];

		if (p->left == left && p->right == right)
			return p;
		if (p->left == TOKEN_NONE)
			return NULL;
	}
}

static void pair_put(struct bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t id)
{
	uint32_t i = pair_hash(left, right) & b->mask;

	/* A pair that occurs twice has its last rank, as in Hugging Face. */
	while (b->pairs[i].left != TOKEN_NONE && (b->pairs[i].left != left || b->pairs[i].right != right))
		i = (i + 1) & b->mask;
	b->pairs[i] = (struct bpe_pair){left, right, rank, id};
}

static int merge_sides(const json_t *merge, const char **left, size_t *left_len, const char **right,
                       size_t *right_len)
{
	if (json_is_string(merge)) {
		const char *s = json_string_value(merge), *space = strchr(s, ' ');

		if (!space || strchr(space + 1, ' '))
			return -EINVAL;
		*left = s;
		*left_len = (size_t)(space - s);
		*right = space + 1;
		*right_len = json_string_length(merge) - *left_len - 1;
		return 0;
	}
	if (json_is_array(merge) && json_array_size(merge) == 2 && json_is_string(json_array_get(merge, 0)) &&
	    json_is_string(json_array_get(merge, 1))) {
		*left = json_string_value(json_array_get(merge, 0));
		*left_len = json_string_length(json_array_get(merge, 0));
		*right = json_string_value(json_array_get(merge, 1));
		*right_len = json_string_length(json_array_get(merge, 1));
		return 0;
	}
	return -EINVAL;
}

/* Whether a token contains U+2581 after another character, which would be a word boundary
 * inside the token. */
static bool has_inner_mark(const char *s, size_t len)
{
	bool other = false;

	for (size_t i = 0; i < len;) {
		if (len - i >= 3 && !memcmp(s + i, MARK, 3)) {
			if (other)
				return true;
			i += 3;
		} else {
			other = true;
			i++;
		}
	}
	return false;
}

static int parse_merge(struct bpe *b, const json_t *merge, uint32_t rank, struct strbuf *text,
                       const char *where, struct error *err)
{
	const char *left, *right, *missing;
	size_t left_len, right_len;
	int32_t l, r, id;

	if (merge_sides(merge, &left, &left_len, &right, &right_len) < 0)
		return error_set(err, -EINVAL,
		                 "%s: model.merges[%u]: \"left right\" or [\"left\", \"right\"] is needed",
		                 where, rank);
	l = vocab_find(b->vocab, left, left_len);
	r = vocab_find(b->vocab, right, right_len);
	strbuf_reset(text);
	strbuf_add(text, left, left_len);
	if (right_len >= b->prefix_len)
		strbuf_add(text, right + b->prefix_len, right_len - b->prefix_len);
	if (text->failed)
		return error_oom(err);
	id = vocab_find(b->vocab, text->data ? text->data : "", text->len);
	missing = l < 0 ? left : r < 0 ? right : id < 0 ? text->data : NULL;
	if (missing)
		return error_set(
		    err, -EINVAL,
		    "%s: model.merges[%u]: \"%.*s\" is not in model.vocab; all parts and results of "
		    "merges have to be",
		    where, rank,
		    (int)(l < 0   ? left_len
		          : r < 0 ? right_len
		                  : text->len),
		    missing);
	pair_put(b, l, r, rank, id);
	if (b->cut_at_mark && has_inner_mark(text->data ? text->data : "", text->len))
		b->cut_at_mark = false;
	return 0;
}

static int parse_merges(struct bpe *b, const json_t *merges, const char *where, struct error *err)
{
	_cleanup_strbuf_ struct strbuf text = {0};
	size_t n = json_array_size(merges), slots = 16;

	if (!json_is_array(merges))
		return error_set(err, -EINVAL, "%s: model.merges: %s; an array is needed", where,
		                 merges ? "not an array" : "missing");
	while (slots < n + n / 2)
		slots *= 2;
	b->pairs = malloc(slots * sizeof(*b->pairs));
	if (!b->pairs)
		return error_oom(err);
	for (size_t i = 0; i < slots; i++)
		b->pairs[i].left = b->pairs[i].right = TOKEN_NONE;
	b->mask = (uint32_t)(slots - 1);
	for (size_t i = 0; i < n; i++) {
		int r = parse_merge(b, json_array_get(merges, i), (uint32_t)i, &text, where, err);

		if (r < 0)
			return r;
	}
	return 0;
}

static int copy_affix(const json_t *model, const char *key, char **out, size_t *len)
{
	const char *s = json_get_string(model, key, "");

	*len = strlen(s);
	if (!*len)
		return 0;
	*out = strdup(s);
	return *out ? 0 : -ENOMEM;
}

/* Finds the tokens whose text is encoded as that token alone. Most words of real texts are such tokens, and
 * then need no merging. */
static int find_whole(struct bpe *b, struct error *err)
{
	const struct vocab *v = b->vocab;
	struct bpe_scratch scratch = {0};
	struct token_list ids = {0};
	int r = 0;

	b->whole = calloc((size_t)v->size + 1, 1);
	if (!b->whole)
		return error_oom(err);
	if (b->ignore_merges)
		return 0; /* with ignore_merges a token's text is that token without a look at this table */
	for (int32_t i = 0; i < v->size && r == 0; i++) {
		const struct token_span *t = b->raw ? &v->raw[i] : &v->token[i];

		if (t->len == UINT32_MAX || t->len > 64)
			continue;
		ids.len = 0;
		r = bpe_encode(b, &scratch, (b->raw ? v->raw_pool.data : v->pool.data) + t->off, t->len,
		               b->raw, &ids);
		/* This is set after the encoding above, which must not use it. */
		b->whole[i] = r == 0 && ids.len == 1 && ids.ids[0] == i;
	}
	token_list_free(&ids);
	bpe_scratch_release(&scratch);
	return r < 0 ? error_oom(err) : 0;
}

int bpe_parse(struct bpe *b, const struct vocab *v, const json_t *model, bool raw, const char *where,
              struct error *err)
{
	const char *unk = json_get_string(model, "unk_token", NULL);
	int r;

	b->vocab = v;
	if (json_get_number(model, "dropout", 0) != 0)
		return error_set(err, -ENOTSUP, "%s: model.dropout: not supported; null is needed", where);
	b->fuse_unk = json_get_bool(model, "fuse_unk", false);
	b->byte_fallback = json_get_bool(model, "byte_fallback", false);
	b->ignore_merges = json_get_bool(model, "ignore_merges", false);
	b->unk = TOKEN_NONE;
	if (unk) {
		b->has_unk = true;
		b->unk = vocab_find(v, unk, strlen(unk));
		if (b->unk < 0)
			return error_set(err, -EINVAL, "%s: model.unk_token: \"%s\" is not in model.vocab",
			                 where, unk);
	}
	if (copy_affix(model, "continuing_subword_prefix", &b->prefix, &b->prefix_len) < 0 ||
	    copy_affix(model, "end_of_word_suffix", &b->suffix, &b->suffix_len) < 0)
		return error_oom(err);
	b->raw = raw && !b->prefix && !b->suffix && !b->byte_fallback;
	b->cut_at_mark = !raw && !b->prefix && !b->suffix && !b->ignore_merges && vocab_find(v, MARK, 3) >= 0;
	for (int i = 0; i < 256; i++) {
		char c = (char)i, name[8];

		b->byte_id[i] = vocab_find_raw(v, &c, 1);
		snprintf(name, sizeof(name), "<0x%02X>", i);
		b->fallback_id[i] = vocab_find(v, name, 6);
	}
	r = parse_merges(b, json_object_get(model, "merges"), where, err);
	return r < 0 ? r : find_whole(b, err);
}

void bpe_release(struct bpe *b)
{
	free(b->pairs);
	free(b->prefix);
	free(b->suffix);
	free(b->whole);
}

static int scratch_reserve(struct bpe_scratch *s, size_t n)
{
	size_t cap = s->cap ? s->cap : 256;

	if (n <= s->cap)
		return 0;
	while (cap < n)
		cap *= 2;
	bpe_scratch_release(s);
	s->id = malloc(cap * sizeof(*s->id));
	s->next = malloc(cap * sizeof(*s->next));
	s->prev = malloc(cap * sizeof(*s->prev));
	s->rank = malloc(cap * sizeof(*s->rank));
	s->new_id = malloc(cap * sizeof(*s->new_id));
	if (!s->id || !s->next || !s->prev || !s->rank || !s->new_id)
		return -ENOMEM;
	s->cap = cap;
	return 0;
}

void bpe_scratch_release(struct bpe_scratch *s)
{
	free(s->id);
	free(s->next);
	free(s->prev);
	free(s->rank);
	free(s->new_id);
	free(s->heap);
	strbuf_free(&s->text);
	*s = (struct bpe_scratch){0};
}

/* Looks up the rank of the pair (i, right), and the token that it becomes. */
static void rate(const struct bpe *b, struct bpe_scratch *s, size_t i, int32_t right)
{
	const struct bpe_pair *p = pair_find(b, s->id[i], right);

	s->rank[i] = p ? p->rank : RANK_NONE;
	s->new_id[i] = p ? p->id : TOKEN_NONE;
}

static size_t merge_scan(const struct bpe *b, struct bpe_scratch *s, size_t n)
{
	for (size_t i = 0; i + 1 < n; i++)
		rate(b, s, i, s->id[i + 1]);
	while (n > 1) {
		uint32_t best = RANK_NONE;
		size_t at = 0;

		for (size_t i = 0; i + 1 < n; i++)
			if (s->rank[i] < best) {
				best = s->rank[i];
				at = i;
			}
		if (best == RANK_NONE)
			break;
		s->id[at] = s->new_id[at];
		n--;
		memmove(s->id + at + 1, s->id + at + 2, (n - at - 1) * sizeof(*s->id));
		memmove(s->rank + at, s->rank + at + 1, (n - at - 1) * sizeof(*s->rank));
		memmove(s->new_id + at, s->new_id + at + 1, (n - at - 1) * sizeof(*s->new_id));
		if (at + 1 < n)
			rate(b, s, at, s->id[at + 1]);
		if (at > 0)
			rate(b, s, at - 1, s->id[at]);
	}
	return n;
}

static int heap_push(struct bpe_scratch *s, size_t *len, uint64_t key)
{
	size_t i = *len;

	if (tokenizer_grow(&s->heap, &s->heap_cap, *len + 1, sizeof(*s->heap)) < 0)
		return -ENOMEM;
	(*len)++;
	while (i > 0 && s->heap[(i - 1) / 2] > key) {
		s->heap[i] = s->heap[(i - 1) / 2];
		i = (i - 1) / 2;
	}
	s->heap[i] = key;
	return 0;
}

static uint64_t heap_pop(struct bpe_scratch *s, size_t *len)
{
	uint64_t top = s->heap[0], last = s->heap[--*len];
	size_t i = 0, child;

	while ((child = 2 * i + 1) < *len) {
		if (child + 1 < *len && s->heap[child + 1] < s->heap[child])
			child++;
		if (last <= s->heap[child])
			break;
		s->heap[i] = s->heap[child];
		i = child;
	}
	s->heap[i] = last;
	return top;
}

static int rate_push(const struct bpe *b, struct bpe_scratch *s, size_t i, size_t *heap)
{
	if (s->next[i] < 0) {
		s->rank[i] = RANK_NONE;
		return 0;
	}
	rate(b, s, i, s->id[s->next[i]]);
	return s->rank[i] == RANK_NONE ? 0 : heap_push(s, heap, (uint64_t)s->rank[i] << 32 | i);
}

/* An entry of the heap is (rank, place). It is ignored if the place has another rank by now. */
static int merge_heap(const struct bpe *b, struct bpe_scratch *s, size_t *n)
{
	size_t heap = 0, out = 0;

	for (size_t i = 0; i < *n; i++) {
		s->prev[i] = (int32_t)i - 1;
		s->next[i] = i + 1 < *n ? (int32_t)i + 1 : -1;
	}
	for (size_t i = 0; i < *n; i++)
		if (rate_push(b, s, i, &heap) < 0)
			return -ENOMEM;
	while (heap) {
		uint64_t top = heap_pop(s, &heap);
		size_t i = (uint32_t)top;
		int32_t right;

		if (s->rank[i] != top >> 32)
			continue;
		right = s->next[i];
		s->id[i] = s->new_id[i];
		s->next[i] = s->next[right];
		s->rank[right] = RANK_NONE;
		s->id[right] = TOKEN_NONE;
		if (s->next[i] >= 0)
			s->prev[s->next[i]] = (int32_t)i;
		if (rate_push(b, s, i, &heap) < 0 ||
		    (s->prev[i] >= 0 && rate_push(b, s, (size_t)s->prev[i], &heap) < 0))
			return -ENOMEM;
	}
	for (int32_t i = 0; i >= 0; i = s->next[i])
		s->id[out++] = s->id[i];
	*n = out;
	return 0;
}

/* The unknown token is written before the next known symbol; where it is fused, one for a row of them. Both
 * return the new number of symbols. */
static size_t add_known(const struct bpe *b, struct bpe_scratch *s, size_t n, bool *pending, int32_t id)
{
	if (*pending)
		s->id[n++] = b->unk;
	*pending = false;
	s->id[n++] = id;
	return n;
}

static size_t add_unknown(const struct bpe *b, struct bpe_scratch *s, size_t n, bool *pending)
{
	if (!b->has_unk)
		return n;
	if (*pending && !b->fuse_unk)
		s->id[n++] = b->unk;
	*pending = true;
	return n;
}

/* Starts with a symbol for each byte. A byte without a token becomes the unknown token, or is left out. */
static size_t start_raw(const struct bpe *b, struct bpe_scratch *s, const char *text, size_t len)
{
	bool pending = false;
	size_t n = 0;

	for (size_t i = 0; i < len; i++) {
		int32_t id = b->byte_id[(uint8_t)text[i]];

		n = id >= 0 ? add_known(b, s, n, &pending, id) : add_unknown(b, s, n, &pending);
	}
	if (pending)
		s->id[n++] = b->unk;
	return n;
}

static int32_t symbol_of(const struct bpe *b, struct bpe_scratch *s, const char *c, size_t len, bool first,
                         bool last, const char **text, size_t *text_len)
{
	*text = c;
	*text_len = len;
	if ((b->prefix && !first) || (b->suffix && last)) {
		strbuf_reset(&s->text);
		if (b->prefix && !first)
			strbuf_add(&s->text, b->prefix, b->prefix_len);
		strbuf_add(&s->text, c, len);
		if (b->suffix && last)
			strbuf_add(&s->text, b->suffix, b->suffix_len);
		*text = s->text.data;
		*text_len = s->text.len;
	}
	return vocab_find(b->vocab, *text, *text_len);
}

static bool all_fall_back(const struct bpe *b, const char *text, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (b->fallback_id[(uint8_t)text[i]] < 0)
			return false;
	return b->byte_fallback;
}

/* Starts with a symbol for each character, with byte fallback. The unknown token is written only before the
 * next known character, and so may follow bytes that fell back, as in Hugging Face. */
static size_t start_chars(const struct bpe *b, struct bpe_scratch *s, const char *text, size_t len)
{
	bool pending = false;
	size_t n = 0, i = 0;
	uint32_t cp;

	while (i < len) {
		unsigned c = utf8_get(text + i, &cp);
		const char *symbol;
		size_t symbol_len;
		int32_t id = symbol_of(b, s, text + i, c, i == 0, i + c == len, &symbol, &symbol_len);

		i += c;
		if (id >= 0) {
			n = add_known(b, s, n, &pending, id);
		} else if (all_fall_back(b, symbol, symbol_len)) {
			for (size_t k = 0; k < symbol_len; k++)
				s->id[n++] = b->fallback_id[(uint8_t)symbol[k]];
		} else {
			n = add_unknown(b, s, n, &pending);
		}
	}
	if (pending)
		s->id[n++] = b->unk;
	return n;
}

static int encode_word(const struct bpe *b, struct bpe_scratch *s, const char *text, size_t len, bool raw,
                       struct token_list *out)
{
	int32_t id = raw ? vocab_find_raw(b->vocab, text, len) : vocab_find(b->vocab, text, len);
	size_t n;

	if (id >= 0 && (b->ignore_merges || (b->whole[id] && raw == b->raw)))
		return token_list_add(out, &id, 1);
	/* In the worst case every byte falls back; prefixes and suffix need room in addition. */
	if (scratch_reserve(s, len * (1 + b->prefix_len) + b->suffix_len + 2) < 0)
		return -ENOMEM;
	n = raw ? start_raw(b, s, text, len) : start_chars(b, s, text, len);
	if (s->text.failed)
		return -ENOMEM;
	if (n <= SCAN_MAX)
		n = merge_scan(b, s, n);
	else if (merge_heap(b, s, &n) < 0)
		return -ENOMEM;
	return token_list_add(out, s->id, n);
}

int bpe_encode(const struct bpe *b, struct bpe_scratch *s, const char *text, size_t len, bool raw,
               struct token_list *out)
{
	size_t start = 0;
	bool mark = true;

	if (raw || !b->cut_at_mark)
		return encode_word(b, s, text, len, raw, out);
	for (size_t i = 0; i < len;) {
		bool here = len - i >= 3 && !memcmp(text + i, MARK, 3);

		if (here && !mark) {
			if (encode_word(b, s, text + start, i - start, false, out) < 0)
				return -ENOMEM;
			start = i;
		}
		mark = here;
		i += here ? 3 : 1;
	}
	return len > start ? encode_word(b, s, text + start, len - start, false, out) : 0;
}

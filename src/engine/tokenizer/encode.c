/* SPDX-License-Identifier: Apache-2.0 */
/* Turns text into ids: cuts out added tokens, and normalizes, splits and merges the rest. */
#include <errno.h>
#include <string.h>

#include "engine/tokenizer/internal.h"
#include "engine/tokenizer/parts.h"

/* What one call needs in addition to the tokenizer. */
struct encoding {
	const struct tokenizer *tok;
	struct match_scratch match;
	struct bpe_scratch bpe;
	struct match_list spans;
	struct pieces work[2];
	struct strbuf normal;
	struct token_list *out;
	struct error *err;
};

static void encoding_release(struct encoding *e)
{
	match_scratch_release(&e->match);
	bpe_scratch_release(&e->bpe);
	free(e->spans.v);
	pieces_release(&e->work[0]);
	pieces_release(&e->work[1]);
	strbuf_free(&e->normal);
}

/* Encodes text that has no added tokens. */
static int encode_plain(struct encoding *e, const char *text, size_t len, bool first)
{
	const struct tokenizer *tok = e->tok;
	struct pieces *p;
	int r;

	if (!len)
		return 0;
	if (!tok->pretokenizer.n)
		return bpe_encode(&tok->bpe, &e->bpe, text, len, false, e->out) < 0 ? error_oom(e->err) : 0;
	strbuf_reset(&e->work[0].text);
	strbuf_add(&e->work[0].text, text, len);
	e->work[0].n = 0;
	if (e->work[0].text.failed || pieces_add(&e->work[0], 0, (uint32_t)len, first) < 0)
		return error_oom(e->err);
	r = pretokenizer_apply(&tok->pretokenizer, tok->bpe.raw, &tok->unicode, &e->match, e->work, &e->spans,
	                       &p, e->err);
	if (r < 0)
		return r;
	for (size_t i = 0; i < p->n; i++)
		if (bpe_encode(&tok->bpe, &e->bpe, p->text.data + p->v[i].off, p->v[i].len, tok->bpe.raw,
		               e->out) < 0)
			return error_oom(e->err);
	return 0;
}

typedef int (*part_fn)(struct encoding *e, const char *text, size_t len, bool first);

/* Cuts the text at the tokens of a trie; the text between them is passed to `part`. */
static int cut_added(struct encoding *e, const struct trie *trie, const char *text, size_t len, bool first,
                     part_fn part)
{
	const struct added *a = &e->tok->added;
	size_t pos = 0, taken = 0, start, end;
	int at, r;

	while (trie->n &&
	       (at = added_next(a, trie, &e->tok->unicode, text, len, &pos, taken, &start, &end)) >= 0) {
		if (taken < start) {
			r = part(e, text + taken, start - taken, first && taken == 0);
			if (r < 0)
				return r;
		}
		if (a->v[at].id >= e->tok->limit)
			return error_set(
			    e->err, -EINVAL,
			    "the text has the token \"%.100s\" (id %d), of which the model has no "
			    "embedding (its vocab_size is %d): expected a text without it",
			    a->v[at].content, a->v[at].id, e->tok->limit);
		if (token_list_add(e->out, &a->v[at].id, 1) < 0)
			return error_oom(e->err);
		taken = end;
	}
	return taken < len ? part(e, text + taken, len - taken, first && taken == 0) : 0;
}

static int encode_normalized(struct encoding *e, const char *text, size_t len, bool first)
{
	const struct tokenizer *tok = e->tok;
	int r;

	if (!tok->normalizer.n)
		return cut_added(e, &tok->added.normal, text, len, first, encode_plain);
	strbuf_reset(&e->normal);
	strbuf_add(&e->normal, text, len);
	if (e->normal.failed)
		return error_oom(e->err);
	r = normalizer_apply(&tok->normalizer, &tok->unicode, &e->match, &e->normal, e->err);
	return r < 0 ? r
	             : cut_added(e, &tok->added.normal, e->normal.data, e->normal.len, first, encode_plain);
}

int tokenizer_encode(const struct tokenizer *tok, const char *text, size_t len, bool add_special,
                     struct token_list *out, struct error *err)
{
	_cleanup_strbuf_ struct strbuf clean = {0};
	struct encoding e = {.tok = tok, .out = out, .err = err};
	size_t before = out->len;
	int r;

	if (len > TOKENIZER_TEXT_MAX)
		return error_set(err, -EFBIG,
		                 "a text of %zu bytes is beyond the 1 GiB that can be encoded at once", len);
	if (utf8_valid_prefix(text, len) < len) {
		utf8_sanitize(&clean, text, len);
		if (clean.failed)
			return error_oom(err);
		text = clean.data;
		len = clean.len;
	}
	if (add_special && token_list_add(out, tok->before.ids, tok->before.len) < 0)
		return error_oom(err);
	r = cut_added(&e, &tok->added.plain, text, len, true, encode_normalized);
	if (r == 0 && add_special && token_list_add(out, tok->after.ids, tok->after.len) < 0)
		r = error_oom(err);
	encoding_release(&e);
	if (r < 0)
		out->len = before;
	return r;
}

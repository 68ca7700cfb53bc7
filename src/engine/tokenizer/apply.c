/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the steps of normalizers and pre-tokenizers. */
#include <errno.h>
#include <string.h>
#include <utf8proc.h>

#include "engine/tokenizer/internal.h"
#include "engine/tokenizer/steps.h"

static void replace_content(struct strbuf *text, struct strbuf *with)
{
	struct strbuf old = *text;

	*text = *with;
	*with = old;
}

static bool is_ascii(const char *text, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if ((unsigned char)text[i] >= 0x80)
			return false;
	return true;
}

static int apply_form(struct strbuf *text, int options, struct error *err)
{
	utf8proc_uint8_t *out = NULL;
	utf8proc_ssize_t n;

	/* ASCII is the same in all four forms. */
	if (is_ascii(text->data, text->len))
		return 0;
	n = utf8proc_map((const utf8proc_uint8_t *)text->data, (utf8proc_ssize_t)text->len, &out,
	                 (utf8proc_option_t)options);
	if (n < 0)
		return n == UTF8PROC_ERROR_NOMEM
		           ? error_oom(err)
		           : error_set(err, -EINVAL, "normalizing the text: %s", utf8proc_errmsg(n));
	strbuf_reset(text);
	strbuf_add(text, out, (size_t)n);
	free(out);
	return text->failed ? error_oom(err) : 0;
}

static void lowercase(struct strbuf *out, uint32_t cp)
{
	char c[4];

	/* The one character whose lower case is two: I with a dot above. */
	if (cp == 0x130)
		strbuf_add(out, "i\xcc\x87", 3);
	else
		strbuf_add(out, c, utf8_put(c, (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp)));
}

static void nmt(struct strbuf *out, uint32_t cp, const char *p, unsigned n)
{
	if ((cp >= 1 && cp <= 8) || cp == 0xb || (cp >= 0xe && cp <= 0x1f) || cp == 0x7f || cp == 0x8f ||
	    cp == 0x9f)
		return;
	if (cp == 9 || cp == 10 || cp == 12 || cp == 13 || cp == 0x1680 || (cp >= 0x200b && cp <= 0x200f) ||
	    cp == 0x2028 || cp == 0x2029 || cp == 0x2581 || cp == 0xfeff || cp == 0xfffd)
		strbuf_addc(out, ' ');
	else
		strbuf_add(out, p, n);
}

/* Runs the steps that treat each character by itself. */
static void by_character(enum step_kind kind, const struct unicode *u, const struct strbuf *text,
                         struct strbuf *out)
{
	uint32_t cp;

	for (size_t i = 0; i < text->len;) {
		unsigned n = utf8_get(text->data + i, &cp);

		if (kind == STEP_LOWERCASE)
			lowercase(out, cp);
		else if (kind == STEP_NMT)
			nmt(out, cp, text->data + i, n);
		else if (!(unicode_class(u, cp) & U_MARK))
			strbuf_add(out, text->data + i, n);
		i += n;
	}
}

static void strip(const struct step *s, const struct unicode *u, struct strbuf *text, struct strbuf *out)
{
	size_t from = 0, to = text->len;
	unsigned n;

	while (s->left && from < to && (utf8_class(u, text->data + from, &n) & U_SPACE))
		from += n;
	while (s->right && to > from) {
		unsigned back = utf8_back(text->data + from, text->data + to);

		if (!(utf8_class(u, text->data + to - back, &n) & U_SPACE))
			break;
		to -= back;
	}
	strbuf_add(out, text->data + from, to - from);
}

static int replace(const struct step *s, const struct unicode *u, struct match_scratch *scratch,
                   struct strbuf *text, struct strbuf *out, struct error *err)
{
	struct match_list spans = {0};
	int r = matcher_all(&s->matcher, u, scratch, text->data, text->len, &spans, err);

	for (size_t i = 0; r == 0 && i < spans.n; i++) {
		if (spans.v[i].match)
			strbuf_add(out, s->text, s->len);
		else
			strbuf_add(out, text->data + spans.v[i].start, spans.v[i].end - spans.v[i].start);
	}
	free(spans.v);
	return r;
}

int normalizer_apply(const struct step_list *list, const struct unicode *u, struct match_scratch *scratch,
                     struct strbuf *text, struct error *err)
{
	_cleanup_strbuf_ struct strbuf out = {0};

	for (size_t i = 0; i < list->n && text->len; i++) {
		const struct step *s = &list->v[i];
		int r = 0;

		if (s->kind == STEP_FORM) {
			r = apply_form(text, s->form, err);
			if (r < 0)
				return r;
			continue;
		}
		strbuf_reset(&out);
		switch (s->kind) {
		case STEP_PREPEND:
			strbuf_add(&out, s->text, s->len);
			strbuf_add(&out, text->data, text->len);
			break;
		case STEP_REPLACE:
			r = replace(s, u, scratch, text, &out, err);
			break;
		case STEP_STRIP:
			strip(s, u, text, &out);
			break;
		case STEP_BYTES:
			bytelevel_encode(&out, text->data, text->len);
			break;
		default:
			by_character(s->kind, u, text, &out);
			break;
		}
		if (r < 0)
			return r;
		if (out.failed)
			return error_oom(err);
		if (out.len > TOKENIZER_TEXT_MAX)
			return error_set(err, -EFBIG, "a text grows beyond 1 GiB in the normalizer");
		replace_content(text, &out);
	}
	return 0;
}

int pieces_add(struct pieces *p, uint32_t off, uint32_t len, bool first)
{
	if (!len)
		return 0;
	if (tokenizer_grow(&p->v, &p->cap, p->n + 1, sizeof(*p->v)) < 0)
		return -ENOMEM;
	p->v[p->n++] = (struct piece){off, len, first};
	return 0;
}

void pieces_release(struct pieces *p)
{
	strbuf_free(&p->text);
	free(p->v);
	*p = (struct pieces){0};
}

/* Joins neighbouring spans as the behaviour says, and empties spans that are to be removed. As in Hugging
 * Face, a match joins the piece before (or after) it, unless that is a match, too. */
static size_t join_spans(struct match_span *v, size_t n, enum split_behaviour behaviour)
{
	size_t out = 0;
	bool previous = false;

	for (size_t i = 0; i < n; i++) {
		bool match = v[i].match, join;

		if (behaviour == SPLIT_CONTIGUOUS)
			join = match == previous;
		else
			join = match && !previous;
		if (join && out)
			v[out - 1].end = v[i].end;
		else
			v[out++] = v[i];
		previous = match;
	}
	return out;
}

static size_t join_next(struct match_span *v, size_t n)
{
	size_t at = n;
	bool previous = false;

	for (size_t i = n; i-- > 0;) {
		bool match = v[i].match;

		if (match && !previous && at < n)
			v[at].start = v[i].start;
		else
			v[--at] = v[i];
		previous = match;
	}
	memmove(v, v + at, (n - at) * sizeof(*v));
	return n - at;
}

static int split_piece(const struct step *s, const struct piece *p, struct match_list *spans,
                       struct pieces *out)
{
	size_t n = spans->n;

	if (s->invert)
		for (size_t i = 0; i < n; i++)
			spans->v[i].match = !spans->v[i].match;
	if (s->behaviour == SPLIT_PREVIOUS || s->behaviour == SPLIT_CONTIGUOUS)
		n = join_spans(spans->v, n, s->behaviour);
	else if (s->behaviour == SPLIT_NEXT)
		n = join_next(spans->v, n);
	for (size_t i = 0; i < n; i++) {
		const struct match_span *m = &spans->v[i];

		if (s->behaviour == SPLIT_REMOVED && m->match)
			continue;
		if (pieces_add(out, p->off + m->start, m->end - m->start, p->first && m->start == 0) < 0)
			return -ENOMEM;
	}
	return 0;
}

/* Writes one piece as a step changes it. */
static void rewrite(const struct step *s, const char *text, const struct piece *p, struct strbuf *out)
{
	const char *t = text + p->off;
	size_t from = 0;
	bool marked;

	switch (s->kind) {
	case STEP_PREFIX_SPACE:
		if (*t != ' ')
			strbuf_addc(out, ' ');
		strbuf_add(out, t, p->len);
		break;
	case STEP_BYTES:
		bytelevel_encode(out, t, p->len);
		break;
	default: /* STEP_METASPACE */
		marked = *t == ' ' || (p->len >= s->len && !memcmp(t, s->text, s->len));
		if (!marked && (s->scheme == PREPEND_ALWAYS || (s->scheme == PREPEND_FIRST && p->first)))
			strbuf_add(out, s->text, s->len);
		for (size_t i = 0; i < p->len; i++)
			if (t[i] == ' ') {
				strbuf_add(out, t + from, i - from);
				strbuf_add(out, s->text, s->len);
				from = i + 1;
			}
		strbuf_add(out, t + from, p->len - from);
		break;
	}
}

int pretokenizer_apply(const struct step_list *list, bool raw, const struct unicode *u,
                       struct match_scratch *scratch, struct pieces *work, struct match_list *spans,
                       struct pieces **result, struct error *err)
{
	struct pieces *now = &work[0], *other = &work[1];
	int r;

	for (size_t i = 0; i < list->n; i++) {
		const struct step *s = &list->v[i];

		if (s->kind == STEP_BYTES && raw && i + 1 == list->n)
			break;
		other->n = 0;
		strbuf_reset(&other->text);
		for (size_t k = 0; k < now->n; k++) {
			const struct piece *p = &now->v[k];
			size_t start = other->text.len;

			if (s->kind == STEP_SPLIT) {
				r = matcher_all(&s->matcher, u, scratch, now->text.data + p->off, p->len,
				                spans, err);
				if (r < 0)
					return r;
				if (split_piece(s, p, spans, other) < 0)
					return error_oom(err);
				continue;
			}
			rewrite(s, now->text.data, p, &other->text);
			if (other->text.len > TOKENIZER_TEXT_MAX)
				return error_set(err, -EFBIG,
				                 "a text grows beyond 1 GiB in the pre-tokenizer");
			if (pieces_add(other, (uint32_t)start, (uint32_t)(other->text.len - start),
			               p->first) < 0 ||
			    other->text.failed)
				return error_oom(err);
		}
		/* A split does not change the text. */
		if (s->kind == STEP_SPLIT)
			replace_content(&other->text, &now->text);
		*result = other;
		other = now;
		now = *result;
	}
	*result = now;
	return 0;
}

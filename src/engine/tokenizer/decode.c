/* SPDX-License-Identifier: Apache-2.0 */
/* Turns ids into text: the steps of the decoder change a list of token strings, which is then joined. */
#include <errno.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "engine/tokenizer/internal.h"
#include "engine/tokenizer/parts.h"

/* Strings one after another in one buffer; ends[i] is the end of the i-th. */
struct token_texts {
	struct strbuf text;
	size_t *ends;
	size_t n, cap;
};

static int close_token(struct token_texts *t)
{
	if (t->text.failed || tokenizer_grow(&t->ends, &t->cap, t->n + 1, sizeof(*t->ends)) < 0)
		return -ENOMEM;
	t->ends[t->n++] = t->text.len;
	return 0;
}

static void texts_release(struct token_texts *t)
{
	strbuf_free(&t->text);
	free(t->ends);
}

static int decode_bytelevel(const struct token_texts *in, struct token_texts *out)
{
	_cleanup_strbuf_ struct strbuf bytes = {0};
	size_t start = 0;

	for (size_t i = 0; i < in->n; start = in->ends[i++])
		if (!bytelevel_decode(&bytes, in->text.data + start, in->ends[i] - start))
			strbuf_add(&bytes, in->text.data + start, in->ends[i] - start);
	if (bytes.failed)
		return -ENOMEM;
	utf8_sanitize(&out->text, bytes.data ? bytes.data : "", bytes.len);
	return close_token(out);
}

/* A space for each place where the step's text stands; nothing for it in the first or the last token where
 * the flag for that is not set. */
static int decode_spaces(const struct decode_step *s, const struct token_texts *in, bool first, bool last,
                         struct token_texts *out)
{
	size_t start = 0;

	for (size_t i = 0; i < in->n; start = in->ends[i++]) {
		bool space = (i > 0 || first) && (i + 1 < in->n || last);

		for (size_t k = start; k < in->ends[i];) {
			if (!s->len || in->ends[i] - k < s->len ||
			    memcmp(in->text.data + k, s->text, s->len)) {
				strbuf_addc(&out->text, in->text.data[k++]);
				continue;
			}
			if (space)
				strbuf_addc(&out->text, ' ');
			k += s->len;
		}
		if (close_token(out) < 0)
			return -ENOMEM;
	}
	return 0;
}

static int decode_replace(const struct decode_step *s, const struct unicode *u, const struct token_texts *in,
                          struct token_texts *out, struct error *err)
{
	struct match_scratch scratch = {0};
	struct match_list spans = {0};
	size_t start = 0;
	int r = 0;

	for (size_t i = 0; i < in->n && r == 0; start = in->ends[i++]) {
		const char *t = in->text.data + start;

		r = matcher_all(&s->matcher, u, &scratch, t, in->ends[i] - start, &spans, err);
		for (size_t k = 0; r == 0 && k < spans.n; k++) {
			if (spans.v[k].match)
				strbuf_add(&out->text, s->text, s->len);
			else
				strbuf_add(&out->text, t + spans.v[k].start,
				           spans.v[k].end - spans.v[k].start);
		}
		if (r == 0 && close_token(out) < 0)
			r = error_oom(err);
	}
	match_scratch_release(&scratch);
	free(spans.v);
	return r;
}

static int hex_digit(char c)
{
	return c >= '0' && c <= '9'   ? c - '0'
	       : c >= 'a' && c <= 'f' ? c - 'a' + 10
	       : c >= 'A' && c <= 'F' ? c - 'A' + 10
	                              : -1;
}

/* The byte of "<0xNN>", or -1. A sign before a single digit is accepted, as Rust's parser does. */
static int fallback_byte(const char *t, size_t len)
{
	int high, low;

	if (len != 6 || memcmp(t, "<0x", 3) != 0 || t[5] != '>')
		return -1;
	high = t[3] == '+' ? 0 : hex_digit(t[3]);
	low = hex_digit(t[4]);
	return high < 0 || low < 0 ? -1 : high << 4 | low;
}

static int flush_bytes(struct strbuf *bytes, struct token_texts *out)
{
	if (!bytes->len)
		return 0;
	if (bytes->failed)
		return -ENOMEM;
	if (utf8_valid_prefix(bytes->data, bytes->len) == bytes->len) {
		strbuf_add(&out->text, bytes->data, bytes->len);
		strbuf_reset(bytes);
		return close_token(out);
	}
	for (size_t i = 0; i < bytes->len; i++) {
		strbuf_add(&out->text, "\xef\xbf\xbd", 3);
		if (close_token(out) < 0)
			return -ENOMEM;
	}
	strbuf_reset(bytes);
	return 0;
}

static int decode_byte_fallback(const struct token_texts *in, struct token_texts *out)
{
	_cleanup_strbuf_ struct strbuf bytes = {0};
	size_t start = 0;

	for (size_t i = 0; i < in->n; start = in->ends[i++]) {
		int byte = fallback_byte(in->text.data + start, in->ends[i] - start);

		if (byte >= 0) {
			strbuf_addc(&bytes, (char)byte);
			continue;
		}
		if (flush_bytes(&bytes, out) < 0)
			return -ENOMEM;
		strbuf_add(&out->text, in->text.data + start, in->ends[i] - start);
		if (close_token(out) < 0)
			return -ENOMEM;
	}
	return flush_bytes(&bytes, out);
}

static int decode_strip(const struct decode_step *s, const struct token_texts *in, struct token_texts *out)
{
	size_t start = 0;

	for (size_t i = 0; i < in->n; start = in->ends[i++]) {
		size_t from = start, to = in->ends[i];
		const char *t = in->text.data;

		for (int64_t k = 0; k < s->start && to - from >= s->len && !memcmp(t + from, s->text, s->len);
		     k++)
			from += s->len;
		for (int64_t k = 0;
		     k < s->stop && to - from >= s->len && !memcmp(t + to - s->len, s->text, s->len); k++)
			to -= s->len;
		strbuf_add(&out->text, t + from, to - from);
		if (close_token(out) < 0)
			return -ENOMEM;
	}
	return 0;
}

static int decode_step(const struct decode_step *s, const struct unicode *u, const struct token_texts *in,
                       struct token_texts *out, struct error *err)
{
	int r = 0;

	switch (s->kind) {
	case DECODE_BYTELEVEL:
		r = decode_bytelevel(in, out);
		break;
	case DECODE_METASPACE:
		r = decode_spaces(s, in, s->scheme == PREPEND_NEVER, true, out);
		break;
	case DECODE_REPLACE:
		return decode_replace(s, u, in, out, err);
	case DECODE_BYTE_FALLBACK:
		r = decode_byte_fallback(in, out);
		break;
	case DECODE_FUSE:
		strbuf_add(&out->text, in->text.data ? in->text.data : "", in->text.len);
		r = close_token(out);
		break;
	case DECODE_STRIP:
		r = decode_strip(s, in, out);
		break;
	case DECODE_BPE:
		r = decode_spaces(s, in, true, false, out);
		break;
	}
	return r < 0 ? error_oom(err) : 0;
}

static int decode_chain(const struct tokenizer *tok, struct token_texts *now, struct error *err)
{
	for (size_t i = 0; i < tok->decoder.n && now->n; i++) {
		struct token_texts out = {0};
		int r = decode_step(&tok->decoder.v[i], &tok->unicode, now, &out, err);

		texts_release(now);
		*now = out;
		if (r < 0)
			return r;
	}
	return 0;
}

static int add_token_text(const struct tokenizer *tok, int32_t id, bool skip_special, struct token_texts *out)
{
	const struct added_token *a = tok->added_by_id[id];

	if (a) {
		if (a->special && skip_special)
			return 0;
		if (!tok->decoder.present && out->n)
			strbuf_addc(&out->text, ' ');
		strbuf_add(&out->text, a->normal, a->normal_len);
		return close_token(out);
	}
	if (id >= tok->vocab.size || tok->vocab.token[id].len == UINT32_MAX)
		return 0;
	if (!tok->decoder.present && out->n)
		strbuf_addc(&out->text, ' ');
	strbuf_add(&out->text, tok->vocab.pool.data + tok->vocab.token[id].off, tok->vocab.token[id].len);
	return close_token(out);
}

int tokenizer_decode(const struct tokenizer *tok, const int32_t *ids, size_t n, bool skip_special,
                     char **text, size_t *len, struct error *err)
{
	struct token_texts texts = {0};
	int r = 0;

	for (size_t i = 0; i < n && r == 0; i++) {
		if (ids[i] < 0 || ids[i] >= tok->size)
			r = error_set(err, -ERANGE, "%s: there is no token %d; ids are 0 … %d", tok->where,
			              ids[i], tok->size - 1);
		else if (add_token_text(tok, ids[i], skip_special, &texts) < 0)
			r = error_oom(err);
	}
	if (r == 0)
		r = decode_chain(tok, &texts, err);
	if (r == 0) {
		size_t total = texts.text.len;

		*text = strbuf_steal(&texts.text);
		if (!*text)
			r = error_oom(err);
		else if (len)
			*len = total;
	}
	texts_release(&texts);
	return r;
}

/* ---- reading ---- */

static struct decode_step *add_step(struct decoder *d, enum decode_kind kind)
{
	if (tokenizer_grow(&d->v, &d->cap, d->n + 1, sizeof(*d->v)) < 0)
		return NULL;
	d->v[d->n] = (struct decode_step){.kind = kind};
	return &d->v[d->n++];
}

static int parse_members(struct decode_step *s, const json_t *json, const char *where, struct error *err)
{
	uint32_t cp;
	int r;

	switch (s->kind) {
	case DECODE_METASPACE:
		return replacement_parse(json, where, &s->text, &s->len, &s->scheme, err);
	case DECODE_REPLACE:
		r = pattern_parse(&s->matcher, json_object_get(json, "pattern"), where, err);
		return r < 0 ? r : string_parse(json, "content", where, &s->text, &s->len, err);
	case DECODE_BPE:
		return string_parse(json, "suffix", where, &s->text, &s->len, err);
	case DECODE_STRIP:
		s->start = json_get_int(json, "start", 0);
		s->stop = json_get_int(json, "stop", 0);
		r = string_parse(json, "content", where, &s->text, &s->len, err);
		if (r < 0)
			return r;
		if (!s->len || utf8_get(s->text, &cp) != s->len)
			return error_set(err, -EINVAL, "%s: content: a single character is needed", where);
		return 0;
	default:
		return 0;
	}
}

static int parse_decoder(struct decoder *d, const json_t *json, const char *where, int depth,
                         struct error *err)
{
	static const char *const types[] = {
	    [DECODE_BYTELEVEL] = "ByteLevel", [DECODE_METASPACE] = "Metaspace",
	    [DECODE_REPLACE] = "Replace",     [DECODE_BYTE_FALLBACK] = "ByteFallback",
	    [DECODE_FUSE] = "Fuse",           [DECODE_STRIP] = "Strip",
	    [DECODE_BPE] = "BPEDecoder",
	};
	const char *type = json_get_string(json, "type", NULL);
	const json_t *array = json_object_get(json, "decoders");
	struct decode_step *s;
	int r = 0;

	if (!type)
		return error_set(err, -EINVAL, "%s: an object with a \"type\" is needed", where);
	if (str_eq(type, "Sequence")) {
		if (!json_is_array(array))
			return error_set(err, -EINVAL, "%s: decoders: an array is needed", where);
		if (depth > 16)
			return error_set(err, -EINVAL, "%s: Sequences more than 16 deep", where);
		for (size_t i = 0; i < json_array_size(array) && r == 0; i++)
			r = parse_decoder(d, json_array_get(array, i), where, depth + 1, err);
		return r;
	}
	for (size_t i = 0; i < ARRAY_SIZE(types); i++) {
		if (!str_eq(type, types[i]))
			continue;
		s = add_step(d, (enum decode_kind)i);
		return s ? parse_members(s, json, where, err) : error_oom(err);
	}
	return error_set(err, -ENOTSUP,
	                 "%s: type \"%.60s\" is not supported; these are: ByteLevel, Metaspace, Replace, "
	                 "ByteFallback, Fuse, Strip, BPEDecoder, Sequence",
	                 where, type);
}

int decoder_parse(struct decoder *d, const json_t *json, const char *where, struct error *err)
{
	if (!json || json_is_null(json))
		return 0;
	d->present = true;
	return parse_decoder(d, json, where, 0, err);
}

void decoder_release(struct decoder *d)
{
	for (size_t i = 0; i < d->n; i++) {
		matcher_release(&d->v[i].matcher);
		free(d->v[i].text);
	}
	free(d->v);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Matches the patterns that split and replace text: literals, classes of characters, and regular expressions
 * in Oniguruma's syntax, which are translated for PCRE2. */
#include <errno.h>
#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "engine/tokenizer/internal.h"
#include "engine/tokenizer/match.h"

#define SPACES                                                                                               \
	"\\t-\\r\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{"     \
	"3000}"
#define NOT_SPACES                                                                                           \
	"\\x00-\\x08\\x{e}-\\x{1f}!-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-"    \
	"\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"
/* With the superscripts and fractions of Latin-1, which Oniguruma counts, and the letters in circles and
 * squares, which are alphabetic. */
#define WORDS                                                                                                \
	"\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}\\x{24b6}-\\x{24e9}\\x{1f130}" \
	"-"                                                                                                  \
	"\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}"
#define HEX "0-9a-fA-F"
/* Whether a word begins or ends here: PCRE2's own \\b has other characters of words, which are not the same
 * in all of its releases. */
#define BOUNDARY    "(?:(?<=[" WORDS "])(?![" WORDS "])|(?<![" WORDS "])(?=[" WORDS "]))"
#define NO_BOUNDARY "(?:(?<=[" WORDS "])(?=[" WORDS "])|(?<![" WORDS "])(?![" WORDS "]))"

/* The escapes that have another meaning in Oniguruma than in PCRE2; `inside` is their translation in
 * brackets. */
static const struct {
	char escape;
	const char *outside, *inside;
} escapes[] = {
    {'s', "[" SPACES "]", SPACES}, {'S', "[^" SPACES "]", NOT_SPACES},
    {'w', "[" WORDS "]", WORDS},   {'W', "[^" WORDS "]", NULL},
    {'h', "[" HEX "]", HEX},       {'H', "[^" HEX "]", NULL},
    {'b', BOUNDARY, "\\x08"},      {'B', NO_BOUNDARY, "B"},
};

static bool translate_escape(struct strbuf *out, char c, bool inside)
{
	for (size_t i = 0; i < ARRAY_SIZE(escapes); i++) {
		const char *s = inside ? escapes[i].inside : escapes[i].outside;

		if (escapes[i].escape == c) {
			if (s)
				strbuf_adds(out, s);
			return s != NULL;
		}
	}
	strbuf_addc(out, '\\');
	strbuf_addc(out, c);
	return true;
}

/* Translates "(?flags…": with Ruby's m the dot matches a newline, which is s in PCRE2. Returns the number of
 * bytes read. */
static size_t translate_flags(struct strbuf *out, const char *p, size_t len)
{
	size_t i = 2;

	if (len < 3 || p[1] != '?')
		return 0;
	while (i < len && (strchr("imx-", p[i]) && p[i]))
		i++;
	if (i == 2 || i == len || (p[i] != ':' && p[i] != ')'))
		return 0;
	for (size_t k = 0; k <= i; k++)
		strbuf_addc(out, k >= 2 && p[k] == 'm' ? 's' : p[k]);
	return i + 1;
}

/* Translates a pattern from Ruby's syntax, which Hugging Face uses, to that of PCRE2. Returns NULL, or the
 * name of something that is not supported. */
static const char *translate(struct strbuf *out, const char *p, size_t len)
{
	bool inside = false;
	size_t n;

	for (size_t i = 0; i < len; i++) {
		if (p[i] == '\\' && i + 1 < len) {
			if (!translate_escape(out, p[++i], inside))
				return "\\W or \\H within brackets";
		} else if (inside && p[i] == '[') {
			const char *end =
			    i + 1 < len && p[i + 1] == ':' ? memmem(p + i, len - i, ":]", 2) : NULL;

			if (!end)
				return "brackets within brackets";
			n = (size_t)(end + 2 - (p + i));
			strbuf_add(out, p + i, n);
			i += n - 1;
		} else if (inside && p[i] == '&' && i + 1 < len && p[i + 1] == '&') {
			return "an intersection of classes (&&)";
		} else if (!inside && p[i] == '(' && (n = translate_flags(out, p + i, len - i))) {
			i += n - 1;
		} else if (!inside && p[i] == '{' && i + 1 < len && p[i + 1] == ',') {
			strbuf_adds(out, "{0");
		} else {
			if (!inside && p[i] == '[') {
				inside = true;
				strbuf_addc(out, '[');
				if (i + 1 < len && p[i + 1] == '^')
					strbuf_addc(out, p[++i]);
				continue;
			}
			if (inside && p[i] == ']')
				inside = false;
			strbuf_addc(out, p[i]);
		}
	}
	return NULL;
}

static const struct {
	const char *pattern;
	enum match_kind kind;
	int digits;
} by_hand[] = {
    {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", MATCH_GPT2, 0},
    {"'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", MATCH_GPT2, 0},
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
     "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
     MATCH_LLAMA3, 3},
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
     "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
     MATCH_LLAMA3, 1},
};

int matcher_regex_only(struct matcher *m, const char *pattern, size_t len, const char *where,
                       struct error *err)
{
	_cleanup_strbuf_ struct strbuf text = {0};
	const char *unsupported = translate(&text, pattern, len);
	PCRE2_UCHAR words[128];
	PCRE2_SIZE at;
	int code;

	if (unsupported)
		return error_set(err, -ENOTSUP, "%s: regex \"%.200s\": %s: not supported", where, pattern,
		                 unsupported);
	if (text.failed)
		return error_oom(err);
	m->kind = MATCH_REGEX;
	m->regex = pcre2_compile((PCRE2_SPTR)(text.data ? text.data : ""), text.len,
	                         PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &code,
	                         &at, NULL);
	if (!m->regex) {
		pcre2_get_error_message(code, words, sizeof(words));
		return error_set(err, -EINVAL, "%s: regex \"%.200s\": %s", where, pattern, (char *)words);
	}
	/* This may fail: where there is no JIT for the machine or the pattern, PCRE2 interprets it. */
	pcre2_jit_compile(m->regex, PCRE2_JIT_COMPLETE);
	return 0;
}

int matcher_regex(struct matcher *m, const char *pattern, size_t len, const char *where, struct error *err)
{
	for (size_t i = 0; i < ARRAY_SIZE(by_hand); i++)
		if (strlen(by_hand[i].pattern) == len && !memcmp(by_hand[i].pattern, pattern, len)) {
			m->kind = by_hand[i].kind;
			m->digits = by_hand[i].digits;
			return 0;
		}
	return matcher_regex_only(m, pattern, len, where, err);
}

int matcher_literal(struct matcher *m, const char *text, size_t len)
{
	m->kind = MATCH_LITERAL;
	m->literal = malloc(len + 1);
	if (!m->literal)
		return -ENOMEM;
	memcpy(m->literal, text, len);
	m->literal[len] = 0;
	m->len = len;
	return 0;
}

void matcher_release(struct matcher *m)
{
	free(m->literal);
	if (m->regex)
		pcre2_code_free(m->regex);
}

void match_scratch_release(struct match_scratch *s)
{
	if (s->data)
		pcre2_match_data_free(s->data);
	if (s->context)
		pcre2_match_context_free(s->context);
	if (s->stack)
		pcre2_jit_stack_free(s->stack);
	strbuf_free(&s->shadow);
}

static int scratch_prepare(struct match_scratch *s)
{
	if (s->data)
		return 0;
	s->data = pcre2_match_data_create(1, NULL);
	s->context = pcre2_match_context_create(NULL);
	s->stack = pcre2_jit_stack_create(32 << 10, 8 << 20, NULL);
	if (!s->data || !s->context || !s->stack)
		return -ENOMEM;
	pcre2_jit_stack_assign(s->context, NULL, s->stack);
	pcre2_set_match_limit(s->context, 20000000);
	pcre2_set_heap_limit(s->context, 256 << 10);
	return 0;
}

/* PCRE2 may have an older version of Unicode than Hugging Face. It therefore gets a text of the same length,
 * in which characters that it may not know are replaced by older ones of the same category. */
static int shadow_text(struct match_scratch *s, const char **text, size_t len)
{
	const char *t = *text;
	bool any = false;
	uint32_t cp;

	for (size_t i = 0; i < len;) {
		unsigned n = utf8_get(t + i, &cp);
		uint32_t other = n > 2 ? unicode_stand_in(cp) : cp;

		if (other != cp) {
			if (!any) {
				any = true;
				strbuf_reset(&s->shadow);
				strbuf_add(&s->shadow, t, len);
				if (s->shadow.failed)
					return -ENOMEM;
			}
			utf8_put(s->shadow.data + i, other);
		}
		i += n;
	}
	if (any)
		*text = s->shadow.data;
	return 0;
}

static int add_span(struct match_list *out, size_t start, size_t end, bool match)
{
	if (tokenizer_grow(&out->v, &out->cap, out->n + 1, sizeof(*out->v)) < 0)
		return -ENOMEM;
	out->v[out->n++] = (struct match_span){(uint32_t)start, (uint32_t)end, match};
	return 0;
}

static int regex_at(const struct matcher *m, struct match_scratch *s, const char *text, size_t len,
                    size_t pos, size_t *start, size_t *end, struct error *err)
{
	int r = pcre2_match(m->regex, (PCRE2_SPTR)text, len, pos, PCRE2_NO_UTF_CHECK, s->data, s->context);
	PCRE2_SIZE *v;
	PCRE2_UCHAR words[128];

	if (r == PCRE2_ERROR_JIT_STACKLIMIT)
		r = pcre2_match(m->regex, (PCRE2_SPTR)text, len, pos, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
		                s->data, s->context);
	if (r == PCRE2_ERROR_NOMATCH)
		return 0;
	if (r < 0) {
		pcre2_get_error_message(r, words, sizeof(words));
		return error_set(err, -EINVAL, "the tokenizer's regex fails on a text of %zu bytes: %s", len,
		                 (char *)words);
	}
	v = pcre2_get_ovector_pointer(s->data);
	*start = v[0];
	*end = v[1];
	/* \K may set the start after the end or before pos, which is no usable match. */
	if (*start > *end || *start < pos)
		return error_set(err, -EINVAL, "the tokenizer's regex moves its own start; not supported");
	return 1;
}

static int all_regex(const struct matcher *m, struct match_scratch *s, const char *text, size_t len,
                     struct match_list *out, struct error *err)
{
	size_t prev = 0, pos = 0, start = 0, end = 0, last = SIZE_MAX;
	uint32_t cp;
	int r;

	if (scratch_prepare(s) < 0 || shadow_text(s, &text, len) < 0)
		return error_oom(err);
	while (pos <= len) {
		r = regex_at(m, s, text, len, pos, &start, &end, err);
		if (r < 0)
			return r;
		if (r == 0)
			break;
		/* An empty match directly after the last one does not count. */
		if (start == end && end == last) {
			if (pos >= len)
				break;
			pos += utf8_get(text + pos, &cp);
			continue;
		}
		if ((prev != start && add_span(out, prev, start, false) < 0) ||
		    add_span(out, start, end, true) < 0)
			return error_oom(err);
		prev = pos = last = end;
	}
	return prev != len && add_span(out, prev, len, false) < 0 ? error_oom(err) : 0;
}

static int all_literal(const struct matcher *m, const char *text, size_t len, struct match_list *out)
{
	size_t prev = 0;
	const char *p;

	while (prev < len && (p = memmem(text + prev, len - prev, m->literal, m->len))) {
		size_t start = (size_t)(p - text);

		if ((prev != start && add_span(out, prev, start, false) < 0) ||
		    add_span(out, start, start + m->len, true) < 0)
			return -ENOMEM;
		prev = start + m->len;
	}
	return prev != len ? add_span(out, prev, len, false) : 0;
}

static bool in_class(const struct matcher *m, const struct unicode *u, const char *p, unsigned *n)
{
	unsigned char c = (unsigned char)*p;

	if (utf8_class(u, p, n) & m->classes)
		return true;
	return m->ascii_punct && c > 32 && c < 127 && !(u->basic[c] & (U_LETTER | U_NUMBER));
}

static int all_class(const struct matcher *m, const struct unicode *u, const char *text, size_t len,
                     struct match_list *out)
{
	size_t prev = 0;
	unsigned n;

	for (size_t i = 0; i < len; i += n) {
		if (!in_class(m, u, text + i, &n))
			continue;
		if ((prev < i && add_span(out, prev, i, false) < 0) || add_span(out, i, i + n, true) < 0)
			return -ENOMEM;
		prev = i + n;
	}
	return prev < len ? add_span(out, prev, len, false) : 0;
}

/* Finds the matches of \w+|[^\w\s]+: runs of word characters and runs of others, with white space between
 * them. */
static int all_words(const struct unicode *u, const char *text, size_t len, struct match_list *out)
{
	size_t i = 0, start;
	unsigned n;

	while (i < len) {
		uint8_t kind = utf8_class(u, text + i, &n) & (U_WORD | U_SPACE);

		start = i;
		while (i < len && (utf8_class(u, text + i, &n) & (U_WORD | U_SPACE)) == kind)
			i += n;
		if (add_span(out, start, i, !(kind & U_SPACE)) < 0)
			return -ENOMEM;
	}
	return 0;
}

int matcher_all(const struct matcher *m, const struct unicode *u, struct match_scratch *s, const char *text,
                size_t len, struct match_list *out, struct error *err)
{
	int r = 0;

	out->n = 0;
	if (!len)
		return 0;
	switch (m->kind) {
	case MATCH_REGEX:
		return all_regex(m, s, text, len, out, err);
	case MATCH_LITERAL:
		r = all_literal(m, text, len, out);
		break;
	case MATCH_CLASS:
		r = all_class(m, u, text, len, out);
		break;
	case MATCH_WORDS:
		r = all_words(u, text, len, out);
		break;
	case MATCH_GPT2:
	case MATCH_LLAMA3:
		for (size_t i = 0; i < len && r == 0;) {
			size_t end = m->kind == MATCH_GPT2 ? scan_gpt2(u, text, i, len)
			                                   : scan_llama3(u, text, i, len, m->digits);

			r = add_span(out, i, end, true);
			i = end;
		}
		break;
	}
	return r < 0 ? error_oom(err) : 0;
}

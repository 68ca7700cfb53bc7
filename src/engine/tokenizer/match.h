/* SPDX-License-Identifier: Apache-2.0 */
/* Patterns that split and replace text: literals, classes of characters and regular expressions. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/str.h"
#include "engine/tokenizer/unicode.h"

enum match_kind {
	MATCH_LITERAL,
	MATCH_CLASS, /* one character of these classes */
	MATCH_WORDS, /* \w+|[^\w\s]+ */
	MATCH_REGEX,
	/* The patterns of two model families, for which scan.c has functions; their matches cover the whole
	   text. */
	MATCH_GPT2,
	MATCH_LLAMA3,
};

struct matcher {
	enum match_kind kind;
	char *literal;
	size_t len;
	uint8_t classes;
	bool ascii_punct; /* ASCII punctuation, symbols included, matches as well */
	int digits;       /* MATCH_LLAMA3: \p{N}{1,digits} */
	void *regex;      /* a pcre2_code */
};

/* The working memory of one call for regular expressions: match data, JIT stack, a copy of the text. */
struct match_scratch {
	void *data, *context, *stack;
	struct strbuf shadow;
};

struct match_span {
	uint32_t start, end;
	bool match;
};

struct match_list {
	struct match_span *v;
	size_t n, cap;
};

int matcher_regex(struct matcher *m, const char *pattern, size_t len, const char *where, struct error *err);
int matcher_literal(struct matcher *m, const char *text, size_t len);
void matcher_release(struct matcher *m);
/* Compiles the regular expression even where scan.c has a function for it; the tests compare the two. */
int matcher_regex_only(struct matcher *m, const char *pattern, size_t len, const char *where,
                       struct error *err);
/* The spans of the matches and of the text between them, which together cover the text; the same as Hugging
 * Face's find_matches. */
int matcher_all(const struct matcher *m, const struct unicode *u, struct match_scratch *s, const char *text,
                size_t len, struct match_list *out, struct error *err);
void match_scratch_release(struct match_scratch *s);
size_t scan_gpt2(const struct unicode *u, const char *text, size_t pos, size_t len);
size_t scan_llama3(const struct unicode *u, const char *text, size_t pos, size_t len, int digits);

/* SPDX-License-Identifier: Apache-2.0 */
/* Normalizers and pre-tokenizers as flat lists of steps: steps.c reads them, apply.c runs them. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/tokenizer/match.h"

enum step_kind {
	STEP_FORM, /* a Unicode normalization form */
	STEP_LOWERCASE,
	STEP_PREPEND,
	STEP_REPLACE,
	STEP_STRIP,
	STEP_STRIP_ACCENTS,
	STEP_NMT,
	STEP_BYTES, /* to the byte-level alphabet: both a normalizer and a pre-tokenizer */
	/* Pre-tokenizers alone. */
	STEP_PREFIX_SPACE,
	STEP_SPLIT,
	STEP_METASPACE,
};

enum split_behaviour { SPLIT_REMOVED, SPLIT_ISOLATED, SPLIT_PREVIOUS, SPLIT_NEXT, SPLIT_CONTIGUOUS };
enum prepend_scheme { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER };

struct step {
	enum step_kind kind;
	int form; /* STEP_FORM: utf8proc options */
	struct matcher matcher;
	char *text;
	size_t len;
	bool left, right, invert;
	enum split_behaviour behaviour;
	enum prepend_scheme scheme;
};

struct step_list {
	struct step *v;
	size_t n, cap;
};

struct piece {
	uint32_t off, len;
	bool first; /* the piece is at the beginning of the whole text */
};

/* A text and its pieces, in order. */
struct pieces {
	struct strbuf text;
	struct piece *v;
	size_t n, cap;
};

int normalizer_parse(struct step_list *list, const json_t *json, const char *where, struct error *err);
int pretokenizer_parse(struct step_list *list, const json_t *json, const char *where, struct error *err);
void step_list_release(struct step_list *list);
int normalizer_apply(const struct step_list *list, const struct unicode *u, struct match_scratch *s,
                     struct strbuf *text, struct error *err);
/* work: two structs, of which the first has the text as one piece; returns the one that has the result. raw:
 * a STEP_BYTES at the end is not run, and the pieces stay bytes. */
int pretokenizer_apply(const struct step_list *list, bool raw, const struct unicode *u,
                       struct match_scratch *s, struct pieces *work, struct match_list *spans,
                       struct pieces **out, struct error *err);
int pieces_add(struct pieces *p, uint32_t off, uint32_t len, bool first);
void pieces_release(struct pieces *p);

/* Reads {"String": s} or {"Regex": s}. */
int pattern_parse(struct matcher *m, const json_t *object, const char *where, struct error *err);
/* Reads "replacement" (one character) and "prepend_scheme" of a Metaspace; the caller frees the text. */
int replacement_parse(const json_t *json, const char *where, char **text, size_t *len,
                      enum prepend_scheme *scheme, struct error *err);
/* Reads object[key], a string; the caller frees the text. */
int string_parse(const json_t *object, const char *key, const char *where, char **text, size_t *len,
                 struct error *err);

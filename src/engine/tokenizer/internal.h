/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of the tokenizer share; nobody else includes this. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/str.h"
#include "engine/tokenizer/tokenizer.h"

#define TOKEN_NONE (-1)
/* Texts are addressed with 32 bits; a longer one is refused. */
#define TOKENIZER_TEXT_MAX (1u << 30)

/* ---- tokenizer_unicode.c: all text inside the tokenizer is valid UTF-8 ---- */

enum {
	U_UPPER = 1, /* Lu, Lt */
	U_LOWER = 2, /* Ll */
	U_OTHER = 4, /* Lm, Lo */
	U_LETTER = U_UPPER | U_LOWER | U_OTHER,
	U_NUMBER = 8,
	U_SPACE = 16, /* White_Space */
	U_MARK = 32,
	U_PUNCT = 64,
	U_WORD = 128, /* \w of Rust's regex crate */
};

/* Classes of the basic plane, one byte each; filled from ranges once per tokenizer. */
struct unicode {
	uint8_t basic[0x10000];
};

void unicode_init(struct unicode *u);
uint8_t unicode_class_astral(uint32_t cp);
/* An older character of the same category and UTF-8 length, for libraries with an older Unicode; else cp. */
uint32_t unicode_stand_in(uint32_t cp);

static inline uint8_t unicode_class(const struct unicode *u, uint32_t cp)
{
	return cp < 0x10000 ? u->basic[cp] : unicode_class_astral(cp);
}

/* Decodes the character at p, which is valid UTF-8; returns its length. */
static inline unsigned utf8_get(const char *text, uint32_t *cp)
{
	const unsigned char *p = (const unsigned char *)text;

	if (p[0] < 0x80) {
		*cp = p[0];
		return 1;
	}
	if (p[0] < 0xe0) {
		*cp = (p[0] & 0x1fu) << 6 | (p[1] & 0x3fu);
		return 2;
	}
	if (p[0] < 0xf0) {
		*cp = (p[0] & 0x0fu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
		return 3;
	}
	*cp = (p[0] & 0x07u) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
	return 4;
}

static inline uint8_t utf8_class(const struct unicode *u, const char *p, unsigned *len)
{
	uint32_t cp;

	if ((unsigned char)*p < 0x80) {
		*len = 1;
		return u->basic[(unsigned char)*p];
	}
	*len = utf8_get(p, &cp);
	return unicode_class(u, cp);
}

/* Length of the character that ends before p. */
static inline unsigned utf8_back(const char *start, const char *p)
{
	unsigned n = 1;

	while (n < 4 && p - n > start && ((unsigned char)p[-(int)n] & 0xc0) == 0x80)
		n++;
	return n;
}

unsigned utf8_put(char out[4], uint32_t cp);
/* Length of the longest valid prefix of text. */
size_t utf8_valid_prefix(const char *text, size_t len);
/* Appends text with every maximal invalid part as U+FFFD. */
void utf8_sanitize(struct strbuf *out, const char *text, size_t len);

/* GPT-2's printable alphabet: the code point of a byte, and back (-1: not one of them). */
uint32_t bytelevel_char(uint8_t byte);
int bytelevel_byte(uint32_t cp);
void bytelevel_encode(struct strbuf *out, const char *bytes, size_t len);
/* False, with out as it was, where a character is not of the alphabet. */
bool bytelevel_decode(struct strbuf *out, const char *text, size_t len);

/* ---- tokenizer_vocab.c ---- */

/* String -> id, open addressing; the strings lie in a pool that the caller keeps. */
struct strmap {
	struct strmap_slot {
		uint32_t hash;
		int32_t id; /* TOKEN_NONE: empty */
	} * slots;
	uint32_t mask;
};

struct token_span {
	uint32_t off, len; /* len UINT32_MAX: no such token */
};

struct vocab {
	int32_t size;             /* highest id + 1 of the model */
	struct strbuf pool;       /* strings of all tokens, each NUL-terminated */
	struct token_span *token; /* [size] as in the file */
	struct strbuf raw_pool;
	struct token_span *raw; /* [size] the bytes that a byte-level token stands for */
	struct strmap by_string, by_raw;
};

uint64_t tokenizer_hash_bytes(const void *data, size_t len, uint64_t seed);
int vocab_parse(struct vocab *v, const json_t *object, const char *where, struct error *err);
void vocab_release(struct vocab *v);
int32_t vocab_find(const struct vocab *v, const char *s, size_t len);
int32_t vocab_find_raw(const struct vocab *v, const char *s, size_t len);

int strmap_init(struct strmap *m, size_t entries);

/* ---- tokenizer_bpe.c ---- */

struct bpe {
	const struct vocab *vocab;
	struct bpe_pair {
		int32_t left, right; /* left TOKEN_NONE: empty */
		uint32_t rank;
		int32_t id;
	} * pairs;
	uint32_t mask;
	int32_t byte_id[256];     /* raw: the token of a byte */
	int32_t fallback_id[256]; /* <0xNN> */
	int32_t unk;
	bool has_unk, fuse_unk, byte_fallback, ignore_merges;
	char *prefix, *suffix; /* continuing_subword_prefix, end_of_word_suffix; NULL: none */
	size_t prefix_len, suffix_len;
	bool raw;         /* pieces of bytes may be looked up as they are, unmapped */
	bool cut_at_mark; /* no merge crosses from something into U+2581: words can be merged apart */
	uint8_t *whole;   /* [vocab.size] the text of this token encodes to just this token */
};

/* Scratch of one call. */
struct bpe_scratch {
	int32_t *id, *next, *prev;
	uint32_t *rank;
	int32_t *new_id;
	size_t cap;
	uint64_t *heap;
	size_t heap_cap;
	struct strbuf text;
};

int bpe_parse(struct bpe *b, const struct vocab *v, const json_t *model, bool raw, const char *where,
              struct error *err);
void bpe_release(struct bpe *b);
void bpe_scratch_release(struct bpe_scratch *s);
/* Appends the ids of one piece; raw: it is bytes that the byte-level alphabet would stand for. */
int bpe_encode(const struct bpe *b, struct bpe_scratch *s, const char *text, size_t len, bool raw,
               struct token_list *out);

/* ---- tokenizer_match.c: what splits and replaces ---- */

enum match_kind {
	MATCH_LITERAL,
	MATCH_CLASS, /* one character of these classes */
	MATCH_WORDS, /* \w+|[^\w\s]+ */
	MATCH_REGEX,
	MATCH_GPT2, /* the next three by hand; they match everywhere, end to end */
	MATCH_LLAMA3,
};

struct matcher {
	enum match_kind kind;
	char *literal;
	size_t len;
	uint8_t classes;
	bool ascii_punct; /* … or ASCII punctuation, symbols included */
	int digits;       /* MATCH_LLAMA3: \p{N}{1,digits} */
	void *regex;      /* pcre2_code */
};

/* State of one call for regexes: match data, JIT stack, a copy of the subject. */
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
/* The regex itself, never a scanner by hand: what the tests compare with. */
int matcher_regex_only(struct matcher *m, const char *pattern, size_t len, const char *where,
                       struct error *err);
/* Spans that cover text, matches and what lies between, as Hugging Face's find_matches. */
int matcher_all(const struct matcher *m, const struct unicode *u, struct match_scratch *s, const char *text,
                size_t len, struct match_list *out, struct error *err);
void match_scratch_release(struct match_scratch *s);
size_t scan_gpt2(const struct unicode *u, const char *text, size_t pos, size_t len);
size_t scan_llama3(const struct unicode *u, const char *text, size_t pos, size_t len, int digits);

/* ---- tokenizer_steps.c: normalizers and pre-tokenizers as flat lists of steps ---- */

enum step_kind {
	STEP_FORM, /* NFC … */
	STEP_LOWERCASE,
	STEP_PREPEND,
	STEP_REPLACE,
	STEP_STRIP,
	STEP_STRIP_ACCENTS,
	STEP_NMT,
	STEP_BYTES,        /* to the byte-level alphabet: both a normalizer and a pre-tokenizer */
	STEP_PREFIX_SPACE, /* pre-tokenizers from here */
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
	bool first; /* begins where the whole text begins */
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
/* work: two; the first holds the text as one piece, and the result is in the returned one. raw: a closing
 * STEP_BYTES is only noted. */
int pretokenizer_apply(const struct step_list *list, bool raw, const struct unicode *u,
                       struct match_scratch *s, struct pieces *work, struct match_list *spans,
                       struct pieces **out, struct error *err);
int pieces_add(struct pieces *p, uint32_t off, uint32_t len, bool first);
void pieces_release(struct pieces *p);

/* ---- tokenizer_added.c ---- */

struct added_token {
	int32_t id;
	char *content; /* as written */
	size_t len;
	char *normal; /* what is looked for: normalized where `normalized` says so */
	size_t normal_len;
	bool single_word, lstrip, rstrip, normalized, special;
};

/* Patterns by bytes: children of a node as a list of siblings. */
struct trie {
	struct trie_node {
		uint32_t child, sibling; /* 0: none */
		int32_t token;           /* index of the added token that ends here, or -1 */
		uint8_t byte;
	} * nodes;
	size_t n, cap;
	uint32_t first[256]; /* nodes of the first byte */
};

struct added {
	struct added_token *v;
	size_t n;
	struct trie plain, normal; /* looked for in the text as given, and as normalized */
	struct strmap by_content;
};

int added_parse(struct added *a, const json_t *array, const struct vocab *v,
                const struct step_list *normalizer, const struct unicode *u, const char *where,
                struct error *err);
void added_release(struct added *a);
int32_t added_find(const struct added *a, const char *s, size_t len); /* index or -1 */
/* The next token at or after *pos: its index, with the span it takes; -1: none. *pos moves on; `taken` is the
 * end of what earlier matches took. */
int added_next(const struct added *a, const struct trie *t, const struct unicode *u, const char *text,
               size_t len, size_t *pos, size_t taken, size_t *start, size_t *end);

/* ---- tokenizer_decode.c ---- */

enum decode_kind {
	DECODE_BYTELEVEL,
	DECODE_METASPACE,
	DECODE_REPLACE,
	DECODE_BYTE_FALLBACK,
	DECODE_FUSE,
	DECODE_STRIP,
	DECODE_BPE
};

struct decode_step {
	enum decode_kind kind;
	struct matcher matcher;
	char *text; /* replacement, suffix, or the character */
	size_t len;
	int64_t start, stop;
	enum prepend_scheme scheme;
};

struct decoder {
	bool present;
	struct decode_step *v;
	size_t n, cap;
};

int decoder_parse(struct decoder *d, const json_t *json, const char *where, struct error *err);
void decoder_release(struct decoder *d);

/* ---- the whole ---- */

struct tokenizer {
	char *where;
	struct unicode unicode;
	struct vocab vocab;
	struct bpe bpe;
	struct added added;
	struct step_list normalizer, pretokenizer;
	struct decoder decoder;
	/* Post-processor: ids before and after the text. */
	struct token_list before, after;
	int32_t size;                     /* highest id + 1 */
	struct added_token **added_by_id; /* [size], NULL: not an added token */
	int32_t bos, eos, pad;
	bool adds_bos;
	char *chat_template;
	uint64_t hash;
};

int postprocessor_parse(struct tokenizer *t, const json_t *json, const char *where, struct error *err);
/* tokenizer_config.json and special_tokens_map.json beside it; either may be absent. */
int tokenizer_read_config(struct tokenizer *t, const char *directory, struct error *err);
void tokenizer_guess_specials(struct tokenizer *t);

/* {"String": s} or {"Regex": s}. */
int pattern_parse(struct matcher *m, const json_t *object, const char *where, struct error *err);
/* "replacement" (one character) and "prepend_scheme" of a Metaspace; the text is the caller's. */
int replacement_parse(const json_t *json, const char *where, char **text, size_t *len,
                      enum prepend_scheme *scheme, struct error *err);
/* object[key], a string; the text is the caller's. */
int string_parse(const json_t *object, const char *key, const char *where, char **text, size_t *len,
                 struct error *err);
/* Grows *v (elements of `size` bytes) to hold n; 0 or -ENOMEM. */
int tokenizer_grow(void *v, size_t *cap, size_t n, size_t size);

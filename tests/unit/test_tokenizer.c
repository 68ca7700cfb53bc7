/* SPDX-License-Identifier: Apache-2.0 */
/* Small handmade tokenizers with every kind of part, and invalid files. */
#include <pthread.h>
#include <string.h>

#include "engine/tokenizer/match.h"
#include "engine/tokenizer/tokenizer.h"
#include "unit.h"

#define LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true}"
#define VOCAB                                                                                                \
	"\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"ab\":3,\"bc\":4,\"abc\":5,\"\xc4\xa0\":6,\"\xc4\xa0"           \
	"a\":7}"
#define MERGES "\"merges\":[\"b c\",[\"a\",\"b\"],\"a bc\",[\"\xc4\xa0\",\"a\"]]"
#define SPM                                                                                                  \
	"\"vocab\":{\"<unk>\":0,\"\xe2\x96\x81\":1,\"a\":2,\"b\":3,\"\xe2\x96\x81"                           \
	"a\":4,\"<0xC3>\":5,\"<0xA9>\":6,"                                                                   \
	"\"ab\":7},\"merges\":[\"\xe2\x96\x81 a\",\"a b\"],\"unk_token\":\"<unk>\""

static struct tokenizer *parse(const char *json)
{
	struct tokenizer *tok = NULL;
	struct error err = ERROR_INIT;

	ck_ok(tokenizer_parse(json, strlen(json), "t.json", &tok, &err), &err);
	return tok;
}

/* The ids as "1 2 3". */
static const char *ids_of(const struct tokenizer *tok, const char *text, bool special)
{
	static char out[512];
	struct token_list ids = {0};
	struct error err = ERROR_INIT;
	size_t n = 0;

	ck_ok(tokenizer_encode(tok, text, strlen(text), special, &ids, &err), &err);
	out[0] = 0;
	for (size_t i = 0; i < ids.len; i++)
		n += (size_t)snprintf(out + n, sizeof(out) - n, i ? " %d" : "%d", ids.ids[i]);
	token_list_free(&ids);
	return out;
}

static void check_ids(const char *json, const char *text, const char *ids)
{
	struct tokenizer *tok = parse(json);

	ck_assert_str_eq(ids_of(tok, text, true), ids);
	tokenizer_free(tok);
}

START_TEST(test_byte_level)
{
	check_ids("{\"pre_tokenizer\":" LEVEL ",\"model\":{\"type\":\"BPE\"," VOCAB "," MERGES "}}",
	          "abc a ab bcc", "5 7 6 3 6 4 2");
	/* Without a type: the merges show that it is a BPE. */
	check_ids("{\"pre_tokenizer\":" LEVEL ",\"model\":{" VOCAB "," MERGES "}}", "abab", "3 3");
	/* A byte without a token is left out where there is no unknown token. */
	check_ids("{\"pre_tokenizer\":" LEVEL ",\"model\":{" VOCAB "," MERGES "}}", "axb", "3");
	/* ignore_merges: a word that is a token is that token. */
	check_ids("{\"pre_tokenizer\":" LEVEL ",\"model\":{\"ignore_merges\":true," VOCAB ",\"merges\":[]}}",
	          "abc ab", "5 6 0 1");
}
END_TEST

START_TEST(test_sentencepiece)
{
	static const char head[] =
	    "{\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\xe2\x96\x81\","
	    "\"prepend_scheme\":\"first\",\"split\":false},\"model\":{\"type\":\"BPE\"," SPM;
	char json[1024];

	snprintf(json, sizeof(json), "%s,\"byte_fallback\":true,\"fuse_unk\":true}}", head);
	check_ids(json, "a ab\xc3\xa9", "4 4 3 5 6");
	check_ids(json, "xyz", "1 0");
	snprintf(json, sizeof(json), "%s,\"fuse_unk\":false}}", head);
	check_ids(json, "xy b", "1 0 0 1 3");
	check_ids(json, "", "");
}
END_TEST

START_TEST(test_long_word)
{
	/* Long enough for the heap; the result is the same as for the parts. */
	struct tokenizer *tok = parse("{\"model\":{" VOCAB "," MERGES "}}");
	struct token_list ids = {0};
	struct error err = ERROR_INIT;
	char text[3001];

	for (int i = 0; i < 3000; i++)
		text[i] = "abcab"[i % 5];
	text[3000] = 0;
	ck_ok(tokenizer_encode(tok, text, 3000, false, &ids, &err), &err);
	ck_assert_uint_eq(ids.len, 1200);
	for (size_t i = 0; i < ids.len; i++)
		ck_assert_int_eq(ids.ids[i], i % 2 ? 3 : 5);
	token_list_free(&ids);
	tokenizer_free(tok);
}
END_TEST

/* Of pairs of one rank the leftmost is merged first, in short words and in those long enough for the heap. */
START_TEST(test_tie)
{
	static const size_t lengths[] = {3, 5, 7, 31, 99, 301, 3001};
	struct tokenizer *tok =
	    parse("{\"model\":{\"vocab\":{\"a\":0,\"aa\":1,\"b\":2},\"merges\":[\"a a\"]}}");
	struct error err = ERROR_INIT;

	for (size_t k = 0; k < ARRAY_SIZE(lengths); k++) {
		size_t n = lengths[k];
		_cleanup_free_ char *text = malloc(n);
		struct token_list ids = {0};

		memset(text, 'a', n);
		ck_ok(tokenizer_encode(tok, text, n, false, &ids, &err), &err);
		ck_assert_uint_eq(ids.len, n / 2 + 1);
		for (size_t i = 0; i < ids.len; i++)
			ck_assert_msg(ids.ids[i] == (i + 1 < ids.len), "%zu letters: id %zu is %d", n, i,
			              ids.ids[i]);
		token_list_free(&ids);
	}
	tokenizer_free(tok);
}
END_TEST

#define ADDED(id, content, flags)                                                                            \
	"{\"id\":" #id ",\"content\":\"" content "\",\"special\":true,\"normalized\":false" flags "}"

START_TEST(test_added)
{
	struct tokenizer *tok =
	    parse("{\"added_tokens\":[" ADDED(8, "<s>", "") "," ADDED(9, "<s>>", "") "," ADDED(
	        10, "<l>",
	        ",\"lstrip\":true") "," ADDED(11, "<r>",
	                                      ",\"rstrip\":true") "," ADDED(12, "ba",
	                                                                    ",\"single_word\":"
	                                                                    "true") "],\"pre_"
	                                                                            "tokenizer\""
	                                                                            ":" LEVEL ",\"decoder\""
	                                                                            ":" LEVEL ",\"post_"
	                                                                            "processor\":{"
	                                                                            "\"type\":"
	                                                                            "\"TemplatePro"
	                                                                            "cessing\","
	                                                                            "\"single\":[{"
	                                                                            "\"SpecialToke"
	                                                                            "n\":{\"id\":"
	                                                                            "\"<s>\","
	                                                                            "\"type_id\":"
	                                                                            "0}},{"
	                                                                            "\"Sequence\":"
	                                                                            "{\"id\":"
	                                                                            "\"A\",\"type_"
	                                                                            "id\":0}}],"
	                                                                            "\"special_"
	                                                                            "tokens\":{\"<"
	                                                                            "s>\":{\"id\":"
	                                                                            "\"<s>\","
	                                                                            "\"ids\":[8],"
	                                                                            "\"tokens\":["
	                                                                            "\"<s>\"]}}},"
	                                                                            "\"model\":"
	                                                                            "{" VOCAB "," MERGES
	                                                                            "}}");
	struct error err = ERROR_INIT;
	char *text;
	size_t len;

	ck_assert_str_eq(ids_of(tok, "a<s>>b<s>", false), "0 9 1 8"); /* the longest */
	ck_assert_str_eq(ids_of(tok, "a  <l> a<r>  a", false), "0 10 7 11 0");
	ck_assert_str_eq(ids_of(tok, "ba abc ba", false), "12 6 5 6 12");
	ck_assert_str_eq(ids_of(tok, "a", true), "8 0");
	ck_assert(tokenizer_adds_bos(tok));
	ck_assert_int_eq(tokenizer_vocab_size(tok), 13);
	ck_assert_int_eq(tokenizer_bos(tok), 8);
	ck_assert_int_eq(tokenizer_token_to_id(tok, "<s>>"), 9);
	ck_assert_int_eq(tokenizer_token_to_id(tok, "nothing"), -1);
	ck_assert_str_eq(tokenizer_id_to_token(tok, 7), "\xc4\xa0"
	                                                "a");
	ck_assert_ptr_null(tokenizer_id_to_token(tok, 13));
	ck_ok(tokenizer_decode(tok, (int32_t[]){8, 0, 7, 12}, 4, false, &text, &len, &err), &err);
	ck_assert_str_eq(text, "<s>a aba");
	free(text);
	ck_ok(tokenizer_decode(tok, (int32_t[]){8, 0, 7, 12}, 4, true, &text, &len, &err), &err);
	ck_assert_str_eq(text, "a a");
	free(text);
	ck_fails(tokenizer_decode(tok, (int32_t[]){13}, 1, true, &text, &len, &err), &err,
	         "there is no token 13; ids are 0");
	tokenizer_free(tok);
}
END_TEST

/* Of white space that an earlier token takes on its right nothing is left of a token that takes it on its
 * left. */
START_TEST(test_added_spaces)
{
	static const char json[] =
	    "{\"added_tokens\":[" ADDED(8, "  ", ",\"lstrip\":true,\"rstrip\":true") "," ADDED(
	        9, "<r>", ",\"rstrip\":true") "],\"pre_tokenizer\":" LEVEL ",\"model\":{" VOCAB "," MERGES
	                                      "}}";

	check_ids(json, "    ", "8");
	check_ids(json, "a    ", "0 8");
	check_ids(json, "<r>  a  ", "9 0 8");
}
END_TEST

/* A model may have no embedding of added tokens that only other models of its family need. */
START_TEST(test_limit)
{
	static const char json[] =
	    "{\"added_tokens\":[" ADDED(8, "</s>", "") "," ADDED(9, "<pad>", "") "," ADDED(
	        10, "<image>", "") "],\"pre_tokenizer\":" LEVEL ",\"model\":{" VOCAB "," MERGES "}}";
	struct tokenizer *tok = parse(json);
	struct token_list ids = {0};
	uint64_t hash = tokenizer_hash(tok);
	struct error err = ERROR_INIT;

	ck_fails(tokenizer_limit(tok, "t", 7, &err), &err,
	         "the tokenizer in t has ids up to 10, but the model's vocab_size is 7");
	ck_fails(tokenizer_limit(tok, "t", 8, &err), &err, "expected a vocab_size of at least 11");
	ck_ok(tokenizer_limit(tok, "t", 11, &err), &err);
	ck_assert_int_eq(tokenizer_pad(tok), 9);
	ck_assert_str_eq(ids_of(tok, "a<image><pad></s>", false), "0 10 9 8");
	ck_assert_uint_eq(tokenizer_hash(tok), hash);
	ck_ok(tokenizer_limit(tok, "t", 9, &err), &err);
	ck_assert_int_eq(tokenizer_pad(tok), -1);
	ck_assert_int_eq(tokenizer_eos(tok), 8);
	ck_assert_int_eq(tokenizer_token_to_id(tok, "<image>"), -1);
	ck_assert_int_eq(tokenizer_token_to_id(tok, "</s>"), 8);
	ck_assert_str_eq(ids_of(tok, "a</s>", false), "0 8");
	ck_assert_uint_ne(tokenizer_hash(tok), hash); /* rows that were made without the limit are others */
	ck_fails(tokenizer_encode(tok, "a<image>", 8, false, &ids, &err), &err,
	         "the text has the token \"<image>\" (id 10), of which the model has no embedding (its "
	         "vocab_size is 9): expected a text without it");
	token_list_free(&ids);
	tokenizer_free(tok);
}
END_TEST

START_TEST(test_invalid_utf8)
{
	struct strbuf b = {0};

	/* As Python's decode(errors="replace"). */
	utf8_sanitize(&b, "a\xff\xe2\x96z\xed\xa0\x80\xf0\x9f\x98", 11);
	ck_assert_str_eq(b.data,
	                 "a\xef\xbf\xbd\xef\xbf\xbdz\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
	strbuf_free(&b);
}
END_TEST

START_TEST(test_decoders)
{
	struct tokenizer *tok =
	    parse("{\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{"
	          "\"String\":\"\xe2\x96\x81\"},"
	          "\"content\":\" "
	          "\"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \","
	          "\"start\":1,\"stop\":0}]},\"model\":{" SPM ",\"byte_fallback\":true}}");
	struct error err = ERROR_INIT;
	char *text;

	ck_ok(tokenizer_decode(tok, (int32_t[]){4, 7, 1, 5, 6, 5}, 6, false, &text, NULL, &err), &err);
	ck_assert_str_eq(text,
	                 "aab \xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"); /* one broken sequence breaks its run */
	free(text);
	ck_ok(tokenizer_decode(tok, (int32_t[]){5, 6}, 2, false, &text, NULL, &err), &err);
	ck_assert_str_eq(text, "\xc3\xa9");
	free(text);
	tokenizer_free(tok);
}
END_TEST

/* The content of the file, and the words that the error has to contain. */
static const struct {
	const char *json, *words;
} lies[] = {
    {"", "t.json:1: not valid JSON"},
    {"[]", "t.json: not an object"},
    {"{\"version\":\"2.0\"}", "version \"2.0\""},
    {"{}", "model: missing"},
    {"{\"model\":{\"type\":\"Unigram\"}}", "model.type: \"Unigram\" is not supported; BPE is"},
    {"{\"model\":{\"type\":\"BPE\"}}", "model.vocab: missing"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{}}}", "model.merges: missing"},
    {"{\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}}", "the id of \"a\""},
    {"{\"model\":{\"vocab\":{\"a\":1e99},\"merges\":[]}}", "the id of \"a\""},
    {"{\"model\":{\"vocab\":{\"a\":2000000000},\"merges\":[]}}", "\"a\" has the id 2000000000"},
    {"{\"model\":{\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]}}", "\"a\" and \"b\" have the same id 0"},
    {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a x\"]}}", "merges[0]: \"x\" is not in model.vocab"},
    {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a a\"]}}", "merges[0]: \"aa\" is not in model.vocab"},
    {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"\\n a\"]}}", "merges[0]: \"?\" is not in model.vocab"},
    {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"aa\"]}}", "merges[0]: \"left right\""},
    {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"unk_token\":\"u\"}}",
     "unk_token: \"u\" is not in model.vocab"},
    {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[],\"dropout\":0.1}}", "model.dropout: not supported"},
    {"{\"added_tokens\":[{\"id\":7,\"content\":\"x\"}],\"model\":{\"vocab\":{\"a\":0},\"merges\":[]}}",
     "added_tokens[0]: \"x\" has the id 7"},
    {"{\"added_tokens\":[{\"content\":\"x\"}],\"model\":{\"vocab\":{\"a\":0},\"merges\":[]}}",
     "added_tokens[0]: an object"},
    {"{\"normalizer\":{\"type\":\"Precompiled\"},\"model\":{\"merges\":[]}}",
     "normalizer: type \"Precompiled\" is not supported"},
    {"{\"pre_tokenizer\":{\"type\":\"Odd\"},\"model\":{\"merges\":[]}}",
     "t.json: pre_tokenizer: type \"Odd\" is not supported"},
    {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(\"},\"behavior\":\"Isolated\"},"
     "\"model\":{\"merges\":[]}}",
     "pre_tokenizer: regex \"(\""},
    {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a[b]]\"},\"behavior\":\"Isolated\"},"
     "\"model\":{\"merges\":[]}}",
     "brackets within brackets"},
    {"{\"decoder\":{\"type\":\"WordPiece\"},\"model\":{\"merges\":[]}}",
     "decoder: type \"WordPiece\" is not supported"},
    {"{\"post_processor\":{\"type\":\"Odd\"},\"model\":{\"vocab\":{},\"merges\":[]}}",
     "post_processor: type \"Odd\""},
    {"{\"post_processor\":{\"type\":\"BertProcessing\",\"cls\":[\"a\",9],\"sep\":[\"a\",0]},\"model\":{"
     "\"vocab\":{\"a\":0},"
     "\"merges\":[]}}",
     "post_processor: the id of a special token"},
};

START_TEST(test_lies)
{
	struct tokenizer *tok = NULL;
	struct error err = ERROR_INIT;

	ck_fails(tokenizer_parse(lies[_i].json, strlen(lies[_i].json), "t.json", &tok, &err), &err,
	         lies[_i].words);
	ck_assert_ptr_null(strchr(err.message, '\n'));
	ck_assert_ptr_null(tok);
}
END_TEST

/* ---- the handwritten scanners compared with the regexes that they replace ---- */

static uint32_t random_next(uint64_t *state)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(*state >> 33);
}

static void random_text(uint64_t *state, struct strbuf *out)
{
	static const char *const parts[] = {" ",
	                                    "  ",
	                                    "\n",
	                                    "\r\n",
	                                    "\t",
	                                    "'s",
	                                    "'LL",
	                                    "'\xc5\xbf",
	                                    "'",
	                                    "a",
	                                    "Z",
	                                    "\xc3\xa9",
	                                    "1",
	                                    "\xd9\xa3",
	                                    "\xe4\xb8\x80",
	                                    "!",
	                                    "?",
	                                    "\xe2\x80\xa8",
	                                    "\xc2\xa0",
	                                    "\xc2\x85",
	                                    "\xe1\xa0\x8e",
	                                    "\xcc\x81",
	                                    "\xf0\x9f\x98\x80",
	                                    "\xe1\xb2\x89",
	                                    "\xf0\x90\xb5\x80",
	                                    "_"};
	char c[4];

	strbuf_reset(out);
	for (int i = random_next(state) % 24; i >= 0; i--) {
		uint32_t cp = random_next(state) % 0x3000 + 1;

		if (random_next(state) % 8)
			strbuf_adds(out, parts[random_next(state) % ARRAY_SIZE(parts)]);
		else
			strbuf_add(out, c, utf8_put(c, cp));
	}
}

static const char *const patterns[] = {
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
    "\\s+(?!\\S)|\\s+",
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
    "\\s+(?!\\S)|\\s+",
};

START_TEST(test_scanners)
{
	struct unicode *u = malloc(sizeof(*u));
	struct matcher hand = {0}, regex = {0};
	struct match_scratch scratch = {0};
	struct match_list a = {0}, b = {0};
	struct strbuf text = {0};
	struct error err = ERROR_INIT;
	uint64_t state = 7;

	unicode_init(u);
	ck_ok(matcher_regex(&hand, patterns[_i], strlen(patterns[_i]), "t", &err), &err);
	ck_ok(matcher_regex_only(&regex, patterns[_i], strlen(patterns[_i]), "t", &err), &err);
	ck_assert_int_ne(hand.kind, MATCH_REGEX);
	for (int n = 0; n < 20000; n++) {
		random_text(&state, &text);
		ck_ok(matcher_all(&hand, u, &scratch, text.data, text.len, &a, &err), &err);
		ck_ok(matcher_all(&regex, u, &scratch, text.data, text.len, &b, &err), &err);
		ck_assert_msg(a.n == b.n, "\"%s\": %zu pieces by hand, %zu by regex", text.data, a.n, b.n);
		for (size_t i = 0; i < a.n; i++)
			ck_assert_msg(a.v[i].start == b.v[i].start && a.v[i].end == b.v[i].end &&
			                  a.v[i].match == b.v[i].match,
			              "\"%s\": piece %zu is %u … %u by hand, %u … %u by regex", text.data, i,
			              a.v[i].start, a.v[i].end, b.v[i].start, b.v[i].end);
	}
	free(u);
	free(a.v);
	free(b.v);
	strbuf_free(&text);
	match_scratch_release(&scratch);
	matcher_release(&hand);
	matcher_release(&regex);
}
END_TEST

START_TEST(test_split)
{
	/* Behaviours of a Split on "a-b--c", by what each makes of the hyphens. */
	static const struct {
		const char *behaviour, *ids;
	} cases[] = {{"Removed", "0 1 2"},
	             {"Isolated", "0 3 1 3 3 2"},
	             {"MergedWithPrevious", "4 5 3 2"},
	             {"MergedWithNext", "0 6 3 7"},
	             {"Contiguous", "0 3 1 8 2"}};
	char json[1024];

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		snprintf(json, sizeof(json),
		         "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"-\"},\"behavior\":"
		         "\"%s\"},\"model\":{"
		         "\"ignore_merges\":true,\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"-\":3,\"a-\":4,\"b-\":"
		         "5,\"-b\":6,\"-c\":7,"
		         "\"--\":8},\"merges\":[]}}",
		         cases[i].behaviour);
		check_ids(json, "a-b--c", cases[i].ids);
	}
}
END_TEST

/* ---- training ---- */

struct once {
	const char *const *texts;
};

static int next_text(void *context, const char **text, size_t *len, struct error *err)
{
	struct once *o = context;

	*text = *o->texts;
	if (!*text)
		return 0;
	*len = strlen(*text);
	o->texts++;
	return 1;
}

static const char *const corpus[] = {
    "low low low low low lower lower newest newest newest newest newest newest",
    "widest widest widest \xff\xc3\xa9t\xc3\xa9", NULL};
static const char *const specials[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>", NULL};

START_TEST(test_train)
{
	struct tokenizer_train_options options = {.vocab_size = 270,
	                                          .special_tokens = specials,
	                                          .bos = specials[1],
	                                          .eos = specials[2],
	                                          .pad = specials[0],
	                                          .chat_template = "x{{ y }}"};
	struct once once = {corpus};
	struct error err = ERROR_INIT;
	struct tokenizer *tok = NULL;
	struct token_list ids = {0};
	char *dir = unit_tmpdir(), *text;
	static const char sample[] = "newest <|im_end|> \xc3\xa9\xe4\xb8\x80 lower";

	ck_ok(tokenizer_train(&options, next_text, &once, dir, &err), &err);
	ck_ok(tokenizer_load(dir, &tok, &err), &err);
	ck_assert_int_eq(tokenizer_vocab_size(tok), 270);
	ck_assert_int_eq(tokenizer_bos(tok), 1);
	ck_assert_int_eq(tokenizer_eos(tok), 2);
	ck_assert_int_eq(tokenizer_pad(tok), 0);
	ck_assert(!tokenizer_adds_bos(tok));
	ck_assert_str_eq(tokenizer_chat_template(tok), "x{{ y }}");
	ck_assert_str_eq(tokenizer_id_to_token(tok, 259), "es"); /* 9 times, as "st"; the lower ids win */
	ck_assert_str_eq(tokenizer_id_to_token(tok, 260), "est");
	ck_ok(tokenizer_encode(tok, sample, strlen(sample), false, &ids, &err), &err);
	ck_ok(tokenizer_decode(tok, ids.ids, ids.len, false, &text, NULL, &err), &err);
	ck_assert_str_eq(text, sample);
	free(text);
	token_list_free(&ids);
	tokenizer_free(tok);

	once.texts = corpus;
	options.vocab_size = 258;
	ck_fails(tokenizer_train(&options, next_text, &once, dir, &err), &err, "from 259 (3 special ones");
	options.vocab_size = 300;
	options.bos = "<s>";
	ck_fails(tokenizer_train(&options, next_text, &once, dir, &err), &err,
	         "\"<s>\" is not among the special tokens");
	options.bos = NULL;
	once.texts = corpus + 2;
	ck_fails(tokenizer_train(&options, next_text, &once, dir, &err), &err, "there is no text");
	ck_ok(file_remove_tree(dir, &err), &err);
	free(dir);
}
END_TEST

/* Pairs that are equally frequent and begin with the same letter: the lower second letter wins. */
START_TEST(test_train_tie)
{
	static const char *const texts[] = {"qz qz qb qb qm qm", NULL};
	struct tokenizer_train_options options = {.vocab_size = 259};
	struct once once = {texts};
	struct error err = ERROR_INIT;
	struct tokenizer *tok = NULL;
	char *dir = unit_tmpdir();

	options.special_tokens = specials + ARRAY_SIZE(specials) - 1; /* none */
	ck_ok(tokenizer_train(&options, next_text, &once, dir, &err), &err);
	ck_ok(tokenizer_load(dir, &tok, &err), &err);
	ck_assert_str_eq(tokenizer_id_to_token(tok, 257), "\xc4\xa0qb");
	ck_assert_str_eq(tokenizer_id_to_token(tok, 258), "\xc4\xa0qm");
	tokenizer_free(tok);
	ck_ok(file_remove_tree(dir, &err), &err);
	free(dir);
}
END_TEST

/* ---- the other files of the directory ---- */

static void write_file(const char *dir, const char *name, const char *text)
{
	char *path = str_path_join(dir, name);
	struct error err = ERROR_INIT;

	ck_ok(file_write_atomic(path, text, strlen(text), 0644, &err), &err);
	free(path);
}

START_TEST(test_config)
{
	char *dir = unit_tmpdir();
	struct error err = ERROR_INIT;
	struct tokenizer *tok = NULL;

	ck_fails(tokenizer_load(dir, &tok, &err), &err, "no tokenizer.json there");
	write_file(dir, "tokenizer.json", "{\"model\":{" VOCAB "," MERGES "}}");
	write_file(dir, "tokenizer_config.json",
	           "{\"model_max_length\":1000000000000000019884624838656,\"bos_token\":{\"content\":\"a\"},"
	           "\"eos_token\":\"b\","
	           "\"pad_token\":null,\"add_bos_token\":true,\"chat_template\":[{\"name\":\"tool\","
	           "\"template\":\"T\"},"
	           "{\"name\":\"default\",\"template\":\"D\"}]}");
	write_file(dir, "special_tokens_map.json", "{\"pad_token\":\"c\"}");
	ck_ok(tokenizer_load(dir, &tok, &err), &err);
	ck_assert_int_eq(tokenizer_bos(tok), 0);
	ck_assert_int_eq(tokenizer_eos(tok), 1);
	ck_assert_int_eq(tokenizer_pad(tok), -1);
	ck_assert(tokenizer_adds_bos(tok));
	ck_assert_str_eq(tokenizer_chat_template(tok), "D");
	tokenizer_free(tok);
	write_file(dir, "chat_template.jinja", "J");
	ck_ok(tokenizer_load(dir, &tok, &err), &err);
	ck_assert_str_eq(tokenizer_chat_template(tok), "J");
	tokenizer_free(tok);
	write_file(dir, "tokenizer_config.json", "{\"bos_token\":");
	ck_fails(tokenizer_load(dir, &tok, &err), &err, "tokenizer_config.json:1: not a JSON object");
	ck_ok(file_remove_tree(dir, &err), &err);
	free(dir);
}
END_TEST

static void *encode_often(void *context)
{
	struct token_list ids = {0};
	struct error err = ERROR_INIT;

	for (int i = 0; i < 2000; i++) {
		ids.len = 0;
		if (tokenizer_encode(context, "abc ab bcab", 11, true, &ids, &err) < 0 || ids.len != 6)
			return context;
	}
	token_list_free(&ids);
	return NULL;
}

START_TEST(test_threads)
{
	struct tokenizer *tok = parse("{\"pre_tokenizer\":" LEVEL ",\"model\":{" VOCAB "," MERGES "}}");
	pthread_t threads[4];
	void *bad;

	ck_assert_str_eq(ids_of(tok, "abc ab bcab", true), "5 6 3 6 4 3");
	for (size_t i = 0; i < ARRAY_SIZE(threads); i++)
		ck_assert_int_eq(pthread_create(&threads[i], NULL, encode_often, tok), 0);
	for (size_t i = 0; i < ARRAY_SIZE(threads); i++) {
		pthread_join(threads[i], &bad);
		ck_assert_ptr_null(bad);
	}
	tokenizer_free(tok);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("tokenizer");
	TCase *tc = tcase_create("tokenizer");

	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, test_byte_level);
	tcase_add_test(tc, test_sentencepiece);
	tcase_add_test(tc, test_long_word);
	tcase_add_test(tc, test_tie);
	tcase_add_test(tc, test_train_tie);
	tcase_add_test(tc, test_added);
	tcase_add_test(tc, test_added_spaces);
	tcase_add_test(tc, test_limit);
	tcase_add_test(tc, test_invalid_utf8);
	tcase_add_test(tc, test_decoders);
	tcase_add_loop_test(tc, test_lies, 0, ARRAY_SIZE(lies));
	tcase_add_loop_test(tc, test_scanners, 0, ARRAY_SIZE(patterns));
	tcase_add_test(tc, test_split);
	tcase_add_test(tc, test_train);
	tcase_add_test(tc, test_config);
	tcase_add_test(tc, test_threads);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}

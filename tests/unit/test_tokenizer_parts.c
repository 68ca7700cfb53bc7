/* SPDX-License-Identifier: Apache-2.0 */
/* Each normalizer, pre-tokenizer and decoder, compared with what Hugging Face's tokenizers 0.22 makes of the
 * same file and text. The vocabulary has all pairs of the letters below, so that the ids show where a
 * pre-tokenizer cuts. */
#include <string.h>

#include "base/str.h"
#include "engine/tokenizer/tokenizer.h"
#include "failing_memory.h"

static const char *const letters[] = {
    "a",        "A",        "b",        "e", "i", "\303\251", "\314\201",
    "\314\207", "1",        "2",        ".", "-", " ",        "\342\226\201",
    "\304\240", "\303\203", "\302\251",
};

enum { LETTERS = ARRAY_SIZE(letters), TOKENS = LETTERS + LETTERS * LETTERS };

/* The text of a token. */
static const char *token(int32_t id)
{
	static char out[16];

	if (id < LETTERS)
		return letters[id];
	snprintf(out, sizeof(out), "%s%s", letters[(id - LETTERS) / LETTERS],
	         letters[(id - LETTERS) % LETTERS]);
	return out;
}

static struct tokenizer *make(const char *section, const char *part)
{
	_cleanup_strbuf_ struct strbuf b = {0};
	struct tokenizer *tok = NULL;
	struct error err = ERROR_INIT;

	strbuf_addf(&b, "{\"%s\":%s,\"model\":{\"type\":\"BPE\",\"vocab\":{", section, part);
	for (int32_t i = 0; i < TOKENS; i++)
		strbuf_addf(&b, "%s\"%s\":%d", i ? "," : "", token(i), i);
	strbuf_adds(&b, "},\"merges\":[");
	for (int32_t i = 0; i < LETTERS * LETTERS; i++)
		strbuf_addf(&b, "%s[\"%s\",\"%s\"]", i ? "," : "", letters[i / LETTERS],
		            letters[i % LETTERS]);
	strbuf_adds(&b, "]}}");
	ck_assert(!b.failed);
	ck_ok(tokenizer_parse(b.data, b.len, "t.json", &tok, &err), &err);
	return tok;
}

static const struct {
	const char *section, *part, *text, *tokens;
} encodings[] = {
    {"normalizer", "{\"type\":\"NFC\"}", "e\314\201b", "\303\251b"},
    {"normalizer", "{\"type\":\"NFD\"}", "\303\251b", "e\314\201|b"},
    {"normalizer", "{\"type\":\"NFKC\"}", "\342\221\240e\314\201", "1\303\251"},
    {"normalizer", "{\"type\":\"NFKD\"}", "\342\221\240\303\251", "1|e\314\201"},
    {"normalizer", "{\"type\":\"NFC\"}", "\342\221\240", ""},
    {"normalizer", "{\"type\":\"Lowercase\"}", "AbA\303\211\304\260", "ab|a\303\251|i\314\207"},
    {"normalizer", "{\"type\":\"Prepend\",\"prepend\":\"\342\226\201\"}", "ab", "\342\226\201|ab"},
    {"normalizer", "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"b1\"}", "aba",
     "b1|bb|1"},
    {"normalizer", "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"[12]+\"},\"content\":\"-\"}", "a12b1",
     "a-|b-"},
    {"normalizer", "{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":false}", "  ab ", "ab| "},
    {"normalizer", "{\"type\":\"Strip\",\"strip_left\":false,\"strip_right\":true}", " ab \342\200\203",
     " |ab"},
    {"normalizer", "{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":true}", "   ", ""},
    {"normalizer", "{\"type\":\"StripAccents\"}", "e\314\201a\303\251", "e|a\303\251"},
    {"normalizer", "{\"type\":\"Nmt\"}", "a\011b\001a\342\200\213b\302\217a\016b\342\226\201a",
     "a |b|a |b|ab| a"},
    {"normalizer", "{\"type\":\"ByteLevel\"}", "a \303\251", "a\304\240|\303\203\302\251"},
    {"normalizer",
     "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFD\"},{\"type\":\"StripAccents\"},{\"type\":"
     "\"Lowercase\"}]}",
     "\303\251A", "ea"},
    {"pre_tokenizer", "{\"type\":\"Whitespace\"}", "ab  1a.-b e\314\201", "ab|1a|.-|b|e\314\201"},
    {"pre_tokenizer", "{\"type\":\"WhitespaceSplit\"}", "ab  .b a ", "ab|.b|a"},
    {"pre_tokenizer", "{\"type\":\"Digits\",\"individual_digits\":false}", "a12b1", "a|12|b|1"},
    {"pre_tokenizer", "{\"type\":\"Digits\",\"individual_digits\":true}", "a12b1", "a|1|2|b|1"},
    {"pre_tokenizer", "{\"type\":\"Punctuation\",\"behavior\":\"Isolated\"}", "ab.-1.a", "ab|.|-|1|.|a"},
    {"pre_tokenizer", "{\"type\":\"Punctuation\",\"behavior\":\"Removed\"}", "ab.-1.a", "ab|1|a"},
    {"pre_tokenizer", "{\"type\":\"Punctuation\",\"behavior\":\"MergedWithPrevious\"}", "ab.-1.a",
     "ab|.|-|1.|a"},
    {"pre_tokenizer", "{\"type\":\"Punctuation\",\"behavior\":\"MergedWithNext\"}", "ab.-1.a", "ab|.|-1|.a"},
    {"pre_tokenizer", "{\"type\":\"Punctuation\",\"behavior\":\"Contiguous\"}", "ab.-1.a", "ab|.-|1|.|a"},
    {"pre_tokenizer", "{\"type\":\"BertPreTokenizer\"}", "ab.1 -a", "ab|.|1|-|a"},
    {"pre_tokenizer", "{\"type\":\"CharDelimiterSplit\",\"delimiter\":\"-\"}", "ab-1--a", "ab|1|a"},
    {"pre_tokenizer",
     "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[12]\"},\"behavior\":\"Isolated\",\"invert\":false}",
     "12ab1a2", "1|2|ab|1|a|2"},
    {"pre_tokenizer",
     "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[12]\"},\"behavior\":\"Removed\",\"invert\":false}",
     "12ab1a2", "ab|a"},
    {"pre_tokenizer",
     "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[12]\"},\"behavior\":\"MergedWithPrevious\",\"invert\":"
     "false}",
     "12ab1a2", "1|2|ab|1|a2"},
    {"pre_tokenizer",
     "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[12]\"},\"behavior\":\"MergedWithNext\",\"invert\":false}",
     "12ab1a2", "1|2|ab|1a|2"},
    {"pre_tokenizer",
     "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[12]\"},\"behavior\":\"Contiguous\",\"invert\":false}",
     "12ab1a2", "12|ab|1|a|2"},
    {"pre_tokenizer",
     "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[12]+\"},\"behavior\":\"Removed\",\"invert\":true}",
     "12ab1a2", "12|1|2"},
    /* Marks belong to words. */
    {"pre_tokenizer",
     "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[12]\\\\b\"},\"behavior\":\"Isolated\",\"invert\":false}",
     "1\314\2012-a1", "1\314\201|2|-a|1"},
    {"pre_tokenizer",
     "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[12]\\\\B\"},\"behavior\":\"Isolated\",\"invert\":false}",
     "1\314\201", "1|\314\201"},
    {"pre_tokenizer",
     "{\"type\":\"Split\",\"pattern\":{\"String\":\"-\"},\"behavior\":\"Isolated\",\"invert\":false}",
     "ab--a", "ab|-|-|a"},
    {"pre_tokenizer",
     "{\"type\":\"Metaspace\",\"replacement\":\"\342\226\201\",\"prepend_scheme\":\"always\",\"split\":true}",
     "ab a b", "\342\226\201|ab|\342\226\201a|\342\226\201b"},
    {"pre_tokenizer",
     "{\"type\":\"Metaspace\",\"replacement\":\"\342\226\201\",\"prepend_scheme\":\"always\",\"split\":"
     "false}",
     " ab a", "\342\226\201|ab|\342\226\201a"},
    {"pre_tokenizer",
     "{\"type\":\"Metaspace\",\"replacement\":\"\342\226\201\",\"prepend_scheme\":\"never\",\"split\":true}",
     "ab a b", "ab|\342\226\201a|\342\226\201b"},
    {"pre_tokenizer",
     "{\"type\":\"Metaspace\",\"replacement\":\"\342\226\201\",\"prepend_scheme\":\"never\",\"split\":false}",
     " ab a", "\342\226\201|ab|\342\226\201a"},
    {"pre_tokenizer",
     "{\"type\":\"Metaspace\",\"replacement\":\"\342\226\201\",\"prepend_scheme\":\"first\",\"split\":true}",
     "ab a b", "\342\226\201|ab|\342\226\201a|\342\226\201b"},
    {"pre_tokenizer",
     "{\"type\":\"Metaspace\",\"replacement\":\"\342\226\201\",\"prepend_scheme\":\"first\",\"split\":false}",
     " ab a", "\342\226\201|ab|\342\226\201a"},
    {"pre_tokenizer",
     "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":false}",
     "a b\303\251", "\304\240|a\304\240|b\303\203|\302\251"},
    {"pre_tokenizer",
     "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true}", " a b1",
     "\304\240a|\304\240b|1"},
    {"pre_tokenizer",
     "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"WhitespaceSplit\"},{\"type\":\"Digits\","
     "\"individual_digits\":true}]}",
     "ab 12a", "ab|1|2|a"},
};

START_TEST(texts_are_cut_as_by_hugging_face)
{
	struct tokenizer *tok = make(encodings[_i].section, encodings[_i].part);
	_cleanup_strbuf_ struct strbuf got = {0};
	struct token_list ids = {0};
	struct error err = ERROR_INIT;

	ck_ok(tokenizer_encode(tok, encodings[_i].text, strlen(encodings[_i].text), false, &ids, &err), &err);
	for (size_t i = 0; i < ids.len; i++)
		strbuf_addf(&got, "%s%s", i ? "|" : "", token(ids.ids[i]));
	ck_assert_msg(str_eq(got.data ? got.data : "", encodings[_i].tokens),
	              "%s: \"%s\" becomes \"%s\", not \"%s\"", encodings[_i].part, encodings[_i].text,
	              got.data, encodings[_i].tokens);
	token_list_free(&ids);
	tokenizer_free(tok);
}
END_TEST

static const struct {
	const char *part, *tokens, *text;
} decodings[] = {
    {"{\"type\":\"Metaspace\",\"replacement\":\"\342\226\201\",\"prepend_scheme\":\"always\",\"split\":true}",
     "\342\226\201a|b\342\226\201|\342\226\201|b", "ab  b"},
    {"{\"type\":\"Metaspace\",\"replacement\":\"\342\226\201\",\"prepend_scheme\":\"never\",\"split\":true}",
     "\342\226\201a|b", " ab"},
    {"{\"type\":\"BPEDecoder\",\"suffix\":\"b\"}", "ab|a|ab|1b", "a aa 1"},
    {"{\"type\":\"Strip\",\"content\":\"a\",\"start\":1,\"stop\":1}", "aA|ab|ba|aa", "Abb"},
    {"{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"--\"}", "ab|b|a", "--bb--"},
    {"{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" "
     "\",\"start\":1,\"stop\":0}]}",
     " | a", " a"},
    {"{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true}",
     "\304\240a|\303\203|\302\251b|\303\203", " a\303\251b\357\277\275"},
    {"null", "a|b|1", "a b 1"},
};

static int32_t id_of(const char *text, size_t len)
{
	for (int32_t i = 0; i < TOKENS; i++)
		if (strlen(token(i)) == len && !memcmp(token(i), text, len))
			return i;
	ck_abort_msg("no token is \"%.*s\"", (int)len, text);
}

START_TEST(tokens_are_put_together_as_by_hugging_face)
{
	struct tokenizer *tok = make("decoder", decodings[_i].part);
	_cleanup_free_ char *text = NULL;
	struct error err = ERROR_INIT;
	int32_t ids[8];
	size_t n = 0;

	for (const char *at = decodings[_i].tokens; *at;) {
		size_t len = strcspn(at, "|");

		ids[n++] = id_of(at, len);
		at += len + (at[len] == '|');
	}
	ck_ok(tokenizer_decode(tok, ids, n, false, &text, NULL, &err), &err);
	ck_assert_msg(str_eq(text, decodings[_i].text), "%s: \"%s\" becomes \"%s\", not \"%s\"",
	              decodings[_i].part, decodings[_i].tokens, text, decodings[_i].text);
	tokenizer_free(tok);
}
END_TEST

/* The part that is wrong, and the words that the error has to contain. */
static const struct {
	const char *section, *part, *words;
} wrong[] = {
    {"normalizer", "{}", "normalizer: an object with a \"type\" is needed"},
    {"normalizer", "{\"type\":\"Sequence\"}", "normalizer: normalizers: an array is needed"},
    {"normalizer", "{\"type\":\"Prepend\",\"prepend\":1}", "normalizer: prepend"},
    {"pre_tokenizer", "{\"type\":\"Metaspace\",\"replacement\":\"ab\"}",
     "replacement: a single character is needed"},
    {"pre_tokenizer", "{\"type\":\"Metaspace\",\"replacement\":\"a\",\"prepend_scheme\":\"last\"}",
     "prepend_scheme: always, first or never is needed"},
    {"pre_tokenizer", "{\"type\":\"CharDelimiterSplit\"}", "delimiter: a character is needed"},
    {"pre_tokenizer", "{\"type\":\"Punctuation\",\"behavior\":\"Odd\"}", "behavior: Removed, Isolated"},
    {"decoder", "{}", "decoder: an object with a \"type\" is needed"},
    {"decoder", "{\"type\":\"Sequence\"}", "decoder: decoders: an array is needed"},
    {"decoder", "{\"type\":\"Strip\",\"content\":\"ab\",\"start\":1,\"stop\":0}",
     "content: a single character is needed"},
};

START_TEST(wrong_parts_are_refused)
{
	_cleanup_free_ char *json = str_printf("{\"%s\":%s,\"model\":{\"vocab\":{\"a\":0},\"merges\":[]}}",
	                                       wrong[_i].section, wrong[_i].part);
	struct tokenizer *tok = NULL;
	struct error err = ERROR_INIT;

	ck_fails(tokenizer_parse(json, strlen(json), "t.json", &tok, &err), &err, wrong[_i].words);
}
END_TEST

/* A file cannot make the parser call itself without end. */
START_TEST(sequences_have_a_depth)
{
	static const char *const sections[][2] = {
	    {"normalizer", "normalizers"}, {"pre_tokenizer", "pretokenizers"}, {"decoder", "decoders"}};

	for (size_t s = 0; s < ARRAY_SIZE(sections); s++) {
		_cleanup_strbuf_ struct strbuf b = {0};
		struct tokenizer *tok = NULL;
		struct error err = ERROR_INIT;

		strbuf_addf(&b, "{\"%s\":", sections[s][0]);
		for (int i = 0; i < 40; i++)
			strbuf_addf(&b, "{\"type\":\"Sequence\",\"%s\":[", sections[s][1]);
		for (int i = 0; i < 40; i++)
			strbuf_adds(&b, "]}");
		strbuf_adds(&b, ",\"model\":{\"vocab\":{\"a\":0},\"merges\":[]}}");
		ck_fails(tokenizer_parse(b.data, b.len, "t.json", &tok, &err), &err,
		         "Sequences more than 16 deep");
	}
}
END_TEST

/* All parts of a file, a text and tokens. */
static const struct {
	const char *json, *text;
	int32_t ids[3];
} wholes[] = {
    {"{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFD\"},{\"type\":\"StripAccents\"},"
     "{\"type\":\"Prepend\",\"prepend\":\"a\"},"
     "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"[12]\"},\"content\":\"b\"}]},"
     "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Punctuation\"},{\"type\":"
     "\"Digits\"},{\"type\":\"Metaspace\",\"replacement\":\"a\",\"prepend_scheme\":\"always\"}]},"
     "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},"
     "\"content\":\" \"},{\"type\":\"Fuse\"},"
     "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]},"
     "\"added_tokens\":[{\"id\":3,\"content\":\"<s>\",\"special\":true},{\"id\":4,\"content\":\"<n>\","
     "\"normalized\":true}],"
     "\"model\":{\"type\":\"BPE\",\"unk_token\":\"b\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a "
     "b\"]}}",
     "<s>ab1 \303\251-a<n>",
     {0, 2, 3}},
    {"{\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"use_regex\":true},\"decoder\":{"
     "\"type\":\"ByteLevel\"},"
     "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\","
     "\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}],"
     "\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[3],\"tokens\":[\"<s>\"]}}},"
     "\"added_tokens\":[{\"id\":3,\"content\":\"<s>\",\"special\":true}],"
     "\"model\":{\"vocab\":{\"a\":0,\"\304\240\":1,\"\304\240a\":2},\"merges\":[\"\304\240 a\"]}}",
     "a a",
     {0, 1, 2}},
};

static int use_whole(void *context, struct error *err)
{
	int i = *(int *)context, r;
	_cleanup_free_ char *text = NULL;
	struct tokenizer *tok = NULL;
	struct token_list ids = {0};

	(void)((r = tokenizer_parse(wholes[i].json, strlen(wholes[i].json), "t.json", &tok, err)) < 0 ||
	       (r = tokenizer_encode(tok, wholes[i].text, strlen(wholes[i].text), true, &ids, err)) < 0 ||
	       (r = tokenizer_decode(tok, wholes[i].ids, ARRAY_SIZE(wholes[i].ids), false, &text, NULL,
	                             err)) < 0);
	token_list_free(&ids);
	tokenizer_free(tok);
	return r;
}

START_TEST(memory_may_run_out)
{
	memory_runs_out(use_whole, &_i);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("tokenizer parts");
	TCase *t = tcase_create("tokenizer parts");

	tcase_add_loop_test(t, texts_are_cut_as_by_hugging_face, 0, ARRAY_SIZE(encodings));
	tcase_add_loop_test(t, tokens_are_put_together_as_by_hugging_face, 0, ARRAY_SIZE(decodings));
	tcase_add_loop_test(t, wrong_parts_are_refused, 0, ARRAY_SIZE(wrong));
	tcase_add_test(t, sequences_have_a_depth);
	tcase_add_loop_test(t, memory_may_run_out, 0, ARRAY_SIZE(wholes));
	suite_add_tcase(s, t);
	return unit_run(s);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Tests dataset/: files of prompts become rows of a prompt and the answer that is known, if any, in each of
 * the formats. */
#include "dataset_fixture.h"

static struct dataset *open_as(enum dataset_task task, const char *template, int max_length, const char *path,
                               struct notes *notes)
{
	struct dataset_options o = options(path, notes);
	struct tokenizer tok = {0};
	struct error err = ERROR_INIT;
	struct dataset *d;

	*notes = (struct notes){0};
	o.task = task;
	o.template_name = template;
	o.max_length = max_length;
	o.mask_history = task == DATASET_SFT;
	ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
	return d;
}

/* A row as row_text shows it, with an answer whose ids are its bytes. */
static char *prompt_text(const struct dataset *data, int64_t index)
{
	struct dataset_row row;
	struct strbuf b = {0};
	int64_t prompt;
	_cleanup_free_ char *text = NULL;

	dataset_row(data, index, &row);
	prompt = row.length - row.counted;
	text = stub_text(row.ids, (size_t)prompt);
	strbuf_adds(&b, text);
	for (int64_t i = prompt; i < row.length; i++)
		strbuf_addc(&b, (char)row.ids[i]);
	strbuf_adds(&b, "|_");
	for (int64_t i = 0; i < row.length; i++)
		strbuf_addc(&b, row.targets[i] < 0 ? '_' : (char)row.targets[i]);
	return strbuf_steal(&b);
}

#define ck_prompt(data, index, text)                                                                         \
	do {                                                                                                 \
		_cleanup_free_ char *shown_ = prompt_text(data, index);                                      \
		ck_assert_str_eq(shown_, text);                                                              \
	} while (0)

static struct dataset *open_prompts(const char *path, struct notes *notes)
{
	return open_as(DATASET_PROMPTS, "mistral", 1000, path, notes);
}

#define MESSAGE(role, content) "{\"role\":\"" role "\",\"content\":\"" content "\"}"
#define SAID(from, value)      "{\"from\":\"" from "\",\"value\":\"" value "\"}"

#define PROMPT         "<s>[INST] S\n\nQ[/INST]"
#define PROMPT_TARGETS "___________________"
#define ANSWERED       PROMPT "good|" PROMPT_TARGETS "good_"
#define ALONE          PROMPT "|" PROMPT_TARGETS "_"

/* Each record is a system prompt "S", the question "Q", and what else stands there. */
static const struct {
	const char *record, *row;
} records[] = {
    {"{\"instruction\":\"Q\",\"output\":\"good\",\"system\":\"S\"}", ANSWERED},
    {"{\"instruction\":\"Q\",\"output\":\"\",\"system\":\"S\"}", ALONE},
    {"{\"instruction\":\"Q\",\"system\":\"S\"}", ALONE},
    {"{\"instruction\":\"Q\",\"output\":null,\"system\":\"S\"}", ALONE},
    {"{\"instruction\":\"Q\",\"output\":42,\"system\":\"S\"}", PROMPT "42|" PROMPT_TARGETS "42_"},
    /* Every digit of an integer stays. */
    {"{\"instruction\":\"Q\",\"output\":123456789012345678901,\"system\":\"S\"}",
     PROMPT "123456789012345678901|" PROMPT_TARGETS "123456789012345678901_"},
    {"{\"instruction\":\"Q\",\"output\":0.1,\"system\":\"S\"}", PROMPT "0.1|" PROMPT_TARGETS "0.1_"},
    {"{\"instruction\":\"Q\",\"output\":{\"a\":[1,\"x\"]},\"system\":\"S\"}",
     PROMPT "{\"a\": [1, \"x\"]}|" PROMPT_TARGETS "{\"a\": [1, \"x\"]}_"},
    {"{\"instruction\":\"Q\",\"output\":false,\"system\":\"S\"}", PROMPT "false|" PROMPT_TARGETS "false_"},
    {"{\"prompt\":\"Q\",\"system\":\"S\"}", ALONE},
    {"{\"prompt\":\"Q\",\"completion\":\"good\",\"system\":\"S\"}", ANSWERED},
    {"{\"prompt\":\"Q\",\"answer\":\"good\",\"system\":\"S\"}", ANSWERED},
    {"{\"prompt\":\"Q\",\"solution\":\"good\",\"system\":\"S\"}", ANSWERED},
    {"{\"prompt\":\"Q\",\"answer\":\"other\",\"completion\":\"good\",\"system\":\"S\"}", ANSWERED},
    /* Bytes as they are, whatever a tokenizer would make of them. */
    {"{\"prompt\":\"Q\",\"answer\":\"<s> \u00e9\",\"system\":\"S\"}",
     PROMPT "<s> \xc3\xa9|" PROMPT_TARGETS "<s> \xc3\xa9_"},
    {"{\"prompt\":\"Q\",\"completion\":7,\"system\":\"S\"}", PROMPT "7|" PROMPT_TARGETS "7_"},
    {"{\"prompt\":[" MESSAGE("system", "S") "," MESSAGE("user", "Q") "]}", ALONE},
    {"{\"prompt\":[" MESSAGE("system", "S") "," MESSAGE("user", "Q") "],\"completion\":\"good\"}", ANSWERED},
    {"{\"prompt\":[" MESSAGE("system", "S") "," MESSAGE("user", "Q") "],\"completion\":[" MESSAGE(
         "assistant", "good") "]}",
     ANSWERED},
    {"{\"messages\":[" MESSAGE("system", "S") "," MESSAGE("user", "Q") "]}", ALONE},
    {"{\"messages\":[" MESSAGE("system", "S") "," MESSAGE("user", "Q") "," MESSAGE("assistant", "good") "]}",
     ANSWERED},
    {"{\"conversations\":[" SAID("system", "S") "," SAID("human", "Q") "]}", ALONE},
    {"{\"conversations\":[" SAID("system", "S") "," SAID("human", "Q") "," SAID("gpt", "good") "]}",
     ANSWERED},
};

START_TEST(records_of_all_formats)
{
	_cleanup_free_ char *content = str_printf("[%s]", records[_i].record);
	struct notes notes;
	struct dataset *d = open_prompts(put("a.json", content), &notes);
	struct dataset_row row;

	ck_assert_msg(notes.warnings == 0, "%s", notes.last);
	ck_assert_int_eq(dataset_rows(d), 1);
	ck_prompt(d, 0, records[_i].row);
	dataset_row(d, 0, &row);
	ck_assert_int_eq(row.documents, 1);
	/* The targets of the answer's tokens, and no others. */
	ck_assert_int_eq(row.counted, row.length - (int64_t)strlen("^[INST] S\n\nQ[/INST]"));
	dataset_close(d);
}
END_TEST

/* An answer is text as it is: without what the template writes before and after it, and in no case cut. */
START_TEST(an_answer_is_not_for_the_model)
{
	const char *path =
	    put("a.json", "[{\"instruction\":\"0123456789\",\"output\":\"<think>\\nt\\n</think>\\n\\na "
	                  "long answer\"}]");
	struct notes notes;
	struct dataset *d = open_as(DATASET_PROMPTS, "empty", 10, path, &notes);

	ck_assert_int_eq(notes.warnings, 0);
	ck_prompt(d, 0,
	          "0123456789<think>\nt\n</think>\n\na long answer|"
	          "__________<think>\nt\n</think>\n\na long answer_");
	ck_assert_int_eq(dataset_cut_examples(d), 0);
	dataset_close(d);
}
END_TEST

START_TEST(a_long_prompt_is_left_out)
{
	const char *path = put("a.json", "[{\"instruction\":\"0123456789\",\"output\":\"x\"},\n"
	                                 "{\"instruction\":\"0123456789a\",\"output\":\"x\"},\n"
	                                 "{\"instruction\":\"b\"}]");
	struct notes notes;
	struct dataset *d = open_as(DATASET_PROMPTS, "empty", 10, path, &notes);

	ck_assert_int_eq(dataset_rows(d), 2);
	ck_prompt(d, 0, "0123456789x|__________x_");
	ck_prompt(d, 1, "b|__");
	ck_assert_int_eq(notes.warnings, 1);
	ck_assert_ptr_nonnull(
	    strstr(notes.last, "a.json:2: the prompt has 11 tokens, and there is room for 10 "));
	dataset_close(d);
}
END_TEST

START_TEST(an_empty_prompt_is_left_out)
{
	const char *path =
	    put("a.json", "[{\"instruction\":\"\",\"output\":\"x\"},\n{\"instruction\":\"b\"}]");
	struct notes notes;
	struct dataset *d = open_as(DATASET_PROMPTS, "empty", 10, path, &notes);

	ck_assert_int_eq(dataset_rows(d), 1);
	ck_assert_ptr_nonnull(strstr(notes.last, "a.json:1: the prompt is empty"));
	dataset_close(d);
}
END_TEST

/* What a tool has answered is a turn that an answer follows, in both formats. */
START_TEST(answers_of_tools_end_a_prompt)
{
	static const char *const contents[] = {
	    "[{\"messages\":[" MESSAGE(
	        "user", "Q") ",{\"role\":\"assistant\",\"tool_calls\":[{\"type\":\"function\","
	                     "\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}," MESSAGE("tool",
	                                                                                      "5") "]}]",
	    "[{\"conversations\":[" SAID(
	        "human", "Q") ",{\"from\":\"function_call\",\"value\":"
	                      "\"{\\\"name\\\":\\\"f\\\",\\\"arguments\\\":{}}\"}," SAID("observation",
	                                                                                 "5") "]}]"};
	char *rows[2] = {NULL};

	for (size_t i = 0; i < ARRAY_SIZE(contents); i++) {
		struct notes notes;
		struct dataset *d =
		    open_as(DATASET_PROMPTS, "qwen", 1000, put("a.json", contents[i]), &notes);
		struct dataset_row row;

		ck_assert_msg(notes.warnings == 0, "%s", notes.last);
		ck_assert_int_eq(dataset_rows(d), 1);
		dataset_row(d, 0, &row);
		ck_assert_int_eq(row.counted, 0);
		rows[i] = row_text(d, 0);
		ck_assert_ptr_nonnull(
		    strstr(rows[i], "5\n</tool_response><|im_end|>\n<|im_start|>assistant\n|"));
		dataset_close(d);
	}
	ck_assert_str_eq(rows[0], rows[1]);
	free(rows[0]);
	free(rows[1]);
}
END_TEST

/* What is no conversation that ends with a user's turn or with an answer. */
START_TEST(what_is_no_prompt_is_left_out)
{
	static const struct {
		const char *record, *words;
	} cases[] = {
	    {"{\"messages\":[" MESSAGE("user", "Q") "," MESSAGE("user", "Q") "]}", "a.json:2"},
	    {"{\"messages\":[" MESSAGE("assistant", "A") "]}", "a.json:2"},
	    {"{\"messages\":[]}", "a.json:2"},
	    {"{\"messages\":\"Q\"}", "column 'messages' is no list of messages"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_free_ char *content =
		    str_printf("[{\"messages\":[" MESSAGE("user", "q") "]},\n%s]", cases[i].record);
		struct notes notes;
		struct dataset *d = open_prompts(put("a.json", content), &notes);

		ck_assert_int_eq(dataset_rows(d), 1);
		ck_assert_int_eq(notes.warnings, 1);
		ck_assert_msg(strstr(notes.last, cases[i].words), "%s", notes.last);
		dataset_close(d);
	}
}
END_TEST

/* A model learns from prompts as it will be given them: as those of sft, before the last answer, without what
 * was thought before. */
START_TEST(prompts_are_those_of_sft)
{
	static const char *const templates[] = {"chatml", "mistral", "alpaca", "qwen", "qwen3"};
	const char *path = put("a.json", "[{\"system\":\"S\",\"history\":[[\"a\",\"b\"],[\"c\",\"d\"]],"
	                                 "\"instruction\":\"e\",\"input\":\"f\",\"output\":\"good\"}]"),
	           *talk =
	               put("b.json",
	                   "[{\"messages\":[" MESSAGE("user", "a") "," MESSAGE("assistant", "b") "," MESSAGE(
	                       "user", "c") "," MESSAGE("assistant", "d") "]}]"),
	           *open = put("c.json", "[{\"messages\":[" MESSAGE("user", "a") "," MESSAGE(
	                                     "assistant", "b") "," MESSAGE("user", "c") "]}]");
	const char *const pairs[][2] = {{path, path}, {talk, talk}, {talk, open}};

	for (size_t i = 0; i < ARRAY_SIZE(templates); i++)
		for (size_t k = 0; k < ARRAY_SIZE(pairs); k++) {
			struct notes notes;
			struct dataset *sft = open_as(DATASET_SFT, templates[i], 1000, pairs[k][0], &notes),
			               *prompts =
			                   open_as(DATASET_PROMPTS, templates[i], 1000, pairs[k][1], &notes);
			struct dataset_row a, b;
			int64_t length;

			ck_assert_msg(notes.warnings == 0, "%s: %s", templates[i], notes.last);
			dataset_row(sft, 0, &a);
			dataset_row(prompts, 0, &b);
			length = b.length - b.counted;
			/* The last answer of sft, which alone counts, begins behind it. */
			ck_assert_int_gt(length, 5);
			ck_assert_int_lt(length, a.length);
			ck_assert_mem_eq(a.ids, b.ids, (size_t)length * sizeof(*a.ids));
			ck_assert_int_ge(a.targets[length - 1], 0);
			ck_assert_int_lt(a.targets[length - 2], 0);
			dataset_close(sft);
			dataset_close(prompts);
		}
}
END_TEST

/* The file's first record tells the format, and the task is part of what a cache is for. */
START_TEST(a_cache_is_of_a_task)
{
	const char *path = put("a.json", "[{\"prompt\":\"Q\",\"completion\":\"A\",\"label\":true},"
	                                 "{\"prompt\":\"q\",\"completion\":\"a\",\"label\":false}]");
	struct notes notes;
	struct dataset *d = open_as(DATASET_LABELS, "mistral", 1000, path, &notes);
	struct dataset_row row;

	dataset_row(d, 0, &row);
	ck_assert_int_eq(row.documents, 2);
	dataset_close(d);
	for (int i = 0; i < 2; i++) {
		d = open_prompts(path, &notes);
		ck_assert_int_eq(notes.builds, i == 0);
		ck_prompt(d, 0, "<s>[INST] Q[/INST]A|________________A_");
		dataset_close(d);
	}
}
END_TEST

START_TEST(what_tells_no_format)
{
	static const struct {
		const char *name, *content, *words;
	} cases[] = {
	    {"a.json", "[{\"question\":\"p\"}]",
	     "(question) tell no format: a prompt stands in prompt, instruction, messages or conversations"},
	    {"a.txt", "text",
	     "plain text is for task pretrain; prompts need alpaca, sharegpt, openai or trl"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct notes notes = {0};
		struct dataset_options o = options(put(cases[i].name, cases[i].content), &notes);
		struct tokenizer tok = {0};
		struct error err = ERROR_INIT;
		struct dataset *d;

		o.task = DATASET_PROMPTS;
		ck_fails(dataset_open(&o, &tok, &d, NULL, &err), &err, cases[i].words);
	}
}
END_TEST

START_TEST(columns_are_mapped)
{
	const char *path = put("a.json", "[{\"question\":\"Q\",\"answer\":4,\"prompt\":\"other\"}]");
	struct notes notes = {0};
	struct dataset_options o = options(path, &notes);
	struct tokenizer tok = {0};
	struct error err = ERROR_INIT;
	struct dataset *d;

	o.task = DATASET_PROMPTS;
	o.template_name = "mistral";
	o.columns_json = "{\"prompt\":\"question\",\"response\":\"answer\"}";
	ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
	ck_prompt(d, 0, "<s>[INST] Q[/INST]4|________________4_");
	dataset_close(d);
	/* The column of the answer alone. */
	o.columns_json = "{\"response\":\"question\"}";
	ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
	ck_prompt(d, 0, "<s>[INST] other[/INST]Q|____________________Q_");
	dataset_close(d);
}
END_TEST

/* Values as they are in the records, whatever their format, beside the answer. */
static const struct {
	const char *record, *kept;
} kept[] = {
    {"{\"instruction\":\"Q\",\"output\":\"good\",\"a\":12345678901234567890123,\"b\":[1,{\"c\":null}]}",
     "{\"answer\": \"good\", \"columns\": {\"b\": [1, {\"c\": null}], \"a\": 12345678901234567890123}}"},
    {"{\"prompt\":\"Q\",\"a\":\"x\\u0000\\u00e9\",\"b\":false}",
     "{\"answer\": null, \"columns\": {\"b\": false, \"a\": \"x\\u0000\xc3\xa9\"}}"},
    {"{\"prompt\":\"Q\",\"answer\":7,\"a\":null,\"b\":\"\"}",
     "{\"answer\": \"7\", \"columns\": {\"b\": \"\", \"a\": null}}"},
    {"{\"messages\":[" MESSAGE("user", "Q") "," MESSAGE("assistant", "good") "],\"a\":1,\"b\":2}",
     "{\"answer\": \"good\", \"columns\": {\"b\": 2, \"a\": 1}}"},
    {"{\"messages\":[" MESSAGE("user", "Q") "],\"a\":1.50,\"b\":2}",
     "{\"answer\": null, \"columns\": {\"b\": 2, \"a\": 1.5}}"},
};

static struct dataset_options options_kept(const char *path, struct notes *notes)
{
	static const char *const names[] = {"b", "a", NULL};
	struct dataset_options o = options(path, notes);

	*notes = (struct notes){0};
	o.task = DATASET_PROMPTS;
	o.template_name = "mistral";
	o.kept_columns = names;
	return o;
}

START_TEST(columns_are_kept)
{
	_cleanup_free_ char *content = str_printf(
	                        "[%s,{\"instruction\":\"Q\",\"prompt\":\"Q\",\"messages\":[" MESSAGE(
	                            "user", "Q") "],\"b\":3}]",
	                        kept[_i].record),
	                    *want = NULL, *without = NULL, *shown = NULL, *other = NULL;
	struct notes notes;
	struct dataset_options o = options_kept(put("a.json", content), &notes);
	struct tokenizer tok = {0};
	struct error err = ERROR_INIT;
	struct dataset *d;

	ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
	ck_assert_msg(notes.warnings == 0, "%s", notes.last);
	want = str_printf("<s>[INST] Q[/INST]%s|", kept[_i].kept);
	shown = prompt_text(d, 0);
	ck_assert_msg(str_starts(shown, want), "%s", shown);
	/* A record that lacks one. */
	without = prompt_text(d, 1);
	ck_assert_msg(strstr(without, "\"columns\": {\"b\": 3, \"a\": null}}|") != NULL, "%s", without);
	dataset_close(d);
	/* Rows in the cache that have other columns are others. */
	o.kept_columns = NULL;
	ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
	other = prompt_text(d, 0);
	ck_assert_ptr_null(strstr(other, "columns"));
	dataset_close(d);
}
END_TEST

START_TEST(a_column_that_no_record_has)
{
	struct notes notes;
	struct dataset_options o =
	    options_kept(put("a.json", "[{\"prompt\":\"Q\",\"b\":1},{\"prompt\":\"Q\",\"b\":2}]"), &notes);
	struct tokenizer tok = {0};
	struct error err = ERROR_INIT;
	struct dataset *d;

	ck_fails(dataset_open(&o, &tok, &d, NULL, &err), &err,
	         "a.json:1: column 'a', of the columns that come with completions, is missing; the columns "
	         "there are: prompt, b");
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("dataset, prompts");
	TCase *tc = tcase_create("all");
	const TTest *const tests[] = {
	    an_answer_is_not_for_the_model, a_long_prompt_is_left_out,     an_empty_prompt_is_left_out,
	    answers_of_tools_end_a_prompt,  what_is_no_prompt_is_left_out, prompts_are_those_of_sft,
	    a_cache_is_of_a_task,           what_tells_no_format,          columns_are_mapped,
	    a_column_that_no_record_has};

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_loop_test(tc, records_of_all_formats, 0, ARRAY_SIZE(records));
	tcase_add_loop_test(tc, columns_are_kept, 0, ARRAY_SIZE(kept));
	for (size_t i = 0; i < ARRAY_SIZE(tests); i++)
		tcase_add_test(tc, tests[i]);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Tools in conversations and the numbers in them, and the columns of a file: the results of LLaMA-Factory
 * 0.9.5, with which tests/engine/llamafactory_compare.py compares where that is installed. */
#include "dataset_fixture.h"

/* Empty lists of tools in LLaMA-Factory 0.9.5: a text that is not empty has the system prompt written. */
START_TEST(test_no_tools)
{
	static const struct {
		const char *template_name, *tools, *want;
	} cases[] = {
	    {"chatml", "\"[]\"", "<|im_start|>system\n<|im_end|>\n<|im_start|>user\nu<|im_end|>\n"},
	    {"chatml", "\"{}\"", "<|im_start|>system\n<|im_end|>\n<|im_start|>user\nu<|im_end|>\n"},
	    {"chatml", "\"\"", "<|im_start|>user\nu<|im_end|>\n"},
	    {"chatml", "null", "<|im_start|>user\nu<|im_end|>\n"},
	    {"chatml", "[]", "<|im_start|>user\nu<|im_end|>\n"},
	    {"qwen", "\"[]\"",
	     "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
	     "assistant.<|im_end|>\n"},
	    {"mistral", "\"[]\"", "<s>[INST] \n\nu[/INST] g</s>"},
	    {"mistral", "\"\"", "<s>[INST] u[/INST] g</s>"},
	    {"glm4", "\"[]\"", "[gMASK]<sop><|system|>\n<|user|>\nu<|assistant|>"},
	};
	struct tokenizer tok = {0};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_free_ char *record =
		    str_printf("{\"conversations\":[{\"from\":\"human\",\"value\":\"u\"},{\"from\":\"gpt\","
		               "\"value\":\"g\"}],\"tools\":%s}\n",
		               cases[i].tools);
		_cleanup_(dataset_closep) struct dataset *d = NULL;
		struct notes notes = {0};
		struct dataset_options o = options(put("n.jsonl", record), &notes);
		struct error err = ERROR_INIT;
		_cleanup_free_ char *text = NULL;

		o.template_name = cases[i].template_name;
		ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
		text = row_text(d, 0);
		ck_assert_msg(str_starts(text, cases[i].want), "%s, tools %s: %s", cases[i].template_name,
		              cases[i].tools, text);
	}
}
END_TEST

/* Integers of any size keep their digits, as in Python's json. */
START_TEST(test_large_integers)
{
	const char *path = put(
	    "i.jsonl",
	    "{\"id\":99999999999999999999,\"conversations\":[{\"from\":\"human\",\"value\":\"u\"},"
	    "{\"from\":\"function_call\",\"value\":\"{\\\"name\\\":\\\"f\\\",\\\"arguments\\\":{\\\"x\\\":"
	    "-9223372036854775809}}\"}],\"tools\":[{\"name\":\"f\",\"most\":18446744073709551616}]}\n");
	struct notes notes = {0};
	struct dataset_options o = options(path, &notes);
	struct error err = ERROR_INIT;
	struct tokenizer tok = {0};
	_cleanup_(dataset_closep) struct dataset *d = NULL;
	_cleanup_free_ char *text = NULL;

	o.template_name = "qwen";
	ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
	ck_assert_msg(notes.warnings == 0, "%s", notes.last);
	text = row_text(d, 0);
	ck_assert_ptr_nonnull(strstr(text, "{\"name\": \"f\", \"most\": 18446744073709551616}"));
	ck_assert_ptr_nonnull(
	    strstr(text, "{\"name\": \"f\", \"arguments\": {\"x\": -9223372036854775809}}"));
}
END_TEST

START_TEST(test_tool_prompt)
{
	const char *data =
	    put("t.jsonl", "{\"conversations\":[{\"from\":\"human\",\"value\":\"u\"},{\"from\":"
	                   "\"gpt\",\"value\":\"g\"}],\"tools\":\"[{\\\"name\\\":\\\"f\\\"}]\","
	                   "\"system\":\"S\"}\n");
	static const struct {
		const char *content, *words;
	} wrong[] = {
	    {"no place\n", "p: {{tools}} is missing; it has to stand where the list of tools goes"},
	    {"{{tools}}\n\n{{tools}}", "p:3: {{tools}} stands here again; it may occur once"},
	    {"\xff{{tools}}", "p is no UTF-8 text"},
	};
	struct notes notes = {0};
	struct dataset_options o = options(data, &notes);
	struct error err = ERROR_INIT;
	struct tokenizer tok = {0};
	struct dataset *d;
	char *text;

	ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
	text = row_text(d, 0);
	ck_assert_msg(
	    str_starts(text,
	               "<|im_start|>system\nS\n\nThese tools can be called:\n{\"type\": \"function\", "
	               "\"function\": {\"name\": \"f\"}}\nTo call one, answer with a line `Action: NAME` "
	               "and a line `Action Input: ARGUMENTS`, the arguments as a JSON object.\n<|im_end|>"),
	    "%s", text);
	free(text);
	dataset_close(d);
	/* Another text has another cache; glm4 has no list format of its own. */
	for (int i = 0; i < 3; i++) {
		static const char *const want[] = {
		    "<|im_start|>system\nSA:", "<|im_start|>system\nSB:", "[gMASK]<sop><|system|>\nSB:"};
		_cleanup_free_ char *all =
		    str_printf("%s{\"type\": \"function\", \"function\": {\"name\": \"f\"}}.\n", want[i]);

		o.tool_prompt = put("p", i ? "B:{{tools}}.\n" : "A:{{tools}}.\n");
		o.template_name = i == 2 ? "glm4" : "chatml";
		ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
		text = row_text(d, 0);
		ck_assert_msg(str_starts(text, all), "%s", text);
		free(text);
		dataset_close(d);
	}
	for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
		o.tool_prompt = put("p", wrong[i].content);
		ck_fails(dataset_open(&o, &tok, &d, NULL, &err), &err, wrong[i].words);
	}
	o.tool_prompt = "/nowhere/p";
	ck_fails(dataset_open(&o, &tok, &d, NULL, &err), &err, "data.tool_prompt: cannot read /nowhere/p");
}
END_TEST

/* The first record that has them decides the columns of a file; a null or a wrong type affects only its own
 * record. */
START_TEST(test_columns_of_a_file)
{
	static const struct {
		const char *content, *row;
		int rows, warnings;
	} cases[] = {
	    {"{\"instruction\":null,\"output\":\"a\"}\n{\"instruction\":\"q\",\"output\":\"b\"}\n", "qb|_b_",
	     2, 0},
	    {"{\"instruction\":5,\"output\":\"a\"}\n{\"instruction\":\"q\",\"output\":\"b\"}\n", "qb|_b_", 1,
	     1},
	    {"null\n{\"instruction\":\"q\",\"output\":\"b\"}\n", "qb|_b_", 1, 1},
	    {"{\"note\":1}\n{\"instruction\":\"q\",\"output\":\"b\"}\n", "qb|_b_", 1, 1},
	    {"{\"instruction\":\"q\"}\n{\"instruction\":\"q\",\"output\":\"b\"}\n", "qb|_b_", 1, 1},
	    {"{\"messages\":null}\n{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":"
	     "\"assistant\","
	     "\"content\":\"b\"}]}\n",
	     "qb|_b_", 1, 1},
	    {"{\"conversations\":[]}\n{\"conversations\":[{\"from\":\"human\",\"value\":\"q\"},{\"from\":"
	     "\"gpt\","
	     "\"value\":\"b\"}]}\n",
	     "qb|_b_", 1, 1},
	    /* Optional columns that only a later record has. */
	    {"{\"instruction\":\"x\",\"output\":\"y\"}\n{\"instruction\":\"q\",\"output\":\"b\",\"system\":"
	     "\"S\","
	     "\"history\":[[\"h\",\"i\"]]}\n",
	     "Shiqb|__i_b_", 2, 0},
	};
	struct tokenizer tok = {0};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_(dataset_closep) struct dataset *d = NULL;
		struct notes notes = {0};
		struct dataset_options o = options(put("c.jsonl", cases[i].content), &notes);
		struct error err = ERROR_INIT;

		o.template_name = "empty";
		o.efficient_eos = false;
		ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
		ck_assert_msg(dataset_rows(d) == cases[i].rows && notes.warnings == cases[i].warnings,
		              "case %zu: %lld rows, %d warnings: %s", i, (long long)dataset_rows(d),
		              notes.warnings, notes.last);
		ck_row(d, cases[i].rows - 1, cases[i].row);
	}
}
END_TEST

/* A template of a model that thinks: an answer without a thought gets an empty one, with a loss; where the
 * loss is of the last answer alone, the answers before it lose theirs. */
START_TEST(test_thoughts)
{
#define USER(text)   "<|im_start|>user\n" text "<|im_end|>\n<|im_start|>assistant\n"
#define ANSWER(text) text "<|im_end|>\n"
#define THOUGHT      "<think>\nt\n</think>\n\n"
#define NO_THOUGHT   "<think>\n\n</think>\n\n"
	static const struct {
		bool last_only;
		const char *first, *last_role, *last, *want;
	} cases[] = {
	    {false, "<think>\\nt\\n</think>\\n\\na", "gpt", "b",
	     USER("u") ANSWER(THOUGHT "a") USER("v") ANSWER(NO_THOUGHT "b") "|"},
	    {true, "<think>\\nt\\n</think>\\n\\na", "gpt", "b",
	     USER("u") ANSWER("a") USER("v") ANSWER(NO_THOUGHT "b") "|"},
	    {true, "x<think>\\nt\\n</think>\\n\\na<think>\\ns\\n</think>\\n\\nc", "gpt",
	     "<think>\\nt\\n</think>\\n\\nb", USER("u") ANSWER("xac") USER("v") ANSWER(THOUGHT "b") "|"},
	    /* One that does not end is none. */
	    {true, "<think>\\nt", "gpt", "<think>b",
	     USER("u") ANSWER("<think>\nt") USER("v") ANSWER("<think>b") "|"},
	    {true, "\\n\\na", "gpt", "b</think>", USER("u") ANSWER("a") USER("v") ANSWER("b</think>") "|"},
	    {false, "a", "function_call",
	     "<think>\\nt\\n</think>\\n\\n{\\\"name\\\":\\\"f\\\",\\\"arguments\\\":{}}",
	     USER("u") ANSWER(NO_THOUGHT "a") USER("v")
	         ANSWER(THOUGHT "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>") "|"},
	};
	struct tokenizer tok = {0};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		char name[] = {(char)('a' + i), '.', 'j', 's', 'o', 'n', 'l', 0};
		_cleanup_free_ char *record =
		    str_printf("{\"conversations\":[{\"from\":\"human\",\"value\":\"u\"},{\"from\":\"gpt\","
		               "\"value\":\"%s\"},{\"from\":\"human\",\"value\":\"v\"},{\"from\":\"%s\","
		               "\"value\":\"%s\"}]}\n",
		               cases[i].first, cases[i].last_role, cases[i].last);
		_cleanup_(dataset_closep) struct dataset *d = NULL;
		struct notes notes = {0};
		struct dataset_options o = options(put(name, record), &notes);
		struct error err = ERROR_INIT;
		_cleanup_free_ char *text = NULL;

		o.template_name = "qwen3";
		o.mask_history = cases[i].last_only;
		ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
		text = row_text(d, 0);
		ck_assert_msg(str_starts(text, cases[i].want), "case %zu: %s", i, text);
	}
}
END_TEST

/* OpenAI's messages: reasoning, contents in parts, answers of tools one after the other, and what is no
 * conversation. */
START_TEST(test_messages)
{
#define MESSAGES(list)         "{\"messages\":[" list "]}\n"
#define MESSAGE(role, content) "{\"role\":\"" role "\",\"content\":" content "}"
	static const struct {
		const char *record, *want, *words; /* want NULL: it is skipped, and these words say why */
	} cases[] = {
	    {MESSAGES(MESSAGE(
	         "user", "\"u\"") ",{\"role\":\"assistant\",\"content\":\"a\",\"reasoning_content\":\"t\"}"),
	     USER("u") ANSWER(THOUGHT "a") "|", NULL},
	    {MESSAGES(MESSAGE("user", "[{\"type\":\"text\",\"text\":\"u\"},{\"type\":\"text\",\"text\":\"v\"}"
	                              "]") "," MESSAGE("assistant", "\"a\"")),
	     USER("uv") ANSWER("a") "|", NULL},
	    {MESSAGES(
	         MESSAGE("user", "\"u\"") ",{\"role\":\"assistant\",\"tool_calls\":\"[{\\\"function\\\":{"
	                                  "\\\"name\\\":\\\"f\\\","
	                                  "\\\"arguments\\\":{}}}]\"}," MESSAGE("tool", "\"x\"") "," MESSAGE(
	                                      "tool", "\"y\"") "," MESSAGE("assistant", "\"a\"")),
	     USER("u") ANSWER("<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>")
	         USER("<tool_response>\nx\n</tool_response>\n<tool_response>\ny\n</tool_response>")
	             ANSWER("a") "|",
	     NULL},
	    {MESSAGES(MESSAGE(
	         "user", "\"u\"") ",{\"role\":\"assistant\",\"content\":\"a\",\"reasoning_content\":\"t\","
	                          "\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{}}}]}"),
	     USER("u") ANSWER(THOUGHT "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>") "|",
	     NULL},
	    {MESSAGES(MESSAGE("user", "[{\"type\":\"image\"}]") "," MESSAGE("assistant", "\"a\"")), NULL,
	     "a message's content holds a part that is no text"},
	    {MESSAGES(MESSAGE("user", "5") "," MESSAGE("assistant", "\"a\"")), NULL,
	     "a message's content is no string"},
	    {MESSAGES(MESSAGE("user", "\"u\"") "," MESSAGE("user", "\"v\"")), NULL,
	     "turn 2 of the conversation should be the assistant's"},
	    {MESSAGES(MESSAGE("assistant", "\"a\"") "," MESSAGE("user", "\"v\"")), NULL,
	     "turn 1 of the conversation should be the user's or a tool's"},
	    {MESSAGES(MESSAGE("user", "\"u\"")), NULL, "the conversation ends without an answer"},
	    {MESSAGES("{\"content\":\"u\"}," MESSAGE("assistant", "\"a\"")), NULL, "message 1 has no 'role'"},
	    {MESSAGES(MESSAGE("x", "\"u\"") "," MESSAGE("assistant", "\"a\"")), NULL,
	     "message 1: unknown role 'x'"},
	};
	struct tokenizer tok = {0};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		static const char good[] =
		    MESSAGES(MESSAGE("user", "\"g\"") "," MESSAGE("assistant", "\"h\""));
		char name[] = {(char)('a' + i), '.', 'j', 's', 'o', 'n', 'l', 0};
		_cleanup_free_ char *records = str_printf("%s%s", good, cases[i].record), *text = NULL;
		_cleanup_(dataset_closep) struct dataset *d = NULL;
		struct notes notes = {0};
		struct dataset_options o = options(put(name, records), &notes);
		struct error err = ERROR_INIT;

		o.template_name = "qwen3_nothink";
		ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
		ck_assert_msg(dataset_rows(d) == (cases[i].want ? 2 : 1), "case %zu: %lld rows: %s", i,
		              (long long)dataset_rows(d), notes.last);
		if (cases[i].want) {
			text = row_text(d, 1);
			ck_assert_msg(str_starts(text, cases[i].want), "case %zu: %s", i, text);
		} else {
			ck_assert_msg(strstr(notes.last, cases[i].words), "case %zu: %s", i, notes.last);
		}
	}
}
END_TEST

/* A directory is all of its files in the order of their names, but for hidden ones, directories, and
 * dataset_info.json. */
START_TEST(test_directory)
{
	_cleanup_free_ char *data = str_printf("%s/data", dir), *deeper = str_printf("%s/data/deeper", dir),
	                    *empty = str_printf("%s/none", dir);
	struct notes notes = {0};
	struct dataset_options o = options(data, &notes);
	struct tokenizer tok = {0};
	struct error err = ERROR_INIT;
	_cleanup_(dataset_closep) struct dataset *d = NULL;
	static const char *const files[][2] = {
	    {"data/b.json", "[{\"instruction\":\"2\",\"output\":\"b\"}]"},
	    {"data/a.jsonl", "{\"instruction\":\"1\",\"output\":\"a\"}\n"},
	    {"data/.hidden.json", "[{\"instruction\":\"3\",\"output\":\"c\"}]"},
	    {"data/dataset_info.json", "{}"},
	    {"data/deeper/c.json", "[{\"instruction\":\"4\",\"output\":\"d\"}]"},
	};

	ck_ok(file_mkdirs(deeper, 0755, &err), &err);
	ck_ok(file_mkdirs(empty, 0755, &err), &err);
	for (size_t i = 0; i < ARRAY_SIZE(files); i++)
		put(files[i][0], files[i][1]);
	o.template_name = "empty";
	ck_ok(dataset_open(&o, &tok, &d, NULL, &err), &err);
	ck_assert_int_eq(dataset_rows(d), 2);
	ck_row(d, 0, "1a|_a_");
	ck_row(d, 1, "2b|_b_");
	only[0] = empty;
	dataset_close(steal_pointer(d));
	ck_fails(dataset_open(&o, &tok, &d, NULL, &err), &err, "none: no files in this directory");
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("dataset, tools");
	TCase *tc = tcase_create("all");
	const TTest *const tests[] = {test_no_tools,          test_large_integers, test_tool_prompt,
	                              test_columns_of_a_file, test_thoughts,       test_messages,
	                              test_directory};

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 60);
	for (size_t i = 0; i < ARRAY_SIZE(tests); i++)
		tcase_add_test(tc, tests[i]);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}

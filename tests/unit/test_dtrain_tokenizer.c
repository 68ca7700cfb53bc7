/* SPDX-License-Identifier: Apache-2.0 */
/* dtrain tokenizer: the texts that it reads, its messages about a new tokenizer, and ids of texts and back.
 */
#include "dtrain_fixture.h"
#include "failing_memory.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/str.h"

static void setup(void)
{
	static const char text[] = "abababab ab ab\n";
	struct error err = ERROR_INIT;

	fixture_setup();
	ck_assert_int_eq(chdir(fixture_dir()), 0);
	ck_ok(file_write_atomic("t.txt", text, strlen(text), 0644, &err), &err);
}

/* 3 special tokens and 256 bytes; "ab", "abab", "abababab" and " ab" are all that can be merged. */
START_TEST(a_text_may_run_out_of_pairs)
{
	static const struct {
		const char *line, *output;
	} cases[] = {
	    {"tokenizer train -n 261 --overwrite -o t t.txt", "t: 261 tokens\n"},
	    {"tokenizer train -n 6400 --overwrite -o t t.txt",
	     "t: 263 tokens\nonly 263 of the 6400 tokens of "
	     "--vocab-size: the text has no more pairs to merge; a "
	     "longer text has\n"},
	    {"tokenizer train -n 6400 --min-frequency 3 --overwrite -o t t.txt",
	     "t: 261 tokens\nonly 261 of the 6400 tokens of --vocab-size: the text has no more pairs to "
	     "merge "
	     "that occur 3 times or more; a longer text has\n"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_(call_release) struct call call = fixture_call(cmd_tokenizer, cases[i].line);

		ck_assert_str_eq(call.errors, "");
		ck_assert_int_eq(call.status, 0);
		ck_assert_str_eq(call.output, cases[i].output);
	}
}
END_TEST

static void write_text(const char *name, const char *text)
{
	struct error err = ERROR_INIT;

	ck_ok(file_write_atomic(name, text, strlen(text), 0644, &err), &err);
}

/* Files of JSON lines are read line by line, and what is wrong is named by its line. */
START_TEST(texts_are_read_from_json_lines)
{
	static const struct {
		const char *lines, *line, *output, *errors;
		int status;
	} cases[] = {
	    {"{\"text\":\"abababab ab ab\"}\n", "tokenizer train -n 6400 --overwrite -o t l.jsonl",
	     "t: 263 tokens\n", "", 0},
	    {"\n{\"text\":\"abababab\"}\n \t\r\n\n{\"text\":\" ab ab\"}",
	     "tokenizer train -n 6400 --overwrite -o t l.jsonl", "t: 263 tokens\n", "", 0},
	    /* One text, then none, then another. */
	    {"", "tokenizer train -n 6400 --overwrite -o t t.txt l.jsonl t.txt", "t: 263 tokens\n", "", 0},
	    {"{\"text\":\"cdcdcdcd\"}\n", "tokenizer train -n 6400 --overwrite -o t t.txt l.jsonl",
	     "t: 266 tokens\n", "", 0},
	    {"{\"text\":\"cdcdcdcd\"}\n", "tokenizer train -n 6400 --overwrite -o t l.jsonl t.txt",
	     "t: 266 tokens\n", "", 0},
	    {"{\"text\":\"ab\"}\n\n{\"txt\":1}\n", "tokenizer train -n 6400 --overwrite -o t l.jsonl",
	     "t: 260 tokens\n", "dtrain: skipped: l.jsonl:3: text: missing", 0},
	    /* As the files of data.path: a byte order mark, large integers, and what cannot be read. */
	    {"\xef\xbb\xbf{\"text\":\"abababab ab ab\"}\n",
	     "tokenizer train -n 6400 --overwrite -o t l.jsonl", "t: 263 tokens\n", "", 0},
	    {"{\"text\":\"abababab ab ab\",\"id\":18446744073709551615}\n",
	     "tokenizer train -n 6400 --overwrite -o t l.jsonl", "t: 263 tokens\n", "", 0},
	    {"[{\"text\":\"abababab\"},\n{\"text\":\" ab ab\"}]",
	     "tokenizer train -n 6400 --overwrite -o t l.jsonl", "t: 263 tokens\n", "", 0},
	    {"{\"text\":\"abababab\"}\n{\"text\":\n7\n8\n9\n{\"text\":\" ab ab\"}\n",
	     "tokenizer train -n 6400 --overwrite -o t l.jsonl", "t: 263 tokens\n",
	     "dtrain: skipped: l.jsonl:2: not valid JSON: unexpected token near end of file\n"
	     "dtrain: skipped: l.jsonl:3: text: missing; a string is needed\n"
	     "dtrain: skipped: l.jsonl:4: text: missing; a string is needed\n"
	     "dtrain: skipped: 4 records in all could not be used\n",
	     0},
	    {"7\n{\"txt\":\"ab\"}\n", "tokenizer train -n 6400 --overwrite -o t t.txt l.jsonl", "",
	     "dtrain: skipped: l.jsonl:1: text: missing; a string is needed\n"
	     "dtrain: skipped: l.jsonl:2: text: missing; a string is needed\n"
	     "dtrain: l.jsonl:1: text: missing; a string is needed\n",
	     1},
	    {"", "tokenizer train -n 261 --chat-template absent -o u t.txt", "", "dtrain: cannot read absent",
	     1},
	    {"", "tokenizer train -n 261 t.txt", "", "dtrain: tokenizer train: --output DIR is needed\n", 2},
	    {"{\"text\":\"ab\"}\n{\"text\"", "tokenizer train -n 6400 --overwrite -o t l.jsonl",
	     "t: 260 tokens\n", "dtrain: skipped: l.jsonl:2:", 0},
	    {"[{\"text\":\"ab\"},", "tokenizer train -n 6400 --overwrite -o t l.jsonl", "",
	     "dtrain: l.jsonl:1: the JSON array breaks off here", 1},
	    {"", "tokenizer train -n 6400 --overwrite -o t none.jsonl", "", "dtrain: cannot read none.jsonl",
	     1},
	    {"", "tokenizer train -n 6400 --overwrite -o t none.txt", "", "dtrain: cannot read none.txt", 1},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_(call_release) struct call call = {0};

		write_text("l.jsonl", cases[i].lines);
		call = fixture_call(cmd_tokenizer, cases[i].line);
		ck_assert_int_eq(call.status, cases[i].status);
		ck_assert_msg(str_starts(call.output, cases[i].output), "%zu: %s", i, call.output);
		ck_assert_msg(str_starts(call.errors, cases[i].errors) && (*cases[i].errors || !*call.errors),
		              "%zu: %s", i, call.errors);
	}
}
END_TEST

/* The mark that a text may begin with is no character of it. */
START_TEST(a_byte_order_mark_is_no_text)
{
	_cleanup_(call_release) struct call call = {0};

	write_text("t.txt", "\xef\xbb\xbf"
	                    "abababab ab ab\n");
	call = fixture_call(cmd_tokenizer, "tokenizer train -n 6400 -o t t.txt");
	ck_assert_msg(call.status == 0, "%s", call.errors);
	ck_assert_msg(str_starts(call.output, "t: 263 tokens\n"), "%s", call.output);
}
END_TEST

/* fixture_call with that standard input. */
static struct call call_with_input(command_fn command, const char *line, const char *input)
{
	int saved = dup(STDIN_FILENO), fd;
	struct call call;

	write_text("input", input);
	fd = open("input", O_RDONLY | O_CLOEXEC);
	ck_assert(saved >= 0 && fd >= 0);
	dup2(fd, STDIN_FILENO);
	clearerr(stdin);
	call = fixture_call(command, line);
	dup2(saved, STDIN_FILENO);
	close(saved);
	close(fd);
	return call;
}

static const struct {
	const char *line, *input, *output, *errors;
	int status;
} encodings[] = {
    /* <x> is 3, after the usual three; <y> is 4. Bytes follow, then ab, abab, " ab" and abababab. */
    {"tokenizer encode t ab", "", "261\n", "", 0},
    {"tokenizer encode t abx", "", "261 92\n", "", 0},
    {"tokenizer encode t", "", "\n", "", 0},
    {"tokenizer encode t", "abx", "261 92\n", "", 0},
    {"tokenizer encode t -", "ab", "261\n", "", 0},
    {"tokenizer encode --json t <x>abé", "",
     "{\"ids\":[3,261,132,107],\"tokens\":[\"<x>\",\"ab\",\"Ã\",\"©\"]}\n", "", 0},
    {"tokenizer encode none ab", "", "", "dtrain: none: No such file or directory\n", 1},
    {"tokenizer encode", "", "", "dtrain: tokenizer encode: DIR [TEXT|-] is missing\n", 2},
    {"tokenizer encode t a b", "", "", "dtrain: tokenizer encode: \"b\" is too much\n", 2},
    {"tokenizer decode t 261 92", "", "abx\n", "", 0},
    {"tokenizer decode t [261, 261]", "", "abab\n", "", 0},
    {"tokenizer decode t [261,92]", "", "abx\n", "", 0},
    {"tokenizer decode t", "261 92\n", "abx\n", "", 0},
    {"tokenizer decode t -", "[261,92]\n", "abx\n", "", 0},
    {"tokenizer decode t -", "", "\n", "", 0},
    {"tokenizer decode t 0 261 3 4", "", "<|endoftext|>ab<x><y>\n", "", 0},
    {"tokenizer decode --skip-special t 0 261 3 4", "", "ab\n", "", 0},
    {"tokenizer decode t 0", "", "<|endoftext|>\n", "", 0},
    {"tokenizer decode t 261 x", "", "", "dtrain: \"x\" is no id; whole numbers from 0 on are needed\n", 1},
    {"tokenizer decode t - -", "", "", "dtrain: \"-\" is no id; whole numbers from 0 on are needed\n", 1},
    {"tokenizer decode t 2147483648", "", "",
     "dtrain: \"2147483648\" is no id; whole numbers from 0 on are needed\n", 1},
    {"tokenizer decode t -", "y", "", "dtrain: \"y\" is no id; whole numbers from 0 on are needed\n", 1},
    {"tokenizer decode t 265", "", "", "dtrain: t/tokenizer.json: there is no token 265; ids are 0 … 264\n",
     1},
    {"tokenizer decode none 1", "", "", "dtrain: none: No such file or directory\n", 1},
};

START_TEST(texts_become_ids_and_back)
{
	_cleanup_(call_release) struct call trained = fixture_call(
	    cmd_tokenizer, "tokenizer train -n 6400 --overwrite -o t --special <x> --special <y> t.txt");

	ck_assert_str_eq(trained.errors, "");
	ck_assert_msg(str_starts(trained.output, "t: 265 tokens\n"), "%s", trained.output);
	for (size_t i = 0; i < ARRAY_SIZE(encodings); i++) {
		_cleanup_(call_release) struct call call =
		    call_with_input(cmd_tokenizer, encodings[i].line, encodings[i].input);

		ck_assert_msg(call.status == encodings[i].status, "%s: %d", encodings[i].line, call.status);
		ck_assert_msg(str_eq(call.output, encodings[i].output), "%s: %s", encodings[i].line,
		              call.output);
		ck_assert_msg(str_starts(call.errors, encodings[i].errors) &&
		                  (*encodings[i].errors || !*call.errors),
		              "%s: %s", encodings[i].line, call.errors);
	}
}
END_TEST

/* Which tokens begin, end and fill up a text, and the template of conversations. "": none. */
START_TEST(a_tokenizer_has_the_tokens_that_were_named)
{
	static const struct {
		const char *line, *words[4];
	} cases[] = {
	    {"tokenizer train --overwrite -o t t.txt",
	     {"\"bos_token\": \"<|im_start|>\"", "\"eos_token\": \"<|im_end|>\"",
	      "\"pad_token\": \"<|endoftext|>\""}},
	    {"tokenizer train --overwrite -o t --special <x> --bos <x> --eos <|endoftext|> --pad <|im_end|> "
	     "t.txt",
	     {"\"bos_token\": \"<x>\"", "\"eos_token\": \"<|endoftext|>\"", "\"pad_token\": \"<|im_end|>\""}},
	    {"tokenizer train --overwrite -o t --chat-template chatml t.txt",
	     {"\"chat_template\": \"{% for message in messages %}{{ '<|im_start|>' + message['role']"}},
	    {"tokenizer train --overwrite -o t --chat-template template t.txt",
	     {"\"chat_template\": \"{{ mine }}\""}},
	};

	write_text("template", "{{ mine }}");
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_(call_release) struct call call = fixture_call(cmd_tokenizer, cases[i].line);
		_cleanup_free_ char *config = NULL;

		ck_assert_msg(call.status == 0, "%s", call.errors);
		ck_assert_int_eq(file_read("t/tokenizer_config.json", 0, &config, NULL, NULL), 0);
		for (size_t j = 0; j < ARRAY_SIZE(cases[i].words) && cases[i].words[j]; j++)
			ck_assert_msg(strstr(config, cases[i].words[j]), "no %s in\n%s", cases[i].words[j],
			              config);
		ck_assert(!strstr(config, "chat_template") == !strstr(cases[i].line, "chat-template"));
	}
	{
		_cleanup_(call_release) struct call call = fixture_call(
		    cmd_tokenizer, "tokenizer train --overwrite -o t --bos= --eos= --pad= t.txt");
		_cleanup_free_ char *config = NULL;

		ck_assert_msg(call.status == 0, "%s", call.errors);
		ck_assert_int_eq(file_read("t/tokenizer_config.json", 0, &config, NULL, NULL), 0);
		ck_assert_ptr_null(strstr(config, "_token\": \""));
	}
}
END_TEST

/* A tokenizer that is there is replaced only where that was asked for. */
START_TEST(a_tokenizer_is_not_replaced_by_accident)
{
	static const char own[] = "{\"model's\":\"own\"}";
	_cleanup_(call_release) struct call refused = {0}, replaced = {0}, beside = {0};
	_cleanup_free_ char *kept = NULL, *new = NULL;

	ck_assert_int_eq(mkdir("m", 0755), 0);
	write_text("m/tokenizer.json", own);
	refused = fixture_call(cmd_tokenizer, "tokenizer train -n 261 -o m t.txt");
	ck_assert_int_eq(refused.status, 1);
	ck_assert_str_eq(
	    refused.errors,
	    "dtrain: m has a tokenizer already; choose another directory, or give --overwrite\n");
	ck_assert_int_eq(file_read("m/tokenizer.json", 0, &kept, NULL, NULL), 0);
	ck_assert_str_eq(kept, own);
	replaced = fixture_call(cmd_tokenizer, "tokenizer train -n 261 --overwrite -o m t.txt");
	ck_assert_msg(replaced.status == 0, "%s", replaced.errors);
	ck_assert_int_eq(file_read("m/tokenizer.json", 0, &new, NULL, NULL), 0);
	ck_assert_str_ne(new, own);
	/* A directory with other files, such as the config.json of a model that is to be, may be used. */
	ck_assert_int_eq(mkdir("c", 0755), 0);
	write_text("c/config.json", "{}");
	beside = fixture_call(cmd_tokenizer, "tokenizer train -n 261 -o c t.txt");
	ck_assert_msg(beside.status == 0, "%s", beside.errors);
}
END_TEST

#define HELP "Usage: dtrain tokenizer train|encode|decode [OPTION…] [ARGUMENT…]\n"

START_TEST(a_part_is_named)
{
	static const struct {
		const char *line, *output, *errors;
		int status;
	} cases[] = {
	    {"tokenizer", "", HELP, 2},
	    {"tokenizer --help", HELP, "", 0},
	    {"tokenizer -h", HELP, "", 0},
	    {"tokenizer trainn", "", "dtrain: tokenizer: there is no \"trainn\"; did you mean train?\n", 2},
	    {"tokenizer decod", "", "dtrain: tokenizer: there is no \"decod\"; did you mean decode?\n", 2},
	    {"tokenizer show", "", "dtrain: tokenizer: there is no \"show\"\n" HELP, 2},
	    {"tokenizer train t.txt", "", "dtrain: tokenizer train: --output DIR is needed\n", 2},
	    {"tokenizer train -o t", "", "dtrain: tokenizer train: FILE… is missing\n", 2},
	    {"tokenizer train -o t --chat-template none t.txt", "", "dtrain: cannot read none", 1},
	    {"tokenizer train -o t -n 10 t.txt", "", "dtrain: ", 1},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_(call_release) struct call call = fixture_call(cmd_tokenizer, cases[i].line);

		ck_assert_msg(call.status == cases[i].status, "%s: %d", cases[i].line, call.status);
		ck_assert_msg(str_starts(call.output, cases[i].output) && (*cases[i].output || !*call.output),
		              "%s: %s", cases[i].line, call.output);
		ck_assert_msg(str_starts(call.errors, cases[i].errors) && (*cases[i].errors || !*call.errors),
		              "%s: %s", cases[i].line, call.errors);
	}
}
END_TEST

/* Texts are read in pieces of 4 MiB, each of which ends with a line: no word is cut, and all lines count. */
START_TEST(a_long_text_is_read_to_its_end)
{
	enum { LINES = 700000 };
	_cleanup_free_ char *text = malloc(8 * LINES + 32);
	char *at = text;
	_cleanup_(call_release) struct call call = {0};

	for (int i = 0; i < LINES; i++)
		at = stpcpy(at, "ababab\n");
	at = stpcpy(at, "cdcdcd\ncdcdcd\n");
	write_text("long.txt", text);
	/* In the text of one line, ab, abab and ababab; at its end, and only there, cd, cdcd and cdcdcd. */
	call = fixture_call(cmd_tokenizer,
	                    "tokenizer train -n 6400 --min-frequency 2 --overwrite -o t long.txt");
	ck_assert_msg(call.status == 0, "%s", call.errors);
	ck_assert_msg(str_starts(call.output, "t: 265 tokens\n"), "%s", call.output);
}
END_TEST

START_TEST(progress_is_shown_on_a_terminal)
{
	_cleanup_(call_release) struct call call =
	    fixture_terminal(cmd_tokenizer, "tokenizer train -n 261 --overwrite -o t t.txt", 80);

	ck_assert_int_eq(call.status, 0);
	ck_assert_msg(strstr(call.output, "\r261 of 261 tokens\r\nt: 261 tokens\r\n"), "%s", call.output);
}
END_TEST

/* Each allocation of a command fails once: its exit status says that it has not done its work. */
static long allowed; /* allocations of the command, the fixture not counted */

static int tokenizer_with_little_memory(struct client *client, int argc, char **argv)
{
	int status;

	memory_left = allowed;
	status = cmd_tokenizer(client, argc, argv);
	memory_left = 0;
	return status;
}

static int with_little_memory(void *context, struct error *err)
{
	_cleanup_(call_release) struct call call = {0};

	allowed = memory_left;
	memory_left = 0;
	call = call_with_input(tokenizer_with_little_memory, context, "ab cd");
	if (call.status == 0)
		return 0;
	ck_assert_msg(strstr(call.errors, "memory"), "%s: %s", (char *)context, call.errors);
	return -ENOMEM;
}

START_TEST(memory_runs_out_of_each_command)
{
	static const char *const lines[] = {
	    "tokenizer encode t",
	    "tokenizer encode t ab",
	    "tokenizer encode --json t ab",
	    "tokenizer decode t 261 92",
	    "tokenizer train -n 261 --overwrite -o u --special <x> --chat-template chatml l.jsonl t.txt",
	};
	_cleanup_(call_release) struct call trained =
	    fixture_call(cmd_tokenizer, "tokenizer train -n 264 --overwrite -o t t.txt");

	write_text("l.jsonl", "{\"text\":\"abababab\"}\n");
	for (size_t i = 0; i < ARRAY_SIZE(lines); i++)
		memory_runs_out(with_little_memory, (void *)lines[i]);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("dtrain_tokenizer");
	TCase *tc = tcase_create("train");

	tcase_add_checked_fixture(tc, setup, fixture_teardown);
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, a_text_may_run_out_of_pairs);
	tcase_add_test(tc, texts_are_read_from_json_lines);
	tcase_add_test(tc, a_byte_order_mark_is_no_text);
	tcase_add_test(tc, texts_become_ids_and_back);
	tcase_add_test(tc, a_tokenizer_has_the_tokens_that_were_named);
	tcase_add_test(tc, a_tokenizer_is_not_replaced_by_accident);
	tcase_add_test(tc, a_part_is_named);
	tcase_add_test(tc, a_long_text_is_read_to_its_end);
	tcase_add_test(tc, progress_is_shown_on_a_terminal);
	tcase_add_test(tc, memory_runs_out_of_each_command);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}

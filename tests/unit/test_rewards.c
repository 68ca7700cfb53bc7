/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the lines of JSON that the program of rewards reads, by a program that writes them to a file, and
 * those of completions.jsonl. */
#include "unit.h"

#include "base/json.h"
#include "worker/completions.h"
#include "worker/rewards.h"

#include "stub_tokenizer.h"

int tokenizer_decode(const struct tokenizer *tok, const int32_t *ids, size_t n, bool skip_special,
                     char **text, size_t *len, struct error *err)
{
	struct strbuf b = {0};

	(void)tok;
	for (size_t i = 0; i < n; i++)
		if (ids[i] >= 16)
			strbuf_addc(&b, (char)(ids[i] - 16));
		else if (!skip_special)
			strbuf_adds(&b, stub_specials[ids[i]]);
	*len = b.len;
	*text = strbuf_steal(&b);
	return *text ? 0 : error_oom(err);
}

static char *dir;
static struct tokenizer tok;

static void setup(void)
{
	dir = unit_tmpdir();
	signal(SIGPIPE, SIG_IGN);
	ck_assert_int_eq(chdir(dir), 0);
}

static void teardown(void)
{
	file_remove_tree(dir, NULL);
	free(dir);
}

/* Its rewards are the numbers of the lines, from 1 on. */
static char *script[] = {(char *)"sh", (char *)"-c",
                         (char *)"i=0; while read -r x; do printf '%s\\n' \"$x\" >>lines; i=$((i + 1)); "
                                 "echo $i; done",
                         NULL};

struct played {
	struct token_list ids, answer;
	struct rollout rollout;
};

static void add(struct token_list *list, const char *text, size_t len)
{
	struct error err = ERROR_INIT;

	ck_ok(tokenizer_encode(&tok, text, len, false, list, &err), &err);
}

/* A completion of texts, of which the last one may hold any bytes. */
static struct played play(int64_t row, const char *prompt, const char *answer, const char *completion,
                          size_t len)
{
	struct played p = {0};

	add(&p.ids, prompt, strlen(prompt));
	p.rollout = (struct rollout){.row = row, .prompt = (int64_t)p.ids.len};
	add(&p.ids, completion, len);
	for (const char *c = answer; *c; c++)
		ck_assert_int_eq(token_list_add(&p.answer, &(int32_t){(unsigned char)*c}, 1), 0);
	p.rollout.ids = p.ids.ids;
	p.rollout.length = (int64_t)p.ids.len - p.rollout.prompt;
	p.rollout.answer = p.answer.ids;
	p.rollout.answers = (int64_t)p.answer.len;
	return p;
}

static void clear(struct played *p)
{
	token_list_free(&p->ids);
	token_list_free(&p->answer);
}

static char *written(void)
{
	struct error err = ERROR_INIT;
	char *text;
	size_t len;

	ck_ok(file_read("lines", 1 << 20, &text, &len, &err), &err);
	return text;
}

START_TEST(lines_of_completions)
{
	static const char completion[] = "<think>a\nb</think>\"c\"<|im_end|>";
	struct played p = play(7, "<s>Q\n<|im_start|>", "<sep>42", completion, strlen(completion)),
	              q = play(9007199254740993, "\xc3\xa9", "", "</s>", 4);
	struct run_config config = {.task = RUN_GRPO, .grpo.reward = script, .parallel.timeout = 300};
	struct rewards r;
	const struct rollout both[] = {p.rollout, q.rollout};
	double rewards[2] = {0}, values[2 * POLICY_PARTS_MOST];
	struct policy_parts parts = {.values = values};
	_cleanup_free_ char *text = NULL;
	struct error err = ERROR_INIT;

	ck_ok(rewards_start(&r, &config, &tok, &err), &err);
	ck_ok(rewards_give(&r, both, 2, rewards, &parts, &err), &err);
	ck_assert(rewards[0] == 1 && rewards[1] == 2);
	/* The program stays for the next ones. */
	q.rollout.finished = q.rollout.held_out = true;
	ck_ok(rewards_give(&r, &q.rollout, 1, rewards, &parts, &err), &err);
	ck_assert(rewards[0] == 3 && rewards[1] == 2);
	rewards_end(&r);
	ck_assert_ptr_null(r.program);
	rewards_end(&r);
	text = written();
	ck_assert_str_eq(
	    text,
	    "{\"prompt\":\"<s>Q\\n<|im_start|>\",\"completion\":\"a\\nb\\\"c\\\"\",\"answer\":\"<sep>42\","
	    "\"finished\":false,\"held_out\":false,\"row\":7,\"index\":0,\"count\":2,\"prompt_ids\":[1,97,26,"
	    "3],\"completion_"
	    "ids\":[6,113,26,114,7,50,"
	    "115,50,4]}\n"
	    "{\"prompt\":\"\xc3\xa9\",\"completion\":\"\",\"answer\":null,\"finished\":false,"
	    "\"held_out\":false,\"row\":9007199254740993,\"index\":1,\"count\":2,\"prompt_ids\":[211,185],"
	    "\"completion_ids\":[2]"
	    "}\n"
	    "{\"prompt\":\"\xc3\xa9\",\"completion\":\"\",\"answer\":null,\"finished\":true,"
	    "\"held_out\":true,\"row\":9007199254740993,\"index\":0,\"count\":1,\"prompt_ids\":[211,185],"
	    "\"completion_ids\":[2]"
	    "}\n");
	clear(&p);
	clear(&q);
}
END_TEST

/* The answer of a row has them. */
START_TEST(columns_of_the_data)
{
	char *names[] = {(char *)"b", (char *)"a", NULL};
	struct run_config config = {
	    .task = RUN_GRPO, .grpo = {.reward = script, .columns = names}, .parallel.timeout = 300};
	struct played p =
	    play(0, "Q", "{\"answer\": null, \"columns\": {\"b\": [1], \"a\": 12345678901234567890}}", "", 0);
	struct rewards r;
	_cleanup_free_ char *text = NULL;
	struct error err = ERROR_INIT;
	double reward, values[POLICY_PARTS_MOST];
	struct policy_parts parts = {.values = values};

	ck_ok(rewards_start(&r, &config, &tok, &err), &err);
	ck_ok(rewards_give(&r, &p.rollout, 1, &reward, &parts, &err), &err);
	rewards_end(&r);
	text = written();
	ck_assert_msg(str_starts(text,
	                         "{\"prompt\":\"Q\",\"completion\":\"\",\"answer\":null,\"columns\":{\"b\":"
	                         "[1],\"a\":12345678901234567890},\"finished\":"),
	              "%s", text);
	clear(&p);
}
END_TEST

/* A model may write any bytes: each that is no part of a character becomes a question mark. */
START_TEST(any_bytes_are_text)
{
	static const struct {
		const char *bytes;
		size_t len;
		const char *json;
	} cases[] = {
#define BYTES(bytes, json) {bytes, sizeof(bytes) - 1, json}
	    BYTES("a\0b\0\0", "a\\u0000b\\u0000\\u0000"),
	    BYTES("\0", "\\u0000"),
	    BYTES("\xff"
	          "a\0\xfe\0",
	          "?a\\u0000?\\u0000"),
	    BYTES("\xc3\xa9\xc3", "\xc3\xa9?"),
	    BYTES("\xc3\0\xa9", "?\\u0000?"),
	    BYTES("\xed\xa0\x80", "???"),
	    BYTES("\xc0\x80", "??"),
	    BYTES("\xf4\x90\x80\x80", "????"),
	    BYTES("\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80"),
	    BYTES("\xef\xbf\xbf\x01\x7f", "\xef\xbf\xbf\\u0001\x7f"),
	    BYTES("\r\n\t\\", "\\r\\n\\t\\\\"),
#undef BYTES
	};
	struct run_config config = {.task = RUN_GRPO, .grpo.reward = script, .parallel.timeout = 300};
	struct rewards r;
	_cleanup_free_ char *text = NULL;
	struct error err = ERROR_INIT;
	char *at;

	ck_ok(rewards_start(&r, &config, &tok, &err), &err);
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct played p = play(0, "Q", "", cases[i].bytes, cases[i].len);
		double reward, values[POLICY_PARTS_MOST];
		struct policy_parts parts = {.values = values};

		ck_ok(rewards_give(&r, &p.rollout, 1, &reward, &parts, &err), &err);
		ck_assert_double_eq(reward, (double)i + 1);
		clear(&p);
	}
	rewards_end(&r);
	at = text = written();
	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_free_ char *want =
		    str_printf("{\"prompt\":\"Q\",\"completion\":\"%s\",\"answer\":null,", cases[i].json);

		ck_assert_msg(strncmp(at, want, strlen(want)) == 0, "%zu: %s", i, at);
		at = strchr(at, '\n');
		ck_assert_ptr_nonnull(at++);
	}
	ck_assert_str_eq(at, "");
}
END_TEST

START_TEST(a_program_that_cannot_start)
{
	char *none[] = {(char *)"./none", NULL};
	struct run_config config = {.task = RUN_GRPO, .grpo.reward = none, .parallel.timeout = 300};
	struct rewards r;
	struct error err = ERROR_INIT;

	ck_fails(rewards_start(&r, &config, &tok, &err), &err, "grpo.reward: cannot start ./none");
	rewards_end(&r);
}
END_TEST

/* The steps of the lines, as digits. */
static void check_steps(const char *path, const char *want)
{
	_cleanup_strbuf_ struct strbuf steps = {0};
	_cleanup_free_ char *text = NULL;
	struct error err = ERROR_INIT;
	size_t len;

	ck_ok(file_read(path, 1 << 20, &text, &len, &err), &err);
	for (char *line = text, *next; *line; line = next) {
		_cleanup_json_ json_t *j = NULL;

		next = strchr(line, '\n') + 1;
		ck_ok(json_parse(line, (size_t)(next - line), "a line", &j, &err), &err);
		strbuf_addf(&steps, "%.0f%s", json_get_number(j, "step", -1),
		            json_is_true(json_object_get(j, "held_out")) ? "h" : "");
	}
	ck_assert_str_eq(steps.len ? steps.data : "", want);
}

START_TEST(completions_in_a_file)
{
	struct run_config config = {.task = RUN_GRPO, .output = {.dir = dir}, .grpo = {.log_completions = 2}};
	struct played p = play(0, "Q", "", "a", 1);
	struct rollout set[3] = {p.rollout, p.rollout, p.rollout};
	const double rewards[3] = {1, 0.5, -2};
	double values[2 * POLICY_PARTS_MOST] = {0.75, 0.25, [POLICY_PARTS_MOST] = 1, -0.5};
	const struct policy_parts none = {.known = true},
	                          two = {
	                              .known = true, .count = 2, .name = {"right", "form"}, .values = values};
	_cleanup_free_ char *text = NULL, *all = NULL;
	struct completions c = {0};
	struct error err = ERROR_INIT;
	size_t len;

	/* Of a rank that writes nothing. */
	ck_ok(completions_write(&c, 1, set, 3, rewards, &none, &err), &err);
	ck_ok(completions_open(&c, &config, &tok, 0, &err), &err);
	for (int64_t step = 1; step <= 7; step += 2)
		ck_ok(completions_write(&c, step, set, step == 7 ? 1 : 3, rewards, &none, &err), &err);
	ck_ok(completions_write(&c, 9, set, 0, rewards, &none, &err), &err);
	set[0].held_out = true;
	ck_ok(completions_write(&c, 9, set, 3, rewards, &two, &err), &err);
	check_steps("completions.jsonl", "11335579h9");
	ck_ok(file_read("completions.jsonl", 1 << 20, &all, &len, &err), &err);
	ck_assert(strstr(
	    all, "\"held_out\":true,\"row\":0,\"reward\":1.0,\"rewards\":{\"right\":0.75,\"form\":0.25}}\n"));
	ck_assert(strstr(all, "\"reward\":0.5,\"rewards\":{\"right\":1.0,\"form\":-0.5}}\n"));
	completions_close(&c);
	ck_ok(completions_open(&c, &config, &tok, 6, &err), &err);
	check_steps("completions.jsonl", "113355");
	completions_close(&c);
	ck_ok(file_read("completions.jsonl", 1 << 20, &text, &len, &err), &err);
	ck_assert(strstr(text, "{\"step\":1,\"prompt\":\"Q\",\"completion\":\"a\",\"answer\":null,"
	                       "\"finished\":false,\"held_out\":false,\"row\":0,\"reward\":0.5}\n"));
	/* A run from the start. */
	ck_ok(completions_open(&c, &config, &tok, 0, &err), &err);
	completions_close(&c);
	check_steps("completions.jsonl", "");
	check_steps("completions.jsonl.1", "113355");
	config.output.dir = (char *)"/none";
	ck_fails(completions_open(&c, &config, &tok, 0, &err), &err, "/none/completions.jsonl");
	completions_close(&c);
	clear(&p);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("rewards");
	TCase *tc = tcase_create("all");
	const TTest *const tests[] = {lines_of_completions, columns_of_the_data, any_bytes_are_text,
	                              a_program_that_cannot_start, completions_in_a_file};

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_set_timeout(tc, 60);
	for (size_t i = 0; i < ARRAY_SIZE(tests); i++)
		tcase_add_test(tc, tests[i]);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}

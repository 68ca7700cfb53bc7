/* SPDX-License-Identifier: Apache-2.0 */
/* dtrain check: the errors in files that a run file names, one line each, and the list of checks that were
 * not done. */
#include "dtrain_fixture.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/str.h"

#define NOT_CHECKED                                                                                          \
	"not checked: that the files are equal on all nodes, each example of the data, and that the "        \
	"cluster "                                                                                           \
	"has devices with enough memory\n"
#define GOOD                                                                                                 \
	"task = \"sft\"; model = { init = \"" SRCDIR                                                         \
	"/etc/examples/tiny-llama.json\"; tokenizer = \"" SRCDIR                                             \
	"/tests/engine/bytes\"; }; data = { path = \"good.json\"; template = \"qwen\"; }; output = { dir = " \
	"\"saves/x\"; };"

static void write_file(const char *name, const char *text)
{
	struct error err = ERROR_INIT;

	ck_ok(file_write_atomic(name, text, strlen(text), 0644, &err), &err);
}

static void setup(void)
{
	fixture_setup();
	ck_assert_int_eq(chdir(fixture_dir()), 0);
	write_file("good.json", "[{\"instruction\":\"a\",\"output\":\"b\"}]");
	write_file("good.conf", GOOD);
}

START_TEST(what_is_fine_is_listed)
{
	_cleanup_(call_release) struct call call = fixture_call(cmd_check, "check good.conf");

	ck_assert_str_eq(call.errors, "");
	ck_assert_int_eq(call.status, 0);
	ck_assert_str_eq(
	    call.output,
	    "model       " SRCDIR
	    "/etc/examples/tiny-llama.json: llama, 4 layers, 4.0 M parameters, from random weights\n"
	    "tokenizer   " SRCDIR "/tests/engine/bytes: 259 tokens\n"
	    "template    qwen\ndata        good.json: alpaca\noutput      saves/x: can be written\n"
	    "good.conf: fine\n" NOT_CHECKED);
}
END_TEST

static const struct {
	const char *override, *words; /* words: a line on stderr behind "dtrain: good.conf: ", or its begin */
	bool begins;
} wrong[] = {
    {"model.init=none.json", "model.init: cannot read none.json: No such file or directory\n", false},
    {"model.init=good.json", "model.init: good.json: ", true},
    {"model.tokenizer=none", "model.tokenizer: ", true},
    {"parallel.strategy=zero3 --set parallel.persist_below=100000000 --set resources.devices_per_node=2",
     "parallel: parallel.persist_below is 100000000, but the largest unit of this model has ", true},
    {"data.template=qwenn", "data.template: unknown template 'qwenn'; known are: ", true},
    {"data.tool_prompt=good.json",
     "data.tool_prompt: good.json: {{tools}} is missing; it has to stand where the list of tools goes\n",
     false},
    {"data.path=none.json", "data.path: cannot read none.json: No such file or directory\n", false},
    {"data.path=good.json,odd.json",
     "data.path: odd.json:1: the columns there are (x) tell no format: alpaca has instruction and output, "
     "sharegpt conversations, openai messages; map them with data.columns\n",
     false},
    {"output.dir=good.conf/x", "output.dir: DIR/good.conf is not a directory\n", false},
    {"directory=/nowhere", "directory: /nowhere: No such file or directory\n", false},
    {"resources.max_restarts=1", NULL, false},
};

START_TEST(what_is_wrong_is_named)
{
	_cleanup_free_ char *line = str_printf("check -s %s good.conf", wrong[_i].override), *want = NULL;
	_cleanup_free_ char *here = getcwd(NULL, 0);
	_cleanup_(call_release) struct call call = {0};
	const char *dir;

	write_file("odd.json", "[{\"x\":1}]");
	call = fixture_call(cmd_check, line);
	if (!wrong[_i].words) {
		ck_assert_int_eq(call.status, STATUS_USAGE);
		return;
	}
	dir = strstr(wrong[_i].words, "DIR");
	want = dir ? str_printf("dtrain: good.conf: %.*s%s%s", (int)(dir - wrong[_i].words), wrong[_i].words,
	                        here, dir + 3)
	           : str_printf("dtrain: good.conf: %s", wrong[_i].words);
	ck_assert_int_eq(call.status, 1);
	if (wrong[_i].begins)
		ck_assert_msg(str_starts(call.errors, want), "%s", call.errors);
	else
		ck_assert_str_eq(call.errors, want);
	ck_assert_ptr_null(strstr(call.output, "fine"));
	ck_assert_msg(str_ends(call.output, NOT_CHECKED), "%s", call.output);
}
END_TEST

/* A model's directory: absent, and without weights. */
START_TEST(a_model_has_weights)
{
	_cleanup_(call_release) struct call absent = {0}, empty = {0};
	struct error err = ERROR_INIT;

	write_file("m.conf",
	           "task = \"generate\"; model = { path = \"m\"; }; generate = { prompt = \"x\"; };");
	absent = fixture_call(cmd_check, "check m.conf");
	ck_assert_int_eq(absent.status, 1);
	ck_assert_str_eq(absent.errors, "dtrain: m.conf: model.path: m: No such file or directory\n");
	ck_assert_int_eq(mkdir("m", 0700), 0);
	ck_ok(file_copy(SRCDIR "/etc/examples/tiny-llama.json", "m/config.json", &err), &err);
	ck_ok(file_copy(SRCDIR "/tests/engine/bytes/tokenizer.json", "m/tokenizer.json", &err), &err);
	empty = fixture_call(cmd_check, "check m.conf");
	ck_assert_int_eq(empty.status, 1);
	ck_assert_msg(str_starts(empty.errors, "dtrain: m.conf: model.path: m"), "%s", empty.errors);
	ck_assert_ptr_nonnull(strstr(empty.errors, "safetensors"));
}
END_TEST

START_TEST(a_program_is_looked_for)
{
	_cleanup_(call_release) struct call good = {0}, bad = {0};

	write_file("c.conf", "command = [\"sh\"]; environment = [\"PATH=/nowhere:/bin\"];");
	write_file("d.conf", "command = [\"sh\"]; environment = [\"PATH=/nowhere\"];");
	good = fixture_call(cmd_check, "check c.conf");
	ck_assert_str_eq(good.output,
	                 "program     /bin/sh\nc.conf: fine\nnot checked: that the program is the same on "
	                 "all nodes, and that the cluster has the devices\n");
	bad = fixture_call(cmd_check, "check d.conf");
	ck_assert_int_eq(bad.status, 1);
	ck_assert_str_eq(bad.errors, "dtrain: d.conf: command: no program sh in PATH (/nowhere)\n");
}
END_TEST

/* A directory with the name of the program is skipped in PATH, and is not a program. */
START_TEST(a_directory_is_no_program)
{
	_cleanup_(call_release) struct call passed = {0}, absent = {0}, named = {0};

	ck_assert_int_eq(mkdir("bin", 0700), 0);
	ck_assert_int_eq(mkdir("bin/sh", 0700), 0);
	write_file("p.conf", "command = [\"sh\"]; environment = [\"PATH=bin:/bin\"];");
	write_file("a.conf", "command = [\"sh\"]; environment = [\"PATH=bin\"];");
	write_file("n.conf", "command = [\"./bin\"];");
	passed = fixture_call(cmd_check, "check p.conf");
	ck_assert_int_eq(passed.status, 0);
	ck_assert_msg(str_starts(passed.output, "program     /bin/sh\n"), "%s", passed.output);
	absent = fixture_call(cmd_check, "check a.conf");
	ck_assert_str_eq(absent.errors, "dtrain: a.conf: command: no program sh in PATH (bin)\n");
	named = fixture_call(cmd_check, "check n.conf");
	ck_assert_int_eq(named.status, 1);
	ck_assert_str_eq(named.errors,
	                 "dtrain: n.conf: command: cannot execute ./bin, a directory: Permission denied\n");
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("dtrain_check");
	TCase *tc = tcase_create("check");

	tcase_add_checked_fixture(tc, setup, fixture_teardown);
	tcase_set_timeout(tc, 60);
	tcase_add_test(tc, what_is_fine_is_listed);
	tcase_add_loop_test(tc, what_is_wrong_is_named, 0, ARRAY_SIZE(wrong));
	tcase_add_test(tc, a_model_has_weights);
	tcase_add_test(tc, a_program_is_looked_for);
	tcase_add_test(tc, a_directory_is_no_program);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}

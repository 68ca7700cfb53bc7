/* SPDX-License-Identifier: Apache-2.0 */
/* Unknown words on the command line: the messages and the suggestions. */
#include "dtrain_fixture.h"

#include <string.h>

#include "base/str.h"
#include "dtrain/complete.h"

static const struct {
	command_fn command;
	const char *line, *words;
} wrong[] = {
    {cmd_submit, "submit --nodse 3 x", "dtrain: submit: unknown option --nodse; did you mean --nodes?\n"},
    {cmd_submit, "submit --nodse=3 x", "dtrain: submit: unknown option --nodse; did you mean --nodes?\n"},
    {cmd_submit, "submit --zzzzzzzz x", "dtrain: submit: unknown option --zzzzzzzz\n"},
    {cmd_submit, "submit x -Z", "dtrain: submit: unknown option -Z\n"},
    {cmd_submit, "submit --nodes", "dtrain: submit: --nodes needs a value: N\n"},
    {cmd_submit, "submit -N", "dtrain: submit: --nodes needs a value: N\n"},
    {cmd_logs, "logs 1 --socket", "dtrain: logs: --socket needs a value: PATH\n"},
    {cmd_submit, "submit --wait=3 x", "dtrain: submit: --wait takes no value\n"},
    {cmd_runs, "runs --s", "dtrain: runs: --s is the begin of several options\n"},
    {cmd_nodes, "nodes --qqqq", "dtrain: nodes: unknown option --qqqq\n"}, /* nothing in common with any */
    {cmd_nodes, "nodes --jsno", "dtrain: nodes: unknown option --jsno; did you mean --json?\n"},
    {cmd_tokenizer, "tokenizer trian", "dtrain: tokenizer: there is no \"trian\"; did you mean train?\n"},
    {cmd_tokenizer, "tokenizer encode --jsn x",
     "dtrain: tokenizer encode: unknown option --jsn; did you mean --json?\n"},
};

START_TEST(an_unknown_word_gets_a_suggestion)
{
	_cleanup_(call_release) struct call call = fixture_call(wrong[_i].command, wrong[_i].line);

	ck_assert_int_eq(call.status, STATUS_USAGE);
	ck_assert_msg(str_starts(call.errors, wrong[_i].words), "%s", call.errors);
	ck_assert_str_eq(call.output, "");
}
END_TEST

START_TEST(a_misspelled_command_is_recognized)
{
	ck_assert_str_eq(command_nearest("submti"), "submit");
	ck_assert_str_eq(command_nearest("rusn"), "runs");
	ck_assert_str_eq(command_nearest("lgs"), "logs");
	ck_assert_str_eq(command_nearest("cancle"), "cancel");
	ck_assert_str_eq(command_nearest("train"), "submit"); /* not drain */
	ck_assert_str_eq(command_nearest("stop"), "cancel");
	ck_assert_str_eq(command_nearest("undrain"), "resume");
	ck_assert_str_eq(command_nearest("version"), "--version");
	ck_assert_ptr_null(command_nearest("qqqqqqq"));
	ck_assert_ptr_eq(command_find("submit")->run, cmd_submit);
	ck_assert_ptr_null(command_find("submti"));
}
END_TEST

START_TEST(distances)
{
	ck_assert_uint_eq(str_distance("", ""), 0);
	ck_assert_uint_eq(str_distance("", "abc"), 3);
	ck_assert_uint_eq(str_distance("submti", "submit"), 1);
	ck_assert_uint_eq(str_distance("kitten", "sitting"), 3);
	ck_assert_uint_eq(str_distance("abc", "abc"), 0);
}
END_TEST

/* The words after "dtrain", the last of which is incomplete, and its completions. */
static const struct {
	const char *typed, *words;
} completions[] = {
    {"subm", "submit\tsubmit a run: a run file, or a command\n"},
    {"--v", "--version\t\n"},
    {"help wat", "watch\tfollow the progress of a run\n"},
    {"nodes --ti", "--timeout\tfor so long at most; default: 60\n"},
    {"cancel --w", "--wait\treturn once the runs have ended\n"},
    {"tokenizer decode -", "--skip-special\tleave special tokens out\n--socket\tthe service's socket\n"
                           "--help\tshow this help\n"},
    {"submit --set train.sched", "train.schedule=\thow the learning rate falls after warm-up\n"},
    {"submit -s train.schedule=c", "train.schedule=cosine\t\ntrain.schedule=constant\t\n"},
    {"submit --set=data.packing=t", "--set=data.packing=true\t\n"},
    {"check -s data.template=llama2_", "data.template=llama2_zh\t\n"},
    {"submit --kind ", "gpu\t\ncpu\t\n"},
    {"submit -s tas", "task=\twhat to do\n"},
    {"submit -s task=p", "task=pretrain\t\ntask=ppo\t\n"},
    {"submit -s=task=p", ""},
    {"submit x", ":files\n"},
    {"submit x ", ""},
    {"submit -- python3 x", ":files\n"},
    {"submit --name x", ""},
    {"generate x", ":directories\n"},
    {"generate model x", ""},
    {"logs --rank a", "all\t\n"},
    {"runs --state=can", "--state=cancelled\t\n"},
    {"tokenizer tr", "train\t\n"},
    {"tokenizer train --chat-template c", "chatml\t\n:files\n"},
    {"keygen --output x", ":files\n"},
    {"--socket /x subm", "submit\tsubmit a run: a run file, or a command\n"},
    {"--socket /x", ":files\n"},
    {"nix x", ""},
    {"estimate --devices 8xH10", "8xH100-80GB\t\n"},
    {"estimate --devices cl", "cluster\t\n"},
    {"estimate --devices 8xcl", ""},
    {"submit -s resources.devices_per_node=a", "resources.devices_per_node=all\t\n"},
    {"submit --socket=x", ":files\n"},
    {"--socket=/x subm", "submit\tsubmit a run: a run file, or a command\n"},
    {"resume -", "--socket\tthe service's socket\n--help\tshow this help\n"},
    {"submit x -- sh --na", ":files\n"},
    {"submit --name -- --na", "--name\tname shown in listings\n"},
    {"submit -s data.format=te", "data.format=text\t\n"},
    {"submit -s data.system=", ""},
    {"submit -s model.template=", ""},
    {"submit -s data.path=", ""},
    {"submit -s train.shuffle=", "train.shuffle=false\t\ntrain.shuffle=true\t\n"},
    {"nodes -",
     "-w\twait until N nodes are up\n--wait\twait until N nodes are up\n--timeout\tfor so long at most; "
     "default: 60\n--json\tprint JSON\n--socket\tthe service's socket\n--help\tshow this help\n"},
    {"nodes --w", "--wait\twait until N nodes are up\n"},
    {"nodes -w", ""},
    {"nodes x", ""},
    {"logs -r a", "all\t\n"},
    {"logs 17 18", ""},
    {"runs --state s", "starting\t\nstopping\t\nsucceeded\t\n"},
    {"runs --json=x", ""},
    {"runs --json ", ""},
    {"export m ", ":directories\n"},
    {"export m d ", ""},
    {"tokenizer encode d ", "-\t\n"},
    {"tokenizer train a b ", ":files\n"},
    {"tokenizer ", "train\t\nencode\t\ndecode\t\n"},
    {"check ", ":files\n"},
    {"help", "help\ttell how a command is called\n"},
    {"-", "--socket\t\n--help\t\n--version\t\n"},
    {"keygen --ca x", ":directories\n"},
    {"keygen --ca=x", ":directories\n"},
    {"estimate -d 2x8xA100-8", "2x8xA100-80GB\t\n"},
    {"estimate --devices=A100-8", "--devices=A100-80GB\t\n"},
    {"estimate -d c", "cpu\t\ncluster\t\n"},
    {"show 1", ""},  /* no service: nothing */
    {"drain n", ""}, /* and no error */
};

START_TEST(a_word_is_completed)
{
	_cleanup_free_ char *line = str_printf("complete %s", completions[_i].typed);
	_cleanup_(call_release) struct call call = fixture_call(cmd_complete, line);

	ck_assert_int_eq(call.status, 0);
	ck_assert_str_eq(call.output, completions[_i].words);
	ck_assert_str_eq(call.errors, "");
}
END_TEST

START_TEST(runs_and_nodes_are_completed)
{
	static const struct exchange runs[] = {{"GET /v1/runs?state=all&limit=50 ",
	                                        "{\"runs\":[{\"id\":17,\"name\":\"a\",\"state\":\"queued\"},"
	                                        "{\"id\":9,\"name\":\"b\",\"state\":\"failed\"}]}"}};
	static const struct exchange active[] = {
	    {"GET /v1/runs?state=active&limit=50 ",
	     "{\"runs\":[{\"id\":17,\"name\":\"a\",\"state\":\"queued\"}]}"}};
	static const struct exchange of_users[] = {
	    {"GET /v1/runs?state=all&limit=50 ",
	     "{\"runs\":[{\"id\":17,\"user\":\"bob\",\"state\":\"queued\"},{\"id\":9,\"state\":\"failed\"},"
	     "{\"id\":8,\"user\":\"alice\",\"state\":\"failed\"},{\"id\":7,\"state\":\"failed\"},"
	     "{\"id\":6,\"user\":\"bob\",\"state\":\"failed\"}]}"}};
	static const struct exchange nodes[] = {
	    {"GET /v1/nodes ",
	     "{\"nodes\":[{\"name\":\"n1\",\"state\":\"up\"},{\"name\":\"m\",\"state\":\"up\"}]}"}};
	_cleanup_free_ char *refusal = fixture_refusal(503, "no-controller", "none");
	_cleanup_(call_release) struct call show = fixture_exchange(cmd_complete, "complete show ", runs, 1);
	_cleanup_(call_release) struct call cancel =
	    fixture_exchange(cmd_complete, "complete cancel 3 1", active, 1);
	_cleanup_(call_release) struct call drain =
	    fixture_exchange(cmd_complete, "complete drain m n", nodes, 1);

	_cleanup_(call_release) struct call hosts =
	    fixture_exchange(cmd_complete, "complete submit -s resources.hosts=n", nodes, 1);
	_cleanup_(call_release) struct call users =
	    fixture_exchange(cmd_complete, "complete runs --user ", of_users, 1);
	_cleanup_(call_release) struct call user =
	    fixture_exchange(cmd_complete, "complete runs --user=b", of_users, 1);
	_cleanup_(call_release) struct call refused = fixture_exchange(
	    cmd_complete, "complete drain n", (const struct exchange[]){{"GET /v1/nodes ", refusal}}, 1);
	_cleanup_(call_release) struct call odd = fixture_exchange(
	    cmd_complete, "complete show ", (const struct exchange[]){{"GET /v1/runs", "not JSON"}}, 1);

	ck_assert_str_eq(hosts.output, "resources.hosts=n1\tup\n");
	ck_assert_str_eq(users.output, "bob\t\nalice\t\n");
	ck_assert_str_eq(user.output, "--user=bob\t\n");
	ck_assert_int_eq(refused.status, 0);
	ck_assert_str_eq(refused.output, "");
	ck_assert_str_eq(refused.errors, "");
	ck_assert_str_eq(odd.output, "");
	ck_assert_str_eq(odd.errors, "");
	ck_assert_str_eq(show.output, "17\ta, queued\n9\tb, failed\n");
	ck_assert_str_eq(cancel.output, "17\ta, queued\n");
	ck_assert_str_eq(drain.output, "n1\tup\n");
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("dtrain_words");
	TCase *tc = tcase_create("words");

	tcase_add_checked_fixture(tc, fixture_setup, fixture_teardown);
	tcase_set_timeout(tc, 60);
	tcase_add_loop_test(tc, an_unknown_word_gets_a_suggestion, 0, ARRAY_SIZE(wrong));
	tcase_add_test(tc, a_misspelled_command_is_recognized);
	tcase_add_test(tc, distances);
	tcase_add_loop_test(tc, a_word_is_completed, 0, ARRAY_SIZE(completions));
	tcase_add_test(tc, runs_and_nodes_are_completed);
	suite_add_tcase(suite, tc);
	return unit_run(suite);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The variables of the submitter that a run gets, and the precedence where a variable is given twice. */
#include "failing_memory.h"
#include "unit.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "base/str.h"
#include "dtrain/environment.h"
#include "dtrain/run_request.h"

static char *dir, *file;

/* The environment of the submitter: variables that are copied, and similar ones that are not. */
static void setup(void)
{
	static const char *const world[] = {
	    "PATH=/venv/bin:/usr/bin:/bin",
	    "VIRTUAL_ENV=/venv",
	    "CONDA_PREFIX=/conda",
	    "CONDA_DEFAULT_ENV=base",
	    "PYTHONPATH=/a,/b:/c d",
	    "LD_LIBRARY_PATH=/opt/lib",
	    "OMP_NUM_THREADS=3",
	    "HF_TOKEN=secret",
	    "HF_=x",
	    "NCCL_DEBUG=INFO,WARN",
	    "HFX=1",
	    "XNCCL_DEBUG=1",
	    "PATHS=1",
	    "HOME=/home/alice",
	    "LD_PRELOAD=/evil.so",
	    "RANK=17",
	    "MASTER_PORT=1",
	    "DTRAIN_SOCKET=/tmp/x",
	    "EDITOR=vi, or so",
	};

	dir = unit_tmpdir();
	file = str_path_join(dir, "vars");
	clearenv();
	for (size_t i = 0; i < ARRAY_SIZE(world); i++)
		putenv((char *)world[i]);
	umask(027);
}

static void teardown(void)
{
	file_remove_tree(dir, NULL);
	free(dir);
	free(file);
}

static json_t *submitted(const char *text, const struct environment_options *options, struct error *err)
{
	_cleanup_free_ char *path = str_path_join(dir, "x.conf");
	json_t *out = NULL;

	ck_ok(file_write_atomic(path, text, strlen(text), 0644, err), err);
	return run_request_file(path, NULL, options, &out, err) < 0 ? NULL : out;
}

/* "A=1\nB=2\n": in the order in which they are set. */
static char *words(const json_t *run)
{
	const json_t *list = json_object_get(run, "environment");
	struct strbuf b = {0};

	for (size_t i = 0; i < json_array_size(list); i++)
		strbuf_addf(&b, "%s\n", json_string_value(json_array_get(list, i)));
	return strbuf_steal(&b);
}

static const char command[] = "command = [\"true\"];\n";
#define TAKEN                                                                                                \
	"VIRTUAL_ENV=/venv\nCONDA_PREFIX=/conda\nCONDA_DEFAULT_ENV=base\nPYTHONPATH=/a,/b:/c d\n"            \
	"LD_LIBRARY_PATH=/opt/lib\nOMP_NUM_THREADS=3\nHF_TOKEN=secret\nHF_=x\nNCCL_DEBUG=INFO,WARN\n"

START_TEST(a_command_takes_its_world_along)
{
	struct environment_options none = {.none = true}, some = {0};
	struct error err = ERROR_INIT;
	_cleanup_json_ json_t *plain = submitted(command, &some, &err),
	                      *bare = submitted(command, &none, &err);
	_cleanup_json_ json_t *train =
	    submitted("task = \"sft\"; model = { path = \"m\"; }; data = { path = \"d\"; }; output = { dir = "
	              "\"o\"; };\n",
	              &some, &err);
	_cleanup_free_ char *taken = words(plain);

	ck_assert_str_eq(taken, "PATH=/venv/bin:/usr/bin:/bin\n" TAKEN);
	ck_assert_str_eq(json_get_string(plain, "umask", ""), "027");
	ck_assert_uint_eq(umask(022), 027); /* as it was */
	ck_assert_ptr_null(json_object_get(bare, "environment"));
	ck_assert_ptr_null(json_object_get(bare, "umask"));
	ck_assert_ptr_nonnull(train);
	ck_assert_ptr_null(json_object_get(train, "environment"));
	ck_assert_ptr_null(json_object_get(train, "umask"));
}
END_TEST

/* A process may be started with an entry that is no variable. */
START_TEST(an_entry_without_a_value_is_not_taken)
{
	static char *entries[] = {(char *)"HF_HOME", (char *)"PATH", (char *)"HF_TOKEN=t", NULL};
	struct environment_options some = {0};
	struct error err = ERROR_INIT;
	_cleanup_json_ json_t *run = NULL;
	_cleanup_free_ char *taken = NULL;

	environ = entries;
	run = submitted(command, &some, &err);
	taken = words(run);
	ck_assert_str_eq(taken, "HF_TOKEN=t\n");
}
END_TEST

/* Copied variables < run file < files < --env. */
START_TEST(the_more_explicit_wins)
{
	struct environment_options o = {0};
	struct error err = ERROR_INIT;
	_cleanup_json_ json_t *run = NULL;
	_cleanup_free_ char *got = NULL;
	static const char lines[] = "# comment\n\n  B=file # not one\r\nC=\"file\"\nEMPTY=\n\tD_1=a=b";

	ck_ok(file_write_atomic(file, lines, sizeof(lines) - 1, 0644, &err), &err);
	option_list_add(&o.files, file);
	option_list_add(&o.variables, "C=option, with, commas");
	option_list_add(&o.variables, "EDITOR");
	option_list_add(&o.variables, "HF_TOKEN=");
	run = submitted(
	    "command = [\"true\"]; umask = \"0077\"; environment = { A = \"run\"; B = \"run\"; PATH = "
	    "\"/run\"; };\n",
	    &o, &err);
	ck_assert_msg(run, "%s", err.message);
	got = words(run);
	ck_assert_str_eq(
	    got, "A=run\nB=file # not one\nPATH=/run\n"
	         "VIRTUAL_ENV=/venv\nCONDA_PREFIX=/conda\nCONDA_DEFAULT_ENV=base\nPYTHONPATH=/a,/b:/c d\n"
	         "LD_LIBRARY_PATH=/opt/lib\nOMP_NUM_THREADS=3\nHF_TOKEN=\nHF_=x\nNCCL_DEBUG=INFO,WARN\n"
	         "C=option, with, commas\nEMPTY=\nD_1=a=b\nEDITOR=vi, or so\n");
	ck_assert_str_eq(json_get_string(run, "umask", ""), "0077");
	option_list_release(&o.files);
	option_list_release(&o.variables);
}
END_TEST

static const struct {
	const char *variable, *lines, *words;
} wrong[] = {
    {"UNSET", NULL, "--env UNSET: it is not set here; give --env UNSET=VALUE"},
    {"=x", NULL, "\"\" is not the name of a variable"},
    {"A B=x", NULL, "--env A B=x: \"A B\" is not the name of a variable"},
    {"1A=x", NULL, "\"1A\" is not the name of a variable"},
    {"RANK=1", NULL, "--env: RANK: dtrain sets it for each rank itself; leave it out"},
    {"MASTER_PORT", NULL, "--env: MASTER_PORT: dtrain sets it"},
    {"DTRAIN_SOCKET=/x", NULL, "--env: DTRAIN_SOCKET: dtrain sets it"},
    {NULL, "A=1\n\nexport B=2\n", "/vars:3: \"export B\" is not NAME=VALUE"},
    {NULL, "# x\nA\n", "/vars:2: \"A\" is not NAME=VALUE"},
    {NULL, "A=1\nWORLD_SIZE=8", "/vars:2: WORLD_SIZE: dtrain sets it for each rank itself"},
    {"A=\xff", NULL, "--env: A: not valid UTF-8; convert it, or leave it out"},
    {"LATIN", NULL, "--env: LATIN: not valid UTF-8; convert it, or leave it out"},
    {NULL, "A=1\nB=caf\xe9\n", "/vars:2: B: not valid UTF-8; convert it, or leave it out"},
    {NULL, NULL, "/vars: No such file or directory"},
};

START_TEST(wrong_variables_say_where)
{
	struct environment_options o = {0};
	struct error err = ERROR_INIT;

	setenv("LATIN", "caf\xe9", 1);
	if (wrong[_i].variable)
		option_list_add(&o.variables, wrong[_i].variable);
	else
		option_list_add(&o.files, file);
	if (wrong[_i].lines)
		ck_ok(file_write_atomic(file, wrong[_i].lines, strlen(wrong[_i].lines), 0644, &err), &err);
	ck_assert_ptr_null(submitted(command, &o, &err));
	ck_assert_msg(strstr(err.message, wrong[_i].words), "\"%s\" lacks \"%s\"", err.message,
	              wrong[_i].words);
	option_list_release(&o.files);
	option_list_release(&o.variables);
}
END_TEST

/* A directory is no file, nor is what has a byte of zero in it; one of a mebibyte is too long. */
START_TEST(odd_files_are_refused)
{
	static const char zero[] = "A=1\0B=2\n";
	struct environment_options o = {0};
	struct error err = ERROR_INIT;
	_cleanup_free_ char *large = calloc(1, (1 << 20) + 1);

	option_list_add(&o.files, dir);
	ck_assert_ptr_null(submitted(command, &o, &err));
	ck_assert_msg(strstr(err.message, ": it is not a file") != NULL, "%s", err.message);
	option_list_release(&o.files);
	o.files = (struct option_list){0};
	option_list_add(&o.files, file);
	ck_ok(file_write_atomic(file, zero, sizeof(zero) - 1, 0644, &err), &err);
	ck_assert_ptr_null(submitted(command, &o, &err));
	ck_assert_msg(strstr(err.message, "/vars: not a text file: a NUL byte in it") != NULL, "%s",
	              err.message);
	memset(large, '#', 1 << 20);
	ck_ok(file_write_atomic(file, large, (1 << 20) + 1, 0644, &err), &err);
	ck_assert_ptr_null(submitted(command, &o, &err));
	ck_assert_msg(str_starts(err.message, "--env-file: "), "%s", err.message);
	option_list_release(&o.files);
}
END_TEST

/* The stderr of submitted(). */
static char *warnings(const char *text, const struct environment_options *options, json_t **run)
{
	_cleanup_free_ char *path = str_path_join(dir, "stderr");
	struct error err = ERROR_INIT;
	int saved = dup(STDERR_FILENO);
	char *words;

	ck_assert_ptr_nonnull(freopen(path, "w", stderr));
	*run = submitted(text, options, &err);
	fflush(stderr);
	dup2(saved, STDERR_FILENO);
	close(saved);
	ck_assert_msg(*run, "%s", err.message);
	ck_ok(file_read(path, 0, &words, NULL, &err), &err);
	return words;
}

START_TEST(what_is_not_utf8_is_left_out_with_a_warning)
{
	struct environment_options o = {0};
	_cleanup_json_ json_t *plain = NULL, *given = NULL, *overridden = NULL, *alone = NULL;
	_cleanup_free_ char *first = NULL, *second = NULL, *third = NULL, *fourth = NULL, *got = NULL;

	setenv("HF_TOKEN", "caf\xe9", 1);
	setenv("EDITOR", "\xff", 1); /* this one is not copied */
	first = warnings(command, &o, &plain);
	ck_assert_str_eq(first, "dtrain: warning: HF_TOKEN is not taken along: its value here is not valid "
	                        "UTF-8; --env HF_TOKEN=VALUE gives it another\n");
	got = words(plain);
	ck_assert_ptr_null(strstr(got, "HF_TOKEN"));
	ck_assert_ptr_nonnull(strstr(got, "HF_=x\nNCCL_DEBUG="));
	second = warnings("command = [\"true\"]; environment = { HF_TOKEN = \"x\"; };\n", &o, &given);
	ck_assert_str_eq(second, "");
	option_list_add(&o.variables, "HF_TOKEN=caf\xc3\xa9");
	third = warnings(command, &o, &overridden);
	ck_assert_str_eq(third, "");
	option_list_release(&o.variables);
	o.variables = (struct option_list){0};
	clearenv(); /* nothing else is taken along */
	setenv("HF_TOKEN", "caf\xe9", 1);
	fourth = warnings(command, &o, &alone);
	ck_assert_str_eq(fourth, first);
	option_list_release(&o.variables);
}
END_TEST

/* JSON cannot contain it, but it must not be dropped silently. */
static const struct {
	const char *text, *words;
} not_utf8[] = {
    {"command = [\"true\"]; environment = { A = \"caf\xe9\"; };\n",
     "x.conf: environment: A: not valid UTF-8"},
    {"command = [\"true\", \"caf\xe9\"];\n", "command: not valid UTF-8"},
    {"command = [\"true\"]; name = \"caf\xe9\";\n", "name: not valid UTF-8"},
};

START_TEST(a_run_file_is_utf8)
{
	struct error err = ERROR_INIT;

	ck_assert_ptr_null(submitted(not_utf8[_i].text, NULL, &err));
	ck_assert_msg(strstr(err.message, not_utf8[_i].words), "\"%s\" lacks \"%s\"", err.message,
	              not_utf8[_i].words);
}
END_TEST

START_TEST(what_dtrain_sets_is_nobody_elses)
{
	static const char *const reserved[] = {
	    "RANK",        "WORLD_SIZE=2",     "LOCAL_RANK", "MASTER_ADDR=x", "TORCHELASTIC_RUN_ID",
	    "DTRAIN_NODE", "DTRAIN_WHATEVER=1"};
	static const char *const others[] = {"RANKS",
	                                     "RAN",
	                                     "PATH",
	                                     "MASTER",
	                                     "TORCHELASTIC_LOG",
	                                     "DTRAIN_LIBRARY_PATH=/x",
	                                     "DTRAIN_CPU_ISA",
	                                     "OMP_NUM_THREADS"};
	struct error err = ERROR_INIT;

	for (size_t i = 0; i < ARRAY_SIZE(reserved); i++)
		ck_assert_msg(run_variable_is_reserved(reserved[i]), "%s", reserved[i]);
	for (size_t i = 0; i < ARRAY_SIZE(others); i++)
		ck_assert_msg(!run_variable_is_reserved(others[i]), "%s", others[i]);
	ck_assert_ptr_null(
	    submitted("command = [\"true\"];\nenvironment = { RANK = \"1\"; };\n", NULL, &err));
	ck_assert_ptr_nonnull(
	    strstr(err.message, "x.conf: environment: RANK: dtrain sets it for each rank itself"));
	ck_assert_ptr_null(submitted("command = [\"true\"]; umask = \"9\";\n", NULL, &err));
	ck_assert_ptr_nonnull(strstr(err.message, "x.conf: umask: \"9\" is not three octal digits"));
}
END_TEST

START_TEST(a_directory_that_is_gone_has_no_run)
{
	char *argv[] = {(char *)"true", NULL};
	_cleanup_json_ json_t *run = NULL;
	_cleanup_free_ char *gone = str_path_join(dir, "gone");
	struct error err = ERROR_INIT;

	ck_assert_int_eq(mkdir(gone, 0700), 0);
	ck_assert_int_eq(chdir(gone), 0);
	ck_assert_int_eq(rmdir(gone), 0);
	ck_assert_int_eq(run_request_command(argv, NULL, NULL, &run, &err), -ENOENT);
	ck_assert_str_eq(err.message, "the current directory: No such file or directory");
	ck_assert_ptr_null(run);
	ck_assert_int_eq(chdir("/"), 0);
}
END_TEST

static int request_file(void *options, struct error *err)
{
	_cleanup_json_ json_t *run = NULL;
	char x[500];

	snprintf(x, sizeof(x), "%s/x.conf", dir);
	return run_request_file(x, NULL, options, &run, err);
}

static int request_command(void *options, struct error *err)
{
	char *argv[] = {(char *)"/bin/echo", (char *)"\"a\\\t", NULL};
	_cleanup_json_ json_t *run = NULL;
	int r = run_request_command(argv, NULL, options, &run, err);

	if (r == 0) {
		const json_t *words = json_object_get(run, "command");

		ck_assert_str_eq(json_get_string(run, "name", ""), "echo");
		ck_assert_str_eq(json_string_value(json_array_get(words, 1)), "\"a\\\t");
		ck_assert_uint_eq(json_array_size(words), 2);
	}
	return r;
}

static int request_task(void *none, struct error *err)
{
	static const char *const stops[] = {"a\"", "b", NULL}, *const overrides[] = {
	                                                           "model.path=m", "generate.prompt=p", NULL};
	_cleanup_json_ json_t *run = NULL;

	return run_request_task("generate", "stop", stops, overrides, &run, err);
}

/* A variable less would be another run: nothing is submitted. */
START_TEST(without_memory_there_is_no_request)
{
	struct environment_options o = {0};
	struct error err = ERROR_INIT;
	_cleanup_json_ json_t *run = NULL;

	ck_ok(file_write_atomic(file, "A=1\n\nB=2\n", 9, 0644, &err), &err);
	option_list_add(&o.files, file);
	option_list_add(&o.variables, "EDITOR");
	option_list_add(&o.variables, "C=3");
	run = submitted(command, &o, &err);
	ck_assert_ptr_nonnull(run);
	memory_runs_out(request_file, &o);
	memory_runs_out(request_command, &o);
	memory_runs_out(request_task, NULL);
	option_list_release(&o.files);
	option_list_release(&o.variables);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("environment");
	TCase *t = tcase_create("environment");

	tcase_add_checked_fixture(t, setup, teardown);
	tcase_add_test(t, a_command_takes_its_world_along);
	tcase_add_test(t, an_entry_without_a_value_is_not_taken);
	tcase_add_test(t, the_more_explicit_wins);
	tcase_add_test(t, odd_files_are_refused);
	tcase_add_loop_test(t, wrong_variables_say_where, 0, ARRAY_SIZE(wrong));
	tcase_add_test(t, what_is_not_utf8_is_left_out_with_a_warning);
	tcase_add_loop_test(t, a_run_file_is_utf8, 0, ARRAY_SIZE(not_utf8));
	tcase_add_test(t, what_dtrain_sets_is_nobody_elses);
	tcase_add_test(t, a_directory_that_is_gone_has_no_run);
	tcase_add_test(t, without_memory_there_is_no_request);
	suite_add_tcase(s, t);
	return unit_run(s);
}

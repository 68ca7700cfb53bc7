/* SPDX-License-Identifier: Apache-2.0 */
/* What a worker program does with its arguments. What it calls are stand-ins. */
#include "base/str.h"
#include "unit.h"
#include "worker/attention_check.h"
#include "worker/tasks.h"

int worker_program(int argc, char **argv); /* its main() */

static char called[100];

int attention_check_main(int argc, char **argv)
{
	snprintf(called, sizeof(called), "attention");
	for (int i = 0; i < argc; i++)
		snprintf(called + strlen(called), sizeof(called) - strlen(called), " %s", argv[i]);
	return 3;
}

int measure_main(void)
{
	snprintf(called, sizeof(called), "measure");
	return 4;
}

int worker_main(void)
{
	snprintf(called, sizeof(called), "worker");
	return 5;
}

START_TEST(the_arguments_say_what_it_does)
{
	static const struct {
		const char *arguments[4], *called;
		int status;
	} cases[] = {
	    {{"dtrain-worker"}, "worker", 5},
	    {{"dtrain-worker", "--measure"}, "measure", 4},
	    {{"dtrain-worker", "--check-attention"}, "attention", 3},
	    {{"dtrain-worker", "--check-attention", "1", "2"}, "attention 1 2", 3},
	    {{"dtrain-worker", "--measure", "--check-attention"}, "worker", 5},
	    {{"dtrain-worker", "other"}, "worker", 5},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		char *argv[5] = {NULL};
		int argc = 0;

		for (; argc < 4 && cases[i].arguments[argc]; argc++)
			argv[argc] = (char *)cases[i].arguments[argc];
		called[0] = '\0';
		ck_assert_int_eq(worker_program(argc, argv), cases[i].status);
		ck_assert_str_eq(called, cases[i].called);
	}
}
END_TEST

int main(void)
{
	Suite *s = suite_create("worker program");
	TCase *t = tcase_create("worker program");

	tcase_add_test(t, the_arguments_say_what_it_does);
	suite_add_tcase(s, t);
	return unit_run(s);
}

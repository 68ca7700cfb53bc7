/* SPDX-License-Identifier: Apache-2.0 */
/* The check of a kernel of attention in another process: its arguments, and how it may end. The device is a
 * stand-in; the process is this program. */
#include "worker/attention_check.h"

#include "base/str.h"
#include "unit.h"

enum { GOOD, DIFFERS, CRASHES, ENDS, SILENT };

struct device {
	int index;
};

/* ---- in the process ---- */

int device_create(const struct device_options *options, struct device **out, struct error *err)
{
	static struct device device;

	if (options->attention != DEVICE_ATTENTION_OWN)
		return error_set(err, -EINVAL, "another attention");
	if (options->index == 99)
		return error_set(err, -ENODEV, "no such device");
	device.index = options->index;
	*out = &device;
	return 0;
}

void device_destroy(struct device *dev)
{
}

int device_attention_check(struct device *dev, const struct device_attention_shape *s, double seconds[2],
                           struct error *err)
{
	switch (s->tokens) {
	case DIFFERS:
		return error_set(err, -EBADMSG,
		                 "device %d: rows %lld heads %d, %d of %d window %d type %d pass %d",
		                 dev->index, (long long)s->rows, s->heads, s->kv_heads, s->head_dim,
		                 s->window, s->type, s->pass);
	case CRASHES:
		signal(SIGSEGV, SIG_DFL);
		raise(SIGSEGV);
		break;
	case ENDS:
		_exit(3);
	case SILENT:
		_exit(0);
	default:
		seconds[0] = 0.25;
		seconds[1] = 1.0 / 3;
	}
	return 0;
}

/* ---- tests ---- */

static int check(int device, int64_t tokens, double seconds[2], struct error *err)
{
	const struct device_attention_shape shape = {.tokens = tokens,
	                                             .rows = (int64_t)1 << 40,
	                                             .heads = 7,
	                                             .kv_heads = 6,
	                                             .head_dim = 5,
	                                             .window = 4,
	                                             .type = (enum dtype)2,
	                                             .pass = (enum device_attention_pass)1};

	return attention_check(device, &shape, seconds, err);
}

START_TEST(the_times_come_back)
{
	struct error err = ERROR_INIT;
	double seconds[2] = {0};

	ck_ok(check(3, GOOD, seconds, &err), &err);
	ck_assert_double_eq_tol(seconds[0], 0.25, 1e-12);
	ck_assert_double_eq_tol(seconds[1], 1.0 / 3, 1e-9);
	ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1);
}
END_TEST

START_TEST(how_it_ends_otherwise)
{
	static const struct {
		int device, tokens, code;
		const char *words;
	} cases[] = {
	    {3, DIFFERS, -EBADMSG, "device 3: rows 1099511627776 heads 7, 6 of 5 window 4 type 2 pass 1"},
	    {99, GOOD, -EBADMSG, "no such device"},
	    {0, CRASHES, -EIO, "its process was ended by signal 11 (Segmentation fault)"},
	    {0, ENDS, -EBADMSG, ""},
	    {0, SILENT, -EIO, "its process has not printed its times"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct error err = ERROR_INIT;
		double seconds[2];

		ck_assert_int_eq(check(cases[i].device, cases[i].tokens, seconds, &err), cases[i].code);
		ck_assert_str_eq(err.message, cases[i].words);
		ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1);
	}
}
END_TEST

START_TEST(nine_numbers_are_needed)
{
	char *numbers[] = {(char *)"1", (char *)"2"};

	ck_assert_int_eq(attention_check_main(2, numbers), 1);
}
END_TEST

int main(int argc, char **argv)
{
	Suite *suite;
	TCase *t;

	if (argc > 1)
		return str_eq(argv[1], "--check-attention") ? attention_check_main(argc - 2, argv + 2) : 2;
	suite = suite_create("attention check");
	t = tcase_create("attention check");
	tcase_add_test(t, the_times_come_back);
	tcase_add_test(t, how_it_ends_otherwise);
	tcase_add_test(t, nine_numbers_are_needed);
	suite_add_tcase(suite, t);
	return unit_run(suite);
}

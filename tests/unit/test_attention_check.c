/* SPDX-License-Identifier: Apache-2.0 */
/* The check of a kernel of attention in another process: its arguments, and how it may end. The device is a
 * stand-in; the process is this program. */
#include "worker/attention_check.h"

#include <spawn.h>
#include <time.h>

#include "base/file.h"
#include "base/str.h"
#include "open_fds.h"
#include "unit.h"

enum { GOOD, DIFFERS, CRASHES, ENDS, SILENT, HANGS, FAILS };

struct device {
	int index;
};

/* ---- what fails ---- */

static bool no_pipe, no_process, late;

int __real_pipe2(int ends[2], int flags);
int __wrap_pipe2(int ends[2], int flags);
int __wrap_pipe2(int ends[2], int flags)
{
	errno = EMFILE;
	return no_pipe ? -1 : __real_pipe2(ends, flags);
}

int __real_posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                       const posix_spawnattr_t *attributes, char *const argv[], char *const envp[]);
int __wrap_posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                       const posix_spawnattr_t *attributes, char *const argv[], char *const envp[]);
int __wrap_posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                       const posix_spawnattr_t *attributes, char *const argv[], char *const envp[])
{
	return no_process ? EAGAIN : __real_posix_spawn(pid, path, actions, attributes, argv, envp);
}

/* Where it is late, an hour passes with each look at the clock. */
int __real_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
	static time_t passed;
	int r = __real_clock_gettime(clock, now);

	passed = late ? passed + 3600 : 0;
	now->tv_sec += passed;
	return r;
}

/* Where it is late, at once. */
unsigned __real_alarm(unsigned seconds);
unsigned __wrap_alarm(unsigned seconds);
unsigned __wrap_alarm(unsigned seconds)
{
	if (late && seconds)
		raise(SIGALRM);
	return __real_alarm(seconds);
}

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
	case HANGS:
		pause(); /* until it is killed */
		break;
	case FAILS:
		return error_set(err, -EIO, "the device has failed");
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
	    {99, GOOD, -ENODEV, "its process cannot open the device: no such device"},
	    {0, CRASHES, -EIO, "its process was ended by signal 11 (Segmentation fault)"},
	    {0, ENDS, -EIO, "its process has ended with status 3"},
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

START_TEST(a_check_in_this_process)
{
	static const struct device_attention_shape good = {.tokens = GOOD}, differs = {.tokens = DIFFERS},
	                                           hangs = {.tokens = HANGS}, fails = {.tokens = FAILS};
	_cleanup_free_ char *dir = unit_tmpdir(), *mark = str_path_join(dir, "mark"),
	                    *nowhere = str_path_join(mark, "none");
	struct device dev = {.index = 7};
	struct error err = ERROR_INIT;
	double seconds[2] = {0};
	struct sigaction before, after;
	char words[128] = "";
	int ends[2], status;
	pid_t pid;

	ck_assert_int_eq(sigaction(SIGALRM, NULL, &before), 0);
	ck_ok(attention_check_here(&dev, &good, mark, seconds, &err), &err);
	ck_assert_double_eq(seconds[0], 0.25);
	ck_assert_int_eq(attention_check_here(&dev, &differs, mark, seconds, &err), -EBADMSG);
	ck_assert_msg(str_starts(err.message, "device 7: rows"), "%s", err.message);
	ck_assert_int_eq(attention_check_here(&dev, &fails, nowhere, seconds, &err), -EIO);
	ck_assert(!file_exists(mark));
	/* A failed device is used no more: the next start does without the kernel. */
	ck_assert_int_eq(attention_check_here(&dev, &fails, mark, seconds, &err), -EIO);
	ck_assert_str_eq(err.message, "the device has failed");
	ck_assert_int_eq(attention_check_here(&dev, &good, mark, seconds, &err), -EBADMSG);
	ck_assert_msg(strstr(err.message, mark) != NULL, "%s", err.message);
	ck_assert_int_eq(unlink(mark), 0);
	ck_assert_int_eq(sigaction(SIGALRM, NULL, &after), 0);
	ck_assert(after.sa_handler == before.sa_handler);
	ck_assert_uint_eq(alarm(0), 0);
	/* One that never ends. */
	ck_assert_int_eq(pipe(ends), 0);
	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		dup2(ends[1], STDERR_FILENO);
		late = true;
		attention_check_here(&dev, &hangs, mark, seconds, &err);
		_exit(77);
	}
	close(ends[1]);
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 1);
	ck_assert_int_gt(read(ends[0], words, sizeof(words) - 1), 0);
	ck_assert_str_eq(words, "the check of Hopper's kernels of attention has not ended\n");
	close(ends[0]);
	ck_assert_int_eq(attention_check_here(&dev, &hangs, mark, seconds, &err), -EBADMSG);
	ck_ok(file_remove_tree(dir, &err), &err);
}
END_TEST

START_TEST(a_process_that_cannot_be_had)
{
	size_t before = open_fds_count();
	struct error err = ERROR_INIT;
	double seconds[2];

	no_pipe = true;
	ck_assert_int_eq(check(3, GOOD, seconds, &err), -EMFILE);
	ck_assert_str_eq(err.message, "cannot make a pipe: Too many open files");
	no_pipe = false;
	no_process = true;
	ck_assert_int_eq(check(3, GOOD, seconds, &err), -EAGAIN);
	ck_assert_str_eq(err.message, "cannot start /proc/self/exe: Resource temporarily unavailable");
	no_process = false;
	ck_ok(check(3, GOOD, seconds, &err), &err);
	ck_assert_uint_eq(open_fds_count(), before);
}
END_TEST

/* It is ended. */
START_TEST(a_process_that_hangs)
{
	size_t before = open_fds_count();
	struct error err = ERROR_INIT;
	double seconds[2];

	late = true;
	ck_assert_int_eq(check(3, HANGS, seconds, &err), -ETIMEDOUT);
	late = false;
	ck_assert_msg(str_starts(err.message, "it has not ended within "), "%s", err.message);
	ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1);
	ck_assert_uint_eq(open_fds_count(), before);
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
	tcase_add_test(t, a_check_in_this_process);
	tcase_add_test(t, a_process_that_cannot_be_had);
	tcase_add_test(t, a_process_that_hangs);
	suite_add_tcase(suite, t);
	return unit_run(suite);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dtrain-worker-… --check-attention DEVICE TOKENS ROWS HEADS KV_HEADS HEAD_DIM WINDOW TYPE PASS: checks
 * and measures the kernels of a pass of attention (device_attention_check). On the standard output it prints
 * the two times in seconds, and exits with 0; or what has failed, and exits with 1, or with 2 where it could
 * not open the device.
 */
#include "worker/attention_check.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"

#define PROGRAM "/proc/self/exe"

enum { NUMBERS = 9, WAIT_S = 120, CANNOT_OPEN = 2 };

DEFINE_CLEANUP(struct device *, device_destroy)

extern char **environ;

/* ---- the process ---- */

int attention_check_main(int argc, char **argv)
{
	_cleanup_(device_destroyp) struct device *dev = NULL;
	struct error err = ERROR_INIT;
	long long n[NUMBERS] = {0};
	double seconds[2];
	int r = argc == NUMBERS ? 0 : error_set(&err, -EINVAL, "nine numbers are expected");
	bool cannot_open = false;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (int i = 0; i < argc && i < NUMBERS; i++)
		n[i] = strtoll(argv[i], NULL, 10);
	if (r == 0) {
		r = device_create(
		    &(struct device_options){.index = (int)n[0], .attention = DEVICE_ATTENTION_OWN}, &dev,
		    &err);
		cannot_open = r < 0;
	}
	if (r == 0)
		r = device_attention_check(
		    dev,
		    &(struct device_attention_shape){.tokens = n[1],
		                                     .rows = n[2],
		                                     .heads = (int32_t)n[3],
		                                     .kv_heads = (int32_t)n[4],
		                                     .head_dim = (int32_t)n[5],
		                                     .window = (int32_t)n[6],
		                                     .type = (enum dtype)n[7],
		                                     .pass = (enum device_attention_pass)n[8]},
		    seconds, &err);
	if (r < 0)
		printf("%s\n", err.message);
	else
		printf("%.9g %.9g\n", seconds[0], seconds[1]);
	if (fflush(stdout) != 0)
		return EXIT_FAILURE;
	return cannot_open ? CANNOT_OPEN : r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* ---- the one that waits for it ---- */

static int start(int device, const struct device_attention_shape *s, pid_t *pid, int *output,
                 struct error *err)
{
	const long long numbers[NUMBERS] = {device,      s->tokens, s->rows, s->heads, s->kv_heads,
	                                    s->head_dim, s->window, s->type, s->pass};
	char text[NUMBERS][24], program[] = PROGRAM, option[] = "--check-attention";
	char *argv[NUMBERS + 3] = {program, option};
	posix_spawn_file_actions_t actions;
	int ends[2], r;

	for (int i = 0; i < NUMBERS; i++) {
		snprintf(text[i], sizeof(text[i]), "%lld", numbers[i]);
		argv[2 + i] = text[i];
	}
	if (pipe2(ends, O_CLOEXEC) < 0)
		return error_errno(err, -errno, "cannot make a pipe");
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
	r = posix_spawn(pid, PROGRAM, &actions, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	close(ends[1]);
	*output = ends[0];
	if (r == 0)
		return 0;
	close(ends[0]);
	return error_errno(err, -r, "cannot start " PROGRAM);
}

/* What it prints, until it has ended. */
static int read_output(int output, char *text, size_t size, struct error *err)
{
	double end = clock_monotonic() + WAIT_S, left;
	size_t len = 0;

	while ((left = end - clock_monotonic()) > 0) {
		struct pollfd p = {.fd = output, .events = POLLIN};
		ssize_t n;

		if (poll(&p, 1, (int)(left * 1000) + 1) <= 0)
			continue;
		n = read(output, text + len, size - 1 - len);
		if (n < 0 && errno == EINTR)
			continue;
		len += (size_t)MAX(n, 0);
		text[len] = '\0';
		if (n <= 0 || len == size - 1)
			return 0;
	}
	return error_set(err, -ETIMEDOUT, "it has not ended within %d s", WAIT_S);
}

static int take_result(const char *text, int status, double seconds[2], struct error *err)
{
	if (WIFSIGNALED(status))
		return error_set(err, -EIO, "its process was ended by signal %d (%s)", WTERMSIG(status),
		                 strsignal(WTERMSIG(status)));
	if (WEXITSTATUS(status) == CANNOT_OPEN)
		return error_set(err, -ENODEV, "its process cannot open the device: %.*s",
		                 (int)strcspn(text, "\n"), text);
	if (WEXITSTATUS(status) == EXIT_FAILURE)
		return error_set(err, -EBADMSG, "%.*s", (int)strcspn(text, "\n"), text);
	if (WEXITSTATUS(status) != 0)
		return error_set(err, -EIO, "its process has ended with status %d", WEXITSTATUS(status));
	if (sscanf(text, "%lf %lf", &seconds[0], &seconds[1]) != 2)
		return error_set(err, -EIO, "its process has not printed its times");
	return 0;
}

int attention_check(int device, const struct device_attention_shape *shape, double seconds[2],
                    struct error *err)
{
	char text[512] = "";
	int output = -1, status = 0, r;
	pid_t pid = -1;

	if ((r = start(device, shape, &pid, &output, err)) < 0)
		return r;
	r = read_output(output, text, sizeof(text), err);
	close(output);
	if (r < 0)
		kill(pid, SIGKILL);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return r < 0 ? r : take_result(text, status, seconds, err);
}

/* ---- in this process ---- */

/* For the handler, which is called without a context; one check is made at a time. */
static const char *volatile mark_path;

/* Called by the handler, too. */
static void make_mark(const char *path)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);

	if (fd >= 0)
		close(fd);
}

static void end_process(int signal)
{
	static const char words[] = "the check of Hopper's kernels of attention has not ended\n";

	make_mark(mark_path);
	if (write(STDERR_FILENO, words, sizeof(words) - 1) < 0)
		_exit(EXIT_FAILURE);
	_exit(EXIT_FAILURE);
}

int attention_check_here(struct device *dev, const struct device_attention_shape *shape, const char *mark,
                         double seconds[2], struct error *err)
{
	struct sigaction ends = {.sa_handler = end_process}, before;
	int r;

	if (file_exists(mark))
		return error_set(err, -EBADMSG, "at an earlier start it failed or did not end (%s)", mark);
	mark_path = mark;
	sigaction(SIGALRM, &ends, &before);
	alarm(WAIT_S);
	r = device_attention_check(dev, shape, seconds, err);
	alarm(0);
	sigaction(SIGALRM, &before, NULL);
	if (r == -EIO)
		make_mark(mark);
	/* A later call reports the failure of the device without naming this check. */
	if (r < 0 && r != -EBADMSG)
		printf("warning: the check of Hopper's kernels of attention has failed: %s\n", err->message);
	return r;
}

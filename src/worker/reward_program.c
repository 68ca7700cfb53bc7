/* SPDX-License-Identifier: Apache-2.0 */
/* Starts the program that gives rewards, writes completions to it and reads its rewards. */
#include "worker/reward_program.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "worker/reward_lines.h"
#include "worker/stop.h"

extern char **environ;

/* How long a signal to stop may be overlooked. */
#define STOP_SECONDS 0.5

/* After the end of its input. */
#define END_SECONDS 5.0
#define END_POLL_MS 20

struct reward_program {
	char *name;
	pid_t pid;   /* 0: it has ended */
	int in, out; /* its input and output; -1: closed */
	struct reward_lines lines;
};

/* ---- start and end ---- */

static int spawn(char *const *argv, int in, int out, pid_t *pid)
{
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attributes;
	sigset_t all, none;
	int r;

	sigfillset(&all);
	sigemptyset(&none);
	posix_spawnattr_init(&attributes);
	posix_spawnattr_setsigdefault(&attributes, &all);
	posix_spawnattr_setsigmask(&attributes, &none);
	posix_spawnattr_setpgroup(&attributes, 0);
	posix_spawnattr_setflags(&attributes,
	                         POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, in, STDIN_FILENO);
	posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
	posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
	r = posix_spawnp(pid, argv[0], &actions, &attributes, argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	posix_spawnattr_destroy(&attributes);
	return -r;
}

static void close_end(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

int reward_program_start(char *const *argv, struct reward_program **out, struct error *err)
{
	_cleanup_(reward_program_endp) struct reward_program *p = calloc(1, sizeof(*p));
	int in[2] = {-1, -1}, from[2] = {-1, -1}, r = 0;

	if (!p || !(p->name = strdup(argv[0]))) {
		free(p);
		p = NULL;
		return error_oom(err);
	}
	p->in = p->out = -1;
	if (pipe2(in, O_CLOEXEC) < 0 || pipe2(from, O_CLOEXEC) < 0 || fcntl(in[1], F_SETFL, O_NONBLOCK) < 0 ||
	    fcntl(from[0], F_SETFL, O_NONBLOCK) < 0)
		r = -errno;
	if (r == 0)
		r = spawn(argv, in[0], from[1], &p->pid);
	close_end(&in[0]);
	close_end(&from[1]);
	p->in = in[1];
	p->out = from[0];
	if (r < 0) {
		p->pid = 0;
		return error_errno(err, r, "cannot start %s", argv[0]);
	}
	*out = steal_pointer(p);
	return 0;
}

/* Waits for its end, for so long. */
static bool wait_for_end(struct reward_program *p, double seconds, int *status)
{
	double until = clock_monotonic() + seconds;
	pid_t pid;

	while ((pid = waitpid(p->pid, status, WNOHANG)) == 0 && clock_monotonic() < until)
		poll(NULL, 0, END_POLL_MS);
	if (pid != 0)
		p->pid = 0;
	return pid > 0;
}

void reward_program_end(struct reward_program *p)
{
	int status;

	if (!p)
		return;
	close_end(&p->in);
	close_end(&p->out);
	if (p->pid > 0 && !wait_for_end(p, END_SECONDS, &status) && p->pid > 0) {
		kill(-p->pid, SIGKILL);
		waitpid(p->pid, &status, 0);
	}
	free(p->name);
	free(p);
}

/* ---- completions and rewards ---- */

/* Why it has closed one of its ends. */
static int describe_end(struct reward_program *p, struct error *err)
{
	int status = 0;

	if (p->pid > 0 && !wait_for_end(p, END_SECONDS, &status))
		return error_set(err, -EPIPE, "%s has closed its input or output before the run had ended",
		                 p->name);
	if (WIFSIGNALED(status))
		return error_set(err, -EPIPE, "%s was ended by %s", p->name, strsignal(WTERMSIG(status)));
	return error_set(err, -EPIPE,
	                 "%s has ended with status %d before the run had; it has to read lines until its "
	                 "input ends",
	                 p->name, WEXITSTATUS(status));
}

static int write_some(struct reward_program *p, const char *text, size_t len, size_t *written,
                      struct error *err)
{
	ssize_t n = write(p->in, text + *written, len - *written);

	if (n >= 0)
		*written += (size_t)n;
	else if (errno == EPIPE)
		return describe_end(p, err);
	else if (errno != EAGAIN && errno != EINTR)
		return error_errno(err, -errno, "cannot write to %s", p->name);
	return 0;
}

static int read_some(struct reward_program *p, int64_t n, int64_t *done, double *rewards,
                     struct policy_parts *parts, struct error *err)
{
	char bytes[4096];
	ssize_t got = read(p->out, bytes, sizeof(bytes));

	if (got > 0)
		return reward_lines_add(&p->lines, p->name, bytes, (size_t)got, n, done, rewards, parts, err);
	if (got == 0)
		return describe_end(p, err);
	return errno == EAGAIN || errno == EINTR ? 0
	                                         : error_errno(err, -errno, "cannot read from %s", p->name);
}

/* A line more than there were completions, as far as it has come: it may be one of the answers that was
 * taken. */
static int check_surplus(struct reward_program *p, struct policy_parts *parts, struct error *err)
{
	char bytes[256];
	ssize_t got = read(p->out, bytes, sizeof(bytes));
	int64_t none = 0;

	return got > 0 ? reward_lines_add(&p->lines, p->name, bytes, (size_t)got, 0, &none, NULL, parts, err)
	               : 0;
}

int reward_program_ask(struct reward_program *p, const char *text, size_t len, int64_t n, double *rewards,
                       struct policy_parts *parts, double timeout, struct error *err)
{
	double idle = 0;
	size_t written = 0;
	int64_t done = 0;
	/* What the program has written since the call before answers no completion. */
	int r = read_some(p, 0, &done, rewards, parts, err);

	while (r == 0 && (done < n || written < len)) {
		struct pollfd ends[] = {{.fd = p->out, .events = POLLIN},
		                        {.fd = written < len ? p->in : -1, .events = POLLOUT}};
		double begun = clock_monotonic();
		int ready = poll(ends, ARRAY_SIZE(ends), (int)(1000 * MIN(timeout - idle, STOP_SECONDS)) + 1);

		if (ready < 0 && errno != EINTR)
			return error_errno(err, -errno, "cannot wait for %s", p->name);
		/* A signal may come just before poll. */
		if (stop_signal())
			return 1;
		idle = ready > 0 ? 0 : idle + clock_monotonic() - begun;
		if (idle >= timeout)
			return error_set(err, -ETIMEDOUT,
			                 "%s has given %lld of %lld rewards, and nothing for %g s "
			                 "(parallel.timeout)",
			                 p->name, (long long)done, (long long)n, timeout);
		if (ready > 0 && ends[0].revents)
			r = read_some(p, n, &done, rewards, parts, err);
		if (ready > 0 && r == 0 && ends[1].revents)
			r = write_some(p, text, len, &written, err);
	}
	return r < 0 ? r : check_surplus(p, parts, err);
}

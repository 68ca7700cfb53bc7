/* SPDX-License-Identifier: Apache-2.0 */
/* Starts processes, learns from a pipe of each when it is ready, and notices where one ends. */
#include "worker/load_processes.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"

void load_ready(int ready)
{
	if (write(ready, "", 1) != 1)
		_exit(1);
}

/* In the child. */
static void run_process(int start, int status, load_fn *run)
{
	struct error err = ERROR_INIT;
	char byte;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (read(start, &byte, 1) == 1 && run(status, &err) < 0 &&
	    write(status, err.message, strlen(err.message)) < 0)
		_exit(2);
	_exit(1);
}

static int fork_process(struct load_processes *l, load_fn *run, struct error *err)
{
	struct load_process *p = &l->processes[l->n];
	int ends[2];

	if (pipe(ends) < 0)
		return error_errno(err, -errno, "cannot make a pipe");
	p->pid = fork();
	if (p->pid == 0) {
		close(l->start[1]);
		close(ends[0]);
		run_process(l->start[0], ends[1], run);
	}
	close(ends[1]);
	if (p->pid < 0) {
		close(ends[0]);
		return error_errno(err, -errno, "cannot fork");
	}
	p->status = ends[0];
	l->n++;
	return 0;
}

int load_processes_create(struct load_processes *l, int n, load_fn *run, struct error *err)
{
	int r = 0;

	*l = (struct load_processes){.start = {-1, -1}};
	l->processes = calloc((size_t)n + 1, sizeof(*l->processes));
	if (!l->processes)
		return error_oom(err);
	if (n > 0 && pipe(l->start) < 0)
		return error_errno(err, -errno, "cannot make a pipe");
	while (l->n < n && r == 0)
		r = fork_process(l, run, err);
	return r;
}

/* A process whose pipe has come to its end. */
static int explain_end(struct load_process *p, struct error *err)
{
	int status = 0, r;

	while ((r = p->pid > 0 ? waitpid(p->pid, &status, 0) : 0) < 0 && errno == EINTR)
		;
	p->pid = -1;
	if (r > 0 && WIFSIGNALED(status))
		return error_set(err, -EIO,
		                 "one of the processes that load the other processors was ended by signal %d "
		                 "(%s)%s",
		                 WTERMSIG(status), strsignal(WTERMSIG(status)),
		                 WTERMSIG(status) == SIGKILL ? ", as where the memory is too small" : "");
	return error_set(err, -EIO, "one of the processes that load the other processors has ended");
}

static int await(struct load_process *p, struct error *err)
{
	char text[sizeof(err->message)];
	size_t len = 0;
	ssize_t n;

	while (len < sizeof(text) - 1 &&
	       ((n = read(p->status, text + len, sizeof(text) - 1 - len)) > 0 || (n < 0 && errno == EINTR))) {
		len += (size_t)MAX(n, 0);
		if (len > 0 && text[0] == '\0')
			return 0;
	}
	text[len] = '\0';
	return len > 0 ? error_set(err, -EIO, "a process that loads another processor: %s", text)
	               : explain_end(p, err);
}

int load_processes_start(struct load_processes *l, struct error *err)
{
	int r = 0;

	for (int i = 0; i < l->n; i++)
		if (write(l->start[1], "", 1) != 1)
			return error_errno(err, -errno, "cannot start the other ranks");
	for (int i = 0; i < l->n && r == 0; i++)
		r = await(&l->processes[i], err);
	return r;
}

int load_processes_check(struct load_processes *l, struct error *err)
{
	for (int i = 0; i < l->n; i++) {
		siginfo_t ended = {.si_pid = 0};

		/* The process stays to be waited for. */
		if (waitid(P_PID, (id_t)l->processes[i].pid, &ended, WEXITED | WNOHANG | WNOWAIT) < 0 ||
		    ended.si_pid != 0)
			return explain_end(&l->processes[i], err);
	}
	return 0;
}

void load_processes_end(struct load_processes *l)
{
	for (int i = 0; i < l->n; i++) {
		struct load_process *p = &l->processes[i];

		if (p->pid > 0)
			kill(p->pid, SIGKILL);
		while (p->pid > 0 && waitpid(p->pid, NULL, 0) < 0 && errno == EINTR)
			;
		close(p->status);
	}
	for (int i = 0; i < 2; i++)
		if (l->start[i] >= 0)
			close(l->start[i]);
	free(l->processes);
	*l = (struct load_processes){.start = {-1, -1}};
}

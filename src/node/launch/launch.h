/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What dtrain-launch is made of, and how dtraind speaks with it.
 *
 * dtraind makes DIR = runtime_dir/attempts/RUN.ATTEMPT with launch.json, binds and listens on
 * DIR/launch.sock, and executes `dtrain-launch DIR` with that socket as descriptor 3, or, in a service of
 * systemd, as descriptor 0; it then connects like any later dtraind will.
 *
 * launch.json is a struct launch_description (wire/launch.h). Over the socket newline-delimited JSON. To the
 * newest connection, at once and after each change, the whole state, a struct launch_report: so a restarted
 * dtraind needs no history, and a slow one gets the newest state only. Back, each a struct launch_command: a
 * stop, and, once the end is on record, an acknowledgement; then dtrain-launch exits. After a TERM (at a
 * shutdown of the machine) it stops the ranks with the grace of launch.json, which is that of the run or,
 * where that is longer, shutdown_grace, and exits at their end without an acknowledgement. When the lease of
 * the node runs out (lease_watch.h) it stops them likewise, and waits for a service.
 *
 * "launcher" of the report is the process that was executed: the guard (guard.c), parent of the launcher
 * itself. In a unit of systemd there is no guard: systemd kills what a killed launcher leaves.
 */
#pragma once

#include <stdbool.h>
#include <sys/resource.h>
#include <sys/types.h>

#include "base/error.h"
#include "wire/launch.h"

enum { LAUNCH_SOCKET_FD = 3 };

/* The file in DIR that dtrain-launch makes before anything else: without it nothing of the attempt has run.
 */
#define LAUNCH_BEGUN "begun"

/* The end of a failed rank's log that goes into its report. */
enum { LAUNCH_ERROR_LINES = 5, LAUNCH_ERROR_BYTES = 1024 };

struct launch_rank {
	int rank, slot;
	enum rank_state state; /* starting, running or exited */
	pid_t pid;
	int pidfd;   /* readable once it has ended; -1 before and after */
	int exec_fd; /* readable once the exec was done (end of file) or failed; -1 after that */
	int log_fd;
	char **environment;     /* borrowed from the description, as the next two */
	const char *error_file; /* may be NULL */
	const char *cpus;       /* those that it may run on; NULL: all */
	int numa;               /* node that its memory is taken from while there is some; -1: any */
	int exit_status;
	int signal;      /* 0: exited */
	bool terminated; /* its process group got TERM */
	bool stopped; /* it ended after our stop, of a signal that we had sent or with a status of its own */
	bool oom;     /* it failed, and the kernel's OOM killer has struck it or a process of its attempt */
	bool core_dumped;
	bool lost_peer; /* as its error file says */
	double ended;
	char *error; /* for the user alone: the last lines of its log; owned; NULL: none */
};

struct launch_user {
	bool change;     /* running as root: become the user */
	bool core_files; /* may be left */
	mode_t umask;
	uid_t uid;
	gid_t gid;
	gid_t *groups; /* owned */
	size_t group_count;
	const char *directory; /* borrowed from the description, as the next */
	char **argv;
};

/* Forks. Returns in the child, which goes on as the launcher, in the control group (NULL: none; without it
 * the subreapers remain) and with the signals that it handles blocked; the parent guards it and never
 * returns. */
int launch_guard(const char *cgroup, struct error *err);
/* The limits of this process as the ranks have them, where no session of PAM sets others. */
void launch_raise_limits(void);

/* Limits of this process: of locked memory, of open files, and of core files. */
enum { LAUNCH_LIMITS = 3 };
struct launch_limits {
	struct rlimit list[LAUNCH_LIMITS];
};

void launch_read_limits(struct launch_limits *out);

/* After a session of PAM was opened: pam_limits has set the limits for which it is not configured to those of
 * process 1, which file (/proc/1/limits) has. These become again what they were before. Where the file cannot
 * be read, nothing is done. */
void launch_keep_limits(const struct launch_limits *before, const char *file);
/* Forks and executes. Failures of the exec itself come through exec_fd. */
int launch_rank_start(struct launch_rank *rank, const struct launch_user *user, struct error *err);
/* exec_fd is readable: running, or error filled. */
void launch_rank_executed(struct launch_rank *rank, const struct launch_user *user);
/* The process was reaped with this wait status. sent: the last signal of ours to it, 0: none; oom: the OOM
 * killer has struck meanwhile. Fills the error of a failure. */
void launch_rank_exited(struct launch_rank *rank, const struct launch_user *user, int status, int sent,
                        bool oom);
/* Its state for a message; to be released by the caller. What there is no memory for is absent. */
void launch_rank_describe(const struct launch_rank *rank, struct rank_report *out);
void launch_rank_release(struct launch_rank *rank);
/* preflight.c: `dtrain-launch --preflight`, as preflight.h has it. Returns the exit status. */
int preflight_main(void);

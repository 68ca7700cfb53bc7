/* SPDX-License-Identifier: Apache-2.0 */
/* One rank as dtrain-launch sees it: its start as the user, and what its end means. */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/close_range.h>
#include <linux/mempolicy.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "node/gpu/affinity.h"
#include "node/launch/launch.h"
#include "wire/error_file.h"

extern char **environ;

enum { STAGE_USER, STAGE_DIRECTORY, STAGE_EXEC };

struct failure {
	int stage, code;
};

void launch_raise_limits(void)
{
	struct rlimit limit;

	/* RDMA and CUDA pin memory. As an ordinary user the hard limit stays what it is. */
	limit.rlim_cur = limit.rlim_max = RLIM_INFINITY;
	if (setrlimit(RLIMIT_MEMLOCK, &limit) < 0 && getrlimit(RLIMIT_MEMLOCK, &limit) == 0) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_MEMLOCK, &limit);
	}
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

static const struct {
	int resource;
	const char *name; /* in /proc/PID/limits */
} limits[LAUNCH_LIMITS] = {{RLIMIT_MEMLOCK, "\nMax locked memory "},
                           {RLIMIT_NOFILE, "\nMax open files "},
                           {RLIMIT_CORE, "\nMax core file size "}};

void launch_read_limits(struct launch_limits *out)
{
	for (size_t i = 0; i < ARRAY_SIZE(limits); i++)
		if (getrlimit(limits[i].resource, &out->list[i]) < 0)
			out->list[i] = (struct rlimit){RLIM_INFINITY, RLIM_INFINITY};
}

static rlim_t parse_limit(const char *text)
{
	return str_starts(text, "unlimited") ? RLIM_INFINITY : strtoull(text, NULL, 10);
}

/* "Max open files            1024                 524288               files" */
static bool find_limit(const char *text, const char *name, struct rlimit *out)
{
	const char *soft = strstr(text, name), *hard;

	if (!soft)
		return false;
	soft += strlen(name);
	soft += strspn(soft, " ");
	hard = soft + strcspn(soft, " \n");
	hard += strspn(hard, " ");
	*out = (struct rlimit){parse_limit(soft), parse_limit(hard)};
	return true;
}

void launch_keep_limits(const struct launch_limits *before, const char *file)
{
	/* The soft limit of open files that pam_limits has for programs that call select(). */
	const rlim_t selectable = 1024;
	_cleanup_free_ char *text = NULL;

	if (file_read(file, 1 << 20, &text, NULL, NULL) < 0)
		return;
	for (size_t i = 0; i < ARRAY_SIZE(limits); i++) {
		const struct rlimit *old = &before->list[i];
		struct rlimit now, first;
		rlim_t hard;
		bool more;

		if (!find_limit(text, limits[i].name, &first) || getrlimit(limits[i].resource, &now) < 0)
			continue;
		/* limits.conf may have set the same as process 1 has: so a higher limit stays, but for core
		 * files, of which a run is to have no more. */
		more = limits[i].resource != RLIMIT_CORE;
		hard = now.rlim_max;
		if (now.rlim_cur == first.rlim_cur ||
		    (limits[i].resource == RLIMIT_NOFILE && now.rlim_cur == selectable))
			now.rlim_cur = more ? MAX(old->rlim_cur, now.rlim_cur) : old->rlim_cur;
		if (now.rlim_max == first.rlim_max)
			now.rlim_max = more ? MAX(old->rlim_max, now.rlim_max) : old->rlim_max;
		now.rlim_cur = MIN(now.rlim_cur, now.rlim_max);
		if (setrlimit(limits[i].resource, &now) < 0) { /* a container may not raise it */
			now = (struct rlimit){MIN(now.rlim_cur, hard), hard};
			setrlimit(limits[i].resource, &now);
		}
	}
}

/* A rank of some hundred GB that crashes would fill the disk for minutes, on all nodes at once. */
static void limit_core(bool allowed)
{
	struct rlimit limit = {0, 0};

	if (allowed && getrlimit(RLIMIT_CORE, &limit) == 0)
		limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_CORE, &limit);
}

static void write_small(const char *path, const char *text)
{
	_cleanup_close_ int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd >= 0 && write(fd, text, strlen(text)) < 0)
		return; /* the launcher's own score stays: no reason not to run */
}

/* A matter of speed: a rank that cannot be bound runs all the same. */
static void bind_cpus(const char *list)
{
	cpu_set_t cpus;

	if (list && affinity_parse(list, &cpus) == 0)
		sched_setaffinity(0, sizeof cpus, &cpus);
}

/* As bind_cpus(). Where the node has no memory left, it is taken from others. */
static void prefer_memory(int numa)
{
	unsigned long mask[16] = {0};
	const size_t bits = 8 * sizeof(*mask);

	if (numa < 0 || (size_t)numa >= ARRAY_SIZE(mask) * bits)
		return;
	mask[(size_t)numa / bits] = 1UL << (size_t)numa % bits;
	syscall(SYS_set_mempolicy, MPOL_PREFERRED, mask, ARRAY_SIZE(mask) * bits);
}

static int become_user(const struct launch_user *user)
{
	if (!user->change)
		return 0;
	if (setgroups(user->group_count, user->groups) < 0 ||
	    setresgid(user->gid, user->gid, user->gid) < 0 || setresuid(user->uid, user->uid, user->uid) < 0)
		return -errno;
	return 0;
}

static void __attribute__((noreturn))
child(const struct launch_rank *rank, const struct launch_user *user, pid_t launcher, int report_fd)
{
	struct failure failure = {STAGE_USER, 0};
	sigset_t none;
	int null;

	setsid();
	for (int sig = 1; sig < NSIG; sig++)
		signal(sig, SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	umask(user->umask);
	null = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (null >= 0)
		dup2(null, STDIN_FILENO);
	dup2(rank->log_fd, STDOUT_FILENO);
	dup2(rank->log_fd, STDERR_FILENO);
	syscall(SYS_close_range, 3, ~0U, CLOSE_RANGE_CLOEXEC);
	limit_core(user->core_files);
	bind_cpus(rank->cpus);
	prefer_memory(rank->numa);
	write_small("/proc/self/oom_score_adj", "0");
	failure.code = -become_user(user);
	/* After the change of user, which clears it. If the launcher died in between, no signal comes. */
	if (!failure.code && (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != launcher))
		_exit(128 + SIGKILL);
	if (!failure.code) {
		failure.stage = STAGE_DIRECTORY;
		if (chdir(user->directory) < 0)
			failure.code = errno;
	}
	if (!failure.code) {
		failure.stage = STAGE_EXEC;
		environ = rank->environment; /* PATH is the user's */
		execvp(user->argv[0], user->argv);
		failure.code = errno;
	}
	if (write(report_fd, &failure, sizeof failure) < 0)
		_exit(125);
	_exit(failure.code == ENOENT && failure.stage == STAGE_EXEC ? 127 : 126);
}

int launch_rank_start(struct launch_rank *rank, const struct launch_user *user, struct error *err)
{
	pid_t launcher = getpid();
	int fds[2];

	if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0)
		return error_errno(err, -errno, "rank %d: pipe", rank->rank);
	rank->pid = fork();
	if (rank->pid == 0)
		child(rank, user, launcher, fds[1]);
	close(fds[1]);
	if (rank->pid < 0) {
		int code = -errno;

		close(fds[0]);
		rank->pid = 0;
		return error_errno(err, code, "rank %d: fork", rank->rank);
	}
	rank->exec_fd = fds[0];
	rank->pidfd = pidfd_open(rank->pid, 0);
	return 0;
}

void launch_rank_executed(struct launch_rank *rank, const struct launch_user *user)
{
	struct failure failure;
	ssize_t n;

	if (rank->exec_fd < 0)
		return;
	n = read(rank->exec_fd, &failure, sizeof failure);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	close(rank->exec_fd);
	rank->exec_fd = -1;
	if (n != sizeof failure) {
		if (rank->state == RANK_STARTING)
			rank->state = RANK_RUNNING;
		return;
	}
	free(rank->error);
	switch (failure.stage) {
	case STAGE_USER:
		rank->error =
		    str_printf("cannot become uid %u: %s", (unsigned)user->uid, strerror(failure.code));
		break;
	case STAGE_DIRECTORY:
		rank->error =
		    str_printf("cannot enter directory %s: %s", user->directory, strerror(failure.code));
		break;
	default:
		rank->error = str_printf("cannot execute %s: %s", user->argv[0], strerror(failure.code));
	}
}

/* The last lines of the log, without the white space around them. */
static void add_log_tail(struct strbuf *out, int fd)
{
	char text[LAUNCH_ERROR_BYTES + 1], *start, *p;
	struct stat st;
	ssize_t n;
	int lines = 0;

	if (fstat(fd, &st) < 0)
		return;
	n = pread(fd, text, LAUNCH_ERROR_BYTES,
	          st.st_size > LAUNCH_ERROR_BYTES ? st.st_size - LAUNCH_ERROR_BYTES : 0);
	if (n <= 0)
		return;
	text[n] = '\0';
	for (p = text; p < text + n; p++)
		if (*p == '\0')
			*p = ' ';
		else if (*p == '\r' && p[1] != '\n') /* progress that is written over itself */
			*p = '\n';
	start = text;
	/* Not a cut line, and no half of a UTF-8 character, unless it is the only line. */
	if (st.st_size > LAUNCH_ERROR_BYTES && (p = strchr(text, '\n')) && p[strspn(p, " \t\r\n")])
		start = p + 1;
	start = str_strip(start);
	for (p = start + strlen(start); p > start; p--)
		if (p[-1] == '\n' && ++lines == LAUNCH_ERROR_LINES)
			break;
	if (!*p)
		return;
	/* A heading: who has been shown the log anyway can leave it out. */
	strbuf_addf(out, "%slast lines of the log:\n%s", out->len ? "\n" : "", p);
}

/* The file is the user's: only a plain one of theirs is read, and not much of it. */
static void add_error_file(struct strbuf *out, const char *path, uid_t uid, bool *lost_peer)
{
	_cleanup_close_ int fd = -1;
	_cleanup_json_ json_t *json = NULL;
	_cleanup_free_ char *text = NULL;
	const size_t limit = 256 << 10;
	const json_t *message;
	struct stat st;
	ssize_t n;

	if (!path)
		return;
	fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_uid != uid)
		return;
	text = malloc(limit);
	n = text ? read(fd, text, limit) : 0;
	if (n <= 0)
		return;
	json = json_loadb(text, n, 0, NULL);
	*lost_peer = error_file_lost_peer(json);
	message = error_file_message(json);
	if (!message)
		return;
	strbuf_add(out, json_string_value(message),
	           MIN(json_string_length(message), (size_t)LAUNCH_ERROR_BYTES));
}

static void close_descriptors(struct launch_rank *rank)
{
	if (rank->exec_fd >= 0)
		close(rank->exec_fd);
	if (rank->pidfd >= 0)
		close(rank->pidfd);
	rank->exec_fd = rank->pidfd = -1;
}

void launch_rank_exited(struct launch_rank *rank, const struct launch_user *user, int status, int sent,
                        bool oom)
{
	struct strbuf text = {0};

	launch_rank_executed(rank, user); /* a failed exec may be known only now */
	rank->state = RANK_EXITED;
	rank->ended = clock_realtime();
	rank->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
	rank->exit_status = rank->signal ? 128 + rank->signal : WEXITSTATUS(status);
	rank->core_dumped = rank->signal && WCOREDUMP(status);
	/* A KILL that we did not send is another's, whatever we have sent before. */
	rank->stopped = sent != 0 && (rank->signal != SIGKILL || sent == SIGKILL);
	rank->oom = oom && rank->exit_status != 0 && !rank->stopped;
	close_descriptors(rank);
	if (rank->error || rank->stopped || rank->exit_status == 0)
		return;
	add_error_file(&text, rank->error_file, user->uid, &rank->lost_peer);
	add_log_tail(&text, rank->log_fd);
	if (text.len)
		rank->error = strbuf_steal(&text);
	strbuf_free(&text);
	if (rank->error) /* a program may write anything */
		str_make_utf8(rank->error);
}

/* "SIGKILL", "SIGRTMIN+3"; owned by the caller. */
static char *signal_name(int number)
{
	const char *name = sigabbrev_np(number);

	return name ? str_printf("SIG%s", name) : str_printf("SIGRTMIN+%d", number - SIGRTMIN);
}

void launch_rank_describe(const struct launch_rank *rank, struct rank_report *out)
{
	bool exited = rank->state == RANK_EXITED;

	*out = (struct rank_report){
	    .rank = rank->rank,
	    .slot = rank->slot,
	    .state = rank->state,
	    .pid = rank->pid,
	    .exit_status = exited ? rank->exit_status : -1,
	    .signal = rank->signal ? signal_name(rank->signal) : NULL,
	    .ended = exited ? rank->ended : 0,
	    .stopped = exited && rank->stopped,
	    .oom = exited && rank->oom,
	    .core_dumped = exited && rank->core_dumped,
	    .lost_peer = exited && rank->lost_peer,
	    .error = rank->error ? strdup(rank->error) : NULL,
	};
	/* Names of files in it may be anything. */
	if (out->error)
		str_make_utf8(out->error);
}

void launch_rank_release(struct launch_rank *rank)
{
	close_descriptors(rank);
	if (rank->log_fd >= 0)
		close(rank->log_fd);
	free(rank->error);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The process that looks, dtrain-launch --preflight: preflight.h. It may block for ever; who started it may
 * not. */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <pwd.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hub_name.h"
#include "base/json.h"
#include "base/socket.h"
#include "base/str.h"
#include "node/launch/launch.h"
#include "node/launch/preflight.h"
#include "node/launch/run_user.h"

enum { LOG_SPACE = 16 << 20 };

/* A request with all that it leaves open filled in. */
struct check {
	const struct run_user *user;
	const char *directory, *program, *engine, *path, *model, *teacher, *reward_model, *reference,
	    *output_dir, *offload_dir, *socket;
	bool own_mounts;
};

static void write_line(const struct preflight_line *answer)
{
	_cleanup_json_ json_t *json = preflight_line_encode(answer);
	_cleanup_free_ char *text = json ? json_to_string(json) : NULL;
	_cleanup_free_ char *line = text ? str_printf("%s\n", text) : NULL;

	/* Where the line cannot be written, the service has closed the pipe and needs no result. */
	if (!line || file_write_all(STDOUT_FILENO, line, strlen(line), NULL) < 0)
		_exit(1);
}

/* Says what is looked at next: it may take its time. */
static void __attribute__((format(printf, 1, 2))) step(const char *fmt, ...)
{
	char text[PATH_MAX + 64];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	str_make_utf8(text);
	write_line(&(struct preflight_line){.step = text, .error = PREFLIGHT_UNDER_WAY});
}

/* For good: this process is theirs from here on. */
static int become(const struct run_user *user, struct error *err)
{
	_cleanup_free_ gid_t *groups = NULL;

	if (!user->change)
		return 0;
	groups = calloc(user->group_count + 1, sizeof(*groups));
	if (!groups)
		return error_oom(err);
	for (size_t i = 0; i < user->group_count; i++)
		groups[i] = (gid_t)user->groups[i];
	if (setgroups(user->group_count, groups) < 0 || setresgid(user->gid, user->gid, user->gid) < 0 ||
	    setresuid(user->uid, user->uid, user->uid) < 0)
		return error_errno(err, -errno, "cannot become %s", user->name);
	return 0;
}

/* access() with the effective ids. */
static int may(const char *path, int mode)
{
	return faccessat(AT_FDCWD, path, mode, AT_EACCESS) < 0 ? -errno : 0;
}

/* Whether the file system itself is writable: its options are behind the dash in its line of mountinfo, those
 * of the mount in front of it. */
static bool is_read_only_here_alone(const char *path)
{
	_cleanup_free_ char *text = NULL;
	char start[32], *line, *rest, *options;
	struct statx st;

	if (statx(AT_FDCWD, path, 0, STATX_MNT_ID, &st) < 0 || !(st.stx_mask & STATX_MNT_ID) ||
	    file_read("/proc/self/mountinfo", 0, &text, NULL, NULL) < 0)
		return false;
	snprintf(start, sizeof(start), "%llu ", (unsigned long long)st.stx_mnt_id);
	for (rest = text; (line = strsep(&rest, "\n"));) {
		if (!str_starts(line, start))
			continue;
		/* " - TYPE SOURCE OPTIONS" */
		options = strstr(line, " - ");
		for (int i = 0; i < 3 && options; i++)
			options = strchr(options + 1, ' ');
		return options && str_starts(options, " rw");
	}
	return false;
}

/* Where the unit of the service has ProtectSystem, /usr and /etc are read-only mounts for it, and for the
 * ranks what the machine has them for. */
static int may_write(const struct check *p, const char *path)
{
	int r = may(path, W_OK | X_OK);

	return r == -EROFS && p->own_mounts && is_read_only_here_alone(path) ? 0 : r;
}

static int check_directory(const struct check *p, struct error *err)
{
	struct stat st;
	int r;

	step("directory %s", p->directory);
	if (p->directory[0] != '/')
		return error_set(err, -EINVAL, "directory %s is not an absolute path", p->directory);
	if (stat(p->directory, &st) < 0)
		return errno == ENOENT
		           ? error_set(
		                 err, -ENOENT,
		                 "directory %s: No such file or directory; a run needs its directory on "
		                 "each of its nodes: share it, or make copies",
		                 p->directory)
		           : error_errno(err, -errno, "directory %s", p->directory);
	if (!S_ISDIR(st.st_mode))
		return error_set(err, -ENOTDIR, "directory %s is not a directory", p->directory);
	r = may(p->directory, X_OK);
	return r < 0 ? error_errno(err, r, "%s cannot enter directory %s", p->user->name, p->directory) : 0;
}

static int check_executable(const char *path)
{
	struct stat st;

	if (stat(path, &st) < 0)
		return -errno;
	return S_ISREG(st.st_mode) ? may(path, X_OK) : -EACCES;
}

static int check_program(const struct check *p, struct error *err)
{
	_cleanup_free_ char *copy = strdup(p->path ? p->path : "/usr/bin:/bin");
	char *rest = copy, *part;
	int r = -ENOENT;

	if (!copy)
		return error_oom(err);
	step("program %s", p->program);
	if (!p->program[0])
		return error_set(err, -EINVAL, "the command is empty");
	if (strchr(p->program, '/')) {
		_cleanup_free_ char *path = str_path_join(p->directory, p->program);

		r = path ? check_executable(path) : -ENOMEM;
		if (r == -ENOENT && p->engine)
			return error_set(
			    err, r,
			    "%s slots need dtrain-engine-%s, which is not installed here (no %s): "
			    "apt install dtrain-engine-%s",
			    str_eq(p->engine, "cuda") ? "GPU" : "CPU", p->engine, path, p->engine);
		return r < 0 ? error_errno(err, r, "cannot execute %s", path ? path : p->program) : 0;
	}
	while ((part = strsep(&rest, ":"))) {
		_cleanup_free_ char *in = str_path_join(p->directory, *part ? part : ".");
		_cleanup_free_ char *path = in ? str_path_join(in, p->program) : NULL;
		int found = path ? check_executable(path) : -ENOMEM;

		if (found == 0)
			return 0;
		if (found != -ENOENT && found != -ENOTDIR && r == -ENOENT)
			r = found;
	}
	if (r != -ENOENT)
		return error_errno(err, r, "cannot execute %s", p->program);
	return error_set(err, r, "no program %s in PATH (%s)", p->program,
	                 p->path ? p->path : "/usr/bin:/bin");
}

/* The directory itself, or the nearest above it that is there, has to be writable. */
static int check_output(const struct check *p, struct error *err)
{
	_cleanup_free_ char *path = str_path_join(p->directory, p->output_dir);
	struct stat st;
	int r;

	if (!path)
		return error_oom(err);
	step("output.dir %s", path);
	while (stat(path, &st) < 0) {
		char *slash = strrchr(path, '/');

		if (errno != ENOENT && errno != ENOTDIR)
			return error_errno(err, -errno, "output.dir %s", path);
		if (!slash || slash == path) {
			path[slash == path] = '\0';
			break;
		}
		*slash = '\0';
	}
	if (stat(path, &st) == 0 && !S_ISDIR(st.st_mode))
		return error_set(err, -ENOTDIR, "output.dir %s: %s is not a directory", p->output_dir, path);
	r = may_write(p, path);
	return r < 0 ? error_errno(err, r, "output.dir %s: %s cannot write to %s", p->output_dir,
	                           p->user->name, path)
	             : 0;
}

/* It has to be there: were it made here, a disk that is not mounted would fill the one above it. */
static int check_offload(const struct check *p, struct error *err)
{
	_cleanup_free_ char *path = str_path_join(p->directory, p->offload_dir);
	struct error because;
	struct stat st;
	int r = 0;

	if (!path)
		return error_oom(err);
	step("parallel.offload_dir %s", path);
	if (stat(path, &st) < 0)
		r = error_errno(err, -errno, "parallel.offload_dir %s", path);
	else if (!S_ISDIR(st.st_mode))
		r = error_set(err, -ENOTDIR, "parallel.offload_dir %s is not a directory", path);
	else if ((r = may_write(p, path)) < 0)
		r = error_errno(err, r, "parallel.offload_dir: %s cannot write to %s", p->user->name, path);
	if (r == 0)
		return 0;
	because = *err;
	return error_set(
	    err, r,
	    "%s; name a directory that can be written on each node, or leave the key out: what is "
	    "offloaded then stays in host memory",
	    because.message);
}

/* The ranks report to the service, and find each other through it. */
static int check_socket(const struct check *p, struct error *err)
{
	const struct group *group;
	struct stat st;

	step("socket %s", p->socket);
	if (may(p->socket, W_OK) != -EACCES)
		return 0;
	group = stat(p->socket, &st) == 0 ? getgrgid(st.st_gid) : NULL;
	if (!group || !(st.st_mode & S_IWGRP) || st.st_gid == 0)
		return error_set(
		    err, -EACCES,
		    "%s may not use the socket of dtraind here, %s, which the ranks of native runs "
		    "need: dtraind.conf names the group of those who may",
		    p->user->name, p->socket);
	return error_set(err, -EACCES,
	                 "%s is not in group %s here, which the ranks of native runs need: as root, adduser "
	                 "%s %s",
	                 p->user->name, group->gr_name, p->user->name, group->gr_name);
}

/* A model that the ranks read: whether it is there. */
static int check_model(const struct check *p, const char *what, const char *name, struct error *err)
{
	_cleanup_free_ char *path = str_path_join(p->directory, name);
	int r = path ? 0 : -ENOMEM;

	step("%s %s", what, path ? path : name);
	if (r == 0)
		r = may(path, R_OK);
	if (r == -ENOENT && is_hub_name(name))
		return error_set(err, r, "%s %s: No such file or directory, and " HUB_HINT, what, path);
	return r < 0 ? error_errno(err, r, "%s %s", what, path ? path : name) : 0;
}

static int check_as_user(const struct check *p, struct error *err)
{
	int r;

	if ((r = check_directory(p, err)) < 0 || (r = check_program(p, err)) < 0 ||
	    (p->socket && (r = check_socket(p, err)) < 0))
		return r;
	if (p->model)
		r = check_model(p, "model", p->model, err);
	if (r == 0 && p->teacher)
		r = check_model(p, "teacher", p->teacher, err);
	if (r == 0 && p->reward_model)
		r = check_model(p, "reward model", p->reward_model, err);
	if (r == 0 && p->reference)
		r = check_model(p, "reference", p->reference, err);
	if (r == 0 && p->output_dir)
		r = check_output(p, err);
	if (r == 0 && p->offload_dir)
		r = check_offload(p, err);
	return r;
}

static int check_log_space(const char *log_dir, struct error *err)
{
	struct statvfs disk;
	char text[16];

	step("log_dir %s", log_dir);
	if (statvfs(log_dir, &disk) < 0 || (uint64_t)disk.f_bavail * disk.f_frsize >= LOG_SPACE)
		return 0;
	/* Of this node, for whichever run. */
	return error_set(err, -ENOTRECOVERABLE, "only %s free for logs in %s",
	                 str_bytes(text, sizeof text, (uint64_t)disk.f_bavail * disk.f_frsize), log_dir);
}

static int check(const struct preflight_request *request, struct error *err)
{
	_cleanup_(run_user_freep) struct run_user *user = NULL;
	struct check what = {
	    .program = request->program,
	    .engine = request->engine,
	    .path = request->path,
	    .model = request->model,
	    .teacher = request->teacher,
	    .reward_model = request->reward_model,
	    .reference = request->reference,
	    .output_dir = request->output_dir,
	    .offload_dir = request->offload_dir,
	    .socket = request->socket,
	    .own_mounts = request->own_mounts,
	};
	int r;

	step("user %s", request->user);
	r = run_user_find(request->user, (uid_t)request->uid, &user, err);
	if (r < 0)
		return r;
	write_line(&(struct preflight_line){.user = user, .error = PREFLIGHT_UNDER_WAY});
	what.user = user;
	what.directory = request->directory ? request->directory : user->home;
	if ((r = check_log_space(request->log_dir ? request->log_dir : "/", err)) < 0 ||
	    (r = become(user, err)) < 0)
		return r;
	return check_as_user(&what, err);
}

/* By its pidfd the service can kill this process, which is not its child. */
static void introduce(void)
{
	int fd = pidfd_open(getpid(), 0);

	if (fd < 0 || socket_send_fds(STDOUT_FILENO, '\n', &fd, 1) < 0)
		_exit(1);
	close(fd);
}

/* What the directory of users needs is loaded with the first look. Returns in a process of its own for each
 * request, which has the request as its standard input. Ends with the service. */
static void wait_for_requests(void)
{
	_cleanup_(run_user_freep) struct run_user *self = NULL;
	struct passwd *own;
	char name[64];
	int fds[2]; /* the file with a request, and the socket for its answer */

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	signal(SIGCHLD, SIG_IGN); /* the kernel reaps them */
	own = getpwuid(geteuid());
	if (own) {
		snprintf(name, sizeof(name), "%s", own->pw_name);
		run_user_find(name, geteuid(), &self, NULL);
	}
	json_object_seed(0);
	if (file_write_all(STDOUT_FILENO, PREFLIGHT_READY, strlen(PREFLIGHT_READY), NULL) < 0)
		_exit(0);
	for (;;) {
		size_t count = ARRAY_SIZE(fds);
		char byte;

		if (socket_receive(STDIN_FILENO, &byte, 1, fds, &count) <= 0 || count != ARRAY_SIZE(fds))
			_exit(0);
		/* Where there is no process for it, the end of its socket says so. */
		if (fork() == 0)
			break;
		close(fds[0]);
		close(fds[1]);
	}
	signal(SIGCHLD, SIG_DFL);
	dup2(fds[0], STDIN_FILENO);
	dup2(fds[1], STDOUT_FILENO);
	close(fds[0]);
	close(fds[1]);
	introduce();
}

/* Reads the request from standard input, and checks it. */
static int check_input(struct error *err)
{
	_cleanup_(preflight_request_release) struct preflight_request request = {0};
	_cleanup_json_ json_t *json = NULL;
	_cleanup_free_ char *text = NULL;
	size_t len;
	int r;

	if ((r = file_read("/proc/self/fd/0", 0, &text, &len, err)) < 0 ||
	    (r = json_parse(text, len, "standard input", &json, err)) < 0 ||
	    (r = preflight_request_decode(json, &request, err)) < 0)
		return r;
	return check(&request, err);
}

int preflight_main(void)
{
	struct error err = ERROR_INIT;
	struct stat in;
	int r;

	prctl(PR_SET_NAME, "dtrain-check");
	signal(SIGPIPE, SIG_IGN);
	if (fstat(STDIN_FILENO, &in) == 0 && S_ISSOCK(in.st_mode))
		wait_for_requests();
	r = check_input(&err);
	str_make_utf8(err.message);
	write_line(&(struct preflight_line){.error = MIN(r, 0), .message = r < 0 ? err.message : NULL});
	return 0;
}

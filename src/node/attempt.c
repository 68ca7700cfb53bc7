/* SPDX-License-Identifier: Apache-2.0 */
/* One attempt on this node: its dtrain-launch, which reports over a socket, and the end that is on record. */
#include "node/attempt.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "node/attempt_files.h"
#include "node/launch/cgroup.h"
#include "node/launch/launch.h"
#include "node/launch/processes.h"

/* Between two looks for what a killed launcher left behind. */
enum { ORPHANS_AGAIN_USEC = 20000 };

struct attempt {
	struct attempt_owner owner;
	struct request *request;
	char *dir;
	struct report report;
	bool ended;
	struct strbuf in, out;
	int socket_fd; /* to dtrain-launch */
	int pidfd;     /* dtrain-launch where it is our child, else -1 */
	pid_t pid;     /* of dtrain-launch; 0: not known */
	char *cgroup;  /* NULL: none */
	bool lost;     /* dtrain-launch is gone, and its last report was not the end */
	bool no_dir; /* nothing but the record of its start is left: the record stays until it is forgotten */
	bool found;  /* and some of its processes were */
	char reason[128];
	sd_event_source *socket, *child, *orphans, *announce;
};

const struct request *attempt_request(const struct attempt *attempt)
{
	return attempt->request;
}

const struct report *attempt_report(const struct attempt *attempt)
{
	return &attempt->report;
}

bool attempt_has_ended(const struct attempt *attempt)
{
	return attempt->ended;
}

bool attempt_is_settled(const struct attempt *attempt)
{
	return attempt->ended && attempt->pidfd < 0 && attempt->socket_fd < 0;
}

pid_t attempt_launcher(const struct attempt *attempt)
{
	return attempt->lost ? 0 : attempt->pid;
}

double attempt_grace(const struct attempt *attempt)
{
	/* Of one that is lost nothing is left to wait for. */
	return attempt->request->config ? (double)attempt->request->config->resources.grace : 0;
}

const char *attempt_dir(const struct attempt *attempt)
{
	return attempt->dir;
}

static void close_socket(struct attempt *a)
{
	a->socket = sd_event_source_disable_unref(a->socket);
	if (a->socket_fd >= 0)
		close(a->socket_fd);
	a->socket_fd = -1;
}

static void close_child(struct attempt *a)
{
	a->child = sd_event_source_disable_unref(a->child);
	if (a->pidfd >= 0)
		close(a->pidfd);
	a->pidfd = -1;
}

void attempt_free(struct attempt *a)
{
	close_socket(a);
	close_child(a);
	free(a->cgroup);
	sd_event_source_disable_unref(a->orphans);
	sd_event_source_disable_unref(a->announce);
	strbuf_free(&a->in);
	strbuf_free(&a->out);
	report_release(&a->report);
	if (a->request)
		request_free(a->request);
	free(a->dir);
	free(a);
}

DEFINE_CLEANUP(struct attempt *, attempt_free)

/* bind() and connect() through a descriptor of the directory: its path may be longer than an address holds.
 */
static int socket_in(const char *dir, int (*act)(int, const struct sockaddr *, socklen_t), int *out,
                     struct error *err)
{
	_cleanup_close_ int dir_fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	_cleanup_close_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct sockaddr_un address = {.sun_family = AF_UNIX};

	if (dir_fd < 0 || fd < 0)
		return error_errno(err, -errno, "%s/launch.sock", dir);
	snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/launch.sock", dir_fd);
	if (act(fd, (struct sockaddr *)&address, sizeof address) < 0)
		return error_errno(err, -errno, "%s/launch.sock", dir);
	*out = steal_fd(&fd);
	return 0;
}

/* All ranks in that state, without a process. */
static int set_ranks(struct attempt *a, enum rank_state state)
{
	const struct request *q = a->request;
	struct rank_report *ranks = calloc(q->rank_count + 1, sizeof(*ranks));

	if (!ranks)
		return -ENOMEM;
	for (size_t i = 0; i < q->rank_count; i++)
		ranks[i] = (struct rank_report){
		    .rank = q->ranks[i].rank, .slot = q->ranks[i].slot, .state = state, .exit_status = -1};
	free(a->report.ranks);
	a->report.ranks = ranks;
	a->report.rank_count = q->rank_count;
	return 0;
}

/* In a report what is empty is absent. */
static int copy_unless_empty(char **to, const char *from)
{
	return str_replace(to, from && *from ? from : NULL);
}

/* The report of an attempt of which no report is known yet. */
static int first_report(struct attempt *a, enum attempt_state state)
{
	const struct request *q = a->request;
	struct report *report = &a->report;

	report->run = q->run;
	report->attempt = q->attempt;
	report->state = state;
	report->epoch = *q->cluster ? q->epoch : 0;
	if (copy_unless_empty(&report->node, a->owner.node) < 0 ||
	    copy_unless_empty(&report->cluster, q->cluster) < 0 ||
	    copy_unless_empty(&report->user, q->user) < 0 ||
	    copy_unless_empty(&report->name, q->config ? q->config->name : NULL) < 0)
		return -ENOMEM;
	return copy_unless_empty(&report->reason, a->reason);
}

/* Error files that stayed empty tell nothing. */
static void sweep_logs(struct attempt *a)
{
	_cleanup_(launch_description_release) struct launch_description launch = {0};

	if (attempt_files_read_launch(a->dir, &launch, NULL) < 0)
		return;
	for (size_t i = 0; i < launch.rank_count; i++) {
		const char *file = launch.ranks[i].error_file;
		struct stat st;

		if (file && lstat(file, &st) == 0 && st.st_size == 0)
			unlink(file);
	}
}

/* The end is on record before dtrain-launch may forget it. */
static void record_end(struct attempt *a)
{
	_cleanup_json_ json_t *json = NULL;
	struct error err = ERROR_INIT;

	a->ended = true;
	json = report_encode(&a->report);
	if (attempt_file_write(a->dir, "ended.json", json, geteuid(), 0600, &err) < 0)
		log_err("%s", err.message);
	sweep_logs(a);
}

static int flush_socket(struct attempt *a)
{
	while (a->out.len > 0 && a->socket_fd >= 0) {
		ssize_t n = send(a->socket_fd, a->out.data, a->out.len, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			break;
		if (n < 0)
			return -errno; /* the end of file will tell */
		memmove(a->out.data, a->out.data + n, a->out.len - n);
		a->out.len -= n;
	}
	if (a->socket)
		sd_event_source_set_io_events(a->socket, EPOLLIN | (a->out.len ? EPOLLOUT : 0));
	return 0;
}

static void send_command(struct attempt *a, const struct launch_command *command)
{
	_cleanup_json_ json_t *json = launch_command_encode(command);
	_cleanup_free_ char *text = json_to_string(json);

	if (!text) {
		log_err("run %lld: out of memory", (long long)a->request->run);
		return;
	}
	strbuf_addf(&a->out, "%s\n", text);
	flush_socket(a);
}

static void acknowledge(struct attempt *a)
{
	send_command(a, &(struct launch_command){.stop = -1, .acknowledge = true});
}

/* What each of them has, the other has afterwards. */
static void steal_ranks(struct report *report, struct launch_report *said)
{
	struct rank_report *ranks = report->ranks;
	size_t count = report->rank_count;

	report->ranks = said->ranks;
	report->rank_count = said->rank_count;
	said->ranks = ranks;
	said->rank_count = count;
}

static void take_line(struct attempt *a, const char *line, size_t len)
{
	_cleanup_(launch_report_release) struct launch_report said = {0};
	_cleanup_json_ json_t *json = NULL;
	struct error err = ERROR_INIT;

	if (json_parse(line, len, "dtrain-launch", &json, &err) < 0 ||
	    launch_report_decode(json, &said, &err) < 0) {
		log_err("run %lld: %s", (long long)a->request->run, err.message);
		return;
	}
	if (a->ended || a->lost)
		return;
	if (said.launcher > 0)
		a->pid = (pid_t)said.launcher;
	snprintf(a->reason, sizeof a->reason, "%s", said.reason ? said.reason : "");
	a->report.state = said.state;
	/* The old ranks are released with what was said. */
	steal_ranks(&a->report, &said);
	copy_unless_empty(&a->report.reason, a->reason);
	if (said.state == ATTEMPT_ENDED) {
		record_end(a);
		acknowledge(a);
	}
	a->owner.changed(a->owner.context, a);
}

/* The last callback: dtrain-launch is gone, and its control group with it. */
static void settle(struct attempt *a)
{
	if (!attempt_is_settled(a))
		return;
	if (a->cgroup)
		cgroup_remove(a->cgroup);
	a->owner.settled(a->owner.context, a);
}

static void finish_lost(struct attempt *a)
{
	for (size_t i = 0; i < a->report.rank_count; i++) {
		struct rank_report *rank = &a->report.ranks[i];

		if (rank->state == RANK_EXITED)
			continue;
		rank->state = RANK_EXITED;
		rank->exit_status = 128 + SIGKILL;
		copy_unless_empty(&rank->signal, "SIGKILL");
		rank->ended = clock_realtime();
		rank->stopped = true;
	}
	a->report.state = ATTEMPT_ENDED;
	copy_unless_empty(&a->report.reason, a->reason);
	if (a->no_dir) {
		a->ended = true;
		a->report.lost = true;
	} else {
		record_end(a);
	}
	a->owner.changed(a->owner.context, a);
}

/* What a killed launcher left. The guard of dtrain-launch has ended it, unless it was killed, too. Then the
 * control group knows all of it; without one our own orphans are what became our children. Of a launcher that
 * an earlier dtraind started these became init's: those are known by their environment, if they left it as it
 * was. Where the attempt's directory was removed, guard and launcher may still live. */
static bool kill_orphans(struct attempt *a)
{
	_cleanup_free_ char *run = str_printf("DTRAIN_RUN_ID=%lld", (long long)a->request->run);
	_cleanup_free_ char *number = str_printf("DTRAIN_ATTEMPT=%lld", (long long)a->request->attempt);
	_cleanup_free_ char *where = str_printf("DTRAIN_SOCKET=%s", a->owner.socket);
	_cleanup_free_ char *cluster = str_printf("DTRAIN_CLUSTER=%s", a->request->cluster);
	const char *marks[] = {run, number, where, *a->request->cluster ? cluster : NULL, NULL};
	int left;

	if (!run || !number || !where || !cluster)
		return true;
	left = a->cgroup ? cgroup_kill(a->cgroup) : 0;
	if (a->no_dir)
		left += processes_signal_launcher(a->dir, SIGKILL);
	else
		left += processes_signal_orphans(a->owner.is_launcher, a->owner.context, SIGKILL);
	left += processes_signal_marked(a->request->uid, marks, SIGKILL);
	return left > 0;
}

static int on_orphans(sd_event_source *source, uint64_t usec, void *context)
{
	struct attempt *a = context;

	if (!kill_orphans(a)) {
		a->orphans = sd_event_source_disable_unref(a->orphans);
		finish_lost(a);
		settle(a);
		return 0;
	}
	if (a->no_dir && !a->found) {
		a->found = true;
		log_err("run %lld, attempt %lld: %s was removed while it ran; what is left of it is killed",
		        (long long)a->request->run, (long long)a->request->attempt, a->dir);
		snprintf(a->reason, sizeof a->reason,
		         "attempt %lld was started and is lost: its directory was removed while it ran",
		         (long long)a->request->attempt);
	}
	sd_event_source_set_time_relative(source, ORPHANS_AGAIN_USEC);
	return sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
}

static int look_for_orphans(struct attempt *a)
{
	return sd_event_add_time_relative(a->owner.event, &a->orphans, CLOCK_MONOTONIC, 0, 1000, on_orphans,
	                                  a);
}

static void mark_launcher_lost(struct attempt *a, const char *why)
{
	if (a->lost || a->ended)
		return;
	a->lost = true;
	close_socket(a);
	snprintf(a->reason, sizeof a->reason, "%s", why);
	log_err("run %lld, attempt %lld: %s", (long long)a->request->run, (long long)a->request->attempt,
	        why);
	if (look_for_orphans(a) < 0)
		log_err("cannot look for what is left of run %lld", (long long)a->request->run);
}

static int on_socket(sd_event_source *source, int fd, uint32_t events, void *context);

static int open_socket(struct attempt *a, struct error *err)
{
	int r = socket_in(a->dir, connect, &a->socket_fd, err);

	if (r < 0)
		return r;
	r = sd_event_add_io(a->owner.event, &a->socket, a->socket_fd, EPOLLIN, on_socket, a);
	return r < 0 ? error_errno(err, r, "cannot watch dtrain-launch") : 0;
}

static int on_socket(sd_event_source *source, int fd, uint32_t events, void *context)
{
	struct attempt *a = context;
	char buf[8192], *newline;
	bool closed = false;

	if (events & EPOLLOUT)
		flush_socket(a);
	while (!closed) {
		ssize_t n = recv(fd, buf, sizeof buf, MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno == EAGAIN)
			break;
		if (n <= 0)
			closed = true;
		else
			strbuf_add(&a->in, buf, n);
	}
	while (a->in.len && (newline = memchr(a->in.data, '\n', a->in.len))) {
		size_t used = newline - a->in.data + 1;

		take_line(a, a->in.data, used - 1);
		memmove(a->in.data, a->in.data + used, a->in.len - used);
		a->in.len -= used;
	}
	if (closed) {
		close_socket(a);
		/* Our child's status says how it ended. Where it is another's, its guard holds the socket
		 * open until it has ended all that was left. */
		if (!a->ended && a->pidfd < 0 && open_socket(a, NULL) < 0)
			mark_launcher_lost(a, "dtrain-launch is gone: it was killed");
		settle(a);
	}
	return 0;
}

static int on_child(sd_event_source *source, int fd, uint32_t events, void *context)
{
	struct attempt *a = context;
	siginfo_t info = {0};
	char why[100];

	if (waitid(P_PIDFD, fd, &info, WEXITED | WNOHANG) == 0 && info.si_pid == 0)
		return 0;
	/* Its last report may still be on the way. */
	if (a->socket_fd >= 0)
		on_socket(a->socket, a->socket_fd, EPOLLIN, a);
	close_child(a);
	if (a->ended) {
		settle(a);
		return 0;
	}
	if (info.si_code == CLD_EXITED)
		snprintf(why, sizeof why, "dtrain-launch ended with exit status %d", info.si_status);
	else
		snprintf(why, sizeof why, "dtrain-launch was killed by SIG%s",
		         sigabbrev_np(info.si_status) ?: "?");
	mark_launcher_lost(a, why);
	return 0;
}

static int spawn_launcher(struct attempt *a, const char *program, int listen_fd, struct error *err)
{
	char *argv[] = {(char *)"dtrain-launch", a->dir, NULL}, *environment[] = {NULL};
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attributes;
	sigset_t none, all;
	pid_t pid;
	int r;

	sigemptyset(&none);
	sigfillset(&all);
	posix_spawn_file_actions_init(&actions);
	posix_spawnattr_init(&attributes);
	posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
	posix_spawn_file_actions_adddup2(&actions, listen_fd, LAUNCH_SOCKET_FD);
	posix_spawn_file_actions_addclosefrom_np(&actions, LAUNCH_SOCKET_FD + 1);
	posix_spawnattr_setsigmask(&attributes, &none);
	posix_spawnattr_setsigdefault(&attributes, &all);
	posix_spawnattr_setflags(&attributes,
	                         POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	r = posix_spawn(&pid, program, &actions, &attributes, argv, environment);
	posix_spawn_file_actions_destroy(&actions);
	posix_spawnattr_destroy(&attributes);
	if (r != 0)
		return error_errno(err, -r, "cannot start %s", program);
	a->pid = pid;
	a->pidfd = pidfd_open(pid, 0);
	if (a->pidfd < 0 ||
	    (r = sd_event_add_io(a->owner.event, &a->child, a->pidfd, EPOLLIN, on_child, a)) < 0) {
		r = a->pidfd < 0 ? -errno : r;
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		return error_errno(err, r, "cannot watch %s", program);
	}
	return 0;
}

/* Where none can be made, the subreapers are what there is. */
static void make_cgroup(struct attempt *a)
{
	const char *name = strrchr(a->dir, '/');

	if (a->owner.cgroups && name)
		a->cgroup = str_printf("%s%s", a->owner.cgroups, name);
	if (a->cgroup && cgroup_create(a->cgroup) < 0)
		free(steal_pointer(a->cgroup));
}

/* As launch.json has it: that of an earlier dtraind may be another. */
static void find_cgroup(struct attempt *a)
{
	_cleanup_(launch_description_release) struct launch_description launch = {0};

	if (attempt_files_read_launch(a->dir, &launch, NULL) == 0)
		a->cgroup = steal_pointer(launch.cgroup);
}

static struct attempt *attempt_new(const struct attempt_owner *owner, const char *dir)
{
	struct attempt *a = calloc(1, sizeof *a);

	if (!a)
		return NULL;
	a->owner = *owner;
	a->socket_fd = a->pidfd = -1;
	a->dir = strdup(dir);
	if (!a->dir) {
		attempt_free(a);
		return NULL;
	}
	return a;
}

int attempt_start(const struct attempt_owner *owner, struct request *request,
                  const struct request_place *place, const struct run_user *user, struct attempt **out,
                  struct error *err)
{
	_cleanup_(attempt_freep) struct attempt *a = attempt_new(owner, place->dir);
	_cleanup_free_ char *program = str_printf("%s/dtrain-launch", place->config->worker_dir);
	_cleanup_close_ int listen_fd = -1;
	int r;

	if (!a || !program)
		return error_oom(err);
	make_cgroup(a);
	a->request = request;
	r = attempt_files_make(a->dir, request, place, user, a->cgroup, attempt_grace(a), err);
	if (r == 0)
		r = socket_in(a->dir, bind, &listen_fd, err);
	if (r == 0 && listen(listen_fd, 8) < 0)
		r = error_errno(err, -errno, "%s/launch.sock", a->dir);
	if (r == 0)
		r = open_socket(a, err); /* waits in the socket's queue until dtrain-launch looks */
	if (r == 0)
		r = spawn_launcher(a, program, listen_fd, err);
	if (r < 0) {
		a->request = NULL; /* the caller's still */
		if (a->cgroup)
			cgroup_remove(a->cgroup);
		file_remove_tree(a->dir, NULL);
		return r;
	}
	if (first_report(a, ATTEMPT_STARTING) < 0 || set_ranks(a, RANK_STARTING) < 0)
		log_err("run %lld: out of memory", (long long)request->run);
	*out = steal_pointer(a);
	return 0;
}

static int on_announce(sd_event_source *source, void *context)
{
	struct attempt *a = context;

	a->announce = sd_event_source_disable_unref(a->announce);
	a->owner.changed(a->owner.context, a);
	return 0;
}

static int read_end(struct attempt *a, const char *path, struct error *err)
{
	_cleanup_json_ json_t *json = NULL;
	int r = json_read_file(path, &json, err);

	if (r == 0)
		r = report_decode(json, &a->report, err);
	/* Version 0.1.0 wrote neither. */
	if (r == 0 && !a->report.user)
		copy_unless_empty(&a->report.user, a->request->user);
	if (r == 0 && !a->report.name)
		copy_unless_empty(&a->report.name, a->request->config->name);
	return r;
}

int attempt_adopt(const struct attempt_owner *owner, const char *dir, struct attempt **out, struct error *err)
{
	_cleanup_(attempt_freep) struct attempt *a = attempt_new(owner, dir);
	_cleanup_free_ char *request = str_path_join(dir, "request.json");
	_cleanup_free_ char *ended = str_path_join(dir, "ended.json");
	_cleanup_json_ json_t *json = NULL;
	struct start_request start;
	int r;

	if (!a || !request || !ended)
		return error_oom(err);
	r = json_read_file(request, &json, err);
	if (r == 0)
		r = start_request_decode(json, &start, err);
	if (r == 0)
		r = request_new(&start, &a->request, err);
	if (r < 0)
		return r;
	find_cgroup(a);
	if (file_exists(ended)) {
		r = read_end(a, ended, err);
		if (r == 0)
			r = sd_event_add_defer(owner->event, &a->announce, on_announce, a);
		a->ended = true;
		/* dtrain-launch may not have got the acknowledgement. */
		if (r >= 0 && open_socket(a, NULL) == 0) {
			acknowledge(a);
		} else if (r >= 0 && a->cgroup) {
			cgroup_remove(a->cgroup);
		}
	} else {
		r = first_report(a, ATTEMPT_RUNNING);
		if (r == 0)
			r = set_ranks(a, RANK_RUNNING);
		if (r == 0 && open_socket(a, err) < 0)
			mark_launcher_lost(a,
			                   "dtrain-launch is gone: it was killed while dtraind did not run");
	}
	if (r < 0)
		return r;
	*out = steal_pointer(a);
	return 0;
}

int attempt_lost(const struct attempt_owner *owner, const char *dir, struct request *request,
                 struct attempt **out, struct error *err)
{
	_cleanup_(attempt_freep) struct attempt *a = attempt_new(owner, dir);
	_cleanup_free_ char *name =
	    str_printf("/%lld.%lld", (long long)request->run, (long long)request->attempt);
	int r;

	if (!a || !name)
		return error_oom(err);
	a->lost = a->no_dir = true;
	a->request = request;
	if (request->cgroup)
		a->cgroup = strdup(request->cgroup);
	else if (owner->cgroups)
		a->cgroup = str_printf("%s%s", owner->cgroups, name);
	snprintf(a->reason, sizeof a->reason,
	         "attempt %lld was started and is lost: was the machine restarted?",
	         (long long)request->attempt);
	r = first_report(a, ATTEMPT_STOPPING);
	if (r == 0)
		r = look_for_orphans(a);
	if (r < 0) {
		a->request = NULL; /* the caller's still */
		return error_errno(err, r, "run %lld", (long long)request->run);
	}
	*out = steal_pointer(a);
	return 0;
}

void attempt_add_error(struct attempt *a, const char *text)
{
	char **list;
	size_t n = 0;

	if (a->ended)
		return;
	while (a->report.device_errors && a->report.device_errors[n])
		n++;
	list = reallocarray(a->report.device_errors, n + 2, sizeof(*list));
	if (!list)
		return;
	a->report.device_errors = list;
	list[n] = strdup(text);
	list[n + 1] = NULL;
}

void attempt_stop(struct attempt *a, double grace)
{
	if (a->ended || a->lost)
		return;
	send_command(a, &(struct launch_command){.stop = MAX(grace, 0.0)});
}

void attempt_shut_down(struct attempt *a, double grace, const char *reason)
{
	if (a->ended)
		return;
	copy_unless_empty(&a->report.shutdown, reason);
	attempt_stop(a, grace);
}

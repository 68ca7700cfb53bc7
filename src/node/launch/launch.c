/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dtrain-launch DIR: starts the ranks of one attempt on this node, tells dtraind their state, and ends with
 * everything that they started gone. It is the subreaper of them all, so that a daemon which forked itself
 * away is still ours. It outlives dtraind: whoever connects next gets the state.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"
#include "config/run.h"
#include "node/launch/cgroup.h"
#include "node/launch/client.h"
#include "node/launch/launch.h"
#include "node/launch/lease_watch.h"
#include "node/launch/ranks.h"
#include "node/launch/session.h"
#include "node/launch/start_record.h"
#include "node/launch/tmp_dir.h"

/* From EVENT_RANK on two for each rank: its exec, and its end. */
enum { EVENT_LISTEN, EVENT_SIGNAL, EVENT_TIMER, EVENT_CLIENT, EVENT_LEASE, EVENT_RANK };
enum { EVENTS_MAX = 1024 };

struct launch {
	struct launch_description description;
	struct launch_ranks ranks;
	int epoll_fd, signal_fd, listen_fd;
	struct launch_client client;
	struct lease_watch lease;
	bool dirty;      /* the client has not got the newest state */
	bool finished;   /* the end is on record: we may go */
	bool terminated; /* SIGTERM was sent to this process: no service may be left to acknowledge the end */
	bool lease_ended;        /* the ranks were stopped for that */
	struct session *session; /* NULL: none */
};

static void take_signals(struct launch *l)
{
	struct signalfd_siginfo info;

	while (read(l->signal_fd, &info, sizeof info) == sizeof info) {
		if (info.ssi_signo == SIGCHLD)
			continue;
		l->terminated = l->dirty = true;
		launch_ranks_stop(&l->ranks, l->description.save, l->description.grace);
	}
	launch_ranks_reap(&l->ranks);
}

/* Part of what is left of the lease is for KILL to take effect. */
static void take_lease(struct launch *l)
{
	struct stop_times times;
	double seconds;

	if (!lease_watch_check(&l->lease, &seconds))
		return;
	lease_watch_close(&l->lease);
	if (l->ranks.ended)
		return;
	l->lease_ended = l->dirty = true;
	times =
	    stop_times_within((struct stop_times){l->description.save, l->description.grace}, seconds * 0.8);
	launch_ranks_stop(&l->ranks, times.save, times.grace);
}

/* The state as a line, owned by the caller; NULL: out of memory. */
static char *describe(const struct launch *l)
{
	_cleanup_(launch_report_release) struct launch_report report = {
	    .state = launch_ranks_state(&l->ranks),
	    .launcher = l->description.service ? getpid() : getppid(),
	    .terminated = l->terminated,
	    .lease_ended = l->lease_ended,
	    .ranks = calloc(l->ranks.count + 1, sizeof(*report.ranks)),
	};
	_cleanup_json_ json_t *json = NULL;
	_cleanup_free_ char *text = NULL;

	if (!report.ranks)
		return NULL;
	for (; report.rank_count < l->ranks.count; report.rank_count++)
		launch_rank_describe(&l->ranks.list[report.rank_count], &report.ranks[report.rank_count]);
	if (l->ranks.remark[0] && !l->ranks.ended && str_replace(&report.reason, l->ranks.remark) < 0)
		return NULL;
	json = launch_report_encode(&report);
	text = json_to_string(json);
	return text ? str_printf("%s\n", text) : NULL;
}

static void watch(struct launch *l, int op, int fd, uint32_t events, uint64_t tag)
{
	struct epoll_event event = {.events = events, .data.u64 = tag};

	epoll_ctl(l->epoll_fd, op, fd, &event);
}

static void take_message(void *launch, const char *line, size_t len)
{
	struct launch *l = launch;
	_cleanup_json_ json_t *json = json_loadb(line, len, 0, NULL);
	struct launch_command command;

	if (launch_command_decode(json, &command, NULL) < 0)
		return;
	if (command.stop >= 0)
		launch_ranks_stop(&l->ranks, command.save, command.stop);
	if (command.acknowledge && l->ranks.ended)
		l->finished = true;
	if (command.confirmed && l->description.outlives_lease)
		lease_watch_close(&l->lease);
}

/* A new dtraind takes the place of an old one, whose last words count nevertheless. */
static void take_connection(struct launch *l)
{
	int fd = accept4(l->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (fd < 0)
		return;
	launch_client_receive(&l->client, take_message, l);
	launch_client_begin(&l->client, fd);
	l->dirty = true;
}

/* The state as of now, once what was said before is on its way. */
static void send_state(struct launch *l)
{
	l->dirty = l->dirty || l->ranks.changed;
	l->ranks.changed = false;
	while (launch_client_flush(&l->client) && l->dirty) {
		_cleanup_free_ char *line = describe(l);

		if (!line)
			return;
		launch_client_put(&l->client, line);
		l->dirty = false;
	}
}

static int prepare_rank(struct launch_rank *rank, const struct rank_description *from, struct error *err)
{
	const char *log = from->log ? from->log : "/dev/null";

	*rank = (struct launch_rank){
	    .rank = (int)from->rank,
	    .slot = (int)from->slot,
	    .exec_fd = -1,
	    .pidfd = -1,
	    .error_file = from->error_file,
	    .cpus = from->cpus,
	    .numa = (int)from->numa,
	    .environment = from->environment,
	};
	/* dtraind made the file, the user's, in a directory that is not theirs. */
	rank->log_fd = open(log, O_RDWR | O_APPEND | O_CLOEXEC | O_NOFOLLOW);
	return rank->log_fd < 0 ? error_errno(err, -errno, "cannot open the log %s", log) : 0;
}

static int read_description(struct launch *l, const char *dir, struct error *err)
{
	_cleanup_free_ char *path = str_path_join(dir, "launch.json");
	const struct launch_description *d = &l->description;
	struct launch_ranks *ranks = &l->ranks;
	_cleanup_json_ json_t *json = NULL;
	int r;

	if (!path)
		return error_oom(err);
	r = json_read_file(path, &json, err);
	if (r == 0 && launch_description_decode(json, &l->description, err) < 0)
		r = error_prefix(err, "%s", dir);
	if (r < 0)
		return r;
	ranks->description = d;
	ranks->user = (struct launch_user){
	    .change = d->switch_user,
	    .core_files = d->core_files,
	    .umask = (mode_t)d->umask,
	    .uid = (uid_t)d->uid,
	    .gid = (gid_t)d->gid,
	    .groups = calloc(d->group_count + 1, sizeof(gid_t)),
	    .directory = d->directory ? d->directory : "/",
	    .argv = d->argv,
	};
	ranks->list = calloc(d->rank_count, sizeof(*ranks->list));
	if (!ranks->user.groups || !ranks->list)
		return error_oom(err);
	for (; ranks->user.group_count < d->group_count; ranks->user.group_count++)
		ranks->user.groups[ranks->user.group_count] = (gid_t)d->groups[ranks->user.group_count];
	/* systemd hands it over as the standard input. */
	l->listen_fd = d->service ? STDIN_FILENO : LAUNCH_SOCKET_FD;
	for (size_t i = 0; r == 0 && i < d->rank_count; i++)
		r = prepare_rank(&ranks->list[ranks->count++], &d->ranks[i], err);
	return r;
}

/* "systemctl restart" of the unit executes this program again: the programs of the run would begin anew, on
 * slots that may be another run's by then. */
static int begin_once(const char *dir, struct error *err)
{
	_cleanup_free_ char *path = str_path_join(dir, LAUNCH_BEGUN);
	_cleanup_close_ int fd = path ? open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;

	if (!path)
		return error_oom(err);
	if (fd < 0 && errno == EEXIST)
		return error_set(err, -EEXIST, "the attempt of %s has begun before; it cannot be restarted",
		                 dir);
	return fd < 0 ? error_errno(err, -errno, "cannot make %s", path) : 0;
}

static int prepare(struct launch *l, struct error *err)
{
	sigset_t set;
	int r;

	if (prctl(PR_SET_CHILD_SUBREAPER, 1) < 0)
		return error_errno(err, -errno, "cannot become a subreaper");
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	sigprocmask(SIG_SETMASK, &set, NULL);
	l->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	l->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	l->ranks.timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (l->epoll_fd < 0 || l->signal_fd < 0 || l->ranks.timer_fd < 0)
		return error_errno(err, -errno, "cannot make an event loop");
	l->client.epoll_fd = l->epoll_fd;
	if (fcntl(l->listen_fd, F_SETFD, FD_CLOEXEC) < 0 || fcntl(l->listen_fd, F_SETFL, O_NONBLOCK) < 0)
		return error_errno(err, -errno, "descriptor %d has to be the listening socket", l->listen_fd);
	watch(l, EPOLL_CTL_ADD, l->listen_fd, EPOLLIN, EVENT_LISTEN);
	watch(l, EPOLL_CTL_ADD, l->signal_fd, EPOLLIN, EVENT_SIGNAL);
	watch(l, EPOLL_CTL_ADD, l->ranks.timer_fd, EPOLLIN, EVENT_TIMER);
	if (!l->description.lease)
		return 0;
	r = lease_watch_open(&l->lease, l->description.lease, err);
	if (r == 0)
		watch(l, EPOLL_CTL_ADD, l->lease.timer_fd, EPOLLIN, EVENT_LEASE);
	return r;
}

/* All that is to be there before the first rank. The session's limits are those of this process, and so of
 * the ranks. */
static int prepare_start(struct launch *l, struct error *err)
{
	const struct launch_description *d = &l->description;
	struct launch_limits limits;
	/* started.h: it is on disk before the first rank is executed. */
	int r = d->record ? start_record_make(d->record, d->started, err) : 0;

	if (r == 0 && d->tmp_dir)
		r = tmp_dir_make(d->tmp_dir, l->ranks.user.uid, l->ranks.user.gid, err);
	launch_raise_limits();
	launch_read_limits(&limits);
	if (r == 0 && d->switch_user && d->user)
		r = session_open(NULL, d->user, &l->session, err);
	if (l->session)
		launch_keep_limits(&limits, "/proc/1/limits");
	return r;
}

/* Owned by the caller; NULL: that of the machine counts. */
static char *find_oom_file(const struct launch_description *d)
{
	_cleanup_free_ char *own = d->cgroup ? str_path_join(d->cgroup, "memory.events") : NULL;

	if (cgroup_oom_kills(own) >= 0)
		return steal_pointer(own);
	if (d->oom_file)
		return strdup(d->oom_file);
	return d->service ? cgroup_oom_file() : NULL;
}

static void start_ranks(struct launch *l)
{
	struct error err = ERROR_INIT;
	bool prepared = prepare_start(l, &err) == 0;

	launch_ranks_watch_oom(&l->ranks, find_oom_file(&l->description));
	for (size_t i = 0; i < l->ranks.count; i++) {
		struct launch_rank *rank = &l->ranks.list[i];

		if (prepared && launch_rank_start(rank, &l->ranks.user, &err) == 0) {
			watch(l, EPOLL_CTL_ADD, rank->exec_fd, EPOLLIN, EVENT_RANK + 2 * i);
			if (rank->pidfd >= 0)
				watch(l, EPOLL_CTL_ADD, rank->pidfd, EPOLLIN, EVENT_RANK + 2 * i + 1);
			continue;
		}
		rank->state = RANK_EXITED;
		rank->exit_status = 126;
		rank->ended = clock_realtime();
		rank->error = strdup(err.message);
	}
	l->dirty = true;
}

static void run(struct launch *l)
{
	struct epoll_event events[EVENTS_MAX];

	start_ranks(l);
	launch_ranks_reap(&l->ranks);
	while (!l->finished) {
		int n = epoll_wait(l->epoll_fd, events, ARRAY_SIZE(events), -1);

		/* Ends first, in the order in which they happened, which is that of the events: which rank
		 * was the first matters, and a rank that a stop ended must not count as one that ended
		 * before. */
		for (int i = 0; i < n; i++) {
			uint64_t tag = events[i].data.u64;

			if (tag > EVENT_RANK && (tag - EVENT_RANK) % 2)
				launch_ranks_reap_one(&l->ranks, (tag - EVENT_RANK) / 2);
		}
		for (int i = 0; i < n; i++) {
			uint64_t tag = events[i].data.u64;

			if (tag == EVENT_LISTEN)
				take_connection(l);
			else if (tag == EVENT_SIGNAL)
				take_signals(l);
			else if (tag == EVENT_TIMER)
				launch_ranks_take_timer(&l->ranks);
			else if (tag == EVENT_CLIENT)
				launch_client_receive(&l->client, take_message, l);
			else if (tag == EVENT_LEASE)
				take_lease(l);
			else if ((tag - EVENT_RANK) % 2 == 0) {
				launch_rank_executed(&l->ranks.list[(tag - EVENT_RANK) / 2], &l->ranks.user);
				l->dirty = true;
			}
		}
		send_state(l);
		/* The end is in the socket, if dtraind is there: it is received after our exit, too. */
		if (l->terminated && l->ranks.ended &&
		    (l->client.fd < 0 || (!l->dirty && launch_client_flush(&l->client))))
			l->finished = true;
	}
}

static void release(struct launch *l)
{
	launch_client_end(&l->client);
	launch_ranks_release(&l->ranks);
	session_close(l->session);
	launch_description_release(&l->description);
	close(l->epoll_fd);
	close(l->signal_fd);
	close(l->ranks.timer_fd);
	lease_watch_close(&l->lease);
}

int main(int argc, char **argv)
{
	struct launch l = {.epoll_fd = -1,
	                   .signal_fd = -1,
	                   .ranks.timer_fd = -1,
	                   .listen_fd = -1,
	                   .client = {.tag = EVENT_CLIENT, .fd = -1},
	                   .lease.timer_fd = -1};
	struct error err = ERROR_INIT;
	int r;

	if (argc == 2 && str_eq(argv[1], "--version")) {
		puts("dtrain-launch " DTRAIN_VERSION);
		return 0;
	}
	if (argc == 2 && str_eq(argv[1], "--preflight"))
		return preflight_main();
	if (argc != 2 || argv[1][0] == '-') {
		fprintf(stderr, "dtrain-launch is started by dtraind: dtrain-launch DIRECTORY\n");
		return 2;
	}
	prctl(PR_SET_NAME, "dtrain-launch");
	if ((r = read_description(&l, argv[1], &err)) < 0 || (r = begin_once(argv[1], &err)) < 0 ||
	    (!l.description.service && (r = launch_guard(l.description.cgroup, &err)) < 0) ||
	    (r = prepare(&l, &err)) < 0)
		fprintf(stderr, "dtrain-launch: %s\n", err.message);
	else
		run(&l);
	release(&l);
	return r < 0 ? 1 : 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How ranks end: by themselves, or by a stop, and with them all that they have started.
 *
 *     running --> saving --> stopping --> killing --> the removal of temporary files --> ended
 *                 (save)     (grace)
 *
 * A stop begins with the save signal, where there is one and time for it, otherwise with TERM. Once the last
 * rank has ended, what is left of their processes is killed at once, or, after a stop, when its grace is
 * over.
 */
#include "node/launch/ranks.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/str.h"
#include "node/launch/cgroup.h"
#include "node/launch/processes.h"
#include "node/launch/tmp_dir.h"

/* How long until another look for what SIGKILL has not ended yet, and until that is reported. */
static const double KILL_AGAIN = 0.05, KILL_REMARK = 5.0;
/* So long the end waits for the removal of temporary files; after that the service removes what is left. */
static const double REMOVE_SECONDS = 10.0;

static void set_timer(struct launch_ranks *r, double seconds)
{
	struct itimerspec spec = {0};

	seconds = MAX(seconds, 1e-6);
	spec.it_value.tv_sec = (time_t)seconds;
	spec.it_value.tv_nsec = (long)((seconds - spec.it_value.tv_sec) * 1e9);
	timerfd_settime(r->timer_fd, 0, &spec, NULL);
}

static bool all_exited(const struct launch_ranks *r)
{
	for (size_t i = 0; i < r->count; i++)
		if (r->list[i].state != RANK_EXITED)
			return false;
	return true;
}

/* KILL to all that is below us. A rank is a child until it is reaped, so no pid can be another's. */
static void kill_all(struct launch_ranks *r)
{
	pid_t first = 0;
	int alive = processes_signal_descendants(getpid(), SIGKILL, &first);
	char name[100];

	if (!r->killing)
		r->killed_since = clock_monotonic();
	r->killing = true;
	if (alive > 0 && clock_monotonic() - r->killed_since > KILL_REMARK && !r->remark[0]) {
		snprintf(r->remark, sizeof r->remark, "%s does not die",
		         processes_describe(first, name, sizeof name));
		str_make_utf8(r->remark); /* a process may give itself any name */
		r->changed = true;
	}
	set_timer(r, KILL_AGAIN);
}

static int64_t count_oom_kills(const struct launch_ranks *r)
{
	return r->oom_file ? cgroup_oom_kills(r->oom_file) : processes_oom_kills();
}

static void take_exit(struct launch_ranks *r, struct launch_rank *rank, int status)
{
	/* In the group of the attempt it struck this attempt, if not always the rank itself. */
	bool failed = !WIFEXITED(status) || WEXITSTATUS(status) != 0;
	bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
	bool oom = (r->oom_file ? failed : killed) && count_oom_kills(r) > r->oom_kills;

	launch_rank_exited(rank, &r->user, status,
	                   r->killing    ? SIGKILL
	                   : r->stopping ? SIGTERM
	                   : r->saving   ? (int)r->description->save_signal
	                                 : 0,
	                   oom);
	r->changed = true;
}

static void reap_rank(struct launch_ranks *r, struct launch_rank *rank)
{
	int status;

	if (rank->pid > 0 && rank->state != RANK_EXITED && waitpid(rank->pid, &status, WNOHANG) == rank->pid)
		take_exit(r, rank, status);
}

/* What has ended by now ended by itself. */
static void reap_each(struct launch_ranks *r)
{
	for (size_t i = 0; i < r->count; i++)
		reap_rank(r, &r->list[i]);
}

static bool is_alive(const struct launch_rank *rank)
{
	return rank->pid > 0 && rank->state != RANK_EXITED;
}

/* To the process of each rank alone: others that it has started, such as those that load data, would end by
 * it. */
static void ask_to_save(struct launch_ranks *r)
{
	reap_each(r);
	r->saving = r->changed = true;
	for (size_t i = 0; i < r->count; i++)
		if (is_alive(&r->list[i]))
			kill(r->list[i].pid, (int)r->description->save_signal);
}

static void terminate(struct launch_ranks *r)
{
	if (!r->saving)
		reap_each(r);
	r->stopping = r->changed = true;
	for (size_t i = 0; i < r->count; i++)
		if (is_alive(&r->list[i])) {
			r->list[i].terminated = true;
			/* The session may not be there yet between fork and setsid. */
			if (kill(-r->list[i].pid, SIGTERM) < 0)
				kill(r->list[i].pid, SIGTERM);
			kill(-r->list[i].pid, SIGCONT);
		}
}

/* The save signal, after `save` seconds TERM, and after `grace` more KILL. A second stop can only bring them
 * forward. */
void launch_ranks_stop(struct launch_ranks *r, double save, double grace)
{
	double now = clock_monotonic(), term_at = now, kill_at;

	if (r->killing || r->ended || r->remover)
		return;
	if (r->description->save_signal > 0)
		term_at += MAX(save, 0.0);
	kill_at = term_at + MAX(grace, 0.0);
	r->term_at = r->saving ? MIN(r->term_at, term_at) : term_at;
	r->kill_at = r->saving || r->stopping ? MIN(r->kill_at, kill_at) : kill_at;
	if (!r->stopping && !r->saving && term_at > now)
		ask_to_save(r);
	if (!r->stopping && r->term_at <= now)
		terminate(r);
	set_timer(r, (r->stopping ? r->kill_at : r->term_at) - now);
}

/* No process is left that could write there. */
static void finish(struct launch_ranks *r)
{
	if (!r->removed && r->description->tmp_dir) {
		r->removed = true;
		r->remover = tmp_dir_remove(r->description->tmp_dir, r->user.uid);
	}
	if (r->remover)
		set_timer(r, REMOVE_SECONDS);
	else
		r->ended = r->changed = true;
}

static bool was_terminated(void *ranks, pid_t group)
{
	const struct launch_ranks *r = ranks;

	for (size_t i = 0; i < r->count; i++)
		if (r->list[i].pid == group && r->list[i].terminated)
			return true;
	return false;
}

/* A script that starts its program without exec ends by the signal, and the program may be saving: what the
 * ranks of a stop leave has the rest of the grace. TERM comes once, since a program could take a second one
 * for an order to hurry. */
static bool has_grace(struct launch_ranks *r)
{
	double now = clock_monotonic();

	if (r->killing || (!r->saving && !r->stopping))
		return false;
	if (!r->stopping) {
		r->kill_at -= MAX(r->term_at - now, 0.0);
		r->term_at = now;
		terminate(r);
	}
	if (now >= r->kill_at)
		return false;
	if (!r->rest_told)
		processes_terminate_descendants(getpid(), was_terminated, r);
	r->rest_told = true;
	set_timer(r, r->kill_at - now);
	return true;
}

/* Everything that has ended; and once the ranks have, the end of the rest. */
void launch_ranks_reap(struct launch_ranks *r)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		if (pid == r->remover)
			r->remover = 0;
		for (size_t i = 0; i < r->count; i++)
			if (r->list[i].pid == pid && r->list[i].state != RANK_EXITED)
				take_exit(r, &r->list[i], status);
	}
	if (r->remover)
		return;
	if (r->ended || !all_exited(r)) {
		if (r->killing)
			kill_all(r);
		return;
	}
	if (pid < 0 && errno == ECHILD)
		finish(r);
	else if (!has_grace(r))
		kill_all(r);
}

void launch_ranks_take_timer(struct launch_ranks *r)
{
	uint64_t ticks;

	if (read(r->timer_fd, &ticks, sizeof ticks) != sizeof ticks || r->ended)
		return;
	if (r->remover) {
		kill(r->remover, SIGKILL);
		r->remover = 0;
		r->ended = r->changed = true;
		return;
	}
	if (r->killing || ((r->saving || r->stopping) && clock_monotonic() >= r->kill_at))
		kill_all(r);
	else if (r->saving && !r->stopping && clock_monotonic() >= r->term_at)
		terminate(r);
	if (!r->killing && (r->saving || r->stopping))
		set_timer(r, (r->stopping ? r->kill_at : r->term_at) - clock_monotonic());
	launch_ranks_reap(r);
}

enum attempt_state launch_ranks_state(const struct launch_ranks *r)
{
	if (r->ended)
		return ATTEMPT_ENDED;
	if (r->saving || r->stopping)
		return ATTEMPT_STOPPING;
	for (size_t i = 0; i < r->count; i++)
		if (r->list[i].state == RANK_STARTING)
			return ATTEMPT_STARTING;
	return ATTEMPT_RUNNING;
}

void launch_ranks_reap_one(struct launch_ranks *r, size_t i)
{
	reap_rank(r, &r->list[i]);
}

void launch_ranks_watch_oom(struct launch_ranks *r, char *file)
{
	r->oom_file = file;
	r->oom_kills = count_oom_kills(r);
}

void launch_ranks_release(struct launch_ranks *r)
{
	for (size_t i = 0; i < r->count; i++)
		launch_rank_release(&r->list[i]);
	free(r->list);
	free(r->user.groups);
	free(r->oom_file);
}

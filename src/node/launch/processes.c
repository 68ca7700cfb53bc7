/* SPDX-License-Identifier: Apache-2.0 */
/* Finds and signals processes through /proc: descendants, orphans, and a launcher by its directory. */
#include "node/launch/processes.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/str.h"

struct process {
	pid_t pid, parent, group, session;
	char state;
	bool ours;
};

static pid_t entry_pid(const struct dirent *entry)
{
	int64_t pid;

	return str_to_int64(entry->d_name, 1, INT32_MAX, &pid) == 0 ? (pid_t)pid : 0;
}

/* "pid (name) state ppid pgrp session …": the name may hold anything, so the last ")" counts. */
static bool read_stat(pid_t pid, struct process *p, char *name, size_t name_size)
{
	char path[32], text[512], *open_paren, *close_paren;
	_cleanup_close_ int fd = -1;
	ssize_t n;
	int parent, group, session;

	snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	n = read(fd, text, sizeof text - 1);
	if (n <= 0)
		return false;
	text[n] = '\0';
	open_paren = strchr(text, '(');
	close_paren = strrchr(text, ')');
	if (!open_paren || !close_paren ||
	    sscanf(close_paren + 1, " %c %d %d %d", &p->state, &parent, &group, &session) != 4)
		return false;
	if (name)
		snprintf(name, name_size, "%.*s", (int)(close_paren - open_paren - 1), open_paren + 1);
	p->pid = pid;
	p->parent = parent;
	p->group = group;
	p->session = session;
	return true;
}

static struct process *read_all(size_t *count)
{
	_cleanup_closedir_ DIR *dir = opendir("/proc");
	struct process *list = NULL;
	size_t n = 0, cap = 0;
	struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		pid_t pid = entry_pid(entry);

		if (!pid)
			continue;
		if (n == cap) {
			struct process *p = realloc(list, (cap = cap ? cap * 2 : 256) * sizeof *p);

			if (!p)
				break;
			list = p;
		}
		if (read_stat(pid, &list[n], NULL, 0))
			n++;
	}
	*count = n;
	return list;
}

/* Marks what is below those that are marked already. */
static void mark_descendants(struct process *list, size_t count)
{
	bool grown = true;

	/* A generation per round: parents may come after their children in /proc, once the pids wrapped. */
	while (grown) {
		grown = false;
		for (size_t i = 0; i < count; i++)
			for (size_t k = 0; k < count && !list[i].ours; k++)
				if (list[k].ours && list[k].pid == list[i].parent)
					list[i].ours = grown = true;
	}
}

static int signal_marked(const struct process *list, size_t count, int sig, pid_t *first)
{
	int alive = 0;

	for (size_t i = 0; i < count; i++) {
		if (!list[i].ours || list[i].state == 'Z' || list[i].state == 'X')
			continue;
		if (!alive++ && first)
			*first = list[i].pid;
		if (sig)
			kill(list[i].pid, sig);
	}
	return alive;
}

int processes_signal_descendants(pid_t root, int sig, pid_t *first)
{
	size_t count;
	_cleanup_free_ struct process *list = read_all(&count);

	for (size_t i = 0; i < count; i++)
		list[i].ours = list[i].parent == root;
	mark_descendants(list, count);
	return signal_marked(list, count, sig, first);
}

void processes_terminate_descendants(pid_t root, bool (*spare)(void *context, pid_t group), void *context)
{
	size_t count;
	_cleanup_free_ struct process *list = read_all(&count);

	for (size_t i = 0; i < count; i++)
		list[i].ours = list[i].parent == root;
	mark_descendants(list, count);
	for (size_t i = 0; i < count; i++)
		list[i].ours = list[i].ours && !spare(context, list[i].group);
	signal_marked(list, count, SIGTERM, NULL);
	signal_marked(list, count, SIGCONT, NULL);
}

int processes_signal_orphans(bool (*spare)(void *context, pid_t pid), void *context, int sig)
{
	size_t count;
	_cleanup_free_ struct process *list = read_all(&count);
	pid_t self = getpid(), session = getsid(0);

	for (size_t i = 0; i < count; i++) {
		list[i].ours =
		    list[i].parent == self && list[i].session != session && !spare(context, list[i].pid);
		if (list[i].ours && list[i].state == 'Z')
			waitpid(list[i].pid, NULL, WNOHANG);
	}
	mark_descendants(list, count);
	return signal_marked(list, count, sig, NULL);
}

int processes_signal_launcher(const char *dir, int sig)
{
	static const char name[] = "dtrain-launch";
	size_t size = sizeof name + strlen(dir) + 1, count;
	_cleanup_free_ struct process *list = read_all(&count);
	int found = 0;

	for (size_t i = 0; i < count; i++) {
		_cleanup_free_ char *text = NULL;
		struct stat st;
		char path[40];
		size_t len;

		snprintf(path, sizeof path, "/proc/%d", (int)list[i].pid);
		if (stat(path, &st) < 0 || st.st_uid != geteuid())
			continue;
		snprintf(path, sizeof path, "/proc/%d/cmdline", (int)list[i].pid);
		if (file_read(path, 64 << 10, &text, &len, NULL) < 0 || len != size || !str_eq(text, name) ||
		    !str_eq(text + sizeof name, dir))
			continue;
		found++;
		/* The guard leads the session of both. */
		if (list[i].session != list[i].pid && sig &&
		    processes_signal_descendants(list[i].pid, sig, NULL) == 0)
			kill(list[i].pid, sig);
	}
	return found;
}

int64_t processes_oom_kills(void)
{
	_cleanup_fclose_ FILE *f = fopen("/proc/vmstat", "re");
	char line[128];
	long long n;

	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "oom_kill %lld", &n) == 1)
			return n;
	return -1;
}

const char *processes_describe(pid_t pid, char *buf, size_t size)
{
	char name[64] = "?";
	struct process p = {0};

	read_stat(pid, &p, name, sizeof name);
	for (char *c = name; *c; c++)
		if (!isprint((unsigned char)*c))
			*c = '?';
	snprintf(buf, size, "%s (pid %d)%s", name, (int)pid,
	         p.state == 'D' ? " in uninterruptible sleep" : "");
	return buf;
}

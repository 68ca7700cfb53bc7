/* SPDX-License-Identifier: Apache-2.0 */
/* Finds and removes the files of old runs. */
#include "node/run_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/file.h"
#include "base/str.h"

struct list {
	struct pruned_run *runs;
	size_t count;
};

/* A new entry; NULL: out of memory. */
static struct pruned_run *add(struct list *list, int64_t run)
{
	struct pruned_run *grown = reallocarray(list->runs, list->count + 1, sizeof(*grown));

	if (!grown)
		return NULL;
	list->runs = grown;
	grown[list->count] = (struct pruned_run){.run = run};
	return &grown[list->count++];
}

/* Files of users may be links, which are not followed. Deeper than attempts and their files, nothing is
 * looked at. */
static void measure(struct pruned_run *run, int at, const char *name, int depth)
{
	_cleanup_closedir_ DIR *dir = NULL;
	struct dirent *entry;
	struct stat st;
	int fd;

	if (fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return;
	run->bytes += (int64_t)st.st_blocks * 512;
	run->changed = MAX(run->changed, (double)st.st_mtim.tv_sec);
	if (!S_ISDIR(st.st_mode) || depth == 0)
		return;
	fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	dir = fd < 0 ? NULL : fdopendir(fd);
	while (dir && (entry = readdir(dir)))
		if (!str_eq(entry->d_name, ".") && !str_eq(entry->d_name, ".."))
			measure(run, dirfd(dir), entry->d_name, depth - 1);
}

static int scan(struct list *list, const char *path, struct error *err)
{
	_cleanup_closedir_ DIR *dir = opendir(path);
	struct dirent *entry;
	int64_t run;

	if (!dir)
		return errno == ENOENT ? 0 : error_errno(err, -errno, "cannot read %s", path);
	while ((entry = readdir(dir))) {
		struct pruned_run *found;

		if (str_to_int64(entry->d_name, 1, INT64_MAX, &run) < 0)
			continue;
		found = add(list, run);
		if (!found)
			return error_oom(err);
		measure(found, dirfd(dir), entry->d_name, 2);
	}
	return 0;
}

static int compare_newest_first(const void *a, const void *b)
{
	const struct pruned_run *x = a, *y = b;

	return x->run < y->run ? 1 : x->run > y->run ? -1 : 0;
}

/* The entries of a run, which has one for each directory with files of it, become one. */
static void sort_and_merge(struct list *list)
{
	size_t n = 0;

	if (list->count)
		qsort(list->runs, list->count, sizeof(*list->runs), compare_newest_first);
	for (size_t i = 0; i < list->count; i++) {
		const struct pruned_run *next = &list->runs[i];
		struct pruned_run *last = n > 0 ? &list->runs[n - 1] : NULL;

		if (last && last->run == next->run) {
			last->bytes += next->bytes;
			last->changed = MAX(last->changed, next->changed);
		} else {
			list->runs[n++] = *next;
		}
	}
	list->count = n;
}

static bool is_in_use(const struct run_files_plan *plan, int64_t run)
{
	for (size_t i = 0; i < plan->in_use_count; i++)
		if (plan->in_use[i] == run)
			return true;
	return false;
}

static bool is_to_go(const struct run_files_plan *plan, const struct pruned_run *run, size_t newer)
{
	if (is_in_use(plan, run->run))
		return false;
	return (plan->runs > 0 && newer >= (size_t)plan->runs) ||
	       (plan->days > 0 && plan->now - run->changed > plan->days * 86400);
}

static void remove_files(const struct run_files_plan *plan, int64_t run, struct prune_answer *answer)
{
	for (size_t i = 0; i < ARRAY_SIZE(plan->directories); i++) {
		_cleanup_free_ char *path =
		    plan->directories[i] ? str_printf("%s/%lld", plan->directories[i], (long long)run) : NULL;
		struct error err = ERROR_INIT;

		if (path && file_remove_tree(path, &err) < 0 && !answer->error)
			answer->error = strdup(err.message);
	}
}

int run_files_prune(const struct run_files_plan *plan, struct prune_answer *answer, struct error *err)
{
	struct list list = {0};
	int r = 0;

	*answer = (struct prune_answer){0};
	for (size_t i = 0; r == 0 && i < ARRAY_SIZE(plan->directories); i++)
		if (plan->directories[i])
			r = scan(&list, plan->directories[i], err);
	sort_and_merge(&list);
	answer->runs = calloc(list.count + 1, sizeof(*answer->runs));
	if (r == 0 && !answer->runs)
		r = error_oom(err);
	if (r < 0) {
		free(list.runs);
		prune_answer_release(answer);
		return r;
	}
	/* The oldest first: an interruption leaves what is newest. */
	for (size_t i = list.count; i-- > 0;) {
		if (!is_to_go(plan, &list.runs[i], i)) {
			answer->kept++;
			continue;
		}
		if (!plan->dry_run)
			remove_files(plan, list.runs[i].run, answer);
		answer->runs[answer->run_count++] = list.runs[i];
	}
	free(list.runs);
	return 0;
}

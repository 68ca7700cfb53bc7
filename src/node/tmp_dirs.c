/* SPDX-License-Identifier: Apache-2.0 */
/* Removes directories for temporary files that attempts have left. */
#include "node/tmp_dirs.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/background.h"
#include "base/file.h"
#include "base/log.h"
#include "base/str.h"

/* After so many seconds a removal is still going on, and is no longer waited for. */
static const double REMOVE_SECONDS = 3600.0;

struct removal {
	struct removal *next;
	struct tmp_dirs *dirs;
	struct background *background;
};

struct tmp_dirs {
	sd_event *event;
	const struct daemon_config *config;
	struct removal *removals; /* under way */
};

/* What the thread of a removal has. */
struct work {
	char *path;
	struct error error;
};

static char *directory_path(const struct daemon_config *config)
{
	return config->tmp_dir ? strdup(config->tmp_dir) : str_path_join(config->state_dir, "tmp");
}

char *tmp_dirs_path(const struct daemon_config *config, int64_t run, int64_t attempt)
{
	_cleanup_free_ char *directory = directory_path(config);

	return directory ? str_printf("%s/%lld.%lld", directory, (long long)run, (long long)attempt) : NULL;
}

int tmp_dirs_open(sd_event *event, const struct daemon_config *config, struct tmp_dirs **out,
                  struct error *err)
{
	_cleanup_free_ char *directory = directory_path(config);
	struct tmp_dirs *dirs;
	int r = directory ? file_mkdirs(directory, 0711, err) : error_oom(err);

	if (r < 0)
		return r;
	dirs = calloc(1, sizeof(*dirs));
	if (!dirs)
		return error_oom(err);
	dirs->event = event;
	dirs->config = config;
	*out = dirs;
	return 0;
}

static void unlink_removal(struct removal *removal)
{
	struct removal **at = &removal->dirs->removals;

	while (*at != removal)
		at = &(*at)->next;
	*at = removal->next;
	free(removal);
}

void tmp_dirs_close(struct tmp_dirs *dirs)
{
	if (!dirs)
		return;
	while (dirs->removals) {
		background_cancel(dirs->removals->background);
		unlink_removal(dirs->removals);
	}
	free(dirs);
}

static void work(void *data)
{
	struct work *w = data;

	file_remove_tree(w->path, &w->error);
}

static void release(void *data)
{
	struct work *w = data;

	free(w->path);
	free(w);
}

static void on_done(void *context, void *data)
{
	struct removal *removal = context;
	const struct work *w = data;

	if (!w) {
		background_cancel(removal->background);
		log_warn("the removal of temporary files takes more than %g s", REMOVE_SECONDS);
	} else if (w->error.code < 0) {
		log_warn("temporary files of a run that has ended are left: %s", w->error.message);
	}
	unlink_removal(removal);
}

/* Takes the path. */
static void start_removal(struct tmp_dirs *dirs, char *path)
{
	struct work *w = calloc(1, sizeof(*w));
	struct removal *removal = calloc(1, sizeof(*removal));
	const struct background_task task = {.deadline = REMOVE_SECONDS,
	                                     .work = work,
	                                     .done = on_done,
	                                     .context = removal,
	                                     .release = release,
	                                     .data = w};
	struct error err = ERROR_INIT;

	if (!w || !removal) {
		free(path);
		free(w);
		free(removal);
		return;
	}
	w->path = path;
	*removal = (struct removal){.next = dirs->removals, .dirs = dirs};
	dirs->removals = removal;
	if (background_start(dirs->event, &task, &removal->background, &err) < 0) {
		log_warn("temporary files of a run that has ended are left: %s", err.message);
		unlink_removal(removal);
	}
}

void tmp_dirs_remove(struct tmp_dirs *dirs, int64_t run, int64_t attempt)
{
	char *path = tmp_dirs_path(dirs->config, run, attempt);
	struct stat st;

	if (path && lstat(path, &st) == 0)
		start_removal(dirs, path);
	else
		free(path);
}

void tmp_dirs_sweep(struct tmp_dirs *dirs, bool (*is_known)(void *context, int64_t run, int64_t attempt),
                    void *context)
{
	_cleanup_free_ char *directory = directory_path(dirs->config);
	_cleanup_closedir_ DIR *dir = directory ? opendir(directory) : NULL;
	struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		long long run, attempt;
		int used = 0;

		/* A directory of the site's choice may have other files: they are left alone. */
		if (sscanf(entry->d_name, "%lld.%lld%n", &run, &attempt, &used) == 2 &&
		    !entry->d_name[used] && run > 0 && attempt > 0 && !is_known(context, run, attempt))
			tmp_dirs_remove(dirs, run, attempt);
	}
}

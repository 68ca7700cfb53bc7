/* SPDX-License-Identifier: Apache-2.0 */
/* The files of an attempt: what dtrain-launch and the ranks read, what a later dtraind finds it by, and the
 * logs. */
#include "node/attempt_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "node/started.h"

static const char LAUNCH_FILE[] = "launch.json";

int attempt_file_write(const char *dir, const char *name, const json_t *json, uid_t owner, mode_t mode,
                       struct error *err)
{
	_cleanup_free_ char *path = str_printf("%s/%s", dir, name);
	_cleanup_free_ char *tmp = str_printf("%s/.%s", dir, name);
	_cleanup_free_ char *text = json_to_string(json);
	_cleanup_close_ int fd = -1;
	int r;

	if (!path || !tmp || !text)
		return error_oom(err);
	fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return error_errno(err, -errno, "cannot write %s", path);
	r = file_write_all(fd, text, strlen(text), err);
	if (r < 0)
		return error_prefix(err, "%s", path);
	if ((owner != geteuid() && fchown(fd, owner, -1) < 0) || fchmod(fd, mode) < 0 ||
	    rename(tmp, path) < 0)
		return error_errno(err, -errno, "cannot write %s", path);
	return 0;
}

/* Makes a file of the user in a directory that is not the user's, so that no user can put a link in its
 * place. The file is always a new one: an old one may be of an earlier cluster, which also numbered its runs
 * from 1, and may belong to another user. */
static int make_user_file(const char *path, uid_t uid, gid_t gid, struct error *err)
{
	_cleanup_close_ int fd = -1;

	if (!path)
		return error_oom(err);
	if (unlink(path) < 0 && errno != ENOENT)
		return error_errno(err, -errno, "cannot replace %s", path);
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return error_errno(err, -errno, "cannot make %s", path);
	/* Without the rights to give it away it is ours, as the ranks will be. */
	if (geteuid() == 0 && fchown(fd, uid, gid) < 0)
		return error_errno(err, -errno, "cannot make %s", path);
	return 0;
}

static int write_config(const char *dir, const struct run_config *config, uid_t owner, struct error *err)
{
	_cleanup_json_ json_t *json = NULL;
	int r = run_config_to_json(config, &json, err);

	return r < 0 ? r : attempt_file_write(dir, "config.json", json, owner, 0400, err);
}

static int write_request(const char *dir, const struct start_request *request, struct error *err)
{
	_cleanup_json_ json_t *json = start_request_encode(request);

	return json ? attempt_file_write(dir, "request.json", json, geteuid(), 0600, err) : error_oom(err);
}

static int write_launch(const char *dir, const struct launch_description *launch, struct error *err)
{
	_cleanup_json_ json_t *json = launch_description_encode(launch);

	return json ? attempt_file_write(dir, LAUNCH_FILE, json, geteuid(), 0600, err) : error_oom(err);
}

int attempt_files_read_launch(const char *dir, struct launch_description *out, struct error *err)
{
	_cleanup_free_ char *path = str_path_join(dir, LAUNCH_FILE);
	_cleanup_json_ json_t *json = NULL;
	int r = path ? json_read_file(path, &json, err) : error_oom(err);

	*out = (struct launch_description){0};
	return r < 0 ? r : launch_description_decode(json, out, err);
}

int attempt_files_make(const char *dir, const struct request *q, const struct request_place *place,
                       const struct run_user *user, struct unit_names unit, struct stop_times times,
                       struct launch_description *launch, struct error *err)
{
	int r;

	if ((r = file_remove_tree(dir, err)) < 0 || (r = file_mkdirs(dir, 0711, err)) < 0 ||
	    (r = file_mkdirs(place->logs, 0755, err)) < 0)
		return r;
	for (size_t i = 0; i < q->rank_count; i++) {
		_cleanup_free_ char *log = request_log_path(place->logs, q->ranks[i].rank);

		r = make_user_file(log, user->uid, user->gid, err);
		if (r < 0)
			return r;
	}
	if ((r = request_describe_launch(q, place, user, launch, err)) < 0)
		return r;
	launch->record = started_path(place->config->state_dir, q);
	launch->started = started_describe(q, unit);
	launch->save_signal = run_config_save_signal(q->config);
	launch->save = times.save;
	launch->grace = times.grace;
	if (!launch->record || !launch->started || str_replace(&launch->cgroup, unit.cgroup) < 0 ||
	    str_replace(&launch->service, unit.service) < 0 ||
	    str_replace(&launch->oom_file, unit.oom_file) < 0)
		return error_oom(err);
	if ((r = write_config(dir, q->config, user->uid, err)) < 0 ||
	    (r = write_launch(dir, launch, err)) < 0)
		return r;
	return write_request(dir, &q->start, err);
}

/* The newest attempt of which this rank's log is here. */
static int64_t newest_attempt(const char *run_dir, int rank)
{
	_cleanup_closedir_ DIR *dir = opendir(run_dir);
	int64_t newest = 0, number;
	struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		_cleanup_free_ char *logs = str_path_join(run_dir, entry->d_name);
		_cleanup_free_ char *log = logs ? request_log_path(logs, rank) : NULL;

		if (str_to_int64(entry->d_name, 1, INT64_MAX, &number) == 0 && number > newest && log &&
		    file_exists(log))
			newest = number;
	}
	return newest;
}

int attempt_files_log(const char *log_dir, int64_t run, int64_t attempt, int rank, char **path,
                      struct error *err)
{
	_cleanup_free_ char *run_dir = str_printf("%s/%lld", log_dir, (long long)run), *logs = NULL;

	if (!run_dir)
		return error_oom(err);
	if (attempt == 0)
		attempt = newest_attempt(run_dir, rank);
	logs = str_printf("%s/%lld", run_dir, (long long)attempt);
	*path = logs ? request_log_path(logs, rank) : NULL;
	if (!*path)
		return error_oom(err);
	if (file_exists(*path))
		return 0;
	free(*path);
	*path = NULL;
	return error_set(err, -ENOENT, "no log of run %lld, rank %d", (long long)run, rank);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The records of started attempts in state_dir. */
#include "node/started.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"

static char *directory_path(const char *state_dir)
{
	return str_path_join(state_dir, "started");
}

char *started_path(const char *state_dir, const struct request *q)
{
	return str_printf("%s/started/%lld.%lld.%lld.%s", state_dir, (long long)q->run, (long long)q->attempt,
	                  (long long)q->epoch, q->cluster);
}

int started_make_directory(const char *state_dir, struct error *err)
{
	_cleanup_free_ char *path = directory_path(state_dir);

	return path ? file_mkdirs(path, 0700, err) : error_oom(err);
}

json_t *started_describe(const struct request *q, const char *cgroup)
{
	json_t *slots = json_array(),
	       *json = json_pack("{s:I,s:o}", "uid", (json_int_t)q->uid, "slots", slots);

	for (size_t i = 0; i < q->slot_count; i++)
		json_array_append_new(slots, json_integer(q->slots[i]));
	if (cgroup)
		json_object_set_new(json, "cgroup", json_string(cgroup));
	return json;
}

static void read_content(const char *directory, const char *name, struct request *q)
{
	_cleanup_free_ char *path = str_path_join(directory, name);
	_cleanup_json_ json_t *json = NULL;
	const char *cgroup;
	const json_t *slots;

	/* An empty one is what a power failure leaves. */
	if (!path || json_read_file(path, &json, NULL) < 0 || !json_is_object(json))
		return;
	cgroup = json_get_string(json, "cgroup", NULL);
	q->cgroup = cgroup ? strdup(cgroup) : NULL;
	q->uid = (uid_t)json_get_int(json, "uid", (uid_t)-1);
	slots = json_object_get(json, "slots");
	q->slots = calloc(json_array_size(slots) + 1, sizeof *q->slots);
	for (size_t i = 0; q->slots && i < json_array_size(slots); i++)
		q->slots[q->slot_count++] = (int)json_integer_value(json_array_get(slots, i));
}

static struct request *parse(const char *name)
{
	_cleanup_(request_freep) struct request *q = calloc(1, sizeof *q);
	long long run, attempt, epoch;
	int used = 0;

	if (!q || sscanf(name, "%lld.%lld.%lld.%n", &run, &attempt, &epoch, &used) != 3 || used == 0)
		return NULL;
	q->start.cluster = strdup(name + used);
	if (!q->start.cluster)
		return NULL;
	q->cluster = q->start.cluster;
	q->run = run;
	q->attempt = attempt;
	q->epoch = epoch;
	q->uid = (uid_t)-1;
	q->user = "";
	return steal_pointer(q);
}

int started_each(const char *state_dir,
                 int (*each)(void *context, struct request *request, struct error *err), void *context,
                 struct error *err)
{
	_cleanup_free_ char *path = directory_path(state_dir);
	_cleanup_closedir_ DIR *dir = path ? opendir(path) : NULL;
	struct dirent *entry;
	int r = 0;

	if (!path)
		return error_oom(err);
	if (!dir)
		return errno == ENOENT ? 0 : error_errno(err, -errno, "cannot read %s", path);
	while (r >= 0 && (entry = readdir(dir))) {
		struct request *q = entry->d_name[0] == '.' ? NULL : parse(entry->d_name);

		if (!q)
			continue;
		read_content(path, entry->d_name, q);
		r = each(context, q, err);
	}
	return r;
}

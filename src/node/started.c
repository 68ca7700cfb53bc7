/* SPDX-License-Identifier: Apache-2.0 */
/* The records of started attempts in state_dir. */
#include "node/started.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "node/launch/start_record.h"

static char *directory_path(const char *state_dir)
{
	return str_path_join(state_dir, "started");
}

char *started_path(const char *state_dir, const struct request *q)
{
	return str_printf("%s/started/%lld.%lld.%lld.%s", state_dir, (long long)q->run, (long long)q->attempt,
	                  (long long)q->epoch, q->cluster);
}

void started_forget(const char *state_dir, const struct request *q)
{
	_cleanup_free_ char *record = started_path(state_dir, q);

	if (record)
		start_record_forget(record);
}

int started_make_directory(const char *state_dir, struct error *err)
{
	_cleanup_free_ char *path = directory_path(state_dir);
	int r = path ? file_mkdirs(path, 0700, err) : error_oom(err);

	return r < 0 ? r : start_record_make_spares(path, err);
}

struct start_record *started_describe(const struct request *q, struct unit_names unit)
{
	struct start_record *record = calloc(1, sizeof(*record));

	if (!record)
		return NULL;
	record->uid = q->uid;
	record->slots = calloc(q->slot_count + 1, sizeof(*record->slots));
	if (!record->slots || str_replace(&record->cgroup, unit.cgroup) < 0 ||
	    str_replace(&record->service, unit.service) < 0) {
		start_record_release(record);
		free(record);
		return NULL;
	}
	for (; record->slot_count < q->slot_count; record->slot_count++)
		record->slots[record->slot_count] = q->slots[record->slot_count];
	return record;
}

static void read_content(const char *directory, const char *name, struct request *q)
{
	_cleanup_(start_record_release) struct start_record record = {0};
	_cleanup_free_ char *path = str_path_join(directory, name);
	_cleanup_json_ json_t *json = NULL;

	/* An empty one is what a power failure leaves. */
	if (!path || json_read_file(path, &json, NULL) < 0 || start_record_decode(json, &record, NULL) < 0)
		return;
	q->cgroup = steal_pointer(record.cgroup);
	q->service = steal_pointer(record.service);
	q->uid = (uid_t)record.uid;
	q->slots = calloc(record.slot_count + 1, sizeof(*q->slots));
	for (; q->slots && q->slot_count < record.slot_count; q->slot_count++)
		q->slots[q->slot_count] = (int)record.slots[q->slot_count];
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

/* SPDX-License-Identifier: Apache-2.0 */
/* The highest epoch of each cluster and the highest run number that this node has seen, on disk. */
#include "node/clusters.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/file_writer.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"

/* So many are remembered: a node meets another one only when its controller's store was lost. */
enum { KNOWN_MAX = 32 };

struct known {
	char id[CLUSTER_ID_MAX + 1];
	int64_t epoch;
};

struct clusters {
	char *directory;
	char *path;                   /* clusters.json: written and synced with each new epoch */
	struct file_writer *writer;   /* of clusters.json */
	char *run_path;               /* highest_run: with each higher number, not synced */
	struct known list[KNOWN_MAX]; /* the one heard last comes last */
	size_t count;
	int64_t highest_run;
	bool run_unsaved;
};

void clusters_close(struct clusters *c)
{
	if (!c)
		return;
	file_writer_destroy(c->writer);
	free(c->directory);
	free(c->path);
	free(c->run_path);
	free(c);
}

static struct known *find(const struct clusters *c, const char *id)
{
	for (size_t i = 0; i < c->count; i++)
		if (str_eq(c->list[i].id, id))
			return (struct known *)&c->list[i];
	return NULL;
}

/* The entry of `id`, as the last one; the oldest makes room. */
static struct known *touch(struct clusters *c, const char *id)
{
	struct known *k = find(c, id), moved = {.epoch = 0};
	size_t hole = k ? (size_t)(k - c->list) : 0;

	if (k)
		moved = *k;
	else
		snprintf(moved.id, sizeof moved.id, "%s", id);
	if (k || c->count == KNOWN_MAX) {
		memmove(&c->list[hole], &c->list[hole + 1], (c->count - hole - 1) * sizeof *c->list);
		c->count--;
	}
	c->list[c->count] = moved;
	return &c->list[c->count++];
}

/* A file that is damaged, as by a crash of the machine, must not keep the node from starting: without it the
 * node learns the same from the next answer of the controller. Only a file that could not be read for want of
 * memory is no damage: -ENOMEM. */
static int load_clusters(struct clusters *c, struct error *err)
{
	_cleanup_(known_clusters_release) struct known_clusters known = {0};
	_cleanup_json_ json_t *json = NULL;
	int r;

	if (!file_exists(c->path))
		return 0;
	if ((r = json_read_file(c->path, &json, err)) < 0 ||
	    (r = known_clusters_decode(json, &known, err)) < 0) {
		if (r == -ENOMEM)
			return r;
		log_warn("%s; what this node knew of clusters is lost, and learned again from its controller",
		         err->message);
		return 0;
	}
	c->highest_run = MAX(known.highest_run, 0);
	for (size_t i = 0; i < known.cluster_count; i++) {
		const struct known_cluster *each = &known.clusters[i];

		if (*each->id && strlen(each->id) <= CLUSTER_ID_MAX)
			touch(c, each->id)->epoch = each->epoch;
	}
	return 0;
}

static int load_run(struct clusters *c, struct error *err)
{
	_cleanup_free_ char *text = NULL;
	int64_t run;
	int r;

	if (!file_exists(c->run_path))
		return 0;
	r = file_read(c->run_path, 64, &text, NULL, err);
	if (r == -ENOMEM)
		return r;
	if (r < 0)
		log_warn("%s", err->message);
	else if (str_to_int64(str_strip(text), 0, INT64_MAX, &run) < 0)
		log_warn("%s: not a number; the highest run number is learned again from the controller",
		         c->run_path);
	else
		c->highest_run = MAX(c->highest_run, run);
	return 0;
}

static void scan_logs(struct clusters *c, const char *log_dir)
{
	_cleanup_closedir_ DIR *dir = opendir(log_dir);
	struct dirent *entry;
	int64_t run;

	while (dir && (entry = readdir(dir)))
		if (str_to_int64(entry->d_name, 1, INT64_MAX, &run) == 0)
			c->highest_run = MAX(c->highest_run, run);
}

int clusters_open(sd_event *event, const char *state_dir, const char *log_dir, struct clusters **out,
                  struct error *err)
{
	_cleanup_(clusters_closep) struct clusters *c = calloc(1, sizeof *c);
	int r;

	if (!c)
		return error_oom(err);
	c->directory = strdup(state_dir);
	c->path = str_path_join(state_dir, "clusters.json");
	c->run_path = str_path_join(state_dir, "highest_run");
	if (!c->directory || !c->path || !c->run_path)
		return error_oom(err);
	if ((r = file_writer_create(event, c->path, "what this node knows of clusters is not on disk",
	                            &c->writer, err)) < 0 ||
	    (r = load_clusters(c, err)) < 0 || (r = load_run(c, err)) < 0)
		return r;
	scan_logs(c, log_dir);
	*out = steal_pointer(c);
	return 0;
}

int clusters_describe(const struct clusters *c, struct known_clusters *out, struct error *err)
{
	*out = (struct known_clusters){.highest_run = c->highest_run,
	                               .clusters = calloc(c->count + 1, sizeof(*out->clusters))};
	if (!out->clusters)
		return error_oom(err);
	for (; out->cluster_count < c->count; out->cluster_count++) {
		struct known_cluster *own = &out->clusters[out->cluster_count];

		own->id = strdup(c->list[out->cluster_count].id);
		own->epoch = c->list[out->cluster_count].epoch;
		if (!own->id) {
			known_clusters_release(out);
			return error_oom(err);
		}
	}
	return 0;
}

static int save_clusters(struct clusters *c, struct error *err)
{
	_cleanup_(known_clusters_release) struct known_clusters known = {0};
	_cleanup_json_ json_t *json = NULL;
	int r = clusters_describe(c, &known, err);

	if (r < 0)
		return r;
	json = known_clusters_encode(&known);
	return file_writer_put(c->writer, json ? json_to_string(json) : NULL, err);
}

/* In place and always of the same length: after a crash of the machine the old number is there or the new
 * one, without a sync. */
static int save_run(const struct clusters *c, struct error *err)
{
	_cleanup_close_ int fd = -1;
	char text[32];
	int r;

	if ((r = file_mkdirs(c->directory, 0755, err)) < 0)
		return r;
	fd = open(c->run_path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
	if (fd < 0)
		return error_errno(err, -errno, "cannot write %s", c->run_path);
	snprintf(text, sizeof text, "%019lld\n", (long long)c->highest_run);
	r = file_write_all(fd, text, strlen(text), err);
	return r < 0 ? error_prefix(err, "%s", c->run_path) : 0;
}

int clusters_check(const struct clusters *c, const char *id, int64_t epoch, struct error *err)
{
	const struct known *k = find(c, id);

	if (!*id || !k || k->epoch <= epoch)
		return 0;
	return error_set(err, -ESTALE,
	                 "a stale controller: its store is of epoch %lld of the cluster, and epoch %lld is "
	                 "known here",
	                 (long long)epoch, (long long)k->epoch);
}

int clusters_learn(struct clusters *c, const char *id, int64_t epoch, int64_t highest_run, struct error *err)
{
	const struct known *k = find(c, id);
	bool new_epoch = *id && (!k || k->epoch < epoch);
	struct error failure = ERROR_INIT;
	int r = clusters_check(c, id, epoch, err);

	if (r < 0)
		return r;
	if (strlen(id) > CLUSTER_ID_MAX)
		return error_set(err, -EINVAL, "the name of a cluster has at most %d characters",
		                 CLUSTER_ID_MAX);
	if (new_epoch)
		touch(c, id)->epoch = epoch;
	c->run_unsaved = c->run_unsaved || highest_run > c->highest_run;
	c->highest_run = MAX(c->highest_run, highest_run);
	/* What cannot be written is known nevertheless, and written the next time. */
	if ((new_epoch || file_writer_failed(c->writer)) && save_clusters(c, &failure) < 0)
		log_warn("%s", failure.message);
	if (c->run_unsaved) {
		c->run_unsaved = save_run(c, &failure) < 0;
		if (c->run_unsaved)
			log_warn("%s", failure.message);
	}
	return 0;
}

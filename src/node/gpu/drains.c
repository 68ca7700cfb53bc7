/* SPDX-License-Identifier: Apache-2.0 */
/* The list of drained devices in state_dir/drained.json. */
#include "node/gpu/drains.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/boot_id.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "wire/service_files.h"

struct drains {
	char *path, boot[BOOT_ID_SIZE]; /* boot empty: not known, then nothing is forgotten */
	struct file_writer *writer;
	struct drain *list;
	size_t count;
};

void drains_close(struct drains *d)
{
	if (!d)
		return;
	file_writer_destroy(d->writer);
	free(d->path);
	free(d->list);
	free(d);
}

static struct drain *entry(struct drains *d, const char *key)
{
	for (size_t i = 0; i < d->count; i++)
		if (str_eq(d->list[i].key, key))
			return &d->list[i];
	return NULL;
}

const struct drain *drains_find(const struct drains *d, const char *key)
{
	return entry((struct drains *)d, key);
}

static int put(struct drains *d, const struct drain *drain, struct error *err)
{
	struct drain *e = entry(d, drain->key);

	if (!e) {
		e = reallocarray(d->list, d->count + 1, sizeof *e);
		if (!e)
			return error_oom(err);
		d->list = e;
		e += d->count++;
	}
	*e = *drain;
	str_make_utf8(e->reason); /* it may be cut within a character */
	return 0;
}

static int load(struct drains *d, struct error *err)
{
	_cleanup_(drain_list_release) struct drain_list list = {0};
	_cleanup_json_ json_t *json = NULL;
	bool rebooted;
	int r;

	if (!file_exists(d->path))
		return 0;
	r = json_read_file(d->path, &json, err);
	if (r < 0)
		return r;
	if (drain_list_decode(json, &list, err) < 0)
		return error_prefix(err, "%s", d->path);
	rebooted = list.boot && *list.boot && d->boot[0] && !str_eq(list.boot, d->boot);
	for (size_t i = 0; i < list.count; i++) {
		const struct drain_record *each = &list.devices[i];
		struct drain drain = {
		    .time = each->time,
		    .by_hand = each->by_hand,
		    .until_boot = each->until_boot,
		    .pending_accepted = each->pending_accepted,
		    .failed_accepted = each->failed_accepted,
		};

		snprintf(drain.key, sizeof(drain.key), "%s", each->device);
		snprintf(drain.reason, sizeof(drain.reason), "%s", each->reason ? each->reason : "");
		if (rebooted && drain.until_boot && drain.reason[0]) {
			log_info("%s is looked at anew after the reboot; it was drained: %s", drain.key,
			         drain.reason);
			drain.reason[0] = '\0';
		}
		if (rebooted)
			drain.pending_accepted = false;
		if ((r = put(d, &drain, err)) < 0)
			return r;
	}
	return 0;
}

int drains_open(sd_event *event, const char *state_dir, struct drains **out, struct error *err)
{
	_cleanup_(drains_closep) struct drains *d = calloc(1, sizeof *d);
	int r;

	if (!d)
		return error_oom(err);
	d->path = str_path_join(state_dir, "drained.json");
	if (!d->path)
		return error_oom(err);
	boot_id_read(d->boot);
	if ((r = file_writer_create(event, d->path, "it is not on disk which devices are drained", &d->writer,
	                            err)) < 0 ||
	    (r = load(d, err)) < 0)
		return r;
	*out = steal_pointer(d);
	return 0;
}

static int save(struct drains *d, struct error *err)
{
	_cleanup_free_ struct drain_record *records = calloc(d->count + 1, sizeof(*records));
	/* All strings are borrowed. */
	struct drain_list list = {.boot = (char *)d->boot, .devices = records};
	_cleanup_json_ json_t *json = NULL;

	if (!records)
		return error_oom(err);
	for (size_t i = 0; i < d->count; i++) {
		struct drain *e = &d->list[i];

		if (!e->reason[0] && !e->pending_accepted && !e->failed_accepted)
			continue;
		records[list.count++] = (struct drain_record){
		    .device = e->key,
		    .reason = e->reason,
		    .time = e->time,
		    .by_hand = e->by_hand,
		    .until_boot = e->until_boot,
		    .pending_accepted = e->pending_accepted,
		    .failed_accepted = e->failed_accepted,
		};
	}
	json = drain_list_encode(&list);
	return file_writer_put(d->writer, json ? json_to_string(json) : NULL, err);
}

int drains_set(struct drains *d, const struct drain *drain, struct error *err)
{
	int r = put(d, drain, err);

	return r < 0 ? r : save(d, err);
}

int drains_wait(struct drains *d, file_written_fn done, void *context, struct error *err)
{
	return file_writer_wait(d->writer, done, context, err);
}

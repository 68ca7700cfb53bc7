/* SPDX-License-Identifier: Apache-2.0 */
/* What the controllers before have left in etcd, under the keys that store_etcd.c describes. */
#include "cluster/store_etcd_load.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"
#include "base/str.h"
#include "cluster/election.h"
#include "wire/etcd.h"
#include "wire/run_entry.h"

enum { PAGE = 100 }; /* keys that are read at once */

static const double READ_SECONDS = 20.0;

/* Calls `each` for all keys below /dtrain/KIND/, with what follows that. */
static int read_all(struct etcd *etcd, const char *kind,
                    int (*each)(void *context, const char *name, const char *value, struct error *err),
                    void *context, struct error *err)
{
	_cleanup_free_ char *from = str_printf(ETCD_PREFIX "%s/", kind);
	_cleanup_free_ char *end = str_printf(ETCD_PREFIX "%s0", kind); /* '0' follows '/' */
	size_t prefix = from ? strlen(from) : 0;
	int64_t page = PAGE;
	bool more = true;
	int r = from && end ? 0 : error_oom(err);

	while (more && r == 0) {
		_cleanup_(etcd_pairs_clear) struct etcd_pairs found = {0};
		_cleanup_json_ json_t *answer = NULL;

		r = etcd_call(etcd, "/v3/kv/range", etcd_range_request(from, end, page), READ_SECONDS,
		              &answer, err);
		/* An answer may be longer than the gateway takes. */
		if (r == -EREMOTEIO && page > 1) {
			page = MAX(page / 10, 1);
			r = 0;
			continue;
		}
		if (r == 0)
			r = etcd_range_read(answer, &found, err);
		for (size_t i = 0; i < found.count && r == 0; i++)
			r = each(context, found.list[i].key + prefix, found.list[i].value, err);
		more = r == 0 && found.more && found.count > 0;
		if (more) {
			/* The least key behind the last one. */
			free(from);
			from = str_printf("%s\x01", found.list[found.count - 1].key);
			r = from ? 0 : error_oom(err);
		}
	}
	return r;
}

int store_etcd_read_value(struct etcd *etcd, const char *key, char **out, struct error *err)
{
	_cleanup_(etcd_pairs_clear) struct etcd_pairs found = {0};
	_cleanup_json_ json_t *answer = NULL;
	int r = etcd_call(etcd, "/v3/kv/range", etcd_range_request(key, NULL, 0), READ_SECONDS, &answer, err);

	if (r == 0)
		r = etcd_range_read(answer, &found, err);
	if (r < 0)
		return r;
	*out = found.count ? steal_pointer(found.list[0].value) : NULL;
	return 0;
}

struct loading {
	struct etcd *etcd;
	struct store_etcd_contents *out;
	size_t next; /* the run whose origin is looked for */
	int64_t version;
};

static int take_epoch(void *context, const char *name, const char *value, struct error *err)
{
	struct loading *l = context;
	int64_t epoch, *list = reallocarray(l->out->epochs, l->out->epoch_count + 1, sizeof(*list));

	if (!list)
		return error_oom(err);
	l->out->epochs = list;
	if (str_to_int64(name, 1, INT64_MAX, &epoch) == 0)
		list[l->out->epoch_count++] = epoch;
	return 0;
}

int store_etcd_add_name(char ***list, size_t *count, const char *name)
{
	char **grown;

	for (size_t i = 0; i < *count; i++)
		if (str_eq((*list)[i], name))
			return 0;
	grown = reallocarray(*list, *count + 1, sizeof(*grown));
	if (!grown)
		return -ENOMEM;
	*list = grown;
	grown[*count] = strdup(name);
	if (!grown[*count])
		return -ENOMEM;
	(*count)++;
	return 0;
}

void store_etcd_free_names(char **list, size_t count)
{
	for (size_t i = 0; i < count; i++)
		free(list[i]);
	free(list);
}

static int take_drain(void *context, const char *name, const char *value, struct error *err)
{
	struct loading *l = context;

	if (store_etcd_add_name(&l->out->drains, &l->out->drain_count, name) < 0 ||
	    store_batch_set_drained(&l->out->batch, name, true, *value ? value : NULL) < 0)
		return error_oom(err);
	return 0;
}

static int take_entry(void *context, const char *name, const char *value, struct error *err)
{
	struct loading *l = context;
	_cleanup_(run_entry_release) struct run_entry entry = {0};
	_cleanup_json_ json_t *json = NULL;
	struct stored_run *list, *out;
	int r = json_parse(value, strlen(value), "etcd", &json, err);

	if (r == 0)
		r = run_entry_decode(json, &entry, err);
	if (r == -ENOMEM)
		return r;
	if (r < 0) {
		/* One run that cannot be read is no reason not to serve the others. */
		log_err("run %s in etcd: %s", name, err->message);
		return 0;
	}
	list = reallocarray(l->out->batch.runs, l->out->batch.run_count + 1, sizeof(*list));
	if (!list)
		return error_oom(err);
	l->out->batch.runs = list;
	out = &list[l->out->batch.run_count++];
	*out = (struct stored_run){
	    .run = {.id = entry.id,
	            .attempt = entry.attempt,
	            .version = l->version,
	            .uid = entry.uid,
	            .gid = entry.gid,
	            .state = entry.state,
	            .submitted = entry.submitted,
	            .started = entry.started,
	            .ended = entry.ended,
	            .reason = steal_pointer(entry.reason),
	            .detail = steal_pointer(entry.detail),
	            .exit_status = (int)entry.exit_status,
	            .nodes = entry.nodes,
	            .per_node = entry.per_node,
	            .cancelled = entry.cancelled,
	            .failed = entry.failed,
	            .requeue = entry.requeue},
	    .ranks = steal_pointer(entry.ranks),
	    .under_way = steal_pointer(entry.under_way),
	};
	return 0;
}

/* Both lists are in the order of runs. */
static int take_origin(void *context, const char *name, const char *value, struct error *err)
{
	struct loading *l = context;
	_cleanup_(run_origin_release) struct run_origin origin = {0};
	_cleanup_json_ json_t *json = NULL;
	struct stored_run *run;
	int64_t id;
	int r;

	if (str_to_int64(name, 1, INT64_MAX, &id) < 0)
		return 0;
	while (l->next < l->out->batch.run_count && l->out->batch.runs[l->next].run.id < id)
		l->next++;
	run = l->next < l->out->batch.run_count ? &l->out->batch.runs[l->next] : NULL;
	if (!run || run->run.id != id)
		return 0;
	r = json_parse(value, strlen(value), "etcd", &json, err);
	if (r == 0)
		r = run_origin_decode(json, &origin, err);
	if (r == -ENOMEM)
		return r;
	if (r < 0) {
		log_err("run %s in etcd: %s", name, err->message);
		return 0;
	}
	run->run.name = steal_pointer(origin.name);
	run->run.user = steal_pointer(origin.user);
	run->run.task = steal_pointer(origin.task);
	run->run.directory = steal_pointer(origin.directory);
	run->run.output = steal_pointer(origin.output);
	run->run.key = steal_pointer(origin.key);
	run->config = steal_pointer(origin.config);
	return 0;
}

/* An entry without its origin, of a batch that was not complete, is left out. */
static void leave_out_incomplete(struct store_batch *b)
{
	struct store_batch without = {.runs = NULL};
	size_t kept = 0;

	without.runs = calloc(b->run_count + 1, sizeof(*without.runs));
	if (!without.runs) {
		b->failed = true;
		return;
	}
	for (size_t i = 0; i < b->run_count; i++)
		if (b->runs[i].config)
			b->runs[kept++] = b->runs[i];
		else
			without.runs[without.run_count++] = b->runs[i];
	b->run_count = kept;
	store_batch_clear(&without);
}

static int read_highest(struct loading *l, struct error *err)
{
	_cleanup_free_ char *text = NULL;
	const struct store_batch *b = &l->out->batch;
	int r = store_etcd_read_value(l->etcd, ETCD_PREFIX "highest", &text, err);

	if (r < 0)
		return r;
	if (text && str_to_int64(text, 0, INT64_MAX, &l->out->batch.highest) < 0)
		return error_set(err, -EINVAL, "etcd: " ETCD_PREFIX "highest is not a number");
	if (b->run_count > 0)
		l->out->batch.highest = MAX(b->highest, b->runs[b->run_count - 1].run.id);
	return 0;
}

int store_etcd_load(struct etcd *etcd, int64_t version, struct store_etcd_contents *out, struct error *err)
{
	struct loading l = {.etcd = etcd, .out = out, .version = version};
	int r;

	*out = (struct store_etcd_contents){.epochs = NULL};
	if ((r = read_all(etcd, "runs", take_entry, &l, err)) < 0 ||
	    (r = read_all(etcd, "origins", take_origin, &l, err)) < 0 || (r = read_highest(&l, err)) < 0 ||
	    (r = read_all(etcd, "drains", take_drain, &l, err)) < 0 ||
	    (r = read_all(etcd, "epochs", take_epoch, &l, err)) < 0)
		return r;
	leave_out_incomplete(&out->batch);
	return out->batch.failed ? error_oom(err) : 0;
}

void store_etcd_contents_clear(struct store_etcd_contents *c)
{
	store_batch_clear(&c->batch);
	store_etcd_free_names(c->drains, c->drain_count);
	free(c->epochs);
	*c = (struct store_etcd_contents){.epochs = NULL};
}

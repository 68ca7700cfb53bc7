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
		if ((r == -EREMOTEIO || r == -EMSGSIZE) && page > 1) {
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

/* A run whose entry is in pieces, of which those so far are in text. */
struct in_pieces {
	size_t run; /* its place in the batch */
	struct run_pieces named;
	int64_t found;
	struct strbuf text;
};

struct loading {
	struct etcd *etcd;
	struct store_etcd_contents *out;
	struct in_pieces *in_pieces;
	size_t in_pieces_count, next_in_pieces;
	int64_t *unread; /* runs whose entry cannot be read: it may name pieces */
	size_t unread_count, next_unread;
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

/* Is r that of memory? One run that cannot be read is no reason not to serve the others. */
static int pass_over(const char *name, int r, const struct error *err)
{
	if (r == -ENOMEM)
		return r;
	log_err("run %s in etcd: %s", name, err->message);
	return 0;
}

static void set_entry(struct stored_run *out, struct run_entry *entry, int64_t version)
{
	*out = (struct stored_run){
	    .run = {.id = entry->id,
	            .attempt = entry->attempt,
	            .version = version,
	            .uid = entry->uid,
	            .gid = entry->gid,
	            .state = entry->state,
	            .submitted = entry->submitted,
	            .started = entry->started,
	            .ended = entry->ended,
	            .reason = steal_pointer(entry->reason),
	            .detail = steal_pointer(entry->detail),
	            .exit_status = (int)entry->exit_status,
	            .nodes = entry->nodes,
	            .per_node = entry->per_node,
	            .cancelled = entry->cancelled,
	            .failed = entry->failed,
	            .requeue = entry->requeue},
	    .ranks = steal_pointer(entry->ranks),
	    .under_way = steal_pointer(entry->under_way),
	};
}

static int add_run(struct loading *l, struct run_entry *entry, size_t bytes, struct error *err)
{
	struct store_batch *b = &l->out->batch;
	struct stored_run *list = reallocarray(b->runs, b->run_count + 1, sizeof(*list));
	struct store_etcd_size *sizes;

	if (!list)
		return error_oom(err);
	b->runs = list;
	sizes = reallocarray(l->out->sizes, b->run_count + 1, sizeof(*sizes));
	if (!sizes)
		return error_oom(err);
	l->out->sizes = sizes;
	sizes[b->run_count] = (struct store_etcd_size){.bytes = bytes};
	set_entry(&list[b->run_count++], entry, l->version);
	return 0;
}

/* Until all of its pieces are there, its size is 0. */
static int add_in_pieces(struct loading *l, const char *name, const struct run_pieces *named,
                         struct error *err)
{
	struct in_pieces *list = reallocarray(l->in_pieces, l->in_pieces_count + 1, sizeof(*list));
	struct run_entry none = {0};
	int r;

	if (!list)
		return error_oom(err);
	l->in_pieces = list;
	if (str_to_int64(name, 1, INT64_MAX, &none.id) < 0)
		return 0;
	r = add_run(l, &none, 0, err);
	if (r < 0)
		return r;
	l->out->sizes[l->out->batch.run_count - 1].pieces = true;
	list[l->in_pieces_count++] = (struct in_pieces){.run = l->out->batch.run_count - 1, .named = *named};
	return 0;
}

static int add_unread(struct loading *l, const char *name, struct error *err)
{
	int64_t *list = reallocarray(l->unread, l->unread_count + 1, sizeof(*list));

	if (!list)
		return error_oom(err);
	l->unread = list;
	if (str_to_int64(name, 1, INT64_MAX, &list[l->unread_count]) == 0)
		l->unread_count++;
	return 0;
}

static int take_entry(void *context, const char *name, const char *value, struct error *err)
{
	struct loading *l = context;
	_cleanup_(run_entry_release) struct run_entry entry = {0};
	_cleanup_json_ json_t *json = NULL;
	struct run_pieces named;
	bool in_pieces;
	int r = json_parse(value, strlen(value), "etcd", &json, err);

	in_pieces = r == 0 && json_object_get(json, "pieces");
	if (r == 0)
		r = in_pieces ? run_pieces_decode(json, &named, err) : run_entry_decode(json, &entry, err);
	if (r < 0) {
		r = pass_over(name, r, err);
		return r < 0 ? r : add_unread(l, name, err);
	}
	return in_pieces ? add_in_pieces(l, name, &named, err) : add_run(l, &entry, strlen(value), err);
}

static int add_stale(struct loading *l, const char *name, struct error *err)
{
	struct store_etcd_contents *out = l->out;
	char **list = reallocarray(out->stale, out->stale_count + 2, sizeof(*list));

	if (!list)
		return error_oom(err);
	out->stale = list;
	list[out->stale_count] = str_printf(ETCD_PREFIX "pieces/%s", name);
	if (!list[out->stale_count])
		return error_oom(err);
	list[++out->stale_count] = NULL;
	return 0;
}

static bool is_unread(struct loading *l, int64_t id)
{
	while (l->next_unread < l->unread_count && l->unread[l->next_unread] < id)
		l->next_unread++;
	return l->next_unread < l->unread_count && l->unread[l->next_unread] == id;
}

/* Of "RUN/SERIES/PIECE". All lists are in the order of runs. */
static int take_piece(void *context, const char *name, const char *value, struct error *err)
{
	struct loading *l = context;
	struct in_pieces *in;
	long long id, series, piece;

	if (sscanf(name, "%20lld/%20lld/%6lld", &id, &series, &piece) != 3)
		return 0;
	while (l->next_in_pieces < l->in_pieces_count &&
	       l->out->batch.runs[l->in_pieces[l->next_in_pieces].run].run.id < id)
		l->next_in_pieces++;
	in = l->next_in_pieces < l->in_pieces_count ? &l->in_pieces[l->next_in_pieces] : NULL;
	if (!in || l->out->batch.runs[in->run].run.id != id || in->named.series != series)
		return is_unread(l, id) ? 0 : add_stale(l, name, err);
	if (piece != in->found)
		return 0;
	in->found++;
	strbuf_add(&in->text, value, strlen(value));
	return in->text.failed ? error_oom(err) : 0;
}

static int join_one(struct loading *l, const struct in_pieces *in, struct error *err)
{
	struct stored_run *run = &l->out->batch.runs[in->run];
	_cleanup_(run_entry_release) struct run_entry entry = {0};
	_cleanup_json_ json_t *json = NULL;
	char name[24];
	int r;

	snprintf(name, sizeof(name), "%lld", (long long)run->run.id);
	if (in->found != in->named.pieces || (int64_t)in->text.len != in->named.bytes)
		r = error_set(err, -EINVAL, "%lld of its %lld pieces are there, with %zu of %lld bytes",
		              (long long)in->found, (long long)in->named.pieces, in->text.len,
		              (long long)in->named.bytes);
	else
		r = json_parse(in->text.data, in->text.len, "etcd", &json, err);
	if (r == 0)
		r = run_entry_decode(json, &entry, err);
	if (r == 0 && entry.id != run->run.id)
		r = error_set(err, -EINVAL, "its pieces are those of run %lld", (long long)entry.id);
	if (r < 0)
		return pass_over(name, r, err);
	set_entry(run, &entry, l->version);
	l->out->sizes[in->run].bytes = in->text.len;
	return 0;
}

static int join_pieces(struct loading *l, struct error *err)
{
	int r = 0;

	for (size_t i = 0; i < l->in_pieces_count && r == 0; i++) {
		r = join_one(l, &l->in_pieces[i], err);
		strbuf_free(&l->in_pieces[i].text);
	}
	return r;
}

static void loading_clear(struct loading *l)
{
	for (size_t i = 0; i < l->in_pieces_count; i++)
		strbuf_free(&l->in_pieces[i].text);
	free(l->in_pieces);
	free(l->unread);
}

/* Here, too. */
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
	if (r < 0)
		return pass_over(name, r, err);
	run->run.name = steal_pointer(origin.name);
	run->run.user = steal_pointer(origin.user);
	run->run.task = steal_pointer(origin.task);
	run->run.directory = steal_pointer(origin.directory);
	run->run.output = steal_pointer(origin.output);
	run->run.key = steal_pointer(origin.key);
	run->config = steal_pointer(origin.config);
	return 0;
}

/* An entry without its origin, of a batch that was not complete, is left out, and so is one without its
 * pieces.
 */
static void leave_out_incomplete(struct store_batch *b, struct store_etcd_size *sizes)
{
	struct store_batch without = {.runs = NULL};
	size_t kept = 0;

	without.runs = calloc(b->run_count + 1, sizeof(*without.runs));
	if (!without.runs) {
		b->failed = true;
		return;
	}
	for (size_t i = 0; i < b->run_count; i++)
		if (b->runs[i].config && sizes[i].bytes > 0) {
			sizes[kept] = sizes[i];
			b->runs[kept++] = b->runs[i];
		} else
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

static int load_all(struct loading *l, struct error *err)
{
	int r;

	if ((r = read_all(l->etcd, "runs", take_entry, l, err)) < 0 ||
	    (r = read_all(l->etcd, "pieces", take_piece, l, err)) < 0 || (r = join_pieces(l, err)) < 0 ||
	    (r = read_all(l->etcd, "origins", take_origin, l, err)) < 0 || (r = read_highest(l, err)) < 0 ||
	    (r = read_all(l->etcd, "drains", take_drain, l, err)) < 0)
		return r;
	return read_all(l->etcd, "epochs", take_epoch, l, err);
}

int store_etcd_load(struct etcd *etcd, int64_t version, struct store_etcd_contents *out, struct error *err)
{
	struct loading l = {.etcd = etcd, .out = out, .version = version};
	int r;

	*out = (struct store_etcd_contents){.epochs = NULL};
	r = load_all(&l, err);
	loading_clear(&l);
	if (r < 0)
		return r;
	leave_out_incomplete(&out->batch, out->sizes);
	return out->batch.failed ? error_oom(err) : 0;
}

void store_etcd_contents_clear(struct store_etcd_contents *c)
{
	store_batch_clear(&c->batch);
	store_etcd_free_names(c->drains, c->drain_count);
	free(c->sizes);
	str_list_free(c->stale);
	free(c->epochs);
	*c = (struct store_etcd_contents){.epochs = NULL};
}

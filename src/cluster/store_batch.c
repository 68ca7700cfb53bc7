/* SPDX-License-Identifier: Apache-2.0 */
/* A batch of changes by value: the store's thread writes it while the runs that it was made from go on. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "cluster/store_backend.h"

static int copy_json(const json_t *json, char **out)
{
	*out = json ? json_to_string(json) : NULL;
	return json && !*out ? -ENOMEM : 0;
}

static void free_run(struct stored_run *s)
{
	free(s->run.name);
	free(s->run.user);
	free(s->run.task);
	free(s->run.directory);
	free(s->run.output);
	free(s->run.key);
	free(s->run.reason);
	free(s->run.detail);
	free(s->ranks);
	free(s->progress);
	free(s->under_way);
	free(s->config);
	free(s->refused);
}

static void free_drain(struct stored_drain *d)
{
	free(d->node);
	free(d->reason);
}

/* What never changes again is copied for a new run alone. */
static int copy_run(const struct run *r, const char *config, struct stored_run *out)
{
	_cleanup_json_ json_t *ranks = message_encode_list(&run_rank_message, r->ranks, r->rank_count);
	_cleanup_json_ json_t *under_way = NULL;
	struct run *to = &out->run;

	*to = (struct run){.id = r->id,
	                   .attempt = r->attempt,
	                   .version = r->version,
	                   .uid = r->uid,
	                   .gid = r->gid,
	                   .state = r->state,
	                   .submitted = r->submitted,
	                   .started = r->started,
	                   .ended = r->ended,
	                   .exit_status = r->exit_status,
	                   .nodes = r->nodes,
	                   .per_node = r->per_node,
	                   .cancelled = r->cancelled,
	                   .failed = r->failed,
	                   .requeue = r->requeue};
	if (!ranks || run_under_way(r, &under_way) < 0 || str_replace(&to->reason, r->reason) < 0 ||
	    str_replace(&to->detail, r->detail) < 0 || copy_json(ranks, &out->ranks) < 0 ||
	    copy_json(r->progress, &out->progress) < 0 || copy_json(under_way, &out->under_way) < 0)
		return -ENOMEM;
	if (!config)
		return 0;
	if (str_replace(&to->name, r->name) < 0 || str_replace(&to->user, r->user) < 0 ||
	    str_replace(&to->task, r->task) < 0 || str_replace(&to->directory, r->directory) < 0 ||
	    str_replace(&to->output, r->output) < 0 || str_replace(&to->key, r->key) < 0 ||
	    str_replace(&out->config, config) < 0)
		return -ENOMEM;
	return 0;
}

int store_batch_add_run(struct store_batch *b, const struct run *r, const char *config)
{
	struct stored_run *list = b->runs, copy = {0};

	/* Room for as many again at each power of two. */
	if ((b->run_count & (b->run_count - 1)) == 0)
		list = reallocarray(list, b->run_count ? 2 * b->run_count : 1, sizeof(*list));
	if (!list)
		return -ENOMEM;
	b->runs = list;
	if (copy_run(r, config, &copy) < 0) {
		free_run(&copy);
		return -ENOMEM;
	}
	b->runs[b->run_count++] = copy;
	return 0;
}

static size_t drain_index(const struct store_batch *b, const char *node)
{
	size_t i = 0;

	while (i < b->drain_count && !str_eq_host(b->drains[i].node, node))
		i++;
	return i;
}

const struct stored_drain *store_batch_find_drain(const struct store_batch *b, const char *node)
{
	size_t i = drain_index(b, node);

	return i < b->drain_count ? &b->drains[i] : NULL;
}

int store_batch_set_drained(struct store_batch *b, const char *node, bool drained, const char *reason)
{
	size_t i = drain_index(b, node);
	struct stored_drain copy = {.drained = drained}, *list = b->drains;

	if (i == b->drain_count)
		list = reallocarray(list, i + 1, sizeof(*list));
	if (!list)
		return -ENOMEM;
	b->drains = list;
	if (str_replace(&copy.node, node) < 0 || str_replace(&copy.reason, reason) < 0) {
		free_drain(&copy);
		return -ENOMEM;
	}
	if (i == b->drain_count)
		b->drain_count++;
	else
		free_drain(&list[i]);
	list[i] = copy;
	return 0;
}

void store_batch_clear(struct store_batch *b)
{
	for (size_t i = 0; i < b->run_count; i++)
		free_run(&b->runs[i]);
	for (size_t i = 0; i < b->drain_count; i++)
		free_drain(&b->drains[i]);
	free(b->runs);
	free(b->drains);
	*b = (struct store_batch){0};
}

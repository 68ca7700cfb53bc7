/* SPDX-License-Identifier: Apache-2.0 */
/* Where a model that a node does not have was written: the nodes of earlier runs are known. */
#include <errno.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "controller/internal.h"
#include "controller/runs.h"

/* So many runs are looked at, the newest first. */
enum { RUNS_MAX = 1000 };

struct search {
	const struct run *asking;
	const char *model, *node; /* absolute; where it was not found */
	char *found;
};

/* Whether path is the directory or lies in it. */
static bool is_within(const char *path, const char *directory)
{
	size_t len = strlen(directory);

	while (len > 1 && directory[len - 1] == '/')
		len--;
	return strncmp(path, directory, len) == 0 && (path[len] == '/' || path[len] == '\0');
}

/* A negative return ends the search. */
static int look_at(void *context, const struct run *r, struct error *err)
{
	struct search *s = context;

	if (r->uid != s->asking->uid || !r->output || r->rank_count == 0 || !is_within(s->model, r->output))
		return 0;
	if (!str_eq_host(r->ranks[0].node, s->node))
		s->found =
		    str_printf("run %lld wrote it on node %s: expected that node (--set resources.hosts=%s), "
		               "or a directory that all nodes share",
		               (long long)r->id, r->ranks[0].node, r->ranks[0].node);
	return -ECANCELED;
}

char *origin_of_model(struct controller *c, const struct run *r, const char *node)
{
	_cleanup_json_ json_t *config = NULL;
	_cleanup_free_ char *text = NULL, *model = NULL;
	struct search s = {.asking = r, .node = node};
	const struct run_query newest = {.states = run_state_set("all"), .before = r->id, .limit = RUNS_MAX};
	struct error err = ERROR_INIT;
	const char *path;

	if (store_config(c->store, r->id, &text, &err) < 0 ||
	    json_parse(text, strlen(text), "stored configuration", &config, &err) < 0)
		return NULL;
	path = json_get_string(json_object_get(config, "model"), "path", NULL);
	model = path ? str_path_join(r->directory ? r->directory : "/", path) : NULL;
	if (!model)
		return NULL;
	s.model = model;
	controller_list_runs(c, &newest, look_at, &s, &err);
	return s.found;
}

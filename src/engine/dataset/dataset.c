/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a dataset: finds its rows in the cache, or has one process build them while the others wait. */
#include "engine/dataset/dataset.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/str.h"
#include "engine/chat/tool_calls.h"
#include "engine/dataset/build.h"
#include "engine/dataset/convert.h"

/* Files up to this size are part of the key by their content, larger ones by size, time and their ends. */
#define CONTENT_MAX (64 << 20)
#define CONTENT_END (1 << 20)
/* Raised when the rules of encoding change, so that older caches are not taken. */
#define RULES_VERSION 8

struct dataset {
	char *path;
	struct cache cache;
};

/* --- the key of the cache
 * -------------------------------------------------------------------------------- */

static void key_string(struct cache_key *key, const char *s)
{
	cache_key_add(key, s ? s : "\xff", s ? strlen(s) + 1 : 1);
}

static int key_file(struct cache_key *key, const char *path, struct error *err)
{
	_cleanup_file_map_ struct file_map map = {"", 0};
	struct stat st;
	int r;

	r = file_map_open(path, &map, err);
	if (r < 0)
		return r;
	if (map.len <= CONTENT_MAX) {
		cache_key_add(key, map.data, map.len);
		return 0;
	}
	if (stat(path, &st) < 0)
		return error_errno(err, -errno, "cannot read %s", path);
	cache_key_add(key, &st.st_size, sizeof(st.st_size));
	cache_key_add(key, &st.st_mtim.tv_sec, sizeof(st.st_mtim.tv_sec));
	cache_key_add(key, &st.st_mtim.tv_nsec, sizeof(st.st_mtim.tv_nsec));
	cache_key_add(key, map.data, CONTENT_END);
	cache_key_add(key, (const char *)map.data + map.len - CONTENT_END, CONTENT_END);
	return 0;
}

/* Everything that decides the rows. */
static int make_key(const struct dataset_options *o, const struct source_list *list,
                    const struct tokenizer *tok, const struct template *template, struct cache_key *key,
                    struct error *err)
{
	const int64_t numbers[] = {RULES_VERSION,      o->task,
	                           o->max_length,      o->packing,
	                           o->cross_documents, o->train_on_prompt,
	                           o->mask_history,    o->efficient_eos,
	                           o->max_samples,     (int64_t)o->seed,
	                           list->count,        (int64_t)tokenizer_hash(tok),
	                           o->margins};

	cache_key_init(key);
	cache_key_add(key, numbers, sizeof(numbers));
	cache_key_add(key, &o->eval_fraction, sizeof(o->eval_fraction));
	key_string(key, DTRAIN_VERSION);
	key_string(key, template ? template->name : NULL);
	key_string(key, template ? template->default_system : NULL);
	key_string(key, template ? template->tool_words[0] : NULL);
	key_string(key, template ? template->tool_words[1] : NULL);
	key_string(key, o->system);
	for (size_t i = 0; o->kept_columns && o->kept_columns[i]; i++)
		key_string(key, o->kept_columns[i]);
	for (size_t i = 0; i < list->count; i++) {
		const struct source *s = &list->items[i];
		const struct source_columns *c = &s->columns;
		const struct source_tags *t = &s->tags;
		const char *const names[] = {
		    c->prompt,  c->query,  c->response,  c->history,     c->messages, c->system,
		    c->tools,   c->chosen, c->rejected,  c->label,       c->margin,   t->role,
		    t->content, t->user,   t->assistant, t->observation, t->function, t->system};
		const int64_t of_source[] = {s->format, c->given, t->given, s->num_samples, s->group};
		int r;

		cache_key_add(key, of_source, sizeof(of_source));
		for (size_t k = 0; k < ARRAY_SIZE(names); k++)
			key_string(key, names[k]);
		r = key_file(key, s->path, err);
		if (r < 0)
			return r;
	}
	return 0;
}

/* --- finding or making it
 * -------------------------------------------------------------------------------- */

static int check_options(const struct dataset_options *o, struct error *err)
{
	if (o->max_length < 2)
		return error_set(err, -EINVAL, "data.max_length is %d; at least 2 tokens are needed",
		                 o->max_length);
	if (!(o->eval_fraction >= 0))
		return error_set(err, -EINVAL,
		                 "data.eval_fraction is %g; a fraction from 0 to 1 or a count is needed",
		                 o->eval_fraction);
	return 0;
}

/* Held until the fd is closed. One process builds; the others wait here and then find what it built. Some
 * network file systems have no locks: *alone is false there, and each process builds for itself. */
static int lock(const struct dataset_options *o, const char *path, int *fd, bool *alone, struct error *err)
{
	_cleanup_free_ char *message = NULL;

	*alone = true;
	*fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
	if (*fd < 0)
		return error_errno(err, -errno, "cannot write %s", path);
	if (flock(*fd, LOCK_EX | LOCK_NB) == 0)
		return 0;
	if (errno == EWOULDBLOCK && o->progress)
		o->progress(o->progress_context, "waiting for another process to tokenize", 0, 0);
	while (flock(*fd, LOCK_EX) < 0) {
		if (errno == EINTR)
			continue;
		if (errno != ENOSYS && errno != EOPNOTSUPP && errno != ENOLCK)
			return error_errno(err, -errno, "cannot lock %s", path);
		*alone = false;
		message = str_printf("cannot lock %s: %s; each process tokenizes the data for itself", path,
		                     strerror(errno));
		if (o->warn)
			o->warn(o->warn_context, message ? message : "");
		break;
	}
	return 0;
}

static int open_both(const char *train_path, const char *eval_path, const struct cache_key *key,
                     struct dataset *train, struct dataset *held_out, struct error *err)
{
	int r = cache_open(train_path, key, &train->cache, err);

	if (r < 0)
		return r;
	if (held_out && (r = cache_open(eval_path, key, &held_out->cache, err)) < 0) {
		cache_close(&train->cache);
		return r;
	}
	if (!(train->path = strdup(train_path)) || (held_out && !(held_out->path = strdup(eval_path))))
		return error_oom(err);
	return 0;
}

static int build(const struct dataset_options *o, struct source_list *list, const struct tokenizer *tok,
                 const struct template *template, const char *train_path, const char *eval_path,
                 const struct cache_key *key, bool alone, struct error *err)
{
	_cleanup_(cache_writer_freep) struct cache_writer *train = NULL, *held_out = NULL;
	int r;

	if ((r = cache_writer_open(train_path, key, alone, &train, err)) < 0 ||
	    (eval_path && (r = cache_writer_open(eval_path, key, alone, &held_out, err)) < 0) ||
	    (r = dataset_build(o, list, tok, template, train, held_out, err)) < 0 ||
	    (held_out && (r = cache_writer_finish(held_out, err)) < 0))
		return r;
	/* The training rows come last: where they exist, everything does. */
	return cache_writer_finish(train, err);
}

struct paths {
	char *directory, *lock, *train, *eval;
	bool temporary; /* the directory is temporary and is removed */
};

static void paths_free(struct paths *p)
{
	if (p->temporary && p->directory)
		file_remove_tree(p->directory, NULL);
	free(p->directory);
	free(p->lock);
	free(p->train);
	free(p->eval);
}

static int paths_make(const struct dataset_options *o, const struct cache_key *key, struct paths *p,
                      struct error *err)
{
	const char *tmp = getenv("TMPDIR");
	int r = 0;

	p->temporary = !o->cache_dir;
	p->directory =
	    o->cache_dir ? strdup(o->cache_dir) : str_printf("%s/dtrain-XXXXXX", tmp ? tmp : "/tmp");
	if (!p->directory)
		return error_oom(err);
	if (o->cache_dir)
		r = file_mkdirs(p->directory, 0755, err);
	else if (!mkdtemp(p->directory))
		r = error_errno(err, -errno, "cannot make a temporary directory");
	if (r < 0) {
		p->temporary = false;
		return r;
	}
	p->lock = str_printf("%s/%016llx.lock", p->directory, (unsigned long long)key->word[0]);
	p->train = str_printf("%s/%016llx.train", p->directory, (unsigned long long)key->word[0]);
	p->eval = str_printf("%s/%016llx.eval", p->directory, (unsigned long long)key->word[0]);
	return p->lock && p->train && p->eval ? 0 : error_oom(err);
}

static int find_or_build(const struct dataset_options *o, struct source_list *list,
                         const struct tokenizer *tok, const struct template *template, struct dataset *train,
                         struct dataset *held_out, struct error *err)
{
	_cleanup_(paths_free) struct paths p = {0};
	_cleanup_close_ int fd = -1;
	struct cache_key key;
	bool alone;
	int r;

	if ((r = make_key(o, list, tok, template, &key, err)) < 0 || (r = paths_make(o, &key, &p, err)) < 0)
		return r;
	if (open_both(p.train, p.eval, &key, train, held_out, NULL) == 0)
		return 0;
	r = lock(o, p.lock, &fd, &alone, err);
	if (r < 0 || open_both(p.train, p.eval, &key, train, held_out, NULL) == 0)
		return r;
	r = build(o, list, tok, template, p.train, held_out ? p.eval : NULL, &key, alone, err);
	if (r < 0)
		return r;
	return open_both(p.train, p.eval, &key, train, held_out, err);
}

int dataset_open(const struct dataset_options *o, const struct tokenizer *tok, struct dataset **train,
                 struct dataset **held_out, struct error *err)
{
	_cleanup_(dataset_closep) struct dataset *a = calloc(1, sizeof(*a)), *b = NULL;
	_cleanup_(source_list_free) struct source_list list = {0};
	_cleanup_(template_choice_clear) struct template_choice choice = {.source = TEMPLATE_NAMED};
	_cleanup_free_ char *before = NULL, *after = NULL;
	const struct template *template = NULL;
	int r;

	*train = NULL;
	if (held_out)
		*held_out = NULL;
	if (o->eval_fraction > 0)
		b = calloc(1, sizeof(*b));
	if (!a || (o->eval_fraction > 0 && !b))
		return error_oom(err);
	a->cache.map.data = "";
	if (b)
		b->cache.map.data = "";
	r = check_options(o, err);
	if (r == 0 && (o->task != DATASET_PRETRAIN || o->template_name)) {
		r = template_choose(o->template_name, tok, &choice, err);
		template = &choice.template;
	}
	if (r == 0 && o->task != DATASET_PRETRAIN && o->tool_prompt) {
		r = tools_read_words(o->tool_prompt, &before, &after, err);
		if (r < 0)
			error_prefix(err, "data.tool_prompt");
		choice.template.tool_words[0] = before;
		choice.template.tool_words[1] = after;
	}
	if (r < 0 || (r = source_list_resolve(o, &list, err)) < 0 ||
	    (r = find_or_build(o, &list, tok, template, a, b, err)) < 0)
		return r;
	*train = steal_pointer(a);
	if (held_out && b && b->cache.count > 0)
		*held_out = steal_pointer(b);
	return 0;
}

void dataset_close(struct dataset *data)
{
	if (!data)
		return;
	cache_close(&data->cache);
	free(data->path);
	free(data);
}

int64_t dataset_rows(const struct dataset *data)
{
	return data->cache.count;
}

int64_t dataset_tokens(const struct dataset *data)
{
	return data->cache.tokens;
}

int64_t dataset_examples(const struct dataset *data)
{
	return data->cache.examples;
}

int64_t dataset_cut_examples(const struct dataset *data)
{
	return data->cache.cut_examples;
}

int64_t dataset_cut_tokens(const struct dataset *data)
{
	return data->cache.cut_tokens;
}

int32_t dataset_max_row(const struct dataset *data)
{
	return data->cache.max_row;
}

void dataset_row(const struct dataset *data, int64_t index, struct dataset_row *row)
{
	const struct cache_row *r = &data->cache.rows[index];
	const int32_t *p = (const int32_t *)((const char *)data->cache.map.data + r->offset);

	*row = (struct dataset_row){
	    .ids = p,
	    .targets = p + r->length,
	    .starts = p + 2 * (int64_t)r->length,
	    .length = r->length,
	    .documents = r->documents,
	    .counted = r->counted,
	    .label = r->label,
	};
	/* Pairs have this number in the same place. */
	memcpy(&row->margin, &r->label, sizeof(row->margin));
}

const char *dataset_path(const struct dataset *data)
{
	return data->path;
}

uint64_t dataset_digest(const struct dataset *data)
{
	return cache_digest(&data->cache);
}

void dataset_release(const struct dataset *data)
{
	file_map_release(&data->cache.map);
}

int64_t dataset_row_counted(const struct dataset *data, int64_t index)
{
	return data->cache.rows[index].counted;
}

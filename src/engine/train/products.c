/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chooses the algorithms of a run's matrix products:
 *
 *     list     the products of the largest micro-batch, and of a half, a quarter and an eighth of its tokens;
 *              those of the optimizer
 *     read     the first rank that finds a whole file sends it to the others
 *     measure  the first rank of each kind of device, what the file lacks for that kind
 *     share    each of these ranks sends what it has measured to the others
 *     use      each rank, what is there for its own kind; the file is written where anything was measured
 *
 * The kernels of attention are chosen behind that (attention_choice.c).
 */
#include "engine/train/products.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/str.h"
#include "engine/checkpoint/algorithms.h"
#include "engine/checkpoint/ranks.h"
#include "engine/train/attention_choice.h"
#include "engine/train/plan.h"

enum { HALVINGS = 4, ROWS_LEAST = 64 };

/* What each rank tells the others; a multiple of 4 bytes. */
enum file_state { FILE_NONE, FILE_DAMAGED, FILE_WHOLE };
struct standing {
	char kind[ALGORITHMS_NAME_MAX];
	int32_t file;            /* enum file_state */
	int32_t known, measured; /* products that the file has; that were measured */
	int32_t refused;         /* the library does not accept what the file has */
	double seconds;
};

struct choosing {
	struct ranks ranks;
	const struct products_file *file;
	const char *kind;
	struct device_gemm_choice *wanted; /* without their algorithms */
	size_t n;
	bool failed; /* out of memory */
	struct device_attention_shape
	    attention; /* of the largest micro-batch; no rows: the scores are capped */
	struct algorithms table;
	struct standing *all; /* [ranks] */
};

static void choosing_free(struct choosing *c)
{
	free(c->wanted);
	algorithms_free(&c->table);
	free(c->all);
}

static struct standing *own(const struct choosing *c)
{
	return &c->all[ranks_rank(&c->ranks)];
}

/* The first rank of the kind of a rank: it measures. */
static int leader_of(const struct choosing *c, int rank)
{
	int i = 0;

	while (!str_eq(c->all[i].kind, c->all[rank].kind))
		i++;
	return i;
}

static bool leads(const struct choosing *c, int rank)
{
	return leader_of(c, rank) == rank;
}

static int share_standing(struct choosing *c, struct error *err)
{
	return ranks_gather(&c->ranks, NULL, c->all, sizeof(*c->all), err);
}

/* ---- list ---- */

static void add_product(void *context, const struct device_gemm *product)
{
	struct choosing *c = context;
	struct device_gemm_choice choice = {.separate = false}, *more;

	device_gemm_shape(product, &choice.shape);
	for (size_t i = 0; i < c->n; i++)
		if (!memcmp(&c->wanted[i].shape, &choice.shape, sizeof(choice.shape)))
			return;
	more = c->failed ? NULL : realloc(c->wanted, (c->n + 1) * sizeof(*more));
	if (!more) {
		c->failed = true;
		return;
	}
	c->wanted = more;
	c->wanted[c->n++] = choice;
}

static void take_attention_shape(struct choosing *c, const struct model *model,
                                 const struct model_config *config)
{
	struct device_shapes s;

	model_shapes(model, &s);
	s = device_attended(&s);
	c->attention = (struct device_attention_shape){.tokens = s.tokens,
	                                               .rows = s.capped ? 0 : MIN(s.max_sequence, s.tokens),
	                                               .heads = s.heads,
	                                               .kv_heads = s.kv_heads,
	                                               .head_dim = s.head_dim,
	                                               .window = s.all_before ? 0 : config->window,
	                                               .type = s.type};
}

static int list_products(struct choosing *c, const struct model_config *config,
                         const struct train_options *options, int64_t max_row, struct error *err)
{
	_cleanup_(plan_freep) struct plan *plan = NULL;
	struct train_options o = *options;
	int64_t tokens = train_tokens(options, max_row);
	int r;

	o.logits_bytes = device_logits_bytes();
	o.widens = !device_supports(c->ranks.dev, o.precision);
	r = plan_create(c->ranks.dev, c->ranks.comm, ranks_rank(&c->ranks), ranks_size(&c->ranks), config, &o,
	                max_row, &plan, err);
	for (int i = 0; i < HALVINGS && r == 0; i++) {
		r = model_products(plan->model, tokens, add_product, c, err);
		if (r == 0 && plan->reward_model.model)
			r = model_products(plan->reward_model.model, tokens, add_product, c, err);
		if (r == 0 && plan->frozen.model)
			r = model_products(plan->frozen.model, tokens, add_product, c, err);
		if (tokens <= ROWS_LEAST)
			break;
		tokens = (tokens / 2 + ROWS_LEAST - 1) / ROWS_LEAST * ROWS_LEAST;
	}
	if (r == 0) {
		optimizer_products(plan->optimizer, add_product, c);
		take_attention_shape(c, plan->model, config);
	}
	return r < 0 ? r : c->failed ? error_oom(err) : 0;
}

/* ---- read ---- */

static int read_file(struct choosing *c, char **text, struct error *why)
{
	size_t len;
	int r = file_read(c->file->path, ALGORITHMS_BYTES_MAX, text, &len, why);

	own(c)->file = r == -ENOENT || r == -ENOTDIR ? FILE_NONE : FILE_DAMAGED;
	if (r < 0)
		return r;
	r = algorithms_parse(*text, len, c->file->path, &c->table, why);
	algorithms_free(&c->table);
	own(c)->file = r < 0 ? FILE_DAMAGED : FILE_WHOLE;
	return r;
}

static void notify(const struct choosing *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void notify(const struct choosing *c, const char *fmt, ...)
{
	char message[1400];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(message, sizeof(message), fmt, ap);
	va_end(ap);
	c->file->notify(c->file->context, message);
}

static int first_with(const struct choosing *c, enum file_state state)
{
	for (int i = 0; i < ranks_size(&c->ranks); i++)
		if (c->all[i].file == (int32_t)state)
			return i;
	return -1;
}

static int read_table(struct choosing *c, struct error *err)
{
	_cleanup_free_ char *text = NULL;
	struct error why = ERROR_INIT;
	bool broken;
	int r, root;

	if (read_file(c, &text, &why) < 0) {
		free(text);
		text = NULL;
	}
	if ((r = share_standing(c, err)) < 0)
		return r;
	if (first_with(c, FILE_DAMAGED) == ranks_rank(&c->ranks))
		notify(c, "warning: %s; the algorithms of products are %s", why.message,
		       first_with(c, FILE_WHOLE) >= 0 ? "those that another node has" : "measured again");
	root = first_with(c, FILE_WHOLE);
	if (root < 0)
		return 0;
	if (ranks_rank(&c->ranks) != root) {
		free(text);
		text = NULL;
	}
	if ((r = ranks_broadcast_text(&c->ranks, &text, root, err)) < 0)
		return r;
	r = text ? algorithms_parse(text, strlen(text), c->file->path, &c->table, err) : error_oom(err);
	return ranks_agree(&c->ranks, r, &broken, err);
}

/* ---- measure ---- */

static bool has(const struct algorithms_of_kind *kind, const struct device_gemm_shape *shape)
{
	for (size_t i = 0; kind && i < kind->n; i++)
		if (!memcmp(&kind->choices[i].shape, shape, sizeof(*shape)))
			return true;
	return false;
}

/* What the library does not accept is as good as missing. */
static void check_known(struct choosing *c)
{
	struct algorithms_of_kind *known = algorithms_find(&c->table, c->kind);
	struct error why = ERROR_INIT;

	own(c)->known = known ? (int32_t)known->n : 0;
	if (!known || device_gemm_use(c->ranks.dev, known->choices, known->n, &why) == 0)
		return;
	own(c)->refused = 1;
	algorithms_forget(&c->table, c->kind);
}

static int measure_missing(struct choosing *c, struct error *err)
{
	_cleanup_free_ struct device_gemm_choice *missing = calloc(c->n + 1, sizeof(*missing));
	double begun = clock_monotonic();
	size_t n = 0;
	int r;

	if (!missing)
		return error_oom(err);
	check_known(c);
	for (size_t i = 0; i < c->n; i++)
		if (!has(algorithms_find(&c->table, c->kind), &c->wanted[i].shape))
			missing[n++] = c->wanted[i];
	if (n == 0)
		return 0;
	r = device_gemm_measure(c->ranks.dev, missing, n, err);
	if (r == 0)
		r = algorithms_add(&c->table, c->kind, missing, n, err);
	own(c)->measured = (int32_t)n;
	own(c)->seconds = clock_monotonic() - begun;
	return r;
}

/* ---- share ---- */

/* This rank's table for the kind of `leader`, which alone has it. */
static int share_kind(struct choosing *c, int leader, struct error *err)
{
	const char *name = c->all[leader].kind;
	bool own_kind = ranks_rank(&c->ranks) == leader, broken;
	struct algorithms_of_kind *kind = own_kind ? algorithms_find(&c->table, name) : NULL;
	_cleanup_(algorithms_free) struct algorithms sent = {0};
	_cleanup_free_ char *text = NULL;
	int r = 0;

	if (own_kind) {
		text = algorithms_text(&(struct algorithms){kind, 1});
		r = text ? 0 : error_oom(err);
	}
	if ((r = ranks_agree(&c->ranks, r, &broken, err)) < 0 ||
	    (r = ranks_broadcast_text(&c->ranks, &text, leader, err)) < 0)
		return r;
	if (!own_kind) {
		algorithms_forget(&c->table, name);
		r = text ? algorithms_parse(text, strlen(text), name, &sent, err) : error_oom(err);
		if (r == 0)
			r = algorithms_add(&c->table, name, sent.kinds[0].choices, sent.kinds[0].n, err);
	}
	return ranks_agree(&c->ranks, r, &broken, err);
}

static int share_measured(struct choosing *c, struct error *err)
{
	int r = share_standing(c, err);

	for (int i = 0; i < ranks_size(&c->ranks) && r == 0; i++)
		if (leads(c, i) && c->all[i].measured > 0)
			r = share_kind(c, i, err);
	return r;
}

/* ---- use ---- */

static void report(const struct choosing *c, const struct standing *s)
{
	const char *path = c->file->path;
	char products[48];

	str_count(products, sizeof(products), s->measured, "product");
	if (!c->file->resumes)
		notify(c, "algorithms of %s measured in %.1f s, of %s: %s", products, s->seconds, s->kind,
		       path);
	else if (first_with(c, FILE_WHOLE) < 0)
		notify(
		    c,
		    "warning: there is no %s: algorithms of %s are measured for %s, and results may differ "
		    "in the last bits from those before the checkpoint",
		    path, products, s->kind);
	else
		notify(
		    c,
		    "warning: %s has %s algorithms for %s: those of %s are measured, and results may differ "
		    "in the last bits from those before the checkpoint",
		    path,
		    s->refused     ? "no valid"
		    : s->known > 0 ? "not all"
		                   : "no",
		    s->kind, products);
}

static int write_file(struct choosing *c, struct error *err)
{
	_cleanup_free_ char *text = algorithms_text(&c->table);

	return text ? c->file->write(c->file->context, text, err) : error_oom(err);
}

static int use(struct choosing *c, struct error *err)
{
	const struct algorithms_of_kind *mine = algorithms_find(&c->table, c->kind);
	bool changed = false, broken;
	int r;

	r = mine ? device_gemm_use(c->ranks.dev, mine->choices, mine->n, err) : 0;
	if ((r = ranks_agree(&c->ranks, r, &broken, err)) < 0)
		return r;
	for (int i = 0; i < ranks_size(&c->ranks); i++) {
		if (!leads(c, i) || c->all[i].measured == 0)
			continue;
		changed = true;
		if (ranks_rank(&c->ranks) == 0)
			report(c, &c->all[i]);
	}
	for (int pass = 0; pass < DEVICE_ATTENTION_PASSES && r == 0; pass++) {
		c->attention.pass = (enum device_attention_pass)pass;
		r = attention_choose(&c->ranks, c->file, c->kind, &c->attention, &c->table, &changed, err);
	}
	if (r < 0 || !changed)
		return r;
	return ranks_agree(&c->ranks, write_file(c, err), &broken, err);
}

int products_choose(struct device *dev, struct comm *comm, const char *node, const struct model_config *c,
                    const struct train_options *options, int64_t max_row, const struct products_file *file,
                    struct error *err)
{
	_cleanup_(choosing_free) struct choosing choosing = {
	    .ranks = {dev, comm, node}, .file = file, .kind = device_gemm_kind(dev)};
	bool broken;
	int r;

	if (!choosing.kind)
		return 0;
	choosing.all = calloc((size_t)ranks_size(&choosing.ranks), sizeof(*choosing.all));
	if (!choosing.all)
		return error_oom(err);
	snprintf(own(&choosing)->kind, ALGORITHMS_NAME_MAX, "%s", choosing.kind);
	r = list_products(&choosing, c, options, max_row, err);
	if ((r = ranks_agree(&choosing.ranks, r, &broken, err)) < 0 || (r = read_table(&choosing, err)) < 0)
		return r;
	if (leads(&choosing, ranks_rank(&choosing.ranks)))
		r = measure_missing(&choosing, err);
	if ((r = ranks_agree(&choosing.ranks, r, &broken, err)) < 0 ||
	    (r = share_measured(&choosing, err)) < 0)
		return r;
	return use(&choosing, err);
}

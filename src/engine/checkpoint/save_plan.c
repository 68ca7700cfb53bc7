/* SPDX-License-Identifier: Apache-2.0 */
/* Divides the state of the parameters among the ranks that hold it, and gives each part its place in a
 * file. */
#include "engine/checkpoint/save_plan.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "engine/model/multimodal.h"

/* The stems of the files of a multimodal model. None of them is model.safetensors, which transformers takes
 * for the whole where it is there. */
#define LANGUAGE_PART "model-language"
#define OTHER_PARTS   "model-others"

const char *save_plan_kind(enum parameter_state which)
{
	static const char *const kinds[] = {
	    [STATE_WEIGHTS] = "master", [STATE_MOMENT1] = "m", [STATE_MOMENT2] = "v"};

	return kinds[which];
}

char *save_plan_stem(int rank, int world_size)
{
	return str_printf("dtrain/rank-%05d-of-%05d", rank, world_size);
}

int save_plan_degree(const struct parameter_access *access, int world_size)
{
	return access->replicas > 0 ? world_size / access->replicas : 1;
}

/* This rank's part of what it holds of a parameter: first … first + n, n 0 where others write it; of what is
 * gathered all. */
static void divide(const struct parameter_access *access, const struct save_plan_options *o, bool gathered,
                   int parameter, int64_t *first, int64_t *n)
{
	const struct model_parameter *p = &access->layout->parameter[parameter];
	int degree = save_plan_degree(access, o->world_size), writers = 0, index = -1;
	int64_t from, to;

	*first = 0;
	*n = p->count;
	if (gathered)
		return;
	*n = access->held ? access->held(access->context, p, first) : p->count;
	for (int r = o->rank % degree; r < o->world_size; r += degree)
		if (!o->shares || o->gathers_model || o->shares[r]) {
			index = r == o->rank ? writers : index;
			writers++;
		}
	if (writers == 0 && o->rank < degree) { /* no rank that holds it is near rank 0 */
		index = 0;
		writers = 1;
	}
	if (index < 0) {
		*n = 0;
	} else if (*n < (int64_t)SAVE_PLAN_WORTH_DIVIDING * writers) {
		*n = parameter % writers == index ? *n : 0;
	} else {
		from = *n / writers * index;
		to = index + 1 == writers ? *n : *n / writers * (index + 1);
		*first += from;
		*n = to - from;
	}
}

struct builder {
	const struct parameter_access *access;
	const struct save_plan_options *o;
	struct save_plan *plan;
	struct tensor_source *sources; /* of the model's files */
	size_t n_sources;
	/* Of other parts of the model, and where they lie. */
	const struct tensor **others;
	size_t n_others;
	struct safetensors_layout added;
};

static void builder_free(struct builder *b)
{
	free(b->sources);
	free(b->others);
	safetensors_layout_free(&b->added);
}

/* Whether a file of the model, or of the adapter, has it: of a model with adapters only what is trained. */
static bool is_saved(const struct model_layout *layout, const struct model_parameter *p)
{
	return !p->in_state && (!layout->adapts || !p->frozen);
}

bool save_plan_needs_whole(const struct parameter_access *access)
{
	const struct model_layout *layout = access->layout;

	return !layout->adapts && layout->parameters > 0 && multimodal_is_named(layout->parameter[0].name);
}

/* Behind the language model's files those of the other parts, whose tensors stay what they are; what was
 * quantized has the type of the other weights. Rank 0 alone knows them. */
static int lay_out_others(struct builder *b, struct error *err)
{
	const struct safetensors *whole = b->o->whole;
	size_t most = whole ? safetensors_count(whole) : 0;
	_cleanup_free_ struct tensor_source *sources = calloc(most + 1, sizeof(*sources));
	char ours[TENSOR_NAME_SIZE];
	int r;

	b->others = calloc(most + 1, sizeof(*b->others));
	if (!sources || !b->others)
		return error_oom(err);
	for (size_t i = 0; i < most; i++) {
		const struct tensor *t = safetensors_at(whole, i);
		struct tensor_source *s = &sources[b->n_others];

		if (multimodal_parameter_name(t->name, ours, sizeof(ours)))
			continue;
		*s = (struct tensor_source){.name = t->name, .type = t->type, .dims = t->dims};
		if (t->type == TENSOR_NF4)
			s->type = tensor_type_of(b->o->type);
		memcpy(s->shape, t->shape, sizeof(s->shape));
		b->others[b->n_others++] = t;
	}
	r = b->n_others
	        ? safetensors_layout(OTHER_PARTS, sources, b->n_others, b->o->max_shard_bytes, &b->added, err)
	        : 0;
	return r < 0 ? r
	             : safetensors_layout_join(&b->plan->model, b->sources, b->n_sources, &b->added, sources,
	                                       b->n_others, err);
}

static int lay_out_model(struct builder *b, struct error *err)
{
	const struct model_layout *layout = b->access->layout;
	const char *stem = layout->adapts                     ? "adapter_model"
	                   : save_plan_needs_whole(b->access) ? LANGUAGE_PART
	                                                      : "model";
	int r;

	b->sources = calloc((size_t)layout->parameters + 1, sizeof(*b->sources));
	if (!b->sources)
		return error_oom(err);
	for (int i = 0; i < layout->parameters; i++) {
		const struct model_parameter *p = &layout->parameter[i];
		struct tensor_source *s = &b->sources[b->n_sources];

		if (!is_saved(layout, p))
			continue;
		*s = (struct tensor_source){
		    .name = p->saved, .type = tensor_type_of(b->o->type), .dims = p->dims};
		memcpy(s->shape, p->shape, (size_t)p->dims * sizeof(*p->shape));
		b->n_sources++;
	}
	r = safetensors_layout(stem, b->sources, b->n_sources,
	                       layout->adapts ? UINT64_MAX : b->o->max_shard_bytes, &b->plan->model, err);
	return r < 0 || !save_plan_needs_whole(b->access) || b->o->rank != 0 ? r : lay_out_others(b, err);
}

static void add_piece(struct save_plan *plan, enum parameter_state which, const struct model_parameter *p,
                      int64_t first, int64_t n, enum dtype type)
{
	struct save_piece *piece = &plan->pieces[plan->n++];

	*piece = (struct save_piece){.which = which,
	                             .parameter = p,
	                             .first = first,
	                             .n = n,
	                             .type = type,
	                             .bytes = (size_t)n * dtype_size(type),
	                             .name = p->name};
}

static void add_weights(struct builder *b)
{
	const struct model_layout *layout = b->access->layout;
	struct save_plan *plan = b->plan;
	bool gathered = b->o->gathers || b->o->gathers_model;
	size_t place = 0;

	for (int i = 0; i < layout->parameters; i++) {
		int64_t first, n;

		if (!is_saved(layout, &layout->parameter[i]))
			continue;
		place++;
		divide(b->access, b->o, gathered, i, &first, &n);
		if (n == 0)
			continue;
		add_piece(plan, STATE_WEIGHTS, &layout->parameter[i], first, n, b->o->type);
		plan->pieces[plan->n - 1].file = plan->model.places[place - 1].file;
		plan->pieces[plan->n - 1].offset =
		    plan->model.places[place - 1].offset + (uint64_t)first * dtype_size(b->o->type);
	}
}

/* Another part is no rank's: rank 0 copies it from the files that the model was read from. */
static void add_others(struct builder *b)
{
	struct save_plan *plan = b->plan;

	for (size_t i = 0; i < b->n_others; i++) {
		const struct tensor *t = b->others[i];
		int64_t n = tensor_elements(t);

		plan->pieces[plan->n++] = (struct save_piece){
		    .other = t,
		    .n = n,
		    .type = b->o->type,
		    .file = b->added.places[i].file,
		    .offset = b->added.places[i].offset,
		    .bytes = t->type == TENSOR_NF4 ? (size_t)n * dtype_size(b->o->type) : t->bytes,
		    .name = t->name};
	}
}

/* What is trained, in master weights and the moments that the optimizer keeps; and weights that are nowhere
 * else. */
static bool has_state(const struct builder *b, enum parameter_state which, const struct model_parameter *p)
{
	const struct parameter_access *access = b->access;

	if (p->frozen)
		return false;
	if (which == STATE_WEIGHTS && p->in_state)
		return true;
	return (which != STATE_WEIGHTS || b->o->master) &&
	       (!access->keeps || access->keeps(access->context, which, p));
}

/* Moments and master weights, in the file of this rank; where it has none, there is no such file. */
static int add_state(struct builder *b, struct error *err)
{
	static const enum parameter_state kinds[] = {STATE_MOMENT1, STATE_MOMENT2, STATE_WEIGHTS};
	const struct model_layout *layout = b->access->layout;
	struct save_plan *plan = b->plan;
	size_t before = plan->n, most = ARRAY_SIZE(kinds) * (size_t)layout->parameters;
	_cleanup_free_ struct tensor_source *sources = calloc(most + 1, sizeof(*sources));
	_cleanup_free_ char *stem = save_plan_stem(plan->rank, b->o->world_size);
	int r;

	plan->names = calloc(most + 1, sizeof(*plan->names));
	if (!sources || !stem || !plan->names)
		return error_oom(err);
	for (size_t k = 0; k < ARRAY_SIZE(kinds); k++)
		for (int i = 0; i < layout->parameters; i++) {
			const struct model_parameter *p = &layout->parameter[i];
			int64_t first, n;
			char *name;

			if (!has_state(b, kinds[k], p))
				continue;
			divide(b->access, b->o, b->o->gathers, i, &first, &n);
			if (n == 0)
				continue;
			name = str_printf("%s.%s@%" PRId64, save_plan_kind(kinds[k]), p->name, first);
			if (!name)
				return error_oom(err);
			sources[plan->n_names] =
			    (struct tensor_source){.name = name, .type = TENSOR_F32, .dims = 1, .shape = {n}};
			plan->names[plan->n_names++] = name;
			add_piece(plan, kinds[k], p, first, n, DTYPE_F32);
		}
	if (plan->n_names == 0)
		return 0;
	r = safetensors_layout(stem, sources, plan->n_names, UINT64_MAX, &plan->own, err);
	for (size_t i = 0; r == 0 && i < plan->n_names; i++) {
		struct save_piece *piece = &plan->pieces[before + i];

		piece->file = plan->model.n_files;
		piece->offset = plan->own.places[i].offset;
		piece->name = plan->names[i];
	}
	return r;
}

static int list_files(struct builder *b, struct error *err)
{
	struct save_plan *plan = b->plan;

	plan->n_files = plan->model.n_files + plan->own.n_files;
	plan->files = calloc(plan->n_files, sizeof(*plan->files));
	if (!plan->files)
		return error_oom(err);
	for (size_t i = 0; i < plan->n_files; i++) {
		bool model = i < plan->model.n_files;
		const struct safetensors_output *from =
		    model ? &plan->model.files[i] : &plan->own.files[i - plan->model.n_files];

		plan->files[i] = (struct save_plan_file){
		    .name = strdup(from->name), .header = from->header, .bytes = from->bytes};
		if (!model || plan->rank == 0)
			plan->files[i].header_bytes = from->header_bytes;
		if (!plan->files[i].name)
			return error_oom(err);
	}
	return 0;
}

int save_plan_create(const struct parameter_access *access, const struct save_plan_options *options,
                     struct save_plan **out, struct error *err)
{
	_cleanup_(save_plan_freep) struct save_plan *plan = calloc(1, sizeof(*plan));
	_cleanup_(builder_free) struct builder b = {.access = access, .o = options, .plan = plan};
	int r;

	if (!plan)
		return error_oom(err);
	plan->rank = options->gathers ? 0 : options->rank;
	plan->gathers = options->gathers;
	plan->writes_gathered = options->rank == 0;
	plan->world_size = options->world_size;
	plan->state = options->state;
	if ((r = lay_out_model(&b, err)) < 0)
		return r;
	plan->pieces = calloc(4 * (size_t)access->layout->parameters + b.n_others + 1, sizeof(*plan->pieces));
	if (!plan->pieces)
		return error_oom(err);
	add_weights(&b);
	add_others(&b);
	plan->gathered = options->gathers_model ? plan->n : 0;
	if (options->state && (r = add_state(&b, err)) < 0)
		return r;
	if (options->gathers)
		plan->gathered = plan->n;
	for (size_t i = plan->gathered; i < plan->n; i++)
		plan->bytes += plan->pieces[i].other ? 0 : plan->pieces[i].bytes;
	if ((r = list_files(&b, err)) < 0)
		return r;
	*out = steal_pointer(plan);
	return 0;
}

void save_plan_free(struct save_plan *plan)
{
	if (!plan)
		return;
	for (size_t i = 0; plan->files && i < plan->n_files; i++)
		free(plan->files[i].name);
	for (size_t i = 0; i < plan->n_names; i++)
		free(plan->names[i]);
	free(plan->names);
	free(plan->files);
	free(plan->pieces);
	safetensors_layout_free(&plan->model);
	safetensors_layout_free(&plan->own);
	free(plan);
}

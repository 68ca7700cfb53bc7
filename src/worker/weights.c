/* SPDX-License-Identifier: Apache-2.0 */
#include "worker/weights.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/str.h"
#include "engine/checkpoint/hf.h"
#include "engine/train/parameters.h"

#define PIECE (256 << 10) /* elements that travel at once */

/* What of a trainer a source reads: one for each kind, the parameter is the source's index. */
struct weights_part {
	const struct weights_sources *all;
	struct trainer *trainer;
	enum trainer_state which;
	enum dtype type;
};

static struct hf_parameter wanted(const char *name, const struct model_parameter *p)
{
	struct hf_parameter h = {.name = name, .dims = p->dims};

	memcpy(h.shape, p->shape, p->dims * sizeof(*p->shape));
	return h;
}

/* ---- out ---- */

static int fill_from_trainer(void *context, size_t index, size_t offset, size_t len, void *buf,
                             struct error *err)
{
	const struct weights_part *part = context;
	const struct model_parameter *p = &trainer_layout(part->trainer)->parameter[index];
	size_t size = dtype_size(part->type);
	int64_t first = offset / size, left = len / size;
	char *out = buf;
	int r = part->all->piece ? part->all->piece(part->all->context, err) : 0;

	if (r < 0)
		return r;
	if (part->type == DTYPE_F32)
		return trainer_read(part->trainer, part->which, p, first, left, buf, err);
	while (left > 0) {
		float piece[4096];
		struct tensor t = {
		    .name = p->name, .type = TENSOR_F32, .data = piece, .bytes = sizeof(piece)};
		int64_t n = MIN(left, (int64_t)ARRAY_SIZE(piece));

		r = trainer_read(part->trainer, part->which, p, first, n, piece, err);
		if (r == 0)
			r = tensor_convert(&t, 0, n, part->type, out, err);
		if (r < 0)
			return r;
		first += n;
		left -= n;
		out += n * size;
	}
	return 0;
}

void weights_sources_free(struct weights_sources *s)
{
	for (size_t i = 0; s->names && i < s->n; i++)
		free(s->names[i]);
	free(s->names);
	free(s->list);
	free(s->parts);
	*s = (struct weights_sources){0};
}

struct kind {
	const char *prefix;
	enum trainer_state which;
	enum dtype type;
};

static int make_sources(struct trainer *t, const struct kind *kinds, size_t n_kinds,
                        struct weights_sources *out, struct error *err)
{
	const struct model_layout *layout = trainer_layout(t);
	size_t n = n_kinds * layout->parameters, at = 0;

	out->n = n;
	out->list = calloc(n, sizeof(*out->list));
	out->names = calloc(n, sizeof(*out->names));
	out->parts = calloc(n_kinds, sizeof(*out->parts));
	if (!out->list || !out->names || !out->parts)
		return error_oom(err);
	for (size_t k = 0; k < n_kinds; k++) {
		out->parts[k] = (struct weights_part){out, t, kinds[k].which, kinds[k].type};
		for (int i = 0; i < layout->parameters; i++, at++) {
			const struct model_parameter *p = &layout->parameter[i];

			out->names[at] = str_printf("%s%s", kinds[k].prefix, p->name);
			if (!out->names[at])
				return error_oom(err);
			out->list[at] = (struct tensor_source){.name = out->names[at],
			                                       .type = tensor_type_of(kinds[k].type),
			                                       .dims = p->dims,
			                                       .fill = fill_from_trainer,
			                                       .context = &out->parts[k],
			                                       .index = i};
			memcpy(out->list[at].shape, p->shape, p->dims * sizeof(*p->shape));
		}
	}
	return 0;
}

int weights_model_sources(struct trainer *t, enum dtype type, struct weights_sources *out, struct error *err)
{
	return make_sources(t, &(struct kind){"", TRAINER_WEIGHTS, type}, 1, out, err);
}

int weights_state_sources(struct trainer *t, bool master, struct weights_sources *out, struct error *err)
{
	static const struct kind kinds[] = {{"m.", TRAINER_MOMENT1, DTYPE_F32},
	                                    {"v.", TRAINER_MOMENT2, DTYPE_F32},
	                                    {"master.", TRAINER_WEIGHTS, DTYPE_F32}};

	return make_sources(t, kinds, master ? 3 : 2, out, err);
}

/* ---- in ---- */

int weights_broadcast(struct device *dev, struct comm *comm, void *staging, void *host, size_t bytes,
                      struct error *err)
{
	int r;

	if (!comm)
		return 0;
	r = comm_rank(comm) == 0 ? device_write(dev, staging, host, bytes, err) : 0;
	if (r == 0)
		r = comm_wait(comm, comm_broadcast(comm, staging, bytes, 0), err);
	if (r == 0)
		r = comm_flush(comm, err);
	return r < 0 ? r : device_read(dev, host, staging, bytes, err);
}

/* Opens dtrain/optimizer of a checkpoint, and sees that all of it is there. */
static int open_state(const char *directory, const struct model_layout *layout, struct safetensors **out,
                      struct error *err)
{
	static const char *const prefixes[] = {"m.", "v.", "master."};
	size_t n = ARRAY_SIZE(prefixes) * layout->parameters;
	_cleanup_free_ struct hf_parameter *list = calloc(n, sizeof(*list));
	_cleanup_free_ char *path = str_path_join(directory, "dtrain/optimizer.safetensors");
	char(*names)[80] = calloc(n, sizeof(*names));
	_cleanup_free_ void *owner = names;
	int r;

	if (!list || !path || !names)
		return error_oom(err);
	for (size_t i = 0; i < n; i++) {
		const struct model_parameter *p = &layout->parameter[i % layout->parameters];

		snprintf(names[i], sizeof(names[i]), "%s%s", prefixes[i / layout->parameters], p->name);
		list[i] = wanted(names[i], p);
		list[i].optional = i / layout->parameters == 2;
	}
	if (!file_exists(path)) {
		free(path);
		path = str_path_join(directory, "dtrain/optimizer.safetensors.index.json");
		if (!path)
			return error_oom(err);
	}
	r = safetensors_open(path, out, err);
	return r < 0 ? r : hf_check(*out, path, list, n, err);
}

/* Where a parameter's state lies; the weights themselves are the master weights when they were saved in fp32.
 */
static const struct tensor *find_state(const struct safetensors *model, const struct safetensors *state,
                                       enum trainer_state which, const struct model_parameter *p)
{
	static const char *const prefixes[] = {
	    [TRAINER_WEIGHTS] = "master.", [TRAINER_MOMENT1] = "m.", [TRAINER_MOMENT2] = "v."};
	const struct tensor *t;
	char name[80];

	snprintf(name, sizeof(name), "%s%s", prefixes[which], p->name);
	t = safetensors_find(state, name);
	return t ? t : hf_find(model, p->name);
}

int weights_resume(struct trainer *t, struct device *dev, struct comm *comm, const char *directory,
                   struct error *err)
{
	static const enum trainer_state kinds[] = {TRAINER_WEIGHTS, TRAINER_MOMENT1, TRAINER_MOMENT2};
	_cleanup_(safetensors_closep) struct safetensors *model = NULL, *state = NULL;
	const struct model_layout *layout = trainer_layout(t);
	_cleanup_free_ float *piece = malloc(PIECE * sizeof(*piece));
	void *staging = NULL;
	int r = 0;

	if (!piece)
		return error_oom(err);
	if (directory) {
		r = safetensors_open(directory, &model, err);
		if (r == 0)
			r = parameters_check(layout, model, directory, err);
		if (r == 0)
			r = open_state(directory, layout, &state, err);
	}
	if (r == 0 && comm)
		r = device_alloc(dev, PIECE * sizeof(*piece), &staging, err);
	for (size_t k = 0; k < ARRAY_SIZE(kinds) && r == 0; k++) {
		for (int i = 0; i < layout->parameters && r == 0; i++) {
			const struct model_parameter *p = &layout->parameter[i];

			for (int64_t first = 0; first < p->count && r == 0; first += PIECE) {
				int64_t n = MIN(p->count - first, PIECE);

				if (directory)
					r = tensor_to_f32(find_state(model, state, kinds[k], p), first, n,
					                  piece, err);
				if (r == 0)
					r = weights_broadcast(dev, comm, staging, piece, n * sizeof(*piece),
					                      err);
				if (r == 0)
					r = trainer_write(t, kinds[k], p, first, n, piece, err);
			}
		}
	}
	if (staging)
		device_free(dev, staging);
	return r;
}

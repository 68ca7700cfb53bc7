/* SPDX-License-Identifier: Apache-2.0 */
/* Loads weights, and resumes checkpoints of earlier versions. Where one rank reads for all, it sends what it
 * has read; the ranks check by hash that all have the same. */
#include "engine/checkpoint/weights.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/str.h"
#include "engine/checkpoint/agreement.h"
#include "engine/checkpoint/hf.h"
#include "engine/checkpoint/parameters.h"

#define PIECE (256 << 10) /* elements that are broadcast at once */

static struct hf_parameter wanted(const char *name, const struct model_parameter *p)
{
	struct hf_parameter h = {.name = name, .dims = p->dims};

	memcpy(h.shape, p->shape, p->dims * sizeof(*p->shape));
	return h;
}

int weights_broadcast(struct device *dev, struct comm *comm, void *staging, void *host, size_t bytes,
                      struct error *err)
{
	int r;

	if (!comm)
		return 0;
	if ((r = comm_rank(comm) == 0 ? device_write(dev, staging, host, bytes, err) : 0) < 0 ||
	    (r = comm_wait(comm, comm_broadcast(comm, staging, bytes, 0), err)) < 0 ||
	    (r = comm_flush(comm, err)) < 0)
		return r;
	return device_read(dev, host, staging, bytes, err);
}

/* Opens dtrain/optimizer of a checkpoint, and checks that all of it is there. */
static int open_state(const char *directory, const struct model_layout *layout, struct safetensors **out,
                      struct error *err)
{
	static const char *const prefixes[] = {"m.", "v.", "master."};
	size_t n = ARRAY_SIZE(prefixes) * layout->parameters;
	_cleanup_free_ struct hf_parameter *list = calloc(n, sizeof(*list));
	_cleanup_free_ char *path = str_path_join(directory, "dtrain/optimizer.safetensors");
	char(*names)[TENSOR_NAME_SIZE] = calloc(n, sizeof(*names));
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

/* The tensor that has a parameter's state. Weights that were saved in fp32 are the
 * master weights themselves. */
static const struct tensor *find_state(const struct safetensors *model, const struct safetensors *state,
                                       enum parameter_state which, const struct model_parameter *p)
{
	static const char *const prefixes[] = {
	    [STATE_WEIGHTS] = "master.", [STATE_MOMENT1] = "m.", [STATE_MOMENT2] = "v."};
	const struct tensor *t;
	char name[TENSOR_NAME_SIZE];

	snprintf(name, sizeof(name), "%s%s", prefixes[which], p->name);
	t = safetensors_find(state, name);
	return t ? t : hf_find(model, p->name);
}

/* The context of fill_and_hash, which is given to load and calls the caller's fill. */
struct loading {
	const struct weights_place *place;
	model_fill_fn fill;
	void *context;
	const struct safetensors *files;
	bool broadcast;
	void *staging;                /* on the device, where weights are broadcast; else NULL */
	struct agreement_item *items; /* of each parameter */
	char (*names)[TENSOR_NAME_SIZE];
	const struct model_parameter *first;
};

static const char *file_of(const struct loading *l, const char *name)
{
	const struct tensor *t = l->files ? hf_find(l->files, name) : NULL;

	return t          ? safetensors_file(l->files, t)
	       : !l->fill ? "the weights that rank 0 sent"
	                  : "the random weights of model.init";
}

static int send_pieces(const struct loading *l, float *piece, int64_t n, struct error *err)
{
	int r = 0;

	for (int64_t at = 0; at < n && r == 0; at += PIECE)
		r = weights_broadcast(l->place->dev, l->place->comm, l->staging, piece + at,
		                      MIN(n - at, PIECE) * sizeof(*piece), err);
	return r;
}

static int fill_and_hash(void *context, const struct model_parameter *p, int64_t first, int64_t n, float *out,
                         struct error *err)
{
	struct loading *l = context;
	struct agreement_item *item = &l->items[p - l->first];
	int r = l->fill ? l->fill(l->context, p, first, n, out, err) : 0;

	if (r < 0 || (l->staging && (r = send_pieces(l, out, n, err)) < 0))
		return r;
	if (first == 0) {
		snprintf(l->names[p - l->first], sizeof(*l->names), "tensor %s", p->name);
		*item = (struct agreement_item){l->names[p - l->first], file_of(l, p->name), 0};
	}
	item->digest = hash_bytes(out, (size_t)n * sizeof(*out), item->digest);
	return 0;
}

int weights_load(const struct weights_place *place, model_fill_fn fill, void *context,
                 const struct safetensors *files, bool broadcast, struct error *err)
{
	const struct model_layout *layout = place->access.layout;
	bool sends = broadcast && place->comm, reads = !sends || comm_rank(place->comm) == 0;
	_cleanup_free_ struct agreement_item *items = calloc((size_t)layout->parameters, sizeof(*items));
	_cleanup_free_ void *names = calloc((size_t)layout->parameters, sizeof(char[TENSOR_NAME_SIZE]));
	struct loading l = {.place = place,
	                    .fill = reads ? fill : NULL,
	                    .context = context,
	                    .files = reads ? files : NULL,
	                    .items = items,
	                    .names = names,
	                    .first = layout->parameter};
	int r;

	if (!items || !names)
		return error_oom(err);
	r = sends ? device_alloc(place->dev, PIECE * sizeof(float), &l.staging, err) : 0;
	if (r == 0)
		r = place->access.load(place->access.context, fill_and_hash, &l, err);
	if (l.staging)
		device_free(place->dev, l.staging);
	if (r == 0)
		r = agreement_check(items, (size_t)layout->parameters, place->dev, place->comm, place->node,
		                    sends
		                        ? "the network or the memory of one of them is faulty"
		                        : "the same files on every node, or model.load = \"broadcast\", are "
		                          "needed",
		                    err);
	return r;
}

void weights_warn_infinite(const struct weights_place *place, const char *file, const char *tensor,
                           int64_t element)
{
	_cleanup_free_ char *message = str_printf(
	    "%s: tensor %s: element %" PRId64
	    " is infinite, as it was when the checkpoint was saved: its weight may not learn any more",
	    file, tensor, element);

	if (message)
		place->warn(place->warn_context, message);
}

/* Reads elements [first, first + n) of a tensor of the checkpoint, and checks that they can be trained. */
static int read_piece(enum parameter_state which, const struct safetensors *set, const struct tensor *from,
                      int64_t first, int64_t n, float *piece, int64_t *infinite, struct error *err)
{
	const char *file = safetensors_file(set, from);
	int r = tensor_to_f32(from, first, n, piece, err);

	if (r < 0)
		return r;
	safetensors_release(set, from, first, n);
	return which == STATE_WEIGHTS
	           ? parameters_check_finite(from->name, file, first, piece, n, err)
	           : parameters_check_moments(from->name, file, first, piece, n, infinite, err);
}

/* Resumes one parameter's weights or moments: rank 0 reads them and sends them to all, and all hash them. */
static int resume_parameter(const struct weights_place *place, enum parameter_state which,
                            const struct model_parameter *p, const struct safetensors *set,
                            const struct tensor *from, void *staging, float *piece, uint64_t *digest,
                            struct error *err)
{
	int64_t infinite = -1;
	int r = 0;

	for (int64_t first = 0; first < p->count; first += PIECE) {
		int64_t n = MIN(p->count - first, PIECE);

		if ((from && (r = read_piece(which, set, from, first, n, piece, &infinite, err)) < 0) ||
		    (r = weights_broadcast(place->dev, place->comm, staging, piece, n * sizeof(*piece),
		                           err)) < 0 ||
		    (r = place->access.write(place->access.context, which, p, first, n, piece, err)) < 0)
			return r;
		*digest = hash_bytes(piece, (size_t)n * sizeof(*piece), *digest);
	}
	/* A warning is enough: the run that saved the moments trained with the infinite value, too. */
	if (infinite >= 0)
		weights_warn_infinite(place, safetensors_file(set, from), from->name, infinite);
	return 0;
}

struct resumed {
	struct safetensors *model, *state; /* NULL where rank 0 sends them */
	float *piece;
	void *staging;
	struct agreement_item *items;
	char (*names)[TENSOR_NAME_SIZE];
};

static void resumed_free(struct resumed *f)
{
	safetensors_close(f->model);
	safetensors_close(f->state);
	free(f->piece);
	free(f->items);
	free(f->names);
}

static int resume_all(const struct weights_place *place, struct resumed *f, struct error *err)
{
	static const char *const kinds[] = {[STATE_WEIGHTS] = "weights of",
	                                    [STATE_MOMENT1] = "first moment of",
	                                    [STATE_MOMENT2] = "second moment of"};
	const struct model_layout *layout = place->access.layout;
	int r = 0;

	for (size_t at = 0; at < ARRAY_SIZE(kinds) * layout->parameters && r == 0; at++) {
		enum parameter_state which = at / layout->parameters;
		const struct model_parameter *p = &layout->parameter[at % layout->parameters];
		const struct tensor *from = f->model ? find_state(f->model, f->state, which, p) : NULL;
		const struct safetensors *set =
		    from && safetensors_find(f->state, from->name) == from ? f->state : f->model;
		struct agreement_item *item = &f->items[at];

		snprintf(f->names[at], sizeof(*f->names), "%s %s", kinds[which], p->name);
		*item = (struct agreement_item){
		    f->names[at], from ? safetensors_file(set, from) : "the checkpoint that rank 0 sent", 0};
		r = resume_parameter(place, which, p, set, from, f->staging, f->piece, &item->digest, err);
	}
	return r < 0 ? r
	             : agreement_check(f->items, ARRAY_SIZE(kinds) * layout->parameters, place->dev,
	                               place->comm, place->node,
	                               "the network or the memory of one of them is faulty", err);
}

int weights_resume(const struct weights_place *place, const char *directory, struct error *err)
{
	const struct model_layout *layout = place->access.layout;
	size_t n = 3 * (size_t)layout->parameters;
	_cleanup_(resumed_free) struct resumed f = {.piece = malloc(PIECE * sizeof(float)),
	                                            .items = calloc(n, sizeof(*f.items)),
	                                            .names = calloc(n, sizeof(*f.names))};
	int r = 0;

	if (!f.piece || !f.items || !f.names)
		return error_oom(err);
	if (directory && ((r = safetensors_open(directory, &f.model, err)) < 0 ||
	                  (r = parameters_check(layout, f.model, directory, err)) < 0 ||
	                  (r = open_state(directory, layout, &f.state, err)) < 0))
		return r;
	if (place->comm && (r = device_alloc(place->dev, PIECE * sizeof(*f.piece), &f.staging, err)) < 0)
		return r;
	r = resume_all(place, &f, err);
	if (f.staging)
		device_free(place->dev, f.staging);
	return r;
}

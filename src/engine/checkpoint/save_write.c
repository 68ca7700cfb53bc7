/* SPDX-License-Identifier: Apache-2.0 */
/* Writes pieces of parameters to their places in the files of a checkpoint, hashing them on the way. Several
 * ranks write to different places of one file at the same time. */
#include "engine/checkpoint/save_write.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/str.h"
#include "engine/checkpoint/manifest.h"

#define READ_PIECE (1 << 20) /* elements of one read from the device, each of which waits for it */

static int get(const struct save_plan *plan, const struct parameter_access *access,
               const struct save_piece *piece, int64_t first, int64_t n, float *out, struct error *err)
{
	bool gathered = (size_t)(piece - plan->pieces) < plan->gathered;

	return (gathered ? access->gather : access->read)(access->context, piece->which, piece->parameter,
	                                                  piece->first + first, n, out, err);
}

/* Elements [first, first + n) of a piece in the file's type. wide [READ_PIECE]: the fp32 values before. to
 * NULL: only takes part in the collectives that this takes. */
static int produce(const struct save_plan *plan, const struct parameter_access *access,
                   const struct save_piece *piece, int64_t first, int64_t n, float *wide, void *to,
                   struct error *err)
{
	size_t size = dtype_size(piece->type);
	char *out = to;
	int r;

	if (piece->other) /* in NF4 */
		return to ? tensor_convert(piece->other, first, n, piece->type, to, err) : 0;
	if (piece->type == DTYPE_F32)
		return get(plan, access, piece, first, n, to, err);
	while (n > 0) {
		int64_t k = MIN(n, READ_PIECE);
		struct tensor t = {.name = piece->name,
		                   .type = TENSOR_F32,
		                   .data = wide,
		                   .bytes = (size_t)k * sizeof(float)};

		if ((r = get(plan, access, piece, first, k, to ? wide : NULL, err)) < 0 ||
		    (to && (r = tensor_convert(&t, 0, k, piece->type, out, err)) < 0))
			return r;
		first += k;
		n -= k;
		out += to ? (size_t)k * size : 0;
	}
	return 0;
}

int save_stage(const struct save_plan *plan, const struct parameter_access *access, void *staging,
               struct error *err)
{
	_cleanup_free_ float *wide = malloc(READ_PIECE * sizeof(*wide));
	char *at = staging;
	int r = wide ? 0 : error_oom(err);

	for (size_t i = plan->gathered; i < plan->n && r == 0; i++) {
		if (plan->pieces[i].other)
			continue;
		r = produce(plan, access, &plan->pieces[i], 0, plan->pieces[i].n, wide, at, err);
		at += plan->pieces[i].bytes;
	}
	return r;
}

struct save_writer {
	struct save_write w;
	size_t n_files;              /* of the list */
	struct manifest_file *files; /* the list; of the plan's files, then of those listed */
	struct manifest_part *parts;
	size_t n_parts;
	float *wide;
	char *buffer;     /* MANIFEST_PIECE bytes */
	size_t next;      /* the first piece of the plan that is not written */
	size_t piece, at; /* the bytes of the plan's pieces that are read: all before these */
};

/* Takes part in the collectives by which the pieces are gathered from these bytes on. */
static int follow(const struct save_plan *plan, const struct parameter_access *access, size_t piece,
                  size_t at, struct error *err)
{
	int r = 0;

	for (; piece < plan->gathered && r == 0; piece++, at = 0) {
		const struct save_piece *p = &plan->pieces[piece];
		size_t size = dtype_size(p->type);

		for (; at < p->bytes && r == 0; at += MANIFEST_PIECE)
			r = produce(plan, access, p, (int64_t)(at / size),
			            (int64_t)(MIN(p->bytes - at, MANIFEST_PIECE) / size), NULL, NULL, err);
	}
	return r;
}

static int write_at(int fd, const char *path, uint64_t offset, const void *data, size_t bytes,
                    struct error *err)
{
	if (lseek(fd, (off_t)offset, SEEK_SET) < 0)
		return error_errno(err, -errno, "cannot write %s", path);
	return file_write_all(fd, data, bytes, err) < 0 ? error_prefix(err, "%s", path) : 0;
}

static void list_part(struct save_writer *o, struct manifest_file *f, struct manifest_part part)
{
	if (f->n == 0)
		f->parts = &o->parts[o->n_parts];
	o->parts[o->n_parts++] = part;
	f->n++;
}

static int write_piece(struct save_writer *o, int fd, const char *path, struct manifest_file *f,
                       const struct save_piece *piece, const char *staged, struct error *err)
{
	size_t size = dtype_size(piece->type);
	const char *values = piece->other && piece->other->type != TENSOR_NF4 ? piece->other->data : staged;
	uint64_t hash = 0;
	int r = 0;

	for (size_t at = 0; at < piece->bytes && r == 0; at += MANIFEST_PIECE) {
		size_t bytes = MIN(piece->bytes - at, MANIFEST_PIECE);
		const char *data = values ? values + at : o->buffer;

		if (o->w.piece && o->next >= o->w.plan->gathered && (r = o->w.piece(o->w.context, err)) < 0)
			return r;
		if (!values)
			r = produce(o->w.plan, o->w.access, piece, (int64_t)(at / size),
			            (int64_t)(bytes / size), o->wide, o->buffer, err);
		o->piece = o->next;
		o->at = at + bytes;
		if (r == 0)
			r = write_at(fd, path, piece->offset + at, data, bytes, err);
		hash = hash_bytes(data, bytes, hash);
	}
	if (r == 0)
		list_part(o, f, (struct manifest_part){piece->name, piece->offset, piece->bytes, hash});
	return r;
}

/* Its pieces are [next, …); where this rank has neither a piece nor the header, nothing is written. *staged:
 * their values, or NULL. */
static int write_file(struct save_writer *o, size_t file, const char **staged, struct error *err)
{
	const struct save_plan *plan = o->w.plan;
	const struct save_plan_file *from = &plan->files[file];
	struct manifest_file *f = &o->files[file];
	_cleanup_free_ char *path = str_path_join(o->w.directory, from->name);
	_cleanup_close_ int fd = -1;
	int r = 0;

	*f = (struct manifest_file){.name = from->name, .bytes = from->bytes};
	if (!path)
		return error_oom(err);
	if (from->header_bytes == 0 && (o->next == plan->n || plan->pieces[o->next].file != file))
		return 0;
	fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	if (fd < 0)
		return error_errno(err, -errno, "cannot write %s", path);
	if (from->header_bytes > 0) {
		list_part(o, f,
		          (struct manifest_part){"header", 0, from->header_bytes,
		                                 manifest_hash(from->header, from->header_bytes)});
		r = write_at(fd, path, 0, from->header, from->header_bytes, err);
	}
	for (; o->next < plan->n && plan->pieces[o->next].file == file && r == 0; o->next++) {
		const struct save_piece *piece = &plan->pieces[o->next];

		r = write_piece(o, fd, path, f, piece, piece->other ? NULL : *staged, err);
		if (*staged && !piece->other)
			*staged += piece->bytes;
	}
	if (r == 0 && fsync(fd) < 0)
		r = error_errno(err, -errno, "cannot write %s", path);
	return r;
}

static int list_whole(struct save_writer *o, const char *name, struct manifest_file *f, struct error *err)
{
	_cleanup_free_ char *path = str_path_join(o->w.directory, name);
	_cleanup_file_map_ struct file_map map = {"", 0};
	int r = path ? file_map_open(path, &map, err) : error_oom(err);

	if (r < 0)
		return r;
	*f = (struct manifest_file){.name = name, .bytes = map.len};
	list_part(o, f, (struct manifest_part){"", 0, map.len, manifest_hash(map.data, map.len)});
	return 0;
}

static int write_list(struct save_writer *o, uint64_t *bytes, uint64_t *hash, struct error *err)
{
	const struct save_plan *plan = o->w.plan;
	_cleanup_free_ char *stem = save_plan_stem(plan->rank, plan->world_size), *path = NULL, *text = NULL;
	struct manifest m = {.files = calloc(o->n_files + 1, sizeof(*m.files))};
	_cleanup_free_ struct manifest_file *owner = m.files;

	path = stem ? str_printf("%s/%s.json", o->w.directory, stem) : NULL;
	if (!path || !m.files)
		return error_oom(err);
	for (size_t i = 0; i < o->n_files; i++)
		if (o->files[i].n > 0)
			m.files[m.n++] = o->files[i];
	text = manifest_text(&m);
	if (!text)
		return error_oom(err);
	*bytes = strlen(text);
	*hash = manifest_hash(text, strlen(text));
	return file_write_atomic(path, text, strlen(text), 0644, err);
}

int save_writer_create(const struct save_write *w, struct save_writer **out, struct error *err)
{
	_cleanup_(save_writer_freep) struct save_writer *o = calloc(1, sizeof(*o));

	if (!o)
		return error_oom(err);
	o->w = *w;
	o->n_files = w->plan->n_files + w->n_listed;
	o->files = calloc(o->n_files + 1, sizeof(*o->files));
	o->parts = calloc(w->plan->n + o->n_files + 1, sizeof(*o->parts));
	if (!o->files || !o->parts)
		return error_oom(err);
	*out = steal_pointer(o);
	return 0;
}

void save_writer_free(struct save_writer *o)
{
	if (!o)
		return;
	free(o->files);
	free(o->parts);
	free(o->wide);
	free(o->buffer);
	free(o);
}

/* For values that are read while they are written. */
static int allocate_buffers(struct save_writer *o, struct error *err)
{
	if (!o->wide)
		o->wide = malloc(READ_PIECE * sizeof(*o->wide));
	if (!o->buffer)
		o->buffer = malloc(MANIFEST_PIECE);
	return o->wide && o->buffer ? 0 : error_oom(err);
}

/* How many of the plan's files are gathered: the model's, or all. */
static size_t gathered_files(const struct save_plan *plan)
{
	return plan->gathers ? plan->n_files : plan->gathered > 0 ? plan->model.n_files : 0;
}

int save_writer_gathered(struct save_writer *o, struct error *err)
{
	const struct save_plan *plan = o->w.plan;
	const char *staged = NULL;
	int r;

	if (!plan->writes_gathered) {
		o->next = plan->gathered;
		return follow(plan, o->w.access, 0, 0, err);
	}
	r = allocate_buffers(o, err);
	for (size_t i = 0; i < gathered_files(plan) && r == 0; i++)
		r = write_file(o, i, &staged, err);
	if (r < 0)
		follow(plan, o->w.access, o->piece, o->at, NULL);
	return r;
}

static bool writes_others(const struct save_plan *plan)
{
	for (size_t i = 0; i < plan->n; i++)
		if (plan->pieces[i].other)
			return true;
	return false;
}

int save_writer_own(struct save_writer *o, const void *values, uint64_t *list_bytes, uint64_t *list_hash,
                    struct error *err)
{
	const struct save_plan *plan = o->w.plan;
	const char *staged = values;
	int r = staged && !writes_others(plan) ? 0 : allocate_buffers(o, err);

	*list_bytes = *list_hash = 0;
	if (plan->gathers && !plan->writes_gathered)
		return r;
	for (size_t i = gathered_files(plan); i < plan->n_files && r == 0; i++)
		r = write_file(o, i, &staged, err);
	if (r == 0 && plan->rank == 0)
		r = safetensors_write_index(o->w.directory, "model", &plan->model, err);
	for (size_t i = 0; i < o->w.n_listed && r == 0; i++)
		r = list_whole(o, o->w.listed[i], &o->files[plan->n_files + i], err);
	return r < 0 || !plan->state || (plan->n == plan->gathered && plan->rank != 0)
	           ? r
	           : write_list(o, list_bytes, list_hash, err);
}

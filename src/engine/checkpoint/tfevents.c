/* SPDX-License-Identifier: Apache-2.0 */
/* TensorBoard's event files: scalars in protocol buffers, each record with its checksums. */
#include "engine/checkpoint/tfevents.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/str.h"

struct tfevents {
	int fd;
	char *path;
	struct strbuf event, frame; /* kept to be used again for the next event */
};

/* Field numbers of Event, Summary, Summary.Value and SessionLog; the wire types below. */
enum { EVENT_TIME = 1, EVENT_STEP = 2, EVENT_VERSION = 3, EVENT_SUMMARY = 5, EVENT_SESSION = 7 };
enum { SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_SIMPLE = 2, VALUE_TENSOR = 8, VALUE_METADATA = 9 };
enum { SESSION_STATUS = 1, SESSION_START = 1 };
/* Field numbers of SummaryMetadata, its PluginData, and TensorProto with its shape. */
enum { METADATA_PLUGIN = 1, PLUGIN_NAME = 1, TENSOR_DTYPE = 1, TENSOR_SHAPE = 2, TENSOR_STRING = 8 };
enum { SHAPE_DIM = 2, DIM_SIZE = 1, DT_STRING = 7 };
enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

uint32_t tfevents_crc32c(const void *data, size_t len)
{
	const unsigned char *p = data;
	uint32_t crc = ~0u;

	/* A step has a few hundred bytes, for which a loop over the bits, without a table, is fast enough. */
	while (len--) {
		crc ^= *p++;
		for (int i = 0; i < 8; i++)
			crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
	}
	return ~crc;
}

static void put_fixed(struct strbuf *b, uint64_t v, int bytes)
{
	for (int i = 0; i < bytes; i++)
		strbuf_addc(b, (char)(v >> (8 * i)));
}

static void put_varint(struct strbuf *b, uint64_t v)
{
	for (; v >= 0x80; v >>= 7)
		strbuf_addc(b, (char)(v | 0x80));
	strbuf_addc(b, (char)v);
}

static void put_key(struct strbuf *b, int field, int wire)
{
	put_varint(b, field << 3 | wire);
}

static void put_bytes(struct strbuf *b, int field, const void *data, size_t len)
{
	put_key(b, field, WIRE_BYTES);
	put_varint(b, len);
	strbuf_add(b, data, len);
}

static void begin_event(struct tfevents *t, double time, int64_t step)
{
	uint64_t bits;

	memcpy(&bits, &time, 8);
	strbuf_reset(&t->event);
	put_key(&t->event, EVENT_TIME, WIRE_64);
	put_fixed(&t->event, bits, 8);
	put_key(&t->event, EVENT_STEP, WIRE_VARINT);
	put_varint(&t->event, step);
}

static uint32_t masked(const void *data, size_t len)
{
	uint32_t crc = tfevents_crc32c(data, len);

	return (crc >> 15 | crc << 17) + 0xa282ead8;
}

static int write_event(struct tfevents *t, struct error *err)
{
	struct strbuf *f = &t->frame;

	strbuf_reset(f);
	put_fixed(f, t->event.len, 8);
	put_fixed(f, masked(f->data, f->failed ? 0 : 8), 4);
	strbuf_add(f, t->event.data, t->event.len);
	put_fixed(f, masked(t->event.data, t->event.len), 4);
	if (f->failed || t->event.failed)
		return error_oom(err);
	if (file_write_all(t->fd, f->data, f->len, err) < 0)
		return error_prefix(err, "%s", t->path);
	return 0;
}

int tfevents_open(const char *directory, int64_t first_step, struct tfevents **out, struct error *err)
{
	_cleanup_(tfevents_closep) struct tfevents *t = calloc(1, sizeof(*t));
	static const char session[] = {SESSION_STATUS << 3 | WIRE_VARINT, SESSION_START};
	double now = clock_realtime();
	char host[256] = "localhost";
	int r;

	if (!t)
		return error_oom(err);
	t->fd = -1;
	r = file_mkdirs(directory, 0777, err);
	if (r < 0)
		return r;
	gethostname(host, sizeof(host) - 1);
	t->path = str_printf("%s/events.out.tfevents.%lld.%s.%ld.%lld", directory, (long long)now, host,
	                     (long)getpid(), (long long)first_step);
	if (!t->path)
		return error_oom(err);
	t->fd = open(t->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	if (t->fd < 0)
		return error_errno(err, -errno, "cannot write %s", t->path);
	begin_event(t, now, 0);
	put_bytes(&t->event, EVENT_VERSION, "brain.Event:2", strlen("brain.Event:2"));
	r = write_event(t, err);
	if (r < 0)
		return r;
	begin_event(t, now, first_step);
	put_bytes(&t->event, EVENT_SESSION, session, sizeof(session));
	if ((r = write_event(t, err)) < 0)
		return r;
	*out = steal_pointer(t);
	return 0;
}

/* A Summary of one Value, which v is. */
static int write_summary(struct tfevents *t, double time, int64_t step, const struct strbuf *v,
                         struct error *err)
{
	_cleanup_strbuf_ struct strbuf summary = {0};

	if (!v->failed)
		put_bytes(&summary, SUMMARY_VALUE, v->data, v->len);
	if (v->failed || summary.failed)
		return error_oom(err);
	begin_event(t, time, step);
	put_bytes(&t->event, EVENT_SUMMARY, summary.data, summary.len);
	return write_event(t, err);
}

int tfevents_scalar(struct tfevents *t, double time, int64_t step, const char *tag, float value,
                    struct error *err)
{
	_cleanup_strbuf_ struct strbuf v = {0};
	uint32_t bits;

	memcpy(&bits, &value, 4);
	put_bytes(&v, VALUE_TAG, tag, strlen(tag));
	put_key(&v, VALUE_SIMPLE, WIRE_32);
	put_fixed(&v, bits, 4);
	return write_summary(t, time, step, &v, err);
}

int tfevents_text(struct tfevents *t, double time, int64_t step, const char *tag, const char *text,
                  struct error *err)
{
	static const char plugin[] = {PLUGIN_NAME << 3 | WIRE_BYTES, 4, 't', 'e', 'x', 't'};
	static const char dim[] = {DIM_SIZE << 3 | WIRE_VARINT, 1};
	_cleanup_strbuf_ struct strbuf v = {0}, metadata = {0}, shape = {0}, tensor = {0};

	put_bytes(&metadata, METADATA_PLUGIN, plugin, sizeof(plugin));
	put_bytes(&shape, SHAPE_DIM, dim, sizeof(dim));
	put_key(&tensor, TENSOR_DTYPE, WIRE_VARINT);
	put_varint(&tensor, DT_STRING);
	if (metadata.failed || shape.failed)
		return error_oom(err);
	put_bytes(&tensor, TENSOR_SHAPE, shape.data, shape.len);
	put_bytes(&tensor, TENSOR_STRING, text, strlen(text));
	if (tensor.failed)
		return error_oom(err);
	put_bytes(&v, VALUE_TAG, tag, strlen(tag));
	put_bytes(&v, VALUE_TENSOR, tensor.data, tensor.len);
	put_bytes(&v, VALUE_METADATA, metadata.data, metadata.len);
	return write_summary(t, time, step, &v, err);
}

void tfevents_close(struct tfevents *t)
{
	if (!t)
		return;
	if (t->fd >= 0)
		close(t->fd);
	strbuf_free(&t->event);
	strbuf_free(&t->frame);
	free(t->path);
	free(t);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* One list of listeners, each with its topic. Nothing is kept: who listens later gets what comes later. */
#include "cluster/feed.h"

#include "base/list.h"

struct feed_listener {
	struct feed *feed;
	struct feed_listener *prev, *next;
	int64_t topic;
	feed_fn fn;
	void *context;
};

struct feed {
	struct feed_listener *listeners;
};

int feed_create(struct feed **out, struct error *err)
{
	*out = calloc(1, sizeof(**out));
	return *out ? 0 : error_oom(err);
}

void feed_remove(struct feed_listener *l)
{
	if (!l)
		return;
	list_remove(l->feed->listeners, l);
	free(l);
}

void feed_destroy(struct feed *f)
{
	if (!f)
		return;
	while (f->listeners)
		feed_remove(f->listeners);
	free(f);
}

int feed_listen(struct feed *f, int64_t topic, feed_fn fn, void *context, struct feed_listener **out,
                struct error *err)
{
	struct feed_listener *l = calloc(1, sizeof(*l));

	if (!l)
		return error_oom(err);
	*l = (struct feed_listener){.feed = f, .topic = topic, .fn = fn, .context = context};
	list_push(f->listeners, l);
	*out = l;
	return 0;
}

void feed_write(struct feed *f, int64_t topic, const char *data, size_t len)
{
	struct feed_listener *next;

	for (struct feed_listener *l = f->listeners; l; l = next) {
		next = l->next;
		if (l->topic == topic)
			l->fn(l->context, data, len);
	}
}

void feed_end(struct feed *f, int64_t topic)
{
	feed_write(f, topic, NULL, 0);
}

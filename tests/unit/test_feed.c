/* SPDX-License-Identifier: Apache-2.0 */
/* The feed: a listener of a topic gets all data that are written to it, until the topic ends or it is
 * removed. */
#include <string.h>

#include "base/str.h"
#include "cluster/feed.h"
#include "unit.h"

struct ear {
	struct feed_listener *listener;
	struct strbuf heard;
	bool ended, once; /* once: it leaves with the first line */
};

static void on_line(void *context, const char *data, size_t len)
{
	struct ear *e = context;

	if (!data) {
		e->ended = true;
		return;
	}
	strbuf_add(&e->heard, data, len);
	if (e->once)
		feed_remove(steal_pointer(e->listener));
}

static const char *heard(struct ear *e)
{
	strbuf_add(&e->heard, "", 1);
	e->heard.len--;
	return e->heard.data;
}

START_TEST(listeners_hear_their_topic_alone)
{
	struct ear one = {0}, two = {0}, late = {0};
	struct error err = ERROR_INIT;
	struct feed *f;

	ck_ok(feed_create(&f, &err), &err);
	feed_write(f, 1, "nobody listens\n", 15);
	ck_ok(feed_listen(f, 1, on_line, &one, &one.listener, &err), &err);
	ck_ok(feed_listen(f, 2, on_line, &two, &two.listener, &err), &err);
	feed_write(f, 1, "a\n", 2);
	ck_ok(feed_listen(f, 1, on_line, &late, &late.listener, &err), &err);
	feed_write(f, 2, "b\n", 2);
	feed_write(f, 1, "c\n", 2);
	ck_assert_str_eq(heard(&one), "a\nc\n");
	ck_assert_str_eq(heard(&two), "b\n");
	ck_assert_str_eq(heard(&late), "c\n");
	feed_remove(steal_pointer(one.listener));
	feed_write(f, 1, "d\n", 2);
	ck_assert_str_eq(heard(&one), "a\nc\n");
	ck_assert_str_eq(heard(&late), "c\nd\n");
	feed_end(f, 1);
	ck_assert(late.ended && !two.ended && !one.ended);
	feed_remove(NULL);
	feed_destroy(f); /* with those who still listen */
	strbuf_free(&one.heard);
	strbuf_free(&two.heard);
	strbuf_free(&late.heard);
}
END_TEST

/* When a listener removes itself in its callback, the others still get the line. */
START_TEST(a_listener_may_leave_while_it_is_called)
{
	struct ear ears[3] = {{0}, {.once = true}, {0}};
	struct error err = ERROR_INIT;
	struct feed *f;

	ck_ok(feed_create(&f, &err), &err);
	for (size_t i = 0; i < ARRAY_SIZE(ears); i++)
		ck_ok(feed_listen(f, 1, on_line, &ears[i], &ears[i].listener, &err), &err);
	feed_write(f, 1, "a\n", 2);
	feed_write(f, 1, "b\n", 2);
	ck_assert_str_eq(heard(&ears[0]), "a\nb\n");
	ck_assert_str_eq(heard(&ears[1]), "a\n");
	ck_assert_str_eq(heard(&ears[2]), "a\nb\n");
	feed_destroy(f);
	for (size_t i = 0; i < ARRAY_SIZE(ears); i++)
		strbuf_free(&ears[i].heard);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("feed");
	TCase *c = tcase_create("feed");

	suite_add_tcase(s, c);
	tcase_add_test(c, listeners_hear_their_topic_alone);
	tcase_add_test(c, a_listener_may_leave_while_it_is_called);
	return unit_run(s);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The rendezvous: keys of an attempt, and the requests that wait for them. */
#include <errno.h>
#include <string.h>

#include "base/str.h"
#include "cluster/rendezvous.h"
#include "unit.h"

static void on_key(void *context, const void *value, size_t len)
{
	snprintf(context, 16, "%.*s", value ? (int)len : 4, value ? (const char *)value : "gone");
}

START_TEST(a_waiter_gets_its_key_or_the_end_of_the_attempt)
{
	_cleanup_(rendezvous_destroyp) struct rendezvous *r = NULL;
	struct rendezvous_waiter *w1, *w2, *w3;
	char one[16] = "", two[16] = "", three[16] = "", key[RENDEZVOUS_KEY_MAX + 2], small[32];
	struct error err = ERROR_INIT;
	const void *value;
	size_t len;
	int code;

	ck_ok(rendezvous_create(&r, &err), &err);
	ck_assert_int_eq(rendezvous_get(r, 1, 1, "a/b", &value, &len, &err), -ENOENT);
	ck_ok(rendezvous_wait(r, 1, 1, "a/b", on_key, one, &w1, &err), &err);
	ck_ok(rendezvous_wait(r, 1, 1, "a/b", on_key, two, &w2, &err), &err);
	ck_ok(rendezvous_wait(r, 1, 1, "c", on_key, three, &w3, &err), &err);
	rendezvous_unwait(w2);
	ck_ok(rendezvous_put(r, 1, 1, 1000, "a/b", "hello", 5, &err), &err);
	ck_assert_str_eq(one, "hello");
	ck_assert_str_eq(two, "");
	ck_ok(rendezvous_get(r, 1, 1, "a/b", &value, &len, &err), &err);
	ck_assert(len == 5 && memcmp(value, "hello", 5) == 0);
	ck_assert_int_eq(rendezvous_get(r, 2, 1, "a/b", &value, &len, &err), -ENOENT);

	/* A newer attempt ends the waiting requests of the older one and removes its keys; the older one is
	 * refused. */
	ck_ok(rendezvous_put(r, 1, 2, 1000, "d", "x", 1, &err), &err);
	ck_assert_str_eq(three, "gone");
	ck_assert_int_eq(rendezvous_get(r, 1, 2, "a/b", &value, &len, &err), -ENOENT);
	ck_assert_int_eq(rendezvous_put(r, 1, 1, 1000, "a/b", "late", 4, &err), -ESTALE);

	memset(key, 'k', sizeof(key));
	key[sizeof(key) - 1] = '\0';
	ck_assert_int_eq(rendezvous_put(r, 1, 2, 1000, key, "x", 1, &err), -EINVAL);
	ck_assert_int_eq(rendezvous_put(r, 1, 2, 1000, "big", key, 2000, &err), -ENOSPC);
	/* Setting a key again needs no more memory; many small keys do, also empty ones. */
	for (int i = 0; i < 100; i++)
		ck_ok(rendezvous_put(r, 1, 2, 1000, "same", key, 150, &err), &err);
	for (code = 0, len = 0; code == 0 && len < 100; len++) {
		snprintf(small, sizeof(small), "small-%zu", len);
		code = rendezvous_put(r, 1, 2, 1000, small, "", 0, &err);
	}
	ck_assert_int_eq(code, -ENOSPC);
	ck_assert_ptr_nonnull(strstr(err.message, "the rendezvous of run 1 is full"));
	ck_ok(rendezvous_wait(r, 1, 2, "never", on_key, three, &w3, &err), &err);
	three[0] = '\0';
	rendezvous_drop(r, 1);
	ck_assert_str_eq(three, "gone");
}
END_TEST

/* The limit of memory of an attempt: a key that is set again replaces the old value. */
START_TEST(keys_take_the_room_of_their_newest_value)
{
	_cleanup_(rendezvous_destroyp) struct rendezvous *r = NULL;
	_cleanup_free_ char *large = calloc(1, RENDEZVOUS_VALUE_MAX + 1);
	struct error err = ERROR_INIT;
	const void *value;
	size_t len;

	ck_ok(rendezvous_create(&r, &err), &err);
	for (int i = 0; i < 3; i++)
		ck_ok(rendezvous_put(r, 1, 1, 1000, "key", large, 700, &err), &err);
	ck_assert_int_eq(rendezvous_put(r, 1, 1, 1000, "another", large, 700, &err), -ENOSPC);
	ck_ok(rendezvous_put(r, 1, 1, 1000, "key", large, 10, &err), &err);
	ck_ok(rendezvous_put(r, 1, 1, 1000, "another", large, 700, &err), &err);
	ck_ok(rendezvous_get(r, 1, 1, "key", &value, &len, &err), &err);
	ck_assert_uint_eq(len, 10);
	/* Another run has its own limit. */
	ck_ok(rendezvous_put(r, 2, 1, 1000, "key", large, 700, &err), &err);
	/* A single value has a limit of its own. */
	ck_ok(rendezvous_put(r, 3, 1, 64 << 20, "key", large, RENDEZVOUS_VALUE_MAX, &err), &err);
	ck_assert_int_eq(rendezvous_put(r, 3, 1, 64 << 20, "key", large, RENDEZVOUS_VALUE_MAX + 1, &err),
	                 -ENOSPC);
	ck_assert_int_eq(rendezvous_put(r, 3, 1, 64 << 20, "", large, 1, &err), -EINVAL);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("rendezvous");
	TCase *c = tcase_create("rendezvous");

	tcase_set_timeout(c, 60);
	suite_add_tcase(s, c);
	tcase_add_test(c, a_waiter_gets_its_key_or_the_end_of_the_attempt);
	tcase_add_test(c, keys_take_the_room_of_their_newest_value);
	return unit_run(s);
}

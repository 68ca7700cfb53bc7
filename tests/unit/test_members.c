/* SPDX-License-Identifier: Apache-2.0 */
/* The members of a cluster: what their heartbeats say of them, and when they are down. */
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "cluster/members.h"
#include "unit.h"

static json_t *heartbeat(const char *node, const char *instance, int sequence)
{
	json_t *devices = json_array();

	for (int i = 0; i < 2; i++) {
		json_array_append_new(devices, json_pack("{s:s,s:i,s:s,s:s,s:i,s:i,s:s}", "node", node,
		                                         "index", i, "kind", "cpu", "name", "CPU", "memory",
		                                         1, "threads", 1, "state", i ? "leased" : "free"));
		json_object_set_new(json_array_get(devices, i), "run", i ? json_integer(7) : json_null());
	}
	return json_pack("{s:s,s:s,s:i,s:s,s:o,s:[],s:[i,i]}", "node", node, "instance", instance, "sequence",
	                 sequence, "version", "1", "devices", devices, "attempts", "ports", 4001, 4002);
}

static bool take_heartbeat(struct member *m, const json_t *json, double now, double now_realtime)
{
	_cleanup_(heartbeat_release) struct heartbeat heartbeat;
	struct error err = ERROR_INIT;

	ck_ok(heartbeat_decode(json, &heartbeat, &err), &err);
	return member_heartbeat(m, &heartbeat, now, now_realtime);
}

static void on_down(void *context, struct member *m)
{
	strcat(context, m->name);
}

static bool keep_none(void *context, const char *name)
{
	return false;
}

START_TEST(members_come_and_go)
{
	static const char text[] = "a slots=2\nb slots=2 addr=10.0.0.2 port=7 fast\n",
	                  less[] = "b slots=2\nc slots=1\n", other[] = "c slots=1\n";
	_cleanup_(members_destroyp) struct members *m = NULL;
	_cleanup_(hosts_freep) struct hosts *hosts = NULL, *fewer = NULL, *none = NULL;
	_cleanup_json_ json_t *beat = heartbeat("b", "x", 3), *list = NULL, *nodes = NULL, *devices = NULL;
	const json_t *each;
	struct error err = ERROR_INIT;
	char down[16] = "";
	struct member *b;

	ck_ok(hosts_parse(text, strlen(text), "hosts", &hosts, &err), &err);
	ck_ok(hosts_parse(less, strlen(less), "hosts", &fewer, &err), &err);
	ck_ok(hosts_parse(other, strlen(other), "hosts", &none, &err), &err);
	ck_ok(members_create(100, &m, &err), &err);
	ck_ok(members_set_hosts(m, hosts, 29600, 100, keep_none, NULL, &err), &err);
	b = members_find(m, "B");
	ck_assert_ptr_nonnull(b);
	ck_assert_int_eq(b->port, 7);
	ck_assert_int_eq(member_kind(b), SLOT_ANY);
	ck_assert(member_awaited(b));
	ck_assert(take_heartbeat(b, beat, 101, 1000));
	ck_assert(!take_heartbeat(b, beat, 102, 1001));
	ck_assert_int_eq(member_kind(b), SLOT_CPU);
	ck_assert(!member_awaited(b) && member_awaited(members_find(m, "a")));
	ck_assert_uint_eq(member_free_slots(b), 1);
	member_release(b, 7);
	ck_assert_uint_eq(member_free_slots(b), 2);
	ck_assert_int_ne(member_take_port(b, 1), member_take_port(b, 1));
	ck_assert_int_gt(member_take_port(b, 1), 1024);
	/* Where the node has a range, what is taken without having been offered is of it, too. */
	json_object_set_new(beat, "port_range", json_pack("[i,i]", 700, 702));
	take_heartbeat(b, beat, 102, 1001);
	ck_assert_int_eq(member_take_port(b, 1), 4002);
	ck_assert_int_eq(member_take_port(b, 1), 4001);
	for (int i = 0; i < 20; i++) {
		int port = member_take_port(b, i);

		ck_assert(port >= 700 && port <= 702);
	}

	/* a was never heard of, b not since 102. */
	ck_assert_double_eq(members_expire(m, "c", 104, 5, on_down, down), 104.625);
	ck_assert_str_eq(down, "");
	ck_assert_double_eq(members_expire(m, "c", 105.5, 5, on_down, down), 106.125);
	ck_assert_str_eq(down, "a");
	ck_assert(!member_awaited(members_find(m, "a")));
	ck_assert_double_eq(members_expire(m, "c", 107, 5, on_down, down), 0);
	ck_assert_str_eq(down, "ab");
	ck_assert_int_eq(member_state(b), NODE_DOWN);
	ck_assert(!member_awaited(b));
	ck_assert_int_eq(member_kind(b), SLOT_CPU);
	ck_assert(take_heartbeat(b, beat, 109, 1002));
	ck_ok(members_set_hosts(m, fewer, 29600, 110, keep_none, NULL, &err), &err);
	ck_assert_ptr_null(members_find(m, "a"));
	/* Out of the hosts file and back: it has what it knows from us. */
	b->epoch = 5;
	ck_ok(members_set_hosts(m, none, 29600, 110, keep_none, NULL, &err), &err);
	ck_ok(members_set_hosts(m, fewer, 29600, 110, keep_none, NULL, &err), &err);
	b = members_find(m, "b");
	ck_assert_int_eq(b->epoch, 5);
	ck_assert(!b->up);
	ck_assert_int_eq(members_find(m, "c")->epoch, 0);
	ck_assert(take_heartbeat(b, beat, 110, 1002));
	ck_ok(members_set_hosts(m, fewer, 29600, 110, keep_none, NULL, &err), &err);
	ck_assert_ptr_eq(members_find(m, "b"), b);
	ck_assert(b->up);
	ck_assert_int_eq(b->port, 29600);
	list = members_to_json(m, "b");
	each = json_object_get(list, "nodes");
	ck_assert_uint_eq(json_array_size(each), 2);
	ck_assert(json_get_bool(json_array_get(each, 0), "controller", false));
	member_set_drained(b, true, "a new fan");
	nodes = members_to_json(m, "b");
	devices = members_devices(m);
	each = json_array_get(json_object_get(nodes, "nodes"), 0);
	ck_assert_str_eq(json_get_string(each, "reason", ""), "a new fan");
	each = json_array_get(json_object_get(devices, "devices"), 0);
	ck_assert_str_eq(json_get_string(each, "state", ""), "drained");
	ck_assert_str_eq(json_get_string(each, "reason", ""), "a new fan");
	member_set_drained(b, false, NULL);
	ck_assert_ptr_null(b->drain_reason);
}
END_TEST

/* A controller that stood still: it knows nothing of what was sent to it meanwhile. */
START_TEST(a_controller_that_stood_still_marks_nobody_down)
{
	static const char text[] = "a slots=1\nb slots=1\nc slots=1\n";
	_cleanup_(members_destroyp) struct members *m = NULL;
	_cleanup_(hosts_freep) struct hosts *hosts = NULL;
	_cleanup_json_ json_t *a = heartbeat("a", "x", 3), *b = heartbeat("b", "y", 3);
	struct error err = ERROR_INIT;
	char down[16] = "";
	double next;

	ck_ok(hosts_parse(text, strlen(text), "hosts", &hosts, &err), &err);
	ck_ok(members_create(100, &m, &err), &err);
	ck_ok(members_set_hosts(m, hosts, 29600, 100, keep_none, NULL, &err), &err);
	ck_assert(take_heartbeat(members_find(m, "a"), a, 100, 1000));
	ck_assert(take_heartbeat(members_find(m, "b"), b, 100, 1000));
	next = members_expire(m, "a", 100, 5, on_down, down);
	ck_assert(next > 100 && next <= 101);
	/* 6 s, then 15 s without a look: nobody is judged, not even one that was never heard of. */
	next = members_expire(m, "a", 106, 5, on_down, down);
	ck_assert(next > 106);
	next = members_expire(m, "a", 121, 5, on_down, down);
	ck_assert_str_eq(down, "");
	/* From then on as ever, but for the node that judges. */
	while (next > 0 && next < 130)
		next = members_expire(m, "a", next, 5, on_down, down);
	ck_assert_double_eq(next, 0);
	ck_assert_str_eq(down, "bc");
	ck_assert_int_eq(member_state(members_find(m, "a")), NODE_UP);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("members");
	TCase *c = tcase_create("members");

	tcase_set_timeout(c, 60);
	suite_add_tcase(s, c);
	tcase_add_test(c, members_come_and_go);
	tcase_add_test(c, a_controller_that_stood_still_marks_nobody_down);
	return unit_run(s);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the members of a cluster: what is known from their heartbeats, and when they are down. */
#include <math.h>
#include <string.h>

#include "base/json.h"
#include "base/str.h"
#include "cluster/members.h"
#include "cluster/topology.h"
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

static bool keep_all(void *context, const char *name)
{
	return true;
}

static void set_hosts(struct members *m, const char *text, double now,
                      bool (*keep)(void *context, const char *name))
{
	_cleanup_(hosts_freep) struct hosts *hosts = NULL;
	struct error err = ERROR_INIT;

	ck_ok(hosts_parse(text, strlen(text), "hosts", &hosts, &err), &err);
	ck_ok(members_set_hosts(m, hosts, 29600, now, keep, NULL, &err), &err);
}

static struct members *make_members(const char *hosts)
{
	struct members *m;
	struct error err = ERROR_INIT;

	ck_ok(members_create(100, &m, &err), &err);
	set_hosts(m, hosts, 100, keep_none);
	return m;
}

/* A heartbeat with these slots: '.' free, a digit: leased to the run of that number, 'D' drained, 'd' the
 * same, but run 7 is still on it. */
static json_t *heartbeat_of(const char *node, const char *slots)
{
	json_t *json = heartbeat(node, "x", 1), *devices = json_array();

	for (int i = 0; slots[i]; i++) {
		char c = slots[i];
		const char *state = c == '.'   ? "free"
		                    : c == 'D' ? "drained"
		                    : c == 'd' ? "draining"
		                               : "leased";

		json_array_append_new(devices, json_pack("{s:s,s:i,s:s,s:s,s:i,s:i,s:s,s:o,s:s?}", "node",
		                                         node, "index", i, "kind", "cpu", "name", "CPU",
		                                         "memory", 1, "threads", 1, "state", state, "run",
		                                         c == 'd'               ? json_integer(7)
		                                         : c >= '0' && c <= '9' ? json_integer(c - '0')
		                                                                : json_null(),
		                                         "reason", c == 'D' || c == 'd' ? "worn out" : NULL));
	}
	json_object_set_new(json, "devices", devices);
	return json;
}

static bool beat(struct members *m, const char *node, const char *slots, double now)
{
	_cleanup_json_ json_t *json = heartbeat_of(node, slots);

	return take_heartbeat(members_find(m, node), json, now, 1000 + now);
}

/* The node as GET /v1/nodes shows it; a new reference. */
static json_t *view(const struct members *m, size_t i)
{
	_cleanup_json_ json_t *list = members_to_json(m, "b");

	return json_incref(json_array_get(json_object_get(list, "nodes"), i));
}

START_TEST(a_node_is_what_its_line_and_its_heartbeat_say)
{
	_cleanup_(members_destroyp) struct members *m =
	    make_members("a slots=2\nb slots=2 addr=10.0.0.2 port=7 fast\n");
	struct member *b = members_find(m, "B");
	_cleanup_json_ json_t *before = view(m, 1), *after = NULL;

	ck_assert_ptr_nonnull(b);
	ck_assert_int_eq(b->port, 7);
	ck_assert_int_eq(members_find(m, "a")->port, 29600);
	ck_assert_str_eq(members_find(m, "a")->address, "a");
	ck_assert_int_eq(member_kind(b), SLOT_ANY);
	ck_assert(member_awaited(b));
	ck_assert_str_eq(json_get_string(before, "state", ""), "unknown");
	ck_assert_str_eq(json_get_string(before, "error", ""), "not heard from yet");
	ck_assert(beat(m, "b", ".7.", 101));
	ck_assert(!beat(m, "b", ".7.", 102));
	ck_assert_int_eq(member_kind(b), SLOT_CPU);
	ck_assert(!member_awaited(b) && member_awaited(members_find(m, "a")));
	after = view(m, 1);
	ck_assert_str_eq(json_get_string(after, "name", ""), "b");
	ck_assert_str_eq(json_get_string(after, "address", ""), "10.0.0.2");
	ck_assert_str_eq(json_get_string(after, "state", ""), "up");
	ck_assert(json_get_bool(after, "controller", false));
	ck_assert_int_eq(json_get_int(after, "slots", 0), 3);
	ck_assert_int_eq(json_get_int(after, "free", 0), 2);
	ck_assert_str_eq(json_string_value(json_array_get(json_object_get(after, "labels"), 0)), "fast");
	ck_assert(json_is_null(json_object_get(after, "error")));
	ck_assert_double_eq(json_get_number(after, "last_seen", 0), 1102);
}
END_TEST

START_TEST(a_node_that_shut_down_is_up_again_with_its_next_heartbeat)
{
	_cleanup_(members_destroyp) struct members *m = make_members("a\n");
	_cleanup_json_ json_t *last = heartbeat_of("a", "..");
	struct member *a = members_find(m, "a");

	ck_assert(beat(m, "a", "..", 101));
	json_object_set_new(last, "shutting_down", json_true());
	ck_assert(!take_heartbeat(a, last, 102, 1102));
	ck_assert(a->shutting_down);
	ck_assert(!take_heartbeat(a, last, 103, 1103));
	ck_assert(beat(m, "a", "..", 104)); /* a change: it takes runs again */
	ck_assert(!a->shutting_down);
}
END_TEST

START_TEST(the_slots_of_an_ended_run_are_free_at_once)
{
	_cleanup_(members_destroyp) struct members *m = make_members("a\n");
	struct member *a = members_find(m, "a");
	static const enum slot_state want[] = {SLOT_FREE, SLOT_FREE, SLOT_LEASED, SLOT_DRAINED, SLOT_DRAINED};

	beat(m, "a", "7.8dD", 101);
	ck_assert_uint_eq(member_free_slots(a), 1);
	ck_assert_uint_eq(member_drained_slots(a), 2);
	member_release(a, 7);
	for (size_t i = 0; i < ARRAY_SIZE(want); i++)
		ck_assert_int_eq(a->devices[i].state, want[i]);
	ck_assert_int_eq(a->devices[2].run, 8);
	ck_assert_int_eq(a->devices[0].run, 0);
	ck_assert_int_eq(a->devices[3].run, 0);
	/* What its node says of it is the last word; and the whole heartbeat is not as it was sent any more.
	 */
	a->whole.sequence = 9;
	beat(m, "a", "7", 102);
	a->whole.sequence = 9;
	ck_assert_int_eq(member_kept(a), 9);
	a->devices[0].state = SLOT_DRAINED;
	member_release(a, 7);
	ck_assert_int_eq(a->devices[0].state, SLOT_DRAINED);
	ck_assert_int_eq(member_kept(a), 9);
	a->devices[0].state = SLOT_LEASED;
	member_release(a, 7);
	ck_assert_int_eq(member_kept(a), 0);
}
END_TEST

START_TEST(what_changes_the_slots_is_news)
{
	static const struct {
		const char *old, *new;
		bool news;
	} cases[] = {
	    {"..", "..", false}, {"7D", "7D", false}, {"..", ".7", true},  {"7.", "8.", true},
	    {".D", "..", true},  {"d.", "D.", true},  {"..", "...", true}, {"..", ".", true},
	};
	struct error err = ERROR_INIT;

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_(members_destroyp) struct members *m = make_members("a\n");
		_cleanup_(heartbeat_release) struct heartbeat next;
		_cleanup_json_ json_t *json = heartbeat_of("a", cases[i].new);

		beat(m, "a", cases[i].old, 101);
		ck_ok(heartbeat_decode(json, &next, &err), &err);
		ck_assert_msg(member_slots_differ(members_find(m, "a"), next.devices, next.device_count) ==
		                  cases[i].news,
		              "%s, then %s", cases[i].old, cases[i].new);
	}
	{ /* drained for another reason */
		_cleanup_(members_destroyp) struct members *m = make_members("a\n");
		_cleanup_(heartbeat_release) struct heartbeat next;
		_cleanup_json_ json_t *json = heartbeat_of("a", "D");

		json_object_set_new(json_array_get(json_object_get(json, "devices"), 0), "reason",
		                    json_string("Xid 79"));
		beat(m, "a", "D", 101);
		ck_ok(heartbeat_decode(json, &next, &err), &err);
		ck_assert(member_slots_differ(members_find(m, "a"), next.devices, next.device_count));
	}
}
END_TEST

START_TEST(ports_are_given_once_and_then_from_the_range)
{
	_cleanup_(members_destroyp) struct members *m = make_members("b\n");
	_cleanup_json_ json_t *json = heartbeat_of("b", "..");
	struct member *b = members_find(m, "b");

	take_heartbeat(b, json, 101, 1000);
	ck_assert_int_ne(member_take_port(b, 1), member_take_port(b, 1));
	ck_assert_int_gt(member_take_port(b, 1), 1024);
	/* Where the node has a range, what is taken without having been offered is of it, too. */
	json_object_set_new(json, "port_range", json_pack("[i,i]", 700, 702));
	take_heartbeat(b, json, 102, 1001);
	ck_assert_int_eq(member_take_port(b, 1), 4002);
	ck_assert_int_eq(member_take_port(b, 1), 4001);
	for (int i = 0; i < 20; i++) {
		int port = member_take_port(b, i);

		ck_assert(port >= 700 && port <= 702);
	}
	b->port_low = b->port_high = 700;
	ck_assert_int_eq(member_take_port(b, 5), 700);
	/* A range that is none, and half of one. */
	b->port_high = 699;
	ck_assert(member_take_port(b, 5) >= 20000 && member_take_port(b, 5) < 32000);
	json_object_set_new(json, "port_range", json_pack("[i]", 700));
	take_heartbeat(b, json, 103, 1002);
	ck_assert_int_eq(b->port_low, 0);
	ck_assert_int_eq(b->port_high, 0);
}
END_TEST

/* What a heartbeat does not say any more, the node is not shown with. */
START_TEST(a_heartbeat_replaces_the_one_before)
{
	_cleanup_(members_destroyp) struct members *m = make_members("a\n");
	_cleanup_json_ json_t *json = heartbeat_of("a", "D"), *before = NULL, *after = NULL;
	struct member *a = members_find(m, "a");

	json_object_set_new(json, "launch", json_string("no systemd"));
	json_object_set_new(json, "version", json_string("2"));
	json_object_set_new(json, "boot", json_string("boot-1"));
	json_object_set_new(json, "hosts", json_string("abc"));
	take_heartbeat(a, json, 101, 1000);
	before = view(m, 0);
	ck_assert_str_eq(json_get_string(before, "launch", ""), "no systemd");
	ck_assert_str_eq(json_get_string(before, "version", ""), "2");
	ck_assert_str_eq(a->boot, "boot-1");
	ck_assert_str_eq(a->hosts_hash, "abc");
	json_object_del(json, "launch");
	json_object_del(json, "boot");
	json_object_del(json, "hosts");
	json_object_set_new(json, "version", json_string("3"));
	json_object_del(json_array_get(json_object_get(json, "devices"), 0), "reason");
	take_heartbeat(a, json, 102, 1000);
	after = view(m, 0);
	ck_assert_str_eq(json_get_string(after, "launch", "none"), "none");
	ck_assert_str_eq(json_get_string(after, "version", ""), "3");
	ck_assert_str_eq(a->boot, "");
	ck_assert_str_eq(a->hosts_hash, "");
	/* A slot that is drained without a reason. */
	ck_assert_uint_eq(json_array_size(json_object_get(after, "drained")), 1);
}
END_TEST

/* A short heartbeat renews what a whole one has said. */
START_TEST(a_short_heartbeat_says_what_changes)
{
	_cleanup_(members_destroyp) struct members *m = make_members("a\n");
	int64_t ports[] = {5, 6};
	const struct short_heartbeat brief = {
	    .sequence = 8, .sent = 55, .ports = ports, .port_count = 2, .highest_run = 12};
	struct member *a = members_find(m, "a");

	beat(m, "a", ".", 101);
	member_short_heartbeat(a, &brief, 103, 1003);
	ck_assert_double_eq(a->heard, 103);
	ck_assert_double_eq(a->last_seen, 1003);
	ck_assert_int_eq(a->sequence, 8);
	ck_assert_double_eq(a->sent, 0); /* its node knows no leases */
	ck_assert_int_eq(member_take_port(a, 1), 6);
	ck_assert_int_eq(member_take_port(a, 1), 5);
	a->leases = true;
	member_short_heartbeat(a, &brief, 104, 1004);
	ck_assert_double_eq(a->sent, 55);
}
END_TEST

/* A device in the place of another one. */
START_TEST(another_device_is_news)
{
	_cleanup_(members_destroyp) struct members *m = make_members("a\n");
	struct device_info other;
	struct member *a = members_find(m, "a");

	beat(m, "a", ".", 101);
	other = a->devices[0];
	ck_assert(!member_slots_differ(a, &other, 1));
	other.kind = DEVICE_KIND_GPU;
	ck_assert(member_slots_differ(a, &other, 1));
	other = a->devices[0];
	other.uuid = (char *)"GPU-1";
	ck_assert(member_slots_differ(a, &other, 1));
}
END_TEST

START_TEST(a_node_without_heartbeats_is_down)
{
	_cleanup_(members_destroyp) struct members *m = make_members("a slots=2\nb slots=2\n");
	struct member *b = members_find(m, "b");
	char down[16] = "";

	beat(m, "b", "..", 102);
	/* a has sent no heartbeat, b none since 102. */
	ck_assert_double_eq(members_expire(m, "c", 104, 5, on_down, down), 104.625);
	ck_assert_str_eq(down, "");
	ck_assert_int_eq(member_state(members_find(m, "a")), NODE_UNKNOWN);
	ck_assert_int_eq(member_state(b), NODE_UP);
	ck_assert_double_eq(members_expire(m, "c", 105.5, 5, on_down, down), 106.125);
	ck_assert_str_eq(down, "a");
	ck_assert(!member_awaited(members_find(m, "a")));
	ck_assert_int_eq(member_state(members_find(m, "a")), NODE_DOWN);
	ck_assert_str_eq(members_find(m, "a")->error, "not heard from since the controller started");
	ck_assert_double_eq(members_expire(m, "c", 107, 5, on_down, down), 0);
	ck_assert_str_eq(down, "ab");
	ck_assert_int_eq(member_state(b), NODE_DOWN);
	ck_assert_str_eq(b->error, "no heartbeat for 5 s");
	ck_assert(!member_awaited(b));
	ck_assert_int_eq(member_kind(b), SLOT_CPU);
	ck_assert(beat(m, "b", "..", 109));
	ck_assert_int_eq(member_state(b), NODE_UP);
	ck_assert_ptr_null(b->error);
}
END_TEST

START_TEST(another_hosts_file_is_taken_over)
{
	_cleanup_(members_destroyp) struct members *m = make_members("a\nb slots=2 port=7\n");
	struct member *b = members_find(m, "b");

	beat(m, "b", "..", 101);
	set_hosts(m, "b slots=2\nc slots=1\n", 110, keep_none);
	ck_assert_ptr_null(members_find(m, "a"));
	ck_assert_ptr_eq(members_find(m, "b"), b);
	ck_assert(b->up);
	ck_assert_int_eq(b->port, 29600);
	ck_assert_uint_eq(members_count(m), 2);
	ck_assert_ptr_eq(members_get(m, 0), b);
	/* A host that is removed from the hosts file and added again keeps what this controller has sent to
	 * it. */
	b->epoch = 5;
	set_hosts(m, "c slots=1\n", 110, keep_none);
	set_hosts(m, "b slots=2\nc slots=1\n", 110, keep_none);
	b = members_find(m, "b");
	ck_assert_int_eq(b->epoch, 5);
	ck_assert(!b->up);
	ck_assert_int_eq(members_find(m, "c")->epoch, 0);
	ck_assert(beat(m, "b", "..", 110));
	/* The newest of it, however often, and of each host by itself. */
	b->epoch = 6;
	members_find(m, "c")->epoch = 3;
	set_hosts(m, "d slots=1\n", 110, keep_none);
	set_hosts(m, "B slots=2\nc slots=1\n", 110, keep_none);
	ck_assert_int_eq(members_find(m, "b")->epoch, 6);
	ck_assert_int_eq(members_find(m, "c")->epoch, 3);
}
END_TEST

START_TEST(a_node_that_a_run_needs_stays_when_its_line_is_gone)
{
	_cleanup_(members_destroyp) struct members *m = make_members("a\nb\n");
	_cleanup_json_ json_t *removed = NULL, *back = NULL;

	beat(m, "a", "7", 101);
	set_hosts(m, "b\n", 102, keep_all);
	ck_assert_uint_eq(members_count(m), 2);
	ck_assert(members_find(m, "a")->removed);
	ck_assert(!members_find(m, "b")->removed);
	removed = view(m, 1);
	ck_assert_str_eq(json_get_string(removed, "name", ""), "a");
	ck_assert_str_eq(json_get_string(removed, "error", ""), "removed from the hosts file");
	set_hosts(m, "a\nb\n", 103, keep_all);
	back = view(m, 0);
	ck_assert(json_is_null(json_object_get(back, "error")));
	ck_assert(!members_find(m, "a")->removed);
	/* A host that has sent no heartbeat and was removed from the hosts file is not waited for. */
	set_hosts(m, "a\n", 104, keep_all);
	ck_assert(!member_awaited(members_find(m, "b")));
	ck_assert_int_eq(member_state(members_find(m, "b")), NODE_DOWN);
}
END_TEST

START_TEST(the_newest_hosts_file_spells_the_names)
{
	_cleanup_(members_destroyp) struct members *m = make_members("a\nb\n");
	struct member *b = members_find(m, "b");
	_cleanup_json_ json_t *devices = NULL;
	size_t at = 0;

	beat(m, "b", "7", 101);
	set_hosts(m, "a\nB\n", 102, keep_none);
	ck_assert_ptr_eq(members_find(m, "b"), b);
	ck_assert_ptr_eq(members_find(m, "B"), b);
	ck_assert(members_position(m, "b", &at));
	ck_assert_uint_eq(at, 1);
	ck_assert(b->up);
	ck_assert_str_eq(b->name, "B");
	/* The node's own hosts file may have the other spelling. */
	devices = members_devices(m);
	ck_assert_str_eq(json_get_string(json_array_get(json_object_get(devices, "devices"), 0), "node", ""),
	                 "B");
	ck_assert_str_eq(b->devices[0].node, "b");
}
END_TEST

START_TEST(a_node_that_a_run_needs_may_never_have_been_there)
{
	_cleanup_(members_destroyp) struct members *m = make_members("a\n");
	_cleanup_json_ json_t *removed = NULL;
	struct error err = ERROR_INIT;
	const struct member *b;

	ck_ok(members_add_removed(m, "A", 29600, &err), &err);
	ck_assert_uint_eq(members_count(m), 1);
	ck_assert(!members_find(m, "a")->removed);
	ck_ok(members_add_removed(m, "b", 29601, &err), &err);
	ck_assert_uint_eq(members_count(m), 2);
	b = members_find(m, "B");
	ck_assert_ptr_eq(members_get(m, 1), b);
	ck_assert(b->removed && !member_awaited(b));
	ck_assert_str_eq(b->address, "b");
	ck_assert_int_eq(b->port, 29601);
	removed = view(m, 1);
	ck_assert_str_eq(json_get_string(removed, "error", ""), "removed from the hosts file");
	/* As one that was removed from the file later. */
	set_hosts(m, "a\n", 103, keep_all);
	ck_assert_ptr_eq(members_find(m, "b"), b);
	set_hosts(m, "a\nb\n", 104, keep_all);
	ck_assert(!b->removed);
	ck_assert_ptr_eq(members_find(m, "b"), b);
	ck_ok(members_add_removed(m, "c", 29600, &err), &err);
	set_hosts(m, "a\n", 105, keep_none);
	ck_assert_ptr_null(members_find(m, "c"));
}
END_TEST

START_TEST(a_drained_node_shows_no_free_slots)
{
	_cleanup_(members_destroyp) struct members *m = make_members("a\n");
	_cleanup_json_ json_t *node = NULL, *devices = NULL, *resumed = NULL;
	static const struct {
		const char *state, *reason;
	} want[] = {
	    {"drained", "a new fan"}, {"leased", NULL}, {"drained", "worn out"}, {"draining", "worn out"}};
	struct member *a = members_find(m, "a");

	beat(m, "a", ".8Dd", 101);
	member_set_drained(a, true, strdup("a new fan"));
	ck_assert_int_eq(member_state(a), NODE_DRAINED);
	node = view(m, 0);
	ck_assert_str_eq(json_get_string(node, "state", ""), "drained");
	ck_assert_str_eq(json_get_string(node, "reason", ""), "a new fan");
	ck_assert_int_eq(json_get_int(node, "free", -1), 0);
	ck_assert_uint_eq(json_array_size(json_object_get(node, "drained")), 2);
	devices = members_devices(m);
	for (size_t i = 0; i < ARRAY_SIZE(want); i++) {
		const json_t *d = json_array_get(json_object_get(devices, "devices"), i);

		ck_assert_str_eq(json_get_string(d, "state", ""), want[i].state);
		ck_assert_pstr_eq(json_get_string(d, "reason", NULL), want[i].reason);
	}
	member_set_drained(a, false, NULL);
	ck_assert_ptr_null(a->drain_reason);
	resumed = view(m, 0);
	ck_assert_int_eq(json_get_int(resumed, "free", -1), 1);
	member_set_down(a, "cannot reach %s", "a");
	json_decref(resumed);
	resumed = view(m, 0);
	ck_assert_int_eq(json_get_int(resumed, "free", -1), 0);
	ck_assert_str_eq(json_get_string(resumed, "error", ""), "cannot reach a");
}
END_TEST

START_TEST(a_node_with_another_hosts_file_is_shown)
{
	_cleanup_(members_destroyp) struct members *m = make_members("a\n");
	_cleanup_json_ json_t *json = heartbeat_of("a", ".");
	struct member *a = members_find(m, "a");
	char hash[HOSTS_HASH_SIZE];
	_cleanup_(hosts_freep) struct hosts *hosts = NULL;
	struct error err = ERROR_INIT;

	take_heartbeat(a, json, 101, 1000);
	ck_assert(!member_hosts_differ(m, a)); /* its heartbeat does not say */
	json_object_set_new(json, "hosts", json_string("another"));
	take_heartbeat(a, json, 102, 1000);
	ck_assert(member_hosts_differ(m, a));
	ck_ok(hosts_parse("a\n", 2, "hosts", &hosts, &err), &err);
	ck_ok(hosts_hash(hosts, hash, &err), &err);
	json_object_set_new(json, "hosts", json_string(hash));
	take_heartbeat(a, json, 103, 1000);
	ck_assert(!member_hosts_differ(m, a));
	json_object_set_new(json, "hosts", json_string("another"));
	take_heartbeat(a, json, 104, 1000);
	member_set_down(a, "gone");
	ck_assert(!member_hosts_differ(m, a)); /* the hosts file of a node that is down is not known */
}
END_TEST

/* A link that a GPU does not report counts as one across sockets; a node whose devices report no links has no
 * matrix. */
START_TEST(links_are_a_matrix_of_weights)
{
	static const char *const links[2][3] = {{"X", "NV18", "SYS"}, {"NV18", "X", NULL}};
	_cleanup_(members_destroyp) struct members *m = make_members("a\n");
	_cleanup_json_ json_t *json = heartbeat_of("a", "...");
	struct member *a = members_find(m, "a");
	const unsigned char *got;

	take_heartbeat(a, json, 101, 1000);
	ck_assert_ptr_null(member_links(a));
	for (size_t i = 0; i < 3; i++) {
		json_t *d = json_array_get(json_object_get(json, "devices"), i), *list = json_array();

		json_object_set_new(d, "kind", json_string("gpu"));
		json_object_set_new(d, "gpu", json_integer((json_int_t)i));
		for (size_t k = 0; i < 2 && k < 3 && links[i][k]; k++)
			json_array_append_new(list, json_string(links[i][k]));
		json_object_set_new(d, "links", list);
	}
	take_heartbeat(a, json, 102, 1000);
	got = member_links(a);
	ck_assert_ptr_nonnull(got);
	for (size_t i = 0; i < 3; i++)
		for (size_t k = 0; k < 3; k++)
			ck_assert_uint_eq(got[i * 3 + k], topology_weight(i < 2 ? links[i][k] : NULL));
	ck_assert_uint_gt(got[1], got[2]);
	/* Each pass of the scheduler asks for it: it is made once for the same devices. */
	ck_assert_ptr_eq(member_links(a), got);
	ck_assert_int_eq(member_kind(a), SLOT_GPU);
}
END_TEST

/* A controller whose process was stopped for a time has not read what was sent to it meanwhile. */
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
	/* After 6 s, then 15 s, without a check no member is marked down, not even one that never sent a
	 * heartbeat. */
	next = members_expire(m, "a", 106, 5, on_down, down);
	ck_assert(next > 106);
	next = members_expire(m, "a", 121, 5, on_down, down);
	ck_assert_str_eq(down, "");
	/* After that, members are marked down as usual, except for the controller's own node. */
	while (next > 0 && next < 130)
		next = members_expire(m, "a", next, 5, on_down, down);
	ck_assert_double_eq(next, 0);
	ck_assert_str_eq(down, "bc");
	ck_assert_int_eq(member_state(members_find(m, "a")), NODE_UP);
}
END_TEST

/* A check is late where a quarter of the time-out has passed since it was due, and no sooner. */
START_TEST(a_check_that_is_not_late_counts)
{
	static const char text[] = "a slots=1\nb slots=1\n";
	const double late = _i ? 0.125 : 0;
	_cleanup_(members_destroyp) struct members *m = NULL;
	_cleanup_(hosts_freep) struct hosts *hosts = NULL;
	struct error err = ERROR_INIT;
	char down[16] = "";
	double next;

	ck_ok(hosts_parse(text, strlen(text), "hosts", &hosts, &err), &err);
	ck_ok(members_create(100, &m, &err), &err);
	ck_ok(members_set_hosts(m, hosts, 29600, 100, keep_none, NULL, &err), &err);
	next = members_expire(m, "a", 100, 8, on_down, down);
	ck_assert_double_eq(next, 101);
	members_expire(m, "a", next + 2 + late, 8, on_down, down);
	for (double at = 104; at < 108; at++)
		members_expire(m, "a", at, 8, on_down, down);
	ck_assert_str_eq(down, "");
	members_expire(m, "a", 108, 8, on_down, down);
	ck_assert_str_eq(down, late > 0 ? "" : "b");
}
END_TEST

/* When a is down, which is checked eight times a second. Members began at 100. */
static const struct {
	double silent_since, hosts_set, late, down;
} silences[] = {
    {90, 0, 0, 102.5},   /* it has the least part of the time-out */
    {99.5, 0, 0, 104.5}, /* not yet silent for so long */
    {101, 0, 0, 105},    /* never more than the whole time-out */
    {0, 0, 0, 105},      /* nothing is known */
    {90, 0, 110, 112.5}, /* the controller stood still until then */
    {90, 102, 0, 107},   /* with another address, perhaps */
};

START_TEST(a_node_that_was_silent_before_is_down_sooner)
{
	static const char text[] = "a slots=1\n";
	_cleanup_(members_destroyp) struct members *m = make_members(text);
	double late = silences[_i].late, now;
	char down[16] = "", error[32];

	member_set_silent(members_find(m, "a"), silences[_i].silent_since);
	for (now = 100; now < 120; now += now == 100 && late > 0 ? late - 100 : 0.125) {
		ck_assert_int_eq(member_state(members_find(m, "a")), NODE_UNKNOWN);
		if (now == silences[_i].hosts_set)
			set_hosts(m, text, now, keep_none);
		members_expire(m, "c", now, 5, on_down, down);
		if (down[0])
			break;
	}
	ck_assert_double_eq(now, silences[_i].down);
	ck_assert_str_eq(down, "a");
	snprintf(error, sizeof(error), "no answer for %.0f s", now - silences[_i].silent_since);
	ck_assert_str_eq(members_find(m, "a")->error,
	                 silences[_i].silent_since > 0 && silences[_i].hosts_set == 0
	                     ? error
	                     : "not heard from since the controller started");
}
END_TEST

/* Once it has reported, what was before does not count. */
START_TEST(a_node_that_was_silent_before_may_report)
{
	_cleanup_(members_destroyp) struct members *m = make_members("a slots=1\n");
	struct member *a = members_find(m, "a");
	char down[16] = "";

	member_set_silent(a, 90);
	members_expire(m, "c", 102, 5, on_down, down);
	ck_assert(beat(m, "a", "..", 102.5));
	members_expire(m, "c", 103, 5, on_down, down);
	members_expire(m, "c", 104, 5, on_down, down);
	ck_assert_int_eq(member_state(a), NODE_UP);
	ck_assert_str_eq(down, "");
}
END_TEST

/* With another hosts file the time-out begins anew, and no look at it was missed. */
START_TEST(a_new_hosts_file_is_no_standstill)
{
	_cleanup_(members_destroyp) struct members *m = make_members("a\nb\n");
	_cleanup_json_ json_t *b = heartbeat("b", "y", 3);
	char down[16] = "";
	double next;

	ck_assert(take_heartbeat(members_find(m, "b"), b, 100, 1000));
	next = members_expire(m, "a", 100, 5, on_down, down);
	ck_assert_double_gt(next, 100);
	set_hosts(m, "a\nb\n", 101, keep_none);
	/* The next look is late by the time before, and by this one there was none. */
	ck_assert_double_eq(members_expire(m, "a", 106, 5, on_down, down), 0);
	ck_assert_str_eq(down, "b");
}
END_TEST

START_TEST(many_nodes_report_less_often)
{
	static const struct {
		int nodes, most;
		double timeout, lease, interval;
	} cases[] = {
	    {2, 500, 5, 60, 0}, /* as they themselves have it */
	    {250, 500, 5, 60, 0.5}, {750, 500, 5, 60, 1.5},     {750, 0, 5, 60, 0}, {1000, 500, 10, 60, 2},
	    {1000, 500, 10, 0, 2},  {1000, 500, 5, 60, 5. / 3}, /* the time-out is short, */
	    {1000, 500, 10, 4, 1},                              /* and so is the lease */
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		_cleanup_(members_destroyp) struct members *m = NULL;
		_cleanup_(strbuf_free) struct strbuf text = {0};
		_cleanup_(hosts_freep) struct hosts *hosts = NULL;
		struct error err = ERROR_INIT;
		double got;

		for (int k = 0; k < cases[i].nodes; k++)
			strbuf_addf(&text, "n%d slots=1\n", k);
		ck_ok(hosts_parse(text.data, text.len, "hosts", &hosts, &err), &err);
		ck_ok(members_create(100, &m, &err), &err);
		ck_ok(members_set_hosts(m, hosts, 29600, 100, keep_none, NULL, &err), &err);
		got = members_interval(m, cases[i].most, cases[i].timeout, cases[i].lease);
		ck_assert_msg(fabs(got - cases[i].interval) < 1e-9, "%zu: %g", i, got);
	}
}
END_TEST

int main(void)
{
	Suite *s = suite_create("members");
	TCase *c = tcase_create("members");

	tcase_set_timeout(c, 60);
	suite_add_tcase(s, c);
	tcase_add_test(c, a_node_is_what_its_line_and_its_heartbeat_say);
	tcase_add_test(c, a_node_that_shut_down_is_up_again_with_its_next_heartbeat);
	tcase_add_test(c, the_slots_of_an_ended_run_are_free_at_once);
	tcase_add_test(c, what_changes_the_slots_is_news);
	tcase_add_test(c, ports_are_given_once_and_then_from_the_range);
	tcase_add_test(c, a_heartbeat_replaces_the_one_before);
	tcase_add_test(c, a_short_heartbeat_says_what_changes);
	tcase_add_test(c, another_device_is_news);
	tcase_add_test(c, a_node_without_heartbeats_is_down);
	tcase_add_test(c, another_hosts_file_is_taken_over);
	tcase_add_test(c, a_node_that_a_run_needs_stays_when_its_line_is_gone);
	tcase_add_test(c, the_newest_hosts_file_spells_the_names);
	tcase_add_test(c, a_node_that_a_run_needs_may_never_have_been_there);
	tcase_add_test(c, a_drained_node_shows_no_free_slots);
	tcase_add_test(c, a_node_with_another_hosts_file_is_shown);
	tcase_add_test(c, links_are_a_matrix_of_weights);
	tcase_add_test(c, a_controller_that_stood_still_marks_nobody_down);
	tcase_add_loop_test(c, a_node_that_was_silent_before_is_down_sooner, 0, ARRAY_SIZE(silences));
	tcase_add_test(c, a_node_that_was_silent_before_may_report);
	tcase_add_test(c, a_new_hosts_file_is_no_standstill);
	tcase_add_test(c, many_nodes_report_less_often);
	tcase_add_loop_test(c, a_check_that_is_not_late_counts, 0, 2);
	return unit_run(s);
}

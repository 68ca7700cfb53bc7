/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of slots of a node by their links, and the information of the controller about links. */
#include <string.h>
#include <time.h>

#include "base/json.h"
#include "base/str.h"
#include "cluster/members.h"
#include "cluster/scheduler.h"
#include "cluster/topology.h"
#include "unit.h"

/* Common machines: the link of GPU i of n with GPU k. */
static const char *shape_link(const char *name, size_t i, size_t k)
{
	if (i == k)
		return "X";
	if (str_eq(name, "nvswitch"))
		return "NV18";
	if (str_eq(name, "sockets")) /* two, each with two PCIe switches of two GPUs */
		return i / 2 == k / 2 ? "PIX" : i / 4 == k / 4 ? "NODE" : "SYS";
	if (str_eq(name, "bridges")) /* an NVLink bridge over each pair */
		return i / 2 == k / 2 ? "NV4" : "PHB";
	if (str_eq(name, "crossed")) /* the same, but over 0-3 and 1-2 */
		return i + k == 3 ? "NV4" : "PHB";
	if (str_eq(name, "ring")) /* 0-2-1-3-0 */
		return i / 2 != k / 2 ? "NV2" : "SYS";
	return i / 4 == k / 4 ? "MIG" : "SYS"; /* "mig": two GPUs in four parts each */
}

/* free: the free slots as digits; want: the slots of local ranks 0, 1, … */
static const struct topology_case {
	const char *shape;
	size_t slots;
	const char *free, *want;
} topology_cases[] = {
    {"nvswitch", 8, "01234567", "0123"},
    {"nvswitch", 8, "01234567", "01234567"},
    {"nvswitch", 8, "13467", "134"},
    {"sockets", 8, "01234567", "01"},
    {"sockets", 8, "01234567", "0123"},
    {"sockets", 8, "1234567", "4567"}, /* the whole socket rather than three and one */
    {"sockets", 8, "1234567", "1"},    /* which leaves the pairs as they are */
    {"sockets", 8, "0234567", "23"},   /* a pair */
    {"sockets", 8, "0246", "02"},      /* no pair is left: the same socket */
    {"sockets", 8, "0456", "456"},
    {"sockets", 8, "024567", "4567"},
    {"sockets", 8, "1356", "13"},
    {"sockets", 8, "01234567", "01234567"},
    {"bridges", 4, "0123", "01"},
    {"bridges", 4, "123", "23"},
    {"bridges", 4, "123", "1"},
    {"bridges", 4, "0123", "012"},
    {"crossed", 4, "0123", "03"},
    {"crossed", 4, "012", "12"},
    {"crossed", 4, "012", "0"},
    {"crossed", 4, "0123", "0123"}, /* 0-1 and 2-3 by the host bridge, 1-2 and 3-0 by the bridges */
    {"ring", 4, "0123", "0213"},
    {"mig", 8, "01234567", "04"}, /* NCCL joins no two parts of one GPU */
};

START_TEST(topology_table)
{
	const struct topology_case *c = &topology_cases[_i];
	unsigned char links[8 * 8];
	size_t want = strlen(c->want);
	bool taken[8];
	int chosen[8];

	for (size_t i = 0; i < c->slots; i++) {
		taken[i] = !strchr(c->free, '0' + (int)i);
		for (size_t k = 0; k < c->slots; k++)
			links[i * c->slots + k] = topology_weight(shape_link(c->shape, i, k));
	}
	topology_choose(links, c->slots, taken, want, chosen);
	for (size_t i = 0; i < want; i++)
		ck_assert_msg(chosen[i] == c->want[i] - '0', "%s, free %s, want %s: rank %zu is on slot %d",
		              c->shape, c->free, c->want, i, chosen[i]);
}
END_TEST

/* Of the processor, which is the same on a loaded machine. */
static double seconds_used(void)
{
	struct timespec t;

	ck_assert_int_eq(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t), 0);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Large machines: 16 GPUs in all combinations, 56 MIG devices; each choice is valid and fast. */
START_TEST(topology_of_large_machines)
{
	static const size_t sizes[][2] = {{16, 8}, {16, 15}, {56, 28}, {256, 200}};
	double start = seconds_used();

	for (size_t s = 0; s < ARRAY_SIZE(sizes); s++) {
		size_t n = sizes[s][0], want = sizes[s][1];
		_cleanup_free_ unsigned char *links = calloc(n, n);
		_cleanup_free_ bool *taken = calloc(n, sizeof(bool));
		_cleanup_free_ int *chosen = calloc(n, sizeof(int));

		for (size_t i = 0; i < n * n; i++)
			links[i] = topology_weight(i / n / 8 == i % n / 8 ? "NV12" : "SYS");
		topology_choose(links, n, taken, want, chosen);
		for (size_t i = 0; i < want; i++) {
			ck_assert(chosen[i] >= 0 && (size_t)chosen[i] < n && !taken[chosen[i]]);
			taken[chosen[i]] = true;
		}
		if (n == 16 && want == 8)
			ck_assert_int_eq(chosen[7], 7);
	}
	ck_assert_double_lt(seconds_used() - start, 2);
}
END_TEST

/* One slot has no links to compare, and of several equal choices the first counts. */
START_TEST(the_first_of_many_equal_slots_is_chosen)
{
	enum { SLOTS = 20 };
	static const size_t wants[] = {1, 2, 9};
	unsigned char links[SLOTS * SLOTS];
	bool taken[SLOTS] = {true, false, true};
	int chosen[SLOTS];

	memset(links, 7, sizeof(links));
	for (size_t i = 0; i < ARRAY_SIZE(wants); i++) {
		memset(chosen, -1, sizeof(chosen));
		topology_choose(links, SLOTS, taken, wants[i], chosen);
		ck_assert_int_eq(chosen[0], 1);
		for (size_t k = 1; k < wants[i]; k++)
			ck_assert_int_eq(chosen[k], (int)k + 2);
		ck_assert_int_eq(chosen[wants[i]], -1);
	}
}
END_TEST

/* Of a large machine nine slots, 4 to 12, in the order of their links, and the lowest first among equals:
 * whichever of them was found first. */
START_TEST(chosen_slots_are_in_the_order_of_their_links)
{
	enum { SLOTS = 20, WANT = 9 };
	static const int want[WANT] = {4, 12, 7, 5, 6, 8, 9, 10, 11};
	static const unsigned char closer[][3] = {{4, 12, 12}, {12, 7, 12}, {4, 11, 11}};
	unsigned char links[SLOTS * SLOTS];
	bool taken[SLOTS] = {false};
	int chosen[WANT];

	memset(links, 1, sizeof(links));
	for (int i = 4; i <= 12; i++)
		for (int k = 4; k <= 12; k++)
			links[i * SLOTS + k] = 9;
	for (size_t i = 0; i < ARRAY_SIZE(closer); i++)
		links[closer[i][0] * SLOTS + closer[i][1]] = links[closer[i][1] * SLOTS + closer[i][0]] =
		    closer[i][2];
	topology_choose(links, SLOTS, taken, WANT, chosen);
	for (int i = 0; i < WANT; i++)
		ck_assert_int_eq(chosen[i], want[i]);
}
END_TEST

START_TEST(links_have_weights)
{
	/* The better link first. */
	static const char *const links[] = {"NV18", "NV1", "PIX", "PXB", "PHB", "NODE", "SYS", "MIG"};
	static const char *const unknown[] = {"", "NV", "NV0", "NV101", "NVx", "X", "pix", "SOC"};

	for (size_t i = 0; i + 1 < ARRAY_SIZE(links); i++)
		ck_assert_msg(topology_weight(links[i]) > topology_weight(links[i + 1]), "%s", links[i]);
	ck_assert_int_eq(topology_weight("NV100") - topology_weight("NV1"), 99);
	ck_assert_uint_eq(topology_weight(NULL), topology_weight("SYS"));
	for (size_t i = 0; i < ARRAY_SIZE(unknown); i++)
		ck_assert_uint_eq(topology_weight(unknown[i]), topology_weight("SYS"));
}
END_TEST

START_TEST(placed_by_topology)
{
	unsigned char links[16];
	bool taken[4] = {true};
	struct sched_node node = {
	    .name = "a", .up = true, .slots = 4, .taken = taken, .links = links, .kind = SLOT_GPU};
	struct sched_run r = {.id = 1, .nodes = 1, .per_node = 2};
	struct error err = ERROR_INIT;

	for (size_t i = 0; i < 16; i++)
		links[i] = topology_weight(shape_link("bridges", i / 4, i % 4));
	ck_ok(schedule(&node, 1, &r, 1, &err), &err);
	ck_assert_msg(r.placed, "%s", r.reason);
	ck_assert_int_eq(r.slots[0], 2);
	ck_assert_int_eq(r.slots[1], 3);
	ck_assert(!taken[1] && taken[2] && taken[3]);
	free(r.chosen);
	free(r.slots);
}
END_TEST

/* Heartbeats with three GPUs, of which the second is linked with the first. */
static void make_heartbeat(struct heartbeat *out)
{
	static const char device[] =
	    "{\"node\":\"a\",\"index\":%d,\"kind\":\"gpu\",\"name\":\"G\",\"memory\":1,"
	    "\"threads\":1,\"state\":\"%s\",\"run\":%s,\"reason\":%s,\"gpu\":%d,"
	    "\"temperature\":40,\"links\":%s}";
	_cleanup_free_ char *first = str_printf(device, 0, "free", "null", "null", 0, "[\"X\",\"NV4\",null]");
	_cleanup_free_ char *second =
	    str_printf(device, 1, "draining", "7", "\"Xid 79\"", 1, "[\"NV4\",\"X\",null]");
	_cleanup_free_ char *third =
	    str_printf(device, 2, "drained", "null", "\"by hand\"", 2, "[null,null,\"X\"]");
	_cleanup_free_ char *text =
	    str_printf("{\"node\":\"a\",\"instance\":\"x\",\"sequence\":1,\"version\":\"1\",\"attempts\":[],"
	               "\"devices\":[%s,%s,%s]}",
	               first, second, third);
	_cleanup_json_ json_t *json = json_loads(text, 0, NULL);
	struct error err = ERROR_INIT;

	ck_ok(heartbeat_decode(json, out, &err), &err);
}

START_TEST(members_tell_links_and_drains)
{
	_cleanup_(heartbeat_release) struct heartbeat first, next;
	const unsigned char *links;
	struct member m = {.name = (char *)"a"};

	make_heartbeat(&first);
	make_heartbeat(&next);
	ck_assert(member_slots_differ(&m, first.devices, first.device_count));
	member_heartbeat(&m, &first, 1, 1);
	ck_assert_uint_eq(member_free_slots(&m), 1);
	ck_assert_uint_eq(member_drained_slots(&m), 2);
	links = member_links(&m);
	ck_assert_int_eq(links[1], topology_weight("NV4"));
	ck_assert_int_eq(links[2], topology_weight("SYS"));
	/* A change of a sensor does not count as a change, a change of a state does. */
	next.devices[0].gpu_info->temperature = 41;
	ck_assert(!member_slots_differ(&m, next.devices, next.device_count));
	next.devices[0].state = SLOT_DRAINED;
	ck_assert(member_slots_differ(&m, next.devices, next.device_count));
	/* The drained slot of an ended run does not become free. */
	member_release(&m, 7);
	ck_assert_uint_eq(member_free_slots(&m), 1);
	ck_assert_uint_eq(member_drained_slots(&m), 2);
	member_set_devices(&m, NULL, 0);
	free(m.version);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("topology");
	TCase *c = tcase_create("topology");

	tcase_set_timeout(c, 60);
	tcase_add_loop_test(c, topology_table, 0, ARRAY_SIZE(topology_cases));
	tcase_add_test(c, topology_of_large_machines);
	tcase_add_test(c, the_first_of_many_equal_slots_is_chosen);
	tcase_add_test(c, chosen_slots_are_in_the_order_of_their_links);
	tcase_add_test(c, links_have_weights);
	tcase_add_test(c, placed_by_topology);
	tcase_add_test(c, members_tell_links_and_drains);
	suite_add_tcase(suite, c);
	return unit_run(suite);
}

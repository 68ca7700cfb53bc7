/* SPDX-License-Identifier: Apache-2.0 */
/* The scheduler as a table: nodes and a queue as text, and the expected result. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "cluster/scheduler.h"
#include "naive_scheduler.h"
#include "unit.h"

/* One case of the scheduler in words. nodes: "n1:UUTD" (U free, T taken, D drained; none: never heard of),
 * "*" before it: GPUs, "-": down, "~": drained, "?": awaited. queue: "ID:NODESxSLOTS", SLOTS may be all, with
 * "/gpu" or "/cpu" for a kind and "@host,host" for a restriction. want: "ID=n1[0,1]+n2[0]" or "ID?part of the
 * reason". */
struct sched_case {
	const char *nodes, *queue, *want;
};

static const struct sched_case sched_cases[] = {
    {"a:U", "1:1x1", "1=a[0]"},
    {"a:UU b:UU", "1:2x2", "1=a[0,1]+b[0,1]"},
    {"a:UU b:UU", "1:2x1 2:2x1 3:2x1",
     "1=a[0]+b[0] 2=a[1]+b[1] 3?waits for 2 nodes with 1 free CPU slot: 0 now"},
    /* A gang gets all its slots or none. */
    {"a:U b:T", "1:2x1", "1?waits for 2 nodes with 1 free CPU slot: 1 now"},
    /* Runs are placed in their order: a small run does not overtake a large one. */
    {"a:UT", "1:1x2 2:1x1", "1?waits for 1 node with 2 free CPU slots: 0 now 2?waits behind run 1"},
    {"a:UT", "1:1x2 2:1x1 3:1x1", "1?waits for 1 node 2?waits behind run 1 3?waits behind run 1"},
    {"a:TT b:TT", "1:1x1@a 2:1x1@b 3:1x1@b", "1?waits for 1 node 2?waits for 1 node 3?waits behind run 2"},
    /* But a run that cannot use the same nodes does not wait for it. */
    {"a:UT b:U", "1:1x2 2:1x1", "1?waits for 1 node with 2 free 2=b[0]"},
    {"a:TT b:U", "1:1x2@a 2:1x1@b", "1?waits for 1 node 2=b[0]"},
    /* A run that the cluster can never hold does not delay others. */
    {"a:U b:U", "1:4x1 2:1x1", "1?asks for 4 nodes; the cluster has 2 nodes 2=a[0]"},
    {"a:UUUU b:UU", "1:1x8", "1?asks for 8 CPU slots on a node; the largest has 4 slots"},
    {"a:UUUU b:UU", "1:2x4", "1?asks for 2 nodes with 4 CPU slots each; the cluster has 1 node with so many"},
    {"a:U b:U", "1:1x1@c", "1?asks for host c, which is not in the cluster"},
    {"a:U b:U", "1:2x1@a", "1?asks for 2 nodes, but names 1 host"},
    {"a:U -b:U", "1:2x1 2:1x1", "1?waits for node b, which is down 2=a[0]"},
    {"a:U ~b:U", "1:2x1 2:1x1", "1?waits for node b, which is drained 2=a[0]"},
    {"-a: b:U", "1:2x1", "1?waits for node a, which is down"},
    {"-a:U ~b:U", "1:1x1", "1?which is drained"},
    {"a:U ?b:", "1:2x1/cpu", "1?waits to hear from node b"},
    /* A node with some free slots, but too few, is passed over. */
    {"a:UT b:UU", "1:1x2", "1=b[0,1]"},
    {"a:TU b:UUU c:TUU d:UTT", "1:2x2", "1=b[0,1]+c[1,2]"},
    {"*a:UT *b:UU", "1:1x2", "1=b[0,1]"},
    /* The fullest node that fits; names in any case. */
    {"a:UUUU b:UTTT", "1:1x1 2:1x4", "1=b[0] 2=a[0,1,2,3]"},
    {"a:U b:U", "1:1x1@B", "1=b[0]"},
    {"a:TUTU", "1:1x2", "1=a[1,3]"},
    {"", "1:1x1", "1?asks for 1 node; the cluster has 0 nodes"},
    /* A drained slot is not used, and delays only runs that need it. */
    {"a:DU", "1:1x1", "1=a[1]"},
    {"a:UUUD b:UU", "1:1x4 2:1x3", "1?waits for node a, of whose 4 slots 1 is drained 2=a[0,1,2]"},
    {"a:DDU", "1:1x3", "1?waits for node a, of whose 3 slots 2 are drained"},
    {"a:UU *b:U", "1:1x8/cpu", "1?asks for 8 CPU slots on a node; the largest has 2 slots"},
    {"a:U *b:UUU", "1:1x8", "1?asks for 8 slots of one kind on a node; the largest has 3 slots"},
    {"a:UUU *b:U", "1:1x8", "1?asks for 8 slots of one kind on a node; the largest has 3 slots"},
    {"*a:UU b:UUU", "1:1x8/gpu", "1?asks for 8 GPU slots on a node; the largest has 2 slots"},
    {"a:U", "1:1x2", "1?asks for 2 CPU slots on a node; the largest has 1 slot"},
    {"*a:UU", "1:1x8", "1?asks for 8 GPU slots on a node; the largest has 2 slots"},
    {"*a:UU *b:U", "1:2x2", "1?asks for 2 nodes with 2 GPU slots each; the cluster has 1 node with so many"},
    {"*a:U b:U", "1:1x2@a", "1?asks for 2 GPU slots on a node; the largest has 1 slot"},
    {"a:U", "1:2x1@a,b", "1?asks for host b, which is not in the cluster"},
    {"a:U b:U", "1:1x1/gpu@a", "1?asks for GPU slots; none of the hosts that it names has any"},
    {"a:U b:UU", "1:2xall@a,b", "1?asks for all CPU slots of 2 nodes"},
    {"*a:U *b:UU", "1:2xall", "1?asks for all GPU slots of 2 nodes"},
    {"*a:U b:UU", "1:2xall", "1?asks for all slots of one kind of 2 nodes"},
    {"a:TU", "1:1xall", "1?waits for 1 node with all 2 CPU slots free: 0 now"},
    {"a:TU b:UU", "1:2xall", "1?waits for 2 nodes with all 2 CPU slots free: 1 now"},
    /* GPUs where there are any, even if the CPU nodes fit better, come first and are free. */
    {"a:U *b:UU", "1:1x1", "1=b[0]"},
    {"a:UU *b:UU *c:UU", "1:2x2", "1=b[0,1]+c[0,1]"},
    {"a:UU *b:TU", "1:1x2 2:1x1", "1?waits for 1 node with 2 free GPU slots: 0 now 2?waits behind run 1"},
    {"a:UU *b:UD", "1:1x2", "1?waits for node b, of whose 2 slots 1 is drained"},
    {"a:UU -*b:UU", "1:1x2", "1?waits for node b, which is down"},
    {"a:UU ~*b:UU", "1:1x2", "1?waits for node b, which is drained"},
    /* CPU slots where the GPUs could never hold it; never both in one run. */
    {"a:UU b:UU *c:UU", "1:2x2", "1=a[0,1]+b[0,1]"},
    {"a:UUUU *b:UU", "1:1x4", "1=a[0,1,2,3]"},
    {"a:U *b:U", "1:2x1 2:1x1",
     "1?asks for 2 nodes with 1 slot of one kind each; the cluster has 1 node with so many 2=b[0]"},
    {"a:UUUU *b:UU", "1:1x8", "1?asks for 8 slots of one kind on a node; the largest has 4 slots"},
    {"a:UU *b:UU", "1:1x2@a", "1=a[0,1]"},
    /* The kind that it asks for. */
    {"a:U *b:U", "1:1x1/cpu 2:1x1/gpu 3:1x1/cpu",
     "1=a[0] 2=b[0] 3?waits for 1 node with 1 free CPU slot: 0 now"},
    {"a:UUUU *b:UU", "1:1x4/gpu", "1?asks for 4 GPU slots on a node; the largest has 2 slots"},
    {"a:UU b:UU *c:UU", "1:2x2/gpu",
     "1?asks for 2 nodes with 2 GPU slots each; the cluster has 1 node with so many"},
    {"a:UU b:UU", "1:1x1/gpu", "1?asks for GPU slots; the cluster has none"},
    {"a:UU *b:UU", "1:1x1/gpu@a", "1?asks for GPU slots; none of the hosts that it names has any"},
    {"*a:UU", "1:1x1/cpu", "1?asks for CPU slots; the cluster has none"},
    /* A run that waits for GPUs does not delay runs for CPU slots. */
    {"a:U *b:T", "1:1x1/gpu 2:1x1/cpu", "1?waits for 1 node 2=a[0]"},
    /* Nodes that have not reported yet may have GPUs; those that did not in time have none. */
    {"a:UU ?b:", "1:1x2", "1?waits to hear from node b, which may have GPUs"},
    {"a:UU ?b:", "1:1x2/cpu", "1=a[0,1]"},
    {"a:UU -b:", "1:1x2", "1=a[0,1]"},
    {"*a:UU ?b:", "1:1x2", "1=a[0,1]"},
    {"a:UU ?b:", "1:1x2@a", "1=a[0,1]"},
    {"a:UU c:UU *d:UU ?b:", "1:2x2", "1?waits to hear from node b"},
    {"a:UU c:UU ?b:", "1:2x2", "1=a[0,1]+c[0,1]"},
    {"*a:UU -b:", "1:2x2", "1?waits for node b, which is down"},
    /* All slots: the largest number that this many nodes have in common. */
    {"a:UU b:UUUU c:UU", "1:1xall 2:2xall", "1=b[0,1,2,3] 2=a[0,1]+c[0,1]"},
    {"a:UU *b:UUU *c:UUU *d:UU", "1:2xall", "1=b[0,1,2]+c[0,1,2]"},
    {"a:UUUU b:UUUU *c:UU", "1:2xall 2:1xall", "1=a[0,1,2,3]+b[0,1,2,3] 2=c[0,1]"},
    {"a:UUUU *c:UU", "1:1xall/cpu", "1=a[0,1,2,3]"},
    {"a:UUT b:UU", "1:1xall 2:1x1", "1?waits for 1 node with all 3 CPU slots free: 0 now 2=b[0]"},
    {"a:UUD b:UU", "1:1xall", "1?waits for node a, of whose 3 slots 1 is drained"},
    {"a:UUU b:UU", "1:2xall",
     "1?asks for all CPU slots of 2 nodes; the cluster has no 2 nodes with equally many"},
    {"a:UUU *b:UU", "1:2xall", "1?asks for all slots of one kind of 2 nodes; the cluster has no 2 nodes"},
    {"*a:UUU -b:", "1:2xall", "1?waits for node b, which is down"},
    {"-a: -b:", "1:2xall", "1?waits for node b, which is down"},
    {"a:UU b:UU -c:UUUU", "1:1xall", "1?waits for node c, which is down"},
};

static size_t parse_nodes(const char *text, struct sched_node *nodes, char *copy)
{
	char *save, *word;
	size_t n = 0;

	strcpy(copy, text);
	for (word = strtok_r(copy, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
		char *slots = strchr(word, ':'), *name = word + strspn(word, "-~?*");
		bool gpu = memchr(word, '*', name - word), awaited = memchr(word, '?', name - word);

		*slots++ = '\0';
		nodes[n] = (struct sched_node){.name = name,
		                               .up = !awaited && !memchr(word, '-', name - word),
		                               .drained = memchr(word, '~', name - word),
		                               .kind = !*slots ? SLOT_ANY
		                                       : gpu   ? SLOT_GPU
		                                               : SLOT_CPU,
		                               .awaited = awaited,
		                               .slots = strlen(slots),
		                               .taken = calloc(strlen(slots) + 1, sizeof(bool))};
		for (size_t i = 0; slots[i]; i++) {
			nodes[n].taken[i] = slots[i] != 'U';
			nodes[n].broken += slots[i] == 'D';
		}
		n++;
	}
	return n;
}

static size_t parse_queue(const char *text, struct sched_run *queue, char *copy, char *hosts[][4])
{
	char *save, *word, *inner;
	size_t n = 0;

	strcpy(copy, text);
	for (word = strtok_r(copy, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
		long long id, nodes, slots = 0;
		char *at = strchr(word, '@'), *kind = strchr(word, '/');
		size_t h = 0;

		ck_assert_int_eq(sscanf(word, "%lld:%lldx%lld", &id, &nodes, &slots),
		                 strstr(word, "xall") ? 2 : 3);
		queue[n] = (struct sched_run){
		    .id = id, .nodes = nodes, .per_node = slots, .reason = "that of an earlier pass"};
		if (kind)
			queue[n].kind = kind[1] == 'g' ? SLOT_GPU : SLOT_CPU;
		for (char *p = at ? strtok_r(at + 1, ",", &inner) : NULL; p; p = strtok_r(NULL, ",", &inner))
			hosts[n][h++] = p;
		hosts[n][h] = NULL;
		queue[n].hosts = at ? hosts[n] : NULL;
		n++;
	}
	return n;
}

static void describe(const struct sched_run *r, const struct sched_node *nodes, struct strbuf *b)
{
	strbuf_addf(b, "%lld", (long long)r->id);
	if (!r->placed) {
		strbuf_addf(b, "?%s", r->reason);
		return;
	}
	for (int64_t i = 0; i < r->placed_nodes; i++) {
		strbuf_addf(b, "%s%s[", i ? "+" : "=", nodes[r->chosen[i]].name);
		for (int64_t k = 0; k < r->per_node; k++)
			strbuf_addf(b, "%s%d", k ? "," : "", r->slots[i * r->per_node + k]);
		strbuf_addc(b, ']');
	}
}

/* A run that waits because no node is up is possible; one that is too large for the cluster is not. */
START_TEST(impossible_runs)
{
	static const struct {
		const char *nodes, *run, *reason;
	} cases[] = {
	    {"a:U b:U", "1:2x1", NULL},
	    {"-a:U b:T", "1:2x1", NULL},
	    {"a:U -b:", "1:2x8",
	     "asks for 2 nodes with 8 CPU slots each; the cluster has 1 node with so many"},
	    {"-a: -b:", "1:2x8", NULL}, /* nodes that have not reported: unknown */
	    {"a:UU b:U", "1:3x1", "asks for 3 nodes; the cluster has 2 nodes"},
	    {"a:U b:U", "1:1x1@c", "asks for host c, which is not in the cluster; its nodes are a, b"},
	    {"a:U b:U", "1:1x1@a,c", "asks for host c, which is not in the cluster; its nodes are a, b"},
	    {"a:U -b:U", "1:1x1@a,b", NULL},
	    {"a:U -*b:T", "1:1x1/gpu", NULL},
	    {"a:U -b:", "1:1x1/gpu", NULL},
	    {"a:U ?b:", "1:1x1", NULL},
	    {"a:U b:U", "1:1x1/gpu", "asks for GPU slots; the cluster has none"},
	    {"-a:UU -b:", "1:2xall", NULL},
	    {"a:UU b:U", "1:2xall",
	     "asks for all CPU slots of 2 nodes; the cluster has no 2 nodes with equally many; give a "
	     "number for each, or name hosts"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		char node_text[100], run_text[100], *hosts[1][4];
		struct error err = ERROR_INIT;
		struct sched_node nodes[4];
		struct sched_run r;
		size_t n = parse_nodes(cases[i].nodes, nodes, node_text);

		parse_queue(cases[i].run, &r, run_text, hosts);
		ck_assert_int_eq(schedule_possible(nodes, n, &r, &err), cases[i].reason ? -ENODEV : 0);
		ck_assert_str_eq(r.reason, cases[i].reason ? cases[i].reason : "");
		while (n > 0)
			free(nodes[--n].taken);
	}
}
END_TEST

/* A list of nodes that is too long for the reason ends with a whole name. */
START_TEST(a_long_list_of_nodes_is_cut)
{
	enum { NODES = 100 };
	char names[NODES][8], host[] = "gpu9", *hosts[] = {host, NULL};
	struct sched_node nodes[NODES] = {{0}};
	struct sched_run r = {.nodes = 1, .working = 1, .per_node = 1, .hosts = hosts};
	struct error err = ERROR_INIT;

	for (size_t i = 0; i < NODES; i++) {
		snprintf(names[i], sizeof(names[i]), "n%zu", i);
		nodes[i].name = names[i];
	}
	ck_assert_int_eq(schedule_possible(nodes, NODES, &r, &err), -ENODEV);
	ck_assert_msg(
	    str_starts(r.reason,
	               "asks for host gpu9, which is not in the cluster; its nodes are n0, n1, n2,"),
	    "%s", r.reason);
	ck_assert_msg(str_ends(r.reason, ", …") && strlen(r.reason) < sizeof(r.reason), "%s", r.reason);
}
END_TEST

/* Each wanted piece, "ID=…" or "ID?…", has to stand in the result's piece of the same run. */
static void compare(const struct sched_case *c, const struct sched_run *r, const struct sched_node *nodes)
{
	_cleanup_strbuf_ struct strbuf got = {0};
	char id[32];
	const char *want, *end;
	size_t len;

	describe(r, nodes, &got);
	snprintf(id, sizeof(id), "%lld%c", (long long)r->id, r->placed ? '=' : '?');
	want = strstr(c->want, id);
	ck_assert_msg(want, "%s | %s: got %s, want %s", c->nodes, c->queue, got.data, c->want);
	snprintf(id, sizeof(id), " %lld", (long long)r->id + 1);
	for (end = want; (end = strstr(end, id)); end++)
		if (end[strlen(id)] == '=' || end[strlen(id)] == '?')
			break;
	len = end ? (size_t)(end - want) : strlen(want);
	ck_assert_msg(!r->placed || !*r->reason, "%s | %s: %s", c->nodes, c->queue, r->reason);
	if (r->placed)
		ck_assert_msg(strlen(got.data) == len && memcmp(got.data, want, len) == 0,
		              "%s | %s: got %s, want %s", c->nodes, c->queue, got.data, c->want);
	else
		ck_assert_msg(memmem(got.data, got.len, want + 2, len - 2), "%s | %s: got %s, want %s",
		              c->nodes, c->queue, got.data, c->want);
}

START_TEST(scheduler_table)
{
	const struct sched_case *c = &sched_cases[_i];
	char nodes_text[256], queue_text[256], *hosts[8][4];
	struct sched_node nodes[8];
	struct sched_run queue[8];
	struct error err = ERROR_INIT;
	size_t n = parse_nodes(c->nodes, nodes, nodes_text),
	       q = parse_queue(c->queue, queue, queue_text, hosts);

	ck_ok(schedule(nodes, n, queue, q, &err), &err);
	for (size_t i = 0; i < q; i++) {
		compare(c, &queue[i], nodes);
		free(queue[i].chosen);
		free(queue[i].slots);
	}
	for (size_t i = 0; i < n; i++)
		free(nodes[i].taken);
}
END_TEST

/* Nodes on which an earlier attempt has failed: names in any case. */
START_TEST(nodes_are_avoided_where_others_suffice)
{
	static const struct {
		struct sched_case c;
		const char *avoid[2];
	} cases[] = {
	    {{"a:U b:U", "1:1x1", "1=b[0]"}, {"a"}},
	    {{"a:U b:U", "1:1x1", "1=b[0]"}, {"A"}},
	    {{"a:U b:T", "1:1x1", "1=a[0]"}, {"a"}},
	    {{"a:U b:U c:U", "1:2x1", "1=b[0]+c[0]"}, {"a"}},
	    {{"a:U b:U c:T", "1:2x1", "1=a[0]+b[0]"}, {"a"}},
	    {{"a:U b:U c:U", "1:3x1", "1=a[0]+b[0]+c[0]"}, {"a"}},
	    {{"a:UU b:UT", "1:1x2", "1=a[0,1]"}, {"a"}},
	    /* One that it may not use anyway, and one twice. */
	    {{"a:U b:U c:U d:U", "1:2x1@a,b,c", "1=b[0]+c[0]"}, {"a", "d"}},
	    {{"a:U b:U c:U", "1:2x1", "1=b[0]+c[0]"}, {"a", "A"}},
	    {{"a:U b:U c:U", "1:2x1", "1=b[0]+c[0]"}, {"a", "x"}},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		const struct sched_case *c = &cases[i].c;
		char nodes_text[256], queue_text[256], *hosts[8][4];
		char *avoid[] = {(char *)cases[i].avoid[0], (char *)cases[i].avoid[1], NULL};
		struct sched_node nodes[8];
		struct sched_run queue[8];
		struct error err = ERROR_INIT;
		size_t n = parse_nodes(c->nodes, nodes, nodes_text);

		ck_assert_uint_eq(parse_queue(c->queue, queue, queue_text, hosts), 1);
		queue[0].avoid = avoid;
		ck_ok(schedule(nodes, n, queue, 1, &err), &err);
		compare(c, &queue[0], nodes);
		free(queue[0].chosen);
		free(queue[0].slots);
		while (n > 0)
			free(nodes[--n].taken);
	}
}
END_TEST

/* Runs of two users with limits, and of one without. */
START_TEST(slots_of_a_user_are_limited)
{
	static const struct {
		struct sched_case c;
		const char *owners; /* of each run: a, b or - */
		int64_t limit, held, most;
	} cases[] = {
	    {{"a:UUUU", "1:1x2 2:1x1 3:1x1",
	      "1=a[0,1] 2=a[2] 3?waits for other runs of user ann to end: they have 3 of 3 slots (user_slots "
	      "of dtraind.conf)"},
	     "aaa",
	     3,
	     0,
	     0},
	    /* Others pass, also on the only node; later ones of the same user do not. */
	    {{"a:UUUU", "1:1x2 2:1x1 3:1x1 4:1x4",
	      "1?waits for other runs of user ann to end: they have 2 of 3 slots 2?waits behind run 1 of the "
	      "same user, whose runs have 2 of 3 slots 3=a[0] 4?waits for 1 node with 4 free"},
	     "aab-",
	     3,
	     2,
	     0},
	    /* What asks for more than the limit holds up nobody. */
	    {{"a:UUUU", "1:1x4 2:1x2",
	      "1?asks for 4 slots; the runs of a user may have 3 at once (user_slots of dtraind.conf) "
	      "2=a[0,1]"},
	     "aa",
	     3,
	     0,
	     0},
	    {{"a:UUUU", "1:1xall", "1?asks for 4 slots; the runs of a user may have 3 at once"},
	     "a",
	     3,
	     0,
	     0},
	    /* As many nodes as the limit leaves. */
	    {{"a:UU b:UU c:UU", "1:1x2", "1=a[0,1]+b[0,1]+c[0,1]"}, "-", 5, 0, 3},
	    {{"a:UU b:UU c:UU", "1:1x2", "1=a[0,1]+b[0,1]"}, "a", 5, 0, 3},
	    {{"a:UU b:UU c:UU", "1:1x2", "1=a[0,1]"}, "a", 5, 2, 3},
	    {{"a:UU b:UU c:UU", "1:1x2", "1?waits for other runs of user ann"}, "a", 5, 4, 3},
	    /* The limit was lowered below what the user has. */
	    {{"a:UU", "1:1x1", "1?waits for other runs of user ann to end: they have 4 of 2 slots"},
	     "a",
	     2,
	     4,
	     0},
	    /* What can't run for another reason says that one. */
	    {{"a:UU -b:UU", "1:2x2 2:1x2", "1?waits for node b, which is down 2=a[0,1]"}, "aa", 4, 0, 0},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		struct sched_user users[] = {{.name = "ann", .limit = cases[i].limit, .held = cases[i].held},
		                             {.name = "bob", .limit = cases[i].limit}};
		const struct sched_case *c = &cases[i].c;
		char nodes_text[256], queue_text[256], *hosts[8][4];
		struct sched_node nodes[8];
		struct sched_run queue[8];
		struct error err = ERROR_INIT;
		size_t n = parse_nodes(c->nodes, nodes, nodes_text),
		       q = parse_queue(c->queue, queue, queue_text, hosts);

		ck_assert_uint_eq(strlen(cases[i].owners), q);
		for (size_t k = 0; k < q; k++) {
			queue[k].user = cases[i].owners[k] == '-' ? NULL : &users[cases[i].owners[k] - 'a'];
			queue[k].most = cases[i].most;
		}
		ck_ok(schedule(nodes, n, queue, q, &err), &err);
		for (size_t k = 0; k < q; k++) {
			compare(c, &queue[k], nodes);
			free(queue[k].chosen);
			free(queue[k].slots);
		}
		while (n > 0)
			free(nodes[--n].taken);
	}
}
END_TEST

START_TEST(a_run_above_the_limit_of_its_user_is_impossible)
{
	struct sched_user user = {.name = "ann", .limit = 3, .held = 3};
	bool taken[4] = {true, true, true, true};
	struct sched_node node = {.name = "a", .up = true, .slots = 4, .taken = taken, .kind = SLOT_CPU};
	struct sched_run r = {.id = 1, .user = &user, .nodes = 1, .per_node = 3};
	struct error err = ERROR_INIT;

	ck_ok(schedule_possible(&node, 1, &r, &err), &err);
	r.per_node = 4;
	ck_assert_int_eq(schedule_possible(&node, 1, &r, &err), -ENODEV);
	ck_assert_str_eq(
	    r.reason, "asks for 4 slots; the runs of a user may have 3 at once (user_slots of dtraind.conf)");
}
END_TEST

/* Run 1 waits for both nodes. What is kept for run 2 on the first one is free to it all the same, and to no
 * other: what is kept for run 3 is not. */
START_TEST(what_is_kept_for_a_run_is_its_own)
{
	static char first[] = "a", second[] = "b";
	const struct spare_record held = {.node = first};
	bool taken[2] = {true, true};
	int64_t kept_for[2] = {2, 3};
	struct sched_node nodes[] = {
	    {.name = first, .up = true, .slots = 1, .taken = taken, .kept_for = kept_for, .kind = SLOT_CPU},
	    {.name = second,
	     .up = true,
	     .slots = 1,
	     .taken = taken + 1,
	     .kept_for = kept_for + 1,
	     .kind = SLOT_CPU},
	};
	struct sched_run queue[] = {
	    {.id = 1, .nodes = 2, .per_node = 1, .working = 2},
	    {.id = 2, .nodes = 1, .per_node = 1, .working = 1, .held = &held, .held_count = 1},
	    {.id = 4, .nodes = 1, .per_node = 1, .working = 1},
	};
	struct error err = ERROR_INIT;

	ck_ok(schedule(nodes, 2, queue, ARRAY_SIZE(queue), &err), &err);
	ck_assert(!queue[0].placed);
	ck_assert(queue[1].placed);
	ck_assert_uint_eq(queue[1].chosen[0], 0);
	ck_assert(!queue[2].placed);
	ck_assert_str_eq(queue[2].reason, "waits behind run 1");
	ck_assert(taken[0] && taken[1]);
	free(queue[1].chosen);
	free(queue[1].slots);
}
END_TEST

/* Run 1 gets the slot that is kept for run 4, which cannot begin. That run 2, behind it, waits for other runs
 * of their user, is no obstacle: run 3, behind that one, waits for it all the same. */
START_TEST(what_is_kept_goes_to_the_first_run_of_a_user)
{
	static char first[] = "a", second[] = "b";
	const struct spare_record held = {.node = first};
	bool taken[2] = {true, true};
	int64_t kept_for[2] = {4, 0};
	struct sched_node nodes[] = {
	    {.name = first, .up = true, .slots = 1, .taken = taken, .kept_for = kept_for, .kind = SLOT_CPU},
	    {.name = second, .up = true, .slots = 1, .taken = taken + 1, .kind = SLOT_CPU},
	};
	struct sched_user user = {.name = "ann", .limit = 2, .held = 1};
	struct sched_run queue[] = {
	    {.id = 1, .user = &user, .nodes = 1, .per_node = 1, .working = 1},
	    {.id = 2, .user = &user, .nodes = 2, .per_node = 1, .working = 2},
	    {.id = 3, .user = &user, .nodes = 1, .per_node = 1, .working = 1},
	    {.id = 4, .nodes = 2, .per_node = 1, .working = 2, .held = &held, .held_count = 1},
	    {.id = 5, .nodes = 1, .per_node = 1, .working = 1}, /* asks for the same as run 1 */
	};
	struct error err = ERROR_INIT;

	ck_ok(schedule(nodes, 2, queue, ARRAY_SIZE(queue), &err), &err);
	ck_assert(queue[0].placed);
	ck_assert_uint_eq(queue[0].chosen[0], 0);
	ck_assert_int_eq(user.held, 2);
	ck_assert_str_eq(queue[1].reason,
	                 "waits for other runs of user ann to end: they have 1 of 2 slots (user_slots of "
	                 "dtraind.conf)");
	ck_assert_str_eq(queue[2].reason,
	                 "waits behind run 2 of the same user, whose runs have 1 of 2 slots (user_slots of "
	                 "dtraind.conf)");
	ck_assert(!queue[1].placed && !queue[2].placed && !queue[3].placed && !queue[4].placed);
	ck_assert(taken[0] && taken[1]);
	free(queue[0].chosen);
	free(queue[0].slots);
}
END_TEST

enum { MANY_NODES = 12, MANY_RUNS = 60, MANY_SLOTS = 4 };

/* Random nodes and runs; all of it is a function of the seed. all: what the runs ask for by name; NULL: none.
 */
static void make_many(unsigned seed, char **all, struct sched_node *nodes, struct sched_run *queue)
{
	for (size_t i = 0; i < MANY_NODES; i++) {
		size_t slots = 1 + rand_r(&seed) % MANY_SLOTS;

		nodes[i] = (struct sched_node){.name = str_printf("n%zu", i),
		                               .up = rand_r(&seed) % 8,
		                               .slots = slots,
		                               .taken = calloc(slots, sizeof(bool)),
		                               .kind = rand_r(&seed) % 3 ? SLOT_GPU : SLOT_CPU};
		for (size_t k = 0; k < slots; k++)
			nodes[i].taken[k] = rand_r(&seed) % 3 == 0;
	}
	for (size_t q = 0; q < MANY_RUNS; q++) {
		int64_t n = 1 + rand_r(&seed) % 3;

		queue[q] = (struct sched_run){.id = (int64_t)q + 1,
		                              .nodes = n,
		                              .most = n + rand_r(&seed) % 2,
		                              .working = n,
		                              .per_node = rand_r(&seed) % (MANY_SLOTS + 1),
		                              .kind = rand_r(&seed) % 3,
		                              .hosts = all};
	}
}

static void free_many(struct sched_node *nodes, struct sched_run *queue)
{
	for (size_t i = 0; i < MANY_NODES; i++) {
		free((char *)nodes[i].name);
		free(nodes[i].taken);
	}
	for (size_t q = 0; q < MANY_RUNS; q++) {
		free(queue[q].chosen);
		free(queue[q].slots);
	}
}

/* What is worked out once for all runs that ask for the same is what each of them would find: a run that
 * names all nodes is looked at alone. */
START_TEST(runs_that_ask_for_the_same_find_the_same)
{
	static char *all[] = {"n0", "n1", "n2", "n3", "n4", "n5", "n6", "n7", "n8", "n9", "n10", "n11", NULL};
	struct sched_node nodes[MANY_NODES], named_nodes[MANY_NODES];
	struct sched_run queue[MANY_RUNS], named[MANY_RUNS];
	struct error err = ERROR_INIT;

	make_many(_i, NULL, nodes, queue);
	make_many(_i, all, named_nodes, named);
	ck_ok(schedule(nodes, MANY_NODES, queue, MANY_RUNS, &err), &err);
	ck_ok(schedule(named_nodes, MANY_NODES, named, MANY_RUNS, &err), &err);
	for (size_t q = 0; q < MANY_RUNS; q++) {
		size_t n = (size_t)(queue[q].placed_nodes + queue[q].placed_spares);

		ck_assert_int_eq(queue[q].placed, named[q].placed);
		if (!queue[q].placed) {
			if (!strstr(queue[q].reason, "the cluster has"))
				ck_assert_str_eq(queue[q].reason, named[q].reason);
			continue;
		}
		ck_assert_int_eq(queue[q].placed_nodes, named[q].placed_nodes);
		ck_assert_mem_eq(queue[q].chosen, named[q].chosen, n * sizeof(*queue[q].chosen));
		ck_assert_mem_eq(queue[q].slots, named[q].slots,
		                 n * (size_t)queue[q].per_node * sizeof(*queue[q].slots));
	}
	free_many(nodes, queue);
	free_many(named_nodes, named);
}
END_TEST

START_TEST(a_pass_places_so_many_at_most)
{
	bool taken[4] = {false};
	struct sched_node node = {.name = "a", .up = true, .slots = 4, .taken = taken, .kind = SLOT_CPU};
	struct sched_run queue[4];
	struct error err = ERROR_INIT;
	size_t done;

	for (int i = 0; i < 4; i++)
		queue[i] = (struct sched_run){.id = i + 1, .nodes = 1, .per_node = 1, .working = 1};
	ck_ok(schedule_some(&node, 1, queue, 4, 3, &done, &err), &err);
	ck_assert_uint_eq(done, 3);
	for (int i = 0; i < 4; i++) {
		ck_assert_int_eq(queue[i].placed, i < 3);
		free(queue[i].chosen);
		free(queue[i].slots);
	}
	ck_assert(!taken[3]);
}
END_TEST

/* One more than what is remembered of nodes for runs that ask for the same, and some. */
START_TEST(runs_of_many_shapes_wait_one_behind_the_other)
{
	enum { SHAPES = 80 };
	bool taken[100];
	struct sched_node node = {.name = "a", .up = true, .slots = 100, .taken = taken, .kind = SLOT_CPU};
	struct sched_run queue[SHAPES + 1];
	struct error err = ERROR_INIT;

	memset(taken, true, sizeof(taken));
	taken[0] = false;
	for (int i = 0; i <= SHAPES; i++)
		queue[i] = (struct sched_run){
		    .id = i + 1, .nodes = 1, .per_node = 2 + i % SHAPES, .working = 1, .kind = SLOT_CPU};
	ck_ok(schedule(&node, 1, queue, SHAPES + 1, &err), &err);
	ck_assert_str_eq(queue[0].reason, "waits for 1 node with 2 free CPU slots: 0 now");
	for (int i = 0; i <= SHAPES; i++) {
		ck_assert(!queue[i].placed);
		ck_assert(i == 0 || str_eq(queue[i].reason, "waits behind run 1"));
	}
}
END_TEST

/* Of the nodes that the run has not, up to the limit of its user. */
static const struct {
	int64_t per_node, limit, held;
	bool has_second, placed;
} spare_cases[] = {
    {2, 0, 0, false, true},  {2, 5, 3, false, true}, {2, 5, 4, false, false},
    {3, 0, 0, false, false}, {2, 0, 0, true, false}, {1, 5, 4, false, true},
};

START_TEST(a_spare_is_found_within_the_limit)
{
	bool taken[2][2] = {{false, false}, {false, false}}, has[] = {true, spare_cases[_i].has_second};
	struct sched_node nodes[] = {
	    {.name = "a", .up = true, .slots = 2, .taken = taken[0], .kind = SLOT_CPU},
	    {.name = "b", .up = true, .slots = 2, .taken = taken[1], .kind = SLOT_CPU},
	    {.name = NULL}};
	struct sched_user user = {
	    .name = "ann", .limit = spare_cases[_i].limit, .held = spare_cases[_i].held};
	struct sched_run r = {.id = 1,
	                      .nodes = 1,
	                      .most = 1,
	                      .spares = 1,
	                      .placed = true,
	                      .per_node = spare_cases[_i].per_node,
	                      .kind = SLOT_CPU,
	                      .user = spare_cases[_i].limit ? &user : NULL};
	struct error err = ERROR_INIT;

	ck_ok(schedule_spare(nodes, 2, has, &r, &err), &err);
	ck_assert_int_eq(r.placed, spare_cases[_i].placed);
	ck_assert_int_eq(taken[1][0], r.placed);
	ck_assert(!taken[0][0]);
	if (!r.placed)
		return;
	ck_assert_uint_eq(r.chosen[0], 1);
	ck_assert_int_eq(r.slots[0], 0);
	ck_assert_int_eq(user.held, spare_cases[_i].held + (r.user ? r.per_node : 0));
	free(r.chosen);
	free(r.slots);
}
END_TEST

/* What is kept for it is its own, also where its user has more than the limit by now. */
START_TEST(what_is_kept_is_enough_above_the_limit)
{
	static char name[] = "a";
	int64_t slots[] = {0}, kept_for[] = {7, 0};
	const struct spare_record held = {.node = name, .slots = slots, .slot_count = 1};
	bool taken[] = {true, false};
	struct sched_node node = {
	    .name = name, .up = true, .slots = 2, .taken = taken, .kept_for = kept_for, .kind = SLOT_CPU};
	struct sched_user user = {.name = "ann", .limit = 1, .held = 3};
	struct sched_run r = {.id = 7,
	                      .user = &user,
	                      .nodes = 1,
	                      .most = 1,
	                      .working = 1,
	                      .per_node = _i + 1,
	                      .kind = SLOT_CPU,
	                      .held = &held,
	                      .held_count = 1};
	struct error err = ERROR_INIT;

	ck_ok(schedule(&node, 1, &r, 1, &err), &err);
	ck_assert_int_eq(r.placed, _i == 0);
	if (_i == 0)
		ck_assert_int_eq(r.slots[0], 0);
	ck_assert_int_eq(user.held, 3);
	free(r.chosen);
	free(r.slots);
}
END_TEST

/* A run with a range avoids a node, unless it got smaller by that. */
START_TEST(a_range_does_not_get_smaller_to_avoid_a_node)
{
	static char *avoid[] = {"a", NULL};
	bool taken[4] = {false};
	struct sched_node nodes[] = {{.name = "a"}, {.name = "b"}, {.name = "c"}, {.name = "d"}};
	struct sched_run r = {
	    .id = 1, .nodes = 1, .most = 3, .working = 1, .per_node = 1, .kind = SLOT_CPU, .avoid = avoid};
	struct error err = ERROR_INIT;

	for (int i = 0; i < 4; i++) {
		nodes[i].up = true;
		nodes[i].slots = 1;
		nodes[i].kind = SLOT_CPU;
		nodes[i].taken = &taken[i];
	}
	taken[3] = _i == 1;
	ck_ok(schedule(nodes, 4, &r, 1, &err), &err);
	ck_assert(r.placed);
	ck_assert_int_eq(r.placed_nodes, 3);
	ck_assert_int_eq(taken[0], _i == 1);
	free(r.chosen);
	free(r.slots);
}
END_TEST

/* Random histories, beside the scheduler that has no shortcuts. */

enum { NODES = 40, RUNS = 60, NAMED_MAX = NODES + 1, SLOTS = 4, USERS = 3, PASSES = 6, HELD_MAX = 4 };

/* What one of the two schedulers works on; the other one has a copy. */
struct world {
	struct sched_node nodes[NODES];
	bool taken[NODES][SLOTS];
	int64_t kept_for[NODES][SLOTS];
	struct sched_user users[USERS];
	struct sched_run queue[RUNS];
	size_t nodes_count, runs;
};

struct history {
	unsigned seed;
	char names[2][NODES + 2][16]; /* in two spellings; the last two are of no node */
	size_t order[NODES];          /* which of them is which node's */
	char *hosts[RUNS][NAMED_MAX + 1];
	char *avoid[RUNS][4];
	struct spare_record held[RUNS][HELD_MAX];
	int64_t held_slots[RUNS][HELD_MAX][SLOTS];
	struct sched_hosts found[RUNS];
	struct world fast, naive;
};

static int roll(struct history *h, int sides)
{
	return rand_r(&h->seed) % sides;
}

static void name_hosts(struct history *h, char **list, size_t most)
{
	size_t count = 1 + (size_t)roll(h, (int)most);

	for (size_t i = 0; i < count; i++)
		list[i] = h->names[roll(h, 2)][roll(h, NODES + (roll(h, 10) == 0 ? 2 : 0))];
	list[count] = NULL;
}

/* All nodes but a few, and at times one that is not there. */
static void name_most_hosts(struct history *h, char **list)
{
	size_t count = 0, without = (size_t)roll(h, NODES);

	for (size_t i = 0; i < NODES; i++)
		if (i != without && i != (without + 1) % NODES)
			list[count++] = h->names[roll(h, 2)][i];
	if (roll(h, 3) == 0)
		list[count++] = h->names[0][NODES + roll(h, 2)];
	list[count] = NULL;
}

/* The ways to ask are few, so that many runs share one. */
static void make_run(struct history *h, size_t q)
{
	struct sched_run *r = &h->fast.queue[q];

	*r = (struct sched_run){
	    .id = (int64_t)q + 1, .nodes = 1 + roll(h, 4), .working = 1, .kind = roll(h, 3)};
	r->most = r->nodes + (roll(h, 3) ? 0 : roll(h, 3));
	r->spares = roll(h, 6) ? 0 : 1;
	r->per_node = roll(h, SLOTS + 1);
	r->user = roll(h, 3) ? NULL : &h->fast.users[roll(h, USERS)];
	free(h->found[q].places);
	h->found[q] = (struct sched_hosts){0};
	if (roll(h, 2)) {
		if (roll(h, 2)) {
			name_most_hosts(h, h->hosts[q]);
			r->nodes = r->most = roll(h, 2) ? 4 : NODES - 1;
			r->per_node = 2;
			r->kind = SLOT_ANY;
		} else
			name_hosts(h, h->hosts[q], 4);
		r->hosts = h->hosts[q];
		r->found = roll(h, 4) ? &h->found[q] : NULL;
	}
	if (roll(h, 3) == 0) {
		name_hosts(h, h->avoid[q], 3);
		if (r->hosts && roll(h, 2))
			h->avoid[q][0] = h->hosts[q][0];
		r->avoid = h->avoid[q];
	}
}

/* All slots of some nodes that are free; at times a node is there twice, or has no slot that is. */
static void keep_for(struct history *h, size_t q)
{
	struct sched_run *r = &h->fast.queue[q];
	int count = 1 + roll(h, HELD_MAX);
	size_t node = 0;

	r->held = h->held[q];
	for (int i = 0; i < count; i++) {
		struct spare_record *held = &h->held[q][r->held_count];
		struct sched_node *n;

		if (i == 0 || roll(h, 2))
			node = (size_t)roll(h, (int)h->fast.nodes_count);
		n = &h->fast.nodes[node];
		*held = (struct spare_record){.node = h->names[roll(h, 2)][h->order[node]],
		                              .slots = h->held_slots[q][r->held_count],
		                              .worked = roll(h, 2)};
		for (size_t k = 0; k < n->slots; k++) {
			if (n->taken[k])
				continue;
			n->taken[k] = true;
			n->kept_for[k] = r->id;
			held->slots[held->slot_count++] = (int64_t)k;
		}
		r->held_count += held->slot_count > 0 || roll(h, 2);
	}
}

static void change_nodes(struct history *h)
{
	struct world *w = &h->fast;

	w->nodes_count = 1 + (size_t)roll(h, NODES);
	memset(w->kept_for, 0, sizeof(w->kept_for));
	for (size_t i = 0; i < w->nodes_count; i++) {
		size_t slots = 1 + (size_t)roll(h, SLOTS);

		w->nodes[i] = (struct sched_node){.name = h->names[0][h->order[i]],
		                                  .up = roll(h, 8),
		                                  .drained = !roll(h, 10),
		                                  .slots = slots,
		                                  .kind = roll(h, 3) ? SLOT_GPU : roll(h, 3),
		                                  .awaited = roll(h, 2)};
		if (w->nodes[i].kind == SLOT_ANY)
			w->nodes[i].slots = 0;
		for (size_t k = 0; k < slots; k++)
			w->taken[i][k] = roll(h, 3) == 0;
		w->nodes[i].broken = roll(h, 10) ? 0 : w->taken[i][0];
	}
}

/* Two nodes change places, which no run is told. */
static void swap_nodes(struct history *h)
{
	size_t a = (size_t)roll(h, NODES), b = (size_t)roll(h, NODES), order = h->order[a];

	h->order[a] = h->order[b];
	h->order[b] = order;
}

static void point(struct world *w, const struct world *from)
{
	for (size_t i = 0; i < w->nodes_count; i++) {
		w->nodes[i].taken = w->taken[i];
		w->nodes[i].kept_for = w->kept_for[i];
	}
	for (size_t q = 0; q < w->runs; q++) {
		if (w->queue[q].user)
			w->queue[q].user = &w->users[w->queue[q].user - from->users];
		w->queue[q].chosen = NULL;
		w->queue[q].slots = NULL;
	}
}

static void compare_worlds(const struct history *h)
{
	const struct world *a = &h->fast, *b = &h->naive;

	for (size_t q = 0; q < a->runs; q++) {
		const struct sched_run *x = &a->queue[q], *y = &b->queue[q];
		size_t n = (size_t)(x->placed_nodes + x->placed_spares);

		ck_assert_int_eq(x->placed, y->placed);
		ck_assert_str_eq(x->reason, y->reason);
		if (!x->placed)
			continue;
		ck_assert_int_eq(x->placed_nodes, y->placed_nodes);
		ck_assert_int_eq(x->placed_spares, y->placed_spares);
		ck_assert_int_eq(x->per_node, y->per_node);
		ck_assert_mem_eq(x->chosen, y->chosen, n * sizeof(*x->chosen));
		ck_assert_mem_eq(x->slots, y->slots, n * (size_t)x->per_node * sizeof(*x->slots));
	}
	ck_assert_mem_eq(a->taken, b->taken, sizeof(a->taken));
	ck_assert_mem_eq(a->kept_for, b->kept_for, sizeof(a->kept_for));
	for (size_t u = 0; u < USERS; u++) {
		ck_assert_int_eq(a->users[u].held, b->users[u].held);
		ck_assert_int_eq(a->users[u].waiting, b->users[u].waiting);
	}
}

static void free_placed(struct world *w)
{
	for (size_t q = 0; q < w->runs; q++) {
		free(w->queue[q].chosen);
		free(w->queue[q].slots);
	}
}

/* A pass of each; returns how many runs were placed. */
static int pass_of_both(struct history *h)
{
	size_t most = roll(h, 4) ? RUNS : 1 + (size_t)roll(h, 5), done, naive_done;
	struct error err = ERROR_INIT;
	int placed = 0;

	point(&h->fast, &h->fast);
	for (size_t u = 0; u < USERS; u++)
		h->fast.users[u] =
		    (struct sched_user){.name = "ann", .limit = 4 + roll(h, 20), .held = roll(h, 8)};
	for (size_t q = 0; q < h->fast.runs; q++) {
		h->fast.queue[q].held_count = 0;
		if (roll(h, 8) == 0)
			keep_for(h, q);
	}
	h->naive = h->fast;
	point(&h->naive, &h->fast);
	ck_ok(
	    schedule_some(h->fast.nodes, h->fast.nodes_count, h->fast.queue, h->fast.runs, most, &done, &err),
	    &err);
	ck_ok(naive_schedule_some(h->naive.nodes, h->naive.nodes_count, h->naive.queue, h->naive.runs, most,
	                          &naive_done, &err),
	      &err);
	ck_assert_uint_eq(done, naive_done);
	compare_worlds(h);
	for (size_t q = 0; q < h->fast.runs; q++)
		placed += h->fast.queue[q].placed;
	free_placed(&h->fast);
	free_placed(&h->naive);
	return placed;
}

START_TEST(shortcuts_change_nothing)
{
	struct history *h = calloc(1, sizeof(*h));
	int placed = 0;

	h->seed = (unsigned)_i + 1;
	for (int i = 0; i < NODES + 2; i++) {
		snprintf(h->names[i % 2][i], sizeof(h->names[0][i]), "n%d", i);
		snprintf(h->names[1 - i % 2][i], sizeof(h->names[0][i]), "N%d", i);
	}
	for (size_t i = 0; i < NODES; i++)
		h->order[i] = i;
	for (int k = 0; k < 20; k++) {
		h->fast.runs = 1 + (size_t)roll(h, RUNS);
		for (size_t q = 0; q < h->fast.runs; q++)
			make_run(h, q);
		for (int p = 0; p < PASSES; p++) {
			if (roll(h, 2))
				swap_nodes(h);
			change_nodes(h);
			placed += pass_of_both(h);
			/* What was placed asks for something else the next time. */
			for (size_t q = 0; q < h->fast.runs; q++)
				if (h->fast.queue[q].placed)
					make_run(h, q);
		}
	}
	ck_assert_int_gt(placed, 0);
	for (size_t q = 0; q < RUNS; q++)
		sched_hosts_clear(&h->found[q]);
	free(h);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("scheduler");
	TCase *c = tcase_create("scheduler");

	tcase_add_loop_test(c, scheduler_table, 0, ARRAY_SIZE(sched_cases));
	tcase_add_test(c, impossible_runs);
	tcase_add_test(c, a_long_list_of_nodes_is_cut);
	tcase_add_test(c, nodes_are_avoided_where_others_suffice);
	tcase_add_test(c, slots_of_a_user_are_limited);
	tcase_add_test(c, what_is_kept_for_a_run_is_its_own);
	tcase_add_test(c, what_is_kept_goes_to_the_first_run_of_a_user);
	tcase_add_test(c, a_run_above_the_limit_of_its_user_is_impossible);
	tcase_add_loop_test(c, runs_that_ask_for_the_same_find_the_same, 1, 41);
	tcase_add_test(c, a_pass_places_so_many_at_most);
	tcase_add_test(c, runs_of_many_shapes_wait_one_behind_the_other);
	tcase_add_loop_test(c, what_is_kept_is_enough_above_the_limit, 0, 2);
	tcase_add_loop_test(c, a_range_does_not_get_smaller_to_avoid_a_node, 0, 2);
	tcase_add_loop_test(c, a_spare_is_found_within_the_limit, 0, ARRAY_SIZE(spare_cases));
	tcase_add_loop_test(c, shortcuts_change_nothing, 0, 40);
	suite_add_tcase(s, c);
	return unit_run(s);
}

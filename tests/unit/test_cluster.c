/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/str.h"
#include "cluster/feed.h"
#include "cluster/members.h"
#include "cluster/queue.h"
#include "cluster/rendezvous.h"
#include "cluster/scheduler.h"
#include "cluster/store.h"
#include "unit.h"

/* One case of the scheduler in words. nodes: "n1:UUTD" (U free, T taken, D drained), "-" before it: down,
 * "~": drained. queue: "ID:NODESxSLOTS" with "@host,host" for a restriction. want: "ID=n1[0,1]+n2[0]" or
 * "ID?part of the reason". */
struct sched_case {
	const char *nodes, *queue, *want;
};

static const struct sched_case sched_cases[] = {
    {"a:U", "1:1x1", "1=a[0]"},
    {"a:UU b:UU", "1:2x2", "1=a[0,1]+b[0,1]"},
    {"a:UU b:UU", "1:2x1 2:2x1 3:2x1", "1=a[0]+b[0] 2=a[1]+b[1] 3?waits for 2 nodes with 1 free slot: 0 now"},
    /* A gang gets all its slots or none. */
    {"a:U b:T", "1:2x1", "1?waits for 2 nodes with 1 free slot: 1 now"},
    /* First come, first served: the small one does not slip past the large one. */
    {"a:UT", "1:1x2 2:1x1", "1?waits for 1 node with 2 free slots: 0 now 2?waits behind run 1"},
    /* But one that cannot use the same nodes does not wait for it. */
    {"a:UT b:U", "1:1x2 2:1x1", "1?waits for 1 node with 2 free 2=b[0]"},
    {"a:TT b:U", "1:1x2@a 2:1x1@b", "1?waits for 1 node 2=b[0]"},
    /* What the cluster never has holds nobody up. */
    {"a:U b:U", "1:4x1 2:1x1", "1?asks for 4 nodes, the cluster has 2 2=a[0]"},
    {"a:UUUU b:UU", "1:1x8", "1?asks for 8 slots on a node, the largest has 4"},
    {"a:UUUU b:UU", "1:2x4", "1?asks for 2 nodes with 4 slots each, the cluster has 1"},
    {"a:U b:U", "1:1x1@c", "1?asks for host c, which is not in the cluster"},
    {"a:U b:U", "1:2x1@a", "1?asks for 2 nodes, but names 1 host"},
    {"a:U -b:U", "1:2x1 2:1x1", "1?waits for node b, which is down 2=a[0]"},
    {"a:U ~b:U", "1:2x1 2:1x1", "1?waits for node b, which is drained 2=a[0]"},
    {"-a: b:U", "1:2x1", "1?waits for node a, which is down"},
    {"-a:U ~b:U", "1:1x1", "1?which is drained"},
    /* The fullest node that fits; names in any case. */
    {"a:UUUU b:UTTT", "1:1x1 2:1x4", "1=b[0] 2=a[0,1,2,3]"},
    {"a:U b:U", "1:1x1@B", "1=b[0]"},
    {"a:TUTU", "1:1x2", "1=a[1,3]"},
    {"", "1:1x1", "1?asks for 1 nodes, the cluster has 0"},
    /* A drained slot is not given away, and holds up nobody but who needs it. */
    {"a:DU", "1:1x1", "1=a[1]"},
    {"a:UUUD b:UU", "1:1x4 2:1x3", "1?waits for node a, of whose 4 slots 1 is drained 2=a[0,1,2]"},
    {"a:DDU", "1:1x3", "1?waits for node a, of whose 3 slots 2 are drained"},
};

static size_t parse_nodes(const char *text, struct sched_node *nodes, char *copy)
{
	char *save, *word;
	size_t n = 0;

	strcpy(copy, text);
	for (word = strtok_r(copy, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
		char *slots = strchr(word, ':');
		bool down = *word == '-', drained = *word == '~';

		*slots++ = '\0';
		nodes[n] = (struct sched_node){.name = word + (down || drained),
		                               .up = !down,
		                               .drained = drained,
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
		long long id, nodes, slots;
		char *at = strchr(word, '@');
		size_t h = 0;

		ck_assert_int_eq(sscanf(word, "%lld:%lldx%lld", &id, &nodes, &slots), 3);
		queue[n] = (struct sched_run){.id = id, .nodes = nodes, .per_node = slots};
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
	for (int64_t i = 0; i < r->nodes; i++) {
		strbuf_addf(b, "%s%s[", i ? "+" : "=", nodes[r->chosen[i]].name);
		for (int64_t k = 0; k < r->per_node; k++)
			strbuf_addf(b, "%s%d", k ? "," : "", r->slots[i * r->per_node + k]);
		strbuf_addc(b, ']');
	}
}

/* What waits though nothing is up could run; what the cluster is too small for could not. */
START_TEST(impossible_runs)
{
	static const struct {
		const char *nodes, *run, *reason;
	} cases[] = {
	    {"a:U b:U", "1:2x1", NULL},
	    {"-a:U b:T", "1:2x1", NULL},
	    {"a:U -b:", "1:2x8", "asks for 2 nodes with 8 slots each, the cluster has 1"},
	    {"-a: -b:", "1:2x8", NULL}, /* never heard of: nobody knows */
	    {"a:UU b:U", "1:3x1", "asks for 3 nodes, the cluster has 2"},
	    {"a:U b:U", "1:1x1@c", "asks for host c, which is not in the cluster"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		char node_text[100], run_text[100], *hosts[1][4];
		struct sched_node nodes[4];
		struct sched_run r;
		size_t n = parse_nodes(cases[i].nodes, nodes, node_text);

		parse_queue(cases[i].run, &r, run_text, hosts);
		ck_assert_int_eq(schedule_possible(nodes, n, &r), !cases[i].reason);
		ck_assert_str_eq(r.reason, cases[i].reason ? cases[i].reason : "");
		while (n > 0)
			free(nodes[--n].taken);
	}
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

static struct run *make_run(int nodes, int per_node)
{
	_cleanup_json_ json_t *config =
	    json_pack("{s:s,s:s,s:s,s:{s:i,s:i,s:i}}", "task", "command", "name", "test", "directory", "/tmp",
	              "resources", "nodes", nodes, "devices_per_node", per_node, "grace", 7);
	struct error err = ERROR_INIT;
	struct run *r = NULL;

	ck_ok(run_new(config, &r, &err), &err);
	r->user = strdup("alice");
	r->uid = r->gid = 1000;
	r->id = 1;
	return r;
}

static void place(struct run *r)
{
	char *names[] = {(char *)"n1", (char *)"n2"};
	int slots[] = {0, 1};
	struct error err = ERROR_INIT;

	ck_ok(run_place(r, names, slots, 100, &err), &err);
}

static unsigned report_with(struct run *r, const char *node, const char *state, const char *rank,
                            const char *more)
{
	_cleanup_free_ char *text = str_printf("{\"run\":1,\"attempt\":%lld,\"node\":\"%s\",\"state\":\"%s\","
	                                       "%s\"ranks\":[%s]}",
	                                       (long long)r->attempt, node, state, more, rank);
	_cleanup_json_ json_t *json = json_loads(text, 0, NULL);

	ck_assert_ptr_nonnull(json);
	return run_report(r, json, 200);
}

static unsigned report(struct run *r, const char *node, const char *state, const char *rank)
{
	return report_with(r, node, state, rank, "");
}

#define RANK0_OK "{\"rank\":0,\"state\":\"exited\",\"exit_status\":0}"
#define RANK1_OK "{\"rank\":1,\"state\":\"exited\",\"exit_status\":0}"
#define RANK1_KILLED                                                                                         \
	"{\"rank\":1,\"state\":\"exited\",\"exit_status\":137,\"signal\":\"SIGKILL\",\"ended\":5.0,"         \
	"\"error\":\"killed by SIGKILL\\nlast line\"}"

START_TEST(run_succeeds)
{
	_cleanup_(run_freep) struct run *r = make_run(2, 1);
	_cleanup_json_ json_t *json = NULL;

	place(r);
	ck_assert_int_eq(r->state, RUN_STARTING);
	ck_assert_uint_eq(report(r, "n1", "running", "{\"rank\":0,\"state\":\"running\",\"pid\":11}"), 0);
	ck_assert_int_eq(r->state, RUN_STARTING);
	ck_assert_uint_eq(report(r, "n2", "running", "{\"rank\":1,\"state\":\"running\",\"pid\":12}"), 0);
	ck_assert_int_eq(r->state, RUN_RUNNING);
	/* One node cannot speak for another's rank. */
	report(r, "n2", "running", "{\"rank\":0,\"state\":\"exited\",\"exit_status\":9}");
	ck_assert_int_eq(r->state, RUN_RUNNING);
	ck_assert_uint_eq(report(r, "n1", "ended", RANK0_OK), 0);
	ck_assert_uint_eq(report(r, "n2", "ended", RANK1_OK), RUN_ENDED);
	ck_assert_int_eq(r->state, RUN_SUCCEEDED);
	json = run_to_json(r);
	ck_assert_int_eq(json_get_int(json, "exit_status", -1), 0);
	ck_assert_uint_eq(json_array_size(json_object_get(json, "nodes")), 2);
}
END_TEST

START_TEST(run_fails_with_the_first_cause)
{
	_cleanup_(run_freep) struct run *r = make_run(2, 1);

	place(r);
	report(r, "n1", "running", "");
	report(r, "n2", "running", "");
	ck_assert_uint_eq(report(r, "n2", "stopping", RANK1_KILLED), RUN_STOP);
	ck_assert_int_eq(r->state, RUN_STOPPING);
	ck_assert_uint_eq(report(r, "n2", "ended", RANK1_KILLED), 0);
	/* The survivor dies of the stop: that is not the cause. */
	ck_assert_uint_eq(
	    report(r, "n1", "ended",
	           "{\"rank\":0,\"state\":\"exited\",\"exit_status\":143,\"signal\":\"SIGTERM\"}"),
	    RUN_ENDED);
	ck_assert_int_eq(r->state, RUN_FAILED);
	ck_assert_int_eq(r->exit_status, 137);
	ck_assert_str_eq(r->reason, "rank 1 on n2: killed by SIGKILL\nlast line");
	/* The same end a second time is nothing new. */
	ck_assert_uint_eq(report(r, "n2", "ended", RANK1_KILLED), 0);
}
END_TEST

/* A device that fails is the cause, whether its node says so before or after the rank has failed of it. */
START_TEST(run_fails_with_its_device)
{
	static const char *const error =
	    "\"device_errors\":[\"GPU 3 (GPU-x) of n2: Xid 79: fell off the bus\"],";
	static const char *const want =
	    "GPU 3 (GPU-x) of n2: Xid 79: fell off the bus; rank 1 on n2: killed by SIGKILL\nlast line";

	for (int late = 0; late < 2; late++) {
		_cleanup_(run_freep) struct run *r = make_run(2, 1);

		place(r);
		report(r, "n1", "running", "");
		report_with(r, "n2", "running", "", late ? "" : error);
		ck_assert_int_eq(r->state, RUN_RUNNING); /* it may get over it */
		report_with(r, "n2", "stopping", RANK1_KILLED, late ? "" : error);
		report_with(r, "n2", "ended", RANK1_KILLED, error);
		report(r, "n1", "ended", RANK0_OK);
		ck_assert_int_eq(r->state, RUN_FAILED);
		ck_assert_str_eq(r->reason, want);
	}
}
END_TEST

START_TEST(run_worker_says_why)
{
	_cleanup_(run_freep) struct run *r = make_run(1, 1);

	place(r);
	run_worker_error(r, 0, "no such column: text");
	report(r, "n1", "ended",
	       "{\"rank\":0,\"state\":\"exited\",\"exit_status\":1,\"error\":\"exit status 1\"}");
	ck_assert_str_eq(r->reason, "rank 0 on n1: exit status 1: no such column: text");
}
END_TEST

START_TEST(run_is_cancelled)
{
	_cleanup_(run_freep) struct run *r = make_run(2, 1), *queued = make_run(1, 1);

	place(r);
	ck_assert_uint_eq(run_cancel(r, 150), RUN_STOP);
	ck_assert_uint_eq(run_cancel(r, 151), 0);
	report(r, "n1", "ended", RANK0_OK);
	ck_assert_uint_eq(report(r, "n2", "ended", RANK1_KILLED), RUN_ENDED);
	ck_assert_int_eq(r->state, RUN_CANCELLED);
	ck_assert_uint_eq(run_cancel(queued, 150), RUN_ENDED);
	ck_assert_int_eq(queued->state, RUN_CANCELLED);
}
END_TEST

START_TEST(run_is_refused_or_lost)
{
	_cleanup_(run_freep) struct run *r = make_run(2, 1);

	/* Slots that somebody else has: back into the queue, with the next number. */
	place(r);
	ck_assert_uint_eq(run_refused(r, run_part_find(r, "n2"), true, "slot 1 is leased to run 9", 150),
	                  RUN_STOP);
	ck_assert_uint_eq(report(r, "n1", "ended", RANK0_OK), RUN_ENDED);
	ck_assert_int_eq(r->state, RUN_QUEUED);
	place(r);
	ck_assert_int_eq(r->attempt, 2);
	/* A preflight that fails is the run's own fault. */
	run_refused(r, run_part_find(r, "n2"), false, "no directory /data", 150);
	ck_assert_uint_eq(run_refused(r, run_part_find(r, "n1"), false, "no directory /data either", 150),
	                  RUN_ENDED);
	ck_assert_int_eq(r->state, RUN_FAILED);
	ck_assert_str_eq(r->reason, "node n2: no directory /data");
	ck_assert_str_eq(json_get_string(json_array_get(r->ranks, 0), "state", ""), "not-started");

	r->state = RUN_QUEUED;
	place(r);
	ck_assert_uint_eq(run_part_lost(r, run_part_find(r, "n2"), "node n2 is down", 160), RUN_STOP);
	ck_assert_uint_eq(report(r, "n1", "ended", RANK0_OK), RUN_ENDED);
	ck_assert_int_eq(r->state, RUN_FAILED);
	ck_assert_str_eq(r->reason, "node n2 is down");
}
END_TEST

static int count_run(void *context, struct run *r, struct error *err)
{
	int64_t *seen = context;

	ck_assert(seen[0] == 0 || r->id < seen[0]);
	seen[0] = r->id;
	seen[1]++;
	run_free(r);
	return 0;
}

START_TEST(store_survives)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_printf("%s/dtrain.db", dir), *config = NULL;
	_cleanup_(store_closep) struct store *s = NULL, *second = NULL;
	_cleanup_(run_freep) struct run *r = make_run(2, 1), *back = NULL;
	struct error err = ERROR_INIT;
	int64_t seen[2] = {0, 0};
	struct stat st;

	ck_ok(store_open(path, &s, &err), &err);
	ck_assert_int_eq(stat(path, &st), 0);
	ck_assert_uint_eq(st.st_mode & 0777, 0600);
	ck_assert_int_eq(store_open(path, &second, &err), -EBUSY);
	ck_assert_ptr_nonnull(strstr(err.message, "another dtraind"));
	ck_ok(store_insert(s, r, "{\"task\":\"command\"}", &err), &err);
	ck_assert_int_eq(r->id, 1);
	place(r);
	run_set_reason(r, "because");
	r->progress = json_pack("{s:i}", "step", 5);
	ck_ok(store_update(s, r, &err), &err);
	ck_ok(store_commit(s, &err), &err);
	ck_ok(store_set_drained(s, "n2", true, &err), &err);
	ck_ok(store_commit(s, &err), &err);
	/* Not committed: as if it had never been. */
	ck_ok(store_insert(s, r, "{}", &err), &err);
	store_close(steal_pointer(s));

	ck_ok(store_open(path, &s, &err), &err);
	ck_ok(store_get(s, 1, &back, &err), &err);
	ck_assert_str_eq(back->user, "alice");
	ck_assert_int_eq(back->state, RUN_STARTING);
	ck_assert_int_eq(back->attempt, 1);
	ck_assert_str_eq(back->reason, "because");
	ck_assert_int_eq(json_get_int(back->progress, "step", 0), 5);
	ck_ok(run_recover(back, &err), &err);
	ck_assert_uint_eq(back->part_count, 2);
	ck_ok(store_config(s, 1, &config, &err), &err);
	ck_assert_str_eq(config, "{\"task\":\"command\"}");
	ck_assert_int_eq(store_get(s, 2, &back, &err), -ENOENT);
	ck_assert(store_drained(s, "n2") && !store_drained(s, "n1"));
	ck_ok(store_list(s, run_state_set("all"), 0, 10, count_run, seen, &err), &err);
	ck_assert_int_eq(seen[1], 1);
	file_remove_tree(dir, NULL);
}
END_TEST

/* The times are printed, not judged: a test machine may be busy. */
START_TEST(store_many)
{
	_cleanup_free_ char *dir = unit_tmpdir(), *path = str_printf("%s/dtrain.db", dir);
	_cleanup_(store_closep) struct store *s = NULL;
	_cleanup_(run_freep) struct run *r = make_run(1, 1);
	struct error err = ERROR_INIT;
	int64_t all[2] = {0, 0}, active[2] = {0, 0}, counts[RUN_STATES];
	double t;

	ck_ok(store_open(path, &s, &err), &err);
	t = clock_monotonic();
	for (int i = 0; i < 11000; i++) {
		r->state = i < 10000 ? RUN_SUCCEEDED : RUN_QUEUED;
		ck_ok(store_insert(s, r, "{\"task\":\"command\"}", &err), &err);
	}
	ck_ok(store_commit(s, &err), &err);
	printf("11000 runs written: %.1f ms\n", (clock_monotonic() - t) * 1e3);
	t = clock_monotonic();
	ck_ok(store_list(s, run_state_set("all"), 0, 100, count_run, all, &err), &err);
	printf("newest 100 listed: %.2f ms\n", (clock_monotonic() - t) * 1e3);
	ck_assert_int_eq(all[1], 100);
	memset(all, 0, sizeof(all));
	t = clock_monotonic();
	ck_ok(store_list(s, run_state_set("all"), 0, 100000, count_run, all, &err), &err);
	printf("all 11000 listed: %.1f ms\n", (clock_monotonic() - t) * 1e3);
	ck_assert_int_eq(all[1], 11000);
	t = clock_monotonic();
	ck_ok(store_list(s, run_state_set("active"), 0, 100000, count_run, active, &err), &err);
	printf("1000 active listed: %.1f ms\n", (clock_monotonic() - t) * 1e3);
	ck_assert_int_eq(active[1], 1000);
	ck_ok(store_counts(s, counts, &err), &err);
	ck_assert_int_eq(counts[RUN_SUCCEEDED], 10000);
	ck_assert_int_eq(counts[RUN_QUEUED], 1000);
	file_remove_tree(dir, NULL);
}
END_TEST

static json_t *heartbeat(const char *node, const char *instance, int sequence)
{
	return json_pack("{s:s,s:s,s:i,s:s,s:[{s:s,s:i,s:s,s:n},{s:s,s:i,s:s,s:i}],s:[i,i]}", "node", node,
	                 "instance", instance, "sequence", sequence, "version", "1", "devices", "node", node,
	                 "index", 0, "state", "free", "run", "node", node, "index", 1, "state", "leased",
	                 "run", 7, "ports", 4001, 4002);
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
	                  less[] = "b slots=2\nc slots=1\n";
	_cleanup_(members_destroyp) struct members *m = NULL;
	_cleanup_(hosts_freep) struct hosts *hosts = NULL, *fewer = NULL;
	_cleanup_json_ json_t *beat = heartbeat("b", "x", 3), *list = NULL;
	struct error err = ERROR_INIT;
	char down[16] = "";
	struct member *b;

	ck_ok(hosts_parse(text, strlen(text), "hosts", &hosts, &err), &err);
	ck_ok(hosts_parse(less, strlen(less), "hosts", &fewer, &err), &err);
	ck_ok(members_create(100, &m, &err), &err);
	ck_ok(members_set_hosts(m, hosts, 29600, 100, keep_none, NULL, &err), &err);
	b = members_find(m, "B");
	ck_assert_ptr_nonnull(b);
	ck_assert_int_eq(b->port, 7);
	ck_assert(member_heartbeat(b, beat, 101, 1000));
	ck_assert(!member_heartbeat(b, beat, 102, 1001));
	ck_assert_uint_eq(member_free_slots(b), 1);
	member_release(b, 7);
	ck_assert_uint_eq(member_free_slots(b), 2);
	ck_assert_int_ne(member_take_port(b, 1), member_take_port(b, 1));
	ck_assert_int_gt(member_take_port(b, 1), 1024);

	/* a was never heard of, b not since 102. */
	ck_assert_double_eq(members_expire(m, 104, 5, on_down, down), 105);
	ck_assert_str_eq(down, "");
	ck_assert_double_eq(members_expire(m, 106, 5, on_down, down), 107);
	ck_assert_str_eq(down, "a");
	ck_assert_double_eq(members_expire(m, 108, 5, on_down, down), 0);
	ck_assert_str_eq(down, "ab");
	ck_assert_str_eq(member_state(b), "down");
	ck_assert(member_heartbeat(b, beat, 109, 1002));
	ck_ok(members_set_hosts(m, fewer, 29600, 110, keep_none, NULL, &err), &err);
	ck_assert_ptr_null(members_find(m, "a"));
	ck_assert_ptr_eq(members_find(m, "b"), b);
	ck_assert(b->up);
	ck_assert_int_eq(b->port, 29600);
	list = members_to_json(m, "b");
	ck_assert_uint_eq(json_array_size(list), 2);
	ck_assert(json_get_bool(json_array_get(list, 0), "controller", false));
}
END_TEST

static void on_key(void *context, const void *value, size_t len)
{
	snprintf(context, 16, "%.*s", value ? (int)len : 4, value ? (const char *)value : "gone");
}

START_TEST(rendezvous_waits)
{
	_cleanup_(rendezvous_destroyp) struct rendezvous *r = NULL;
	struct rendezvous_waiter *w1, *w2, *w3;
	char one[16] = "", two[16] = "", three[16] = "", key[RENDEZVOUS_KEY_MAX + 2];
	struct error err = ERROR_INIT;
	const void *value;
	size_t len;

	ck_ok(rendezvous_create(1000, &r, &err), &err);
	ck_assert_int_eq(rendezvous_get(r, 1, 1, "a/b", &value, &len, &err), -ENOENT);
	ck_ok(rendezvous_wait(r, 1, 1, "a/b", on_key, one, &w1, &err), &err);
	ck_ok(rendezvous_wait(r, 1, 1, "a/b", on_key, two, &w2, &err), &err);
	ck_ok(rendezvous_wait(r, 1, 1, "c", on_key, three, &w3, &err), &err);
	rendezvous_unwait(w2);
	ck_ok(rendezvous_put(r, 1, 1, "a/b", "hello", 5, &err), &err);
	ck_assert_str_eq(one, "hello");
	ck_assert_str_eq(two, "");
	ck_ok(rendezvous_get(r, 1, 1, "a/b", &value, &len, &err), &err);
	ck_assert(len == 5 && memcmp(value, "hello", 5) == 0);
	ck_assert_int_eq(rendezvous_get(r, 2, 1, "a/b", &value, &len, &err), -ENOENT);

	/* A newer attempt: the older one's waiters hear of it, its keys are gone, it may not come back. */
	ck_ok(rendezvous_put(r, 1, 2, "d", "x", 1, &err), &err);
	ck_assert_str_eq(three, "gone");
	ck_assert_int_eq(rendezvous_get(r, 1, 2, "a/b", &value, &len, &err), -ENOENT);
	ck_assert_int_eq(rendezvous_put(r, 1, 1, "a/b", "late", 4, &err), -ESTALE);

	memset(key, 'k', sizeof(key));
	key[sizeof(key) - 1] = '\0';
	ck_assert_int_eq(rendezvous_put(r, 1, 2, key, "x", 1, &err), -EINVAL);
	ck_assert_int_eq(rendezvous_put(r, 1, 2, "big", key, 2000, &err), -ENOSPC);
	ck_ok(rendezvous_wait(r, 1, 2, "never", on_key, three, &w3, &err), &err);
	three[0] = '\0';
	rendezvous_drop(r, 1);
	ck_assert_str_eq(three, "gone");
}
END_TEST

START_TEST(queue_order)
{
	struct queue q = {0};
	struct error err = ERROR_INIT;
	struct run *r;

	for (int i = 1; i <= 50; i++) {
		r = make_run(1, 1);
		r->id = i * 2;
		ck_ok(queue_push(&q, r, &err), &err);
	}
	ck_assert_int_eq(queue_find(&q, 42)->id, 42);
	ck_assert_ptr_null(queue_find(&q, 43));
	r = queue_take(&q, 42);
	ck_assert_ptr_null(queue_find(&q, 42));
	ck_assert_uint_eq(q.count, 49);
	ck_assert_int_lt(queue_push(&q, r, &err), 0);
	run_free(r);
	queue_clear(&q);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("cluster");
	TCase *c = tcase_create("cluster");

	tcase_set_timeout(c, 60);
	suite_add_tcase(s, c);
	tcase_add_loop_test(c, scheduler_table, 0, ARRAY_SIZE(sched_cases));
	tcase_add_test(c, impossible_runs);
	tcase_add_test(c, run_succeeds);
	tcase_add_test(c, run_fails_with_the_first_cause);
	tcase_add_test(c, run_fails_with_its_device);
	tcase_add_test(c, run_worker_says_why);
	tcase_add_test(c, run_is_cancelled);
	tcase_add_test(c, run_is_refused_or_lost);
	tcase_add_test(c, store_survives);
	tcase_add_test(c, store_many);
	tcase_add_test(c, members_come_and_go);
	tcase_add_test(c, rendezvous_waits);
	tcase_add_test(c, queue_order);
	return unit_run(s);
}

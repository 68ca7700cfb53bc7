/* SPDX-License-Identifier: Apache-2.0 */
/* Every route of a service, requested over its Unix socket by the owner of a run, by another user, and by
 * root. */
#include <pthread.h>
#include <pwd.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "base/str.h"
#include "config/daemon.h"
#include "config/keys.h"
#include "daemon_fixture.h"
#include "dtraind/routes/table.h"
#include "http/server.h"

static struct person owner, other, root;
static bool many; /* we are root, and can be each of the three; otherwise all of them are ourselves */

static bool find_person(const char *name, struct person *out)
{
	const struct passwd *pw = getpwnam(name);

	if (pw)
		*out = (struct person){pw->pw_uid, pw->pw_gid, name};
	return pw;
}

static void find_people(void)
{
	many = geteuid() == 0 && find_person("nobody", &owner) && find_person("daemon", &other);
	root = (struct person){geteuid(), getegid(), "root"};
	if (many)
		return;
	owner = other = root;
	printf("daemon: no second user to ask as (that takes root, nobody and daemon): what others may not "
	       "is not tested\n");
}

struct want {
	int status; /* 0: no request */
	const char *code;
};

/* The requests are sent in this order: other, owner, root. */
struct row {
	const char *method, *target, *body;
	struct want owner, other, root;
	bool endless; /* only the head of the answer is read */
};

#define REFUSED                                                                                              \
	{                                                                                                    \
		403, "not-allowed"                                                                           \
	}
#define ALL(status, code)   .owner = {status, code}, .other = {status, code}, .root = {status, code}
#define OK                  ALL(200, NULL)
#define OWNER(status, code) .owner = {status, code}, .other = REFUSED, .root = {status, code}
#define ROOT(status, code)  .owner = REFUSED, .other = REFUSED, .root = {status, code}
#define NOBODY              .owner = REFUSED, .other = REFUSED, .root = REFUSED

#define CONFIG(fields) "{\"config\":{\"task\":\"command\",\"command\":[\"true\"]," fields "}}"
#define LONG           "0123456789012345678901234567890123456789012345678901234567890123456789"

/* Run 1 has succeeded, run 2 has both slots, run 3 waits for them. All are the owner's. */
static const struct row rows[] = {
    /* Requests that every user may send. */
    {"GET", "/v1/version", NULL, OK},
    {"GET", "/v1/devices", NULL, OK},
    {"GET", "/v1/local/runs", NULL, OK},
    {"GET", "/v1/devices?local=1", NULL, OK},
    {"GET", "/v1/devices?local=2", NULL, ALL(400, "bad-query")},
    {"GET", "/v1/nodes", NULL, OK},
    {"GET", "/metrics", NULL, OK},
    {"GET", "/v1/events", NULL, OK, .endless = true},
    {"GET", "/v1/runs", NULL, OK},
    {"GET", "/v1/runs?state=active", NULL, OK},
    {"GET", "/v1/runs?state=succeeded&limit=1&before=3", NULL, OK},
    {"GET", "/v1/runs?state=nix", NULL, ALL(400, "bad-query")},
    {"GET", "/v1/runs?limit=0", NULL, ALL(400, "bad-query")},
    {"GET", "/v1/runs?limit=1001", NULL, ALL(400, "bad-query")},
    {"GET", "/v1/runs?before=-1", NULL, ALL(400, "bad-query")},
    {"GET", "/v1/runs/2", NULL, OK},
    {"GET", "/v1/runs/1?wait=1", NULL, OK},
    {"GET", "/v1/runs/2?wait=1&state=running", NULL, OK},
    {"GET", "/v1/runs/2?wait=change&version=0", NULL, OK},
    {"GET", "/v1/runs/2?wait=2", NULL, ALL(400, "bad-query")},
    {"GET", "/v1/runs/2?wait=change&version=x", NULL, ALL(400, "bad-query")},
    {"GET", "/v1/runs/2?state=nix", NULL, ALL(400, "bad-query")},
    {"GET", "/v1/runs/99", NULL, ALL(404, "no-such-run")},
    {"GET", "/v1/runs/0", NULL, ALL(404, "no-such-run")},
    {"GET", "/v1/runs/x", NULL, ALL(404, "no-such-run")},
    {"GET", "/v1/runs/1/metrics", NULL, OK},
    {"GET", "/v1/runs/1/metrics?follow=1", NULL, OK},
    {"GET", "/v1/runs/2/metrics?follow=1", NULL, OK, .endless = true},
    {"GET", "/v1/runs/2/metrics?since=x", NULL, ALL(400, "bad-query")},
    {"GET", "/v1/runs/2/metrics?follow=2", NULL, ALL(400, "bad-query")},
    {"GET", "/v1/runs/99/metrics", NULL, ALL(404, "no-such-run")},

    /* Every user may submit. Errors are reported before anything is stored. */
    {"POST", "/v1/runs", NULL, ALL(400, "bad-json")},
    {"POST", "/v1/runs", "[1]", ALL(400, "bad-json")},
    {"POST", "/v1/runs", "{}", ALL(400, "bad-config")},
    {"POST", "/v1/runs", "{\"config\":{\"task\":\"nix\"}}", ALL(400, "bad-config")},
    {"POST", "/v1/runs", CONFIG("\"directory\":\"here\""), ALL(400, "bad-config")},
    {"POST", "/v1/runs", CONFIG("\"nix\":1,\"directory\":\"/\""), ALL(400, "bad-config")},
    {"POST", "/v1/runs", CONFIG("\"directory\":\"/\",\"resources\":{\"nodes\":2}"), ALL(409, "impossible")},

    /* Only the owner may read the output of a run. */
    {"GET", "/v1/runs/1/logs", NULL, OWNER(200, NULL)},
    {"GET", "/v1/runs/1/logs?rank=all&tail=1", NULL, OWNER(200, NULL)},
    {"GET", "/v1/runs/1/logs?follow=1", NULL, OWNER(200, NULL)},
    {"GET", "/v1/runs/2/logs?follow=1", NULL, OWNER(200, NULL), .endless = true},
    {"GET", "/v1/runs/3/logs?follow=1", NULL, .other = REFUSED},
    {"GET", "/v1/runs/1/logs?rank=1", NULL, OWNER(404, "no-such-rank")},
    {"GET", "/v1/runs/1/logs?attempt=9", NULL, OWNER(404, "no-such-log")},
    {"GET", "/v1/runs/3/logs", NULL, OWNER(404, "no-such-log")},
    {"GET", "/v1/runs/1/logs?rank=x", NULL, OWNER(400, "bad-query")},
    {"GET", "/v1/runs/1/logs?tail=x", NULL, OWNER(400, "bad-query")},
    {"GET", "/v1/runs/99/logs", NULL, ALL(404, "no-such-run")},

    /* Requests of the workers of a run, which belong to its owner. */
    {"POST", "/v1/runs/2/metrics", "{\"step\":1}\n{\"step\":2}\n", OWNER(200, NULL)},
    {"POST", "/v1/runs/2/metrics?attempt=1", "", OWNER(200, NULL)},
    {"POST", "/v1/runs/2/metrics?attempt=2", "{\"step\":1}\n", OWNER(410, "stale-attempt")},
    {"POST", "/v1/runs/2/metrics", "{\"step\":\n", OWNER(400, "bad-json")},
    {"POST", "/v1/runs/2/metrics", "[1]\n", OWNER(400, "bad-json")},
    {"POST", "/v1/runs/2/metrics?attempt=x", "{\"step\":1}\n", OWNER(400, "bad-query")},
    {"POST", "/v1/runs/2/metrics?attempt=0", "{\"step\":1}\n", OWNER(400, "bad-query")},
    {"POST", "/v1/runs/1/metrics", "{\"step\":1}\n", OWNER(409, "ended")},
    {"POST", "/v1/runs/3/metrics", "{\"step\":1}\n", OWNER(410, "stale-attempt")},
    {"POST", "/v1/runs/2/events", "{\"kind\":\"error\",\"rank\":0,\"message\":\"m\"}", OWNER(200, NULL)},
    {"POST", "/v1/runs/2/events", "{\"kind\":\"peer-lost\",\"rank\":0,\"message\":\"m\"}", OWNER(200, NULL)},
    {"POST", "/v1/runs/2/events", "x", OWNER(400, "bad-json")},
    {"POST", "/v1/runs/2/events", "{\"kind\":1}", OWNER(400, "bad-json")},
    {"POST", "/v1/runs/2/events?attempt=9", "{}", OWNER(410, "stale-attempt")},
    {"POST", "/v1/runs/1/events", "{}", OWNER(409, "ended")},
    {"PUT", "/v1/runs/2/rendezvous/a/b", "value", OWNER(200, NULL)},
    {"PUT", "/v1/runs/2/rendezvous/" LONG LONG LONG, "value", OWNER(400, "rendezvous")},
    {"PUT", "/v1/runs/2/rendezvous/a?attempt=2", "value", OWNER(410, "stale-attempt")},
    {"PUT", "/v1/runs/1/rendezvous/a", "value", OWNER(409, "ended")},
    {"GET", "/v1/runs/2/rendezvous/a/b", NULL, OWNER(200, NULL)},
    {"GET", "/v1/runs/2/rendezvous/a/b?wait=60", NULL, OWNER(200, NULL)},
    {"GET", "/v1/runs/2/rendezvous/nix", NULL, OWNER(404, "no-such-key")},
    {"GET", "/v1/runs/2/rendezvous/nix?wait=0.01", NULL, OWNER(404, "no-such-key")},
    {"GET", "/v1/runs/2/rendezvous/" LONG LONG LONG "?wait=60", NULL, OWNER(400, "rendezvous")},
    {"GET", "/v1/runs/2/rendezvous/nix?wait=x", NULL, OWNER(400, "bad-query")},
    {"GET", "/v1/runs/2/rendezvous/nix?wait=-1", NULL, OWNER(400, "bad-query")},
    {"GET", "/v1/runs/2/rendezvous/nix?wait=0", NULL, OWNER(404, "no-such-key")},
    {"GET", "/v1/runs/2/rendezvous/a/b?wait=86400", NULL, OWNER(200, NULL)},
    {"GET", "/v1/runs/2/rendezvous/a/b?wait=86401", NULL, OWNER(400, "bad-query")},
    {"GET", "/v1/runs/2/rendezvous/a?attempt=2", NULL, OWNER(410, "stale-attempt")},
    {"GET", "/v1/runs/1/rendezvous/a", NULL, OWNER(409, "ended")},

    /* Requests that only root may send. */
    {"POST", "/v1/nodes/n1/drain", "{\"reason\":\"a new fan\"}", ROOT(200, NULL)},
    {"POST", "/v1/nodes/n1/resume", NULL, ROOT(200, NULL)},
    {"POST", "/v1/nodes/n1/drain", "{\"reason\":\"" LONG LONG LONG "\"}", ROOT(400, "bad-json")},
    {"POST", "/v1/nodes/nix/drain", NULL, ROOT(404, "no-such-node")},
    {"POST", "/v1/nodes/nix/resume", NULL, ROOT(404, "no-such-node")},
    {"POST", "/v1/nodes/n1/fence", NULL, ROOT(409, "busy")},
    {"POST", "/v1/nodes/nix/fence", NULL, ROOT(404, "no-such-node")},
    {"POST", "/v1/nodes/n1/devices/1/drain", NULL, ROOT(200, NULL)},
    {"POST", "/v1/nodes/n1/devices/1/resume", NULL, ROOT(200, NULL)},
    {"POST", "/v1/nodes/n1/devices/99/drain", NULL, ROOT(404, "no-such-device")},
    {"POST", "/v1/nodes/n1/devices/x/resume", NULL, ROOT(404, "no-such-device")},
    {"POST", "/v1/nodes/nix/devices/0/drain", NULL, ROOT(404, "no-such-node")},
    {"POST", "/v1/nodes/n1/cancel-foreign", NULL, ROOT(404, "no-such-run")},
    {"POST", "/v1/nodes/n1/cancel-foreign?run=5", NULL, ROOT(404, "no-such-run")},
    {"POST", "/v1/nodes/nix/cancel-foreign", NULL, ROOT(404, "no-such-node")},
    {"POST", "/v1/nodes/n1/cancel-foreign?run=x", NULL, ALL(400, "bad-query")},
    {"GET", "/v1/backup", NULL, ROOT(200, NULL)},

    /* Requests between services, which no user may send. */
    {"POST", "/v1/peer/start", "{}", NOBODY},
    {"POST", "/v1/peer/stop", "{\"run\":2,\"attempt\":1}", NOBODY},
    {"POST", "/v1/peer/reports", "[]", NOBODY},
    {"POST", "/v1/peer/heartbeat", "{}", NOBODY},
    {"POST", "/v1/peer/heartbeat/short", "{}", NOBODY},
    {"GET", "/v1/peer/active-runs", NULL, NOBODY},
    {"POST", "/v1/peer/devices/0/drain", NULL, NOBODY},
    {"POST", "/v1/peer/devices/0/resume", NULL, NOBODY},
    {"GET", "/v1/peer/logs?run=1&attempt=1&rank=0", NULL, NOBODY},

    /* Routes and objects that do not exist. */
    {"GET", "/", NULL, ALL(404, "no-such-route")},
    {"GET", "/v1/runs/1/nix", NULL, ALL(404, "no-such-route")},
    {"PUT", "/v1/version", NULL, ALL(405, "method-not-allowed")},
    {"DELETE", "/v1/runs", NULL, ALL(405, "method-not-allowed")},

    /* Requests that end runs are the last. */
    {"DELETE", "/v1/runs/99", NULL, ALL(404, "no-such-run")},
    {"DELETE", "/v1/runs/1", NULL, OWNER(409, "ended")},
    {"DELETE", "/v1/runs/3", NULL, .other = REFUSED, .owner = {202, NULL}, .root = {409, "ended"}},
    {"DELETE", "/v1/local/runs/99", NULL, ALL(404, "no-such-run")},
    {"DELETE", "/v1/local/runs/x", NULL, ALL(404, "no-such-run")},
    {"DELETE", "/v1/local/runs/2", NULL, .other = REFUSED, .owner = {202, NULL}},
    {"POST", "/v1/prune", "{\"dry_run\":true,\"days\":1}", ROOT(200, NULL)},
    {"POST", "/v1/prune", "{\"runs\":-2}", ROOT(400, "bad-json")},
    {"POST", "/v1/end-runs", NULL, ROOT(200, NULL)},
};

static void ask(const struct daemon_fixture *f, const struct row *row, const struct person *who,
                const char *role, const struct want *want)
{
	struct raw_request q = {
	    .method = row->method, .target = row->target, .body = row->body, .head_only = row->endless};
	struct raw_answer a;

	if (!want->status)
		return;
	a = daemon_ask(f, who, &q);
	ck_assert_msg(a.status == want->status && (!want->code || str_eq(a.code, want->code)),
	              "%s %s %s as the %s: %d %s, expected %d %s: %s", row->method, row->target,
	              row->body ? row->body : "", role, a.status, a.code, want->status,
	              want->code ? want->code : "", a.body);
	free(a.body);
}

START_TEST(each_route_answers_those_who_may)
{
	struct daemon_fixture f;

	daemon_fixture_start(&f, NULL);
	ck_assert_int_eq(daemon_submit(&f, &owner, "echo out", 1, 1), 1);
	daemon_await(&f, 1, "succeeded");
	ck_assert_int_eq(daemon_submit(&f, &owner, "exec sleep 60", 1, 2), 2);
	daemon_await(&f, 2, "running");
	ck_assert_int_eq(daemon_submit(&f, &owner, "exec sleep 60", 1, 1), 3);
	for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
		if (many) {
			ask(&f, &rows[i], &other, "other user", &rows[i].other);
			ask(&f, &rows[i], &owner, "owner", &rows[i].owner);
			ask(&f, &rows[i], &root, "root", &rows[i].root);
		} else { /* the user of the service may do all that root and the owner may */
			bool as_owner = rows[i].owner.status && rows[i].owner.status != 403;

			ask(&f, &rows[i], NULL, "service's user", as_owner ? &rows[i].owner : &rows[i].root);
		}
	}
	daemon_await(&f, 2, "failed");
	daemon_fixture_teardown(&f);
}
END_TEST

static bool says(const struct daemon_fixture *f, const struct person *who, const char *target,
                 const char *word)
{
	struct raw_request q = {.method = "GET", .target = target};
	struct raw_answer a = daemon_ask(f, who, &q);
	bool there = memmem(a.body, a.len, word, strlen(word));

	ck_assert_msg(a.status == 200, "GET %s: %d: %s", target, a.status, a.body);
	free(a.body);
	return there;
}

/* The logs of an attempt that a run has not had: the newest one is named. */
START_TEST(an_attempt_that_a_run_has_not_had_is_named)
{
	struct raw_request q = {.method = "GET", .target = "/v1/runs/1/logs?attempt=9"};
	struct raw_answer a;
	struct daemon_fixture f;

	daemon_fixture_start(&f, NULL);
	ck_assert_int_eq(daemon_submit(&f, NULL, "echo out", 1, 1), 1);
	daemon_await(&f, 1, "succeeded");
	a = daemon_ask(&f, NULL, &q);
	ck_assert_int_eq(a.status, 404);
	ck_assert_msg(strstr(a.body, "run 1 has no attempt 9: the newest is 1"), "%s", a.body);
	free(a.body);
	daemon_fixture_teardown(&f);
}
END_TEST

/* No list shows the command of a run, its variables, or the last lines of its log. */
START_TEST(what_a_run_says_is_for_its_owner)
{
	static const char *const open_to_all[] = {"/v1/runs",  "/v1/runs?state=failed", "/metrics",
	                                          "/v1/nodes", "/v1/devices",           "/v1/runs/1/metrics"};
	struct daemon_fixture f;

	daemon_fixture_start(&f, NULL);
	daemon_submit(&f, &owner, "echo private $((6 * 7)); exit 3", 1, 1);
	daemon_await(&f, 1, "failed");
	for (size_t i = 0; i < ARRAY_SIZE(open_to_all); i++)
		ck_assert_msg(!says(&f, &owner, open_to_all[i], "private"), "%s", open_to_all[i]);
	ck_assert(says(&f, &owner, "/v1/runs/1", "\"config\""));
	ck_assert(says(&f, &owner, "/v1/runs/1", "private 42"));
	ck_assert(says(&f, &root, "/v1/runs/1", "private 42"));
	ck_assert(says(&f, &owner, "/v1/runs/1/logs", "private 42\n"));
	ck_assert(says(&f, &owner, "/v1/runs/1/logs?rank=all", "[0] private 42\n"));
	if (many) {
		ck_assert(!says(&f, &other, "/v1/runs/1", "private"));
		ck_assert(!says(&f, &other, "/v1/runs/1", "\"config\""));
		ck_assert(says(&f, &other, "/v1/runs/1", "rank 0 on n1: exit status 3"));
	}
	daemon_fixture_teardown(&f);
}
END_TEST

static void end_here(const struct daemon_fixture *f, int64_t run)
{
	_cleanup_free_ char *target = str_printf("/v1/local/runs/%lld", (long long)run);
	struct raw_request q = {.method = "DELETE", .target = target};
	struct raw_answer a = daemon_ask(f, &owner, &q);

	ck_assert_msg(a.status == 202, "DELETE %s: %d: %s", target, a.status, a.body);
	free(a.body);
	daemon_await(f, run, "failed");
}

/* What runs on the node alone, each with its own slot; one that is ended there says so, and the other one
 * goes on. */
START_TEST(runs_are_listed_and_ended_on_their_node)
{
	_cleanup_json_ json_t *both = NULL, *ended = NULL, *one = NULL;
	struct daemon_fixture f;
	const json_t *run;

	daemon_fixture_start(&f, NULL);
	for (int i = 1; i <= 3; i++)
		ck_assert_int_eq(daemon_submit(&f, &owner, i == 1 ? "true" : "exec sleep 60", 1, 1), i);
	for (int i = 1; i <= 3; i++)
		daemon_await(&f, i, i == 1 ? "succeeded" : "running");
	both = daemon_get(&f, &other, "/v1/local/runs");
	ck_assert_uint_eq(json_array_size(json_object_get(both, "runs")), 2);
	for (size_t i = 0; i < 2; i++) {
		const json_t *slots;

		run = json_array_get(json_object_get(both, "runs"), i);
		slots = json_object_get(run, "slots");
		ck_assert_int_eq(json_get_int(run, "run", 0), (int)i + 2);
		ck_assert_int_eq(json_get_int(run, "attempt", 0), 1);
		ck_assert_str_eq(json_get_string(run, "state", ""), "running");
		ck_assert_str_eq(json_get_string(run, "user", ""), owner.name);
		ck_assert_int_gt(json_get_int(run, "epoch", 0), 0);
		ck_assert_str_ne(json_get_string(run, "cluster", ""), "");
		ck_assert_uint_eq(json_array_size(slots), 1);
	}
	ck_assert_int_eq(json_integer_value(json_array_get(
	                     json_object_get(json_array_get(json_object_get(both, "runs"), 0), "slots"), 0)) +
	                     json_integer_value(json_array_get(json_object_get(run, "slots"), 0)),
	                 0 + 1);
	end_here(&f, 2);
	ended = daemon_get(&f, &owner, "/v1/runs/2");
	ck_assert_ptr_nonnull(strstr(json_get_string(ended, "reason", ""),
	                             "it was ended on node n1 by \"dtrain kill --local\""));
	one = daemon_get(&f, &owner, "/v1/local/runs");
	ck_assert_uint_eq(json_array_size(json_object_get(one, "runs")), 1);
	run = json_array_get(json_object_get(one, "runs"), 0);
	ck_assert_int_eq(json_get_int(run, "run", 0), 3);
	ck_assert_str_eq(json_get_string(run, "state", ""), "running");
	end_here(&f, 3);
	daemon_fixture_teardown(&f);
}
END_TEST

/* Submits a script that waits for daemon_fixture_write(f, "go", …). */
static int64_t submit_waiting(const struct daemon_fixture *f, const char *then)
{
	_cleanup_free_ char *script = str_printf("until [ -e %s/go ]; do sleep 0.02; done; %s", f->dir, then);

	return daemon_submit(f, &owner, script, 1, 2);
}

START_TEST(a_restart_finds_runs_again)
{
	struct daemon_fixture f;
	_cleanup_json_ json_t *before = NULL, *after = NULL;

	daemon_fixture_start(&f, NULL);
	submit_waiting(&f, "echo still here");
	daemon_await(&f, 1, "running");
	ck_assert_int_eq(daemon_submit(&f, &owner, "true", 1, 1), 2);
	before = daemon_get(&f, &owner, "/v1/runs/1");
	daemon_fixture_stop(&f);
	daemon_fixture_again(&f);
	daemon_await(&f, 1, "running");
	after = daemon_get(&f, &owner, "/v1/runs/1");
	ck_assert(json_equal(json_object_get(before, "ranks"), json_object_get(after, "ranks")));
	ck_assert(json_equal(json_object_get(before, "attempt"), json_object_get(after, "attempt")));
	daemon_fixture_write(&f, "go", "");
	daemon_await(&f, 1, "succeeded");
	daemon_await(&f, 2, "succeeded");
	ck_assert(says(&f, &owner, "/v1/runs/1/logs", "still here\n"));
	ck_assert_int_eq(daemon_submit(&f, &owner, "true", 1, 1), 3);
	daemon_fixture_teardown(&f);
}
END_TEST

static void post_as(const struct daemon_fixture *f, const struct person *who, const char *target,
                    const char *body)
{
	struct raw_request q = {.method = "POST", .target = target, .body = body};
	struct raw_answer a = daemon_ask(f, who, &q);

	ck_assert_msg(a.status == 200, "POST %s: %d: %s", target, a.status, a.body);
	free(a.body);
}

START_TEST(a_drained_node_starts_nothing)
{
	struct daemon_fixture f;

	daemon_fixture_start(&f, NULL);
	post_as(&f, &root, "/v1/nodes/n1/drain", "{\"reason\":\"a new fan\"}");
	ck_assert(says(&f, &other, "/v1/nodes", "a new fan"));
	ck_assert_int_eq(daemon_submit(&f, &owner, "true", 1, 1), 1);
	ck_assert(says(&f, &other, "/v1/runs/1", "waits for node n1, which is drained"));
	/* It stays drained when the service starts again. */
	daemon_fixture_stop(&f);
	daemon_fixture_again(&f);
	ck_assert(says(&f, &other, "/v1/nodes", "a new fan"));
	post_as(&f, &root, "/v1/nodes/n1/resume", NULL);
	daemon_await(&f, 1, "succeeded");
	/* One slot of the two. */
	post_as(&f, &root, "/v1/nodes/n1/devices/0/drain", "{\"reason\":\"a new fan\"}");
	ck_assert_int_eq(daemon_submit(&f, &owner, "true", 1, 2), 2);
	ck_assert(says(&f, &other, "/v1/runs/2", "of whose 2 slots 1 is drained"));
	ck_assert(says(&f, &other, "/metrics", "dtrain_slots{node=\"n1\"} 2\n"));
	ck_assert(says(&f, &other, "/metrics", "dtrain_slots_drained{node=\"n1\"} 1\n"));
	ck_assert_int_eq(daemon_submit(&f, &owner, "true", 1, 1), 3);
	daemon_await(&f, 3, "succeeded");
	post_as(&f, &root, "/v1/nodes/n1/devices/0/resume", NULL);
	daemon_await(&f, 2, "succeeded");
	daemon_fixture_teardown(&f);
}
END_TEST

/* A request with a late answer, in a thread. */
struct later {
	int fd;
	struct raw_request q;
	struct raw_answer a;
	pthread_t thread;
};

static void *ask_later(void *context)
{
	struct later *l = context;

	l->a = raw_ask(l->fd, &l->q);
	return NULL;
}

static void later_get(const struct daemon_fixture *f, const char *target, struct later *l)
{
	*l = (struct later){.fd = raw_connect_unix(f->socket), .q = {.method = "GET", .target = target}};
	ck_assert_int_eq(pthread_create(&l->thread, NULL, ask_later, l), 0);
}

/* The body; owned by the caller. */
static char *later_join(struct later *l, int status)
{
	pthread_join(l->thread, NULL);
	ck_assert_msg(l->a.status == status, "GET %s: %d: %s", l->q.target, l->a.status, l->a.body);
	return l->a.body;
}

START_TEST(progress_is_kept_and_followed)
{
	_cleanup_free_ char *followed = NULL;
	_cleanup_json_ json_t *run = NULL;
	struct daemon_fixture f;
	struct later follower;

	daemon_fixture_start(&f, NULL);
	submit_waiting(&f, "true");
	daemon_await(&f, 1, "running");
	post_as(&f, &owner, "/v1/runs/1/metrics?attempt=1", "{\"step\":1}\n{\"step\":2}\n{\"step\":3}");
	ck_assert(says(&f, &other, "/v1/runs/1/metrics", "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n"));
	ck_assert(!says(&f, &other, "/v1/runs/1/metrics?since=1", "{\"step\":1}"));
	ck_assert(says(&f, &other, "/v1/runs/1/metrics?since=1", "{\"step\":2}\n"));
	later_get(&f, "/v1/runs/1/metrics?follow=1&since=2", &follower);
	post_as(&f, &owner, "/v1/runs/1/metrics?attempt=1", "{\"step\":4}\n");
	run = daemon_get(&f, NULL, "/v1/runs/1");
	ck_assert_int_eq(json_get_int(json_object_get(run, "progress"), "step", 0), 4);
	ck_assert(says(&f, &other, "/metrics", "dtrain_run_step{run=\"1\",name=\"test\"} 4\n"));
	daemon_fixture_write(&f, "go", "");
	daemon_await(&f, 1, "succeeded");
	followed = later_join(&follower, 200);
	ck_assert_ptr_null(strstr(followed, "{\"step\":2}"));
	ck_assert_ptr_nonnull(strstr(followed, "{\"step\":3}\n"));
	ck_assert_ptr_nonnull(strstr(followed, "{\"step\":4}\n"));
	ck_assert(says(&f, &other, "/v1/runs/1/metrics?since=3", "{\"step\":4}\n"));
	daemon_fixture_teardown(&f);
}
END_TEST

/* A request that has to wait is answered as soon as the answer is known. */
START_TEST(an_answer_that_comes_later_is_waited_for)
{
	_cleanup_free_ char *log = NULL, *key = NULL;
	struct daemon_fixture f;
	struct raw_request put = {.method = "PUT", .target = "/v1/runs/1/rendezvous/key", .body = "value"};
	struct raw_answer a;
	struct later follower, waiter;

	daemon_fixture_start(&f, NULL);
	post_as(&f, &root, "/v1/nodes/n1/drain", NULL);
	submit_waiting(&f, "echo the end");
	/* It has not started anywhere. */
	later_get(&f, "/v1/runs/1/logs?follow=1", &follower);
	post_as(&f, &root, "/v1/nodes/n1/resume", NULL);
	daemon_await(&f, 1, "running");
	later_get(&f, "/v1/runs/1/rendezvous/key?wait=60", &waiter);
	a = daemon_ask(&f, &owner, &put);
	ck_assert_int_eq(a.status, 200);
	free(a.body);
	key = later_join(&waiter, 200);
	ck_assert_str_eq(key, "value");
	daemon_fixture_write(&f, "go", "");
	log = later_join(&follower, 200);
	ck_assert_ptr_nonnull(strstr(log, "the end\n"));
	daemon_await(&f, 1, "succeeded");
	daemon_fixture_teardown(&f);
}
END_TEST

/* At the end of an attempt, requests that wait for a key are answered; at the end of a run its log ends. */
START_TEST(a_cancelled_run_ends_what_waits_for_it)
{
	_cleanup_free_ char *log = NULL, *key = NULL;
	struct raw_request cancel = {.method = "DELETE", .target = "/v1/runs/1"};
	struct daemon_fixture f;
	struct raw_answer a;
	struct later follower, waiter;

	daemon_fixture_start(&f, NULL);
	submit_waiting(&f, "true");
	daemon_await(&f, 1, "running");
	later_get(&f, "/v1/runs/1/logs?follow=1", &follower);
	later_get(&f, "/v1/runs/1/rendezvous/key?wait=60", &waiter);
	a = daemon_ask(&f, &owner, &cancel);
	ck_assert_int_eq(a.status, 202);
	free(a.body);
	daemon_await(&f, 1, "cancelled");
	key = later_join(&waiter, 410);
	log = later_join(&follower, 200);
	daemon_fixture_teardown(&f);
}
END_TEST

/* What says that there is a checkpoint, and nothing else, is no progress; empty lines are none either. */
START_TEST(a_checkpoint_is_no_progress)
{
	_cleanup_json_ json_t *first = NULL, *second = NULL;
	struct daemon_fixture f;

	daemon_fixture_start(&f, NULL);
	submit_waiting(&f, "true");
	daemon_await(&f, 1, "running");
	post_as(&f, &owner, "/v1/runs/1/metrics", "{\"step\":5}\n\n{\"checkpoint\":4}\n");
	ck_assert(says(&f, &other, "/v1/runs/1/metrics", "{\"step\":5}\n"));
	ck_assert(!says(&f, &other, "/v1/runs/1/metrics", "checkpoint"));
	first = daemon_get(&f, NULL, "/v1/runs/1");
	ck_assert_int_eq(json_get_int(first, "checkpoint", 0), 4);
	ck_assert_int_eq(json_get_int(json_object_get(first, "progress"), "step", 0), 5);
	/* The newest counts, also of several lines. */
	post_as(&f, &owner, "/v1/runs/1/metrics",
	        "{\"step\":6,\"checkpoint\":6}\n{\"checkpoint\":3}\n{\"step\":7}");
	ck_assert(
	    says(&f, &other, "/v1/runs/1/metrics?since=1", "{\"step\":6,\"checkpoint\":6}\n{\"step\":7}\n"));
	second = daemon_get(&f, NULL, "/v1/runs/1");
	ck_assert_int_eq(json_get_int(second, "checkpoint", 0), 6);
	ck_assert_int_eq(json_get_int(json_object_get(second, "progress"), "step", 0), 7);
	daemon_fixture_write(&f, "go", "");
	daemon_await(&f, 1, "succeeded");
	daemon_fixture_teardown(&f);
}
END_TEST

/* The callers of requests that wait go away: there is no one left to answer. */
START_TEST(callers_that_go_are_forgotten)
{
	static const char *const targets[] = {"/v1/runs/1?wait=1",
	                                      "/v1/runs/1?wait=change&version=99",
	                                      "/v1/runs/1/logs?follow=1",
	                                      "/v1/runs/1/metrics?follow=1",
	                                      "/v1/runs/1/rendezvous/key?wait=60",
	                                      "/v1/runs/2/logs?follow=1",
	                                      "/v1/events"};
	struct raw_request put = {.method = "PUT", .target = "/v1/runs/1/rendezvous/key", .body = "value"};
	int fds[ARRAY_SIZE(targets)];
	struct daemon_fixture f;
	struct raw_answer a;

	daemon_fixture_start(&f, NULL);
	submit_waiting(&f, "true");
	daemon_await(&f, 1, "running");
	daemon_submit(&f, &owner, "true", 1, 2); /* waits for the slot of the first */
	for (size_t i = 0; i < ARRAY_SIZE(targets); i++) {
		fds[i] = raw_connect_unix(f.socket);
		ck_assert_int_gt(dprintf(fds[i], "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", targets[i]), 0);
	}
	json_decref(daemon_get(&f, NULL, "/v1/runs/1")); /* read after all of them */
	for (size_t i = 0; i < ARRAY_SIZE(targets); i++)
		close(fds[i]);
	json_decref(daemon_get(&f, NULL, "/v1/runs/1"));
	a = daemon_ask(&f, &owner, &put);
	ck_assert_int_eq(a.status, 200);
	free(a.body);
	daemon_fixture_write(&f, "go", "");
	daemon_await(&f, 1, "succeeded");
	daemon_await(&f, 2, "succeeded");
	daemon_fixture_teardown(&f);
}
END_TEST

static void read_until(int fd, struct strbuf *text, const char *words)
{
	char chunk[4096];

	while (!text->data || !strstr(text->data, words)) {
		ssize_t n = read(fd, chunk, sizeof(chunk));

		ck_assert_msg(n > 0, "no %s: %s", words, text->data);
		strbuf_add(text, chunk, (size_t)n);
	}
}

/* The changes of a run, as they come. Of those that follow each other at once, the last may come alone: the
 * run waits until it was seen to be running. */
START_TEST(events_are_streamed)
{
	_cleanup_strbuf_ struct strbuf text = {0};
	struct daemon_fixture f;
	int fd;

	daemon_fixture_start(&f, NULL);
	fd = raw_connect_unix(f.socket);
	ck_assert_int_gt(dprintf(fd, "GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n"), 0);
	json_decref(daemon_get(&f, NULL, "/v1/runs")); /* read after it */
	submit_waiting(&f, "true");
	read_until(fd, &text, "\"state\":\"running\"");
	ck_assert_ptr_nonnull(strstr(text.data, "\"run\":1,\"name\":\"test\""));
	ck_assert_ptr_null(strstr(text.data, "succeeded"));
	daemon_fixture_write(&f, "go", "");
	read_until(fd, &text, "\"state\":\"succeeded\"");
	close(fd);
	daemon_fixture_teardown(&f);
}
END_TEST

START_TEST(runs_of_root_may_be_refused)
{
	const struct daemon_setup setup = {.more = "allow_root = false;"};
	struct raw_request q = {
	    .method = "POST", .target = "/v1/runs", .body = CONFIG("\"directory\":\"/\"")};
	struct daemon_fixture f;
	struct raw_answer a;

	daemon_fixture_start(&f, &setup);
	a = daemon_ask(&f, &root, &q);
	ck_assert_msg(a.status == 403 && str_eq(a.code, "not-allowed") &&
	                  strstr(a.body, "runs of root are refused"),
	              "%d: %s", a.status, a.body);
	free(a.body);
	a = daemon_ask(&f, &owner, &q);
	ck_assert_msg(a.status == 201, "%d: %s", a.status, a.body);
	free(a.body);
	daemon_await(&f, 1, "succeeded");
	daemon_fixture_teardown(&f);
}
END_TEST

START_TEST(the_store_can_be_copied)
{
	struct daemon_fixture f;
	_cleanup_free_ char *left = NULL;

	/* A copy that was not finished, before the service was started anew. */
	daemon_fixture_start(&f, NULL);
	daemon_fixture_stop(&f);
	daemon_fixture_write(&f, "state/backup.left", "");
	daemon_fixture_again(&f);
	left = str_path_join(f.dir, "state/backup.left");
	ck_assert(!file_exists(left));
	daemon_submit(&f, &owner, "echo in the copy", 1, 1);
	daemon_await(&f, 1, "succeeded");
	ck_assert(says(&f, &root, "/v1/backup", "SQLite format 3"));
	ck_assert(says(&f, &root, "/v1/backup", "echo in the copy"));
	daemon_fixture_teardown(&f);
}
END_TEST

/* HUP with a file that does not parse changes nothing, and the socket is made again where it is missing. */
START_TEST(a_reload_makes_the_socket_again)
{
	_cleanup_free_ char *old = NULL;
	struct daemon_fixture f;

	daemon_fixture_start(&f, NULL);
	daemon_fixture_write(&f, "dtraind.conf", "what = ;");
	old = str_path_join(f.dir, "old");
	ck_assert_int_eq(rename(f.socket, old), 0);
	ck_assert_int_eq(kill(f.pid, SIGHUP), 0);
	while (!http_unix_answers(f.socket))
		usleep(1000);
	daemon_submit(&f, NULL, "true", 1, 1);
	daemon_await(&f, 1, "succeeded");
	ck_assert(!http_unix_answers(old));
	daemon_fixture_teardown(&f);
}
END_TEST

/* A value of the key that is not the one that the service has. */
static void add_other_value(struct strbuf *text, const struct key *key)
{
	static const struct {
		const char *key, *value;
	} special[] = {{"port_range", "\"29700-29999\""},
	               {"heartbeat", "0.5"},
	               {"node_timeout", "7.0"},
	               {"lease", "70.0"},
	               {"log_level", "\"debug\""},
	               {"launch", "\"process\""},
	               {"store", "\"etcd:http://127.0.0.1:2379\""},
	               {"controllers", "[\"n1\"]"},
	               {"cpu_slots", "7"}};

	strbuf_addf(text, "%s = ", key->name);
	for (size_t i = 0; i < ARRAY_SIZE(special); i++)
		if (str_eq(key->name, special[i].key)) {
			strbuf_addf(text, "%s;\n", special[i].value);
			return;
		}
	switch (key->type) {
	case KEY_STRING:
		strbuf_addf(text, "\"/tmp/other\";\n");
		break;
	case KEY_INT:
		strbuf_addf(text, "%lld;\n", (long long)key->min + 7);
		break;
	case KEY_NUMBER:
		strbuf_addf(text, "%.1f;\n", key->min + 7.5);
		break;
	case KEY_BOOL:
		strbuf_addf(text, "%s;\n", str_eq(key->fallback, "true") ? "false" : "true");
		break;
	case KEY_LIST:
		strbuf_addf(text, "[\"/dev/fuse\"];\n");
		break;
	default:
		ck_abort_msg("%s: write here what another value of it is", key->name);
	}
}

/* Each key takes effect at HUP, or is named as one that needs a restart. */
START_TEST(a_reload_names_what_needs_a_restart)
{
	static const char *const taken_over[] = {
	    "hosts_file", "heartbeat",        "node_timeout", "shutdown_grace", "log_level", "slot_memory",
	    "slot_tasks", "gpu_idle_timeout", "keep_days",    "keep_runs",      "user_runs", "user_slots",
	    "log_quota",  "certificate_key",  "ca_file",      "allow_root"};
	_cleanup_free_ char *log = NULL, *said = NULL;
	_cleanup_strbuf_ struct strbuf text = {0};
	struct daemon_fixture f;
	struct error err = ERROR_INIT;

	daemon_fixture_start(&f, NULL);
	log = str_path_join(f.dir, "service.log");
	strbuf_addf(&text, "node = \"n1\"; hosts_file = \"%s/hosts\"; port = %d;\n", f.dir, f.port);
	for (size_t i = 0; i < daemon_keys.count; i++)
		if (!strstr(" node controller hosts_file port metrics_listen metrics_ca ",
		            daemon_keys.list[i].name))
			add_other_value(&text, &daemon_keys.list[i]);
	daemon_fixture_write(&f, "dtraind.conf", text.data);
	ck_assert_int_eq(kill(f.pid, SIGHUP), 0);
	while (!said || !strstr(said, "configuration reloaded")) {
		free(said);
		said = NULL;
		usleep(1000);
		ck_ok(file_read(log, 0, &said, NULL, &err), &err);
		ck_assert_msg(!strstr(said, "nothing is reloaded"), "%s", said);
	}
	for (size_t i = 0; i < daemon_keys.count; i++) {
		const char *key = daemon_keys.list[i].name;
		_cleanup_free_ char *want = str_printf(" %s has changed: restart dtraind", key);
		bool silent = str_eq(key, "node") || str_eq(key, "controller") || str_eq(key, "port") ||
		              str_starts(key, "metrics_"); /* need files: test_daemon_certificates */

		for (size_t k = 0; k < ARRAY_SIZE(taken_over); k++)
			silent = silent || str_eq(key, taken_over[k]);
		ck_assert_msg(silent == !strstr(said, want), "%s: %s", key, said);
	}
	daemon_fixture_teardown(&f);
}
END_TEST

START_TEST(each_route_is_asked)
{
	for (size_t k = 0; k < route_table_count; k++) {
		bool asked = false;

		for (size_t i = 0; i < ARRAY_SIZE(rows) && !asked; i++) {
			_cleanup_free_ char *path = strndup(rows[i].target, strcspn(rows[i].target, "?"));
			struct http_match m;

			asked =
			    http_route_match(route_table, route_table_count, rows[i].method, path, &m) == 0 &&
			    m.route == &route_table[k];
		}
		ck_assert_msg(asked, "no row asks %s %s", route_table[k].method, route_table[k].pattern);
	}
}
END_TEST

int main(void)
{
	Suite *s = suite_create("daemon");
	TCase *c = tcase_create("daemon");

	find_people();
	tcase_set_timeout(c, 120);
	suite_add_tcase(s, c);
	tcase_add_test(c, each_route_is_asked);
	tcase_add_test(c, each_route_answers_those_who_may);
	tcase_add_test(c, what_a_run_says_is_for_its_owner);
	tcase_add_test(c, an_attempt_that_a_run_has_not_had_is_named);
	tcase_add_test(c, runs_are_listed_and_ended_on_their_node);
	tcase_add_test(c, a_restart_finds_runs_again);
	tcase_add_test(c, a_drained_node_starts_nothing);
	tcase_add_test(c, progress_is_kept_and_followed);
	tcase_add_test(c, an_answer_that_comes_later_is_waited_for);
	tcase_add_test(c, a_cancelled_run_ends_what_waits_for_it);
	tcase_add_test(c, a_checkpoint_is_no_progress);
	tcase_add_test(c, callers_that_go_are_forgotten);
	tcase_add_test(c, events_are_streamed);
	tcase_add_test(c, runs_of_root_may_be_refused);
	tcase_add_test(c, the_store_can_be_copied);
	tcase_add_test(c, a_reload_makes_the_socket_again);
	tcase_add_test(c, a_reload_names_what_needs_a_restart);
	return unit_run(s);
}
